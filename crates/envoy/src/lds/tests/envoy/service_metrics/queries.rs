//! Queries of Kiali's graph, of Istio's dashboards and of Flagger, evaluated by promtool on the
//! metrics of a real Envoy. The queries have the form and the labels that these programs use.

use std::path::Path;

use super::*;

/// Labels by which Kiali groups requests. It ignores series that lack one of them, except for
/// `grpc_response_status`.
const OF_REQUESTS: &str = "source_cluster,source_workload_namespace,source_workload,\
     source_canonical_service,source_canonical_revision,destination_cluster,\
     destination_service_namespace,destination_service,destination_service_name,\
     destination_workload_namespace,destination_workload,destination_canonical_service,\
     destination_canonical_revision,request_protocol,response_code,grpc_response_status,\
     response_flags";
/// Labels by which Kiali groups TCP connections.
const OF_CONNECTIONS: &str = "source_cluster,source_workload_namespace,source_workload,\
     source_canonical_service,source_canonical_revision,destination_cluster,\
     destination_service_namespace,destination_service,destination_service_name,\
     destination_workload_namespace,destination_workload,destination_canonical_service,\
     destination_canonical_revision,response_flags";

/// The client's end of a call, as a node and an edge of the graph.
const CALL: &str = "source_cluster=\"east\",source_workload_namespace=\"ns\",\
     source_workload=\"client-v1\",source_canonical_service=\"client\",\
     source_canonical_revision=\"v1\",destination_cluster=\"east\",\
     destination_service_namespace=\"ns\",destination_service=\"app.ns.svc.cluster.local\",\
     destination_service_name=\"app\",destination_workload_namespace=\"shop\",\
     destination_workload=\"app-v1\",destination_canonical_service=\"app\",\
     destination_canonical_revision=\"v1\",response_flags=\"-\"";

/// Evaluates queries on counters that grow by their scraped value every minute, so that a rate per
/// minute is that value.
pub(super) fn check(promtool: &Path, scraped: &str) {
    let series: Vec<_> = scraped
        .lines()
        .map(|line| line.strip_prefix("envoy_wasmcustom_").unwrap_or(line))
        .filter(|line| line.starts_with("istio_"))
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            json!({ "series": series, "values": format!("0+{value}x10") })
        })
        .collect();
    let rate = |metric: &str, labels: &str, by: &str| {
        format!("round(60 * sum(rate({metric}{{{labels}}}[5m])) by ({by}))")
    };
    let outgoing = "reporter=\"source\",source_workload_namespace=\"ns\"";
    let incoming = "reporter=\"destination\",destination_workload_namespace=\"ns\"";
    let http = "request_protocol=\"http\"";
    let sample =
        |labels: &str, value: u64| json!({ "labels": format!("{{{labels}}}"), "value": value });
    let served = "destination_workload=~\"client-v1\"";
    let succeeded = |labels: &str| {
        let part = format!("{labels},response_code!~\"5.*\"");
        format!(
            "sum(rate(istio_requests_total{{{part}}}[5m])) / sum(rate(istio_requests_total{{{labels}}}[5m]))"
        )
    };
    let slow = "histogram_quantile(0.95, sum(rate(istio_request_duration_milliseconds_bucket\
                {reporter=\"source\",source_workload_namespace=\"ns\"}[5m])) \
                by (le, source_workload, destination_service_name)) > bool 0";
    let queries = [
        // Kiali: requests of the workloads of a namespace.
        (
            rate("istio_requests_total", &format!("{outgoing},{http}"), OF_REQUESTS),
            vec![sample(&format!("{CALL},{http},response_code=\"200\""), 3)],
        ),
        (
            rate("istio_requests_total", outgoing, "request_protocol"),
            vec![sample("request_protocol=\"grpc\"", 2), sample(http, 3)],
        ),
        // Kiali: requests from outside of the mesh. Kiali ignores a source with a namespace and
        // without a workload, because the client has reported the same requests.
        (
            rate(
                "istio_requests_total",
                &format!("{incoming},source_workload=\"unknown\",{http}"),
                "source_workload_namespace,source_workload,source_canonical_service",
            ),
            vec![
                sample(
                    "source_workload_namespace=\"ns\",source_workload=\"unknown\",source_canonical_service=\"unknown\"",
                    3,
                ),
                sample(
                    "source_workload_namespace=\"unknown\",source_workload=\"unknown\",source_canonical_service=\"unknown\"",
                    4,
                ),
            ],
        ),
        // Kiali: the locks at edges.
        (
            rate(
                "istio_requests_total",
                &format!("{incoming},{http}"),
                "source_principal,destination_principal,connection_security_policy",
            ),
            vec![
                sample(
                    &format!(
                        "source_principal=\"{IDENTITY}\",destination_principal=\"{IDENTITY}\",connection_security_policy=\"mutual_tls\""
                    ),
                    3,
                ),
                sample(
                    "source_principal=\"unknown\",destination_principal=\"unknown\",connection_security_policy=\"none\"",
                    4,
                ),
            ],
        ),
        // Kiali: connections of the workloads of a namespace, and response times.
        (
            format!("{} > bool 0", rate("istio_tcp_sent_bytes_total", outgoing, OF_CONNECTIONS)),
            vec![sample(CALL, 1)],
        ),
        (
            slow.to_owned(),
            vec![sample("source_workload=\"client-v1\",destination_service_name=\"app\"", 1)],
        ),
        // Istio's dashboards: the success rate of a service. Flagger: that of a workload.
        (
            succeeded("reporter=\"source\",destination_service=~\"app.ns.svc.cluster.local\""),
            vec![sample("", 1)],
        ),
        (succeeded(&format!("{incoming},{served}")), vec![sample("", 1)]),
    ];
    let queries: Vec<_> = queries
        .into_iter()
        .map(|(expr, samples)| json!({ "expr": expr, "eval_time": "10m", "exp_samples": samples }))
        .collect();
    let test = json!({
        "tests": [{ "interval": "1m", "input_series": series, "promql_expr_test": queries }],
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), test.to_string()).expect("written");
    let mut command = std::process::Command::new(promtool);
    let output = command.args(["test", "rules"]).arg(file.path()).output();
    let output = output.expect("promtool runs");
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
}
