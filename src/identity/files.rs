//! Files that are whole or absent, whatever happens while they are written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::Error;

/// May be read by everyone.
pub(super) const PUBLIC: u32 = 0o644;
/// May be read by its owner only.
pub(super) const SECRET: u32 = 0o600;

/// Puts `contents` in place of `path`: a reader sees the old file or the new one, never a part.
pub(super) fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let new = beside(path);
    let written = create(&new, contents, mode).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.and_then(|()| sync_parent(path)).map_err(failed)
}

/// Makes the folder `path` with `files` in it, all at once; it must be absent or empty.
pub(super) fn create_folder(path: &Path, files: &[(&str, &str, u32)]) -> Result<(), Error> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
            Error::NotEmpty { path: path.to_owned() }
        }
        _ => Error::Write { path: path.to_owned(), source },
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    let new = beside(path);
    let written = fs::DirBuilder::new()
        .mode(0o700)
        .create(&new)
        .and_then(|()| {
            files
                .iter()
                .try_for_each(|(name, text, mode)| create(&new.join(name), text.as_bytes(), *mode))
        })
        // Renaming onto a folder works only while that is empty: the check and the act are one.
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    written.and_then(|()| sync_parent(path)).map_err(failed)
}

fn create(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// A name nobody else uses, in the same folder: a rename must not leave the file system.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()))
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}
