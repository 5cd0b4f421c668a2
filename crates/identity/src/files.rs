//! Files of certificates and keys, which are complete or absent.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::error::IdentityError;
use strait_base::durable::{self, WantedFile};
pub(super) use strait_base::durable::{PUBLIC, SECRET};

/// Maximum size of a file in bytes; a bundle of all public roots has about 250 KiB.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Replaces files that belong together, either all of them or none.
pub(super) fn replace_all(folder: &Path, files: &[WantedFile<'_>]) -> Result<(), IdentityError> {
    durable::replace_all(files)
        .map_err(|source| IdentityError::Write { path: folder.to_owned(), source })
}

/// Creates the directory `path` with `files` in one step; it must be absent or empty.
pub(super) fn create_folder(path: &Path, files: &[(&str, &str, u32)]) -> Result<(), IdentityError> {
    durable::create_folder(path, files).map_err(|source| match source.kind() {
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
            IdentityError::NotEmpty { path: path.to_owned() }
        }
        _ => IdentityError::Write { path: path.to_owned(), source },
    })
}

/// Reads a file of limited size.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    durable::read_at_most(path, BYTES_MAX)
}
