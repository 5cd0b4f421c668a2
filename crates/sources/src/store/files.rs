//! Objects from a watched directory of YAML and JSON files (`--config-dir`).
//!
//! Owns the last valid contents of each file. A file that cannot be read, or that contains an
//! invalid document, keeps its previous objects, and a warning reports the position and the reason.
//! A file that has never been valid since the start contributes its valid documents and its
//! remembered objects. Not recursive. Hidden files are ignored, so that a ConfigMap volume
//! (`..data`, swapped as a whole) reads as its files. A scan that lacks most of the previous
//! objects, for example because a volume is not mounted, is accepted only if the next scan has the
//! same result. The same applies to a scan that lacks most of the access policies, whatever else it
//! contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::RecommendedWatcher;
use serde_json::Value;
use serde_saphyr::Spanned;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use self::config_file::{ConfigFile, Stamp};
use self::remembered::RememberedFiles;
use super::object::{self, ObjectId, StoreObject, UnusableObject};
use super::policy_effect::PolicyEffect;
use super::value_text::ValueText;
use super::{Objects, RememberedStore, UnreadObjects, Warning};
use strait_base::mass_deletion::{GuardedPart, MassDeletionGuard};
use strait_base::names::list_first;
use strait_base::task::Supervisor;
use strait_base::{codes, folder};
use strait_model::ObjectKey;

mod config_file;
mod remembered;

/// Maximum size of a file in bytes: several of the largest Secrets that an API server accepts.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum number of documents in a file.
const DOCUMENTS_MAX: usize = 65_536;
/// Maximum number of values in a file: as many as fit if each takes a few bytes.
const NODES_MAX: usize = 4_000_000;
/// The interval of scans without notifications of changes.
const POLL: Duration = Duration::from_secs(2);
/// The interval of scans with notifications: changes made elsewhere, as on a network volume or
/// behind a link, cause none.
const POLL_WATCHED: Duration = Duration::from_secs(10);
/// How long to wait for the end of a burst of changes, so that writers that don't rename can
/// finish.
const SETTLE: Duration = Duration::from_millis(100);

/// Watches `directory`. The value is `None` until it has been read once; an empty directory counts
/// as read. `remembered` is its content from before this process started.
pub fn watch(
    directory: PathBuf,
    system_namespace: String,
    remembered: RememberedStore,
    tasks: &Supervisor,
) -> watch::Receiver<Option<Arc<Objects>>> {
    let (sender, receiver) = watch::channel(None);
    tasks.spawn_restarting("config-dir", Duration::from_secs(1), move || {
        run(directory.clone(), system_namespace.clone(), remembered.clone(), sender.clone())
    });
    receiver
}

/// Reads `directory` once. A directory that cannot be read has no objects, only the warning.
pub fn read_once(directory: &Path, system_namespace: &str) -> Objects {
    let mut files = DirectoryFiles::new(system_namespace.to_owned());
    files.look(directory, Instant::now()).unwrap_or_else(|| files.objects())
}

/// The contents of files of manifests.
#[derive(Debug, Default)]
pub struct ManifestContents {
    /// The objects that a configuration directory may contain. Warnings include files that cannot
    /// be read completely.
    pub objects: Objects,
    /// The objects of member clusters: Services and Pods.
    pub members: Vec<Value>,
    /// Objects in a namespace that their manifests do not name.
    pub unnamed: BTreeSet<ObjectKey>,
}

/// The namespaces that manifests do not name.
#[derive(Debug, Clone, Copy)]
pub struct ManifestNamespaces<'a> {
    /// The namespace of objects without `metadata.namespace`.
    pub of_objects: &'a str,
    /// The system namespace, in which Secrets describe clusters. `None` if it is not known.
    pub system: Option<&'a str>,
}

/// Reads files of manifests, with the names for warnings, like the files of a configuration
/// directory. Of two objects with one name, the one in the first file (by name) applies.
pub fn read_manifests(
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
    namespaces: ManifestNamespaces<'_>,
) -> ManifestContents {
    let mut all = DirectoryFiles::new(namespaces.system.unwrap_or_default().to_owned());
    let (mut found, mut unnamed) = (Vec::new(), BTreeSet::new());
    for (name, bytes) in files {
        let mut file = ConfigFile { was_valid: true, ..ConfigFile::default() };
        match parse(&name, &bytes, namespaces.of_objects) {
            Ok(ParsedFile { objects, members, unnamed: ids }) => {
                file.objects = objects;
                unnamed.extend(ids.iter().map(ObjectId::key));
                found.extend(members.into_iter().map(|(object, _)| object));
            }
            Err(FileFault { mut wrong, valid }) => {
                file.objects = valid;
                wrong.text = format!("STR0219: {}", wrong.text);
                file.warnings = vec![wrong];
            }
        }
        all.files.insert(name, Arc::new(file));
    }
    ManifestContents { objects: all.objects(), members: found, unnamed }
}

/// Returns the paths of the manifest files in a directory.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn manifests_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(names(directory)?.0.into_keys().map(|name| directory.join(name)).collect())
}

async fn run(
    directory: PathBuf,
    system_namespace: String,
    remembered: RememberedStore,
    objects: watch::Sender<Option<Arc<Objects>>>,
) {
    // Capacity 1: a full channel means that a scan is pending already.
    let (poke, mut poked) = mpsc::channel(1);
    let watcher = watcher(&directory, poke);
    let mut files = DirectoryFiles::new(system_namespace);
    files.remembered = RememberedFiles::new(&remembered);
    loop {
        let looked = {
            let directory = directory.clone();
            tokio::task::spawn_blocking(move || {
                let changed = files.look(&directory, Instant::now());
                (files, changed)
            })
            .await
        };
        // The scan panicked: the supervisor restarts this task.
        let Ok((after, changed)) = looked else { return };
        files = after;
        if let Some(new) = changed {
            objects.send_if_modified(|current| {
                let modified = current.as_deref() != Some(&new);
                if modified {
                    report(current.as_deref(), &new);
                    *current = Some(Arc::new(new));
                }
                modified
            });
        }
        let is_notified = watcher.is_some() && files.guard.waiting().next().is_none();
        let poll = if is_notified { POLL_WATCHED } else { POLL };
        tokio::select! {
            Some(()) = poked.recv() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(poll) => {}
        }
        let _ = poked.try_recv();
    }
}

/// Reports changes immediately if the system supports it; otherwise only polling detects them.
fn watcher(directory: &Path, poke: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let watcher = folder::watch(directory, move || {
        let _ = poke.try_send(());
    });
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            warn!(directory = %directory.display(), %error, "no notifications of changes; polling every 2 s");
            None
        }
    }
}

/// Logs new warnings.
fn report(before: Option<&Objects>, now: &Objects) {
    for warning in &now.warnings {
        if !before.is_some_and(|before| before.warnings.contains(warning)) {
            warn!(%warning, "configuration not used");
        }
    }
}

/// The state of the files in a directory.
struct DirectoryFiles {
    system_namespace: String,
    files: BTreeMap<String, Arc<ConfigFile>>,
    /// The content from before this process started, until everything has been read once.
    remembered: RememberedFiles,
    guard: MassDeletionGuard<GuardedObjects>,
    /// Why the directory itself cannot be read.
    failure: Option<Warning>,
    /// Pipes, sockets and devices with names of manifests, which are ignored.
    special: BTreeSet<String>,
    read_once: bool,
}

/// The sets of objects that a scan must mostly contain, each checked separately: the loss of a few
/// policies would not be noticed among thousands of other objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GuardedObjects {
    All,
    Policies,
    Restricting,
}

impl GuardedObjects {
    /// The name in warnings.
    fn as_str(self) -> &'static str {
        match self {
            Self::All => "it",
            Self::Policies => "for access policies, it",
            Self::Restricting => "for policies that restrict access, it",
        }
    }
}

impl DirectoryFiles {
    fn new(system_namespace: String) -> Self {
        Self {
            system_namespace,
            files: BTreeMap::new(),
            remembered: RememberedFiles::default(),
            guard: MassDeletionGuard::default(),
            failure: None,
            special: BTreeSet::new(),
            read_once: false,
        }
    }

    /// Reads the changed files. Returns `None` if nothing has changed.
    fn look(&mut self, directory: &Path, now: Instant) -> Option<Objects> {
        let (names, special) = match names(directory) {
            Ok(names) => names,
            Err(error) => {
                let warning = Warning {
                    source: directory.display().to_string(),
                    document: None,
                    line: None,
                    text: format!(
                        "STR0219: can't be read ({error}); the previous version stays in use"
                    ),
                };
                let news = self.failure.as_ref() != Some(&warning);
                if news && !self.read_once {
                    warn!(%warning, "no configuration yet");
                }
                self.failure = Some(warning);
                // A directory that never existed is not an empty configuration.
                return (news && self.read_once).then(|| self.objects());
            }
        };
        let mut changed = self.failure.take().is_some() || !self.read_once;
        if special != self.special {
            changed = true;
            self.special = special;
        }
        let mut found = BTreeMap::new();
        for (name, stamp) in names {
            let before = self.files.get(&name);
            let file = match before {
                // Unchanged files are not opened: there may be thousands.
                Some(before) if before.stamp == Some(stamp) => Some(Arc::clone(before)),
                _ => self.read_one(directory, &name),
            };
            let Some(file) = file else { continue };
            changed |= before.is_none_or(|before| !Arc::ptr_eq(before, &file));
            found.insert(name, file);
        }
        self.remembered.place(&mut found);
        changed |= found.len() != self.files.len();
        let was_doubted = self.guard.waiting().next().is_some();
        changed |= was_doubted;
        if !changed {
            return None;
        }
        if !self.admits(&found, now) {
            // An existing doubt is not reported again.
            return (!was_doubted && self.read_once).then(|| self.objects());
        }
        self.files = found;
        self.remembered.forget();
        self.read_once = true;
        Some(self.objects())
    }

    /// Whether these files are accepted; otherwise they must be read again.
    fn admits(&mut self, found: &BTreeMap<String, Arc<ConfigFile>>, now: Instant) -> bool {
        let found_keys: BTreeSet<&ObjectKey> =
            found.values().flat_map(|file| &*file.keys).collect();
        let policies = || found.values().flat_map(|file| &file.policies);
        let all = GuardedObjects::All;
        let (all, known_keys) = if self.read_once {
            let known_keys = self.files.values().flat_map(|file| &*file.keys);
            let known_keys = known_keys.collect::<BTreeSet<_>>().len();
            let policies = self.files.values().flat_map(|file| &file.policies);
            (GuardedPart::of(all, known_keys, found_keys.len()), policies.collect::<Vec<_>>())
        } else {
            let (known_keys, policies) = self.remembered.expected(found, &found_keys);
            let remaining = known_keys.intersection(&found_keys).count();
            (GuardedPart::of(all, known_keys.len(), remaining), policies)
        };
        let part = |subject, is_selected: fn(&PolicyEffect) -> bool| {
            let select = |all: &mut dyn Iterator<Item = &(ObjectKey, PolicyEffect)>| {
                let selected = all.filter(|(_, effect)| is_selected(effect));
                selected.map(|(key, _)| key.clone()).collect::<BTreeSet<_>>()
            };
            let (known_keys, found_keys) =
                (select(&mut known_keys.iter().copied()), select(&mut policies()));
            let part = GuardedPart::of(subject, known_keys.len(), found_keys.len());
            part.lacking(known_keys.difference(&found_keys)).of_several()
        };
        let policies = part(GuardedObjects::Policies, |_| true);
        let restricting = part(GuardedObjects::Restricting, |effect| effect.restricts());
        self.guard.admits_all([all, policies, restricting], now)
    }

    /// Reads one file; `None` if it no longer exists.
    fn read_one(&self, directory: &Path, name: &str) -> Option<Arc<ConfigFile>> {
        let before = self.files.get(name);
        let read = match read(&directory.join(name)) {
            // Deleted between listing and opening.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && fs::symlink_metadata(directory.join(name)).is_err() =>
            {
                return None;
            }
            Ok((stamp, bytes)) => (Some(stamp), parse(name, &bytes, &self.system_namespace)),
            Err(error) => {
                let wrong = warning(name, None, &format!("can't be read ({error})"));
                (None, Err(FileFault { wrong, valid: Vec::new() }))
            }
        };
        let mut file = match before {
            Some(before) => ConfigFile::clone(before),
            None => ConfigFile::remembered(self.remembered.objects_in(name)),
        };
        file.stamp = read.0;
        match read.1 {
            Ok(ParsedFile { objects, members, .. }) => {
                let warnings = members.into_iter().map(|(_, warning)| warning).collect();
                (file.objects, file.warnings, file.was_valid) = (objects, warnings, true);
                (file.earlier, file.wrong) = (Vec::new(), None);
            }
            Err(FileFault { mut wrong, valid }) => {
                file.wrong = Some(wrong.to_string().into());
                file.apply_invalid(valid);
                wrong.text =
                    format!("STR0219: {}; {}", wrong.text, file.fate(self.remembered.is_persisted));
                file.warnings = vec![wrong];
                // Unchanged, like a file that still cannot be opened.
                if let Some(before) = before.filter(|before| ***before == file) {
                    return Some(Arc::clone(before));
                }
            }
        }
        file.update_keys();
        Some(Arc::new(file))
    }

    /// Returns all objects. Of two with the same name, the one in the first file (by name) applies.
    fn objects(&self) -> Objects {
        let mut all: BTreeMap<&ObjectId, (&str, &StoreObject)> = BTreeMap::new();
        let mut variants: BTreeMap<&ObjectId, BTreeSet<&str>> = BTreeMap::new();
        let mut warnings: Vec<Warning> = self.failure.iter().cloned().collect();
        warnings.extend(self.guard.waiting().map(|(subject, unconfirmed)| Warning {
            source: "the directory".to_owned(),
            document: None,
            line: None,
            text: format!(
                "{}: {} {unconfirmed}, the previous version stays in use",
                codes::MASS_WITHDRAWAL,
                subject.as_str()
            ),
        }));
        let mut unread = UnreadObjects::new();
        for (name, file) in &self.files {
            warnings.extend(file.warnings.iter().cloned());
            for (key, object) in file.effective() {
                if all.contains_key(key) {
                    variants.entry(key).or_default().insert(name);
                } else {
                    all.insert(key, (name, object));
                }
            }
            let Some(wrong) = &file.wrong else { continue };
            for (id, object) in &file.earlier {
                let is_effective = all.get(id).is_some_and(|(_, one)| std::ptr::eq(*one, object));
                if is_effective && let StoreObject::Other(_) = object {
                    unread.insert(id.key(), Arc::clone(wrong));
                }
            }
        }
        warnings.extend(variants.iter().map(|(id, files)| {
            let first = all.get(id).map_or("", |(name, _)| *name);
            variants_warning(id, first, files)
        }));
        let (mut objects, mut others) = (Objects::default(), Vec::new());
        for (id, (name, object)) in all {
            match object {
                StoreObject::Secret(secret) if !secret.describes_clusters() => {
                    objects.other_secrets.push(Arc::clone(secret));
                }
                StoreObject::Secret(secret)
                    if !self.system_namespace.is_empty()
                        && secret.name.namespace.as_ref() != self.system_namespace.as_str() =>
                {
                    objects.other_secrets.push(Arc::clone(secret));
                    let text = format!(
                        "Secret {} is outside namespace {}: it defines members only if a source of --members selects it",
                        secret.name, self.system_namespace
                    );
                    let source = name.to_owned();
                    warnings.push(Warning { source, document: None, line: None, text });
                }
                StoreObject::Secret(secret) => objects.secrets.push(Arc::clone(secret)),
                StoreObject::ConfigMap(config_map) => {
                    objects.config_maps.push(Arc::clone(config_map));
                }
                StoreObject::Namespace(namespace) => objects.namespaces.push(Arc::clone(namespace)),
                StoreObject::Other(other) => others.push((id.key(), other.clone())),
            }
        }
        objects.others = others.into_iter().collect();
        objects.unread = Arc::new(unread);
        let files = self.files.iter().map(|(name, file)| (name.as_str().into(), &file.keys));
        objects.files = Arc::new(files.map(|(name, keys)| (name, Arc::clone(keys))).collect());
        let ignored = |name: &String| {
            warning(
                name,
                None,
                "STR0219: is ignored: it is a pipe, a socket or a device, not a file",
            )
        };
        warnings.extend(self.special.iter().map(ignored));
        warnings.sort();
        objects.warnings = warnings;
        let mut never_valid = self.files.iter().filter(|(_, file)| !file.was_valid);
        objects.partial = never_valid.next().map(|(name, _)| name.as_str().into());
        objects
    }
}

/// Returns the one warning about an object that several files contain. `first` is the file that
/// applies, `files` are the other ones.
fn variants_warning(id: &ObjectId, first: &str, files: &BTreeSet<&str>) -> Warning {
    const NAMED_MAX: usize = 5;
    let text = format!(
        "{} {} is in {} as well; the one here is used",
        id.kind,
        id.name,
        list_first(files.iter(), NAMED_MAX)
    );
    Warning { source: first.to_owned(), document: None, line: None, text }
}

/// Returns the manifest files by name, and the names of pipes, sockets and devices: opening one may
/// block forever.
fn names(directory: &Path) -> io::Result<(BTreeMap<String, Stamp>, BTreeSet<String>)> {
    let (mut names, mut special) = (BTreeMap::new(), BTreeSet::new());
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let counts = !name.starts_with('.')
            && [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending));
        if !counts {
            continue;
        }
        // A folder with a manifest's name is ignored; a link to a file is not.
        let metadata = match fs::metadata(entry.path()) {
            Ok(metadata) => metadata,
            Err(_) => {
                // A link without a target is a file that cannot be read; others were deleted.
                if let Ok(link) = fs::symlink_metadata(entry.path()) {
                    names.insert(name, Stamp::new(&link));
                }
                continue;
            }
        };
        if metadata.is_file() {
            names.insert(name, Stamp::new(&metadata));
        } else if !metadata.is_dir() {
            special.insert(name);
        }
    }
    Ok((names, special))
}

/// Returns the content, and its stamp.
fn read(path: &Path) -> io::Result<(Stamp, Vec<u8>)> {
    let file = strait_base::durable::open_file(path)?;
    let stamp = Stamp::new(&file.metadata()?);
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it has more than 16 MiB"));
    }
    Ok((stamp, bytes))
}

/// The content of a file.
#[derive(Default)]
struct ParsedFile {
    objects: Vec<(ObjectId, StoreObject)>,
    /// Objects of member clusters, each with the warning for a configuration directory.
    members: Vec<(Value, Warning)>,
    /// Objects whose manifests name no namespace.
    unnamed: Vec<ObjectId>,
}

/// The first error in a file, and its valid objects.
struct FileFault {
    wrong: Warning,
    valid: Vec<(ObjectId, StoreObject)>,
}

/// Parses the objects of one file.
fn parse(name: &str, bytes: &[u8], default_namespace: &str) -> Result<ParsedFile, FileFault> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(FileFault { wrong: warning(name, None, "is not UTF-8"), valid: Vec::new() });
    };
    parse_text(name, text, default_namespace).map_err(|wrong| {
        let each = documents(text).into_iter();
        let valid = each.filter_map(|one| parse_text(name, one, default_namespace).ok());
        FileFault { wrong, valid: valid.flat_map(|parsed| parsed.objects).collect() }
    })
}

/// Splits a text into documents.
fn documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if is_marker(line.trim_end()) {
            documents.push((start, at));
            start = at + line.len();
        }
        at += line.len();
    }
    documents.push((start, at));
    documents.into_iter().filter_map(|(start, end)| text.get(start..end)).collect()
}

/// Whether a line begins a document.
fn is_marker(line: &str) -> bool {
    line == "---" || line.starts_with("--- ")
}

/// Parses the objects of a text, or returns the first error.
fn parse_text(name: &str, text: &str, default_namespace: &str) -> Result<ParsedFile, Warning> {
    let options = serde_saphyr::options! {
        // The file size limits the rest: one file may contain all objects of a cluster.
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_documents: DOCUMENTS_MAX,
            max_nodes: NODES_MAX,
            max_events: 2 * NODES_MAX,
        },
        with_snippet: false,
        emit_comments: false,
        strict_booleans: true,
    };
    // As text, because trees of all documents at once would fragment memory.
    let documents: Vec<Spanned<ValueText>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let line_documents = documents_by_line(text);
            let position = error
                .location()
                .map(|position| (document_at(&line_documents, position.line()), position.line()));
            // The parser's own message may quote the text, which may be a Secret.
            let fact = match error.without_snippet() {
                serde_saphyr::Error::DuplicateMappingKey { .. } => "has a duplicate key there",
                _ => "is neither YAML nor JSON there",
            };
            warning(name, position, fact)
        })?;
    let mut parsed = ParsedFile::default();
    let line_documents = documents_by_line(text);
    for document in documents {
        let line = document.referenced.line();
        let position = Some((document_at(&line_documents, line), line));
        let document = document.value.to_value();
        let is_named = object::named_namespaces(&document);
        let objects = object::read(document, default_namespace).into_iter();
        for (object, is_named) in objects.zip(is_named) {
            match object {
                Ok(object) => {
                    let is_unnamed = !is_named && !object.0.name.namespace.is_empty();
                    parsed.unnamed.extend(is_unnamed.then(|| object.0.clone()));
                    parsed.objects.push(object);
                }
                Err(UnusableObject::MemberOnly(object, fact)) => {
                    parsed.members.push((object, warning(name, position, &fact)));
                }
                Err(UnusableObject::Invalid(fact)) => return Err(warning(name, position, &fact)),
            }
        }
    }
    Ok(parsed)
}

fn warning(file: &str, at: Option<(usize, u64)>, text: &str) -> Warning {
    Warning {
        source: file.to_owned(),
        document: at.map(|(document, _)| document),
        line: at.map(|(_, line)| line),
        text: text.to_owned(),
    }
}

/// Returns the document number (from 1) of each line.
fn documents_by_line(text: &str) -> Vec<usize> {
    let mut documents = 0;
    let count = |line: &str| {
        let marker = is_marker(line);
        let is_empty = line.trim().is_empty() || line.starts_with(['#', '%']);
        if marker || (documents == 0 && !is_empty) {
            documents += 1;
        }
        documents.max(1)
    };
    text.lines().map(count).collect()
}

/// Returns the document number of a line (both from 1). Lines after the last belong to the last
/// document.
fn document_at(documents: &[usize], line: u64) -> usize {
    let line = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
    documents.get(line).or(documents.last()).copied().unwrap_or(1)
}

/// Parses any bytes as a file of manifests. Valid objects must have names.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) -> bool {
    let objects = match parse("fuzz.yaml", bytes, "strait-system") {
        Ok(parsed) => parsed.objects,
        Err(fault) => fault.valid,
    };
    assert!(objects.iter().all(|(key, _)| !key.kind.is_empty() && !key.name.name.is_empty()));
    !objects.is_empty()
}

#[cfg(test)]
mod tests;
