//! Credentials of gateways as they are stored over a restart, in a file of the state directory that only its owner may read.
//! Written only with `--keep-gateway-secrets`: the file contains private keys.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::warn;

use super::last::{CredentialKey, LAST_BYTES_MAX, LastCredentials};
use strait_base::durable;
use strait_base::lock::lock;
use strait_model::credential::{Credential, CredentialName, CredentialPart};

/// Maximum size of the file in bytes: each line break of PEM takes two bytes in JSON.
const FILE_MAX: u64 = 3 * LAST_BYTES_MAX as u64;
/// How long to wait for further changes before all credentials are written.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredCredential {
    cluster: String,
    account: String,
    namespace: String,
    secret: String,
    #[serde(flatten)]
    content: StoredContent,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum StoredContent {
    Pair { chain: String, key: String },
    Roots { roots: String, revoked: Option<String> },
}

impl StoredCredential {
    /// Returns `None` if a part is not UTF-8, and therefore not PEM.
    fn new((cluster, account, name): &CredentialKey, credential: &Credential) -> Option<Self> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let content = match credential {
            Credential::Pair { chain, key } => {
                StoredContent::Pair { chain: text(chain)?, key: text(key)? }
            }
            Credential::Roots { roots, revoked } => {
                let revoked = revoked.as_deref().map(|lists| text(lists).ok_or(()));
                StoredContent::Roots { roots: text(roots)?, revoked: revoked.transpose().ok()? }
            }
        };
        Some(Self {
            cluster: cluster.to_string(),
            account: account.to_string(),
            namespace: name.namespace.to_string(),
            secret: name.name.to_string(),
            content,
        })
    }

    fn read(self) -> Option<(CredentialKey, Arc<Credential>)> {
        let (part, credential) = match self.content {
            StoredContent::Pair { chain, key } => {
                (CredentialPart::Pair, Credential::Pair { chain: chain.into(), key: key.into() })
            }
            StoredContent::Roots { roots, revoked } => {
                let revoked = revoked.map(Into::into);
                (CredentialPart::Roots, Credential::Roots { roots: roots.into(), revoked })
            }
        };
        let (namespace, name) = (self.namespace.as_str().into(), self.secret.into());
        let name = CredentialName { namespace, name, part };
        Some((
            (self.cluster.as_str().into(), self.account.parse().ok()?, name),
            Arc::new(credential),
        ))
    }
}

/// Reads the stored credentials. Returns an empty list if the file does not exist.
///
/// # Errors
/// Fails if the file cannot be read or its content is invalid.
pub(super) fn read(file: &Path) -> io::Result<Vec<(CredentialKey, Arc<Credential>)>> {
    let bytes = match durable::read_at_most(file, FILE_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let stored: Vec<StoredCredential> = serde_json::from_slice(&bytes)?;
    Ok(stored.into_iter().filter_map(StoredCredential::read).collect())
}

/// Writes all credentials after each change.
pub(super) async fn store_changes(
    file: PathBuf,
    last: Arc<Mutex<LastCredentials>>,
    mut changes: watch::Receiver<u64>,
) {
    while changes.changed().await.is_ok() {
        tokio::time::sleep(PAUSE).await;
        changes.mark_unchanged();
        let stored: Vec<_> = {
            let last = lock(&last);
            let mut all: Vec<_> = last.credentials.iter().collect();
            all.sort_by_key(|(key, _)| *key);
            all.into_iter().filter_map(|(key, one)| StoredCredential::new(key, one)).collect()
        };
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || {
            durable::replace(&path, &serde_json::to_vec(&stored)?, durable::SECRET)
        });
        if let Ok(Err(error)) = written.await {
            warn!(path = %file.display(), %error, "cannot store the gateway credentials");
        }
    }
}
