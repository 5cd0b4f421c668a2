//! A bundle as a file: a tar archive, compressed, whose first entry says what the others are.
//!
//! Reading trusts nothing: sizes are bounded, and no name in the archive becomes a path of this machine.

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

/// The entry that lists the others.
const CONTENTS: &str = "contents.json";
/// The most bytes of an archive that is read.
const FILE_MAX: u64 = 512 << 20;
/// The most bytes that it may hold when it is unpacked.
pub(super) const UNPACKED_MAX: u64 = 1 << 30;
/// The most entries.
const ENTRIES_MAX: usize = 100_000;

/// A bundle: what is in it, and the files by name.
#[derive(Debug)]
pub(crate) struct SupportBundle {
    pub(crate) contents: BundleContents,
    pub(crate) files: BTreeMap<String, Bytes>,
}

/// What a bundle says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BundleContents {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// When it was taken: RFC 3339.
    pub(crate) taken: String,
    /// The version of this program, as `strait version` has it.
    pub(super) strait: Value,
    /// The control plane that was asked.
    pub(super) server: BundleServer,
    pub(crate) files: Vec<BundleFile>,
    /// What there was no room for, or no answer to, in words.
    pub(super) left_out: Vec<String>,
}

/// The control plane of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BundleServer {
    pub(super) url: String,
    pub(super) version: Option<String>,
}

/// A file of a bundle: an answer of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BundleFile {
    pub(crate) file: String,
    /// What was asked.
    pub(crate) path: String,
    /// With what, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) query: BTreeMap<String, String>,
    /// The HTTP status of the answer.
    pub(crate) status: u16,
    /// Its content type.
    pub(crate) kind: String,
    pub(super) bytes: usize,
    /// How many secrets were taken out.
    pub(super) redacted: usize,
}

/// Why a bundle can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is no support bundle: it has no {CONTENTS}")]
    NoContents,
    #[error("its {CONTENTS} can't be read: {0}")]
    Contents(#[from] serde_json::Error),
    #[error("it has more than {ENTRIES_MAX} entries or {UNPACKED_MAX} bytes")]
    TooLarge,
}

impl SupportBundle {
    /// The archive's bytes.
    ///
    /// # Errors
    /// None that the system doesn't make: it is written to memory.
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

    /// Reads one.
    ///
    /// # Errors
    /// When it can't be read, is none, or is too large.
    pub(crate) fn read(path: &Path) -> Result<Self, BundleError> {
        Self::unpack(&durable::read_at_most(path, FILE_MAX)?)
    }

    fn unpack(bytes: &[u8]) -> Result<Self, BundleError> {
        let mut files = BTreeMap::new();
        let mut room = UNPACKED_MAX;
        // What is not read of an entry is skipped by reading it, too.
        let mut tar = tar::Archive::new(GzDecoder::new(bytes).take(2 * UNPACKED_MAX));
        for (at, entry) in tar.entries()?.enumerate() {
            let mut entry = entry?;
            if at >= ENTRIES_MAX || entry.size() > room {
                return Err(BundleError::TooLarge);
            }
            if !entry.header().entry_type().is_file() {
                continue;
            }
            // All are in one folder, whatever it is called.
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

/// Writes a file that was not there, readable by its owner only; nothing is left of it where that fails.
///
/// # Errors
/// What the system says; [`io::ErrorKind::AlreadyExists`] where it is there.
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
    fn a_bundle_is_read_as_it_was_written() {
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
    fn what_is_no_bundle_is_told_so() {
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
