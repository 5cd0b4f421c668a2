//! Real Envoys of two versions that send spans to a collector, as Telemetry objects configure it.

use std::sync::Mutex;

use super::rules::version;
use super::*;
use strait_model::{Collection, ISTIO_TELEMETRY, ObjectKey};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// Requests that a collector received: path and body.
type Collected = Arc<Mutex<Vec<(String, bytes::Bytes)>>>;

/// Returns a mesh whose proxies send spans to this provider, as this Telemetry configures it.
fn traced(provider: &str, tracing: &str) -> Arc<PushContext> {
    let ports = |number| vec![port("http", number, number)];
    let app = service("app.ns").vip("10.1.0.1").ports(ports(80));
    let collector = service("traces.ns").vip("10.1.0.2").ports(ports(9411));
    let mut mesh = mesh();
    let config = format!("extensionProviders: [{{name: traces, {provider}}}]");
    let config = MeshConfig::parse(&config, &strait_model::mesh_config::Defaults::default());
    mesh.apply(MeshEvent::MeshConfig(Arc::new(config.expect("a mesh config"))));
    let services = shard("east", 1).network("n1").with(app, vec![]).with(collector, vec![]);
    mesh.apply(MeshEvent::Registry(services.built()));
    let key = ObjectKey {
        kind: "Telemetry".into(),
        group: ISTIO_TELEMETRY.into(),
        namespace: "ns".into(),
        name: "traces".into(),
    };
    let spec: Value = serde_saphyr::from_str(tracing).expect("the text is YAML");
    let objects: Collection = [(key, Arc::new(json!({ "spec": spec })))].into_iter().collect();
    let mut index = TrafficIndex::new(kind_settings());
    mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("there is something new")));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

/// Starts a collector that accepts all requests.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
async fn collector(collected: &Collected) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let collected = Arc::clone(collected);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let collected = Arc::clone(&collected);
            let take = move |request: http::Request<hyper::body::Incoming>| {
                let collected = Arc::clone(&collected);
                async move {
                    let path = request.uri().path().to_owned();
                    let body = http_body_util::BodyExt::collect(request.into_body()).await?;
                    collected.lock().expect("nobody panics").push((path, body.to_bytes()));
                    let nothing = http_body_util::Full::new(bytes::Bytes::new());
                    Ok::<_, hyper::Error>(http::Response::new(nothing))
                }
            };
            tokio::spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let executor = hyper_util::rt::TokioExecutor::new();
                let server = hyper_util::server::conn::auto::Builder::new(executor);
                let _ = server.serve_connection(io, hyper::service::service_fn(take)).await;
            });
        }
    });
    port
}

/// A provider of each kind, and the collector's path.
const PROVIDERS: [(&str, &str); 2] = [
    ("zipkin: {service: traces.ns.svc.cluster.local, port: 9411}", "/api/v2/spans"),
    (
        "opentelemetry: {service: traces.ns.svc.cluster.local, port: 9411, http: {path: /v1/traces}}",
        "/v1/traces",
    ),
];
const TRACING: &str =
    "{tracing: [{providers: [{name: traces}], randomSamplingPercentage: 100, customTags: {
    mesh: {literal: {value: ours}}, caller: {header: {name: x-user, defaultValue: nobody}}}}]}";

#[tokio::test]
async fn spans_of_requests_reach_the_collector_that_a_telemetry_names() {
    let count = Arc::default();
    let app = version("app", count).await;
    for (provider, path) in PROVIDERS {
        let context = traced(provider, TRACING);
        for envoy in envoys() {
            let collected = Collected::default();
            let upstreams = [
                ("outbound|80||app.ns.svc.cluster.local", app),
                ("outbound|9411||traces.ns.svc.cluster.local", collector(&collected).await),
            ];
            let upstreams = upstreams.map(|(name, port)| {
                json!({ "name": name, "type": "STATIC", "load_assignment": to_loopback(name, port) })
            });
            let [entry] = free_ports();
            let listener = listeners(&context, &client())["0.0.0.0_80"].clone();
            let mut listener = inlined(&context, &client(), listener);
            listener["address"] = at_loopback(entry);
            listener["bind_to_port"] = true.into();
            let mut bootstrap = bootstrap(vec![listener], upstreams.into());
            // Spans are sent immediately instead of after some seconds.
            bootstrap["layered_runtime"] = json!({ "layers": [{ "name": "test", "static_layer": {
                "tracing.zipkin.min_flush_spans": 1, "tracing.opentelemetry.min_flush_spans": 1,
            } }] });
            let running = Running::start(&envoy, &bootstrap).await;
            let answer = request(&format!("127.0.0.1:{entry}"), "/traced", "x-user: jo\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            let has_all = |body: &[u8]| {
                let text = String::from_utf8_lossy(body);
                ["/traced", "mesh", "ours", "caller", "jo"].iter().all(|part| text.contains(part))
            };
            let arrives = async {
                while !collected
                    .lock()
                    .expect("sound")
                    .iter()
                    .any(|(at, body)| at == path && has_all(body))
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            if tokio::time::timeout(WAIT_LIMIT, arrives).await.is_err() {
                panic!("{provider}: {:?}", collected.lock().expect("sound"));
            }
            drop(running);
        }
    }
}

#[test]
fn envoys_accept_every_tracing_setting() {
    let grpc =
        "opentelemetry: {service: traces.ns.svc.cluster.local, port: 9411, maxTagLength: 64}";
    for provider in PROVIDERS.map(|(provider, _)| provider).into_iter().chain([grpc]) {
        let context = traced(provider, TRACING);
        let listener = listeners(&context, &client())["0.0.0.0_80"].clone();
        let listener = inlined(&context, &client(), listener);
        assert!(listener.to_string().contains("envoy.tracers."), "{listener}");
        let name = "outbound|9411||traces.ns.svc.cluster.local";
        let upstream =
            json!({ "name": name, "type": "STATIC", "load_assignment": to_loopback(name, 1) });
        for envoy in envoys() {
            validated(&envoy, provider, &bootstrap(vec![listener.clone()], vec![upstream.clone()]));
        }
    }
}

/// Envoy refuses a listener that names an upstream cluster that does not exist.
#[test]
fn nothing_is_traced_to_an_unknown_service() {
    let gone = "zipkin: {service: gone.ns.svc.cluster.local, port: 9411}";
    let port = "zipkin: {service: traces.ns.svc.cluster.local, port: 9412}";
    for provider in [gone, port] {
        let context = traced(provider, TRACING);
        let listener = &listeners(&context, &client())["0.0.0.0_80"];
        assert!(!listener.to_string().contains("envoy.tracers."), "{listener}");
    }
}
