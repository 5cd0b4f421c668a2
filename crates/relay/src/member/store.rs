//! Where a relay stores its certificate: in memory, in a directory, or in a Secret that several relays share.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use strait_base::durable;
use strait_kube_client::{Patch, Redacted};

use super::api_server::ApiServer;
use super::certificate::{CHAIN_FILE, KEY_FILE, ROOTS_FILE, RelayCertificate, TOKEN_FILE};

/// The parts of a certificate, in the order of [`RelayCertificate::new`].
const FILES: [&str; 4] = [CHAIN_FILE, KEY_FILE, ROOTS_FILE, TOKEN_FILE];
/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a relay stores its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateStore {
    /// Nowhere: a relay that starts again must enrol again.
    Memory,
    /// In files of this directory.
    Folder(PathBuf),
    /// In a Secret of the relay's cluster, which must exist.
    Secret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

#[derive(Deserialize)]
struct SecretData {
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

impl CertificateStore {
    /// Returns the stored certificate, if it is complete and of this cluster.
    ///
    /// # Errors
    /// The reason why it cannot be read or used.
    pub(super) async fn load(
        &self,
        api: &ApiServer,
        cluster: &str,
    ) -> Result<Option<RelayCertificate>, String> {
        let parts = match self {
            Self::Memory => None,
            Self::Folder(folder) => {
                let mut parts = Vec::new();
                for name in FILES {
                    let path = folder.join(name);
                    match durable::read_at_most(&path, FILE_BYTES_MAX) {
                        Ok(bytes) => parts.push(text(bytes)),
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => return Err(format!("{}: {error}", path.display())),
                    }
                }
                Some(parts)
            }
            Self::Secret { namespace, name } => {
                let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
                let found: Result<SecretData, _> = api.client().get(&path).await;
                let data = found
                    .map_err(|error| format!("secret {namespace}/{name}: {error}"))?
                    .data
                    .unwrap_or_default();
                let decode = |name: &str| BASE64.decode(data.get(name)?).ok().map(text);
                Some(FILES.iter().filter_map(|name| decode(name)).collect())
            }
        };
        let Some(Ok(parts)) = parts.map(<[String; 4]>::try_from) else { return Ok(None) };
        RelayCertificate::new(parts, cluster).map(Some).map_err(|error| error.to_string())
    }

    /// Stores a certificate.
    ///
    /// # Errors
    /// The reason why it cannot be written.
    pub(super) async fn save(
        &self,
        api: &ApiServer,
        certificate: &RelayCertificate,
    ) -> Result<(), String> {
        let RelayCertificate { chain, key, roots, token_hash, .. } = certificate;
        let parts = [chain, key.reveal(), roots, token_hash];
        match self {
            Self::Memory => Ok(()),
            Self::Folder(folder) => {
                let files = FILES
                    .iter()
                    .zip(parts)
                    .map(|(name, text)| (folder.join(name), text.as_bytes(), durable::SECRET));
                std::fs::create_dir_all(folder)
                    .and_then(|()| durable::replace_all(&files.collect::<Vec<_>>()))
                    .map_err(|error| format!("{}: {error}", folder.display()))
            }
            Self::Secret { namespace, name } => {
                let data: Map<String, Value> = FILES
                    .iter()
                    .zip(parts)
                    .map(|(name, text)| ((*name).to_owned(), BASE64.encode(text).into()))
                    .collect();
                let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
                let change = json!({ "data": data });
                let patched = api.client().patch::<IgnoredAny>(&path, Patch::Merge, &change).await;
                patched.map(drop).map_err(|error| format!("secret {namespace}/{name}: {error}"))
            }
        }
    }
}

/// Reads a token or another secret of one line from a file.
///
/// # Errors
/// The reason, with the path.
pub(super) fn read_secret(path: &std::path::Path) -> Result<Redacted<String>, String> {
    let bytes = durable::read_at_most(path, FILE_BYTES_MAX)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{} is not text", path.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty", path.display())),
        text => Ok(Redacted::new(text.to_owned())),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}
