//! Withholds objects from proxies of other namespaces if they would add too many bytes to each
//! proxy.
//!
//! Each object is measured once, when it is added or changed. Its size is that of the resources for
//! a proxy that imports all of it. The result depends only on objects and services, so all replicas
//! withhold the same objects. Objects of the root namespace belong to the operator and are never
//! withheld. The cost of a change depends only on the objects that it affects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::context::{Private, wildcards};
use super::subscription_index::{ChangedItem, Changes};
use crate::aggregate::MergedService;
use strait_model::policy::{ForeignHostsMode, TrafficLimits};
use strait_model::{Hostname, Namespace, Port, Protocol};
use strait_rules::traffic::foreign::{ForeignHosts, HostNamespaces, is_exported, owner_by_name};
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{HostPattern, ObjectMeta, Traffic, Withheld};

/// The maximum number of bytes that the objects of a namespace may add to a proxy in that
/// namespace.
const OWN_BYTES_MAX: usize = 16 << 20;
/// The cap on the size of one object, in bytes.
const BYTES_MAX: usize = 1 << 40;
/// The port that routes requests to hosts of no service.
const PLAIN_PORT: u16 = 80;

/// The encoded size of an object's rules, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleBytes {
    /// The size of the routes. Hosts with the same port share them.
    pub routes: usize,
    /// The size of the filter chains. Each listener of a host contains them.
    pub chains: usize,
}

/// A function that measures the rules of an object.
pub type MeasureRules = fn(&RoutedService) -> RuleBytes;

/// The inputs of the decision apart from the rules.
#[derive(Clone, Copy)]
pub(super) struct WithholdingInputs<'a> {
    pub(super) measure: MeasureRules,
    pub(super) limits: TrafficLimits,
    pub(super) domain: &'a str,
    pub(super) root_namespace: &'a str,
    pub(super) services: &'a OrdMap<Hostname, Arc<MergedService>>,
    pub(super) private: &'a Private,
}

/// The measured objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Withholding {
    /// The rules that were measured.
    traffic: Arc<Traffic>,
    namespaces: OrdMap<Namespace, MeasuredNamespace>,
    /// The limits of the last decision.
    limits: Option<TrafficLimits>,
    /// The owners of hosts whose names do not contain the namespace. Empty unless the policy denies
    /// hosts of other namespaces.
    owners: OrdMap<Hostname, HostNamespaces>,
    withheld: Arc<Withheld>,
}

/// The objects of a namespace, with the total number of bytes that they add to one proxy.
#[derive(Debug, Clone, Default)]
struct MeasuredNamespace {
    objects: OrdMap<ObjectMeta, MeasuredObject>,
    /// For a proxy in the namespace, in bytes.
    own: usize,
    /// For a proxy in another namespace, in bytes.
    exported: usize,
}

/// The rules that apply to different proxies than in the last version, because different objects
/// are withheld.
#[derive(Debug, Default)]
pub(super) struct WithholdingChanges {
    pub(super) hosts: Vec<HostPattern>,
    pub(super) gateways: bool,
}

/// An object and the number of bytes that it adds to one proxy.
#[derive(Debug, Clone)]
struct MeasuredObject {
    routed: Arc<RoutedService>,
    rules: RuleBytes,
    bytes: usize,
    /// Whether it is exported to other namespaces.
    is_exported: bool,
}

impl Withholding {
    /// Measures the current rules and records in them which objects are withheld. `changes` lists
    /// the services that changed. Returns the rules that apply to different proxies now.
    pub(super) fn take(
        &mut self,
        rules: &mut Arc<Traffic>,
        inputs: WithholdingInputs<'_>,
        changes: &Changes,
    ) -> WithholdingChanges {
        let now = Arc::clone(rules);
        let affects_services = changes.affects_services() || changes.is_everything();
        let limits_before = self.limits.replace(inputs.limits);
        let is_same_limits = limits_before == Some(inputs.limits);
        if Arc::ptr_eq(&now, &self.traffic) && !affects_services && is_same_limits {
            return WithholdingChanges::default();
        }
        self.note_owners(limits_before, inputs, changes);
        let before = std::mem::replace(&mut self.traffic, Arc::clone(&now));
        let changed = now.virtual_services.changed_objects(&before.virtual_services);
        let is_same_gateways = now.gateways == before.gateways;
        let mut remeasured: BTreeMap<ObjectMeta, Arc<RoutedService>> = BTreeMap::new();
        for (meta, routed) in changed {
            match routed {
                Some(routed) => _ = remeasured.insert(meta.clone(), Arc::clone(routed)),
                None => self.remove(meta),
            }
        }
        self.concerned(&now, (changes, is_same_gateways), &mut remeasured);
        for (meta, routed) in remeasured {
            self.measure(meta, routed, inputs);
        }
        let withheld = self.decide(inputs);
        let mut noted = WithholdingChanges::default();
        if withheld != *self.withheld {
            noted = self.note(&withheld.differing(&self.withheld));
            self.withheld = Arc::new(withheld);
        }
        if now.virtual_services.withheld() != &self.withheld {
            let virtual_services = now.virtual_services.withholding(Arc::clone(&self.withheld));
            let mut traffic = Traffic::clone(&now);
            traffic.virtual_services = virtual_services;
            *rules = Arc::new(traffic);
            self.traffic = Arc::clone(rules);
        }
        noted
    }

    /// Adds measured objects whose hosts may have different ports now.
    fn concerned(
        &self,
        now: &Traffic,
        (changes, is_same_gateways): (&Changes, bool),
        all: &mut BTreeMap<ObjectMeta, Arc<RoutedService>>,
    ) {
        let mut add = |one: &MeasuredObject| {
            let meta = &one.routed.service.meta;
            all.entry(meta.clone()).or_insert_with(|| Arc::clone(&one.routed));
        };
        let measured = || self.namespaces.values().flat_map(|all| all.objects.values());
        if changes.is_everything() {
            return measured().for_each(add);
        }
        if !is_same_gateways {
            let is_bound =
                |one: &&MeasuredObject| one.routed.service.own_gateways().next().is_some();
            measured().filter(is_bound).for_each(&mut add);
        }
        let hosts = changes.deps.iter().filter_map(|dep| match dep {
            ChangedItem::Definition(host) => Some(HostPattern::for_service(host)),
            _ => None,
        });
        for host in hosts {
            let naming = now.virtual_services.naming(&host);
            for routed in naming {
                let own = self.namespaces.get(&routed.service.meta.namespace);
                let measured_object = own.and_then(|own| own.objects.get(&routed.service.meta));
                measured_object.into_iter().for_each(&mut add);
            }
        }
    }

    fn remove(&mut self, meta: &ObjectMeta) {
        if let Some(all) = self.namespaces.get_mut(&meta.namespace) {
            all.exchange(meta, None);
            if all.objects.is_empty() {
                self.namespaces.remove(&meta.namespace);
            }
        }
    }

    fn measure(
        &mut self,
        meta: ObjectMeta,
        routed: Arc<RoutedService>,
        inputs: WithholdingInputs<'_>,
    ) {
        if meta.namespace.as_str() == inputs.root_namespace {
            return self.remove(&meta);
        }
        let all = self.namespaces.entry(meta.namespace.clone()).or_default();
        let unchanged = all.objects.get(&meta).filter(|one| Arc::ptr_eq(&one.routed, &routed));
        let rules = unchanged.map_or_else(|| (inputs.measure)(&routed), |one| one.rules);
        let bytes = bytes(&routed, rules, &self.traffic, inputs.services);
        let is_exported = is_exported(&routed.service.export_to, &meta.namespace);
        all.exchange(&meta, Some(MeasuredObject { routed, rules, bytes, is_exported }));
    }

    /// Updates the owners of changed hosts if the policy denies hosts of other namespaces.
    fn note_owners(
        &mut self,
        limits_before: Option<TrafficLimits>,
        inputs: WithholdingInputs<'_>,
        changes: &Changes,
    ) {
        if inputs.limits.foreign_hosts != ForeignHostsMode::Deny {
            self.owners = OrdMap::new();
            return;
        }
        let was_known =
            limits_before.is_some_and(|one| one.foreign_hosts == ForeignHostsMode::Deny);
        if was_known && !changes.is_everything() {
            for dep in &changes.deps {
                if let ChangedItem::Definition(host) = dep {
                    self.note_owner(host, inputs);
                }
            }
            return;
        }
        self.owners = OrdMap::new();
        for host in inputs.services.keys().chain(inputs.private.keys()) {
            self.note_owner(host, inputs);
        }
    }

    /// Updates the owners of one host.
    fn note_owner(&mut self, host: &Hostname, inputs: WithholdingInputs<'_>) {
        let public = inputs.services.get(host).map(|service| service.primary.namespace.clone());
        let private = inputs.private.get(host);
        let private: BTreeSet<Namespace> =
            private.into_iter().flat_map(|all| all.keys()).cloned().collect();
        let is_in_name = public.is_none() || public == owner_by_name(host.as_str(), inputs.domain);
        if is_in_name && private.is_empty() {
            self.owners.remove(host);
        } else {
            self.owners.insert(host.clone(), HostNamespaces { public, private });
        }
    }

    /// Returns the owners of hosts if objects do not apply to hosts of other namespaces.
    fn foreign_hosts(&self, inputs: WithholdingInputs<'_>) -> Option<Arc<ForeignHosts>> {
        if inputs.limits.foreign_hosts != ForeignHostsMode::Deny {
            return None;
        }
        let exporting = self.namespaces.iter();
        let exporting =
            exporting.filter(|(_, all)| all.objects.values().any(|one| one.is_exported));
        let namespaces: BTreeSet<Namespace> = exporting.map(|(name, _)| name.clone()).collect();
        let before = self.withheld.foreign_hosts.as_ref();
        let is_same = |before: &&Arc<ForeignHosts>| {
            before.namespaces == namespaces
                && before.owners.ptr_eq(&self.owners)
                && *before.root_namespace == *inputs.root_namespace
        };
        Some(before.filter(is_same).cloned().unwrap_or_else(|| {
            let (domain, root_namespace) = (inputs.domain.into(), inputs.root_namespace.into());
            let owners = self.owners.clone();
            Arc::new(ForeignHosts { domain, root_namespace, namespaces, owners })
        }))
    }

    fn decide(&self, inputs: WithholdingInputs<'_>) -> Withheld {
        let limits = inputs.limits.foreign_bytes;
        let mut withheld =
            Withheld { foreign_hosts: self.foreign_hosts(inputs), ..Withheld::default() };
        let mut fitting = Vec::new();
        for (namespace, all) in &self.namespaces {
            let exported = all.exported - all.surplus(&mut withheld);
            if exported > limits.namespace {
                withheld.over_namespace.insert(namespace.clone(), exported);
            } else if exported > 0 {
                fitting.push((namespace, all, exported));
            }
        }
        let sum: usize = fitting.iter().map(|(.., exported)| exported).sum();
        if sum > limits.total {
            // Allot the total by age: the older a namespace's first exported object, the earlier
            // its turn.
            fitting.sort_by_key(|(namespace, all, _)| (all.oldest(), *namespace));
            let mut given = 0_usize;
            for (namespace, _, exported) in fitting {
                if given.saturating_add(exported) > limits.total {
                    withheld.over_total.insert(namespace.clone(), exported);
                } else {
                    given += exported;
                }
            }
        }
        withheld
    }

    /// Returns the rules of these namespaces, whose objects apply to different proxies now.
    fn note(&self, namespaces: &BTreeSet<Namespace>) -> WithholdingChanges {
        let mut noted = WithholdingChanges::default();
        let all = namespaces.iter().filter_map(|namespace| self.namespaces.get(namespace));
        for one in all.flat_map(|all| all.objects.values()) {
            noted.hosts.extend(one.routed.service.mesh_hosts().cloned());
            // Rules add their destinations to the scopes of Sidecars.
            let destinations =
                one.routed.destinations().map(|to| HostPattern::for_service(&to.host));
            noted.hosts.extend(destinations);
            noted.gateways |= one.routed.service.own_gateways().next().is_some();
        }
        noted
    }
}

impl MeasuredNamespace {
    /// Replaces an object, or removes it if `now` is `None`.
    fn exchange(&mut self, meta: &ObjectMeta, now: Option<MeasuredObject>) {
        let exported = |one: &MeasuredObject| if one.is_exported { one.bytes } else { 0 };
        if let Some(now) = &now {
            self.own += now.bytes;
            self.exported += exported(now);
        }
        let before = match now {
            Some(now) => self.objects.insert(meta.clone(), now),
            None => self.objects.remove(meta),
        };
        if let Some(before) = before {
            self.own -= before.bytes;
            self.exported -= exported(&before);
        }
    }

    /// Withholds the youngest objects if all objects together exceed the limit for proxies in their
    /// own namespace. Returns the exported bytes among the withheld ones.
    fn surplus(&self, withheld: &mut Withheld) -> usize {
        if self.own <= OWN_BYTES_MAX {
            return 0;
        }
        let (mut own, mut exported) = (0_usize, 0_usize);
        for (meta, object) in &self.objects {
            if own.saturating_add(object.bytes) > OWN_BYTES_MAX {
                withheld.objects.insert(meta.clone(), object.bytes);
                exported += if object.is_exported { object.bytes } else { 0 };
            } else {
                own += object.bytes;
            }
        }
        exported
    }

    /// Returns the creation time of the oldest exported object.
    fn oldest(&self) -> Option<i64> {
        let (meta, _) = self.objects.iter().find(|(_, one)| one.is_exported)?;
        Some(meta.created)
    }
}

/// Returns the bytes that an object adds to a sidecar or to a router, whichever is larger.
fn bytes(
    routed: &RoutedService,
    rules: RuleBytes,
    traffic: &Traffic,
    services: &OrdMap<Hostname, Arc<MergedService>>,
) -> usize {
    let RuleBytes { routes, chains } = rules;
    let named = |host: &HostPattern| host.to_string().len() + 2;
    let (mut tables, mut alone, mut listeners, mut names) = (BTreeSet::new(), 0, 0, 0);
    for host in routed.service.mesh_hosts() {
        let own = host.exact().and_then(|name| services.get(name));
        let around: Vec<_> = match (own, host.exact()) {
            (Some(own), _) => vec![own],
            (None, Some(_)) => {
                wildcards(services).filter(|one| pattern(one).contains(host)).collect()
            }
            (None, None) => {
                services.values().filter(|one| host.matches(one.hostname().as_str())).collect()
            }
        };
        if own.is_none() {
            tables.insert(PLAIN_PORT);
            names += named(host) * (1 + around.len());
        }
        for port in around.iter().flat_map(|service| service.ports()) {
            if takes_requests(port) {
                tables.insert(port.number);
                // A port without a declared protocol has a route configuration per service.
                alone += usize::from(port.protocol == Protocol::Auto);
            }
            listeners += usize::from(port.protocol != Protocol::Udp);
        }
    }
    let at_sidecar = routes
        .saturating_mul(tables.len() + alone)
        .saturating_add(chains.saturating_mul(listeners))
        .saturating_add(names);
    let gateways = routed.service.own_gateways();
    let ports: BTreeSet<u16> =
        gateways.flat_map(|name| traffic.gateways.server_ports(name)).collect();
    let hosts: usize = routed.service.hosts.iter().map(named).sum();
    let at_router = routes.saturating_add(chains).saturating_add(hosts).saturating_mul(ports.len());
    // The cap keeps sums far from overflow.
    at_sidecar.max(at_router).min(BYTES_MAX)
}

fn takes_requests(port: &Port) -> bool {
    port.protocol.is_http() || port.protocol == Protocol::Auto
}

fn pattern(service: &MergedService) -> HostPattern {
    HostPattern::for_service(service.hostname())
}

#[cfg(test)]
mod tests;
