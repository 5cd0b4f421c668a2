//! Addresses for hosts that name none, so that what isn't HTTP can be distinguished by address.
//!
//! One of each family, out of 240.240.0.0/16 and 2001:2::/48, which nobody uses: each host at the place that
//! its namespace and name hash to, or at the next free one. Older hosts choose first, so a host keeps its
//! addresses over restarts, in every replica, and whatever comes later. Where a peer has written such addresses
//! into the status of an entry, its host has those: clients may have resolved it to them already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use strait_model::{Hostname, Namespace, Resolution, Service};

/// The first address of the range is given to nobody, nor is the last.
const BASE: u32 = u32::from_be_bytes([240, 240, 0, 0]);
const PLACES: u32 = 0xfffe;
/// IPv6 addresses end in the IPv4 address of the same place.
const BASE_IPV6: u128 = u128::from_be_bytes([0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

/// What a definition of a host asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressRequest {
    /// The older is served first, those of one age by name.
    pub(super) age: Age,
    /// The addresses that entries name for it.
    pub(super) named: Vec<IpAddr>,
    /// Whether it names none, wants some and can use them.
    pub(super) is_open: bool,
    /// What the status of the entry says are its addresses.
    pub(super) said: Vec<IpAddr>,
}

/// How old a definition is, and of what.
pub(super) type Age = (i64, Namespace, Hostname);

impl AddressRequest {
    /// What a service asks for. A wildcard stands for many hosts, and where the client chooses the address, ours would
    /// lead nowhere.
    pub(super) fn of(service: &Service, wanted: bool, said: Vec<IpAddr>) -> Self {
        let usable = wanted
            && service.resolution != Resolution::Passthrough
            && !service.hostname.as_str().starts_with('*');
        let (namespace, hostname) = (service.namespace.clone(), service.hostname.clone());
        Self {
            age: (service.created, namespace, hostname),
            named: service.vips.clone(),
            is_open: service.vips.is_empty() && service.ranges.is_empty() && usable,
            said,
        }
    }
}

/// Who has which address. The same claims are given the same, in whatever order they came.
#[derive(Debug, Default)]
pub(super) struct Allocation {
    claims: BTreeMap<Hostname, AddressRequest>,
    given: BTreeMap<Hostname, Vec<IpAddr>>,
    taken: BTreeSet<IpAddr>,
    /// Of those that were given addresses.
    youngest: Option<Age>,
}

impl Allocation {
    /// What a definition was given.
    pub(super) fn given(&self, key: &Hostname) -> &[IpAddr] {
        self.given.get(key).map_or(&[], Vec::as_slice)
    }

    /// Takes what definitions claim now; `None` of those that have gone. Returns which of all may have other addresses.
    pub(super) fn update(
        &mut self,
        claims: impl Iterator<Item = (Hostname, Option<AddressRequest>)>,
    ) -> BTreeSet<Hostname> {
        let mut claims: Vec<_> =
            claims.filter(|(key, claim)| self.claims.get(key) != claim.as_ref()).collect();
        claims.sort_by_cached_key(|(_, claim)| claim.as_ref().map(|claim| claim.age.clone()));
        let mut changed = BTreeSet::new();
        // Whether others may be given other addresses than before.
        let mut anew = false;
        for (key, claim) in claims {
            let Some(claim) = claim else {
                self.claims.remove(&key);
                anew = true;
                continue;
            };
            anew |= self.claims.contains_key(&key) || !self.comes_last(&claim);
            if !anew {
                self.taken.extend(&claim.named);
                if claim.is_open {
                    self.give(&key, &claim);
                    changed.insert(key.clone());
                }
            }
            self.claims.insert(key, claim);
        }
        if anew {
            let before = std::mem::take(&mut self.given);
            self.give_all();
            let differ = |key: &&Hostname| before.get(*key) != self.given.get(*key);
            changed.extend(before.keys().chain(self.given.keys()).filter(differ).cloned());
        }
        changed
    }

    /// Whether a new claim changes nothing for those that are there.
    fn comes_last(&self, claim: &AddressRequest) -> bool {
        let is_youngest = || self.youngest.as_ref().is_none_or(|youngest| *youngest < claim.age);
        claim.named.iter().all(|address| !self.taken.contains(address))
            && (!claim.is_open || (claim.said.is_empty() && is_youngest()))
    }

    /// Gives each its addresses. Whoever wrote addresses into the status announced them to clients, so those hold,
    /// unless an entry names them or an older host has them.
    fn give_all(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        self.taken = claims.values().flat_map(|claim| claim.named.iter().copied()).collect();
        let mut open: Vec<_> = claims.iter().filter(|(_, claim)| claim.is_open).collect();
        open.sort_by(|(_, a), (_, b)| a.age.cmp(&b.age));
        for (key, AddressRequest { said, .. }) in &open {
            let is_free = |address: &IpAddr| is_given(address) && !self.taken.contains(address);
            if !said.is_empty() && said.iter().all(is_free) {
                self.taken.extend(said);
                self.given.insert((*key).clone(), said.clone());
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

    /// Gives addresses to one that comes after all that have some.
    fn give(&mut self, key: &Hostname, claim: &AddressRequest) {
        let (_, namespace, hostname) = &claim.age;
        let first = hash(format!("{namespace}/{hostname}").as_bytes());
        let mut places = (0..PLACES).map(|step| (first % PLACES + step) % PLACES);
        let addresses = places.find_map(|place| {
            let number = BASE + 1 + place;
            let ipv4 = IpAddr::V4(Ipv4Addr::from_bits(number));
            let ipv6 = IpAddr::V6(Ipv6Addr::from_bits(BASE_IPV6 | u128::from(number)));
            let is_free = !self.taken.contains(&ipv4) && !self.taken.contains(&ipv6);
            is_free.then_some([ipv4, ipv6])
        });
        self.taken.extend(addresses.into_iter().flatten());
        self.given.insert(key.clone(), addresses.into_iter().flatten().collect());
        self.youngest = Some(claim.age.clone());
    }
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
