//! Selections between entries and clusters: pods that ServiceEntries select, and WorkloadEntries
//! that Kubernetes Services select.
//!
//! Pure: computes endpoints from selectors and workloads. A pod belongs to one cluster: its
//! endpoints are in a shard of that cluster. Two pods with the same name in two clusters are
//! therefore separate, and a removed cluster takes its endpoints along. An entry selects only in
//! its own namespace, and so does a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use super::convert::{self, EntryAddress, EntryEndpoint, EntryPort, Fault};
use strait_model::registry::ServiceRecord;
use strait_model::{
    ClusterFacts, Endpoint, Endpoints, Health, Hostname, Labels, Locality, NO_ADDRESS, Namespace,
    NetworkId, PodState, Port, Resolution, Service, SortedMap, TargetPort, WorkloadKey, Workloads,
    given_labels, labels_match,
};

/// Selections between entries and clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selections {
    /// Pods that entries select, in the order in which the entries of a host are merged.
    pub(super) pods: Vec<PodsWanted>,
    /// WorkloadEntries by namespace and name.
    pub(super) workloads: VmWorkloads,
    /// Parts of the definitions of a host that have no effect, as text.
    pub(super) notes: BTreeMap<Hostname, Vec<String>>,
    /// WorkloadEntries by namespace and address.
    pub(super) by_address: BTreeMap<(Namespace, IpAddr), Vec<WorkloadKey>>,
}

/// The pods that an entry selects for a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodsWanted {
    /// Internal name of the host's definition.
    pub(super) key: Hostname,
    pub(super) service: Arc<Service>,
    /// Label selector. Unlike a Kubernetes selector, an empty one selects everything.
    pub(super) selector: Labels,
    /// Ports of the entry.
    pub(super) ports: Vec<EntryPort>,
}

/// WorkloadEntries by namespace and name.
pub type VmWorkloads = BTreeMap<WorkloadKey, VmWorkload>;

/// Parses the WorkloadEntries of one cluster. Their identities are in `trust_domain`. Invalid
/// objects are reported to `invalid`.
pub fn vms(
    objects: &BTreeMap<WorkloadKey, Arc<Value>>,
    trust_domain: &str,
    mut invalid: impl FnMut(&WorkloadKey, Fault),
) -> VmWorkloads {
    let read = |(name, object): (&WorkloadKey, &Arc<Value>)| match convert::workload_entry(
        name.clone(),
        object,
    ) {
        // The API server has already removed unknown fields.
        Ok((workload, _)) => Some((name.clone(), VmWorkload::new(name, workload, trust_domain))),
        Err(fault) => {
            invalid(name, fault);
            None
        }
    };
    objects.iter().filter_map(read).collect()
}

/// A WorkloadEntry: a machine outside Kubernetes, which Services may select and on which a proxy
/// may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmWorkload {
    pub(super) workload: EntryEndpoint,
    /// SPIFFE ID; `None` without a service account.
    pub(super) identity: Option<Arc<str>>,
}

impl VmWorkload {
    pub(super) fn new(name: &WorkloadKey, workload: EntryEndpoint, trust_domain: &str) -> Self {
        let id = |account: &Arc<str>| {
            format!("spiffe://{trust_domain}/ns/{}/sa/{account}", name.namespace).into()
        };
        Self { identity: workload.account.as_ref().map(id), workload }
    }

    /// Returns the service account, if set.
    pub fn account(&self) -> Option<&str> {
        self.workload.account.as_deref()
    }

    /// Returns the labels.
    pub fn labels(&self) -> &Labels {
        &self.workload.labels
    }

    /// Returns the address if it is an IP address.
    pub fn address(&self) -> Option<IpAddr> {
        match self.workload.address {
            EntryAddress::Ip(address) => Some(address),
            EntryAddress::Name(_) | EntryAddress::Socket(_) | EntryAddress::Network => None,
        }
    }

    /// Returns the network, if set.
    pub fn network(&self) -> Option<&NetworkId> {
        self.workload.network.as_ref()
    }

    /// Returns the locality, if set.
    pub fn locality(&self) -> Option<&Arc<Locality>> {
        Some(&self.workload.locality).filter(|locality| !locality.is_empty())
    }

    /// Returns whether Services can select it. It needs labels, and an address that can be sent to
    /// proxies.
    fn is_offered(&self) -> bool {
        !self.workload.labels.is_empty() && self.workload.sent_address().is_some()
    }
}

impl Selections {
    /// Returns whether entries may select pods of this namespace.
    pub fn selects_pods_in(&self, namespace: &Namespace) -> bool {
        self.pods.iter().any(|wanted| wanted.service.namespace == *namespace)
    }

    /// Returns whether entries select any pods.
    pub fn wants_pods(&self) -> bool {
        !self.pods.is_empty()
    }

    /// Returns whether there is any WorkloadEntry that Services can select.
    pub fn offers_workloads(&self) -> bool {
        self.workloads.values().any(VmWorkload::is_offered)
    }

    /// Returns the WorkloadEntry of this name.
    pub fn vm(&self, name: &WorkloadKey) -> Option<&VmWorkload> {
        self.workloads.get(name)
    }

    /// Iterates over the WorkloadEntries of a namespace with an address.
    pub fn vms_at(
        &self,
        namespace: &Namespace,
        address: IpAddr,
    ) -> impl Iterator<Item = &VmWorkload> {
        let names = self.by_address.get(&(namespace.clone(), address));
        names.into_iter().flatten().filter_map(|name| self.workloads.get(name))
    }

    /// Returns the parts of the definitions of a host that have no effect, as text.
    pub fn notes(&self, host: &Hostname) -> &[String] {
        self.notes.get(host).map_or(&[], Vec::as_slice)
    }

    /// Returns whether both have the same WorkloadEntries and the same notes about hosts.
    pub fn reports_same(&self, other: &Self) -> bool {
        self.workloads == other.workloads && self.notes == other.notes
    }

    /// Returns the hosts for which entries select pods or WorkloadEntries of one cluster, with the
    /// selected endpoints.
    pub fn selected_pods(
        &self,
        pods: &Workloads,
        vms: &VmWorkloads,
        facts: &ClusterFacts,
    ) -> BTreeMap<Hostname, ServiceRecord> {
        let mut hosts: BTreeMap<&Hostname, (&Arc<Service>, Vec<Endpoint>)> = BTreeMap::new();
        for wanted in &self.pods {
            let namespace = &wanted.service.namespace;
            let selected = pods.of_namespace(namespace.as_str());
            let selected: Vec<_> =
                selected.filter(|(_, pod)| selects(&wanted.selector, &pod.labels)).collect();
            let vms: Vec<_> = vms
                .iter()
                .filter(|(name, _)| name.namespace == *namespace)
                .filter(|(_, one)| selects(&wanted.selector, &one.workload.labels))
                .collect();
            for port in &wanted.ports {
                let external = wanted.service.mesh_external;
                let found = vms.iter().filter_map(|(_, VmWorkload { workload, identity })| {
                    let number = workload.port(port);
                    workload.endpoint(&port.port, number, external, identity.clone())
                });
                let found: Vec<_> = found.collect();
                if !found.is_empty() {
                    let host = hosts.entry(&wanted.key);
                    host.or_insert((&wanted.service, Vec::new())).1.extend(found);
                }
                for (key, pod) in &selected {
                    let found = pod_endpoints(&port.port, key.to_key(), pod, facts);
                    let host = hosts.entry(&wanted.key);
                    host.or_insert((&wanted.service, Vec::new())).1.extend(found);
                }
            }
        }
        let records = hosts.into_iter().map(|(host, (service, endpoints))| {
            let service = Arc::clone(service);
            (host.clone(), ServiceRecord { service, endpoints: Endpoints::from(endpoints) })
        });
        records.collect()
    }

    /// Returns the WorkloadEntries that belong to no cluster.
    pub fn vms(&self) -> &VmWorkloads {
        &self.workloads
    }
}

/// Returns the services that select these WorkloadEntries, with the selected endpoints. If several
/// services have the same name, the first applies.
pub fn selecting_services<'a>(
    vms: &VmWorkloads,
    services: impl Iterator<Item = &'a Arc<Service>>,
) -> BTreeMap<Hostname, ServiceRecord> {
    let offered = || vms.iter().filter(|(_, one)| one.is_offered());
    let namespaces: BTreeSet<&Namespace> = offered().map(|(name, _)| &name.namespace).collect();
    let mut records = BTreeMap::new();
    let mut hostnames: BTreeSet<&Hostname> = BTreeSet::new();
    for service in services.filter(|service| namespaces.contains(&service.namespace)) {
        if service.resolution != Resolution::ClientSide || !hostnames.insert(&service.hostname) {
            continue;
        }
        let mut endpoints = Vec::new();
        for (name, vm) in offered() {
            if name.namespace == service.namespace
                && labels_match(&service.selector, &vm.workload.labels)
            {
                let ports = service.ports.iter();
                endpoints.extend(ports.filter_map(|port| {
                    let number = workload_port(&vm.workload, port)?;
                    vm.workload.endpoint(port, number, false, vm.identity.clone())
                }));
            }
        }
        if !endpoints.is_empty() {
            // The service keeps the addresses of the clusters that have it.
            let own = Service {
                vips: Vec::new(),
                external_addresses: Vec::new(),
                external_ports: SortedMap::new(),
                ..Service::clone(service)
            };
            let record =
                ServiceRecord { service: Arc::new(own), endpoints: Endpoints::from(endpoints) };
            records.insert(service.hostname.clone(), record);
        }
    }
    records
}

fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns the endpoints of a pod for a port, one for each address of the pod.
fn pod_endpoints(
    port: &Port,
    name: WorkloadKey,
    pod: &strait_model::Workload,
    facts: &ClusterFacts,
) -> Vec<Endpoint> {
    let number = match port.target {
        TargetPort::Number(number) => number,
        TargetPort::Name(_) => port.number,
    };
    let health = if facts.is_ready(&name) { Health::Healthy } else { Health::Unhealthy };
    let node_locality = || pod.node.as_ref().and_then(|node| facts.localities.get(&***node));
    let locality = pod.locality.as_ref().or_else(node_locality).cloned().unwrap_or_default();
    let node = pod.node.as_ref().map(|node| Arc::clone(&**node));
    let name = Arc::new(name);
    let endpoint = |address: IpAddr| Endpoint {
        address,
        port: number,
        port_name: Arc::clone(&port.name),
        health,
        weight: 1,
        locality: Arc::clone(&locality),
        network_label: pod.network_label.clone(),
        tls_mode: pod.tls_mode,
        service_account: Some(Arc::clone(&pod.identity)),
        workload: Some(Arc::clone(&name)),
        pod: PodState::Known,
        node: node.clone(),
        hostname: None,
        telemetry: pod.telemetry.clone(),
        labels: given_labels(&pod.labels),
    };
    pod.addresses.iter().map(endpoint).collect()
}

/// Returns the workload's port number for a port of a Service. The workload's own setting by name
/// takes precedence over the target port. A named target port is resolved by the workload.
fn workload_port(workload: &EntryEndpoint, port: &Port) -> Option<u16> {
    let own = workload.ports.get(&port.name).copied();
    own.or_else(|| match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => workload.ports.get(name).copied(),
    })
}

impl EntryEndpoint {
    /// Returns the address for endpoints; `None` for a DNS name or a socket.
    fn sent_address(&self) -> Option<IpAddr> {
        match self.address {
            EntryAddress::Ip(address) => Some(address),
            EntryAddress::Network => Some(NO_ADDRESS),
            EntryAddress::Name(_) | EntryAddress::Socket(_) => None,
        }
    }

    /// Returns its endpoint for a port, with the given number; `None` for a DNS name or a socket,
    /// because these are not sent as endpoints.
    pub(super) fn endpoint(
        &self,
        port: &Port,
        number: u16,
        external: bool,
        identity: Option<Arc<str>>,
    ) -> Option<Endpoint> {
        let address = self.sent_address()?;
        Some(Endpoint {
            address,
            port: number,
            port_name: Arc::clone(&port.name),
            health: self.health,
            weight: self.weight,
            locality: Arc::<Locality>::clone(&self.locality),
            network_label: self.network.clone(),
            tls_mode: self.tls_mode(external),
            service_account: identity,
            workload: self.name.clone(),
            pod: if self.name.is_some() { PodState::Known } else { PodState::Unnamed },
            node: None,
            hostname: None,
            telemetry: Some(Arc::clone(&self.telemetry)),
            labels: given_labels(&self.labels),
        })
    }
}
