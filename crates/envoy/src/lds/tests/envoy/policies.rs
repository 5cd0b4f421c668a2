//! Tests of upstream clusters with policies, with real Envoys of two versions: which clusters Envoy
//! accepts, and which servers it reaches with TLS.

use super::rules::governed;
use super::*;
use strait_model::{Collection, ISTIO_NETWORKING, NamedEndpoint, ObjectKey};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;
use strait_xds::file_secret;

const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// A policy for each form of each field, by subset name.
const POLICIES: &[(&str, &str)] = &[
    ("plain", "{tls: {mode: DISABLE}}"),
    ("mesh", "{tls: {mode: ISTIO_MUTUAL}}"),
    (
        "mesh-named",
        "{tls: {mode: ISTIO_MUTUAL, sni: a.example, subjectAltNames: ['spiffe://a/b', a.example]}}",
    ),
    ("simple", "{tls: {mode: SIMPLE}}"),
    ("unchecked", "{tls: {mode: SIMPLE, insecureSkipVerify: true}}"),
    (
        "mutual",
        "{tls: {mode: MUTUAL, sni: a.example, subjectAltNames: [10.0.0.1, 'fd00::1', a.example], caCertificates: /ca, caCrl: /crl, clientCertificate: /cert, privateKey: /key}}",
    ),
    (
        "pool",
        "{connectionPool: {tcp: {maxConnections: 1, connectTimeout: 1ms, tcpKeepalive: {probes: 1, time: 1s, interval: 1s}, maxConnectionDuration: 1s, idleTimeout: 2s}, http: {http1MaxPendingRequests: 1, http2MaxRequests: 1, maxRequestsPerConnection: 1, maxRetries: 1, maxConcurrentStreams: 1, idleTimeout: 1s}}}",
    ),
    (
        "h2",
        "{connectionPool: {http: {h2UpgradePolicy: UPGRADE, maxConcurrentStreams: 2147483647}}}",
    ),
    ("client-protocol", "{connectionPool: {http: {useClientProtocol: true}}}"),
    (
        "outliers",
        "{outlierDetection: {consecutive5xxErrors: 0, consecutiveGatewayErrors: 3, splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 2, interval: 1ms, baseEjectionTime: 1ms, maxEjectionPercent: 100, minHealthPercent: 100}}",
    ),
    ("outliers-bare", "{outlierDetection: {}}"),
    ("round-robin", "{loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 1s}}}"),
    (
        "least",
        "{loadBalancer: {simple: LEAST_REQUEST, warmup: {duration: 1ms, minimumPercent: 1, aggression: 1000}}}",
    ),
    ("random", "{loadBalancer: {simple: RANDOM}}"),
    ("passthrough", "{loadBalancer: {simple: PASSTHROUGH}}"),
    ("ring", "{loadBalancer: {consistentHash: {useSourceIp: true}}}"),
    (
        "ring-sized",
        "{loadBalancer: {consistentHash: {httpHeaderName: x, ringHash: {minimumRingSize: 8388609}}}}",
    ),
    ("table", "{loadBalancer: {consistentHash: {httpHeaderName: x, maglev: {}}}}"),
    (
        "table-sized",
        "{loadBalancer: {consistentHash: {httpHeaderName: x, maglev: {tableSize: 5000011}}}}",
    ),
    (
        "pings",
        "{connectionPool: {http: {h2UpgradePolicy: UPGRADE, http2KeepAlive: {interval: 1ms, timeout: 1ms}}}}",
    ),
    ("budget", "{retryBudget: {percent: 100, minRetryConcurrency: 0}}"),
    ("announced", "{proxyProtocol: {version: V1}}"),
    ("announced-tls", "{proxyProtocol: {version: V2}, tls: {mode: SIMPLE}}"),
];

/// Returns a mesh in which the service `app.ns` has a subset for each policy.
fn with_policies(policies: &[(&str, String)], ports: Vec<Port>) -> Arc<PushContext> {
    let app = || service("app.ns").vip("10.1.0.1").ports(ports.clone());
    let headless = service("pods.ns").headless().ports(ports.clone());
    let named = NamedEndpoint {
        ports: ports.iter().map(|port| (port.name.clone(), 8080)).collect(),
        ..named_endpoint("a.example")
    };
    let by_name = ByName { just_then: false, endpoints: [named].into_iter().collect() };
    let named = service("names.ns")
        .ports(ports.clone())
        .with(|it| it.resolution = Resolution::ByName(by_name));
    let services = shard("east", 1)
        .network("n1")
        .with(app(), vec![])
        .with(headless, vec![at("10.0.0.2", "http", 8080)])
        .with(named, vec![]);
    let subsets: Vec<_> = policies
        .iter()
        .map(|(name, policy)| format!("- {{name: {name}, trafficPolicy: {policy}}}"))
        .collect();
    let specs = ["app", "pods", "names"]
        .map(|host| format!("host: {host}\nsubsets:\n{}", subsets.join("\n")));
    governed(services.built(), "DestinationRule", &specs.each_ref().map(String::as_str))
}

#[test]
fn envoys_accept_upstream_clusters_of_every_policy() {
    let policies: Vec<_> =
        POLICIES.iter().map(|(name, policy)| (*name, (*policy).to_owned())).collect();
    let ports = ["http", "grpc", "tcp", "tls", ""].iter().zip(81..);
    let ports: Vec<_> = ports.map(|(name, number)| port(name, number, 8080)).collect();
    let context = with_policies(&policies, ports);
    for envoy in envoys() {
        let is_old = envoy.to_string_lossy().contains("1.36");
        let release = Some(if is_old { (1, 36) } else { (1, 40) });
        let proxy = Proxy { envoy_release: release, ..client() };
        let clusters = list_resources(&context, &proxy, ResourceType::Cluster);
        for (name, _) in POLICIES {
            let subset_clusters = clusters.keys().filter(|key| key.contains(&format!("|{name}|")));
            assert_eq!(subset_clusters.count(), 15, "three services of five ports each: {name}");
        }
        // An Envoy that validates a configuration has no stream for secrets.
        let folder = tempfile::tempdir().expect("a directory");
        let mut clusters: Vec<_> = clusters.into_values().collect();
        clusters.iter_mut().for_each(|one| with_secrets_sent(one, folder.path()));
        validated(&envoy, "policies", &bootstrap(vec![], clusters));
    }
}

/// Writes the secrets that an upstream cluster requests by SDS to files, as they would be sent.
pub(super) fn with_secrets_sent(value: &mut Value, folder: &Path) {
    if let Some(name) = value["name"].as_str().filter(|name| name.starts_with("file-")) {
        let secret = file_secret::of_name(name).expect("the name of files");
        let secret = to_json(SECRET, &secret).expect("a secret");
        let file = folder.join(name.replace('/', "_"));
        let mut typed = json!({ "@type": SECRET });
        let fields = secret.as_object().expect("an object").clone();
        typed.as_object_mut().expect("an object").extend(fields);
        std::fs::write(&file, json!({ "resources": [typed] }).to_string()).expect("a file");
        value["sds_config"] =
            json!({ "path_config_source": { "path": file }, "resource_api_version": "V3" });
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|one| with_secrets_sent(one, folder)),
        Value::Array(list) => list.iter_mut().for_each(|one| with_secrets_sent(one, folder)),
        _ => {}
    }
}

/// Returns a listener at `port` that responds with this action, with TLS if there is a `context`.
fn answering(name: &str, port: u16, context: Option<&Value>, action: Value) -> Value {
    let mut chain = json!({ "filters": [{
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": name,
            "http_filters": [{ "name": "envoy.filters.http.router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            } }],
            "route_config": { "virtual_hosts": [{
                "name": name, "domains": ["*"], "routes": [action],
            }] },
        },
    }] });
    if let Some(context) = context {
        chain["transport_socket"] =
            json!({ "name": "envoy.transport_sockets.tls", "typed_config": context });
    }
    json!({ "name": name, "address": at_loopback(port), "filter_chains": [chain] })
}

/// Returns the TLS context of a server with a certificate for this name. With `clients`, it
/// requires client certificates of that CA.
fn serving_as(authority: &Authority, name: &str, clients: Option<&Authority>) -> Value {
    let (signed, key) = authority.sign_name(SanType::DnsName(name.try_into().expect("ASCII")));
    let mut context = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": { "tls_certificates": [{
            "certificate_chain": { "inline_string": signed.pem() },
            "private_key": { "inline_string": key.serialize_pem() },
        }] },
    });
    if let Some(clients) = clients {
        context["require_client_certificate"] = true.into();
        context["common_tls_context"]["validation_context"] =
            json!({ "trusted_ca": { "inline_string": clients.pem } });
    }
    context
}

/// One Envoy acts as the client, the servers, and plain-text servers that would receive unencrypted
/// requests.
#[tokio::test]
async fn tls_reaches_only_the_server_of_the_rule() {
    let folder = tempfile::tempdir().expect("a directory");
    let [authority, stranger] = [(); 2].map(|()| Authority::new());
    let (signed, key) = authority.sign_name(SanType::DnsName("client".try_into().expect("ASCII")));
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (ca, other_ca) = (write("ca.pem", &authority.pem), write("other.pem", &stranger.pem));
    let own = format!(
        "clientCertificate: {}, privateKey: {}",
        write("cert.pem", &signed.pem()),
        write("key.pem", &key.serialize_pem())
    );
    // The intended server, the rule, and whether a response is expected.
    let cases = [
        (
            "san",
            "tls",
            format!("mode: SIMPLE, caCertificates: {ca}, subjectAltNames: [app.ns]"),
            true,
        ),
        (
            "wrong-san",
            "tls",
            format!("mode: SIMPLE, caCertificates: {ca}, subjectAltNames: [b.ns]"),
            false,
        ),
        ("host", "tls", format!("mode: SIMPLE, caCertificates: {ca}"), true),
        ("wrong-host", "other", format!("mode: SIMPLE, caCertificates: {ca}"), false),
        ("chain", "other", format!("mode: SIMPLE, caCertificates: {ca}, sni: x"), true),
        ("wrong-roots", "tls", format!("mode: SIMPLE, caCertificates: {other_ca}"), false),
        ("system", "tls", "mode: SIMPLE".to_owned(), false),
        ("unchecked", "tls", "mode: SIMPLE, insecureSkipVerify: true".to_owned(), true),
        ("mutual", "mutual", format!("mode: MUTUAL, caCertificates: {ca}, {own}"), true),
        ("anonymous", "mutual", format!("mode: SIMPLE, caCertificates: {ca}"), false),
        ("no-file", "tls", "mode: SIMPLE, caCertificates: /nowhere/ca.pem".to_owned(), false),
        (
            "no-file-plain",
            "plain",
            "mode: SIMPLE, caCertificates: /nowhere/ca.pem".to_owned(),
            false,
        ),
        (
            "no-key",
            "mutual",
            format!(
                "mode: MUTUAL, caCertificates: {ca}, clientCertificate: /nowhere/c, privateKey: /nowhere/k"
            ),
            false,
        ),
        ("to-plain", "plain", format!("mode: SIMPLE, caCertificates: {ca}"), false),
        ("disabled", "plain", "mode: DISABLE".to_owned(), true),
    ];
    let policies: Vec<_> =
        cases.iter().map(|(name, _, tls, _)| (*name, format!("{{tls: {{{tls}}}}}"))).collect();
    let context = with_policies(&policies, vec![port("http", 80, 8080)]);
    let clusters = list_resources(&context, &client(), ResourceType::Cluster);
    for envoy in envoys() {
        let servers: [u16; 4] = free_ports();
        let entries: [u16; 15] = free_ports();
        let names = ["tls", "other", "mutual", "plain"];
        let contexts = [
            Some(serving_as(&authority, "app.ns", None)),
            Some(serving_as(&authority, "other.ns", None)),
            Some(serving_as(&authority, "app.ns", Some(&authority))),
            None,
        ];
        let mut all = Vec::new();
        for ((name, context), server) in names.iter().zip(contexts).zip(servers) {
            let text = json!({ "status": 200, "body": { "inline_string": format!("<{name}>") } });
            let action = json!({ "match": { "prefix": "/" }, "direct_response": text });
            all.push(answering(name, server, context.as_ref(), action));
        }
        let mut upstreams = Vec::new();
        for ((name, server, ..), entry) in cases.iter().zip(entries) {
            let upstream = format!("outbound|80|{name}|app.ns.svc.cluster.local");
            let server = servers[names.iter().position(|one| one == server).expect("it is there")];
            let mut cluster =
                static_cluster(clusters[&upstream].clone(), to_loopback(&upstream, server));
            with_secrets_sent(&mut cluster, folder.path());
            upstreams.push(cluster);
            let action = json!({ "match": { "prefix": "/" }, "route": { "cluster": upstream } });
            all.push(answering(&format!("to-{name}"), entry, None, action));
        }
        let running = Running::start(&envoy, &bootstrap(all, upstreams)).await;
        for ((name, server, _, answers), entry) in cases.iter().zip(entries) {
            let answer = request(&format!("127.0.0.1:{entry}"), "/", "").await;
            let (status, text) = match answers {
                true => ("200", format!("<{server}>")),
                false => ("503", String::new()),
            };
            let right =
                answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(&text);
            assert!(right, "{name} by {}: {answer}", envoy.display());
        }
        // A server counts a response only after it has sent it.
        let counted = async {
            loop {
                let stats = running.query_admin("/stats?filter=http.plain.downstream_rq_2xx").await;
                if !stats.contains("rq_2xx: 0\n") {
                    return stats;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let stats = tokio::time::timeout(WAIT_LIMIT, counted).await.expect("it is counted");
        assert!(stats.contains("rq_2xx: 1\n"), "only DISABLE uses plain text: {stats}");
    }
}

/// Returns the inbound cluster of port 8080 of a workload of `app.ns`, with these objects in its
/// namespace.
fn inbound_cluster(objects: &[(&str, &str)]) -> Value {
    let app = service("app.ns").vip("10.1.0.1").ports(vec![port("http", 80, 8080)]);
    let pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
    let mut mesh = mesh();
    let services = shard("east", 1).network("n1").with(app, vec![]).pod(pod).built();
    mesh.apply(MeshEvent::Registry(services));
    let object = |(at, (kind, spec)): (usize, &(&str, &str))| {
        let key = ObjectKey {
            kind: (*kind).into(),
            group: ISTIO_NETWORKING.into(),
            namespace: "ns".into(),
            name: format!("rule-{at}").into(),
        };
        let spec: Value = serde_saphyr::from_str(spec).expect("the text is YAML");
        (key, Arc::new(json!({ "spec": spec })))
    };
    let objects: Collection = objects.iter().enumerate().map(object).collect();
    let mut index = TrafficIndex::new(kind_settings());
    mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("there is something new")));
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    list_resources(&context, &client(), ResourceType::Cluster)
        .remove("inbound|8080||")
        .expect("a cluster")
}

#[test]
fn rule_limits_apply_at_workloads_unless_a_sidecar_sets_limits() {
    let rule = "{host: app, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}, \
        portLevelSettings: [{port: {number: 81}, connectionPool: {tcp: {maxConnections: 1}}}]}}";
    let for_clients = "{host: app, workloadSelector: {matchLabels: {app: app}}, \
        trafficPolicy: {connectionPool: {tcp: {maxConnections: 9}}}}";
    let sidecar = "{inboundConnectionPool: {http: {http2MaxRequests: 3}}}";
    let limits = |objects: &[(&str, &str)]| {
        let cluster = inbound_cluster(objects);
        let limits = &cluster["circuit_breakers"]["thresholds"][0];
        [limits["max_connections"].clone(), limits["max_requests"].clone()]
    };
    let unlimited = json!(u32::MAX);
    let service_rule = ("DestinationRule", rule);
    assert_eq!(limits(&[service_rule]), [json!(7), unlimited.clone()]);
    assert_eq!(limits(&[("DestinationRule", for_clients)]), [unlimited.clone(), unlimited.clone()]);
    assert_eq!(limits(&[service_rule, ("Sidecar", sidecar)]), [unlimited, json!(3)]);
}

#[test]
fn client_protocol_is_used_if_the_port_declares_none_or_the_pool_sets_it() {
    let rule = "{host: app, trafficPolicy: {connectionPool: {http: {useClientProtocol: true}}}}";
    let other = "{host: app, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}";
    for (rule, uses_client_protocol) in [(rule, true), (other, false)] {
        let cluster = inbound_cluster(&[("DestinationRule", rule)]);
        let options = cluster["typed_extension_protocol_options"].to_string();
        assert_eq!(
            options.contains("use_downstream_protocol_config"),
            uses_client_protocol,
            "{rule}"
        );
    }
}
