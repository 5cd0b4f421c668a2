//! Tests for the reported states, and for their delivery to the config cluster.

use tokio::time::Instant;

use super::*;
use crate::clusters::status::{CredentialKind, CredentialStatus};
use strait_base::task::Supervisor;
use strait_kube_client::testing::loopback_access;
use strait_sim::{Options, SimCluster, objects};

const LIMIT: Duration = Duration::from_secs(30);
const REFUSED: &str = "STR0203: users[0].user.exec runs a program";

fn status(id: &str, state: ClusterState, reason: Option<&str>) -> ClusterStatus {
    ClusterStatus { state, reason: reason.map(str::to_owned), ..ClusterStatus::live(id) }
}

#[test]
fn cluster_of_a_new_secret_is_reported_once() {
    let mut history = EventHistory::default();
    let holder = |uid: &str, followed: Option<&str>| {
        let [uid, followed] = [Some(uid), followed].map(|uid| uid.map(str::to_owned));
        let kept = Some(ClusterIdHolder { uid, followed, ..ClusterIdHolder::default() });
        [ClusterStatus { kept, ..ClusterStatus::live("east") }]
    };
    let mut new_events = |statuses: &[ClusterStatus]| {
        history.observe(statuses);
        let news = std::mem::take(&mut history.pending).into_iter();
        let news = news.filter(|((_, topic), _)| *topic == Topic::Identity);
        news.map(|(_, news)| (news.reason, news.message)).collect::<Vec<_>>()
    };
    assert_eq!(new_events(&holder("x", None)), []);
    let text = "cluster east is another cluster since its Secret was created again: its UID was x \
                and is y (policy clusters.east.identity)";
    assert_eq!(new_events(&holder("y", Some("x"))), [("identityAccepted", text.to_owned())]);
    assert_eq!(new_events(&holder("y", Some("x"))), []);
    assert_eq!(new_events(&holder("z", Some("y"))).len(), 1);
}

#[test]
fn refused_kubeconfig_is_reported_once_and_so_is_its_end() {
    let mut history = EventHistory::default();
    let mut new_events = |refused: Option<&str>| {
        let kubeconfig_refused = refused.is_some();
        let live = status("east", ClusterState::Live, refused);
        history.observe(&[ClusterStatus { kubeconfig_refused, ..live }]);
        let news = std::mem::take(&mut history.pending).into_iter();
        let news = news.filter(|((_, topic), _)| *topic == Topic::Kubeconfig);
        news.map(|(_, news)| (news.reason, news.warning, news.message)).collect::<Vec<_>>()
    };
    assert_eq!(new_events(None), []);
    let reason = format!("the new kubeconfig is not used: {REFUSED}");
    let [(event, true, text)] = &new_events(Some(&reason))[..] else { panic!("one warning") };
    assert_eq!(*event, "kubeconfigRefused");
    assert!(text.starts_with(&format!("STR0203: cluster east: {reason} (")), "{text}");
    assert_eq!(new_events(Some(&reason)), []);
    assert_eq!(new_events(Some("the new kubeconfig is not used: STR0304: 401")).len(), 1);
    let text = "the new access to cluster east is accepted".to_owned();
    assert_eq!(new_events(None), [("kubeconfigAccepted", false, text)]);
}

#[test]
fn withdrawn_endpoints_are_reported_once_and_so_is_their_return() {
    let mut history = EventHistory::default();
    let mut new_events = |withdrawn: Option<&str>| {
        let withdrawn = withdrawn.map(Into::into);
        let stale = ClusterStatus { withdrawn, ..status("east", ClusterState::Stale, None) };
        history.observe(&[stale]);
        let news = std::mem::take(&mut history.pending).into_iter();
        let news = news.filter(|((_, topic), _)| *topic == Topic::Withdrawal);
        news.map(|(_, news)| (news.reason, news.warning, news.message)).collect::<Vec<_>>()
    };
    assert_eq!(new_events(None), []);
    let [(reason, true, text)] = &new_events(Some("unreachable for more than 60s"))[..] else {
        panic!("one warning")
    };
    assert_eq!(*reason, "endpointsWithdrawn");
    let fact = "the endpoints of cluster east are withdrawn: unreachable for more than 60s";
    assert!(text.contains(fact), "{text}");
    assert_eq!(new_events(Some("unreachable for more than 60s")), []);
    let text = "the endpoints of cluster east are sent again".to_owned();
    assert_eq!(new_events(None), [("endpointsReturned", false, text)]);
}

#[test]
fn state_is_reported_once_even_if_its_reason_changes_with_age() {
    let mut history = EventHistory::default();
    let mut new_events = |statuses: &[ClusterStatus]| {
        history.observe(statuses);
        let news = std::mem::take(&mut history.pending).into_values();
        news.map(|news| (news.warning, news.message)).collect::<Vec<_>>()
    };
    let plain = |text: &str| (false, text.to_owned());
    assert!(new_events(&[status("east", ClusterState::Syncing, None)]).is_empty());
    let live = [status("east", ClusterState::Live, None)];
    assert_eq!(new_events(&live), [plain("cluster east is live")]);
    assert!(new_events(&live).is_empty());
    let draining = |remaining: &str| [status("east", ClusterState::Draining, Some(remaining))];
    let text = "cluster east is draining: withdrawn in 30 s";
    assert_eq!(new_events(&draining("withdrawn in 30 s")), [plain(text)]);
    assert!(new_events(&draining("withdrawn in 29 s")).is_empty());
    assert_eq!(new_events(&[]), [plain("cluster east is no longer a member")]);
    let deselected = "STR0243: source a of the --members file no longer selects Secret b/c";
    let [(true, text)] = &new_events(&draining(deselected))[..] else { panic!("no warning") };
    assert!(text.starts_with(&format!("cluster east is draining: {deselected} (")), "{text}");
    let removed = "STR0243: cluster east is no longer a member: no source of the --members file selects its object";
    assert_eq!(new_events(&[]), [(true, removed.to_owned())]);

    let refused = new_events(&[status("east", ClusterState::Rejected, Some(REFUSED))]);
    let [(true, text)] = &refused[..] else { panic!("{refused:?}") };
    assert!(text.starts_with(&format!("cluster east is rejected: {REFUSED} (")), "{text}");
}

#[test]
fn token_that_expires_soon_is_reported_once_and_so_is_its_successor() {
    let mut history = EventHistory::default();
    let mut new_events = |seconds: i64, ends_soon: bool| {
        let expires = Timestamp::from_second(seconds).expect("a time");
        let credential = CredentialStatus {
            kind: CredentialKind::Token,
            identity: None,
            principal: None,
            expires: Some(expires),
            refresh_at: None,
            last_error: None,
            ends_soon,
            renews_itself: false,
        };
        let live = ClusterStatus {
            credential: Some(credential),
            ..status("east", ClusterState::Live, None)
        };
        history.observe(&[live]);
        let news = std::mem::take(&mut history.pending).into_values();
        news.filter(|news| news.warning).map(|news| news.message).collect::<Vec<_>>()
    };
    assert!(new_events(1_000, false).is_empty());
    let [text] = &new_events(1_000, true)[..] else { panic!("one warning") };
    assert!(
        text.starts_with("STR0316: the credential of cluster east expires at 1970-01-01T00:16:40Z"),
        "{text}"
    );
    assert!(text.contains("strait cluster rotate east"), "{text}");
    assert!(new_events(1_000, true).is_empty());
    assert!(new_events(9_000, false).is_empty(), "it was renewed");
    assert_eq!(new_events(9_000, true).len(), 1);
}

fn problem(category: &'static str, count: usize, object: &str) -> LastingProblem {
    let (object, text) = (object.to_owned(), "no YAML".to_owned());
    LastingProblem { category, code: &codes::POLICY, count, object, text }
}

#[test]
fn problem_is_reported_when_it_begins_affects_others_and_ends() {
    let mut history = EventHistory::default();
    let mut new_events = |problems: &[LastingProblem]| {
        history.observe_problems(problems);
        let news = std::mem::take(&mut history.pending).into_values();
        news.map(|news| (news.reason, news.message)).collect::<Vec<_>>()
    };
    let next = codes::POLICY.next;
    let reported = |text: &str| [("problem", format!("{text} ({next})"))];
    let one = [problem("policy", 1, "policy")];
    assert_eq!(new_events(&one), reported("STR0601: policy: no YAML"));
    assert!(new_events(&one).is_empty());
    let more = [problem("policy", 3, "policy")];
    assert_eq!(new_events(&more), reported("STR0601: policy: no YAML, and 2 other objects"));
    let both = [problem("clusters", 1, "cluster/west"), more[0].clone()];
    assert!(new_events(&both).is_empty(), "the state of the member is reported");
    let ended = "STR0601: policy: the problem no longer exists".to_owned();
    assert_eq!(new_events(&[]), [("resolved", ended)]);
    assert!(new_events(&[]).is_empty());
}

#[tokio::test]
async fn events_reach_the_config_cluster_and_wait_while_it_is_unreachable() {
    let sim = SimCluster::start("config", Options::default()).await.expect("a cluster");
    sim.store().apply(objects::namespace("strait-system")).expect("a namespace");
    let (_access, access) =
        watch::channel(loopback_access(&sim.url(), sim.certificate_authority(), sim.token()));
    let rejected = status("west", ClusterState::Rejected, Some(REFUSED));
    let (statuses, statuses_receiver) = watch::channel(Arc::new(vec![rejected]));
    let (problems, problems_receiver) = watch::channel(Arc::default());
    let tasks = Supervisor::new();
    tasks.spawn(
        "events",
        run(
            access,
            "strait-system".into(),
            watch::channel(WriterRole::Writes).1,
            statuses_receiver,
            problems_receiver,
        ),
    );
    let until = async |reason: &str| {
        let started = Instant::now();
        loop {
            let events = sim.store().all("events");
            let mut found = events.iter().map(|event| event.value());
            if let Some(found) = found.find(|event| event["reason"] == reason) {
                return found;
            }
            assert!(started.elapsed() < LIMIT, "{reason}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let event = until("Rejected").await;
    assert_eq!(event["type"], "Warning");
    let about = json!({
        "apiVersion": "v1", "kind": "Secret", "namespace": "strait-system", "name": "west",
    });
    assert_eq!(event["involvedObject"], about);
    statuses.send_replace(Arc::new(vec![status("west", ClusterState::Live, None)]));
    assert_eq!(until("Live").await["type"], "Normal");
    problems.send_replace(Arc::new(vec![problem("policy", 1, "policy")]));
    let event = until("Problem").await;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["kind"], "Namespace");
    problems.send_replace(Arc::default());
    assert_eq!(until("Resolved").await["type"], "Normal");
}
