use super::*;
use crate::registry::kube::{OutdatedKind, UnreadNamespace};

struct Case {
    status: RunStatus,
    has_data: bool,
    timed_out: bool,
    leaving: bool,
    mode: Mode,
    restored: bool,
    flapping: Option<Stage>,
}

fn never_synced(contact: ApiContact) -> Case {
    let status = RunStatus { contact, ..RunStatus::starting() };
    let (has_data, timed_out, leaving, mode) = (false, false, false, Mode::Normal);
    Case { status, has_data, timed_out, leaving, mode, restored: false, flapping: None }
}

fn synced(contact: ApiContact, seconds_ago: u64) -> Case {
    let last_contact = LastContact::at(Some(NOW() - Duration::from_secs(seconds_ago)));
    let status = RunStatus { contact, synced: true, last_contact, ..RunStatus::starting() };
    Case { status, has_data: true, ..never_synced(ApiContact::Good) }
}

/// Creates a case in which the server answered other requests `seconds_ago`.
fn frozen(kind: &'static str, for_seconds: u64, seconds_ago: u64) -> Case {
    let fact = ApiContact::Unreachable(format!("{kind}: the server answered 500"));
    let mut case = synced(fact, seconds_ago);
    let since = NOW() - Duration::from_secs(for_seconds);
    case.status.outdated = vec![OutdatedKind { kind, since }];
    case
}

/// Creates a case in which one namespace may not be read.
fn without_namespace(for_seconds: u64, seconds_ago: u64) -> Case {
    let mut case = synced(ApiContact::Good, seconds_ago);
    let since = NOW() - Duration::from_secs(for_seconds);
    let fact = "services: not permitted: no".to_owned();
    case.status.unread = vec![UnreadNamespace { namespace: "edge".into(), since, fact }];
    case
}

fn doubted(mut case: Case) -> Case {
    case.status.doubted = Some("the list of pods is empty".into());
    case
}

const NOW: fn() -> SystemTime = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);

fn judged(case: &Case) -> (ClusterState, String) {
    let (state, reason) = evaluate(&facts(case));
    (state, reason.unwrap_or_default())
}

static NO_REMARK: RestoredFacts = RestoredFacts { remark: None };

fn facts(case: &Case) -> MemberFacts<'_> {
    MemberFacts {
        status: &case.status,
        has_data: case.has_data,
        restored: case.restored.then_some(&NO_REMARK),
        timed_out: case.timed_out.then_some(Duration::from_secs(30)),
        leaving_in: case.leaving.then_some(Duration::from_millis(24_100)),
        kind: "Secret",
        deselected: None,
        mode: case.mode,
        mode_by: "strait.dev/mode",
        flapping: case.flapping,
        delayed_loss: None,
        withdrawn: None,
        dark_tokens: None,
        changed: "kubeconfig",
        unused_secret: None,
        without_secret: false,
        works_until: None,
        successor: None,
        refused_credential: None,
        revoked: None,
        remarks: &[],
        barred: None,
        stale_after: STALE_AFTER,
        now: NOW(),
    }
}

#[test]
fn refused_kubeconfig_is_the_only_reason_and_states_the_remaining_time() {
    let refused =
        RunStatus { contact: ApiContact::AuthFailed("401".to_owned()), ..RunStatus::starting() };
    let result_of = |case: &Case, until: Option<i64>| {
        let until = until.map(|second| Timestamp::from_second(second).expect("a time"));
        let facts = MemberFacts { works_until: until, successor: Some(&refused), ..facts(case) };
        let (state, reason) = evaluate(&facts);
        (state, reason.unwrap_or_default(), refused_kubeconfig(&facts, state).is_some())
    };
    let mut degraded = synced(ApiContact::Good, 0);
    degraded.status.degraded = vec!["STR0309: pods: not permitted".into()];
    let why = "the new kubeconfig is not used: STR0304: 401; the previous one";
    for (case, until, state, rest) in [
        (synced(ApiContact::Good, 0), Some(2_000_000), "live", "works until 1970-01-24T03:33:20Z"),
        (degraded, None, "live", "works, and its credential has no known expiry"),
        (
            synced(ApiContact::Good, 0),
            Some(1),
            "live",
            "is in use, although its credential expired at 1970-01-01T00:00:01Z",
        ),
        (
            synced(ApiContact::AuthFailed("old".to_owned()), 0),
            Some(1),
            "authFailed",
            "is in use, authFailed",
        ),
    ] {
        let expected = (format!("{why} {rest}"), true);
        let (found, reason, is_refused) = result_of(&case, until);
        assert_eq!((found.as_str(), (reason, is_refused)), (state, expected));
    }
}

#[test]
fn omitted_objects_are_a_reason_until_none_is_left() {
    for (count, expected) in [
        (0, ""),
        (1, "STR0310: 1 object omitted or used in part, last: pods a/b: no"),
        (2, "STR0310: 2 objects omitted or used in part, last: pods a/b: no"),
    ] {
        let mut case = synced(ApiContact::Good, 0);
        case.status.skipped = Skipped { count, last: Some("pods a/b: no".to_owned()) };
        assert_eq!(judged(&case), (ClusterState::Live, expected.to_owned()));
    }
}

#[test]
fn reason_of_a_member_that_leaves_names_the_kind_of_its_object() {
    let case = Case { leaving: true, ..synced(ApiContact::Good, 0) };
    let facts = MemberFacts { kind: "ClusterProfile", ..facts(&case) };
    let (state, reason) = evaluate(&facts);
    assert_eq!(state, ClusterState::Draining);
    assert!(reason.unwrap_or_default().starts_with("its ClusterProfile was deleted, or lost"));
}

#[test]
fn facts_determine_the_state() {
    use ApiContact::*;
    let unreachable = || Unreachable("connection refused".to_owned());
    let relay_away = || Unreachable("STR0340: no relay of west".to_owned());
    let auth = || AuthFailed("401".to_owned());
    let tls = || TlsFailed("expired".to_owned());
    let timed_out = |case: Case| Case { timed_out: true, ..case };
    let restored = |contact: ApiContact, seconds_ago| {
        let case = synced(contact, seconds_ago);
        let status = RunStatus { synced: false, ..case.status.clone() };
        Case { restored: true, status, ..case }
    };
    for (case, state, reason) in [
        (restored(Connecting, 119), ClusterState::Restored, "last contact 119 s ago"),
        (restored(Good, 200_000), ClusterState::Restored, "2 d ago"),
        (timed_out(restored(unreachable(), 0)), ClusterState::Restored, "STR0301"),
        (restored(auth(), 0), ClusterState::AuthFailed, "STR0304"),
        (
            Case { flapping: Some(Stage::Frozen(Duration::from_secs(9))), ..synced(Good, 0) },
            ClusterState::Quarantined,
            "STR0308: contact fails repeatedly; frozen at the last known state, next attempt in 9 s",
        ),
        (
            Case { flapping: Some(Stage::Trial), ..synced(Good, 0) },
            ClusterState::Quarantined,
            "on trial",
        ),
        (
            Case { flapping: Some(Stage::Trial), ..synced(unreachable(), 60) },
            ClusterState::Stale,
            "STR0301",
        ),
        (doubted(synced(Good, 0)), ClusterState::Quarantined, "STR0606: the list of pods is empty"),
        (Case { leaving: true, ..restored(Good, 0) }, ClusterState::Draining, "withdrawn in 25 s"),
        (never_synced(Connecting), ClusterState::Syncing, ""),
        (never_synced(Good), ClusterState::Syncing, ""),
        (never_synced(unreachable()), ClusterState::Syncing, "STR0301"),
        (
            timed_out(never_synced(relay_away())),
            ClusterState::Timeout,
            "STR0340: no relay of west; not synced within 30s, it joins when it syncs",
        ),
        (
            synced(relay_away(), 10),
            ClusterState::Stale,
            "STR0340: no relay of west; its last known state stays in use",
        ),
        (
            restored(relay_away(), 119),
            ClusterState::Restored,
            "stays in use until it has synced; STR0340: no relay of west",
        ),
        (never_synced(auth()), ClusterState::AuthFailed, "STR0304"),
        (
            never_synced(Denied("services".to_owned())),
            ClusterState::AuthFailed,
            "STR0315: services",
        ),
        (never_synced(tls()), ClusterState::TlsFailed, "STR0305"),
        (never_synced(Misbehaving("html".to_owned())), ClusterState::Misbehaving, "STR0307"),
        (timed_out(never_synced(Good)), ClusterState::Timeout, "STR0303: not synced within 30s"),
        (timed_out(never_synced(unreachable())), ClusterState::Timeout, "connection refused"),
        (timed_out(never_synced(auth())), ClusterState::AuthFailed, "401"),
        (timed_out(never_synced(tls())), ClusterState::TlsFailed, "expired"),
        (synced(Good, 600), ClusterState::Live, ""),
        (synced(unreachable(), 9), ClusterState::Live, ""),
        (synced(unreachable(), 10), ClusterState::Stale, "stays in use"),
        (frozen("endpointslices", 9, 0), ClusterState::Live, ""),
        (
            frozen("endpointslices", 600, 0),
            ClusterState::Stale,
            "STR0301: endpointslices: the server answered 500; not updated: endpointslices since 1970-01-12T13:36:40Z; its last known state",
        ),
        (
            frozen("pods", 600, 60),
            ClusterState::Stale,
            "STR0301: pods: the server answered 500; its last known state",
        ),
        (without_namespace(9, 0), ClusterState::Live, ""),
        (
            without_namespace(600, 0),
            ClusterState::Stale,
            "STR0318: namespace edge is not read since 1970-01-12T13:36:40Z: services: not permitted: no; its last known state stays",
        ),
        (synced(auth(), 0), ClusterState::AuthFailed, "STR0304"),
        (timed_out(synced(unreachable(), 60)), ClusterState::Stale, "STR0301"),
        (Case { leaving: true, ..synced(Good, 0) }, ClusterState::Draining, "withdrawn in 25 s"),
        (Case { mode: Mode::Drain, ..synced(Good, 0) }, ClusterState::Draining, "strait.dev/mode"),
        (
            Case { mode: Mode::Drain, ..synced(auth(), 0) },
            ClusterState::AuthFailed,
            "STR0304: 401; drained by strait.dev/mode",
        ),
        (
            Case { mode: Mode::Drain, ..synced(unreachable(), 60) },
            ClusterState::Draining,
            "drained by strait.dev/mode: no proxy receives its endpoints; STR0301: connection refused",
        ),
        (
            Case { mode: Mode::Drain, ..restored(Connecting, 119) },
            ClusterState::Draining,
            "endpoints; from disk, last contact 119 s ago",
        ),
        (Case { mode: Mode::Drain, ..never_synced(Good) }, ClusterState::Syncing, ""),
        (Case { mode: Mode::Pause, ..synced(unreachable(), 60) }, ClusterState::Paused, "frozen"),
        (Case { mode: Mode::Pause, ..never_synced(Good) }, ClusterState::Paused, "it has no data"),
    ] {
        let (found, why) = judged(&case);
        assert_eq!(found, state, "{:?}", case.status.contact);
        assert!(case.mode != Mode::Drain || !why.contains("in use"), "{why}");
        assert!(why.contains(reason), "{why}");
        assert_eq!(why.is_empty(), reason.is_empty(), "{why}");
    }
}
