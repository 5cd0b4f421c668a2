//! The directory: a few generations of each file, each proven whole before anything in it is believed.
//!
//! ```text
//! "straitLK"  version (4 bytes)  length of what follows (8)  XXH3-128 of all but itself (16)  payload
//! ```
//!
//! Integers are little-endian. A file is written beside its name, synced, renamed, and the directory
//! synced: whenever the process or the machine stops, each name is there with all its content or not at
//! all. What changes after that is appended to a journal beside it ([`super::journal`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
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

/// Files of a name that are kept.
pub(super) const GENERATIONS: usize = 3;
const MAGIC: &[u8; 8] = b"straitLK";
const HEAD: usize = 8 + 4 + 8 + 16;
const EXTENSION: &str = ".lkg";
/// What the journal's name ends with where that of its file ends with [`EXTENSION`].
const JOURNAL: &str = ".journal";
const MEMBERS: &str = "members";
/// The longest part of a name that stands in a file's name as it is; what is longer ends in its hash.
const NAME_MAX: usize = 120;

/// Why a file is not used, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {fact}", path.display())]
pub struct RefusedFile {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fact: Flaw,
}

impl RefusedFile {
    /// What an operator should know of it, and what is used in its place.
    pub(super) fn remark(&self) -> String {
        let is_journal = self.path.extension().is_some_and(|found| found == "journal");
        let used =
            if is_journal { "what stands before that is used" } else { "an earlier file is used" };
        format!("{self}; {used}")
    }
}

/// What a good file holds, its generation and where it ends.
type LoadedFile<T> = (T, u64, JournalEnd);

/// The directory.
#[derive(Debug)]
pub struct StateDirectory {
    directory: PathBuf,
    origin: StateOrigin,
    /// The generations there are of each name, oldest first.
    generations: BTreeMap<String, Vec<u64>>,
    /// Where what is known of each name ends, where its newest file and all behind that is good.
    newest: BTreeMap<String, JournalEnd>,
}

impl StateDirectory {
    /// Looks what is in `directory`. It is made when something is first written.
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
                        // What a crash left of a file that was being written.
                        let _ = remove(&directory.join(name));
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(path = %directory.display(), %error, "last-known-good state can't be read");
            }
        }
        generations.values_mut().for_each(|list| list.sort_unstable());
        let store =
            Self { directory: directory.to_owned(), origin, generations, newest: BTreeMap::new() };
        for (name, generation) in journals {
            // A crash between the two removals, or a version that knows no journals, left it behind.
            let held = store.generations.get(&name);
            if held.is_none_or(|held| !held.contains(&generation)) {
                let _ = remove(&store.journal(&name, generation));
            }
        }
        store
    }

    /// All of a kind, each with the reason why its newest file is not what was read.
    pub(super) fn read_all<T: StateKind>(&mut self) -> Vec<(T, Option<RefusedFile>)> {
        let files = self.files_of::<T>();
        let read = files.iter().map(|file| self.read_file::<T>(file));
        read.filter_map(|(value, refused)| Some((value?, refused))).collect()
    }

    /// What was last known of one of a kind, and why its newest file is not what was read.
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
            warn!(reason = %torn, "last-known-good journal not used whole");
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

    /// What was last known of the members, and why the newest file is not what was read.
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

    /// Whether there is, or was, anything at all.
    pub(super) fn is_empty(&self) -> bool {
        self.generations.is_empty()
    }

    /// Keeps what is known. Returns the bytes written: none where the newest file says so.
    ///
    /// # Errors
    /// What the system says; the files there stay good.
    pub(super) fn put<T: StateKind>(&mut self, value: &T) -> io::Result<usize> {
        self.put_file(&file_name::<T>(value.name()), value)
    }

    /// Keeps what is otherwise than when it was last kept. Returns the bytes written; `None`, having written
    /// nothing, where all of it is to be kept instead.
    ///
    /// # Errors
    /// What the system says; what was kept before stays good.
    pub(super) fn append<T: StateKind>(
        &mut self,
        name: &str,
        delta: &T::Delta,
    ) -> io::Result<Option<usize>> {
        let file = file_name::<T>(name);
        let generation = self.generations.get(&file).and_then(|list| list.last()).copied();
        // What it ends with is known again once all of it has been written.
        let (Some(generation), Some(mut end)) = (generation, self.newest.remove(&file)) else {
            return Ok(None);
        };
        let appended = end.append(&self.journal(&file, generation), delta)?;
        if appended.is_some() {
            self.newest.insert(file, end);
        }
        Ok(appended)
    }

    /// The one of a kind, of those `named`, whose journal is most in need of being written anew as a file.
    pub(super) fn longest_journal<'a, T: StateKind>(
        &self,
        named: impl Iterator<Item = &'a str>,
    ) -> Option<&'a str> {
        let excess = |name| Some((self.newest.get(&file_name::<T>(name))?.excess()?, name));
        named.filter_map(excess).max().map(|(_, name)| name)
    }

    /// Keeps what is known of the members. Returns the bytes written: none where the newest file says so.
    ///
    /// # Errors
    /// What the system says; the files there stay good.
    pub fn put_members(&mut self, members: &MembersState) -> io::Result<usize> {
        self.put_file(MEMBERS, members)
    }

    /// Forgets all of a kind but those of these names.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn forget_others<'a, T: StateKind>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
    ) -> io::Result<()> {
        let named: BTreeSet<_> = names.map(file_name::<T>).collect();
        for file in self.files_of::<T>().iter().filter(|file| !named.contains(*file)) {
            self.newest.remove(file);
            let generations = self.generations.get(file).cloned().unwrap_or_default();
            // The oldest first: what a crash leaves must not be older than what it takes.
            for generation in generations {
                self.remove(file, generation)?;
            }
            self.generations.remove(file);
        }
        Ok(())
    }

    /// The newest file of a name that is good, its generation and its end; and why that is not the newest there is.
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

    /// Removes a file, and what was appended to it: a journal alone says nothing.
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

/// The bytes of a file, unless there are more than any has that was written here.
fn read(path: &Path) -> Result<Vec<u8>, Flaw> {
    let unreadable = |error: io::Error| Flaw::Unreadable(error.to_string());
    let file = File::open(path).map_err(unreadable)?;
    let is = file.metadata().map_err(unreadable)?.len();
    if is > BYTES_MAX {
        return Err(Flaw::TooLarge { is });
    }
    let mut bytes = Vec::new();
    (&file).take(HEAD as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    check_head(&bytes, is)?;
    // What follows is as long as it should be, unless it grows meanwhile.
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Removes a file; one that has gone already is as good.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What the files of one of a kind are called, without generation: its name with what is no plain part of
/// a file's name escaped as in a URL.
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

/// The name and the generation in a file's name.
fn parse(file: &str, extension: &str) -> Option<(String, u64)> {
    let (name, generation) = file.strip_suffix(extension)?.rsplit_once('.')?;
    Some((name.to_owned(), generation.parse().ok()?))
}

/// The bytes of a file, and its checksum.
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

/// Whether a file that begins with these bytes, and has so many, can be one of ours.
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

/// What a file holds, and its checksum.
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

/// Takes any bytes as a file of each kind, and what follows its head as what it holds.
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
        // As if its checksum were right.
        if StateOrigin::read(&mut decoder).is_ok() {
            let _ = T::read(&mut decoder);
        }
        open_file::<T>(bytes, origin).is_ok()
    }
    // Of a record of a journal.
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
