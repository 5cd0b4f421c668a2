//! Addresses for hosts that name none, so that what isn't HTTP can be told apart by address.
//!
//! One of each family, out of 240.240.0.0/16 and 2001:2::/48, which nobody uses: each host at the place that
//! its namespace and name hash to, or at the next free one. Older hosts choose first, so a host keeps its
//! addresses over restarts, in every replica, and whatever comes later. Where a peer has written such addresses
//! into the status of an entry, its host has those: clients may have resolved it to them already.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::{Hostname, Namespace, Resolution, Service};

/// The first address of the range is given to nobody, nor is the last.
const BASE: u32 = u32::from_be_bytes([240, 240, 0, 0]);
const PLACES: u32 = 0xfffe;
/// IPv6 addresses end in the IPv4 address of the same place.
const BASE_IPV6: u128 = u128::from_be_bytes([0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

/// A service of an entry.
pub(super) struct Claim<'a> {
    pub(super) service: &'a mut Service,
    /// Whether the entry lets it have addresses.
    pub(super) wanted: bool,
    /// What the status of the entry says are its addresses.
    pub(super) said: Vec<IpAddr>,
}

/// Gives each service addresses that has none, wants some and can use them: a wildcard stands for many
/// hosts, and where the client chooses the address, ours would lead nowhere. Whoever wrote addresses into the
/// status told clients of them, so those hold, unless an entry names them or an older host has them.
pub(super) fn give<'a>(claims: impl Iterator<Item = Claim<'a>>) {
    let mut taken = BTreeSet::new();
    let mut without = Vec::new();
    for claim in claims {
        let Claim { service, wanted, .. } = &claim;
        taken.extend(service.vips.iter().copied());
        let usable = *wanted
            && service.resolution != Resolution::Passthrough
            && !service.hostname.as_str().starts_with('*');
        if service.vips.is_empty() && service.ranges.is_empty() && usable {
            without.push(claim);
        }
    }
    without.sort_by(|a, b| age(a.service).cmp(&age(b.service)));
    for Claim { service, said, .. } in &mut without {
        if said.iter().all(|address| is_given(address) && !taken.contains(address)) {
            taken.extend(said.iter().copied());
            service.vips.append(said);
        }
    }
    for Claim { service, .. } in without {
        if !service.vips.is_empty() {
            continue;
        }
        let key = format!("{}/{}", service.namespace, service.hostname);
        let first = hash(key.as_bytes());
        let mut places = (0..PLACES).map(|step| (first % PLACES + step) % PLACES);
        let addresses = places.find_map(|place| {
            let number = BASE + 1 + place;
            let ipv4 = IpAddr::V4(Ipv4Addr::from_bits(number));
            let ipv6 = IpAddr::V6(Ipv6Addr::from_bits(BASE_IPV6 | u128::from(number)));
            let free = !taken.contains(&ipv4) && !taken.contains(&ipv6);
            free.then_some([ipv4, ipv6])
        });
        taken.extend(addresses.into_iter().flatten());
        service.vips.extend(addresses.into_iter().flatten());
    }
}

/// The older first, those of one age by name.
fn age(service: &Service) -> (i64, &Namespace, &Hostname) {
    (service.created, &service.namespace, &service.hostname)
}

/// Whether an address is of the ranges out of which addresses are given. A proxy's client knows it only if
/// something resolves the host to it.
pub fn is_given(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(ipv4) => ipv4.to_bits() & !0xffff == BASE,
        IpAddr::V6(ipv6) => ipv6.to_bits() & !u128::from(u32::MAX) == BASE_IPV6,
    }
}

/// FNV-1a, 32 bits: the same in every build, which the standard library's hash isn't.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
