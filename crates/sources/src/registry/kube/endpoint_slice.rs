//! EndpointSlices: the addresses behind a Service, and their conditions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::import_objects::{
    DERIVED as IMPORTED_LABEL, SERVICE_OF_SLICE as SERVICE_LABEL,
    SLICE_CONTROLLER as MANAGED_BY_LABEL, SOURCE_CLUSTER as SOURCE_CLUSTER_LABEL, SliceOrigin,
    slice_origin,
};
use super::index::{IndexedObject, ReadKind};
use super::scope::{Scope, Set};
use super::slice_form::{Conditions, ENDPOINTS_MAX, IPV6, Rows, SliceForm, SlicePort, SliceRow};
use strait_base::dns_name::is_dns_label;
use strait_kube_client::{NamespacedName, Raw};
use strait_model::{Health, Locality, Namespace, WorkloadRef};

/// Controllers that copy slices from other clusters: Cilium, Karmada and Liqo.
const MIRRORING_CONTROLLERS: [&str; 3] = [
    "endpointslice-mesh-controller.cilium.io",
    "endpointslice-dispatch-controller.karmada.io",
    "endpointslice.reflection.liqo.io",
];

/// Size of the entry of a host name, without its text.
const HOSTNAME: usize = size_of::<(u32, Arc<str>)>() + super::weight::NODE;

impl Conditions {
    /// Returns whether the endpoint may receive traffic. Unknown means ready, serving and not
    /// terminating (EndpointSlice API). Sessions of a service with `persistent_sessions` continue
    /// until termination.
    pub(super) fn health(self, persistent_sessions: bool) -> Health {
        let terminating = self.terminating.unwrap_or(false);
        if self.ready.unwrap_or(true) {
            Health::Healthy
        } else if terminating && persistent_sessions && self.serving.unwrap_or(true) {
            Health::Draining
        } else if terminating {
            Health::Terminating
        } else {
            Health::Unhealthy
        }
    }

    /// Returns whether the endpoint accepts connections through the Service. If no endpoint is
    /// ready, a Service also forwards to endpoints that terminate and still serve.
    pub(super) fn serves(self) -> bool {
        let is_terminating = self.terminating.unwrap_or(false);
        self.ready.unwrap_or(true) || is_terminating && self.serving.unwrap_or(false)
    }
}

/// The stored part of an EndpointSlice: a row of 16 bytes for each member, and tables of values
/// that rows share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    /// The Service it belongs to.
    pub(super) service: NamespacedName,
    /// Name and target port of each port.
    pub(super) ports: SlicePorts,
    /// Whether it mirrors pods of another cluster: its pods and nodes are then not in this cluster.
    pub(super) is_mirror: bool,
    rows: Box<[SliceRow]>,
    /// The sets of the pods that members name.
    sets: Arc<[Set]>,
    /// The remaining parts of those names, concatenated.
    tails: Box<str>,
    nodes: Box<[Arc<Arc<str>>]>,
    /// Localities with only the zone.
    zones: Box<[Arc<Locality>]>,
    ipv6: Box<[Ipv6Addr]>,
    /// The host names of members that name no pod, by the index of the row; usually none.
    hostnames: Box<[(u32, Arc<str>)]>,
    /// The origin of a slice of an import, which is not part of the mesh.
    pub(super) origin: Option<Box<SliceOrigin>>,
}

/// Ports by name and number.
type SlicePorts = Arc<[(Arc<str>, u16)]>;

/// One endpoint of a slice, on all its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct SliceEndpoint<'a> {
    pub(super) address: IpAddr,
    pub(super) conditions: Conditions,
    /// The pod it names.
    pub(super) pod: Option<WorkloadRef<'a>>,
    pub(super) node: Option<&'a Arc<Arc<str>>>,
    /// Its locality, with only the zone.
    pub(super) zone: Option<&'a Arc<Locality>>,
    /// Its host name below the Service, if it names no pod.
    pub(super) hostname: Option<&'a Arc<str>>,
}

impl Slice {
    /// Returns its endpoints, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = SliceEndpoint<'_>> {
        let ends = self.rows.iter().map(|row| index(row.tail));
        let tails = [0].into_iter().chain(ends);
        let mut hostnames = self.hostnames.iter().peekable();
        (0..).zip(&self.rows).zip(tails).map(move |((number, row), begin)| SliceEndpoint {
            address: self.address(row),
            conditions: Conditions::unpack(row.bits),
            pod: at(&self.sets, row.set).map(|(namespace, stem)| {
                let tail = self.tails.get(begin..index(row.tail)).unwrap_or_default();
                WorkloadRef { namespace, stem, tail }
            }),
            node: at(&self.nodes, row.node),
            zone: at(&self.zones, row.zone),
            hostname: hostnames.next_if(|(of, _)| *of == number).map(|(_, name)| name),
        })
    }

    /// Returns the origin of a slice of an import, with its ports and endpoints.
    pub(super) fn take_origin(&mut self) -> Option<SliceOrigin> {
        let mut origin = *self.origin.take()?;
        if let SliceOrigin::Own(_, slice) = &mut origin {
            slice.ports = Arc::clone(&self.ports);
            slice.endpoints =
                self.members().map(|member| (member.address, member.conditions)).collect();
        }
        Some(origin)
    }

    /// Returns the number of endpoints, the number of ports, and the bytes of the names in it.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let tables = (self.nodes.len() + self.zones.len()) * size_of::<usize>();
        let hostnames = self.hostnames.iter().map(|(_, name)| name.len() + HOSTNAME).sum::<usize>();
        let ipv6 = self.ipv6.len() * size_of::<Ipv6Addr>();
        let names = self.tails.len() + tables + ipv6 + hostnames;
        (self.rows.len(), self.ports.len(), names)
    }

    /// Returns the number of endpoints.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the addresses of the members that name no pod; usually none.
    pub(super) fn unnamed(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.rows.iter().filter(|row| row.set == 0).map(|row| self.address(row))
    }

    /// Whether it names the same pods, nodes and zones as another slice with the same key.
    pub(super) fn names_as(&self, other: &Self) -> bool {
        self.service == other.service
            && Arc::ptr_eq(&self.sets, &other.sets)
            && self.unnamed().eq(other.unnamed())
    }

    fn address(&self, row: &SliceRow) -> IpAddr {
        match self.ipv6.get(index(row.address)) {
            Some(address) if row.bits & IPV6 != 0 => (*address).into(),
            _ => Ipv4Addr::from_bits(row.address).into(),
        }
    }

    /// Returns the sets of the pods that it names, as pods with an empty tail.
    pub(super) fn sets(&self) -> impl Iterator<Item = WorkloadRef<'_>> {
        let sets = self.sets.iter();
        sets.map(|(namespace, stem)| WorkloadRef { namespace, stem, tail: "" })
    }

    /// Whether a member is this pod.
    pub(super) fn names(&self, pod: WorkloadRef<'_>) -> bool {
        let is_set_of_pod =
            |set: WorkloadRef<'_>| (set.namespace, set.stem) == (pod.namespace, pod.stem);
        self.sets().any(is_set_of_pod) && self.members().any(|member| member.pod == Some(pod))
    }

    /// Whether a member is in this zone.
    pub(super) fn names_zone(&self, name: &str) -> bool {
        self.zones.iter().any(|zone| *zone.zone == *name)
    }

    /// Whether a member is on this node.
    pub(super) fn names_node(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| ***node == *name)
    }
}

fn index(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

fn at<T>(table: &[T], place: u16) -> Option<&T> {
    table.get(usize::from(place).checked_sub(1)?)
}

impl ReadKind for Slice {
    type Form<'a> = SliceForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    /// Ignores a slice of host names, a slice without a Service, and an imported slice that Strait
    /// did not write.
    fn convert(form: SliceForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let SliceForm { metadata, address_type, endpoints, ports } = form;
        let key = scope.key(metadata.identity());
        let owner = metadata.labels.get(SERVICE_LABEL).filter(|owner| !owner.is_empty());
        let imported = metadata.labels.get(IMPORTED_LABEL).is_some();
        let source = metadata.labels.get(SOURCE_CLUSTER_LABEL);
        let manager = metadata.labels.get(MANAGED_BY_LABEL);
        let is_mirror = source.is_some_and(|source| !source.is_empty())
            || manager
                .is_some_and(|manager| MIRRORING_CONTROLLERS.iter().any(|one| *manager == **one));
        let is_of_mesh = owner.is_some() && !imported && *address_type != *"FQDN";
        let origin = match is_of_mesh {
            true => None,
            false => slice_origin(&metadata, &address_type, scope).map(Box::new),
        };
        if origin.is_none() && !is_of_mesh {
            return IndexedObject { key, value: None, invalid: None };
        }
        let owner = owner.unwrap_or_default();
        if endpoints.count > ENDPOINTS_MAX {
            let invalid =
                format!("it has {} endpoints, more than a slice may have", endpoints.count);
            return IndexedObject { key, value: None, invalid: Some(invalid.into()) };
        }
        let service =
            NamespacedName { namespace: Arc::clone(&key.namespace), name: scope.text(owner) };
        let (ports, invalid_port) = usable_ports(ports, scope);
        let Rows { rows, sets, tails, nodes, zones, ipv6, hostnames, invalid, .. } = endpoints;
        let mut names = scope.names();
        let sets = sets.entries.iter().map(|(namespace, stem)| {
            let own = namespace.is_empty() || **namespace == *key.namespace.as_bytes();
            let namespace =
                if own { Arc::clone(&key.namespace) } else { names.text(utf8(namespace)?) };
            Some((Namespace::new(namespace), utf8(stem)?.into()))
        });
        let sets: Option<Vec<Set>> = sets.collect();
        let nodes: Option<_> = nodes.entries.iter().map(|name| names.node(name)).collect();
        let zones: Option<_> = zones.entries.iter().map(|name| names.zone(name)).collect();
        drop(names);
        let (Some(sets), Some(nodes), Some(zones), Ok(tails)) =
            (sets, nodes, zones, String::from_utf8(tails))
        else {
            let invalid = "the name of a pod, a node or a zone is not UTF-8".into();
            return IndexedObject { key, value: None, invalid: Some(invalid) };
        };
        let value = Self {
            service,
            ports,
            is_mirror,
            rows: rows.into(),
            sets: scope.sets(sets),
            tails: tails.into(),
            nodes,
            zones,
            ipv6: ipv6.into(),
            hostnames: usable_hostnames(hostnames, scope),
            origin,
        };
        IndexedObject { key, value: Some(value), invalid: invalid.or(invalid_port) }
    }
}

/// Returns the host names of a slice that are DNS labels, as API servers require.
fn usable_hostnames(hostnames: Vec<(u32, Raw<'_>)>, scope: &Scope) -> Box<[(u32, Arc<str>)]> {
    let names = hostnames.iter().filter_map(|(row, name)| {
        let name = utf8(name).filter(|name| is_dns_label(name))?;
        Some((*row, scope.text(name)))
    });
    names.collect()
}

/// Returns the ports of a slice by name and number, and the reason if some are invalid.
fn usable_ports(ports: Vec<SlicePort<'_>>, scope: &Scope) -> (SlicePorts, Option<Box<str>>) {
    let (mut usable, mut invalid) = (Vec::with_capacity(ports.len()), None);
    for port in ports {
        // No number means every port, which a proxy cannot use.
        let Some(number) = port.port else { continue };
        match u16::try_from(number) {
            Ok(number) if number > 0 => usable.push((scope.text(&port.name), number)),
            _ => invalid = Some(format!("{number} is not a port").into()),
        }
    }
    (scope.ports(usable), invalid)
}

fn utf8<'a>(text: &'a Raw<'_>) -> Option<&'a str> {
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_decide_whether_an_endpoint_receives_traffic() {
        use Health::{Draining, Healthy, Terminating, Unhealthy};
        let (yes, no) = (Some(true), Some(false));
        // The columns: ready, serving, terminating; health without and with persistent sessions.
        let table = [
            (None, None, None, Healthy, Healthy),
            (yes, None, None, Healthy, Healthy),
            (yes, no, yes, Healthy, Healthy),
            (no, None, None, Unhealthy, Unhealthy),
            (no, yes, None, Unhealthy, Unhealthy),
            (no, yes, no, Unhealthy, Unhealthy),
            (no, yes, yes, Terminating, Draining),
            (no, None, yes, Terminating, Draining),
            (no, no, yes, Terminating, Terminating),
            (no, no, no, Unhealthy, Unhealthy),
        ];
        for (ready, serving, terminating, plain, persistent) in table {
            let conditions = Conditions { ready, serving, terminating };
            assert_eq!(conditions.health(false), plain, "{conditions:?}");
            assert_eq!(conditions.health(true), persistent, "{conditions:?}, persistent");
        }
    }
}
