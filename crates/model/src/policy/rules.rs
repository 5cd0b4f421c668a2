//! The rules of a policy file, as plain values.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::names::ServiceNames;
use crate::fetched_keys::KeyPlace;
use crate::{ClusterId, ImportMode, Mode, NamespaceFilter, NetworkId, ReadNamespaces};

/// The rules for a cluster; a rule that is not set is taken from the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rules {
    pub(super) mode: Option<Mode>,
    pub(super) when_dark: Option<WhenDark>,
    pub(super) mass_withdrawal: Option<MassWithdrawal>,
    pub(super) budget: ReadBudget,
    pub(super) exports: Option<ServiceNames>,
    pub(super) networks: Option<BTreeSet<NetworkId>>,
    pub(super) trust_domains: Option<BTreeSet<String>>,
    pub(super) addresses: Option<Vec<IpNet>>,
    pub(super) identities: Option<BTreeSet<String>>,
    pub(super) dark_token_grace: Option<Duration>,
    pub(super) imports: Option<ImportMode>,
    pub(super) adopt_status: Option<bool>,
    pub(super) discovery_selectors: Option<Arc<NamespaceFilter>>,
    pub(super) read_namespaces: Option<ReadNamespaces>,
    pub(super) follows_source: Option<bool>,
    pub(super) relay: Option<RelayTrust>,
}

/// The token with which relays of a cluster enrol without an invitation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTrust {
    /// Its issuer.
    pub issuer: String,
    /// Its subject: `system:serviceaccount:NAMESPACE:NAME`.
    pub subject: String,
    /// Its audience.
    pub audience: String,
    /// The keys of the issuer, as a JSON Web Key Set; `None` if the issuer publishes them (OpenID
    /// Connect Discovery).
    pub keys: Option<Arc<str>>,
}

impl RelayTrust {
    /// Returns the location of published keys.
    pub fn key_place(&self) -> KeyPlace {
        KeyPlace::Issuer(self.issuer.as_str().into())
    }
}

/// Names for which only some clusters may provide endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedNames {
    pub(super) names: ServiceNames,
    pub(super) clusters: BTreeSet<ClusterId>,
}

/// How the endpoints of an unreachable cluster are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenDark {
    /// They stay without a time limit.
    #[default]
    Keep,
    /// They are withdrawn after the cluster has been unreachable for this time.
    WithdrawAfter(Duration),
}

/// When the simultaneous loss of many endpoints is delayed until it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MassWithdrawal {
    /// The percentage of the cluster's ready endpoints above which a loss is delayed.
    pub percent: u8,
    /// The minimum number of lost endpoints for a delay.
    pub at_least: usize,
    /// The delay; zero disables it.
    pub hold: Duration,
}

impl Default for MassWithdrawal {
    fn default() -> Self {
        Self { percent: 50, at_least: 20, hold: Duration::from_secs(30) }
    }
}

/// The limits of reading one cluster; a limit that is not set has a built-in default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadBudget {
    /// The maximum number of objects of one kind.
    pub objects: Option<usize>,
    /// The maximum number of pages of one list.
    pub pages: Option<usize>,
    /// The maximum size of one object, in bytes.
    pub object_bytes: Option<usize>,
    /// The maximum size of one page, in bytes.
    pub page_bytes: Option<usize>,
    /// The maximum memory for all objects, in bytes.
    pub memory_bytes: Option<usize>,
}
