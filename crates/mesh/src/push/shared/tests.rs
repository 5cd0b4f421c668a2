//! Tests of the order of exports, of merging them and of conflicts: one row per rule of KEP-1645.

use super::*;
use crate::push::event_loop::{MeshEvent, MeshState};
use crate::testing::settings;
use strait_model::policy::Policy;
use strait_model::registry::{Epoch, RegistryUpdate, ShardChange};
use strait_model::testing::{endpoint, labels, member, removed, service, shard};
use strait_model::{
    ClusterFacts, ExportedPort, ExportedService, IpFamily, KnownCluster, KnownClusters, Labels,
    RawService, WrittenImport,
};

/// 2026-03-01T00:00:00Z.
const MARCH: i64 = 1_772_323_200;
const NOW: i64 = MARCH + 1_000_000;

fn web() -> WorkloadKey {
    WorkloadKey::new("ns", "web")
}

fn port(name: &str, number: u16, protocol: &str) -> ExportedPort {
    ExportedPort { name: name.into(), protocol: protocol.into(), app_protocol: None, number }
}

pub(super) fn plain() -> RawService {
    RawService {
        ports: vec![port("http", 80, "TCP")],
        ip_families: vec![IpFamily::V4],
        ..RawService::default()
    }
}

pub(super) fn exported(created: i64, service: RawService) -> ExportedService {
    ExportedService {
        created,
        service: Arc::new(service),
        labels: Labels::new(),
        annotations: Labels::new(),
    }
}

/// A mesh of clusters that report their exports.
pub(super) struct Set {
    mesh: MeshState,
    known: KnownClusters,
    epoch: u64,
    /// The last version.
    pub(super) context: Option<Arc<PushContext>>,
}

impl Set {
    pub(super) fn new() -> Self {
        let mut mesh = MeshState::new(settings());
        mesh.apply(MeshEvent::Complete);
        Self { mesh, known: KnownClusters::default(), epoch: 0, context: None }
    }

    /// Adds a cluster whose Secret has this creation time.
    pub(super) fn knows(mut self, cluster: &str, created: i64) -> Self {
        let known = KnownCluster { created: Some(created), ..member(None) };
        self.known.clusters.insert(cluster.into(), known);
        self.mesh.apply(MeshEvent::Clusters(Arc::new(self.known.clone())));
        self
    }

    /// Replaces the report of a cluster.
    pub(super) fn reports(&mut self, cluster: &str, exports: ClusterExports) {
        self.epoch += 1;
        let mut update = shard(cluster, self.epoch).with(service("web.ns"), vec![]).built();
        if let ShardChange::Reset(contents) = &mut update.change {
            contents.facts = Some(ClusterFacts { exports, ..ClusterFacts::default() });
        }
        self.mesh.apply(MeshEvent::Registry(update));
    }

    pub(super) fn exports(mut self, cluster: &str, export: ExportedService) -> Self {
        self.reports(cluster, of(Some(export), None));
        self
    }

    pub(super) fn shared(&mut self) -> SharedServices {
        if let Some((context, _)) = self.mesh.next_version() {
            self.context = Some(context);
        }
        let context = self.context.as_ref().expect("a version");
        shared_services(context, &SharingInputs { now: NOW, ..SharingInputs::default() })
    }

    fn web(mut self) -> SharedService {
        self.shared().services.remove(&web()).unwrap_or_default()
    }
}

fn of(export: Option<ExportedService>, import: Option<WrittenImport>) -> ClusterExports {
    ClusterExports {
        exports: export.map(|export| (web(), Arc::new(export))).into_iter().collect(),
        is_complete: true,
        imports: import.map(|import| (web(), import)).into_iter().collect(),
        ..ClusterExports::default()
    }
}

fn order(shared: &SharedService) -> String {
    shared.exports.iter().map(|one| one.cluster.to_string()).collect::<Vec<_>>().join(" ")
}

fn reason(shared: &SharedService) -> &str {
    shared.conflict.as_ref().map_or("", |conflict| conflict.reason.as_str())
}

#[test]
fn exporters_disagree_exactly_on_differing_fields() {
    type Change = fn(&mut ExportedService);
    fn raw(own: &mut ExportedService) -> &mut RawService {
        Arc::make_mut(&mut own.service)
    }
    let same: Change = |_| {};
    let rows: [(Change, Change, &str); 16] = [
        (same, same, ""),
        (same, |own| raw(own).ports = vec![port("http", 81, "TCP")], "PortConflict"),
        // A clean union is a conflict too, because the sets differ.
        (same, |own| raw(own).ports.push(port("sctp", 80, "SCTP")), "PortConflict"),
        (same, |own| raw(own).ports[0].app_protocol = Some("h2c".into()), "PortConflict"),
        (
            |own| raw(own).ports.push(port("b", 81, "UDP")),
            |own| raw(own).ports.insert(0, port("b", 81, "UDP")),
            "",
        ),
        (same, |own| raw(own).headless = true, "TypeConflict"),
        (same, |own| raw(own).sticky = true, "SessionAffinityConflict"),
        (
            |own| (raw(own).sticky, raw(own).sticky_seconds) = (true, Some(10)),
            |own| (raw(own).sticky, raw(own).sticky_seconds) = (true, Some(20)),
            "SessionAffinityConfigConflict",
        ),
        (same, |own| raw(own).internal_traffic_policy = Some("Cluster".into()), ""),
        (
            same,
            |own| raw(own).internal_traffic_policy = Some("Local".into()),
            "InternalTrafficPolicyConflict",
        ),
        (
            same,
            |own| raw(own).traffic_distribution = Some("PreferClose".into()),
            "TrafficDistributionConflict",
        ),
        (same, |own| own.labels = labels(&[("a", "b")]), "LabelsConflict"),
        (same, |own| own.annotations = labels(&[("a", "b")]), "AnnotationsConflict"),
        (same, |own| raw(own).ip_families = vec![IpFamily::V6], "IPFamilyConflict"),
        // The families in common reach every backend.
        (same, |own| raw(own).ip_families = vec![IpFamily::V6, IpFamily::V4], ""),
        (
            same,
            |own| {
                raw(own).headless = true;
                own.labels = labels(&[("a", "b")]);
            },
            "TypeConflict,LabelsConflict",
        ),
    ];
    for (row, (east, west, expected)) in rows.into_iter().enumerate() {
        let set = [("east", east, MARCH), ("west", west, MARCH + 1)].into_iter().fold(
            Set::new(),
            |set, (cluster, change, created)| {
                let mut export = exported(created, plain());
                change(&mut export);
                set.exports(cluster, export)
            },
        );
        assert_eq!(reason(&set.web()), expected, "row {row}");
    }
}

#[test]
fn conflict_names_field_count_value_cluster_and_time() {
    let headless = RawService { headless: true, ..plain() };
    let set = Set::new()
        .exports("north", exported(MARCH + 2, headless.clone()))
        .exports("west", exported(MARCH + 1, headless))
        .exports("east", exported(MARCH, plain()));
    let conflict = set.web().conflict.expect("a conflict");
    assert_eq!(
        conflict.message,
        "type: 2 of 3 clusters disagree; using ClusterSetIP from the oldest export, in cluster east (2026-03-01T00:00:00Z)"
    );
    assert_eq!(conflict.fields, ["type"]);
}

#[test]
fn conflict_is_found_when_the_first_cluster_does_not_export() {
    let mut set = Set::new()
        .knows("a", 1)
        .knows("b", 2)
        .exports("b", exported(MARCH, plain()))
        .exports("c", exported(MARCH + 1, RawService { headless: true, ..plain() }));
    set.reports("a", of(None, None));
    assert_eq!(reason(&set.web()), "TypeConflict");
}

#[test]
fn ports_merge_by_name_and_then_by_protocol_and_number() {
    let named = |names: &[(&str, u16, &str)]| RawService {
        ports: names.iter().map(|(name, number, protocol)| port(name, *number, protocol)).collect(),
        ..plain()
    };
    for (east, west, expected) in [
        // A taken name drops the port with another number.
        (named(&[("tcp", 42, "TCP")]), named(&[("tcp", 43, "TCP")]), "tcp 42/TCP"),
        // A taken protocol and number keeps the older name.
        (named(&[("tcp", 42, "TCP")]), named(&[("new", 42, "TCP")]), "tcp 42/TCP"),
        // The same number with another protocol is another port.
        (
            named(&[("tcp", 42, "TCP"), ("udp", 42, "UDP")]),
            named(&[("tcp", 42, "TCP"), ("stcp", 142, "SCTP")]),
            "stcp 142/SCTP, tcp 42/TCP, udp 42/UDP",
        ),
        // Unnamed ports merge by the empty name.
        (named(&[("", 42, "TCP")]), named(&[("", 43, "TCP")]), "42/TCP"),
    ] {
        let set = Set::new()
            .exports("east", exported(MARCH, east))
            .exports("west", exported(MARCH + 1, west));
        let merged = set.web().merged.expect("an import");
        let ports: Vec<_> = merged.service.ports.iter().map(ToString::to_string).collect();
        assert_eq!(ports.join(", "), expected);
    }
}

#[test]
fn oldest_export_decides_and_equal_ages_are_ordered_by_cluster() {
    for (west, east, expected) in [
        (MARCH, MARCH + 1, "west east"),
        (MARCH, MARCH, "east west"),
        // Unknown and future times are the youngest.
        (0, MARCH, "east west"),
        (NOW + 1, MARCH, "east west"),
        (MARCH, NOW + 1, "west east"),
    ] {
        let set = Set::new()
            .exports("east", exported(east, plain()))
            .exports("west", exported(west, plain()));
        assert_eq!(order(&set.web()), expected, "west {west}, east {east}");
    }
}

/// The name in the set follows the order of the exports, like the import, and not the ages of the
/// clusters' Secrets.
#[test]
fn previous_exports_stay_until_a_cluster_has_been_read() {
    let mut set = Set::new().exports("a", exported(MARCH, plain()));
    let is_exported = |set: &mut Set| set.shared().services.contains_key(&web());
    assert!(is_exported(&mut set));
    set.reports("a", ClusterExports { is_unread: true, ..ClusterExports::default() });
    assert!(is_exported(&mut set), "the cluster does not serve the kind");
    set.reports("a", ClusterExports::default());
    assert!(!is_exported(&mut set));
}

#[test]
fn name_in_the_set_is_merged_in_the_order_of_the_exports() {
    let name = Hostname::from("web.ns.svc.clusterset.local");
    let update = |cluster: &str, number, exports| {
        let web = service("web.ns").ports(vec![strait_model::testing::port("http", number, 8080)]);
        let of_set = web.clone().with(|web| web.hostname = name.clone());
        let mut update = shard(cluster, 1).with(web, vec![]).with(of_set, vec![]).built();
        if let ShardChange::Reset(contents) = &mut update.change {
            contents.facts = Some(ClusterFacts { exports, ..ClusterFacts::default() });
        }
        MeshEvent::Registry(update)
    };
    let mut set = Set::new().knows("east", 1).knows("north", 2).knows("west", 3);
    let export = |created, import| of(Some(exported(created, plain())), import);
    let merged = |set: &mut Set| {
        let shared = set.shared();
        let context = set.context.as_ref().expect("a version");
        let web = &context.services[&name];
        let conflicts = web.conflicts.iter().map(|one| (one.field, one.winner.to_string()));
        let conflicts: Vec<_> = conflicts.collect();
        let losers: Vec<_> = web.conflicts.iter().flat_map(|one| one.losers.clone()).collect();
        assert!(!losers.contains(&ClusterId::from("north")), "it only imports the service");
        let decides = order(&shared.services[&self::web()]);
        let first = web.primary.ports[0].number;
        let of_mesh = &context.services[&strait_model::testing::host("web.ns")];
        assert_eq!(of_mesh.primary.ports[0].number, 81, "the older Secret decides");
        (decides.split(' ').next().unwrap_or_default().to_owned(), first, conflicts)
    };
    set.mesh.apply(update("east", 81, export(MARCH, None)));
    set.mesh.apply(update("north", 82, of(None, None)));
    set.mesh.apply(update("west", 83, export(MARCH - 1, None)));
    let ports_of = |winner: &str| vec![("ports", winner.to_owned())];
    assert_eq!(merged(&mut set), ("west".to_owned(), 83, ports_of("west")));
    // A changed time alone changes the order.
    let facts = |cluster: &str, exports| {
        let facts = Some(ClusterFacts { exports, ..ClusterFacts::default() });
        let mut update = shard(cluster, 1).update().built();
        if let ShardChange::Update(contents) = &mut update.change {
            contents.facts = facts;
        }
        MeshEvent::Registry(update)
    };
    set.mesh.apply(facts("west", export(MARCH + 1, None)));
    assert_eq!(merged(&mut set), ("east".to_owned(), 81, ports_of("east")));
    // So does an import, whose cluster keeps deciding.
    set.mesh.apply(facts("east", export(MARCH, import("west", MARCH + 5))));
    assert_eq!(merged(&mut set), ("west".to_owned(), 83, ports_of("west")));
}

fn import(decided_by: &str, created: i64) -> Option<WrittenImport> {
    Some(WrittenImport { decided_by: decided_by.into(), created })
}

#[test]
fn deciding_cluster_stays_while_an_import_exists_and_it_exports() {
    let mut set = Set::new().knows("east", 1).knows("west", 2);
    set.reports("east", of(Some(exported(MARCH, plain())), import("east", MARCH + 5)));
    set.reports("west", of(Some(exported(MARCH - 1, plain())), import("east", MARCH + 5)));
    let shared = set.shared();
    assert_eq!(order(&shared.services[&web()]), "east west");
    // Without its export the order by age applies, and the next one decides.
    set.reports("east", of(None, import("east", MARCH + 5)));
    assert_eq!(order(&set.shared().services[&web()]), "west");
    // Back again, it does not displace the cluster that decides now.
    set.reports("east", of(Some(exported(MARCH - 9, plain())), import("west", MARCH + 5)));
    set.reports("west", of(Some(exported(MARCH, plain())), import("west", MARCH + 5)));
    assert_eq!(order(&set.shared().services[&web()]), "west east");
}

#[test]
fn export_is_not_older_than_a_secret_that_is_younger_than_the_import() {
    let mut set = Set::new().knows("east", 1).knows("west", 2).knows("liar", MARCH + 100);
    set.reports("east", of(Some(exported(MARCH, plain())), import("gone", MARCH + 50)));
    set.reports("west", of(Some(exported(MARCH + 1, plain())), None));
    set.reports("liar", of(Some(exported(7, plain())), None));
    assert_eq!(order(&set.shared().services[&web()]), "east west liar");
    // Clusters that were members before the import are ranked by their own times.
    let mut set = Set::new().knows("east", 1).knows("liar", MARCH + 10);
    set.reports("east", of(Some(exported(MARCH, plain())), import("gone", MARCH + 50)));
    set.reports("liar", of(Some(exported(7, plain())), None));
    assert_eq!(order(&set.shared().services[&web()]), "liar east");
}

#[test]
fn import_in_a_younger_cluster_does_not_decide() {
    let mut set = Set::new().knows("east", 1).knows("liar", 2);
    set.reports("east", of(Some(exported(MARCH, plain())), import("east", MARCH)));
    set.reports("liar", of(Some(exported(7, plain())), import("liar", 7)));
    assert_eq!(order(&set.shared().services[&web()]), "east liar");
}

#[test]
fn clusters_without_a_valid_name_export_nothing() {
    let mut set = Set::new().knows("a.b.c", 1).knows("named.a.b", 2).knows("east", 3);
    let known = set.known.clusters.get_mut("named.a.b").expect("it is known");
    known.set_name = Some("east".into());
    set.mesh.apply(MeshEvent::Clusters(Arc::new(set.known.clone())));
    for cluster in ["a.b.c", "named.a.b", "east"] {
        set.reports(cluster, of(Some(exported(MARCH, plain())), None));
    }
    let shared = set.shared().services.remove(&web()).expect("it is exported");
    assert_eq!(order(&shared), "named.a.b");
    assert_eq!(&*shared.merged.expect("an import").decided_by, "east");
    let refused: Vec<_> = shared.refused.keys().map(ClusterId::as_str).collect();
    assert_eq!(refused, ["a.b.c", "east"]);
    assert!(shared.refused[&ClusterId::from("a.b.c")].starts_with("STR0440"));
}

#[test]
fn member_without_data_is_unknown_and_a_removed_member_is_absent() {
    let mut set = Set::new().knows("east", 1).knows("west", 2);
    set.reports("east", of(Some(exported(MARCH, plain())), None));
    let shared = set.shared();
    let west = &shared.members[&ClusterId::from("west")];
    assert!(west.is_unknown && !west.lacks(&web()) && shared.is_partial());
    // A cluster with a Secret that cannot be used is not a removed cluster.
    let unusable = [ClusterId::from("north")].into();
    let inputs = SharingInputs { unusable, ..SharingInputs::default() };
    let context = set.context.clone().expect("a version");
    assert!(shared_services(&context, &inputs).members[&ClusterId::from("north")].is_unknown);
    set.reports("west", of(None, None));
    assert!(set.shared().members[&ClusterId::from("west")].lacks(&web()));

    set.known.clusters.remove("west");
    set.mesh.apply(MeshEvent::Clusters(Arc::new(set.known.clone())));
    set.mesh.apply(MeshEvent::Registry(removed("west", 99)));
    assert!(!set.shared().members.contains_key(&ClusterId::from("west")));
}

#[test]
fn changed_export_alone_creates_a_version() {
    let mut set = Set::new().exports("east", exported(MARCH, plain()));
    set.shared();
    let mut update = shard("east", 1).update().built();
    if let ShardChange::Update(contents) = &mut update.change {
        let exports = of(Some(exported(MARCH + 1, plain())), None);
        contents.facts = Some(ClusterFacts { exports, ..ClusterFacts::default() });
    }
    set.mesh.apply(MeshEvent::Registry(RegistryUpdate { epoch: Epoch(1), ..update }));
    let (context, changes) = set.mesh.next_version().expect("a new version");
    assert!(changes.is_empty(), "no proxy is affected");
    let shared = shared_services(&context, &SharingInputs { now: NOW, ..SharingInputs::default() });
    assert_eq!(shared.services[&web()].exports[0].age, MARCH + 1);
}

#[test]
fn services_are_merged_again_only_if_an_export_a_member_or_the_policy_changed() {
    let mut set = Set::new()
        .knows("east", 1)
        .exports("east", exported(MARCH, plain()))
        .exports("west", exported(MARCH + 1, plain()));
    let mut cache = SharedServicesCache::default();
    let usual = SharingInputs { now: NOW, ..SharingInputs::default() };
    let mut changes = |set: &mut Set, inputs: &SharingInputs| {
        set.shared();
        let context = set.context.clone().expect("a version");
        let changed = cache.changed(&context, inputs);
        let expected = shared_services(&context, inputs);
        assert!(changed.as_ref().is_none_or(|changed| *changed == expected));
        (context.version, changed.is_some())
    };
    let (first, is_new) = changes(&mut set, &usual);
    assert!(is_new);
    // Each of these versions changes an endpoint, and the last one a pod's readiness too.
    let exports = set.context.as_ref().expect("a version").facts.clone();
    for number in 0..50_u8 {
        set.epoch += 1;
        let endpoints = vec![endpoint(&format!("10.0.0.{number}"))];
        let mut update = shard("east", set.epoch).with(service("web.ns"), endpoints).built();
        if let ShardChange::Reset(contents) = &mut update.change {
            let mut facts = exports[&ClusterId::from("east")].clone();
            facts.unready.insert(WorkloadKey::new("ns", format!("pod-{number}")));
            contents.facts = Some(facts);
        }
        set.mesh.apply(MeshEvent::Registry(update));
        assert!(!changes(&mut set, &usual).1, "endpoint {number}");
    }
    let (last, is_new) = changes(&mut set, &SharingInputs { now: NOW + 9, ..usual.clone() });
    assert!(last >= first + 50 && !is_new, "{first} {last}");

    assert!(changes(&mut set, &SharingInputs { removals_certain: true, ..usual.clone() }).1);
    assert!(changes(&mut set, &usual).1);
    set.reports("west", of(Some(exported(NOW + 9, plain())), None));
    assert!(changes(&mut set, &usual).1, "another export");
    assert!(
        changes(&mut set, &SharingInputs { now: NOW + 1, ..usual.clone() }).1,
        "its creation time may have passed"
    );
    set.reports("west", of(None, None));
    assert!(changes(&mut set, &usual).1, "no export");
    set = set.knows("west", 2);
    assert!(changes(&mut set, &usual).1, "another member");
    let policy = Policy::parse("apiVersion: strait.dev/v1\nkind: Policy\nclusters:\n  west: {exports: {namespaces: [shop]}}\n").expect("a policy");
    set.mesh.apply(MeshEvent::Policy(Arc::new(policy)));
    assert!(changes(&mut set, &usual).1, "another policy");
    let auto = SharingInputs { auto_export: true, ..usual.clone() };
    assert!(changes(&mut set, &auto).1, "another setting");
    assert!(!changes(&mut set, &auto).1);
    set.epoch += 1;
    let update = shard("east", set.epoch).with(service("other.ns"), vec![]).built();
    set.mesh.apply(MeshEvent::Registry(update));
    assert!(changes(&mut set, &auto).1, "another service that is exported automatically");
}
