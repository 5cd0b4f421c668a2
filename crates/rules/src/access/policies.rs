//! The active access policies: an immutable value, shared by all users of a snapshot.

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

/// All active access policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessPolicies {
    /// Root namespace, whose policies apply to the whole mesh.
    pub(super) root: Namespace,
    pub(super) namespaces: OrdMap<Namespace, Arc<NamespacePolicies>>,
    /// The mode transitions in progress, the oldest first.
    pub(super) moves: Vec<Arc<ModeMove>>,
    pub(super) reports: OrdMap<PolicyName, Arc<PolicyReport>>,
}

/// A mode transition: a change of policies by which workloads may change from plaintext only to
/// mTLS, or back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModeMove {
    /// Policies before and after the change, without other transitions.
    pub(super) before: Arc<AccessPolicies>,
    pub(super) after: Arc<AccessPolicies>,
    pub(super) begun: Instant,
    /// Whether `SERVERS_FIRST` has passed, so that servers are ready for the new mode of their
    /// clients.
    pub(super) servers_are_ready: bool,
    pub(super) ends: TimePoint,
}

/// The policies of one namespace, sorted by age (the oldest first), then by name.
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

/// Status of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyReport {
    /// State of the object.
    pub state: PolicyState,
    /// Parts that cannot be read or have no effect.
    pub faults: Vec<AccessFault>,
    /// Selector of the workloads that the policy applies to; `None` if no part of it is active.
    pub selector: Option<PolicySelector>,
}

/// A PeerAuthentication that is replaced by another one at a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedPeer {
    /// Name of the policy that applies instead.
    pub by: WorkloadKey,
    /// Whether the workload accepts plaintext at a port for which the replaced policy requires
    /// mTLS.
    pub is_more_open: bool,
}

/// The access policies of one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadAccess<'a> {
    /// mTLS modes by port.
    pub modes: PeerModes,
    /// AuthorizationPolicies that select the workload, sorted by age, name and namespace.
    pub policies: Vec<&'a Arc<AuthorizationPolicy>>,
    /// RequestAuthentications that select the workload, in the same order.
    pub requests: Vec<&'a Arc<RequestAuthentication>>,
}

impl<'a> WorkloadAccess<'a> {
    /// Returns the names of the external authorization providers that the policies use, sorted and
    /// without duplicates.
    pub fn providers(&self) -> BTreeSet<&'a Arc<str>> {
        let provider = |policy: &&'a Arc<AuthorizationPolicy>| match &policy.action {
            AuthorizationAction::Custom(provider) => Some(provider),
            _ => None,
        };
        self.policies.iter().filter_map(provider).collect()
    }

    /// Returns whether an enforced rule that decides about requests matches their paths. Proxies then
    /// deny requests whose path has a dot segment with a parameter
    /// ([`strait_model::mesh_config::has_dot_parameter`]): the application may resolve it to another
    /// path than the proxy.
    pub fn decides_by_path(&self) -> bool {
        let decides = |policy: &AuthorizationPolicy| {
            !policy.dry_run && policy.action != AuthorizationAction::Audit
        };
        self.policies.iter().any(|policy| decides(policy) && policy.looks_at_paths())
    }

    /// Returns the rules for tokens, sorted by issuer and without duplicates. Rules beyond the key
    /// budget have no keys.
    pub fn token_rules(&self) -> Vec<Cow<'a, TokenRule>> {
        let mut rules = key_share::rules_within(&self.requests);
        rules.sort();
        rules.dedup();
        rules
    }
}

impl AccessPolicies {
    /// Returns the access policies of a workload.
    pub fn of(&self, subject: AccessSubject<'_>) -> WorkloadAccess<'_> {
        WorkloadAccess {
            modes: self.served_modes(subject),
            policies: self.policies(subject),
            requests: self.requests(subject),
        }
    }

    /// Returns the mTLS modes of a workload. They do not depend on the client. A policy of the
    /// namespace overrides the policy of the mesh, and a policy that selects the labels overrides
    /// both. If several policies of one level exist, the oldest applies.
    pub fn modes(&self, subject: AccessSubject<'_>) -> PeerModes {
        let mut modes = self.namespace_modes(subject.namespace);
        if *subject.namespace == self.root {
            return modes;
        }
        if let Some(workload_policy) = self.selecting_peer(subject) {
            modes = modes.with(workload_policy);
        }
        if subject.is_known {
            return modes;
        }
        // The labels are unverified claims. They must not remove the workload from any policy in
        // the namespace.
        self.peer_policies_in(subject.namespace)
            .fold(modes, |modes, policy| modes.tightened(policy))
    }

    /// Returns the modes of a workload in a namespace if no policy selects it by labels.
    fn namespace_modes(&self, namespace: &Namespace) -> PeerModes {
        let whole = |namespace| {
            self.peer_policies_in(namespace).find(|policy| policy.selector == PolicySelector::All)
        };
        let own = whole(namespace).filter(|_| *namespace != self.root);
        whole(&self.root)
            .into_iter()
            .chain(own)
            .fold(PeerModes::default(), |modes, one| modes.with(one))
    }

    fn peer_policies_in(
        &self,
        namespace: &Namespace,
    ) -> impl Iterator<Item = &Arc<PeerAuthentication>> {
        self.namespaces.get(namespace).into_iter().flat_map(|policies| &policies.peers)
    }

    /// Returns the PeerAuthentication that selects a workload by labels. The oldest takes
    /// precedence.
    fn selecting_peer(&self, subject: AccessSubject<'_>) -> Option<&Arc<PeerAuthentication>> {
        let mut by_labels = self
            .peer_policies_in(subject.namespace)
            .filter(|policy| policy.selector != PolicySelector::All);
        by_labels.find(|policy| policy.selector.selects(subject.namespace, subject))
    }

    /// Returns the PeerAuthentication of this name.
    pub fn peer(&self, name: &WorkloadKey) -> Option<&Arc<PeerAuthentication>> {
        self.peer_policies_in(&name.namespace).find(|policy| policy.name == *name)
    }

    /// Returns the PeerAuthentication that replaces this one at a workload that both select by
    /// labels; `None` if this one applies.
    pub fn replacing_peer(
        &self,
        name: &WorkloadKey,
        subject: AccessSubject<'_>,
    ) -> Option<ReplacedPeer> {
        let (own, applied) = (self.peer(name)?, self.selecting_peer(subject)?);
        if applied.name == *name {
            return None;
        }
        let [own_modes, applied_modes] =
            [own, applied].map(|policy| self.namespace_modes(subject.namespace).with(policy));
        let is_strict = |modes: &PeerModes, port: Option<u16>| {
            port.map_or(&modes.rest, |port| modes.of_port(port)).mode == PeerMode::Strict
        };
        let ports = own_modes.ports.keys().chain(applied_modes.ports.keys()).copied().map(Some);
        let mut ports = ports.chain([None]);
        let is_more_open =
            ports.any(|port| is_strict(&own_modes, port) && !is_strict(&applied_modes, port));
        Some(ReplacedPeer { by: applied.name.clone(), is_more_open })
    }

    /// Returns the mTLS modes that servers accept now, including transitions in progress.
    pub(super) fn served_modes(&self, subject: AccessSubject<'_>) -> PeerModes {
        let begun = self.moves.iter();
        begun.fold(self.modes(subject), |modes, transition| {
            modes.coming_from(&transition.modes_before(subject), transition.ends)
        })
    }

    /// Iterates over the policies that may select workloads of a namespace: in the root namespace
    /// and in the namespace itself.
    fn policies_for(&self, namespace: &Namespace) -> impl Iterator<Item = &Arc<NamespacePolicies>> {
        let own = self.namespaces.get(namespace).filter(|_| *namespace != self.root);
        self.namespaces.get(&self.root).into_iter().chain(own)
    }

    fn policies(&self, subject: AccessSubject<'_>) -> Vec<&Arc<AuthorizationPolicy>> {
        let restricts = |policy: &AuthorizationPolicy| {
            let action = &policy.action;
            matches!(action, AuthorizationAction::Deny | AuthorizationAction::Custom(_))
                && policy.selector.is_by_claim(&policy.name.namespace, subject)
        };
        let policies = self.policies_for(subject.namespace);
        let mut all: Vec<_> = policies
            .flat_map(|policies| &policies.authorizations)
            .filter(|policy| {
                policy.selector.selects(&policy.name.namespace, subject)
                    || (!subject.is_known && restricts(policy))
            })
            .collect();
        all.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        all
    }

    fn requests(&self, subject: AccessSubject<'_>) -> Vec<&Arc<RequestAuthentication>> {
        let policies = self.policies_for(subject.namespace);
        let mut all: Vec<_> = policies
            .flat_map(|policies| &policies.requests)
            .filter(|policy| policy.selector.selects(&policy.name.namespace, subject))
            .collect();
        all.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        all
    }

    /// Returns the root namespace, whose policies apply to the whole mesh.
    pub fn root(&self) -> &Namespace {
        &self.root
    }

    /// Returns whether any policy sets the mode DISABLE.
    pub fn disables_anywhere(&self) -> bool {
        self.namespaces.values().flat_map(|policies| &policies.peers).any(|policy| disables(policy))
    }

    /// Returns whether labels may decide which workloads of a namespace accept mTLS.
    pub fn disables_by_labels(&self, namespace: &Namespace) -> bool {
        let own = self.namespaces.get(namespace).into_iter().flat_map(|policies| &policies.peers);
        let by_labels = own.filter(|policy| policy.selector != PolicySelector::All);
        // A policy that selects labels may also override a DISABLE of the whole namespace.
        by_labels.count() != 0 && self.disables_anywhere()
    }

    /// Returns the namespaces whose policies differ from an earlier version. The root namespace
    /// represents all namespaces.
    pub fn changed_namespaces(&self, before: &Self) -> BTreeSet<Namespace> {
        let mut changed: BTreeSet<_> = differing(&before.namespaces, &self.namespaces).collect();
        if self.root != before.root {
            changed.extend([self.root.clone(), before.root.clone()]);
        }
        // A mode transition that begins or ends changes what servers accept.
        changed.extend(self.moves_apart(before).flat_map(|one| one.namespaces()));
        changed
    }

    /// Returns the namespaces of objects whose status differs from an earlier version.
    pub fn changed_reports(&self, before: &Self) -> BTreeSet<Namespace> {
        differing(&before.reports, &self.reports).map(|name| name.object.namespace).collect()
    }

    /// Returns the namespaces in which workloads may have started or stopped accepting mTLS. The
    /// root namespace represents all namespaces.
    pub fn changed_modes(&self, before: &Self) -> BTreeSet<Namespace> {
        if !(self.uses_plaintext_anywhere() || before.uses_plaintext_anywhere()) {
            return BTreeSet::new();
        }
        let moved: BTreeSet<_> =
            self.moves_apart(before).flat_map(|one| one.namespaces()).collect();
        let mut changed = self.changed_namespaces(before);
        let roots_differ = self.root != before.root;
        changed.retain(|namespace| {
            roots_differ
                || moved.contains(namespace)
                || self.peers_in(namespace) != before.peers_in(namespace)
        });
        changed
    }

    /// Returns the PeerAuthentication that applies to a whole namespace.
    pub fn whole_peer(&self, namespace: &Namespace) -> Option<&WorkloadKey> {
        let policies = self.namespaces.get(namespace)?;
        let mut whole =
            policies.peers.iter().filter(|policy| policy.selector == PolicySelector::All);
        whole.next().map(|policy| &policy.name)
    }

    /// Iterates over the status of each policy, by name.
    pub fn reports(&self) -> impl Iterator<Item = (&PolicyName, &Arc<PolicyReport>)> {
        self.reports.iter()
    }

    /// Returns the status of the policy of this name.
    pub fn report(&self, name: &PolicyName) -> Option<&Arc<PolicyReport>> {
        self.reports.get(name)
    }

    /// Iterates over all AuthorizationPolicies.
    pub fn authorizations(&self) -> impl Iterator<Item = &Arc<AuthorizationPolicy>> {
        self.namespaces.values().flat_map(|policies| &policies.authorizations)
    }

    /// Returns the AuthorizationPolicy of this name.
    pub fn authorization(&self, name: &WorkloadKey) -> Option<&Arc<AuthorizationPolicy>> {
        let policies = self.namespaces.get(&name.namespace)?;
        policies.authorizations.iter().find(|policy| policy.name == *name)
    }

    /// Returns the RequestAuthentication with this name.
    pub fn request(&self, name: &WorkloadKey) -> Option<&Arc<RequestAuthentication>> {
        let policies = self.namespaces.get(&name.namespace)?;
        policies.requests.iter().find(|policy| policy.name == *name)
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

/// Returns the sort key for the precedence of policies.
pub(super) fn order(created: i64, name: &WorkloadKey) -> (i64, &str, &str) {
    (created, &name.name, name.namespace.as_str())
}
