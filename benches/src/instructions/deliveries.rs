//! The cost of one change for the streams that receive it, with everything that a server does for
//! it: marking, waking, the session, HTTP/2 and TLS, and the acknowledgement. Byte streams in
//! memory take the place of sockets.
//!
//! The clients use real TLS and real requests. They encrypt the acknowledgements of the measured
//! changes in advance, so that only the work of the server is counted.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use prost::Message;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::{Case, DOMAIN, mesh, names, objects, tell, update};
use strait_ads::budgets::Budgets;
use strait_ads::connections::Connections;
use strait_ads::offline::OfflineServer;
use strait_ads::server::XdsConfig;
use strait_identity::caller::{CallerAnswer, CallerRegistry};
use strait_identity::credential::CredentialRegistry;
use strait_identity::tls::{self, ClientCertificates};
use strait_identity::{
    Authority, AuthorityFrom, AuthorityPem, CertificateSettings, RootEvidence, ServerIdentity,
    Serving, SpiffeId, rotation,
};
use strait_kube_client::Encoding;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::MeshEvent;
use strait_mesh::push::subscription_index::{Changes, SubscriptionIndex};
use strait_mesh::timeline::Delivery;
use strait_model::ClusterId;
use strait_model::credential::{CredentialName, CredentialState};
use strait_model::registry::ShardChange;
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind};
use strait_xds::resource::ResourceType;

const STREAMS: usize = 1000;
const SERVICES: usize = 100;
/// The number of measured changes, each of one endpoint.
const CHANGES: usize = 5;
/// Longer than the pause of a stream after a change.
const PAUSE: Duration = Duration::from_millis(60);
const LARGE_WINDOW: u32 = i32::MAX as u32;

/// Changes one endpoint of a service to which all of a thousand streams subscribe.
pub(crate) fn deliver() -> Case {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let mut server = runtime.block_on(async { Server::new() });
    let entered = runtime.enter();
    for number in 0..STREAMS {
        server.connect(number);
    }
    let acknowledgements: Vec<_> = server.clients.iter_mut().map(Client::prepare).collect();
    let changes: Vec<_> = (0..CHANGES).map(|number| server.change(number)).collect();
    drop(entered);
    let mut acknowledgements = acknowledgements.into_iter().map(Vec::into_iter).collect::<Vec<_>>();
    let run = move || {
        for (context, changes) in &changes {
            pause();
            let _entered = runtime.enter();
            let delivery = Arc::new(Delivery::new(std::time::Instant::now()));
            server.versions.send_replace(Some(Arc::clone(context)));
            let marked = server.subscription_index.mark_followed(changes, Some(&delivery));
            assert_eq!(marked, STREAMS, "every stream is subscribed");
            server.run();
            for (client, acknowledgements) in server.clients.iter().zip(&mut acknowledgements) {
                client.pipe.push(acknowledgements.next().expect("one for each change"));
            }
            assert_eq!(waiting(&delivery), STREAMS, "every stream was sent the change");
            server.run();
            assert_eq!(waiting(&delivery), 0, "every stream has acknowledged the change");
        }
    };
    Case::new(STREAMS * CHANGES, run)
}

/// Waits without running the timers of the connections. Under valgrind, the preparation takes so
/// long that the server would close the connections because the clients answer no pings.
#[expect(clippy::disallowed_methods, reason = "there is only this thread")]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// Returns the number of streams that have not acknowledged the change.
fn waiting(delivery: &Delivery) -> usize {
    delivery.counts().waiting() as usize
}

/// The task of a connection.
type ServedConnection = Pin<Box<dyn Future<Output = ()>>>;

/// A server with its connections, and the clients of these connections.
struct Server {
    mesh: strait_mesh::push::event_loop::MeshState,
    registry: strait_sources::registry::kube::offline::Offline,
    versions: watch::Sender<Option<Arc<PushContext>>>,
    subscription_index: Arc<SubscriptionIndex>,
    server: Arc<OfflineServer>,
    config: Arc<ClientConfig>,
    queue: Arc<Queue>,
    connections: Vec<(ServedConnection, Waker)>,
    clients: Vec<Client>,
}

impl Server {
    fn new() -> Self {
        let (mesh, mut registries, context) = mesh(1, SERVICES, 10);
        let (versions, watched) = watch::channel(Some(context));
        let subscription_index = Arc::<SubscriptionIndex>::default();
        let (identity, config) = identities();
        let server = OfflineServer::new(XdsConfig {
            context: watched,
            subscription_index: Arc::clone(&subscription_index),
            identity,
            trust_domain: watch::channel(Some(DOMAIN.into())).1,
            callers: Arc::new(Nobody),
            credentials: Arc::new(Nobody),
            members: Arc::new(Vec::new),
            tokens_count: false,
            connections: Arc::new(Connections::new(Budgets::of_memory(64 << 30))),
            stats: Arc::default(),
            cache: Arc::default(),
            heads: Arc::default(),
            max_connections: STREAMS,
            certificate_lifetime_max: Duration::from_secs(3600),
            descriptors: Arc::default(),
            audit_interval: None,
            replicas: None,
            relays: None,
            drain: Default::default(),
        });
        Self {
            mesh,
            registry: registries.remove(0),
            versions,
            subscription_index,
            server: Arc::new(server),
            config,
            queue: Arc::default(),
            connections: Vec::new(),
            clients: Vec::new(),
        }
    }

    /// Opens a connection with one stream, and runs it until the client has everything.
    fn connect(&mut self, number: usize) {
        let pipe = Pipe::default();
        let (server, end) = (Arc::clone(&self.server), pipe.clone());
        let served = async move {
            let served = server.serve(end, ([127, 0, 0, 1], 0).into()).await;
            served.expect("the handshake succeeds");
        };
        let waker = Waker::from(Arc::new(Wakeup { queue: Arc::clone(&self.queue), number }));
        waker.wake_by_ref();
        self.connections.push((Box::pin(served), waker));
        let mut client = Client::new(pipe, &self.config);
        client.ask(number);
        loop {
            let sent = client.send();
            self.run();
            if !client.receive() && !sent {
                break;
            }
        }
        assert!(client.answered > 1, "clusters and assignments were sent");
        self.clients.push(client);
    }

    /// Polls all woken connections until none is woken.
    fn run(&mut self) {
        while let Some(number) = self.queue.next() {
            let (connection, waker) = self.connections.get_mut(number).expect("a connection");
            let polled = connection.as_mut().poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending(), "the connection stays open");
        }
    }

    /// Changes one endpoint. Returns the new version and the changes.
    fn change(&mut self, number: usize) -> (Arc<PushContext>, Changes) {
        let slice = objects::slice(number * SERVICES / CHANGES, 10, 100);
        tell(&mut self.registry, "endpointslices", Encoding::Json, &slice);
        let change = ShardChange::Update(self.registry.changes().expect("a change"));
        self.mesh.apply(MeshEvent::Registry(update(0, change)));
        self.mesh.next_version().expect("a version")
    }
}

/// Returns the identity of the server, and the configuration of clients that trust it.
fn identities() -> (watch::Receiver<Arc<ServerIdentity>>, Arc<ClientConfig>) {
    let now = SystemTime::now();
    let files = AuthorityPem::generate(now).expect("a CA can be made");
    let authority = Authority::new(&files, "bench", now).expect("a new CA is sound");
    let id: SpiffeId =
        format!("spiffe://{DOMAIN}/ns/{}/sa/web", objects::NAMESPACE).parse().expect("an ID");
    let pair = authority.issue_workload(&id, Duration::from_secs(3600), now).expect("it signs");
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(files.root_cert.as_bytes()) {
        roots.add(root.expect("PEM")).expect("a root");
    }
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(roots)
        .with_client_auth_cert(pair.chain.certificates().to_vec(), pair.key_der())
        .expect("a certificate");
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    let settings = CertificateSettings {
        serving: Serving::Issued { names: vec!["localhost".into()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(files)),
        relay_authority: None,
        named: watch::channel(Arc::default()).1,
        clients: ClientCertificates::Optional,
        evidence: RootEvidence::empty(),
        members: Default::default(),
    };
    let tasks = strait_base::task::Supervisor::new();
    let identity = rotation::start(settings, rotation::INTERVAL, &tasks).expect("a sound CA");
    tasks.stop();
    (identity, Arc::new(config))
}

/// A proxy: TLS and HTTP/2 of one stream, without flow control.
struct Client {
    pipe: Pipe,
    tls: ClientConnection,
    /// Received bytes of HTTP/2, and received bytes of gRPC.
    frames: Vec<u8>,
    messages: Vec<u8>,
    /// The number of answered responses, which is the last nonce.
    answered: u64,
}

impl Client {
    fn new(pipe: Pipe, config: &Arc<ClientConfig>) -> Self {
        let name = "localhost".try_into().expect("a name");
        let tls = ClientConnection::new(Arc::clone(config), name).expect("a sound configuration");
        Self { pipe, tls, frames: Vec::new(), messages: Vec::new(), answered: 0 }
    }

    /// Opens the stream and requests all upstream clusters and the assignments of all services.
    fn ask(&mut self, number: usize) {
        self.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // SETTINGS_INITIAL_WINDOW_SIZE
        self.say(&frame(4, 0, 0, &[&[0, 4][..], &LARGE_WINDOW.to_be_bytes()].concat()));
        self.say(&frame(8, 0, 0, &(LARGE_WINDOW - 65_535).to_be_bytes()));
        // POST and https are in the static table, and so are the names of the other headers.
        let path =
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let mut head = vec![0x83, 0x87];
        let others =
            [(&[0x01][..], "localhost"), (&[0x04], path), (&[0x0f, 0x10], "application/grpc")];
        for (name, value) in others {
            head.extend_from_slice(name);
            head.push(u8::try_from(value.len()).expect("short"));
            head.extend_from_slice(value.as_bytes());
        }
        self.say(&frame(1, 4, 1, &head));
        let value = Value { kind: Some(Kind::StringValue("c1".into())) };
        let (namespace, place) = (objects::NAMESPACE, number.to_be_bytes());
        let [.., high, low] = place;
        let node = Node {
            id: format!(
                "sidecar~198.18.{high}.{low}~web-{number}.{namespace}~{namespace}.svc.{DOMAIN}"
            ),
            metadata: Some(Struct { fields: [("CLUSTER_ID".to_owned(), value)].into() }),
            ..Default::default()
        };
        let clusters = DeltaDiscoveryRequest {
            node: Some(node),
            type_url: ResourceType::Cluster.url().into(),
            ..Default::default()
        };
        let assignments = DeltaDiscoveryRequest {
            type_url: ResourceType::Endpoint.url().into(),
            resource_names_subscribe: names(SERVICES),
            ..Default::default()
        };
        self.say(&message(&clusters));
        self.say(&message(&assignments));
    }

    /// Encrypts bytes; [`Self::send`] sends them once the handshake is complete.
    fn say(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).expect("it buffers all of it");
    }

    /// Sends everything that is encrypted. Returns whether there was anything.
    fn send(&mut self) -> bool {
        let mut sent = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut sent).expect("it writes to memory");
        }
        let any = !sent.is_empty();
        self.pipe.push(sent);
        any
    }

    /// Receives everything, and answers the responses in it. Returns whether there was anything.
    fn receive(&mut self) -> bool {
        let received = self.pipe.take();
        let mut rest = received.as_slice();
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest).expect("it reads from memory");
            self.tls.process_new_packets().expect("sound TLS");
            // The end is reported as an error, because nothing more has arrived.
            let _ = self.tls.reader().read_to_end(&mut self.frames);
        }
        while let Some((&[a, b, c, kind, ..], body)) = self.frames.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some(body) = body.get(..length) else { break };
            if kind == 0 {
                self.messages.extend_from_slice(body);
            }
            self.frames.drain(..9 + length);
        }
        while let Some((&[_, a, b, c, d], body)) = self.messages.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            let Some(body) = body.get(..length) else { break };
            let response = DeltaDiscoveryResponse::decode(body).expect("a response");
            self.messages.drain(..5 + length);
            self.answered += 1;
            assert_eq!(response.nonce, format!("{:x}", self.answered));
            self.say(&acknowledgement(&response.type_url, self.answered));
        }
        !received.is_empty()
    }

    /// Encrypts the acknowledgements of the next changes, in order. From now on, the client only
    /// counts what it receives.
    fn prepare(&mut self) -> Vec<Vec<u8>> {
        self.pipe.lock().ignores = true;
        let next = self.answered + 1..=self.answered + CHANGES as u64;
        let encrypted = next.map(|nonce| {
            self.say(&acknowledgement(ResourceType::Endpoint.url(), nonce));
            let mut sent = Vec::new();
            self.tls.write_tls(&mut sent).expect("it writes to memory");
            sent
        });
        encrypted.collect()
    }
}

fn acknowledgement(type_url: &str, nonce: u64) -> Vec<u8> {
    message(&DeltaDiscoveryRequest {
        type_url: type_url.into(),
        response_nonce: format!("{nonce:x}"),
        ..Default::default()
    })
}

/// Encodes a request as a gRPC message in one frame of the first call.
fn message(request: &DeltaDiscoveryRequest) -> Vec<u8> {
    let content = request.encode_to_vec();
    let length = u32::try_from(content.len()).expect("small").to_be_bytes();
    frame(0, 0, 1, &[&[0], &length[..], &content].concat())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() <= 16 << 10, "the maximum size of a frame");
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Both directions between a client and the server.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<PipeState>>);

#[derive(Default)]
struct PipeState {
    to_server: VecDeque<u8>,
    to_client: Vec<u8>,
    reader: Option<Waker>,
    /// Whether the client ignores the data from the server.
    ignores: bool,
}

impl Pipe {
    fn lock(&self) -> std::sync::MutexGuard<'_, PipeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        state.to_server.extend(bytes);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().to_client)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.to_server.is_empty() {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = state.to_server.len().min(buffer.remaining());
        let (first, second) = state.to_server.as_slices();
        let first = first.get(..count).unwrap_or(first);
        buffer.put_slice(first);
        buffer.put_slice(second.get(..count - first.len()).unwrap_or_default());
        state.to_server.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if !state.ignores {
            slices.iter().for_each(|slice| state.to_client.extend_from_slice(slice));
        }
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The woken connections, each at most once.
#[derive(Default)]
struct Queue(Mutex<(VecDeque<usize>, Vec<bool>)>);

impl Queue {
    fn next(&self) -> Option<usize> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (woken, is_woken) = &mut *queue;
        let number = woken.pop_front()?;
        if let Some(is_woken) = is_woken.get_mut(number) {
            *is_woken = false;
        }
        Some(number)
    }
}

/// The waker of one connection.
struct Wakeup {
    queue: Arc<Queue>,
    number: usize,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut queue = self.queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (woken, is_woken) = &mut *queue;
        if is_woken.len() <= self.number {
            is_woken.resize(self.number + 1, false);
        }
        if let Some(is_woken) = is_woken.get_mut(self.number)
            && !std::mem::replace(is_woken, true)
        {
            woken.push_back(self.number);
        }
    }
}

/// No caller has a token, and no Secret is read.
#[derive(Debug)]
struct Nobody;

impl CallerRegistry for Nobody {
    fn verify<'a>(&'a self, _: &'a str, _: &'a ClusterId) -> CallerAnswer<'a> {
        Box::pin(std::future::pending())
    }

    fn runs(&self, _: &ClusterId, _: &SpiffeId) -> bool {
        false
    }
}

impl CredentialRegistry for Nobody {
    fn follow(
        &self,
        _: &ClusterId,
        _: &SpiffeId,
        _: &CredentialName,
    ) -> watch::Receiver<CredentialState> {
        watch::channel(CredentialState::default()).1
    }
}
