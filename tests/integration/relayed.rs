//! Members that are read through a relay, with a real hub and a real relay in one process: enrolment, the same result as
//! for a direct member, and the effects when a relay, its invitation or its member ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use strait_base::hex;
use strait_base::task::Supervisor;
use strait_identity::token_signer::Signer;
use strait_identity::{AuthorityPem, TrustRoots};
use strait_relay::member::{
    self, CertificateStore, EnrolCredential, HubDialler, RelaySettings, RequestList,
};
use strait_sources::store::own_cluster::own_cluster;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::mesh::{
    Member, Proxy, SHOP, SOON, SYSTEM, Server, Setup, east_and_west, endpoints_until, free_port,
    holds, replace, text, wait_until,
};
use super::tokens::without_certificate;
use strait_sim::{Family, objects};
use strait_xds_client::XdsClient;

const TOKEN: &str = "an-invitation-for-west";

/// Returns the Secret that invites `west`.
fn invitation(token: &str, ends: Duration, generation: u32) -> Value {
    let ends = jiff::Timestamp::now() + ends;
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "strait-cluster-west", "namespace": SYSTEM,
            "labels": { "strait.dev/cluster": "true" },
            "annotations": {
                "strait.dev/relay": "true",
                "strait.dev/cluster-id": "west",
                "strait.dev/relay-generation": generation.to_string(),
            },
        },
        "data": {
            "invitation-sha256": BASE64.encode(hex::sha256(token.as_bytes())),
            "invitation-expires": BASE64.encode(ends.to_string()),
        },
    })
}

/// Returns a setup with `east`, and with an invitation for west.
fn with_invitation(east: &Member) -> Setup {
    let setup = Setup::new();
    setup.join(&[east]);
    setup.put("west", &invitation(TOKEN, Duration::from_secs(600), 1));
    setup
}

/// Starts the relay of a member; it ends with the returned supervisor.
async fn start_relay(setup: &Setup, server: &Server, member: &Member, name: &str) -> Supervisor {
    // The relays of one member share a certificate.
    start_relay_to(setup, server.bound.xds.port(), member, (name, "relay-state")).await
}

/// Starts a relay that dials the hub at this port and stores its certificate in this directory.
async fn start_relay_to(
    setup: &Setup,
    port: u16,
    member: &Member,
    (name, state): (&str, &str),
) -> Supervisor {
    let invitation = setup.path(&format!("{name}-invitation"));
    std::fs::write(&invitation, TOKEN).expect("written");
    let credential = EnrolCredential::Invitation(invitation);
    start_relay_with(setup, port, member, (name, state), credential).await
}

/// Starts a relay that enrols with this credential.
async fn start_relay_with(
    setup: &Setup,
    port: u16,
    member: &Member,
    (name, state): (&str, &str),
    credential: EnrolCredential,
) -> Supervisor {
    let file = |suffix: &str, text: &str| {
        let path = setup.path(&format!("{name}-{suffix}"));
        std::fs::write(&path, text).expect("written");
        path
    };
    let kubeconfig = file("kubeconfig", &member.api.kubeconfig());
    let roots = std::fs::read_to_string(setup.path("ca/root-cert.pem")).expect("the roots");
    let settings = RelaySettings {
        cluster: "west".to_owned(),
        instance: name.to_owned(),
        hubs: vec![format!("localhost:{port}").parse().expect("an address")],
        dialler: HubDialler {
            roots: file("roots", &roots),
            proxy: None,
            proxy_authorization: None,
        },
        credential,
        store: CertificateStore::Folder(setup.path(state)),
        list: RequestList {
            gateway_secrets: Default::default(),
            roots: true,
            mcs_status: false,
            own_traffic: false,
            own_secret: None,
        },
    };
    let tasks = Supervisor::new();
    let cluster = own_cluster(Some(&kubeconfig), None, &tasks).await.expect("a usable kubeconfig");
    let (ready, _) = watch::channel(0);
    tasks.spawn("relay", async move {
        member::run(settings, cluster.access, ready, std::future::pending()).await.expect("usable");
    });
    tasks
}

/// Waits until a proxy in east has the endpoints of `web` in east, and in west with this weight.
async fn web_until(client: &XdsClient, west: u32) {
    let expected = [("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1), ("198.18.0.2:15443", west)];
    endpoints_until(client, "web", &expected).await;
}

async fn relays_until(server: &Server, count: usize) -> Value {
    wait_until(SOON, async || {
        let relays = server.admin.json("/debug/relays").await;
        let found = relays.as_array().map_or(0, Vec::len);
        holds(found == count, &relays).map(|()| relays)
    })
    .await
}

#[tokio::test]
async fn relayed_member_gives_the_same_mesh_as_a_direct_one() {
    let (east, west) = east_and_west().await;
    let mesh_state = async |server: &Server| {
        server.cluster_in("west", "live").await;
        let endpoints = "/debug/endpoints?hostname=web.shop.svc.cluster.local";
        let mut all = Vec::new();
        for path in ["/debug/services", endpoints, "/debug/networks"] {
            all.push(server.admin.json(path).await);
        }
        all
    };
    let direct = Setup::new();
    direct.join(&[&east, &west]);
    let server = direct.start_ready().await;
    let client = server.connect(&direct, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
    let expected = mesh_state(&server).await;

    let relayed = with_invitation(&east);
    let server = relayed.start().await;
    let _relay = start_relay(&relayed, &server, &west, "relay-a").await;
    server.ready().await;
    let client = server.connect(&relayed, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
    assert_eq!(mesh_state(&server).await, expected);

    // Changes arrive as well.
    west.serve("web", &["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    web_until(&client, 3).await;
    let relays = relays_until(&server, 1).await;
    assert_eq!((&relays[0]["cluster"], &relays[0]["active"]), (&json!("west"), &json!(true)));
    let entry = server.cluster("west").await;
    let credential = &entry["credential"];
    assert_eq!((&entry["via"], &credential["kind"]), (&json!("relay"), &json!("relay")));
    let expires = credential["expires"].as_str().expect("that of the certificate");
    let expires: jiff::Timestamp = expires.parse().expect("a time");
    assert!(expires > jiff::Timestamp::now(), "{entry}");
    assert_eq!(credential["renewsItself"], true);
}

#[tokio::test]
async fn relayed_members_of_a_source_obey_its_ids() {
    let (east, west) = east_and_west().await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let file = setup.path("members.yaml");
    let write = |id: &str| {
        let source = format!(
            "apiVersion: strait.dev/v1\nkind: MemberSources\n\
             sources: [{{name: fleet, secrets: {{namespace: fleet}}, ids: [{id}]}}]"
        );
        replace(&file, &source);
    };
    write("north");
    let mut secret = invitation(TOKEN, Duration::from_secs(600), 1);
    secret["metadata"]["namespace"] = json!("fleet");
    setup.put("west", &secret);
    let setup = setup.with(&["--members", &file.display().to_string()]);
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    let refused = server.cluster_in("west", "rejected").await;
    assert!(refused["reason"].to_string().contains("STR0224"), "{refused}");
    // The source may not define this member, so its invitation is not valid either.
    let (status, body) = enrol(&setup, server.bound.xds.port(), TOKEN, "a-uid").await;
    assert_eq!((status, &*body["error"]["code"].to_string()), (401, r#""STR0343""#), "{body}");

    write("west");
    let live = server.cluster_in("west", "live").await;
    assert_eq!((&live["source"], &live["via"]), (&json!("fleet"), &json!("relay")));
    relays_until(&server, 1).await;
    // The certificate of the relay ends with the permission of the source.
    write("north");
    relays_until(&server, 0).await;
    let refused = server.cluster_in("west", "rejected").await;
    assert!(refused["reason"].to_string().contains("STR0224"), "{refused}");
}

/// Returns an address that distributes its connections to these ports in turn.
async fn balanced(ports: [u16; 2], tasks: &Supervisor) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let connections = tasks.clone();
    tasks.spawn("load balancer", async move {
        for port in ports.iter().copied().cycle() {
            let (mut client, _) = listener.accept().await.expect("a connection");
            connections.spawn("connection", async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await;
                if let Ok(mut server) = server {
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn relay_connects_to_both_replicas_behind_one_address() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let [first_port, second_port] = [free_port(), free_port()];
    let replica = async |name: &str, own: u16, other: u16| {
        let mut arguments = setup.arguments_on(&setup.path(name));
        let at = arguments.iter().position(|one| one == "--xds-address").expect("it is given");
        arguments[at + 1] = format!("127.0.0.1:{own}");
        arguments.extend(["--replica-name".into(), name.into()]);
        arguments.extend(["--peers".into(), format!("127.0.0.1:{other}")]);
        setup.start_as(arguments).await
    };
    let replicas = [
        replica("strait-a", first_port, second_port).await,
        replica("strait-b", second_port, first_port).await,
    ];
    let tasks = Supervisor::new();
    let port = balanced([first_port, second_port], &tasks).await;
    let _relay = start_relay_to(&setup, port, &west, ("relay-a", "relay-state")).await;
    for server in &replicas {
        server.cluster_in("west", "live").await;
        server.ready().await;
        let client = server.connect(&setup, &Proxy::sidecar("east")).await;
        web_until(&client, 2).await;
    }
}

/// Returns the UID of a member's namespace `kube-system`.
fn kube_system_uid(member: &Member) -> String {
    let namespace = member.api.store().get("Namespace", "", "kube-system").expect("it exists");
    namespace.value()["metadata"]["uid"].as_str().expect("a UID").to_owned()
}

/// Sends a request to enrol with a new key, and returns the status and the body of the response.
async fn enrol(setup: &Setup, port: u16, token: &str, uid: &str) -> (u16, Value) {
    enrol_for(setup, port, token, uid, "").await
}

/// Requests a certificate like a relay that was started for `cluster`.
async fn enrol_for(
    setup: &Setup,
    port: u16,
    token: &str,
    uid: &str,
    cluster: &str,
) -> (u16, Value) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["relay".to_owned()]).expect("a name");
    let csr = params.serialize_request(&key).expect("signed").pem().expect("PEM");
    let body = json!({ "token": token, "csr": csr, "clusterUid": uid, "cluster": cluster });
    let tls = TlsConnector::from(without_certificate(setup));
    loop {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        let name = "localhost".try_into().expect("a name");
        let stream = TokioIo::new(tls.connect(name, tcp).await.expect("TLS"));
        let handshake = http2::handshake(TokioExecutor::new(), stream).await;
        let (mut requests, connection) = handshake.expect("HTTP/2");
        let request = Request::post(format!("https://localhost:{port}/strait/relay/v1/enrol"));
        let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("a request");
        let exchange = async {
            let response = requests.send_request(request).await.expect("a response");
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.expect("a body").to_bytes())
        };
        let (status, body) = tokio::select! {
            answered = exchange => answered,
            ended = connection => panic!("{ended:?}"),
        };
        // One request per second is accepted from one address.
        if status != 429 {
            return (status, serde_json::from_slice(&body).expect("JSON"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn invitation_is_used_once_at_all_replicas_and_the_members_secret_is_not_written() {
    let hub = Member::start("hub", "n1", "198.18.0.1").await;
    let (_, west) = east_and_west().await;
    hub.apply(invitation(TOKEN, Duration::from_secs(600), 1));
    let secret =
        || hub.api.store().get("Secret", SYSTEM, "strait-cluster-west").map(|it| it.value());
    let before = secret();
    let setup = Setup::new().with(&["--cluster-id", "hub"]);
    let start = async |state: &str| {
        let mut arguments = setup.arguments_with(&hub.api);
        let at = arguments.iter().position(|one| one == "--state-dir").expect("it is given");
        arguments[at + 1] = setup.path(state).display().to_string();
        setup.start_as(arguments).await
    };
    let (first, second) = (start("state-1").await, start("state-2").await);
    let _relay =
        start_relay_to(&setup, first.bound.xds.port(), &west, ("relay-a", "relay-state")).await;
    first.cluster_in("west", "live").await;
    second.cluster_until("west", |entry| entry["via"] == "relay").await;
    for server in [&first, &second] {
        let uid = kube_system_uid(&west);
        let (status, body) = enrol(&setup, server.bound.xds.port(), TOKEN, &uid).await;
        assert_eq!((status, &body["error"]["code"]), (401, &json!("STR0343")), "{body}");
    }
    assert_eq!(secret(), before, "the Secret of the member");
}

#[tokio::test]
async fn relay_with_the_id_of_another_cluster_does_not_use_its_invitation_up() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let (port, uid) = (server.bound.xds.port(), kube_system_uid(&west));
    server.cluster_until("west", |entry| entry["via"] == "relay").await;
    let (status, body) = enrol_for(&setup, port, TOKEN, &uid, "north").await;
    assert_eq!((status, &body["error"]["code"]), (409, &json!("STR0344")), "{body}");
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    server.cluster_in("west", "live").await;
}

#[tokio::test]
async fn second_relay_takes_over_without_a_list() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let first = start_relay(&setup, &server, &west, "relay-a").await;
    server.cluster_in("west", "live").await;
    let _second = start_relay(&setup, &server, &west, "relay-b").await;
    relays_until(&server, 2).await;
    let before = server.cluster("west").await["relists"].clone();
    first.stop();
    let relays = relays_until(&server, 1).await;
    assert_eq!(relays[0]["instance"], "relay-b");
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    west.serve("web", &["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    web_until(&client, 3).await;
    assert_eq!(server.cluster("west").await["relists"], before);
}

/// Starts an issuer at this port that publishes the keys of a signer over TLS, and returns its root.
async fn start_issuer(signer: &Signer, listener: TcpListener, tasks: &Supervisor) -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let private = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .expect("a certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (issuer, keys) = (signer.issuer.clone(), signer.keys().to_key_set());
    tasks.spawn("issuer", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            let body = match request[..length].starts_with(b"GET /.well-known/") {
                true => {
                    json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") }).to_string()
                }
                false => keys.clone(),
            };
            let length = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    certificate.pem()
}

/// A policy file in which relays of `west` may enrol with a token, once it is [`Self::trust`]ed.
struct TokenPolicy {
    file: PathBuf,
    relay: Value,
}

impl TokenPolicy {
    fn trust(&self) {
        self.write(&json!({ "west": { "relay": self.relay } }));
    }

    fn write(&self, clusters: &Value) {
        let file = json!({ "apiVersion": "strait.dev/v1", "kind": "Policy", "clusters": clusters });
        replace(&self.file, &file.to_string());
    }
}

/// Starts a hub with `east`, and a relay of `west` with a token of this signer, which the hub does
/// not trust yet. The policy file gets these keys.
async fn start_with_token(
    setup: Setup,
    (east, west): (&Member, &Member),
    signer: &Signer,
    keys: Option<Value>,
) -> (Setup, Server, Supervisor, TokenPolicy) {
    setup.join(&[east]);
    let mut secret = invitation(TOKEN, Duration::from_secs(600), 1);
    secret["data"] = json!({});
    setup.put("west", &secret);
    let mut relay = json!({
        "issuer": signer.issuer, "subject": "system:serviceaccount:shop:web",
        "audience": "strait-hub",
    });
    if let Some(keys) = keys {
        relay["keys"] = keys;
    }
    let policy = TokenPolicy { file: setup.path("policy.yaml"), relay };
    policy.write(&json!({}));
    let setup = setup.with(&["--policy", &policy.file.display().to_string()]);
    let server = setup.start().await;
    let mut claims = signer.claims(SystemTime::now());
    claims["aud"] = json!("strait-hub");
    let token = setup.path("token");
    std::fs::write(&token, signer.sign(&claims)).expect("written");
    let (port, names) = (server.bound.xds.port(), ("relay-a", "relay-state"));
    let credential = EnrolCredential::Token(token);
    let relay = start_relay_with(&setup, port, west, names, credential).await;
    let is_without_relay = |entry: &Value| {
        entry["reason"].as_str().is_some_and(|one| one.contains("no relay of west has connected"))
    };
    server.cluster_until("west", is_without_relay).await;
    assert_eq!(server.admin.json("/debug/relays").await, json!([]));
    (setup, server, relay, policy)
}

#[tokio::test]
async fn relay_enrols_with_a_token_that_the_policy_trusts() {
    let (east, west) = east_and_west().await;
    let signer = Signer::new("https://kubernetes.default.svc.cluster.local", "k");
    let keys: Value = serde_json::from_str(&signer.keys().to_key_set()).expect("JSON");
    let members = (&east, &west);
    let (setup, server, _relay, policy) =
        start_with_token(Setup::new(), members, &signer, Some(keys)).await;
    policy.trust();
    server.cluster_in("west", "live").await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
}

#[tokio::test]
async fn relay_enrols_with_a_token_of_an_issuer_that_publishes_its_keys() {
    let (east, west) = east_and_west().await;
    let (setup, tasks) = (Setup::new(), Supervisor::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let issuer = format!("https://{}", listener.local_addr().expect("bound"));
    let signer = Signer::new(&issuer, "k");
    let roots = setup.path("issuer-roots.pem");
    std::fs::write(&roots, start_issuer(&signer, listener, &tasks).await).expect("written");
    let setup = setup.with(&["--jwks-roots", &roots.display().to_string()]);
    let members = (&east, &west);
    let (_setup, server, _relay, policy) = start_with_token(setup, members, &signer, None).await;
    policy.trust();
    server.cluster_in("west", "live").await;
    let (_, sources) = server.admin.text("/debug/sources").await;
    assert!(sources.contains(&format!("jwks of {issuer}")), "{sources}");
}

#[tokio::test]
async fn ca_of_relays_signs_their_certificates() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let (now, folder) = (SystemTime::now(), setup.path("relay-ca"));
    let ca = AuthorityPem::generate(now).expect("a CA");
    ca.write(&folder).expect("written");
    let setup = setup.with(&["--relay-ca-dir", &folder.display().to_string()]);
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    server.cluster_in("west", "live").await;
    let stored = |name: &str| std::fs::read_to_string(setup.path("relay-state").join(name));
    let chain = stored("cert-chain.pem").expect("the certificate");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let roots = TrustRoots::from_pem(ca.root_cert.as_bytes(), "the CA of relays", now);
    let relay = roots.expect("roots").authenticate_relay(&chain.expect("PEM"), now);
    assert_eq!(relay.expect("signed by this CA").cluster().as_str(), "west");
    let mesh = std::fs::read_to_string(setup.path("ca/root-cert.pem")).expect("the roots");
    assert_eq!(stored("root-cert.pem").expect("the roots"), mesh, "the hub's certificate");
}

#[tokio::test]
async fn relayed_member_gets_no_imports_and_reports_it() {
    let (east, west) = east_and_west().await;
    for member in [&east, &west] {
        member.api.enable(Family::MultiCluster);
    }
    east.apply(json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": { "name": "web", "namespace": SHOP },
    }));
    west.apply(objects::namespace(SHOP));
    let setup = with_invitation(&east).with(&["--mcs-imports", "full"]);
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    let is_reported = |entry: &Value| {
        entry["state"] == "live"
            && entry["reason"].as_str().is_some_and(|it| it.contains("STR0354"))
    };
    server.cluster_until("west", is_reported).await;
    wait_until(SOON, async || {
        let command = ["explain", "import", "shop/web", "--cluster", "west"];
        let explained = text(&server.strait(&command).await);
        holds(explained.contains("STR0354") && explained.contains("right"), explained)
    })
    .await;
    let found = text(&server.strait(&["check"]).await);
    assert!(found.contains("STR0354   services   cluster/west   import of web.shop"), "{found}");
    let kinds = ["serviceimports", "services", "endpointslices"];
    let writes: [u64; 3] = kinds.map(|kind| {
        ["create", "patch", "delete"].map(|verb| west.api.request_count(verb, kind)).iter().sum()
    });
    assert_eq!(writes, [0; 3], "the relay receives no write");
}

#[tokio::test]
async fn member_without_its_relay_keeps_its_endpoints_and_reports_why_it_is_stale() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let relay = start_relay(&setup, &server, &west, "relay-a").await;
    server.cluster_in("west", "live").await;
    relay.stop();
    let stale = server.cluster_in("west", "stale").await;
    let reason = stale["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("STR0340: the relay of west is not connected since"), "{reason}");
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    web_until(&client, 2).await;
}

#[tokio::test]
async fn connection_ends_with_the_member_and_with_the_generation() {
    let (east, west) = east_and_west().await;
    let setup = with_invitation(&east);
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    relays_until(&server, 1).await;
    // The certificate has generation 1, and its invitation is used up.
    setup.put("west", &invitation("another", Duration::from_secs(600), 2));
    relays_until(&server, 0).await;
    setup.take_out("west");
    server.cluster_in("west", "draining").await;
}

#[tokio::test]
async fn expired_or_used_invitation_enrols_no_relay() {
    let (east, west) = east_and_west().await;
    west.apply(objects::namespace(SHOP));
    let setup = Setup::new();
    setup.join(&[&east]);
    setup.put("west", &invitation(TOKEN, Duration::from_secs(0), 1));
    let server = setup.start().await;
    let _relay = start_relay(&setup, &server, &west, "relay-a").await;
    let is_reported = |entry: &Value| {
        entry["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("no relay of west has connected yet"))
    };
    server.cluster_until("west", is_reported).await;
    assert_eq!(server.admin.json("/debug/relays").await, json!([]));
}
