//! Automatic addresses for hosts without an address, so that TCP connections to them can be
//! distinguished by address.
//!
//! Each host receives one address per family, from 240.240.0.0/16 and 2001:2::/48, which are unused
//! ranges. A hash of the namespace and the name selects the address, or the next free one. Older
//! hosts choose first, so that a host keeps its addresses after restarts, in all replicas, and when
//! hosts are added. If another control plane has written such addresses into the status of an
//! entry, they are used, because clients may have resolved the host to them already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use strait_model::{Hostname, Namespace, Resolution, Service};

/// The first and the last address of the range are never allocated.
const BASE: u32 = u32::from_be_bytes([240, 240, 0, 0]);
const PLACES: u32 = 0xfffe;
/// IPv6 addresses end with the IPv4 address of the same host.
const BASE_IPV6: u128 = u128::from_be_bytes([0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

/// The addresses that a definition of a host has or needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressRequest {
    /// Sort key: older definitions are served first, definitions of the same age by name.
    pub(super) age: Age,
    /// Addresses in the specs of the entries.
    pub(super) named: Vec<IpAddr>,
    /// Whether the definition has no addresses, requests automatic ones and can use them.
    pub(super) is_open: bool,
    /// Addresses in the status of the entry.
    pub(super) status_addresses: Vec<IpAddr>,
}

/// Creation time in seconds since the Unix epoch, namespace and hostname of a definition.
pub(super) type Age = (i64, Namespace, Hostname);

impl AddressRequest {
    /// Returns the request of a service. A wildcard represents many hosts, and a pass-through
    /// service is reached at the address that the client chose, so that neither can use an
    /// automatic address.
    pub(super) fn new(service: &Service, wanted: bool, status_addresses: Vec<IpAddr>) -> Self {
        let usable = wanted
            && service.resolution != Resolution::Passthrough
            && !service.hostname.as_str().starts_with('*');
        let (namespace, hostname) = (service.namespace.clone(), service.hostname.clone());
        Self {
            age: (service.created, namespace, hostname),
            named: service.vips.clone(),
            is_open: service.vips.is_empty() && service.ranges.is_empty() && usable,
            status_addresses,
        }
    }
}

/// The allocated addresses. The result depends only on the requests, not on their order of arrival.
#[derive(Debug, Default)]
pub(super) struct Allocation {
    claims: BTreeMap<Hostname, AddressRequest>,
    given: BTreeMap<Hostname, Vec<IpAddr>>,
    in_use: BTreeSet<IpAddr>,
    /// The youngest definition with automatic addresses.
    youngest: Option<Age>,
}

impl Allocation {
    /// Returns the automatic addresses of a definition.
    pub(super) fn given(&self, key: &Hostname) -> &[IpAddr] {
        self.given.get(key).map_or(&[], Vec::as_slice)
    }

    /// Updates the requests of definitions; `None` removes one. Returns the definitions whose
    /// addresses may have changed.
    pub(super) fn update(
        &mut self,
        claims: impl Iterator<Item = (Hostname, Option<AddressRequest>)>,
    ) -> BTreeSet<Hostname> {
        let mut claims: Vec<_> =
            claims.filter(|(key, claim)| self.claims.get(key) != claim.as_ref()).collect();
        claims.sort_by_cached_key(|(_, claim)| claim.as_ref().map(|claim| claim.age.clone()));
        let mut changed = BTreeSet::new();
        // Whether the addresses of other definitions may change.
        let mut reallocate = false;
        for (key, claim) in claims {
            let Some(claim) = claim else {
                self.claims.remove(&key);
                reallocate = true;
                continue;
            };
            reallocate |= self.claims.contains_key(&key) || !self.keeps_allocations(&claim);
            if !reallocate {
                self.in_use.extend(&claim.named);
                if claim.is_open {
                    self.give(&key, &claim);
                    changed.insert(key.clone());
                }
            }
            self.claims.insert(key, claim);
        }
        if reallocate {
            let before = std::mem::take(&mut self.given);
            self.give_all();
            let differ = |key: &&Hostname| before.get(*key) != self.given.get(*key);
            changed.extend(before.keys().chain(self.given.keys()).filter(differ).cloned());
        }
        changed
    }

    /// Returns whether a new request leaves all allocated addresses unchanged.
    fn keeps_allocations(&self, claim: &AddressRequest) -> bool {
        let is_youngest = || self.youngest.as_ref().is_none_or(|youngest| *youngest < claim.age);
        claim.named.iter().all(|address| !self.in_use.contains(address))
            && (!claim.is_open || (claim.status_addresses.is_empty() && is_youngest()))
    }

    /// Allocates all addresses again. Addresses in a status have been announced to clients, so they
    /// take precedence, unless the spec of an entry contains them or an older host has them.
    fn give_all(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        self.in_use = claims.values().flat_map(|claim| claim.named.iter().copied()).collect();
        let mut open: Vec<_> = claims.iter().filter(|(_, claim)| claim.is_open).collect();
        open.sort_by(|(_, a), (_, b)| a.age.cmp(&b.age));
        for (key, AddressRequest { status_addresses, .. }) in &open {
            let is_free = |address: &IpAddr| is_given(address) && !self.in_use.contains(address);
            if !status_addresses.is_empty() && status_addresses.iter().all(is_free) {
                self.in_use.extend(status_addresses);
                self.given.insert((*key).clone(), status_addresses.clone());
            }
        }
        for (key, claim) in &open {
            if !self.given.contains_key(*key) {
                self.give(key, claim);
            }
        }
        self.youngest = open.last().map(|(_, claim)| claim.age.clone());
        self.claims = claims;
    }

    /// Allocates addresses for a definition that is younger than all definitions with addresses.
    fn give(&mut self, key: &Hostname, claim: &AddressRequest) {
        let (_, namespace, hostname) = &claim.age;
        let first = hash(format!("{namespace}/{hostname}").as_bytes());
        let mut places = (0..PLACES).map(|step| (first % PLACES + step) % PLACES);
        let addresses = places.find_map(|place| {
            let number = BASE + 1 + place;
            let ipv4 = IpAddr::V4(Ipv4Addr::from_bits(number));
            let ipv6 = IpAddr::V6(Ipv6Addr::from_bits(BASE_IPV6 | u128::from(number)));
            let is_free = !self.in_use.contains(&ipv4) && !self.in_use.contains(&ipv6);
            is_free.then_some([ipv4, ipv6])
        });
        self.in_use.extend(addresses.into_iter().flatten());
        self.given.insert(key.clone(), addresses.into_iter().flatten().collect());
        self.youngest = Some(claim.age.clone());
    }
}

/// Returns whether an address is in the ranges for automatic addresses. A client of a proxy knows
/// the address only if a resolver returns it for the host.
pub fn is_given(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(ipv4) => ipv4.to_bits() & !0xffff == BASE,
        IpAddr::V6(ipv6) => ipv6.to_bits() & !u128::from(u32::MAX) == BASE_IPV6,
    }
}

/// Computes the FNV-1a hash (32 bits), which is equal in all builds, unlike the hash of the
/// standard library.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
