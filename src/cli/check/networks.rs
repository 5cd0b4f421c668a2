//! Findings of `strait check` about networks: missing, unusable and dead gateways, ignored claims, and names that are
//! probably misspelt.

use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::network::socket;
use crate::cli::output::text;
use strait_admin_api::{Cluster, IgnoredClaim, Network};
use strait_base::codes;

/// Returns the findings about networks and their gateways.
pub(super) fn of_networks(networks: &[Network], clusters: &[Cluster]) -> Vec<Value> {
    let mut found = Vec::new();
    let has_endpoints =
        |cluster: &String| clusters.iter().any(|row| row.id == *cluster && row.endpoints > 0);
    for row in networks.iter().filter(|_| networks.len() > 1) {
        let object = format!("network/{}", text(&row.network));
        let (gateways, pending) = (&row.gateways, &row.pending);
        // A network without endpoints, for example with only a config cluster, needs no gateway.
        let is_used = row.clusters.iter().any(has_endpoints);
        if gateways.is_empty() && pending.is_empty() && is_used {
            let fact = "the network has no gateway, so other networks can't reach it";
            found.push(match ignored_gateway(clusters, &row.network) {
                None => problem("networks", &codes::NO_GATEWAY, object.clone(), fact),
                Some(claim) => {
                    let fact = format!("{fact}: {claim} claims it, which has no effect");
                    problem("networks", &codes::CLAIM_IGNORED, object.clone(), fact)
                }
            });
        }
        if let Some(fact) = misspelt(row, networks) {
            found.push(problem("networks", &codes::NETWORK_TYPO, object.clone(), fact));
        }
        let dead: Vec<_> = gateways.iter().filter(|one| one.dead).collect();
        for gateway in &dead {
            let instead = match dead.len() == gateways.len() {
                true => "no other gateway of the network answers either, so all stay in use",
                false => "proxies use the other gateways of the network",
            };
            let fact = format!("gateway {} does not answer; {instead}", socket(gateway));
            found.push(problem("networks", &codes::GATEWAY_DEAD, object.clone(), fact));
        }
        for gateway in pending {
            let fact = format!("{}: {}", text(&gateway.source), text(&gateway.reason));
            let code = gateway.code.as_deref().and_then(codes::find);
            let code = code.unwrap_or(&codes::GATEWAY_PENDING);
            found.push(problem("networks", code, object.clone(), fact));
        }
    }
    found
}

/// Returns a claim of a gateway to the network that has no effect.
fn ignored_gateway(clusters: &[Cluster], network: &str) -> Option<String> {
    let claims = clusters.iter().flat_map(|row| &row.ignored_claims);
    let mut claims = claims.filter(|claim| claim.network == network);
    let is_of_gateway = |claim: &&IgnoredClaim| claim.claim.starts_with("gateway ");
    claims.find(is_of_gateway).map(|claim| text(&claim.claim))
}

/// Returns the findings about a cluster's network claims that have no effect.
pub(super) fn of_claims(cluster: &Cluster, object: &str) -> Vec<Value> {
    let of = |claim: &IgnoredClaim| {
        let (claim, network) = (text(&claim.claim), text(&claim.network));
        let fact = format!("{claim} claims network {network}, which has no effect");
        let intended = text(&cluster.network);
        if is_misspelt(&network, &intended, 2) {
            let fact = format!("{fact}; typo? The cluster is in network {intended}");
            return problem("networks", &codes::NETWORK_TYPO, object.to_owned(), fact);
        }
        note("networks", &codes::CLAIM_IGNORED, object.to_owned(), fact)
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
    let name = text(&network.network);
    // A cluster that is in both networks has few pods with the wrong label.
    let shares_user = |row: &Network| users.iter().any(|user| row.clusters.contains(user));
    let is_similar = |row: &&Network| {
        let edits = if shares_user(row) { 2 } else { 1 };
        has_gateway(row) && is_misspelt(&name, &text(&row.network), edits)
    };
    let intended = text(&all.iter().find(is_similar)?.network);
    let of = users.iter().map(|user| format!(" in cluster {}", text(user))).collect::<String>();
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
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

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
            (text(&found[0]["code"]), text(&found[0]["fact"]))
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
    fn network_without_a_gateway_and_with_a_similar_name_is_a_typo() {
        let codes = |networks: Value| {
            let clusters =
                json!([{ "id": "east", "endpoints": 1 }, { "id": "west", "endpoints": 1 }]);
            let found = of_networks(&typed::<Vec<_>>(networks), &typed::<Vec<_>>(clusters));
            found.iter().map(|row| text(&row["code"])).collect::<Vec<_>>()
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
        let claims = |network: &str| {
            let claim = json!({ "claim": "label", "network": network });
            let row = json!({ "id": "west", "network": "prod-west", "ignoredClaims": [claim] });
            let found = of_claims(&typed(row), "cluster/west");
            (text(&found[0]["severity"]), text(&found[0]["code"]))
        };
        assert_eq!(claims("prod-wset"), ("problem".into(), "STR0433".into()));
        assert_eq!(claims("lab"), ("note".into(), "STR0412".into()));
    }
}
