//! What the index keeps of a cluster besides services, slices and pods: which namespaces belong to the
//! mesh, which pods take traffic, where nodes are, which gateways and machines are declared.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Index, Touched};
use crate::apiserver::Key;
use crate::model::{DeclaredGateway, Locality, Namespace, NamespaceFilter, WorkloadKey};
use crate::registry::kube::namespace::NamespaceFacts;

impl Index {
    /// Lets the namespaces be these that belong to the mesh. Returns what that touched.
    pub(in crate::registry::kube) fn filter(&mut self, filter: Arc<NamespaceFilter>) -> Touched {
        let mut touched = Touched::default();
        if self.chosen.replace(filter, &self.namespaces, &self.pods) {
            touched.services = self.services.keys().cloned().collect();
            (touched.workloads, touched.facts) = (true, true);
        }
        touched
    }

    /// Keeps what is known of a namespace now.
    pub(super) fn replace_namespace(
        &mut self,
        name: &Arc<str>,
        facts: Option<NamespaceFacts>,
        touched: &mut Touched,
    ) {
        let prefers = |facts: Option<&NamespaceFacts>| facts.map(|facts| facts.prefers);
        let old = self.namespaces.get(name);
        let (left, entered) = (self.chosen.admits(old), self.chosen.admits(facts.as_ref()));
        let other = prefers(old).unwrap_or_default() != prefers(facts.as_ref()).unwrap_or_default();
        if left != entered {
            (touched.workloads, touched.facts) = (true, true);
            if entered {
                self.chosen.enter(name, &self.pods);
            } else {
                self.chosen.leave(name, &self.pods);
            }
        }
        if other || left != entered {
            self.touch_namespace(name, touched);
        }
        match facts {
            Some(facts) => self.namespaces.insert(Arc::clone(name), facts),
            None => self.namespaces.remove(name),
        };
    }

    /// Touches all services of a namespace.
    fn touch_namespace(&self, name: &Arc<str>, touched: &mut Touched) {
        let first = Key { namespace: Arc::clone(name), name: "".into() };
        let services = self.services.range(first..).map(|(key, _)| key);
        touched.services.extend(services.take_while(|key| key.namespace == *name).cloned());
    }

    /// Keeps whether a pod takes traffic.
    pub(super) fn note_ready(&mut self, key: &Key, ready: bool, touched: &mut Touched) {
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

    /// The entrances of networks that the cluster declares.
    pub(in crate::registry::kube) fn gateways(&self) -> &BTreeMap<WorkloadKey, DeclaredGateway> {
        &self.facts.gateways
    }

    /// Keeps one.
    pub(in crate::registry::kube) fn note_gateway(
        &mut self,
        name: WorkloadKey,
        gateway: Option<DeclaredGateway>,
        touched: &mut Touched,
    ) {
        if self.facts.gateways.get(&name) == gateway.as_ref() {
            return;
        }
        let gateways = Arc::make_mut(&mut self.facts.gateways);
        match gateway {
            Some(gateway) => gateways.insert(name, gateway),
            None => gateways.remove(&name),
        };
        touched.facts = true;
    }

    /// The WorkloadEntries of the cluster.
    pub(in crate::registry::kube) fn entries(&self) -> &BTreeMap<WorkloadKey, Arc<Value>> {
        &self.facts.entries
    }

    /// Keeps one.
    pub(in crate::registry::kube) fn note_entry(
        &mut self,
        name: WorkloadKey,
        entry: Option<Arc<Value>>,
        touched: &mut Touched,
    ) {
        if self.facts.entries.get(&name) == entry.as_ref() {
            return;
        }
        let entries = Arc::make_mut(&mut self.facts.entries);
        match entry {
            Some(entry) => entries.insert(name, entry),
            None => entries.remove(&name),
        };
        touched.facts = true;
    }

    /// Keeps where a node is.
    pub(super) fn note_locality(
        &mut self,
        name: &Arc<str>,
        locality: Option<&Arc<Locality>>,
        touched: &mut Touched,
    ) {
        let locality = locality.filter(|locality| !locality.is_empty());
        if self.facts.localities.get(name) == locality {
            return;
        }
        let localities = Arc::make_mut(&mut self.facts.localities);
        match locality {
            Some(locality) => localities.insert(Arc::clone(name), Arc::clone(locality)),
            None => localities.remove(name),
        };
        touched.facts = true;
    }
}
