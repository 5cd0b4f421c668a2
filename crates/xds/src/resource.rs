//! Encoded resources, and where a session gets them from.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

pub use super::body::ResourceBody;
pub use super::source::{All, ResourceSource};
use strait_model::dirty::Wildcard;

/// The types Strait serves, in the order in which they are sent: make before break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Upstream clusters (CDS).
    Cluster,
    /// Assignments of endpoints to upstream clusters (EDS).
    Endpoint,
    /// Listeners (LDS).
    Listener,
    /// Route configurations (RDS).
    Route,
    /// Virtual hosts of route configurations, one by one (VHDS), for those who asked to have them so.
    VirtualHost,
    /// The table of names from which Istio's agent answers DNS (NDS): one resource without a name.
    NameTable,
}

impl ResourceType {
    /// All that any client may ask for, in sending order.
    pub const ALL: [Self; 5] =
        [Self::Cluster, Self::Endpoint, Self::Listener, Self::Route, Self::NameTable];

    /// The same with virtual hosts.
    pub const SERVED: [Self; 6] = [
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
        Self::VirtualHost,
        Self::NameTable,
    ];

    /// The type URL on the wire.
    pub fn url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::VirtualHost => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            Self::NameTable => "type.googleapis.com/istio.networking.nds.v1.NameTable",
        }
    }

    /// The type with this URL, if Strait serves it.
    pub fn of_url(url: &str) -> Option<Self> {
        Self::SERVED.into_iter().find(|kind| kind.url() == url)
    }

    /// Whether a subscription to nothing means everything (xDS protocol, "wildcard").
    pub fn is_wildcard(self) -> bool {
        self.wildcard().is_some()
    }

    /// What `push` calls it, where it is such a type.
    pub fn wildcard(self) -> Option<Wildcard> {
        match self {
            Self::Cluster => Some(Wildcard::Clusters),
            Self::Listener => Some(Wildcard::Listeners),
            Self::NameTable => Some(Wildcard::Names),
            Self::Endpoint | Self::Route | Self::VirtualHost => None,
        }
    }

    /// The short name in `/debug/proxies` and metrics.
    pub fn short(self) -> &'static str {
        match self {
            Self::Cluster => "cds",
            Self::Endpoint => "eds",
            Self::Listener => "lds",
            Self::Route => "rds",
            Self::VirtualHost => "vhds",
            Self::NameTable => "nds",
        }
    }
}

/// A hash of what a resource's bytes are: equal on all replicas and over restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// The length of its text.
    pub(super) const LENGTH: usize = 16;

    /// Its text: hexadecimal digits.
    pub(super) fn text(self) -> [u8; Self::LENGTH] {
        let mut rest = self.0;
        let mut text = [0; Self::LENGTH];
        for digit in text.iter_mut().rev() {
            *digit = b"0123456789abcdef"[(rest % 16) as usize];
            rest /= 16;
        }
        text
    }

    /// Reads what [`fmt::Display`] writes; `None` for anything else, such as another server's version.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != Self::LENGTH {
            return None;
        }
        text.bytes()
            .try_fold(0, |sum, digit| Some(sum << 4 | u64::from(char::from(digit).to_digit(16)?)))
            .map(Self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

/// One encoded resource, made once and shared by all streams that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: Arc<str>,
    /// The hash of its bytes, or of the hashes of its parts.
    pub version: Version,
    /// The encoded message, the value of an `Any`.
    pub body: ResourceBody,
}

impl Resource {
    /// Takes an encoded message.
    pub fn new(name: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self { name: name.into(), version: Version(xxh3_64(&body)), body: body.into() }
    }

    /// Takes an encoded message and the hashes of the parts that it is always made of.
    pub fn of_parts(
        name: impl Into<Arc<str>>,
        digests: impl Iterator<Item = u64>,
        body: ResourceBody,
    ) -> Self {
        let mut all = Vec::new();
        digests.for_each(|digest| all.extend_from_slice(&digest.to_le_bytes()));
        Self { name: name.into(), version: Version(xxh3_64(&all)), body }
    }

    /// The approximate number of bytes in a response.
    pub fn encoded_len(&self) -> usize {
        self.name.len() + self.body.len()
    }
}
