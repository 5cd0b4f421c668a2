//! The pods of a cluster: lists of pods, and the dependencies of one pod.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use super::{IndexChanges, Indexed, IndexedKind, KubeIndex};
use crate::registry::kube::endpoint_slice::Slice;
use crate::registry::kube::pod::{PodList, PodRecord};
use crate::registry::kube::slices::{Reference, hash};
use strait_kube_client::NamespacedName;
use strait_model::{Namespace, Workload, WorkloadKey, WorkloadRef};

impl Indexed for PodRecord {
    const KIND: IndexedKind = IndexedKind::Pods;

    fn put(self, key: NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        let Self { workload, ready } = self;
        // Without an address, it cannot be an endpoint.
        index.note_ready(&key, ready || workload.addresses.is_empty(), touched);
        if index.pods.get(&key.namespace, &key.name) != Some(&workload) {
            index.put_pod(&key, workload, touched);
        }
    }

    fn remove(key: &NamespacedName, index: &mut KubeIndex, touched: &mut IndexChanges) {
        index.note_ready(key, true, touched);
        index.drop_pod(key, touched);
    }

    fn replace(
        list: PodList,
        namespace: Option<&Arc<str>>,
        index: &mut KubeIndex,
        touched: &mut IndexChanges,
    ) {
        for (key, reason) in list.invalid {
            index.note(IndexedKind::Pods, Some(key), reason);
        }
        let is_covered =
            |pod: &WorkloadKey| namespace.is_none_or(|own| *pod.namespace.as_str() == **own);
        let elsewhere = index.facts.unready.iter().filter(|pod| !is_covered(pod)).cloned();
        let unready = list.unready.into_iter().chain(elsewhere).collect();
        touched.facts |= index.facts.unready != unready;
        index.facts.unready = unready;

        let pods = list.pods.finish();
        if index.pods.is_empty() {
            touched.workloads |= !pods.is_empty();
            index.pods = pods;
            index.enter_all(touched);
        } else {
            // Equal pods stay in memory and are shared with the last sent state.
            for pod in index.pods.differences(&pods).into_iter().filter(is_covered) {
                let name = Arc::clone(&pod.name);
                let key = NamespacedName { namespace: pod.namespace.as_str().into(), name };
                match pods.get(&key.namespace, &key.name) {
                    Some(workload) => index.put_pod(&key, workload.clone(), touched),
                    None => index.drop_pod(&key, touched),
                }
            }
        }
        match namespace {
            Some(namespace) => {
                if index.pods_listed_in.insert(Arc::clone(namespace)) {
                    index.touch_namespace(namespace, touched);
                }
            }
            None => {
                if !std::mem::replace(&mut index.pods_listed, true) {
                    touched.services.extend(index.services.keys().cloned());
                }
            }
        }
    }
}

impl KubeIndex {
    /// Whether the pods of a namespace have been listed.
    pub(super) fn has_pods_of(&self, namespace: &Namespace) -> bool {
        self.pods_listed || self.pods_listed_in.contains(namespace.as_str())
    }

    /// Stores a new or changed pod.
    fn put_pod(&mut self, key: &NamespacedName, pod: Workload, touched: &mut IndexChanges) {
        self.drop_pod(key, touched);
        let namespace = Namespace::new(Arc::clone(&key.namespace));
        let named = WorkloadRef::of(&namespace, &key.name);
        self.enter(named, &pod);
        self.touch_pod(named, &pod, touched);
        let facts = self.namespaces.get(&key.namespace);
        self.chosen.put(facts, &key.namespace, &key.name, &pod);
        self.pods.insert(&key.namespace, &key.name, pod);
    }

    fn drop_pod(&mut self, key: &NamespacedName, touched: &mut IndexChanges) {
        let Some(pod) = self.pods.remove(&key.namespace, &key.name) else { return };
        self.chosen.remove(&key.namespace, &key.name);
        let namespace = Namespace::new(Arc::clone(&key.namespace));
        let listed = if self.unnamed.is_empty() { None } else { Some(pod.addresses.iter()) };
        for address in listed.into_iter().flatten() {
            let place = (namespace.clone(), address);
            if let Entry::Occupied(mut pods) = self.unnamed.entry(place) {
                pods.get_mut().remove(&key.name);
                if pods.get().is_empty() {
                    pods.remove();
                }
            }
        }
        self.touch_pod(WorkloadRef::of(&namespace, &key.name), &pod, touched);
    }

    /// Does for all pods of the first list what [`Self::put_pod`] does for one.
    fn enter_all(&mut self, touched: &mut IndexChanges) {
        let pods = self.pods.clone();
        // Usually neither has any effect.
        if self.slices.name_addresses() {
            pods.iter().for_each(|(key, pod)| self.enter(key, pod));
        }
        if !self.last_sent.services.is_empty() {
            for (key, pod) in pods.iter() {
                self.touch_pod(key, pod, touched);
            }
        }
        self.chosen.put_all(&self.namespaces, &pods);
    }

    /// Indexes a pod by its addresses for which slices name no pod.
    fn enter(&mut self, key: WorkloadRef<'_>, pod: &Workload) {
        for address in pod.addresses.iter() {
            if self.slices.may_name(Reference::Address(key.namespace.as_str(), address)) {
                let place = (key.namespace.clone(), address);
                self.unnamed.entry(place).or_default().insert(key.name().into());
            }
        }
    }

    /// Marks everything that depends on a new, changed or deleted pod as affected: the workloads,
    /// and the slices that name the pod or any address of it.
    pub(super) fn touch_pod(
        &self,
        key: WorkloadRef<'_>,
        pod: &Workload,
        touched: &mut IndexChanges,
    ) {
        touched.workloads = true;
        self.touch_slices(Reference::Pod(key), touched);
        for address in pod.addresses.iter() {
            self.touch_slices(Reference::Address(key.namespace.as_str(), address), touched);
        }
    }

    /// Returns the pod of an endpoint that names none: the only one in that namespace with that
    /// address. Pods in the host network share an address; which of them is meant is unknown.
    pub(super) fn pod_at<'a>(
        &'a self,
        namespace: &'a Namespace,
        address: IpAddr,
    ) -> Option<WorkloadRef<'a>> {
        if self.unnamed.is_empty() {
            return None;
        }
        let mut pods = self.unnamed.get(&(namespace.clone(), address))?.iter();
        match (pods.next(), pods.next()) {
            (Some(only), None) => Some(WorkloadRef::of(namespace, only)),
            _ => None,
        }
    }

    /// Indexes the pods at the addresses of a new slice for which only this slice names no pod.
    /// Compares hashes, like [`super::Slices::may_name`]: addresses for which that returns true are
    /// indexed already.
    pub(super) fn find_unnamed(&mut self, slice: &Slice) {
        let namespace = &slice.service.namespace;
        let unnamed = slice.unnamed().map(|address| Reference::Address(namespace, address));
        let new = unnamed.filter(|reference| !self.slices.may_name(*reference));
        let new: BTreeSet<u32> = new.map(hash).collect();
        if new.is_empty() {
            return;
        }
        for (key, pod) in self.pods.of_namespace(namespace) {
            for address in pod.addresses.iter() {
                if new.contains(&hash(Reference::Address(namespace, address))) {
                    let place = (Namespace::new(Arc::clone(namespace)), address);
                    self.unnamed.entry(place).or_default().insert(key.name().into());
                }
            }
        }
    }

    /// Removes the pods at addresses for which only a deleted slice named no pod.
    pub(super) fn forget_unnamed(&mut self, slice: &Slice) {
        if self.unnamed.is_empty() {
            return;
        }
        let namespace = &slice.service.namespace;
        for address in slice.unnamed() {
            if !self.slices.may_name(Reference::Address(namespace, address)) {
                self.unnamed.remove(&(Namespace::new(Arc::clone(namespace)), address));
            }
        }
    }
}
