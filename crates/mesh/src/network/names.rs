//! The state of a gateway's DNS name, and how a DNS response changes it.
//!
//! DNS failures do not remove gateways: addresses are retained during failures without a time
//! limit, and for ten minutes if the name no longer exists. The number, kind and lifetime of the
//! addresses in a response are limited. Plain values; the caller passes the time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use strait_base::address::special;

/// The state of every required name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedNames(BTreeMap<Arc<str>, ResolvedName>);

/// The state of one name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedName {
    /// The addresses; sorted, at most [`DnsLimits::addresses_max`].
    pub addresses: Vec<IpAddr>,
    /// The clamped TTL that was received with these addresses. It is not updated while the
    /// addresses are unchanged, because caches count the TTL down and that must not look like a
    /// change.
    pub ttl: Duration,
    /// The time of the first unusable response since the last usable one.
    pub stale_since: Option<SystemTime>,
    /// When the addresses are dropped, if DNS reports that the name has none any more.
    pub kept_until: Option<SystemTime>,
    /// The problem with the last response.
    pub problem: Option<String>,
}

impl ResolvedNames {
    /// Returns the state of `name`, or `None` if no response has been received.
    pub fn get(&self, name: &str) -> Option<&ResolvedName> {
        self.0.get(name)
    }

    /// Returns every name with its state, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &ResolvedName)> {
        self.0.iter()
    }
}

impl FromIterator<(Arc<str>, ResolvedName)> for ResolvedNames {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, ResolvedName)>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}

/// Limits on DNS responses. (docs/explanation/networks-and-gateways.md, "Gateways with names".)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsLimits {
    /// The minimum time between two queries for a name.
    pub ttl_min: Duration,
    /// The maximum time for which a response is used.
    pub ttl_max: Duration,
    /// How long addresses are retained after DNS reports that the name has none.
    pub grace: Duration,
    /// The time until the first retry; doubled with each further failure.
    pub retry_min: Duration,
    /// The maximum time between two retries.
    pub retry_max: Duration,
    /// The maximum number of addresses used per name.
    pub addresses_max: usize,
    /// The maximum time for one query, including retries and all servers.
    pub question_max: Duration,
}

impl Default for DnsLimits {
    fn default() -> Self {
        Self {
            ttl_min: Duration::from_secs(5),
            ttl_max: Duration::from_secs(600),
            grace: Duration::from_secs(600),
            retry_min: Duration::from_secs(5),
            retry_max: Duration::from_secs(60),
            addresses_max: 32,
            question_max: Duration::from_secs(30),
        }
    }
}

/// The DNS response for one address family of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FamilyAnswer {
    /// The name has these addresses, valid for `ttl`.
    Addresses { addresses: Vec<IpAddr>, ttl: Duration },
    /// The name has no addresses, with the reason.
    Nothing(String),
    /// The query failed, with the reason.
    Failed(String),
}

/// The DNS responses for both address families of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameAnswers {
    pub(super) v4: FamilyAnswer,
    pub(super) v6: FamilyAnswer,
}

/// A moment on both clocks: the monotonic clock for waiting, the system clock for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClockReading {
    pub(super) instant: Instant,
    pub(super) system: SystemTime,
}

/// The history of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameHistory {
    /// The published state.
    pub(super) name: ResolvedName,
    /// When to query again.
    pub(super) next: Instant,
    /// When the current series of unusable responses began.
    trouble_since: Option<ClockReading>,
    /// When DNS first reported no addresses since the last usable response.
    absent_since: Option<ClockReading>,
}

impl NameHistory {
    /// Creates the history of a name that is due immediately. `name` is the state from before, if
    /// any.
    pub(super) fn new(name: ResolvedName, now: ClockReading) -> Self {
        Self { name, next: now.instant, trouble_since: None, absent_since: None }
    }

    /// Returns the history after these responses.
    pub(super) fn after(
        &self,
        answers: NameAnswers,
        now: ClockReading,
        limits: &DnsLimits,
    ) -> Self {
        match self.combine(answers, limits) {
            CombinedAnswer::Usable { addresses, ttl, problem } => {
                let same = addresses == self.name.addresses && !self.name.ttl.is_zero();
                let shown_ttl = if same { self.name.ttl } else { ttl };
                Self {
                    name: ResolvedName {
                        addresses,
                        ttl: shown_ttl,
                        stale_since: None,
                        kept_until: None,
                        problem,
                    },
                    next: now.instant + ttl,
                    trouble_since: None,
                    absent_since: None,
                }
            }
            CombinedAnswer::Nothing(fact) => {
                let absent_since = self.absent_since.unwrap_or(now);
                let absent_for = now.instant.saturating_duration_since(absent_since.instant);
                let mut history = self.in_trouble(fact, now, limits);
                history.absent_since = Some(absent_since);
                history.name.kept_until = None;
                if absent_for >= limits.grace {
                    history.name.addresses.clear();
                } else if !history.name.addresses.is_empty() {
                    history.name.kept_until = absent_since.system.checked_add(limits.grace);
                    // Schedule the next query no later than the end of the grace period, so that
                    // the addresses are dropped on time.
                    history.next = history.next.min(absent_since.instant + limits.grace);
                }
                history
            }
            CombinedAnswer::Failed(fact) => self.in_trouble(fact, now, limits),
        }
    }

    /// Keeps the addresses and records the problem. The next query is due after a time equal to the
    /// duration of the problem so far, so the wait doubles with each try.
    fn in_trouble(&self, fact: String, now: ClockReading, limits: &DnsLimits) -> Self {
        let since = self.trouble_since.unwrap_or(now);
        let duration = now.instant.saturating_duration_since(since.instant);
        Self {
            name: ResolvedName {
                stale_since: Some(since.system),
                kept_until: None,
                problem: Some(fact),
                ..self.name.clone()
            },
            next: now.instant + duration.clamp(limits.retry_min, limits.retry_max),
            trouble_since: Some(since),
            absent_since: self.absent_since,
        }
    }

    /// Combines the responses for both families. A family whose query failed while the other
    /// succeeded keeps its addresses.
    fn combine(&self, answers: NameAnswers, limits: &DnsLimits) -> CombinedAnswer {
        use FamilyAnswer::{Addresses, Failed, Nothing};
        let current_addresses =
            |v4: bool| self.name.addresses.iter().copied().filter(move |a| a.is_ipv4() == v4);
        match (answers.v4, answers.v6) {
            (
                Addresses { mut addresses, ttl },
                Addresses { addresses: v6_addresses, ttl: v6_ttl },
            ) => {
                addresses.extend(v6_addresses);
                usable(addresses, ttl.min(v6_ttl), None, limits)
            }
            (Addresses { addresses, ttl }, Nothing(_))
            | (Nothing(_), Addresses { addresses, ttl }) => usable(addresses, ttl, None, limits),
            (Addresses { mut addresses, ttl }, Failed(fact)) => {
                addresses.extend(current_addresses(false));
                usable(addresses, ttl, Some(format!("no IPv6 answer: {fact}")), limits)
            }
            (Failed(fact), Addresses { mut addresses, ttl }) => {
                addresses.extend(current_addresses(true));
                usable(addresses, ttl, Some(format!("no IPv4 answer: {fact}")), limits)
            }
            (Failed(fact), _) | (_, Failed(fact)) => CombinedAnswer::Failed(fact),
            (Nothing(fact), Nothing(_)) => CombinedAnswer::Nothing(fact),
        }
    }
}

/// The combined response for both families.
enum CombinedAnswer {
    Usable { addresses: Vec<IpAddr>, ttl: Duration, problem: Option<String> },
    Nothing(String),
    Failed(String),
}

/// Applies the limits. A response without any usable address counts as a response without
/// addresses.
fn usable(
    addresses: Vec<IpAddr>,
    ttl: Duration,
    problem: Option<String>,
    limits: &DnsLimits,
) -> CombinedAnswer {
    let mut addresses: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
    addresses.sort_unstable();
    addresses.dedup();
    // A DNS name must not direct proxies to their own host or link, for example to a cloud's
    // metadata service. Addresses configured by an operator are not restricted.
    let refused = addresses.iter().find_map(|address| {
        let special = special(*address)?;
        Some(format!("{address} is refused as a gateway from DNS: it is {special}"))
    });
    addresses.retain(|address| special(*address).is_none());
    if addresses.is_empty() {
        return CombinedAnswer::Nothing(refused.unwrap_or_else(|| "no addresses".to_owned()));
    }
    let too_many = (addresses.len() > limits.addresses_max).then(|| {
        addresses.truncate(limits.addresses_max);
        format!("more than {0} addresses: the first {0} are used", limits.addresses_max)
    });
    CombinedAnswer::Usable {
        addresses,
        ttl: ttl.clamp(limits.ttl_min, limits.ttl_max),
        problem: problem.or(refused).or(too_many),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn start() -> ClockReading {
        ClockReading { instant: Instant::now(), system: SystemTime::UNIX_EPOCH }
    }

    fn later(now: ClockReading, by: Duration) -> ClockReading {
        ClockReading { instant: now.instant + by, system: now.system + by }
    }

    fn addresses(list: &[&str], seconds: u64) -> FamilyAnswer {
        let addresses = list.iter().map(|text| text.parse().expect("an address")).collect();
        FamilyAnswer::Addresses { addresses, ttl: Duration::from_secs(seconds) }
    }

    fn nothing() -> FamilyAnswer {
        FamilyAnswer::Nothing("NXDOMAIN".to_owned())
    }

    fn failed() -> FamilyAnswer {
        FamilyAnswer::Failed("SERVFAIL".to_owned())
    }

    fn step(
        history: &NameHistory,
        v4: FamilyAnswer,
        v6: FamilyAnswer,
        now: ClockReading,
    ) -> NameHistory {
        history.after(NameAnswers { v4, v6 }, now, &DnsLimits::default())
    }

    /// Returns a name that was resolved to 192.0.2.1 and 2001:db8::1 at `now`.
    fn resolved(now: ClockReading) -> NameHistory {
        let new = NameHistory::new(ResolvedName::default(), now);
        step(&new, addresses(&["192.0.2.1"], 60), addresses(&["2001:db8::1"], 60), now)
    }

    fn shown(history: &NameHistory) -> Vec<String> {
        history.name.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ttl_is_clamped() {
        let now = start();
        for (given, expected) in [(0, 5), (1, 5), (5, 5), (60, 60), (600, 600), (315_360_000, 600)]
        {
            let new = NameHistory::new(ResolvedName::default(), now);
            let history = step(&new, addresses(&["192.0.2.1"], given), nothing(), now);
            assert_eq!(history.name.ttl, Duration::from_secs(expected), "{given}");
            assert_eq!(history.next, now.instant + Duration::from_secs(expected), "{given}");
            assert_eq!(history.name.problem, None);
        }
    }

    #[test]
    fn decreasing_ttl_of_a_cache_changes_nothing() {
        let now = start();
        let history = resolved(now);
        let now = later(now, MINUTE);
        let again =
            step(&history, addresses(&["192.0.2.1"], 37), addresses(&["2001:db8::1"], 40), now);
        assert_eq!(again.name, history.name);
        assert_eq!(again.next, now.instant + Duration::from_secs(37));
    }

    #[test]
    fn failures_retain_the_addresses_and_back_off() {
        let mut now = start();
        let mut history = resolved(now);
        let retained = shown(&history);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            history = step(&history, failed(), failed(), now);
            pauses.push((history.next - now.instant).as_secs());
            now = later(now, history.next - now.instant);
        }
        assert_eq!(pauses[..8], [5, 5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(shown(&history), retained);
        assert_eq!(history.name.stale_since, Some(SystemTime::UNIX_EPOCH));
        assert_eq!(history.name.problem.as_deref(), Some("SERVFAIL"));
        let recovered =
            step(&history, addresses(&["192.0.2.1"], 60), addresses(&["2001:db8::1"], 60), now);
        assert_eq!((recovered.name.stale_since, recovered.name.problem), (None, None));
    }

    #[test]
    fn missing_name_retains_its_addresses_for_ten_minutes() {
        let begin = start();
        let mut history = resolved(begin);
        let mut now = begin;
        loop {
            history = step(&history, nothing(), nothing(), now);
            let gone_for = now.instant - begin.instant;
            if gone_for >= 10 * MINUTE {
                break;
            }
            assert_eq!(shown(&history).len(), 2, "after {gone_for:?}");
            assert_eq!(history.name.kept_until, Some(begin.system + 10 * MINUTE));
            now = later(now, history.next - now.instant);
        }
        assert_eq!(
            now.instant - begin.instant,
            10 * MINUTE,
            "queried again at the end of the grace period"
        );
        assert!(shown(&history).is_empty());
        assert_eq!(history.name.problem.as_deref(), Some("NXDOMAIN"));
    }

    #[test]
    fn failure_neither_ends_nor_restarts_the_ten_minutes() {
        let begin = start();
        let absent = step(&resolved(begin), nothing(), nothing(), begin);
        let now = later(begin, 15 * MINUTE);
        let failing = step(&absent, failed(), nothing(), now);
        assert_eq!(shown(&failing).len(), 2);
        assert!(shown(&step(&failing, nothing(), nothing(), now)).is_empty());
        let recovered = step(&failing, addresses(&["192.0.2.9"], 60), nothing(), now);
        let absent_again = step(&recovered, nothing(), nothing(), later(now, MINUTE));
        assert_eq!(shown(&absent_again), ["192.0.2.9"]);
    }

    #[test]
    fn failing_address_family_retains_its_addresses() {
        let now = start();
        let history = step(&resolved(now), addresses(&["192.0.2.2"], 60), failed(), now);
        assert_eq!(shown(&history), ["192.0.2.2", "2001:db8::1"]);
        assert_eq!(history.name.problem.as_deref(), Some("no IPv6 answer: SERVFAIL"));
        assert_eq!(history.name.stale_since, None);
        let history = step(&history, addresses(&["192.0.2.2"], 60), nothing(), now);
        assert_eq!(shown(&history), ["192.0.2.2"]);
    }

    #[test]
    fn at_most_32_addresses_are_used_in_any_order() {
        let now = start();
        let mut many: Vec<String> =
            (0..1000).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
        many.reverse();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let new = NameHistory::new(ResolvedName::default(), now);
        let history = step(&new, addresses(&many, 60), nothing(), now);
        assert_eq!(shown(&history).len(), 32);
        assert_eq!(shown(&history)[0], "10.0.0.0");
        assert!(history.name.problem.is_some());
    }

    #[test]
    fn dns_addresses_of_the_own_host_or_link_are_refused() {
        let now = start();
        let new = NameHistory::new(ResolvedName::default(), now);
        let refused = [
            "127.0.0.1",
            "0.0.0.0",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:7f00:1::",
        ];
        for address in refused {
            let alone = step(&new, addresses(&[address], 60), nothing(), now);
            assert!(shown(&alone).is_empty(), "{address}");
            assert!(alone.name.problem.is_some(), "{address}");
            let among = step(&new, addresses(&[address, "10.0.0.1"], 60), nothing(), now);
            assert_eq!(shown(&among), ["10.0.0.1"], "{address}");
        }
        // A hijacked name does not drop good addresses immediately.
        let after_refusal = step(&resolved(now), addresses(&["127.0.0.1"], 60), nothing(), now);
        assert_eq!(shown(&after_refusal).len(), 2);
    }
}
