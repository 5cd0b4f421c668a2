//! Notes about access policies in member clusters. Strait reads only policies of the config
//! cluster. Users who migrate from a control plane per cluster must notice policies that would lose
//! their effect.
//! It asks each member for the number of objects of each kind, with the credential in its Secret. A
//! member that lacks the kind, denies access or does not respond is skipped: other findings report
//! that, or it is no fault.

use http::Uri;
use serde_json::Value;

use super::finding::note;
use super::members::{MemberApi, read_each};
use crate::cli::cluster::api::ClusterApi;
use crate::cli::output::items;
use strait_base::codes;
use strait_model::{ISTIO_SECURITY, ISTIO_SECURITY_VERSIONS};

/// The kinds, with their plural in API paths and their name for people.
const KINDS: [(&str, &str); 3] = [
    ("authorizationpolicies", "AuthorizationPolicies"),
    ("peerauthentications", "PeerAuthentications"),
    ("requestauthentications", "RequestAuthentications"),
];

/// Returns a note for each member and kind with policies. `hub` is the config cluster's URL and UID:
/// its policies take effect, under whichever ID it is a member.
pub(super) async fn gather(hub: (&Uri, Option<&str>), members: &[MemberApi]) -> Vec<Value> {
    let (hub_server, hub_uid) = hub;
    let counts = read_each(members, |member| async move {
        let is_hub =
            member.server() == hub_server || is_same(hub_uid, member.uid().await.ok().as_deref());
        let mut counts = Vec::new();
        if !is_hub {
            for (plural, kind) in KINDS {
                counts.push((kind, count(&member, plural).await));
            }
        }
        Ok(counts)
    });
    let mut rows = Vec::new();
    for (id, counts) in counts.await {
        let found = counts.unwrap_or_default().into_iter().filter(|(_, count)| *count > 0);
        rows.extend(found.map(|(kind, count)| line(&id, count, kind)));
    }
    rows
}

/// Returns whether two cluster UIDs are equal; false if one is unknown.
fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    one.is_some() && one == other
}

fn line(id: &str, count: u64, kind: &str) -> Value {
    let lie = if count == 1 { "is" } else { "are" };
    let fact = format!(
        "{count} {kind} {lie} defined in this member cluster, without effect: policies are read only from the config cluster"
    );
    note("access", &codes::ACCESS_IN_MEMBER, format!("cluster/{id}"), fact)
}

/// Returns the number of objects of a kind, or 0 if it is unknown. Requests only one object.
async fn count(member: &ClusterApi, plural: &str) -> u64 {
    for version in ISTIO_SECURITY_VERSIONS {
        let path = format!("/apis/{ISTIO_SECURITY}/{version}/{plural}?limit=1");
        if let Ok(Some(list)) = member.get(&path).await {
            return counted(&list);
        }
    }
    0
}

/// Returns the total number of objects from the first page of a list.
fn counted(list: &Value) -> u64 {
    let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
    items(&list["items"]).len() as u64 + more
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn clusters_with_unknown_uids_are_different() {
        assert!(is_same(Some("a"), Some("a")));
        for (one, other) in
            [(Some("a"), Some("b")), (Some("a"), None), (None, Some("a")), (None, None)]
        {
            assert!(!is_same(one, other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn objects_are_counted_from_the_first_page_of_a_list() {
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
