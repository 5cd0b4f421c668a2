//! What of a DestinationRule's policy gRPC's own library follows: how many requests there may be at once, how endpoints are
//! chosen, when one is left out for a while. (gRFC A32, A42, A48, A50; docs/guide/grpc.md, "DestinationRules".)

use crate::duration;
use strait_model::GrpcLibrary;
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::google::protobuf::{UInt32Value, UInt64Value};
use strait_rules::traffic::policy::{Algorithm, HashTable, OutlierDetection, ResolvedPolicy};
use strait_rules::traffic::proxyless::is_hashed;

/// Of the calls that an endpoint gets in an interval more than this percentage have to fail: all of them.
const FAILING_PERCENT: u32 = 99;

/// Has a library hold an upstream cluster to a policy.
pub(super) fn hold_to(
    cluster: &mut cluster::Cluster,
    policy: &ResolvedPolicy,
    library: Option<GrpcLibrary>,
) {
    let pool = policy.connection_pool.as_deref();
    // Without a threshold a library has 1,024 requests open at most; nobody asked for that.
    let max_requests = pool.and_then(|pool| pool.max_requests).unwrap_or(u32::MAX);
    let threshold = cluster::circuit_breakers::Thresholds {
        max_requests: Some(number(max_requests)),
        ..Default::default()
    };
    cluster.circuit_breakers =
        Some(cluster::CircuitBreakers { thresholds: vec![threshold], ..Default::default() });
    balance(cluster, policy, library);
    cluster.outlier_detection = policy.outlier_detection.as_deref().and_then(outlier_detection);
}

/// Has endpoints chosen as the policy says, as far as that library knows how; else in turn.
fn balance(cluster: &mut cluster::Cluster, policy: &ResolvedPolicy, library: Option<GrpcLibrary>) {
    use cluster::cluster::{LbConfig, LbPolicy, LeastRequestLbConfig, RingHashLbConfig};
    let algorithm = policy.load_balancer.as_deref().map(|balancing| &balancing.algorithm);
    let (lb_policy, lb_config) = match algorithm {
        Some(Algorithm::ConsistentHash(hash)) if is_hashed(&hash.key) => {
            let size = match hash.table {
                HashTable::Ring { minimum_size } => Some(minimum_size),
                // It has no table of Maglev's: a ring keeps keys with their endpoints as well.
                HashTable::Maglev(_) => None,
            };
            let ring = size.map(|value| {
                let minimum_ring_size = Some(UInt64Value { value });
                LbConfig::RingHashLbConfig(RingHashLbConfig {
                    minimum_ring_size,
                    ..Default::default()
                })
            });
            (LbPolicy::RingHash, ring)
        }
        Some(Algorithm::LeastRequest) if library.is_some_and(|library| library.least_request) => {
            let of_two =
                LeastRequestLbConfig { choice_count: Some(number(2)), ..Default::default() };
            (LbPolicy::LeastRequest, Some(LbConfig::LeastRequestLbConfig(of_two)))
        }
        _ => (LbPolicy::RoundRobin, None),
    };
    cluster.lb_policy = lb_policy.into();
    cluster.lb_config = lb_config;
}

/// A library counts which share of an endpoint's calls fails, and no errors in a row: where a policy names a number of
/// these, an endpoint is left out that gets so many calls in an interval and fails them all. `None` where errors count
/// nothing.
fn outlier_detection(said: &OutlierDetection) -> Option<cluster::OutlierDetection> {
    // What Envoy takes where nothing is said.
    let of_5xx = said.consecutive_5xx.unwrap_or(5);
    let all = [of_5xx, said.consecutive_gateway_errors.unwrap_or(0)];
    let errors = all.into_iter().filter(|errors| *errors != 0).min()?;
    Some(cluster::OutlierDetection {
        interval: said.interval.map(duration),
        base_ejection_time: said.base_ejection_time.map(duration),
        max_ejection_percent: said.max_ejection_percent.map(number),
        enforcing_success_rate: Some(number(0)),
        enforcing_failure_percentage: Some(number(100)),
        failure_percentage_threshold: Some(number(FAILING_PERCENT)),
        // The only one that is called is better than none: errors of the application count there as well.
        failure_percentage_minimum_hosts: Some(number(2)),
        failure_percentage_request_volume: Some(number(errors)),
        ..Default::default()
    })
}

fn number(value: u32) -> UInt32Value {
    UInt32Value { value }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::cluster::{LbConfig, LbPolicy};

    use super::*;
    use strait_rules::traffic::policy::{ConsistentHash, HashKey, LoadBalancing};

    fn held(algorithm: Algorithm, least_request: bool) -> cluster::Cluster {
        let load_balancer = LoadBalancing { algorithm, ..LoadBalancing::default() };
        let policy = ResolvedPolicy {
            load_balancer: Some(Arc::new(load_balancer)),
            ..ResolvedPolicy::default()
        };
        let mut cluster = cluster::Cluster::default();
        hold_to(&mut cluster, &policy, Some(GrpcLibrary { mtls: false, least_request }));
        cluster
    }

    #[test]
    fn open_requests_count_where_the_library_counts_them() {
        let cluster = held(Algorithm::LeastRequest, true);
        assert_eq!(cluster.lb_policy(), LbPolicy::LeastRequest);
        let Some(LbConfig::LeastRequestLbConfig(config)) = cluster.lb_config else {
            panic!("{cluster:?}")
        };
        assert_eq!(config.choice_count, Some(number(2)), "fewer are refused");
        let cluster = held(Algorithm::LeastRequest, false);
        assert_eq!((cluster.lb_policy(), &cluster.lb_config), (LbPolicy::RoundRobin, &None));
    }

    #[test]
    fn a_hash_is_a_ring_where_the_library_sees_what_is_hashed() {
        let by = |key| ConsistentHash { key, table: HashTable::Maglev(Some(65_537)) };
        let header = HashKey::Header("x-user".to_owned());
        let cluster = held(Algorithm::ConsistentHash(by(header)), false);
        assert_eq!((cluster.lb_policy(), &cluster.lb_config), (LbPolicy::RingHash, &None));
        let cluster = held(Algorithm::ConsistentHash(by(HashKey::SourceIp)), false);
        assert_eq!(cluster.lb_policy(), LbPolicy::RoundRobin);
        assert_eq!(held(Algorithm::Random, true).lb_policy(), LbPolicy::RoundRobin);
    }

    #[test]
    fn errors_in_a_row_are_calls_of_which_all_fail() {
        let volume = |said: &OutlierDetection| {
            Some(outlier_detection(said)?.failure_percentage_request_volume?.value)
        };
        let said = |of_5xx, of_gateways| OutlierDetection {
            consecutive_5xx: of_5xx,
            consecutive_gateway_errors: of_gateways,
            ..OutlierDetection::default()
        };
        assert_eq!(volume(&said(None, None)), Some(5), "Envoy's own");
        assert_eq!(volume(&said(Some(7), Some(3))), Some(3));
        assert_eq!(volume(&said(Some(0), Some(3))), Some(3));
        assert_eq!(volume(&said(Some(0), None)), None);
    }
}
