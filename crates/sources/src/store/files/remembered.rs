//! The contents of a directory from before this process started, by file. Pure.
//!
//! The remembered objects of a file that cannot be read completely still apply. Objects that a
//! valid file lacks, or whose file was deleted, no longer apply. Of Secrets, only their existence
//! is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config_file::ConfigFile;
use crate::store::RememberedStore;
use crate::store::kinds::PolicyEffect;
use crate::store::object::{ObjectId, StoreObject};
use strait_model::ObjectKey;

/// The remembered contents until the directory has been read.
#[derive(Default)]
pub(super) struct RememberedFiles {
    /// Whether contents are stored for restarts at all.
    pub(super) is_kept: bool,
    /// The objects of each file whose content is remembered.
    contents: BTreeMap<Arc<str>, Vec<(ObjectId, StoreObject)>>,
    /// Objects whose content is remembered, but not their file.
    unplaced: Vec<(ObjectId, StoreObject)>,
    /// The file of each object, if known.
    places: BTreeMap<ObjectKey, Option<Arc<str>>>,
    policies: Vec<(ObjectKey, PolicyEffect)>,
}

impl RememberedFiles {
    pub(super) fn of(known: &RememberedStore) -> Self {
        let entries = known.entries.iter();
        let entries =
            entries.map(|(key, object)| (key.clone(), StoreObject::Other(object.clone())));
        let config_map = known.config_map.iter().map(|map| {
            let key = ObjectId::config_map(&map.name).key();
            (key, StoreObject::ConfigMap(Arc::clone(map)))
        });
        let mut objects: BTreeMap<ObjectKey, StoreObject> = entries.chain(config_map).collect();
        let secrets = known.secrets.iter().map(|name| ObjectId::secret(name).key());
        let mut places: BTreeMap<ObjectKey, Option<Arc<str>>> =
            objects.keys().cloned().chain(secrets).map(|key| (key, None)).collect();
        let policies = known.entries.iter();
        let policies = policies
            .filter_map(|(key, object)| Some((key.clone(), PolicyEffect::of(key, object)?)))
            .collect();
        let mut contents = BTreeMap::new();
        for (file, keys) in &*known.files {
            let mut held = Vec::new();
            for key in &**keys {
                places.insert(key.clone(), Some(Arc::clone(file)));
                held.extend(objects.remove(key).map(|object| (ObjectId::of(key), object)));
            }
            contents.insert(Arc::clone(file), held);
        }
        let unplaced =
            objects.into_iter().map(|(key, object)| (ObjectId::of(&key), object)).collect();
        Self { is_kept: known.is_kept, contents, unplaced, places, policies }
    }

    /// Returns the remembered objects of a file.
    pub(super) fn of_file(&self, name: &str) -> &[(ObjectId, StoreObject)] {
        self.contents.get(name).map_or(&[], |held| held)
    }

    /// Adds objects of an unknown file to the first file that cannot be read completely, unless a
    /// file contains them: they may be in it.
    pub(super) fn place(&self, found: &mut BTreeMap<String, Arc<ConfigFile>>) {
        if self.unplaced.is_empty() {
            return;
        }
        let there: BTreeSet<&ObjectKey> = found.values().flat_map(|file| &*file.keys).collect();
        let lacking = self.unplaced.iter().filter(|(id, _)| !there.contains(&id.key()));
        let lacking: Vec<_> = lacking.cloned().collect();
        if let Some(file) = found.values_mut().find(|file| !file.was_good) {
            let file = Arc::make_mut(file);
            file.earlier.extend(lacking);
            file.note_counting();
        }
    }

    /// Returns the keys that these files, with the objects `there`, must contain, and the policies
    /// among them. Objects that may be in an unreadable file are not missing.
    pub(super) fn expected<'a>(
        &'a self,
        found: &BTreeMap<String, Arc<ConfigFile>>,
        there: &BTreeSet<&ObjectKey>,
    ) -> (BTreeSet<&'a ObjectKey>, Vec<&'a (ObjectKey, PolicyEffect)>) {
        let all_good = found.values().all(|file| file.was_good);
        let may_lack = |place: &Option<Arc<str>>| match place {
            Some(file) => found.get(&**file).is_some_and(|file| !file.was_good),
            None => !all_good,
        };
        let known = self.places.iter();
        let known = known.filter(|(key, place)| there.contains(key) || !may_lack(place));
        let known: BTreeSet<&ObjectKey> = known.map(|(key, _)| key).collect();
        let policies = self.policies.iter().filter(|(key, _)| known.contains(key)).collect();
        (known, policies)
    }

    /// Forgets the contents: everything has been read.
    pub(super) fn forget(&mut self) {
        *self = Self { is_kept: self.is_kept, ..Self::default() };
    }
}
