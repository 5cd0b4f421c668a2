//! An ADS server whose first stream breaks at the worst moment: after a changed upstream cluster,
//! before the assignment for which the cluster waits. Strait's own session produces the responses;
//! only the break is artificial. Prints a line for each step.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use prost::Message;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use strait_model::dirty::Dirty;
use strait_proto::envoy::envoy::config::cluster::v3::Cluster;
use strait_proto::envoy::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, DiscoveryType, EdsClusterConfig,
};
use strait_proto::envoy::envoy::config::core::v3::{
    AggregatedConfigSource, ApiVersion, ConfigSource, config_source::ConfigSourceSpecifier,
};
use strait_proto::envoy::envoy::config::endpoint::v3::ClusterLoadAssignment;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::Duration;
use strait_xds::list::SharedList;
use strait_xds::resource::{All, Resource, ResourceSource, ResourceType};
use strait_xds::session::{ProtocolForm, Session};

/// The address of the server.
pub(crate) const ADDRESS: &str = "127.0.0.1:18000";
/// The name of the upstream cluster and of the assignment.
pub(crate) const NAME: &str = "outbound|80||echo.shop.svc.cluster.local";
/// Printed after the stream was broken.
pub(crate) const BROKEN: &str = "broke the stream";
/// Printed when Envoy reconnects and lists the assignment that it had before.
pub(crate) const LISTED: &str = "listed the old assignment";

pub(super) fn serve() -> Result<Value, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let address = ADDRESS.parse().map_err(|error| format!("{ADDRESS}: {error}"))?;
    let service = AggregatedDiscoveryServiceServer::new(Breaking::default());
    let routes = tonic::service::Routes::new(service);
    println!("listening");
    runtime
        .block_on(tonic::transport::Server::builder().add_routes(routes).serve(address))
        .map_err(|error| error.to_string())?;
    Ok(Value::Null)
}

#[derive(Default)]
struct Breaking {
    broken: Arc<AtomicBool>,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Breaking {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        _: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("delta only"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (responses, received) = mpsc::channel(16);
        let broken = Arc::clone(&self.broken);
        #[expect(
            clippy::disallowed_methods,
            reason = "a helper: its panic ends in its own output"
        )]
        tokio::spawn(converse(request.into_inner(), responses, broken));
        Ok(Response::new(Box::pin(ReceiverStream::new(received))))
    }
}

async fn converse(
    mut requests: Streaming<DeltaDiscoveryRequest>,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
    broken: Arc<AtomicBool>,
) {
    let mut session = Session::new(ProtocolForm::Delta);
    let mut source = Source { changed: broken.load(Ordering::Relaxed) };
    while let Ok(Some(request)) = requests.message().await {
        let is_type = |kind: ResourceType| request.type_url == kind.url();
        if is_type(ResourceType::Endpoint) && request.initial_resource_versions.contains_key(NAME) {
            println!("{LISTED}");
        }
        let settled = is_type(ResourceType::Endpoint) && !request.response_nonce.is_empty();
        let now = SystemTime::now();
        let bytes = request.encode_to_vec();
        let request = strait_xds::request::AdsRequest::read(ProtocolForm::Delta, &bytes);
        let request = request.expect("tonic has read it");
        session.on_request(request, Some(&mut source), now).expect("Envoy keeps to the protocol");
        if settled && !source.changed {
            source.changed = true;
            session.on_change(&Dirty { everything: true, ..Dirty::default() });
        }
        while let Some(response) = session.next_response(&mut source, usize::MAX, now) {
            let message =
                DeltaDiscoveryResponse::decode(response.to_bytes()).expect("our own bytes");
            if responses.send(Ok(message)).await.is_err() {
                return;
            }
            if source.changed && !broken.load(Ordering::Relaxed) {
                // The cluster has been sent; the assignment after it is lost.
                println!("{BROKEN}");
                broken.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// One upstream cluster, before and after its change, with an assignment that never changes.
struct Source {
    changed: bool,
}

impl ResourceSource for Source {
    fn all(&mut self, kind: ResourceType) -> All {
        if kind != ResourceType::Cluster {
            return All {
                shared: SharedList::new(kind, Arc::new([]), usize::MAX),
                own: Vec::new(),
            };
        }
        let ads = ConfigSource {
            config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
            initial_fetch_timeout: Some(Duration::default()),
            resource_api_version: ApiVersion::V3.into(),
            ..Default::default()
        };
        let cluster = Cluster {
            name: NAME.into(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
            eds_cluster_config: Some(EdsClusterConfig {
                eds_config: Some(ads),
                ..Default::default()
            }),
            connect_timeout: Some(Duration { seconds: if self.changed { 2 } else { 1 }, nanos: 0 }),
            ..Default::default()
        };
        let all = Arc::new([Arc::new(Resource::new(NAME, cluster.encode_to_vec()))]);
        All { shared: SharedList::new(kind, all, usize::MAX), own: Vec::new() }
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        let all = self.all(kind);
        let existing = all.shared.resources().iter().find(|one| &*one.name == name).cloned();
        existing.or_else(|| {
            let empty = ClusterLoadAssignment { cluster_name: name.into(), ..Default::default() };
            let named = !kind.is_wildcard();
            named.then(|| Arc::new(Resource::new(name, empty.encode_to_vec())))
        })
    }

    fn is_assigned(&self, _: &Resource) -> bool {
        true
    }
}
