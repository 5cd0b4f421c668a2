//! An xDS client for tests, benches and the demo.
//!
//! It connects as one proxy over mTLS, subscribes as a proxy would (all upstream clusters and
//! listeners, then the assignments and routes they refer to), and records the resources that it
//! receives. It supports both protocol forms and can continue from the state of an earlier client.
//! It rejects a resource that it cannot decode, as a proxy would. It forwards no traffic.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use strait_base::task::Supervisor;
use strait_proto::envoy::envoy::config::cluster::v3::Cluster;
use strait_proto::envoy::envoy::config::core::v3::{Node, SocketAddress, address};
use strait_proto::envoy::envoy::config::endpoint::v3::{ClusterLoadAssignment, lb_endpoint};
use strait_proto::envoy::envoy::config::listener::v3::Listener;
use strait_proto::envoy::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::value::Kind;
use strait_proto::envoy::google::rpc;
use strait_proto::istio::nds::NameTable;
use strait_xds::references::names_in;
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;

/// The capacity of the request queue. A full queue blocks the reader, and thereby the server.
const REQUESTS: usize = 64;
/// gRPC's status code for an invalid argument, with which Envoy rejects responses.
const INVALID_ARGUMENT: i32 = 3;

/// An error while a stream is opened.
#[derive(Debug, thiserror::Error)]
pub enum XdsConnectError {
    /// The expected server name is not a valid name.
    #[error("{0:?} is no server name")]
    ServerName(String),
    /// The connection failed.
    #[error("no connection to {address}")]
    Transport {
        /// The address of the server.
        address: SocketAddr,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// The server ended the stream at once.
    #[error("the stream was refused: {}", .0.message())]
    Refused(#[source] Box<Status>),
}

/// The resources that a client holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientContents {
    bodies: BTreeMap<ResourceType, BTreeMap<String, Vec<u8>>>,
    /// Names that were subscribed to and have not been received.
    awaited: BTreeSet<(ResourceType, String)>,
    /// The version of each resource (Delta only).
    versions: BTreeMap<ResourceType, BTreeMap<String, String>>,
    /// The last version of each type, as stated by the server.
    pub type_versions: BTreeMap<ResourceType, String>,
    /// The number of responses that were received.
    pub responses: u64,
    /// The number of resources in these responses.
    pub resources: u64,
    /// The number of responses that were rejected.
    pub rejected: u64,
    /// The reason why the stream ended, once it has ended. The resources stay available.
    pub ended: Option<String>,
}

impl ClientContents {
    /// Returns whether every resource that was requested has been received at least once.
    pub fn is_complete(&self) -> bool {
        let all_of = [ResourceType::Cluster, ResourceType::Listener];
        all_of.iter().all(|kind| self.bodies.contains_key(kind)) && self.awaited.is_empty()
    }

    /// The names of the held resources of a type.
    pub fn names(&self, kind: ResourceType) -> impl Iterator<Item = &str> {
        self.bodies.get(&kind).into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// Returns the encoded resource.
    pub fn body(&self, kind: ResourceType, name: &str) -> Option<&[u8]> {
        Some(self.bodies.get(&kind)?.get(name)?)
    }

    /// Returns the version of each resource of a type. Empty in the SotW form.
    pub fn versions(&self, kind: ResourceType) -> BTreeMap<String, String> {
        self.versions.get(&kind).cloned().unwrap_or_default()
    }

    /// Returns the decoded resource. `M` must be the message type of `kind`.
    pub fn message<M: Message + Default>(&self, kind: ResourceType, name: &str) -> Option<M> {
        M::decode(self.body(kind, name)?).ok()
    }

    /// Returns the weight of each address in the assignment `name`. Empty if the client does not
    /// hold the assignment.
    pub fn endpoints(&self, name: &str) -> BTreeMap<SocketAddr, u32> {
        let assignment = self.message::<ClusterLoadAssignment>(ResourceType::Endpoint, name);
        let members = assignment.unwrap_or_default().endpoints.into_iter();
        members
            .flat_map(|locality| locality.lb_endpoints)
            .filter_map(|member| {
                let weight = member.load_balancing_weight.map_or(1, |weight| weight.value);
                let lb_endpoint::HostIdentifier::Endpoint(endpoint) = member.host_identifier?
                else {
                    return None;
                };
                let address::Address::SocketAddress(SocketAddress {
                    address, port_specifier, ..
                }) = endpoint.address?.address?
                else {
                    return None;
                };
                use strait_proto::envoy::envoy::config::core::v3::socket_address::PortSpecifier;
                let Some(PortSpecifier::PortValue(port)) = port_specifier else { return None };
                let port = u16::try_from(port).ok()?;
                Some((SocketAddr::new(address.parse().ok()?, port), weight))
            })
            .collect()
    }
}

/// The stream has ended, and the resources no longer change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stream ended: {0}")]
pub struct StreamEnded(pub String);

/// The behavior of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// The protocol form.
    pub form: ProtocolForm,
    /// The resources of an earlier stream, which the client lists when it connects.
    pub held: ClientContents,
    /// A type whose responses are all rejected.
    pub rejects: Option<ResourceType>,
    /// A text: responses with a resource that contains it are rejected, like a message that Envoy
    /// does not support.
    pub rejects_text: Option<Arc<str>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            form: ProtocolForm::Delta,
            held: ClientContents::default(),
            rejects: None,
            rejects_text: None,
        }
    }
}

/// A connected client. Dropping it ends the stream.
#[derive(Debug)]
pub struct XdsClient {
    held: watch::Receiver<ClientContents>,
}

impl XdsClient {
    /// Connects to `address` and begins to record in the Delta form. The server must prove
    /// `server_name`. The task ends with the stream, with `tasks`, or soon after the client is
    /// dropped.
    ///
    /// # Errors
    /// The connection fails, or the server refuses the stream at once.
    pub async fn connect(
        address: SocketAddr,
        server_name: &str,
        tls: Arc<ClientConfig>,
        node: Node,
        tasks: &Supervisor,
    ) -> Result<Self, XdsConnectError> {
        let channel = channel(address, server_name, tls).await?;
        Self::open(channel, node, Options::default(), tasks).await
    }

    /// Opens a stream on a connection and begins to record.
    ///
    /// # Errors
    /// The server refuses the stream at once.
    pub async fn open(
        channel: Channel,
        node: Node,
        options: Options,
        tasks: &Supervisor,
    ) -> Result<Self, XdsConnectError> {
        let Options { form, held, rejects, rejects_text } = options;
        let awaited = BTreeSet::new();
        let held = ClientContents {
            awaited,
            responses: 0,
            resources: 0,
            rejected: 0,
            ended: None,
            ..held
        };
        let name = format!("xds client {}", node.id);
        let (requests, taken) = mpsc::channel(REQUESTS);
        let recorder = Recorder { rejects, rejects_text, ..Recorder::new(&held) };
        for request in recorder.first(node, &held) {
            // There are at most five requests, and the queue has room for them.
            let _ = requests.try_send(request);
        }
        let responses = responses(channel, form, ReceiverStream::new(taken))
            .await
            .map_err(|status| XdsConnectError::Refused(Box::new(status)))?;
        let (sender, held) = watch::channel(held);
        tasks.spawn(name, record(recorder, responses, requests, sender));
        Ok(Self { held })
    }

    /// Returns the resources that the client holds.
    pub fn held(&self) -> ClientContents {
        self.held.borrow().clone()
    }

    /// Waits until the resources that the client holds satisfy `test`, which may be the case at
    /// once.
    ///
    /// # Errors
    /// The stream ends before.
    pub async fn wait_for(
        &mut self,
        mut test: impl FnMut(&ClientContents) -> bool,
    ) -> Result<ClientContents, StreamEnded> {
        match self
            .held
            .wait_for(|held| held.ended.is_some() || test(held))
            .await
            .map(|held| held.clone())
        {
            Ok(held) => match &held.ended {
                Some(reason) if !test(&held) => Err(StreamEnded(reason.clone())),
                _ => Ok(held),
            },
            Err(_) => Err(StreamEnded("the client was stopped".to_owned())),
        }
    }
}

/// Opens an mTLS connection to `address`. The server must prove `server_name`. Clients of both
/// protocol forms use it.
///
/// # Errors
/// The connection fails.
pub async fn channel(
    address: SocketAddr,
    server_name: &str,
    tls: Arc<ClientConfig>,
) -> Result<Channel, XdsConnectError> {
    let server_name = ServerName::try_from(server_name.to_owned())
        .map_err(|_| XdsConnectError::ServerName(server_name.to_owned()))?;
    let connector = tower::service_fn(move |_: http::Uri| {
        let (tls, server_name) = (TlsConnector::from(Arc::clone(&tls)), server_name.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            tls.connect(server_name, stream).await.map(TokioIo::new)
        }
    });
    // The connector returns a stream that already uses TLS, so the scheme of the endpoint is
    // `http`.
    let transport = |source| XdsConnectError::Transport { address, source };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(transport)?;
    endpoint.connect_with_connector(connector).await.map_err(transport)
}

type ResponseReceiver = Pin<Box<dyn Stream<Item = Result<Received, Status>> + Send>>;

async fn responses(
    channel: Channel,
    form: ProtocolForm,
    requests: ReceiverStream<ClientRequest>,
) -> Result<ResponseReceiver, Status> {
    let mut client =
        AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    Ok(match form {
        ProtocolForm::Delta => {
            let requests = requests.map(DeltaDiscoveryRequest::from);
            let responses = client.delta_aggregated_resources(requests).await?.into_inner();
            Box::pin(responses.map(|response| response.map(Received::from)))
        }
        ProtocolForm::Sotw => {
            let requests = requests.map(DiscoveryRequest::from);
            let responses = client.stream_aggregated_resources(requests).await?.into_inner();
            Box::pin(responses.map(|response| response.map(Received::from)))
        }
    })
}

async fn record(
    mut recorder: Recorder,
    mut responses: ResponseReceiver,
    requests: mpsc::Sender<ClientRequest>,
    held: watch::Sender<ClientContents>,
) {
    let ended = loop {
        let response = tokio::select! {
            response = responses.next() => response,
            () = held.closed() => return,
        };
        match response {
            Some(Ok(response)) => {
                let mut answers = Vec::new();
                held.send_modify(|held| answers = recorder.apply(held, response));
                for answer in answers {
                    // If the request is not accepted, the next read returns the reason.
                    let _ = requests.send(answer).await;
                }
            }
            None => break "the server closed it".to_owned(),
            Some(Err(status)) => break format!("{:?}: {}", status.code(), status.message()),
        }
    };
    held.send_modify(|held| held.ended = Some(ended));
}

/// A response of either form.
#[derive(Debug, Default)]
struct Received {
    type_url: String,
    nonce: String,
    version: String,
    /// Name, body and version. Only Delta has a version per resource.
    resources: Vec<(String, Vec<u8>, Option<String>)>,
    removed: Vec<String>,
    /// Whether resources that it does not contain are removed. This applies to SotW responses of
    /// wildcard types.
    is_whole: bool,
}

impl From<DeltaDiscoveryResponse> for Received {
    fn from(response: DeltaDiscoveryResponse) -> Self {
        let resources = response.resources.into_iter().map(|resource| {
            let body = resource.resource.unwrap_or_default().value;
            (resource.name, body, Some(resource.version))
        });
        Self {
            type_url: response.type_url,
            nonce: response.nonce,
            version: response.system_version_info,
            resources: resources.collect(),
            removed: response.removed_resources,
            is_whole: false,
        }
    }
}

impl From<DiscoveryResponse> for Received {
    fn from(response: DiscoveryResponse) -> Self {
        let kind = ResourceType::of_url(&response.type_url);
        let resources = response.resources.into_iter().map(|resource| {
            let body = resource.value;
            (kind.map(|kind| name_of(kind, &body)).unwrap_or_default(), body, None)
        });
        Self {
            type_url: response.type_url.clone(),
            nonce: response.nonce,
            version: response.version_info,
            resources: resources.collect(),
            removed: Vec::new(),
            is_whole: kind.is_some_and(ResourceType::is_wildcard),
        }
    }
}

/// A request of either form.
#[derive(Debug, Default)]
struct ClientRequest {
    node: Option<Node>,
    type_url: String,
    /// The nonce of the last response of the type (SotW repeats it).
    last_nonce: String,
    /// The version of the last response of the type that was accepted (SotW).
    version: String,
    /// Whether the request answers that response. In Delta, only an answer has a nonce.
    answers: bool,
    error: Option<rpc::Status>,
    /// All names that are subscribed to (SotW).
    names: BTreeSet<String>,
    subscribe: Vec<String>,
    unsubscribe: Vec<String>,
    listed: BTreeMap<String, String>,
}

impl From<ClientRequest> for DeltaDiscoveryRequest {
    fn from(request: ClientRequest) -> Self {
        Self {
            node: request.node,
            type_url: request.type_url,
            response_nonce: if request.answers { request.last_nonce } else { String::new() },
            error_detail: request.error,
            resource_names_subscribe: request.subscribe,
            resource_names_unsubscribe: request.unsubscribe,
            initial_resource_versions: request.listed.into_iter().collect(),
            ..Default::default()
        }
    }
}

impl From<ClientRequest> for DiscoveryRequest {
    fn from(request: ClientRequest) -> Self {
        Self {
            node: request.node,
            type_url: request.type_url,
            response_nonce: request.last_nonce,
            version_info: request.version,
            error_detail: request.error,
            resource_names: request.names.into_iter().collect(),
            ..Default::default()
        }
    }
}

/// The protocol state: the subscribed names and the last nonce of each type.
#[derive(Debug, Default)]
struct Recorder {
    subscribed: BTreeMap<ResourceType, BTreeSet<String>>,
    nonces: BTreeMap<ResourceType, String>,
    rejects: Option<ResourceType>,
    rejects_text: Option<Arc<str>>,
}

impl Recorder {
    /// Creates the state of a client that continues with the resources of an earlier stream.
    fn new(held: &ClientContents) -> Self {
        let named = held.bodies.iter().filter(|(kind, _)| !kind.is_wildcard());
        let subscribed = named.map(|(kind, bodies)| (*kind, bodies.keys().cloned().collect()));
        Self {
            subscribed: subscribed.collect(),
            nonces: BTreeMap::new(),
            rejects: None,
            rejects_text: None,
        }
    }

    /// Returns the requests that open a stream: all upstream clusters, all listeners, and the
    /// assignments and routes of an earlier stream. A node that captures DNS also requests the name
    /// table, as the agent does.
    fn first(&self, node: Node, held: &ClientContents) -> Vec<ClientRequest> {
        let names = captures_dns(&node);
        let mut node = Some(node);
        let kinds = ResourceType::ALL.into_iter();
        let kinds = kinds.filter(|kind| match kind {
            ResourceType::NameTable => names,
            _ => kind.is_wildcard() || self.subscribed.contains_key(kind),
        });
        let request = |kind: ResourceType| ClientRequest {
            node: node.take(),
            subscribe: self.subscribed.get(&kind).into_iter().flatten().cloned().collect(),
            listed: held.versions(kind),
            ..self.request(kind, held)
        };
        kinds.map(request).collect()
    }

    /// Returns the fields that every request of a type contains.
    fn request(&self, kind: ResourceType, held: &ClientContents) -> ClientRequest {
        ClientRequest {
            type_url: kind.url().into(),
            last_nonce: self.nonces.get(&kind).cloned().unwrap_or_default(),
            version: held.type_versions.get(&kind).cloned().unwrap_or_default(),
            names: self.subscribed.get(&kind).cloned().unwrap_or_default(),
            ..ClientRequest::default()
        }
    }

    /// Records a response. Returns the requests to send: the answer, followed by new subscriptions
    /// that result from it.
    fn apply(&mut self, held: &mut ClientContents, mut response: Received) -> Vec<ClientRequest> {
        held.responses += 1;
        held.resources += response.resources.len() as u64;
        let Some(kind) = ResourceType::of_url(&response.type_url) else {
            held.rejected += 1;
            return vec![ClientRequest {
                type_url: response.type_url,
                last_nonce: response.nonce,
                answers: true,
                error: Some(rejection("a type that was not asked for".to_owned())),
                ..ClientRequest::default()
            }];
        };
        self.nonces.insert(kind, response.nonce);
        if !kind.is_wildcard() {
            // The server may have sent a resource before it received the request that unsubscribes
            // from its name.
            let wanted = self.subscribed.entry(kind).or_default();
            response.resources.retain(|(name, _, _)| wanted.contains(name));
        }
        let has_text = |text: &Arc<str>| {
            let has = |body: &[u8]| body.windows(text.len()).any(|part| part == text.as_bytes());
            response.resources.iter().any(|(_, body, _)| has(body))
        };
        let is_rejected =
            self.rejects == Some(kind) || self.rejects_text.as_ref().is_some_and(has_text);
        let problems = match is_rejected {
            true => vec!["rejected on request".to_owned()],
            false => take(kind, held, response.resources, &response.removed, response.is_whole),
        };
        let error = (!problems.is_empty()).then(|| rejection(problems.join("; ")));
        match error {
            Some(_) => held.rejected += 1,
            None => drop(held.type_versions.insert(kind, response.version)),
        }
        let answer = ClientRequest { answers: true, error, ..self.request(kind, held) };
        let bodies = held.bodies.get(&kind).into_iter().flatten();
        let wanted: BTreeSet<String> = bodies.flat_map(|(_, body)| names_in(kind, body)).collect();
        let follow = match kind {
            ResourceType::Cluster => self.follow(held, ResourceType::Endpoint, wanted),
            ResourceType::Listener => self.follow(held, ResourceType::Route, wanted),
            ResourceType::Endpoint
            | ResourceType::Route
            | ResourceType::VirtualHost
            | ResourceType::NameTable => None,
        };
        std::iter::once(answer).chain(follow).collect()
    }

    /// Replaces the subscription to a type. Returns the request for the differences, if there are
    /// any.
    fn follow(
        &mut self,
        held: &mut ClientContents,
        kind: ResourceType,
        wanted: BTreeSet<String>,
    ) -> Option<ClientRequest> {
        let before = std::mem::replace(self.subscribed.entry(kind).or_default(), wanted);
        let now = &self.subscribed[&kind];
        let request = ClientRequest {
            subscribe: now.difference(&before).cloned().collect(),
            unsubscribe: before.difference(now).cloned().collect(),
            ..self.request(kind, held)
        };
        held.awaited.extend(request.subscribe.iter().map(|name| (kind, name.clone())));
        for name in &request.unsubscribe {
            held.awaited.remove(&(kind, name.clone()));
            held.bodies.entry(kind).or_default().remove(name);
            held.versions.entry(kind).or_default().remove(name);
        }
        (before != *now).then_some(request)
    }
}

/// Applies the resources and removals of a response. Returns the problems of invalid resources.
fn take(
    kind: ResourceType,
    held: &mut ClientContents,
    resources: Vec<(String, Vec<u8>, Option<String>)>,
    removed: &[String],
    is_whole: bool,
) -> Vec<String> {
    let bodies = held.bodies.entry(kind).or_default();
    let versions = held.versions.entry(kind).or_default();
    if is_whole {
        let named: BTreeSet<&String> = resources.iter().map(|(name, _, _)| name).collect();
        bodies.retain(|name, _| named.contains(name));
    }
    let mut problems = Vec::new();
    for (name, body, version) in resources {
        held.awaited.remove(&(kind, name.clone()));
        match check(kind, &body) {
            Ok(()) => {
                versions.extend(version.map(|version| (name.clone(), version)));
                bodies.insert(name, body);
            }
            Err(error) => problems.push(format!("{name}: {error}")),
        }
    }
    for name in removed {
        held.awaited.remove(&(kind, name.clone()));
        bodies.remove(name);
        versions.remove(name);
    }
    problems
}

/// Returns whether a proxy with this node answers its workload's DNS queries, for which it needs
/// the name table.
pub fn captures_dns(node: &Node) -> bool {
    let metadata = node.metadata.as_ref();
    let value = metadata.and_then(|metadata| metadata.fields.get("DNS_CAPTURE")?.kind.as_ref());
    matches!(value, Some(Kind::StringValue(text)) if text == "true")
}

fn rejection(message: String) -> rpc::Status {
    rpc::Status { code: INVALID_ARGUMENT, message, ..Default::default() }
}

fn check(kind: ResourceType, body: &[u8]) -> Result<(), prost::DecodeError> {
    match kind {
        ResourceType::Cluster => Cluster::decode(body).map(drop),
        ResourceType::Endpoint => ClusterLoadAssignment::decode(body).map(drop),
        ResourceType::Listener => Listener::decode(body).map(drop),
        ResourceType::Route => RouteConfiguration::decode(body).map(drop),
        ResourceType::VirtualHost => VirtualHost::decode(body).map(drop),
        ResourceType::NameTable => NameTable::decode(body).map(drop),
    }
}

/// Returns the name in an encoded resource, or an empty text if it cannot be decoded.
fn name_of(kind: ResourceType, body: &[u8]) -> String {
    match kind {
        ResourceType::Cluster => Cluster::decode(body).unwrap_or_default().name,
        ResourceType::Endpoint => {
            ClusterLoadAssignment::decode(body).unwrap_or_default().cluster_name
        }
        ResourceType::Listener => Listener::decode(body).unwrap_or_default().name,
        ResourceType::Route => RouteConfiguration::decode(body).unwrap_or_default().name,
        ResourceType::VirtualHost => VirtualHost::decode(body).unwrap_or_default().name,
        ResourceType::NameTable => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_proto::envoy::envoy::config::cluster::v3::cluster::{
        ClusterDiscoveryType, DiscoveryType,
    };
    use strait_proto::envoy::envoy::service::discovery::v3::Resource;
    use strait_proto::envoy::google::protobuf::Any;

    fn response(kind: ResourceType, name: &str, body: Vec<u8>) -> Received {
        let any = Any { type_url: kind.url().into(), value: body };
        let response = DeltaDiscoveryResponse {
            type_url: kind.url().into(),
            nonce: "n".into(),
            resources: vec![Resource {
                name: name.into(),
                resource: Some(any),
                ..Default::default()
            }],
            ..Default::default()
        };
        response.into()
    }

    fn eds_cluster(name: &str) -> Vec<u8> {
        let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
        let cluster =
            Cluster { name: name.into(), cluster_discovery_type: Some(eds), ..Default::default() };
        cluster.encode_to_vec()
    }

    #[test]
    fn assignment_is_subscribed_to_and_removed_with_its_upstream_cluster() {
        let (mut recorder, mut held) = (Recorder::default(), ClientContents::default());
        let requests =
            recorder.apply(&mut held, response(ResourceType::Cluster, "a", eds_cluster("a")));
        let [ack, follow] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!((ack.last_nonce.as_str(), &ack.error), ("n", &None));
        assert_eq!(follow.subscribe, ["a"]);
        let empty = ClusterLoadAssignment::default().encode_to_vec();
        recorder.apply(&mut held, response(ResourceType::Listener, "l", Vec::new()));
        assert!(!held.is_complete());
        recorder.apply(&mut held, response(ResourceType::Endpoint, "a", empty.clone()));
        assert!(held.is_complete());
        assert_eq!(held.names(ResourceType::Endpoint).collect::<Vec<_>>(), ["a"]);

        let gone = Received {
            type_url: ResourceType::Cluster.url().into(),
            removed: vec!["a".into()],
            ..Received::default()
        };
        let requests = recorder.apply(&mut held, gone);
        assert_eq!(requests[1].unsubscribe, ["a"]);
        assert_eq!(held.names(ResourceType::Endpoint).count(), 0);
        // An assignment that was already in transit is not stored again.
        recorder.apply(&mut held, response(ResourceType::Endpoint, "a", empty));
        assert_eq!(held.names(ResourceType::Endpoint).count(), 0);
    }

    #[test]
    fn undecodable_resource_is_rejected_by_name_and_its_previous_version_is_kept() {
        let (mut recorder, mut held) = (Recorder::default(), ClientContents::default());
        recorder.apply(&mut held, response(ResourceType::Cluster, "a", eds_cluster("a")));
        let requests =
            recorder.apply(&mut held, response(ResourceType::Cluster, "a", vec![0xff; 3]));
        let error = requests[0].error.as_ref().expect("a rejection");
        assert!(error.message.starts_with("a: "), "{error:?}");
        assert_eq!(held.body(ResourceType::Cluster, "a"), Some(&*eds_cluster("a")));
    }

    #[test]
    fn whole_response_removes_resources_that_it_does_not_contain() {
        let (mut recorder, mut held) = (Recorder::default(), ClientContents::default());
        let whole = |names: &[&str], nonce: &str| {
            let any = |name: &&str| Any { value: eds_cluster(name), ..Default::default() };
            Received::from(DiscoveryResponse {
                type_url: ResourceType::Cluster.url().into(),
                version_info: format!("version of {nonce}"),
                nonce: nonce.into(),
                resources: names.iter().map(any).collect(),
                ..Default::default()
            })
        };
        recorder.apply(&mut held, whole(&["a", "b"], "1"));
        let requests = recorder.apply(&mut held, whole(&["b"], "2"));
        assert_eq!(held.names(ResourceType::Cluster).collect::<Vec<_>>(), ["b"]);
        let [ack, follow] = <[ClientRequest; 2]>::try_from(requests).expect("an answer, and names");
        let ack = DiscoveryRequest::from(ack);
        assert_eq!((&*ack.response_nonce, &*ack.version_info), ("2", "version of 2"));
        assert_eq!(DiscoveryRequest::from(follow).resource_names, ["b"]);
    }

    #[test]
    fn reconnected_client_lists_its_resources() {
        let (mut recorder, mut held) = (Recorder::default(), ClientContents::default());
        recorder.apply(&mut held, response(ResourceType::Cluster, "a", eds_cluster("a")));
        let empty = ClusterLoadAssignment::default().encode_to_vec();
        recorder.apply(&mut held, response(ResourceType::Endpoint, "a", empty));
        let again = Recorder::new(&held).first(Node::default(), &held);
        let lists = |kind: ResourceType| {
            let request = again.iter().find(|request| request.type_url == kind.url());
            request.map(|request| (request.subscribe.len(), request.listed.len()))
        };
        assert_eq!(lists(ResourceType::Cluster), Some((0, 1)));
        assert_eq!(lists(ResourceType::Endpoint), Some((1, 1)));
        assert!(again[0].node.is_some() && again[1].node.is_none());
    }
}
