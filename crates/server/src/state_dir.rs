//! The state directory: selection, lock, and reports of failed writes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tracing::warn;

use super::ServeError;
use strait_base::codes;
use strait_base::source_status::{STATE_DIRECTORY, SourceFacts, SourceStatusTable};
use strait_lkg::Writes;

/// Default state directory.
const USUAL: &str = "/var/lib/strait";
/// Lock file in the directory.
const LOCK: &str = "lock";

/// State directory that is locked for this process while the value exists.
pub(super) struct StateDir {
    path: PathBuf,
    /// The system releases the lock when this file is closed, also at the end of the process.
    lock: Option<File>,
}

impl StateDir {
    /// Opens the configured directory, otherwise the default one if it is writable.
    pub(super) fn open(path_setting: Option<&Path>) -> Result<Option<Self>, ServeError> {
        if let Some(path) = path_setting {
            let created = fs::create_dir_all(path);
            created.map_err(|source| ServeError::StateDir { path: path.to_owned(), source })?;
            return Self::hold(path).map(Some);
        }
        let usual = Path::new(USUAL);
        if is_writable(usual) {
            return Self::hold(usual).map(Some);
        }
        warn!(
            "no state directory: {USUAL} is not writable and --state-dir is not set; no state on disk survives this process"
        );
        Ok(None)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn hold(path: &Path) -> Result<Self, ServeError> {
        let file = path.join(LOCK);
        let lock = match lock(&file) {
            Ok(lock) => Some(lock),
            Err(LockRefusal::InUse(holder)) => {
                return Err(ServeError::StateInUse { path: path.to_owned(), holder });
            }
            // Reading may be enough; later writers report their own failures.
            Err(LockRefusal::Unable(error)) => {
                let code = &codes::UNWRITABLE;
                let path = file.display();
                warn!(%path, %error, %code, "the state directory can't be locked. {}", code.next);
                None
            }
        };
        Ok(Self { path: path.to_owned(), lock })
    }
}

impl Drop for StateDir {
    /// Unlocks explicitly: a child process inherits the file until it executes its program.
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

/// Reason for a missing lock.
enum LockRefusal {
    /// Another process has it.
    InUse(String),
    /// The system can't lock.
    Unable(io::Error),
}

/// Locks the file. The lock of the system counts, not the existence of the file, so that it can't
/// remain after a crash.
fn lock(path: &Path) -> Result<File, LockRefusal> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path).map_err(LockRefusal::Unable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = (&mut file).take(64).read_to_string(&mut holder);
            return Err(LockRefusal::InUse(match holder.trim() {
                "" => "another process".to_owned(),
                id => format!("process {id}"),
            }));
        }
        Err(TryLockError::Error(error)) => return Err(LockRefusal::Unable(error)),
    }
    // For people only; a full disk prevents it.
    let id = format!("{}\n", std::process::id());
    let _ =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(id.as_bytes()));
    Ok(file)
}

fn is_writable(path: &Path) -> bool {
    let probe = path.join(format!(".probe-{}", std::process::id()));
    fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe)).is_ok()
}

/// Reports in the table of sources why the state can't be written, as long as this is so.
pub(super) async fn report_failures(
    path: PathBuf,
    mut writes: watch::Receiver<Writes>,
    source_statuses: SourceStatusTable,
) {
    let name = STATE_DIRECTORY.into();
    let mut reported = None;
    loop {
        let failing = writes.borrow_and_update().failing.clone();
        if failing != reported {
            match &failing {
                Some(fact) => {
                    let code = &codes::UNWRITABLE;
                    let warning = format!(
                        "{code}: {}: {fact}; a restart would restore an older state",
                        path.display()
                    );
                    let facts = SourceFacts::starting("state", path.display().to_string());
                    source_statuses.report(
                        &name,
                        &SourceFacts { synced: true, warnings: vec![warning], ..facts },
                    );
                }
                None => source_statuses.forget(&name),
            }
            reported = failing;
        }
        if writes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_has_one_holder_until_it_is_released() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        // Remainder of a killed process.
        fs::write(path.join(LOCK), "4194304\n").expect("written");
        let held = StateDir::open(Some(path)).expect("free").expect("a directory");
        let Err(ServeError::StateInUse { holder, .. }) = StateDir::open(Some(path)) else {
            panic!("it has two holders");
        };
        assert_eq!(holder, format!("process {}", std::process::id()));
        drop(held);
        StateDir::open(Some(path)).expect("free again");
    }
}
