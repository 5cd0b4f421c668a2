//! Findings about a member that its state does not show: a credential that ends soon, and foreign root
//! certificates.

use super::{MeshFinding, or_none};
use std::collections::BTreeMap;

use strait_admin_api::{Cluster, ClusterRoots, CredentialKind, SameAddresses};
use strait_base::codes;

const CATEGORY: &str = "clusters";
/// The maximum number of clusters that a finding about shared addresses names.
const NAMED_MAX: usize = 3;

/// Returns the findings about the credential and the root certificates of a member.
pub fn of_member(cluster: &Cluster) -> Vec<MeshFinding> {
    let object = format!("cluster/{}", or_none(&cluster.id));
    let mut found: Vec<MeshFinding> = credential_ends(cluster, &object).into_iter().collect();
    found.extend(cluster.roots.iter().flat_map(|roots| of_roots(roots, &object)));
    found
}

/// Returns the findings about pods of a member whose addresses other clusters' pods also have, so
/// that proxies of other clusters do not receive them: one for each network and each cluster whose
/// pods they receive instead.
pub fn of_same_addresses(cluster: &Cluster) -> Vec<MeshFinding> {
    let mut groups: BTreeMap<(&str, &str), Vec<&SameAddresses>> = BTreeMap::new();
    for same in cluster.same_addresses.iter().filter(|same| same.holder != cluster.id) {
        groups.entry((&same.network, &same.holder)).or_default().push(same);
    }
    let finding = |((network, holder), mut rows): ((&str, &str), Vec<&SameAddresses>)| {
        rows.sort_by_key(|same| std::cmp::Reverse(same.addresses));
        let mut others: Vec<String> = rows
            .iter()
            .take(NAMED_MAX)
            .map(|same| format!("{} ({}, first {})", same.cluster, same.addresses, same.first))
            .collect();
        if let Some(more) = rows.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            others.push(format!("{more} more clusters"));
        }
        let fact = format!(
            "same address: pods of it have addresses of pods of {} in network {network:?}; proxies of other clusters receive the pods of {holder}",
            others.join(", ")
        );
        let object = format!("cluster/{}", or_none(&cluster.id));
        MeshFinding::problem("networks", &codes::SAME_ADDRESS, object, fact)
    };
    groups.into_iter().map(finding).collect()
}

/// Returns the finding about a credential that ends soon.
fn credential_ends(cluster: &Cluster, object: &str) -> Option<MeshFinding> {
    let credential = cluster.credential.as_ref().filter(|credential| credential.ends_soon)?;
    let kind = match credential.kind {
        CredentialKind::ClientCertificate => "client certificate",
        _ => "token",
    };
    let by_itself = match credential.renews_itself {
        true => ", and the control plane could not renew it",
        false => "",
    };
    let expires = or_none(credential.expires.as_deref().unwrap_or_default());
    let fact = format!("its {kind} ends at {expires}{by_itself}");
    Some(MeshFinding::problem(CATEGORY, &codes::CREDENTIAL_ENDS, object.to_owned(), fact))
}

/// Returns the findings about the root certificates that a cluster's workloads receive.
fn of_roots(roots: &ClusterRoots, object: &str) -> Vec<MeshFinding> {
    let ClusterRoots { namespaces, current, foreign, foreign_first, beside, denied, .. } = roots;
    let mut found = Vec::new();
    if let Some(denied) = denied {
        let lack = namespaces.saturating_sub(*current);
        let fact = format!(
            "the root certificates can't be written into its namespaces ({lack} of {namespaces} are not confirmed to have them): {denied}"
        );
        found.push(MeshFinding::note(CATEGORY, &codes::ROOTS_DENIED, object.to_owned(), fact));
    }
    if *foreign > 0 {
        let mut first: Vec<&str> = foreign_first.iter().map(String::as_str).collect();
        if first.len() < *foreign {
            first.push("…");
        }
        let fact = format!(
            "in {foreign} of its {namespaces} namespaces ({}), istio-ca-root-cert contains the root certificates of another writer instead of Strait's; {beside} of them have Strait's in strait-ca-root-cert",
            first.join(", "),
        );
        found.push(MeshFinding::problem(CATEGORY, &codes::ROOTS_FOREIGN, object.to_owned(), fact));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_addresses_are_one_finding_per_holder() {
        let same = |cluster: &str, addresses| SameAddresses {
            network: "n1".into(),
            cluster: cluster.into(),
            addresses,
            first: "10.0.0.1".into(),
            holder: "a".into(),
        };
        let found = |same_addresses| {
            let cluster = Cluster { id: "z".into(), same_addresses, ..Cluster::default() };
            of_same_addresses(&cluster).into_iter().map(|one| one.fact).collect::<Vec<_>>()
        };
        let own = SameAddresses { holder: "z".into(), ..same("y", 1) };
        assert!(found(vec![own]).is_empty(), "proxies receive the pods of this cluster");
        let many = ["b", "c", "d", "e"].map(|id| same(id, 1));
        let facts = found(many.into_iter().chain([same("a", 2)]).collect());
        let expected = "same address: pods of it have addresses of pods of a (2, first 10.0.0.1), b (1, first \
                        10.0.0.1), c (1, first 10.0.0.1), 2 more clusters in network \"n1\"; proxies of other \
                        clusters receive the pods of a";
        assert_eq!(facts, [expected]);
    }

    #[test]
    fn foreign_roots_name_both_config_maps() {
        let roots = |foreign, beside| ClusterRoots {
            namespaces: 5,
            foreign,
            foreign_first: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
            beside,
            ..ClusterRoots::default()
        };
        let fact = |roots| of_roots(&roots, "cluster/c3").remove(0).fact;
        assert_eq!(
            fact(roots(5, 4)),
            "in 5 of its 5 namespaces (a, b, c, …), istio-ca-root-cert contains the root certificates \
             of another writer instead of Strait's; 4 of them have Strait's in strait-ca-root-cert"
        );
        assert!(of_roots(&roots(0, 0), "cluster/c3").is_empty());
    }
}
