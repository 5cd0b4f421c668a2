//! A pod as its registry describes it, for identity checks and inbound listeners.
//!
//! Pods are numerous and similar. The data that the pods of one template share is a [`Profile`]. A
//! [`Workload`] contains only the data of the individual pod and takes 32 bytes.
//! [`super::Workloads`] stores them with their names.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use super::{Labels, Locality, NetworkId, SortedMap, TlsMode};

/// A pod, without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The data that it shares with other pods.
    pub profile: Arc<Profile>,
    /// Its addresses, primary first, empty until it has one; with the UID's mark.
    pub addresses: Addresses,
    /// The node on which it runs; one shared value for all pods there.
    pub node: Option<Arc<Arc<str>>>,
}

/// The data that the pods of one template share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// Their labels.
    pub labels: Arc<Labels>,
    /// The name of their service account.
    pub service_account: Arc<str>,
    /// Their SPIFFE ID.
    pub identity: Arc<str>,
    /// Whether they accept mTLS.
    pub tls_mode: TlsMode,
    /// The network of their label.
    pub network_label: Option<NetworkId>,
    /// The locality that their labels declare; it takes precedence over that of their node.
    pub locality: Option<Arc<Locality>>,
    /// Their telemetry name, see [`super::telemetry`]; `None` if telemetry names are not sent.
    pub telemetry: Option<Arc<str>>,
    /// The headless service below which each pod has its own DNS name (`subdomain`, where
    /// `hostname` is the pod's name, as in StatefulSets).
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
    /// Returns whether this is the pod with this UID. Returns `None` if its own UID is unknown, as
    /// for pods in state stored by an earlier version.
    pub fn has_uid(&self, uid: &str) -> Option<bool> {
        self.addresses.mark().map(|mark| UidMark::of(uid) == Some(mark))
    }
}

/// A UID as a number of 4 bytes. It distinguishes a pod from an earlier pod with the same name,
/// except in about 1 of 2^32 cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidMark(NonZeroU32);

impl UidMark {
    /// Returns the mark of a UID; `None` if the UID is empty.
    pub fn of(uid: &str) -> Option<Self> {
        let hash = xxhash_rust::xxh3::xxh3_64(uid.as_bytes()).to_le_bytes();
        let mark = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]).max(1);
        NonZeroU32::new(mark).map(Self).filter(|_| !uid.is_empty())
    }

    /// Encodes the mark.
    pub fn to_bytes(self) -> [u8; 4] {
        self.0.get().to_le_bytes()
    }

    /// Decodes a mark.
    pub fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        NonZeroU32::new(u32::from_le_bytes(bytes)).map(Self)
    }
}

/// The addresses of a pod and the UID's mark. Nearly all pods have one IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(AddressStorage);

/// Each variant includes the mark, which fits next to the addresses, because pods are numerous.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressStorage {
    None(Option<UidMark>),
    One(Option<UidMark>, Ipv4Addr),
    // A thin pointer, so that this rare variant does not increase the size of the others.
    #[expect(clippy::box_collection, reason = "half the size of a boxed slice")]
    Others(Option<UidMark>, Box<Vec<IpAddr>>),
}

impl Default for Addresses {
    fn default() -> Self {
        Self(AddressStorage::None(None))
    }
}

impl Addresses {
    /// Sets the mark of the pod.
    #[must_use]
    pub fn marked(mut self, mark: Option<UidMark>) -> Self {
        match &mut self.0 {
            AddressStorage::None(stored)
            | AddressStorage::One(stored, _)
            | AddressStorage::Others(stored, _) => *stored = mark,
        }
        self
    }

    /// Returns the mark of the pod.
    pub fn mark(&self) -> Option<UidMark> {
        match &self.0 {
            AddressStorage::None(mark)
            | AddressStorage::One(mark, _)
            | AddressStorage::Others(mark, _) => *mark,
        }
    }

    /// Returns whether the pod has no address yet.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, AddressStorage::None(_))
    }

    /// Returns whether the addresses contain `address`.
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.iter().any(|own| own == *address)
    }

    /// Returns all addresses, primary first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (single, several) = match &self.0 {
            AddressStorage::None(_) => (None, &[][..]),
            AddressStorage::One(_, address) => (Some(IpAddr::V4(*address)), &[][..]),
            AddressStorage::Others(_, several) => (None, &several[..]),
        };
        single.into_iter().chain(several.iter().copied())
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
    fn pod_is_distinguished_from_an_earlier_pod_with_the_same_name() {
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
