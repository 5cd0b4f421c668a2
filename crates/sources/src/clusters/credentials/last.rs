//! The credentials that were read last, for gateways that request them while their API server is unreachable.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use strait_identity::SpiffeId;
use strait_model::ClusterId;
use strait_model::credential::{Credential, CredentialName};

/// Maximum number of credentials that are followed at once, and that are stored.
pub(super) const FOLLOWED_MAX: usize = 8192;
/// Maximum size of the stored credentials in bytes.
pub(super) const LAST_BYTES_MAX: usize = 64 << 20;

/// The member, the account that may read the credential, and the credential's name.
pub(super) type CredentialKey = (ClusterId, SpiffeId, CredentialName);

/// The credentials that were read last, by account. Each account had the right to list Secrets at that time.
#[derive(Debug, Default)]
pub(super) struct LastCredentials {
    pub(super) credentials: HashMap<CredentialKey, Arc<Credential>>,
    bytes: usize,
    /// Number of changes.
    pub(super) changes: watch::Sender<u64>,
}

impl LastCredentials {
    pub(super) fn get(&self, key: &CredentialKey) -> Option<Arc<Credential>> {
        self.credentials.get(key).cloned()
    }

    /// Stores a credential if there is room for it.
    pub(super) fn insert(&mut self, key: &CredentialKey, credential: &Arc<Credential>) {
        if self.credentials.get(key) == Some(credential) {
            return;
        }
        self.remove(key);
        let bytes = self.bytes + credential.size();
        if self.credentials.len() < FOLLOWED_MAX && bytes <= LAST_BYTES_MAX {
            self.bytes = bytes;
            self.credentials.insert(key.clone(), Arc::clone(credential));
            self.changes.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn remove(&mut self, key: &CredentialKey) {
        if let Some(credential) = self.credentials.remove(key) {
            self.bytes -= credential.size();
            self.changes.send_modify(|count| *count += 1);
        }
    }
}
