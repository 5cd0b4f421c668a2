//! Tests of Sidecars with real Envoys of two versions: inbound connections, and destinations of
//! outbound connections.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::policies::with_secrets_sent;
use super::rules::version;
use super::*;
use crate::lds::tests::access::event_with_root;
use strait_model::{Collection, ISTIO_NETWORKING, ObjectKey};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// Returns the mesh of a workload that follows this Sidecar and accepts plain text only.
fn following(spec: &Value, ports: Vec<Port>) -> Arc<PushContext> {
    let service = |name: &str, vip: &str| service(name).vip(vip).ports(ports.clone());
    let update = shard("east", 1)
        .network("n1")
        .with(service("app.ns", "10.1.0.1"), vec![])
        .with(service("out.ns", "10.1.0.2"), vec![])
        .pod(workload("client.ns", "10.0.0.1", &[("app", "app")]));
    let peer = json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": { "namespace": "ns", "name": "plain" }, "spec": { "mtls": { "mode": "DISABLE" } },
    });
    let key = ObjectKey {
        kind: "Sidecar".into(),
        group: ISTIO_NETWORKING.into(),
        namespace: "ns".into(),
        name: "one".into(),
    };
    let objects: Collection = [(key, Arc::new(json!({ "spec": spec })))].into_iter().collect();
    let mut index = TrafficIndex::new(kind_settings());
    let mut mesh = mesh();
    mesh.apply(MeshEvent::Registry(update.built()));
    mesh.apply(event_with_root("istio-system", [peer]));
    mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("there is something new")));
    assert_eq!(index.take_new_reasons(), [], "no part of it is ignored");
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

/// Inlines the route configuration of a listener with a single chain.
fn with_routes(context: &Arc<PushContext>, mut listener: Value) -> Value {
    if listener["default_filter_chain"].is_null() {
        return listener;
    }
    let config = &mut listener["default_filter_chain"]["filters"][0]["typed_config"];
    if let Some(name) = config["rds"]["route_config_name"].as_str().map(str::to_owned) {
        config["route_config"] = route(context, &client(), &name);
        config.as_object_mut().expect("an object").remove("rds");
    }
    listener
}

/// Sends a request with TLS to the server `app.ns`, verified with this CA. Returns everything that
/// is received.
async fn request_by_tls(port: u16, authority: &Authority) -> String {
    let exchange = async {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.pem.as_bytes());
        roots.add(root.expect("a certificate")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("app.ns").expect("a name");
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let mut stream = connector.connect(name, stream).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: app.ns\r\nconnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        // Envoy may close without a TLS close_notify.
        let _ = stream.read_to_end(&mut answer).await;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("it answers in time");
    answer.unwrap_or_else(|error| error.to_string())
}

#[tokio::test]
async fn envoys_apply_inbound_and_outbound_settings_of_sidecars() {
    let folder = tempfile::tempdir().expect("a directory");
    let authority = Authority::new();
    let (signed, key) = authority.sign_name(SanType::DnsName("app.ns".try_into().expect("ASCII")));
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (certificate, private_key) =
        (write("cert.pem", &signed.pem()), write("key.pem", &key.serialize_pem()));
    let count = Arc::new(AtomicUsize::new(0));
    let own = version("own", Arc::clone(&count)).await;
    let [to_app, to_out] =
        [version("app", Arc::clone(&count)).await, version("out", Arc::clone(&count)).await];
    for envoy in envoys() {
        let [inbound_port, apart, in_tls, requests, bytes, other, proxy_port] = free_ports();
        let spec = json!({
            "ingress": [
                { "port": { "number": inbound_port, "protocol": "HTTP" },
                    "defaultEndpoint": format!("127.0.0.1:{own}") },
                { "port": { "number": apart, "protocol": "TCP" }, "captureMode": "NONE",
                    "bind": "127.0.0.1", "defaultEndpoint": format!("127.0.0.1:{own}") },
                { "port": { "number": in_tls, "protocol": "HTTPS" }, "captureMode": "NONE",
                    "bind": "127.0.0.1", "defaultEndpoint": format!("127.0.0.1:{own}"),
                    "tls": { "mode": "SIMPLE", "serverCertificate": certificate,
                        "privateKey": private_key } },
            ],
            "inboundConnectionPool": { "tcp": { "maxConnections": 100, "idleTimeout": "60s" } },
            "egress": [
                { "port": { "number": requests, "protocol": "HTTP" }, "captureMode": "NONE",
                    "hosts": ["./app.ns.svc.cluster.local"] },
                { "port": { "number": bytes, "protocol": "TCP" }, "bind": "127.0.0.1",
                    "captureMode": "NONE", "hosts": ["./app.ns.svc.cluster.local"] },
                { "port": { "number": other, "protocol": "HTTP" }, "captureMode": "NONE",
                    "hosts": ["./out.ns.svc.cluster.local"] },
                { "port": { "number": proxy_port, "protocol": "HTTP_PROXY" }, "captureMode": "NONE",
                    "hosts": ["./app.ns.svc.cluster.local", "./out.ns.svc.cluster.local"] },
            ],
            "outboundTrafficPolicy": { "mode": "ALLOW_ANY",
                "egressProxy": { "host": "out", "port": { "number": other } } },
        });
        let ports = [("http", requests), ("tcp", bytes), ("http-b", other)];
        let ports = ports.map(|(name, number)| port(name, number, number)).to_vec();
        let context = following(&spec, ports);
        let proxy = client();
        let mut bound = Vec::new();
        for (name, mut listener) in listeners(&context, &proxy) {
            match &*name {
                "virtualOutbound" => continue,
                "virtualInbound" => listener["address"] = at_loopback(inbound_port),
                _ => {}
            }
            let mut listener = with_routes(&context, listener);
            with_secrets_sent(&mut listener, folder.path());
            bound.push(listener);
        }
        let mut clusters = Vec::new();
        for (name, cluster) in list_resources(&context, &proxy, ResourceType::Cluster) {
            let to = if name.contains("||app.") { to_app } else { to_out };
            clusters.push(match name.starts_with("outbound|") {
                true => static_cluster(cluster, to_loopback(&name, to)),
                false => cluster,
            });
        }
        let running = Running::start(&envoy, &bootstrap(bound, clusters)).await;
        let label = envoy.display();
        for (port, wanted) in [
            (inbound_port, "<own / "),
            (apart, "<own / "),
            (requests, "<app / "),
            (bytes, "<app / "),
            // That port does not know the host.
            (other, "<out / "),
        ] {
            let answer = request(&format!("127.0.0.1:{port}"), "/", "").await;
            assert!(answer.contains(wanted), "{wanted} at {port} by {label}: {answer}");
        }
        for (url, wanted) in [
            (format!("http://app.ns:{requests}/"), "<app / "),
            (format!("http://out:{other}/"), "<out / "),
            // An unknown host has no address here, so the request goes to the egressProxy.
            ("http://unknown.example/".to_owned(), "<out / "),
        ] {
            let answer = request(&format!("127.0.0.1:{proxy_port}"), &url, "").await;
            assert!(answer.contains(wanted), "{url} by {label}: {answer}");
        }
        let answer = request_by_tls(in_tls, &authority).await;
        assert!(answer.contains("<own / "), "{label}: {answer}");
        let plain = request(&format!("127.0.0.1:{in_tls}"), "/", "").await;
        assert!(!plain.contains("<own"), "{label}: {plain}");
        drop(running);
    }
}
