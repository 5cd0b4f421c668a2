//! Tests of members behind HTTP and SOCKS proxies. Only the proxy knows the address of the member's server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::members::MemberSources;
use strait_base::lock::lock;

const ESTABLISHED: &str = "200 Connection established";

/// An HTTP proxy that connects each target with one server.
struct TestProxy {
    address: SocketAddr,
    /// The heads of the requests.
    heads: Arc<Mutex<Vec<String>>>,
    /// The status of the next responses.
    answer: Arc<Mutex<&'static str>>,
}

impl TestProxy {
    /// Starts a proxy in front of `server`, with TLS if `tls` is given.
    async fn start(server: SocketAddr, tls: Option<TlsAcceptor>, tasks: &Supervisor) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (heads, answer) = (Arc::default(), Arc::new(Mutex::new(ESTABLISHED)));
        let (seen, answers, all) = (Arc::clone(&heads), Arc::clone(&answer), tasks.clone());
        tasks.spawn("proxy", async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("a connection");
                let (seen, answers, tls) = (Arc::clone(&seen), Arc::clone(&answers), tls.clone());
                all.spawn("tunnel", async move {
                    match tls {
                        None => serve(tcp, server, &seen, &answers).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(tcp).await else { return };
                            serve(stream, server, &seen, &answers).await;
                        }
                    }
                });
            }
        });
        Self { address, heads, answer }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut client: S,
    server: SocketAddr,
    heads: &Mutex<Vec<String>>,
    answer: &Mutex<&'static str>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { return };
        head.push(byte);
    }
    lock(heads).push(String::from_utf8_lossy(&head).into_owned());
    let answer = *lock(answer);
    let response = format!("HTTP/1.1 {answer}\r\nProxy-Agent: test\r\n\r\n");
    if client.write_all(response.as_bytes()).await.is_err() || answer != ESTABLISHED {
        return;
    }
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

/// Returns the Secret of a member whose server has a name that no resolver knows.
fn secret(sim: &SimCluster) -> Value {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": {
            "server": "https://east.corp.test:6443", "tls-server-name": "127.0.0.1",
            "certificate-authority-data": BASE64.encode(sim.certificate_authority()),
        } }],
        "users": [{ "name": "a", "user": { "token": sim.token() } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    strait_sim::member_secret(SYSTEM, sim.id(), &kubeconfig.to_string())
}

/// Returns an operator file with this proxy, for the servers of a suffix.
fn file(proxy: &str, suffix: &str) -> Arc<MemberSources> {
    let text = format!(
        "apiVersion: strait.dev/v1\nkind: MemberSources\nproxies: [{{name: corp, {proxy}, servers: ['*.{suffix}']}}]\n"
    );
    Arc::new(MemberSources::parse(&text).expect("a valid file"))
}

fn names_the_proxy(status: &ClusterStatus, fact: &str) -> bool {
    let reason = status.reason.as_deref().unwrap_or_default();
    reason.contains("STR0356: proxy corp") && reason.contains(fact)
}

#[tokio::test]
async fn member_is_read_through_the_proxy_that_lists_its_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let authorization = directory.path().join("authorization");
    std::fs::write(&authorization, "Basic bWU6c2VjcmV0\n").expect("written");
    let (sim, tasks) = (sim("east").await, Supervisor::new());
    let proxy = TestProxy::start(sim.address(), None, &tasks).await;
    let url = format!("url: 'http://{}'", proxy.address);
    let entry = format!("{url}, authorizationFile: {}", authorization.display());
    let (operator_file, sources) = watch::channel(file(&entry, "corp.test"));
    *lock(&proxy.answer) = "407 Proxy Authentication Required";
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim)).expect("a Secret");

    // An error of the proxy does not show that the credential or the certificate is invalid.
    let refused = east(&mesh, |east| names_the_proxy(east, "407 Proxy")).await;
    assert_eq!(refused.state, ClusterState::Syncing);
    *lock(&proxy.answer) = ESTABLISHED;
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    assert_eq!(live.via, "proxy corp");
    let heads = lock(&proxy.heads).clone();
    let target = "east.corp.test:6443";
    let head = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n"
    );
    assert!(heads.iter().all(|one| *one == head), "{heads:?}");

    // The operator withdraws the permission: contact ends, the data stays.
    operator_file.send_replace(file(&entry, "other.test"));
    is_silent(&mesh, &sim, "later").await;
    operator_file.send_replace(file(&entry, "corp.test"));
    east(&mesh, |east| east.state == ClusterState::Live && east.services > live.services).await;
    let mut annotated = secret(&sim);
    annotated["metadata"]["annotations"] = json!({ "strait.dev/proxy": "corp" });
    mesh.hub.store().apply(annotated).expect("a Secret");
    operator_file.send_replace(file(&entry, "other.test"));
    let revoked = east(&mesh, |east| east.state == ClusterState::Rejected).await;
    assert!(revoked.reason.unwrap_or_default().contains("STR0358"));
    is_silent(&mesh, &sim, "last").await;
}

/// Adds a service to the member, and checks that it is not read.
async fn is_silent(mesh: &Mesh, sim: &SimCluster, name: &str) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let requests = sim.requests(|_| true).len();
    let services = east(mesh, |_| true).await.services;
    assert!(services > 0, "the data stays");
    sim.store().apply(service("shop", name, "10.96.0.7", &[HTTP])).expect("a service");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(sim.requests(|_| true).len(), requests);
    assert_eq!(east(mesh, |_| true).await.services, services);
}

#[tokio::test]
async fn proxy_that_ends_leaves_the_last_known_state() {
    let (sim, tasks) = (sim("east").await, Supervisor::new());
    let proxies = tasks.child();
    let proxy = TestProxy::start(sim.address(), None, &proxies).await;
    let url = format!("url: 'http://{}'", proxy.address);
    let (_file, sources) = watch::channel(file(&url, "corp.test"));
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim)).expect("a Secret");
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    assert!(proxies.shut_down(LIMIT).await);
    let stale = east(&mesh, |east| east.state == ClusterState::Stale).await;
    assert!(names_the_proxy(&stale, "is not reachable"), "{:?}", stale.reason);
    assert_eq!((stale.services, stale.via), (live.services, "proxy corp".into()));
}

/// Issues certificates for a proxy with TLS and for its client. Writes the files of the client.
fn tls_files(directory: &Path) -> TlsAcceptor {
    let mut parameters = CertificateParams::new(Vec::new()).expect("valid");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().expect("a key");
    let ca = parameters.self_signed(&ca_key).expect("signed");
    let issuer = Issuer::new(parameters, ca_key);
    let issue = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new([name.to_owned()]).expect("valid");
        (parameters.signed_by(&key, &issuer).expect("signed").pem(), key.serialize_pem())
    };
    let ((server, server_key), (client, client_key)) = (issue("127.0.0.1"), issue("strait"));
    for (name, text) in [("roots", &ca.pem()), ("cert", &client), ("key", &client_key)] {
        std::fs::write(directory.join(name), text).expect("written");
    }
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der(&ca.pem())).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(
            vec![der(&server)],
            PrivateKeyDer::from_pem_slice(server_key.as_bytes()).expect("a key"),
        )
        .expect("a certificate");
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn proxy_with_tls_is_verified_and_requires_a_client_certificate() {
    let directory = tempfile::tempdir().expect("a directory");
    let tls = tls_files(directory.path());
    let (sim, tasks) = (sim("east").await, Supervisor::new());
    let proxy = TestProxy::start(sim.address(), Some(tls), &tasks).await;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let url = format!("url: 'https://{}'", proxy.address);
    let (operator_file, sources) = watch::channel(file(&url, "corp.test"));
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim)).expect("a Secret");
    // The proxy's certificate is not the member's.
    let unverified = east(&mesh, |east| names_the_proxy(east, "certificate")).await;
    assert_eq!(unverified.state, ClusterState::Syncing);
    let entry = format!("{url}, roots: {}, cert: {}, key: {}", at("roots"), at("cert"), at("key"));
    operator_file.send_replace(file(&entry, "corp.test"));
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    assert_eq!(live.via, "proxy corp");
}

/// Serves the server side of SOCKS 5 to one client: sends `reply`, and after reply 0 connects it with
/// `server`. Returns the user name with the password, and the requested name, if they are valid.
async fn serve_socks(mut client: TcpStream, server: SocketAddr, reply: u8) -> Option<[String; 2]> {
    let mut methods = [0; 4];
    client.read_exact(&mut methods).await.ok()?;
    client.write_all(&[5, 2]).await.ok()?;
    let _version = client.read_u8().await.ok()?;
    let user = [text(&mut client).await?, text(&mut client).await?].join(":");
    client.write_all(&[1, 0]).await.ok()?;
    let mut request = [0; 4];
    client.read_exact(&mut request).await.ok()?;
    let target = text(&mut client).await.filter(|_| request == [5, 1, 0, 3])?;
    let port = client.read_u16().await.ok()?;
    client.write_all(&[5, reply, 0, 1, 0, 0, 0, 0, 0, 0]).await.ok()?;
    if reply == 0 {
        let mut server = TcpStream::connect(server).await.ok()?;
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
    Some([user, format!("{target}:{port}")])
}

/// Reads a text after its length.
async fn text(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = vec![0; stream.read_u8().await.ok()?.into()];
    stream.read_exact(&mut bytes).await.ok()?;
    String::from_utf8(bytes).ok()
}

#[tokio::test]
async fn member_is_read_through_a_socks_proxy_that_resolves_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let authorization = directory.path().join("authorization");
    std::fs::write(&authorization, "Basic bWU6c2VjcmV0\n").expect("written");
    let (sim, tasks) = (sim("east").await, Supervisor::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (reply, replies) = watch::channel(2_u8);
    let (server, all) = (sim.address(), tasks.clone());
    let seen: Arc<Mutex<BTreeSet<[String; 2]>>> = Arc::default();
    let served = Arc::clone(&seen);
    tasks.spawn("proxy", async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("a connection");
            let (reply, served) = (*replies.borrow(), Arc::clone(&served));
            all.spawn("tunnel", async move {
                let found = serve_socks(tcp, server, reply).await;
                lock(&served).extend(found);
            });
        }
    });
    let entry =
        format!("url: 'socks5://{address}', authorizationFile: {}", authorization.display());
    let (_file, sources) = watch::channel(file(&entry, "corp.test"));
    let mesh = Mesh::with_sources(sources).await;
    mesh.hub.store().apply(secret(&sim)).expect("a Secret");
    let refused = east(&mesh, |east| names_the_proxy(east, "SOCKS reply 2 (not allowed")).await;
    assert_eq!(refused.state, ClusterState::Syncing);
    reply.send_replace(0);
    let live = east(&mesh, |east| east.state == ClusterState::Live).await;
    assert_eq!(live.via, "proxy corp");
    let only = ["me:secret".to_owned(), "east.corp.test:6443".to_owned()];
    assert_eq!(lock(&seen).iter().collect::<Vec<_>>(), [&only]);
}
