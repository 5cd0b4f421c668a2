//! The files that preserve a rollout across restarts: the configuration of all other proxies, and
//! the progress of the next one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Cohort;
use crate::hold::HoldFile;
use strait_base::durable;

/// The identifier of the file format.
const FORM: &str = "strait rollout 2";
/// The identifier of an older format without the members of the cohort, which is then filled again.
const FORM_WITHOUT_PLACES: &str = "strait rollout 1";
/// The maximum size of the file in bytes: a cohort of about 700,000 proxies.
const BYTES_MAX: u64 = 16 << 20;

/// The files in a state directory.
#[derive(Debug, Clone)]
pub struct RolloutFiles {
    /// The configuration of all proxies outside of a rollout, with which a restart compares the
    /// current objects. The file exists while the policy requires gradual rollouts.
    pub settled: HoldFile,
    progress: PathBuf,
}

/// The progress of a rollout.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenProgress {
    form: String,
    /// The name of the new configuration.
    next: String,
    /// The percentage of proxies that received it.
    percent: u8,
    /// The members of the cohort.
    #[serde(default)]
    places: Vec<u64>,
}

impl RolloutFiles {
    /// Returns the files of a state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self { settled: HoldFile::settled(state_dir), progress: state_dir.join("rollout.json") }
    }

    /// Records that a cohort is about to receive the new configuration.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn note(&self, cohort: &Cohort) -> std::io::Result<()> {
        let Cohort { name, percent, places } = cohort;
        let (form, next) = (FORM.to_owned(), name.to_string());
        let written = WrittenProgress { form, next, percent: *percent, places: places.to_vec() };
        durable::replace(&self.progress, &serde_json::to_vec(&written)?, durable::SECRET)
    }

    /// Returns the cohort that had received the configuration with this name before the start. If
    /// it is unknown, returns an empty cohort, so that the rollout starts again at the first step.
    pub fn reached(&self, name: &Arc<str>) -> Cohort {
        let read = durable::read_at_most(&self.progress, BYTES_MAX).ok();
        let written = read.and_then(|bytes| serde_json::from_slice::<WrittenProgress>(&bytes).ok());
        let is_same_configuration = |one: &WrittenProgress| {
            [FORM, FORM_WITHOUT_PLACES].contains(&one.form.as_str()) && *one.next == **name
        };
        let Some(written) = written.filter(is_same_configuration) else {
            return Cohort::new(Arc::clone(name), 0);
        };
        let mut places = written.places;
        places.sort_unstable();
        Cohort { name: Arc::clone(name), percent: written.percent, places: places.into() }
    }

    /// Deletes the progress of a rollout that has ended.
    pub fn forget(&self) {
        // If deleting fails, the file has no effect on other configurations, and the same one
        // continues at the recorded step.
        let _ = durable::remove(&self.progress);
    }
}
