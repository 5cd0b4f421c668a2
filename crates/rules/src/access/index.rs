//! The access policies among the stores' objects: read once each, the last good form kept.

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
    Cause, Causes, Collection, Difference, Namespace, ObjectJson, ObjectKey, StandIn, WorkloadKey,
};

/// What the meaning of policies depends on beside the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessSettings {
    /// The namespace whose policies are for the whole mesh.
    pub root: Namespace,
    /// What becomes of what can't be read.
    pub errors: PolicyErrors,
}

/// What changed.
#[derive(Debug, Clone)]
pub struct AccessChange {
    /// The policies in force from now on.
    pub policies: Arc<AccessPolicies>,
    /// The objects behind the change.
    pub causes: Causes,
}

/// The policies, object by object. Pure. A clone goes its own way from then on.
#[derive(Debug, Clone)]
pub struct AccessIndex {
    pub(super) settings: AccessSettings,
    pub(super) objects: Collection,
    /// The policies as they count: of what can't be read the last form that could.
    counting: Collection,
    held: BTreeMap<PolicyName, HeldPolicy>,
    pub(super) policies: Arc<AccessPolicies>,
    fetched: Arc<FetchedKeys>,
    heard: bool,
    budget: ObjectBudget,
}

/// An object as it was last read.
#[derive(Debug, Clone)]
struct HeldPolicy {
    /// The last of it that could be read wholly, as it was stored and as it was read.
    good: Option<(ObjectJson, ReadPolicy)>,
    /// What counts: the good form, or what could be read of one that never was good.
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
    /// Reads an object; what is wrong with it, and what it says that has no effect.
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

    /// Refuses an object as a whole, as if its `spec` could not be read.
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

impl HeldPolicy {
    /// An object that comes in the place of another.
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
                "what it said before it was changed is in force",
            ));
            (Some((stored, good.clone())), Some(good), PolicyState::Refused)
        } else {
            let state = if read.is_some() { PolicyState::Partly } else { PolicyState::Refused };
            let text = match (&read, name.kind) {
                (None, _) => "nothing of it is in force",
                (Some(_), PolicyKind::Peer) => "what of it can be read is in force",
                (Some(_), PolicyKind::Request) => {
                    "there is no earlier version: tokens of rules that cannot be read are refused"
                }
                (Some(_), PolicyKind::Authorization) => {
                    "there is no earlier form: rules that allow are left out, others go without what can't be read, \
                     or are left out where that is all of it"
                }
            };
            faults.push(AccessFault::warning(&codes::ACCESS_PARTLY, "spec", text));
            (None, read, state)
        };
        faults.extend(warnings);
        let selector = counts.as_ref().map(|policy| policy.selector().clone());
        Self { good, counts, report: Arc::new(PolicyReport { state, faults, selector }) }
    }

    /// What is remembered over a restart in place of an object that can't be read.
    fn stand_in(&self) -> Option<&ObjectJson> {
        let (good, _) = self.good.as_ref().filter(|_| self.report.state == PolicyState::Refused)?;
        Some(good)
    }
}

impl AccessIndex {
    /// An empty index.
    pub fn new(settings: AccessSettings) -> Self {
        let policies = AccessPolicies { root: settings.root.clone(), ..AccessPolicies::default() };
        Self {
            settings,
            objects: Collection::default(),
            counting: Collection::default(),
            held: BTreeMap::new(),
            policies: Arc::new(policies),
            fetched: Arc::default(),
            heard: false,
            budget: ObjectBudget::default(),
        }
    }

    /// Returns this index with a budget for each object.
    #[must_use]
    pub fn with_budget(self, budget: ObjectBudget) -> Self {
        Self { budget, ..self }
    }

    /// Takes note of what objects were before the process started: where one can't be read now, that is its last good
    /// form. None of it counts before [`Self::apply`].
    pub fn remember(&mut self, objects: &Collection) {
        let settings = self.settings.clone();
        self.apply(&settings, objects);
        self.heard = false;
    }

    /// Takes all objects there are; those of other kinds are left alone. Returns what is in force from now on, always
    /// the first time; `None` where that is what was. Nobody has to learn of it: see [`Self::apply_at`].
    pub fn apply(
        &mut self,
        settings: &AccessSettings,
        objects: &Collection,
    ) -> Option<AccessChange> {
        self.take_all(settings, objects, None)
    }

    /// The same where clients have to learn of it: what they still send is taken for a while. Not so the first time.
    pub fn apply_at(
        &mut self,
        settings: &AccessSettings,
        objects: &Collection,
        now: TimePoint,
    ) -> Option<AccessChange> {
        self.take_all(settings, objects, Some(now))
    }

    fn take_all(
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
            let Some(name) = PolicyKind::of(key) else { continue };
            causes.add(Cause::of_object(name.kind.as_str(), key));
            self.take(name, key, now, &mut stale);
        }
        if reread {
            for (key, object) in objects.iter() {
                if let Some(name) = PolicyKind::of(key) {
                    self.take(name, key, Some(object), &mut stale);
                }
            }
        }
        let first = !std::mem::replace(&mut self.heard, true);
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

    /// Goes to policies as they once counted: what is in force then is what they say alone, and no form that one had meanwhile
    /// stands in for it. `None` where nothing comes of it.
    pub fn restore(
        &mut self,
        settings: &AccessSettings,
        counting: &Collection,
        now: TimePoint,
    ) -> Option<AccessChange> {
        for Difference { key, .. } in counting.differences(&self.objects) {
            if let Some(held) = PolicyKind::of(key).and_then(|name| self.held.get_mut(&name)) {
                held.good = None;
            }
        }
        self.apply_at(settings, counting, now)
    }

    /// What is in force.
    pub fn policies(&self) -> Arc<AccessPolicies> {
        Arc::clone(&self.policies)
    }

    /// The objects as they were last taken.
    pub fn objects(&self) -> &Collection {
        &self.objects
    }

    /// The policies as they count.
    pub fn counting(&self) -> &Collection {
        &self.counting
    }

    /// Takes the keys that have been fetched. Returns what is in force from now on; `None` where that is what was.
    pub fn take_keys(&mut self, fetched: Arc<FetchedKeys>) -> Option<Arc<AccessPolicies>> {
        let before = std::mem::replace(&mut self.fetched, fetched);
        let differs = |place: &KeyPlace| before.get(place) != self.fetched.get(place);
        let concerned = self.sources().filter(|(_, source)| differs(&source.place));
        let stale: BTreeSet<Namespace> =
            concerned.map(|(name, _)| name.object.namespace.clone()).collect();
        // Before the first time there is nothing to change.
        if stale.is_empty() || !self.heard {
            return None;
        }
        let next = self.next(&stale);
        if next == *self.policies {
            return None;
        }
        self.policies = Arc::new(next);
        Some(Arc::clone(&self.policies))
    }

    /// The places of keys that policies name, each with what they want of it.
    pub fn wanted_keys(&self) -> BTreeMap<KeyPlace, WantedKeys> {
        let mut wanted = BTreeMap::new();
        for (name, source) in self.sources() {
            let held = wanted.entry(source.place.clone()).or_insert_with(|| WantedKeys {
                timeout: source.timeout,
                namespaces: BTreeSet::new(),
            });
            held.timeout = source.timeout.max(held.timeout);
            held.namespaces.insert(name.object.namespace.clone());
        }
        wanted
    }

    /// Where the keys of each policy are that are fetched.
    fn sources(&self) -> impl Iterator<Item = (&PolicyName, &KeySource)> {
        self.held.iter().flat_map(|(name, held)| {
            let rules = match &held.counts {
                Some(ReadPolicy::Request(policy)) => &policy.rules[..],
                _ => &[],
            };
            rules.iter().filter_map(move |rule| Some((name, rule.source.as_ref()?)))
        })
    }

    /// Goes on with the moves whose time has come: clients speak otherwise, and later servers no longer take what they sent
    /// before. `None` where nothing is to be done.
    pub fn settle(&mut self, now: Instant) -> Option<Arc<AccessPolicies>> {
        let moves = self.policies.moves_at(now)?;
        self.policies = Arc::new(AccessPolicies { moves, ..(*self.policies).clone() });
        Some(Arc::clone(&self.policies))
    }

    /// When there is something to [`Self::settle`].
    pub fn settles(&self) -> Option<Instant> {
        self.policies.next_step()
    }

    /// The same for policies that nobody is sent: no client has to learn of them.
    #[must_use]
    pub fn unsent(&self) -> Self {
        let policies = AccessPolicies { moves: Vec::new(), ..(*self.policies).clone() };
        Self { policies: Arc::new(policies), ..self.clone() }
    }

    /// What there is to say of each object of which there is anything, by name.
    pub fn troubles(&self) -> impl Iterator<Item = (&PolicyName, &PolicyReport)> {
        let all = self.held.iter().map(|(name, held)| (name, &*held.report));
        all.filter(|(_, report)| report.state != PolicyState::InForce)
    }

    /// Objects that can't be read, each with what it was when it last could.
    pub fn stand_ins(&self) -> Vec<StandIn> {
        let stand_in = |(name, held): (&PolicyName, &HeldPolicy)| {
            let (key, good) = (name.key(), held.stand_in()?.clone());
            Some(StandIn { now: self.objects.get(&key)?.clone(), key, good })
        };
        self.held.iter().filter_map(stand_in).collect()
    }

    fn take(
        &mut self,
        name: PolicyName,
        key: &ObjectKey,
        object: Option<&ObjectJson>,
        stale: &mut BTreeSet<Namespace>,
    ) {
        stale.insert(name.object.namespace.clone());
        let before = self.held.remove(&name);
        let Some(object) = object else {
            self.counting.remove(key);
            return;
        };
        let held = HeldPolicy::read(&name, key, object, before, (&self.settings, &self.budget));
        let counts = held.good.as_ref().map_or(object, |(stored, _)| stored);
        self.counting.insert(key.clone(), counts.clone());
        self.held.insert(name, held);
    }

    /// What is in force, of which these namespaces are made again.
    fn next(&self, stale: &BTreeSet<Namespace>) -> AccessPolicies {
        let before = &self.policies;
        let mut next = AccessPolicies { root: self.settings.root.clone(), ..(**before).clone() };
        for namespace in stale {
            self.remake(namespace, &mut next);
        }
        next
    }

    /// What there is to say of an object, its keys among that, and whether they are too many.
    fn report(&self, held: &HeldPolicy, beyond: Option<&AccessFault>) -> Arc<PolicyReport> {
        let Some(ReadPolicy::Request(policy)) = &held.counts else {
            return Arc::clone(&held.report);
        };
        let mut warnings = policy.key_warnings(&self.fetched);
        warnings.extend(beyond.cloned());
        if warnings.is_empty() {
            return Arc::clone(&held.report);
        }
        let mut report = (*held.report).clone();
        report.faults.extend(warnings);
        Arc::new(report)
    }

    /// The objects of one kind in a namespace.
    fn held_in<'a>(
        &'a self,
        kind: PolicyKind,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = (&'a PolicyName, &'a HeldPolicy)> {
        let first = PolicyName { kind, object: WorkloadKey::new(namespace.clone(), "") };
        let all = self.held.range(first..);
        all.take_while(move |(name, _)| name.kind == kind && name.object.namespace == *namespace)
    }

    /// The RequestAuthentications of a namespace with the keys that are known, the oldest first.
    fn requests(&self, namespace: &Namespace) -> Vec<Arc<RequestAuthentication>> {
        let held = self.held_in(PolicyKind::Request, namespace);
        let mut made: Vec<_> = held
            .filter_map(|(_, held)| match &held.counts {
                Some(ReadPolicy::Request(policy)) => Some(policy.with_keys(&self.fetched)),
                _ => None,
            })
            .collect();
        made.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        made
    }

    fn remake(&self, namespace: &Namespace, next: &mut AccessPolicies) {
        let requests = self.requests(namespace);
        let beyond = key_share::beyond(&requests);
        let mut made = NamespacePolicies { requests, ..NamespacePolicies::default() };
        let kinds = [PolicyKind::Authorization, PolicyKind::Peer, PolicyKind::Request];
        let gone: Vec<_> = next
            .reports
            .keys()
            .filter(|name| name.object.namespace == *namespace && !self.held.contains_key(*name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| drop(next.reports.remove(name)));
        for kind in kinds {
            for (name, held) in self.held_in(kind, namespace) {
                match &held.counts {
                    Some(ReadPolicy::Authorization(policy)) => {
                        made.authorizations.push(Arc::clone(policy));
                    }
                    Some(ReadPolicy::Peer(policy)) => made.peers.push(Arc::clone(policy)),
                    Some(ReadPolicy::Request(_)) | None => {}
                }
                let beyond = beyond.get(&name.object).filter(|_| kind == PolicyKind::Request);
                let report = self.report(held, beyond);
                if next.reports.get(name) != Some(&report) {
                    next.reports.insert(name.clone(), report);
                }
            }
        }
        made.authorizations
            .sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        made.peers.sort_by(|a, b| order(a.created, &a.name).cmp(&order(b.created, &b.name)));
        if made.is_empty() {
            next.namespaces.remove(namespace);
        } else if next.namespaces.get(namespace).is_none_or(|held| **held != made) {
            next.namespaces.insert(namespace.clone(), Arc::new(made));
        }
    }
}
