//! The state of one datacentre: the services in its catalogue, their records, and the changes that
//! have yet to be reported. Pure.
//!
//! Services that cannot be read keep their last state. A catalogue that lacks most previous services
//! must be confirmed by a second response ([`mass_deletion`](strait_base::mass_deletion)).
//!
//! Consul omits everything that the token may not read, and old versions do not say so. Two
//! responses show it: an empty catalogue, because Consul's servers register themselves, and a
//! service in the catalogue without any instance. Neither removes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::catalog::Instances;
use super::convert;
use strait_base::codes;
use strait_base::mass_deletion::MassDeletionGuard;
use strait_base::source_status::WARNINGS_MAX;
use strait_model::registry::{Contents, ServiceRecord, ShardChange};
use strait_model::{Cause, Causes, ClusterId, Hostname};

/// Number of failed reads of a service after which the first report is sent without it.
const FIRST_FAILURES: u32 = 3;

/// The state of one datacentre.
#[derive(Debug)]
pub(super) struct ConsulIndex {
    datacentre: String,
    services: BTreeMap<Arc<str>, CatalogService>,
    /// Services that share a host with an earlier one, or have no valid host name.
    unusable: Vec<String>,
    listed: bool,
    /// Catalogues that must be confirmed.
    guard: MassDeletionGuard<()>,
    is_sent: bool,
    /// Hosts with unreported changes, each with the service that owns it.
    pending: BTreeMap<Hostname, Arc<str>>,
}

/// The fact about a catalogue without any service.
const EMPTY_CATALOGUE: &str =
    "the catalogue is empty, so the token may not read it: Consul's own service is always in it";
/// The fact about a service of the catalogue without any instance.
const NO_INSTANCE: &str = "the catalogue has it, but the response has no instance, so the token \
     may not read its nodes (node:read)";

#[derive(Debug, Default)]
struct CatalogService {
    /// Whether the catalogue has contained it; otherwise it is remembered from before the start.
    listed: bool,
    has_response: bool,
    failures: u32,
    record: Option<ServiceRecord>,
    /// The instances of the last response that are not used, with reasons.
    invalid: Vec<String>,
    /// Why there is no newer response.
    trouble: Option<String>,
}

/// Whether a catalogue was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CatalogOutcome {
    /// Accepted, with the services to start and stop reading.
    Yes {
        /// New services.
        come: Vec<Arc<str>>,
        /// Removed services.
        gone: Vec<Arc<str>>,
    },
    /// Not accepted, with the reason: to be requested again soon.
    Doubtful(String),
    /// Not accepted, because the token may not read it.
    Denied(&'static str),
}

impl ConsulIndex {
    pub(super) fn new(datacentre: &str) -> Self {
        Self {
            datacentre: datacentre.to_owned(),
            services: BTreeMap::new(),
            unusable: Vec::new(),
            listed: false,
            guard: MassDeletionGuard::default(),
            is_sent: false,
            pending: BTreeMap::new(),
        }
    }

    /// Creates the state of a datacentre with services from before this process started. They stay
    /// until it reports otherwise.
    pub(super) fn with_remembered(
        datacentre: &str,
        remembered: BTreeMap<Hostname, ServiceRecord>,
    ) -> Self {
        let restored_service = |record: ServiceRecord| {
            let name = Arc::clone(&record.service.name);
            (name, CatalogService { record: Some(record), ..CatalogService::default() })
        };
        Self {
            services: remembered.into_values().map(restored_service).collect(),
            ..Self::new(datacentre)
        }
    }

    /// Processes the names in the catalogue.
    pub(super) fn catalogue(&mut self, names: Vec<Arc<str>>, now: Instant) -> CatalogOutcome {
        if names.is_empty() && !self.services.is_empty() {
            return CatalogOutcome::Denied(EMPTY_CATALOGUE);
        }
        let found = names.iter().filter(|name| self.services.contains_key(*name)).count();
        if !self.guard.admits((), self.services.len(), found, now) {
            let unconfirmed = self.guard.waiting().next();
            let fact = unconfirmed.map_or_else(String::new, |(_, list)| list.to_string());
            return CatalogOutcome::Doubtful(format!("the catalogue {fact}"));
        }
        self.listed = true;
        let mut hosts: BTreeMap<Hostname, Arc<str>> = BTreeMap::new();
        self.unusable.clear();
        for name in names {
            let Some(host) = convert::hostname(&name) else {
                self.unusable.push(format!("service {name:?} is not a valid DNS name"));
                continue;
            };
            if let Some(first) = hosts.get(&host) {
                let fact = format!("service {name:?} has the host of {first:?}, which is used");
                self.unusable.push(fact);
            } else {
                hosts.insert(host, name);
            }
        }
        let names: BTreeSet<Arc<str>> = hosts.into_values().collect();
        let gone: Vec<_> =
            self.services.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in &gone {
            if let Some(CatalogService { record: Some(_), .. }) = self.services.remove(name) {
                self.pending.extend(convert::hostname(name).map(|host| (host, Arc::clone(name))));
            }
        }
        let is_new = |name: &Arc<str>| {
            let service = self.services.entry(Arc::clone(name)).or_default();
            !std::mem::replace(&mut service.listed, true)
        };
        let come: Vec<_> = names.into_iter().filter(is_new).collect();
        CatalogOutcome::Yes { come, gone }
    }

    /// Processes the instances of one service. Returns whether they were accepted; otherwise they
    /// must be requested again soon. A service that loses its last instance leaves the catalogue.
    pub(super) fn service(&mut self, name: &Arc<str>, instances: Instances) -> bool {
        let Some(service) = self.services.get_mut(name) else { return true };
        service.has_response = true;
        service.failures = 0;
        if instances.valid.is_empty() && instances.invalid.is_empty() {
            let kept = match service.record {
                Some(_) => "; the last known ones stay in use",
                None => "",
            };
            let code = codes::CONSUL_DENIED.id;
            service.trouble = Some(format!("{code}: {NO_INSTANCE}{kept}"));
            return false;
        }
        service.trouble = None;
        let converted = convert::service(name, &self.datacentre, &instances.valid);
        service.invalid = instances.invalid;
        service.invalid.extend(converted.invalid);
        if service.record != converted.record {
            service.record = converted.record;
            self.pending.extend(convert::hostname(name).map(|host| (host, Arc::clone(name))));
        }
        true
    }

    /// Records that a service could not be read. It keeps its state.
    pub(super) fn failed(&mut self, name: &Arc<str>, fact: &str) {
        let Some(service) = self.services.get_mut(name) else { return };
        service.failures += 1;
        service.has_response |= service.failures >= FIRST_FAILURES;
        service.trouble = Some(format!("{fact}; its last known instances stay in use"));
    }

    /// Whether all services have been read once, or the first report was sent.
    pub(super) fn is_complete(&self) -> bool {
        self.listed && (self.is_sent || self.services.values().all(|service| service.has_response))
    }

    /// Whether there are unreported changes.
    pub(super) fn has_news(&self) -> bool {
        self.is_complete() && (!self.is_sent || !self.pending.is_empty())
    }

    /// Returns the changes to report: at first everything, then the changes. The caller must send
    /// them.
    pub(super) fn take_change(&mut self) -> Option<ShardChange> {
        if !self.has_news() {
            return None;
        }
        let pending = std::mem::take(&mut self.pending);
        if !std::mem::replace(&mut self.is_sent, true) {
            let all = self
                .records()
                .map(|record| (record.service.hostname.clone(), Some(record.clone())));
            return Some(ShardChange::Reset(Contents {
                services: all.collect(),
                ..Contents::default()
            }));
        }
        let mut causes = Causes::default();
        let services = pending.into_iter().map(|(host, name)| {
            let service = self.services.get(&name);
            causes.add(Cause::named(ClusterId::default(), "ConsulService", &*name));
            (host, service.and_then(|service| service.record.clone()))
        });
        let services = services.collect();
        Some(ShardChange::Update(Contents { services, causes, ..Contents::default() }))
    }

    /// Returns the number of services and endpoints.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.records().fold((0, 0), |(services, endpoints), record| {
            (services + 1, endpoints + record.endpoints.len())
        })
    }

    /// Returns the number of doubtful responses so far.
    pub(super) fn unconfirmed_lists(&self) -> u64 {
        self.guard.doubted()
    }

    /// Returns the names of the services.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.services.keys()
    }

    /// Returns the parts of responses that are not used, sorted and limited.
    pub(super) fn warnings(&self) -> Vec<String> {
        let service_warnings = self.services.iter().flat_map(|(name, service)| {
            service
                .trouble
                .iter()
                .chain(&service.invalid)
                .map(move |fact| format!("service {name:?}: {fact}"))
        });
        let denied = self.listed && self.services.is_empty() && self.unusable.is_empty();
        let denied = denied.then(|| format!("{}: {EMPTY_CATALOGUE}", codes::CONSUL_DENIED.id));
        let unusable = denied.into_iter().chain(self.unusable.iter().cloned());
        unusable.chain(service_warnings).take(WARNINGS_MAX).collect()
    }

    fn records(&self) -> impl Iterator<Item = &ServiceRecord> {
        self.services.values().filter_map(|service| service.record.as_ref())
    }
}
