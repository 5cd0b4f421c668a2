//! Certificates and keys on disk, whole or not there.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::error::IdentityError;
use strait_base::durable::{self, WantedFile};
pub(super) use strait_base::durable::{PUBLIC, SECRET};

/// The most bytes that a file of certificates or keys may have: bundles of all public roots have some 250 KiB.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Puts files that belong together in the place of older ones, all or none.
pub(super) fn replace_all(folder: &Path, files: &[WantedFile<'_>]) -> Result<(), IdentityError> {
    durable::replace_all(files)
        .map_err(|source| IdentityError::Write { path: folder.to_owned(), source })
}

/// Makes the folder `path` with `files` in it, all at once; it must be absent or empty.
pub(super) fn create_folder(path: &Path, files: &[(&str, &str, u32)]) -> Result<(), IdentityError> {
    durable::create_folder(path, files).map_err(|source| match source.kind() {
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
            IdentityError::NotEmpty { path: path.to_owned() }
        }
        _ => IdentityError::Write { path: path.to_owned(), source },
    })
}

/// The bytes of one.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    durable::read_at_most(path, BYTES_MAX)
}
