//! Describes the effect of a change on services and networks, as text for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::PushContext;
use super::subscription_index::{ChangedItem, Changes};
use crate::aggregate::MergedService;
use strait_base::names::list_first;
use strait_model::{Health, Hostname};

/// The maximum number of listed services; further ones are only counted.
const NAMED_MAX: usize = 3;

/// The kinds of changes to a service.
#[derive(Debug, Clone, Copy, Default)]
struct ServiceChange {
    definition: bool,
    endpoints: bool,
    traffic: bool,
}

/// Describes the differences between two versions that `changes` lists.
pub(super) fn describe_effect(
    before: Option<&PushContext>,
    now: &PushContext,
    changes: &Changes,
) -> String {
    let Some(before) = before else {
        return format!("the first version, {} services", now.services.len());
    };
    let mut services = BTreeMap::<&Hostname, ServiceChange>::new();
    let (mut pods, mut other_parts) = (BTreeSet::new(), BTreeSet::new());
    let (mut networks, mut clusters) = (Vec::new(), Vec::new());
    for dep in &changes.deps {
        match dep {
            ChangedItem::Endpoints(host) | ChangedItem::Members(host) => {
                services.entry(host).or_default().endpoints = true;
            }
            ChangedItem::Definition(host) => services.entry(host).or_default().definition = true,
            ChangedItem::Accounts(host) => drop(services.entry(host).or_default()),
            ChangedItem::Workload(cluster, pod) => {
                pods.insert((cluster, pod));
            }
            ChangedItem::Traffic(host) => services.entry(host).or_default().traffic = true,
            ChangedItem::Selectors => drop(other_parts.insert("selectors of rules")),
            ChangedItem::Imports(_) => drop(other_parts.insert("imports of Sidecars")),
            ChangedItem::Logging(_) => drop(other_parts.insert("access logs of Telemetries")),
            ChangedItem::Filters(_) => drop(other_parts.insert("filters of EnvoyFilters")),
            ChangedItem::Gateways => drop(other_parts.insert("gateways")),
            ChangedItem::Machines => drop(other_parts.insert("machines")),
            ChangedItem::Networks => drop(other_parts.insert("networks")),
            ChangedItem::NetworkGateways(network) => networks.push(network.as_str()),
            ChangedItem::ClusterMode(cluster) => clusters.push(cluster.as_str()),
            ChangedItem::Mesh => drop(other_parts.insert("mesh settings")),
            ChangedItem::Access(_) => drop(other_parts.insert("access policies")),
        }
    }
    if !services.is_empty() {
        other_parts.remove("machines");
    }
    let mut parts: Vec<String> = other_parts.into_iter().map(str::to_owned).collect();
    parts.extend(list_names("gateways of", &networks));
    parts.extend(list_names("state of", &clusters));
    if !networks.is_empty() || !clusters.is_empty() {
        // Services whose dependencies changed, but not they themselves, are not listed.
        services.retain(|host, change| {
            change.definition || change.traffic || differs(before, now, host)
        });
    }
    let first = services.iter().take(NAMED_MAX);
    parts.extend(first.map(|(host, change)| describe_service(before, now, host, *change)));
    if services.len() > NAMED_MAX {
        parts.push(format!("{} more services", services.len() - NAMED_MAX));
    }
    if services.is_empty() {
        let first = pods.iter().take(NAMED_MAX);
        parts.extend(
            first.map(|(cluster, pod)| format!("pod {}.{} in {cluster}", pod.name, pod.namespace)),
        );
        if pods.len() > NAMED_MAX {
            parts.push(format!("{} more pods", pods.len() - NAMED_MAX));
        }
    }
    parts.join("; ")
}

/// Lists the first items and the number of further ones; returns `None` for an empty list.
fn list_names(title: &str, all: &[&str]) -> Option<String> {
    (!all.is_empty()).then(|| format!("{title} {}", list_first(all.iter(), NAMED_MAX)))
}

/// Returns whether a service differs between the versions.
fn differs(before: &PushContext, now: &PushContext, host: &Hostname) -> bool {
    let [then, since] = [before, now].map(|context| context.services.get(host).map(Arc::as_ptr));
    then != since
}

fn describe_service(
    before: &PushContext,
    now: &PushContext,
    host: &Hostname,
    change: ServiceChange,
) -> String {
    let was = before.services.get(host);
    let is = now.services.get(host);
    let (had, has) = (was.map(|was| ready(was)), is.map(|is| ready(is)));
    match (had, has) {
        (None, Some(count)) => format!("service {host} added, {}", endpoints(count)),
        (Some(count), None) => format!("service {host} removed, {}", endpoints(count)),
        (Some(had), Some(has)) if had != has => format!("{host}: {had} -> {}", endpoints(has)),
        _ if change.definition => format!("{host}: definition"),
        _ if change.endpoints => format!("{host}: endpoints"),
        _ if change.traffic => format!("{host}: traffic rules"),
        _ => format!("{host}: accounts"),
    }
}

fn endpoints(count: usize) -> String {
    format!("{count} endpoint{}", if count == 1 { "" } else { "s" })
}

/// Returns the number of healthy endpoints of a service.
fn ready(service: &MergedService) -> usize {
    service.endpoints().filter(|(_, endpoint, _)| endpoint.health == Health::Healthy).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::event_loop::{MeshEvent, MeshState};
    use crate::testing::settings;
    use strait_model::testing::{endpoint, removed, service, shard};

    #[test]
    fn change_is_described_in_words() {
        let mut mesh = MeshState::new(settings());
        let mut before = None;
        let mut next = |event| {
            mesh.apply(event);
            let (context, changes) = mesh.next_version()?;
            let description = describe_effect(before.as_deref(), &context, &changes);
            before = Some(context);
            Some(description)
        };
        let first = next(MeshEvent::Complete);
        assert_eq!(first.as_deref(), Some("the first version, 0 services"));
        let east = |count: u8| {
            let endpoints = (1..=count).map(|last| endpoint(&format!("10.0.0.{last}"))).collect();
            let update = shard("east", 1).with(service("web.ns"), endpoints);
            MeshEvent::Registry(update.built())
        };
        let host = service("web.ns").hostname.clone();
        let expected = format!("networks; service {host} added, 2 endpoints");
        assert_eq!(next(east(2)), Some(expected));
        assert_eq!(next(east(3)), Some(format!("{host}: 2 -> 3 endpoints")));
        let gateway = service("gateway.strait-system").gateway_of("", "203.0.113.1");
        let gateway = shard("east", 1).with(gateway, vec![]).update();
        next(MeshEvent::Registry(gateway.built()));
        let moved = service("gateway.strait-system").gateway_of("n2", "203.0.113.9");
        let moved = shard("east", 1).with(moved, vec![]).update();
        let description = next(MeshEvent::Registry(moved.built())).expect("a version");
        assert!(description.starts_with("gateways of n2"), "{description}");
        assert!(!description.contains("web"), "services behind it are unchanged: {description}");
        let removal = next(MeshEvent::Registry(removed("east", 1)));
        let removal = removal.expect("a version");
        assert!(removal.contains(&format!("service {host} removed, 3 endpoints")), "{removal}");
    }
}
