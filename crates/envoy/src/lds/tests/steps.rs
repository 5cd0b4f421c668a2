//! Checks the resources of a proxy after each response while a cluster is removed: no resource may
//! reference a missing one.

use prost::Message;

use super::*;
use strait_model::dirty::Dirty;
use strait_model::testing::removed;
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use strait_xds::request::AdsRequest;
use strait_xds::session::{ProtocolForm, Response, Session};

#[test]
fn no_step_of_a_withdrawal_references_a_missing_upstream_cluster() {
    let ports = || vec![port("http", 80, 80), port("tcp", 90, 90), port("", 100, 100)];
    let placed_service = |cluster: &str, name: &str, vip: &str, address: &str| {
        let ports = ports();
        let at = ports.iter().map(|port| at(address, &port.name, port.number)).collect();
        (service(name).vip(vip).ports(ports), at, cluster.to_owned())
    };
    let shards = [
        placed_service("east", "both.ns", "10.1.0.1", "10.0.0.2"),
        placed_service("west", "both.ns", "10.2.0.1", "10.0.0.3"),
        placed_service("west", "only.ns", "10.2.0.2", "10.0.0.4"),
    ];
    let updates = ["east", "west"].map(|cluster| {
        let own = shards.iter().filter(|(_, _, own_cluster)| own_cluster == cluster).cloned();
        let pods = service("pods.ns").headless().ports(vec![port("tcp", 70, 70)]);
        let update = shard(cluster, 1).network("n1").with(pods, vec![at("10.0.0.5", "tcp", 70)]);
        own.fold(update, |update, (service, endpoints, _)| update.with(service, endpoints)).built()
    });
    let mut mesh = mesh();
    updates.into_iter().for_each(|update| mesh.apply(MeshEvent::Registry(update)));
    mesh.apply(MeshEvent::Complete);
    let before = mesh.next_version().expect("a version").0;
    mesh.apply(MeshEvent::Registry(removed("west", 2)));
    let after = mesh.next_version().expect("a version").0;

    for proxy in [client(), sidecar("client.ns", "west"), east_west_gateway()] {
        for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
            let mut client = Client::new(form);
            let received = client.follow(&before, &proxy);
            let gone = client.follow(&after, &proxy);
            assert!(
                received > 1 && gone > 1,
                "{form:?} {}: {received}, {gone} responses",
                proxy.id
            );
            let fresh = {
                let mut fresh = Client::new(form);
                fresh.follow(&after, &proxy);
                fresh.resources
            };
            assert_eq!(client.resources, fresh, "{form:?} {}", proxy.id);
        }
    }
}

/// A client that applies responses one by one.
struct Client {
    session: Session,
    form: ProtocolForm,
    resources: BTreeMap<(ResourceType, String), Value>,
    /// The subscriptions by name.
    named: BTreeMap<ResourceType, Vec<String>>,
}

impl Client {
    fn new(form: ProtocolForm) -> Self {
        let (resources, named) = (BTreeMap::new(), BTreeMap::new());
        let mut client = Self { session: Session::new(form), form, resources, named };
        client.subscribe(ResourceType::Cluster, Vec::new());
        client.subscribe(ResourceType::Listener, Vec::new());
        client
    }

    /// Applies all responses of this version and checks all resources after each. Returns the
    /// number of responses.
    fn follow(&mut self, context: &Arc<PushContext>, proxy: &Proxy) -> usize {
        let cache = Cache::default();
        let mut proxy_config = ProxyConfig::new(context, proxy, "n1".into(), &cache);
        self.session.on_change(&Dirty { everything: true, ..Dirty::default() });
        let now = std::time::SystemTime::UNIX_EPOCH;
        let mut count = 0;
        while let Some(response) = self.session.next_response(&mut proxy_config, usize::MAX, now) {
            count += 1;
            self.take(&response);
            self.check(&format!("{:?} {}, response {count}", self.form, proxy.id));
            self.acknowledge(&response);
        }
        count
    }

    /// Subscribes to these names only.
    fn subscribe(&mut self, kind: ResourceType, names: Vec<String>) {
        let node = Some(Node { id: "n".into(), ..Default::default() });
        let type_url = kind.url().to_owned();
        let bytes = match self.form {
            ProtocolForm::Delta => {
                let current =
                    self.resources.keys().filter(|(resource_type, _)| *resource_type == kind);
                let current: Vec<String> = current.map(|(_, name)| name.clone()).collect();
                let not_in = |names: &[String], those: &[String]| {
                    names.iter().filter(|name| !those.contains(name)).cloned().collect()
                };
                DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe: not_in(&names, &current),
                    resource_names_unsubscribe: not_in(&current, &names),
                    ..Default::default()
                }
                .encode_to_vec()
            }
            ProtocolForm::Sotw => {
                let response_nonce =
                    if names.is_empty() { String::new() } else { "names only".into() };
                DiscoveryRequest {
                    node,
                    type_url,
                    resource_names: names.clone(),
                    response_nonce,
                    ..Default::default()
                }
                .encode_to_vec()
            }
        };
        self.send(&bytes);
        self.named.insert(kind, names);
    }

    fn acknowledge(&mut self, response: &Response) {
        let (type_url, response_nonce) = (response.kind.url().to_owned(), response.nonce.clone());
        let bytes = match self.form {
            ProtocolForm::Delta => {
                DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }
                    .encode_to_vec()
            }
            ProtocolForm::Sotw => {
                let resource_names = self.named.get(&response.kind).cloned().unwrap_or_default();
                let request = DiscoveryRequest {
                    type_url,
                    response_nonce,
                    resource_names,
                    ..Default::default()
                };
                request.encode_to_vec()
            }
        };
        self.send(&bytes);
    }

    fn send(&mut self, bytes: &[u8]) {
        let request = AdsRequest::read(self.form, bytes).expect("a request");
        let result = self.session.on_request(request, None, std::time::SystemTime::UNIX_EPOCH);
        result.expect("a request within the protocol");
    }

    fn take(&mut self, response: &Response) {
        let kind = response.kind;
        if self.form == ProtocolForm::Sotw && kind.is_wildcard() {
            self.resources.retain(|(resource_type, _), _| *resource_type != kind);
        }
        for (resource, _) in response.all() {
            let message = to_json(kind.url(), &resource.body.to_bytes()).expect("a message");
            self.resources.insert((kind, resource.name.to_string()), message);
        }
        for name in &response.removed {
            self.resources.remove(&(kind, name.to_string()));
        }
        let by_type = |kind| {
            self.resources.iter().filter(move |((resource_type, _), _)| *resource_type == kind)
        };
        let (follows, names): (_, Vec<String>) = match kind {
            ResourceType::Cluster => {
                let eds = by_type(kind).filter(|(_, one)| one["type"] == "EDS");
                (ResourceType::Endpoint, eds.map(|((_, name), _)| name.clone()).collect())
            }
            ResourceType::Listener => {
                let listeners =
                    by_type(kind).flat_map(|(_, one)| strings_under(one, "route_config_name"));
                (ResourceType::Route, listeners.collect())
            }
            _ => return,
        };
        self.subscribe(follows, names.clone());
        self.resources
            .retain(|(resource_type, name), _| *resource_type != follows || names.contains(name));
    }

    fn check(&self, step: &str) {
        let mut addresses = std::collections::BTreeSet::new();
        for ((kind, name), resource) in &self.resources {
            if *kind == ResourceType::Listener {
                let address = resource["address"].to_string();
                assert!(addresses.insert(address), "{step}: the address of {name} is taken");
            }
            if matches!(kind, ResourceType::Listener | ResourceType::Route) {
                for upstream in strings_under(resource, "cluster") {
                    let there =
                        self.resources.contains_key(&(ResourceType::Cluster, upstream.clone()));
                    assert!(there, "{step}: {name} references {upstream}");
                }
            }
        }
    }
}

/// Returns every string under `key`, at any depth.
fn strings_under(value: &Value, key: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match value {
                Value::String(text) if name == key => vec![text.clone()],
                other => strings_under(other, key),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(|item| strings_under(item, key)).collect(),
        _ => Vec::new(),
    }
}
