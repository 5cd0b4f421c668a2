//! Index of all service entries, which merges the ports, addresses and endpoints of each host.
//!
//! Entries are merged by age, then by name, so that all replicas have the same result. For the name
//! of a Kubernetes Service, entries of the namespace in the name come first. A host belongs to the
//! namespace of the first entry. Entries of other namespaces cannot extend it.
//! Otherwise any user who may write one object could capture part of another namespace's traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::addresses::Allocation;
use super::convert::{
    self, EndpointDiscovery, EntryEndpoint, EntryPort, Fault, PartFault, ServiceEntry,
};
use super::host::{Defined, Host};
use super::join::{PodsWanted, Selections, VmWorkload, VmWorkloads};
use super::last_read::LastReadEntry;
use super::problem::EntryProblem;
use super::resolution::resolution;
use crate::budget::ObjectBudget;
use strait_model::registry::{Contents, ServiceRecord, ShardChange};
use strait_model::{
    Cause, Causes, Collection, Difference, Endpoint, ExportTo, Hostname, ISTIO_NETWORKING, Labels,
    LastValidObject, Namespace, ObjectJson, ObjectKey, WorkloadKey,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EntryKind {
    Service,
    Workload,
}

impl EntryKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Service => "ServiceEntry",
            Self::Workload => "WorkloadEntry",
        }
    }

    /// Returns the key of an object of this kind.
    fn key(self, name: &WorkloadKey) -> ObjectKey {
        ObjectKey {
            kind: self.as_str().into(),
            group: ISTIO_NETWORKING.into(),
            namespace: name.namespace.as_str().into(),
            name: Arc::clone(&name.name),
        }
    }
}

/// Sort key of the entries of a host: whether the host is a name of another namespace, creation
/// time, and name.
type EntryRank = (bool, i64, WorkloadKey);

/// Index of the service entries. Pure.
///
/// The result for a host depends only on its entries and the workloads that they select. After a
/// change, only the hosts of the changed entries are merged again. A property test checks that this
/// equals merging all hosts again.
#[derive(Debug)]
pub struct EntryIndex {
    trust_domain: String,
    /// The objects of the last `apply`.
    objects: Collection,
    services: BTreeMap<WorkloadKey, LastReadEntry<ServiceEntry>>,
    workloads: BTreeMap<WorkloadKey, LastReadEntry<EntryEndpoint>>,
    /// The entries of each host in merge order, each with the index of the host in the entry.
    naming: BTreeMap<Hostname, BTreeMap<EntryRank, usize>>,
    /// The entries that select workloads, by namespace.
    selecting: BTreeMap<Namespace, BTreeSet<WorkloadKey>>,
    /// Merged definitions of each host.
    joined: BTreeMap<Hostname, Joined>,
    allocation: Allocation,
    /// The last sent version of each definition.
    last_sent: BTreeMap<Hostname, ServiceRecord>,
    /// Workload selectors of definitions.
    wanted: BTreeMap<Hostname, Vec<PodsWanted>>,
    /// Problems of single objects.
    faulty: BTreeMap<(EntryKind, WorkloadKey), Vec<EntryProblem>>,
    /// All problems of single objects, and all conflicts between entries.
    problems: Vec<EntryProblem>,
    selections: Arc<Selections>,
    is_initialized: bool,
    /// `defaultServiceExportTo` of the mesh config.
    default_export: Vec<String>,
    /// Parts that must be rebuilt because a setting changed.
    stale: Stale,
    /// Reports about objects that other stores hide, with the hosts of these objects.
    shadowed: Vec<(Vec<Arc<str>>, String)>,
    /// The versions from before a restart, until the first `apply`.
    remembered: Collection,
    budget: ObjectBudget,
}

/// Parts that must be rebuilt although no object changed.
#[derive(Debug, Default)]
struct Stale {
    /// All ServiceEntries.
    entries: bool,
    /// All identities.
    identities: bool,
    /// The notes of hosts.
    notes: bool,
}

/// Parts that a change of objects affects.
#[derive(Debug, Default)]
struct EntryChanges {
    hosts: BTreeSet<Hostname>,
    vms: bool,
    problems: bool,
}

/// Merged definitions of one host.
#[derive(Debug, Default)]
struct Joined {
    /// Definitions by their internal name.
    definitions: BTreeMap<Hostname, Defined>,
    problems: Vec<EntryProblem>,
}

impl EntryIndex {
    /// Creates an empty index. Identities of workloads are in `trust_domain`.
    pub fn new(trust_domain: &str) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            objects: Collection::default(),
            services: BTreeMap::new(),
            workloads: BTreeMap::new(),
            naming: BTreeMap::new(),
            selecting: BTreeMap::new(),
            joined: BTreeMap::new(),
            allocation: Allocation::default(),
            last_sent: BTreeMap::new(),
            wanted: BTreeMap::new(),
            faulty: BTreeMap::new(),
            problems: Vec::new(),
            selections: Arc::default(),
            is_initialized: false,
            default_export: Vec::new(),
            stale: Stale::default(),
            shadowed: Vec::new(),
            remembered: Collection::default(),
            budget: ObjectBudget::default(),
        }
    }

    /// Sets the CPU budget for reading each object.
    #[must_use]
    pub fn with_budget(self, budget: ObjectBudget) -> Self {
        Self { budget, ..self }
    }

    /// Restores the versions of objects from before a restart. If an object is invalid now, the
    /// restored version is its last valid one. None of them takes effect before [`Self::apply`] is
    /// called.
    pub fn remember(&mut self, objects: &Collection) {
        self.remembered = objects.clone();
    }

    /// Returns an empty index with the same settings.
    #[cfg(test)]
    pub(super) fn like(&self) -> Self {
        let mut like = Self::new(&self.trust_domain);
        like.export_by_default(&self.default_export);
        like.shadowed(&self.shadowed);
        like
    }

    /// Sets the trust domain of workload identities. Takes effect with the next [`Self::apply`].
    pub fn move_to(&mut self, trust_domain: &str) {
        if self.trust_domain != trust_domain {
            trust_domain.clone_into(&mut self.trust_domain);
            self.stale.identities = true;
        }
    }

    /// Sets the namespaces to which entries without `exportTo` are exported, as a list of the same
    /// form. Takes effect with the next [`Self::apply`].
    pub fn export_by_default(&mut self, to: &[String]) {
        if self.default_export != to {
            self.default_export = to.to_vec();
            self.stale.entries = true;
        }
    }

    /// Sets the reports about objects that other stores hide, each with the hosts of the object.
    /// Takes effect with the next [`Self::apply`].
    pub fn shadowed(&mut self, shadowed: &[(Vec<Arc<str>>, String)]) {
        if self.shadowed != shadowed {
            self.shadowed = shadowed.to_vec();
            self.stale.notes = true;
        }
    }

    /// Replaces all objects; objects of other kinds are ignored. Returns the changed services, and
    /// all services on the first call; `None` if there is nothing to send.
    pub fn apply(&mut self, objects: &Collection) -> Option<ShardChange> {
        let stale = std::mem::take(&mut self.stale);
        let mut touched = EntryChanges::default();
        let before = std::mem::replace(&mut self.objects, objects.clone());
        let mut causes = Causes::default();
        for Difference { key, now } in objects.differences(&before) {
            let Some((kind, name)) = entry_key(key) else { continue };
            causes.add(Cause::of_object(kind.as_str(), key));
            match kind {
                EntryKind::Service => self.apply_service(name, now, &mut touched),
                EntryKind::Workload => self.apply_workload(name, now, &mut touched),
            }
        }
        if stale.entries {
            for (key, object) in objects.iter() {
                if let Some((EntryKind::Service, name)) = entry_key(key) {
                    self.apply_service(name, Some(object), &mut touched);
                }
            }
        }
        self.remembered = Collection::default();
        if stale.identities {
            touched.hosts.extend(self.naming.keys().cloned());
            touched.vms = true;
        }
        let selections = Arc::clone(&self.selections);
        let contents = self.join(touched, stale.notes);
        if !std::mem::replace(&mut self.is_initialized, true) {
            let all =
                self.last_sent.iter().map(|(key, record)| (key.clone(), Some(record.clone())));
            return Some(ShardChange::Reset(Contents {
                services: all.collect(),
                ..Contents::default()
            }));
        }
        let is_news = !contents.services.is_empty() || !Arc::ptr_eq(&selections, &self.selections);
        is_news.then_some(ShardChange::Update(Contents { causes, ..contents }))
    }

    /// Returns the problems of all objects, sorted.
    pub fn problems(&self) -> &[EntryProblem] {
        &self.problems
    }

    /// Returns the last valid versions of objects that are invalid now.
    pub fn last_valid_objects(&self) -> Vec<LastValidObject> {
        let last_valid = |(kind, name): &(EntryKind, WorkloadKey)| {
            let good = match kind {
                EntryKind::Service => self.services.get(name)?.last_valid(),
                EntryKind::Workload => self.workloads.get(name)?.last_valid(),
            };
            let (key, good) = (kind.key(name), good?.clone());
            Some(LastValidObject { now: self.objects.get(&key)?.clone(), key, good })
        };
        self.faulty.keys().filter_map(last_valid).collect()
    }

    /// Returns the pods that entries select, and the WorkloadEntries that Services may select.
    pub fn selections(&self) -> &Arc<Selections> {
        &self.selections
    }

    fn apply_service(
        &mut self,
        name: WorkloadKey,
        object: Option<&ObjectJson>,
        touched: &mut EntryChanges,
    ) {
        let before = self.services.remove(&name);
        if let Some(entry) = before.as_ref().and_then(LastReadEntry::good) {
            for host in &entry.hosts {
                if let Some(entries) = self.naming.get_mut(host) {
                    entries.remove(&rank(host, entry, &name));
                    if entries.is_empty() {
                        self.naming.remove(host);
                    }
                }
            }
            if entry.selector.is_some() {
                remove(&mut self.selecting, &name.namespace, &name);
            }
            touched.hosts.extend(entry.hosts.iter().cloned());
        }
        let mut problems = Vec::new();
        if let Some(object) = object {
            let key = EntryKind::Service.key(&name);
            let remembered = self.remembered.get(&key);
            let export = &self.default_export;
            let read = |object: &Value| convert::service_entry(name.clone(), object, export);
            let last_read =
                LastReadEntry::read(&key, object, (before, remembered), &self.budget, read);
            problems.extend(last_read.problems(EntryKind::Service.as_str(), &name));
            if let Some(entry) = last_read.good() {
                for (at, host) in entry.hosts.iter().enumerate() {
                    let rank = rank(host, entry, &name);
                    self.naming.entry(host.clone()).or_default().insert(rank, at);
                }
                if entry.selector.is_some() {
                    let namespace = name.namespace.clone();
                    self.selecting.entry(namespace).or_default().insert(name.clone());
                }
                touched.hosts.extend(entry.hosts.iter().cloned());
                problems.extend(entry.faults.iter().map(|PartFault { fault, effect }| {
                    EntryProblem::for_part(&name, fault.clone(), effect)
                }));
            }
            self.services.insert(name.clone(), last_read);
        }
        self.note_faults((EntryKind::Service, name), problems, touched);
    }

    fn apply_workload(
        &mut self,
        name: WorkloadKey,
        object: Option<&ObjectJson>,
        touched: &mut EntryChanges,
    ) {
        let before = self.workloads.remove(&name);
        self.touch_selecting(&name, before.as_ref().and_then(LastReadEntry::good), touched);
        let mut problems = Vec::new();
        if let Some(object) = object {
            let key = EntryKind::Workload.key(&name);
            let remembered = self.remembered.get(&key);
            let read = |object: &Value| convert::workload_entry(name.clone(), object);
            let last_read =
                LastReadEntry::read(&key, object, (before, remembered), &self.budget, read);
            problems.extend(last_read.problems(EntryKind::Workload.as_str(), &name));
            self.touch_selecting(&name, last_read.good(), touched);
            self.workloads.insert(name.clone(), last_read);
        }
        touched.vms = true;
        self.note_faults((EntryKind::Workload, name), problems, touched);
    }

    /// Marks the hosts of entries that select a workload as affected.
    fn touch_selecting(
        &self,
        name: &WorkloadKey,
        workload: Option<&EntryEndpoint>,
        touched: &mut EntryChanges,
    ) {
        let Some(workload) = workload else { return };
        let entries = self.selecting.get(&name.namespace).into_iter().flatten();
        for entry in entries.filter_map(|name| self.services.get(name)?.good()) {
            if entry.selector.as_ref().is_some_and(|one| selects(one, &workload.labels)) {
                touched.hosts.extend(entry.hosts.iter().cloned());
            }
        }
    }

    fn note_faults(
        &mut self,
        key: (EntryKind, WorkloadKey),
        problems: Vec<EntryProblem>,
        touched: &mut EntryChanges,
    ) {
        let before = match problems.is_empty() {
            true => self.faulty.remove(&key),
            false => self.faulty.insert(key.clone(), problems),
        };
        touched.problems |= before.as_ref() != self.faulty.get(&key);
    }

    /// Merges the affected hosts again. Returns the services that differ.
    fn join(&mut self, touched: EntryChanges, mut notes: bool) -> Contents {
        let EntryChanges { hosts, vms, mut problems } = touched;
        let mut keys = BTreeSet::new();
        for host in hosts {
            let new = self.naming.get(&host).map(|places| self.join_host(&host, places));
            let new_problems = new.as_ref().map_or(&[][..], |new| &new.problems);
            let old = self.joined.get(&host);
            let differ = old.map_or(&[][..], |old| &old.problems) != new_problems;
            problems |= differ;
            notes |= differ;
            keys.extend(new.iter().flat_map(|new| new.definitions.keys().cloned()));
            keys.extend(old.into_iter().flat_map(|old| old.definitions.keys().cloned()));
            match new {
                Some(new) => self.joined.insert(host, new),
                None => self.joined.remove(&host),
            };
        }
        let claims =
            keys.iter().map(|key| (key.clone(), self.defined(key).map(|one| one.claim.clone())));
        let claims: Vec<_> = claims.collect();
        let given = self.allocation.update(claims.into_iter());
        keys.extend(given);
        let (contents, pods) = self.changed(keys);
        if problems {
            let faulty = self.faulty.values().flatten();
            let joined = self.joined.values().flat_map(|joined| &joined.problems);
            self.problems = faulty.chain(joined).cloned().collect();
            self.problems.sort();
        }
        if vms || notes || pods {
            self.select(vms, notes, pods);
        }
        contents
    }

    /// Returns the definition with an internal name.
    fn defined(&self, key: &Hostname) -> Option<&Defined> {
        // Definitions that are private to a namespace are stored next to the host's own definition.
        let host = key.split_private().map(|(host, _)| host);
        self.joined.get(host.as_ref().unwrap_or(key))?.definitions.get(key)
    }

    /// Returns the definitions that differ from the last sent version, and whether any of them
    /// selects workloads or did before.
    fn changed(&mut self, keys: BTreeSet<Hostname>) -> (Contents, bool) {
        let mut contents = Contents::default();
        let mut selected = false;
        for key in keys {
            let Some(Defined { service, endpoints, selects, .. }) = self.defined(&key) else {
                selected |= self.wanted.remove(&key).is_some();
                if self.last_sent.remove(&key).is_some() {
                    contents.services.insert(key, None);
                }
                continue;
            };
            let mut service = service.clone();
            service.vips.extend(self.allocation.given(&key));
            let before = self.last_sent.get(&key);
            let same = before.filter(|before| *before.service == service);
            let service = same.map_or_else(|| Arc::new(service), |same| Arc::clone(&same.service));
            let wanted = selects.iter().map(|(selector, ports)| PodsWanted {
                key: key.clone(),
                service: Arc::clone(&service),
                selector: selector.clone(),
                ports: ports.clone(),
            });
            let wanted: Vec<_> = wanted.collect();
            let record = ServiceRecord { service, endpoints: endpoints.clone() };
            if self.wanted.get(&key).map_or(&[][..], |list| list) != wanted {
                selected = true;
                match wanted.is_empty() {
                    true => drop(self.wanted.remove(&key)),
                    false => drop(self.wanted.insert(key.clone(), wanted)),
                }
            }
            if before != Some(&record) {
                self.last_sent.insert(key.clone(), record.clone());
                contents.services.insert(key, Some(record));
            }
        }
        (contents, selected)
    }

    /// Updates the selections of pods and WorkloadEntries.
    fn select(&mut self, vms: bool, notes: bool, pods: bool) {
        let mut selections = Selections::clone(&self.selections);
        if vms {
            selections.workloads = self.vms();
            selections.by_address.clear();
            for (name, vm) in &selections.workloads {
                if let Some(address) = vm.address() {
                    let place = (name.namespace.clone(), address);
                    selections.by_address.entry(place).or_default().push(name.clone());
                }
            }
        }
        if notes {
            selections.notes.clear();
            let shadowed = self.shadowed.iter().flat_map(|(hosts, text)| {
                hosts.iter().map(move |host| (Hostname::new(Arc::clone(host)), text.clone()))
            });
            let joined = self.joined.iter().flat_map(|(host, joined)| {
                joined.problems.iter().map(move |problem| (host.clone(), problem.to_string()))
            });
            for (host, text) in shadowed.chain(joined) {
                selections.notes.entry(host).or_default().push(text);
            }
        }
        if pods {
            selections.pods = self.wanted.values().flatten().cloned().collect();
        }
        if *self.selections != selections {
            self.selections = Arc::new(selections);
        }
    }

    /// Merges the entries of a host, each with the index of the host in the entry.
    fn join_host(&self, host: &Hostname, entries: &BTreeMap<EntryRank, usize>) -> Joined {
        let readable_entry =
            |((.., name), at): (&EntryRank, &usize)| Some((self.services.get(name)?.good()?, *at));
        let entries: Vec<(&ServiceEntry, usize)> =
            entries.iter().filter_map(readable_entry).collect();
        let holder = holder(&entries);
        let mut hosts: BTreeMap<Hostname, Host<'_>> = BTreeMap::new();
        let mut problems = Vec::new();
        let has_private = |namespace: &Namespace| {
            let mut private = entries.iter().filter(|(entry, _)| is_private(entry));
            private.any(|(entry, _)| entry.name.namespace == *namespace)
        };
        let has_both = holder.filter(|one| !is_private(one) && has_private(&one.name.namespace));
        for &(entry, index) in &entries {
            let own = &entry.name.namespace;
            let key = key_for(host, entry, holder);
            // A namespace with a private definition also sees its own public entries.
            let is_in_both =
                !is_private(entry) && has_both.is_some_and(|both| both.name.namespace == *own);
            let second = is_in_both.then(|| (host.private_to(own), false));
            for (key, is_reported) in std::iter::once((key, true)).chain(second) {
                let ports = match hosts.get(&key).map_or(Ok(None), |host| host.admits(entry)) {
                    Ok(ports) => ports,
                    Err(fact) => {
                        let fault = Fault { field: format!("spec.hosts[{index}]"), fact };
                        let effect = "for this host the entry has no effect";
                        let first = hosts.get(&key).map(|host| host.first_name().clone());
                        let holder = first.filter(|first| first.namespace != *own);
                        let problem = EntryProblem::for_part(&entry.name, fault, effect);
                        problems.extend(is_reported.then_some(EntryProblem { holder, ..problem }));
                        continue;
                    }
                };
                let (ports, faults) = ports
                    .unwrap_or_else(|| (entry.ports.iter().map(EntryPort::from).collect(), vec![]));
                let faults = faults.into_iter().filter(|_| is_reported);
                problems.extend(faults.map(|fault| {
                    let effect = "for this host the entry applies without this port";
                    EntryProblem::for_part(&entry.name, fault, effect)
                }));
                self.add_entry(&mut hosts, host, (entry, key), ports);
            }
        }
        let definitions = hosts.into_iter().map(|(key, host)| (key, host.defined()));
        Joined { definitions: definitions.collect(), problems }
    }

    /// Adds an entry to the definition of a host with an internal name.
    fn add_entry<'a>(
        &self,
        hosts: &mut BTreeMap<Hostname, Host<'a>>,
        host: &Hostname,
        (entry, key): (&'a ServiceEntry, Hostname),
        ports: Vec<EntryPort>,
    ) {
        let workloads = self.entry_endpoints(entry);
        let endpoints = match entry.how {
            EndpointDiscovery::Static => self.endpoints(entry, &ports, &workloads),
            EndpointDiscovery::Dns | EndpointDiscovery::DnsRoundRobin | EndpointDiscovery::None => {
                Vec::new()
            }
        };
        let resolution = resolution(entry, host, &ports, &workloads);
        let export_to = match key == *host {
            true => entry.export_to.clone(),
            false => ExportTo::Namespaces([entry.name.namespace.clone()].into()),
        };
        match hosts.get_mut(&key) {
            Some(host) => host.join(entry, ports, resolution, &endpoints),
            None => {
                let new = Host::new(entry, host, export_to, (ports, resolution, endpoints));
                hosts.insert(key, new);
            }
        }
    }

    /// Returns the inline endpoints of an entry and the workloads that it selects.
    fn entry_endpoints<'a>(&'a self, entry: &'a ServiceEntry) -> Vec<&'a EntryEndpoint> {
        let own = &entry.name.namespace;
        let selected = entry.selector.iter().flat_map(|selector| {
            let in_namespace = self.workloads.range(WorkloadKey::new(own.clone(), "")..);
            let in_namespace = in_namespace.take_while(move |(name, _)| name.namespace == *own);
            let good = in_namespace.filter_map(|(_, last_read)| last_read.good());
            good.filter(move |workload| selects(selector, &workload.labels))
        });
        entry.endpoints.iter().chain(selected).collect()
    }

    /// Returns the endpoints of an entry, for each port.
    fn endpoints(
        &self,
        entry: &ServiceEntry,
        ports: &[EntryPort],
        workloads: &[&EntryEndpoint],
    ) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for port in ports {
            for workload in workloads {
                let account = workload.account.as_deref();
                let identity = account.map(|account| self.identity(&entry.name.namespace, account));
                let number = workload.port(port);
                let endpoint = workload.endpoint(&port.port, number, entry.external, identity);
                endpoints.extend(endpoint);
            }
        }
        endpoints
    }

    fn vms(&self) -> VmWorkloads {
        let good =
            self.workloads.iter().filter_map(|(name, last_read)| Some((name, last_read.good()?)));
        let vm = |(name, workload): (&WorkloadKey, &EntryEndpoint)| {
            (name.clone(), VmWorkload::new(name, workload.clone(), &self.trust_domain))
        };
        good.map(vm).collect()
    }

    /// Returns the SPIFFE ID of a service account.
    fn identity(&self, namespace: &Namespace, account: &str) -> Arc<str> {
        format!("spiffe://{}/ns/{namespace}/sa/{account}", self.trust_domain).into()
    }
}

/// Removes a value from the set of a key, and the set if it becomes empty.
fn remove<K: Ord, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

/// Returns whether a selector matches labels. Unlike a Kubernetes selector, an empty one matches
/// everything.
fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns the kind and the name of an entry object; `None` for other objects.
fn entry_key(key: &ObjectKey) -> Option<(EntryKind, WorkloadKey)> {
    let kind = match (&*key.group, &*key.kind) {
        (ISTIO_NETWORKING, "ServiceEntry") => EntryKind::Service,
        (ISTIO_NETWORKING, "WorkloadEntry") => EntryKind::Workload,
        _ => return None,
    };
    Some((kind, WorkloadKey::new(&*key.namespace, Arc::clone(&key.name))))
}

/// Returns the rank of an entry among the entries of a host. The namespace in the name of a
/// Kubernetes Service (`NAME.NAMESPACE.svc.DOMAIN`) has the first rank.
fn rank(host: &Hostname, entry: &ServiceEntry, name: &WorkloadKey) -> EntryRank {
    let mut labels = host.as_str().splitn(4, '.').skip(1);
    let namespace = labels.next().filter(|_| labels.next() == Some("svc"));
    let is_foreign = namespace.is_some_and(|namespace| namespace != name.namespace.as_str());
    (is_foreign, entry.created, name.clone())
}

/// Returns the entry whose namespace owns a host: the first entry that other namespaces can see, or
/// else the first. `entries` are sorted by rank.
fn holder<'a>(entries: &[(&'a ServiceEntry, usize)]) -> Option<&'a ServiceEntry> {
    let holder = entries.iter().find(|(entry, _)| !is_private(entry)).or(entries.first());
    holder.map(|(entry, _)| *entry)
}

/// Returns the internal name of an entry's definition of a host. If the entry is private to its
/// namespace, and the host belongs to another namespace or has public entries, the definition is
/// stored separately, and only that namespace sees it.
fn key_for(host: &Hostname, entry: &ServiceEntry, holder: Option<&ServiceEntry>) -> Hostname {
    let own = &entry.name.namespace;
    let is_separate = |holder: &ServiceEntry| holder.name.namespace != *own || !is_private(holder);
    if is_private(entry) && holder.is_some_and(is_separate) {
        host.private_to(own)
    } else {
        host.clone()
    }
}

/// Returns whether an entry is exported only to its own namespace.
fn is_private(entry: &ServiceEntry) -> bool {
    match &entry.export_to {
        ExportTo::Public => false,
        ExportTo::Namespaces(namespaces) => **namespaces == [entry.name.namespace.clone()],
    }
}
