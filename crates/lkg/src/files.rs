//! The directory: a few generations of each file. A file is verified completely before its content is used.
//!
//! ```text
//! "straitLK"  version (4 bytes)  length of what follows (8)  XXH3-128 of all but itself (16)  payload
//! ```
//!
//! Integers are little-endian. A file is written under a temporary name, synced and renamed, and the directory is
//! synced. If the process or the machine stops, each name is present with its complete content, or absent. Later
//! changes are appended to a journal next to the file ([`super::journal`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tracing::warn;
use xxhash_rust::xxh3::Xxh3;

use super::codec::{Encode, Encoder, MalformedValue, StateDecoder};
use super::flaw::{BYTES_MAX, Flaw, OLDEST, VERSION};
use super::journal::JournalEnd;
use super::state::StateKind;
use super::{MembersState, StateOrigin};
use strait_base::durable;

/// The number of generations stored per name.
pub(super) const GENERATIONS: usize = 3;
const MAGIC: &[u8; 8] = b"straitLK";
const HEAD: usize = 8 + 4 + 8 + 16;
const EXTENSION: &str = ".lkg";
/// The extension of a journal. The rest of the name equals that of the file, whose extension is [`EXTENSION`].
const JOURNAL: &str = ".journal";
const MEMBERS: &str = "members";
/// The longest prefix of a name that is used in a file name, in bytes. A longer name is cut and its hash is
/// appended.
const NAME_MAX: usize = 120;

/// The reason why a file is not used, or not completely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {fact}", path.display())]
pub struct RefusedFile {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub fact: Flaw,
}

impl RefusedFile {
    /// Returns the remark for operators: the reason, and the state that is used instead.
    pub(super) fn remark(&self) -> String {
        let is_journal = self.path.extension().is_some_and(|found| found == "journal");
        let used =
            if is_journal { "the part before that is used" } else { "an earlier file is used" };
        format!("{self}; {used}")
    }
}

/// The content of a valid file, its generation and the end of its journal.
type LoadedFile<T> = (T, u64, JournalEnd);

/// The directory of last-known-good state.
#[derive(Debug)]
pub struct StateDirectory {
    directory: PathBuf,
    origin: StateOrigin,
    /// The existing generations of each name, oldest first.
    generations: BTreeMap<String, Vec<u64>>,
    /// The end of the journal of each name's newest file, if the file and the complete journal are valid.
    newest: BTreeMap<String, JournalEnd>,
}

impl StateDirectory {
    /// Reads the file names in `directory`. The directory is created by the first write.
    pub fn open(directory: &Path, origin: StateOrigin) -> Self {
        let mut generations: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut journals = Vec::new();
        match fs::read_dir(directory) {
            Ok(entries) => {
                let names =
                    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
                for name in names {
                    if let Some((name, generation)) = parse(&name, EXTENSION) {
                        generations.entry(name).or_default().push(generation);
                    }
                    journals.extend(parse(&name, JOURNAL));
                    if name.starts_with('.') {
                        // A temporary file that a crash left.
                        let _ = remove(&directory.join(name));
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(path = %directory.display(), %error, "cannot read last-known-good state");
            }
        }
        generations.values_mut().for_each(|list| list.sort_unstable());
        let store =
            Self { directory: directory.to_owned(), origin, generations, newest: BTreeMap::new() };
        for (name, generation) in journals {
            // The file of this journal no longer exists: a crash between the two removals, or a version without
            // journals, left the journal behind.
            let held = store.generations.get(&name);
            if held.is_none_or(|held| !held.contains(&generation)) {
                let _ = remove(&store.journal(&name, generation));
            }
        }
        store
    }

    /// Reads all states of a kind. Each comes with the reason why its newest file was not used, if so.
    pub(super) fn read_all<T: StateKind>(&mut self) -> Vec<(T, Option<RefusedFile>)> {
        let files = self.files_of::<T>();
        let read = files.iter().map(|file| self.read_file::<T>(file));
        read.filter_map(|(value, refused)| Some((value?, refused))).collect()
    }

    /// Reads the last known state of one source, and the reason why its newest file was not used, if so.
    #[cfg(test)]
    pub(super) fn read<T: StateKind>(&mut self, name: &str) -> (Option<T>, Option<RefusedFile>) {
        self.read_file(&file_name::<T>(name))
    }

    fn read_file<T: StateKind>(&mut self, file: &String) -> (Option<T>, Option<RefusedFile>) {
        let check = |value: &T| match value.name() {
            name if file_name::<T>(name) == *file => Ok(()),
            name => Err(Flaw::Other(format!("{} {name}", T::KIND))),
        };
        let (found, refused) = self.newest_good(file, check);
        let Some((mut value, generation, mut end)) = found else { return (None, refused) };
        let path = self.journal(file, generation);
        let flaw = end.read(&path, |delta| value.apply(delta));
        let torn = flaw.map(|fact| RefusedFile { path, fact });
        if let Some(torn) = &torn {
            warn!(reason = %torn, "last-known-good journal is used only in part");
        }
        let refused = refused.or(torn);
        if refused.is_none() {
            self.newest.insert(file.clone(), end);
        }
        (Some(value), refused)
    }

    fn files_of<T: StateKind>(&self) -> Vec<String> {
        let of_kind =
            |file: &&String| file.strip_prefix(T::KIND).is_some_and(|rest| rest.starts_with('-'));
        self.generations.keys().filter(of_kind).cloned().collect()
    }

    /// Reads the last known list of members, and the reason why its newest file was not used, if so.
    pub fn members(&mut self) -> (Option<MembersState>, Option<RefusedFile>) {
        let (found, refused) = self.newest_good(MEMBERS, |_| Ok(()));
        let members = found.map(|(members, _, end)| {
            if refused.is_none() {
                self.newest.insert(MEMBERS.to_owned(), end);
            }
            members
        });
        (members, refused)
    }

    /// Returns whether the directory contains no state files, valid or not.
    pub(super) fn is_empty(&self) -> bool {
        self.generations.is_empty()
    }

    /// Writes a state. Returns the bytes written, which are 0 if the newest file has the same content.
    ///
    /// # Errors
    /// Any I/O error. The existing files stay valid.
    pub(super) fn put<T: StateKind>(&mut self, value: &T) -> io::Result<usize> {
        self.put_file(&file_name::<T>(value.name()), value)
    }

    /// Appends changes to the journal of a source. Returns the bytes written. Returns `None`, without writing, if
    /// the complete state must be written instead.
    ///
    /// # Errors
    /// Any I/O error. The existing files stay valid.
    pub(super) fn append<T: StateKind>(
        &mut self,
        name: &str,
        delta: &T::Delta,
    ) -> io::Result<Option<usize>> {
        let file = file_name::<T>(name);
        let generation = self.generations.get(&file).and_then(|list| list.last()).copied();
        // The end is unknown while the append runs, and after an error until the complete state has been written.
        let (Some(generation), Some(mut end)) = (generation, self.newest.remove(&file)) else {
            return Ok(None);
        };
        let appended = end.append(&self.journal(&file, generation), delta)?;
        if appended.is_some() {
            self.newest.insert(file, end);
        }
        Ok(appended)
    }

    /// Returns the name, among `named`, whose journal exceeds its limit the most. Its file is rewritten next.
    pub(super) fn longest_journal<'a, T: StateKind>(
        &self,
        named: impl Iterator<Item = &'a str>,
    ) -> Option<&'a str> {
        let excess = |name| Some((self.newest.get(&file_name::<T>(name))?.excess()?, name));
        named.filter_map(excess).max().map(|(_, name)| name)
    }

    /// Writes the list of members. Returns the bytes written, which are 0 if the newest file has the same content.
    ///
    /// # Errors
    /// Any I/O error. The existing files stay valid.
    pub fn put_members(&mut self, members: &MembersState) -> io::Result<usize> {
        self.put_file(MEMBERS, members)
    }

    /// Removes all files of a kind, except for the sources in `names`.
    ///
    /// # Errors
    /// Any I/O error.
    pub(super) fn forget_others<'a, T: StateKind>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
    ) -> io::Result<()> {
        let named: BTreeSet<_> = names.map(file_name::<T>).collect();
        for file in self.files_of::<T>().iter().filter(|file| !named.contains(*file)) {
            self.newest.remove(file);
            let generations = self.generations.get(file).cloned().unwrap_or_default();
            // The oldest first, so that a crash never leaves a generation older than the removed ones.
            for generation in generations {
                self.remove(file, generation)?;
            }
            self.generations.remove(file);
        }
        Ok(())
    }

    /// Returns the newest valid file of a name with its generation and end, and the reason why a newer file was
    /// refused.
    fn newest_good<T: Encode>(
        &self,
        name: &str,
        check: impl Fn(&T) -> Result<(), Flaw>,
    ) -> (Option<LoadedFile<T>>, Option<RefusedFile>) {
        let mut first = None;
        for generation in self.generations.get(name).into_iter().flatten().rev() {
            let path = self.path(name, *generation);
            let read = read(&path).and_then(|bytes| {
                let (value, checksum) = open_file(&bytes, &self.origin)?;
                check(&value).map(|()| (value, JournalEnd::of_file(bytes.len(), checksum)))
            });
            match read {
                Ok((value, end)) => return (Some((value, *generation, end)), first),
                Err(fact) => {
                    let refused = RefusedFile { path, fact };
                    warn!(reason = %refused, "last-known-good file refused");
                    first.get_or_insert(refused);
                }
            }
        }
        (None, first)
    }

    fn put_file(&mut self, name: &str, value: &impl Encode) -> io::Result<usize> {
        let (bytes, checksum) = to_file(value, &self.origin);
        if self.newest.get(name).is_some_and(|end| end.is_file(checksum)) {
            return Ok(0);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let generations = self.generations.get(name);
        let next =
            generations.and_then(|list| list.last()).map_or(1, |last| last.saturating_add(1));
        durable::replace(&self.path(name, next), &bytes, durable::SECRET)?;
        self.newest.insert(name.to_owned(), JournalEnd::of_file(bytes.len(), checksum));
        self.generations.entry(name.to_owned()).or_default().push(next);
        self.prune(name)?;
        Ok(bytes.len())
    }

    fn prune(&mut self, name: &str) -> io::Result<()> {
        while let Some(generations) = self.generations.get_mut(name)
            && generations.len() > GENERATIONS
        {
            let oldest = generations.remove(0);
            self.remove(name, oldest)?;
        }
        Ok(())
    }

    /// Removes a file and its journal, which is useless without the file.
    fn remove(&self, name: &str, generation: u64) -> io::Result<()> {
        remove(&self.path(name, generation))?;
        remove(&self.journal(name, generation))
    }

    fn path(&self, name: &str, generation: u64) -> PathBuf {
        self.directory.join(format!("{name}.{generation:012}{EXTENSION}"))
    }

    fn journal(&self, name: &str, generation: u64) -> PathBuf {
        self.directory.join(format!("{name}.{generation:012}{JOURNAL}"))
    }
}

/// Reads a file of at most [`BYTES_MAX`] bytes.
fn read(path: &Path) -> Result<Vec<u8>, Flaw> {
    let unreadable = |error: io::Error| Flaw::Unreadable(error.to_string());
    let file = durable::open_file(path).map_err(unreadable)?;
    let is = file.metadata().map_err(unreadable)?.len();
    if is > BYTES_MAX {
        return Err(Flaw::TooLarge { is });
    }
    let mut bytes = Vec::new();
    (&file).take(HEAD as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    check_head(&bytes, is)?;
    // The length matches the head, unless the file grows while it is read.
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Removes a file. Succeeds if the file does not exist.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the file name of a source without generation and extension. Bytes that are not plain in a file name are
/// percent-encoded.
fn file_name<T: StateKind>(name: &str) -> String {
    let mut file = format!("{}-", T::KIND);
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            file.push(char::from(byte));
        } else {
            file.push_str(&format!("%{byte:02x}"));
        }
    }
    if file.len() > NAME_MAX {
        file.truncate(NAME_MAX);
        file.push_str(&format!("~{:032x}", xxhash_rust::xxh3::xxh3_128(name.as_bytes())));
    }
    file
}

/// Splits a file name into the name and the generation.
fn parse(file: &str, extension: &str) -> Option<(String, u64)> {
    let (name, generation) = file.strip_suffix(extension)?.rsplit_once('.')?;
    Some((name.to_owned(), generation.parse().ok()?))
}

/// Returns the bytes of a file, and its checksum.
pub(super) fn to_file(value: &impl Encode, origin: &StateOrigin) -> (Vec<u8>, u128) {
    let mut encoder = Encoder::default();
    encoder.bytes.resize(HEAD, 0);
    origin.write(&mut encoder);
    value.write(&mut encoder);
    let mut bytes = encoder.bytes;
    let length = (bytes.len() - HEAD) as u64;
    let (head, payload) = bytes.split_at_mut(HEAD);
    let (start, place) = head.split_at_mut(HEAD - 16);
    let (magic, rest) = start.split_at_mut(8);
    magic.copy_from_slice(MAGIC);
    let (version, counted) = rest.split_at_mut(4);
    version.copy_from_slice(&VERSION.to_le_bytes());
    counted.copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(start, payload);
    place.copy_from_slice(&checksum.to_le_bytes());
    (bytes, checksum)
}

/// Checks magic, version and length of a file that begins with `bytes` and has `is` bytes.
fn check_head(bytes: &[u8], is: u64) -> Result<(), Flaw> {
    let short = || Flaw::Length { is, wanted: HEAD as u64 };
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    if magic != MAGIC {
        return Err(Flaw::Foreign);
    }
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    match u32::from_le_bytes(*version) {
        OLDEST..=VERSION => {}
        other => return Err(Flaw::Version(other)),
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    rest.split_first_chunk::<16>().ok_or_else(short)?;
    let wanted = u64::from_le_bytes(*length).saturating_add(HEAD as u64);
    if is == wanted { Ok(()) } else { Err(Flaw::Length { is, wanted }) }
}

/// Returns the content of a file, and its checksum.
pub(super) fn open_file<T: Encode>(bytes: &[u8], origin: &StateOrigin) -> Result<(T, u128), Flaw> {
    check_head(bytes, bytes.len() as u64)?;
    let short = || Flaw::Length { is: bytes.len() as u64, wanted: HEAD as u64 };
    let (head, payload) = bytes.split_first_chunk::<HEAD>().ok_or_else(short)?;
    let (start, stated) = head.split_last_chunk::<16>().ok_or_else(short)?;
    let checksum = checksum(start, payload);
    if checksum.to_le_bytes() != *stated {
        return Err(Flaw::Damaged);
    }
    let mut decoder = StateDecoder::new(payload);
    let theirs = StateOrigin::read(&mut decoder)?;
    for (flag, theirs, ours) in [
        ("domain", &theirs.domain, &origin.domain),
        ("trust-domain", &theirs.trust_domain, &origin.trust_domain),
        ("namespace", &theirs.system_namespace, &origin.system_namespace),
    ] {
        if theirs != ours {
            return Err(Flaw::Origin(flag));
        }
    }
    let value = T::read(&mut decoder)?;
    if !decoder.is_done() {
        return Err(MalformedValue("end").into());
    }
    Ok((value, checksum))
}

fn checksum(start: &[u8], payload: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(start);
    hash.update(payload);
    hash.digest128()
}

/// Reads arbitrary bytes as a file of each kind, and the bytes after the head as its payload.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) -> bool {
    use super::{DatacentreState, IssuerState, ShardState, StoredFiles, StoredObjects};

    let origin = StateOrigin {
        domain: "cluster.local".into(),
        trust_domain: "example.org".into(),
        system_namespace: "strait-system".into(),
    };
    fn held<T: Encode>(bytes: &[u8], origin: &StateOrigin) -> bool {
        let mut decoder = StateDecoder::new(bytes.get(HEAD..).unwrap_or_default());
        // Decodes the payload even if the checksum is wrong.
        if StateOrigin::read(&mut decoder).is_ok() {
            let _ = T::read(&mut decoder);
        }
        open_file::<T>(bytes, origin).is_ok()
    }
    // The payload of a journal record.
    let _ = super::delta::Delta::read(&mut StateDecoder::new(bytes));
    let read = [
        held::<ShardState>,
        held::<DatacentreState>,
        held::<StoredObjects>,
        held::<StoredFiles>,
        held::<IssuerState>,
        held::<MembersState>,
    ];
    read.map(|read| read(bytes, &origin)).contains(&true)
}
