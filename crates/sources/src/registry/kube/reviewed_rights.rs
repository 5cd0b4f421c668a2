//! The rights with which a cluster is read, as its API server lists them. Missing rights are known
//! without a refused request, and they are reported together.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::kind::{IndexedKind, ReadPart};
use strait_base::latest::publish_change;
use strait_kube_client::{ApiClient, OwnRights};
use strait_model::ReadNamespaces;

/// The kinds that every cluster has. For other kinds, a missing right is not distinguishable from a
/// missing kind.
const KINDS: [IndexedKind; 5] = [
    IndexedKind::Services,
    IndexedKind::EndpointSlices,
    IndexedKind::Pods,
    IndexedKind::Nodes,
    IndexedKind::Namespaces,
];
/// The namespace of the review. Rights that apply only in it count as well, so it is one in which a
/// reader needs none.
const NAMESPACE: &str = "kube-node-lease";
/// The time limit of a review.
const LIMIT: Duration = Duration::from_secs(10);
/// The pause between reviews, and while a right is missing.
const AGAIN: Duration = Duration::from_secs(600);
const AGAIN_MISSING: Duration = Duration::from_secs(30);

/// The kinds that may not be read, each with the missing verb.
pub(super) type ReviewedRights = BTreeMap<(IndexedKind, ReadPart), &'static str>;

/// Reviews the rights at once and then repeatedly. Never returns. Results of servers without such
/// reviews are empty.
pub(super) async fn follow(
    client: &ApiClient,
    namespaces: &ReadNamespaces,
    reviewed: &watch::Sender<ReviewedRights>,
) {
    let is_whole = namespaces.is_whole();
    loop {
        let mut missing = reviewed.borrow().clone();
        review(client, NAMESPACE, None, |kind| is_whole || !kind.is_namespaced(), &mut missing)
            .await;
        for (part, name) in (0..).zip(namespaces.names()) {
            review(client, name, Some(part), IndexedKind::is_namespaced, &mut missing).await;
        }
        // A limited reader may lack the rights of the whole cluster on purpose.
        let is_complete = missing.keys().all(|(_, part)| !is_whole && part.is_none());
        publish_change(reviewed, missing);
        sleep(if is_complete { AGAIN } else { AGAIN_MISSING }).await;
    }
}

/// Reviews the rights to these kinds in a namespace.
async fn review(
    client: &ApiClient,
    namespace: &str,
    part: ReadPart,
    is_reviewed: impl Fn(IndexedKind) -> bool,
    missing: &mut ReviewedRights,
) {
    let Ok(Ok(rights)) = timeout(LIMIT, OwnRights::read(client, namespace)).await else { return };
    for kind in KINDS.into_iter().filter(|kind| is_reviewed(*kind)) {
        let is_missing = |verb: &&str| rights.lacks(verb, kind.group(), kind.plural());
        match ["list", "watch"].into_iter().find(is_missing) {
            Some(verb) => drop(missing.insert((kind, part), verb)),
            None => drop(missing.remove(&(kind, part))),
        }
    }
}
