//! Journals: changes that were appended after a file of last-known-good state was written.
//!
//! ```text
//! "straitLJ"  version (4 bytes)
//! and for each record:  length of the payload (8)  checksum (16)  payload
//! ```
//!
//! A checksum is the XXH3-128 of the previous checksum, the length and the payload. The checksum of the file
//! precedes the first record. Therefore a record is valid only after all records before it. The first incomplete
//! record ends the journal. If the machine stops, at most one record is incomplete.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::codec::{Encode, Encoder, StateDecoder};
use super::flaw::{BYTES_MAX, Flaw, OLDEST, VERSION};
use strait_base::durable::open_file;

const MAGIC: &[u8; 8] = b"straitLJ";
/// Length of the head, before the first record, in bytes.
pub(super) const HEAD: usize = 8 + 4;
const RECORD_HEAD: usize = 8 + 16;
/// A journal that is longer than its file is due to be replaced by a new file, but never below this length, in
/// bytes.
const LENGTH_LEAST: u64 = 64 * 1024;
/// A journal never grows beyond this multiple of that limit: the complete file is written instead of the next
/// record.
const LENGTH_TIMES: u64 = 2;
/// The maximum age of a journal's first record. If the file is replaced by then, a damaged journal loses at most
/// the changes of this time.
const AGE_MAX: Duration = Duration::from_secs(600);

/// The end of a journal, and the file that it belongs to.
#[derive(Debug, Clone)]
pub(super) struct JournalEnd {
    /// Length of the file, in bytes.
    base: u64,
    /// Length of the journal, in bytes; 0 if it does not exist.
    length: u64,
    /// The checksum that precedes the next record.
    checksum: u128,
    /// When its first record was written, if this process wrote it.
    since: Option<Instant>,
}

impl JournalEnd {
    /// Returns the end of an empty journal, for a file of `bytes` bytes with this checksum.
    pub(super) fn of_file(bytes: usize, checksum: u128) -> Self {
        Self { base: bytes as u64, length: 0, checksum, since: None }
    }

    /// Returns whether the journal is empty and the file has this checksum.
    pub(super) fn is_file(&self, checksum: u128) -> bool {
        self.length == 0 && self.checksum == checksum
    }

    /// Returns by how many bytes the journal exceeds its limit. The limit of a journal that is too old is 0.
    pub(super) fn excess(&self) -> Option<u64> {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= AGE_MAX);
        let limit = if is_old { 0 } else { self.base.max(LENGTH_LEAST) };
        self.length.checked_sub(limit).filter(|excess| *excess != 0)
    }

    /// Appends a record to the journal at `path` and syncs it. Returns the bytes written. Returns `None`, without
    /// writing, if the journal would become too long.
    ///
    /// # Errors
    /// Any I/O error. The end of the journal is unknown afterwards.
    pub(super) fn append(&mut self, path: &Path, value: &impl Encode) -> io::Result<Option<usize>> {
        let (record, checksum) = record(self.checksum, value);
        let is_new = self.length == 0;
        let head = if is_new { head() } else { Vec::new() };
        let bytes = [head, record].concat();
        let length = self.length + bytes.len() as u64;
        if length > LENGTH_TIMES * self.base.max(LENGTH_LEAST) {
            return Ok(None);
        }
        let mut options = OpenOptions::new();
        let mut file = if is_new {
            // A journal of this name belongs to a file that no longer exists.
            options.write(true).create(true).truncate(true).mode(0o600).open(path)?
        } else {
            options.append(true).open(path)?
        };
        file.write_all(&bytes)?;
        file.sync_data()?;
        if is_new && let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        self.since.get_or_insert_with(Instant::now);
        (self.length, self.checksum) = (length, checksum);
        Ok(Some(bytes.len()))
    }

    /// Reads the journal at `path` and passes each verified record to `each`. Returns the reason why the rest
    /// after the last of these records can't be read, if any.
    pub(super) fn read<T: Encode>(&mut self, path: &Path, mut each: impl FnMut(T)) -> Option<Flaw> {
        let unreadable = |error: io::Error| Flaw::Unreadable(error.to_string());
        let file = match open_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(unreadable(error)),
            Ok(file) => file,
        };
        let is = match file.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) => return Some(unreadable(error)),
        };
        if is > BYTES_MAX {
            return Some(Flaw::TooLarge { is });
        }
        let mut reader = BufReader::new(file);
        let mut head = [0; HEAD];
        if is < HEAD as u64 {
            return Some(Flaw::Torn { at: 0, is });
        }
        if let Err(error) = reader.read_exact(&mut head) {
            return Some(unreadable(error));
        }
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Some(Flaw::Foreign);
        }
        let version = version.try_into().map(u32::from_le_bytes).unwrap_or_default();
        if !(OLDEST..=VERSION).contains(&version) {
            return Some(Flaw::Version(version));
        }
        let mut at = HEAD as u64;
        let mut payload = Vec::new();
        while at < is {
            match self.read_record(&mut reader, is - at, &mut payload) {
                Ok(Some(value)) => {
                    at += (RECORD_HEAD + payload.len()) as u64;
                    self.length = at;
                    each(value);
                }
                Ok(None) => return Some(Flaw::Torn { at, is }),
                Err(error) => return Some(unreadable(error)),
            }
        }
        None
    }

    /// Reads the next record, if `left` bytes remain. Returns `None` if the record is incomplete or damaged.
    fn read_record<T: Encode>(
        &mut self,
        reader: &mut impl Read,
        left: u64,
        payload: &mut Vec<u8>,
    ) -> io::Result<Option<T>> {
        let mut head = [0; RECORD_HEAD];
        if left < RECORD_HEAD as u64 {
            return Ok(None);
        }
        reader.read_exact(&mut head)?;
        let (length, stated) = head.split_at(8);
        let length = length.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        if length > left - RECORD_HEAD as u64 {
            return Ok(None);
        }
        payload.clear();
        if reader.take(length).read_to_end(payload)? as u64 != length {
            return Ok(None);
        }
        let checksum = checksum(self.checksum, payload);
        if checksum.to_le_bytes() != stated {
            return Ok(None);
        }
        let mut decoder = StateDecoder::new(payload);
        let value = T::read(&mut decoder).ok().filter(|_| decoder.is_done());
        if value.is_some() {
            self.checksum = checksum;
        }
        Ok(value)
    }
}

fn head() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Returns the bytes of a record that follows the checksum `before`, and its checksum.
fn record(before: u128, value: &impl Encode) -> (Vec<u8>, u128) {
    let mut encoder = Encoder::default();
    encoder.bytes.resize(RECORD_HEAD, 0);
    value.write(&mut encoder);
    let mut bytes = encoder.bytes;
    let (head, payload) = bytes.split_at_mut(RECORD_HEAD);
    let checksum = checksum(before, payload);
    let (length, place) = head.split_at_mut(8);
    length.copy_from_slice(&(payload.len() as u64).to_le_bytes());
    place.copy_from_slice(&checksum.to_le_bytes());
    (bytes, checksum)
}

fn checksum(before: u128, payload: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&before.to_le_bytes());
    hash.update(&(payload.len() as u64).to_le_bytes());
    hash.update(payload);
    hash.digest128()
}
