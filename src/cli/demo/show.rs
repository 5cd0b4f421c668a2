//! Output of the demo: tables and lines from plain values.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::expected::{Holdings, SettledProxy};
use super::world::{DemoCluster, World};
use crate::cli::output::{Cell, OutputStyle, age, table, text};
use strait_admin_api::{Cluster, ClusterState, ExplainedEndpoint, Explanation, Verdict};

/// Renders the clusters of the world.
pub(super) fn clusters(
    world: &World,
    url: impl Fn(&DemoCluster) -> String,
    look: &OutputStyle,
) -> String {
    let rows = world.clusters.iter().map(|cluster| {
        let services = cluster
            .services
            .iter()
            .map(|service| format!("{} ({} pods)", service.title(), service.pods.len()));
        vec![
            cluster.id.as_str().into(),
            cluster.network.into(),
            url(cluster).into(),
            cluster.edge.map_or("<none>".into(), |edge| edge.gateway.to_string()).into(),
            services.collect::<Vec<_>>().join(", ").into(),
        ]
    });
    table(&["CLUSTER", "NETWORK", "API SERVER", "GATEWAY", "SERVICES"], rows.collect(), look)
}

/// Renders the states of members from `/debug/clusters`.
pub(super) fn states(clusters: &[Cluster], look: &OutputStyle) -> String {
    let rows = clusters.iter().map(|row| {
        let state = text(row.state.as_str());
        vec![
            text(&row.id).into(),
            if row.state == ClusterState::Live { Cell::good(state) } else { Cell::doubtful(state) },
            text(&row.endpoints).into(),
            age(&row.last_contact, look).into(),
            text(&row.reason).into(),
        ]
    });
    table(&["CLUSTER", "STATE", "ENDPOINTS", "LAST CONTACT", "REASON"], rows.collect(), look)
}

/// Renders whether a proxy receives the endpoints of services, and why, from `/debug/explain`.
/// Endpoints with equal results share a line.
pub(super) fn reasons(explanations: &[(String, Explanation)], look: &OutputStyle) -> String {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (service, explanation) in explanations {
        let mut groups: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        for endpoint in &explanation.endpoints {
            let key = (text(&endpoint.cluster), route(endpoint), reason(endpoint));
            *groups.entry(key).or_default() += 1;
        }
        for ((cluster, route, why), count) in groups {
            let route = if route == "withheld" { Cell::doubtful(route) } else { Cell::good(route) };
            let count = count.to_string();
            rows.push(vec![
                service.as_str().into(),
                cluster.into(),
                count.into(),
                route,
                why.into(),
            ]);
        }
    }
    table(&["SERVICE", "CLUSTER", "ENDPOINTS", "GIVEN", "WHY"], rows, look)
}

fn route(endpoint: &ExplainedEndpoint) -> String {
    match &endpoint.verdict {
        Verdict::Direct => "directly".into(),
        Verdict::Gateway => format!("through {}", text(&endpoint.via)),
        verdict => text(verdict.as_str()),
    }
}

/// Returns the decisive fact: of the step that withheld the endpoint, or else of the network step.
fn reason(endpoint: &ExplainedEndpoint) -> String {
    let steps = &endpoint.steps;
    let failed = steps.iter().find(|step| !step.ok);
    let network = || steps.iter().find(|step| step.step == "network");
    failed.or_else(network).map_or_else(String::new, |step| text(&step.detail))
}

/// Renders the endpoints of a proxy, a line for each service.
pub(super) fn holdings(settled: &SettledProxy, look: &OutputStyle) -> String {
    let rows = settled.holdings.iter().map(|(name, endpoints)| {
        let members: Vec<_> =
            endpoints.iter().map(|(address, weight)| member(address, *weight)).collect();
        vec![service_of(name).into(), members.join(", ").into()]
    });
    table(&["SERVICE", "HOLDS"], rows.collect(), look)
}

fn member(address: &SocketAddr, weight: u32) -> String {
    if weight == 1 { address.to_string() } else { format!("{address} (weight {weight})") }
}

/// Renders the changes of each proxy and their delay.
pub(super) fn changes(
    before: &[SettledProxy],
    after: &[SettledProxy],
    look: &OutputStyle,
) -> String {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (before, after) in before.iter().zip(after) {
        let soon = format!("{:.1} ms", after.after.as_secs_f64() * 1000.0);
        for (name, change) in differences(&before.holdings, &after.holdings) {
            let service = service_of(&name);
            rows.push(vec![
                after.proxy.as_str().into(),
                soon.as_str().into(),
                service.into(),
                change.into(),
            ]);
        }
    }
    if rows.is_empty() {
        return "Nothing changed at any proxy.\n".into();
    }
    table(&["PROXY", "AFTER", "SERVICE", "CHANGE"], rows, look)
}

/// Renders expected and actual endpoints of the upstream clusters that differ.
pub(super) fn mismatch(wanted: &Holdings, held: &Holdings) -> String {
    let members = |of: Option<&BTreeMap<SocketAddr, u32>>| {
        let all = of.into_iter().flatten().map(|(address, weight)| member(address, *weight));
        all.collect::<Vec<_>>().join(", ")
    };
    let names: BTreeSet<_> = wanted.keys().chain(held.keys()).collect();
    let differ = names.into_iter().filter(|name| wanted.get(*name) != held.get(*name));
    differ
        .map(|name| {
            let (wanted, held) = (members(wanted.get(name)), members(held.get(name)));
            format!("  {name}\n    expected: {wanted}\n    held:     {held}\n")
        })
        .collect()
}

/// Returns the differences between `before` and `after`, by upstream cluster.
fn differences(before: &Holdings, after: &Holdings) -> Vec<(String, String)> {
    let none = BTreeMap::new();
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let mut differences = Vec::new();
    for name in names {
        let (old, new) = (before.get(name).unwrap_or(&none), after.get(name).unwrap_or(&none));
        let addresses: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for address in addresses {
            let change = match (old.get(address), new.get(address)) {
                (Some(old), Some(new)) if old != new => {
                    format!("{address}: weight {old} -> {new}")
                }
                (Some(old), None) => format!("{} removed", member(address, *old)),
                (None, Some(new)) => format!("{} added", member(address, *new)),
                _ => continue,
            };
            differences.push((name.clone(), change));
        }
    }
    differences
}

/// Returns the short name of an upstream cluster: `web.shop:80` for
/// `outbound|80||web.shop.svc.cluster.local`.
fn service_of(name: &str) -> String {
    let Some(name) = strait_xds::names::OutboundName::parse(name) else { return name.to_owned() };
    let short = name.hostname.as_str().trim_end_matches(".svc.cluster.local");
    format!("{short}:{}", name.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::tests::typed;

    fn holdings_of(endpoints: &[(&str, u32)]) -> Holdings {
        let endpoints = endpoints
            .iter()
            .map(|(address, weight)| (address.parse().expect("an address"), *weight));
        [("outbound|80||web.shop.svc.cluster.local".to_owned(), endpoints.collect())].into()
    }

    #[test]
    fn differences_name_each_address_once() {
        let before =
            holdings_of(&[("10.1.0.1:80", 1), ("10.1.0.2:80", 1), ("172.30.0.21:15443", 2)]);
        let after =
            holdings_of(&[("10.1.0.1:80", 1), ("10.1.0.3:80", 1), ("172.30.0.21:15443", 1)]);
        let changes: Vec<_> =
            differences(&before, &after).into_iter().map(|(_, change)| change).collect();
        assert_eq!(
            changes,
            ["10.1.0.2:80 removed", "10.1.0.3:80 added", "172.30.0.21:15443: weight 2 -> 1"]
        );
        assert_eq!(service_of("outbound|80||web.shop.svc.cluster.local"), "web.shop:80");
    }

    #[test]
    fn reason_comes_from_the_step_that_withheld_the_endpoint() {
        let endpoint = typed(serde_json::json!({"verdict": "withheld", "steps": [
            {"step": "network", "ok": true, "detail": "elsewhere"},
            {"step": "mtls", "ok": false, "detail": "plain text"},
        ]}));
        assert_eq!((route(&endpoint), reason(&endpoint)), ("withheld".into(), "plain text".into()));
    }
}
