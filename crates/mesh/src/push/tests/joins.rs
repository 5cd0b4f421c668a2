//! Joins of entries and clusters while both change.

use serde_json::{Value, json};

use super::*;
use crate::push::Whereabouts;
use crate::push::context::FixedSettings;
use crate::push::subscription_index::SubscriptionIndex;
use strait_model::policy::Policy;
use strait_model::registry::{Contents, Epoch, ShardKey};
use strait_model::testing::{sidecar, workload};
use strait_model::{ClusterFacts, ClusterId, EndpointRef, NetworkId, WorkloadKey};
use strait_rules::service_entry::EntryIndex;

/// Returns the event for these entries, each given as kind, name in namespace `ns`, and spec.
pub(super) fn entries(objects: &[(&str, &str, Value)]) -> MeshEvent {
    labelled_entries(&json!({}), objects)
}

/// Returns the event for these entries with these labels, like [`entries`].
pub(super) fn labelled_entries(labels: &Value, objects: &[(&str, &str, Value)]) -> MeshEvent {
    let objects: Vec<Arc<Value>> = objects
        .iter()
        .map(|(kind, name, spec)| {
            let metadata = json!({"name": name, "namespace": "ns", "labels": labels});
            let version = "networking.istio.io/v1";
            Arc::new(
                json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}),
            )
        })
        .collect();
    let mut index = EntryIndex::new("cluster.local");
    let objects = objects.into_iter().collect();
    let change = index.apply(&objects).expect("the first update");
    let update = RegistryUpdate { shard: ShardKey::service_entries(), epoch: Epoch(0), change };
    MeshEvent::Entries(update, Arc::clone(index.selections()))
}

fn database() -> Value {
    json!({"hosts": ["db.internal"], "ports": [{"name": "tcp", "number": 5432}],
        "location": "MESH_INTERNAL", "resolution": "STATIC",
        "workloadSelector": {"labels": {"app": "db"}}})
}

/// Formats every endpoint of a host as `cluster address health`; empty if the host does not exist.
fn endpoints(context: &PushContext, host: &str) -> Vec<String> {
    let service = context.services.get(&Hostname::from(host));
    let all = service.iter().flat_map(|service| service.endpoints());
    all.map(|(shard, endpoint, _)| {
        format!("{} {} {}", shard.cluster, endpoint.address, endpoint.health.as_str())
    })
    .collect()
}

fn next(mesh: &mut MeshState) -> Arc<PushContext> {
    mesh.next_version().expect("something changed").0
}

#[test]
fn selected_pods_follow_their_cluster_and_readiness() {
    let pod = |name, address, app| workload(name, address, &[("app", app)]);
    let mut mesh = mesh(vec![
        shard("east", 1).pod(pod("db-0.ns", "10.0.0.1", "db")).built(),
        shard("west", 2)
            .pod(pod("db-0.ns", "10.0.0.1", "db"))
            .pod(pod("db-1.other", "10.0.0.2", "db"))
            .pod(pod("web-0.ns", "10.0.0.3", "web"))
            .built(),
    ]);
    mesh.apply(entries(&[("ServiceEntry", "db", database())]));
    let both = ["east 10.0.0.1 healthy", "west 10.0.0.1 healthy"];
    assert_eq!(endpoints(&next(&mut mesh), "db.internal"), both);

    let unready = [WorkloadKey::new("ns", "db-0")].into_iter().collect();
    let facts = ClusterFacts { unready, ..ClusterFacts::default() };
    let contents = Contents { facts: Some(facts), ..Contents::default() };
    let west_shard = ShardKey::kubernetes("west".into());
    let change = ShardChange::Update(contents);
    let update = RegistryUpdate { shard: west_shard, epoch: Epoch(2), change };
    mesh.apply(MeshEvent::Registry(update));
    let one_unready = ["east 10.0.0.1 healthy", "west 10.0.0.1 unhealthy"];
    assert_eq!(endpoints(&next(&mut mesh), "db.internal"), one_unready);

    mesh.apply(MeshEvent::Registry(removed("east", 3)));
    assert_eq!(endpoints(&next(&mut mesh), "db.internal"), ["west 10.0.0.1 unhealthy"]);

    mesh.apply(entries(&[]));
    assert!(next(&mut mesh).services.is_empty(), "it is removed completely");
}

#[test]
fn unready_pods_cause_no_version_if_no_entry_selects_pods() {
    let mut mesh = mesh(vec![shard("east", 1).with(service("web.ns"), vec![]).built()]);
    next(&mut mesh);
    let unready = [WorkloadKey::new("ns", "web-0")].into_iter().collect();
    let facts = ClusterFacts { unready, ..ClusterFacts::default() };
    let change = ShardChange::Update(Contents { facts: Some(facts), ..Contents::default() });
    let shard = ShardKey::kubernetes("east".into());
    mesh.apply(MeshEvent::Registry(RegistryUpdate { shard, epoch: Epoch(1), change }));
    assert!(!mesh.is_dirty() && mesh.next_version().is_none());
}

#[test]
fn service_has_its_workload_entries_while_both_exist() {
    let mut mesh = mesh(vec![shard("east", 1).built()]);
    let vm = json!({"address": "10.7.0.1", "labels": {"app": "web"}});
    mesh.apply(entries(&[("WorkloadEntry", "web-a", vm)]));
    assert!(next(&mut mesh).services.is_empty());
    let web = shard("east", 1).update().with(service("web.ns"), vec![endpoint("10.0.0.1")]);
    mesh.apply(MeshEvent::Registry(web.built()));
    let context = next(&mut mesh);
    let both = ["east 10.0.0.1 healthy", " 10.7.0.1 healthy"];
    assert_eq!(endpoints(&context, "web.ns.svc.cluster.local"), both);
    let web = shard("east", 1).update().without("web.ns");
    mesh.apply(MeshEvent::Registry(web.built()));
    assert!(next(&mut mesh).services.is_empty());
}

#[test]
fn entry_without_a_network_is_in_that_of_the_config_cluster_or_everywhere() {
    let config_cluster = Some("hub".into());
    let mut mesh = MeshState::new(Arc::new(FixedSettings {
        config_cluster,
        ..FixedSettings::clone(&settings())
    }));
    mesh.apply(MeshEvent::Complete);
    let mut database = database();
    let endpoints = json!([{"address": "10.7.0.1"}, {"address": "10.7.0.2", "network": "n2"}]);
    database["endpoints"] = endpoints;
    database.as_object_mut().expect("an object").remove("workloadSelector");
    let vm = json!({"address": "10.7.0.3", "labels": {"app": "web"}});
    let all = [("ServiceEntry", "db", database), ("WorkloadEntry", "web-a", vm)];
    mesh.apply(entries(&all));
    let web = shard("hub", 1).with(service("web.ns"), vec![]).built();
    mesh.apply(MeshEvent::Registry(web));
    let placed = |context: &PushContext| {
        let all = context.services.values().flat_map(|service| service.endpoints());
        let network_of = |endpoint: EndpointRef<'_>, network: &NetworkId| {
            let label = endpoint.network_label;
            let again = context.place(&ClusterId::default(), label, endpoint.address).0;
            assert_eq!(again, *network, "explain and merging agree on the network");
            format!("{} {network}", endpoint.address)
        };
        all.map(|(_, endpoint, network)| network_of(endpoint, network)).collect::<Vec<_>>()
    };
    let direct = |context: &PushContext, network: &str, host: &str| {
        let view = ViewKey::of(&sidecar("api-0.ns", "east"), network.into(), Role::Client);
        let service = &context.services[host];
        let number = service.primary.ports[0].number;
        let all = assignment(context, &view, service, number).localities;
        all.iter().flat_map(|one| &one.members).count()
    };
    let context = next(&mut mesh);
    assert_eq!(placed(&context), ["10.7.0.1 ", "10.7.0.2 n2", "10.7.0.3 "]);
    let web = "web.ns.svc.cluster.local";
    assert_eq!((direct(&context, "n1", "db.internal"), direct(&context, "n1", web)), (1, 1));
    assert_eq!((direct(&context, "n2", "db.internal"), direct(&context, "n2", web)), (2, 1));

    let network_label = Some(Some("n1".into()));
    let change = ShardChange::Update(Contents { network_label, ..Contents::default() });
    let hub = ShardKey::kubernetes("hub".into());
    mesh.apply(MeshEvent::Registry(RegistryUpdate { shard: hub, epoch: Epoch(1), change }));
    let context = next(&mut mesh);
    assert_eq!(placed(&context), ["10.7.0.1 n1", "10.7.0.2 n2", "10.7.0.3 n1"]);
    assert_eq!((direct(&context, "n1", "db.internal"), direct(&context, "n1", web)), (1, 1));
    assert_eq!((direct(&context, "n2", "db.internal"), direct(&context, "n2", web)), (1, 0));
}

#[test]
fn private_definition_does_not_affect_other_namespaces() {
    let mut mesh = mesh(vec![shard("east", 1).built()]);
    let entry_in = |namespace: &str, address: &str, export_to: &str| {
        let spec = json!({"hosts": ["db.example"], "ports": [{"name": "tcp", "number": 5432}],
            "resolution": "STATIC", "exportTo": [export_to], "endpoints": [{"address": address}]});
        Arc::new(json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": {"name": "db", "namespace": namespace}, "spec": spec}))
    };
    let mut index = EntryIndex::new("cluster.local");
    let mut apply_entries = |mesh: &mut MeshState, objects: &[Arc<Value>]| {
        let change = index.apply(&objects.iter().cloned().collect()).expect("something else");
        let update = RegistryUpdate { shard: ShardKey::service_entries(), epoch: Epoch(0), change };
        mesh.apply(MeshEvent::Entries(update, Arc::clone(index.selections())));
        mesh.next_version().expect("something else")
    };
    let visible_owner = |context: &PushContext, namespace: &str| {
        let service = context.service("db.example", &namespace.into());
        service.map(|service| service.primary.namespace.to_string())
    };
    let (all, _) = apply_entries(
        &mut mesh,
        &[entry_in("a", "192.0.2.1", "*"), entry_in("b", "192.0.2.2", ".")],
    );
    assert_eq!(
        (visible_owner(&all, "b"), visible_owner(&all, "c")),
        (Some("b".into()), Some("a".into()))
    );
    assert_eq!(all.all_services().count(), 2);
    let (one, changes) = apply_entries(&mut mesh, &[entry_in("a", "192.0.2.1", "*")]);
    assert_eq!(visible_owner(&one, "b"), Some("a".into()));
    assert!(
        changes.endpoints().any(|host| *host == Hostname::from("db.example"))
            && one.private.is_empty()
    );
}

#[test]
fn proxy_location_is_that_of_its_pod_or_node() {
    let mut with_node = workload("web-0.ns", "10.0.0.1", &[]);
    with_node.1.node = Some(Arc::new("node-a".into()));
    let localities = [("node-a".into(), Arc::new(Locality::parse("r1/a")))].into();
    let facts = ClusterFacts { localities: Arc::new(localities), ..ClusterFacts::default() };
    let mut update = shard("east", 1).pod(with_node).built();
    if let ShardChange::Reset(contents) = &mut update.change {
        contents.facts = Some(facts);
    }
    let context = context(vec![update]);
    let at = |proxy| {
        let Whereabouts { node, locality } = context.whereabouts(&proxy);
        (node, locality.map(|locality| locality.to_string()))
    };
    let expected = (Some("node-a".into()), Some("r1/a".into()));
    assert_eq!(at(sidecar("web-0.ns", "east")), expected);
    assert_eq!(at(sidecar("web-0.ns", "west")), (None, None));
    let saying = |name, node: &str| {
        let node_name = Some(node.into());
        strait_model::Proxy { node_name, ..sidecar(name, "east") }
    };
    assert_eq!(at(saying("new.ns", "node-a")), expected);
    assert_eq!(at(saying("web-0.ns", "node-b")), expected);
}

/// It is unknown then which of the two machines a proxy runs on, and policies that select either
/// may apply to it.
#[test]
fn machine_is_notified_of_another_machine_at_its_address() {
    let mut mesh = mesh(vec![shard("east", 1).built()]);
    let vm = |app: &str| json!({"address": "10.7.0.1", "labels": {"app": app}});
    mesh.apply(entries(&[("WorkloadEntry", "web-a", vm("web"))]));
    let before = next(&mut mesh);
    let proxy = Arc::new(sidecar("web-a.ns", "east"));
    assert!(before.known_labels(&proxy).is_some());
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let subscription = subscription_index.subscribe(None);
    let (network, whereabouts) = (NetworkId::default(), before.whereabouts(&proxy));
    let view = ViewKey::of(&proxy, network.clone(), Role::Client);
    let location = ProxyLocation { proxy: Arc::clone(&proxy), network, whereabouts };
    subscription.set_location(location, view, before.known_labels(&proxy));
    let two = [("WorkloadEntry", "web-a", vm("web")), ("WorkloadEntry", "db-a", vm("db"))];
    mesh.apply(entries(&two));
    let (now, mut changes) = mesh.next_version().expect("something changed");
    assert!(now.known_labels(&proxy).is_none());
    changes.compute_impact([&before, &now], &subscription_index, &SeesNothing);
    assert_eq!(subscription_index.mark(&changes), 1, "{:?}", changes.deps);
    assert!(subscription.take().everything);
}

#[test]
fn denied_entry_has_no_effect_for_names_of_other_namespaces() {
    let hosts = ["web.shop.svc.cluster.local", "web.ns.svc.cluster.local", "web.example"];
    let spec = |exported: &str| {
        json!({"hosts": hosts, "exportTo": [exported], "resolution": "STATIC",
            "ports": [{"name": "http", "number": 80}]})
    };
    let policy = |mode: &str| {
        let text =
            format!("apiVersion: strait.dev/v1\nkind: Policy\ntraffic: {{foreignHosts: {mode}}}\n");
        MeshEvent::Policy(Arc::new(Policy::parse(&text).expect("a policy")))
    };
    let served = |context: &PushContext| {
        let host = |host: &Hostname| host.as_str().to_owned();
        let private = context.private.keys().map(host);
        context.services.keys().map(host).chain(private).collect::<BTreeSet<_>>()
    };
    let all: BTreeSet<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut mesh = mesh(vec![]);
    mesh.apply(entries(&[("ServiceEntry", "a", spec("*"))]));
    assert_eq!(served(&next(&mut mesh)), all);
    mesh.apply(policy("deny"));
    let rest: BTreeSet<_> = hosts[1..].iter().map(|host| (*host).to_owned()).collect();
    assert_eq!(served(&next(&mut mesh)), rest);
    // An entry may have any name for clients of its own namespace.
    mesh.apply(entries(&[("ServiceEntry", "a", spec("."))]));
    assert_eq!(served(&next(&mut mesh)), all);
    mesh.apply(entries(&[("ServiceEntry", "a", spec("*"))]));
    mesh.apply(policy("note"));
    assert_eq!(served(&next(&mut mesh)), all);
}
