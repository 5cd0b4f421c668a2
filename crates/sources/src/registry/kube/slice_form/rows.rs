//! The rows of a slice, the tables that they share, and the decoded form of an endpoint.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::table::{SharedTable, same, slot};
use strait_kube_client::{
    BorrowedText, FieldValue, MalformedMessage, Meta, ProtobufMessage, Raw, list, null_as_default,
};

/// The decoded part of an EndpointSlice.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::registry::kube) struct SliceForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    pub(in crate::registry::kube) metadata: Meta<'a>,
    #[serde(borrow)]
    pub(in crate::registry::kube) address_type: BorrowedText<'a>,
    #[serde(borrow)]
    pub(in crate::registry::kube) endpoints: Rows<'a>,
    #[serde(borrow, deserialize_with = "list")]
    pub(in crate::registry::kube) ports: Vec<SlicePort<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(in crate::registry::kube) struct SlicePort<'a> {
    #[serde(borrow)]
    pub(in crate::registry::kube) name: BorrowedText<'a>,
    pub(in crate::registry::kube) port: Option<i64>,
}

/// The endpoints of a slice, in order.
#[derive(Debug, Default, PartialEq)]
pub(in crate::registry::kube) struct Rows<'a> {
    pub(in crate::registry::kube) rows: Vec<SliceRow>,
    /// The sets of the pods that they name: namespace (empty for that of the slice), and name up to
    /// the last `-`.
    pub(in crate::registry::kube) sets: SharedTable<(Raw<'a>, Raw<'a>)>,
    /// The remaining parts of those names, concatenated.
    pub(in crate::registry::kube) tails: Vec<u8>,
    pub(in crate::registry::kube) nodes: SharedTable<Raw<'a>>,
    pub(in crate::registry::kube) zones: SharedTable<Raw<'a>>,
    pub(in crate::registry::kube) ipv6: Vec<Ipv6Addr>,
    /// The host names of endpoints that name no pod, by the index of the row.
    pub(in crate::registry::kube) hostnames: Vec<(u32, Raw<'a>)>,
    /// The number of endpoints, including those without a row.
    pub(in crate::registry::kube) count: usize,
    /// Why some of them are invalid.
    pub(in crate::registry::kube) invalid: Option<Box<str>>,
}

/// The data of one endpoint. Positions in tables count from 1; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::registry::kube) struct SliceRow {
    /// The IPv4 address, or the position of the IPv6 address (from 0).
    pub(in crate::registry::kube) address: u32,
    /// The end of the tail, which begins at the end of the previous row's tail.
    pub(in crate::registry::kube) tail: u32,
    pub(in crate::registry::kube) set: u16,
    pub(in crate::registry::kube) node: u16,
    pub(in crate::registry::kube) zone: u16,
    /// Whether the address is IPv6, and [`Conditions::pack`].
    pub(in crate::registry::kube) bits: u8,
}

/// The flag of an IPv6 address in [`SliceRow::bits`].
pub(in crate::registry::kube) const IPV6: u8 = 1 << 7;
/// Maximum number of endpoints that are read from a slice. API servers accept at most 1,000.
pub(in crate::registry::kube) const ENDPOINTS_MAX: usize = 60_000;

/// The conditions of an endpoint; each may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(in crate::registry::kube) struct Conditions {
    pub(in crate::registry::kube) ready: Option<bool>,
    pub(in crate::registry::kube) serving: Option<bool>,
    pub(in crate::registry::kube) terminating: Option<bool>,
}

impl Conditions {
    /// Encodes the conditions in six bits: two for each, where 0 is unknown.
    fn pack(self) -> u8 {
        let two_bits = |value: Option<bool>| value.map_or(0, |yes| 1 + u8::from(yes));
        two_bits(self.ready) | two_bits(self.serving) << 2 | two_bits(self.terminating) << 4
    }

    /// Decodes the conditions in [`SliceRow::bits`].
    pub(in crate::registry::kube) fn unpack(bits: u8) -> Self {
        let two = |shift: u8| match bits >> shift & 3 {
            0 => None,
            value => Some(value == 2),
        };
        Self { ready: two(0), serving: two(2), terminating: two(4) }
    }
}

/// An endpoint in the encoded bytes. Texts are compared and looked up, and rarely decoded.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, bound(deserialize = "T: Deserialize<'de> + Default"))]
pub(super) struct EndpointForm<T> {
    /// The first address; further ones denote the same endpoint (EndpointSlice API).
    #[serde(rename = "addresses", deserialize_with = "first")]
    pub(super) address: Option<T>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) conditions: Conditions,
    #[serde(rename = "targetRef", deserialize_with = "null_as_default")]
    pub(super) target: TargetRef<T>,
    pub(super) hostname: T,
    #[serde(rename = "nodeName")]
    pub(super) node: T,
    pub(super) zone: T,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, bound(deserialize = "T: Deserialize<'de> + Default"))]
pub(super) struct TargetRef<T> {
    pub(super) kind: T,
    pub(super) namespace: T,
    pub(super) name: T,
}

impl<'a> Rows<'a> {
    /// Adds an endpoint.
    #[inline(always)]
    pub(super) fn push<T: AsRef<[u8]> + Into<Raw<'a>>>(&mut self, endpoint: EndpointForm<T>) {
        self.count += 1;
        if self.count > ENDPOINTS_MAX {
            return;
        }
        let EndpointForm { address: text, conditions, target, hostname, node, zone } = endpoint;
        let Some(text) = text else {
            self.invalid = Some("an endpoint has no address".into());
            return;
        };
        let (address, family) = match address(text.as_ref()) {
            Some(IpAddr::V4(address)) => (address.to_bits(), 0),
            Some(IpAddr::V6(address)) => {
                self.ipv6.push(address);
                (place(self.ipv6.len() - 1), IPV6)
            }
            None => {
                let text = String::from_utf8_lossy(text.as_ref());
                self.invalid = Some(format!("{text:?} is not an IP address").into());
                return;
            }
        };
        let set = self.set(target);
        if set == 0 && !hostname.as_ref().is_empty() {
            self.hostnames.push((place(self.rows.len()), hostname.into()));
        }
        let node = self.nodes.intern(node);
        let zone = self.zones.intern(zone);
        let bits = conditions.pack() | family;
        let tail = place(self.tails.len());
        self.rows.push(SliceRow { address, tail, set, node, zone, bits });
    }

    /// Adds an endpoint that is not encoded as Go does.
    #[cold]
    pub(super) fn push_in_any_order(&mut self, bytes: &'a [u8]) -> Result<(), MalformedMessage> {
        let mut endpoint = EndpointForm::default();
        endpoint.merge(bytes)?;
        self.push(endpoint);
        Ok(())
    }

    /// Returns the position of the set of a pod, and adds the pod's tail.
    #[inline(always)]
    fn set<T: AsRef<[u8]> + Into<Raw<'a>>>(&mut self, target: TargetRef<T>) -> u16 {
        let name = target.name.as_ref();
        if *target.kind.as_ref() != *b"Pod" || name.is_empty() {
            return 0;
        }
        let stem = add_tail(&mut self.tails, name);
        let namespace = target.namespace.as_ref();
        // Most endpoints belong to the same set as the previous one.
        if let Some(SliceRow { set, .. }) = self.rows.last()
            && let Some((set_namespace, set_stem)) = self.sets.get(*set)
            && same(set_stem, stem)
            && same(set_namespace, namespace)
        {
            return *set;
        }
        let (slot, length) = (slot(stem), stem.len());
        let found = self.sets.find(slot, |(set_namespace, set_stem)| {
            **set_stem == *stem && **set_namespace == *namespace
        });
        found.unwrap_or_else(|| {
            self.sets.add(slot, (target.namespace.into(), target.name.into().cut(length)))
        })
    }
}

/// Adds the tail of a pod's name. Returns the part before it.
#[inline(always)]
pub(super) fn add_tail<'n>(tails: &mut Vec<u8>, name: &'n [u8]) -> &'n [u8] {
    // Nearly all names end with five letters that Kubernetes generated.
    if let Some((stem @ [.., b'-'], tail)) = name.split_last_chunk::<5>()
        && tail.iter().all(|byte| *byte != b'-')
    {
        tails.extend_from_slice(tail);
        return stem;
    }
    // Splits like `WorkloadRef::split`: at a `-` or at the end.
    let at = name.iter().rposition(|byte| *byte == b'-').map_or(0, |dash| dash + 1);
    let at = if name.len() - at > usize::from(u8::MAX) { name.len() } else { at };
    let (stem, tail) = name.split_at(at);
    tails.extend_from_slice(tail);
    stem
}

/// A position in a text or a table; objects are limited far below 4 GiB.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Parses an address. Nearly all are IPv4, in the form that the standard library accepts.
#[inline(always)]
fn address(text: &[u8]) -> Option<IpAddr> {
    ipv4(text).map(IpAddr::from).or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

#[inline(always)]
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let (mut bits, mut rest) = (0, text);
    for _ in 0..3 {
        let (octet, after) = match rest {
            [a, b'.', after @ ..] => (number(&[*a])?, after),
            [a, b, b'.', after @ ..] => (number(&[*a, *b])?, after),
            [a, b, c, b'.', after @ ..] => (number(&[*a, *b, *c])?, after),
            _ => return None,
        };
        (bits, rest) = (bits << 8 | octet, after);
    }
    let octet = match rest {
        [a] => number(&[*a])?,
        [a, b] => number(&[*a, *b])?,
        [a, b, c] => number(&[*a, *b, *c])?,
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(bits << 8 | octet))
}

/// Parses a number up to 255 without leading zeros, digit by digit.
#[inline(always)]
fn number<const DIGITS: usize>(text: &[u8; DIGITS]) -> Option<u32> {
    let (mut number, mut digits) = (0, true);
    for byte in text {
        let digit = u32::from(byte.wrapping_sub(b'0'));
        (number, digits) = (number * 10 + digit, digits & (digit < 10));
    }
    let least = match DIGITS {
        1 => 0,
        2 => 10,
        _ => 100,
    };
    (digits && (least..256).contains(&number)).then_some(number)
}

// Field numbers: k8s.io/api/discovery/v1/generated.proto; of a target, core/v1.

impl<'a> ProtobufMessage<'a> for EndpointForm<&'a [u8]> {
    #[inline]
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 if self.address.is_none() => self.address = Some(value.bytes()?),
            2 => value.message(&mut self.conditions)?,
            3 => self.hostname = value.bytes()?,
            4 => value.message(&mut self.target)?,
            6 => self.node = value.bytes()?,
            7 => self.zone = value.bytes()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for Conditions {
    #[inline]
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.ready = Some(value.flag()?),
            2 => self.serving = Some(value.flag()?),
            3 => self.terminating = Some(value.flag()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for TargetRef<&'a [u8]> {
    #[inline]
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.kind = value.bytes()?,
            2 => self.namespace = value.bytes()?,
            3 => self.name = value.bytes()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for SlicePort<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.name = value.text()?,
            3 => self.port = Some(value.number()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Rows<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Rows<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of endpoints")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Rows::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut rows = Rows::default();
                while let Some(endpoint) = list.next_element::<EndpointForm<Raw<'de>>>()? {
                    rows.push(endpoint);
                }
                Ok(rows)
            }
        }
        deserializer.deserialize_any(Each)
    }
}

/// Decodes the first element of a list; `None` if there is no list or it is empty.
fn first<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct First<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for First<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let first = list.next_element()?;
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(first)
        }
    }
    deserializer.deserialize_any(First(PhantomData))
}

impl Rows<'_> {
    pub(super) fn reserve(&mut self, endpoints: usize) {
        self.rows.reserve(endpoints);
        self.tails.reserve(6 * endpoints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::WorkloadRef;

    #[test]
    fn pod_names_are_split_like_elsewhere() {
        let long = format!("web-{}", "x".repeat(256));
        for name in [
            "web-7d8-abcde",
            "web-7d8-ab-de",
            "web-7d8-abcd-",
            "web-7d8abcdef",
            "web-0",
            "-abcde",
            "abcde",
            &long[..259],
            &long,
        ] {
            let (stem, tail) = WorkloadRef::split(name);
            let mut tails = b"x2x4z".to_vec();
            assert_eq!(add_tail(&mut tails, name.as_bytes()), stem.as_bytes(), "{name}");
            assert_eq!(tails, format!("x2x4z{tail}").as_bytes(), "{name}");
        }
    }

    #[test]
    fn addresses_are_read_as_the_standard_library_does() {
        for text in [
            "10.0.0.1",
            "255.255.255.255",
            "256.0.0.1",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "00.2.3.4",
            "0.0.0.0",
            "1.2.3.",
            "1..2.3",
            ".1.2.3",
            "",
            "a.b.c.d",
            "1.2.3.4 ",
            "1.2.3.999",
            "1.2.3.1000",
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
}
