//! How each member cluster fares, as `/debug/clusters` shows it. Pure: from facts to a state and the
//! reason for it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use jiff::Timestamp;
use serde::Serialize;

use super::flapping::Stage;
use super::kubeconfig::KubeconfigRefusal;
use crate::registry::kube::{ApiContact, LastContact, OutdatedKind, RootsStatus, RunStatus};
use strait_base::codes::{self, Code};
use strait_base::source_status::{KEPT, from_disk};
use strait_model::{IgnoredClaim, Mode, NetworkId, SameAddress, SameRange};

/// How long an API server may be out of reach before its cluster is called stale: a reconnect is no
/// news. A dead one is noticed within a few seconds more, so that it shows within 20 s.
pub const STALE_AFTER: Duration = Duration::from_secs(10);

/// One entry of `/debug/clusters` (docs/reference/interface.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The cluster ID, or the key of the Secret that can't be one.
    pub id: String,
    /// The Secret, `namespace/name`; none for the config cluster.
    pub secret: Option<String>,
    /// What it is in.
    pub state: ClusterState,
    /// Why, with a code where there is one.
    pub reason: Option<String>,
    /// Since when it is in it; left out while that is [`ClusterState::Live`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The network fixed by the Secret; whoever knows the network in force puts it here.
    pub network: Option<NetworkId>,
    /// The trust domain of its workloads.
    pub trust_domain: String,
    /// When its API server last answered anything well-formed.
    pub last_contact: LastContact,
    /// The kinds that its API server no longer lists or watches while it answers other requests. Left out if there are
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outdated: Vec<OutdatedStatus>,
    /// Services held.
    pub services: usize,
    /// Endpoints held.
    pub endpoints: usize,
    /// Endpoints that at least one connected proxy's network can't be given; filled in by whoever
    /// knows the proxies.
    pub withheld: usize,
    /// The same by the code of the reason; left out where there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub withheld_by: BTreeMap<&'static str, usize>,
    /// Kubernetes objects held.
    pub objects: usize,
    /// Full lists after the first.
    pub relists: u64,
    /// Lists that lacked most of what was known, and were asked for again; for the metrics.
    #[serde(skip)]
    pub doubts: u64,
    /// Questions to its API server that failed; for the metrics.
    #[serde(skip)]
    pub errors: u64,
    /// How long its first sync took; for the metrics.
    #[serde(skip)]
    pub sync_took: Option<Duration>,
    /// What says that it is in another network than the one that its Secret fixes; filled in by
    /// whoever knows what it says. Left out where nothing does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_claims: Vec<IgnoredClaim>,
    /// About how much memory all takes that is held of it, for the metrics; see `budget` in docs/guide/policy.md.
    #[serde(skip)]
    pub memory_bytes: usize,
    /// When it is asked again, while it is left alone for misbehaving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Timestamp>,
    /// What an operator asks for it; left out where that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// The token by which it is read; left out where that is none, or has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<TokenStatus>,
    /// The clusters whose pods have addresses of its own in the same network; filled in likewise. Left out
    /// where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub same_addresses: Vec<SameAddress>,
    /// The clusters whose nodes give their pods addresses of ranges of its own nodes' in the same network; filled in
    /// likewise. Left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub same_ranges: Vec<SameRange>,
    /// The ranges of which its nodes give addresses to pods.
    #[serde(skip)]
    pub pod_ranges: Arc<[IpNet]>,
    /// How far the mesh's roots have come in it; left out where none are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<RootsStatus>,
    /// Whose data is served, where any is; for whoever keeps it.
    #[serde(skip)]
    pub kept: Option<ClusterIdHolder>,
}

impl ClusterStatus {
    /// Whether its API server is out of contact, so that its nodes get no new tokens for their pods either. A server
    /// that answers all but some kinds is in contact.
    pub fn is_dark(&self) -> bool {
        self.state.is_dark() && self.outdated.is_empty()
    }

    /// A live member that reports nothing, for tests, which set the fields they need.
    pub fn live(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            secret: Some(format!("strait-system/{id}")),
            state: ClusterState::Live,
            reason: None,
            since: None,
            network: None,
            trust_domain: "cluster.local".to_owned(),
            last_contact: Default::default(),
            outdated: Vec::new(),
            services: 0,
            endpoints: 0,
            withheld: 0,
            withheld_by: BTreeMap::new(),
            objects: 0,
            relists: 0,
            doubts: 0,
            errors: 0,
            sync_took: None,
            ignored_claims: Vec::new(),
            memory_bytes: 0,
            next_attempt: None,
            mode: None,
            credential: None,
            same_addresses: Vec::new(),
            same_ranges: Vec::new(),
            pod_ranges: Arc::default(),
            roots: None,
            kept: None,
        }
    }
}

/// A kind whose objects are no longer updated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutdatedStatus {
    /// The kind in plural, such as `endpointslices`.
    pub kind: &'static str,
    /// Since when.
    pub since: Timestamp,
}

impl fmt::Display for OutdatedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} since {:.0}", self.kind, self.since)
    }
}

/// The token by which a cluster is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// When it ends.
    pub expires: Timestamp,
    /// Whether that is so soon that somebody should see to it.
    pub ends_soon: bool,
    /// Whether the control plane renews it itself.
    pub renews_itself: bool,
}

/// Whose data is served under a cluster's ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterIdHolder {
    /// The UID of the namespace `kube-system`, where it is known.
    pub uid: Option<String>,
}

/// The states of docs/reference/interface.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ClusterState {
    /// Not all is there yet.
    Syncing,
    /// All is there and kept up to date.
    Live,
    /// Out of contact, or a kind is no longer updated; what was last known stays in use.
    Stale,
    /// It never synced, and no longer holds up readiness.
    Timeout,
    /// The credential is not accepted.
    AuthFailed,
    /// Its certificate is not acceptable.
    TlsFailed,
    /// What the Secret says is refused.
    Rejected,
    /// Its ID, or the cluster itself, is held by another Secret.
    Conflict,
    /// The kubeconfig leads to a different cluster than before.
    IdentityChanged,
    /// It answers with nonsense, or with too much.
    Misbehaving,
    /// Frozen at what was last known: its last change is on hold, or it comes and goes.
    Quarantined,
    /// Frozen, as an operator asked.
    Paused,
    /// On its way out: by its Secret's end, or as an operator asked.
    Draining,
    /// From disk, and not yet synced since.
    Restored,
}

impl ClusterState {
    /// Whether its API server is out of contact, or some kinds of it are no longer updated.
    fn is_dark(self) -> bool {
        matches!(self, Self::Stale | Self::Timeout | Self::Restored)
    }

    /// All states, in the order of docs/reference/interface.md.
    pub const ALL: &[Self] = &[
        Self::Syncing,
        Self::Live,
        Self::Stale,
        Self::Timeout,
        Self::AuthFailed,
        Self::TlsFailed,
        Self::Rejected,
        Self::Conflict,
        Self::IdentityChanged,
        Self::Misbehaving,
        Self::Quarantined,
        Self::Paused,
        Self::Draining,
        Self::Restored,
    ];

    /// The name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Live => "live",
            Self::Stale => "stale",
            Self::Timeout => "timeout",
            Self::AuthFailed => "authFailed",
            Self::TlsFailed => "tlsFailed",
            Self::Rejected => "rejected",
            Self::Conflict => "conflict",
            Self::IdentityChanged => "identityChanged",
            Self::Misbehaving => "misbehaving",
            Self::Quarantined => "quarantined",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Restored => "restored",
        }
    }
}

/// What is served is from before the process started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RestoredFacts {
    /// How it came to be remembered, where that is out of the ordinary.
    pub(super) remark: Option<String>,
}

/// What is known of a member that a state follows from.
pub(super) struct MemberFacts<'a> {
    /// How the run that serves fares, or fared.
    pub(super) status: &'a RunStatus,
    /// Whether anything it reported has been passed on.
    pub(super) has_data: bool,
    /// Whether that is from before the process started, and what there is to say of it.
    pub(super) restored: Option<&'a RestoredFacts>,
    /// How long it was waited for, where that was in vain.
    pub(super) timed_out: Option<Duration>,
    /// How long until it is withdrawn, where no Secret holds it.
    pub(super) leaving_in: Option<Duration>,
    pub(super) mode: Mode,
    /// Who asked for that.
    pub(super) mode_by: &'a str,
    /// How it stands, where it comes and goes.
    pub(super) flapping: Option<Stage>,
    /// What is held back of what it says.
    pub(super) held: Option<String>,
    /// Why its endpoints leave, where it is out of contact for too long.
    pub(super) withdrawn: Option<&'a str>,
    /// For how long tokens of its pods are taken after their end while it is out of contact, and by which rule.
    pub(super) dark_tokens: Option<(Duration, String)>,
    /// Why the present Secret is not used.
    pub(super) kept: Option<&'a KubeconfigRefusal>,
    /// Whether it never had one in this process: all there is of it is from disk.
    pub(super) without_secret: bool,
    /// How the run beside it fares, which is to take over.
    pub(super) successor: Option<&'a RunStatus>,
    /// Why what a run says is not passed on.
    pub(super) barred: Option<&'a KubeconfigRefusal>,
    pub(super) stale_after: Duration,
    pub(super) now: SystemTime,
}

/// The state and its reason.
pub(super) fn judge(facts: &MemberFacts<'_>) -> (ClusterState, Option<String>) {
    let mut reasons = Vec::new();
    let state = state(facts, &mut reasons);
    if let Some(why) = facts.withdrawn {
        reasons.push(format!("{}: its endpoints are withdrawn: {why}", codes::CLUSTER_DARK));
    }
    if let Some((grace, rule)) =
        facts.dark_tokens.as_ref().filter(|_| state.is_dark() && outdated(facts).next().is_none())
    {
        reasons.push(format!(
            "tokens of its pods are taken for {grace:?} after they end (policy {rule})"
        ));
    }
    if facts.mode == Mode::Drain && state != ClusterState::Draining && facts.has_data {
        reasons.push(drained(facts));
    }
    if let Some(refusal) = facts.kept.filter(|_| state != ClusterState::Rejected) {
        reasons.push(format!("the Secret is not used, the cluster runs on as before: {refusal}"));
    }
    if let Some(successor) = facts.successor {
        let why = match trouble(successor) {
            Some((_, code, text)) => format!("{code}: {text}"),
            None => match &successor.doubted {
                Some(doubted) => format!("{}: {doubted}", codes::MASS_WITHDRAWAL),
                None => "it has not synced yet".to_owned(),
            },
        };
        reasons.push(format!("the new kubeconfig doesn't serve yet, the old one does: {why}"));
    }
    if state == ClusterState::Live {
        reasons.extend(facts.status.degraded.iter().cloned());
        if let Some(last) = &facts.status.skipped.last {
            let (code, count) = (&codes::OBJECTS_SKIPPED, facts.status.skipped.count);
            reasons.push(format!("{code}: {count} objects left out, last: {last}"));
        }
    }
    (state, (!reasons.is_empty()).then(|| reasons.join("; ")))
}

fn state(facts: &MemberFacts<'_>, reasons: &mut Vec<String>) -> ClusterState {
    if let Some(left) = facts.leaving_in {
        let seconds = left.as_secs_f64().ceil();
        reasons.push(format!("its Secret has gone; withdrawn in {seconds} s"));
        return ClusterState::Draining;
    }
    if facts.mode == Mode::Pause {
        let nothing = if facts.has_data { "" } else { "; nothing is known of it" };
        reasons.push(format!("frozen by {}{nothing}", facts.mode_by));
        return ClusterState::Paused;
    }
    if let Some(refusal) = facts.kept.filter(|_| facts.without_secret) {
        reasons.extend([refusal.to_string(), restored(facts, None)]);
        return ClusterState::Rejected;
    }
    if let Some(refusal) = facts.barred {
        reasons.push(refusal.to_string());
        let changed = refusal.code == &codes::IDENTITY_CHANGED;
        return if changed { ClusterState::IdentityChanged } else { ClusterState::Conflict };
    }
    if let Some(Stage::Frozen(left)) = facts.flapping {
        let seconds = left.as_secs_f64().ceil();
        reasons.push(format!(
            "{}: contact comes and goes; frozen at what was last known, next try in {seconds} s",
            codes::FLAPPING
        ));
        return ClusterState::Quarantined;
    }
    let state = contact(facts, reasons);
    let held = facts.held.as_ref().or(facts.status.doubted.as_ref());
    if let Some(held) = held.filter(|_| {
        matches!(state, ClusterState::Live | ClusterState::Syncing | ClusterState::Restored)
    }) {
        reasons.insert(0, format!("{}: {held}", codes::MASS_WITHDRAWAL));
        return ClusterState::Quarantined;
    }
    if facts.flapping == Some(Stage::Trial) && state == ClusterState::Live {
        reasons.push(format!(
            "{}: it came and went; on trial until contact has held",
            codes::FLAPPING
        ));
        return ClusterState::Quarantined;
    }
    let is_kept = matches!(
        state,
        ClusterState::Live | ClusterState::Stale | ClusterState::Restored | ClusterState::Syncing
    );
    if facts.mode == Mode::Drain && is_kept && facts.has_data {
        reasons.insert(0, drained(facts));
        return ClusterState::Draining;
    }
    state
}

fn drained(facts: &MemberFacts<'_>) -> String {
    format!("drained by {}: no proxy is given its endpoints", facts.mode_by)
}

/// Whether proxies are given what is known of it.
fn is_in_use(facts: &MemberFacts<'_>) -> bool {
    facts.mode != Mode::Drain && facts.withdrawn.is_none()
}

fn contact(facts: &MemberFacts<'_>, reasons: &mut Vec<String>) -> ClusterState {
    let status = facts.status;
    match trouble(status) {
        // Whoever can't log in, or can't be trusted, won't sync by waiting.
        Some((state, code, text)) if state != ClusterState::Stale => {
            reasons.push(format!("{code}: {text}"));
            return state;
        }
        trouble if facts.restored.is_some() => {
            reasons.push(restored(facts, trouble.map(|(_, code, text)| (code, text))));
            return ClusterState::Restored;
        }
        Some((_, code, text)) if !facts.has_data => {
            if facts.timed_out.is_none() {
                reasons.push(format!("{code}: {text}"));
                return ClusterState::Syncing;
            }
            reasons.push(timeout(facts, Some(text)));
            return ClusterState::Timeout;
        }
        Some((_, code, text)) => {
            let kinds: Vec<_> = outdated(facts).map(|kind| kind.to_string()).collect();
            if !kinds.is_empty() || !is_in_contact(facts) {
                let kinds = match kinds.is_empty() {
                    true => String::new(),
                    false => format!("; not updated: {}", kinds.join(", ")),
                };
                let fate = if is_in_use(facts) { "; what was last known stays in use" } else { "" };
                reasons.push(format!("{code}: {text}{kinds}{fate}"));
                return ClusterState::Stale;
            }
        }
        None => {}
    }
    if status.synced && facts.has_data {
        ClusterState::Live
    } else if facts.timed_out.is_some() && !facts.has_data {
        reasons.push(timeout(facts, None));
        ClusterState::Timeout
    } else {
        if facts.has_data && is_in_use(facts) {
            reasons.push("what was last known stays in use until it has synced anew".to_owned());
        }
        ClusterState::Syncing
    }
}

/// Whether the API server answered anything lately.
fn is_in_contact(facts: &MemberFacts<'_>) -> bool {
    let age = facts.status.last_contact.get().and_then(|last| facts.now.duration_since(last).ok());
    age.is_some_and(|age| age < facts.stale_after)
}

/// The kinds that are no longer updated although the API server answers other requests.
pub(super) fn outdated(facts: &MemberFacts<'_>) -> impl Iterator<Item = OutdatedStatus> {
    let kinds = if is_in_contact(facts) { &*facts.status.outdated } else { &[] };
    let is_old = |kind: &&OutdatedKind| {
        facts.now.duration_since(kind.since).is_ok_and(|age| age >= facts.stale_after)
    };
    kinds.iter().filter(is_old).map(|OutdatedKind { kind, since }| OutdatedStatus {
        kind,
        since: Timestamp::try_from(*since).unwrap_or(Timestamp::UNIX_EPOCH),
    })
}

/// How old what is served is, and why there is nothing newer.
fn restored(facts: &MemberFacts<'_>, trouble: Option<(&Code, &str)>) -> String {
    let age = facts.status.last_contact.get().and_then(|last| facts.now.duration_since(last).ok());
    let trouble = trouble.map(|(code, fact)| format!("{code}: {fact}"));
    let remark = facts.restored.and_then(|restored| restored.remark.as_deref());
    let fate = is_in_use(facts).then_some(KEPT);
    from_disk(age, [fate, trouble.as_deref(), remark].into_iter().flatten())
}

fn timeout(facts: &MemberFacts<'_>, text: Option<&str>) -> String {
    let limit = facts.timed_out.unwrap_or_default();
    let cause = text.map(|text| format!(": {text}")).unwrap_or_default();
    format!("{}: not synced within {limit:?}{cause}; it joins when it syncs", codes::SYNC_TIMEOUT)
}

/// What stands between us and an API server, if anything does.
pub(super) fn trouble(status: &RunStatus) -> Option<(ClusterState, &'static Code, &str)> {
    match &status.contact {
        ApiContact::Connecting | ApiContact::Good => None,
        ApiContact::Unreachable(text) => Some((ClusterState::Stale, &codes::UNREACHABLE, text)),
        ApiContact::AuthFailed(text) => Some((ClusterState::AuthFailed, &codes::AUTH_FAILED, text)),
        ApiContact::Denied(text) => Some((ClusterState::AuthFailed, &codes::RIGHTS_REFUSED, text)),
        ApiContact::TlsFailed(text) => Some((ClusterState::TlsFailed, &codes::TLS_FAILED, text)),
        ApiContact::Misbehaving(text) => {
            Some((ClusterState::Misbehaving, &codes::MISBEHAVING, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Of a server that answered other requests `seconds_ago`.
    fn frozen(kind: &'static str, for_seconds: u64, seconds_ago: u64) -> Case {
        let fact = ApiContact::Unreachable(format!("{kind}: the server answered 500"));
        let mut case = synced(fact, seconds_ago);
        let since = NOW() - Duration::from_secs(for_seconds);
        case.status.outdated = vec![OutdatedKind { kind, since }];
        case
    }

    fn doubted(mut case: Case) -> Case {
        case.status.doubted = Some("the list of pods is empty".into());
        case
    }

    const NOW: fn() -> SystemTime = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);

    fn judged(case: &Case) -> (ClusterState, String) {
        let (state, reason) = judge(&MemberFacts {
            status: &case.status,
            has_data: case.has_data,
            restored: case.restored.then_some(&RestoredFacts { remark: None }),
            timed_out: case.timed_out.then_some(Duration::from_secs(30)),
            leaving_in: case.leaving.then_some(Duration::from_millis(24_100)),
            mode: case.mode,
            mode_by: "strait.dev/mode",
            flapping: case.flapping,
            held: None,
            withdrawn: None,
            dark_tokens: None,
            kept: None,
            without_secret: false,
            successor: None,
            barred: None,
            stale_after: STALE_AFTER,
            now: NOW(),
        });
        (state, reason.unwrap_or_default())
    }

    #[test]
    fn a_state_follows_from_the_facts() {
        use ApiContact::*;
        let unreachable = || Unreachable("connection refused".to_owned());
        let auth = || AuthFailed("401".to_owned());
        let tls = || TlsFailed("expired".to_owned());
        let late = |case: Case| Case { timed_out: true, ..case };
        let restored = |contact: ApiContact, seconds_ago| {
            let case = synced(contact, seconds_ago);
            let status = RunStatus { synced: false, ..case.status.clone() };
            Case { restored: true, status, ..case }
        };
        for (case, state, reason) in [
            (restored(Connecting, 119), ClusterState::Restored, "last heard of 119 s ago"),
            (restored(Good, 200_000), ClusterState::Restored, "2 d ago"),
            (late(restored(unreachable(), 0)), ClusterState::Restored, "STR0301"),
            (restored(auth(), 0), ClusterState::AuthFailed, "STR0304"),
            (
                Case { flapping: Some(Stage::Frozen(Duration::from_secs(9))), ..synced(Good, 0) },
                ClusterState::Quarantined,
                "STR0308: contact comes and goes; frozen at what was last known, next try in 9 s",
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
            (
                doubted(synced(Good, 0)),
                ClusterState::Quarantined,
                "STR0606: the list of pods is empty",
            ),
            (
                Case { leaving: true, ..restored(Good, 0) },
                ClusterState::Draining,
                "withdrawn in 25 s",
            ),
            (never_synced(Connecting), ClusterState::Syncing, ""),
            (never_synced(Good), ClusterState::Syncing, ""),
            (never_synced(unreachable()), ClusterState::Syncing, "STR0301"),
            (never_synced(auth()), ClusterState::AuthFailed, "STR0304"),
            (
                never_synced(Denied("services".to_owned())),
                ClusterState::AuthFailed,
                "STR0315: services",
            ),
            (never_synced(tls()), ClusterState::TlsFailed, "STR0305"),
            (never_synced(Misbehaving("html".to_owned())), ClusterState::Misbehaving, "STR0307"),
            (late(never_synced(Good)), ClusterState::Timeout, "STR0303: not synced within 30s"),
            (late(never_synced(unreachable())), ClusterState::Timeout, "connection refused"),
            (late(never_synced(auth())), ClusterState::AuthFailed, "401"),
            (late(never_synced(tls())), ClusterState::TlsFailed, "expired"),
            (synced(Good, 600), ClusterState::Live, ""),
            (synced(unreachable(), 9), ClusterState::Live, ""),
            (synced(unreachable(), 10), ClusterState::Stale, "stays in use"),
            (frozen("endpointslices", 9, 0), ClusterState::Live, ""),
            (
                frozen("endpointslices", 600, 0),
                ClusterState::Stale,
                "STR0301: endpointslices: the server answered 500; not updated: endpointslices since 1970-01-12T13:36:40Z; what",
            ),
            (
                frozen("pods", 600, 60),
                ClusterState::Stale,
                "STR0301: pods: the server answered 500; what was last known",
            ),
            (synced(auth(), 0), ClusterState::AuthFailed, "STR0304"),
            (late(synced(unreachable(), 60)), ClusterState::Stale, "STR0301"),
            (
                Case { leaving: true, ..synced(Good, 0) },
                ClusterState::Draining,
                "withdrawn in 25 s",
            ),
            (
                Case { mode: Mode::Drain, ..synced(Good, 0) },
                ClusterState::Draining,
                "strait.dev/mode",
            ),
            (
                Case { mode: Mode::Drain, ..synced(auth(), 0) },
                ClusterState::AuthFailed,
                "STR0304: 401; drained by strait.dev/mode",
            ),
            (
                Case { mode: Mode::Drain, ..synced(unreachable(), 60) },
                ClusterState::Draining,
                "drained by strait.dev/mode: no proxy is given its endpoints; STR0301: connection refused",
            ),
            (
                Case { mode: Mode::Drain, ..restored(Connecting, 119) },
                ClusterState::Draining,
                "endpoints; from disk, last heard of 119 s ago",
            ),
            (Case { mode: Mode::Drain, ..never_synced(Good) }, ClusterState::Syncing, ""),
            (
                Case { mode: Mode::Pause, ..synced(unreachable(), 60) },
                ClusterState::Paused,
                "frozen",
            ),
            (
                Case { mode: Mode::Pause, ..never_synced(Good) },
                ClusterState::Paused,
                "nothing is known",
            ),
        ] {
            let (found, why) = judged(&case);
            assert_eq!(found, state, "{:?}", case.status.contact);
            assert!(case.mode != Mode::Drain || !why.contains("in use"), "{why}");
            assert!(why.contains(reason), "{why}");
            assert_eq!(why.is_empty(), reason.is_empty(), "{why}");
        }
    }

    #[test]
    fn states_are_spelled_alike_everywhere() {
        for state in ClusterState::ALL {
            let json = serde_json::to_value(state).expect("a state serialises");
            assert_eq!(json, state.as_str());
        }
    }
}
