//! The policies in force: immutable, shared by everybody who reads a version of the mesh.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use super::authorization::{AuthorizationAction, AuthorizationPolicy};
use super::key_share;
use super::object::{AccessFault, PolicyName, PolicyState};
use super::peer::{PeerAuthentication, PeerMode, PeerModes};
use super::request::{RequestAuthentication, TokenRule};
use super::selector::PolicySelector;
use super::subject::AccessSubject;
use super::time_point::TimePoint;
use strait_model::{Namespace, WorkloadKey};

/// All access policies in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessPolicies {
    /// The namespace whose policies are for the whole mesh.
    pub(super) root: Namespace,
    pub(super) namespaces: OrdMap<Namespace, Arc<NamespacePolicies>>,
    /// The changes of which clients still learn how to speak to servers now, the oldest first.
    pub(super) moves: Vec<Arc<ModeMove>>,
    pub(super) reports: OrdMap<PolicyName, Arc<PolicyReport>>,
}

/// A change by which workloads may go from plain text alone to mTLS, or back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModeMove {
    /// The policies before and after it, without the moves that were under way then.
    pub(super) before: Arc<AccessPolicies>,
    pub(super) after: Arc<AccessPolicies>,
    pub(super) begun: Instant,
    /// Whether servers have had the time to be ready for what clients are to send.
    pub(super) is_told: bool,
    pub(super) ends: TimePoint,
}

/// The policies of one namespace, the oldest first, then by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NamespacePolicies {
    pub(super) peers: Vec<Arc<PeerAuthentication>>,
    pub(super) authorizations: Vec<Arc<AuthorizationPolicy>>,
    pub(super) requests: Vec<Arc<RequestAuthentication>>,
}

impl NamespacePolicies {
    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.authorizations.is_empty() && self.requests.is_empty()
    }
}

/// What there is to say of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyReport {
    /// What becomes of it.
    pub state: PolicyState,
    /// What can't be read of it, or has no effect.
    pub faults: Vec<AccessFault>,
    /// The workloads it is for; `None` where nothing of it counts.
    pub selector: Option<PolicySelector>,
}

/// What becomes of a PeerAuthentication at a workload to which another applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedPeer {
    /// The one that applies.
    pub by: WorkloadKey,
    /// Whether the workload accepts plain text at a port where the replaced policy asks for mTLS.
    pub is_more_open: bool,
}

/// What holds for one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadAccess<'a> {
    /// How it takes connections.
    pub modes: PeerModes,
    /// The policies for it, in the order of their age, names and namespaces.
    pub policies: Vec<&'a Arc<AuthorizationPolicy>>,
    /// What says which tokens it believes, in the same order.
    pub requests: Vec<&'a Arc<RequestAuthentication>>,
}

impl<'a> WorkloadAccess<'a> {
    /// The providers that policies for it would have asked, sorted, each once.
    pub fn providers(&self) -> BTreeSet<&'a Arc<str>> {
        let provider = |policy: &&'a Arc<AuthorizationPolicy>| match &policy.action {
            AuthorizationAction::Custom(provider) => Some(provider),
            _ => None,
        };
        self.policies.iter().filter_map(provider).collect()
    }

    /// Which tokens it believes, sorted by their issuers, each rule once; those that are too many without keys.
    pub fn token_rules(&self) -> Vec<Cow<'a, TokenRule>> {
        let mut rules = key_share::rules_within(&self.requests);
        rules.sort();
        rules.dedup();
        rules
    }
}

impl AccessPolicies {
    /// What holds for a workload.
    pub fn of(&self, subject: AccessSubject<'_>) -> WorkloadAccess<'_> {
        WorkloadAccess {
            modes: self.served_modes(subject),
            policies: self.policies(subject),
            requests: self.requests(subject),
        }
    }

    /// How a workload takes connections, whoever asks: what its namespace, then its labels change of what holds for
    /// the mesh. Of several policies of one kind the oldest counts.
    pub fn modes(&self, subject: AccessSubject<'_>) -> PeerModes {
        let mut modes = self.modes_of_all(subject.namespace);
        if *subject.namespace == self.root {
            return modes;
        }
        if let Some(of_workload) = self.selecting_peer(subject) {
            modes = modes.with(of_workload);
        }
        if subject.is_known {
            return modes;
        }
        // Labels that it claims take it away from no other policy of its namespace.
        self.peers_of(subject.namespace).fold(modes, |modes, policy| modes.tightened(policy))
    }

    /// How workloads of a namespace take connections if no policy selects them by their labels.
    fn modes_of_all(&self, namespace: &Namespace) -> PeerModes {
        let whole = |namespace| {
            self.peers_of(namespace).find(|policy| policy.selector == PolicySelector::All)
        };
        let own = whole(namespace).filter(|_| *namespace != self.root);
        whole(&self.root)
            .into_iter()
            .chain(own)
            .fold(PeerModes::default(), |modes, one| modes.with(one))
    }

    fn peers_of(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<PeerAuthentication>> {
        self.namespaces.get(namespace).into_iter().flat_map(|held| &held.peers)
    }

    /// The PeerAuthentication that applies to a workload by its labels: the oldest.
    fn selecting_peer(&self, subject: AccessSubject<'_>) -> Option<&Arc<PeerAuthentication>> {
        let mut by_labels = self
            .peers_of(subject.namespace)
            .filter(|policy| policy.selector != PolicySelector::All);
        by_labels.find(|policy| policy.selector.selects(subject.namespace, subject))
    }

    /// The PeerAuthentication of this name.
    pub fn peer(&self, name: &WorkloadKey) -> Option<&Arc<PeerAuthentication>> {
        self.peers_of(&name.namespace).find(|policy| policy.name == *name)
    }

    /// The PeerAuthentication that applies by labels to a workload of the same namespace instead of this one, which selects
    /// it as well; `None` if this one applies.
    pub fn replacing_peer(
        &self,
        name: &WorkloadKey,
        subject: AccessSubject<'_>,
    ) -> Option<ReplacedPeer> {
        let (own, applied) = (self.peer(name)?, self.selecting_peer(subject)?);
        if applied.name == *name {
            return None;
        }
        let [asked, found] =
            [own, applied].map(|policy| self.modes_of_all(subject.namespace).with(policy));
        let is_strict = |modes: &PeerModes, port: Option<u16>| {
            port.map_or(&modes.rest, |port| modes.of_port(port)).mode == PeerMode::Strict
        };
        let ports = asked.ports.keys().chain(found.ports.keys()).copied().map(Some);
        let mut ports = ports.chain([None]);
        let is_more_open = ports.any(|port| is_strict(&asked, port) && !is_strict(&found, port));
        Some(ReplacedPeer { by: applied.name.clone(), is_more_open })
    }

    /// How a workload takes connections, while some clients may still speak to it as before.
    pub(super) fn served_modes(&self, subject: AccessSubject<'_>) -> PeerModes {
        let begun = self.moves.iter();
        begun.fold(self.modes(subject), |modes, one| {
            modes.coming_from(&one.modes_before(subject), one.ends)
        })
    }

    /// What may select workloads of a namespace: policies of the root namespace, and its own.
    fn held_for(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<NamespacePolicies>> {
        let own = self.namespaces.get(namespace).filter(|_| *namespace != self.root);
        self.namespaces.get(&self.root).into_iter().chain(own)
    }

    fn policies(&self, subject: AccessSubject<'_>) -> Vec<&Arc<AuthorizationPolicy>> {
        let restricts = |policy: &AuthorizationPolicy| {
            let action = &policy.action;
            matches!(action, AuthorizationAction::Deny | AuthorizationAction::Custom(_))
                && policy.selector.is_by_claim(&policy.name.namespace, subject)
        };
        let held = self.held_for(subject.namespace);
        let mut all: Vec<_> = held
            .flat_map(|held| &held.authorizations)
            .filter(|policy| {
                policy.selector.selects(&policy.name.namespace, subject)
                    || (!subject.is_known && restricts(policy))
            })
            .collect();
        all.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        all
    }

    fn requests(&self, subject: AccessSubject<'_>) -> Vec<&Arc<RequestAuthentication>> {
        let held = self.held_for(subject.namespace);
        let mut all: Vec<_> = held
            .flat_map(|held| &held.requests)
            .filter(|policy| policy.selector.selects(&policy.name.namespace, subject))
            .collect();
        all.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        all
    }

    /// The namespace whose policies are for the whole mesh.
    pub fn root(&self) -> &Namespace {
        &self.root
    }

    /// Whether any policy says that a workload takes no mTLS.
    pub fn disables_anywhere(&self) -> bool {
        self.namespaces.values().flat_map(|held| &held.peers).any(|policy| disables(policy))
    }

    /// Whether for some workloads of a namespace labels decide whether they take mTLS.
    pub fn disables_by_labels(&self, namespace: &Namespace) -> bool {
        let own = self.namespaces.get(namespace).into_iter().flat_map(|held| &held.peers);
        let by_labels = own.filter(|policy| policy.selector != PolicySelector::All);
        // A label may also end what holds for the whole namespace.
        by_labels.count() != 0 && self.disables_anywhere()
    }

    /// The namespaces in which something differs from an earlier version; the root namespace stands for all.
    pub fn changed_namespaces(&self, before: &Self) -> BTreeSet<Namespace> {
        let mut changed: BTreeSet<_> = differing(&before.namespaces, &self.namespaces).collect();
        if self.root != before.root {
            changed.extend([self.root.clone(), before.root.clone()]);
        }
        // What servers take differs wherever such a move was to or from another mode.
        changed.extend(self.moves_apart(before).flat_map(|one| one.namespaces()));
        changed
    }

    /// The namespaces with objects of which there is something else to say than in an earlier version.
    pub fn changed_reports(&self, before: &Self) -> BTreeSet<Namespace> {
        differing(&before.reports, &self.reports).map(|name| name.object.namespace).collect()
    }

    /// The namespaces in which it may differ whether workloads take mTLS; the root namespace stands for all.
    pub fn changed_modes(&self, before: &Self) -> BTreeSet<Namespace> {
        if !(self.speaks_plainly_anywhere() || before.speaks_plainly_anywhere()) {
            return BTreeSet::new();
        }
        let moved: BTreeSet<_> =
            self.moves_apart(before).flat_map(|one| one.namespaces()).collect();
        let mut changed = self.changed_namespaces(before);
        let roots_differ = self.root != before.root;
        changed.retain(|one| {
            roots_differ || moved.contains(one) || self.peers_in(one) != before.peers_in(one)
        });
        changed
    }

    /// The PeerAuthentication for a whole namespace that counts.
    pub fn whole_peer(&self, namespace: &Namespace) -> Option<&WorkloadKey> {
        let held = self.namespaces.get(namespace)?;
        let mut whole = held.peers.iter().filter(|policy| policy.selector == PolicySelector::All);
        whole.next().map(|policy| &policy.name)
    }

    /// What there is to say of each policy, by name.
    pub fn reports(&self) -> impl Iterator<Item = (&PolicyName, &Arc<PolicyReport>)> {
        self.reports.iter()
    }

    /// What there is to say of the policy of this name.
    pub fn report(&self, name: &PolicyName) -> Option<&Arc<PolicyReport>> {
        self.reports.get(name)
    }

    /// All AuthorizationPolicies.
    pub fn authorizations(&self) -> impl Iterator<Item = &Arc<AuthorizationPolicy>> {
        self.namespaces.values().flat_map(|held| &held.authorizations)
    }

    /// The AuthorizationPolicy of this name.
    pub fn authorization(&self, name: &WorkloadKey) -> Option<&Arc<AuthorizationPolicy>> {
        let held = self.namespaces.get(&name.namespace)?;
        held.authorizations.iter().find(|policy| policy.name == *name)
    }

    /// The RequestAuthentication of this name.
    pub fn request(&self, name: &WorkloadKey) -> Option<&Arc<RequestAuthentication>> {
        let held = self.namespaces.get(&name.namespace)?;
        held.requests.iter().find(|policy| policy.name == *name)
    }
}

pub(super) fn differing<'a, K: Ord + Clone, V: PartialEq>(
    before: &'a OrdMap<K, V>,
    now: &'a OrdMap<K, V>,
) -> impl Iterator<Item = K> + use<'a, K, V> {
    before.diff(now).map(|item| match item {
        DiffItem::Add(key, _)
        | DiffItem::Remove(key, _)
        | DiffItem::Update { new: (key, _), .. } => key.clone(),
    })
}

pub(super) fn disables(policy: &PeerAuthentication) -> bool {
    let modes = std::iter::once(&policy.mode).chain(policy.ports.values());
    modes.into_iter().any(|mode| *mode == Some(PeerMode::Disable))
}

/// The order in which policies count.
pub(super) fn order(created: i64, name: &WorkloadKey) -> (i64, &str, &str) {
    (created, &name.name, name.namespace.as_str())
}
