use serde_json::json;

use super::*;
use strait_model::ClusterFacts;
use strait_model::registry::{Contents, ShardKey};
use strait_rules::testing::kind_settings;

fn objects(names: &[&str]) -> Collection {
    let of = |name: &&str| {
        Arc::new(json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "VirtualService",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"hosts": [name], "http": [{"route": [{"destination": {"host": "other"}}]}]},
        }))
    };
    names.iter().map(of).collect()
}

fn contents(names: &[&str]) -> Contents {
    let facts = ClusterFacts { traffic: objects(names), ..ClusterFacts::default() };
    Contents { facts: Some(facts), ..Contents::default() }
}

fn update(cluster: &str, epoch: u64, change: ShardChange) -> RegistryUpdate {
    RegistryUpdate { shard: ShardKey::kubernetes(cluster.into()), epoch: Epoch(epoch), change }
}

fn policy(text: &str) -> Policy {
    Policy::parse(&format!("apiVersion: strait.dev/v1\nkind: Policy\n{text}\n")).expect("sound")
}

fn shared(names: &[&str]) -> TrafficIndex {
    let mut index = TrafficIndex::new(kind_settings());
    index.apply(&objects(names));
    index
}

/// Describes events in words.
fn words(events: &[MeshEvent]) -> Vec<String> {
    let of = |event: &MeshEvent| match event {
        MeshEvent::BeginEdition(begun) => format!("{} begins", begun.cluster),
        MeshEvent::EditionTraffic(cluster, _) => format!("{cluster} changes"),
        MeshEvent::EndEdition(cluster) => format!("{cluster} ends"),
        other => format!("{other:?}"),
    };
    events.iter().map(of).collect()
}

#[test]
fn edition_exists_while_policy_names_its_cluster_and_an_object_applies() {
    let heads = Arc::<ConfigVariants>::default();
    let mut editions = FeedOverrides::new(Arc::clone(&heads));
    let (east, none) = (policy("trafficFrom: [east]"), policy(""));
    let mut index = shared(&["db"]);
    assert!(editions.apply(&update("east", 1, ShardChange::Reset(contents(&["web"])))));
    assert!(editions.apply(&update("west", 1, ShardChange::Reset(contents(&["web"])))));
    assert!(
        words(&editions.refresh(&none, &index)).is_empty(),
        "the policy does not name the cluster"
    );
    assert_eq!(words(&editions.refresh(&east, &index)), ["east begins"]);
    assert!(heads.has_edition(&"east".into()) && !heads.has_edition(&"west".into()));
    assert!(words(&editions.refresh(&east, &index)).is_empty(), "nothing differs");
    editions.apply(&update("east", 1, ShardChange::Update(contents(&["web", "cart"]))));
    assert_eq!(words(&editions.refresh(&east, &index)), ["east changes"]);
    // Shared objects change the edition too, and replace its objects of the same name.
    index.apply(&objects(&["db", "cache"]));
    assert_eq!(words(&editions.refresh(&east, &index)), ["east changes"]);
    index.apply(&objects(&["web", "cart"]));
    assert_eq!(words(&editions.refresh(&east, &index)), ["east ends"]);
    let reports = editions.reports(&east);
    assert_eq!(reports.len(), 1);
    let own = &reports["east"];
    assert_eq!((own.objects.len(), own.traffic.len()), (2, 0), "both are shadowed");
    index.apply(&objects(&["web"]));
    assert_eq!(words(&editions.refresh(&east, &index)), ["east begins"]);
    assert_eq!(words(&editions.refresh(&none, &index)), ["east ends"]);
    assert!(!heads.has_edition(&"east".into()) && editions.reports(&none).is_empty());
    assert_eq!(words(&editions.refresh(&east, &index)), ["east begins"]);
    assert!(editions.apply(&update("east", 1, ShardChange::Removed)));
    assert_eq!(words(&editions.refresh(&east, &index)), ["east ends"]);
}

#[test]
fn update_of_an_earlier_run_or_of_no_cluster_has_no_effect() {
    let mut editions = FeedOverrides::new(Arc::default());
    assert!(editions.apply(&update("east", 2, ShardChange::Reset(contents(&["web"])))));
    assert!(!editions.apply(&update("east", 1, ShardChange::Reset(contents(&["old"])))));
    assert!(!editions.apply(&update("east", 1, ShardChange::Update(contents(&["old"])))));
    assert!(!editions.apply(&update("east", 2, ShardChange::Update(Contents::default()))));
    assert!(!editions.apply(&update("north", 2, ShardChange::Update(contents(&["web"])))));
    let entries = RegistryUpdate {
        shard: ShardKey::service_entries(),
        ..update("", 9, ShardChange::Reset(contents(&["web"])))
    };
    assert!(!editions.apply(&entries));
    assert!(editions.apply(&update("east", 3, ShardChange::Reset(Contents::default()))));
}
