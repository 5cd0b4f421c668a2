//! Check whether the workloads of all clusters trust the same root certificates.
//!
//! It queries each member with the credential in its Secret, like the control plane. A member that
//! denies access is reported, not judged.

use std::collections::BTreeSet;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use super::finding::{note, problem};
use super::members::{MemberApi, read_each};
use crate::cli::failure::CommandFailure;
use strait_base::codes;

/// The root certificates that a cluster publishes.
pub(super) struct Published {
    cluster: String,
    /// The root certificates, or the reason why they are unknown.
    roots: Result<BTreeSet<Vec<u8>>, String>,
}

/// Returns the published root certificates of the config cluster and of each member. Clusters that
/// publish none are left out.
pub(super) async fn gather(
    hub: Result<Option<String>, CommandFailure>,
    name: &str,
    members: &[MemberApi],
    namespace: &str,
) -> Vec<Published> {
    let answers =
        read_each(members, |member| async move { member.published_roots(namespace).await });
    let own = published(name.to_owned(), hub);
    let of_members = answers.await.into_iter().filter_map(|(id, answer)| published(id, answer));
    own.into_iter().chain(of_members).collect()
}

fn published(cluster: String, answer: Result<Option<String>, CommandFailure>) -> Option<Published> {
    let roots = match answer {
        Ok(pem) => Ok(certificates(&pem?)),
        Err(failure) => Err(failure.message().to_owned()),
    };
    Some(Published { cluster, roots })
}

fn certificates(pem: &str) -> BTreeSet<Vec<u8>> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
    found.map(|certificate| certificate.to_vec()).collect()
}

/// Returns findings about clusters that trust different root certificates than most clusters. If
/// several sets are equally common, the first one is the reference.
pub(super) fn differences(found: &[Published]) -> Vec<Value> {
    let known: Vec<(&str, &BTreeSet<Vec<u8>>)> =
        found.iter().filter_map(|one| Some((&*one.cluster, one.roots.as_ref().ok()?))).collect();
    let count_equal =
        |roots: &BTreeSet<Vec<u8>>| known.iter().filter(|(_, one)| *one == roots).count();
    // `max_by_key` returns the last of equal items.
    let usual = known.iter().rev().map(|(_, roots)| *roots).max_by_key(|roots| count_equal(roots));
    let mut rows = Vec::new();
    for (cluster, roots) in &known {
        let Some(usual) = usual.filter(|usual| usual != roots) else { continue };
        let others: Vec<&str> =
            known.iter().filter(|(_, one)| *one == usual).map(|(cluster, _)| *cluster).collect();
        let (object, others) = (format!("cluster/{cluster}"), others.join(", "));
        let shared = roots.intersection(usual).count();
        rows.push(if shared == 0 {
            let fact = format!(
                "its workloads trust none of the root certificates of {others}: mTLS between them fails"
            );
            problem("trust", &codes::ROOTS_DIFFER, object, fact)
        } else {
            let fact = format!(
                "its workloads trust {} root certificates; workloads of {others} trust {}, with {shared} in common",
                roots.len(),
                usual.len()
            );
            note("trust", &codes::ROOTS_DIFFER, object, fact)
        });
    }
    if !known.is_empty() {
        let silent = found.iter().filter_map(|one| Some((&one.cluster, one.roots.as_ref().err()?)));
        rows.extend(silent.map(|(cluster, why)| {
            let fact = format!(
                "the root certificates of the cluster's workloads can't be compared: {why}"
            );
            note("trust", &codes::ROOTS_DIFFER, format!("cluster/{cluster}"), fact)
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::text;

    fn published(cluster: &str, roots: &[u8]) -> Published {
        let roots = roots.iter().map(|root| vec![*root]).collect();
        Published { cluster: cluster.to_owned(), roots: Ok(roots) }
    }

    #[test]
    fn clusters_with_unusual_roots_are_reported() {
        let found_in = |found: &[Published]| {
            let rows = differences(found);
            let short =
                |row: &Value| format!("{} {}", text(&row["severity"]), text(&row["object"]));
            rows.iter().map(short).collect::<Vec<_>>()
        };
        let (hub, east, west) =
            (published("hub", &[1]), published("east", &[1]), published("west", &[2]));
        assert_eq!(found_in(&[hub, east, west]), ["problem cluster/west"]);
        let (hub, east) = (published("hub", &[1]), published("east", &[1, 2]));
        assert_eq!(
            found_in(&[hub, east]),
            ["note cluster/east"],
            "the first of equally common sets is used"
        );
        let silent = || Published { cluster: "west".to_owned(), roots: Err("403".to_owned()) };
        assert_eq!(found_in(&[published("hub", &[1]), silent()]), ["note cluster/west"]);
        assert!(found_in(&[silent()]).is_empty(), "no roots to compare with");
        assert!(found_in(&[published("hub", &[1]), published("east", &[1])]).is_empty());
    }
}
