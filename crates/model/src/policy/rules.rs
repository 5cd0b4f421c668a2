//! The rules that a policy file holds, as plain values.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;

use super::names::ServiceNames;
use crate::{ClusterId, Mode, NetworkId};

/// What holds for a cluster; what is not set is as the mesh has it.
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
}

/// Names that only some clusters may have endpoints for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedNames {
    pub(super) names: ServiceNames,
    pub(super) clusters: BTreeSet<ClusterId>,
}

/// What becomes of the endpoints of a cluster that is out of contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenDark {
    /// They stay, for as long as it takes.
    #[default]
    Keep,
    /// They are withdrawn once nothing has been heard for so long.
    WithdrawAfter(Duration),
}

/// When the loss of many endpoints at once is held back until it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MassWithdrawal {
    /// More than so many of a hundred ready endpoints of the cluster.
    pub percent: u8,
    /// And at least so many.
    pub at_least: usize,
    /// For how long; zero for not at all.
    pub hold: Duration,
}

impl Default for MassWithdrawal {
    fn default() -> Self {
        Self { percent: 50, at_least: 20, hold: Duration::from_secs(30) }
    }
}

/// The most that is read of one cluster; what is not set is as built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadBudget {
    /// Objects of one kind.
    pub objects: Option<usize>,
    /// Pages of one list.
    pub pages: Option<usize>,
    /// Bytes of one object.
    pub object_bytes: Option<usize>,
    /// Bytes of one page.
    pub page_bytes: Option<usize>,
    /// Bytes of memory that all of it takes.
    pub memory_bytes: Option<usize>,
}
