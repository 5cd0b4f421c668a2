//! The status of each member cluster, as shown in `/debug/clusters`. Pure: computes a state and its
//! reason from facts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use jiff::Timestamp;

pub use super::credential_status::{
    CredentialKind, CredentialStatus, DIRECT, InventoryStatus, RELAY, SYSTEM_SOURCE,
};
use super::flapping::Stage;
use super::identity::ClusterIdHolder;
use super::kubeconfig::KubeconfigRefusal;
pub use super::outdated_status::{OutdatedStatus, UnreadStatus};
use super::outdated_status::{outdated_for, unread_for};
use crate::registry::kube::{
    ApiContact, ImportsStatus, LastContact, RootsStatus, RunStatus, Skipped,
};
use strait_base::codes::{self, Code};
use strait_base::source_status::{KEPT, from_disk};
use strait_model::{IgnoredClaim, Mode, NetworkId, ReadNamespaces, SameAddress, SameRange};

/// How long an API server may be unreachable before its cluster is stale: a reconnect is not worth
/// reporting. A dead server is noticed within a few more seconds, so that it shows within 20 s.
pub const STALE_AFTER: Duration = Duration::from_secs(10);

/// The status of a member cluster, from which `/debug/clusters` is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The cluster ID, or a data key of the Secret that is not a valid ID.
    pub id: String,
    /// The Secret, `namespace/name`; `None` for the config cluster.
    pub secret: Option<String>,
    /// The source of the Secret: `system` for the system namespace, otherwise the name of a source
    /// in the operator file; `None` for the config cluster.
    pub source: Option<String>,
    /// The kind of the object that defines the member; `None` for the config cluster.
    pub source_kind: Option<&'static str>,
    /// How the API server is reached.
    pub via: Cow<'static, str>,
    /// The state.
    pub state: ClusterState,
    /// The reason of the state, with an error code if one applies.
    pub reason: Option<String>,
    /// When the state began; `None` for [`ClusterState::Live`].
    pub since: Option<Timestamp>,
    /// The network that the Secret fixes; replaced with the effective network where that is known.
    pub network: Option<NetworkId>,
    /// The trust domain of the cluster's workloads.
    pub trust_domain: String,
    /// The last valid response of the API server.
    pub last_contact: LastContact,
    /// The kinds that its API server no longer lists or watches while it answers other requests.
    pub outdated: Vec<OutdatedStatus>,
    /// The namespaces to which its reader is limited.
    pub read_namespaces: ReadNamespaces,
    /// The namespaces among them that may not be read, although others are.
    pub unread: Vec<UnreadStatus>,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of endpoints that at least one connected proxy's network cannot receive. Filled in by
    /// the component that knows the proxies.
    pub withheld: usize,
    /// Number of withheld endpoints by the code of the reason.
    pub withheld_by: BTreeMap<&'static str, usize>,
    /// Number of Kubernetes objects.
    pub objects: usize,
    /// Number of full lists after the first.
    pub relists: u64,
    /// Number of lists that lacked most of the known objects and were therefore repeated; for the
    /// metrics.
    pub doubts: u64,
    /// Number of failed requests to its API server; for the metrics.
    pub errors: u64,
    /// Duration of the first sync; for the metrics.
    pub sync_took: Option<Duration>,
    /// Claims that it is in a different network than its Secret fixes. Filled in by the component
    /// that knows them.
    pub ignored_claims: Vec<IgnoredClaim>,
    /// Approximate memory of all its data in bytes, for the metrics; see `budget` in
    /// docs/reference/policy-file.md.
    pub memory_bytes: usize,
    /// The time of the next attempt, while the cluster is in quarantine for misbehaving.
    pub next_attempt: Option<Timestamp>,
    /// The mode that an operator requests; `None` by default.
    pub mode: Option<&'static str>,
    /// Whether a newer kubeconfig of its Secret is refused while the previous one is in use.
    pub kubeconfig_refused: bool,
    /// The credential that is used to read it; `None` if none is used.
    pub credential: Option<CredentialStatus>,
    /// The state in the inventory that the member comes from.
    pub inventory: Option<InventoryStatus>,
    /// The permissions that the reader lacks, for example `list pods`.
    pub missing_rights: Vec<String>,
    /// The clusters whose pods use the same addresses in the same network. Filled in by the
    /// component that knows them.
    pub same_addresses: Vec<SameAddress>,
    /// The clusters whose nodes assign pod addresses from the same ranges as its own nodes, in the
    /// same network. Filled in by the component that knows them.
    pub same_ranges: Vec<SameRange>,
    /// The ranges from which its nodes assign pod addresses.
    pub pod_ranges: Arc<[IpNet]>,
    /// How far the mesh's roots have been distributed in it; `None` if none are written.
    pub roots: Option<RootsStatus>,
    /// The ServiceImports of exported services.
    pub imports: Arc<ImportsStatus>,
    /// The owner of the served data, if any; for the component that stores it.
    pub kept: Option<ClusterIdHolder>,
    /// Why its endpoints are withdrawn, if it has been unreachable for too long.
    pub withdrawn: Option<Arc<str>>,
}

impl ClusterStatus {
    /// Whether its API server is unreachable, so that its nodes get no new tokens for their pods. A
    /// server that fails only for some kinds is reachable.
    pub fn is_dark(&self) -> bool {
        self.state.is_dark() && self.outdated.is_empty() && self.unread.is_empty()
    }

    /// Creates the status of a live member without any data. Tests set the fields they need.
    pub fn live(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            secret: Some(format!("strait-system/{id}")),
            source: Some(SYSTEM_SOURCE.to_owned()),
            source_kind: Some("Secret"),
            via: DIRECT.into(),
            state: ClusterState::Live,
            reason: None,
            since: None,
            network: None,
            trust_domain: "cluster.local".to_owned(),
            last_contact: Default::default(),
            outdated: Vec::new(),
            read_namespaces: ReadNamespaces::default(),
            unread: Vec::new(),
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
            kubeconfig_refused: false,
            inventory: None,
            missing_rights: Vec::new(),
            same_addresses: Vec::new(),
            same_ranges: Vec::new(),
            pod_ranges: Arc::default(),
            roots: None,
            imports: Arc::default(),
            kept: None,
            withdrawn: None,
        }
    }
}

/// The state of a cluster. The states are defined in docs/reference/interface.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterState {
    /// The first lists are not complete.
    Syncing,
    /// All data is present and kept up to date.
    Live,
    /// Unreachable, or a kind is no longer updated; the last known data stays in use.
    Stale,
    /// The cluster never synced, and no longer delays readiness.
    Timeout,
    /// The API server does not accept the credential.
    AuthFailed,
    /// The API server's certificate is not accepted.
    TlsFailed,
    /// The content of the Secret is refused, or the operator file does not allow the member.
    Rejected,
    /// Another Secret holds its ID, or the cluster itself.
    Conflict,
    /// The kubeconfig now leads to a different cluster.
    IdentityChanged,
    /// The API server responds with invalid data, or with too much.
    Misbehaving,
    /// Frozen at the last known data: the last change is being delayed, or contact fails
    /// repeatedly.
    Quarantined,
    /// Frozen at the request of an operator.
    Paused,
    /// Being removed: because its Secret was deleted or is no longer selected, or at the request of
    /// an operator.
    Draining,
    /// Restored from disk, and not synced since.
    Restored,
}

impl ClusterState {
    /// Whether its API server is unreachable, or some kinds are no longer updated.
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

    /// Returns the name of the state.
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

/// Facts about served data from before the process started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RestoredFacts {
    /// A note about how it was restored, if that was unusual.
    pub(super) remark: Option<String>,
}

/// The facts that determine the state of a member.
pub(super) struct MemberFacts<'a> {
    /// The status of the run whose data is served.
    pub(super) status: &'a RunStatus,
    /// Whether any update has been passed on.
    pub(super) has_data: bool,
    /// Set if the data is from before the process started.
    pub(super) restored: Option<&'a RestoredFacts>,
    /// How long it was waited for, if it timed out.
    pub(super) timed_out: Option<Duration>,
    /// The time until it is withdrawn, if no Secret holds it.
    pub(super) leaving_in: Option<Duration>,
    /// The kind of the object that defines the member.
    pub(super) kind: &'static str,
    /// How the operator file changed, if it no longer selects its object.
    pub(super) deselected: Option<&'a str>,
    pub(super) mode: Mode,
    /// Where the mode was requested.
    pub(super) mode_by: &'a str,
    /// The stage of the quarantine, if contact fails repeatedly.
    pub(super) flapping: Option<Stage>,
    /// A description of the delayed changes.
    pub(super) delayed_loss: Option<String>,
    /// Why its endpoints are withdrawn, if it has been unreachable for too long.
    pub(super) withdrawn: Option<&'a str>,
    /// The grace period for expired tokens of the cluster's pods while it is unreachable, and the
    /// rule that grants it.
    pub(super) dark_tokens: Option<(Duration, String)>,
    /// The part of the member's definition that changed, if it is not used or does not serve yet.
    pub(super) changed: &'static str,
    /// Why the current Secret is not used.
    pub(super) unused_secret: Option<&'a KubeconfigRefusal>,
    /// Whether it has had no Secret in this process: all its data is from disk.
    pub(super) without_secret: bool,
    /// When the credential in use expires, if known.
    pub(super) works_until: Option<Timestamp>,
    /// The status of the concurrent run that is to replace the serving run.
    pub(super) successor: Option<&'a RunStatus>,
    /// Why a new credential for the same server does not replace the current one.
    pub(super) refused_credential: Option<&'a str>,
    /// Why the operator file no longer allows the member.
    pub(super) revoked: Option<&'a KubeconfigRefusal>,
    /// The parts of the object that are ignored.
    pub(super) remarks: &'a [KubeconfigRefusal],
    /// Why the reports of a run are not passed on.
    pub(super) barred: Option<&'a KubeconfigRefusal>,
    pub(super) stale_after: Duration,
    pub(super) now: SystemTime,
}

/// Returns the state and its reason.
pub(super) fn evaluate(facts: &MemberFacts<'_>) -> (ClusterState, Option<String>) {
    let mut reasons = Vec::new();
    let state = state(facts, &mut reasons);
    if let Some(why) = facts.withdrawn {
        reasons.push(format!("{}: its endpoints are withdrawn: {why}", codes::CLUSTER_DARK));
    }
    if let Some((grace, rule)) =
        facts.dark_tokens.as_ref().filter(|_| state.is_dark() && is_unreachable(facts))
    {
        reasons.push(format!(
            "tokens of its pods are accepted for {grace:?} after they expire (policy {rule})"
        ));
    }
    if facts.mode == Mode::Drain && state != ClusterState::Draining && facts.has_data {
        reasons.push(drained(facts));
    }
    // An operator must fix a refused kubeconfig, so no other reason is shown.
    if let Some(refusal) = refused_kubeconfig(facts, state) {
        return (
            state,
            Some(format!(
                "the new {} is not used: {refusal}; {}",
                facts.changed,
                previous(facts, state)
            )),
        );
    }
    if let Some(refusal) = facts.unused_secret.filter(|_| state != ClusterState::Rejected) {
        reasons.push(format!(
            "the {} is not used, the cluster continues unchanged: {refusal}",
            facts.kind
        ));
    }
    if let Some(successor) = facts.successor {
        let why = match &successor.doubted {
            Some(doubted) => format!("{}: {doubted}", codes::MASS_WITHDRAWAL),
            None => "it has not synced yet".to_owned(),
        };
        let changed = facts.changed;
        reasons.push(format!("the new {changed} doesn't serve yet, the old one does: {why}"));
    }
    reasons.extend(facts.remarks.iter().map(ToString::to_string));
    if state == ClusterState::Live {
        reasons.extend(facts.status.degraded.iter().cloned());
        let Skipped { count, last } = &facts.status.skipped;
        // The last reason stays after the objects were corrected.
        if let Some(last) = last.as_ref().filter(|_| *count > 0) {
            let (code, noun) =
                (&codes::OBJECTS_SKIPPED, if *count == 1 { "object" } else { "objects" });
            reasons.push(format!("{code}: {count} {noun} omitted or used in part, last: {last}"));
        }
    }
    (state, (!reasons.is_empty()).then(|| reasons.join("; ")))
}

/// Returns why a newer kubeconfig of the Secret is not used, if the previous one is in use.
pub(super) fn refused_kubeconfig(facts: &MemberFacts<'_>, state: ClusterState) -> Option<String> {
    if matches!(state, ClusterState::Rejected | ClusterState::Paused | ClusterState::Draining) {
        return None;
    }
    let refused = facts.unused_secret.map(ToString::to_string);
    refused.or_else(|| facts.refused_credential.map(str::to_owned)).or_else(|| {
        let (_, code, text) = trouble(facts.successor?)?;
        Some(format!("{code}: {text}"))
    })
}

/// Describes how long the kubeconfig that is in use works.
fn previous(facts: &MemberFacts<'_>, state: ClusterState) -> String {
    match facts.works_until {
        _ if state != ClusterState::Live => {
            format!("the previous one is in use, {}", state.as_str())
        }
        Some(until) if until < Timestamp::try_from(facts.now).unwrap_or(Timestamp::UNIX_EPOCH) => {
            format!("the previous one is in use, although its credential expired at {until:.0}")
        }
        Some(until) => format!("the previous one works until {until:.0}"),
        None => "the previous one works, and its credential has no known expiry".to_owned(),
    }
}

fn state(facts: &MemberFacts<'_>, reasons: &mut Vec<String>) -> ClusterState {
    if let Some(left) = facts.leaving_in {
        let seconds = left.as_secs_f64().ceil();
        reasons.push(match facts.deselected {
            Some(fact) => format!(
                "{}: {fact}; its {} endpoints are withdrawn in {seconds} s",
                codes::MEMBER_DESELECTED,
                facts.status.endpoints
            ),
            None if facts.kind == "ClusterProfile" => format!(
                "its ClusterProfile was deleted, or lost the labels or the placement that select it; withdrawn in {seconds} s"
            ),
            None => format!(
                "its Secret was deleted, or lost its member label or this key; withdrawn in {seconds} s"
            ),
        });
        return ClusterState::Draining;
    }
    if facts.mode == Mode::Pause {
        let nothing = if facts.has_data { "" } else { "; it has no data" };
        reasons.push(format!("frozen by {}{nothing}", facts.mode_by));
        return ClusterState::Paused;
    }
    if let Some(refusal) = facts.revoked {
        reasons.push(format!("{refusal}; its last known state stays in use"));
        return ClusterState::Rejected;
    }
    if let Some(refusal) = facts.unused_secret.filter(|_| facts.without_secret) {
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
            "{}: contact fails repeatedly; frozen at the last known state, next attempt in {seconds} s",
            codes::FLAPPING
        ));
        return ClusterState::Quarantined;
    }
    let state = contact(facts, reasons);
    let delayed_loss = facts.delayed_loss.as_ref().or(facts.status.doubted.as_ref());
    if let Some(delayed_loss) = delayed_loss.filter(|_| {
        matches!(state, ClusterState::Live | ClusterState::Syncing | ClusterState::Restored)
    }) {
        reasons.insert(0, format!("{}: {delayed_loss}", codes::MASS_WITHDRAWAL));
        return ClusterState::Quarantined;
    }
    if facts.flapping == Some(Stage::Trial) && state == ClusterState::Live {
        reasons.push(format!(
            "{}: contact failed repeatedly; on trial until contact is stable",
            codes::FLAPPING
        ));
        return ClusterState::Quarantined;
    }
    let can_drain = matches!(
        state,
        ClusterState::Live | ClusterState::Stale | ClusterState::Restored | ClusterState::Syncing
    );
    if facts.mode == Mode::Drain && can_drain && facts.has_data {
        reasons.insert(0, drained(facts));
        return ClusterState::Draining;
    }
    state
}

fn drained(facts: &MemberFacts<'_>) -> String {
    format!("drained by {}: no proxy receives its endpoints", facts.mode_by)
}

/// Whether proxies receive its data.
fn is_in_use(facts: &MemberFacts<'_>) -> bool {
    facts.mode != Mode::Drain && facts.withdrawn.is_none()
}

fn contact(facts: &MemberFacts<'_>, reasons: &mut Vec<String>) -> ClusterState {
    let status = facts.status;
    match trouble(status) {
        // A rejected credential or certificate is not resolved by waiting.
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
            reasons.push(timeout(facts, Some((code, text))));
            return ClusterState::Timeout;
        }
        Some((_, code, text)) => {
            let kinds: Vec<_> = outdated(facts).map(|kind| kind.to_string()).collect();
            if !kinds.is_empty() || !is_in_contact(facts) {
                let kinds = match kinds.is_empty() {
                    true => String::new(),
                    false => format!("; not updated: {}", kinds.join(", ")),
                };
                let fate =
                    if is_in_use(facts) { "; its last known state stays in use" } else { "" };
                reasons.push(format!("{code}: {text}{kinds}{fate}"));
                return ClusterState::Stale;
            }
        }
        None => {}
    }
    if status.synced && facts.has_data {
        let unread: Vec<_> = unread(facts).collect();
        let fate = if is_in_use(facts) { "; its last known state stays in use" } else { "" };
        reasons
            .extend(unread.iter().map(|one| format!("{}: {one}{fate}", codes::NAMESPACE_UNREAD)));
        if unread.is_empty() { ClusterState::Live } else { ClusterState::Stale }
    } else if facts.timed_out.is_some() && !facts.has_data {
        reasons.push(timeout(facts, None));
        ClusterState::Timeout
    } else {
        if facts.has_data && is_in_use(facts) {
            reasons.push("its last known state stays in use until it has synced again".to_owned());
        }
        ClusterState::Syncing
    }
}

/// Whether the API server responded recently.
fn is_in_contact(facts: &MemberFacts<'_>) -> bool {
    let age = facts.status.last_contact.get().and_then(|last| facts.now.duration_since(last).ok());
    age.is_some_and(|age| age < facts.stale_after)
}

/// Returns the kinds that are no longer updated although the API server answers other requests.
pub(super) fn outdated(facts: &MemberFacts<'_>) -> impl Iterator<Item = OutdatedStatus> {
    let kinds = if is_in_contact(facts) { &*facts.status.outdated } else { &[] };
    outdated_for(kinds, facts.stale_after, facts.now)
}

/// Returns the namespaces that may not be read although the API server answers other requests.
pub(super) fn unread(facts: &MemberFacts<'_>) -> impl Iterator<Item = UnreadStatus> {
    let unread = if is_in_contact(facts) { &*facts.status.unread } else { &[] };
    unread_for(unread, facts.stale_after, facts.now)
}

/// Whether Strait receives no changes of any part of a cluster.
fn is_unreachable(facts: &MemberFacts<'_>) -> bool {
    outdated(facts).next().is_none() && unread(facts).next().is_none()
}

/// Describes the age of the served data, and why there is no newer data.
fn restored(facts: &MemberFacts<'_>, trouble: Option<(&Code, &str)>) -> String {
    let age = facts.status.last_contact.get().and_then(|last| facts.now.duration_since(last).ok());
    let trouble = trouble.map(|(code, fact)| format!("{code}: {fact}"));
    let remark = facts.restored.and_then(|restored| restored.remark.as_deref());
    let fate = is_in_use(facts).then_some(KEPT);
    from_disk(age, [fate, trouble.as_deref(), remark].into_iter().flatten())
}

fn timeout(facts: &MemberFacts<'_>, trouble: Option<(&Code, &str)>) -> String {
    let limit = facts.timed_out.unwrap_or_default();
    let (code, cause) = match trouble {
        Some((code, text)) if code != &codes::UNREACHABLE => {
            return format!("{code}: {text}; not synced within {limit:?}, it joins when it syncs");
        }
        Some((_, text)) => (&codes::SYNC_TIMEOUT, format!(": {text}")),
        None => (&codes::SYNC_TIMEOUT, String::new()),
    };
    format!("{code}: not synced within {limit:?}{cause}; it joins when it syncs")
}

/// Returns the problem with an API server, if any.
pub(super) fn trouble(status: &RunStatus) -> Option<(ClusterState, &'static Code, &str)> {
    match &status.contact {
        ApiContact::Connecting | ApiContact::Good => None,
        ApiContact::Unreachable(text) => {
            // The relay or the proxy on the way to the API server reports its own code.
            let (code, text) = codes::leading(text).unwrap_or((&codes::UNREACHABLE, text));
            Some((ClusterState::Stale, code, text))
        }
        ApiContact::AuthFailed(text) => Some((ClusterState::AuthFailed, &codes::AUTH_FAILED, text)),
        ApiContact::Denied(text) => Some((ClusterState::AuthFailed, &codes::RIGHTS_REFUSED, text)),
        ApiContact::TlsFailed(text) => Some((ClusterState::TlsFailed, &codes::TLS_FAILED, text)),
        ApiContact::Misbehaving(text) => {
            Some((ClusterState::Misbehaving, &codes::MISBEHAVING, text))
        }
    }
}

#[cfg(test)]
mod tests;
