//! The record in a simulated config cluster.

use tokio::sync::watch;

use super::*;
use strait_kube_client::testing::loopback_access;
use strait_sim::{Fault, Options, SimCluster};

const SYSTEM: &str = "strait-system";

async fn config_cluster() -> (SimCluster, UsedInvitations) {
    let sim = SimCluster::start("config", Options::default()).await.expect("a free port");
    sim.store().apply(strait_sim::objects::namespace(SYSTEM)).expect("a namespace");
    for number in 1..=9 {
        invite(&sim, number, number);
    }
    let record = record_in(&sim);
    (sim, record)
}

/// Writes the Secret `member-NUMBER` with an invitation.
fn invite(sim: &SimCluster, number: u8, invitation: u8) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": format!("member-{number}"), "namespace": SYSTEM },
        "data": { INVITATION_KEY: BASE64.encode(hex::encode(&[invitation; 32])) },
    });
    sim.store().apply(secret).expect("a Secret");
}

fn record_in(sim: &SimCluster) -> UsedInvitations {
    let access = loopback_access(&sim.url(), sim.certificate_authority(), sim.token());
    let client = ConfigClient::new(watch::channel(access).1);
    UsedInvitations::new(Some((client, SYSTEM.to_owned())))
}

fn invitation(number: u8, expires: SystemTime) -> Invitation {
    Invitation { sha256: [number; 32], expires }
}

/// Records a use at `now`, and returns the status and the text of a refusal.
async fn use_at(
    record: &UsedInvitations,
    invitation: Invitation,
    now: SystemTime,
) -> Result<(), (u16, String)> {
    use_with(record, invitation, &BTreeSet::new(), now).await
}

/// Records a use like [`use_at`], while members have the invitations with these hashes.
async fn use_with(
    record: &UsedInvitations,
    invitation: Invitation,
    present: &BTreeSet<String>,
    now: SystemTime,
) -> Result<(), (u16, String)> {
    let member = format!("member-{}", invitation.sha256[0]);
    let used = record.record((SYSTEM, &member), invitation, present, now).await;
    used.map_err(|refusal| (refusal.status, refusal.fact))
}

fn entries(sim: &SimCluster) -> Vec<String> {
    let secret = sim.store().get("Secret", SYSTEM, NAME).map(|object| object.value());
    let data = secret.unwrap_or_default()["data"].clone();
    data.as_object().into_iter().flatten().map(|(key, _)| key[..2].to_owned()).collect()
}

fn writes(sim: &SimCluster) -> Vec<(&'static str, String)> {
    let writes = sim.requests(|request| request.verb != "get");
    writes.into_iter().map(|request| (request.verb, request.path)).collect()
}

#[tokio::test]
async fn invitation_is_used_once_at_all_replicas_together() {
    let (sim, record) = config_cluster().await;
    let (now, other) = (SystemTime::now(), record_in(&sim));
    let hour = Duration::from_secs(3600);
    for number in [1, 2] {
        let invitation = invitation(number, now + hour);
        assert_eq!(use_at(&record, invitation, now).await, Ok(()));
        for again in [&record, &other] {
            let (status, fact) = use_at(again, invitation, now).await.expect_err("used");
            assert_eq!((status, &*fact), (401, "the invitation was already used"));
        }
    }
    assert_eq!(entries(&sim), ["01", "02"]);
}

#[tokio::test]
async fn concurrent_uses_of_one_invitation_have_one_winner_and_disturb_no_other() {
    let (sim, record) = config_cluster().await;
    let other = record_in(&sim);
    let now = SystemTime::now();
    let (first, second) = (invitation(1, now), invitation(2, now));
    let uses = [(&record, first), (&other, first), (&record, second), (&other, second)];
    let results =
        futures::future::join_all(uses.map(|(at, invitation)| use_at(at, invitation, now))).await;
    for pair in results.chunks(2) {
        let statuses: Vec<_> =
            pair.iter().filter_map(|one| one.as_ref().err()).map(|(status, _)| *status).collect();
        assert_eq!(statuses, [401], "{results:?}");
    }
}

#[tokio::test]
async fn missing_right_names_the_value_of_the_chart() {
    let (sim, record) = config_cluster().await;
    // Secrets can be read, and neither be created nor changed.
    sim.fault(Fault::Errors { codes: vec![200, 200, 403] });
    let now = SystemTime::now();
    let (status, fact) = use_at(&record, invitation(1, now), now).await.expect_err("forbidden");
    assert_eq!(status, 503);
    assert!(fact.contains("strait-system/strait-relay-invitations"), "{fact}");
    assert!(fact.contains("rbac.relays=true"), "{fact}");
    // The attempt does not use the invitation up.
    sim.heal();
    assert_eq!(use_at(&record, invitation(1, now), now).await, Ok(()));
}

#[tokio::test]
async fn only_a_conflict_is_retried_and_no_error_claims_a_used_invitation() {
    let (sim, record) = config_cluster().await;
    let now = SystemTime::now();
    use_at(&record, invitation(9, now), now).await.expect("the Secret is created");
    for (code, attempts) in [(409, ATTEMPTS_MAX), (413, 1), (422, 1), (500, 1)] {
        // The Secrets can be read, and each change fails.
        sim.fault(Fault::Errors { codes: vec![200, 200, code] });
        let before = writes(&sim).len();
        let (status, fact) = use_at(&record, invitation(1, now), now).await.expect_err("refused");
        assert_eq!((status, writes(&sim).len() - before), (503, attempts), "{code}: {fact}");
        assert!(!fact.contains("already used"), "{fact}");
        sim.heal();
    }
    assert_eq!(use_at(&record, invitation(1, now), now).await, Ok(()));
}

#[tokio::test]
async fn entry_ends_a_day_after_its_invitation_unless_a_member_still_has_it() {
    let (sim, record) = config_cluster().await;
    let now = SystemTime::now();
    for number in [1, 2] {
        use_at(&record, invitation(number, now), now).await.expect("new");
    }
    use_at(&record, invitation(3, now + Duration::from_secs(60)), now).await.expect("new");
    let present = BTreeSet::from([hex::encode(&[2; 32])]);
    let later = now + ENTRY_GRACE + Duration::from_secs(30);
    use_with(&record, invitation(4, later), &present, later).await.expect("new");
    assert_eq!(entries(&sim), ["02", "03", "04"]);
    assert_eq!(use_at(&record, invitation(2, now), later).await.map_err(|it| it.0), Err(401));
}

#[tokio::test]
async fn replaced_invitation_is_not_used_although_the_watch_has_not_seen_its_successor() {
    let (sim, record) = config_cluster().await;
    let now = SystemTime::now();
    invite(&sim, 1, 8);
    let (status, fact) = use_at(&record, invitation(1, now), now).await.expect_err("replaced");
    assert_eq!((status, &*fact), (401, "the invitation was replaced by a later one"));
    assert_eq!(entries(&sim), [""; 0]);
}

#[tokio::test]
async fn only_the_secret_of_the_record_is_written() {
    let (sim, record) = config_cluster().await;
    let now = SystemTime::now();
    for number in [1, 2] {
        use_at(&record, invitation(number, now), now).await.expect("new");
    }
    let all = format!("/api/v1/namespaces/{SYSTEM}/secrets");
    let own = format!("{all}/{NAME}");
    assert_eq!(writes(&sim), [("create", all), ("patch", own.clone()), ("patch", own)]);
}
