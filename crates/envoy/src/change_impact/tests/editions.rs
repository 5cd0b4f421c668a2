//! Clusters that have their own active traffic objects: the editions start, change and end while
//! clusters and the shared rules change. After each step, each stream has exactly the resources
//! that a fresh stream would receive from its cluster's configuration, and no stream was notified
//! of another cluster's own objects.

use std::time::Instant;

use super::heads::{Mesh, Tried, locate, watchers};
use super::*;
use crate::heads::ConfigVariant;
use strait_mesh::push::event_loop::BegunEdition;
use strait_mesh::timeline::Delivery;
use strait_rules::traffic::EditionIndex;

/// A cluster's own objects, and the edition that results from them.
struct OwnRules {
    cluster: &'static str,
    rules: Rules,
    is_named: bool,
    running: Option<(EditionIndex, Arc<ConfigVariant>)>,
}

/// Number of occurrences of each event.
#[derive(Debug, Default)]
struct EditionCounts {
    begun: usize,
    ended: usize,
    changed: usize,
    /// Streams of a cluster with an edition whose resources differ from those without it.
    different: usize,
    /// Steps in which only the own objects of one cluster changed, and streams that were notified
    /// of them.
    alone: usize,
    notified: usize,
}

impl OwnRules {
    /// Publishes the result of the current objects, as the feed does.
    fn refresh(&mut self, mesh: &mut Mesh, shared: &TrafficIndex, counts: &mut EditionCounts) {
        let own = &self.rules.objects;
        let has_any = own.iter().any(|(key, _)| shared.counting().get(key).is_none());
        let cluster = ClusterId::from(self.cluster);
        match (&mut self.running, self.is_named && has_any) {
            (Some((edition, _)), true) => {
                if let Some(update) = edition.refresh(shared, own) {
                    counts.changed += 1;
                    mesh.heads.apply(MeshEvent::EditionTraffic(cluster, update));
                }
            }
            (None, true) => {
                counts.begun += 1;
                let edition = EditionIndex::new(cluster.clone(), shared, own);
                let (head, outputs) = ConfigVariant::new(counts.begun as u64);
                mesh.shares.begin_edition(cluster.clone(), &head);
                let traffic = Arc::new(edition.traffic().clone());
                let begun = BegunEdition { cluster, traffic, outputs };
                mesh.heads.apply(MeshEvent::BeginEdition(Box::new(begun)));
                self.running = Some((edition, head));
            }
            (Some(_), false) => {
                counts.ended += 1;
                self.running = None;
                let head = mesh.shares.end_edition(&cluster).expect("it was served");
                let delivery = Arc::new(Delivery::new(Instant::now()));
                head.subscription_index().mark_proxies(|_| true, &delivery);
                mesh.heads.apply(MeshEvent::EndEdition(cluster));
            }
            (None, false) => {}
        }
    }
}

fn run_history(seed: u64, tried: &mut Tried, counts: &mut EditionCounts) {
    let random = &mut StdRng::seed_from_u64(seed);
    let mut state = some_mesh(settings(), random);
    state.apply(MeshEvent::Complete);
    let mut mesh = Mesh::new(state);
    mesh.publish();
    let (mut epochs, mut shared) = (BTreeMap::new(), rules());
    let mut own = ["east", "west"].map(|cluster| OwnRules {
        cluster,
        rules: rules(),
        is_named: true,
        running: None,
    });
    let mut watchers = watchers(&mesh);
    for step in 0..STEPS / 2 {
        let which = random.random_range(0..own.len());
        let is_alone = random.random_ratio(1, 2);
        if is_alone {
            // A cluster's own objects are used as stored, without the effects of other clusters'
            // objects.
            ruled(random, &mut own[which].rules);
            if random.random_ratio(1, 8) {
                own[which].is_named ^= true;
            }
        } else {
            for _ in 0..random.random_range(1..3) {
                let event = event(random, &mut epochs, &mut shared);
                mesh.heads.apply(event);
            }
        }
        for edition in &mut own {
            edition.refresh(&mut mesh, &shared.index, counts);
        }
        mesh.publish();
        counts.alone += usize::from(is_alone);
        let scratch =
            BTreeMap::from(CLUSTERS.map(|cluster| (cluster, [Cache::default(), Cache::default()])));
        for watcher in &mut watchers {
            let place = format!("seed {seed}, step {step}, {}", watcher.proxy.id);
            let before = watcher.resources.clone();
            let was_there = watcher.head.is_some();
            let (had, cluster) = (tried.in_part, watcher.proxy.cluster.clone());
            watcher.look(&mesh, tried);
            let is_its = cluster.as_str() == own[which].cluster;
            if is_alone && !is_its {
                assert!(
                    before == watcher.resources && had == tried.in_part,
                    "{place}: notified of another cluster's objects"
                );
            }
            counts.notified += usize::from(is_alone && is_its && had != tried.in_part);
            let running = own.iter().find(|one| one.cluster == cluster.as_str());
            let is_running = running.is_some_and(|one| one.running.is_some());
            assert_eq!(watcher.head.is_some(), is_running, "{place}, was there: {was_there}");
            let context = mesh.context(watcher.head.as_deref());
            let location = locate(&context, &watcher.proxy);
            let caches = &scratch[cluster.as_str()];
            let fresh = shape(&context, &location, &caches[0]);
            let missed = differing(&watcher.resources, &fresh);
            assert!(missed.is_empty(), "{place}: {missed:?}");
            if is_running {
                let others = mesh.context(None);
                let edition = others.edition(&cluster).expect("that is known to all");
                assert!(Arc::ptr_eq(&edition.traffic, &context.traffic), "{place}");
                let without_edition = shape(&others, &locate(&others, &watcher.proxy), &caches[1]);
                counts.different += usize::from(!differing(&without_edition, &fresh).is_empty());
            }
        }
    }
}

#[test]
fn each_stream_follows_its_clusters_own_rules_and_is_not_notified_of_others() {
    let (mut tried, mut counts) = (Tried::default(), EditionCounts::default());
    let rounds = rounds(1);
    for seed in 1..=rounds {
        run_history(seed, &mut tried, &mut counts);
    }
    let EditionCounts { begun, ended, changed, different, alone, notified } = counts;
    let rounds = usize::try_from(rounds).expect("few");
    assert!(
        begun > rounds && ended > 0 && changed > 2 * rounds && alone > 10 * rounds,
        "{counts:?}"
    );
    assert!(different > 33 * rounds && notified > 6 * rounds, "{counts:?}");
    assert!(tried.moved > 6 * rounds && tried.in_part > 13 * rounds, "{tried:?}");
}
