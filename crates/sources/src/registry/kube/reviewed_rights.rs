//! The rights with which a cluster is read, as its API server lists them. Missing rights are known
//! without a refused request, and they are reported together.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::kind::IndexedKind;
use strait_base::latest::publish_change;
use strait_kube_client::{ApiClient, OwnRights};

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
pub(super) type ReviewedRights = BTreeMap<IndexedKind, &'static str>;

/// Reviews the rights at once and then repeatedly. Never returns. Results of servers without such
/// reviews are empty.
pub(super) async fn follow(client: &ApiClient, reviewed: &watch::Sender<ReviewedRights>) {
    loop {
        if let Ok(Ok(rights)) = timeout(LIMIT, OwnRights::read(client, NAMESPACE)).await {
            let missing = missing(&rights);
            publish_change(reviewed, missing);
        }
        let is_complete = reviewed.borrow().is_empty();
        sleep(if is_complete { AGAIN } else { AGAIN_MISSING }).await;
    }
}

fn missing(rights: &OwnRights) -> ReviewedRights {
    let verb = |kind: IndexedKind| {
        let is_missing = |verb: &&str| rights.lacks(verb, kind.group(), kind.plural());
        ["list", "watch"].into_iter().find(is_missing)
    };
    KINDS.into_iter().filter_map(|kind| Some((kind, verb(kind)?))).collect()
}
