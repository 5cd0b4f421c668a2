//! The events that the readers of the config cluster pass on.

use crate::store::{ObjectName, WatchedConfigMap, WatchedNamespace, WatchedSecret};
use strait_kube_client::WatchEvent;
use strait_model::{CONFIG_KINDS, ConfigKind, ObjectJson};

/// A reader. Two of them find a Secret with both labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum StoreReader {
    IstioSecrets,
    Secrets,
    ConfigMap,
    IstioConfigMap,
    Config(&'static ConfigKind),
    Namespaces,
}

impl StoreReader {
    const CORE: [Self; 5] = [
        Self::IstioSecrets,
        Self::Secrets,
        Self::ConfigMap,
        Self::IstioConfigMap,
        Self::Namespaces,
    ];

    pub(super) fn every() -> impl Iterator<Item = Self> {
        Self::CORE.into_iter().chain(CONFIG_KINDS.iter().map(Self::Config))
    }

    /// Whether the mesh works without its objects.
    pub(super) fn is_optional(self) -> bool {
        match self {
            Self::IstioSecrets | Self::Secrets => false,
            // Without the restrictions, all callers would be accepted.
            Self::Config(kind) => !kind.restricts(),
            Self::ConfigMap | Self::IstioConfigMap | Self::Namespaces => true,
        }
    }

    /// Whether its kind may be missing in the cluster.
    pub(super) fn may_lack(self) -> bool {
        self.is_optional() || matches!(self, Self::Config(_))
    }

    pub(in crate::store) fn plural(self) -> &'static str {
        match self {
            Self::IstioSecrets | Self::Secrets => "secrets",
            Self::ConfigMap | Self::IstioConfigMap => "configmaps",
            Self::Config(kind) => kind.plural,
            Self::Namespaces => "namespaces",
        }
    }

    /// Returns the readers whose lists together contain all objects of a type.
    pub(super) fn group(self) -> [Self; 2] {
        match self {
            Self::IstioSecrets | Self::Secrets => [Self::IstioSecrets, Self::Secrets],
            Self::ConfigMap | Self::IstioConfigMap => [Self::ConfigMap, Self::IstioConfigMap],
            Self::Config(_) | Self::Namespaces => [self, self],
        }
    }

    /// Describes everything that it reads.
    pub(super) fn all(self) -> String {
        format!("{} of the config cluster", self.plural())
    }
}

pub(in crate::store) struct StoreInput {
    pub(in crate::store) reader: StoreReader,
    pub(in crate::store) event: WatchEvent<ReadObject>,
}

/// An object, or the reason why it is unusable.
pub(in crate::store) enum ReadObject {
    Secret(WatchedSecret),
    ConfigMap(WatchedConfigMap),
    Namespace(ObjectName, WatchedNamespace),
    /// An object that is stored unchanged, except for its kind, which lists omit. It is packed,
    /// because a list may contain thousands.
    Config(ObjectName, ObjectJson),
    Unusable(ObjectName, String),
}
