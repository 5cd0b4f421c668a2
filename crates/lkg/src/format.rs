//! The content of the files, field by field. Each change here needs a new [`super::flaw::VERSION`].
//! After an upgrade, files of the previous version must be readable, so a reader for them is part
//! of the change; `tests/lkg` contains such files.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use serde_json::Value;

use super::codec::{Encode, EncodePlain, Encoder, MalformedValue, StateDecoder, fields, numbers};
use super::{
    DatacentreState, IssuerState, MembersState, Note, ShardState, StateOrigin, StoredFiles,
    StoredObjects,
};
use strait_model::registry::ServiceRecord;
use strait_model::{
    Addresses, ByName, ClusterFacts, ClusterId, Collection, DeclaredGateway, Definition,
    Distribution, Endpoint, EndpointRef, Endpoints, ExportTo, ExportedPort, ExportedService,
    GatewayHost, Health, Hostname, IpFamily, Labels, Locality, Mode, NamedEndpoint, NamedPodScope,
    Namespace, NetworkId, ObjectFiles, ObjectKey, PodState, Port, Profile, Protocol, RawService,
    Resolution, Service, SharingFacts, TargetPort, TlsMode, UidMark, Workload, WorkloadKey,
    Workloads,
};

macro_rules! names {
    ($($type:ident),*) => {
        $(impl Encode for $type {
            fn write<'a>(&'a self, to: &mut Encoder<'a>) {
                to.text(self.as_str());
            }

            fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
                from.text().map(Self::new)
            }
        })*
    };
}

names!(ClusterId, Hostname, Namespace, NetworkId);

fields!(StateOrigin { domain, trust_domain, system_namespace });
fields!(Note { secret, network, mode, last_contact });
fields!(DatacentreState { name, services });
fields!(StoredObjects { store, objects });
fields!(StoredFiles { store, files });
fields!(ObjectKey { kind, group, namespace, name });
fields!(IssuerState { cluster, issuer, key_set });
fields!(DeclaredGateway { network, of_config_cluster_only, addresses, entrances });
fields!(WorkloadKey { namespace, name });
fields!(ServiceRecord { service, endpoints });
fields!(Service { definition, vips, external_addresses, external_ports, created });
fields!(Definition {
    hostname,
    name,
    namespace,
    ports,
    resolution,
    ranges,
    labels,
    selector,
    service_accounts,
    export_to,
    node_local,
    prefers,
    sharing,
    named_pods,
    affinity_seconds,
    mesh_external,
});
fields!(Port { name, number, protocol, target });

/// One byte. Earlier files have a flag here, which means that the service is not exported; the byte
/// of that statement alone is the same.
impl Encode for SharingFacts {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.put(*self);
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        Self::from_code(from.byte()?).ok_or(MalformedValue("sharing"))
    }
}

impl EncodePlain for SharingFacts {
    fn append(self, bytes: &mut Vec<u8>) {
        bytes.push(self.code());
    }
}

/// One byte. Earlier files have a flag here, which means that unready pods are named; its byte is
/// the same.
impl Encode for NamedPodScope {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.bytes.push(self.code());
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        Self::from_code(from.byte()?).ok_or(MalformedValue("named pods"))
    }
}

fields!(Profile {
    labels,
    service_account,
    identity,
    tls_mode,
    network_label,
    locality,
    telemetry,
    subdomain,
    named_ports,
});
fields!(ByName { just_then, endpoints });
fields!(Workload { profile, addresses, node });

numbers!(Mode { 0 => Normal, 1 => Drain, 2 => Pause });
// Sources never report `Changing`.
numbers!(TlsMode { 0 => Disabled, 1 => Istio, 2 => Changing });
numbers!(Health { 0 => Healthy, 1 => Unhealthy, 2 => Draining, 3 => Terminating });
numbers!(Distribution { 0 => Any, 1 => SameZone, 2 => SameNode });
numbers!(PodState { 0 => Known, 1 => Missing, 2 => Unnamed, 3 => Mirrored });
numbers!(Protocol {
    0 => Http,
    1 => Http2,
    2 => Grpc,
    3 => GrpcWeb,
    4 => Https,
    5 => Tls,
    6 => Tcp,
    7 => Mysql,
    8 => Mongo,
    9 => Redis,
    10 => Udp,
    11 => Auto,
});

// Traffic objects, unserved gateways and exports come last, because few clusters have any.
fields!(ClusterFacts { localities, unready, gateways, entries; traffic, unserved, exports });

/// The last parts are missing in files of a cluster that exports nothing and whose own traffic
/// objects do not apply. Only the exports themselves are stored: after a restart, the list may be
/// incomplete.
impl Encode for ShardState {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        let Self { cluster, uid, network_label, workloads, facts, services } = self;
        cluster.write(to);
        uid.write(to);
        network_label.write(to);
        workloads.write(to);
        facts.write(to);
        services.write(to);
        let exports = &facts.exports.exports;
        if !facts.traffic.is_empty() || !exports.is_empty() {
            facts.traffic.write(to);
        }
        if !exports.is_empty() {
            exports.write(to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let mut state = Self {
            cluster: Encode::read(from)?,
            uid: Encode::read(from)?,
            network_label: Encode::read(from)?,
            workloads: Encode::read(from)?,
            facts: Encode::read(from)?,
            services: Encode::read(from)?,
        };
        if !from.is_done() {
            state.facts.traffic = Encode::read(from)?;
        }
        if !from.is_done() {
            state.facts.exports.exports = Encode::read(from)?;
        }
        Ok(state)
    }
}

fields!(ExportedService { created, service, labels, annotations });
fields!(RawService {
    headless,
    ports,
    sticky,
    sticky_seconds,
    internal_traffic_policy,
    traffic_distribution,
    ip_families,
});
fields!(ExportedPort { name, protocol, app_protocol, number });
numbers!(IpFamily { 0 => V4, 1 => V6 });

// Shared values are written like the values themselves.
macro_rules! shared {
    ($($type:ty),* $(,)?) => {
        $(impl Encode for Arc<$type> {
            fn write<'a>(&'a self, to: &mut Encoder<'a>) {
                <$type as Encode>::write(self, to);
            }

            fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
                <$type as Encode>::read(from).map(Self::new)
            }
        })*
    };
}

shared!(
    RawService,
    ExportedService,
    Service,
    Definition,
    Labels,
    Vec<ObjectKey>,
    ObjectFiles,
    BTreeMap<Arc<str>, Arc<Locality>>,
    BTreeMap<WorkloadKey, DeclaredGateway>,
    BTreeMap<WorkloadKey, Arc<Value>>,
);

impl Encode for OrdMap<WorkloadKey, Arc<ExportedService>> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        for (name, service) in self {
            name.write(to);
            service.write(to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let count = from.count()?;
        let entry = |_| Ok((WorkloadKey::read(from)?, Arc::<ExportedService>::read(from)?));
        (0..count).map(entry).collect()
    }
}

/// Written as the texts of the objects, which contain their keys.
impl Encode for Collection {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        for object in self.values() {
            to.raw_by(object.text_len(), |out| object.write_text(out));
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let count = from.count()?;
        (0..count).map(|_| Arc::<Value>::read(from)).collect()
    }
}

/// An object exactly as in the store. Its meaning is decided after it is read.
impl Encode for Arc<Value> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.raw(&self.to_string());
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let value = serde_json::from_str(from.raw()?);
        value.map(Self::new).map_err(|_| MalformedValue("object"))
    }
}

// Stored endpoints have no labels, except services of Consul with names.
fields!(NamedEndpoint { address, ports, weight, locality, network, tls_mode; labels });

impl Encode for GatewayHost {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        match self {
            Self::Address(address) => {
                to.bytes.push(0);
                to.put(*address);
            }
            Self::Name(name) => {
                to.bytes.push(1);
                name.write(to);
            }
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            0 => Encode::read(from).map(Self::Address),
            1 => Encode::read(from).map(Self::Name),
            _ => Err(MalformedValue("gateway")),
        }
    }
}

impl Encode for BTreeSet<(u16, u16)> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        for (port, hbone_port) in self {
            port.write(to);
            hbone_port.write(to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let count = from.count()?;
        (0..count).map(|_| Ok((u16::read(from)?, u16::read(from)?))).collect()
    }
}

impl Encode for OrdSet<WorkloadKey> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        self.iter().for_each(|one| one.write(to));
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let count = from.count()?;
        (0..count).map(|_| WorkloadKey::read(from)).collect()
    }
}

impl Encode for IpNet {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.put(self.addr());
        to.bytes.push(self.prefix_len());
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let address = Encode::read(from)?;
        Self::new(address, from.byte()?).map_err(|_| MalformedValue("range"))
    }
}

impl Encode for Resolution {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        match self {
            Self::ClientSide => to.bytes.push(0),
            Self::Headless => to.bytes.push(1),
            Self::Alias(host) => {
                to.bytes.push(2);
                host.write(to);
            }
            Self::ByName(by_name) => {
                to.bytes.push(3);
                by_name.write(to);
            }
            Self::Passthrough => to.bytes.push(4),
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            0 => Ok(Self::ClientSide),
            1 => Ok(Self::Headless),
            2 => Hostname::read(from).map(Self::Alias),
            3 => ByName::read(from).map(Self::ByName),
            4 => Ok(Self::Passthrough),
            _ => Err(MalformedValue("resolution")),
        }
    }
}

impl Encode for ExportTo {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        match self {
            Self::Public => to.bytes.push(0),
            Self::Namespaces(namespaces) => {
                to.bytes.push(1);
                namespaces.write(to);
            }
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            0 => Ok(Self::Public),
            1 => Vec::read(from).map(Self::Namespaces),
            _ => Err(MalformedValue("visibility")),
        }
    }
}

impl Encode for TargetPort {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        match self {
            Self::Number(number) => {
                to.bytes.push(0);
                number.write(to);
            }
            Self::Name(name) => {
                to.bytes.push(1);
                name.write(to);
            }
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            0 => u16::read(from).map(Self::Number),
            1 => Encode::read(from).map(Self::Name),
            _ => Err(MalformedValue("target port")),
        }
    }
}

impl Encode for Addresses {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        let mark = self.mark();
        to.number(self.iter().count() as u64 + u64::from(mark.is_some()));
        if let Some(mark) = mark {
            to.put(mark);
        }
        for address in self.iter() {
            to.put(address);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let parts: Vec<PodPart> = Encode::read(from)?;
        let mut mark = None;
        let addresses = parts.into_iter().filter_map(|part| match part {
            PodPart::Address(address) => Some(address),
            PodPart::Mark(found) => {
                mark = Some(found);
                None
            }
        });
        let addresses: Addresses = addresses.collect();
        Ok(addresses.marked(mark))
    }
}

/// Format 5 contains only addresses.
enum PodPart {
    Address(IpAddr),
    Mark(UidMark),
}

/// A byte with which no encoded address starts.
const MARK: u8 = 1;

impl EncodePlain for UidMark {
    fn append(self, bytes: &mut Vec<u8>) {
        bytes.push(MARK);
        bytes.extend_from_slice(&self.to_bytes());
    }
}

impl Encode for PodPart {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        match self {
            Self::Address(address) => to.put(*address),
            Self::Mark(mark) => to.put(*mark),
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        if from.peek() != Some(MARK) {
            return Encode::read(from).map(Self::Address);
        }
        from.byte()?;
        let mark = UidMark::from_bytes(from.bytes()?);
        mark.map(Self::Mark).ok_or(MalformedValue("UID"))
    }
}

impl Encode for Workloads {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        let mut name = String::new();
        for (key, pod) in self.iter() {
            key.namespace.write(to);
            name.clear();
            name.extend([key.stem, key.tail]);
            to.name(&name);
            pod.write(to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let mut workloads = Self::default();
        for _ in 0..from.count()? {
            let namespace = from.text()?;
            let name = from.name()?.to_owned();
            workloads.insert(&namespace, &name, Workload::read(from)?);
        }
        Ok(workloads)
    }
}

/// The first byte of an endpoint that shares the usual fields with the previous one.
const REPEATED: u8 = 1;
/// The first byte of an endpoint without labels. Formats 5 and 6 have no other ones.
const UNLABELLED: u8 = 0;
/// The first byte of an endpoint with labels.
const LABELLED: u8 = 2;
/// Added to the first byte of an endpoint whose host name follows.
const NAMED: u8 = 4;

/// Fields that adjacent endpoints usually share are written once for all of them.
impl Encode for Endpoints {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        let mut last = None;
        for endpoint in self.iter() {
            let EndpointRef {
                address,
                port,
                port_name,
                health,
                weight,
                locality,
                network_label,
                tls_mode,
                service_account,
                workload,
                pod,
                node,
                hostname,
                telemetry,
                labels,
            } = endpoint;
            let namespace = workload.map(|workload| workload.namespace);
            let common =
                (port_name, weight, locality, network_label, tls_mode, service_account, pod);
            let common = Some((common, namespace, telemetry, labels));
            to.put(address);
            to.number(port.into());
            to.put(health);
            to.option(node);
            let is_repeated = last == common;
            let kind = match labels {
                _ if is_repeated => REPEATED,
                None => UNLABELLED,
                Some(_) => LABELLED,
            };
            to.bytes.push(kind | if hostname.is_some() { NAMED } else { 0 });
            if let Some(hostname) = hostname {
                hostname.write(to);
            }
            if !is_repeated {
                last = common;
                port_name.write(to);
                to.number(weight.into());
                locality.write(to);
                to.option(network_label);
                to.put(tls_mode);
                to.option(service_account);
                to.put(pod);
                to.option(namespace);
                to.option(telemetry);
                if let Some(labels) = labels {
                    labels.write(to);
                }
            }
            if let Some(workload) = workload {
                to.name(&workload.name());
            }
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let count = from.count()?;
        let mut endpoints: Vec<Endpoint> = Vec::with_capacity(count.min(1 << 16));
        let mut namespace: Option<Namespace> = None;
        for _ in 0..count {
            let (address, port, health, node) = (
                Encode::read(from)?,
                Encode::read(from)?,
                Encode::read(from)?,
                Encode::read(from)?,
            );
            let kind = from.byte()?;
            let hostname = if kind & NAMED != 0 { Some(Encode::read(from)?) } else { None };
            let kind = kind & !NAMED;
            let mut endpoint = match (kind, endpoints.last()) {
                (REPEATED, Some(last)) => {
                    Endpoint { address, port, health, node, hostname, ..last.clone() }
                }
                (UNLABELLED | LABELLED, _) => {
                    let mut endpoint = Endpoint {
                        address,
                        port,
                        health,
                        node,
                        hostname,
                        port_name: Encode::read(from)?,
                        weight: Encode::read(from)?,
                        locality: Encode::read(from)?,
                        network_label: Encode::read(from)?,
                        tls_mode: Encode::read(from)?,
                        service_account: Encode::read(from)?,
                        pod: Encode::read(from)?,
                        workload: None,
                        telemetry: None,
                        labels: None,
                    };
                    namespace = Encode::read(from)?;
                    endpoint.telemetry = Encode::read(from)?;
                    if kind == LABELLED {
                        endpoint.labels = Some(Encode::read(from)?);
                    }
                    endpoint
                }
                _ => return Err(MalformedValue("endpoint")),
            };
            endpoint.workload = match &namespace {
                Some(namespace) => {
                    Some(Arc::new(WorkloadKey::new(namespace.clone(), from.name()?)))
                }
                None => None,
            };
            endpoints.push(endpoint);
        }
        Ok(endpoints.into())
    }
}

impl Encode for MembersState {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        let Self { members, sources, mesh, created, found_by } = self;
        members.write(to);
        sources.write(to);
        mesh.write(to);
        created.write(to);
        found_by.write(to);
    }

    /// The last two fields may be missing in files of this format.
    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        Ok(Self {
            members: Encode::read(from)?,
            sources: Encode::read(from)?,
            mesh: Encode::read(from)?,
            created: if from.is_done() { BTreeMap::new() } else { Encode::read(from)? },
            found_by: if from.is_done() { BTreeMap::new() } else { Encode::read(from)? },
        })
    }
}
