//! What was appended to a file of last-known-good state after it was written.
//!
//! ```text
//! "straitLJ"  version (4 bytes)
//! and for each record:  length of the payload (8)  checksum (16)  payload
//! ```
//!
//! A checksum is the XXH3-128 of the checksum before it, the length and the payload; before the first one stands
//! that of the file which the journal goes on from. So a record counts only behind all that it was written behind.
//! The first that is not whole ends the journal: a machine that stopped leaves no more than one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::codec::{Encode, Encoder, StateDecoder};
use super::flaw::{BYTES_MAX, Flaw, OLDEST, VERSION};

const MAGIC: &[u8; 8] = b"straitLJ";
/// The bytes before the first record.
pub(super) const HEAD: usize = 8 + 4;
const RECORD_HEAD: usize = 8 + 16;
/// A journal may have as many bytes as the file that it goes on from, and always so many.
const LENGTH_LEAST: u64 = 64 * 1024;
/// So many times that may be appended before the file is written anew whatever else there is to do.
const LENGTH_TIMES: u64 = 2;
/// How long records may stand in a journal: a damaged file costs what has changed in that time.
const AGE_MAX: Duration = Duration::from_secs(600);

/// Where a journal ends, and what it goes on from.
#[derive(Debug, Clone)]
pub(super) struct JournalEnd {
    /// The bytes of the file that it goes on from.
    base: u64,
    /// Its own bytes; 0 while there is none.
    length: u64,
    /// What the next record's checksum begins with.
    checksum: u128,
    /// When its first record was written, if this process wrote it.
    since: Option<Instant>,
}

impl JournalEnd {
    /// Of a file of so many bytes with that checksum, to which nothing has been appended.
    pub(super) fn of_file(bytes: usize, checksum: u128) -> Self {
        Self { base: bytes as u64, length: 0, checksum, since: None }
    }

    /// Whether the file says all there is, and has this checksum.
    pub(super) fn is_file(&self, checksum: u128) -> bool {
        self.length == 0 && self.checksum == checksum
    }

    /// By how many bytes it is longer than it should be; one that is too old is too long by all its bytes.
    pub(super) fn excess(&self) -> Option<u64> {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= AGE_MAX);
        let limit = if is_old { 0 } else { self.base.max(LENGTH_LEAST) };
        self.length.checked_sub(limit).filter(|excess| *excess != 0)
    }

    /// Appends a record to the journal at `path`, synced. Returns the bytes written; `None`, having written
    /// nothing, where it would become too long.
    ///
    /// # Errors
    /// What the system says. Where the journal ends is not known then.
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
            // One of that name belongs to a file that is no more.
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

    /// Reads the journal at `path` record by record, each once it is proven whole. Returns what is wrong with
    /// what follows the last of these.
    pub(super) fn read<T: Encode>(&mut self, path: &Path, mut each: impl FnMut(T)) -> Option<Flaw> {
        let unreadable = |error: io::Error| Flaw::Unreadable(error.to_string());
        let file = match File::open(path) {
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

    /// The next record, of which there may be so many bytes; `None` where it is not whole.
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

/// The bytes of a record behind what has that checksum, and its own.
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
