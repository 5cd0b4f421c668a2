//! The index of a cluster's other objects, besides services, slices and pods: the namespaces of the
//! mesh, the readiness of pods, the localities of nodes, the declared gateways and machines.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{IndexChanges, IndexedObject, KubeIndex, names, namespaced_name};
use crate::registry::kube::namespace::NamespaceFacts;
use strait_kube_client::NamespacedName;
use strait_model::mesh_config::ServiceScopes;
use strait_model::{
    Collection, DeclaredGateway, Locality, Namespace, NamespaceFilter, Service, WorkloadKey,
};

impl KubeIndex {
    /// Sets the filter for the namespaces of the mesh. Returns the affected parts.
    pub(in crate::registry::kube) fn filter(
        &mut self,
        filter: Arc<NamespaceFilter>,
    ) -> IndexChanges {
        let mut touched = IndexChanges::default();
        if self.chosen.replace(filter, &self.namespaces, &self.pods) {
            touched.services = self.services.keys().cloned().collect();
            (touched.workloads, touched.facts) = (true, true);
        }
        touched
    }

    /// Sets the selectors of global services. Returns the affected parts.
    pub(in crate::registry::kube) fn select_global(
        &mut self,
        scopes: Arc<ServiceScopes>,
    ) -> IndexChanges {
        let mut touched = IndexChanges::default();
        if self.shared.scopes != scopes {
            self.shared.scopes = scopes;
            touched.services = self.services.keys().cloned().collect();
        }
        touched
    }

    /// Stores the current facts of a namespace.
    pub(super) fn replace_namespace(
        &mut self,
        name: &Arc<str>,
        facts: Option<NamespaceFacts>,
        touched: &mut IndexChanges,
    ) {
        let prefers = |facts: Option<&NamespaceFacts>| facts.map(|facts| facts.prefers);
        let old = self.namespaces.get(name);
        let (was_admitted, is_admitted) =
            (self.chosen.admits(old), self.chosen.admits(facts.as_ref()));
        let share = |facts: Option<&NamespaceFacts>| facts.and_then(|facts| facts.share);
        let labels = |facts: Option<&NamespaceFacts>| facts.map(|facts| facts.labels.clone());
        let differs = prefers(old).unwrap_or_default()
            != prefers(facts.as_ref()).unwrap_or_default()
            || share(old) != share(facts.as_ref())
            || (!self.shared.scopes.is_empty() && labels(old) != labels(facts.as_ref()));
        if was_admitted != is_admitted {
            (touched.workloads, touched.facts) = (true, true);
            if is_admitted {
                self.chosen.enter(name, &self.pods);
            } else {
                self.chosen.leave(name, &self.pods);
            }
        }
        if differs || was_admitted != is_admitted {
            self.touch_namespace(name, touched);
        }
        match facts {
            Some(facts) => self.namespaces.insert(Arc::clone(name), facts),
            None => self.namespaces.remove(name),
        };
    }

    /// Marks all services of a namespace as affected.
    pub(super) fn touch_namespace(&self, name: &Arc<str>, touched: &mut IndexChanges) {
        let first = NamespacedName { namespace: Arc::clone(name), name: "".into() };
        let services = self.services.range(first..).map(|(key, _)| key);
        touched.services.extend(services.take_while(|key| key.namespace == *name).cloned());
    }

    /// Stores whether a pod receives traffic.
    pub(super) fn note_ready(
        &mut self,
        key: &NamespacedName,
        ready: bool,
        touched: &mut IndexChanges,
    ) {
        if ready && self.facts.unready.is_empty() {
            return;
        }
        let pod = WorkloadKey::new(Namespace::new(Arc::clone(&key.namespace)), &*key.name);
        touched.facts |= if ready {
            self.facts.unready.remove(&pod).is_some()
        } else {
            self.facts.unready.insert(pod).is_none()
        };
    }

    /// Returns whether no pod serves a Service that is reachable from outside. The controller of
    /// Kubernetes stores a slice without endpoints for a Service whose pods are gone. Returns false
    /// for a Service without slices or without a selector, because its pods are unknown.
    pub(super) fn is_unserved(&self, key: &NamespacedName, service: &Service) -> bool {
        if service.external_addresses.is_empty() || service.selector.is_empty() {
            return false;
        }
        let mut slices = self.slices.for_service(key).peekable();
        slices.peek().is_some()
            && !slices.any(|slice| slice.members().any(|member| member.conditions.serves()))
    }

    /// Returns the network gateways that the cluster declares.
    pub(in crate::registry::kube) fn gateways(&self) -> &BTreeMap<WorkloadKey, DeclaredGateway> {
        &self.facts.gateways
    }

    /// Stores or removes a network gateway.
    pub(in crate::registry::kube) fn note_gateway(
        &mut self,
        name: WorkloadKey,
        gateway: Option<DeclaredGateway>,
        touched: &mut IndexChanges,
    ) {
        touched.facts |= note(&mut self.facts.gateways, name, gateway);
    }

    /// Returns the WorkloadEntries of the cluster.
    pub(in crate::registry::kube) fn entries(&self) -> &BTreeMap<WorkloadKey, Arc<Value>> {
        &self.facts.entries
    }

    /// Stores or removes a WorkloadEntry.
    pub(in crate::registry::kube) fn note_entry(
        &mut self,
        name: WorkloadKey,
        entry: Option<Arc<Value>>,
        touched: &mut IndexChanges,
    ) {
        touched.facts |= note(&mut self.facts.entries, name, entry);
    }

    /// Stores the traffic objects of the cluster. Returns the affected parts.
    pub(in crate::registry::kube) fn note_traffic(&mut self, traffic: Collection) -> IndexChanges {
        let differs = self.facts.traffic != traffic;
        self.facts.traffic = traffic;
        IndexChanges { facts: differs, ..IndexChanges::default() }
    }

    /// Stores the locality of a node.
    pub(super) fn note_locality(
        &mut self,
        name: &Arc<str>,
        locality: Option<&Arc<Locality>>,
        touched: &mut IndexChanges,
    ) {
        let locality = locality.filter(|locality| !locality.is_empty());
        touched.facts |= note(&mut self.facts.localities, Arc::clone(name), locality.cloned());
    }
}

/// Stores or removes the value under a name. Returns whether that is a change.
fn note<K: Ord + Clone, V: PartialEq + Clone>(
    map: &mut Arc<BTreeMap<K, V>>,
    name: K,
    value: Option<V>,
) -> bool {
    if map.get(&name) == value.as_ref() {
        return false;
    }
    let map = Arc::make_mut(map);
    match value {
        Some(value) => map.insert(name, value),
        None => map.remove(&name),
    };
    true
}

/// Returns the keys of `named` that are not on the list.
pub(in crate::registry::kube) fn missing_names<V, T>(
    named: &BTreeMap<WorkloadKey, V>,
    list: &[IndexedObject<T>],
) -> Vec<NamespacedName> {
    let present = names(list);
    let absent = |name: &&WorkloadKey| !present.contains(&(name.namespace.as_str(), &*name.name));
    named.keys().filter(absent).map(namespaced_name).collect()
}
