//! Turns gateway host names into addresses.
//!
//! A task of its own: nothing waits for it, and a slow name delays no other. What an answer means for
//! the addresses before it is pure, in [`ResolvedName::after`].
//!
//! | answer | addresses |
//! |---|---|
//! | addresses | these, at most 32, without those that no gateway can have; asked again after their TTL, clamped to 5 s to 10 min |
//! | the name doesn't exist, or has no address | kept for 10 min, then gone |
//! | the servers fail or stay silent | kept |

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hickory_resolver::TokioResolver;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::codes;

/// The shortest an answer stands.
const TTL_MIN: Duration = Duration::from_secs(5);
/// The longest an answer stands.
const TTL_MAX: Duration = Duration::from_mins(10);
/// How long addresses outlive their name.
const GONE_GRACE: Duration = Duration::from_mins(10);
/// The most addresses a name may stand for.
const ADDRESSES_MAX: usize = 32;
/// How long one question may take, all servers and tries included.
const QUESTION_DEADLINE: Duration = Duration::from_secs(10);

/// What is known of each name.
pub type ResolvedNames = BTreeMap<Arc<str>, ResolvedName>;

/// What is known of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedName {
    /// Its addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// How long the last good answer stands, as clamped.
    pub ttl: Duration,
    /// Why the last question had no good answer.
    pub problem: Option<String>,
    /// Since when the name has had no address of its own.
    gone_since: Option<Instant>,
}

/// What DNS says of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its addresses, and for how long they stand.
    Addresses(Vec<IpAddr>, Duration),
    /// There is no such name, or it has no address.
    Gone(String),
    /// Nobody could say.
    Failed(String),
}

impl ResolvedName {
    /// What is known once `answer` has come, and how long to wait before asking again.
    pub fn after(self, answer: Answer, now: Instant) -> (Self, Duration) {
        match answer {
            Answer::Addresses(found, ttl) => {
                let total = found.len();
                let usable: BTreeSet<_> = found.into_iter().filter(may_be_gateway).collect();
                let refused = total - usable.len();
                if usable.is_empty() {
                    let text = format!("all {refused} addresses are of a kind no gateway has");
                    return self.after(Answer::Gone(text), now);
                }
                let ttl = ttl.clamp(TTL_MIN, TTL_MAX);
                let addresses = usable.into_iter().take(ADDRESSES_MAX).collect();
                (Self { addresses, ttl, problem: None, gone_since: None }, ttl)
            }
            Answer::Gone(problem) => {
                let since = self.gone_since.unwrap_or(now);
                let over = now.duration_since(since) >= GONE_GRACE;
                let addresses = if over { Vec::new() } else { self.addresses };
                let problem = Some(problem);
                let gone = Self { addresses, problem, gone_since: Some(since), ..self };
                (gone, TTL_MIN * 2)
            }
            Answer::Failed(problem) => (Self { problem: Some(problem), ..self }, TTL_MIN * 2),
        }
    }

    /// Whether a reader would see a difference.
    fn looks_like(&self, other: &Self) -> bool {
        self.addresses == other.addresses && self.ttl == other.ttl && self.problem == other.problem
    }
}

/// Whether a gateway of another network can have this address. An answer that points at ourselves or
/// at a metadata service is a mistake or an attack.
fn may_be_gateway(address: &IpAddr) -> bool {
    let never = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(never || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Keeps `resolved` up to date with DNS for the names in `wanted`, until either channel ends.
pub async fn run(
    resolver: TokioResolver,
    mut wanted: watch::Receiver<BTreeSet<Arc<str>>>,
    resolved: watch::Sender<Arc<ResolvedNames>>,
) {
    let mut known = ResolvedNames::new();
    let mut questions = FuturesUnordered::new();
    let ask = |name: Arc<str>, pause: Duration| {
        let resolver = resolver.clone();
        async move {
            tokio::time::sleep(pause).await;
            let answer = question(&resolver, &name).await;
            (name, answer)
        }
    };
    // A name is asked by one question at a time, from when it is first wanted until it no longer is.
    let mut asked: BTreeSet<Arc<str>> = BTreeSet::new();
    loop {
        let names = wanted.borrow_and_update().clone();
        let before = known.len();
        known.retain(|name, _| names.contains(name));
        if known.len() != before {
            resolved.send_replace(Arc::new(known.clone()));
        }
        for name in names {
            if asked.insert(Arc::clone(&name)) {
                questions.push(ask(name, Duration::ZERO));
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = resolved.closed() => return,
            Some((name, answer)) = questions.next() => {
                if !wanted.borrow().contains(&name) {
                    asked.remove(&name);
                    continue;
                }
                let old = known.get(&name).cloned();
                let (new, pause) =
                    old.clone().unwrap_or_default().after(answer, Instant::now());
                if old.is_none_or(|old| !old.looks_like(&new)) {
                    tell(&name, &new);
                    known.insert(Arc::clone(&name), new);
                    resolved.send_replace(Arc::new(known.clone()));
                } else {
                    known.insert(Arc::clone(&name), new);
                }
                questions.push(ask(name, pause));
            }
        }
    }
}

fn tell(name: &str, resolved: &ResolvedName) {
    match &resolved.problem {
        None => info!(name, addresses = ?resolved.addresses, ttl = ?resolved.ttl, "gateway name"),
        Some(problem) => {
            let kept = resolved.addresses.len();
            warn!(code = %codes::GATEWAY_NAME, name, problem, kept, "gateway name without an answer");
        }
    }
}

async fn question(resolver: &TokioResolver, name: &str) -> Answer {
    // Absolute: a search domain must not turn one name into another.
    let lookup = resolver.lookup_ip(format!("{name}."));
    match tokio::time::timeout(QUESTION_DEADLINE, lookup).await {
        Err(_) => Answer::Failed(format!("no answer within {} s", QUESTION_DEADLINE.as_secs())),
        Ok(Ok(found)) => {
            let ttl = found.valid_until().saturating_duration_since(Instant::now());
            Answer::Addresses(found.iter().collect(), ttl)
        }
        Ok(Err(error)) if error.is_nx_domain() => Answer::Gone("no such name".to_owned()),
        Ok(Err(error)) if error.is_no_records_found() => {
            Answer::Gone("the name has no address".to_owned())
        }
        Ok(Err(error)) => Answer::Failed(error.to_string()),
    }
}

/// The resolver of this machine, without a cache of its own: what stands for how long is decided
/// here.
///
/// # Errors
/// When the system's configuration can't be read.
pub fn of_system() -> Result<TokioResolver, hickory_resolver::net::NetError> {
    let mut builder = TokioResolver::builder_tokio()?;
    let options = builder.options_mut();
    options.cache_size = 0;
    options.timeout = Duration::from_secs(3);
    options.ip_strategy = hickory_resolver::config::LookupIpStrategy::Ipv4AndIpv6;
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ip;

    fn addresses(list: &[&str], seconds: u64) -> Answer {
        let list = list.iter().map(|address| ip(address)).collect();
        Answer::Addresses(list, Duration::from_secs(seconds))
    }

    #[test]
    fn a_ttl_is_clamped_and_decides_when_to_ask_again() {
        for (ttl, clamped) in [(0, 5), (1, 5), (60, 60), (315_360_000, 600)] {
            let (name, pause) =
                ResolvedName::default().after(addresses(&["203.0.113.1"], ttl), Instant::now());
            assert_eq!(name.ttl, Duration::from_secs(clamped));
            assert_eq!(pause, Duration::from_secs(clamped));
        }
    }

    #[test]
    fn addresses_that_no_gateway_has_are_left_out_and_the_rest_capped() {
        let odd = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "fe80::1", "::1"];
        let mut many: Vec<String> = (0..200).map(|n| format!("10.0.0.{n}")).collect();
        many.extend(odd.iter().map(|address| (*address).to_owned()));
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (name, _) = ResolvedName::default().after(addresses(&many, 60), Instant::now());
        assert_eq!(name.addresses.len(), ADDRESSES_MAX);
        let (none, _) = ResolvedName::default().after(addresses(&odd, 60), Instant::now());
        assert!(none.addresses.is_empty() && none.problem.is_some());
    }

    #[test]
    fn a_name_that_is_gone_keeps_its_addresses_for_a_grace_and_failures_keep_them_always() {
        let start = Instant::now();
        let gone = || Answer::Gone("no such name".into());
        let failed = || Answer::Failed("SERVFAIL".into());
        let (name, _) = ResolvedName::default().after(addresses(&["203.0.113.1"], 60), start);
        let (name, _) = name.after(failed(), start + GONE_GRACE * 5);
        assert_eq!(name.addresses.len(), 1);
        let gone_at = start + GONE_GRACE * 5;
        let (name, _) = name.after(gone(), gone_at);
        let (name, _) = name.after(gone(), gone_at + GONE_GRACE / 2);
        assert_eq!(name.addresses.len(), 1);
        let (back, _) = name.clone().after(addresses(&["203.0.113.2"], 60), gone_at + GONE_GRACE);
        assert_eq!(back.addresses, [ip("203.0.113.2")]);
        let (over, _) = name.after(gone(), gone_at + GONE_GRACE);
        assert!(over.addresses.is_empty());
    }
}
