//! The parts of a DestinationRule's policy that gRPC libraries support: limits of concurrent
//! requests, load balancing and outlier detection. (gRFC A32, A42, A48, A50; docs/how-to/grpc-proxyless.md,
//! "DestinationRules".)

use crate::duration;
use strait_model::GrpcLibrary;
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::google::protobuf::{UInt32Value, UInt64Value};
use strait_rules::traffic::policy::{Algorithm, HashTable, OutlierDetection, ResolvedPolicy};
use strait_rules::traffic::proxyless::is_hashed;

/// Outlier detection ejects an endpoint if more than this percentage of the endpoint's calls in an
/// interval fail, so only if all calls fail.
const FAILING_PERCENT: u32 = 99;

/// Applies a policy to an upstream cluster.
pub(super) fn hold_to(
    cluster: &mut cluster::Cluster,
    policy: &ResolvedPolicy,
    library: Option<GrpcLibrary>,
) {
    let pool = policy.connection_pool.as_deref();
    // Without a threshold, a library would limit open requests to 1,024.
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

/// Applies the load balancing of the policy if the library supports it; otherwise the library uses
/// round robin.
fn balance(cluster: &mut cluster::Cluster, policy: &ResolvedPolicy, library: Option<GrpcLibrary>) {
    use cluster::cluster::{LbConfig, LbPolicy, LeastRequestLbConfig, RingHashLbConfig};
    let algorithm = policy.load_balancer.as_deref().map(|balancing| &balancing.algorithm);
    let (lb_policy, lb_config) = match algorithm {
        Some(Algorithm::ConsistentHash(hash)) if is_hashed(&hash.key) => {
            let size = match hash.table {
                HashTable::Ring { minimum_size } => Some(minimum_size),
                // The library does not support Maglev. A ring also maps keys to endpoints
                // consistently.
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
            let two_choices =
                LeastRequestLbConfig { choice_count: Some(number(2)), ..Default::default() };
            (LbPolicy::LeastRequest, Some(LbConfig::LeastRequestLbConfig(two_choices)))
        }
        _ => (LbPolicy::RoundRobin, None),
    };
    cluster.lb_policy = lb_policy.into();
    cluster.lb_config = lb_config;
}

/// Returns the outlier detection settings. A library counts the percentage of failed calls, not
/// consecutive errors. If a policy sets a number of consecutive errors, an endpoint is ejected if
/// it receives at least this number of calls in an interval and all fail. Returns `None` if errors
/// are not counted.
fn outlier_detection(detection: &OutlierDetection) -> Option<cluster::OutlierDetection> {
    // Envoy's default.
    let errors_5xx = detection.consecutive_5xx.unwrap_or(5);
    let all = [errors_5xx, detection.consecutive_gateway_errors.unwrap_or(0)];
    let errors = all.into_iter().filter(|errors| *errors != 0).min()?;
    Some(cluster::OutlierDetection {
        interval: detection.interval.map(duration),
        base_ejection_time: detection.base_ejection_time.map(duration),
        max_ejection_percent: detection.max_ejection_percent.map(number),
        enforcing_success_rate: Some(number(0)),
        enforcing_failure_percentage: Some(number(100)),
        failure_percentage_threshold: Some(number(FAILING_PERCENT)),
        // A single endpoint is never ejected, because errors of the application also count.
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

    fn balanced(algorithm: Algorithm, least_request: bool) -> cluster::Cluster {
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
    fn least_request_is_used_if_the_library_supports_it() {
        let cluster = balanced(Algorithm::LeastRequest, true);
        assert_eq!(cluster.lb_policy(), LbPolicy::LeastRequest);
        let Some(LbConfig::LeastRequestLbConfig(config)) = cluster.lb_config else {
            panic!("{cluster:?}")
        };
        assert_eq!(config.choice_count, Some(number(2)), "fewer are refused");
        let cluster = balanced(Algorithm::LeastRequest, false);
        assert_eq!((cluster.lb_policy(), &cluster.lb_config), (LbPolicy::RoundRobin, &None));
    }

    #[test]
    fn hash_ring_is_used_if_the_library_supports_the_key() {
        let by = |key| ConsistentHash { key, table: HashTable::Maglev(Some(65_537)) };
        let header = HashKey::Header("x-user".to_owned());
        let cluster = balanced(Algorithm::ConsistentHash(by(header)), false);
        assert_eq!((cluster.lb_policy(), &cluster.lb_config), (LbPolicy::RingHash, &None));
        let cluster = balanced(Algorithm::ConsistentHash(by(HashKey::SourceIp)), false);
        assert_eq!(cluster.lb_policy(), LbPolicy::RoundRobin);
        assert_eq!(balanced(Algorithm::Random, true).lb_policy(), LbPolicy::RoundRobin);
    }

    #[test]
    fn consecutive_errors_become_a_minimum_number_of_failed_calls() {
        let volume = |detection: &OutlierDetection| {
            Some(outlier_detection(detection)?.failure_percentage_request_volume?.value)
        };
        let detection_with = |errors_5xx, gateway_errors| OutlierDetection {
            consecutive_5xx: errors_5xx,
            consecutive_gateway_errors: gateway_errors,
            ..OutlierDetection::default()
        };
        assert_eq!(volume(&detection_with(None, None)), Some(5), "Envoy's own");
        assert_eq!(volume(&detection_with(Some(7), Some(3))), Some(3));
        assert_eq!(volume(&detection_with(Some(0), Some(3))), Some(3));
        assert_eq!(volume(&detection_with(Some(0), None)), None);
    }
}
