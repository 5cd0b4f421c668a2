//! One file of a configuration directory: its effective objects, whether its content is valid or
//! not. Pure.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::store::Warning;
use crate::store::object::{ObjectId, StoreObject};
use crate::store::policy_effect::PolicyEffect;
use strait_model::ObjectKey;

/// One file.
#[derive(Default, Clone, PartialEq)]
pub(super) struct ConfigFile {
    /// Changes whenever the content may have changed.
    pub(super) stamp: Option<Stamp>,
    /// Whether its whole content has been valid once.
    pub(super) was_valid: bool,
    /// The effective objects of the current content: all objects of a valid one.
    pub(super) objects: Vec<(ObjectId, StoreObject)>,
    /// Additional effective objects from the file's earlier content, while the current content is
    /// invalid.
    pub(super) earlier: Vec<(ObjectId, StoreObject)>,
    /// The error in the current content.
    pub(super) wrong: Option<Arc<str>>,
    /// Warnings about the current content.
    pub(super) warnings: Vec<Warning>,
    /// The keys of the effective objects, for the component that remembers them.
    pub(super) keys: Arc<Vec<ObjectKey>>,
    /// The access policies among them.
    pub(super) policies: Vec<(ObjectKey, PolicyEffect)>,
}

/// The metadata that reveals a change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl ConfigFile {
    /// Creates a file with remembered objects that has not been read.
    pub(super) fn remembered(earlier: &[(ObjectId, StoreObject)]) -> Self {
        Self { earlier: earlier.to_vec(), ..Self::default() }
    }

    /// Returns its effective objects.
    pub(super) fn effective(&self) -> impl Iterator<Item = &(ObjectId, StoreObject)> {
        self.objects.iter().chain(&self.earlier)
    }

    /// Applies an invalid content with these readable objects. Earlier objects that it lacks stay.
    /// If the file was valid once, changed objects keep their earlier versions and new ones are
    /// ignored, because half of an edit must not apply.
    pub(super) fn apply_invalid(&mut self, valid: Vec<(ObjectId, StoreObject)>) {
        let mut before = std::mem::take(&mut self.objects);
        before.append(&mut self.earlier);
        let found: BTreeMap<&ObjectId, &StoreObject> =
            valid.iter().map(|(id, object)| (id, object)).collect();
        if self.was_valid {
            let is_same = |(id, object): &(ObjectId, StoreObject)| found.get(id) == Some(&object);
            (self.objects, self.earlier) = before.into_iter().partition(is_same);
        } else {
            before.retain(|(id, _)| !found.contains_key(id));
            drop(found);
            (self.objects, self.earlier) = (valid, before);
        }
    }

    /// Describes how objects of an invalid content are handled. `is_persisted` is whether contents
    /// are stored for restarts.
    pub(super) fn fate(&self, is_persisted: bool) -> String {
        let (objects, earlier) = (self.objects.len(), self.earlier.len());
        if self.was_valid {
            return format!("its last valid objects ({}) stay in use", objects + earlier);
        }
        let counts = format!("its valid objects ({objects}) apply");
        match (earlier, is_persisted) {
            (0, true) => format!("{counts}, and no earlier content of it is known"),
            (0, false) => format!(
                "{counts}, and other objects that it contained before the start do not: without --state-dir nothing is remembered"
            ),
            _ => format!(
                "{counts}, and other objects that it contained before ({earlier}) stay in use"
            ),
        }
    }

    /// Updates the keys of the effective objects.
    pub(super) fn update_keys(&mut self) {
        let keys: Vec<_> = self.effective().map(|(id, _)| id.key()).collect();
        if *self.keys != keys {
            self.keys = Arc::new(keys);
        }
        let policies = self.effective().zip(&*self.keys).filter_map(|((_, object), key)| {
            let StoreObject::Other(object) = object else { return None };
            Some((key.clone(), PolicyEffect::from_object(key, object)?))
        });
        self.policies = policies.collect();
    }
}
