//! Access policies in the event loop: the active version, the namespaces that a change affects, and
//! the endpoints to which clients must send plain text because of policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::context::{Private, PushContext};
use super::subscription_index::ChangedItem;
use crate::aggregate::MergedService;
use strait_model::registry::ShardKey;
use strait_model::{
    ClusterId, EndpointRef, Hostname, Labels, Namespace, Near, TlsMode, WorkloadKey, Workloads,
};
use strait_rules::access::{AccessPolicies, AccessSubject};

/// The policies of the next version and of the last published one.
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

    /// Returns the differences from the last version, and the namespaces in which TLS modes of
    /// endpoints may differ, because of changed policies or changed labels of `pods`. The root
    /// namespace means all namespaces.
    pub(super) fn changes(
        &mut self,
        pods: &BTreeSet<(ClusterId, WorkloadKey)>,
    ) -> (Vec<ChangedItem>, BTreeSet<Namespace>) {
        let mut namespaces = BTreeSet::new();
        if self.policies.disables_anywhere() {
            let own = pods.iter().map(|(_, pod)| &pod.namespace);
            namespaces.extend(own.filter(|one| self.policies.disables_by_labels(one)).cloned());
        }
        let before = std::mem::replace(&mut self.published, Arc::clone(&self.policies));
        if Arc::ptr_eq(&before, &self.policies) {
            return (Vec::new(), namespaces);
        }
        namespaces.extend(self.policies.changed_modes(&before));
        let mut changed = self.policies.changed_namespaces(&before);
        // A change to the reported status of objects affects no proxy, but it changes responses of
        // the admin API.
        changed.extend(self.policies.changed_reports(&before));
        (changed.into_iter().map(ChangedItem::Access).collect(), namespaces)
    }

    /// Adds to `hosts` the services that have an endpoint in these namespaces with an outdated TLS
    /// mode.
    pub(super) fn stale_hosts(
        &self,
        namespaces: &BTreeSet<Namespace>,
        (services, private): (&OrdMap<Hostname, Arc<MergedService>>, &Private),
        workloads: &OrdMap<ClusterId, Workloads>,
        hosts: &mut BTreeSet<Hostname>,
    ) {
        if namespaces.is_empty() {
            return;
        }
        let is_everywhere = namespaces.contains(self.policies.root());
        let is_stale = |service: &MergedService| {
            let kinds = service.shards.iter().flat_map(|shard| shard.endpoints.kinds());
            let own = &service.primary.namespace;
            let mut workload_namespaces =
                kinds.filter_map(|kind| match kind.workload_namespace() {
                    None if kind.tls_mode == TlsMode::Disabled => None,
                    namespace => Some(namespace.unwrap_or(own)),
                });
            workload_namespaces.any(|namespace| is_everywhere || namespaces.contains(namespace))
                && !service
                    .has_tls_modes(|shard, endpoint| self.tls_mode(own, shard, endpoint, workloads))
        };
        let public = services.iter().filter(|(_, service)| is_stale(service));
        hosts.extend(public.map(|(host, _)| host.clone()));
        for (host, own) in private {
            let own = own.iter().filter(|(_, service)| is_stale(service));
            hosts.extend(own.map(|(namespace, _)| host.private_to(namespace)));
        }
    }

    /// Sets the TLS modes of a service's endpoints from the reported modes and the policies.
    pub(super) fn set_tls_modes(
        &self,
        service: &mut MergedService,
        workloads: &OrdMap<ClusterId, Workloads>,
    ) {
        if !self.policies.uses_plaintext_anywhere() {
            return;
        }
        let namespace = service.primary.namespace.clone();
        service
            .set_tls_modes(|shard, endpoint| self.tls_mode(&namespace, shard, endpoint, workloads));
    }

    /// Returns the TLS mode of an endpoint after applying policies to the mode that its source
    /// reports. If policies require plain text, an endpoint that could accept mTLS does not receive
    /// it.
    fn tls_mode(
        &self,
        namespace: &Namespace,
        shard: &ShardKey,
        endpoint: EndpointRef<'_>,
        workloads: &OrdMap<ClusterId, Workloads>,
    ) -> TlsMode {
        let reported = endpoint.tls_mode;
        let unlabelled = Labels::new();
        let (namespace, labels) = match endpoint.workload {
            _ if reported != TlsMode::Istio => return reported,
            Some(workload) => {
                let pods = workloads.get(&shard.cluster);
                let pod = pods.and_then(|pods| pods.find_next(&mut Near::default(), workload));
                (workload.namespace, pod.map_or(&unlabelled, |pod| &*pod.labels))
            }
            // A pod of another cluster. It is in the service's namespace.
            None if shard.provider.is_cluster() => {
                (namespace, endpoint.labels.map_or(&unlabelled, |labels| &**labels))
            }
            None => return reported,
        };
        let subject = AccessSubject { namespace, labels, is_known: true };
        if !self.policies.receives_plaintext(subject, endpoint.port) {
            TlsMode::Istio
        } else if self.policies.accepts_mtls(subject, endpoint.port) {
            TlsMode::Changing
        } else {
            TlsMode::Disabled
        }
    }
}

impl PushContext {
    /// Returns the same mesh with these access policies, as the event loop would compute it.
    #[must_use]
    pub fn with_access(&self, policies: Arc<AccessPolicies>) -> Self {
        let namespaces = policies.changed_modes(&self.access);
        let state = AccessState { published: Arc::clone(&self.access), policies };
        let mut hosts = BTreeSet::new();
        let services = (&self.services, &self.private);
        state.stale_hosts(&namespaces, services, &self.workloads, &mut hosts);
        let mut next = Self { access: state.policies(), ..self.clone() };
        let with_tls_modes = |service: &MergedService| {
            let mut service = service.clone();
            let own = service.primary.namespace.clone();
            service.set_tls_modes(|shard, endpoint| {
                state.tls_mode(&own, shard, endpoint, &self.workloads)
            });
            Arc::new(service)
        };
        for host in hosts {
            match host.split_private() {
                Some((host, namespace)) => {
                    let existing =
                        next.private.get_mut(&host).and_then(|own| own.get_mut(&namespace));
                    existing.into_iter().for_each(|service| *service = with_tls_modes(service));
                }
                None => {
                    let existing = next.services.get_mut(&host);
                    existing.into_iter().for_each(|service| *service = with_tls_modes(service));
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::push::event_loop::{MeshEvent, MeshState};
    use crate::push::view::assignment;
    use crate::push::view_key::{Role, ViewKey};
    use crate::testing::settings;
    use strait_model::testing::{endpoint, host, member, service, shard, sidecar, workload};
    use strait_model::{Collection, KnownClusters};
    use strait_rules::access::{
        AccessIndex, AccessSettings, PolicyErrors, SERVERS_FIRST, TRANSITION, TimePoint,
    };

    /// One service for each app, with one pod each.
    const APPS: [&str; 3] = ["a", "b", "c"];

    fn mesh() -> MeshState {
        let mut mesh = MeshState::new(settings());
        let clusters = [("east".into(), member(None))].into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let mut update = shard("east", 1);
        for (at, app) in APPS.iter().enumerate() {
            let address = format!("10.0.0.{}", at + 1);
            let (_, pod) = workload("pod.ns", &address, &[("app", app)]);
            // The name by which its endpoint refers to it.
            let key = WorkloadKey::new("ns", format!("pod-{address}"));
            update = update
                .with(service(&format!("{app}.ns")), vec![endpoint(&address)])
                .pod((key, pod));
        }
        mesh.apply(MeshEvent::Registry(update.built()));
        mesh.apply(MeshEvent::Complete);
        mesh
    }

    /// If a gateway dropped an endpoint as soon as its clients do, it would reset connections that
    /// are just being opened.
    #[test]
    fn gateways_keep_endpoints_while_a_client_may_send_them_mtls() {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mode = |mode: &str| -> Collection {
            let object = json!({
                "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
                "metadata": { "namespace": "ns", "name": "all" }, "spec": { "mtls": { "mode": mode } },
            });
            [Arc::new(object)].into_iter().collect()
        };
        let view = |role| ViewKey::of(&sidecar("client.ns", "east"), "".into(), role);
        let visible_endpoints = |context: &PushContext| {
            let service = &context.services[&host("a.ns")];
            [Role::Client, Role::Gateway].map(|role| {
                let assignment = assignment(context, &view(role), service, 80);
                let mut members = assignment.localities.iter().flat_map(|one| &one.members);
                members.next().map(|one| one.tls_mode)
            })
        };
        let (istio, plain) = (Some(TlsMode::Istio), Some(TlsMode::Disabled));
        for (before, now, expected) in [
            ("STRICT", "DISABLE", [[istio, istio], [istio, istio], [plain, istio], [plain, None]]),
            ("DISABLE", "STRICT", [[plain, None], [plain, istio], [istio, istio], [istio, istio]]),
        ] {
            let mut index = AccessIndex::new(settings.clone());
            index.apply(&settings, &mode(before));
            let mut steps = vec![mesh().next_version().expect("a first version").0];
            let begin = TimePoint::now();
            let mut step = |policies| {
                let next = steps.last().expect("the first").with_access(policies);
                steps.push(Arc::new(next));
            };
            step(index.policies());
            index.apply_at(&settings, &mode(now), begin);
            step(index.policies());
            for later in [SERVERS_FIRST, TRANSITION] {
                step(index.settle(begin.instant + later).expect("a step"));
            }
            let found: Vec<_> =
                steps[1..].iter().map(|context| visible_endpoints(context)).collect();
            assert_eq!(found, expected, "{before} to {now}");
        }
    }

    /// Returns the apps whose services are merged again after a change of PeerAuthentications.
    fn merged_again(before: &[(&str, Value)], now: &[(&str, Value)]) -> Vec<&'static str> {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut index = AccessIndex::new(settings.clone());
        let mut policies = |all: &[(&str, Value)]| {
            let object = |(name, spec): &(&str, Value)| {
                let (namespace, name) = name.split_once('/').expect("a namespace and a name");
                Arc::new(json!({
                    "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
                    "metadata": { "namespace": namespace, "name": name }, "spec": spec,
                }))
            };
            let objects: Collection = all.iter().map(object).collect();
            index.apply(&settings, &objects);
            index.policies()
        };
        let context =
            mesh().next_version().expect("a first version").0.with_access(policies(before));
        let state = AccessState { policies: policies(now), published: Arc::clone(&context.access) };
        let namespaces = state.policies.changed_modes(&state.published);
        let (services, mut hosts) = ((&context.services, &context.private), BTreeSet::new());
        state.stale_hosts(&namespaces, services, &context.workloads, &mut hosts);
        APPS.into_iter().filter(|app| hosts.contains(&host(&format!("{app}.ns")))).collect()
    }

    #[test]
    fn only_services_with_changed_tls_modes_are_merged_again() {
        let mode = |mode: &str| json!({ "mtls": { "mode": mode } });
        let policy_for = |app: &str, mode_name: &str| json!({ "selector": { "matchLabels": { "app": app } }, "mtls": { "mode": mode_name } });
        let port = |port: &str| {
            let ports = json!({ port: { "mode": "DISABLE" } });
            json!({ "selector": { "matchLabels": { "app": "b" } }, "portLevelMtls": ports })
        };
        let all = &APPS[..];
        for (before, now, expected) in [
            (vec![], vec![("ns/one", mode("DISABLE"))], all),
            (vec![("ns/one", mode("DISABLE"))], vec![], all),
            (vec![], vec![("root/one", mode("DISABLE"))], all),
            (vec![], vec![("other/one", mode("DISABLE"))], &[]),
            (vec![], vec![("ns/one", policy_for("b", "DISABLE"))], &["b"]),
            (
                vec![("ns/one", policy_for("b", "DISABLE"))],
                vec![("ns/one", policy_for("c", "DISABLE"))],
                &["b", "c"],
            ),
            // A workload that accepts mTLS at all receives mTLS.
            (
                vec![("ns/one", policy_for("b", "DISABLE"))],
                vec![("ns/one", policy_for("b", "STRICT"))],
                &["b"],
            ),
            (
                vec![
                    ("ns/one", policy_for("b", "DISABLE")),
                    ("ns/two", policy_for("a", "PERMISSIVE")),
                ],
                vec![("ns/one", policy_for("b", "DISABLE")), ("ns/two", policy_for("a", "STRICT"))],
                &[],
            ),
            // A policy for one workload overrides the policy of the namespace.
            (
                vec![("ns/all", mode("DISABLE"))],
                vec![("ns/all", mode("DISABLE")), ("ns/one", policy_for("c", "STRICT"))],
                &["c"],
            ),
            (vec![], vec![("ns/one", port("8080"))], &["b"]),
            (vec![], vec![("ns/one", port("9090"))], &[]),
        ] {
            assert_eq!(merged_again(&before, &now), expected, "{before:?} to {now:?}");
        }
    }
}
