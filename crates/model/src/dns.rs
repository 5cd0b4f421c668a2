//! The hosts for which DNS records are written: their routers' external addresses by cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ClusterId;

/// The external addresses of the ready routers of one cluster that serve a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsTarget {
    /// IP addresses and DNS names.
    pub addresses: BTreeSet<Arc<str>>,
    /// Number of ready routers.
    pub ready: usize,
}

/// All hosts that Gateways serve, with their routers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsHosts {
    /// By host, then by cluster. A host that is configured but has no ready router is empty.
    pub hosts: BTreeMap<Arc<str>, BTreeMap<ClusterId, DnsTarget>>,
    /// Members that have not been read since the start, so that their routers are unknown.
    pub unknown: BTreeSet<ClusterId>,
}

/// The form of the records for a host that several clusters serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DnsMode {
    /// One set of records with the addresses of all clusters.
    #[default]
    Simple,
    /// One set of records for each cluster, with a weight.
    Weighted,
}

impl DnsMode {
    /// Returns the mode with this name.
    ///
    /// # Errors
    /// Returns the names of all modes.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "simple" => Ok(Self::Simple),
            "weighted" => Ok(Self::Weighted),
            _ => Err("expected simple or weighted".to_owned()),
        }
    }
}
