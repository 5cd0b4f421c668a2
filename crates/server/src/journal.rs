//! Adds entries to the timeline that no version of the mesh contains: starts of the control plane, states and credentials
//! of members, and changes of the CA's roots.
//!
//! Changes of gateways are part of versions. Members that only sync are left out, so that the start of a large mesh does
//! not displace its recent changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use jiff::Timestamp;
use tokio::sync::watch;

use strait_identity::{ReplicaId, RootFingerprint, ServerIdentity};
use strait_mesh::push::PushContext;
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::{Cause, ClusterId};
use strait_sources::clusters::status::{ClusterState, ClusterStatus};

/// Maximum length of a reason in an entry, in bytes.
const REASON_MAX: usize = 200;

/// Inputs of the journal.
pub(super) struct JournalInputs {
    pub(super) timeline: Arc<Timeline>,
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    pub(super) identity: watch::Receiver<Arc<ServerIdentity>>,
    /// Name of this replica.
    pub(super) replica: ReplicaId,
}

/// Enters changes until the process ends.
pub(super) async fn run(inputs: JournalInputs) {
    let JournalInputs { timeline, context, mut statuses, mut identity, replica } = inputs;
    let enter = |(cause, effect): (Cause, String)| {
        let version = context.borrow().as_ref().map_or(0, |context| context.version);
        let delivery = Arc::new(Delivery::new(Instant::now()));
        timeline.enter(version, cause.into(), effect, delivery, Instant::now());
    };
    let mut journal = Journal::default();
    enter(started(&replica));
    statuses.mark_changed();
    identity.mark_changed();
    loop {
        // An error means that the process is ending.
        tokio::select! {
            changed = statuses.changed() => {
                if changed.is_err() {
                    return;
                }
                let members = Arc::clone(&statuses.borrow_and_update());
                journal.members(&members).into_iter().for_each(enter);
            }
            changed = identity.changed() => {
                if changed.is_err() {
                    return;
                }
                let roots = identity.borrow_and_update().root_standings(SystemTime::now());
                let roots = roots.into_iter().map(|root| root.fingerprint).collect();
                journal.roots(roots).into_iter().for_each(enter);
            }
        }
    }
}

fn started(replica: &ReplicaId) -> (Cause, String) {
    let cause = Cause::named(ClusterId::default(), "ControlPlane", replica.as_str());
    (cause, format!("control plane {} started", env!("CARGO_PKG_VERSION")))
}

/// The last entered facts of a member.
#[derive(Debug, Clone, Copy)]
struct EnteredMember {
    state: ClusterState,
    /// The expiry of its credential.
    expires: Option<Timestamp>,
    /// Whether its new kubeconfig is refused while the previous one is in use.
    is_refused: bool,
}

/// The last entered facts.
#[derive(Debug, Default)]
struct Journal {
    members: BTreeMap<(String, Option<String>), EnteredMember>,
    roots: Option<BTreeSet<RootFingerprint>>,
}

impl Journal {
    /// Returns the entries for changed states and credentials.
    fn members(&mut self, statuses: &[ClusterStatus]) -> Vec<(Cause, String)> {
        let mut entries = Vec::new();
        let mut before = std::mem::take(&mut self.members);
        for status in statuses {
            let key = (status.id.clone(), status.secret.clone());
            let expires = status.credential.as_ref().and_then(|credential| credential.expires);
            let known = before.remove(&key);
            let mut enter = |effect: String| {
                let id = ClusterId::from(status.id.as_str());
                entries.push((Cause::named(id, "Cluster", status.id.as_str()), effect));
            };
            let mut shown = status.state;
            match known {
                // The start of a sync is not entered. Its result is compared with the previous state.
                Some(known) if status.state == ClusterState::Syncing => shown = known.state,
                None if matches!(status.state, ClusterState::Syncing | ClusterState::Live) => {}
                Some(known) if known.state == status.state => {}
                Some(EnteredMember {
                    state: ClusterState::Syncing | ClusterState::Restored,
                    ..
                }) if status.state == ClusterState::Live => {}
                known => {
                    let from = known.map(|known| format!("{} -> ", known.state.as_str()));
                    let reason = status.reason.as_deref().map(shortened);
                    enter(format!(
                        "cluster {}: {}{}{}",
                        status.id,
                        from.unwrap_or_default(),
                        status.state.as_str(),
                        reason.map(|reason| format!(": {reason}")).unwrap_or_default()
                    ));
                }
            }
            let old = known.and_then(|known| known.expires);
            if let (Some(old), Some(new)) = (old, expires)
                && old != new
            {
                enter(format!("cluster {}: new credential, valid until {new:.0}", status.id));
            }
            let is_refused = status.kubeconfig_refused;
            match (known.is_some_and(|known| known.is_refused), is_refused) {
                (false, true) => {
                    let reason = shortened(status.reason.as_deref().unwrap_or_default());
                    enter(format!("cluster {}: {reason}", status.id));
                }
                (true, false) => {
                    enter(format!("cluster {}: its kubeconfig is accepted", status.id));
                }
                _ => {}
            }
            self.members.insert(key, EnteredMember { state: shown, expires, is_refused });
        }
        for (id, _) in before.into_keys() {
            let cause = Cause::named(ClusterId::from(id.as_str()), "Cluster", id.as_str());
            entries.push((cause, format!("cluster {id}: removed")));
        }
        entries
    }

    /// Returns the entry for added and removed roots of the CA.
    fn roots(&mut self, now: BTreeSet<RootFingerprint>) -> Option<(Cause, String)> {
        let before = self.roots.replace(now.clone())?;
        let list = |sign: &str, roots: Vec<&RootFingerprint>| {
            roots.iter().map(|root| format!("{sign}{root}")).collect::<Vec<_>>()
        };
        let mut changes = list("+", now.difference(&before).collect());
        changes.extend(list("-", before.difference(&now).collect()));
        if changes.is_empty() {
            return None;
        }
        let cause = Cause::named(ClusterId::default(), "CertificateAuthority", "");
        Some((cause, format!("roots of the CA: {}", changes.join(", "))))
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().find(|(at, _)| *at >= REASON_MAX) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_sources::clusters::status::{CredentialKind, CredentialStatus};

    fn member(state: ClusterState, expires: Option<i64>) -> ClusterStatus {
        let credential = expires.map(|second| CredentialStatus {
            kind: CredentialKind::Token,
            identity: None,
            principal: None,
            expires: Timestamp::from_second(second).ok(),
            refresh_at: None,
            last_error: None,
            ends_soon: false,
            renews_itself: false,
        });
        ClusterStatus { state, credential, ..ClusterStatus::live("east") }
    }

    #[test]
    fn states_and_credentials_of_members_are_entered_once() {
        use ClusterState::{AuthFailed, Live, Rejected, Stale, Syncing};
        let mut journal = Journal::default();
        let mut effects = |status: Option<ClusterStatus>| {
            let all: Vec<_> = status.into_iter().collect();
            journal.members(&all).into_iter().map(|(_, effect)| effect).collect::<Vec<_>>()
        };
        assert_eq!(effects(Some(member(Syncing, None))), [""; 0]);
        assert_eq!(effects(Some(member(Live, Some(10)))), [""; 0]);
        let stale = ClusterStatus { reason: Some("STR0301: x".into()), ..member(Stale, Some(10)) };
        assert_eq!(effects(Some(stale.clone())), ["cluster east: live -> stale: STR0301: x"]);
        assert_eq!(effects(Some(stale)), [""; 0]);
        assert_eq!(effects(Some(member(Syncing, Some(10)))), [""; 0]);
        assert_eq!(effects(Some(member(Live, Some(10)))), ["cluster east: stale -> live"]);
        assert_eq!(
            effects(Some(member(Live, Some(20)))),
            ["cluster east: new credential, valid until 1970-01-01T00:00:20Z"]
        );
        let reason = Some("the new kubeconfig is not used: STR0304: 401".into());
        let refused = ClusterStatus { kubeconfig_refused: true, reason, ..member(Live, Some(20)) };
        let entry = "cluster east: the new kubeconfig is not used: STR0304: 401";
        assert_eq!(effects(Some(refused.clone())), [entry]);
        assert_eq!(effects(Some(refused)), [""; 0]);
        assert_eq!(
            effects(Some(member(Live, Some(20)))),
            ["cluster east: its kubeconfig is accepted"]
        );
        assert_eq!(
            effects(Some(member(AuthFailed, Some(20)))),
            ["cluster east: live -> authFailed"]
        );
        assert_eq!(effects(None), ["cluster east: removed"]);
        assert_eq!(effects(Some(member(Rejected, None))), ["cluster east: rejected"]);
    }

    #[test]
    fn added_and_removed_roots_are_entered() {
        let root = |digit: &str| RootFingerprint::parse_all(&digit.repeat(64));
        let mut journal = Journal::default();
        assert_eq!(journal.roots(root("a")), None);
        assert_eq!(journal.roots(root("a")), None);
        let (_, effect) = journal.roots(root("b")).expect("a change");
        assert_eq!(effect, format!("roots of the CA: +{}, -{}", "b".repeat(64), "a".repeat(64)));
    }
}
