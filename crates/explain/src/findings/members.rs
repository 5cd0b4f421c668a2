//! Findings about a member that its state does not show: a credential that ends soon, and foreign root
//! certificates.

use super::{MeshFinding, or_none};
use strait_admin_api::{Cluster, ClusterRoots, CredentialKind};
use strait_base::codes;

const CATEGORY: &str = "clusters";

/// Returns the findings about the credential and the root certificates of a member.
pub fn of_member(cluster: &Cluster) -> Vec<MeshFinding> {
    let object = format!("cluster/{}", or_none(&cluster.id));
    let mut found: Vec<MeshFinding> = credential_ends(cluster, &object).into_iter().collect();
    found.extend(cluster.roots.iter().flat_map(|roots| of_roots(roots, &object)));
    found
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
            "{foreign} of its {namespaces} namespaces contain root certificates of another writer, and not ours ({}); {beside} namespaces contain both",
            first.join(", "),
        );
        found.push(MeshFinding::problem(CATEGORY, &codes::ROOTS_FOREIGN, object.to_owned(), fact));
    }
    found
}
