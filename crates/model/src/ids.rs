//! Names that must not be confused. Each is a distinct string type that is cheap to clone.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strait_base::dns_name::is_dns_subdomain;

/// The domain of services that are shared by all clusters of a set (KEP-1645).
pub const CLUSTERSET: &str = "clusterset.local";

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Creates a name from any text.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// Returns the text.
            #[inline]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns whether the text is empty.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<&str> for $type {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $type {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl From<$type> for Arc<str> {
            fn from(name: $type) -> Self {
                name.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Default for $type {
            fn default() -> Self {
                // Shared by all empty names, so this never allocates.
                Self(Arc::default())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name! {
    /// A member Kubernetes cluster. (Envoy's cluster is an *upstream cluster* in this code.)
    ClusterId
}
name! {
    /// A network: a set of addresses that reach each other directly. For Kubernetes endpoints and
    /// proxies, the empty name is a separate network.
    NetworkId
}
name! {
    /// A service's name across the mesh, for example `reviews.shop.svc.cluster.local`.
    Hostname
}
name! {
    /// A Kubernetes namespace.
    Namespace
}

/// Why a text is no valid cluster ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterIdError {
    /// The text is empty.
    #[error("a cluster ID must not be empty")]
    Empty,
    /// It has more than [`ClusterId::LENGTH_MAX`] characters.
    #[error("a cluster ID has at most 63 characters, this one has {0}")]
    TooLong(usize),
    /// It is no DNS-1123 subdomain.
    #[error(
        "a cluster ID is a DNS-1123 subdomain: lower-case letters, digits, '-' and '.', each label starting and ending with a letter or digit"
    )]
    NotDns1123,
}

impl ClusterId {
    /// The maximum number of characters (docs/reference/interface.md, "Member clusters").
    pub const LENGTH_MAX: usize = 63;

    /// Returns whether it names a datacentre of Consul (`NAME/DATACENTRE`). The ID of a Kubernetes
    /// cluster contains no slash.
    pub fn is_datacentre(&self) -> bool {
        self.as_str().contains('/')
    }

    /// Checks that `text` is a DNS-1123 subdomain of at most [`Self::LENGTH_MAX`] characters.
    pub fn parse(text: &str) -> Result<Self, ClusterIdError> {
        if text.is_empty() {
            return Err(ClusterIdError::Empty);
        }
        if text.chars().count() > Self::LENGTH_MAX {
            return Err(ClusterIdError::TooLong(text.chars().count()));
        }
        if is_dns_subdomain(text) { Ok(Self::from(text)) } else { Err(ClusterIdError::NotDns1123) }
    }
}

impl Hostname {
    /// Returns the hostname of a Kubernetes Service: `<name>.<namespace>.svc.<domain>`.
    pub fn of_kubernetes_service(name: &str, namespace: &str, domain: &str) -> Self {
        Self::from(format!("{name}.{namespace}.svc.{domain}"))
    }

    /// Returns the name and namespace of the Kubernetes Service with this hostname, or `None` if it
    /// can be none.
    pub fn service_in(&self, domain: &str) -> Option<(&str, &str)> {
        let short = self.as_str().strip_suffix(domain)?.strip_suffix(".svc.")?;
        short.rsplit_once('.')
    }

    /// Returns whether it is the name of a service that the clusters of a set share.
    pub fn is_of_set(&self) -> bool {
        let rest = self.as_str().strip_suffix(CLUSTERSET);
        rest.is_some_and(|rest| rest.ends_with(".svc."))
    }

    /// Returns the key for a definition of this name that is private to `namespace`. Names of
    /// services never contain `@`.
    pub fn private_to(&self, namespace: &Namespace) -> Self {
        Self::from(format!("{self}@{namespace}"))
    }

    /// Splits a key that [`Self::private_to`] created.
    pub fn split_private(&self) -> Option<(Self, Namespace)> {
        let (name, namespace) = self.as_str().split_once('@')?;
        Some((name.into(), namespace.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_ids_are_dns_1123_subdomains_of_63_characters() {
        for valid in ["a", "east", "prod-eu.1", "1", &"a".repeat(63)] {
            assert!(ClusterId::parse(valid).is_ok(), "{valid}");
        }
        for invalid in ["", "East", "a_b", "-a", "a-", "a..b", ".a", "a.", "ü", "a b", "a\0", "a/b"]
        {
            assert!(ClusterId::parse(invalid).is_err(), "{invalid}");
        }
        assert_eq!(ClusterId::parse(&"a".repeat(64)), Err(ClusterIdError::TooLong(64)));
    }
}
