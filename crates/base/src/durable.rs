//! Files that are either complete or absent, even if the disk is full, the power fails or the
//! process is killed.
//!
//! A file is written under a temporary name, synced and renamed, and its directory is synced. If
//! writing fails, the temporary file is removed and the previous file stays. Reads are bounded: a
//! file above the limit is not read.

mod lines;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

pub use self::lines::{LineFile, ReadLines};

/// Mode of files that all users may read.
pub const PUBLIC: u32 = 0o644;
/// Mode of files that only their owner may read.
pub const SECRET: u32 = 0o600;

/// A file to be written: its path, content and mode.
pub type WantedFile<'a> = (PathBuf, &'a [u8], u32);

/// Replaces the content of `path`. Readers see either the old or the new file, never a part.
///
/// # Errors
/// Returns the error of the system. The old file still exists.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    replace_all(&[(path.to_owned(), contents, mode)])
}

/// Replaces several related files. No file is replaced before all have been written.
///
/// # Errors
/// Returns the error of the system.
pub fn replace_all(files: &[WantedFile<'_>]) -> io::Result<()> {
    let new_paths: Vec<_> = files.iter().map(|(path, ..)| temporary_path(path)).collect();
    let all = || new_paths.iter().zip(files);
    let replaced = all()
        .try_for_each(|(new, (_, contents, mode))| create(new, contents, *mode))
        .and_then(|()| all().try_for_each(|(new, (path, ..))| fs::rename(new, path)));
    if replaced.is_err() {
        for new in &new_paths {
            let _ = fs::remove_file(new);
        }
    }
    replaced.and_then(|()| files.iter().try_for_each(|(path, ..)| sync_parent(path)))
}

/// Deletes a file durably.
///
/// # Errors
/// Returns the error of the system; [`ErrorKind::NotFound`] if the file does not exist.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_parent(path)
}

/// Creates the directory `path` with these files atomically.
///
/// # Errors
/// Returns the error of the system; [`ErrorKind::DirectoryNotEmpty`] if the directory exists and is
/// not empty.
pub fn create_folder(path: &Path, files: &[(&str, &str, u32)]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let new = temporary_path(path);
    let written = DirBuilder::new()
        .mode(0o700)
        .create(&new)
        .and_then(|()| {
            files
                .iter()
                .try_for_each(|(name, text, mode)| create(&new.join(name), text.as_bytes(), *mode))
        })
        .and_then(|()| File::open(&new)?.sync_all())
        // A directory can only be replaced by a rename while it is empty, so the check is atomic.
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    written.and_then(|()| sync_parent(path))
}

/// Opens a regular file. Opening a pipe or a device could block forever.
///
/// # Errors
/// Returns the error of the system; [`ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// Returns the content of a file of at most `most` bytes.
///
/// # Errors
/// Returns the error of the system; [`ErrorKind::FileTooLarge`] without reading if the file is
/// larger.
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_file(path)?;
    let is = file.metadata()?.len();
    let too_large = || {
        let fact = format!("the file has {is} bytes, and the limit is {most}");
        io::Error::new(ErrorKind::FileTooLarge, fact)
    };
    if is > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile, and some files claim to be empty and never end.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

fn create(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Returns an unused name in the same directory, because a rename cannot cross file systems.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()))
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("readable");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn no_related_file_is_replaced_if_one_cannot_be_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "old").expect("written");
        let wanted = [(at("a"), &b"new"[..], SECRET), (at("missing/b"), b"new", SECRET)];
        assert!(replace_all(&wanted).is_err());
        assert_eq!(fs::read_to_string(at("a")).expect("there"), "old");
        assert_eq!(names(folder.path()), ["a"]);
        replace_all(&[(at("a"), b"new", SECRET), (at("b"), b"new", PUBLIC)]).expect("written");
        assert_eq!(names(folder.path()), ["a", "b"]);
        assert_eq!(fs::read_to_string(at("a")).expect("there"), "new");
    }

    #[test]
    fn pipe_is_not_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs");
        assert!(made.success());
        for path in [&pipe, Path::new("/dev/zero")] {
            let error = read_at_most(path, 1000).expect_err("it is no file");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }

    #[test]
    fn non_empty_directory_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca");
        let files = [("cert", "c", PUBLIC), ("key", "k", SECRET)];
        create_folder(&path, &files).expect("made");
        assert_eq!(names(&path), ["cert", "key"]);
        let error = create_folder(&path, &files).expect_err("it is not empty");
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
        assert_eq!(names(folder.path()), ["ca"]);
    }

    #[test]
    fn file_above_the_limit_is_not_read() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "12345").expect("written");
        assert_eq!(read_at_most(file.path(), 5).expect("read"), b"12345");
        let error = read_at_most(file.path(), 4).expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        // This file claims to be empty.
        let error = read_at_most(Path::new("/proc/self/status"), 9).expect_err("longer than said");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
