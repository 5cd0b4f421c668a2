//! What the readers of the config cluster pass on.

use crate::store::kinds::{self, StoreKind};
use crate::store::{ObjectName, WatchedConfigMap, WatchedNamespace, WatchedSecret};
use strait_kube_client::WatchEvent;
use strait_model::ObjectJson;

/// What is read. A Secret that carries both labels is found by two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum StoreReader {
    IstioSecrets,
    Secrets,
    ConfigMap,
    IstioConfigMap,
    Kept(&'static StoreKind),
    Namespaces,
}

impl StoreReader {
    const OF_CORE: [Self; 5] = [
        Self::IstioSecrets,
        Self::Secrets,
        Self::ConfigMap,
        Self::IstioConfigMap,
        Self::Namespaces,
    ];

    pub(super) fn every() -> impl Iterator<Item = Self> {
        Self::OF_CORE.into_iter().chain(kinds::ALL.iter().map(Self::Kept))
    }

    /// Whether the mesh can do without it.
    pub(super) fn is_optional(self) -> bool {
        match self {
            Self::IstioSecrets | Self::Secrets => false,
            // Who goes on as if nothing restricted anybody lets everybody in.
            Self::Kept(kind) => !kind.restricts(),
            Self::ConfigMap | Self::IstioConfigMap | Self::Namespaces => true,
        }
    }

    /// Whether there may be nothing to read: its kind need not be installed.
    pub(super) fn may_lack(self) -> bool {
        self.is_optional() || matches!(self, Self::Kept(_))
    }

    pub(in crate::store) fn plural(self) -> &'static str {
        match self {
            Self::IstioSecrets | Self::Secrets => "secrets",
            Self::ConfigMap | Self::IstioConfigMap => "configmaps",
            Self::Kept(kind) => kind.plural,
            Self::Namespaces => "namespaces",
        }
    }

    /// Whose lists together are all there is of something.
    pub(super) fn group(self) -> [Self; 2] {
        match self {
            Self::IstioSecrets | Self::Secrets => [Self::IstioSecrets, Self::Secrets],
            Self::ConfigMap | Self::IstioConfigMap => [Self::ConfigMap, Self::IstioConfigMap],
            Self::Kept(_) | Self::Namespaces => [self, self],
        }
    }

    /// All that it reads, as text.
    pub(super) fn all(self) -> String {
        format!("{} of the config cluster", self.plural())
    }
}

pub(in crate::store) struct StoreInput {
    pub(in crate::store) reader: StoreReader,
    pub(in crate::store) event: WatchEvent<ReadObject>,
}

/// An object, or why it is none that can be used.
pub(in crate::store) enum ReadObject {
    Secret(WatchedSecret),
    ConfigMap(WatchedConfigMap),
    Namespace(ObjectName, WatchedNamespace),
    /// An object that is kept as it is, but for its kind, which a list doesn't say. Of thousands in a list none is a tree.
    Kept(ObjectName, ObjectJson),
    Unusable(ObjectName, String),
}
