//! The outcome of a write: the content of the files afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use strait_identity::token::IssuerKeys;
use strait_mesh::push::PushContext;
use strait_model::{ClusterId, LastValidObject, RememberedObjects};

/// The content of the files, as far as this process wrote them.
#[derive(Clone, Default)]
pub(super) struct WrittenClusters {
    pub(super) context: Option<Arc<PushContext>>,
    pub(super) held: Arc<ServedClusters>,
    pub(super) others: WrittenOthers,
    pub(super) mesh: Option<Arc<BTreeMap<String, String>>>,
    /// Whether the list of members has been written since `held` last changed.
    pub(super) members: bool,
}

/// The outcome of one write.
pub(super) struct WriteOutcome {
    /// Bytes written.
    pub(super) bytes: usize,
    /// The content of the files after the write.
    pub(super) written: WrittenClusters,
    /// The first error of the write.
    pub(super) trouble: io::Result<()>,
}

impl WriteOutcome {
    /// Returns the outcome of a write that panicked. The content of the files is unknown.
    pub(super) fn failed(error: &tokio::task::JoinError) -> Self {
        Self {
            bytes: 0,
            written: WrittenClusters::default(),
            trouble: Err(io::Error::other(error.to_string())),
        }
    }

    /// Adds the written bytes or keeps the first error. Returns whether the write succeeded.
    pub(super) fn note(&mut self, result: io::Result<usize>) -> bool {
        match result {
            Ok(bytes) => self.bytes += bytes,
            Err(error) => {
                if self.trouble.is_ok() {
                    self.trouble = Err(error);
                }
                return false;
            }
        }
        true
    }
}

/// The objects of each store, by the store's name.
pub type StoreStates = BTreeMap<Arc<str>, RememberedObjects>;

/// Invalid objects, each with its last valid version.
pub type LastValidObjects = Vec<LastValidObject>;

/// The keys that sign the tokens of each cluster.
pub type Issuers = BTreeMap<ClusterId, Arc<IssuerKeys>>;

/// The content of the files of sources that are not member clusters, as far as this process wrote
/// them.
#[derive(Clone, Default)]
pub(super) struct WrittenOthers {
    pub(super) datacentres: BTreeSet<ClusterId>,
    /// The objects of each store. Invalid objects are replaced by their last valid version.
    pub(super) stores: StoreStates,
    pub(super) issuers: Arc<Issuers>,
}

/// The clusters whose data is served.
pub(super) type ServedClusters = BTreeMap<ClusterId, StatusRecord>;

/// The stored part of a cluster's status, without times.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StatusRecord {
    pub(super) uid: Option<String>,
    pub(super) secret: Option<String>,
    pub(super) found_by: Option<Arc<str>>,
}
