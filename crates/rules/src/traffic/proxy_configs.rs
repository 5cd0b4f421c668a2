//! Which ProxyConfigs hold for the sidecar of a pod. (Istio, "Proxy Config"; docs/reference/traffic.md, "ProxyConfig".)
//!
//! Nothing of them is sent to proxies: whoever puts sidecars into pods asks here.

use std::sync::Arc;

use super::proxy_config::SidecarDefaults;
use super::report::{TrafficObject, TrafficReports};
use strait_model::{Labels, Namespace, ObjectKey};

const KIND: &str = "ProxyConfig";

/// Those that hold for a pod, the nearest first: that which selects it, its namespace's, the root namespace's; of each the
/// oldest.
pub fn of_pod<'a>(
    reports: &'a TrafficReports,
    root: &Namespace,
    namespace: &Namespace,
    labels: &Labels,
) -> Vec<&'a SidecarDefaults> {
    let mut all: Vec<&SidecarDefaults> = all(reports).collect();
    all.sort_by_key(|one| &one.meta);
    let first = |of: &Namespace, is_selected: bool| {
        let mut all = all.iter().copied();
        all.find(|one| {
            one.meta.namespace == *of
                && one.selector.is_some() == is_selected
                && one.selects(labels)
        })
    };
    let mut levels: Vec<_> = [first(namespace, true), first(namespace, false), first(root, false)]
        .into_iter()
        .flatten()
        .collect();
    levels.dedup_by(|a, b| a.meta == b.meta);
    levels
}

/// The older one that holds wherever this one could.
pub fn before<'a>(
    reports: &'a TrafficReports,
    defaults: &SidecarDefaults,
) -> Option<&'a SidecarDefaults> {
    all(reports)
        .filter(|one| one.meta < defaults.meta && one.meta.namespace == defaults.meta.namespace)
        .find(|one| one.selector == defaults.selector)
}

/// Those of one kind stand side by side.
fn all(reports: &TrafficReports) -> impl Iterator<Item = &SidecarDefaults> {
    let nothing = || Arc::<str>::from("");
    let first =
        ObjectKey { kind: KIND.into(), group: nothing(), namespace: nothing(), name: nothing() };
    let own = reports.range(first..).take_while(|(key, _)| *key.kind == *KIND);
    own.filter_map(|(_, report)| match report.in_force()? {
        TrafficObject::SidecarDefaults(defaults) => Some(&**defaults),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
