//! Detects addresses that do not identify a remote host, for example loopback and multicast
//! addresses. Strait and proxies must not connect to them.
//!
//! Addresses from other parties (kubeconfigs, clusters, DNS responses) are checked here. An IPv6
//! address may contain an IPv4 address, which a translator or tunnel extracts; in this case the
//! IPv4 address is checked. Pure, and independent of the source of the address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services of clouds with an IPv4 address outside of the link-local range: Alibaba Cloud,
/// Oracle Cloud (first generation), and the wire server of Azure.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];
/// Metadata services of clouds with an IPv6 address outside of the link-local range: AWS (instances,
/// and credentials of pods), Google Cloud, Oracle Cloud and Scaleway.
const METADATA: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The reason why an address does not identify a remote host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// The kind of the address.
    pub kind: ReservedAddress,
    /// The embedded IPv4 address and its encoding in the IPv6 address; `None` if the address itself
    /// is reserved.
    embedded: Option<(Ipv4Addr, EmbeddedIpv4)>,
}

/// A kind of address that does not identify a remote host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservedAddress {
    /// The host itself.
    Loopback,
    /// The local link, on which clouds have their metadata services.
    LinkLocal,
    /// A cloud's metadata service outside of the local link.
    Metadata,
    /// A multicast group.
    Multicast,
    /// The unspecified address, which a host treats as its own.
    Unspecified,
    /// All hosts on the local link.
    Broadcast,
}

/// The encoding of an IPv4 address in an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EmbeddedIpv4 {
    /// `::ffff:0:0/96`, and the deprecated `::/96` (RFC 4291, 2.5.5).
    Mapped,
    /// `64:ff9b::/96` (RFC 6052) and `64:ff9b:1::/48` (RFC 8215).
    Nat64,
    /// `2002::/16` (RFC 3056).
    SixToFour,
    /// `2001::/32` (RFC 4380).
    Teredo,
}

impl Special {
    /// Returns whether no host has the address, not even the local one.
    pub fn is_no_hosts(&self) -> bool {
        matches!(self.kind, ReservedAddress::Multicast | ReservedAddress::Unspecified)
    }
}

impl fmt::Display for Special {
    /// Writes the kind with its article, for example `a loopback address`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ReservedAddress::Loopback => "a loopback address",
            ReservedAddress::LinkLocal => "a link-local address",
            ReservedAddress::Metadata => "a metadata address",
            ReservedAddress::Multicast => "a multicast address",
            ReservedAddress::Unspecified => "the unspecified address",
            ReservedAddress::Broadcast => "the broadcast address",
        })?;
        let form = match self.embedded {
            None | Some((_, EmbeddedIpv4::Mapped)) => return Ok(()),
            Some((_, EmbeddedIpv4::Nat64)) => "NAT64",
            Some((_, EmbeddedIpv4::SixToFour)) => "6to4",
            Some((_, EmbeddedIpv4::Teredo)) => "Teredo",
        };
        self.embedded.map_or(Ok(()), |(address, _)| write!(f, " ({address} by {form})"))
    }
}

/// Returns the kind of an address if it does not identify a remote host.
pub fn special(address: IpAddr) -> Option<Special> {
    let plain = |kind| Special { kind, embedded: None };
    match address {
        IpAddr::V4(v4) => of_v4(v4).map(plain),
        IpAddr::V6(v6) => of_v6(v6).map(plain).or_else(|| {
            embedded(v6).find_map(|(v4, form)| {
                of_v4(v4).map(|kind| Special { kind, embedded: Some((v4, form)) })
            })
        }),
    }
}

fn of_v4(address: Ipv4Addr) -> Option<ReservedAddress> {
    if address.is_loopback() {
        Some(ReservedAddress::Loopback)
    } else if address.is_link_local() {
        Some(ReservedAddress::LinkLocal)
    } else if address.is_multicast() {
        Some(ReservedAddress::Multicast)
    } else if address.octets()[0] == 0 {
        // The entire range 0.0.0.0/8 means "this host on this network" (RFC 1122, 3.2.1.3).
        Some(ReservedAddress::Unspecified)
    } else if METADATA_V4.contains(&address) {
        Some(ReservedAddress::Metadata)
    } else {
        address.is_broadcast().then_some(ReservedAddress::Broadcast)
    }
}

fn of_v6(address: Ipv6Addr) -> Option<ReservedAddress> {
    if address.is_loopback() {
        Some(ReservedAddress::Loopback)
    } else if address.is_unspecified() {
        Some(ReservedAddress::Unspecified)
    } else if address.is_multicast() {
        Some(ReservedAddress::Multicast)
    } else if address.is_unicast_link_local() {
        Some(ReservedAddress::LinkLocal)
    } else {
        METADATA.contains(&address).then_some(ReservedAddress::Metadata)
    }
}

/// Returns the IPv4 addresses that an IPv6 address may contain. Most addresses contain none.
fn embedded(address: Ipv6Addr) -> impl Iterator<Item = (Ipv4Addr, EmbeddedIpv4)> {
    let octets = address.octets();
    let bits = address.to_bits();
    // The four octets starting at this one.
    let at = move |from: usize| {
        let mut v4 = [0; 4];
        v4.iter_mut().zip(octets.iter().skip(from)).for_each(|(to, octet)| *to = *octet);
        Ipv4Addr::from(v4)
    };
    let mut found = [None; 4];
    match address.segments() {
        // `::` and `::1` are not treated as embedded addresses.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] if bits > 1 => {
            found[0] = Some((at(12), EmbeddedIpv4::Mapped));
        }
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => found[0] = Some((at(12), EmbeddedIpv4::Nat64)),
        [0x64, 0xff9b, 1, ..] => {
            // A translator's prefix may be any within this one. Its length determines the position
            // of the IPv4 address; octet 8 is skipped (RFC 6052, 2.2). Unused octets are zero.
            let [.., o6, o7, _, o9, o10, o11, _, _, _, _] = octets;
            let places = [
                at(12),
                Ipv4Addr::new(o6, o7, o9, o10),
                Ipv4Addr::new(o7, o9, o10, o11),
                Ipv4Addr::new(o9, o10, o11, octets[12]),
            ];
            let is_empty = places.iter().all(|place| place.octets()[0] == 0);
            for (to, place) in found.iter_mut().zip(places) {
                *to = (is_empty || place.octets()[0] != 0).then_some((place, EmbeddedIpv4::Nat64));
            }
        }
        [0x2002, ..] => found[0] = Some((at(2), EmbeddedIpv4::SixToFour)),
        [0x2001, 0, ..] => {
            // The server, and the client with inverted bits.
            found[0] = Some((at(4), EmbeddedIpv4::Teredo));
            found[1] = Some((Ipv4Addr::from_bits(!at(12).to_bits()), EmbeddedIpv4::Teredo));
        }
        _ => {}
    }
    found.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Option<ReservedAddress> {
        special(text.parse().expect(text)).map(|special| special.kind)
    }

    #[test]
    fn local_and_link_local_addresses_are_detected() {
        for (text, kind) in [
            ("127.0.0.1", ReservedAddress::Loopback),
            ("127.9.9.9", ReservedAddress::Loopback),
            ("::1", ReservedAddress::Loopback),
            ("0.0.0.0", ReservedAddress::Unspecified),
            ("0.1.2.3", ReservedAddress::Unspecified),
            ("::", ReservedAddress::Unspecified),
            ("169.254.169.254", ReservedAddress::LinkLocal),
            ("fe80::1", ReservedAddress::LinkLocal),
            ("febf::1", ReservedAddress::LinkLocal),
            ("fd00:ec2::254", ReservedAddress::Metadata),
            ("fd00:ec2::23", ReservedAddress::Metadata),
            ("fd00:c1::a9fe:a9fe", ReservedAddress::Metadata),
            ("fd20:ce::254", ReservedAddress::Metadata),
            ("fd00:42::42", ReservedAddress::Metadata),
            ("100.100.100.200", ReservedAddress::Metadata),
            ("192.0.0.192", ReservedAddress::Metadata),
            ("168.63.129.16", ReservedAddress::Metadata),
            ("224.0.0.1", ReservedAddress::Multicast),
            ("ff02::1", ReservedAddress::Multicast),
            ("255.255.255.255", ReservedAddress::Broadcast),
        ] {
            assert_eq!(judged(text), Some(kind), "{text}");
        }
        for good in ["10.0.0.1", "192.168.1.1", "203.0.113.9", "fd00::1", "2001:db8::1"] {
            assert_eq!(judged(good), None, "{good}");
        }
    }

    #[test]
    fn embedded_address_is_judged_by_its_destination() {
        for (bad, good, kind) in [
            ("::ffff:127.0.0.1", "::ffff:10.0.0.1", ReservedAddress::Loopback),
            ("::127.0.0.1", "::10.0.0.1", ReservedAddress::Loopback),
            ("64:ff9b::169.254.169.254", "64:ff9b::10.0.0.1", ReservedAddress::LinkLocal),
            ("64:ff9b::100.100.100.200", "64:ff9b::100.100.100.201", ReservedAddress::Metadata),
            ("64:ff9b::7f00:1", "64:ff9b::", ReservedAddress::Loopback),
            ("64:ff9b:1::127.0.0.1", "64:ff9b:1::10.0.0.1", ReservedAddress::Loopback),
            // Prefixes of 48, 56 and 64 bits.
            ("64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a00:0:100::", ReservedAddress::LinkLocal),
            ("64:ff9b:1:7f:0:100::", "64:ff9b:1:a:0:100::", ReservedAddress::Loopback),
            ("64:ff9b:1:0:7f:0:100::", "64:ff9b:1:0:a:0:100::", ReservedAddress::Loopback),
            ("2002:7f00:1::1", "2002:a00:1::1", ReservedAddress::Loopback),
            ("2002:a9fe:a9fe::", "2002:cb00:7109::1", ReservedAddress::LinkLocal),
            ("2002:e000:1::", "2002:c000:201::", ReservedAddress::Multicast),
            // 127.0.0.1 with inverted bits, and as the server.
            (
                "2001:0:cb00:7109::80ff:fffe",
                "2001:0:cb00:7109::f5ff:fffe",
                ReservedAddress::Loopback,
            ),
            ("2001:0:7f00:1::f5ff:fffe", "2001:1:7f00:1::80ff:fffe", ReservedAddress::Loopback),
        ] {
            assert_eq!(judged(bad), Some(kind), "{bad}");
            // The list includes the translator's own prefix, which contains the unspecified address
            // 0.0.0.0.
            let expected = (good == "64:ff9b::").then_some(ReservedAddress::Unspecified);
            assert_eq!(judged(good), expected, "{good}");
        }
        assert_eq!(judged("64:ff9b:1::"), Some(ReservedAddress::Unspecified));
    }

    #[test]
    fn embedded_address_is_shown() {
        let shown = |text: &str| special(text.parse().expect(text)).expect(text).to_string();
        assert_eq!(shown("169.254.169.254"), "a link-local address");
        assert_eq!(shown("64:ff9b::a9fe:a9fe"), "a link-local address (169.254.169.254 by NAT64)");
        assert_eq!(shown("2002:7f00:1::"), "a loopback address (127.0.0.1 by 6to4)");
        assert_eq!(shown("::"), "the unspecified address");
    }
}
