//! Service metrics that real Envoys report, compared with counted requests.

mod queries;

use super::*;
use crate::service_metrics::workload_names;
use strait_mesh::push::FixedSettings;
use strait_model::EndpointMetadata;

/// The variables that the agent sets for an Envoy.
pub(super) const ENVIRONMENT: [(&str, &str); 7] = [
    ("STRAIT_METRICS_WORKLOAD", "client-v1"),
    ("STRAIT_METRICS_NAMESPACE", "ns"),
    ("STRAIT_METRICS_CLUSTER", "east"),
    ("STRAIT_METRICS_SERVICE", "client"),
    ("STRAIT_METRICS_REVISION", "v1"),
    ("STRAIT_METRICS_APP", "client"),
    ("STRAIT_METRICS_VERSION", "v1"),
];

/// Returns the series of a metric in the Prometheus format: labels and value.
fn series(text: &str, metric: &str) -> Vec<(BTreeMap<String, String>, u64)> {
    let lines = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        let is_it = name == metric || name.strip_prefix("envoy_wasmcustom_") == Some(metric);
        let labels = labels.split("\",").filter_map(|label| {
            let (name, value) = label.split_once("=\"")?;
            Some((name.to_owned(), value.trim_end_matches('"').to_owned()))
        });
        is_it.then(|| (labels.collect(), value.parse().expect("a number")))
    });
    lines.collect()
}

/// Returns the sum of the series of a metric with these labels.
fn sum(text: &str, metric: &str, labels: &[(&str, &str)]) -> u64 {
    let has = |found: &BTreeMap<String, String>| {
        labels.iter().all(|(name, value)| found.get(*name).map_or("", String::as_str) == *value)
    };
    series(text, metric).iter().filter(|(found, _)| has(found)).map(|(_, value)| value).sum()
}

/// Returns a mesh whose service `app` has an HTTP port and a TCP port at these target ports, and the
/// proxy of a workload that is its client and its server.
fn metered(http: u16, tcp: u16) -> (Arc<PushContext>, Proxy) {
    let ports = vec![port("http", 80, http), port("tcp", 82, tcp)];
    let named = |name: &str, number| {
        let telemetry = Some("app-v1;shop;app;v1".into());
        Endpoint { telemetry, ..at("10.0.0.9", name, number) }
    };
    let app = service("app.ns").vip("10.1.0.1").ports(ports);
    let pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
    let endpoints = vec![named("http", http), named("tcp", tcp)];
    let services = shard("east", 1).network("n1").with(app, endpoints).pod(pod).built();
    let settings = strait_mesh::testing::settings();
    let settings = FixedSettings { metadata: EndpointMetadata::Full, ..(*settings).clone() };
    let mut mesh = MeshState::new(Arc::new(settings));
    mesh.apply(MeshEvent::Registry(services));
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    (context, Proxy { reports_services: true, ..client() })
}

const SERVICE: [(&str, &str); 3] = [
    ("destination_service", "app.ns.svc.cluster.local"),
    ("destination_service_name", "app"),
    ("destination_service_namespace", "ns"),
];

#[tokio::test]
async fn envoy_counts_requests_and_connections_by_the_labels_of_istio() {
    let Some(envoy) = envoy() else { return };
    let [http, tcp, to_http, to_tcp] = free_ports();
    let (context, proxy) = metered(http, tcp);
    let outbound = [("0.0.0.0_80", to_http), ("10.1.0.1_82", to_tcp)];
    let echo = workload_server().await;
    let bootstrap = bootstrap_with_both_sidecars((&context, &proxy), &outbound, &[http, tcp], echo);
    let running = Running::start(&envoy, &bootstrap).await;

    let forged = "x-envoy-peer-metadata-id: forged\r\nx-envoy-peer-metadata: Zm9yZ2Vk\r\n\
                  baggage: k8s.namespace.name=forged\r\nx-forwarded-client-cert: URI=forged\r\n";
    for (address, count, headers) in [
        (to_http, 3, forged),
        (to_http, 2, "content-type: application/grpc+proto\r\n"),
        (http, 4, forged),
        (to_tcp, 2, ""),
    ] {
        for _ in 0..count {
            let answer = request(&format!("127.0.0.1:{address}"), "/", headers).await;
            assert!(answer.contains("200 OK"), "{answer}");
        }
    }

    let source = [
        &SERVICE[..],
        &[
            ("reporter", "source"),
            ("source_workload", "client-v1"),
            ("source_canonical_service", "client"),
            ("source_canonical_revision", "v1"),
            ("source_workload_namespace", "ns"),
            ("source_principal", IDENTITY),
            ("source_app", "client"),
            ("source_version", "v1"),
            ("source_cluster", "east"),
            ("destination_workload", "app-v1"),
            ("destination_workload_namespace", "shop"),
            ("destination_principal", IDENTITY),
            ("destination_app", "app"),
            ("destination_version", "v1"),
            ("destination_canonical_service", "app"),
            ("destination_canonical_revision", "v1"),
            ("destination_cluster", "east"),
            ("response_flags", "-"),
            ("connection_security_policy", "unknown"),
        ],
    ]
    .concat();
    let destination = |principal, namespace, security| {
        let rest = [
            ("reporter", "destination"),
            ("source_workload", "unknown"),
            ("source_workload_namespace", namespace),
            ("source_principal", principal),
            ("source_app", "unknown"),
            ("destination_workload", "client-v1"),
            ("destination_workload_namespace", "ns"),
            ("destination_cluster", "east"),
            ("response_flags", "-"),
            ("connection_security_policy", security),
        ];
        [&SERVICE[..], &rest[..]].concat()
    };
    let mtls =
        [&destination(IDENTITY, "ns", "mutual_tls")[..], &[("destination_principal", IDENTITY)]]
            .concat();
    let plain = destination("unknown", "unknown", "none");
    let with = |labels: &[(&'static str, &'static str)], protocol, code, status| {
        let more = [
            ("request_protocol", protocol),
            ("response_code", code),
            ("grpc_response_status", status),
        ];
        [labels, &more[..]].concat()
    };
    let mut expected = Vec::new();
    // The application does not speak gRPC, so its responses have the status of their HTTP code.
    for (labels, count) in [
        (with(&source, "http", "200", ""), 3),
        (with(&mtls, "http", "200", ""), 3),
        (with(&plain, "http", "200", ""), 4),
    ] {
        expected.push(("istio_requests_total", labels.clone(), count));
        expected.push(("istio_request_duration_milliseconds_count", labels.clone(), count));
        expected.push(("istio_request_bytes_count", labels.clone(), count));
        expected.push(("istio_response_bytes_count", labels, count));
    }
    let grpc = |labels: &[_]| [labels, &[("request_protocol", "grpc")]].concat();
    expected.push(("istio_requests_total", grpc(&source), 2));
    expected.push(("istio_requests_total", grpc(&mtls), 2));
    for labels in [with(&source, "tcp", "", ""), with(&mtls, "tcp", "", "")] {
        for metric in ["istio_tcp_connections_opened_total", "istio_tcp_connections_closed_total"] {
            expected.push((metric, labels.clone(), 2));
        }
    }
    let mut text = String::new();
    let counted = async {
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            tick.tick().await;
            text = running.query_admin("/stats/prometheus").await;
            let all = |(metric, labels, count): &(&str, Vec<_>, u64)| {
                sum(&text, metric, labels) == *count
            };
            if expected.iter().all(all) {
                return;
            }
        }
    };
    let in_time = tokio::time::timeout(WAIT_LIMIT, counted).await.is_ok();
    for (metric, labels, count) in &expected {
        let found = series(&text, metric);
        assert_eq!(sum(&text, metric, labels), *count, "{in_time} {metric} {labels:?}: {found:#?}");
    }
    let [sent, received] = ["istio_tcp_sent_bytes_total", "istio_tcp_received_bytes_total"]
        .map(|metric| sum(&text, metric, &with(&source, "tcp", "", "")));
    assert!(sent > 100 && received > 50, "{sent} {received}");
    assert!(!text.contains("forged"), "a label contains a value that a client chose");
    if let Some(promtool) = promtool() {
        queries::check(&promtool, &text);
    }
}

#[test]
fn proxies_that_report_no_service_metrics_have_no_stats_logger() {
    let (context, proxy) = metered(8080, 8082);
    let plain = Proxy { reports_services: false, ..proxy.clone() };
    for kind in [ResourceType::Listener, ResourceType::Cluster] {
        let [with, without] =
            [&proxy, &plain].map(|proxy| format!("{:?}", list_resources(&context, proxy, kind)));
        let mark = match kind {
            ResourceType::Listener => "envoy.access_loggers.stats",
            _ => "\"strait\"",
        };
        assert!(with.contains(mark) && !without.contains(mark), "{mark}: {with} {without}");
    }
}

#[test]
fn names_of_a_workload_without_parts_are_left_out() {
    let names = |text| workload_names(text, "east").collect::<Vec<_>>();
    assert_eq!(names(";;;"), [("cluster", "east")]);
    assert_eq!(
        names("web;shop;web;"),
        [("workload", "web"), ("namespace", "shop"), ("service", "web"), ("cluster", "east")]
    );
}
