//! The endpoints of one service in one shard, in packed form.
//!
//! An [`Endpoint`] is the full form in which a source reports it. Stored are an [`EndpointRow`] of
//! 24 bytes per endpoint and small tables of the values that rows share. Rows keep the order of the
//! source, and tables are filled in that order, so equal endpoints give equal blocks.
//! docs/explanation/change-propagation.md shows the layout.
//!
//! A value is never modified: a source whose endpoints changed creates a new value.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{
    Endpoint, Health, Labels, Locality, Namespace, NetworkId, PodState, TlsMode, WorkloadKey,
};

/// The number of recent table entries that are searched before a new entry is added. A duplicate
/// entry costs only its own size.
const LOOK_BACK: usize = 32;

/// Endpoints in the order of their source. Clones share the data.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Endpoints(Arc<EndpointBlock>);

#[derive(Default, PartialEq, Eq)]
struct EndpointBlock {
    rows: Box<[EndpointRow]>,
    kinds: Arc<[EndpointGroup]>,
    localities: Box<[Arc<Locality>]>,
    /// The concatenated tails of workload names.
    tails: Box<str>,
    /// Data that only few endpoints need.
    rare: Option<Box<Rare>>,
}

#[derive(Default, PartialEq, Eq)]
struct Rare {
    ipv6: Vec<Ipv6Addr>,
    texts: Vec<RareTexts>,
}

/// The optional texts of an endpoint, which only few services need.
#[derive(Clone, Default, PartialEq, Eq)]
struct RareTexts {
    node: Option<Arc<str>>,
    hostname: Option<Arc<str>>,
}

/// The data of one endpoint. Fields without a unit are indices into the tables of the block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EndpointRow {
    /// The IPv4 address, or the index of the IPv6 address.
    address: u32,
    kind: u32,
    locality: u32,
    /// The index of the rare texts plus one; 0 for none.
    texts: u32,
    /// The offset of the tail of the workload's name.
    tail: u32,
    port: u16,
    /// The length of the tail in bytes.
    tail_length: u8,
    /// [`IPV6`], and [`Health`] in the two bits of [`HEALTH`].
    bits: u8,
}

const IPV6: u8 = 1;
const HEALTH: u8 = 0b110;
/// In declaration order, so that the index is the number.
const HEALTHS: [Health; 4] =
    [Health::Healthy, Health::Unhealthy, Health::Draining, Health::Terminating];

/// The data that the endpoints of one set of pods share. Often a service has only one group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndpointGroup {
    /// See [`Endpoint::port_name`].
    pub port_name: Arc<str>,
    /// See [`Endpoint::weight`].
    pub weight: u32,
    /// See [`Endpoint::tls_mode`].
    pub tls_mode: TlsMode,
    /// See [`Endpoint::pod`].
    pub pod: PodState,
    /// See [`Endpoint::network_label`].
    pub network_label: Option<NetworkId>,
    /// See [`Endpoint::service_account`].
    pub service_account: Option<Arc<str>>,
    /// See [`Endpoint::telemetry`].
    pub telemetry: Option<Arc<str>>,
    /// See [`Endpoint::labels`].
    pub labels: Option<Arc<Labels>>,
    /// The namespace of the workload, and its name up to the last `-`.
    workload: Option<(Namespace, Arc<str>)>,
}

impl EndpointGroup {
    /// Returns the namespace of the workloads, if they are known.
    pub fn workload_namespace(&self) -> Option<&Namespace> {
        self.workload.as_ref().map(|(namespace, _)| namespace)
    }

    /// Returns whether these endpoints accept mTLS, or may start to when the labels of their known
    /// workload change.
    pub fn may_accept_mtls(&self) -> bool {
        self.tls_mode == TlsMode::Istio
            || self.pod == PodState::Known
            || self.service_account.is_some()
    }
}

/// A borrowed endpoint, with the fields of an [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is documented at the field of Endpoint with its name")]
pub struct EndpointRef<'a> {
    pub address: IpAddr,
    pub port: u16,
    pub port_name: &'a Arc<str>,
    pub health: Health,
    pub weight: u32,
    pub locality: &'a Arc<Locality>,
    pub network_label: Option<&'a NetworkId>,
    pub tls_mode: TlsMode,
    pub service_account: Option<&'a Arc<str>>,
    pub workload: Option<WorkloadRef<'a>>,
    pub pod: PodState,
    pub node: Option<&'a Arc<str>>,
    pub hostname: Option<&'a Arc<str>>,
    pub telemetry: Option<&'a Arc<str>>,
    pub labels: Option<&'a Arc<Labels>>,
}

/// The borrowed key of a workload, in the parts in which it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadRef<'a> {
    /// The namespace.
    pub namespace: &'a Namespace,
    /// The name up to its last `-`, which the pods of one set share; see [`Self::split`].
    pub stem: &'a str,
    /// The rest of the name.
    pub tail: &'a str,
}

impl Endpoints {
    /// Packs endpoints. `share` replaces the list of their kinds with an equal one that is already
    /// shared.
    pub fn sharing<'a>(
        endpoints: impl Iterator<Item = EndpointRef<'a>>,
        share: impl FnOnce(Vec<EndpointGroup>) -> Arc<[EndpointGroup]>,
    ) -> Self {
        let count = endpoints.size_hint().0;
        let mut packer = Packer {
            rows: Vec::with_capacity(count),
            kinds: Vec::with_capacity(1),
            localities: Vec::with_capacity(count.min(3)),
            // The names of a Deployment's pods end with five random letters.
            tails: String::with_capacity(5 * count),
            rare: Rare::default(),
        };
        endpoints.for_each(|endpoint| packer.push(endpoint));
        packer.finish(share)
    }

    /// Returns the number of endpoints.
    pub fn len(&self) -> usize {
        self.0.rows.len()
    }

    /// Returns whether there are no endpoints.
    pub fn is_empty(&self) -> bool {
        self.0.rows.is_empty()
    }

    /// Returns each endpoint, in the order of the source.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = EndpointRef<'_>> + Clone {
        self.0.rows.iter().map(|row| self.0.endpoint(row))
    }

    /// Returns the first endpoint.
    pub fn first(&self) -> Option<EndpointRef<'_>> {
        self.iter().next()
    }

    /// Returns each endpoint as its source reported it.
    pub fn to_vec(&self) -> Vec<Endpoint> {
        self.iter().map(EndpointRef::to_endpoint).collect()
    }

    /// Returns the list of kinds, to be shared with endpoints of the same kinds.
    pub fn shared_kinds(&self) -> Arc<[EndpointGroup]> {
        Arc::clone(&self.0.kinds)
    }

    /// Returns the kinds. [`PackedEndpoint::kind`] is an index into this list.
    pub fn kinds(&self) -> &[EndpointGroup] {
        &self.0.kinds
    }

    /// Returns the localities. [`PackedEndpoint::locality`] is an index into this list.
    pub fn localities(&self) -> &[Arc<Locality>] {
        &self.0.localities
    }

    /// Returns each endpoint in packed form, for callers that decide by kind instead of by
    /// endpoint.
    pub fn packed(
        &self,
    ) -> impl ExactSizeIterator<Item = PackedEndpoint<'_>> + DoubleEndedIterator + Clone {
        self.0.rows.iter().map(|row| PackedEndpoint { block: &self.0, row })
    }

    /// Returns whether both address families occur.
    pub fn is_dual_stack(&self) -> bool {
        let ipv6 = self.0.rare.as_ref().map_or(0, |rare| rare.ipv6.len());
        ipv6 != 0 && ipv6 < self.len()
    }

    /// Returns whether both share the same data, which is a cheap test.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// One endpoint in packed form.
#[derive(Clone, Copy)]
pub struct PackedEndpoint<'a> {
    block: &'a EndpointBlock,
    row: &'a EndpointRow,
}

impl<'a> PackedEndpoint<'a> {
    /// Returns the address on which it listens.
    #[inline] // Called for each endpoint of each assignment; a function call costs a tenth of its encoding.
    pub fn address(self) -> IpAddr {
        self.block.address(self.row)
    }

    /// Returns the target port.
    #[inline]
    pub fn port(self) -> u16 {
        self.row.port
    }

    /// Returns the health, which decides whether it may be sent.
    #[inline]
    pub fn health(self) -> Health {
        HEALTHS[usize::from((self.row.bits & HEALTH) >> 1)]
    }

    /// Returns whether [`Self::address`] is an IPv4 address.
    #[inline]
    pub fn is_ipv4(self) -> bool {
        self.row.bits & IPV6 == 0
    }

    /// Returns whether it has its own address, not [`NO_ADDRESS`](super::NO_ADDRESS).
    #[inline]
    pub fn has_address(self) -> bool {
        !self.is_ipv4() || self.row.address != 0
    }

    /// Returns its index in [`Endpoints::kinds`].
    #[inline]
    pub fn kind(self) -> usize {
        self.row.kind as usize
    }

    /// Returns its index in [`Endpoints::localities`].
    #[inline]
    pub fn locality(self) -> usize {
        self.row.locality as usize
    }

    /// Returns the node on which it runs.
    #[inline]
    pub fn node(self) -> Option<&'a Arc<str>> {
        self.block.texts(self.row)?.node.as_ref()
    }

    /// Returns the endpoint with all its fields.
    #[inline]
    pub fn unpack(self) -> EndpointRef<'a> {
        self.block.endpoint(self.row)
    }
}

impl EndpointBlock {
    fn endpoint(&self, row: &EndpointRow) -> EndpointRef<'_> {
        let kind = &self.kinds[row.kind as usize];
        let tail = row.tail as usize..row.tail as usize + usize::from(row.tail_length);
        let texts = self.texts(row);
        EndpointRef {
            address: self.address(row),
            port: row.port,
            port_name: &kind.port_name,
            health: HEALTHS[usize::from((row.bits & HEALTH) >> 1)],
            weight: kind.weight,
            locality: &self.localities[row.locality as usize],
            network_label: kind.network_label.as_ref(),
            tls_mode: kind.tls_mode,
            service_account: kind.service_account.as_ref(),
            workload: kind.workload.as_ref().map(|(namespace, stem)| WorkloadRef {
                namespace,
                stem,
                tail: &self.tails[tail],
            }),
            pod: kind.pod,
            node: texts.and_then(|texts| texts.node.as_ref()),
            hostname: texts.and_then(|texts| texts.hostname.as_ref()),
            telemetry: kind.telemetry.as_ref(),
            labels: kind.labels.as_ref(),
        }
    }

    #[inline]
    fn address(&self, row: &EndpointRow) -> IpAddr {
        match &self.rare {
            Some(rare) if row.bits & IPV6 != 0 => rare.ipv6[row.address as usize].into(),
            _ => Ipv4Addr::from_bits(row.address).into(),
        }
    }

    fn texts(&self, row: &EndpointRow) -> Option<&RareTexts> {
        self.rare.as_ref()?.texts.get((row.texts as usize).checked_sub(1)?)
    }
}

impl<'a> FromIterator<EndpointRef<'a>> for Endpoints {
    fn from_iter<I: IntoIterator<Item = EndpointRef<'a>>>(endpoints: I) -> Self {
        Self::sharing(endpoints.into_iter(), Into::into)
    }
}

impl FromIterator<Endpoint> for Endpoints {
    fn from_iter<I: IntoIterator<Item = Endpoint>>(endpoints: I) -> Self {
        let mut packer = Packer::default();
        endpoints.into_iter().for_each(|endpoint| packer.push(EndpointRef::of(&endpoint)));
        packer.finish(Into::into)
    }
}

impl From<Vec<Endpoint>> for Endpoints {
    fn from(endpoints: Vec<Endpoint>) -> Self {
        endpoints.into_iter().collect()
    }
}

/// Fills a block, endpoint by endpoint.
#[derive(Default)]
struct Packer {
    rows: Vec<EndpointRow>,
    kinds: Vec<EndpointGroup>,
    localities: Vec<Arc<Locality>>,
    tails: String,
    rare: Rare,
}

impl Packer {
    fn push(&mut self, endpoint: EndpointRef<'_>) {
        let tail = endpoint.workload.map_or("", |workload| workload.tail);
        let row = EndpointRow {
            address: match endpoint.address {
                IpAddr::V4(address) => address.to_bits(),
                IpAddr::V6(address) => {
                    self.rare.ipv6.push(address);
                    place(self.rare.ipv6.len() - 1)
                }
            },
            kind: find(&self.kinds, |kind| kind.is_of(&endpoint)).unwrap_or_else(|| {
                self.kinds.push(EndpointGroup::of(&endpoint));
                place(self.kinds.len() - 1)
            }),
            locality: intern(&mut self.localities, endpoint.locality),
            texts: self.rare.texts(&endpoint),
            tail: place(self.tails.len()),
            port: endpoint.port,
            tail_length: u8::try_from(tail.len()).expect("split makes tails of at most 255 bytes"),
            bits: (endpoint.health as u8) << 1 | if endpoint.address.is_ipv6() { IPV6 } else { 0 },
        };
        self.tails.push_str(tail);
        self.rows.push(row);
    }

    fn finish(self, share: impl FnOnce(Vec<EndpointGroup>) -> Arc<[EndpointGroup]>) -> Endpoints {
        let Self { rows, kinds, localities, tails, mut rare } = self;
        rare.ipv6.shrink_to_fit();
        rare.texts.shrink_to_fit();
        let is_bare = rare.ipv6.is_empty() && rare.texts.is_empty();
        Endpoints(Arc::new(EndpointBlock {
            rows: rows.into(),
            kinds: share(kinds),
            localities: localities.into(),
            tails: tails.into(),
            rare: (!is_bare).then(|| Box::new(rare)),
        }))
    }
}

impl Rare {
    /// Returns the value of [`EndpointRow::texts`] for an endpoint.
    fn texts(&mut self, endpoint: &EndpointRef<'_>) -> u32 {
        let (node, hostname) = (endpoint.node, endpoint.hostname);
        if node.is_none() && hostname.is_none() {
            return 0;
        }
        let same = |texts: &RareTexts| {
            same_text(&texts.node, node) && same_text(&texts.hostname, hostname)
        };
        let found = find(&self.texts, same).unwrap_or_else(|| {
            self.texts.push(RareTexts { node: node.cloned(), hostname: hostname.cloned() });
            place(self.texts.len() - 1)
        });
        found + 1
    }
}

fn same_text(a: &Option<Arc<str>>, b: Option<&Arc<str>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    }
}

fn intern<T: PartialEq + ?Sized>(table: &mut Vec<Arc<T>>, value: &Arc<T>) -> u32 {
    find(table, |existing| Arc::ptr_eq(existing, value) || existing == value).unwrap_or_else(|| {
        table.push(Arc::clone(value));
        place(table.len() - 1)
    })
}

fn find<T>(table: &[T], matches: impl Fn(&T) -> bool) -> Option<u32> {
    let start = table.len().saturating_sub(LOOK_BACK);
    let at = table[start..].iter().rposition(matches)?;
    Some(place(start + at))
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("the bounds on what one cluster may send keep tables below 4 GB")
}

impl EndpointGroup {
    /// Returns whether endpoints of this kind claim their addresses in this state; see
    /// [`EndpointRef::claims_address`].
    pub fn claims_address(&self, health: Health) -> bool {
        claims_address(self.workload.is_some(), self.pod, health)
    }

    fn of(endpoint: &EndpointRef<'_>) -> Self {
        Self {
            port_name: Arc::clone(endpoint.port_name),
            weight: endpoint.weight,
            tls_mode: endpoint.tls_mode,
            pod: endpoint.pod,
            network_label: endpoint.network_label.cloned(),
            service_account: endpoint.service_account.cloned(),
            telemetry: endpoint.telemetry.cloned(),
            labels: endpoint.labels.cloned(),
            workload: endpoint.workload.map(|workload| {
                let WorkloadRef { namespace, stem, .. } = workload;
                (namespace.clone(), stem.into())
            }),
        }
    }

    fn is_of(&self, endpoint: &EndpointRef<'_>) -> bool {
        let same = |a: &Arc<str>, b: &Arc<str>| Arc::ptr_eq(a, b) || a == b;
        let same_workload = match (&self.workload, endpoint.workload) {
            (Some((namespace, stem)), Some(workload)) => {
                **stem == *workload.stem && namespace == workload.namespace
            }
            (None, None) => true,
            _ => false,
        };
        same_workload
            && same_text(&self.service_account, endpoint.service_account)
            && same_text(&self.telemetry, endpoint.telemetry)
            && match (&self.labels, endpoint.labels) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
                (None, None) => true,
                _ => false,
            }
            && same(&self.port_name, endpoint.port_name)
            && self.weight == endpoint.weight
            && self.tls_mode == endpoint.tls_mode
            && self.pod == endpoint.pod
            && self.network_label.as_ref() == endpoint.network_label
    }
}

impl<'a> WorkloadRef<'a> {
    /// Creates the key of workload `name` in `namespace`.
    pub fn of(namespace: &'a Namespace, name: &'a str) -> Self {
        let (stem, tail) = Self::split(name);
        Self { namespace, stem, tail }
    }

    /// Splits a workload's name after its last `-`: the first part is shared by the pods of one
    /// set, the second has at most 255 bytes.
    pub fn split(name: &str) -> (&str, &str) {
        let at = name.rfind('-').map_or(0, |dash| dash + 1);
        if name.len() - at > usize::from(u8::MAX) { (name, "") } else { name.split_at(at) }
    }
}

impl WorkloadRef<'_> {
    /// Returns the key as one value.
    pub fn to_key(self) -> WorkloadKey {
        WorkloadKey::new(self.namespace.clone(), self.name())
    }

    /// Returns the name as one string.
    pub fn name(self) -> String {
        [self.stem, self.tail].concat()
    }
}

impl PartialEq<WorkloadKey> for WorkloadRef<'_> {
    fn eq(&self, key: &WorkloadKey) -> bool {
        *self.namespace == key.namespace && key.name.strip_prefix(self.stem) == Some(self.tail)
    }
}

impl fmt::Display for WorkloadRef<'_> {
    /// Formats it as `name.namespace`, like a [`WorkloadKey`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}.{}", self.stem, self.tail, self.namespace)
    }
}

/// Returns whether it is a pod that receives traffic and has been seen, if pods can be read.
fn claims_address(is_named: bool, pod: PodState, health: Health) -> bool {
    is_named && pod != PodState::Missing && matches!(health, Health::Healthy | Health::Draining)
}

impl EndpointRef<'_> {
    /// Returns whether it is a pod that receives traffic. No other pod can have its address in its
    /// network then.
    pub fn claims_address(self) -> bool {
        claims_address(self.workload.is_some(), self.pod, self.health)
    }
}

impl<'a> EndpointRef<'a> {
    fn of(endpoint: &'a Endpoint) -> Self {
        let workload = endpoint.workload.as_ref();
        Self {
            address: endpoint.address,
            port: endpoint.port,
            port_name: &endpoint.port_name,
            health: endpoint.health,
            weight: endpoint.weight,
            locality: &endpoint.locality,
            network_label: endpoint.network_label.as_ref(),
            tls_mode: endpoint.tls_mode,
            service_account: endpoint.service_account.as_ref(),
            workload: workload.map(|key| WorkloadRef::of(&key.namespace, &key.name)),
            pod: endpoint.pod,
            node: endpoint.node.as_ref(),
            hostname: endpoint.hostname.as_ref(),
            telemetry: endpoint.telemetry.as_ref(),
            labels: endpoint.labels.as_ref(),
        }
    }

    /// Returns the endpoint as its source reported it.
    pub fn to_endpoint(self) -> Endpoint {
        Endpoint {
            address: self.address,
            port: self.port,
            port_name: Arc::clone(self.port_name),
            health: self.health,
            weight: self.weight,
            locality: Arc::clone(self.locality),
            network_label: self.network_label.cloned(),
            tls_mode: self.tls_mode,
            service_account: self.service_account.cloned(),
            workload: self.workload.map(|workload| Arc::new(workload.to_key())),
            pod: self.pod,
            node: self.node.cloned(),
            hostname: self.hostname.cloned(),
            telemetry: self.telemetry.cloned(),
            labels: self.labels.cloned(),
        }
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns endpoints with all values of all fields in various combinations.
    fn assorted() -> Vec<Endpoint> {
        let names = ["web-7d8b9-x2x4z", "web-7d8b9-abcde", "db-0", "single", "", "-", "ü-é"];
        let long = "a".repeat(300);
        let accounts = ["spiffe://a/ns/b/sa/c", "spiffe://a/ns/b/sa/d"];
        let texts = ["", "east", "r/z/s"];
        (0..3000_usize)
            .map(|at| Endpoint {
                address: match at % 3 {
                    0 => IpAddr::from(Ipv6Addr::from_bits(at as u128)),
                    _ => IpAddr::from(Ipv4Addr::from_bits(at as u32)),
                },
                port: (at % 65_536) as u16,
                port_name: ["http", ""][at % 2].into(),
                health: HEALTHS[at % 4],
                weight: 1 + (at % 5) as u32,
                locality: Arc::new(Locality::parse(texts[at / 7 % 3])),
                network_label: (at % 11 == 0).then(|| texts[at % 3].into()),
                tls_mode: [TlsMode::Istio, TlsMode::Disabled][at / 5 % 2],
                service_account: (at % 13 != 0).then(|| accounts[at / 2 % 2].into()),
                workload: (at % 17 != 0).then(|| {
                    let name = names.get(at % 8).copied().unwrap_or(&long);
                    Arc::new(WorkloadKey::new(["ns", "other"][at / 3 % 2], name))
                }),
                pod: [PodState::Known, PodState::Missing, PodState::Unnamed][at / 4 % 3],
                node: (at % 19 != 0).then(|| format!("node-{}", at % 100).into()),
                hostname: (at % 29 == 0).then(|| format!("db-{}", at % 50).into()),
                telemetry: (at % 23 == 0).then(|| texts[at / 6 % 3].into()),
                labels: (at % 3 == 0).then(|| {
                    Arc::new([("version".into(), texts[at / 8 % 3].into())].into_iter().collect())
                }),
            })
            .collect()
    }

    #[test]
    fn packed_endpoints_round_trip() {
        let endpoints = assorted();
        let packed = Endpoints::from(endpoints.clone());
        assert_eq!(packed.to_vec(), endpoints);
        for (packed, endpoint) in packed.packed().zip(&endpoints) {
            assert_eq!(packed.unpack().to_endpoint(), *endpoint);
            assert_eq!(packed.is_ipv4(), endpoint.address.is_ipv4());
            assert_eq!((packed.address(), packed.port()), (endpoint.address, endpoint.port));
            assert_eq!((packed.health(), packed.node()), (endpoint.health, endpoint.node.as_ref()));
        }
    }

    #[test]
    fn only_equal_endpoints_give_equal_values() {
        let endpoints = assorted();
        let packed = Endpoints::from(endpoints.clone());
        assert!(packed == endpoints.iter().cloned().collect());
        let mut fewer = endpoints.clone();
        fewer.pop();
        assert!(packed != fewer.into());
        for change in [
            |one: &mut Endpoint| one.port += 1,
            |one: &mut Endpoint| one.weight += 1,
            |one: &mut Endpoint| one.health = Health::Terminating,
            |one: &mut Endpoint| one.node = Some("another".into()),
            |one: &mut Endpoint| one.hostname = Some("another".into()),
            |one: &mut Endpoint| {
                one.labels = Some(Arc::new([("a".into(), "b".into())].into_iter().collect()));
            },
            |one: &mut Endpoint| one.workload = Some(Arc::new(WorkloadKey::new("ns", "x"))),
        ] {
            let mut other = endpoints.clone();
            change(&mut other[42]);
            assert!(packed != other.into());
        }
    }

    #[test]
    fn workload_is_identified_by_its_whole_name() {
        let packed = Endpoints::from(assorted());
        let workloads: Vec<_> = packed.iter().filter_map(|endpoint| endpoint.workload).collect();
        for workload in &workloads {
            let key = workload.to_key();
            assert_eq!(*workload, key);
            assert_eq!(workload.to_string(), key.to_string());
            let other = WorkloadKey::new(key.namespace.clone(), format!("{}x", key.name));
            assert_ne!(*workload, other);
        }
    }

    #[test]
    fn row_has_24_bytes() {
        assert_eq!(size_of::<EndpointRow>(), 24);
    }
}
