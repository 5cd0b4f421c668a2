//! Encoded resources, and the interface that supplies them to a session.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

pub use super::body::ResourceBody;
pub use super::source::{All, ResourceSource};
use strait_model::dirty::Wildcard;

/// The resource types that Strait serves, in sending order (make before break).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Upstream clusters (CDS).
    Cluster,
    /// Endpoint assignments of upstream clusters (EDS).
    Endpoint,
    /// Listeners (LDS).
    Listener,
    /// Route configurations (RDS).
    Route,
    /// Individual virtual hosts of route configurations (VHDS), for clients that opted in.
    VirtualHost,
    /// The name table from which Istio's agent answers DNS queries (NDS): a single resource without
    /// a name.
    NameTable,
}

impl ResourceType {
    /// The types that every client may request, in sending order.
    pub const ALL: [Self; 5] =
        [Self::Cluster, Self::Endpoint, Self::Listener, Self::Route, Self::NameTable];

    /// The types that every client may request and virtual hosts, in sending order.
    pub const SERVED: [Self; 6] = [
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
        Self::VirtualHost,
        Self::NameTable,
    ];

    /// Returns the type URL on the wire.
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

    /// Returns the type with this URL, if Strait serves it.
    pub fn of_url(url: &str) -> Option<Self> {
        Self::SERVED.into_iter().find(|kind| kind.url() == url)
    }

    /// Returns whether a subscription without names means all resources (xDS protocol, "wildcard").
    pub fn is_wildcard(self) -> bool {
        self.wildcard().is_some()
    }

    /// Returns the corresponding value of `strait_model::dirty`, if this is a wildcard type.
    pub fn wildcard(self) -> Option<Wildcard> {
        match self {
            Self::Cluster => Some(Wildcard::Clusters),
            Self::Listener => Some(Wildcard::Listeners),
            Self::NameTable => Some(Wildcard::Names),
            Self::Endpoint | Self::Route | Self::VirtualHost => None,
        }
    }

    /// Returns the short name in `/debug/proxies` and metrics.
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

/// A hash of a resource's content, equal on all replicas and after restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// The length of the text form, in bytes.
    pub(super) const LENGTH: usize = 16;

    /// Returns the text form: 16 hexadecimal digits.
    pub(super) fn text(self) -> [u8; Self::LENGTH] {
        let mut rest = self.0;
        let mut text = [0; Self::LENGTH];
        for digit in text.iter_mut().rev() {
            *digit = b"0123456789abcdef"[(rest % 16) as usize];
            rest /= 16;
        }
        text
    }

    /// Parses the output of [`fmt::Display`]. Returns `None` for any other text, such as another
    /// server's version.
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

/// One encoded resource. It is built once and shared by all streams whose clients hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The name.
    pub name: Arc<str>,
    /// The hash of the bytes, or of the hashes of the parts.
    pub version: Version,
    /// The encoded message, which is the value of an `Any`.
    pub body: ResourceBody,
}

impl Resource {
    /// Creates a resource from an encoded message.
    pub fn new(name: impl Into<Arc<str>>, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self { name: name.into(), version: Version(xxh3_64(&body)), body: body.into() }
    }

    /// Creates a resource from an encoded message and the hashes of the parts. Equal resources must
    /// always be divided into the same parts.
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
