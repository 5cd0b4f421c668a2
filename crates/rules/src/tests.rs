//! Tests of the CPU time for the largest objects, measured per thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use strait_base::{codes, cpu};
use strait_model::{ClusterId, Collection, ObjectJson, ObjectKey};

use crate::access::{AccessIndex, AccessSettings, PolicyErrors, PolicyState, TimePoint};
use crate::budget::{ObjectBudget, ObjectMeter};
use crate::service_entry::EntryIndex;
use crate::testing::kind_settings;
use crate::testing::largest::{RepeatedField, STORED_MAX, repeated_fields};
use crate::traffic::TrafficIndex;

/// Minimum cost for a comparison. Lower costs are too inaccurate.
const COMPARED_FROM: Duration = Duration::from_millis(30);

/// All indexes that read objects.
struct Indexes {
    traffic: TrafficIndex,
    access: AccessIndex,
    entries: EntryIndex,
    settings: AccessSettings,
}

impl Indexes {
    fn new(budget: ObjectBudget) -> Self {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut indexes = Self {
            traffic: TrafficIndex::new(kind_settings()).with_budget(budget.clone()),
            access: AccessIndex::new(settings.clone()).with_budget(budget.clone()),
            entries: EntryIndex::new("cluster.local").with_budget(budget),
            settings,
        };
        indexes.apply(&Collection::default());
        indexes
    }

    fn apply(&mut self, objects: &Collection) {
        self.traffic.apply(objects);
        self.access.apply_at(&self.settings, objects, TimePoint::now());
        self.entries.apply(objects);
    }

    /// Returns the reasons why the object is refused.
    fn refusals(&self, key: &ObjectKey) -> Vec<String> {
        let report = self.traffic.reports().get(key).filter(|report| report.state.refused);
        let traffic = report.into_iter().flat_map(|report| &report.state.reasons);
        let traffic = traffic.map(ToString::to_string);
        let refused =
            |one: &&(_, &crate::access::PolicyReport)| one.1.state == PolicyState::Refused;
        let troubles: Vec<_> = self.access.troubles().collect();
        let access = troubles.iter().filter(refused).flat_map(|(_, report)| &report.faults);
        let access: Vec<String> = access.map(ToString::to_string).collect();
        let entries = self.entries.problems().iter().filter(|problem| problem.refused);
        let entries = entries.map(|problem| problem.fault.to_string());
        traffic.chain(access).chain(entries).collect()
    }
}

fn collection(field: &RepeatedField, count: usize) -> Collection {
    let object: ObjectJson = field.object("evil", count).into();
    [(field.key("evil"), object)].into_iter().collect()
}

/// Returns the CPU time of each step: inserting the object, changing it, removing it.
fn costs(field: &RepeatedField, count: usize) -> [Duration; 3] {
    let steps = [collection(field, count), collection(field, count - 1), Collection::default()];
    let mut indexes = Indexes::new(ObjectBudget::default());
    steps.map(|objects| {
        let begun = cpu::thread_time();
        indexes.apply(&objects);
        cpu::thread_time() - begun
    })
}

struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0.as_secs_f64() * 1e3)
    }
}

/// Checks that four times as many entries take at most eight times as long. Quadratic cost would
/// take sixteen times as long.
fn check_linear(kinds: &[&str]) {
    let mut faults = Vec::new();
    for field in repeated_fields().iter().filter(|one| kinds.contains(&one.kind)) {
        // Half of the limit also distinguishes quadratic from linear cost, in half of the time.
        let count = field.accepted_max() / 2;
        // The first object of a kind loads Envoy's schema, which must not count as cost of entries.
        costs(field, 2);
        let most = costs(field, count).into_iter().max().unwrap_or_default();
        let mut line = format!("{} {} x {count}: {}", field.kind, field.field, Millis(most));
        if most >= COMPARED_FROM {
            let quarter = costs(field, count / 4).into_iter().max().unwrap_or_default();
            let ratio = most.as_secs_f64() / quarter.as_secs_f64();
            line += &format!(", {ratio:.1} times a quarter of it");
            if ratio > 8.0 {
                faults.push(line.clone());
            }
        }
        println!("{line}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn cost_of_virtual_services_is_linear() {
    check_linear(&["VirtualService"]);
}

#[test]
fn cost_of_destination_rules_gateways_and_sidecars_is_linear() {
    check_linear(&["DestinationRule", "Gateway", "Sidecar"]);
}

#[test]
fn cost_of_entries_is_linear() {
    check_linear(&["ServiceEntry", "WorkloadEntry"]);
}

#[test]
fn cost_of_access_policies_is_linear() {
    check_linear(&["AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication"]);
}

#[test]
fn cost_of_patches_and_telemetry_is_linear() {
    check_linear(&["EnvoyFilter", "ProxyConfig", "Telemetry"]);
}

#[test]
fn cost_of_routes_and_ingresses_is_linear() {
    check_linear(&["HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute", "ReferenceGrant", "Ingress"]);
}

#[test]
fn largest_object_of_every_kind_is_refused_before_it_is_read() {
    // One field of each kind is enough, because the limits do not depend on it.
    let fields = repeated_fields();
    let by_kind: BTreeMap<_, _> = fields.iter().rev().map(|field| (field.kind, field)).collect();
    for field in by_kind.into_values() {
        let name = format!("{} {}", field.kind, field.field);
        let mut indexes = Indexes::new(ObjectBudget::default());
        indexes.apply(&collection(field, 8));
        let key = field.key("evil");
        let is_valid = indexes.refusals(&key).is_empty();
        let valid = counting(&indexes);
        let object = ObjectJson::from(field.object("evil", field.count_max()));
        let share = object.text_len() as f64 / STORED_MAX as f64;
        assert!((0.9..=1.2).contains(&share), "{name}: {} bytes", object.text_len());
        let largest = [(key.clone(), object)].into_iter().collect();
        let begun = cpu::thread_time();
        indexes.apply(&largest);
        let cost = cpu::thread_time() - begun;
        let refusals = indexes.refusals(&key);
        let is_named = |text: &String| text.contains("but an object may have at most");
        assert!(refusals.iter().any(is_named), "{name}: {refusals:?}");
        assert!(cost < Duration::from_secs(2), "{name}: {}", Millis(cost));
        println!("{name} of 1.5 MB: {}", Millis(cost));
        if is_valid {
            assert_eq!(counting(&indexes), valid, "{name}: its last valid version stays");
        }
    }
}

/// Returns the texts of all active objects.
fn counting(indexes: &Indexes) -> Vec<String> {
    let all = indexes.traffic.counting().iter().chain(indexes.access.counting().iter());
    all.map(|(key, object)| format!("{key}: {object:?}")).collect()
}

/// A meter that reports a fixed CPU time for each object.
#[derive(Debug, Default)]
struct FixedMeter {
    spent_millis: AtomicU64,
}

impl ObjectMeter for FixedMeter {
    fn begins(&self, _: &ObjectKey, _: Option<&ClusterId>) {}

    fn spent(&self) -> Duration {
        Duration::from_millis(self.spent_millis.load(Ordering::Relaxed))
    }
}

#[test]
fn object_over_its_cpu_budget_is_refused_and_its_last_valid_version_stays() {
    for kind in ["VirtualService", "Gateway", "Sidecar", "AuthorizationPolicy", "ServiceEntry"] {
        let fields = repeated_fields();
        let field = fields.iter().find(|one| one.kind == kind).expect("a field of the kind");
        let meter = Arc::new(FixedMeter::default());
        let budget = ObjectBudget::new(Arc::<FixedMeter>::clone(&meter), Duration::from_millis(50));
        let mut indexes = Indexes::new(budget);
        let (few, more) = (collection(field, 2), collection(field, 3));
        meter.spent_millis.store(50, Ordering::Relaxed);
        indexes.apply(&few);
        let key = field.key("evil");
        assert_eq!(indexes.refusals(&key), Vec::<String>::new(), "{kind}");
        let valid = counting(&indexes);
        meter.spent_millis.store(51, Ordering::Relaxed);
        indexes.apply(&more);
        let refusals = indexes.refusals(&key);
        let is_named = |text: &String| text.contains("takes more than 50 ms of CPU time");
        assert!(refusals.iter().any(is_named), "{kind}: {refusals:?}");
        assert_eq!(counting(&indexes), valid, "{kind}");
        meter.spent_millis.store(50, Ordering::Relaxed);
        indexes.apply(&collection(field, 4));
        assert_eq!(indexes.refusals(&key), Vec::<String>::new(), "{kind}");
    }
}

/// A meter that reports an exceeded budget after an object was read.
#[derive(Debug, Default)]
struct MergeMeter {
    queries: AtomicU64,
}

impl ObjectMeter for MergeMeter {
    fn begins(&self, _: &ObjectKey, _: Option<&ClusterId>) {
        self.queries.store(0, Ordering::Relaxed);
    }

    fn spent(&self) -> Duration {
        Duration::from_secs(self.queries.fetch_add(1, Ordering::Relaxed))
    }
}

#[test]
fn object_that_is_too_expensive_to_merge_leaves_no_state() {
    let budget = ObjectBudget::new(Arc::new(MergeMeter::default()), Duration::ZERO);
    let mut index = TrafficIndex::new(kind_settings()).with_budget(budget);
    let object = json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"hosts": ["web"], "http": [{"route": [{"destination": {"host": "web"}}]}]},
    });
    index.apply(&[Arc::new(object)].into_iter().collect());
    assert!(index.traffic().virtual_services.is_empty());
    let reasons = index.take_new_reasons();
    assert!(matches!(&reasons[..], [(_, one)] if *one.code == codes::OBJECT_COST), "{reasons:?}");
}
