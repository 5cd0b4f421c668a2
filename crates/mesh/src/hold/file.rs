//! The file that has a hold outlast a restart: the whole configuration, by which its name is proven when it is read.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ConfigurationHold, HoldScope};
use strait_base::durable;
use strait_model::{Collection, ConfigurationSnapshot, Counted};

/// What the file calls its form.
const FORM: &str = "strait hold 1";
/// The most bytes of it: 100,000 objects of 2 kB.
pub(super) const BYTES_MAX: u64 = 256 << 20;

/// The file `hold.json` of the state directory, or one of its form.
#[derive(Debug, Clone)]
pub struct HoldFile(PathBuf);

/// What of a hold there was before the start.
#[derive(Debug, Clone, Default)]
pub enum RestoredHold {
    /// Nothing was held.
    #[default]
    Nothing,
    /// This was.
    Held(Arc<ConfigurationHold>),
    /// Something was, and what it was can't be told, for this reason.
    Lost(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenHold {
    form: String,
    id: String,
    /// Milliseconds since the Unix epoch.
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
    /// That of a state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self(state_dir.join("hold.json"))
    }

    /// The same form in a file beside it: what counts for all while changes are let out in shares.
    pub fn of_settled(state_dir: &Path) -> Self {
        Self(state_dir.join("settled.json"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Puts a hold in the place of what was held before.
    ///
    /// # Errors
    /// What the system says; what was there is still there.
    pub fn write(&self, hold: &ConfigurationHold) -> std::io::Result<()> {
        // What operators wrote is nobody else's.
        durable::replace(&self.0, &encode(hold)?, durable::SECRET)
    }

    /// Has it say what is held: this, or nothing.
    ///
    /// # Errors
    /// What the system says; what was there is still there.
    pub fn put(&self, hold: Option<&ConfigurationHold>) -> std::io::Result<()> {
        match hold {
            Some(hold) => self.write(hold),
            None => self.remove(),
        }
    }

    /// Takes it away: nothing is held any more.
    ///
    /// # Errors
    /// What the system says, but that there is none.
    pub fn remove(&self) -> std::io::Result<()> {
        match durable::remove(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// What was held, whole or not at all.
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

/// The whole of a hold, as [`parse`] reads it.
///
/// # Errors
/// It is larger than [`BYTES_MAX`].
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

/// The hold that was [encoded](encode), whole or not at all: its content proves its name.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<ConfigurationHold, String> {
    let written: WrittenHold = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if written.form != FORM {
        return Err(format!("its form is {:?}, and {FORM:?} is known", written.form));
    }
    let configuration = ConfigurationSnapshot::new(
        written.traffic.into_iter().collect(),
        written.access.into_iter().collect(),
        written.mesh,
        written.networks,
    );
    let id = configuration.id();
    if *id != *written.id {
        return Err(format!("it says that it is {}, and its content is {id}", written.id));
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
    fn what_is_written_is_read_whole() {
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
    fn what_is_damaged_is_never_taken_for_what_was_held() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = HoldFile::of(folder.path());
        file.write(&hold()).expect("written");
        let text = std::fs::read_to_string(file.path()).expect("there");
        let half = &text[..text.len() / 2];
        let id = hold().configuration.id();
        for (damaged, expected) in [
            ("", "EOF"),
            (half, "EOF"),
            (&text.replace("\"a\":1", "\"a\":2"), &*format!("it says that it is {id}")),
            (&text.replace("3s", "4s"), "and its content is"),
            (&text.replace(FORM, "strait hold 2"), "its form is \"strait hold 2\""),
            (&text.replacen('{', "{\"more\":1,", 1), "unknown field"),
        ] {
            std::fs::write(file.path(), damaged).expect("written");
            let RestoredHold::Lost(fact) = file.read() else { panic!("{damaged}") };
            assert!(fact.contains(expected), "{fact}");
        }
    }
}
