//! How a service, or a part of it, is spoken to. (Istio, "Destination Rule", `TrafficPolicy`;
//! docs/reference/traffic.md, "Policy resolution".)

mod client_tls;
mod raw;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

pub(super) use self::client_tls::path_fault;
pub use self::client_tls::{
    ClientCertificate, ClientTls, ForeignTls, NameKind, RuleScope, ServerName, TrustedRoots,
};
pub(super) use self::raw::{RawTrafficPolicy, pool_limits};
pub use strait_model::mesh_config::{Http2Pings, OutlierDetection, PoolLimits};
use strait_model::mesh_config::{LocalitySetting, UsualLimits};
pub use strait_model::tls_files::{PairFiles, RootFiles};
use strait_model::{ProxyType, SortedMap};

/// What a rule says of how a service is spoken to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TrafficPolicy {
    /// What holds on all ports.
    pub groups: PolicyGroups,
    /// What holds on a port instead: these groups replace the others wholly.
    pub ports: SortedMap<u16, PolicyGroups>,
}

/// The groups of settings. A group counts whole: where one replaces another, nothing of that is left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PolicyGroups {
    /// Which endpoint a request goes to.
    pub load_balancer: Option<Arc<LoadBalancing>>,
    /// How many connections and requests there may be.
    pub connection_pool: Option<Arc<PoolLimits>>,
    /// When an endpoint is left out for a while.
    pub outlier_detection: Option<Arc<OutlierDetection>>,
    /// Whether and how it is spoken to by TLS.
    pub tls: Option<Arc<ClientTls>>,
    /// Whether the address of the client is sent ahead of the bytes.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// How many retries there may be at once, as a share of requests.
    pub retry_budget: Option<RetryBudget>,
    /// To where connections of bytes are passed on inside of requests.
    pub tunnel: Option<Arc<Tunnel>>,
}

/// The way to choose an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LoadBalancing {
    /// By which rule.
    pub algorithm: Algorithm,
    /// Which places come first; `None` where the rule doesn't say, and the mesh's setting counts.
    pub locality: Option<LocalitySetting>,
    /// How a new endpoint is given more and more.
    pub warmup: Option<Warmup>,
}

/// The rule by which an endpoint is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The one with fewer open requests of two.
    #[default]
    LeastRequest,
    /// In turn.
    RoundRobin,
    /// Any.
    Random,
    /// Where the client was going.
    Passthrough,
    /// By a hash of the request.
    ConsistentHash(ConsistentHash),
}

/// How requests are told apart, and endpoints found by that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsistentHash {
    /// What of a request counts.
    pub key: HashKey,
    /// How endpoints are found.
    pub table: HashTable,
}

/// What of a request is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// A header.
    Header(String),
    /// A cookie, which is set where it lacks and there is a lifetime (zero for the session).
    Cookie {
        /// Its name.
        name: String,
        /// Its path; empty for none.
        path: String,
        /// Its lifetime.
        ttl: Option<Duration>,
        /// What else is said of one that is set: names with values, which may be empty.
        attributes: Vec<(String, String)>,
    },
    /// The address of the client.
    SourceIp,
    /// A parameter of the query.
    QueryParameter(String),
}

/// Envoy's two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashTable {
    /// A ring of at least so many entries.
    Ring {
        /// At most 8 Mi (Envoy's limit).
        minimum_size: u64,
    },
    /// A table of so many entries, a prime; `None` for Envoy's 65,537.
    Maglev(Option<u64>),
}

/// How a new endpoint is given more and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Warmup {
    /// For how long.
    pub duration: Duration,
    /// With which percentage of its weight it begins, at least 1.
    pub minimum_percent: u32,
    /// How it rises, in thousandths: 1000 is even.
    pub aggression_milli: u32,
}

/// The version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
pub enum ProxyProtocol {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// To where connections of bytes are passed on, by a request to the service for each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// `HOST:PORT`, which the request names.
    pub target: String,
    /// Whether that is a POST; else a CONNECT.
    pub by_post: bool,
}

/// How many retries there may be at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RetryBudget {
    /// In hundredths of a percent of requests.
    pub percent_hundredths: u32,
    /// This many always.
    pub min_retry_concurrency: u32,
}

impl PolicyGroups {
    /// Whether connections go where the client was going, whatever endpoints there are.
    pub fn passes_through(&self) -> bool {
        let balancing = self.load_balancer.as_deref();
        balancing.is_some_and(|balancing| balancing.algorithm == Algorithm::Passthrough)
    }

    /// With what the mesh says where this says nothing: each group as a whole.
    #[must_use]
    pub fn or_usual(self, usual: &UsualLimits) -> Self {
        Self {
            connection_pool: self.connection_pool.or_else(|| usual.connection_pool.clone()),
            outlier_detection: self.outlier_detection.or_else(|| usual.outlier_detection.clone()),
            ..self
        }
    }

    /// Whether a proxy of that type has a way to speak to endpoints as it says.
    pub fn can_be_spoken_by(&self, kind: ProxyType) -> bool {
        match self.tls.as_deref() {
            Some(ClientTls::Impossible) => false,
            Some(ClientTls::Foreign(foreign)) => !foreign.by_routers || kind == ProxyType::Router,
            _ => true,
        }
    }
}

impl TrafficPolicy {
    /// Whether it may matter for the order and shares of endpoints where a client is.
    pub(super) fn places(&self) -> bool {
        let mut groups = std::iter::once(&self.groups).chain(self.ports.values());
        groups.any(|groups| {
            let balancing = groups.load_balancer.as_deref();
            groups.outlier_detection.is_some()
                || balancing.is_some_and(|balancing| balancing.locality.is_some())
        })
    }

    /// Whether connections to some port go where the client was going.
    pub(super) fn passes_through(&self) -> bool {
        let mut groups = std::iter::once(&self.groups).chain(self.ports.values());
        groups.any(PolicyGroups::passes_through)
    }
}

/// What holds for one port of a service, or of a part of it: see [`resolve`].
pub type ResolvedPolicy = PolicyGroups;

/// What a rule's policy says for a port of a service, and over it that of a subset. The one place where this is decided.
///
/// What a rule says of the port replaces what it says of all ports; a part's own groups then replace the others, each
/// whole; and what the part says of the port replaces these four: load balancer, pool, outlier detection, TLS.
pub fn resolve(
    policy: Option<&TrafficPolicy>,
    subset: Option<&TrafficPolicy>,
    port: u16,
) -> ResolvedPolicy {
    let mut groups = match policy {
        Some(policy) => policy.ports.get(&port).unwrap_or(&policy.groups).clone(),
        None => PolicyGroups::default(),
    };
    let Some(own) = subset else { return groups };
    groups.overlay(&own.groups);
    if let Some(of_port) = own.ports.get(&port) {
        let PolicyGroups { load_balancer, connection_pool, outlier_detection, tls, .. } =
            of_port.clone();
        groups = PolicyGroups { load_balancer, connection_pool, outlier_detection, tls, ..groups };
    }
    groups
}

impl PolicyGroups {
    fn overlay(&mut self, over: &Self) {
        fn put<T: Clone>(under: &mut Option<T>, over: Option<&T>) {
            if let Some(over) = over {
                *under = Some(over.clone());
            }
        }
        put(&mut self.load_balancer, over.load_balancer.as_ref());
        put(&mut self.connection_pool, over.connection_pool.as_ref());
        put(&mut self.outlier_detection, over.outlier_detection.as_ref());
        put(&mut self.tls, over.tls.as_ref());
        put(&mut self.proxy_protocol, over.proxy_protocol.as_ref());
        put(&mut self.retry_budget, over.retry_budget.as_ref());
        put(&mut self.tunnel, over.tunnel.as_ref());
    }
}
