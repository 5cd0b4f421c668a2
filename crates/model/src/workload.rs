//! A pod as its registry describes it, for identity checks and inbound listeners.
//!
//! Pods are many and alike: what those of one template share is a [`Profile`], and a [`Workload`] is
//! only what is its own, 32 bytes of it. [`super::Workloads`] holds them with their names.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use super::{Labels, Locality, NetworkId, SortedMap, TlsMode};

/// A pod, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// What it shares with others.
    pub profile: Arc<Profile>,
    /// Its addresses, primary first, empty until it has one; and which of all pods of its name it is.
    pub addresses: Addresses,
    /// The node it runs on; one value for all pods there.
    pub node: Option<Arc<Arc<str>>>,
}

/// What the pods of one template share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// Their labels.
    pub labels: Arc<Labels>,
    /// Their service account's name.
    pub service_account: Arc<str>,
    /// Their SPIFFE ID.
    pub identity: Arc<str>,
    /// Whether they take mTLS.
    pub tls_mode: TlsMode,
    /// The network that their label names.
    pub network_label: Option<NetworkId>,
    /// The locality that their labels claim, which goes before their node's.
    pub locality: Option<Arc<Locality>>,
    /// What telemetry calls them: [`super::telemetry`]; `None` where that is sent to nobody.
    pub telemetry: Option<Arc<str>>,
    /// The headless service below which each has a name of its own, the pod's (`subdomain`, where
    /// `hostname` is the pod's name: what a StatefulSet gives its pods).
    pub subdomain: Option<Arc<str>>,
    /// Named container ports, for services that target a name.
    pub named_ports: SortedMap<Arc<str>, u16>,
}

impl Deref for Workload {
    type Target = Profile;

    fn deref(&self) -> &Profile {
        &self.profile
    }
}

impl Workload {
    /// Whether this is the pod with that UID; `None` where its own is not known, as of one that an earlier version
    /// remembered.
    pub fn has_uid(&self, uid: &str) -> Option<bool> {
        self.addresses.mark().map(|mark| UidMark::of(uid) == Some(mark))
    }
}

/// A UID as a number of 4 bytes: tells a pod from the one that had its name before, but for one in 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidMark(NonZeroU32);

impl UidMark {
    /// That of a UID; of none there is none.
    pub fn of(uid: &str) -> Option<Self> {
        let hash = xxhash_rust::xxh3::xxh3_64(uid.as_bytes()).to_le_bytes();
        let mark = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]).max(1);
        NonZeroU32::new(mark).map(Self).filter(|_| !uid.is_empty())
    }

    /// As it is written.
    pub fn to_bytes(self) -> [u8; 4] {
        self.0.get().to_le_bytes()
    }

    /// As it was written.
    pub fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        NonZeroU32::new(u32::from_le_bytes(bytes)).map(Self)
    }
}

/// Where a pod is, and which of all pods of its name. Nearly all have one address, of IPv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(AddressStorage);

/// Each with the mark, for which there is room beside the addresses: pods are many.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressStorage {
    None(Option<UidMark>),
    One(Option<UidMark>, Ipv4Addr),
    // A thin pointer: what is rare should cost those that are many nothing.
    #[expect(clippy::box_collection, reason = "half the size of a boxed slice")]
    Others(Option<UidMark>, Box<Vec<IpAddr>>),
}

impl Default for Addresses {
    fn default() -> Self {
        Self(AddressStorage::None(None))
    }
}

impl Addresses {
    /// The same, of the pod with this mark.
    #[must_use]
    pub fn marked(mut self, mark: Option<UidMark>) -> Self {
        match &mut self.0 {
            AddressStorage::None(held)
            | AddressStorage::One(held, _)
            | AddressStorage::Others(held, _) => *held = mark,
        }
        self
    }

    /// Which pod it is whose addresses these are.
    pub fn mark(&self) -> Option<UidMark> {
        match &self.0 {
            AddressStorage::None(mark)
            | AddressStorage::One(mark, _)
            | AddressStorage::Others(mark, _) => *mark,
        }
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, AddressStorage::None(_))
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.iter().any(|own| own == *address)
    }

    /// All of them, primary first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (one, others) = match &self.0 {
            AddressStorage::None(_) => (None, &[][..]),
            AddressStorage::One(_, address) => (Some(IpAddr::V4(*address)), &[][..]),
            AddressStorage::Others(_, others) => (None, &others[..]),
        };
        one.into_iter().chain(others.iter().copied())
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut addresses = addresses.into_iter();
        Self(match (addresses.next(), addresses.next()) {
            (None, _) => AddressStorage::None(None),
            (Some(IpAddr::V4(only)), None) => AddressStorage::One(None, only),
            (Some(first), second) => AddressStorage::Others(
                None,
                Box::new([first].into_iter().chain(second).chain(addresses).collect()),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_from_the_one_that_had_its_name_before() {
        let pod = |addresses: &[&str], uid: &str| {
            let addresses = addresses.iter().map(|one| one.parse().expect("an address"));
            let addresses = addresses.collect::<Addresses>().marked(UidMark::of(uid));
            Workload { profile: Arc::default(), addresses, node: None }
        };
        for addresses in [&[][..], &["10.0.0.1"], &["fd00::1"], &["10.0.0.1", "fd00::1"]] {
            let first = pod(addresses, "uid-1");
            assert_eq!(first.addresses.iter().count(), addresses.len());
            assert_eq!((first.has_uid("uid-1"), first.has_uid("uid-2")), (Some(true), Some(false)));
            assert_eq!(pod(addresses, "").has_uid("uid-1"), None);
            assert_ne!(first, pod(addresses, "uid-2"));
        }
        let mark = UidMark::of("uid-1").expect("a UID");
        assert_eq!(UidMark::from_bytes(mark.to_bytes()), Some(mark));
    }
}
