//! What changes of Gateways, and of what is bound to them, mean for routers, and what they don't.

use serde_json::{Value, json};

use super::*;

/// A mesh with two routers, one of which a Gateway may select.
struct EditedGateways {
    mesh: MeshState,
    rules: Rules,
    kept: Cache,
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
        Self { mesh, rules: rules(), kept: Cache::default(), before }
    }

    /// Puts an object there; which of the routers hear of it.
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
        self.told()
    }

    fn told(&mut self) -> [bool; 2] {
        let (now, changes) = self.mesh.next_version().expect("a version");
        let of = |app: &str| {
            let labels = [("app".into(), app.into())].into_iter().collect();
            let proxy = Proxy {
                kind: ProxyType::Router,
                labels,
                ..sidecar(&format!("{app}.edge"), "east")
            };
            let whereabouts = now.whereabouts(&proxy);
            Arc::new(Stand { proxy: Arc::new(proxy), network: "n1".into(), whereabouts })
        };
        let stands = ["public", "other"].map(of);
        let hosts = around([&self.before, &now], &changes.services());
        let seen = self.kept.seen(&self.before, &now, &hosts, &stands);
        self.before = now;
        [seen[0].everything, seen[1].everything]
    }
}

#[test]
fn a_router_hears_of_what_its_gateways_and_their_rules_come_to_and_of_nothing_else() {
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
