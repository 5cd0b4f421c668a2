//! The files by which a roll-out outlasts a restart: the configuration that counts for all, and how far the next one is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Cohort;
use crate::hold::HoldFile;
use strait_base::durable;

/// What the file calls its form.
const FORM: &str = "strait rollout 2";
/// The form that didn't say who is in: the share is filled anew.
const FORM_WITHOUT_PLACES: &str = "strait rollout 1";
/// The most bytes of it: a share of some 700,000 proxies.
const BYTES_MAX: u64 = 16 << 20;

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
    /// Who is in it.
    #[serde(default)]
    places: Vec<u64>,
}

impl RolloutFiles {
    /// Those of a state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self { settled: HoldFile::of_settled(state_dir), progress: state_dir.join("rollout.json") }
    }

    /// Notes that a share is about to be given the configuration that it is of.
    ///
    /// # Errors
    /// What the system says.
    pub fn note(&self, cohort: &Cohort) -> std::io::Result<()> {
        let Cohort { name, percent, places } = cohort;
        let (form, next) = (FORM.to_owned(), name.to_string());
        let written = WrittenProgress { form, next, percent: *percent, places: places.to_vec() };
        durable::replace(&self.progress, &serde_json::to_vec(&written)?, durable::SECRET)
    }

    /// The share that was given the configuration of that name before the start. Where that can't be told it is none: it is let
    /// out from the first share on.
    pub fn reached(&self, name: &Arc<str>) -> Cohort {
        let read = durable::read_at_most(&self.progress, BYTES_MAX).ok();
        let written = read.and_then(|bytes| serde_json::from_slice::<WrittenProgress>(&bytes).ok());
        let is_it = |one: &WrittenProgress| {
            [FORM, FORM_WITHOUT_PLACES].contains(&one.form.as_str()) && *one.next == **name
        };
        let Some(written) = written.filter(is_it) else { return Cohort::new(Arc::clone(name), 0) };
        let mut places = written.places;
        places.sort_unstable();
        Cohort { name: Arc::clone(name), percent: written.percent, places: places.into() }
    }

    /// Forgets how far one was: it has ended.
    pub fn forget(&self) {
        // One that stays is of another name, or begins where it was: no worse than it was.
        let _ = durable::remove(&self.progress);
    }
}
