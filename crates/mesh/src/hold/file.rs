//! The file that preserves a hold across restarts. It contains the whole configuration, whose ID is
//! verified on reading.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ConfigurationHold, HoldScope};
use strait_base::durable;
use strait_model::{Collection, ConfigurationSnapshot, Counted};

/// The identifier of the file format.
const FORM: &str = "strait hold 1";
/// The maximum size of the file in bytes: 100,000 objects of 2 kB, rounded up.
pub(super) const BYTES_MAX: u64 = 256 << 20;

/// The file `hold.json` in the state directory, or another file in the same format.
#[derive(Debug, Clone)]
pub struct HoldFile(PathBuf);

/// The hold that was stored before the start.
#[derive(Debug, Clone, Default)]
pub enum RestoredHold {
    /// No configuration was held.
    #[default]
    Nothing,
    /// The stored hold.
    Held(Arc<ConfigurationHold>),
    /// A hold was stored but cannot be restored, for this reason.
    Lost(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenHold {
    form: String,
    id: String,
    /// Start of the hold, in milliseconds since the Unix epoch.
    since: u64,
    by: String,
    reason: String,
    with_access: bool,
    mesh: Option<Arc<str>>,
    networks: Option<Arc<str>>,
    traffic: Vec<Arc<Value>>,
    access: Vec<Arc<Value>>,
}

impl HoldFile {
    /// Returns the file for the hold in a state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self(state_dir.join("hold.json"))
    }

    /// Returns the file `settled.json` next to it. During a gradual rollout, it stores the
    /// configuration of the proxies that have not received the change.
    pub fn settled(state_dir: &Path) -> Self {
        Self(state_dir.join("settled.json"))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a hold, replacing the stored one.
    ///
    /// # Errors
    /// Returns the error of the system call; the previous file is unchanged.
    pub fn write(&self, hold: &ConfigurationHold) -> std::io::Result<()> {
        // The objects may be confidential, so only the owner may read the file.
        durable::replace(&self.0, &encode(hold)?, durable::SECRET)
    }

    /// Writes this hold, or removes the file if `hold` is `None`.
    ///
    /// # Errors
    /// Returns the error of the system call; the previous file is unchanged.
    pub fn put(&self, hold: Option<&ConfigurationHold>) -> std::io::Result<()> {
        match hold {
            Some(hold) => self.write(hold),
            None => self.remove(),
        }
    }

    /// Removes the file: there is no hold.
    ///
    /// # Errors
    /// Returns the error of the system call, except if the file does not exist.
    pub fn remove(&self) -> std::io::Result<()> {
        match durable::remove(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Reads the stored hold, completely or not at all.
    pub fn read(&self) -> RestoredHold {
        let bytes = match durable::read_at_most(&self.0, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return RestoredHold::Nothing,
            Err(error) => return RestoredHold::Lost(error.to_string()),
        };
        match parse(&bytes) {
            Ok(hold) => RestoredHold::Held(Arc::new(hold)),
            Err(fact) => RestoredHold::Lost(fact),
        }
    }
}

/// Encodes a hold for [`parse`].
///
/// # Errors
/// If the encoded hold is larger than [`BYTES_MAX`].
pub(super) fn encode(hold: &ConfigurationHold) -> std::io::Result<Vec<u8>> {
    let configuration = &hold.configuration;
    let counted = |objects: &Collection| -> Vec<Arc<Value>> {
        objects.values().map(|object| Arc::new(Counted(&object.to_value()).to_value())).collect()
    };
    let written = WrittenHold {
        form: FORM.to_owned(),
        id: configuration.id().to_string(),
        since: hold.since_ms(),
        by: hold.by.clone(),
        reason: hold.reason.clone(),
        with_access: hold.scope.is_with_access(),
        mesh: configuration.mesh.clone(),
        networks: configuration.networks.clone(),
        traffic: counted(&configuration.traffic),
        access: counted(&configuration.access),
    };
    let text = serde_json::to_vec(&written)?;
    if text.len() as u64 > BYTES_MAX {
        let fact = format!("it has {} bytes, more than {BYTES_MAX}", text.len());
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, fact));
    }
    Ok(text)
}

/// Parses an [encoded](encode) hold and verifies that its ID matches its content.
///
/// # Errors
/// Returns a description of the damage.
pub(super) fn parse(bytes: &[u8]) -> Result<ConfigurationHold, String> {
    let written: WrittenHold = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if written.form != FORM {
        return Err(format!("unsupported format {:?}; expected {FORM:?}", written.form));
    }
    let configuration = ConfigurationSnapshot::new(
        written.traffic.into_iter().collect(),
        written.access.into_iter().collect(),
        written.mesh,
        written.networks,
    );
    let id = configuration.id();
    if *id != *written.id {
        return Err(format!("its ID is {}, but its content has ID {id}", written.id));
    }
    let since = UNIX_EPOCH.checked_add(Duration::from_millis(written.since));
    let scope = if written.with_access { HoldScope::WithAccess } else { HoldScope::WithoutAccess };
    Ok(ConfigurationHold {
        configuration: Arc::new(configuration),
        since: since.unwrap_or_else(SystemTime::now),
        by: written.by,
        reason: written.reason,
        scope,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::hold_of;

    fn hold() -> ConfigurationHold {
        let object = |kind: &str, group: &str| {
            Arc::new(json!({
                "apiVersion": format!("{group}.istio.io/v1"), "kind": kind, "spec": { "a": 1 },
                "metadata": { "namespace": "shop", "name": "one", "labels": { "x": "y" } },
            }))
        };
        let configuration = ConfigurationSnapshot::new(
            [object("VirtualService", "networking")].into_iter().collect(),
            [object("AuthorizationPolicy", "security")].into_iter().collect(),
            Some("{\"connectTimeout\":\"3s\"}".into()),
            None,
        );
        hold_of(configuration, 1_700_000_000_123)
    }

    #[test]
    fn written_hold_is_read_completely() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = HoldFile::of(folder.path());
        assert!(matches!(file.read(), RestoredHold::Nothing));
        file.remove().expect("there is none");
        file.write(&hold()).expect("written");
        let RestoredHold::Held(read) = file.read() else { panic!("{:?}", file.read()) };
        assert_eq!(*read, hold());
        let objects = |hold: &ConfigurationHold| hold.configuration.objects().count();
        assert_eq!((objects(&read), read.configuration.access.len()), (2, 1));
        file.remove().expect("removed");
        assert!(matches!(file.read(), RestoredHold::Nothing));
    }

    #[test]
    fn damaged_file_is_never_restored() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = HoldFile::of(folder.path());
        file.write(&hold()).expect("written");
        let text = std::fs::read_to_string(file.path()).expect("there");
        let half = &text[..text.len() / 2];
        let id = hold().configuration.id();
        for (damaged, expected) in [
            ("", "EOF"),
            (half, "EOF"),
            (&text.replace("\"a\":1", "\"a\":2"), &*format!("its ID is {id}")),
            (&text.replace("3s", "4s"), "but its content has ID"),
            (&text.replace(FORM, "strait hold 2"), "unsupported format \"strait hold 2\""),
            (&text.replacen('{', "{\"more\":1,", 1), "unknown field"),
        ] {
            std::fs::write(file.path(), damaged).expect("written");
            let RestoredHold::Lost(fact) = file.read() else { panic!("{damaged}") };
            assert!(fact.contains(expected), "{fact}");
        }
    }
}
