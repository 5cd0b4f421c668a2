//! One simulated cluster: a store behind an HTTPS server that can be stopped, restarted and disturbed by faults.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderValue};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::fault::Fault;
use crate::http::ApiServer;
use crate::kubeconfig;
use crate::object::Name;
use crate::requests::Request;
use crate::resource::Family;
use crate::status::ApiError;
use crate::store::{DEFAULT_HISTORY, Store};
use crate::task;
use crate::tls::{self, Certificate};
use crate::tokens::token_of;

/// The time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// The value from which all UIDs are derived, including that of `kube-system`. By default, it is the cluster's ID.
    /// Two clusters with the same value are one cluster under two names. A different value under an old ID is a
    /// replaced cluster.
    pub identity: Option<String>,
    /// The number of changes per kind that are stored for watches.
    pub history: usize,
    /// The interval of bookmarks. A real server uses one minute.
    pub bookmark_interval: Duration,
    /// The served APIs, which always include the core.
    pub families: BTreeSet<Family>,
    /// Whether requests need a bearer token.
    pub authenticate: bool,
    /// The server's certificate.
    pub certificate: Certificate,
    /// Whether the server offers HTTP/2, as real servers do. A proxy in front of one may not.
    pub http2: bool,
    /// The maximum number of streams per HTTP/2 connection.
    pub streams: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            identity: None,
            history: DEFAULT_HISTORY,
            bookmark_interval: Duration::from_secs(5),
            families: BTreeSet::from([Family::Core]),
            authenticate: true,
            certificate: Certificate::Valid,
            http2: true,
            streams: 1000,
        }
    }
}

/// A running cluster. Clones are handles to the same cluster, which ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct SimCluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: String,
    address: SocketAddr,
    api: Arc<ApiServer>,
    token: Mutex<String>,
    /// The requested state for the lifecycle task. Dropping it ends the task.
    wanted: watch::Sender<Wanted>,
    serving: watch::Receiver<bool>,
    accepted: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Up,
    Down,
    Flapping { up: Duration, down: Duration },
}

impl SimCluster {
    /// Starts an empty cluster on a free loopback port.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start(id: &str, mut options: Options) -> io::Result<SimCluster> {
        options.families.insert(Family::Core);
        let identity = options.identity.as_deref().unwrap_or(id);
        let store = Arc::new(Store::new(identity, options.history));
        let token = fresh_token();
        let api = Arc::new(ApiServer::new(
            store,
            options.families,
            options.bookmark_interval,
            options.authenticate.then_some(&*token),
        ));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let wanted = watch::Sender::new(Wanted::Up);
        let (serving_sender, serving) = watch::channel(true);
        let accepted = Arc::<AtomicU64>::default();
        let lifecycle = Lifecycle {
            accepted: Arc::clone(&accepted),
            address,
            tls: tls::acceptor(options.certificate, options.http2),
            streams: options.streams,
            api: api.clone(),
            serving: serving_sender,
        };
        task::spawn(lifecycle.run(listener, wanted.subscribe()));
        let token = Mutex::new(token);
        let inner = Inner { id: id.to_owned(), address, api, token, wanted, serving, accepted };
        Ok(SimCluster { inner: Arc::new(inner) })
    }

    /// Returns the cluster's ID, which names the member in the config cluster.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Returns `https://127.0.0.1:PORT`, which stays the same after restarts.
    pub fn url(&self) -> String {
        format!("https://{}", self.inner.address)
    }

    /// Returns the address on which it listens while it is running.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// Returns its objects.
    pub fn store(&self) -> &Store {
        &self.inner.api.store
    }

    /// Returns the bearer token of the administrator.
    pub fn token(&self) -> String {
        self.inner.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the administrator's token. Requests with any earlier token get 401.
    pub fn rotate_token(&self) -> String {
        let token = fresh_token();
        self.inner.api.tokens.replace_all(&token);
        token.clone_into(&mut self.inner.token.lock().unwrap_or_else(PoisonError::into_inner));
        token
    }

    /// Issues a client certificate for a user with all rights. Returns the certificate and its key, in
    /// PEM.
    pub fn issue_certificate(&self, user: &str) -> (String, String) {
        let issued = tls::client_certificate(user);
        self.inner.api.tokens.accept_certificate(&issued.der, user);
        (issued.certificate_pem, issued.key_pem)
    }

    /// Responds 401 to requests with this client certificate (PEM).
    pub fn revoke_certificate(&self, certificate_pem: &str) {
        if let Ok(certificate) = CertificateDer::from_pem_slice(certificate_pem.as_bytes()) {
            self.inner.api.tokens.revoke_certificate(&certificate);
        }
    }

    /// Returns a token as the kubelet mounts it into a pod: for its service account, bound to the pod, with this
    /// audience.
    ///
    /// # Errors
    /// The pod does not exist.
    pub fn pod_token(
        &self,
        namespace: &str,
        pod: &str,
        audience: &str,
        lifetime: Duration,
    ) -> Result<String, ApiError> {
        let object = self.store().get("Pod", namespace, pod).ok_or_else(ApiError::no_such_path)?;
        let object = object.value();
        let account = object["spec"]["serviceAccountName"].as_str().unwrap_or("default");
        let account = Name::new(namespace, account);
        let audiences = serde_json::json!([audience]);
        self.inner.api.account_token(&account, Some(pod), audiences, lifetime)
    }

    /// Returns a token of a service account for this audience, without a pod.
    ///
    /// # Errors
    /// The audience or lifetime is invalid.
    pub fn account_token(
        &self,
        namespace: &str,
        account: &str,
        audience: &str,
    ) -> Result<String, ApiError> {
        let (account, audiences) = (Name::new(namespace, account), serde_json::json!([audience]));
        self.inner.api.account_token(&account, None, audiences, Duration::from_secs(3600))
    }

    /// Returns the certificate of the authority that signed its certificate, in PEM.
    pub fn certificate_authority(&self) -> &'static str {
        tls::authority_pem()
    }

    /// Returns a kubeconfig with inline credentials, as JSON.
    pub fn kubeconfig(&self) -> String {
        let ca = self.certificate_authority();
        let config = kubeconfig::kubeconfig(self.id(), &self.url(), ca, &self.token());
        serde_json::to_string_pretty(&config).expect("a JSON value encodes")
    }

    /// Returns the Secret that makes this cluster a member of the config cluster.
    pub fn member_secret(&self, namespace: &str) -> Value {
        kubeconfig::member_secret(namespace, self.id(), &self.kubeconfig())
    }

    /// Sets the address that stands for a port of the pod `NAMESPACE/NAME` in port-forwards.
    pub fn forward_pod_port(&self, pod: &str, port: u16, address: SocketAddr) {
        self.inner.api.pod_ports.set(pod.to_owned(), port, address);
    }

    /// Starts a fault; see [`Fault`].
    pub fn fault(&self, fault: Fault) {
        match fault {
            Fault::Flap { up_ms, down_ms } => {
                let (up, down) = (Duration::from_millis(up_ms), Duration::from_millis(down_ms));
                self.want(Wanted::Flapping { up, down });
            }
            fault => self.inner.api.faults.set(fault),
        }
    }

    /// Ends the active fault whose kind equals that of `fault`, regardless of the parameters.
    pub fn end_fault(&self, fault: &Fault) {
        match fault {
            Fault::Flap { .. } => self.end_flapping(),
            fault => self.inner.api.faults.end(fault),
        }
    }

    /// Ends all faults. A stopped server stays stopped.
    pub fn heal(&self) {
        self.inner.api.faults.heal();
        self.end_flapping();
    }

    /// Returns the active faults.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = self.inner.api.faults.list();
        if let Wanted::Flapping { up, down } = *self.inner.wanted.borrow() {
            let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            faults.push(Fault::Flap { up_ms: ms(up), down_ms: ms(down) });
        }
        faults
    }

    fn end_flapping(&self) {
        if matches!(*self.inner.wanted.borrow(), Wanted::Flapping { .. }) {
            self.want(Wanted::Up);
        }
    }

    /// Requests a state. Requesting the current state has no effect, so connections stay open.
    fn want(&self, wanted: Wanted) {
        self.inner.wanted.send_if_modified(|now| std::mem::replace(now, wanted) != wanted);
    }

    /// Stops the server immediately: the port is closed and all connections are dropped. Objects stay.
    pub async fn stop(&self) {
        self.want(Wanted::Down);
        self.wait_until_serving(false).await;
    }

    /// Restarts a stopped server, with the same port and objects.
    pub async fn restart(&self) {
        self.want(Wanted::Up);
        self.wait_until_serving(true).await;
    }

    /// Returns whether it is listening.
    pub fn is_serving(&self) -> bool {
        *self.inner.serving.borrow()
    }

    async fn wait_until_serving(&self, serving: bool) {
        // Fails only if the runtime ends, together with the lifecycle task.
        let _ = self.inner.serving.clone().wait_for(|now| *now == serving).await;
    }

    /// Enables an additional family of APIs, as if its CustomResourceDefinitions were installed.
    pub fn enable(&self, family: Family) {
        self.inner.api.families.lock().unwrap_or_else(PoisonError::into_inner).insert(family);
    }

    /// Returns the last 10,000 requests, oldest first, without the requests that `filter` excludes.
    pub fn requests(&self, filter: impl Fn(&Request) -> bool) -> Vec<Request> {
        self.inner.api.requests.last().into_iter().filter(filter).collect()
    }

    /// Returns the total number of accepted connections.
    pub fn connection_count(&self) -> u64 {
        self.inner.accepted.load(Ordering::Relaxed)
    }

    /// Returns the total number of requests with this verb (as in RBAC) and plural name.
    pub fn request_count(&self, verb: &str, resource: &str) -> u64 {
        self.inner.api.requests.count(verb, resource)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Wakes requests that hang because of a fault. No later event can wake them.
        self.api.faults.heal();
    }
}

fn fresh_token() -> String {
    let bytes = rand::random::<[u8; 16]>();
    bytes.iter().fold("sim-".to_owned(), |token, byte| token + &format!("{byte:02x}"))
}

/// The task that opens and closes the port.
struct Lifecycle {
    /// Number of accepted connections.
    accepted: Arc<AtomicU64>,
    address: SocketAddr,
    tls: TlsAcceptor,
    streams: u32,
    api: Arc<ApiServer>,
    serving: watch::Sender<bool>,
}

impl Lifecycle {
    async fn run(self, listener: TcpListener, mut wanted: watch::Receiver<Wanted>) {
        let mut listener = Some(listener);
        loop {
            let now = *wanted.borrow_and_update();
            let ended = match now {
                Wanted::Up => tokio::select! {
                    ended = wanted.changed() => ended,
                    () = self.serve(listener.take()) => continue,
                },
                Wanted::Down => {
                    drop(listener.take());
                    let _reserved = self.reserved_port();
                    self.serving.send_replace(false);
                    wanted.changed().await
                }
                Wanted::Flapping { up, down } => tokio::select! {
                    ended = wanted.changed() => ended,
                    () = self.serve_for(listener.take(), up, down) => continue,
                },
            };
            if ended.is_err() {
                return;
            }
        }
    }

    async fn serve_for(&self, listener: Option<TcpListener>, up: Duration, down: Duration) {
        let _ = timeout(up, self.serve(listener)).await;
        let _reserved = self.reserved_port();
        self.serving.send_replace(false);
        sleep(down).await;
    }

    /// Accepts connections until it is dropped, together with the connections.
    async fn serve(&self, listener: Option<TcpListener>) {
        let listener = match listener {
            Some(listener) => listener,
            None => self.listen_again().await,
        };
        self.serving.send_replace(true);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        self.accepted.fetch_add(1, Ordering::Relaxed);
                        let (tls, api) = (self.tls.clone(), self.api.clone());
                        connections.spawn(connection(stream, tls, self.streams, api));
                    }
                    // Probably out of file descriptors: wait until some connections end.
                    Err(_) => sleep(Duration::from_millis(50)).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// Reserves the port while the server is stopped. Connections are refused, and no other server can use the port.
    fn reserved_port(&self) -> Option<TcpSocket> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.set_reuseaddr(true).ok()?;
        socket.bind(self.address).ok()?;
        Some(socket)
    }

    async fn listen_again(&self) -> TcpListener {
        loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => return listener,
                // An outgoing connection of another process may use our port for a moment.
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, streams: u32, api: Arc<ApiServer>) {
    // Otherwise small events are delayed until the previous one is acknowledged.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let authorization = certificate
        .and_then(|leaf| HeaderValue::from_str(&format!("Bearer {}", token_of(leaf))).ok());
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        let api = api.clone();
        if let Some(authorization) = &authorization {
            request.headers_mut().entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        async move { Ok::<_, std::convert::Infallible>(api.answer(request).await) }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new());
    server.http2().timer(TokioTimer::new()).max_concurrent_streams(streams);
    // Errors are ignored: the client disconnected or sent invalid data.
    let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}
