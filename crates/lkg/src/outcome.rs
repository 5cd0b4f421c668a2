//! What became of writing: what the files say then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use strait_identity::token::IssuerKeys;
use strait_mesh::push::PushContext;
use strait_model::{ClusterId, RememberedObjects, StandIn};

/// What the files say, as far as this process wrote them.
#[derive(Clone, Default)]
pub(super) struct WrittenClusters {
    pub(super) context: Option<Arc<PushContext>>,
    pub(super) held: Arc<ServedClusters>,
    pub(super) others: WrittenOthers,
    pub(super) mesh: Option<Arc<BTreeMap<String, String>>>,
    /// Whether the list of members has been written since these are held.
    pub(super) members: bool,
}

/// What came of it.
pub(super) struct WriteOutcome {
    /// Bytes written.
    pub(super) bytes: usize,
    /// What the files say now.
    pub(super) written: WrittenClusters,
    /// What could not be written: the first of it.
    pub(super) trouble: io::Result<()>,
}

impl WriteOutcome {
    /// Nobody knows what the files say.
    pub(super) fn failed(error: &tokio::task::JoinError) -> Self {
        Self {
            bytes: 0,
            written: WrittenClusters::default(),
            trouble: Err(io::Error::other(error.to_string())),
        }
    }

    /// Counts what was written; whether it was.
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

/// What each store of objects holds, by its name.
pub type StoreStates = BTreeMap<Arc<str>, RememberedObjects>;

/// Objects that make no sense, each with what it was when it last did.
pub type StandIns = Vec<StandIn>;

/// By which keys the tokens of each cluster are signed.
pub type Issuers = BTreeMap<ClusterId, Arc<IssuerKeys>>;

/// What the files say, as far as this process wrote them.
#[derive(Clone, Default)]
pub(super) struct WrittenOthers {
    pub(super) datacentres: BTreeSet<ClusterId>,
    /// With what stands in for what makes no sense in its place.
    pub(super) stores: StoreStates,
    pub(super) issuers: Arc<Issuers>,
}

/// The clusters whose data is served.
pub(super) type ServedClusters = BTreeMap<ClusterId, StatusRecord>;

/// What is written of a cluster's status, but for times.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StatusRecord {
    pub(super) uid: Option<String>,
    pub(super) secret: Option<String>,
}
