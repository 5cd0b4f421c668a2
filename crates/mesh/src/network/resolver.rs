//! The task that resolves the hostnames of gateways.
//!
//! Owns the queries in flight. Each name is queried on its own schedule, so a slow name delays no
//! other. No task waits for this one, and it holds no lock. `super::names` decides how a response
//! changes the state of a name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use tokio::sync::watch;
use tracing::{debug, info};

pub use super::names::DnsLimits;
use super::names::{ClockReading, FamilyAnswer, NameAnswers, NameHistory};
use super::{ResolvedName, ResolvedNames};
use strait_base::latest::publish_change;
use strait_base::task::until;

/// A DNS client. Clones share connections.
#[derive(Clone)]
pub struct Dns(TokioResolver);

/// The system's DNS configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the system's DNS configuration can't be used")]
pub struct NoDns(#[source] NetError);

impl Dns {
    /// Creates a client that uses the servers and the hosts file of the system.
    ///
    /// # Errors
    /// If the system's configuration cannot be read.
    pub fn system() -> Result<Self, NoDns> {
        let mut builder = TokioResolver::builder_tokio().map_err(NoDns)?;
        *builder.options_mut() = options(builder.options_mut().clone());
        Ok(Self(builder.build().map_err(NoDns)?))
    }

    /// Creates a client of one server, without a hosts file. Each try of a query takes at most
    /// `timeout`.
    ///
    /// # Errors
    /// If no resolver can be built for the server.
    pub fn at(server: SocketAddr, timeout: Duration) -> Result<Self, NoDns> {
        let connection = |mut connection: ConnectionConfig| {
            connection.port = server.port();
            connection
        };
        let connections =
            vec![connection(ConnectionConfig::udp()), connection(ConnectionConfig::tcp())];
        let server = NameServerConfig::new(server.ip(), true, connections);
        let config = ResolverConfig::from_name_servers(vec![server]);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let mut resolver_options = options(ResolverOpts::default());
        resolver_options.timeout = timeout;
        resolver_options.use_hosts_file = ResolveHosts::Never;
        *builder.options_mut() = resolver_options;
        Ok(Self(builder.build().map_err(NoDns)?))
    }

    /// Queries both address families of `name` concurrently. The final dot excludes search domains.
    async fn lookup(&self, name: &str, limit: Duration) -> NameAnswers {
        let name = format!("{name}.");
        let timed_out = || FamilyAnswer::Failed(format!("no answer within {} s", limit.as_secs()));
        let v4 = async {
            let result = tokio::time::timeout(limit, self.0.ipv4_lookup(name.as_str())).await;
            result.map_or_else(|_| timed_out(), read)
        };
        let v6 = async {
            let result = tokio::time::timeout(limit, self.0.ipv6_lookup(name.as_str())).await;
            result.map_or_else(|_| timed_out(), read)
        };
        let (v4, v6) = tokio::join!(v4, v6);
        NameAnswers { v4, v6 }
    }
}

/// Disables the resolver's cache: this module stores each response with its expiry, and a second
/// cache would hide changes.
fn options(mut options: ResolverOpts) -> ResolverOpts {
    options.cache_size = 0;
    options
}

/// Keeps `resolved` up to date with the DNS responses for `names`, until the sender of `names` is
/// dropped or the task is stopped. The initial content of `resolved` is retained until responses
/// arrive, so that a restart loses nothing. Receivers are notified only of differences.
pub async fn run(
    dns: Dns,
    limits: DnsLimits,
    mut names: watch::Receiver<BTreeSet<Arc<str>>>,
    resolved: watch::Sender<Arc<ResolvedNames>>,
) {
    let mut histories = NameHistories::from(&resolved.borrow());
    // At most one query per required name; `Networks` limits the number of names.
    let mut queries: FuturesUnordered<BoxFuture<'static, (Arc<str>, NameAnswers)>> =
        FuturesUnordered::new();
    loop {
        histories.set_names(&names.borrow_and_update(), now());
        histories.publish(&resolved);
        for name in histories.due(now().instant) {
            let (dns, limit) = (dns.clone(), limits.question_max);
            queries.push(Box::pin(async move {
                let answers = dns.lookup(&name, limit).await;
                (name, answers)
            }));
        }
        let next = histories.next();
        tokio::select! {
            changed = names.changed() => if changed.is_err() { return },
            Some((name, answers)) = queries.next() => histories.answered(&name, answers, now(), &limits),
            () = until(next) => {}
        }
    }
}

fn now() -> ClockReading {
    ClockReading { instant: Instant::now(), system: SystemTime::now() }
}

/// The state of every required name.
struct NameHistories(BTreeMap<Arc<str>, ResolvedState>);

struct ResolvedState {
    history: NameHistory,
    /// Whether a query is in flight.
    waiting: bool,
    /// Whether a response has been received, in this process or before a restart.
    known: bool,
}

impl NameHistories {
    fn from(names: &ResolvedNames) -> Self {
        let known_state = |name: &ResolvedName| ResolvedState {
            history: NameHistory::new(name.clone(), now()),
            waiting: false,
            known: true,
        };
        Self(names.iter().map(|(key, name)| (Arc::clone(key), known_state(name))).collect())
    }

    /// Forgets names that are no longer required and adds new ones.
    fn set_names(&mut self, names: &BTreeSet<Arc<str>>, now: ClockReading) {
        self.0.retain(|name, _| names.contains(name));
        for name in names {
            self.0.entry(Arc::clone(name)).or_insert_with(|| ResolvedState {
                history: NameHistory::new(ResolvedName::default(), now),
                waiting: false,
                known: false,
            });
        }
    }

    /// Returns the names that are due, and marks them as in flight.
    fn due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let due =
            self.0.iter_mut().filter(|(_, state)| !state.waiting && state.history.next <= now);
        due.map(|(name, state)| {
            state.waiting = true;
            Arc::clone(name)
        })
        .collect()
    }

    /// Returns when the next name is due.
    fn next(&self) -> Option<Instant> {
        self.0.values().filter(|state| !state.waiting).map(|state| state.history.next).min()
    }

    fn answered(
        &mut self,
        name: &str,
        answers: NameAnswers,
        now: ClockReading,
        limits: &DnsLimits,
    ) {
        // The name is no longer required.
        let Some(state) = self.0.get_mut(name) else { return };
        let history = state.history.after(answers, now, limits);
        if history.name.addresses != state.history.name.addresses {
            info!(name, addresses = ?history.name.addresses, "addresses of a gateway name changed");
        }
        if history.name.problem != state.history.name.problem {
            debug!(name, problem = ?history.name.problem, "DNS problem of a gateway name changed");
        }
        *state = ResolvedState { history, waiting: false, known: true };
    }

    fn publish(&self, resolved: &watch::Sender<Arc<ResolvedNames>>) {
        let names = self.0.iter().filter(|(_, state)| state.known);
        let names: ResolvedNames =
            names.map(|(key, state)| (Arc::clone(key), state.history.name.clone())).collect();
        publish_change(resolved, Arc::new(names));
    }
}

/// Interprets the lookup of one address family. The texts are stable, so that equal problems
/// compare as equal.
fn read(result: Result<Lookup, NetError>) -> FamilyAnswer {
    let lookup = match result {
        Ok(lookup) => lookup,
        Err(NetError::Dns(DnsError::NoRecordsFound(no_records))) => {
            return refused(no_records.response_code);
        }
        Err(NetError::Dns(DnsError::ResponseCode(code))) => return refused(code),
        Err(NetError::Timeout) => return FamilyAnswer::Failed("no DNS server answered".to_owned()),
        Err(error) => return FamilyAnswer::Failed(error.to_string()),
    };
    let addresses: Vec<IpAddr> =
        lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
    // The minimum TTL of all records applies, including CNAME records on the way.
    let ttl = lookup.answers().iter().map(|record| record.ttl).min().unwrap_or_default();
    if addresses.is_empty() {
        return FamilyAnswer::Nothing("no addresses".to_owned());
    }
    FamilyAnswer::Addresses { addresses, ttl: Duration::from_secs(ttl.into()) }
}

fn refused(code: ResponseCode) -> FamilyAnswer {
    match code {
        ResponseCode::NXDomain => FamilyAnswer::Nothing("NXDOMAIN".to_owned()),
        ResponseCode::NoError => FamilyAnswer::Nothing("no addresses".to_owned()),
        ResponseCode::ServFail => FamilyAnswer::Failed("SERVFAIL".to_owned()),
        ResponseCode::Refused => FamilyAnswer::Failed("REFUSED".to_owned()),
        other => FamilyAnswer::Failed(format!("DNS answered {other}")),
    }
}

#[cfg(test)]
mod tests;
