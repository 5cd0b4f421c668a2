//! All entries together: which host has which ports, addresses and endpoints.
//!
//! Entries are joined in the order of their age, then by name, so that every replica comes to the
//! same. A host belongs to the namespace of its first entry: entries of other namespaces can't add to
//! it, else whoever may write one object could take a share of anybody's traffic.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::addresses::{self, Claim};
use super::convert::{self, Address, Fault, How, ServiceEntry, Workload};
use super::join::{Machine, Machines, PodsWanted, Selections};
use crate::model::{
    ByName, Definition, Distribution, Endpoint, Endpoints, ExportTo, Health, Hostname, Labels,
    NamedEndpoint, Namespace, Port, Resolution, Service, SortedMap, TargetPort, TlsMode,
    WorkloadKey,
};
use crate::registry::{Contents, ServiceRecord};

/// The API group of the objects, whatever its version.
const GROUP: &str = "networking.istio.io/";

/// An object that can't be used as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// `ServiceEntry` or `WorkloadEntry`.
    pub kind: &'static str,
    /// Namespace and name of the object.
    pub object: WorkloadKey,
    /// What is wrong with it.
    pub fault: Fault,
    /// What becomes of it.
    pub effect: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object, fault, effect } = self;
        write!(f, "{kind} {}/{}: {fault}; {effect}", object.namespace, object.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Service,
    Workload,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Service => "ServiceEntry",
            Self::Workload => "WorkloadEntry",
        }
    }
}

/// What is known of the entries. Pure.
#[derive(Debug)]
pub struct Index {
    trust_domain: String,
    services: BTreeMap<WorkloadKey, Kept<ServiceEntry>>,
    workloads: BTreeMap<WorkloadKey, Kept<Workload>>,
    /// Wrong in itself, or at odds with other entries.
    problems: Vec<Problem>,
    selections: Arc<Selections>,
    heard: bool,
    /// `defaultServiceExportTo` of the mesh config.
    default_export: Vec<String>,
    /// Whether all objects are to be read again.
    stale: bool,
    /// What stores say of objects that are not handed over at all, with the hosts that those name.
    shadowed: Vec<(Vec<Arc<str>>, String)>,
    /// Whether something is to be told yet though no object has changed.
    untold: bool,
}

/// An object as it was last read.
#[derive(Debug)]
struct Kept<T> {
    object: Arc<Value>,
    /// The last of it that made sense, as it was stored and as it was read.
    good: Option<(Arc<Value>, T)>,
    fault: Option<Fault>,
}

impl<T> Kept<T> {
    fn good(&self) -> Option<&T> {
        self.good.as_ref().map(|(_, good)| good)
    }

    /// What counts in place of an object that makes no sense.
    fn stand_in(&self) -> Option<(Arc<Value>, Arc<Value>)> {
        let (good, _) = self.good.as_ref().filter(|_| self.fault.is_some())?;
        Some((Arc::clone(&self.object), Arc::clone(good)))
    }
}

impl Index {
    /// An empty index. Accounts of workloads are in `trust_domain`.
    pub fn new(trust_domain: &str) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            services: BTreeMap::new(),
            workloads: BTreeMap::new(),
            problems: Vec::new(),
            selections: Arc::default(),
            heard: false,
            default_export: Vec::new(),
            stale: false,
            shadowed: Vec::new(),
            untold: false,
        }
    }

    /// In which trust domain accounts of workloads are from now on. It counts with the next [`Self::apply`].
    pub fn move_to(&mut self, trust_domain: &str) {
        if self.trust_domain != trust_domain {
            trust_domain.clone_into(&mut self.trust_domain);
            self.untold = true;
        }
    }

    /// To whom entries are exported that don't say so themselves: a list as in `exportTo`. It counts with the
    /// next [`Self::apply`].
    pub fn export_by_default(&mut self, to: &[String]) {
        if self.default_export != to {
            self.default_export = to.to_vec();
            self.stale = true;
        }
    }

    /// Takes what of the stores' objects counts for nothing: each with the hosts that it names, in words. It
    /// counts with the next [`Self::apply`].
    pub fn shadowed(&mut self, shadowed: &[(Vec<Arc<str>>, String)]) {
        if self.shadowed != shadowed {
            self.shadowed = shadowed.to_vec();
            self.untold = true;
        }
    }

    /// Takes all objects there are; those of other kinds are left alone. Returns all that comes of
    /// them, unless nothing can have changed.
    pub fn apply(&mut self, objects: &[Arc<Value>]) -> Option<Contents> {
        let mut found: BTreeMap<(Kind, WorkloadKey), &Arc<Value>> = BTreeMap::new();
        for object in objects {
            if let Some(key) = key_of(object) {
                found.entry(key).or_insert(object);
            }
        }
        let services = found.iter().filter(|((kind, _), _)| *kind == Kind::Service);
        let services = services.map(|((_, name), object)| (name, *object));
        let stale = std::mem::take(&mut self.stale);
        let read =
            |name, object: &Value| convert::service_entry(name, object, &self.default_export);
        let mut changed = take(&mut self.services, services, stale, read);
        let workloads = found.iter().filter(|((kind, _), _)| *kind == Kind::Workload);
        let workloads = workloads.map(|((_, name), object)| (name, *object));
        changed |= take(&mut self.workloads, workloads, false, convert::workload_entry);
        changed |= !std::mem::replace(&mut self.heard, true);
        changed |= std::mem::take(&mut self.untold);
        changed.then(|| self.contents())
    }

    /// Objects that can't be used as they are, sorted.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Objects that make no sense, each with what it was when it last did.
    pub fn stand_ins(&self) -> Vec<(Arc<Value>, Arc<Value>)> {
        let services = self.services.values().filter_map(Kept::stand_in);
        services.chain(self.workloads.values().filter_map(Kept::stand_in)).collect()
    }

    /// What entries select of clusters, and what Services may select of them.
    pub fn selections(&self) -> &Arc<Selections> {
        &self.selections
    }

    fn contents(&mut self) -> Contents {
        let mut problems = faults(Kind::Service, &self.services);
        problems.extend(self.services.values().filter_map(Kept::good).flat_map(|entry| {
            entry.odd_addresses.iter().map(|fault| Problem {
                kind: Kind::Service.as_str(),
                object: entry.name.clone(),
                fault: fault.clone(),
                effect: "the entry counts without this address",
            })
        }));
        problems.extend(faults(Kind::Workload, &self.workloads));
        let mut entries: Vec<&ServiceEntry> =
            self.services.values().filter_map(Kept::good).collect();
        entries.sort_by_key(|entry| (entry.created, &entry.name));
        let holders = Holders::of(&entries);
        let mut hosts: BTreeMap<Hostname, Host<'_>> = BTreeMap::new();
        let mut notes: BTreeMap<Hostname, Vec<String>> = BTreeMap::new();
        for (hosts, text) in &self.shadowed {
            for host in hosts {
                notes.entry(Hostname::new(Arc::clone(host))).or_default().push(text.clone());
            }
        }
        for entry in entries {
            let workloads = self.workloads_of(entry);
            let endpoints = match entry.how {
                How::Static => self.endpoints(entry, &workloads),
                How::Dns | How::DnsRoundRobin | How::None => Vec::new(),
            };
            for (index, hostname) in entry.hosts.iter().enumerate() {
                let resolution = resolution(entry, hostname, &workloads);
                let key = holders.key(hostname, entry);
                let joined = match hosts.get_mut(&key) {
                    Some(host) => host.join(entry, resolution, &endpoints),
                    None => {
                        let host = Host::new(entry, hostname, resolution, endpoints.clone());
                        hosts.insert(key, host);
                        Ok(())
                    }
                };
                if let Err(fact) = joined {
                    let problem = Problem {
                        kind: Kind::Service.as_str(),
                        object: entry.name.clone(),
                        fault: Fault { field: format!("spec.hosts[{index}]"), fact },
                        effect: "for this host the entry counts for nothing",
                    };
                    notes.entry(hostname.clone()).or_default().push(problem.to_string());
                    problems.push(problem);
                }
            }
        }
        addresses::give(hosts.values_mut().map(|Host { service, first, .. }| {
            let said = first.said.iter().filter(|(host, _)| *host == service.hostname);
            let said = said.map(|(_, address)| *address).collect();
            Claim { service, wanted: first.allocate, said }
        }));
        let mut selections =
            Selections { workloads: self.machines(), notes, ..Selections::default() };
        for (name, machine) in &selections.workloads {
            if let Some(address) = machine.address() {
                let place = (name.namespace.clone(), address);
                selections.by_address.entry(place).or_default().push(name.clone());
            }
        }
        let mut services = BTreeMap::new();
        for (key, Host { service, endpoints, selecting, .. }) in hosts {
            let service = Arc::new(service);
            let selecting = selecting.into_iter().filter(|entry| entry.how != How::None);
            selections.pods.extend(selecting.filter_map(|entry| {
                Some(PodsWanted {
                    key: key.clone(),
                    service: Arc::clone(&service),
                    selector: entry.selector.clone()?,
                    ports: entry.ports.clone(),
                })
            }));
            let record = ServiceRecord { service, endpoints: Endpoints::from_iter(endpoints) };
            services.insert(key, Some(record));
        }
        let contents = Contents { services, ..Contents::default() };
        if *self.selections != selections {
            self.selections = Arc::new(selections);
        }
        problems.sort();
        self.problems = problems;
        contents
    }

    /// The workloads that an entry names or selects.
    fn workloads_of<'a>(&'a self, entry: &'a ServiceEntry) -> Vec<&'a Workload> {
        let selected = self.workloads.iter().filter_map(|(name, kept)| {
            let (selector, workload) = (entry.selector.as_ref()?, kept.good()?);
            let fits =
                name.namespace == entry.name.namespace && selects(selector, &workload.labels);
            fits.then_some(workload)
        });
        entry.endpoints.iter().chain(selected).collect()
    }

    /// The endpoints of an entry, for each of its ports.
    fn endpoints(&self, entry: &ServiceEntry, workloads: &[&Workload]) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for port in &entry.ports {
            for workload in workloads {
                let account = workload.account.as_deref();
                let identity = account.map(|account| self.identity(&entry.name.namespace, account));
                let number = workload.port(port);
                endpoints.extend(workload.endpoint(port, number, entry.external, identity));
            }
        }
        endpoints
    }

    fn machines(&self) -> Machines {
        let good = self.workloads.iter().filter_map(|(name, kept)| Some((name, kept.good()?)));
        let machine = |(name, workload): (&WorkloadKey, &Workload)| {
            (name.clone(), Machine::new(name, workload.clone(), &self.trust_domain))
        };
        good.map(machine).collect()
    }

    /// The SPIFFE ID of an account.
    fn identity(&self, namespace: &Namespace, account: &str) -> Arc<str> {
        format!("spiffe://{}/ns/{namespace}/sa/{account}", self.trust_domain).into()
    }
}

/// How the endpoints of `host` are found, with those that the control plane doesn't send. An entry that
/// names and selects none leads to the host itself.
fn resolution(entry: &ServiceEntry, host: &Hostname, workloads: &[&Workload]) -> Resolution {
    let just_then = match entry.how {
        How::Static => return Resolution::ClientSide,
        How::None => return Resolution::Passthrough,
        How::Dns => false,
        How::DnsRoundRobin => true,
    };
    let ready = workloads.iter().filter(|one| one.health == Health::Healthy);
    // What has no address is in no upstream cluster that resolves names.
    let named = ready.filter_map(|workload| {
        let address = match &workload.address {
            Address::Ip(address) => address.to_string().into(),
            Address::Name(name) | Address::Socket(name) => Arc::clone(name),
            Address::Network => return None,
        };
        Some((workload, address))
    });
    let mut endpoints: Vec<_> = named
        .map(|(workload, address)| NamedEndpoint {
            address,
            ports: ports_by_name(entry, |port| workload.port(port)),
            weight: workload.weight,
            locality: Arc::clone(&workload.locality),
            network: workload.network.clone(),
            tls_mode: workload.tls_mode(entry.external),
        })
        .collect();
    if entry.selector.is_none() && entry.endpoints.is_empty() {
        endpoints.push(NamedEndpoint {
            address: host.as_str().into(),
            ports: ports_by_name(entry, |port| match port.target {
                TargetPort::Number(target) => target,
                TargetPort::Name(_) => port.number,
            }),
            weight: 1,
            locality: Arc::default(),
            network: None,
            tls_mode: TlsMode::Disabled,
        });
    }
    Resolution::ByName(ByName { just_then, endpoints })
}

fn ports_by_name(entry: &ServiceEntry, target: impl Fn(&Port) -> u16) -> SortedMap<Arc<str>, u16> {
    entry.ports.iter().map(|port| (Arc::clone(&port.name), target(port))).collect()
}

/// Unlike a Kubernetes selector, an empty one selects everything.
fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// What kind of entry an object is, and which.
fn key_of(object: &Value) -> Option<(Kind, WorkloadKey)> {
    object.get("apiVersion")?.as_str()?.strip_prefix(GROUP)?;
    let kind = match object.get("kind")?.as_str()? {
        "ServiceEntry" => Kind::Service,
        "WorkloadEntry" => Kind::Workload,
        _ => return None,
    };
    let metadata = object.get("metadata")?;
    let namespace = metadata.get("namespace")?.as_str()?;
    Some((kind, WorkloadKey::new(namespace, metadata.get("name")?.as_str()?)))
}

/// Takes over the objects that changed, or all where they are to be read `again`; whether any did.
fn take<'a, T>(
    kept: &mut BTreeMap<WorkloadKey, Kept<T>>,
    objects: impl Iterator<Item = (&'a WorkloadKey, &'a Arc<Value>)>,
    again: bool,
    read: impl Fn(WorkloadKey, &Value) -> Result<T, Fault>,
) -> bool {
    let mut old = std::mem::take(kept);
    let mut changed = false;
    for (name, object) in objects {
        let before = old.remove(name);
        let now = match before {
            Some(before) if before.object == *object && !again => {
                Kept { object: Arc::clone(object), ..before }
            }
            before => {
                changed = true;
                let (good, fault) = match read(name.clone(), object) {
                    Ok(good) => (Some((Arc::clone(object), good)), None),
                    Err(fault) => (before.and_then(|before| before.good), Some(fault)),
                };
                Kept { object: Arc::clone(object), good, fault }
            }
        };
        kept.insert(name.clone(), now);
    }
    changed || !old.is_empty()
}

fn faults<T>(kind: Kind, kept: &BTreeMap<WorkloadKey, Kept<T>>) -> Vec<Problem> {
    let wrong = kept.iter().filter_map(|(name, kept)| Some((name, kept, kept.fault.as_ref()?)));
    wrong
        .map(|(name, kept, fault)| Problem {
            kind: kind.as_str(),
            object: name.clone(),
            fault: fault.clone(),
            effect: match kept.good {
                Some(_) => "what it said before still counts",
                None => "it counts for nothing",
            },
        })
        .collect()
}

/// Which namespace has a host for everybody.
struct Holders<'a>(BTreeMap<&'a Hostname, &'a Namespace>);

impl<'a> Holders<'a> {
    /// The namespace of the oldest entry that others may see, else of the oldest. `entries` are sorted
    /// by age.
    fn of(entries: &[&'a ServiceEntry]) -> Self {
        let mut holders: BTreeMap<&Hostname, &ServiceEntry> = BTreeMap::new();
        for entry in entries {
            for host in &entry.hosts {
                let holder = holders.entry(host).or_insert(entry);
                if is_private(holder) && !is_private(entry) {
                    *holder = entry;
                }
            }
        }
        let holders = holders.into_iter().map(|(host, entry)| (host, &entry.name.namespace));
        Self(holders.collect())
    }

    /// Under which name what an entry says of a host is kept. A definition that is private to another
    /// namespace than the one that has the host is kept apart: that namespace sees its own.
    fn key(&self, host: &Hostname, entry: &ServiceEntry) -> Hostname {
        let own = &entry.name.namespace;
        if is_private(entry) && self.0.get(host).is_some_and(|holder| *holder != own) {
            host.private_to(own)
        } else {
            host.clone()
        }
    }
}

/// Whether an entry is for its own namespace alone.
fn is_private(entry: &ServiceEntry) -> bool {
    match &entry.export_to {
        ExportTo::Public => false,
        ExportTo::Namespaces(namespaces) => **namespaces == [entry.name.namespace.clone()],
    }
}

/// One host while its entries are joined.
struct Host<'a> {
    first: &'a ServiceEntry,
    service: Service,
    endpoints: Vec<Endpoint>,
    /// The entries that select workloads.
    selecting: Vec<&'a ServiceEntry>,
}

impl<'a> Host<'a> {
    fn new(
        entry: &'a ServiceEntry,
        hostname: &Hostname,
        resolution: Resolution,
        endpoints: Vec<Endpoint>,
    ) -> Self {
        let definition = Definition {
            hostname: hostname.clone(),
            name: Arc::clone(&entry.name.name),
            namespace: entry.name.namespace.clone(),
            ports: entry.ports.clone(),
            resolution,
            ranges: entry.ranges.clone(),
            // An entry is never a gateway of a network, whatever its labels.
            labels: Labels::new(),
            selector: Labels::new(),
            service_accounts: entry.accounts.clone(),
            export_to: entry.export_to.clone(),
            node_local: false,
            prefers: Distribution::Any,
            keeps_home: false,
            publish_not_ready: false,
            affinity_seconds: None,
            mesh_external: entry.external,
        };
        let service = Service {
            vips: entry.addresses.clone(),
            created: entry.created,
            ..Service::from(definition)
        };
        let selecting = entry.selector.is_some().then_some(entry).into_iter().collect();
        Self { first: entry, service, endpoints, selecting }
    }

    /// Adds a later entry: its further ports and addresses, and its endpoints.
    fn join(
        &mut self,
        entry: &'a ServiceEntry,
        resolution: Resolution,
        endpoints: &[Endpoint],
    ) -> Result<(), String> {
        let first = self.first;
        let holder = || format!("ServiceEntry {}/{}", first.name.namespace, first.name.name);
        if first.name.namespace != entry.name.namespace {
            return Err(format!("{} has this host, in another namespace", holder()));
        }
        if first.external != entry.external {
            return Err(format!("{} says otherwise whether it is in the mesh", holder()));
        }
        if first.how != entry.how {
            return Err(format!("{} has another resolution", holder()));
        }
        let known = &mut self.service.ports;
        let mut further = Vec::new();
        for port in &entry.ports {
            match known.iter().find(|one| one.number == port.number || one.name == port.name) {
                None => further.push(port.clone()),
                Some(one) if one.number == port.number && one.name == port.name => {}
                Some(one) => {
                    let (name, number) = (&one.name, one.number);
                    return Err(format!("{} calls port {number} {name:?}", holder()));
                }
            }
        }
        known.append(&mut further);
        for address in &entry.addresses {
            if !self.service.vips.contains(address) {
                self.service.vips.push(*address);
            }
        }
        for range in &entry.ranges {
            if !self.service.ranges.contains(range) {
                self.service.ranges.push(*range);
            }
        }
        self.selecting.extend(entry.selector.is_some().then_some(entry));
        for account in &entry.accounts {
            if !self.service.service_accounts.contains(account) {
                self.service.service_accounts.push(Arc::clone(account));
            }
        }
        self.endpoints.extend_from_slice(endpoints);
        if let (Resolution::ByName(held), Resolution::ByName(more)) =
            (&mut self.service.resolution, resolution)
        {
            held.endpoints.extend(more.endpoints);
        }
        Ok(())
    }
}
