//! PeerAuthentications that another one replaces at some workloads, and ports without effect.

use super::access_served::{ServedPorts, selected_workloads};
use super::standing::PolicyFinding;
use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_rules::access::{AccessSubject, PeerMode, PolicyKind, PolicyName, PolicySelector};

/// How much of a PeerAuthentication has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum PeerLoss {
    /// None of it.
    #[default]
    Nothing,
    /// A part of it, or its effect at some workloads.
    Part,
    /// All of it, at each workload that it selects.
    All,
}

/// Returns the findings about a PeerAuthentication with a selector, and how much of it has no effect.
pub(super) fn of_peer(context: &PushContext, name: &PolicyName) -> (Vec<PolicyFinding>, PeerLoss) {
    let mut found = Vec::new();
    let own = &name.object.namespace;
    let policy = context.access.peer(&name.object).filter(|_| name.kind == PolicyKind::Peer);
    let Some(policy) = policy.filter(|_| own != context.access.root()) else {
        return (found, PeerLoss::Nothing);
    };
    let PolicySelector::Labels(wanted) = &policy.selector else {
        return (found, PeerLoss::Nothing);
    };
    let mut loss = PeerLoss::Nothing;
    let mut workloads = selected_workloads(context, own, &policy.selector);
    if workloads.is_empty() {
        workloads.insert(wanted);
    }
    let subject = |labels| AccessSubject { namespace: own, labels, is_known: true };
    let replaced: Vec<_> = workloads
        .iter()
        .filter_map(|labels| context.access.replacing_peer(&name.object, subject(labels)))
        .collect();
    if let Some(first) = replaced.iter().max_by_key(|one| one.is_more_open) {
        loss = if replaced.len() == workloads.len() { PeerLoss::All } else { PeerLoss::Part };
        let winner = PolicyName { kind: PolicyKind::Peer, object: first.by.clone() };
        let text = "one PeerAuthentication with a selector applies to a workload, the oldest";
        let (code, effect) = match first.is_more_open {
            true => {
                (&codes::ACCESS_PEER_MORE_OPEN, "; plain text is accepted that this one refuses")
            }
            false => (&codes::ACCESS_PEER_WITHOUT_EFFECT, ""),
        };
        let text = format!(
            "{winner} applies instead to {} of {} groups of workloads: {text}{effect}",
            replaced.len(),
            workloads.len()
        );
        found.push((code, "spec.selector".to_owned(), text));
    }
    if policy.ports.is_empty() || loss == PeerLoss::All {
        return (found, loss);
    }
    if let Some(served) = ServedPorts::of(context, name, &policy.selector) {
        for (port, mode) in policy.ports.iter().filter(|(port, _)| !served.has(**port)) {
            loss = loss.max(PeerLoss::Part);
            let mut modes = workloads.iter().map(|labels| context.access.modes(subject(labels)));
            let is_more_open = *mode == Some(PeerMode::Strict)
                && modes.any(|modes| modes.rest.mode != PeerMode::Strict);
            let code = match is_more_open {
                true => &codes::ACCESS_PEER_MORE_OPEN,
                false => &codes::ACCESS_PEER_WITHOUT_EFFECT,
            };
            let target_note = served.target_of(*port).map_or_else(String::new, |(host, target)| {
                format!("; Service {host} has that port, and routes to port {target}")
            });
            let text =
                format!("no Service routes to port {port} of the selected workloads{target_note}");
            found.push((code, format!("spec.portLevelMtls.{port}"), text));
        }
    }
    (found, loss)
}
