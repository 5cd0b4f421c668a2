//! Findings about networks: missing, unusable, dead and shared gateways, ignored claims, and names that are probably
//! misspelt.

use std::collections::BTreeMap;

use super::{MeshFinding, or_none};
use strait_admin_api::{Cluster, IgnoredClaim, Network, NetworkGateway};
use strait_base::codes;

const CATEGORY: &str = "networks";

/// Returns the findings about networks and their gateways.
pub fn of_networks(networks: &[Network], clusters: &[Cluster]) -> Vec<MeshFinding> {
    let mut found = shared_gateways(networks);
    let problem =
        |code, object: &str, fact| MeshFinding::problem(CATEGORY, code, object.to_owned(), fact);
    let has_endpoints =
        |cluster: &String| clusters.iter().any(|row| row.id == *cluster && row.endpoints > 0);
    for row in networks.iter().filter(|_| networks.len() > 1) {
        let object = format!("network/{}", or_none(&row.network));
        let (gateways, pending) = (&row.gateways, &row.pending);
        // A network without endpoints, for example with only a config cluster, needs no gateway.
        let is_used = row.clusters.iter().any(has_endpoints);
        if gateways.is_empty() && pending.is_empty() && is_used {
            let fact = "the network has no gateway, so other networks can't reach it";
            found.push(
                match (ignored_gateway(clusters, &row.network), moved_gateway(networks, row)) {
                    (Some(claim), _) => {
                        let fact = format!("{fact}: {claim} claims it, which has no effect");
                        problem(&codes::CLAIM_IGNORED, &object, fact)
                    }
                    (None, Some(moved)) => {
                        problem(&codes::NO_GATEWAY, &object, format!("{fact}: {moved}"))
                    }
                    (None, None) => problem(&codes::NO_GATEWAY, &object, fact.to_owned()),
                },
            );
        }
        if let Some(fact) = misspelt(row, networks) {
            found.push(problem(&codes::NETWORK_TYPO, &object, fact));
        }
        for gateway in gateways {
            if let Some(fact) = misplaced(gateway, row, networks) {
                found.push(problem(&codes::NETWORK_TYPO, &object, fact));
            }
        }
        let dead: Vec<_> = gateways.iter().filter(|one| one.dead).collect();
        for gateway in &dead {
            let instead = match dead.len() == gateways.len() {
                true => "no other gateway of the network answers either, so all stay in use",
                false => "proxies use the other gateways of the network",
            };
            let fact = format!("gateway {} does not answer; {instead}", socket(gateway));
            found.push(problem(&codes::GATEWAY_DEAD, &object, fact));
        }
        for gateway in pending {
            let fact = format!("{}: {}", gateway.source, gateway.reason);
            let code = gateway.code.as_deref().and_then(codes::find);
            let code = code.unwrap_or(&codes::GATEWAY_PENDING);
            found.push(problem(code, &object, fact));
        }
    }
    found
}

/// Returns a claim of a gateway to the network that has no effect.
fn ignored_gateway(clusters: &[Cluster], network: &str) -> Option<String> {
    let claims = clusters.iter().flat_map(|row| &row.ignored_claims);
    let mut claims = claims.filter(|claim| claim.network == network);
    let is_of_gateway = |claim: &&IgnoredClaim| claim.claim.starts_with("gateway ");
    claims.find(is_of_gateway).map(|claim| claim.claim.clone())
}

/// Returns a description of a gateway in a cluster of this network that has another network's label.
fn moved_gateway(networks: &[Network], network: &Network) -> Option<String> {
    let others = networks.iter().filter(|row| row.network != network.network);
    let mut gateways =
        others.flat_map(|row| row.gateways.iter().map(move |gateway| (row, gateway)));
    let (of, gateway) = gateways.find(|(row, gateway)| {
        network.clusters.contains(&gateway.cluster) && !row.clusters.contains(&gateway.cluster)
    })?;
    Some(format!(
        "{} in cluster {} of this network is a gateway of network {} instead, and receives the requests \
         for {}; correct its label topology.istio.io/network",
        gateway.source, gateway.cluster, of.network, of.network
    ))
}

/// Returns a description of a gateway whose cluster has no endpoints in the gateway's network, but in another network that
/// has gateways too. Without the latter, [`moved_gateway`] describes it.
fn misplaced(gateway: &NetworkGateway, network: &Network, networks: &[Network]) -> Option<String> {
    let cluster = &gateway.cluster;
    let mut homes = networks.iter().filter(|row| row.clusters.contains(cluster));
    let home = homes.next().filter(|row| !row.gateways.is_empty())?;
    (!network.clusters.contains(cluster)).then(|| {
        format!(
            "{} in cluster {cluster} is a gateway of this network, but the cluster is in network {}: requests through it do \
             not arrive; typo? See its label topology.istio.io/network",
            gateway.source,
            or_none(&home.network)
        )
    })
}

/// Returns the findings about gateways that several networks have.
fn shared_gateways(networks: &[Network]) -> Vec<MeshFinding> {
    let mut users: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in networks {
        for gateway in row.gateways.iter().filter(|gateway| !gateway.address.is_empty()) {
            let users = users.entry(socket(gateway)).or_default();
            if !users.contains(&&*row.network) {
                users.push(&row.network);
            }
        }
    }
    let shared = users.into_iter().filter(|(_, users)| users.len() > 1);
    let finding = |(address, users): (String, Vec<&str>)| {
        let fact = format!(
            "networks {} have the same gateway {address}: it only forwards into one of them, and requests for the others fail or reach other pods",
            users.join(" and ")
        );
        let object = format!("network/{}", or_none(users.first().copied().unwrap_or_default()));
        MeshFinding::problem(CATEGORY, &codes::SAME_GATEWAY, object, fact)
    };
    shared.map(finding).collect()
}

fn socket(gateway: &NetworkGateway) -> String {
    let NetworkGateway { address, port, .. } = gateway;
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// Returns the findings about a cluster's network claims that have no effect. A claim to a network
/// that does not exist is a mistake, unless the policy refuses it.
pub fn of_claims(cluster: &Cluster, networks: &[Network]) -> Vec<MeshFinding> {
    let object = || format!("cluster/{}", or_none(&cluster.id));
    let of = |claim: &IgnoredClaim| {
        let IgnoredClaim { claim, network } = claim;
        let fact = format!("{claim} claims network {network}, which has no effect");
        let intended = or_none(cluster.network.as_deref().unwrap_or_default());
        if is_misspelt(network, intended, 2) {
            let fact = format!("{fact}; typo? The cluster is in network {intended}");
            return MeshFinding::problem(CATEGORY, &codes::NETWORK_TYPO, object(), fact);
        }
        let exists = networks.is_empty() || networks.iter().any(|row| row.network == *network);
        if !exists && !claim.contains("policy") {
            let fact = format!(
                "{fact}; there is no such network, the cluster is in network {intended}, and new pods that claim {network} are refused"
            );
            return MeshFinding::problem(CATEGORY, &codes::NETWORK_TYPO, object(), fact);
        }
        MeshFinding::note(CATEGORY, &codes::CLAIM_IGNORED, object(), fact)
    };
    cluster.ignored_claims.iter().map(of).collect()
}

/// Returns a description if the network's name is probably a misspelt name of another network: it has no gateway, at most
/// one cluster uses it, and the other network has a gateway.
fn misspelt(network: &Network, all: &[Network]) -> Option<String> {
    let has_gateway = |row: &Network| !row.gateways.is_empty() || !row.pending.is_empty();
    let users = &network.clusters;
    if has_gateway(network) || users.len() > 1 {
        return None;
    }
    let name = &network.network;
    // A cluster that is in both networks has few pods with the wrong label.
    let shares_user = |row: &Network| users.iter().any(|user| row.clusters.contains(user));
    let is_similar = |row: &&Network| {
        let edits = if shares_user(row) { 2 } else { 1 };
        has_gateway(row) && is_misspelt(name, &row.network, edits)
    };
    let intended = &all.iter().find(is_similar)?.network;
    let of = users.iter().map(|user| format!(" in cluster {user}")).collect::<String>();
    Some(format!(
        "no gateway has network {name:?}, which labels{of} name: typo? There is {intended:?}"
    ))
}

/// Returns whether a name is probably a misspelling of another: one or two letters are wrong, missing, added or swapped.
/// Names that differ only in digits, like `n1` and `n2`, are different names.
fn is_misspelt(name: &str, intended: &str, edits: usize) -> bool {
    let letters = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let allowed = match intended.chars().count() {
        0..4 => return false,
        4..7 => 1,
        _ => edits,
    };
    !name.is_empty() && letters(name) != letters(intended) && distance(name, intended) <= allowed
}

/// Returns the number of edits that turn one text into another: inserted, removed, replaced and swapped letters.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // Names of networks are short: `topology.istio.io/network` is a label.
    if from.len().abs_diff(to.len()) > 2 {
        return usize::MAX;
    }
    let mut rows = vec![(0..=to.len()).collect::<Vec<usize>>()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let at = |row: usize, column: usize| {
                rows.get(row).and_then(|row| row.get(column)).copied().unwrap_or(usize::MAX - 1)
            };
            let replaced = at(i, j) + usize::from(a != b);
            let left = row.last().copied().unwrap_or_default();
            let mut best = replaced.min(at(i, j + 1) + 1).min(left + 1);
            let is_swapped =
                i > 0 && j > 0 && from.get(i - 1) == Some(b) && to.get(j - 1) == Some(a);
            if is_swapped {
                best = best.min(at(i - 1, j - 1) + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("rows of the admin API")
    }

    #[test]
    fn names_with_one_or_two_wrong_letters_are_misspelt() {
        for (name, intended, expected) in [
            ("prod-wset", "prod-west", true),
            ("prod-wes", "prod-west", true),
            ("prod_west", "prod-west", true),
            ("prodwest1", "prod-west", true),
            ("prod-east", "prod-west", true),
            ("n1", "n2", false),
            ("zone-1", "zone-2", false),
            ("zone-10", "zone-2", false),
            ("dev", "prod-west", false),
            ("", "prod", false),
            ("lab", "lan", false),
            ("prod-west", "prod-west", false),
        ] {
            assert_eq!(is_misspelt(name, intended, 2), expected, "{name} {intended}");
        }
    }

    #[test]
    fn gateway_that_may_not_claim_its_network_is_the_cause_of_a_network_without_a_gateway() {
        let networks = json!([
            { "network": "n1", "clusters": ["east"], "gateways": [{}], "pending": [] },
            { "network": "n2", "clusters": ["west"], "gateways": [], "pending": [] },
        ]);
        let networks: Vec<Network> = typed(networks);
        let found = |claim: Value| {
            let clusters = json!([
                { "id": "east", "endpoints": 1 },
                { "id": "west", "endpoints": 1, "ignoredClaims": [claim] },
            ]);
            let found = of_networks(&networks, &typed::<Vec<_>>(clusters));
            (found[0].code.id, found[0].fact.clone())
        };
        let claim = "gateway service strait-system/gateway: policy clusters.west.networks";
        let (code, fact) = found(json!({ "claim": claim, "network": "n2" }));
        assert_eq!(code, codes::CLAIM_IGNORED.id);
        assert!(fact.contains(claim), "{fact}");
        for other in [
            json!({ "claim": claim, "network": "n3" }),
            json!({ "claim": "label topology.istio.io/network of the pod", "network": "n2" }),
        ] {
            assert_eq!(found(other).0, codes::NO_GATEWAY.id);
        }
    }

    #[test]
    fn gateway_in_a_cluster_of_another_network_is_a_problem() {
        let found = |clusters_of_n3: Value| {
            let networks = json!([
                { "network": "n1", "clusters": ["c1", "c3"], "gateways": [{ "cluster": "c1" }], "pending": [] },
                { "network": "n3", "clusters": clusters_of_n3, "gateways": [
                    { "cluster": "c3", "source": "service a/b" }, { "source": "mesh networks" },
                ], "pending": [] },
            ]);
            let found = of_networks(&typed::<Vec<_>>(networks), &[]);
            found.into_iter().map(|one| (one.code.id, one.object)).collect::<Vec<_>>()
        };
        assert_eq!(found(json!([])), [(codes::NETWORK_TYPO.id, "network/n3".to_owned())]);
        assert_eq!(found(json!(["c3"])), []);
    }

    #[test]
    fn network_without_a_gateway_and_with_a_similar_name_is_a_typo() {
        let codes = |networks: Value| {
            let clusters =
                json!([{ "id": "east", "endpoints": 1 }, { "id": "west", "endpoints": 1 }]);
            let found = of_networks(&typed::<Vec<_>>(networks), &typed::<Vec<_>>(clusters));
            found.iter().map(|row| row.code.id).collect::<Vec<_>>()
        };
        let row = |network: &str, clusters: &[&str], gateways: usize| json!({ "network": network, "clusters": clusters, "gateways": vec![json!({}); gateways] });
        let west = row("prod-west", &["west"], 1);
        assert_eq!(codes(json!([west, row("prod-wset", &["west"], 0)])), ["STR0401", "STR0433"]);
        assert_eq!(codes(json!([west, row("prod-wset", &["west"], 1)])), [""; 0]);
        assert_eq!(codes(json!([west, row("prod-wset", &["a", "west"], 0)])), ["STR0401"]);
        assert_eq!(codes(json!([west, row("prod-east", &["east"], 0)])), ["STR0401"]);
        assert_eq!(
            codes(json!([row("prod-west", &["west"], 0), row("prod-wset", &[], 0)])),
            ["STR0401"]
        );
    }

    #[test]
    fn ignored_claim_of_a_similar_network_is_a_problem() {
        let claims = |claim: &str, network: &str| {
            let claim = json!({ "claim": claim, "network": network });
            let row = json!({ "id": "west", "network": "prod-west", "ignoredClaims": [claim] });
            let networks = json!([{ "network": "prod-west" }, { "network": "lab" }]);
            let found = of_claims(&typed(row), &typed::<Vec<_>>(networks));
            (found[0].is_problem, found[0].code.id)
        };
        assert_eq!(claims("label", "prod-wset"), (true, "STR0433"));
        assert_eq!(claims("label", "lab"), (false, "STR0412"));
        assert_eq!(claims("label", "n-2"), (true, "STR0433"), "no such network");
        assert_eq!(claims("label: policy clusters.west.networks", "n-2"), (false, "STR0412"));
    }

    #[test]
    fn gateway_of_two_networks_and_gateway_with_another_network_are_problems() {
        let gateway = |cluster: &str, address: &str| json!({ "cluster": cluster, "source": "Service s/gw", "address": address, "port": 15443 });
        let row = |network: &str, cluster: &str, gateways: Vec<Value>| json!({ "network": network, "clusters": [cluster], "gateways": gateways });
        let facts = |networks: Value| {
            let clusters = json!([{ "id": "c1", "endpoints": 1 }, { "id": "c2", "endpoints": 1 }]);
            let found = of_networks(&typed::<Vec<_>>(networks), &typed::<Vec<_>>(clusters));
            found.iter().map(|row| format!("{} {}", row.code.id, row.fact)).collect::<Vec<_>>()
        };
        let (one, two) = (gateway("c1", "192.0.2.1"), gateway("c2", "192.0.2.2"));
        let well = json!([row("n1", "c1", vec![one.clone()]), row("n2", "c2", vec![two.clone()])]);
        assert_eq!(facts(well), [""; 0]);
        let same = row("n2", "c2", vec![gateway("c2", "192.0.2.1")]);
        let found = facts(json!([row("n1", "c1", vec![one.clone()]), same]));
        assert_eq!(found.len(), 1, "{found:?}");
        let expected = "STR0435 networks n1 and n2 have the same gateway 192.0.2.1:15443";
        assert!(found[0].starts_with(expected), "{found:?}");
        let found = facts(json!([row("n1", "c1", vec![one, two]), row("n2", "c2", vec![])]));
        assert_eq!(found.len(), 1, "{found:?}");
        let expected = "Service s/gw in cluster c2 of this network is a gateway of network n1";
        assert!(found[0].starts_with("STR0401") && found[0].contains(expected), "{found:?}");
    }
}
