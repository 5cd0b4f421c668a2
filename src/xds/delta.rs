//! The incremental form: how a request is read, and how a response is written.

use std::collections::HashMap;
use std::time::SystemTime;

use super::request::Request;
use super::resource::{Resource, ResourceSource, ResourceType, Version};
use super::rope::Rope;
use super::session::{Form, Handled, Response, Session, Violation, check_names};
use super::wire::{any_len, bytes_len, message_len, put_any, put_bytes, put_head};
use crate::hash::Secret;

/// Subscribes to everything of a wildcard type.
pub(super) const EVERYTHING: &str = "*";

impl Session {
    /// Takes a request of this form. Its names count whatever its nonce: a stale one only says that our
    /// response and this request crossed on the way.
    pub(super) fn on_delta_request(
        &mut self,
        kind: ResourceType,
        request: Request<'_>,
        source: Option<&mut dyn ResourceSource>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let Request { mut names, mut dropped, listed, nonce, error, .. } = request;
        let (watch, first) = self.watch(kind);
        if !names.is_empty() {
            let new = names.iter().filter(|name| !watch.is_named(name));
            check_names(new, watch.names().count())?;
        }
        check_names(listed.iter().map(|(name, _)| name), 0)?;

        let error = error.as_ref().map(|status| status.message.as_str());
        let handled = self.answer(kind, nonce, error, now);
        if !first && names.is_empty() && dropped.is_empty() {
            return Ok(handled);
        }

        let nothing_more = take_everything(&mut dropped);
        let everything =
            take_everything(&mut names) || (first && names.is_empty() && !nothing_more);
        if first && !(everything && kind.is_wildcard()) {
            // What a client lists it goes on to watch, whether it says so once more or not.
            dropped.sort_unstable();
            let of_list = listed.iter().map(|(name, _)| *name).filter(|name| *name != EVERYTHING);
            names.extend(of_list.filter(|name| dropped.binary_search(name).is_err()));
        }
        names.sort_unstable();
        names.dedup();
        if first {
            check_names(&names, 0)?;
        }
        self.unsubscribe(kind, dropped);
        let (watch, _) = self.watch(kind);
        if kind.is_wildcard() {
            if nothing_more {
                watch.unsubscribe_all();
            }
            if everything {
                watch.subscribe_all();
            }
        }
        let mut versions = HashMap::<_, _, Secret>::default();
        if let Some(source) = source
            && first
            && !listed.is_empty()
        {
            if !names.is_empty() {
                versions = listed.iter().copied().collect();
            }
            if watch.is_wildcard() {
                watch.list_all(&listed, source.all(kind));
            } else {
                self.list_named(kind, &names, &versions, source);
            }
        }
        self.subscribe(kind, &names, |name| versions.contains_key(name));
        Ok(handled)
    }

    /// Takes what the client lists of names, sorted.
    fn list_named(
        &mut self,
        kind: ResourceType,
        names: &[&str],
        versions: &HashMap<&str, &str, Secret>,
        source: &mut dyn ResourceSource,
    ) {
        let own = |name: &str, version| match kind {
            ResourceType::Endpoint => self.joined(name, version),
            _ => version,
        };
        let listed = names.iter().filter_map(|name| {
            let version = Version::parse(versions.get(name)?);
            Some((*name, version.map(|version| own(name, version))))
        });
        let listed: Vec<_> = listed.collect();
        self.watch(kind).0.list_named(&listed, source);
    }
}

/// Takes the wildcard out of a list of names; returns whether it was in it.
pub(super) fn take_everything(names: &mut Vec<&str>) -> bool {
    let before = names.len();
    names.retain(|name| *name != EVERYTHING);
    names.len() < before
}

/// Field numbers of `DeltaDiscoveryResponse` and its `Resource`.
mod field {
    pub(super) const SYSTEM_VERSION_INFO: u32 = 1;
    pub(super) const RESOURCES: u32 = 2;
    pub(super) const TYPE_URL: u32 = 4;
    pub(super) const NONCE: u32 = 5;
    pub(super) const REMOVED_RESOURCES: u32 = 6;
    pub(super) const RESOURCE_VERSION: u32 = 1;
    pub(super) const RESOURCE_BODY: u32 = 2;
    pub(super) const RESOURCE_NAME: u32 = 3;
}

/// Writes a response as a `DeltaDiscoveryResponse`.
pub(super) fn encode(response: &Response, out: &mut Rope) {
    put_bytes(field::SYSTEM_VERSION_INFO, &response.version.text(), out);
    response.pieces.iter().for_each(|piece| out.put_shared(piece.fields(Form::Delta)));
    for one in &response.resources {
        put_resource(response.kind, one, one.version, out);
    }
    put_bytes(field::TYPE_URL, response.kind.url().as_bytes(), out);
    put_bytes(field::NONCE, response.nonce.as_bytes(), out);
    for name in &response.removed {
        put_head(field::REMOVED_RESOURCES, name.len(), out);
        out.put_slice(name.as_bytes());
    }
}

/// Writes a resource of a response, under a version.
pub(super) fn put_resource(
    kind: ResourceType,
    resource: &Resource,
    version: Version,
    out: &mut Rope,
) {
    put_head(field::RESOURCES, resource_len(kind, resource), out);
    put_bytes(field::RESOURCE_VERSION, &version.text(), out);
    put_any(field::RESOURCE_BODY, kind, resource, out);
    put_bytes(field::RESOURCE_NAME, resource.name.as_bytes(), out);
}

/// The length of what [`encode`] writes.
pub(super) fn encoded_len(response: &Response) -> usize {
    let resources = response
        .resources
        .iter()
        .map(|resource| message_len(field::RESOURCES, resource_len(response.kind, resource)));
    let pieces = response.pieces.iter().map(|piece| piece.fields(Form::Delta).len());
    // An empty name is written as well: of a list, proto3 leaves out nothing.
    let removed =
        response.removed.iter().map(|name| message_len(field::REMOVED_RESOURCES, name.len()));
    message_len(field::SYSTEM_VERSION_INFO, Version::LENGTH)
        + pieces.sum::<usize>()
        + resources.sum::<usize>()
        + bytes_len(field::TYPE_URL, response.kind.url().as_bytes())
        + bytes_len(field::NONCE, response.nonce.as_bytes())
        + removed.sum::<usize>()
}

fn resource_len(kind: ResourceType, resource: &Resource) -> usize {
    message_len(field::RESOURCE_VERSION, Version::LENGTH)
        + any_len(field::RESOURCE_BODY, kind, resource)
        + bytes_len(field::RESOURCE_NAME, resource.name.as_bytes())
}
