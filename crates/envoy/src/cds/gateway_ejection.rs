//! Outlier detection for services that other networks have too: a gateway is one host for all pods of
//! its network, so an error of one pod must not eject it.
//! (docs/contributing/decisions/0066-gateways-are-not-ejected.md)
//!
//! An upstream filter copies the mark of a gateway from its endpoint metadata into a response
//! header, and the error matcher of the cluster ignores responses with that header. Failed
//! connections are counted apart from responses, so an unreachable gateway is ejected. Route
//! configurations remove the header from responses to clients.

use std::time::Duration;

use super::super::{any, duration};
use super::error_matcher::{counted_statuses, header_text, predicate};
use crate::service_metrics::METADATA;
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::common::matcher::v3::match_predicate::{MatchSet, Rule};
use strait_proto::envoy::envoy::config::common::mutation_rules::v3 as mutation_rules;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::filters::http::header_mutation::v3 as header_mutation;
use strait_proto::envoy::envoy::extensions::filters::http::upstream_codec::v3::UpstreamCodec;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::envoy::extensions::upstreams::http::v3 as http;
use strait_proto::envoy::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use strait_proto::envoy::google::protobuf::{Any, UInt32Value};
use strait_rules::traffic::policy::OutlierDetection;

/// The key and value in the metadata of an endpoint ([`METADATA`]) that mark a gateway.
pub(in super::super) const GATEWAY_MARK: (&str, &str) = ("gateway", "yes");

/// The response header that marks responses through a gateway. Clients never receive it.
pub(in super::super) const GATEWAY_HEADER: &str = "x-strait-gateway";

/// Number of consecutive errors that eject an endpoint if the rule has no number (Envoy's default).
const ERRORS_DEFAULT: u32 = 5;
/// Number of failed connections after which a gateway stops to select a pod.
const FAILED_CONNECTIONS: u32 = 3;
/// Duration for which a gateway does not select an unreachable pod. Kubernetes removes such a pod
/// from its Services within a minute, and a pod that restarts in place returns soon.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// Maximum percentage of a service's pods that a gateway does not select. The last pod is always
/// selected.
const UNREACHABLE_PERCENT: u32 = 50;

/// Upstream filters that mark responses through gateways, and the matcher that ignores them.
pub(super) struct GatewayFilters {
    pub(super) errors: http::http_protocol_options::OutlierDetection,
    pub(super) filters: Vec<hcm::HttpFilter>,
}

/// Returns the filters and the matcher for a rule.
pub(super) fn filters(rule: &OutlierDetection) -> GatewayFilters {
    let mark = MatchPattern::Exact(GATEWAY_MARK.1.into());
    let is_gateway = header_text(GATEWAY_HEADER, mark);
    let not_gateway = Rule::NotMatch(Box::new(predicate(is_gateway)));
    let rules = [counted_statuses(rule), not_gateway].map(predicate).into();
    let error_matcher = Some(predicate(Rule::AndMatch(MatchSet { rules })));
    let filters = vec![
        filter("envoy.filters.http.header_mutation", any(&marking())),
        filter("envoy.filters.http.upstream_codec", any(&UpstreamCodec {})),
    ];
    let errors = http::http_protocol_options::OutlierDetection { error_matcher };
    GatewayFilters { errors, filters }
}

/// Counts failed connections apart from responses. Without `splitExternalLocalOriginErrors`, a rule
/// counts a failed connection like a response with status 503: the lowest threshold applies to it.
pub(super) fn count_connect_failures_apart(
    rule: &OutlierDetection,
    detection: &mut cluster::OutlierDetection,
) {
    if rule.split_local_origin {
        return;
    }
    let thresholds =
        [Some(rule.consecutive_5xx.unwrap_or(ERRORS_DEFAULT)), rule.consecutive_gateway_errors];
    let threshold = thresholds.into_iter().flatten().filter(|errors| *errors != 0).min();
    detection.split_external_local_origin_errors = true;
    detection.consecutive_local_origin_failure = threshold.map(number);
    detection.enforcing_consecutive_local_origin_failure =
        Some(number(if threshold.is_some() { 100 } else { 0 }));
    detection.enforcing_local_origin_success_rate = Some(number(0));
}

/// Returns the outlier detection of a gateway's upstream clusters if no rule defines it: only failed
/// connections count, so an unreachable pod costs few connections until Kubernetes removes it.
pub(super) fn of_unreachable_pods() -> cluster::OutlierDetection {
    cluster::OutlierDetection {
        split_external_local_origin_errors: true,
        consecutive_local_origin_failure: Some(number(FAILED_CONNECTIONS)),
        enforcing_consecutive_local_origin_failure: Some(number(100)),
        enforcing_local_origin_success_rate: Some(number(0)),
        enforcing_consecutive_5xx: Some(number(0)),
        enforcing_success_rate: Some(number(0)),
        base_ejection_time: Some(duration(UNREACHABLE)),
        max_ejection_time: Some(duration(UNREACHABLE)),
        max_ejection_percent: Some(number(UNREACHABLE_PERCENT)),
        ..Default::default()
    }
}

/// Returns the filter that replaces the header of every response by the mark of its endpoint. Where
/// the endpoint has no mark, Envoy adds no header, so a server cannot exempt itself.
fn marking() -> header_mutation::HeaderMutation {
    use mutation_rules::header_mutation::Action;
    let value = format!("%UPSTREAM_METADATA({METADATA}:{})%", GATEWAY_MARK.0);
    let header = core::HeaderValue { key: GATEWAY_HEADER.into(), value, ..Default::default() };
    let append = core::HeaderValueOption {
        header: Some(header),
        append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    };
    let mutations = [Action::Remove(GATEWAY_HEADER.into()), Action::Append(append)];
    let mutation = |action| mutation_rules::HeaderMutation { action: Some(action) };
    header_mutation::HeaderMutation {
        mutations: Some(header_mutation::Mutations {
            response_mutations: mutations.into_iter().map(mutation).collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn filter(name: &str, config: Any) -> hcm::HttpFilter {
    hcm::HttpFilter {
        name: name.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}

fn number(value: u32) -> UInt32Value {
    UInt32Value { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_connections_count_apart_with_the_lowest_threshold_of_the_rule() {
        for (all_errors, gateway_errors, expected) in [
            (None, None, Some(5)),
            (Some(3), None, Some(3)),
            (Some(3), Some(0), Some(3)),
            (None, Some(2), Some(2)),
            (Some(0), Some(7), Some(7)),
            (Some(0), None, None),
        ] {
            let rule = OutlierDetection {
                consecutive_5xx: all_errors,
                consecutive_gateway_errors: gateway_errors,
                ..OutlierDetection::default()
            };
            let mut detection = cluster::OutlierDetection::default();
            count_connect_failures_apart(&rule, &mut detection);
            assert!(detection.split_external_local_origin_errors, "{rule:?}");
            assert_eq!(
                detection.consecutive_local_origin_failure,
                expected.map(number),
                "{rule:?}"
            );
            let enforced = if expected.is_some() { 100 } else { 0 };
            let enforcing = detection.enforcing_consecutive_local_origin_failure;
            assert_eq!(enforcing, Some(number(enforced)), "{rule:?}");
        }
    }

    #[test]
    fn rule_that_counts_failed_connections_apart_keeps_its_thresholds() {
        let mut rule = OutlierDetection::default();
        rule.more.split_local_origin = true;
        rule.more.consecutive_local_origin_failures = Some(9);
        let mut detection = cluster::OutlierDetection::default();
        count_connect_failures_apart(&rule, &mut detection);
        assert_eq!(detection, cluster::OutlierDetection::default(), "set from the rule already");
    }
}
