//! Counts of the endpoints that some connected proxy can't receive because of networks or the policy.
//! Only changed services are counted again.
//!
//! A count examines every endpoint of a service for every kind of proxy. Pages request it after
//! each change, which mostly affects one or two services. This module stores no data of services,
//! only whether they are unchanged.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::views::{Clients, WithheldCount};
use crate::metrics::WithheldCounts;
use strait_mesh::aggregate::{MergedService, SameAddresses};
use strait_mesh::network::Networks;
use strait_mesh::push::PushContext;
use strait_mesh::push::view::ViewKey;
use strait_model::mesh_config::{MeshConfig, MeshNetworks};
use strait_model::policy::Policy;
use strait_model::{Hostname, KnownClusters};
use strait_rules::traffic::Traffic;

/// The last counts.
#[derive(Debug, Default)]
pub struct WithheldTally(Mutex<Option<Tally>>);

#[derive(Debug)]
struct Tally {
    basis: Basis,
    services: HashMap<Hostname, CountedService>,
}

#[derive(Debug)]
struct CountedService {
    /// The counted service. Its address in memory is not reused while this reference exists.
    of: Weak<MergedService>,
    counts: Vec<WithheldCount>,
}

/// Inputs of the counts other than the service.
#[derive(Debug)]
struct Basis {
    views: BTreeSet<ViewKey>,
    same_addresses: SameAddresses,
    networks: Weak<Networks>,
    clusters: Weak<KnownClusters>,
    mesh: Weak<MeshConfig>,
    mesh_networks: Weak<MeshNetworks>,
    policy: Weak<Policy>,
    traffic: Weak<Traffic>,
}

impl Basis {
    fn of(context: &PushContext, views: BTreeSet<ViewKey>) -> Self {
        Self {
            views,
            same_addresses: context.same_addresses.clone(),
            networks: Arc::downgrade(&context.networks),
            clusters: Arc::downgrade(&context.clusters),
            mesh: Arc::downgrade(&context.mesh),
            mesh_networks: Arc::downgrade(&context.mesh_networks),
            policy: Arc::downgrade(&context.policy),
            traffic: Arc::downgrade(&context.traffic),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        // Destructured, so that a new field must be considered here.
        let Self {
            views,
            same_addresses,
            networks,
            clusters,
            mesh,
            mesh_networks,
            policy,
            traffic,
        } = self;
        networks.ptr_eq(&other.networks)
            && clusters.ptr_eq(&other.clusters)
            && mesh.ptr_eq(&other.mesh)
            && mesh_networks.ptr_eq(&other.mesh_networks)
            && policy.ptr_eq(&other.policy)
            && traffic.ptr_eq(&other.traffic)
            && *same_addresses == other.same_addresses
            && *views == other.views
    }
}

impl WithheldTally {
    /// Returns for each cluster how many of its ready endpoints at least one client with these
    /// views can't receive because of networks or the policy, by the code of the first such view's
    /// reason.
    pub(super) fn count(&self, context: &PushContext, views: BTreeSet<ViewKey>) -> WithheldCounts {
        let basis = Basis::of(context, views);
        // After a panic, the previous counts are missing, which is valid.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.take().filter(|tally| tally.basis.is_same(&basis));
        let mut known = before.map(|tally| tally.services).unwrap_or_default();
        let clients = Clients::of(&basis.views);
        let mut services = HashMap::with_capacity(context.services.len());
        let mut sum = WithheldCounts::new();
        for (host, service) in &context.services {
            let same = known.remove(host).filter(|one| one.of.as_ptr() == Arc::as_ptr(service));
            let counted = same.unwrap_or_else(|| CountedService {
                of: Arc::downgrade(service),
                counts: clients.withheld(context, service),
            });
            for (cluster, code, count) in &counted.counts {
                let by_code = sum.entry(cluster.clone()).or_default();
                by_code.entry(code).or_default().add(host, *count);
            }
            services.insert(host.clone(), counted);
        }
        *kept = Some(Tally { basis, services });
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_mesh::push::event_loop::{MeshEvent, MeshState};
    use strait_mesh::push::view::Role;
    use strait_mesh::testing::settings;
    use strait_model::testing::{endpoint, member, service, shard, sidecar};
    use strait_model::{ClusterId, KnownClusters};

    #[test]
    fn incremental_count_equals_a_full_count() {
        let mut mesh = MeshState::new(settings());
        let clusters = [("east".into(), member(Some("n1"))), ("west".into(), member(Some("n2")))];
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters: clusters.into() })));
        let both = shard("west", 1)
            .with(service("db.shop"), vec![endpoint("10.1.0.9")])
            .with(service("web.shop"), vec![endpoint("10.1.0.1"), endpoint("10.1.0.2")]);
        mesh.apply(MeshEvent::Registry(both.built()));
        mesh.apply(MeshEvent::Complete);
        let tally = WithheldTally::default();
        let count = |mesh: &mut MeshState, network: &str| {
            let context = mesh.next_version().expect("a version").0;
            let client = ViewKey::of(&sidecar("client.shop", "east"), network.into(), Role::Client);
            let views = BTreeSet::from([client]);
            let counts = tally.count(&context, views.clone());
            assert_eq!(counts, WithheldTally::default().count(&context, views));
            let of_west = counts.get(&ClusterId::from("west")).into_iter().flatten();
            let named: BTreeSet<_> = of_west.flat_map(|(_, total)| &total.services).collect();
            assert!(named.iter().all(|host| context.services.contains_key(host.as_str())));
            counts
                .get(&ClusterId::from("west"))
                .map_or(0, |by_code| by_code.values().map(|total| total.endpoints).sum::<usize>())
        };
        assert_eq!(count(&mut mesh, "n1"), 3);
        let more = vec![endpoint("10.1.0.1"), endpoint("10.1.0.2"), endpoint("10.1.0.3")];
        let changed = shard("west", 1).with(service("web.shop"), more);
        mesh.apply(MeshEvent::Registry(changed.update().built()));
        assert_eq!(count(&mut mesh, "n1"), 4, "one service has changed");
        let gone = shard("west", 1).without("db.shop");
        mesh.apply(MeshEvent::Registry(gone.update().built()));
        assert_eq!(count(&mut mesh, "n2"), 0, "the client is in the same network now");
    }
}
