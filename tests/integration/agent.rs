//! A stand-in for Istio's agent and its Envoy, in both variants of the protocol: one start message
//! by message, and the messages after it. `tokens.rs` tests its identity and rejected tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use prost::Message;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::mesh::{Member, SHOP, SOON, SYSTEM, Server, Setup, outbound, replace};
use super::tokens::{Agent, running, token_by_hand, verified_identity, without_certificate};
use strait_identity::AuthorityPem;
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use strait_proto::envoy::google::protobuf::value::Kind;
use strait_proto::envoy::google::protobuf::{Struct, Value as ProtoValue};
use strait_proto::envoy::google::rpc;
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::channel;

const AGENT_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// A type without resources. The response to it arrives after all earlier responses.
const UNKNOWN: &str = "type.googleapis.com/istio.security.Authorization";
const FORMS: [ProtocolForm; 2] = [ProtocolForm::Sotw, ProtocolForm::Delta];

/// A message of one side about a type, independent of the variant.
#[derive(Debug, Default)]
struct AgentMessage {
    type_url: String,
    /// Subscribed names, or removed names.
    names: Vec<String>,
    /// Known resources, or sent ones: version and message by name.
    resources: BTreeMap<String, (String, Vec<u8>)>,
    version: String,
    nonce: String,
}

/// The resources that an Envoy has, by type.
type Holdings = BTreeMap<&'static str, ReceivedState>;

#[derive(Debug, Default, Clone, PartialEq)]
struct ReceivedState {
    resources: BTreeMap<String, (String, Vec<u8>)>,
    /// The last accepted version (SotW).
    version: String,
}

enum Requests {
    Sotw(mpsc::Sender<DiscoveryRequest>),
    Delta(mpsc::Sender<DeltaDiscoveryRequest>),
}

enum Responses {
    Sotw(Streaming<DiscoveryResponse>),
    Delta(Streaming<DeltaDiscoveryResponse>),
}

/// The stream of an agent, which forwards Envoy's messages and adds its own requests.
struct AgentStream {
    requests: Requests,
    responses: Responses,
}

impl AgentStream {
    async fn open(agent: &Agent, server: &Server, setup: &Setup, form: ProtocolForm) -> Self {
        let channel = channel(server.bound.xds, "localhost", without_certificate(setup)).await;
        let mut client = AggregatedDiscoveryServiceClient::new(channel.expect("connected"));
        match form {
            ProtocolForm::Sotw => {
                let (requests, receiver) = mpsc::channel(64);
                let call = agent.request(ReceiverStream::new(receiver));
                let responses = client.stream_aggregated_resources(call).await.expect("let in");
                let responses = Responses::Sotw(responses.into_inner());
                Self { requests: Requests::Sotw(requests), responses }
            }
            ProtocolForm::Delta => {
                let (requests, receiver) = mpsc::channel(64);
                let call = agent.request(ReceiverStream::new(receiver));
                let responses = client.delta_aggregated_resources(call).await.expect("let in");
                let responses = Responses::Delta(responses.into_inner());
                Self { requests: Requests::Delta(requests), responses }
            }
        }
    }

    async fn send(&self, message: AgentMessage, node: Option<Node>, error: Option<&str>) {
        let AgentMessage { type_url, names, resources, version, nonce } = message;
        let error_detail =
            error.map(|text| rpc::Status { message: text.to_owned(), ..Default::default() });
        match &self.requests {
            Requests::Sotw(requests) => {
                let request = DiscoveryRequest {
                    node,
                    type_url,
                    resource_names: names,
                    version_info: version,
                    response_nonce: nonce,
                    error_detail,
                    ..Default::default()
                };
                requests.send(request).await.expect("it is open");
            }
            Requests::Delta(requests) => {
                let versions = resources.into_iter().map(|(name, (version, _))| (name, version));
                let request = DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe: names,
                    initial_resource_versions: versions.collect(),
                    response_nonce: nonce,
                    error_detail,
                    ..Default::default()
                };
                requests.send(request).await.expect("it is open");
            }
        }
    }

    /// Subscribes to a type, with the resources that the client has.
    async fn subscribe(
        &self,
        type_url: &str,
        names: &[String],
        state: &ReceivedState,
        node: Option<Node>,
    ) {
        let message = AgentMessage {
            type_url: type_url.to_owned(),
            names: names.to_vec(),
            resources: state.resources.clone(),
            version: state.version.clone(),
            nonce: String::new(),
        };
        self.send(message, node, None).await;
    }

    /// Returns the next response.
    async fn receive(&mut self) -> AgentMessage {
        let in_time = async {
            match &mut self.responses {
                Responses::Sotw(responses) => {
                    let response = responses.message().await.expect("no error");
                    let response = response.expect("the stream continues");
                    let named = response.resources.into_iter().map(|any| {
                        let name = resource_name(&response.type_url, &any.value);
                        (name, (response.version_info.clone(), any.value))
                    });
                    AgentMessage {
                        resources: named.collect(),
                        names: Vec::new(),
                        version: response.version_info,
                        nonce: response.nonce,
                        type_url: response.type_url,
                    }
                }
                Responses::Delta(responses) => {
                    let response = responses.message().await.expect("no error");
                    let response = response.expect("the stream continues");
                    let named = response.resources.into_iter().map(|entry| {
                        let body = entry.resource.expect("a resource").value;
                        (entry.name, (entry.version, body))
                    });
                    AgentMessage {
                        resources: named.collect(),
                        names: response.removed_resources,
                        version: response.system_version_info,
                        nonce: response.nonce,
                        type_url: response.type_url,
                    }
                }
            }
        };
        tokio::time::timeout(SOON, in_time).await.expect("in time")
    }

    /// Returns the next response of a type, and acknowledges it and all responses before it.
    async fn receive_type(
        &mut self,
        type_url: &str,
        subscribed: &BTreeMap<&str, Vec<String>>,
    ) -> AgentMessage {
        loop {
            let response = self.receive().await;
            // An agent does not acknowledge empty responses.
            if response.type_url != AGENT_CONFIG || !response.resources.is_empty() {
                let names = match self.requests {
                    Requests::Sotw(_) => {
                        subscribed.get(&*response.type_url).cloned().unwrap_or_default()
                    }
                    Requests::Delta(_) => Vec::new(),
                };
                let answer = AgentMessage {
                    type_url: response.type_url.clone(),
                    names,
                    version: response.version.clone(),
                    nonce: response.nonce.clone(),
                    ..AgentMessage::default()
                };
                self.send(answer, None, None).await;
            }
            if response.type_url == type_url {
                return response;
            }
        }
    }
}

/// Returns the name of a resource, from its message.
fn resource_name(type_url: &str, body: &[u8]) -> String {
    let Ok(json) = strait_proto::json::to_json(type_url, body) else { return String::new() };
    let name = json["name"].as_str().or_else(|| json["cluster_name"].as_str());
    name.unwrap_or_default().to_owned()
}

/// Returns the node as Istio's agent writes it.
fn node(agent: &Agent) -> Node {
    let mut node = agent.proxy.node();
    let text = |text: &str| ProtoValue { kind: Some(Kind::StringValue(text.to_owned())) };
    let config = Struct { fields: [("statusPort".to_owned(), text("15020"))].into() };
    let fields = &mut node.metadata.as_mut().expect("it has metadata").fields;
    for (key, value) in [
        ("ISTIO_VERSION", text("1.30.0")),
        ("DNS_CAPTURE", text("true")),
        ("INTERCEPTION_MODE", text("REDIRECT")),
        ("POD_PORTS", text(r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#)),
        ("PROXY_CONFIG", ProtoValue { kind: Some(Kind::StructValue(config)) }),
    ] {
        fields.insert(key.to_owned(), value);
    }
    node
}

/// Runs one start, message by message, and returns the resources that Envoy has then. `previous` are
/// the resources that it had before.
async fn start(
    agent: &Agent,
    server: &Server,
    setup: &Setup,
    form: ProtocolForm,
    previous: &Holdings,
) -> (AgentStream, Holdings, usize) {
    let mut stream = AgentStream::open(agent, server, setup, form).await;
    let mut sent = 0;
    let mut now = Holdings::new();
    let mut subscribed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let nothing = ReceivedState::default();
    let [clusters, listeners, endpoints, routes, names] = [
        ResourceType::Cluster,
        ResourceType::Listener,
        ResourceType::Endpoint,
        ResourceType::Route,
        ResourceType::NameTable,
    ]
    .map(ResourceType::url);
    let had = |kind: &str| previous.get(kind).unwrap_or(&nothing);
    for (kind, node) in [(clusters, Some(node(agent))), (listeners, None)] {
        stream.subscribe(kind, &[], had(kind), node).await;
        let response = stream.receive_type(kind, &subscribed).await;
        sent += response.resources.len();
        now.insert(kind, apply_response(had(kind), form, response));
    }
    // The agent's own requests have no node, and no response to them delays Envoy.
    for kind in [names, AGENT_CONFIG, HEALTH] {
        stream.subscribe(kind, &[], &nothing, None).await;
    }
    let table = stream.receive_type(names, &subscribed).await;
    assert_eq!(table.resources.len(), 1, "{form:?}: one table");
    let by_name = |kind: &str| -> Vec<String> {
        let all = now[kind].resources.values().map(|(_, body)| body);
        let url = if kind == clusters { clusters } else { listeners };
        let json = all.map(|body| strait_proto::json::to_json(url, body).expect("a message"));
        json.flat_map(
            |one| if kind == clusters { assignment_names(&one) } else { route_names(&one) },
        )
        .collect()
    };
    let wanted = [(endpoints, by_name(clusters)), (routes, by_name(listeners))];
    for (kind, wanted) in wanted {
        assert!(!wanted.is_empty(), "{form:?}: {kind}");
        subscribed.insert(kind, wanted.clone());
        stream.subscribe(kind, &wanted, had(kind), None).await;
        let mut own = had(kind).clone();
        let missing =
            |own: &ReceivedState| wanted.iter().any(|name| !own.resources.contains_key(name));
        while missing(&own) {
            let response = stream.receive_type(kind, &subscribed).await;
            sent += response.resources.len();
            own = apply_response(&own, form, response);
        }
        now.insert(kind, own);
    }
    (stream, now, sent)
}

/// Returns the resources that a client has after a response.
fn apply_response(
    state: &ReceivedState,
    form: ProtocolForm,
    response: AgentMessage,
) -> ReceivedState {
    let mut resources = match (form, &*response.type_url) {
        // Complete, for a type with a wildcard subscription.
        (ProtocolForm::Sotw, kind)
            if kind == ResourceType::Cluster.url() || kind == ResourceType::Listener.url() =>
        {
            BTreeMap::new()
        }
        _ => state.resources.clone(),
    };
    if form == ProtocolForm::Delta {
        response.names.iter().for_each(|name| drop(resources.remove(name)));
    }
    resources.extend(response.resources);
    ReceivedState { resources, version: response.version }
}

/// Returns the assignment that an upstream cluster needs.
fn assignment_names(cluster: &Value) -> Vec<String> {
    let is_eds = cluster["type"] == json!("EDS");
    is_eds.then(|| cluster["name"].as_str().expect("a name").to_owned()).into_iter().collect()
}

/// Returns the routes that a listener needs.
fn route_names(listener: &Value) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![listener];
    while let Some(value) = open.pop() {
        if let Some(name) = value["rds"]["route_config_name"].as_str() {
            found.insert(name.to_owned());
        }
        match value {
            Value::Array(all) => open.extend(all),
            Value::Object(all) => open.extend(all.values()),
            _ => {}
        }
    }
    found.into_iter().collect()
}

#[tokio::test]
async fn agent_starts_with_only_its_token_in_both_variants() {
    for form in FORMS {
        let (setup, east, server) = running().await;
        let agent = Agent::for_member(&east);
        let chain = agent.certificate_soon(&server, &setup).await;
        assert_eq!(verified_identity(&chain), "spiffe://cluster.local/ns/shop/sa/web");
        let (mut stream, received, _) =
            start(&agent, &server, &setup, form, &Holdings::new()).await;
        let clusters = &received[ResourceType::Cluster.url()].resources;
        assert!(clusters.contains_key(&outbound("web")), "{form:?}: {:?}", clusters.keys());
        assert!(received[ResourceType::Listener.url()].resources.contains_key("virtualInbound"));

        // Envoy subscribes to filter configurations by name. A missing one is reported as removed.
        let nothing = ReceivedState::default();
        stream.subscribe(EXTENSION, &["wasm".to_owned()], &nothing, None).await;
        let response = stream.receive_type(EXTENSION, &BTreeMap::new()).await;
        assert!(
            response.resources.is_empty() && response.names.is_empty(),
            "{form:?}: {response:?}"
        );
        // A workload can report a failure at any time, and gets no response.
        let report = AgentMessage { type_url: HEALTH.to_owned(), ..AgentMessage::default() };
        stream.send(report, None, Some("connection refused")).await;
        stream.subscribe(UNKNOWN, &["shop/one".to_owned()], &nothing, None).await;
        let response = stream.receive_type(UNKNOWN, &BTreeMap::new()).await;
        assert!(response.resources.is_empty(), "{form:?}: {response:?}");

        // The agent alone restarts: the same node on another stream, with the resources that its
        // Envoy has.
        let (_newer, again, sent) = start(&agent, &server, &setup, form, &received).await;
        let bodies = |holdings: &Holdings| -> Vec<_> {
            let all = holdings.iter().flat_map(|(kind, state)| {
                state
                    .resources
                    .iter()
                    .map(move |(name, (_, body))| (*kind, name.clone(), body.clone()))
            });
            all.collect()
        };
        assert_eq!(bodies(&again), bodies(&received), "{form:?}");
        if form == ProtocolForm::Delta {
            assert_eq!(sent, 0, "resources that it has are not sent again");
        }
    }
}

#[tokio::test]
async fn agent_that_moves_to_another_control_plane_receives_nothing_that_it_has() {
    for form in FORMS {
        let (setup, east, server) = running().await;
        let agent = Agent::for_member(&east);
        agent.certificate_soon(&server, &setup).await;
        let (stream, received, _) = start(&agent, &server, &setup, form, &Holdings::new()).await;
        drop(stream);
        server.shut_down().await;

        // Its API server is unreachable, and the restored state is byte for byte the same.
        east.api.stop().await;
        let server = setup.start_ready().await;
        server.cluster_in("east", "restored").await;
        let (_stream, again, sent) = start(&agent, &server, &setup, form, &received).await;
        for (kind, state) in &received {
            let bodies = |state: &ReceivedState| -> Vec<_> {
                state
                    .resources
                    .iter()
                    .map(|(name, (_, body))| (name.clone(), body.clone()))
                    .collect()
            };
            assert_eq!(bodies(&again[kind]), bodies(state), "{form:?}: {kind}");
        }
        if form == ProtocolForm::Delta {
            assert_eq!(sent, 0, "nothing has changed");
        }
        server.shut_down().await;
    }
}

#[tokio::test]
async fn agent_with_a_token_receives_roots_once_and_after_changes() {
    for form in FORMS {
        let (setup, east, server) = running().await;
        let agent = Agent::for_member(&east);
        agent.certificate_soon(&server, &setup).await;
        let mut stream = AgentStream::open(&agent, &server, &setup, form).await;
        let (nothing, subscribed) = (ReceivedState::default(), BTreeMap::new());
        stream.subscribe(ResourceType::Cluster.url(), &[], &nothing, Some(node(&agent))).await;
        stream.receive_type(ResourceType::Cluster.url(), &subscribed).await;
        stream.subscribe(AGENT_CONFIG, &[], &nothing, None).await;
        let roots = |response: &AgentMessage| -> String {
            let (_, body) = response.resources.values().next().expect("a set of roots");
            assert_eq!(body[..2], [0x92, 2], "field 34, a text");
            String::from_utf8_lossy(body).into_owned()
        };
        // With a token, the server does not know which roots the agent's certificate had.
        let ours = setup.authority().roots().to_pem();
        assert!(
            roots(&stream.receive_type(AGENT_CONFIG, &subscribed).await).ends_with(&ours),
            "{form:?}"
        );
        stream.subscribe(UNKNOWN, &["shop/one".to_owned()], &nothing, None).await;
        let next = stream.receive().await;
        assert_eq!(next.type_url, UNKNOWN, "{form:?}: the roots are sent only once");

        let more = AuthorityPem::generate(SystemTime::now()).expect("a CA");
        replace(&setup.path("ca/root-cert.pem"), &format!("{ours}{}", more.root_cert));
        let updated = roots(&stream.receive_type(AGENT_CONFIG, &subscribed).await);
        assert!(updated.contains(&*more.root_cert), "{form:?}: {updated}");
        server.shut_down().await;
    }
}

#[tokio::test]
async fn istioctl_is_served_with_a_token_without_pod_and_cluster() {
    let hub = Member::start("hub", "n1", "198.18.0.1").await;
    hub.serve("web", &["10.0.0.1"]);
    let setup = Setup::new().with(&["--cluster-id", "hub"]);
    let server = setup.start_as(setup.arguments_with(&hub.api)).await;
    server.ready().await;
    let agent = Agent::for_member(&hub);
    agent.certificate_soon(&server, &setup).await;
    let (_proxy, ..) = start(&agent, &server, &setup, ProtocolForm::Delta, &Holdings::new()).await;

    hub.apply(json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "namespace": SYSTEM, "name": "default" },
    }));
    let url = hub.api.url();
    let accounts_url =
        |namespace: &str| format!("{url}/api/v1/namespaces/{namespace}/serviceaccounts");
    let token = token_by_hand(&hub, &format!("{}/default/token", accounts_url(SYSTEM))).await;
    let istioctl = Agent { token, cluster: String::new(), ..agent.clone() };
    let asker = Node { id: "debug~0.0.0.0~istioctl~cluster.local".into(), ..Node::default() };
    let request = async |type_url: &str, names: &[&str]| {
        let mut stream = AgentStream::open(&istioctl, &server, &setup, ProtocolForm::Sotw).await;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        // Its nonce is the time, although there is no response to acknowledge.
        let nonce = "2026-11-27 03:49:08.743 +0000 UTC m=+0.021".to_owned();
        let message =
            AgentMessage { type_url: type_url.to_owned(), names, nonce, ..AgentMessage::default() };
        stream.send(message, Some(asker.clone()), None).await;
        let Responses::Sotw(responses) = &mut stream.responses else { unreachable!("SotW") };
        tokio::time::timeout(SOON, responses.message())
            .await
            .expect("in time")
            .expect("no error")
            .expect("an answer")
    };
    // `proxy-status`, and `x version`, which skips proxies without PROXY_CONFIG.
    let syncz = request("istio.io/debug/syncz", &[]).await;
    assert_eq!(syncz.resources.len(), 1);
    let nodes = request("istio.io/connections", &[]).await;
    let node = Node::decode(&*nodes.resources[0].value).expect("a node");
    assert_eq!(nodes.resources[0].type_url, "type.googleapis.com/envoy.config.core.v3.Node");
    assert_eq!(node.id, agent.proxy.id());
    let fields = node.metadata.expect("it has metadata").fields;
    let text = |key: &str| match fields[key].kind.clone() {
        Some(Kind::StringValue(text)) => text,
        other => format!("{other:?}"),
    };
    assert_eq!((&*text("ISTIO_VERSION"), &*text("CLUSTER_ID")), ("1.30.0", "hub"));
    assert!(fields.contains_key("PROXY_CONFIG"));
    assert!(nodes.control_plane.is_some_and(|one| one.identifier.contains("Info")));
    // `x internal-debug`: a request without a page is answered with a reference to the list.
    let page = request("istio.io/debug", &["nothing", "list"]).await;
    let pages: Vec<_> =
        page.resources.iter().map(|one| String::from_utf8_lossy(&one.value).into_owned()).collect();
    assert!(pages[0].contains("404 page not found") && pages[1].contains("clusterz"), "{pages:?}");

    // The same request from another namespace returns only its own proxies.
    hub.apply(json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "namespace": "elsewhere", "name": "default" },
    }));
    let token = token_by_hand(&hub, &format!("{}/default/token", accounts_url("elsewhere"))).await;
    let stranger = Agent { token, ..istioctl.clone() };
    let mut stream = AgentStream::open(&stranger, &server, &setup, ProtocolForm::Sotw).await;
    stream
        .subscribe("istio.io/debug/syncz", &[], &ReceivedState::default(), Some(asker.clone()))
        .await;
    assert!(stream.receive().await.resources.is_empty());
    assert_eq!(agent.proxy.namespace, SHOP);
    server.shut_down().await;
}
