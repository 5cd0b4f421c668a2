//! Finds the ProxyConfigs that apply to the sidecar of a pod (Istio, "Proxy Config";
//! docs/reference/traffic.md, "ProxyConfig").
//!
//! They are not sent to proxies. The injection webhook looks them up.

use std::sync::Arc;

use super::proxy_config::SidecarDefaults;
use super::report::{TrafficObject, TrafficReports};
use strait_model::{Labels, Namespace, ObjectKey};

const KIND: &str = "ProxyConfig";

/// Returns the objects that apply to a pod, the most specific first: an object that selects the
/// pod, then one for its whole namespace, then one in the root namespace. On each level, the oldest
/// applies.
pub fn for_pod<'a>(
    reports: &'a TrafficReports,
    root: &Namespace,
    namespace: &Namespace,
    labels: &Labels,
) -> Vec<&'a SidecarDefaults> {
    let mut all: Vec<&SidecarDefaults> = all(reports).collect();
    all.sort_by_key(|one| &one.meta);
    let first = |level: &Namespace, is_selected: bool| {
        let mut all = all.iter().copied();
        all.find(|object| {
            object.meta.namespace == *level
                && object.selector.is_some() == is_selected
                && object.selects(labels)
        })
    };
    let mut levels: Vec<_> = [first(namespace, true), first(namespace, false), first(root, false)]
        .into_iter()
        .flatten()
        .collect();
    levels.dedup_by(|a, b| a.meta == b.meta);
    levels
}

/// Returns an older object with the same namespace and selector, which always takes precedence.
pub fn before<'a>(
    reports: &'a TrafficReports,
    defaults: &SidecarDefaults,
) -> Option<&'a SidecarDefaults> {
    all(reports)
        .filter(|one| one.meta < defaults.meta && one.meta.namespace == defaults.meta.namespace)
        .find(|one| one.selector == defaults.selector)
}

/// Iterates over all ProxyConfigs, which are adjacent because keys sort by kind.
fn all(reports: &TrafficReports) -> impl Iterator<Item = &SidecarDefaults> {
    let nothing = || Arc::<str>::from("");
    let first =
        ObjectKey { kind: KIND.into(), group: nothing(), namespace: nothing(), name: nothing() };
    let own = reports.range(first..).take_while(|(key, _)| *key.kind == *KIND);
    own.filter_map(|(_, report)| match report.active()? {
        TrafficObject::SidecarDefaults(defaults) => Some(&**defaults),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
