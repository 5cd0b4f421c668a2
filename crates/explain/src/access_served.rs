//! The target ports of Services at the workloads that a policy selects.

use std::collections::{BTreeMap, BTreeSet};

use strait_mesh::push::PushContext;
use strait_model::{Labels, Namespace, TargetPort, labels_match};
use strait_rules::access::{AccessSubject, PolicyName, PolicySelector};

/// The target ports of Services at the selected workloads.
pub(super) struct ServedPorts<'a> {
    targets: BTreeSet<u16>,
    /// By port of a Service that differs from its target: the host and the target port.
    services: BTreeMap<u16, (&'a str, u16)>,
}

impl<'a> ServedPorts<'a> {
    /// Collects the ports of the known workloads that a policy selects. `None` if the ports of some workload are unknown (no
    /// Service selects it, a target port has a name, a Sidecar or a Gateway defines ports), and for the root namespace.
    pub(super) fn of(
        context: &'a PushContext,
        name: &'a PolicyName,
        selector: &PolicySelector,
    ) -> Option<Self> {
        let own = &name.object.namespace;
        if own == context.access.root() {
            return None;
        }
        let workloads = selected_workloads(context, own, selector);
        if workloads.is_empty()
            || workloads.iter().any(|labels| {
                context.traffic.sidecars.gives_ports(own, labels)
                    || context
                        .traffic
                        .gateways
                        .selecting(own, labels)
                        .any(|one| one.selector.is_some())
            })
        {
            return None;
        }
        let mut served = Self { targets: BTreeSet::new(), services: BTreeMap::new() };
        let mut unserved = workloads.clone();
        for merged in context.services_of(own) {
            for shard in &merged.shards {
                let service = &shard.service;
                let leads = |labels: &&&Labels| {
                    !service.selector.is_empty() && labels_match(&service.selector, labels)
                };
                if service.namespace != *own {
                    continue;
                }
                if workloads.iter().any(|labels| leads(&labels)) {
                    unserved.retain(|labels| !leads(&labels));
                    for port in &service.ports {
                        let TargetPort::Number(target) = port.target else { return None };
                        served.targets.insert(target);
                        if target != port.number {
                            served
                                .services
                                .insert(port.number, (service.hostname.as_str(), target));
                        }
                    }
                }
                // ServiceEntries and Services without a selector have endpoints only.
                for endpoint in shard.endpoints.iter() {
                    if endpoint.labels.is_some_and(|labels| is_selected(own, selector, labels)) {
                        served.targets.insert(endpoint.port);
                    }
                }
            }
        }
        unserved.is_empty().then_some(served)
    }

    /// Whether a Service has this port as its target.
    pub(super) fn has(&self, port: u16) -> bool {
        self.targets.contains(&port)
    }

    /// The Service that has this port, and its different target port.
    pub(super) fn target_of(&self, port: u16) -> Option<(&'a str, u16)> {
        self.services.get(&port).copied()
    }
}

/// Returns the labels of the known workloads of a namespace that a policy in it selects.
pub(super) fn selected_workloads<'a>(
    context: &'a PushContext,
    own: &'a Namespace,
    selector: &PolicySelector,
) -> BTreeSet<&'a Labels> {
    let known = context.workload_labels(Some(own)).map(|(_, labels)| labels);
    known.filter(|labels| is_selected(own, selector, labels)).collect()
}

fn is_selected(own: &Namespace, selector: &PolicySelector, labels: &Labels) -> bool {
    selector.selects(own, AccessSubject { namespace: own, labels, is_known: true })
}
