//! Access policies that lie in member clusters: Strait reads those of the config cluster alone, and whoever comes from a
//! control plane in each cluster must not lose one unseen.
//!
//! Asks each member for a count of each kind, by the credential in its Secret. One that doesn't know such a kind, may not
//! be asked, or doesn't answer is passed over: that is told elsewhere, or is nobody's fault.

use serde_json::Value;

use super::finding::note;
use crate::cli::cluster::api::{ClusterApi, kubeconfigs};
use crate::cli::failure::CommandFailure;
use crate::cli::output::items;
use strait_base::codes;
use strait_kube_client::Loopback;
use strait_model::{ISTIO_SECURITY, ISTIO_SECURITY_VERSIONS};
use strait_sources::clusters::kubeconfig;

/// The kinds, with what they are called in paths and by people.
const KINDS: [(&str, &str); 3] = [
    ("authorizationpolicies", "AuthorizationPolicies"),
    ("peerauthentications", "PeerAuthentications"),
    ("requestauthentications", "RequestAuthentications"),
];

/// What each member holds of them, a line for each kind.
///
/// # Errors
/// The Secrets can't be read.
pub(super) async fn gather(
    hub: &ClusterApi,
    namespace: &str,
) -> Result<Vec<Value>, CommandFailure> {
    let hub_uid = hub.uid().await.ok();
    let mut rows = Vec::new();
    for secret in hub.member_secrets(namespace).await? {
        for (id, bytes) in kubeconfigs(&secret) {
            let Ok(access) = kubeconfig::parse(&bytes, None, Loopback::Allowed) else { continue };
            let Ok(member) = hub.with_access(&access) else { continue };
            // Those of the config cluster count, whatever it is called here.
            let is_hub = access.server == *hub.server()
                || is_same(hub_uid.as_deref(), member.uid().await.ok().as_deref());
            if is_hub {
                continue;
            }
            for (plural, kind) in KINDS {
                let count = count(&member, plural).await;
                rows.extend((count > 0).then(|| line(&id, count, kind)));
            }
        }
    }
    Ok(rows)
}

/// Whether two clusters are one, as far as both may be asked for their identity.
fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    one.is_some() && one == other
}

fn line(id: &str, count: u64, kind: &str) -> Value {
    let lie = if count == 1 { "lies" } else { "lie" };
    let fact = format!(
        "{count} of its own {kind} {lie} in it and count for nothing: policies are read from the config cluster alone"
    );
    note("access", &codes::ACCESS_IN_MEMBER, format!("cluster/{id}"), fact)
}

/// How many objects of a kind there are, as far as that is told. One of them is read.
async fn count(member: &ClusterApi, plural: &str) -> u64 {
    for version in ISTIO_SECURITY_VERSIONS {
        let path = format!("/apis/{ISTIO_SECURITY}/{version}/{plural}?limit=1");
        if let Ok(Some(list)) = member.get(&path).await {
            return counted(&list);
        }
    }
    0
}

/// How many objects there are of which this is the beginning of a list.
fn counted(list: &Value) -> u64 {
    let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
    items(&list["items"]).len() as u64 + more
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn clusters_of_which_nobody_knows_who_they_are_are_two() {
        assert!(is_same(Some("a"), Some("a")));
        for (one, other) in
            [(Some("a"), Some("b")), (Some("a"), None), (None, Some("a")), (None, None)]
        {
            assert!(!is_same(one, other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn objects_are_counted_by_the_beginning_of_their_list() {
        for (list, expected) in [
            (json!({ "metadata": { "remainingItemCount": 41 }, "items": [{}] }), 42),
            (json!({ "metadata": {}, "items": [{}] }), 1),
            (json!({ "metadata": {}, "items": [] }), 0),
            (json!({ "metadata": {}, "items": null }), 0),
        ] {
            assert_eq!(counted(&list), expected, "{list}");
        }
    }
}
