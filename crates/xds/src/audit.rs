//! Compares the resources that a client holds with those of a source, without any state of the
//! session, so that a missed change is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::held_version::HeldVersion;
use super::resource::{Resource, ResourceSource, ResourceType, Version};

/// The resources that a client holds, and its subscriptions.
#[derive(Debug, Default)]
pub struct SentState {
    pub(super) types: BTreeMap<ResourceType, SentType>,
}

/// The part of a [`SentState`] for one type.
#[derive(Debug, Default)]
pub(super) struct SentType {
    /// Whether the client subscribes to all resources.
    pub(super) is_wildcard: bool,
    /// The names that the client subscribes to.
    pub(super) names: Vec<Arc<str>>,
    pub(super) held: BTreeMap<Arc<str>, HeldVersion>,
}

/// A resource that a client should hold in another version, or not at all.
#[derive(Debug)]
pub struct AuditDifference {
    /// The type.
    pub kind: ResourceType,
    /// The name.
    pub name: Arc<str>,
    /// The version that the client holds; `None` if it does not hold the resource.
    pub held: Option<HeldVersion>,
    /// The resource of the source; `None` if the client should not hold one.
    pub generated: Option<Arc<Resource>>,
}

impl SentState {
    /// Returns the differences to the resources of a source.
    pub fn differences(&self, source: &mut dyn ResourceSource) -> Vec<AuditDifference> {
        let mut found = Vec::new();
        for (kind, sent) in &self.types {
            let generated = sent.generated(*kind, source);
            let names = generated.keys().chain(sent.held.keys());
            let names: BTreeSet<&Arc<str>> = names.collect();
            for name in names {
                let (held, now) = (sent.held.get(name), generated.get(name));
                let held_version: Option<Version> = held.and_then(HeldVersion::version);
                if held.is_some() == now.is_some() && held_version == now.map(|now| now.version) {
                    continue;
                }
                found.push(AuditDifference {
                    kind: *kind,
                    name: Arc::clone(name),
                    held: held.cloned(),
                    generated: now.cloned(),
                });
            }
        }
        found
    }
}

impl SentType {
    /// Returns the resources that the client should hold.
    fn generated(
        &self,
        kind: ResourceType,
        source: &mut dyn ResourceSource,
    ) -> BTreeMap<Arc<str>, Arc<Resource>> {
        let is_named = !kind.is_wildcard() || source.is_by_name();
        let mut generated = BTreeMap::new();
        let mut add =
            |one: &Arc<Resource>| _ = generated.insert(Arc::clone(&one.name), Arc::clone(one));
        if self.is_wildcard || !is_named {
            let all = source.all(kind);
            if self.is_wildcard {
                all.shared.resources().iter().chain(&all.own).for_each(&mut add);
            } else {
                self.names.iter().filter_map(|name| all.get(name)).for_each(&mut add);
            }
        }
        if is_named {
            for name in &self.names {
                source.one(kind, name).iter().for_each(&mut add);
            }
        }
        generated
    }
}
