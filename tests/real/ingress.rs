//! An ingress gateway: a real Envoy that accepts requests according to Gateways, VirtualServices
//! and Ingresses of a real API server, with certificates from its Secrets.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::apiserver::{Apiserver, Settings};
use crate::certs::{Authority, Files, TRUST_DOMAIN};
use crate::envoy::Envoy;
use crate::helper::Load;
use crate::host::Host;
use crate::kube::{Request, endpoint_slice, istio_kind, namespace, pod, service};
use crate::netns::Netns;
use crate::rig_check::{echo, run_load};
use crate::strait::Strait;
use crate::topology::{GATEWAY_POD_ADDRESS, HUB, Topology, gateway_address};
use crate::wait;
use crate::world::{PORTS, Proxy, SYSTEM, bootstrap};

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(40);
/// The namespace of the gateway.
const EDGE: &str = "edge";
/// The ports of the gateway's Service, each with the pod's port.
const GATEWAY_PORTS: [(&str, u16, u16); 3] =
    [("http", 80, 8080), ("https", 443, 8443), ("tcp", 9000, 9000)];
/// The pods: one with a sidecar, and one without.
const PODS: [(&str, &str, &str); 2] =
    [("web", "web-1", "10.10.1.1"), ("cart", "cart-1", "10.10.1.2")];

/// The result of a request: curl's exit code, the status, the redirect target, and the body.
#[derive(Debug, Default, PartialEq, Eq)]
struct CurlResult {
    exit: i32,
    status: String,
    location: String,
    body: Value,
}

/// Sends a request from outside.
fn curl(hub: &Netns, arguments: &[&str]) -> CurlResult {
    let mut command: Command = hub.command("curl");
    command.args(["-s", "-S", "--max-time", "5", "-w", "\n%{http_code} %{redirect_url}"]);
    let output = command.args(arguments).output().expect("curl is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, end) = text.rsplit_once('\n').unwrap_or_default();
    let (status, location) = end.split_once(' ').unwrap_or((end, ""));
    CurlResult {
        exit: output.status.code().unwrap_or(-1),
        status: status.into(),
        location: location.into(),
        body: serde_json::from_str(body).unwrap_or_default(),
    }
}

/// Sends a request in plain text for a host.
fn plain(hub: &Netns, host: &str, path: &str) -> CurlResult {
    let url = format!("http://{}:8080{path}", gateway_address("a"));
    curl(hub, &["-H", &format!("Host: {host}"), &url])
}

/// Sends a request with TLS for a host. Its certificate must chain to these roots.
fn secure(hub: &Netns, host: &str, roots: &Authority, more: &[&str]) -> CurlResult {
    let root = roots.folder().join("root-cert.pem").display().to_string();
    let at = format!("{host}:8443:{}", gateway_address("a"));
    let url = format!("https://{host}:8443/");
    let arguments = [&["--cacert", &root, "--resolve", &at, &url], more].concat();
    curl(hub, &arguments)
}

fn wait_for(
    what: &str,
    mut see: impl FnMut() -> CurlResult,
    is: impl Fn(&CurlResult) -> bool,
) -> CurlResult {
    wait::until(LIMIT, what, || {
        let result = see();
        if is(&result) { Ok(result) } else { Err(format!("{result:?}")) }
    })
}

fn answered_by(pod: &str) -> impl Fn(&CurlResult) -> bool {
    move |result| result.status == "200" && result.body["pod"] == *pod
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    let metadata = json!({ "namespace": namespace, "name": name });
    json!({ "apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec })
}

fn gateway(name: &str, servers: Value) -> Value {
    object("Gateway", EDGE, name, json!({ "selector": { "app": "gateway" }, "servers": servers }))
}

fn https(name: &str, host: &str, tls: Value) -> Value {
    let port = json!({ "number": 443, "name": name, "protocol": "HTTPS" });
    json!({ "port": port, "hosts": [host], "tls": tls })
}

/// Returns rules of namespace `shop` for the gateway.
fn rules(name: &str, hosts: &[&str], rules: Value) -> Value {
    let mut spec = json!({ "hosts": hosts, "gateways": ["edge/gw", "edge/broken"] });
    spec.as_object_mut().expect("an object").extend(rules.as_object().expect("one").clone());
    object("VirtualService", "shop", name, spec)
}

fn to(host: &str, port: u16) -> Value {
    json!([{ "destination": { "host": host, "port": { "number": port } } }])
}

/// Returns a Secret with a certificate and the roots of the peer.
pub(crate) fn certificate(namespace: &str, name: &str, files: &Files, others: &Authority) -> Value {
    let text = |path| std::fs::read_to_string(path).expect("written before");
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "namespace": namespace, "name": name },
        "stringData": {
            "tls.crt": text(&files.certificate), "tls.key": text(&files.key), "ca.crt": others.pem(),
        },
    })
}

/// Returns the right of a gateway's account to list the Secrets in the gateway's namespace, as in
/// Istio's chart.
pub(crate) fn rights(namespace: &str, account: &str) -> [Value; 2] {
    let metadata = json!({ "namespace": namespace, "name": account });
    let group = "rbac.authorization.k8s.io";
    let rules =
        json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"] }]);
    let role = json!({ "apiGroup": group, "kind": "Role", "name": account });
    let subjects = json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]);
    let api = format!("{group}/v1");
    [
        json!({ "apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules }),
        json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "roleRef": role,
            "subjects": subjects,
        }),
    ]
}

/// Applies the objects of the scenario, without rules.
fn populate(apiserver: &Apiserver) {
    let networking = "networking.istio.io";
    apiserver.apply(&[
        istio_kind(networking, "Gateway", "gateways"),
        istio_kind(networking, "VirtualService", "virtualservices"),
    ]);
    let mut objects = vec![
        namespace(SYSTEM, json!({ "topology.istio.io/network": "net-a" })),
        namespace(EDGE, json!({})),
        namespace("shop", json!({})),
    ];
    objects.extend(rights(EDGE, "gateway"));
    let labels = |app: &str, mode: &str| json!({ "app": app, "security.istio.io/tlsMode": mode });
    objects.push(service(EDGE, "gateway", "10.91.0.9", &GATEWAY_PORTS));
    let mut gateway_labels = labels("gateway", "istio");
    gateway_labels["istio"] = "ingressgateway".into();
    objects.push(pod(EDGE, "gateway-1", "gateway", GATEWAY_POD_ADDRESS, &gateway_labels));
    for (at, (app, name, ip)) in PODS.into_iter().enumerate() {
        let mode = if app == "web" { "istio" } else { "disabled" };
        objects.push(pod("shop", name, app, ip, &labels(app, mode)));
        let service = service("shop", app, &format!("10.91.0.{}", at + 10), &PORTS);
        objects.push(endpoint_slice(&service, &[(name.into(), ip.into(), true)]));
        objects.push(service);
    }
    apiserver.apply(&objects);
}

/// Returns an object of the Kubernetes Ingress API.
fn ingress_object(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// Adds Ingresses to the Gateways, and deletes them again.
fn ingresses(apiserver: &Apiserver, hub: &Netns, public: &Authority) {
    let backend = |name: &str, port: Value| json!({ "service": { "name": name, "port": port } });
    let paths = json!([{
        "path": "/cart", "pathType": "Prefix", "backend": backend("cart", json!({ "name": "http" })),
    }]);
    let ingress = |name: &str, class: &str, host: &str| {
        let spec = json!({
            "ingressClassName": class,
            "defaultBackend": backend("web", json!({ "number": 80 })),
            "tls": [{ "hosts": [host], "secretName": "ingress-cert" }],
            "rules": [{ "host": host, "http": { "paths": paths } }],
        });
        ingress_object("Ingress", &json!({ "namespace": "shop", "name": name }), &spec)
    };
    let class = |name: &str, controller: &str| {
        let spec = json!({ "controller": controller });
        ingress_object("IngressClass", &json!({ "name": name }), &spec)
    };
    let files = public.server("ingress.example", &["ingress.example"]);
    apiserver.apply(&[
        class("mesh", "istio.io/ingress-controller"),
        class("other", "example.com/other"),
        certificate(EDGE, "ingress-cert", &files, public),
        ingress("foreign", "other", "foreign.example"),
        ingress("own", "mesh", "ingress.example"),
    ]);
    let at = |host: &'static str, path: &'static str| move || plain(hub, host, path);
    wait_for("a path is served", at("ingress.example", "/cart/1"), answered_by("cart-1"));
    for (host, path, pod) in [
        ("ingress.example", "/carts", "web-1"),
        ("ingress.example", "/", "web-1"),
        // Unknown hosts use the default backend, and hosts of Gateways their own rules.
        ("foreign.example", "/cart", "web-1"),
        ("web.example", "/", "cart-1"),
    ] {
        let result = plain(hub, host, path);
        assert!(answered_by(pod)(&result), "{host}{path}: {result:?}");
    }
    let in_tls = || secure(hub, "ingress.example", public, &[]);
    wait_for("a host is served in TLS", in_tls, answered_by("web-1"));
    let path = "/apis/networking.k8s.io/v1/namespaces/shop/ingresses/own";
    apiserver.requests(&[Request::delete(path)]);
    wait_for("the host is no longer served", at("ingress.example", "/"), |result| {
        result.status == "404"
    });
    assert_ne!(in_tls().exit, 0);
    assert!(answered_by("cart-1")(&plain(hub, "web.example", "/")));
}

pub(crate) fn run(host: &Host) {
    let topology = Topology::create("ingress");
    let hub = &topology.hub;
    let [mesh, public, renewed] = ["mesh", "public", "renewed"]
        .map(|name| Authority::create(&host.subfolder(&format!("ingress-{name}")), name));
    let settings =
        Settings { cluster: "ingress", address: HUB, port: 6441, service_cidr: "10.91.0.0/16" };
    let mut apiserver = Apiserver::start(host, hub, &mesh, &settings);
    apiserver.wait_until_ready();
    populate(&apiserver);
    let shop_files = |by: &Authority| by.server("shop.example", &["shop.example"]);
    let mutual_files = public.server("mutual.example", &["mutual.example"]);
    let file_certificate = public.server("files.example", &["files.example"]);
    let text = |path: &Path| path.display().to_string();
    let files = json!({
        "mode": "MUTUAL", "serverCertificate": text(&file_certificate.certificate), "privateKey": text(&file_certificate.key),
        "caCertificates": text(&public.folder().join("root-cert.pem")),
    });
    apiserver.apply(&[
        certificate(EDGE, "shop-cert", &shop_files(&public), &public),
        certificate(EDGE, "mutual-cert", &mutual_files, &public),
        gateway(
            "gw",
            json!([
                { "port": { "number": 80, "name": "http", "protocol": "HTTP" }, "hosts": ["web.example"] },
                {
                    "port": { "number": 80, "name": "http-redirect", "protocol": "HTTP" },
                    "hosts": ["shop/shop.example"], "tls": { "httpsRedirect": true },
                },
                https("https", "shop/shop.example", json!({ "mode": "SIMPLE", "credentialName": "shop-cert" })),
                https("https-mutual", "mutual.example", json!({ "mode": "MUTUAL", "credentialName": "mutual-cert" })),
                https("https-files", "files.example", files),
                { "port": { "number": 9000, "name": "tcp", "protocol": "TCP" }, "hosts": ["*"] },
            ]),
        ),
        rules(
            "web",
            &["web.example", "shop.example", "mutual.example", "files.example"],
            json!({ "http": [
                { "match": [{ "uri": { "prefix": "/cart" } }], "route": to("cart", 80) },
                { "route": to("web", 80) },
            ]}),
        ),
        rules("tcp", &["*"], json!({ "tcp": [{ "match": [{ "port": 9000 }], "route": to("web", 9000) }] })),
    ]);

    let kubeconfig = apiserver.admin_kubeconfig().display().to_string();
    let strait = Strait::start(
        host,
        hub,
        vec![
            format!("--kubeconfig={kubeconfig}"),
            "--cluster-id=a".into(),
            format!("--namespace={SYSTEM}"),
            format!("--ca-dir={}", mesh.folder().display()),
            format!("--xds-address={HUB}:15012"),
            "--admin-address=127.0.0.1:15014".into(),
            format!("--tls-san={HUB}"),
        ],
    );
    strait.wait_until_ready();

    let proxy = |kind, namespace, name, app, ip| Proxy {
        cluster: "a",
        kind,
        namespace,
        name,
        service_account: app,
        app,
        ip,
        protocol: "delta",
    };
    let start = |proxy: &Proxy<'_>, netns: &Rc<Netns>| {
        let files = mesh.workload(proxy.namespace, proxy.service_account);
        let file = bootstrap(host, proxy, &files, strait.xds());
        let mut envoy = Envoy::start(host, netns, &format!("ingress-{}", proxy.name), &file);
        envoy.wait_until_live(LIMIT);
        envoy
    };
    let mut echoes = Vec::new();
    let mut envoys = Vec::new();
    let mut pods = Vec::new();
    for (app, name, ip) in PODS {
        let netns = if app == "web" {
            let netns = topology.pod("a", name, ip);
            envoys.push(start(&proxy("sidecar", "shop", name, app, ip), &netns));
            netns
        } else {
            Rc::new(topology.stranger("a", name, ip))
        };
        echoes.push(echo(host, &netns, name, "a"));
        pods.push(netns);
    }
    let edge = topology.gateway("a");
    envoys.push(start(&proxy("router", EDGE, "gateway-1", "gateway", GATEWAY_POD_ADDRESS), &edge));
    let envoy = envoys.last().expect("just started");

    // Plain text: the rules of the host apply, with mTLS if the pod accepts it and in plain text
    // otherwise. Other hosts get no response.
    let web = wait_for("a host is served", || plain(hub, "web.example", "/"), answered_by("web-1"));
    let identity = format!("By=spiffe://{TRUST_DOMAIN}/ns/shop/sa/web");
    let client = web.body["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
    assert!(client.contains(&identity) && client.contains("/ns/edge/sa/gateway"), "{web:?}");
    let cart = plain(hub, "web.example", "/cart/1");
    assert!(answered_by("cart-1")(&cart), "{cart:?}");
    assert_eq!(plain(hub, "other.example", "/").status, "404");
    assert_eq!(plain(hub, "web.shop.svc.cluster.local", "/").status, "404");
    let redirected = plain(hub, "shop.example", "/a?b=c");
    assert_eq!((&*redirected.status, &*redirected.location), ("301", "https://shop.example/a?b=c"));
    let bytes = run_load(hub, &Load::tcp(&format!("{}:9000", gateway_address("a")), 4));
    assert_eq!(bytes.by.get("a/web-1"), Some(&4), "{bytes:?}");

    // TLS: the certificate comes from a Secret, selected by SNI. There is no filter chain for other
    // names.
    let shop = || secure(hub, "shop.example", &public, &[]);
    wait_for("a host is served in TLS", shop, answered_by("web-1"));
    assert_ne!(secure(hub, "unknown.example", &public, &[]).exit, 0);
    let stranger = secure(hub, "mutual.example", &public, &[]);
    assert_ne!(stranger.exit, 0, "a client without a certificate is refused: {stranger:?}");
    let [certificate_file, key] =
        [&mutual_files.certificate, &mutual_files.key].map(|path| path.display().to_string());
    let arguments = ["--cert", &*certificate_file, "--key", &*key];
    let mutual = secure(hub, "mutual.example", &public, &arguments);
    assert!(answered_by("web-1")(&mutual), "{mutual:?}");
    // TLS with certificate files at the router.
    let by_files = || secure(hub, "files.example", &public, &arguments);
    wait_for("a server uses a certificate from files", by_files, answered_by("web-1"));
    let stranger = secure(hub, "files.example", &public, &[]);
    assert_ne!(stranger.exit, 0, "a client without a certificate is refused: {stranger:?}");
    let mesh_files = mesh.workload("shop", "web");
    let [certificate_file, key] =
        [&mesh_files.certificate, &mesh_files.key].map(|path| path.display().to_string());
    let foreign =
        secure(hub, "mutual.example", &public, &["--cert", &certificate_file, "--key", &key]);
    assert_ne!(foreign.exit, 0, "a certificate of other roots is refused: {foreign:?}");

    // A renewed certificate and changed rules do not modify listeners.
    let modified = || envoy.stats("listener_manager.listener_(modified|added|in_place_updated)$");
    let before = modified();
    apiserver.apply(&[certificate(EDGE, "shop-cert", &shop_files(&renewed), &public)]);
    let shop = || secure(hub, "shop.example", &renewed, &[]);
    wait_for("the renewed certificate is shown", shop, answered_by("web-1"));
    let all_to_cart = json!({ "http": [{ "route": to("cart", 80) }] });
    let hosts = ["web.example", "shop.example", "mutual.example"];
    apiserver.apply(&[rules("web", &hosts, all_to_cart.clone())]);
    wait_for("changed rules hold", shop, answered_by("cart-1"));
    assert_eq!(modified(), before);

    // A server whose Secret is missing affects no other server, and accepts connections once the
    // Secret exists.
    let absent = json!({ "mode": "SIMPLE", "credentialName": "absent" });
    let names = ["absent.example", "web.example", "shop.example", "mutual.example"];
    apiserver.apply(&[
        gateway("broken", json!([https("https-absent", "absent.example", absent)])),
        rules("web", &names, all_to_cart),
    ]);
    wait::until(LIMIT, "the listener has the new chain", || {
        let active = envoy.config_dump("?resource=dynamic_listeners").to_string();
        let is_active = active.contains("absent.example") && !active.contains("warming_state");
        if is_active { Ok(()) } else { Err(active) }
    });
    assert!(answered_by("cart-1")(&shop()));
    let absent = || secure(hub, "absent.example", &public, &[]);
    assert_ne!(absent().exit, 0);
    let proxies = strait.json("/debug/proxies");
    assert!(proxies.to_string().contains("kubernetes://absent"), "{proxies}");
    let files = public.server("absent.example", &["absent.example"]);
    apiserver.apply(&[certificate(EDGE, "absent", &files, &public)]);
    wait_for("the host is served once its Secret exists", absent, answered_by("cart-1"));

    ingresses(&apiserver, hub, &public);

    // Without its Gateway a port is closed.
    let path = format!("/apis/networking.istio.io/v1/namespaces/{EDGE}/gateways/gw");
    apiserver.requests(&[Request::delete(&path)]);
    wait_for(
        "no request succeeds any more",
        || plain(hub, "web.example", "/"),
        |result| result.exit == 7,
    );
    for envoy in &envoys {
        let complaints = envoy.complaints();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}
