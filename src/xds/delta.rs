//! The incremental form: how a request is read, and how a response is written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use strait_proto::envoy::envoy::service::discovery::v3::DeltaDiscoveryRequest;

use super::resource::{Resource, ResourceType, Version};
use super::rope::Rope;
use super::session::{Form, Handled, Response, Session, Violation, check_names};
use super::wire::{any_len, bytes_len, message_len, put_any, put_bytes, put_head};

/// Subscribes to everything of a wildcard type.
pub(super) const EVERYTHING: &str = "*";

impl Session {
    /// Takes a request. What it asks for comes out of [`Session::next_response`].
    ///
    /// Its names count whatever its nonce: a stale one only says that our response and this request
    /// crossed on the way.
    ///
    /// # Errors
    /// The request ends the stream.
    pub fn on_delta_request(
        &mut self,
        request: DeltaDiscoveryRequest,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let DeltaDiscoveryRequest {
            node,
            type_url,
            resource_names_subscribe: mut subscribe,
            resource_names_unsubscribe: mut unsubscribe,
            initial_resource_versions: listed,
            response_nonce,
            error_detail,
            ..
        } = request;
        let Some(kind) = self.open_request(node.as_ref(), &type_url)? else {
            return Ok(Handled::Request);
        };
        let (watch, first) = self.watch(kind);
        if !subscribe.is_empty() {
            let new = subscribe.iter().filter(|name| !watch.is_named(name));
            check_names(new, watch.names().count())?;
        }
        check_names(listed.keys(), 0)?;

        let error = error_detail.as_ref().map(|status| status.message.as_str());
        let handled = self.answer(kind, &response_nonce, error, now);

        let everything = take_everything(&mut subscribe)
            || (first && subscribe.is_empty() && unsubscribe.is_empty());
        let nothing_more = take_everything(&mut unsubscribe);
        self.unsubscribe(kind, unsubscribe.iter().map(String::as_str));
        let (watch, _) = self.watch(kind);
        if kind.is_wildcard() {
            if nothing_more {
                watch.unsubscribe_all();
            }
            if everything {
                watch.subscribe_all();
            }
        }
        let subscribe: BTreeSet<Arc<str>> = subscribe.into_iter().map(Arc::from).collect();
        let wildcard = watch.is_wildcard();
        if first {
            let listed =
                listed.iter().filter(|(name, _)| wildcard || subscribe.contains(name.as_str()));
            self.list(kind, listed);
        }
        self.subscribe(kind, &subscribe, |name| first && listed.contains_key(name));
        Ok(handled)
    }

    fn list<'a>(
        &mut self,
        kind: ResourceType,
        listed: impl Iterator<Item = (&'a String, &'a String)>,
    ) {
        let own = |name: &str, version| match kind {
            ResourceType::Endpoint => self.joined(name, version),
            _ => version,
        };
        let listed: Vec<_> = listed
            .map(|(name, version)| {
                let version = Version::parse(version).map(|version| own(name, version));
                (Arc::from(name.as_str()), version)
            })
            .collect();
        self.watch(kind).0.list(listed.into_iter());
    }
}

/// Takes the wildcard out of a list of names; returns whether it was in it.
pub(super) fn take_everything(names: &mut Vec<String>) -> bool {
    let before = names.len();
    names.retain(|name| name != EVERYTHING);
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
