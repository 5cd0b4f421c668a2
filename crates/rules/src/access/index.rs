//! Index of the access policies in the stores. Each object is read once, and the last valid version
//! is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::authorization::AuthorizationPolicy;
use super::key_share;
use super::object::{AccessFault, PolicyErrors, PolicyKind, PolicyName, PolicyState};
use super::peer::PeerAuthentication;
use super::policies::{AccessPolicies, NamespacePolicies, PolicyReport, order};
use super::request::RequestAuthentication;
use super::selector::PolicySelector;
use super::time_point::TimePoint;
use crate::bounds;
use crate::budget::ObjectBudget;
use strait_base::codes;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, KeySource, WantedKeys};
use strait_model::{
    Cause, Causes, Collection, Difference, LastValidObject, Namespace, ObjectJson, ObjectKey,
    WorkloadKey,
};

/// Settings that determine the meaning of policies, in addition to the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessSettings {
    /// Root namespace, whose policies apply to the whole mesh.
    pub root: Namespace,
    /// Handling of policies that cannot be read.
    pub errors: PolicyErrors,
}

/// A change of the active policies.
#[derive(Debug, Clone)]
pub struct AccessChange {
    /// The policies that are active from now on.
    pub policies: Arc<AccessPolicies>,
    /// The objects that caused the change.
    pub causes: Causes,
}

/// Index of the access policies by object. Pure. A clone is independent of the original.
#[derive(Debug, Clone)]
pub struct AccessIndex {
    pub(super) settings: AccessSettings,
    pub(super) objects: Collection,
    /// The active versions of the policies. For a policy that cannot be read, this is its last
    /// valid version.
    counting: Collection,
    parsed: BTreeMap<PolicyName, ParsedPolicy>,
    pub(super) policies: Arc<AccessPolicies>,
    fetched: Arc<FetchedKeys>,
    is_initialized: bool,
    budget: ObjectBudget,
}

/// State of an object after it was last read.
#[derive(Debug, Clone)]
struct ParsedPolicy {
    /// The last version without faults, as stored and as parsed.
    good: Option<(ObjectJson, ReadPolicy)>,
    /// The active version: the last valid one, or the readable parts if no version was ever valid.
    counts: Option<ReadPolicy>,
    report: Arc<PolicyReport>,
}

#[derive(Debug, Clone)]
enum ReadPolicy {
    Authorization(Arc<AuthorizationPolicy>),
    Peer(Arc<PeerAuthentication>),
    Request(Arc<RequestAuthentication>),
}

impl ReadPolicy {
    /// Parses an object. Returns the policy, its faults, and warnings about parts without an
    /// effect.
    fn read(
        name: &PolicyName,
        object: &Value,
        settings: &AccessSettings,
    ) -> (Option<Self>, Vec<AccessFault>, Vec<AccessFault>) {
        let mut faults = Vec::new();
        match name.kind {
            PolicyKind::Authorization => {
                let errors = settings.errors;
                let read = AuthorizationPolicy::read(&name.object, object, errors, &mut faults);
                let warnings = read.as_ref().map(|policy| policy.warnings(object));
                let read = read.map(|policy| Self::Authorization(Arc::new(policy)));
                (read, faults, warnings.unwrap_or_default())
            }
            PolicyKind::Request => {
                let read = RequestAuthentication::read(&name.object, object, &mut faults);
                let (faults, mut warnings): (Vec<_>, Vec<_>) =
                    faults.into_iter().partition(AccessFault::is_unreadable);
                warnings.extend(read.iter().flat_map(|policy| policy.warnings(object)));
                let read = read.map(|policy| Self::Request(Arc::new(policy)));
                (read, faults, warnings)
            }
            PolicyKind::Peer => {
                let strict = settings.errors == PolicyErrors::Strict;
                let read = PeerAuthentication::read(&name.object, object, strict, &mut faults);
                let warnings = read.as_ref().map(|policy| policy.warnings(&settings.root));
                let read = read.map(|policy| Self::Peer(Arc::new(policy)));
                (read, faults, warnings.unwrap_or_default())
            }
        }
    }

    /// Rejects an object as a whole, as if its `spec` could not be read.
    fn refused(
        name: &PolicyName,
        settings: &AccessSettings,
        fault: AccessFault,
    ) -> (Option<Self>, Vec<AccessFault>, Vec<AccessFault>) {
        let (read, ..) = Self::read(name, &json!({ "spec": "unreadable" }), settings);
        (read, vec![fault], Vec::new())
    }

    fn selector(&self) -> &PolicySelector {
        match self {
            Self::Authorization(policy) => &policy.selector,
            Self::Peer(policy) => &policy.selector,
            Self::Request(policy) => &policy.selector,
        }
    }
}

impl ParsedPolicy {
    /// Reads an object that replaces a previous version.
    fn read(
        name: &PolicyName,
        key: &ObjectKey,
        object: &ObjectJson,
        before: Option<Self>,
        (settings, budget): (&AccessSettings, &ObjectBudget),
    ) -> Self {
        budget.begin(key);
        let (mut read, mut faults, warnings) = match bounds::to_value(key, object) {
            Ok(value) => ReadPolicy::read(name, &value, settings),
            Err(excess) => ReadPolicy::refused(name, settings, {
                AccessFault::warning(&codes::OBJECT_SURPLUS, excess.path.clone(), excess)
            }),
        };
        if let Some(excess) = budget.excess().filter(|_| faults.is_empty()) {
            let fault = AccessFault::warning(&codes::OBJECT_COST, "spec", excess);
            (read, faults, _) = ReadPolicy::refused(name, settings, fault);
        }
        let before = before.and_then(|before| before.good);
        let (good, counts, state) = if faults.is_empty() {
            let good = read.clone().map(|read| (object.clone(), read));
            (good, read, PolicyState::InForce)
        } else if let Some((stored, good)) = before {
            faults.push(AccessFault::warning(
                &codes::ACCESS_LAST_GOOD,
                "spec",
                "the last valid version stays active",
            ));
            (Some((stored, good.clone())), Some(good), PolicyState::Refused)
        } else {
            let state = if read.is_some() { PolicyState::Partly } else { PolicyState::Refused };
            let text = match (&read, name.kind) {
                (None, _) => "the object has no effect",
                (Some(_), PolicyKind::Peer) => "only the readable parts are active",
                (Some(_), PolicyKind::Request) => {
                    "there is no earlier version: tokens of rules that cannot be read are refused"
                }
                (Some(_), PolicyKind::Authorization) => {
                    "there is no earlier version: ALLOW rules that cannot be read are left out; \
                     other rules go without their unreadable conditions, or are left out if no \
                     condition is readable"
                }
            };
            faults.push(AccessFault::warning(&codes::ACCESS_PARTLY, "spec", text));
            (None, read, state)
        };
        faults.extend(warnings);
        let selector = counts.as_ref().map(|policy| policy.selector().clone());
        Self { good, counts, report: Arc::new(PolicyReport { state, faults, selector }) }
    }

    /// Returns the last valid version if the current object was refused. It is persisted, so that
    /// it survives a restart.
    fn last_valid(&self) -> Option<&ObjectJson> {
        let (good, _) = self.good.as_ref().filter(|_| self.report.state == PolicyState::Refused)?;
        Some(good)
    }
}

impl AccessIndex {
    /// Creates an empty index.
    pub fn new(settings: AccessSettings) -> Self {
        let policies = AccessPolicies { root: settings.root.clone(), ..AccessPolicies::default() };
        Self {
            settings,
            objects: Collection::default(),
            counting: Collection::default(),
            parsed: BTreeMap::new(),
            policies: Arc::new(policies),
            fetched: Arc::default(),
            is_initialized: false,
            budget: ObjectBudget::default(),
        }
    }

    /// Sets the CPU budget for reading each object.
    #[must_use]
    pub fn with_budget(self, budget: ObjectBudget) -> Self {
        Self { budget, ..self }
    }

    /// Restores the versions of objects from before a restart. If an object cannot be read now, the
    /// restored version is its last valid one. None of them takes effect before [`Self::apply`] is
    /// called.
    pub fn remember(&mut self, objects: &Collection) {
        let settings = self.settings.clone();
        self.apply(&settings, objects);
        self.is_initialized = false;
    }

    /// Replaces all objects; objects of other kinds are ignored. Returns the active policies if
    /// they changed, and always on the first call. Starts no mode transition: see
    /// [`Self::apply_at`].
    pub fn apply(
        &mut self,
        settings: &AccessSettings,
        objects: &Collection,
    ) -> Option<AccessChange> {
        self.apply_objects(settings, objects, None)
    }

    /// Replaces all objects like [`Self::apply`] and starts a mode transition: servers accept the
    /// previous mode for a while, because clients still have the previous configuration. The first
    /// call starts no transition.
    pub fn apply_at(
        &mut self,
        settings: &AccessSettings,
        objects: &Collection,
        now: TimePoint,
    ) -> Option<AccessChange> {
        self.apply_objects(settings, objects, Some(now))
    }

    fn apply_objects(
        &mut self,
        settings: &AccessSettings,
        objects: &Collection,
        learnt_from: Option<TimePoint>,
    ) -> Option<AccessChange> {
        let mut causes = Causes::default();
        let mut stale = BTreeSet::new();
        let before = std::mem::replace(&mut self.objects, objects.clone());
        let reread = self.settings != *settings;
        self.settings.clone_from(settings);
        for Difference { key, now } in objects.differences(&before) {
            let Some(name) = PolicyKind::policy_name(key) else { continue };
            causes.add(Cause::of_object(name.kind.as_str(), key));
            self.take(name, key, now, &mut stale);
        }
        if reread {
            for (key, object) in objects.iter() {
                if let Some(name) = PolicyKind::policy_name(key) {
                    self.take(name, key, Some(object), &mut stale);
                }
            }
        }
        let first = !std::mem::replace(&mut self.is_initialized, true);
        let mut next = self.next(&stale);
        if let Some(now) = learnt_from.filter(|_| !first) {
            next.moves = self.policies.moves_on(&next, now);
        }
        if next == *self.policies && !first {
            return None;
        }
        self.policies = Arc::new(next);
        Some(AccessChange { policies: Arc::clone(&self.policies), causes })
    }

    /// Rolls back to an earlier set of active policies. Exactly these versions become active: the
    /// last valid versions that were read since then are dropped. Returns `None` if nothing
    /// changes.
    pub fn restore(
        &mut self,
        settings: &AccessSettings,
        counting: &Collection,
        now: TimePoint,
    ) -> Option<AccessChange> {
        for Difference { key, .. } in counting.differences(&self.objects) {
            if let Some(policy) =
                PolicyKind::policy_name(key).and_then(|name| self.parsed.get_mut(&name))
            {
                policy.good = None;
            }
        }
        self.apply_at(settings, counting, now)
    }

    /// Returns the active policies.
    pub fn policies(&self) -> Arc<AccessPolicies> {
        Arc::clone(&self.policies)
    }

    /// Returns the objects of the last call of [`Self::apply`], including those that cannot be
    /// read.
    pub fn objects(&self) -> &Collection {
        &self.objects
    }

    /// Returns the active versions of the policies.
    pub fn counting(&self) -> &Collection {
        &self.counting
    }

    /// Stores fetched keys of token issuers. Returns the active policies; `None` if they did not
    /// change.
    pub fn apply_keys(&mut self, fetched: Arc<FetchedKeys>) -> Option<Arc<AccessPolicies>> {
        let before = std::mem::replace(&mut self.fetched, fetched);
        let differs = |place: &KeyPlace| before.get(place) != self.fetched.get(place);
        let concerned = self.sources().filter(|(_, source)| differs(&source.place));
        let stale: BTreeSet<Namespace> =
            concerned.map(|(name, _)| name.object.namespace.clone()).collect();
        // Before the first `apply`, no policies are active.
        if stale.is_empty() || !self.is_initialized {
            return None;
        }
        let next = self.next(&stale);
        if next == *self.policies {
            return None;
        }
        self.policies = Arc::new(next);
        Some(Arc::clone(&self.policies))
    }

    /// Returns the locations of keys that policies refer to, with the requirements of these
    /// policies.
    pub fn wanted_keys(&self) -> BTreeMap<KeyPlace, WantedKeys> {
        let mut wanted = BTreeMap::new();
        for (name, source) in self.sources() {
            let wanted_keys = wanted.entry(source.place.clone()).or_insert_with(|| WantedKeys {
                timeout: source.timeout,
                namespaces: BTreeSet::new(),
            });
            wanted_keys.timeout = source.timeout.max(wanted_keys.timeout);
            wanted_keys.namespaces.insert(name.object.namespace.clone());
        }
        wanted
    }

    /// Iterates over the locations of keys that must be fetched, with the policy of each.
    fn sources(&self) -> impl Iterator<Item = (&PolicyName, &KeySource)> {
        self.parsed.iter().flat_map(|(name, parsed)| {
            let rules = match &parsed.counts {
                Some(ReadPolicy::Request(policy)) => &policy.rules[..],
                _ => &[],
            };
            rules.iter().filter_map(move |rule| Some((name, rule.source.as_ref()?)))
        })
    }

    /// Advances the mode transitions that are due: clients switch to the new mode, and later
    /// servers stop accepting the previous mode. Returns `None` if no transition is due.
    pub fn settle(&mut self, now: Instant) -> Option<Arc<AccessPolicies>> {
        let moves = self.policies.moves_at(now)?;
        self.policies = Arc::new(AccessPolicies { moves, ..(*self.policies).clone() });
        Some(Arc::clone(&self.policies))
    }

    /// Returns the time of the next [`Self::settle`]; `None` if no transition is in progress.
    pub fn settles(&self) -> Option<Instant> {
        self.policies.next_step()
    }

    /// Returns a copy without mode transitions, for policies that are not sent to proxies.
    #[must_use]
    pub fn unsent(&self) -> Self {
        let policies = AccessPolicies { moves: Vec::new(), ..(*self.policies).clone() };
        Self { policies: Arc::new(policies), ..self.clone() }
    }

    /// Iterates over the reports of all objects with faults, by name.
    pub fn troubles(&self) -> impl Iterator<Item = (&PolicyName, &PolicyReport)> {
        let all = self.parsed.iter().map(|(name, parsed)| (name, &*parsed.report));
        all.filter(|(_, report)| report.state != PolicyState::InForce)
    }

    /// Returns the last valid versions of objects that cannot be read.
    pub fn last_valid_objects(&self) -> Vec<LastValidObject> {
        let last_valid = |(name, parsed): (&PolicyName, &ParsedPolicy)| {
            let (key, good) = (name.key(), parsed.last_valid()?.clone());
            Some(LastValidObject { now: self.objects.get(&key)?.clone(), key, good })
        };
        self.parsed.iter().filter_map(last_valid).collect()
    }

    fn take(
        &mut self,
        name: PolicyName,
        key: &ObjectKey,
        object: Option<&ObjectJson>,
        stale: &mut BTreeSet<Namespace>,
    ) {
        stale.insert(name.object.namespace.clone());
        let before = self.parsed.remove(&name);
        let Some(object) = object else {
            self.counting.remove(key);
            return;
        };
        let parsed = ParsedPolicy::read(&name, key, object, before, (&self.settings, &self.budget));
        let counts = parsed.good.as_ref().map_or(object, |(stored, _)| stored);
        self.counting.insert(key.clone(), counts.clone());
        self.parsed.insert(name, parsed);
    }

    /// Returns the active policies after rebuilding these namespaces.
    fn next(&self, stale: &BTreeSet<Namespace>) -> AccessPolicies {
        let before = &self.policies;
        let mut next = AccessPolicies { root: self.settings.root.clone(), ..(**before).clone() };
        for namespace in stale {
            self.remake(namespace, &mut next);
        }
        next
    }

    /// Returns the report of an object, including warnings about its keys and about too many keys
    /// (`beyond`).
    fn report(&self, parsed: &ParsedPolicy, beyond: Option<&AccessFault>) -> Arc<PolicyReport> {
        let Some(ReadPolicy::Request(policy)) = &parsed.counts else {
            return Arc::clone(&parsed.report);
        };
        let mut warnings = policy.key_warnings(&self.fetched);
        warnings.extend(beyond.cloned());
        if warnings.is_empty() {
            return Arc::clone(&parsed.report);
        }
        let mut report = (*parsed.report).clone();
        report.faults.extend(warnings);
        Arc::new(report)
    }

    /// Iterates over the objects of one kind in a namespace.
    fn policies_in<'a>(
        &'a self,
        kind: PolicyKind,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = (&'a PolicyName, &'a ParsedPolicy)> {
        let first = PolicyName { kind, object: WorkloadKey::new(namespace.clone(), "") };
        let all = self.parsed.range(first..);
        all.take_while(move |(name, _)| name.kind == kind && name.object.namespace == *namespace)
    }

    /// Returns the RequestAuthentications of a namespace with the fetched keys, the oldest first.
    fn requests(&self, namespace: &Namespace) -> Vec<Arc<RequestAuthentication>> {
        let policies = self.policies_in(PolicyKind::Request, namespace);
        let mut built: Vec<_> = policies
            .filter_map(|(_, parsed)| match &parsed.counts {
                Some(ReadPolicy::Request(policy)) => Some(policy.with_keys(&self.fetched)),
                _ => None,
            })
            .collect();
        built.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        built
    }

    fn remake(&self, namespace: &Namespace, next: &mut AccessPolicies) {
        let requests = self.requests(namespace);
        let beyond = key_share::beyond(&requests);
        let mut built = NamespacePolicies { requests, ..NamespacePolicies::default() };
        let kinds = [PolicyKind::Authorization, PolicyKind::Peer, PolicyKind::Request];
        let gone: Vec<_> = next
            .reports
            .keys()
            .filter(|name| name.object.namespace == *namespace && !self.parsed.contains_key(*name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| drop(next.reports.remove(name)));
        for kind in kinds {
            for (name, parsed) in self.policies_in(kind, namespace) {
                match &parsed.counts {
                    Some(ReadPolicy::Authorization(policy)) => {
                        built.authorizations.push(Arc::clone(policy));
                    }
                    Some(ReadPolicy::Peer(policy)) => built.peers.push(Arc::clone(policy)),
                    Some(ReadPolicy::Request(_)) | None => {}
                }
                let beyond = beyond.get(&name.object).filter(|_| kind == PolicyKind::Request);
                let report = self.report(parsed, beyond);
                if next.reports.get(name) != Some(&report) {
                    next.reports.insert(name.clone(), report);
                }
            }
        }
        built
            .authorizations
            .sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        built.peers.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        if built.is_empty() {
            next.namespaces.remove(namespace);
        } else if next.namespaces.get(namespace).is_none_or(|current| **current != built) {
            next.namespaces.insert(namespace.clone(), Arc::new(built));
        }
    }
}
