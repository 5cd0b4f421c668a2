//! The state directory: found, held by one process, and reported where it can't be written.

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

/// Where state is kept when nothing else is set.
const USUAL: &str = "/var/lib/strait";
/// The file in it that says whose it is.
const LOCK: &str = "lock";

/// A state directory that is ours for as long as this value lives.
pub(super) struct StateDir {
    path: PathBuf,
    /// The system takes the lock away when this is closed, by the end of the process too.
    lock: Option<File>,
}

impl StateDir {
    /// The directory that was asked for, else the usual one where it can be written.
    pub(super) fn open(asked: Option<&Path>) -> Result<Option<Self>, ServeError> {
        if let Some(path) = asked {
            let made = fs::create_dir_all(path);
            made.map_err(|source| ServeError::StateDir { path: path.to_owned(), source })?;
            return Self::hold(path).map(Some);
        }
        let usual = Path::new(USUAL);
        if is_writable(usual) {
            return Self::hold(usual).map(Some);
        }
        warn!(
            "no state directory: {USUAL} can't be written and --state-dir is not given; nothing outlives this process on its own disk"
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
            Err(LockRefusal::Held(holder)) => {
                return Err(ServeError::StateInUse { path: path.to_owned(), holder });
            }
            // What is there may be all that is needed: who can't go on without writing says so.
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
    /// Closing the file is not enough: a program that is being started holds it as well, until it runs.
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

/// Why there is no lock.
enum LockRefusal {
    /// Somebody has it.
    Held(String),
    /// The system gives none.
    Unable(io::Error),
}

/// A lock of the system's, not the file, says whether somebody is there: it can't be left behind.
fn lock(path: &Path) -> Result<File, LockRefusal> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path).map_err(LockRefusal::Unable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = (&mut file).take(64).read_to_string(&mut holder);
            return Err(LockRefusal::Held(match holder.trim() {
                "" => "another process".to_owned(),
                id => format!("process {id}"),
            }));
        }
        Err(TryLockError::Error(error)) => return Err(LockRefusal::Unable(error)),
    }
    // For people only: on a full disk it is not there.
    let id = format!("{}\n", std::process::id());
    let _ =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(id.as_bytes()));
    Ok(file)
}

fn is_writable(path: &Path) -> bool {
    let probe = path.join(format!(".probe-{}", std::process::id()));
    fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe)).is_ok()
}

/// Says on the board why the state can't be written, for as long as it can't.
pub(super) async fn tell(
    path: PathBuf,
    mut writes: watch::Receiver<Writes>,
    source_statuses: SourceStatusTable,
) {
    let name = STATE_DIRECTORY.into();
    let mut told = None;
    loop {
        let failing = writes.borrow_and_update().failing.clone();
        if failing != told {
            match &failing {
                Some(fact) => {
                    let code = &codes::UNWRITABLE;
                    let warning = format!(
                        "{code}: {}: {fact}; a restart would find the state from before",
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
            told = failing;
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
    fn a_directory_has_one_holder_and_none_once_that_has_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        // What a process left that was killed.
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
