//! Addresses for hosts that name none, so that what isn't HTTP can be told apart by address.
//!
//! Out of 240.240.0.0/16, which nobody uses: each host at the place that its namespace and name hash to,
//! or at the next free one. Older hosts choose first, so a host keeps its address over restarts, in every
//! replica, and whatever comes later.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use crate::model::{Resolution, Service};

/// The first address of the range is given to nobody, nor is the last.
const BASE: u32 = u32::from_be_bytes([240, 240, 0, 0]);
const PLACES: u32 = 0xfffe;

/// Gives each service an address that has none and can use one: a wildcard stands for many hosts, and
/// where the client chooses the address, ours would lead nowhere.
pub(super) fn give<'a>(services: impl Iterator<Item = &'a mut Service>) {
    let mut taken = BTreeSet::new();
    let mut without = Vec::new();
    for service in services {
        taken.extend(service.vips.iter().copied());
        let usable = service.resolution != Resolution::Passthrough
            && !service.hostname.as_str().starts_with('*');
        if service.vips.is_empty() && service.ranges.is_empty() && usable {
            without.push(service);
        }
    }
    without.sort_by(|a, b| {
        (a.created, &a.namespace, &a.hostname).cmp(&(b.created, &b.namespace, &b.hostname))
    });
    for service in without {
        let key = format!("{}/{}", service.namespace, service.hostname);
        let first = hash(key.as_bytes());
        let mut places = (0..PLACES).map(|step| (first % PLACES + step) % PLACES);
        let address = places.find_map(|place| {
            let address = IpAddr::V4(Ipv4Addr::from_bits(BASE + 1 + place));
            taken.insert(address).then_some(address)
        });
        service.vips.extend(address);
    }
}

/// FNV-1a, 32 bits: the same in every build, which the standard library's hash isn't.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
