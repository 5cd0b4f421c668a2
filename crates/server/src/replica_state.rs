//! The last known state of a running replica, for a replica that starts without one.
//!
//! Without a disk, a new replica does not know the members that it cannot read at that moment. It
//! copies the files of a running replica and reads them like its own files: each has a checksum, and
//! the state is reported as restored, with its age. The files contain no credentials.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::replicas::{ANSWER_BYTES_MAX, OtherReplicas, PeerRequest};
use strait_base::durable;

/// Path at which a replica returns its state to other replicas.
pub(super) const PATH: &str = "/replica/state";
/// Maximum time of a start to find the other replicas.
const FIND_LIMIT: Duration = Duration::from_secs(3);
/// Maximum time of a start to receive the state.
const TAKE_LIMIT: Duration = Duration::from_secs(15);
/// Folder of the state directory with the files.
const FOLDER: &str = "lkg";
/// Folder in which received files are collected.
const RECEIVED: &str = "lkg.received";
/// Maximum length of a file name in bytes.
const NAME_MAX: usize = 255;

/// Takes the state of another replica, if this one has none.
pub(super) async fn take(replicas: &OtherReplicas, state_dir: &Path) {
    if !is_empty(&state_dir.join(FOLDER)) {
        return;
    }
    let peers = replicas.found(FIND_LIMIT).await;
    let transfer = async {
        for peer in peers {
            let refused = |reason: String| {
                warn!(
                    replica = peer.label(),
                    reason, "copying the last known state of a replica failed"
                );
            };
            let answer = match replicas.request(&peer, PeerRequest::get(PATH)).await {
                Ok(answer) if answer.status == StatusCode::OK => answer,
                // It has no state directory, or is starting too.
                Ok(_) => continue,
                Err(_) if replicas.is_this_process(&peer) => continue,
                Err(reason) => {
                    refused(reason);
                    continue;
                }
            };
            match store(&answer.body, state_dir) {
                Ok(0) => {}
                Ok(files) => {
                    info!(
                        replica = peer.label(),
                        files, "copied the last known state of a replica"
                    );
                    return;
                }
                Err(error) => refused(error.to_string()),
            }
        }
    };
    if timeout(TAKE_LIMIT, transfer).await.is_err() {
        warn!("copying the last known state of another replica timed out; starting without it");
    }
}

/// Returns whether the folder contains no state.
fn is_empty(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    !entries.any(|entry| entry.file_name().into_string().is_ok_and(|it| is_state(&it)))
}

/// Returns whether this is the name of a file of the last known state.
fn is_state(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let has_kind = [".lkg", ".journal"].iter().any(|kind| name.ends_with(kind));
    name.len() <= NAME_MAX && !name.starts_with('.') && name.bytes().all(is_plain) && has_kind
}

/// Packs the files of the state, each as the length of its name, its name, its length, and its
/// content. Omits a file that is replaced at the same time.
///
/// # Errors
/// If the files are larger than a replica accepts.
pub(super) fn pack(state_dir: &Path) -> io::Result<Vec<u8>> {
    let mut packed = Vec::new();
    for entry in fs::read_dir(state_dir.join(FOLDER)).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !is_state(&name) {
            continue;
        }
        let Ok(content) = fs::read(entry.path()) else { continue };
        if packed.len() + content.len() + NAME_MAX > ANSWER_BYTES_MAX {
            let text = format!("the last known state is larger than {ANSWER_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        for part in [name.as_bytes(), &content] {
            packed.extend_from_slice(&(part.len() as u64).to_le_bytes());
            packed.extend_from_slice(part);
        }
    }
    Ok(packed)
}

/// Reads packed files. Returns `None` if they are incomplete or a name is invalid.
fn unpack(mut packed: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let mut files = Vec::new();
    while !packed.is_empty() {
        let name = part(&mut packed)?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_state(name))?;
        files.push((name.to_owned(), part(&mut packed)?));
    }
    Some(files)
}

fn part<'a>(packed: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = packed.split_first_chunk::<8>()?;
    let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    *packed = rest;
    Some(part)
}

/// Writes packed files into the state directory: all of them or none. Returns their number.
fn store(packed: &[u8], state_dir: &Path) -> io::Result<usize> {
    let files = unpack(packed).ok_or_else(|| io::Error::other("the files are incomplete"))?;
    if files.is_empty() {
        return Ok(0);
    }
    let (folder, received) = (state_dir.join(FOLDER), state_dir.join(RECEIVED));
    match fs::remove_dir_all(&received) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(&received)?;
    for (name, content) in &files {
        durable::replace(&received.join(name), content, durable::SECRET)?;
    }
    // An empty folder is replaced.
    fs::rename(&received, &folder)?;
    Ok(files.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_one_replica_is_the_state_of_another() {
        let [one, other] = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
        let folder = one.path().join(FOLDER);
        assert!(pack(one.path()).expect("no files").is_empty());
        assert_eq!(store(&[], other.path()).expect("nothing"), 0);
        fs::create_dir(&folder).expect("a folder");
        for (name, content) in [
            ("members.1.lkg", "a"),
            ("shard-east.2.lkg", ""),
            ("shard-east.2.journal", "bc"),
            (".x.lkg", "d"),
            ("lock", "e"),
        ] {
            fs::write(folder.join(name), content).expect("written");
        }
        let packed = pack(one.path()).expect("small");
        fs::create_dir(other.path().join(FOLDER)).expect("an empty folder");
        assert!(is_empty(&other.path().join(FOLDER)));
        assert_eq!(store(&packed, other.path()).expect("stored"), 3);
        let taken = other.path().join(FOLDER);
        assert!(!is_empty(&taken));
        assert_eq!(fs::read_to_string(taken.join("shard-east.2.journal")).expect("there"), "bc");
        assert_eq!(fs::read_dir(&taken).expect("there").count(), 3);
        assert_eq!(
            fs::read_dir(other.path()).expect("there").count(),
            1,
            "no other folder remains"
        );
    }

    #[test]
    fn incomplete_or_foreign_files_are_not_taken() {
        let named = |name: &str| {
            let mut packed = Vec::new();
            for part in [name.as_bytes(), b"x"] {
                packed.extend_from_slice(&(part.len() as u64).to_le_bytes());
                packed.extend_from_slice(part);
            }
            packed
        };
        let whole = named("members.1.lkg");
        assert_eq!(unpack(&whole), Some(vec![("members.1.lkg".to_owned(), &b"x"[..])]));
        for length in 1..whole.len() {
            assert_eq!(unpack(&whole[..length]), None, "{length}");
        }
        for name in ["../a.lkg", "a/b.lkg", ".a.lkg", "admin-token", "", "a b.lkg", "ä.lkg"] {
            assert_eq!(unpack(&named(name)), None, "{name}");
        }
        assert_eq!(unpack(&[0xff; 16]), None, "a length beyond the end");
    }
}
