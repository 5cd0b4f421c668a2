use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use strait_kube_client::{ApiCredential, Loopback};

const GRACE: Duration = Duration::from_secs(30);

fn member(server: &str) -> MemberSpec {
    MemberSpec {
        access: Access {
            server: format!("https://{server}.example.org").parse().expect("a URL"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::None,
            loopback: Loopback::Refused,
            proxy: None,
        },
        network: None,
        mode: Mode::Normal,
        uid: None,
        trust_domain: None,
        reach: Default::default(),
        set_name: None,
    }
}

fn refused() -> Result<MemberSpec, KubeconfigRefusal> {
    Err(KubeconfigRefusal::new(&codes::RUNS_PROGRAM, "users[0].user.exec", "runs a program"))
}

/// Creates a Secret with creation time `created` in seconds. `id=server` is a usable cluster, `id!`
/// a refused one.
fn secret(name: &str, created: i64, clusters: &[&str]) -> MemberSecret {
    let parse_entry = |text: &&str| match text.split_once('=') {
        Some((id, server)) => (ClusterId::from(id), Ok(member(server))),
        None => (ClusterId::from(text.trim_end_matches('!')), refused()),
    };
    MemberSecret {
        kind: "Secret",
        name: ObjectName::new("strait-system", name),
        created: (created > 0)
            .then(|| jiff::Timestamp::from_second(created).expect("a time in range")),
        source: None,
        source_order: 0,
        clusters: (clusters.iter().map(parse_entry))
            .map(|(id, member)| (id, member.map(Box::new)))
            .collect(),
        invalid_keys: BTreeMap::new(),
        settings: None,
    }
}

/// A state in which every plan is carried out.
struct World {
    running: PlannedMembers,
    start: Instant,
    grace: Duration,
    /// Clusters without data.
    empty: BTreeSet<&'static str>,
    plan: Plan,
}

impl World {
    fn new() -> Self {
        Self {
            running: PlannedMembers::default(),
            start: Instant::now(),
            grace: GRACE,
            empty: BTreeSet::new(),
            plan: Plan::default(),
        }
    }

    /// Plans with these Secrets at `second`. Returns the actions in short form.
    fn at(&mut self, second: u64, secrets: &[MemberSecret]) -> Vec<String> {
        let now = self.start + Duration::from_secs(second);
        let config = ClusterId::from("config");
        let has_data = |id: &ClusterId| !self.empty.iter().any(|one| *one == id.as_str());
        let (running, grace) = (&self.running, self.grace);
        self.plan = plan(running, secrets, Some(&config), grace, &has_data, now);
        for action in &self.plan.actions {
            self.running.apply(action);
        }
        let again = plan(&self.running, secrets, Some(&config), grace, &has_data, now);
        assert_eq!(again.actions, [], "planning again finds nothing to do");
        assert_eq!(
            (&again.idle, &again.unused_secrets),
            (&self.plan.idle, &self.plan.unused_secrets)
        );
        self.plan.actions.iter().map(short).collect()
    }

    fn idle(&self) -> Vec<String> {
        let short =
            |idle: &Idle| format!("{} {} {}", idle.secret.name, idle.key, idle.refusal.code);
        self.plan.idle.iter().map(short).collect()
    }
}

fn short(action: &Action) -> String {
    match action {
        Action::Add { id, secret, .. } => format!("add {id} from {}", secret.name),
        Action::Adopt { id, secret, .. } => format!("adopt {id} from {}", secret.name),
        Action::Replace { id, access } => {
            let host = access.server.host().unwrap_or_default();
            format!("replace {id} by {}", host.trim_end_matches(".example.org"))
        }
        Action::SetNamespaces { id, .. } => format!("namespaces of {id}"),
        Action::SetNetwork { id, .. } => format!("network of {id}"),
        Action::SetMode { id, .. } => format!("mode of {id}"),
        Action::SetUid { id, .. } => format!("identity of {id}"),
        Action::SetTrustDomain { id, .. } => format!("trust domain of {id}"),
        Action::SetSetName { id, .. } => format!("set name of {id}"),
        Action::StartGrace { id, .. } => format!("grace of {id}"),
        Action::Withdraw { id } => format!("withdraw {id}"),
    }
}

#[test]
fn cluster_age_is_that_of_the_first_secret_that_held_its_data() {
    let mut world = World::new();
    let age = |world: &World| world.running.clusters[&ClusterId::from("east")].created;
    world.at(0, &[secret("a", 5, &["east=1"])]);
    assert_eq!(age(&world), Some(5));
    // A recreated Secret keeps the data, even after a pause or under another name.
    world.at(1, &[secret("a", 9, &["east=1"])]);
    assert_eq!(age(&world), Some(5));
    world.at(2, &[]);
    assert_eq!(age(&world), Some(5), "within the grace");
    world.at(3, &[secret("b", 10, &["east=2"])]);
    assert_eq!(age(&world), Some(5));
    world.at(4, &[]);
    world.at(40, &[]);
    world.at(41, &[secret("b", 50, &["east=2"])]);
    assert_eq!(age(&world), Some(50), "its data was removed");
    let mut unknown = World::new();
    unknown.at(0, &[secret("a", 0, &["east=1"])]);
    assert_eq!(age(&unknown), None, "a file's Secret has no age");
}

#[test]
fn cluster_is_added_changed_and_removed() {
    let mut world = World::new();
    assert_eq!(
        world.at(0, &[secret("a", 1, &["east=1", "west=2"])]),
        ["add east from a", "add west from a"]
    );
    assert_eq!(world.at(1, &[secret("a", 1, &["east=1", "west=3"])]), ["replace west by 3"]);
    assert_eq!(world.at(2, &[secret("a", 1, &["east=1"])]), ["grace of west"]);
    assert_eq!(world.at(31, &[secret("a", 1, &["east=1"])]), Vec::<String>::new());
    assert!(world.plan.next_change.is_some());
    assert_eq!(world.at(32, &[secret("a", 1, &["east=1"])]), ["withdraw west"]);
    assert_eq!(world.plan.next_change, None);
    assert_eq!(world.at(33, &[]), ["grace of east"]);
}

#[test]
fn deleted_secret_drops_its_credential_at_once() {
    let mut world = World::new();
    world.at(0, &[secret("a", 1, &["east=1"])]);
    world.at(1, &[]);
    assert!(matches!(world.running.clusters["east"].hold, Hold::Leaving { .. }));
}

#[test]
fn secret_recreated_within_the_grace_takes_over() {
    let mut world = World::new();
    world.at(0, &[secret("a", 1, &["east=1"])]);
    world.at(1, &[]);
    assert_eq!(world.at(2, &[secret("a", 9, &["east=1"])]), ["adopt east from a"]);
    assert_eq!(world.at(100, &[secret("a", 9, &["east=1"])]), Vec::<String>::new());
}

#[test]
fn without_grace_a_cluster_is_removed_at_once() {
    let mut world = World::new();
    world.grace = Duration::ZERO;
    world.at(0, &[secret("a", 1, &["east=1"])]);
    assert_eq!(world.at(1, &[]), ["withdraw east"]);
}

#[test]
fn older_secret_holds_an_id_and_the_other_takes_over_after_its_deletion() {
    let old = secret("z", 1, &["east=1"]);
    let new = MemberSecret { kind: "ClusterProfile", ..secret("a", 2, &["east=2"]) };
    let mut world = World::new();
    assert_eq!(world.at(0, &[new.clone(), old]), ["add east from z"]);
    assert_eq!(world.idle(), ["a east STR0207"]);
    let fact = &world.plan.idle[0].refusal.fact;
    assert!(fact.contains("Secret strait-system/z holds the ID (older, since 1970-"), "{fact}");
    assert!(fact.ends_with("; this ClusterProfile takes over when that one is deleted"), "{fact}");
    assert_eq!(world.at(1, &[new]), ["adopt east from a"]);
    assert_eq!(world.idle(), Vec::<String>::new());
}

#[test]
fn equal_and_unknown_ages_are_decided_by_name() {
    let same = [secret("b", 5, &["east=1"]), secret("a", 5, &["east=2"])];
    let mut world = World::new();
    assert_eq!(world.at(0, &same), ["add east from a"]);
    assert!(world.plan.idle[0].refusal.fact.contains("holds the ID (first by name)"));
    let unknown = [secret("b", 5, &["east=1"]), secret("a", 0, &["east=2"])];
    assert_eq!(World::new().at(0, &unknown), ["add east from b"]);
}

#[test]
fn clusters_are_ordered_by_the_age_of_the_secrets_that_hold_them() {
    let mut world = World::new();
    let first = [secret("z", 3, &["east=1"]), secret("b", 5, &["west=2"])];
    world.at(0, &first);
    let ages = |world: &World| {
        let mut ages: Vec<_> = world.plan.ages.iter().map(|(id, age)| (*age, id)).collect();
        ages.sort();
        ages.into_iter().map(|(_, id)| id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ages(&world), ["east", "west"]);
    // The age of the present Secret counts, not that of an earlier one.
    world.at(1, &[secret("z", 9, &["east=1"]), secret("b", 5, &["west=2"])]);
    assert_eq!(ages(&world), ["west", "east"]);
    world.at(2, &[secret("z", 9, &["east=1"])]);
    assert_eq!(ages(&world), ["east"], "no Secret holds the other");
}

#[test]
fn the_config_clusters_id_cannot_be_taken() {
    let mut world = World::new();
    assert_eq!(world.at(0, &[secret("a", 1, &["config=1", "east=1"])]), ["add east from a"]);
    assert_eq!(world.idle(), ["a config STR0216"]);
}

#[test]
fn secret_that_becomes_invalid_keeps_its_cluster() {
    let mut world = World::new();
    world.at(0, &[secret("a", 1, &["east=1"])]);
    let young = secret("b", 2, &["east=2"]);
    let invalid = secret("a", 1, &["east!"]);
    assert_eq!(world.at(1, &[invalid.clone(), young.clone()]), Vec::<String>::new());
    assert_eq!(world.plan.unused_secrets["east"].code, &codes::RUNS_PROGRAM);
    assert_eq!(world.idle(), ["b east STR0207"]);
    let fixed = secret("a", 1, &["east=3"]);
    assert_eq!(world.at(2, &[fixed, young.clone()]), ["replace east by 3"]);
    assert!(world.plan.unused_secrets.is_empty());
    assert_eq!(world.at(3, &[invalid]), Vec::<String>::new());
    assert_eq!(world.at(4, &[young]), ["adopt east from b"]);
}

#[test]
fn secret_that_becomes_invalid_before_sync_loses_its_id() {
    let mut world = World::new();
    world.empty = ["east", "west"].into();
    let younger = || secret("b", 2, &["east=2"]);
    world.at(0, &[secret("a", 1, &["east=1", "west=1"]), younger()]);
    let turned = || secret("a", 1, &["east!", "west!"]);
    assert_eq!(world.at(1, &[turned(), younger()]), ["adopt east from b", "withdraw west"]);
    assert_eq!(world.idle(), ["a east STR0203", "a west STR0203"]);
    assert!(world.plan.unused_secrets.is_empty());
    assert_eq!(world.at(2, &[turned()]), ["withdraw east"]);
}

#[test]
fn refused_secret_does_not_block_others() {
    let mut world = World::new();
    let secrets = [secret("a", 1, &["east!"]), secret("b", 2, &["east=2"])];
    assert_eq!(world.at(0, &secrets), ["add east from b"]);
    assert_eq!(world.idle(), ["a east STR0203"]);
    let fixed = [secret("a", 1, &["east=1"]), secret("b", 2, &["east=2"])];
    assert_eq!(world.at(1, &fixed), ["adopt east from a"]);
    assert_eq!(world.idle(), ["b east STR0207"]);
}

#[test]
fn invalid_secret_does_not_stop_the_grace() {
    let mut world = World::new();
    world.at(0, &[secret("a", 1, &["east=1"])]);
    world.at(1, &[]);
    let invalid = secret("a", 9, &["east!"]);
    assert_eq!(world.at(2, std::slice::from_ref(&invalid)), Vec::<String>::new());
    assert_eq!(world.at(31, &[invalid]), ["withdraw east"]);
}

#[test]
fn annotations_change_without_a_new_connection() {
    let mut world = World::new();
    let mut secret = secret("a", 1, &["east=1"]);
    world.at(0, std::slice::from_ref(&secret));
    let mut changed = member("1");
    changed.network = Some(NetworkId::from("eu"));
    changed.mode = Mode::Drain;
    secret.clusters.insert(ClusterId::from("east"), Ok(Box::new(changed)));
    assert_eq!(world.at(1, &[secret]), ["network of east", "mode of east"]);
    let cluster = &world.running.clusters["east"];
    assert_eq!((cluster.network.clone(), cluster.mode), (Some("eu".into()), Mode::Drain));
}

/// Tests random histories. After each step: planning again does nothing (checked by `World::at`);
/// every key of every Secret either holds its ID or is shown with a reason; an ID with a usable key
/// is always held, by the Secret that a fresh start would choose unless a holder became invalid.
#[test]
fn random_changes_never_lose_a_cluster_or_hold_it_twice() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new();
        let mut secrets: BTreeMap<usize, MemberSecret> = BTreeMap::new();
        let mut second = 0;
        for step in 0..60 {
            second += random.random_range(0..20);
            let which = random.random_range(0..4);
            match random.random_range(0..4) {
                0 => {
                    secrets.remove(&which);
                }
                1 => {
                    let id = format!("c{}", random.random_range(0..3));
                    if let Some(secret) = secrets.get_mut(&which) {
                        let value = match random.random_range(0..3) {
                            0 => refused(),
                            server => Ok(member(&server.to_string())),
                        };
                        secret.clusters.insert(ClusterId::from(id), value.map(Box::new));
                    }
                }
                2 => {
                    let id = ClusterId::from(format!("c{}", random.random_range(0..3)));
                    if let Some(secret) = secrets.get_mut(&which) {
                        secret.clusters.remove(&id);
                    }
                }
                _ => {
                    let created = random.random_range(0..5);
                    secrets.insert(which, secret(&format!("s{which}"), created, &["c0=1", "c1!"]));
                }
            }
            let now: Vec<_> = secrets.values().cloned().collect();
            world.at(second, &now);
            let case = format!("seed {seed}, step {step}");
            check(&world, &now, second, &case);
        }
    }
}

fn check(world: &World, secrets: &[MemberSecret], second: u64, case: &str) {
    let shown: BTreeSet<_> =
        world.plan.idle.iter().map(|idle| (&idle.secret, idle.key.as_str())).collect();
    assert_eq!(shown.len(), world.plan.idle.len(), "{case}: no entry is shown twice");
    let mut fresh = World::new();
    fresh.at(0, secrets);
    for secret in secrets {
        for (id, member) in &secret.clusters {
            let holds = world.running.clusters.get(id).is_some_and(|cluster| {
                cluster.secret == secret.name && matches!(cluster.hold, Hold::BySecret(_))
            });
            let is_shown = shown.contains(&(&secret.name, id.as_str()));
            assert!(holds != is_shown, "{case}: {id} of {} is either held or shown", secret.name);
            if member.is_ok() {
                let cluster = world.running.clusters.get(id).expect(case);
                assert!(matches!(cluster.hold, Hold::BySecret(_)), "{case}: {id} is held");
            }
            if holds && member.is_err() {
                assert!(
                    world.plan.unused_secrets.contains_key(id),
                    "{case}: {id} has a reason for its old state"
                );
            }
        }
    }
    for (id, cluster) in &world.running.clusters {
        match &cluster.hold {
            Hold::Assumed => panic!("{case}: {id} is presumed though the Secrets are read"),
            Hold::BySecret(_) if world.plan.unused_secrets.contains_key(id) => {}
            Hold::BySecret(_) => {
                // Only its age may be that of a deleted Secret.
                let new = fresh.running.clusters.get(id).cloned();
                let new = new.map(|new| PlannedCluster { created: cluster.created, ..new });
                assert_eq!(Some(cluster), new.as_ref(), "{case}: {id}");
            }
            Hold::Leaving { until } => {
                assert!(
                    *until > world.start + Duration::from_secs(second),
                    "{case}: {id} was removed"
                );
                assert!(world.plan.next_change.is_some_and(|wake| wake <= *until), "{case}");
            }
        }
    }
}
