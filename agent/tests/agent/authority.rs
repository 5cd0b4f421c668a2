//! A certificate service like that of the control plane: TLS without a client certificate, with a token and a cluster
//! in each call.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer,
    KeyPair, SanType,
};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::Any;
use strait_proto::health::health_check_response::ServingStatus;
use strait_proto::health::health_server::{Health, HealthServer};
use strait_proto::health::{HealthCheckRequest, HealthCheckResponse};
use strait_proto::istio::auth::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use strait_proto::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};
use strait_proto::istio::nds::{NameTable, name_table::NameInfo};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// The settings of the service, and the received requests.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    lifetime: Duration,
    refuses: Option<tonic::Code>,
    /// `authorization` and `clusterid` of each call.
    calls: Vec<(String, String)>,
    /// Requests on streams for name tables.
    name_requests: Vec<DiscoveryRequest>,
    /// The number of streams for name tables without a token.
    names_by_certificate: usize,
}

/// A running service, stopped on drop.
pub(crate) struct Authority {
    /// The listening address.
    pub(crate) address: SocketAddr,
    root: String,
    shared: Shared,
    _runtime: Runtime,
}

struct Service {
    issuer: Issuer<'static, KeyPair>,
    root: String,
    shared: Shared,
}

/// Returns a new root, as its issuer and in PEM.
pub(crate) fn root() -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Without a name, certificates that it signs would have the same name and look self-signed.
    params.distinguished_name.push(DnType::CommonName, "root of a test");
    let pem = params.self_signed(&key).expect("signed").pem();
    (Issuer::new(params, key), pem)
}

impl Authority {
    /// Starts a service that issues certificates with this lifetime.
    pub(crate) fn start(lifetime: Duration) -> Self {
        let (issuer, root) = root();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        let certificate = params.signed_by(&key, &issuer).expect("signed");
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .expect("they fit");
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let shared = Shared(Arc::new(Mutex::new(State {
            lifetime,
            refuses: None,
            calls: Vec::new(),
            name_requests: Vec::new(),
            names_by_certificate: 0,
        })));
        let service = Service { issuer, root: root.clone(), shared: shared.clone() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), service));
        Self { address, root, shared, _runtime: runtime }
    }

    /// Returns its root certificate in PEM.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Returns `authorization` and `clusterid` of each call so far.
    pub(crate) fn calls(&self) -> Vec<(String, String)> {
        self.shared.0.lock().expect("not poisoned").calls.clone()
    }

    /// Returns the requests for name tables so far.
    pub(crate) fn name_requests(&self) -> Vec<DiscoveryRequest> {
        self.shared.0.lock().expect("not poisoned").name_requests.clone()
    }

    /// Returns the number of streams for name tables so far that sent no token.
    pub(crate) fn names_by_certificate(&self) -> usize {
        self.shared.0.lock().expect("not poisoned").names_by_certificate
    }

    /// Makes it refuse calls with this code, or accept them again.
    pub(crate) fn refuse(&self, code: Option<tonic::Code>) {
        self.shared.0.lock().expect("not poisoned").refuses = code;
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, service: Service) {
    let names = AggregatedDiscoveryServiceServer::new(NameTables {
        shared: service.shared.clone(),
        streams: Mutex::default(),
    });
    let routes = Routes::new(IstioCertificateServiceServer::new(service)).add_service(names);
    let service = TowerToHyperService::new(routes.prepare());
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, service) = (tls.clone(), service.clone());
        connections.spawn(async move {
            // Failed handshakes are ignored.
            let Ok(stream) = tls.accept(stream).await else { return };
            let server = http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[tonic::async_trait]
impl IstioCertificateService for Service {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let header = |name: &str| {
            let values: Vec<_> = request.metadata().get_all(name).iter().collect();
            values.iter().map(|value| value.to_str().expect("ASCII")).collect::<Vec<_>>().join("|")
        };
        let call = (header("authorization"), header("clusterid"));
        let (lifetime, refuses) = {
            let mut state = self.shared.0.lock().expect("not poisoned");
            state.calls.push(call);
            (state.lifetime, state.refuses)
        };
        if let Some(code) = refuses {
            return Err(Status::new(code, "as the test wants it"));
        }
        let mut signed = CertificateSigningRequestParams::from_pem(&request.get_ref().csr)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let now = time::OffsetDateTime::now_utc();
        signed.params.not_before = now - Duration::from_secs(1);
        signed.params.not_after = now + lifetime;
        let uri = "spiffe://cluster.local/ns/shop/sa/web".try_into().expect("ASCII");
        signed.params.subject_alt_names = vec![SanType::URI(uri)];
        let leaf =
            signed.signed_by(&self.issuer).map_err(|error| Status::internal(error.to_string()))?;
        let cert_chain = vec![leaf.pem(), self.root.clone()];
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

/// The health service of an application, with the services `up` and `down`.
struct AppHealth;

#[tonic::async_trait]
impl Health for AppHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = match &*request.get_ref().service {
            "up" => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("no probe asks it"))
    }
}

/// Serves the health service of an application, until the result is dropped.
pub(crate) fn serve_health(address: SocketAddr) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = runtime.block_on(TcpListener::bind(address)).expect("a free port");
    let server = tonic::transport::Server::builder().add_service(HealthServer::new(AppHealth));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    runtime
}

/// An ADS server: a table with one name for the agent, and no resources for Envoy.
struct NameTables {
    shared: Shared,
    streams: Mutex<JoinSet<()>>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for NameTables {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let token = request.metadata().get("authorization").map(|value| value.as_bytes());
        if token == Some(b"Bearer ended".as_slice()) {
            return Err(Status::unauthenticated("the token has ended"));
        }
        if token.is_none() {
            self.shared.0.lock().expect("not poisoned").names_by_certificate += 1;
        }
        let (sender, answers) = mpsc::channel(4);
        let shared = self.shared.clone();
        let mut requests = request.into_inner();
        let task = async move {
            while let Ok(Some(request)) = requests.message().await {
                let is_first = request.response_nonce.is_empty();
                shared.0.lock().expect("not poisoned").name_requests.push(request);
                if is_first {
                    let _ = sender.send(Ok(one_name())).await;
                }
            }
        };
        self.streams.lock().expect("not poisoned").spawn(task);
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    /// Answers each subscription of Envoy with an empty response.
    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (sender, answers) = mpsc::channel(4);
        let mut requests = request.into_inner();
        let task = async move {
            while let Ok(Some(request)) = requests.message().await {
                if request.response_nonce.is_empty() {
                    let (type_url, nonce) = (request.type_url, "n1".to_owned());
                    let nothing = DeltaDiscoveryResponse { type_url, nonce, ..Default::default() };
                    let _ = sender.send(Ok(nothing)).await;
                }
            }
        };
        self.streams.lock().expect("not poisoned").spawn(task);
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

fn one_name() -> DiscoveryResponse {
    let info = NameInfo { ips: vec!["10.0.0.1".to_owned()], ..Default::default() };
    let table = NameTable { table: [("db.data.svc.cluster.local".to_owned(), info)].into() };
    let type_url = "type.googleapis.com/istio.networking.nds.v1.NameTable".to_owned();
    DiscoveryResponse {
        version_info: "v1".to_owned(),
        nonce: "n1".to_owned(),
        resources: vec![Any { type_url: type_url.clone(), value: table.encode_to_vec() }],
        type_url,
        ..Default::default()
    }
}
