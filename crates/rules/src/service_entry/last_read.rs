//! The last valid version of an entry object, and the faults of the current version.

use serde_json::Value;

use super::convert::Fault;
use super::problem::EntryProblem;
use crate::bounds;
use crate::budget::ObjectBudget;
use strait_model::{ObjectJson, ObjectKey, WorkloadKey};

/// An object with the result of the last read.
#[derive(Debug)]
pub(super) struct LastReadEntry<T> {
    /// The last valid version, as stored and as parsed.
    pub(super) good: Option<(ObjectJson, T)>,
    pub(super) fault: Option<Fault>,
    /// Unknown fields of the object.
    unread: Box<[Fault]>,
}

impl<T> LastReadEntry<T> {
    /// Reads an object that replaces a previous version.
    pub(super) fn read(
        key: &ObjectKey,
        object: &ObjectJson,
        (before, remembered): (Option<Self>, Option<&ObjectJson>),
        budget: &ObjectBudget,
        read: impl Fn(&Value) -> Result<(T, Vec<Fault>), Fault>,
    ) -> Self {
        budget.begin(key);
        let bounded = |object: &ObjectJson| {
            let value = bounds::to_value(key, object)
                .map_err(|excess| Fault { field: excess.path.clone(), fact: excess.to_string() })?;
            read(&value)
        };
        let again = |stored: &ObjectJson| bounded(stored).ok().map(|(entry, _)| entry);
        let read = bounded(object).and_then(|read| match budget.excess() {
            Some(excess) => Err(Fault { field: "spec".to_owned(), fact: excess.to_string() }),
            None => Ok(read),
        });
        match read {
            Ok((entry, unread)) => {
                Self { good: Some((object.clone(), entry)), fault: None, unread: unread.into() }
            }
            Err(fault) => {
                // The parsed form may depend on settings that have changed since.
                let good = match before {
                    Some(before) => before.good,
                    None => remembered.and_then(|stored| Some((stored.clone(), again(stored)?))),
                };
                let good = good.map(|(stored, good)| {
                    let again = again(&stored).unwrap_or(good);
                    (stored, again)
                });
                Self { good, fault: Some(fault), unread: Box::default() }
            }
        }
    }

    pub(super) fn good(&self) -> Option<&T> {
        self.good.as_ref().map(|(_, good)| good)
    }

    /// Returns the last valid version if the current object is invalid.
    pub(super) fn last_valid(&self) -> Option<&ObjectJson> {
        let (good, _) = self.good.as_ref().filter(|_| self.fault.is_some())?;
        Some(good)
    }

    /// Iterates over the problems of the object, including partial ones.
    pub(super) fn problems(
        &self,
        kind: &'static str,
        object: &WorkloadKey,
    ) -> impl Iterator<Item = EntryProblem> {
        let whole_effect = match self.good {
            Some(_) => "the last valid version stays active",
            None => "the object has no effect",
        };
        let whole = self.fault.iter().map(move |fault| (fault, true, whole_effect));
        let parts = self.unread.iter().map(|fault| (fault, false, "the rest applies"));
        whole.chain(parts).map(move |(fault, refused, effect)| EntryProblem {
            kind,
            object: object.clone(),
            fault: fault.clone(),
            refused,
            effect,
            holder: None,
        })
    }
}
