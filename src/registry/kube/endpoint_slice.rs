//! EndpointSlices: which addresses stand behind a Service, and how they fare.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::index::{Kept, Reads};
use super::scope::{Scope, Set};
use crate::apiserver::{
    Form, Identity, Key, Malformed, Message, Meta, Raw, Text, Value, null_as_default,
};
use crate::model::{Health, Locality, Namespace, WorkloadRef};

const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Made from other clusters' services by a multi-cluster services controller: those clusters are
/// read themselves.
const IMPORTED_LABEL: &str = "multicluster.kubernetes.io/service-name";

/// What is decoded of an EndpointSlice.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SliceForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow)]
    address_type: Text<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    endpoints: Vec<EndpointForm<'a>>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    ports: Vec<PortForm<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EndpointForm<'a> {
    #[serde(borrow)]
    addresses: First<'a>,
    #[serde(deserialize_with = "null_as_default")]
    conditions: Conditions,
    #[serde(borrow, deserialize_with = "null_as_default")]
    target_ref: Target<'a>,
    #[serde(borrow)]
    node_name: Raw<'a>,
    #[serde(borrow)]
    zone: Raw<'a>,
}

/// The first of a list; further addresses are the same endpoint once more (EndpointSlice API).
#[derive(Debug, Default, PartialEq)]
struct First<'a>(Option<Raw<'a>>);

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Target<'a> {
    #[serde(borrow)]
    kind: Raw<'a>,
    #[serde(borrow)]
    namespace: Raw<'a>,
    #[serde(borrow)]
    name: Raw<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PortForm<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    port: Option<i64>,
}

/// What the API server says of an endpoint; each may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(super) struct Conditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

impl<'de: 'a, 'a> Deserialize<'de> for First<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = First<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of text")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(First(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let first = list.next_element()?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        deserializer.deserialize_any(List)
    }
}

// Field numbers: k8s.io/api/discovery/v1/generated.proto; of a target, core/v1.

impl<'a> Message<'a> for SliceForm<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => value.message(&mut self.metadata)?,
            2 => value.push(&mut self.endpoints)?,
            3 => value.push(&mut self.ports)?,
            4 => self.address_type = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for EndpointForm<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 if self.addresses.0.is_none() => self.addresses.0 = Some(Raw::of(value)?),
            2 => value.message(&mut self.conditions)?,
            4 => value.message(&mut self.target_ref)?,
            6 => self.node_name = Raw::of(value)?,
            7 => self.zone = Raw::of(value)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for Conditions {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => self.ready = Some(value.flag()?),
            2 => self.serving = Some(value.flag()?),
            3 => self.terminating = Some(value.flag()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for Target<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => self.kind = Raw::of(value)?,
            2 => self.namespace = Raw::of(value)?,
            3 => self.name = Raw::of(value)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for PortForm<'a> {
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => self.name = value.text()?,
            3 => self.port = Some(value.number()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Form<'a> for SliceForm<'a> {
    fn of_protobuf(bytes: &'a [u8]) -> Result<Self, Malformed> {
        // An endpoint takes some 150 bytes on the wire and here: the list grows once, if at all.
        let endpoints = Vec::with_capacity(bytes.len() / 150);
        let mut form = Self { endpoints, ..Self::default() };
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

impl Conditions {
    /// Whether the endpoint may take traffic. Unknown means ready, serving, and not terminating
    /// (EndpointSlice API). Sessions of a service with `persistent_sessions` go on to the end.
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
}

/// What is kept of an EndpointSlice: a row of 16 bytes for each member, and tables of what rows share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    /// The Service it belongs to.
    pub(super) service: Key,
    /// Name and target port of each port.
    pub(super) ports: Arc<[(Arc<str>, u16)]>,
    rows: Box<[Row]>,
    /// The sets of the pods that members name.
    sets: Arc<[Set]>,
    /// What is left of those names, one after the other.
    tails: Box<str>,
    nodes: Box<[Arc<Arc<str>>]>,
    /// Localities of which only the zone is known.
    zones: Box<[Arc<Locality>]>,
    ipv6: Box<[Ipv6Addr]>,
}

/// What a member has to itself. Places in tables count from 1; 0 says that there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    /// The IPv4 address, or where the IPv6 address stands (from 0).
    address: u32,
    /// Where its tail ends; it begins where that of the row before ends.
    tail: u32,
    set: u16,
    node: u16,
    zone: u16,
    /// Whether it is IPv6, and [`Conditions::pack`].
    bits: u8,
}

/// In [`Row::bits`]: the address is of IPv6.
const IPV6: u8 = 1 << 7;
/// The most endpoints that are read of a slice; API servers take no more than 1,000 for one.
const ENDPOINTS_MAX: usize = 60_000;

/// One endpoint of a slice, on all its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) address: IpAddr,
    pub(super) conditions: Conditions,
    /// The pod it names.
    pub(super) pod: Option<WorkloadRef<'a>>,
    pub(super) node: Option<&'a Arc<Arc<str>>>,
    /// The locality of which only the zone is known.
    pub(super) zone: Option<&'a Arc<Locality>>,
}

impl Slice {
    /// Its endpoints, in its order.
    pub(super) fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let ends = self.rows.iter().map(|row| index(row.tail));
        let tails = [0].into_iter().chain(ends);
        self.rows.iter().zip(tails).map(|(row, begin)| Member {
            address: match self.ipv6.get(index(row.address)) {
                Some(address) if row.bits & IPV6 != 0 => (*address).into(),
                _ => Ipv4Addr::from_bits(row.address).into(),
            },
            conditions: Conditions::unpack(row.bits),
            pod: at(&self.sets, row.set).map(|(namespace, stem)| {
                let tail = self.tails.get(begin..index(row.tail)).unwrap_or_default();
                WorkloadRef { namespace, stem, tail }
            }),
            node: at(&self.nodes, row.node),
            zone: at(&self.zones, row.zone),
        })
    }

    /// How many endpoints it has.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The addresses of the members that name no pod.
    pub(super) fn unnamed(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.members().filter(|member| member.pod.is_none()).map(|member| member.address)
    }

    /// The sets of pods that it names some of: pods whose tails are left out.
    pub(super) fn sets(&self) -> impl Iterator<Item = WorkloadRef<'_>> {
        let sets = self.sets.iter();
        sets.map(|(namespace, stem)| WorkloadRef { namespace, stem, tail: "" })
    }

    /// Whether a member is this pod.
    pub(super) fn names(&self, pod: WorkloadRef<'_>) -> bool {
        let of_set = |set: WorkloadRef<'_>| (set.namespace, set.stem) == (pod.namespace, pod.stem);
        self.sets().any(of_set) && self.members().any(|member| member.pod == Some(pod))
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

/// The place of what `is_it` finds among the latest entries of a table. An entry that stands twice costs
/// its own size and nothing else.
fn known<T>(table: &[T], is_it: impl Fn(&T) -> bool) -> Option<u16> {
    let start = table.len().saturating_sub(LOOK_BACK);
    let place = table.iter().skip(start).rposition(is_it)?;
    u16::try_from(start + place + 1).ok()
}

/// The place of a new entry. A table has no more of them than a slice has endpoints, which fits.
fn added<T>(table: &mut Vec<T>, entry: T) -> Option<u16> {
    table.push(entry);
    u16::try_from(table.len()).ok()
}

/// How many of the latest entries of a table are looked at before a new one is made.
const LOOK_BACK: usize = 32;

impl Conditions {
    /// In six bits: two for each, of which 0 is unknown.
    fn pack(self) -> u8 {
        let two = |known: Option<bool>| known.map_or(0, |yes| 1 + u8::from(yes));
        two(self.ready) | two(self.serving) << 2 | two(self.terminating) << 4
    }

    fn unpack(bits: u8) -> Self {
        let two = |shift: u8| match bits >> shift & 3 {
            0 => None,
            known => Some(known == 2),
        };
        Self { ready: two(0), serving: two(2), terminating: two(4) }
    }
}

impl Reads for Slice {
    type Form<'a> = SliceForm<'a>;
    type List = Vec<Kept<Self>>;

    /// Keeps nothing of a slice of names, without a Service, or imported.
    fn keep(form: SliceForm<'_>, scope: &Scope) -> Kept<Self> {
        let SliceForm { metadata, address_type, endpoints, ports: all_ports } = form;
        let key = scope.key(metadata.identity());
        let owner = metadata.labels.get(SERVICE_LABEL).filter(|owner| !owner.is_empty());
        let imported = metadata.labels.get(IMPORTED_LABEL).is_some();
        let Some(owner) = owner.filter(|_| !imported && *address_type != *"FQDN") else {
            return Kept { key, value: None, odd: None };
        };
        if endpoints.len() > ENDPOINTS_MAX {
            let odd = format!("it has {} endpoints, more than any slice may", endpoints.len());
            return Kept { key, value: None, odd: Some(odd.into()) };
        }
        let service = Key { namespace: Arc::clone(&key.namespace), name: scope.text(owner) };
        let mut odd: Option<Box<str>> = None;

        let mut ports = Vec::with_capacity(all_ports.len());
        for port in all_ports {
            // No number means every port, of which a proxy can make nothing.
            let Some(number) = port.port else { continue };
            match u16::try_from(number) {
                Ok(number) if number > 0 => ports.push((scope.text(&port.name), number)),
                _ => odd = Some(format!("{number} is no port").into()),
            }
        }

        let mut rows = Vec::with_capacity(endpoints.len());
        let (mut sets, mut tails) = (Vec::new(), Vec::with_capacity(8 * endpoints.len()));
        let (mut nodes, mut zones, mut ipv6) = (Vec::new(), Vec::new(), Vec::new());
        let mut names = scope.names();
        for endpoint in &endpoints {
            let Some(text) = &endpoint.addresses.0 else {
                odd = Some("an endpoint has no address".into());
                continue;
            };
            let (address, family) = match address(text) {
                Some(IpAddr::V4(address)) => (address.to_bits(), 0),
                Some(IpAddr::V6(address)) => {
                    ipv6.push(address);
                    // Below 2^16.
                    (u32::try_from(ipv6.len() - 1).unwrap_or_default(), IPV6)
                }
                None => {
                    odd = Some(format!("{text:?} is no address").into());
                    continue;
                }
            };
            let Target { kind, namespace, name } = &endpoint.target_ref;
            let mut set = None;
            if **kind == *b"Pod" && !name.is_empty() {
                let own = namespace.is_empty() || **namespace == *key.namespace.as_bytes();
                let namespace = if own { key.namespace.as_bytes() } else { &**namespace };
                // As [`WorkloadRef::split`] does, which is at a `-` or at the end.
                let at = memchr::memrchr(b'-', name).map_or(0, |dash| dash + 1);
                let at = if name.len() - at > usize::from(u8::MAX) { name.len() } else { at };
                let (before, tail) = name.split_at(at);
                tails.extend_from_slice(tail);
                let is_it = |(of, held): &Set| {
                    held.as_bytes() == before && of.as_str().as_bytes() == namespace
                };
                set = known(&sets, is_it);
                if set.is_none() {
                    let texts = (std::str::from_utf8(namespace), std::str::from_utf8(before));
                    let (Ok(namespace), Ok(before)) = texts else { return no_text(key) };
                    let namespace = Namespace::new(names.text(namespace));
                    set = added(&mut sets, (namespace, before.into()));
                }
            }
            // One value for each name: to find it again is to compare pointers.
            let node = given(&endpoint.node_name).and_then(|name| names.node(name));
            let node = node.and_then(|node| {
                let held = known(&nodes, |held| Arc::ptr_eq(held, &node));
                held.or_else(|| added(&mut nodes, node))
            });
            let zone = given(&endpoint.zone).and_then(|zone| {
                let is_it = |held: &Arc<Locality>| held.zone.as_bytes() == zone;
                known(&zones, is_it).or_else(|| added(&mut zones, names.zone(zone)?))
            });
            rows.push(Row {
                address,
                // An object is bounded far below 4 GiB.
                tail: u32::try_from(tails.len()).unwrap_or(u32::MAX),
                set: set.unwrap_or_default(),
                node: node.unwrap_or_default(),
                zone: zone.unwrap_or_default(),
                bits: endpoint.conditions.pack() | family,
            });
        }
        drop(names);
        let Ok(tails) = String::from_utf8(tails) else { return no_text(key) };
        let value = Self {
            service,
            ports: scope.ports(ports),
            rows: rows.into(),
            sets: scope.sets(sets),
            tails: tails.into(),
            nodes: nodes.into(),
            zones: zones.into(),
            ipv6: ipv6.into(),
        };
        Kept { key, value: Some(value), odd }
    }
}

fn no_text(key: Key) -> Kept<Slice> {
    Kept { key, value: None, odd: Some("the name of a pod is not UTF-8".into()) }
}

fn given<'a>(text: &'a Raw<'_>) -> Option<&'a [u8]> {
    Some(&**text).filter(|text| !text.is_empty())
}

/// Reads an address. Nearly all are of IPv4, in the one way the standard library reads them.
fn address(text: &[u8]) -> Option<IpAddr> {
    ipv4(text).map(IpAddr::from).or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

fn ipv4(text: &[u8]) -> Option<[u8; 4]> {
    let mut octets = [0; 4];
    let mut parts = text.split(|byte| *byte == b'.');
    for octet in &mut octets {
        let part = parts.next()?;
        let leads = part.len() > 1 && part.starts_with(b"0");
        if part.is_empty() || part.len() > 3 || leads {
            return None;
        }
        let mut number = 0_u16;
        for byte in part {
            number = 10 * number + u16::from(byte.wrapping_sub(b'0').min(100));
            if !byte.is_ascii_digit() {
                return None;
            }
        }
        *octet = u8::try_from(number).ok()?;
    }
    parts.next().is_none().then_some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_standard_library_does() {
        for text in [
            "10.0.0.1",
            "255.255.255.255",
            "256.0.0.1",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "0.0.0.0",
            "1.2.3.",
            "1..2.3",
            "",
            "a.b.c.d",
            "1.2.3.4 ",
            "1.2.3.999",
            "fd00::1",
            "::ffff:1.2.3.4",
            "fe80::1%eth0",
            "1:2.3.4.5",
            "9.9.9.1/",
            "1.2.3.0004",
        ] {
            assert_eq!(address(text.as_bytes()), text.parse().ok(), "{text:?}");
        }
        assert_eq!(address(b"\xff"), None);
    }

    #[test]
    fn conditions_say_whether_an_endpoint_may_take_traffic() {
        use Health::{Draining, Healthy, Terminating, Unhealthy};
        let (yes, no) = (Some(true), Some(false));
        // ready, serving, terminating; without and with persistent sessions.
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
