//! Tests of changed credentials: a swap without a list, a refused credential, and another user.

use base64::Engine as _;
use serde_json::Value;

use super::*;
use crate::clusters::status::ClusterStatus;
use strait_kube_client::testing::loopback_access;

const LIVE: [(&str, ClusterState); 2] = [("hub", ClusterState::Live), ("east", ClusterState::Live)];
/// Longer than any pause between the start of a swap and its effect.
const SETTLED: Duration = Duration::from_millis(1500);

/// Returns a token of a service account.
fn token(sim: &SimCluster, account: &str) -> String {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "shop", "name": account },
        "spec": { "serviceAccountName": account },
    });
    sim.store().apply(pod).expect("a pod");
    let lifetime = Duration::from_secs(3600);
    sim.pod_token("shop", account, "https://kubernetes.default.svc", lifetime).expect("a token")
}

/// Returns the Secret of a member with this token.
fn secret_with(sim: &SimCluster, token: &str) -> Value {
    let access = loopback_access(&sim.url(), sim.certificate_authority(), token);
    let mut secret = sim.member_secret(SYSTEM);
    let id: ClusterId = sim.id().into();
    let text = base64::engine::general_purpose::STANDARD.encode(kubeconfig::write(&id, &access));
    secret["data"] = serde_json::json!({ sim.id(): text });
    secret
}

/// Returns the number of lists so far, and of all requests but watches. Requests for kinds that the
/// cluster lacks are repeated from time to time, and don't count.
fn counts(sim: &SimCluster) -> (usize, usize) {
    let kinds = ["services", "endpointslices", "pods", "nodes", "namespaces"];
    let is_list = |one: &strait_sim::Request| {
        let is_initial = one.verb == "watch" && one.query.contains("sendInitialEvents");
        kinds.contains(&one.resource) && (one.verb == "list" || is_initial)
    };
    let is_other = |one: &strait_sim::Request| !matches!(one.verb, "watch" | "list");
    let others = |one: &strait_sim::Request| is_other(one) && one.path != "/version";
    (sim.requests(is_list).len(), sim.requests(others).len())
}

impl Mesh {
    async fn status(&self, is_met: impl Fn(&ClusterStatus) -> bool) -> ClusterStatus {
        let mut statuses = self.outputs.statuses.clone();
        let found = |statuses: &Arc<Vec<ClusterStatus>>| {
            statuses.iter().any(|one| one.id == "east" && is_met(one))
        };
        let met = tokio::time::timeout(LIMIT, statuses.wait_for(found)).await.is_ok();
        let current = self.outputs.statuses.borrow();
        let east = current.iter().find(|one| one.id == "east").cloned();
        assert!(met, "{east:#?}");
        east.expect("a member")
    }

    fn apply(&self, secret: Value) {
        self.hub.store().apply(secret).expect("a Secret");
    }
}

fn principal(status: &ClusterStatus) -> Option<&str> {
    status.credential.as_ref()?.principal.as_deref()
}

fn last_error(status: &ClusterStatus) -> Option<&str> {
    status.credential.as_ref()?.last_error.as_deref()
}

#[tokio::test]
async fn new_token_of_the_same_user_is_used_without_a_list() {
    let east = sim("east").await;
    let mut mesh = Mesh::start().await;
    mesh.apply(secret_with(&east, &token(&east, "reader")));
    mesh.until_clusters(&["east", "hub"]).await;
    mesh.until(&LIVE).await;
    let user = "system:serviceaccount:shop:reader";
    mesh.status(|east| principal(east) == Some(user)).await;
    let before = counts(&east);
    for rotation in 0..20 {
        mesh.apply(secret_with(&east, &token(&east, "reader")));
        // Changes of the cluster arrive meanwhile.
        east.store()
            .apply(service("shop", &format!("s{rotation}"), "10.96.1.1", &[HTTP]))
            .expect("a service");
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    tokio::time::sleep(SETTLED).await;
    let (lists, requests) = counts(&east);
    assert_eq!(lists, before.0);
    assert!(requests - before.1 <= 3 * 20, "{} requests", requests - before.1);
    let status = mesh.status(|east| east.services >= 21).await;
    assert_eq!((status.state, status.reason), (ClusterState::Live, None));
    assert_eq!(status.relists, 0);
}

#[tokio::test]
async fn refused_token_leaves_the_old_one_in_use_and_is_tried_when_that_is_refused() {
    let east = sim("east").await;
    let mut mesh = Mesh::start().await;
    let first = token(&east, "reader");
    mesh.apply(secret_with(&east, &first));
    mesh.until_clusters(&["east", "hub"]).await;
    mesh.status(|east| principal(east).is_some()).await;
    let before = counts(&east);
    mesh.apply(secret_with(&east, "unknown"));
    let status = mesh.status(|east| last_error(east).is_some()).await;
    assert_eq!(status.state, ClusterState::Live);
    let reason = status.reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with("the new kubeconfig is not used: STR0304"), "{reason}");
    assert!(!format!("{status:?}").contains("unknown\""), "{status:?}");
    // The first one again.
    mesh.apply(secret_with(&east, &first));
    let status = mesh.status(|east| last_error(east).is_none()).await;
    assert_eq!((status.state, status.reason), (ClusterState::Live, None));
    assert_eq!(counts(&east).0, before.0);
}

#[tokio::test]
async fn token_of_another_user_starts_another_run() {
    let east = sim("east").await;
    let mut mesh = Mesh::start().await;
    mesh.apply(secret_with(&east, &token(&east, "reader")));
    mesh.until_clusters(&["east", "hub"]).await;
    mesh.status(|east| principal(east).is_some()).await;
    let before = counts(&east);
    mesh.apply(secret_with(&east, &token(&east, "other")));
    mesh.status(|east| principal(east) == Some("system:serviceaccount:shop:other")).await;
    assert!(counts(&east).0 > before.0);
    mesh.until(&LIVE).await;
}

#[tokio::test]
async fn revoked_token_is_replaced_by_the_newest_one_at_once() {
    let east = sim("east").await;
    let mut mesh = Mesh::start().await;
    // The administrator's token, which the simulator revokes.
    mesh.apply(secret_with(&east, &east.token()));
    mesh.until_clusters(&["east", "hub"]).await;
    mesh.status(|east| principal(east).is_some()).await;
    let lists = counts(&east).0;
    let next = east.rotate_token();
    mesh.apply(secret_with(&east, &next));
    let began = std::time::Instant::now();
    mesh.until(&LIVE).await;
    tokio::time::sleep(SETTLED).await;
    mesh.until(&LIVE).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(counts(&east).0, lists);
}
