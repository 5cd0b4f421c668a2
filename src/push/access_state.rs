//! What the event loop does with access policies: which version is in force, whom a change of them concerns, and which
//! endpoints are spoken to in plain text because of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::context::{Private, PushContext};
use super::interest::Dep;
use crate::access::{AccessPolicies, AccessSubject, PeerMode};
use crate::aggregate::MergedService;
use crate::model::{
    ClusterId, EndpointRef, Hostname, Labels, Namespace, TlsMode, WorkloadKey, WorkloadRef,
    Workloads,
};
use crate::registry::ShardKey;

/// The policies of the next version, and those of the last one.
#[derive(Debug, Clone, Default)]
pub(super) struct AccessState {
    policies: Arc<AccessPolicies>,
    published: Arc<AccessPolicies>,
}

impl AccessState {
    pub(super) fn take(&mut self, policies: Arc<AccessPolicies>) {
        self.policies = policies;
    }

    pub(super) fn policies(&self) -> Arc<AccessPolicies> {
        Arc::clone(&self.policies)
    }

    pub(super) fn is_stale(&self) -> bool {
        !Arc::ptr_eq(&self.policies, &self.published)
    }

    /// What differs from the last version, and the namespaces of which endpoints may be spoken to otherwise than there:
    /// by policies, or since the labels of `pods` differ. The root namespace stands for all.
    pub(super) fn changes(
        &mut self,
        pods: &BTreeSet<(ClusterId, WorkloadKey)>,
    ) -> (Vec<Dep>, BTreeSet<Namespace>) {
        let mut spaces = BTreeSet::new();
        if self.policies.disables_anywhere() {
            let own = pods.iter().map(|(_, pod)| &pod.namespace);
            spaces.extend(own.filter(|one| self.policies.disables_by_labels(one)).cloned());
        }
        let before = std::mem::replace(&mut self.published, Arc::clone(&self.policies));
        if Arc::ptr_eq(&before, &self.policies) {
            return (Vec::new(), spaces);
        }
        spaces.extend(self.policies.changed_modes(&before));
        let mut changed = self.policies.changed_namespaces(&before);
        // No proxy is given anything else for what is told of objects, but who asks is.
        changed.extend(self.policies.changed_reports(&before));
        (changed.into_iter().map(Dep::Access).collect(), spaces)
    }

    /// Adds the services that have endpoints in these namespaces.
    pub(super) fn stale_hosts(
        &self,
        spaces: &BTreeSet<Namespace>,
        services: &OrdMap<Hostname, Arc<MergedService>>,
        private: &Private,
        hosts: &mut BTreeSet<Hostname>,
    ) {
        if spaces.is_empty() {
            return;
        }
        let everywhere = spaces.contains(self.policies.root());
        let has_any = |service: &MergedService| {
            let kinds = service.shards.iter().flat_map(|shard| shard.endpoints.kinds());
            let mut spaces_of_kinds = kinds.filter_map(|kind| kind.workload_namespace());
            spaces_of_kinds.any(|one| everywhere || spaces.contains(one))
        };
        let public = services.iter().filter(|(_, service)| has_any(service));
        hosts.extend(public.map(|(host, _)| host.clone()));
        for (host, own) in private {
            let own = own.iter().filter(|(_, service)| has_any(service));
            hosts.extend(own.map(|(namespace, _)| host.private_to(namespace)));
        }
    }

    /// Has those endpoints of a service be spoken to in plain text whose workloads take nothing else.
    pub(super) fn speak(
        &self,
        service: &mut MergedService,
        workloads: &OrdMap<ClusterId, Workloads>,
    ) {
        if !self.policies.disables_anywhere() {
            return;
        }
        let unlabelled = Labels::new();
        service.speak_plainly(|shard: &ShardKey, endpoint: EndpointRef<'_>| {
            let Some(WorkloadRef { namespace, stem, tail }) = endpoint.workload else {
                return false;
            };
            if endpoint.tls_mode != TlsMode::Istio {
                return false;
            }
            let pods = workloads.get(&shard.cluster);
            let pod = pods.and_then(|pods| pods.get(namespace.as_str(), &format!("{stem}{tail}")));
            let labels = pod.map_or(&unlabelled, |pod| &pod.labels);
            let subject = AccessSubject { namespace, labels, is_known: true };
            self.policies.modes(subject).of_port(endpoint.port).mode == PeerMode::Disable
        });
    }
}

impl PushContext {
    /// The same mesh with other access policies, as the event loop comes to it.
    #[must_use]
    pub fn with_access(&self, policies: Arc<AccessPolicies>) -> Self {
        let spaces = policies.changed_modes(&self.access);
        let state = AccessState { published: Arc::clone(&self.access), policies };
        let mut hosts = BTreeSet::new();
        state.stale_hosts(&spaces, &self.services, &self.private, &mut hosts);
        let mut next = Self { access: state.policies(), ..self.clone() };
        let spoken = |service: &MergedService| {
            let mut service = service.clone();
            service.speak_as_reported();
            state.speak(&mut service, &self.workloads);
            Arc::new(service)
        };
        for host in hosts {
            match host.split_private() {
                Some((host, namespace)) => {
                    let held = next.private.get_mut(&host).and_then(|own| own.get_mut(&namespace));
                    held.into_iter().for_each(|service| *service = spoken(service));
                }
                None => {
                    let held = next.services.get_mut(&host);
                    held.into_iter().for_each(|service| *service = spoken(service));
                }
            }
        }
        next
    }
}
