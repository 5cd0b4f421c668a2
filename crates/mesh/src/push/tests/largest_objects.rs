//! CPU time of the event loop for the largest objects, measured per thread.

use std::time::Duration;

use super::*;
use strait_base::cpu;
use strait_model::{Collection, ObjectJson};
use strait_rules::service_entry::EntryIndex;
use strait_rules::testing::kind_settings;
use strait_rules::testing::largest::{RepeatedField, repeated_fields};
use strait_rules::traffic::TrafficIndex;

/// Costs below this are too small to compare.
const COMPARED_FROM: Duration = Duration::from_millis(10);

/// The CPU time of the event loop for the most expensive version: after the object was inserted,
/// changed, removed.
fn cost(field: &RepeatedField, count: usize) -> Duration {
    let collection = |count| -> Collection {
        let object: ObjectJson = field.object("evil", count).into();
        [(field.key("evil"), object)].into_iter().collect()
    };
    let mut mesh = mesh(two_networks(vec![endpoint("10.0.0.1")], vec![endpoint("10.1.0.1")]));
    let (mut traffic, mut entries) =
        (TrafficIndex::new(kind_settings()), EntryIndex::new("cluster.local"));
    let steps =
        [Collection::default(), collection(count), collection(count - 1), Collection::default()];
    let costs = steps.iter().map(|objects| {
        let mut events: Vec<_> =
            traffic.apply(objects).map(MeshEvent::Traffic).into_iter().collect();
        events.extend(entries.apply(objects).map(|change| {
            let shard = strait_model::registry::ShardKey::service_entries();
            let epoch = strait_model::registry::Epoch(0);
            let update = RegistryUpdate { shard, epoch, change };
            MeshEvent::Entries(update, Arc::clone(entries.selections()))
        }));
        let begun = cpu::thread_time();
        events.into_iter().for_each(|event| mesh.apply(event));
        let _ = mesh.next_version();
        cpu::thread_time() - begun
    });
    costs.skip(1).max().unwrap_or_default()
}

/// Four times as many entries may take at most eight times as long: quadratic cost would be sixteen
/// times.
#[test]
fn cost_of_the_event_loop_is_linear_for_the_largest_object_of_every_kind() {
    let mut faults = Vec::new();
    for field in repeated_fields() {
        let count = field.accepted_max() / 4;
        let most = cost(&field, count);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let mut line = format!("{} {} x {count}: {:.1} ms", field.kind, field.field, millis(most));
        if most >= COMPARED_FROM {
            let ratio = millis(most) / millis(cost(&field, count / 4));
            line += &format!(", {ratio:.1} times a quarter of it");
            if ratio > 8.0 {
                faults.push(line.clone());
            }
        }
        println!("{line}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
