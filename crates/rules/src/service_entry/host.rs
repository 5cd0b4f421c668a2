//! A host with all entries that define it, the oldest first.

use std::sync::Arc;

use super::addresses::AddressRequest;
use super::convert::{EndpointDiscovery, EntryPort, Fault, ServiceEntry};
use strait_model::{
    Definition, Distribution, Endpoint, Endpoints, ExportTo, Hostname, Labels, Resolution, Service,
    SharingFacts, WorkloadKey,
};

/// A definition of a host, without automatic addresses.
#[derive(Debug)]
pub(super) struct Defined {
    pub(super) service: Service,
    pub(super) endpoints: Endpoints,
    pub(super) claim: AddressRequest,
    /// Selectors of the entries of this definition, each with the ports of the entry.
    pub(super) selects: Vec<(Labels, Vec<EntryPort>)>,
}

/// A host while its entries are merged.
pub(super) struct Host<'a> {
    first: &'a ServiceEntry,
    service: Service,
    endpoints: Vec<Endpoint>,
    /// The entries that select workloads, each with its ports.
    selecting: Vec<(&'a ServiceEntry, Vec<EntryPort>)>,
}

/// The ports of an entry, as part of a host, and the conflicts with existing ports of the host.
pub(super) type AdmittedPorts = (Vec<EntryPort>, Vec<Fault>);

impl<'a> Host<'a> {
    pub(super) fn new(
        entry: &'a ServiceEntry,
        hostname: &Hostname,
        export_to: ExportTo,
        (ports, resolution, endpoints): (Vec<EntryPort>, Resolution, Vec<Endpoint>),
    ) -> Self {
        let definition = Definition {
            hostname: hostname.clone(),
            name: Arc::clone(&entry.name.name),
            namespace: entry.name.namespace.clone(),
            ports: entry.ports.clone(),
            resolution,
            ranges: entry.ranges.clone(),
            // An entry is never a gateway of a network, whatever its labels are.
            labels: Labels::new(),
            selector: Labels::new(),
            service_accounts: entry.accounts.clone(),
            export_to,
            node_local: false,
            prefers: Distribution::Any,
            sharing: SharingFacts { label: entry.share, ..SharingFacts::default() },
            named_pods: Default::default(),
            affinity_seconds: None,
            mesh_external: entry.external,
        };
        let service = Service {
            vips: entry.addresses.clone(),
            created: entry.created,
            ..Service::from(definition)
        };
        let selecting = entry.selector.is_some().then_some((entry, ports)).into_iter().collect();
        Self { first: entry, service, endpoints, selecting }
    }

    /// Returns the merged definition.
    pub(super) fn defined(self) -> Defined {
        let Self { first, service, endpoints, selecting } = self;
        let start = first.status_addresses.partition_point(|(host, _)| *host < service.hostname);
        let in_status = first.status_addresses[start..]
            .iter()
            .take_while(|(host, _)| *host == service.hostname);
        let in_status = in_status.map(|(_, address)| *address).collect();
        let is_sent = |entry: &ServiceEntry| entry.how != EndpointDiscovery::None;
        let selecting = selecting.into_iter().filter(|(entry, _)| is_sent(entry));
        let selects = selecting.filter_map(|(entry, ports)| Some((entry.selector.clone()?, ports)));
        Defined {
            claim: AddressRequest::new(&service, first.allocate, in_status),
            endpoints: Endpoints::from_iter(endpoints),
            selects: selects.collect(),
            service,
        }
    }

    /// Returns the name of the entry that defined the host first.
    pub(super) fn first_name(&self) -> &'a WorkloadKey {
        &self.first.name
    }

    /// Checks whether a later entry can be merged, and returns its ports. A port with an existing
    /// number takes the name of the existing port. A port whose name exists with another number
    /// gets a unique name that contains the number, because endpoints are found by name. Ports that
    /// exist with another protocol are left out.
    pub(super) fn admits(&self, entry: &ServiceEntry) -> Result<Option<AdmittedPorts>, String> {
        let first = self.first;
        let holder = || format!("ServiceEntry {}/{}", first.name.namespace, first.name.name);
        if first.name.namespace != entry.name.namespace {
            return Err(format!("{} in another namespace defines this host already", holder()));
        }
        if first.external != entry.external {
            return Err(format!("{} has another location", holder()));
        }
        if first.how != entry.how {
            return Err(format!("{} has another resolution", holder()));
        }
        let (mut admitted, mut faults) = (Vec::new(), Vec::new());
        for (index, port) in entry.ports.iter().enumerate() {
            let mut admit = EntryPort::from(port);
            let existing =
                self.service.ports.iter().find(|existing| existing.number == port.number);
            match existing {
                Some(existing) if existing.protocol != port.protocol => {
                    let (number, protocol) = (port.number, existing.protocol.as_str());
                    let fact = format!("{} has port {number} with protocol {protocol}", holder());
                    let field = format!("spec.ports[{index}].protocol");
                    faults.push(Fault { field, fact });
                    continue;
                }
                Some(existing) => admit.port.name = Arc::clone(&existing.name),
                None => {
                    let is_in_use = |name: &str| {
                        let own = entry.ports.iter().filter(|own| own.number != port.number);
                        self.service.ports.iter().chain(own).any(|existing| *existing.name == *name)
                    };
                    while is_in_use(&admit.port.name) {
                        admit.port.name = format!("{}-{}", admit.port.name, port.number).into();
                    }
                }
            }
            admitted.push(admit);
        }
        Ok(Some((admitted, faults)))
    }

    /// Merges a later entry that was admitted: adds its ports, addresses and endpoints.
    pub(super) fn join(
        &mut self,
        entry: &'a ServiceEntry,
        ports: Vec<EntryPort>,
        resolution: Resolution,
        endpoints: &[Endpoint],
    ) {
        for EntryPort { port, .. } in &ports {
            if self.service.ports.iter().all(|existing| existing.number != port.number) {
                self.service.ports.push(port.clone());
            }
        }
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
        self.selecting.extend(entry.selector.is_some().then_some((entry, ports)));
        for account in &entry.accounts {
            if !self.service.service_accounts.contains(account) {
                self.service.service_accounts.push(Arc::clone(account));
            }
        }
        self.endpoints.extend_from_slice(endpoints);
        if let (Resolution::ByName(names), Resolution::ByName(more)) =
            (&mut self.service.resolution, resolution)
        {
            names.endpoints.extend(more.endpoints);
        }
    }
}
