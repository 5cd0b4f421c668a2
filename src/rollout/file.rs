//! The files by which a roll-out outlasts a restart: the configuration that counts for all, and how far the next one is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::durable;
use crate::hold::HoldFile;

/// What the file calls its form.
const FORM: &str = "strait rollout 1";
/// The most bytes of it.
const BYTES_MAX: u64 = 4096;

/// The files of a state directory.
#[derive(Debug, Clone)]
pub struct RolloutFiles {
    /// The configuration that counts for all: what a restart compares with. It is there while the policy asks for roll-outs.
    pub settled: HoldFile,
    progress: PathBuf,
}

/// How far a configuration has been let out.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenProgress {
    form: String,
    /// Its name.
    next: String,
    /// The share that was given it, of a hundred.
    percent: u8,
}

impl RolloutFiles {
    /// Those of a state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self { settled: HoldFile::of_settled(state_dir), progress: state_dir.join("rollout.json") }
    }

    /// Notes that a share is about to be given the configuration of that name.
    ///
    /// # Errors
    /// What the system says.
    pub fn note(&self, name: &str, percent: u8) -> std::io::Result<()> {
        let written = WrittenProgress { form: FORM.to_owned(), next: name.to_owned(), percent };
        durable::replace(&self.progress, &serde_json::to_vec(&written)?, durable::SECRET)
    }

    /// The share that was given the configuration of that name before the start. Where that can't be told it is none: it is let
    /// out from the first share on.
    pub fn reached(&self, name: &Arc<str>) -> u8 {
        let read = durable::read_at_most(&self.progress, BYTES_MAX).ok();
        let written = read.and_then(|bytes| serde_json::from_slice::<WrittenProgress>(&bytes).ok());
        let is_it = |one: &WrittenProgress| one.form == FORM && *one.next == **name;
        written.filter(is_it).map_or(0, |written| written.percent)
    }

    /// Forgets how far one was: it has ended.
    pub fn forget(&self) {
        // One that stays is of another name, or begins where it was: no worse than it was.
        let _ = durable::remove(&self.progress);
    }
}
