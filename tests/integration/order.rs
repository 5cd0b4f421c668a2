//! Make before break on one stream: nothing routes to an upstream cluster that a proxy doesn't have
//! yet, with its assignment, and no upstream cluster is removed while something may route to it.
//! The proxy here acknowledges with arbitrary delays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::harness::{find_routes, to_json};
use super::mesh::{Member, Proxy, SHOP, SOON, Server, Setup, outbound};
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse,
};
use strait_xds::resource::ResourceType::{self, Cluster, Endpoint, Listener, Route};

/// After this time an acknowledgement is no longer awaited. On a machine this slow the test proves
/// nothing.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn routes_are_added_after_and_removed_before_their_cluster() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let mut proxy = Answering::connect(&server, &setup, &Proxy::sidecar("east")).await;
    proxy.follow_until(|proxy| proxy.routes_to("web")).await;

    let began = Instant::now();
    east.serve("late", &["10.0.0.9"]);
    let cluster = proxy.expect_next(Cluster).await;
    assert!(proxy.holds(Cluster, &outbound("late")));
    proxy.subscribe_to(Endpoint, &outbound("late")).await;
    let assignment = proxy.expect_next(Endpoint).await;
    assert!(proxy.holds(Endpoint, &outbound("late")));
    for answer in [cluster, assignment] {
        proxy.sends_no_unrequested_response(began).await;
        proxy.acknowledge(&answer).await;
    }
    proxy.follow_until(|proxy| proxy.routes_to("late")).await;

    let began = Instant::now();
    east.api.store().delete("EndpointSlice", SHOP, "late-1").expect("it was there");
    east.api.store().delete("Service", SHOP, "late").expect("it was there");
    let leading = loop {
        let next = proxy.next().await;
        if matches!(ResourceType::of_url(&next.type_url), Some(Listener | Route))
            && !proxy.routes_to("late")
        {
            break next;
        }
        proxy.acknowledge(&next).await;
    };
    proxy.sends_no_unrequested_response(began).await;
    assert!(proxy.holds(Cluster, &outbound("late")) || began.elapsed() > ANSWER_LIMIT);
    proxy.acknowledge(&leading).await;
    proxy.follow_until(|proxy| !proxy.holds(Cluster, &outbound("late"))).await;
    server.shut_down().await;
}

/// A proxy that controls when it acknowledges each response, on a Delta stream.
struct Answering {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
    resources: BTreeMap<(ResourceType, String), serde_json::Value>,
    probes: usize,
}

impl Answering {
    async fn connect(server: &Server, setup: &Setup, proxy: &Proxy) -> Self {
        let tls = setup.certificate(proxy.namespace, proxy.account);
        let channel = strait_xds_client::channel(server.bound.xds, "localhost", tls)
            .await
            .expect("connected");
        let (requests, receiver) = mpsc::channel(64);
        let mut node = Some(proxy.node());
        for kind in [Cluster, Listener] {
            let type_url = kind.url().to_owned();
            let first = DeltaDiscoveryRequest { node: node.take(), type_url, ..Default::default() };
            requests.send(first).await.expect("there is room");
        }
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let stream = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await;
        let responses = stream.expect("a stream").into_inner();
        Self { requests, responses, resources: BTreeMap::new(), probes: 0 }
    }

    fn holds(&self, kind: ResourceType, name: &str) -> bool {
        self.resources.contains_key(&(kind, name.to_owned()))
    }

    /// Returns whether a route or listener routes to a service.
    fn routes_to(&self, service: &str) -> bool {
        let name = json!(outbound(service)).to_string();
        let leading =
            self.resources.iter().filter(|((kind, _), _)| matches!(kind, Listener | Route));
        leading.map(|(_, one)| one.to_string()).any(|text| text.contains(&name))
    }

    /// Returns the next response, after applying it.
    async fn next(&mut self) -> DeltaDiscoveryResponse {
        let next = tokio::time::timeout(SOON, self.responses.message()).await;
        let response = next.expect("in time").expect("open").expect("the stream continues");
        let kind = ResourceType::of_url(&response.type_url).expect("a requested type");
        for entry in &response.resources {
            let body = &entry.resource.as_ref().expect("a body").value;
            self.resources.insert((kind, entry.name.clone()), to_json(kind, body));
        }
        for name in &response.removed_resources {
            self.resources.remove(&(kind, name.clone()));
        }
        response
    }

    /// Returns the next response, which must be of this type.
    async fn expect_next(&mut self, kind: ResourceType) -> DeltaDiscoveryResponse {
        let response = self.next().await;
        assert_eq!(response.type_url, kind.url(), "{:?}", self.resources.keys());
        response
    }

    /// Acknowledges every response immediately, and subscribes to all names in it first, until the
    /// test passes.
    async fn follow_until(&mut self, test: impl Fn(&Self) -> bool) {
        let mut subscribed = BTreeSet::new();
        while !test(self) {
            let response = self.next().await;
            for (kind, name) in self.named() {
                if !self.holds(kind, &name) && subscribed.insert((kind, name.clone())) {
                    self.subscribe_to(kind, &name).await;
                }
            }
            self.acknowledge(&response).await;
        }
    }

    /// Returns the names in the resources that it has.
    fn named(&self) -> BTreeSet<(ResourceType, String)> {
        let clusters = self
            .resources
            .iter()
            .filter(|((kind, _), one)| *kind == Cluster && one["type"] == "EDS");
        let assignments = clusters.map(|((_, name), _)| (Endpoint, name.clone()));
        let mut routes = BTreeSet::new();
        let listeners = self.resources.iter().filter(|((kind, _), _)| *kind == Listener);
        listeners.for_each(|(_, one)| find_routes(one, &mut routes));
        assignments.chain(routes.into_iter().map(|name| (Route, name))).collect()
    }

    async fn subscribe_to(&self, kind: ResourceType, name: &str) {
        let type_url = kind.url().to_owned();
        let resource_names_subscribe = vec![name.to_owned()];
        self.send(DeltaDiscoveryRequest {
            type_url,
            resource_names_subscribe,
            ..Default::default()
        })
        .await;
    }

    async fn acknowledge(&self, response: &DeltaDiscoveryResponse) {
        let (type_url, response_nonce) = (response.type_url.clone(), response.nonce.clone());
        self.send(DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }).await;
    }

    async fn send(&self, request: DeltaDiscoveryRequest) {
        self.requests.send(request).await.expect("the server reads");
    }

    /// Checks that no response is pending: it would arrive before the response to a new
    /// subscription.
    async fn sends_no_unrequested_response(&mut self, began: Instant) {
        self.probes += 1;
        let name = outbound(&format!("nobody-{}", self.probes));
        self.subscribe_to(Endpoint, &name).await;
        while !self.holds(Endpoint, &name) {
            let next = self.next().await;
            let is_requested = next.type_url == Endpoint.url();
            assert!(is_requested || began.elapsed() > ANSWER_LIMIT, "{}", next.type_url);
        }
    }
}
