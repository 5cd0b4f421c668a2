//! The directory: a few generations of each file, each proven whole before anything in it is believed.
//!
//! ```text
//! "straitLK"  version (4 bytes)  length of what follows (8)  XXH3-128 of all but itself (16)  payload
//! ```
//!
//! Integers are little-endian. A file is written beside its name, synced, renamed, and the directory
//! synced: whenever the process or the machine stops, each name is there with all its content or not at
//! all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tracing::warn;
use xxhash_rust::xxh3::Xxh3;

use super::codec::{Decoder, Encoder, Malformed, Stored};
use super::{Members, Origin};

/// The format written here.
pub(super) const VERSION: u32 = 5;
/// The oldest format that is read: an upgrade finds the files of the version before.
pub(super) const OLDEST: u32 = 5;
/// Files of a name that are kept.
pub(super) const GENERATIONS: usize = 3;
const MAGIC: &[u8; 8] = b"straitLK";
const HEAD: usize = 8 + 4 + 8 + 16;
const EXTENSION: &str = ".lkg";
const MEMBERS: &str = "members";
/// The longest part of a name that stands in a file's name as it is; what is longer ends in its hash.
const NAME_MAX: usize = 120;

/// Why a file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {fact}", path.display())]
pub struct Refused {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fact: Flaw,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The system doesn't let us read it.
    #[error("can't be read: {0}")]
    Unreadable(String),
    /// It doesn't begin as these files do.
    #[error("is not a file of last-known-good state")]
    Foreign,
    /// It is shorter or longer than it says.
    #[error("has {is} bytes, not the {wanted} it should have")]
    Length {
        /// What it has.
        is: usize,
        /// What it says; the least there can be where it says nothing.
        wanted: u64,
    },
    /// Another version wrote it.
    #[error("has format {0}; this version reads format {VERSION}")]
    Version(u32),
    /// Something in it is not as it was written.
    #[error("is damaged: its checksum is wrong")]
    Damaged,
    /// It is whole, and makes no sense.
    #[error("is whole but makes no sense: {0}")]
    Malformed(#[from] Malformed),
    /// It was written under another name.
    #[error("holds {0}")]
    Other(String),
    /// It was written with other flags.
    #[error("was written with another --{0}")]
    Origin(&'static str),
}

/// What has files of its own.
pub(super) trait Kept: Stored {
    /// What their names begin with.
    const KIND: &'static str;

    /// Which one of that kind it is.
    fn name(&self) -> &str;
}

/// The directory.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    origin: Origin,
    /// The generations there are of each name, oldest first.
    generations: BTreeMap<String, Vec<u64>>,
    /// The checksum of each name's newest file, where that is known and good.
    newest: BTreeMap<String, u128>,
}

impl Store {
    /// Looks what is in `directory`. It is made when something is first written.
    pub fn open(directory: &Path, origin: Origin) -> Self {
        let mut generations: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        match fs::read_dir(directory) {
            Ok(entries) => {
                let names =
                    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
                for (name, generation) in names.filter_map(|name| parse(&name)) {
                    generations.entry(name).or_default().push(generation);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(path = %directory.display(), %error, "last-known-good state can't be read");
            }
        }
        generations.values_mut().for_each(|list| list.sort_unstable());
        Self { directory: directory.to_owned(), origin, generations, newest: BTreeMap::new() }
    }

    /// All of a kind, each with the reason why its newest file is not what was read.
    pub(super) fn read_all<T: Kept>(&mut self) -> Vec<(T, Option<Refused>)> {
        let files = self.files_of::<T>();
        let read = files.iter().map(|file| self.read_file::<T>(file));
        read.filter_map(|(value, refused)| Some((value?, refused))).collect()
    }

    /// What was last known of one of a kind, and why its newest file is not what was read.
    #[cfg(test)]
    pub(super) fn read<T: Kept>(&mut self, name: &str) -> (Option<T>, Option<Refused>) {
        self.read_file(&file_name::<T>(name))
    }

    fn read_file<T: Kept>(&mut self, file: &String) -> (Option<T>, Option<Refused>) {
        self.newest_good(file, |value: &T| match value.name() {
            name if file_name::<T>(name) == *file => Ok(()),
            name => Err(Flaw::Other(format!("{} {name}", T::KIND))),
        })
    }

    fn files_of<T: Kept>(&self) -> Vec<String> {
        let of_kind =
            |file: &&String| file.strip_prefix(T::KIND).is_some_and(|rest| rest.starts_with('-'));
        self.generations.keys().filter(of_kind).cloned().collect()
    }

    /// What was last known of the members, and why the newest file is not what was read.
    pub fn members(&mut self) -> (Option<Members>, Option<Refused>) {
        self.newest_good(MEMBERS, |_| Ok(()))
    }

    /// Keeps what is known. Returns the bytes written: none where the newest file says so.
    ///
    /// # Errors
    /// What the system says; the files there stay good.
    pub(super) fn put<T: Kept>(&mut self, value: &T) -> io::Result<usize> {
        self.put_file(&file_name::<T>(value.name()), value)
    }

    /// Keeps what is known of the members. Returns the bytes written: none where the newest file says so.
    ///
    /// # Errors
    /// What the system says; the files there stay good.
    pub fn put_members(&mut self, members: &Members) -> io::Result<usize> {
        self.put_file(MEMBERS, members)
    }

    /// Forgets all of a kind but those of these names.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn forget_others<'a, T: Kept>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
    ) -> io::Result<()> {
        let named: BTreeSet<_> = names.map(file_name::<T>).collect();
        for file in self.files_of::<T>().iter().filter(|file| !named.contains(*file)) {
            self.newest.remove(file);
            let generations = self.generations.get(file).cloned().unwrap_or_default();
            // The oldest first: what a crash leaves must not be older than what it takes.
            for generation in generations {
                remove(&self.path(file, generation))?;
            }
            self.generations.remove(file);
        }
        Ok(())
    }

    fn newest_good<T: Stored>(
        &mut self,
        name: &str,
        check: impl Fn(&T) -> Result<(), Flaw>,
    ) -> (Option<T>, Option<Refused>) {
        let mut first = None;
        for generation in self.generations.get(name).into_iter().flatten().rev() {
            let path = self.path(name, *generation);
            let read = fs::read(&path).map_err(|error| Flaw::Unreadable(error.to_string()));
            let read = read.and_then(|bytes| {
                let (value, checksum) = open_file(&bytes, &self.origin)?;
                check(&value).map(|()| (value, checksum))
            });
            match read {
                Ok((value, checksum)) => {
                    if first.is_none() {
                        self.newest.insert(name.to_owned(), checksum);
                    }
                    return (Some(value), first);
                }
                Err(fact) => {
                    let refused = Refused { path, fact };
                    warn!(reason = %refused, "last-known-good file refused");
                    first.get_or_insert(refused);
                }
            }
        }
        (None, first)
    }

    fn put_file(&mut self, name: &str, value: &impl Stored) -> io::Result<usize> {
        let (bytes, checksum) = to_file(value, &self.origin);
        if self.newest.get(name) == Some(&checksum) {
            return Ok(0);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let generations = self.generations.get(name);
        let next =
            generations.and_then(|list| list.last()).map_or(1, |last| last.saturating_add(1));
        let path = self.path(name, next);
        let beside = self.directory.join(format!(".{name}.new"));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        File::open(&self.directory)?.sync_all()?;
        self.newest.insert(name.to_owned(), checksum);
        self.generations.entry(name.to_owned()).or_default().push(next);
        self.prune(name)?;
        Ok(bytes.len())
    }

    fn prune(&mut self, name: &str) -> io::Result<()> {
        while let Some(generations) = self.generations.get_mut(name)
            && generations.len() > GENERATIONS
        {
            let oldest = generations.remove(0);
            remove(&self.path(name, oldest))?;
        }
        Ok(())
    }

    fn path(&self, name: &str, generation: u64) -> PathBuf {
        self.directory.join(format!("{name}.{generation:012}{EXTENSION}"))
    }
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
fn file_name<T: Kept>(name: &str) -> String {
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
fn parse(file: &str) -> Option<(String, u64)> {
    let (name, generation) = file.strip_suffix(EXTENSION)?.rsplit_once('.')?;
    Some((name.to_owned(), generation.parse().ok()?))
}

/// The bytes of a file, and its checksum.
pub(super) fn to_file(value: &impl Stored, origin: &Origin) -> (Vec<u8>, u128) {
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

/// What a file holds, and its checksum.
pub(super) fn open_file<T: Stored>(bytes: &[u8], origin: &Origin) -> Result<(T, u128), Flaw> {
    let wanted = HEAD as u64;
    let short = || Flaw::Length { is: bytes.len(), wanted };
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    if magic != MAGIC {
        return Err(Flaw::Foreign);
    }
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    match u32::from_le_bytes(*version) {
        VERSION => {}
        other => return Err(Flaw::Version(other)),
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let (said, payload) = rest.split_first_chunk::<16>().ok_or_else(short)?;
    let length = u64::from_le_bytes(*length);
    if payload.len() as u64 != length {
        let wanted = length.saturating_add(HEAD as u64);
        return Err(Flaw::Length { is: bytes.len(), wanted });
    }
    let (start, _) = bytes.split_at(HEAD - 16);
    let checksum = checksum(start, payload);
    if checksum.to_le_bytes() != *said {
        return Err(Flaw::Damaged);
    }
    let mut decoder = Decoder::new(payload);
    let theirs = Origin::read(&mut decoder)?;
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
        return Err(Malformed("end").into());
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
pub(super) fn fuzz(bytes: &[u8]) {
    use super::{Datacentre, Shard, StoredObjects};

    let origin = Origin {
        domain: "cluster.local".into(),
        trust_domain: "cluster.local".into(),
        system_namespace: "strait-system".into(),
    };
    fn held<T: Stored>(bytes: &[u8], origin: &Origin) {
        let _ = open_file::<T>(bytes, origin);
        let mut decoder = Decoder::new(bytes.get(HEAD..).unwrap_or_default());
        // As if its checksum were right.
        if Origin::read(&mut decoder).is_ok() {
            let _ = T::read(&mut decoder);
        }
    }
    held::<Shard>(bytes, &origin);
    held::<Datacentre>(bytes, &origin);
    held::<StoredObjects>(bytes, &origin);
    held::<Members>(bytes, &origin);
}
