//! The rows of a slice, the tables that they share, and what an endpoint is before it is one.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::table::{SharedTable, same, slot};
use strait_kube_client::{
    BorrowedText, FieldValue, MalformedMessage, Meta, ProtobufMessage, Raw, list, null_as_default,
};

/// What is decoded of an EndpointSlice.
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

/// The endpoints of a slice, in its order.
#[derive(Debug, Default, PartialEq)]
pub(in crate::registry::kube) struct Rows<'a> {
    pub(in crate::registry::kube) rows: Vec<SliceRow>,
    /// The sets of the pods that they name: namespace, empty for the slice's own, and name up to the
    /// last `-`.
    pub(in crate::registry::kube) sets: SharedTable<(Raw<'a>, Raw<'a>)>,
    /// What is left of those names, one after the other.
    pub(in crate::registry::kube) tails: Vec<u8>,
    pub(in crate::registry::kube) nodes: SharedTable<Raw<'a>>,
    pub(in crate::registry::kube) zones: SharedTable<Raw<'a>>,
    pub(in crate::registry::kube) ipv6: Vec<Ipv6Addr>,
    /// How many endpoints there are, those included that have no row.
    pub(in crate::registry::kube) count: usize,
    /// What of them makes no sense.
    pub(in crate::registry::kube) invalid: Option<Box<str>>,
}

/// What an endpoint has to itself. Places in tables count from 1; 0 says that there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::registry::kube) struct SliceRow {
    /// The IPv4 address, or where the IPv6 address stands (from 0).
    pub(in crate::registry::kube) address: u32,
    /// Where its tail ends; it begins where that of the row before ends.
    pub(in crate::registry::kube) tail: u32,
    pub(in crate::registry::kube) set: u16,
    pub(in crate::registry::kube) node: u16,
    pub(in crate::registry::kube) zone: u16,
    /// Whether it is IPv6, and [`Conditions::pack`].
    pub(in crate::registry::kube) bits: u8,
}

/// In [`SliceRow::bits`]: the address is of IPv6.
pub(in crate::registry::kube) const IPV6: u8 = 1 << 7;
/// The most endpoints that are read of a slice; API servers take no more than 1,000 for one.
pub(in crate::registry::kube) const ENDPOINTS_MAX: usize = 60_000;

/// What the API server says of an endpoint; each may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(in crate::registry::kube) struct Conditions {
    pub(in crate::registry::kube) ready: Option<bool>,
    pub(in crate::registry::kube) serving: Option<bool>,
    pub(in crate::registry::kube) terminating: Option<bool>,
}

impl Conditions {
    /// In six bits: two for each, of which 0 is unknown.
    fn pack(self) -> u8 {
        let two = |known: Option<bool>| known.map_or(0, |yes| 1 + u8::from(yes));
        two(self.ready) | two(self.serving) << 2 | two(self.terminating) << 4
    }

    /// What [`SliceRow::bits`] say.
    pub(in crate::registry::kube) fn unpack(bits: u8) -> Self {
        let two = |shift: u8| match bits >> shift & 3 {
            0 => None,
            known => Some(known == 2),
        };
        Self { ready: two(0), serving: two(2), terminating: two(4) }
    }
}

/// An endpoint in the bytes. Text is compared and looked up, hardly ever read.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, bound(deserialize = "T: Deserialize<'de> + Default"))]
pub(super) struct EndpointForm<T> {
    /// The first; further ones are the same endpoint once more (EndpointSlice API).
    #[serde(rename = "addresses", deserialize_with = "first")]
    pub(super) address: Option<T>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) conditions: Conditions,
    #[serde(rename = "targetRef", deserialize_with = "null_as_default")]
    pub(super) target: TargetRef<T>,
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
    /// Adds one.
    #[inline(always)]
    pub(super) fn push<T: AsRef<[u8]> + Into<Raw<'a>>>(&mut self, endpoint: EndpointForm<T>) {
        self.count += 1;
        if self.count > ENDPOINTS_MAX {
            return;
        }
        let EndpointForm { address: text, conditions, target, node, zone } = endpoint;
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
                self.invalid = Some(format!("{text:?} is no address").into());
                return;
            }
        };
        let set = self.set(target);
        let node = self.nodes.place_of_name(node);
        let zone = self.zones.place_of_name(zone);
        let bits = conditions.pack() | family;
        let tail = place(self.tails.len());
        self.rows.push(SliceRow { address, tail, set, node, zone, bits });
    }

    /// Adds one that is not written as Go does.
    #[cold]
    pub(super) fn push_in_any_order(&mut self, bytes: &'a [u8]) -> Result<(), MalformedMessage> {
        let mut endpoint = EndpointForm::default();
        endpoint.merge(bytes)?;
        self.push(endpoint);
        Ok(())
    }

    /// The place of the set of the pod that is named; its tail is added.
    #[inline(always)]
    fn set<T: AsRef<[u8]> + Into<Raw<'a>>>(&mut self, target: TargetRef<T>) -> u16 {
        let name = target.name.as_ref();
        if *target.kind.as_ref() != *b"Pod" || name.is_empty() {
            return 0;
        }
        let stem = add_tail(&mut self.tails, name);
        let namespace = target.namespace.as_ref();
        // Most endpoints are of the set that the one before is of.
        if let Some(SliceRow { set, .. }) = self.rows.last()
            && let Some((of, held)) = self.sets.get(*set)
            && same(held, stem)
            && same(of, namespace)
        {
            return *set;
        }
        let (slot, length) = (slot(stem), stem.len());
        let found = self.sets.find(slot, |(of, held)| **held == *stem && **of == *namespace);
        found.unwrap_or_else(|| {
            self.sets.add(slot, (target.namespace.into(), target.name.into().cut(length)))
        })
    }
}

/// Adds the tail of a pod's name to others; what comes before it.
#[inline(always)]
pub(super) fn add_tail<'n>(tails: &mut Vec<u8>, name: &'n [u8]) -> &'n [u8] {
    // Nearly all have a tail of five letters, which Kubernetes gave them.
    if let Some((stem @ [.., b'-'], tail)) = name.split_last_chunk::<5>()
        && tail.iter().all(|byte| *byte != b'-')
    {
        tails.extend_from_slice(tail);
        return stem;
    }
    // As `WorkloadRef::split` does, which is at a `-` or at the end.
    let at = name.iter().rposition(|byte| *byte == b'-').map_or(0, |dash| dash + 1);
    let at = if name.len() - at > usize::from(u8::MAX) { name.len() } else { at };
    let (stem, tail) = name.split_at(at);
    tails.extend_from_slice(tail);
    stem
}

/// A place in a text or a table; an object is bounded far below 4 GiB.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Reads an address. Nearly all are of IPv4, in the one way the standard library reads them.
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

/// A number up to 255 without leading zeros, digit by digit.
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

// Field numbers: k8s.io/api/discovery/v1/generated.proto; of a target, core/v1.

impl<'a> ProtobufMessage<'a> for EndpointForm<&'a [u8]> {
    #[inline]
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 if self.address.is_none() => self.address = Some(value.bytes()?),
            2 => value.message(&mut self.conditions)?,
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

/// The first of a list; none where there is no list, or nothing in it.
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
    fn names_of_pods_are_cut_as_elsewhere() {
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
