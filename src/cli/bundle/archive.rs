//! The archive of a support bundle: a compressed tar file whose first entry lists the others.
//!
//! The reader does not trust the archive: sizes are bounded, and no name in it becomes a path of
//! this machine.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use strait_base::durable;

/// Name of the entry that lists the others.
const CONTENTS: &str = "contents.json";
/// Maximum size of an archive that is read, in bytes.
const FILE_MAX: u64 = 512 << 20;
/// Maximum size of the unpacked content, in bytes.
pub(super) const UNPACKED_MAX: u64 = 1 << 30;
/// Maximum number of entries.
const ENTRIES_MAX: usize = 100_000;

/// A bundle: its list of contents, and its files by name.
#[derive(Debug)]
pub(crate) struct SupportBundle {
    pub(crate) contents: BundleContents,
    pub(crate) files: BTreeMap<String, Bytes>,
}

/// The list of contents of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BundleContents {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Time of collection, as RFC 3339.
    pub(crate) taken: String,
    /// Version of the program that collected the bundle, as `strait version` prints it.
    pub(super) strait: Value,
    /// The control plane that the bundle describes.
    pub(super) server: BundleServer,
    pub(crate) files: Vec<BundleFile>,
    /// Descriptions of parts that are missing because of a limit or because the control plane has
    /// no response for them.
    pub(super) left_out: Vec<String>,
}

/// The control plane that a bundle describes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BundleServer {
    pub(super) url: String,
    pub(super) version: Option<String>,
}

/// One file of a bundle: a response of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BundleFile {
    pub(crate) file: String,
    /// Path of the request.
    pub(crate) path: String,
    /// Query parameters of the request, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) query: BTreeMap<String, String>,
    /// HTTP status of the response.
    pub(crate) status: u16,
    /// Content type of the response.
    pub(crate) kind: String,
    pub(super) bytes: usize,
    /// Number of secrets that were removed.
    pub(super) redacted: usize,
}

/// Reason why a bundle cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the file is not a support bundle: it has no {CONTENTS}")]
    NoContents,
    #[error("its {CONTENTS} can't be read: {0}")]
    Contents(#[from] serde_json::Error),
    #[error("it has more than {ENTRIES_MAX} entries or {UNPACKED_MAX} bytes")]
    TooLarge,
}

impl SupportBundle {
    /// Packs the bundle and returns the bytes of the archive.
    ///
    /// # Errors
    /// Only errors of the system: the archive is written to memory.
    pub(super) fn pack(&self, folder: &str, seconds: u64) -> io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        let contents = serde_json::to_vec_pretty(&self.contents)?;
        let files = self.files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..]));
        for (name, bytes) in std::iter::once((CONTENTS, &contents[..])).chain(files) {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(durable::SECRET);
            header.set_mtime(seconds);
            header.set_entry_type(tar::EntryType::Regular);
            tar.append_data(&mut header, format!("{folder}/{name}"), bytes)?;
        }
        tar.into_inner()?.finish()
    }

    /// Reads a bundle from a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a bundle, or is too large.
    pub(crate) fn read(path: &Path) -> Result<Self, BundleError> {
        Self::unpack(&durable::read_at_most(path, FILE_MAX)?)
    }

    fn unpack(bytes: &[u8]) -> Result<Self, BundleError> {
        let mut files = BTreeMap::new();
        let mut room = UNPACKED_MAX;
        // The limit covers twice the content, because skipped parts of an entry are decompressed
        // too.
        let mut tar = tar::Archive::new(GzDecoder::new(bytes).take(2 * UNPACKED_MAX));
        for (at, entry) in tar.entries()?.enumerate() {
            let mut entry = entry?;
            if at >= ENTRIES_MAX || entry.size() > room {
                return Err(BundleError::TooLarge);
            }
            if !entry.header().entry_type().is_file() {
                continue;
            }
            // All entries are in one folder with an arbitrary name.
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name).to_owned();
            let mut bytes = Vec::new();
            (&mut entry).take(room).read_to_end(&mut bytes)?;
            room = room.saturating_sub(bytes.len() as u64);
            files.insert(name, Bytes::from(bytes));
        }
        let contents = files.remove(CONTENTS).ok_or(BundleError::NoContents)?;
        Ok(Self { contents: serde_json::from_slice(&contents)?, files })
    }
}

/// Creates a file that only its owner can read. If writing fails, the file is removed.
///
/// # Errors
/// Errors of the system; [`io::ErrorKind::AlreadyExists`] if the file exists.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(durable::SECRET).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bundle() -> SupportBundle {
        let file = BundleFile {
            file: "debug/endpoints/1.json".into(),
            path: "/debug/endpoints".into(),
            query: BTreeMap::from([("hostname".into(), "../../etc/passwd".into())]),
            status: 200,
            kind: "application/json".into(),
            bytes: 3,
            redacted: 0,
        };
        let contents = BundleContents {
            api_version: "strait/v1".into(),
            kind: "SupportBundle".into(),
            taken: "2026-11-25T02:00:00Z".into(),
            strait: json!({ "version": "1" }),
            server: BundleServer { url: "http://127.0.0.1:1".into(), version: None },
            files: vec![file],
            left_out: vec!["a proxy".into()],
        };
        let files =
            BTreeMap::from([("debug/endpoints/1.json".into(), Bytes::from_static(b"[]\n"))]);
        SupportBundle { contents, files }
    }

    #[test]
    fn unpacking_returns_the_packed_bundle() {
        let packed = bundle().pack("strait-support-1", 1).expect("packed");
        let read = SupportBundle::unpack(&packed).expect("read");
        assert_eq!(read.contents, bundle().contents);
        assert_eq!(read.files, bundle().files);
        let first = tar::Archive::new(GzDecoder::new(&packed[..]));
        let mut first = first;
        let first = first.entries().expect("entries").next().expect("one").expect("readable");
        assert_eq!(&*first.path_bytes(), b"strait-support-1/contents.json", "the list comes first");
    }

    #[test]
    fn invalid_archives_are_rejected() {
        let cut = bundle().pack("a", 1).expect("packed");
        for wrong in [&b"no archive"[..], &[], &cut[..cut.len() / 2]] {
            assert!(matches!(
                SupportBundle::unpack(wrong),
                Err(BundleError::Io(_) | BundleError::NoContents)
            ));
        }
        let mut huge = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(UNPACKED_MAX + 1);
        header.set_path("a/contents.json").expect("a path");
        header.set_cksum();
        huge.append(&header, &b"{}"[..]).expect("appended");
        let huge = huge.into_inner().and_then(GzEncoder::finish).expect("packed");
        assert!(matches!(SupportBundle::unpack(&huge), Err(BundleError::TooLarge)));
    }
}
