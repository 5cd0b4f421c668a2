//! The contents of a directory from before this process started, by file. Pure.
//!
//! The remembered objects of a file that cannot be read completely still apply. Objects that a
//! valid file lacks, or whose file was deleted, no longer apply. Of Secrets, only their existence
//! is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config_file::ConfigFile;
use crate::store::RememberedStore;
use crate::store::object::{ObjectId, StoreObject};
use crate::store::policy_effect::PolicyEffect;
use strait_model::ObjectKey;

/// The remembered contents until the directory has been read.
#[derive(Default)]
pub(super) struct RememberedFiles {
    /// Whether contents are stored for restarts at all.
    pub(super) is_persisted: bool,
    /// The objects of each file whose content is remembered.
    contents: BTreeMap<Arc<str>, Vec<(ObjectId, StoreObject)>>,
    /// Objects whose content is remembered, but not their file.
    unplaced: Vec<(ObjectId, StoreObject)>,
    /// The file of each object, if known.
    places: BTreeMap<ObjectKey, Option<Arc<str>>>,
    policies: Vec<(ObjectKey, PolicyEffect)>,
}

impl RememberedFiles {
    pub(super) fn new(store: &RememberedStore) -> Self {
        let entries = store.entries.iter();
        let entries =
            entries.map(|(key, object)| (key.clone(), StoreObject::Other(object.clone())));
        let config_map = store.config_map.iter().map(|map| {
            let key = ObjectId::config_map(&map.name).key();
            (key, StoreObject::ConfigMap(Arc::clone(map)))
        });
        let mut objects: BTreeMap<ObjectKey, StoreObject> = entries.chain(config_map).collect();
        let secrets = store.secrets.iter().map(|name| ObjectId::secret(name).key());
        let mut places: BTreeMap<ObjectKey, Option<Arc<str>>> =
            objects.keys().cloned().chain(secrets).map(|key| (key, None)).collect();
        let policies = store.entries.iter();
        let policies = policies
            .filter_map(|(key, object)| {
                Some((key.clone(), PolicyEffect::from_object(key, object)?))
            })
            .collect();
        let mut contents = BTreeMap::new();
        for (file, keys) in &*store.files {
            let mut file_objects = Vec::new();
            for key in &**keys {
                places.insert(key.clone(), Some(Arc::clone(file)));
                file_objects
                    .extend(objects.remove(key).map(|object| (ObjectId::from_key(key), object)));
            }
            contents.insert(Arc::clone(file), file_objects);
        }
        let unplaced =
            objects.into_iter().map(|(key, object)| (ObjectId::from_key(&key), object)).collect();
        Self { is_persisted: store.is_persisted, contents, unplaced, places, policies }
    }

    /// Returns the remembered objects of a file.
    pub(super) fn objects_in(&self, name: &str) -> &[(ObjectId, StoreObject)] {
        self.contents.get(name).map_or(&[], |objects| objects)
    }

    /// Adds objects of an unknown file to the first file that cannot be read completely, unless a
    /// file contains them: they may be in it.
    pub(super) fn place(&self, found: &mut BTreeMap<String, Arc<ConfigFile>>) {
        if self.unplaced.is_empty() {
            return;
        }
        let existing: BTreeSet<&ObjectKey> = found.values().flat_map(|file| &*file.keys).collect();
        let lacking = self.unplaced.iter().filter(|(id, _)| !existing.contains(&id.key()));
        let lacking: Vec<_> = lacking.cloned().collect();
        if let Some(file) = found.values_mut().find(|file| !file.was_valid) {
            let file = Arc::make_mut(file);
            file.earlier.extend(lacking);
            file.update_keys();
        }
    }

    /// Returns the keys that these files, with the objects `existing`, must contain, and the
    /// policies among them. Objects that may be in an unreadable file are not missing.
    pub(super) fn expected<'a>(
        &'a self,
        found: &BTreeMap<String, Arc<ConfigFile>>,
        existing: &BTreeSet<&ObjectKey>,
    ) -> (BTreeSet<&'a ObjectKey>, Vec<&'a (ObjectKey, PolicyEffect)>) {
        let all_valid = found.values().all(|file| file.was_valid);
        let may_lack = |place: &Option<Arc<str>>| match place {
            Some(file) => found.get(&**file).is_some_and(|file| !file.was_valid),
            None => !all_valid,
        };
        let known_keys = self.places.iter();
        let known_keys =
            known_keys.filter(|(key, place)| existing.contains(key) || !may_lack(place));
        let known_keys: BTreeSet<&ObjectKey> = known_keys.map(|(key, _)| key).collect();
        let policies = self.policies.iter().filter(|(key, _)| known_keys.contains(key)).collect();
        (known_keys, policies)
    }

    /// Forgets the contents: everything has been read.
    pub(super) fn forget(&mut self) {
        *self = Self { is_persisted: self.is_persisted, ..Self::default() };
    }
}
