//! Which changes to Gateways and to rules bound to them affect routers.

use prost::Message;
use serde_json::{Value, json};

use super::*;
use strait_proto::envoy::envoy::config::route::v3::RouteConfiguration;

/// A mesh with two routers, one of which a Gateway may select.
struct EditedGateways {
    mesh: MeshState,
    rules: Rules,
    cache: Cache,
    before: Arc<PushContext>,
}

impl EditedGateways {
    fn new() -> Self {
        let mut mesh = MeshState::new(settings());
        let clusters = [("east".into(), member(None))].into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let with = |name: &str, vip: &str| service(name).vip(vip);
        let all = shard("east", 1).network("n1").with(with("a.shop", "10.1.0.1"), vec![]);
        let all = all.with(with("b.shop", "10.1.0.2"), vec![]);
        mesh.apply(MeshEvent::Registry(all.built()));
        mesh.apply(MeshEvent::Complete);
        let (before, _) = mesh.next_version().expect("a first version");
        Self { mesh, rules: rules(), cache: Cache::default(), before }
    }

    /// Stores an object and returns which of the routers are notified.
    fn put(&mut self, kind: &str, name: &str, spec: Value) -> [bool; 2] {
        let key = ObjectKey {
            kind: kind.into(),
            group: ISTIO_NETWORKING.into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        self.rules.objects.insert(key, Arc::new(json!({ "spec": spec })));
        let update = self.rules.index.apply(&self.rules.objects).expect("it differs");
        self.mesh.apply(MeshEvent::Traffic(update));
        self.notified()
    }

    fn notified(&mut self) -> [bool; 2] {
        let (now, changes) = self.mesh.next_version().expect("a version");
        let router = |app: &str| {
            let labels = [("app".into(), app.into())].into_iter().collect();
            let proxy = Proxy {
                kind: ProxyType::Router,
                labels,
                ..sidecar(&format!("{app}.edge"), "east")
            };
            let whereabouts = now.whereabouts(&proxy);
            Arc::new(ProxyLocation { proxy: Arc::new(proxy), network: "n1".into(), whereabouts })
        };
        let locations = ["public", "other"].map(router);
        let hosts = related_hosts([&self.before, &now], &changes.services());
        let affected = self.cache.seen(&self.before, &now, &hosts, &locations);
        self.before = now;
        [affected[0].everything, affected[1].everything]
    }
}

#[test]
fn router_is_notified_only_of_its_own_gateways_and_their_rules() {
    let mut mesh = EditedGateways::new();
    let server = |port: u16| json!({ "port": { "number": port, "protocol": "HTTP", "name": "http" }, "hosts": ["*"] });
    let gateway =
        |app: &str, port: u16| json!({ "selector": { "app": app }, "servers": [server(port)] });
    let rule = |gateways: &[&str], host: &str| {
        let route = json!([{ "destination": { "host": host } }]);
        json!({ "hosts": ["x.example"], "gateways": gateways, "http": [{ "route": route }] })
    };
    let limit = |host: &str| json!({ "host": host, "trafficPolicy": { "connectionPool": { "tcp": { "maxConnections": 1 } } } });
    assert_eq!(mesh.put("Gateway", "gw", gateway("public", 80)), [true, false]);
    assert_eq!(mesh.put("Gateway", "gw", gateway("public", 81)), [true, false]);
    assert_eq!(mesh.put("VirtualService", "one", rule(&["gw"], "a")), [true, false]);
    assert_eq!(mesh.put("VirtualService", "two", rule(&["mesh"], "b")), [false, false]);
    assert_eq!(mesh.put("VirtualService", "two", rule(&["none"], "b")), [false, false]);
    assert_eq!(mesh.put("DestinationRule", "b", limit("b")), [false, false]);
    assert_eq!(mesh.put("DestinationRule", "a", limit("a")), [true, false]);
    assert_eq!(mesh.put("Gateway", "gw", gateway("other", 81)), [true, true]);
    assert_eq!(mesh.put("VirtualService", "one", rule(&["gw"], "b")), [false, true]);
}

#[test]
fn hosts_of_a_gateway_with_equal_routes_share_one_virtual_host() {
    let mut mesh = EditedGateways::new();
    let server =
        json!({ "port": { "number": 80, "protocol": "HTTP", "name": "http" }, "hosts": ["*"] });
    mesh.put("Gateway", "gw", json!({ "selector": { "app": "public" }, "servers": [server] }));
    let rule = |at: usize| {
        let prefix = format!("/{at}");
        json!({ "match": [{ "uri": { "prefix": prefix } }], "route": [{ "destination": { "host": "a" } }] })
    };
    let rules: Vec<_> = (0..300).map(rule).collect();
    let hosts: Vec<_> = (0..300).map(|at| format!("h{at:03}.example")).collect();
    mesh.put(
        "VirtualService",
        "many",
        json!({ "hosts": hosts, "gateways": ["gw"], "http": rules }),
    );
    let other = json!([{ "timeout": "1s", "route": [{ "destination": { "host": "b" } }] }]);
    let other = json!({ "hosts": ["h007.example"], "gateways": ["gw"], "http": other });
    mesh.put("VirtualService", "other", other);
    let labels = [("app".into(), "public".into())].into_iter().collect();
    let router = Proxy { kind: ProxyType::Router, labels, ..sidecar("public.edge", "east") };
    let mut config = ProxyConfig::new(&mesh.before, &router, "n1".into(), &mesh.cache);
    let route = config.one(ResourceType::Route, "http.80").expect("always an answer");
    let table = RouteConfiguration::decode(route.body.to_bytes()).expect("a message");
    let hosts = table.virtual_hosts.iter();
    let hosts: Vec<_> =
        hosts.map(|one| (&*one.name, one.domains.len(), one.routes.len())).collect();
    assert_eq!(hosts, [("h000.example:80", 299, 300), ("h007.example:80", 1, 301)]);
}

#[test]
fn parts_of_a_routers_routes_stay_cached_while_its_stream_holds_them() {
    let mut mesh = EditedGateways::new();
    let server =
        json!({ "port": { "number": 80, "protocol": "HTTP", "name": "http" }, "hosts": ["*"] });
    mesh.put("Gateway", "gw", json!({ "selector": { "app": "public" }, "servers": [server] }));
    let rule = |number: u64, timeout: u64| {
        let route = json!([{ "destination": { "host": "a" } }]);
        let http = json!([{ "route": route, "timeout": format!("{timeout}s") }]);
        json!({ "hosts": [format!("x-{number}.example")], "gateways": ["gw"], "http": http })
    };
    for number in 0..100 {
        mesh.put("VirtualService", &format!("rule-{number}"), rule(number, 1));
    }
    let labels = [("app".into(), "public".into())].into_iter().collect();
    let router = Proxy { kind: ProxyType::Router, labels, ..sidecar("public.edge", "east") };
    let (retained, route) = (RetainedRoutes::default(), "http.80");
    let make = |mesh: &EditedGateways| {
        let config = ProxyConfig::new(&mesh.before, &router, "n1".into(), &mesh.cache);
        config.holding(&retained).one(ResourceType::Route, route).expect("always an answer")
    };
    let lists = |mesh: &EditedGateways| -> Vec<_> {
        let all = mesh.cache.route_lists.entries.iter();
        all.map(|entry| Arc::as_ptr(&entry.1)).collect()
    };
    make(&mesh);
    let before = lists(&mesh);
    assert_eq!(before.len(), 100);
    mesh.cache.sweep(&mesh.before);
    mesh.put("VirtualService", "rule-7", rule(7, 2));
    make(&mesh);
    let new = lists(&mesh).iter().filter(|one| !before.contains(one)).count();
    assert_eq!(new, 1, "the routes of one rule are another");
    mesh.cache.sweep(&mesh.before);
    assert_eq!(lists(&mesh).len(), 100, "none of a rule that is no more");
    retained.let_go(&[route.into()]);
    mesh.cache.sweep(&mesh.before);
    assert_eq!(lists(&mesh).len(), 0);
}
