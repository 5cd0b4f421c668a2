//! A client that records: it connects as one proxy over mTLS, subscribes to what a proxy would (all
//! upstream clusters and listeners, then the assignments and routes they name), and keeps what it is
//! given.
//!
//! For the demo, tests and benches. It carries no traffic and decides nothing about what it holds. What
//! it can't decode it rejects, as a proxy would.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use prost::{Message, Name};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use strait_proto::envoy::envoy::config::cluster::v3::cluster::ClusterDiscoveryType;
use strait_proto::envoy::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use strait_proto::envoy::envoy::config::core::v3::{Node, SocketAddress, address};
use strait_proto::envoy::envoy::config::endpoint::v3::{ClusterLoadAssignment, lb_endpoint};
use strait_proto::envoy::envoy::config::listener::v3::{Listener, filter};
use strait_proto::envoy::envoy::config::route::v3::RouteConfiguration;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::{self as wkt, Struct, value::Kind};
use strait_proto::envoy::google::rpc;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::resource::ResourceType;
use crate::task::Supervisor;

/// Requests that may wait to be sent. A full queue makes the reader wait, and with it the server.
const REQUESTS: usize = 64;
/// gRPC's "invalid argument", as Envoy rejects.
const INVALID_ARGUMENT: i32 = 3;

/// What can go wrong before there is a stream.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name the server should prove is none.
    #[error("{0:?} is no server name")]
    ServerName(String),
    /// No connection.
    #[error("no connection to {address}")]
    Transport {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        source: tonic::transport::Error,
    },
    /// The server ended the stream at once.
    #[error("the stream was refused: {}", .0.message())]
    Refused(#[source] Box<tonic::Status>),
}

/// What a client holds by now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    bodies: BTreeMap<ResourceType, BTreeMap<String, Vec<u8>>>,
    /// What was asked for by name and has not come.
    awaited: BTreeSet<(ResourceType, String)>,
    /// How many responses brought that.
    pub responses: u64,
    /// Why the stream ended, once it has; what was held is held on to.
    pub ended: Option<String>,
}

impl Held {
    /// Whether everything that was asked for has come at least once.
    pub fn is_complete(&self) -> bool {
        let all_of = [ResourceType::Cluster, ResourceType::Listener];
        all_of.iter().all(|kind| self.bodies.contains_key(kind)) && self.awaited.is_empty()
    }

    /// The names held of a type.
    pub fn names(&self, kind: ResourceType) -> impl Iterator<Item = &str> {
        self.bodies.get(&kind).into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// The encoded resource.
    pub fn body(&self, kind: ResourceType, name: &str) -> Option<&[u8]> {
        Some(self.bodies.get(&kind)?.get(name)?)
    }

    /// The decoded resource; `M` must be the message of `kind`.
    pub fn message<M: Message + Default>(&self, kind: ResourceType, name: &str) -> Option<M> {
        M::decode(self.body(kind, name)?).ok()
    }

    /// The weight of each address in the assignment `name`; empty where it is not held.
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

/// The stream has ended; nothing more will change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stream ended: {0}")]
pub struct Ended(pub String);

/// One connected client. Dropping it ends the stream.
#[derive(Debug)]
pub struct Client {
    held: watch::Receiver<Held>,
}

impl Client {
    /// Connects to `address`, which must prove to be `server_name`, and begins to record. The task ends
    /// with the stream, with `tasks`, or soon after the client is dropped.
    ///
    /// # Errors
    /// When there is no connection, or the stream is refused at once.
    pub async fn connect(
        address: SocketAddr,
        server_name: &str,
        tls: Arc<ClientConfig>,
        node: Node,
        tasks: &Supervisor,
    ) -> Result<Self, ConnectError> {
        let name = format!("xds client {}", node.id);
        let channel = channel(address, server_name, tls).await?;
        let (requests, taken) = mpsc::channel(REQUESTS);
        let recorder = Recorder::default();
        for request in recorder.first(node) {
            // Two fit.
            let _ = requests.try_send(request);
        }
        let responses = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(usize::MAX)
            .delta_aggregated_resources(ReceiverStream::new(taken))
            .await
            .map_err(|status| ConnectError::Refused(Box::new(status)))?
            .into_inner();
        let (sender, held) = watch::channel(Held::default());
        tasks.spawn(name, record(recorder, responses, requests, sender));
        Ok(Self { held })
    }

    /// What is held now.
    pub fn held(&self) -> Held {
        self.held.borrow().clone()
    }

    /// Waits until what is held passes `test`, which it may do already.
    ///
    /// # Errors
    /// When the stream ends before.
    pub async fn wait_for(&mut self, mut test: impl FnMut(&Held) -> bool) -> Result<Held, Ended> {
        match self
            .held
            .wait_for(|held| held.ended.is_some() || test(held))
            .await
            .map(|held| held.clone())
        {
            Ok(held) => match &held.ended {
                Some(reason) if !test(&held) => Err(Ended(reason.clone())),
                _ => Ok(held),
            },
            Err(_) => Err(Ended("the client was stopped".to_owned())),
        }
    }
}

/// An mTLS connection to `address`, which must prove to be `server_name`: what a client of either wire
/// form begins with.
///
/// # Errors
/// When there is no connection.
pub async fn channel(
    address: SocketAddr,
    server_name: &str,
    tls: Arc<ClientConfig>,
) -> Result<Channel, ConnectError> {
    let server_name = ServerName::try_from(server_name.to_owned())
        .map_err(|_| ConnectError::ServerName(server_name.to_owned()))?;
    let connector = tower::service_fn(move |_: http::Uri| {
        let (tls, server_name) = (TlsConnector::from(Arc::clone(&tls)), server_name.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            tls.connect(server_name, stream).await.map(TokioIo::new)
        }
    });
    // The scheme is that of what the connector returns: its TLS is done already.
    let transport = |source| ConnectError::Transport { address, source };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(transport)?;
    endpoint.connect_with_connector(connector).await.map_err(transport)
}

async fn record(
    mut recorder: Recorder,
    mut responses: Streaming<DeltaDiscoveryResponse>,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    held: watch::Sender<Held>,
) {
    let ended = loop {
        let response = tokio::select! {
            response = responses.message() => response,
            () = held.closed() => return,
        };
        match response {
            Ok(Some(response)) => {
                let mut answers = Vec::new();
                held.send_modify(|held| answers = recorder.apply(held, response));
                for answer in answers {
                    // Where nobody takes it, the next read says why.
                    let _ = requests.send(answer).await;
                }
            }
            Ok(None) => break "the server closed it".to_owned(),
            Err(status) => break format!("{:?}: {}", status.code(), status.message()),
        }
    };
    held.send_modify(|held| held.ended = Some(ended));
}

/// The protocol's state: what was asked for by name.
#[derive(Debug, Default)]
struct Recorder {
    subscribed: BTreeMap<ResourceType, BTreeSet<String>>,
}

impl Recorder {
    /// The requests that open a stream: everything of the two types that name the others.
    fn first(&self, node: Node) -> [DeltaDiscoveryRequest; 2] {
        let all_of = |kind: ResourceType, node| DeltaDiscoveryRequest {
            node,
            type_url: kind.url().into(),
            ..Default::default()
        };
        [all_of(ResourceType::Cluster, Some(node)), all_of(ResourceType::Listener, None)]
    }

    /// Takes a response in. The answer to it comes first, then what it makes us ask for.
    fn apply(
        &mut self,
        held: &mut Held,
        response: DeltaDiscoveryResponse,
    ) -> Vec<DeltaDiscoveryRequest> {
        held.responses += 1;
        let mut answer = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce,
            ..Default::default()
        };
        let Some(kind) = ResourceType::of_url(&response.type_url) else {
            answer.error_detail = Some(rejection("a type that was not asked for".to_owned()));
            return vec![answer];
        };
        let bodies = held.bodies.entry(kind).or_default();
        let mut problems = Vec::new();
        for resource in response.resources {
            held.awaited.remove(&(kind, resource.name.clone()));
            let body = resource.resource.unwrap_or_default().value;
            match check(kind, &body) {
                Ok(()) => drop(bodies.insert(resource.name, body)),
                Err(error) => problems.push(format!("{}: {error}", resource.name)),
            }
        }
        for name in &response.removed_resources {
            held.awaited.remove(&(kind, name.clone()));
            bodies.remove(name);
        }
        answer.error_detail = (!problems.is_empty()).then(|| rejection(problems.join("; ")));
        let wanted: BTreeSet<String> =
            bodies.values().flat_map(|body| names_in(kind, body)).collect();
        let follow = match kind {
            ResourceType::Cluster => self.follow(held, ResourceType::Endpoint, wanted),
            ResourceType::Listener => self.follow(held, ResourceType::Route, wanted),
            ResourceType::Endpoint | ResourceType::Route => None,
        };
        std::iter::once(answer).chain(follow).collect()
    }

    /// Subscribes to what is wanted newly, and lets go of what no longer is.
    fn follow(
        &mut self,
        held: &mut Held,
        kind: ResourceType,
        wanted: BTreeSet<String>,
    ) -> Option<DeltaDiscoveryRequest> {
        let before = std::mem::replace(self.subscribed.entry(kind).or_default(), wanted);
        let now = &self.subscribed[&kind];
        let request = DeltaDiscoveryRequest {
            type_url: kind.url().into(),
            resource_names_subscribe: now.difference(&before).cloned().collect(),
            resource_names_unsubscribe: before.difference(now).cloned().collect(),
            ..Default::default()
        };
        let asked = request.resource_names_subscribe.iter();
        held.awaited.extend(asked.map(|name| (kind, name.clone())));
        for name in &request.resource_names_unsubscribe {
            held.awaited.remove(&(kind, name.clone()));
            held.bodies.entry(kind).or_default().remove(name);
        }
        (before != *now).then_some(request)
    }
}

/// Node metadata from JSON; anything but an object has no fields.
pub fn to_struct(object: &Value) -> Struct {
    let fields = object.as_object().into_iter().flatten();
    Struct { fields: fields.map(|(key, value)| (key.clone(), to_value(value))).collect() }
}

fn to_value(value: &Value) -> wkt::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => {
            Kind::ListValue(wkt::ListValue { values: values.iter().map(to_value).collect() })
        }
        Value::Object(_) => Kind::StructValue(to_struct(value)),
    };
    wkt::Value { kind: Some(kind) }
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
    }
}

/// The names of other resources that a resource refers to.
fn names_in(kind: ResourceType, body: &[u8]) -> Vec<String> {
    match kind {
        ResourceType::Cluster => assignment(body).into_iter().collect(),
        ResourceType::Listener => routes(body),
        ResourceType::Endpoint | ResourceType::Route => Vec::new(),
    }
}

fn assignment(body: &[u8]) -> Option<String> {
    let cluster = Cluster::decode(body).ok()?;
    let eds = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()));
    let service_name = cluster.eds_cluster_config.unwrap_or_default().service_name;
    (cluster.cluster_discovery_type == eds).then_some(if service_name.is_empty() {
        cluster.name
    } else {
        service_name
    })
}

fn routes(body: &[u8]) -> Vec<String> {
    let listener = Listener::decode(body).unwrap_or_default();
    let chains = listener.filter_chains.into_iter().chain(listener.default_filter_chain);
    let managers =
        chains.flat_map(|chain| chain.filters).filter_map(|one| match one.config_type? {
            filter::ConfigType::TypedConfig(any)
                if any.type_url.ends_with(&HttpConnectionManager::full_name()) =>
            {
                HttpConnectionManager::decode(&*any.value).ok()
            }
            _ => None,
        });
    let names = managers.filter_map(|manager| match manager.route_specifier? {
        RouteSpecifier::Rds(rds) => Some(rds.route_config_name),
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use strait_proto::envoy::envoy::service::discovery::v3::Resource;
    use strait_proto::envoy::google::protobuf::Any;

    use super::*;

    fn response(kind: ResourceType, name: &str, body: Vec<u8>) -> DeltaDiscoveryResponse {
        let any = Any { type_url: kind.url().into(), value: body };
        DeltaDiscoveryResponse {
            type_url: kind.url().into(),
            nonce: "n".into(),
            resources: vec![Resource {
                name: name.into(),
                resource: Some(any),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn eds_cluster(name: &str) -> Vec<u8> {
        let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
        let cluster =
            Cluster { name: name.into(), cluster_discovery_type: Some(eds), ..Default::default() };
        cluster.encode_to_vec()
    }

    #[test]
    fn an_upstream_cluster_brings_its_assignment_and_takes_it_along() {
        let (mut recorder, mut held) = (Recorder::default(), Held::default());
        let requests =
            recorder.apply(&mut held, response(ResourceType::Cluster, "a", eds_cluster("a")));
        let [ack, follow] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!((ack.response_nonce.as_str(), &ack.error_detail), ("n", &None));
        assert_eq!(follow.resource_names_subscribe, ["a"]);
        let empty = ClusterLoadAssignment::default().encode_to_vec();
        recorder.apply(&mut held, response(ResourceType::Listener, "l", Vec::new()));
        assert!(!held.is_complete());
        recorder.apply(&mut held, response(ResourceType::Endpoint, "a", empty));
        assert!(held.is_complete());
        assert_eq!(held.names(ResourceType::Endpoint).collect::<Vec<_>>(), ["a"]);

        let gone = DeltaDiscoveryResponse {
            type_url: ResourceType::Cluster.url().into(),
            removed_resources: vec!["a".into()],
            ..Default::default()
        };
        let requests = recorder.apply(&mut held, gone);
        assert_eq!(requests[1].resource_names_unsubscribe, ["a"]);
        assert_eq!(held.names(ResourceType::Endpoint).count(), 0);
    }

    #[test]
    fn what_can_not_be_decoded_is_rejected_by_name_and_the_old_is_kept() {
        let (mut recorder, mut held) = (Recorder::default(), Held::default());
        recorder.apply(&mut held, response(ResourceType::Cluster, "a", eds_cluster("a")));
        let requests =
            recorder.apply(&mut held, response(ResourceType::Cluster, "a", vec![0xff; 3]));
        let error = requests[0].error_detail.as_ref().expect("a rejection");
        assert!(error.message.starts_with("a: "), "{error:?}");
        assert_eq!(held.body(ResourceType::Cluster, "a"), Some(&*eds_cluster("a")));
    }
}
