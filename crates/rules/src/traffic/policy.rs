//! Traffic policy of a service or a subset (Istio, "Destination Rule", `TrafficPolicy`;
//! docs/reference/traffic.md, "Policy resolution").

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

/// Traffic policy of a rule or a subset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TrafficPolicy {
    /// Settings for all ports.
    pub groups: PolicyGroups,
    /// Settings for single ports, which completely replace the others there.
    pub ports: SortedMap<u16, PolicyGroups>,
}

/// Groups of settings. A group is overridden as a whole: no part of the overridden group remains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PolicyGroups {
    /// Load balancing.
    pub load_balancer: Option<Arc<LoadBalancing>>,
    /// Limits on connections and requests.
    pub connection_pool: Option<Arc<PoolLimits>>,
    /// Temporary ejection of failing endpoints.
    pub outlier_detection: Option<Arc<OutlierDetection>>,
    /// TLS mode and certificates.
    pub tls: Option<Arc<ClientTls>>,
    /// PROXY protocol header with the address of the client before the data.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Maximum number of concurrent retries, as a percentage of requests.
    pub retry_budget: Option<RetryBudget>,
    /// Target to which TCP connections are tunneled in HTTP requests.
    pub tunnel: Option<Arc<Tunnel>>,
}

/// Load balancing settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LoadBalancing {
    /// Load balancing algorithm.
    pub algorithm: Algorithm,
    /// Locality preference; `None` to use the setting of the mesh.
    pub locality: Option<LocalitySetting>,
    /// Gradual increase of the load of new endpoints.
    pub warmup: Option<Warmup>,
}

/// Load balancing algorithm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The endpoint with fewer active requests of two random ones.
    #[default]
    LeastRequest,
    /// All endpoints in turn.
    RoundRobin,
    /// A random endpoint.
    Random,
    /// The original destination of the connection.
    Passthrough,
    /// An endpoint that depends on a hash of the request.
    ConsistentHash(ConsistentHash),
}

/// Consistent hashing: the hashed property of a request, and the table to find an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsistentHash {
    /// Hashed property of a request.
    pub key: HashKey,
    /// Table to find an endpoint.
    pub table: HashTable,
}

/// Property of a request that is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// A header.
    Header(String),
    /// A cookie. If it is missing and `ttl` is set, the proxy sets it; zero means a session cookie.
    Cookie {
        /// Name of the cookie.
        name: String,
        /// Path of the cookie; empty for none.
        path: String,
        /// Lifetime of the cookie.
        ttl: Option<Duration>,
        /// Other attributes of a new cookie: names and values, which may be empty.
        attributes: Vec<(String, String)>,
    },
    /// Address of the client.
    SourceIp,
    /// A query parameter.
    QueryParameter(String),
}

/// Envoy's hash tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashTable {
    /// A ring with a minimum number of entries.
    Ring {
        /// Minimum number of entries, at most 8 Mi (Envoy's limit).
        minimum_size: u64,
    },
    /// A Maglev table with this number of entries, a prime; `None` for Envoy's default of 65,537.
    Maglev(Option<u64>),
}

/// Gradual increase of the load of new endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Warmup {
    /// Duration of the increase.
    pub duration: Duration,
    /// Initial percentage of the endpoint's weight, at least 1.
    pub minimum_percent: u32,
    /// Aggression of the increase, in thousandths; 1000 is linear.
    pub aggression_milli: u32,
}

/// Version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
pub enum ProxyProtocol {
    /// Version 1, a text header.
    V1,
    /// Version 2, a binary header.
    V2,
}

/// Tunnel for TCP connections. Each is sent in one HTTP request to the service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// `HOST:PORT` in the request.
    pub target: String,
    /// Whether the request is a POST. Otherwise it is a CONNECT.
    pub by_post: bool,
}

/// Limit on concurrent retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RetryBudget {
    /// Maximum number of retries, in hundredths of a percent of requests.
    pub percent_hundredths: u32,
    /// Number of retries that are always allowed.
    pub min_retry_concurrency: u32,
}

impl PolicyGroups {
    /// Returns whether connections go to their original destination, independent of the endpoints.
    pub fn passes_through(&self) -> bool {
        let balancing = self.load_balancer.as_deref();
        balancing.is_some_and(|balancing| balancing.algorithm == Algorithm::Passthrough)
    }

    /// Fills missing groups with the defaults of the mesh, each as a whole.
    #[must_use]
    pub fn or_usual(self, usual: &UsualLimits) -> Self {
        Self {
            connection_pool: self.connection_pool.or_else(|| usual.connection_pool.clone()),
            outlier_detection: self.outlier_detection.or_else(|| usual.outlier_detection.clone()),
            ..self
        }
    }

    /// Returns whether a proxy of this type can connect to endpoints with these settings.
    pub fn can_be_used_by(&self, kind: ProxyType) -> bool {
        match self.tls.as_deref() {
            Some(ClientTls::Impossible) => false,
            Some(ClientTls::Foreign(foreign)) => !foreign.by_routers || kind.is_gateway(),
            _ => true,
        }
    }
}

impl TrafficPolicy {
    /// Returns whether the order and weights of endpoints may depend on the location of the client.
    pub(super) fn places(&self) -> bool {
        let mut groups = std::iter::once(&self.groups).chain(self.ports.values());
        groups.any(|groups| {
            let balancing = groups.load_balancer.as_deref();
            groups.outlier_detection.is_some()
                || balancing.is_some_and(|balancing| balancing.locality.is_some())
        })
    }

    /// Returns whether connections to any port go to their original destination.
    pub(super) fn passes_through(&self) -> bool {
        let mut groups = std::iter::once(&self.groups).chain(self.ports.values());
        groups.any(PolicyGroups::passes_through)
    }
}

/// Policy for one port of a service or a subset: see [`resolve`].
pub type ResolvedPolicy = PolicyGroups;

/// Returns the policy for a port of a service, overridden by that of a subset. This is the only
/// function that combines policies.
///
/// Settings of the rule for the port replace the settings for all ports. Groups of the subset then
/// replace these, each as a whole. Finally, settings of the subset for the port replace four
/// groups: load balancer, connection pool, outlier detection and TLS.
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
    if let Some(at_port) = own.ports.get(&port) {
        let PolicyGroups { load_balancer, connection_pool, outlier_detection, tls, .. } =
            at_port.clone();
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

#[cfg(test)]
mod tests;
