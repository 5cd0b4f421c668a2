//! The state-of-the-world form: how a request is read, and how a response is written.

use std::sync::Arc;
use std::time::SystemTime;

use super::delta::take_everything;
use super::request::Request;
use super::resource::{Resource, ResourceType};
use super::rope::Rope;
use super::session::{Form, Handled, Response, Session, Violation, check_names};
use super::subscription::Subscription;
use super::wire::{any_len, bytes_len, put_any, put_bytes};

impl Session {
    /// Takes a request of this form. It always lists all the names its client watches, so the last one
    /// counts, whatever its nonce. One without a nonce begins the type anew and is answered in full: the
    /// version in it only says what the client held at some time.
    pub(super) fn on_sotw_request(
        &mut self,
        kind: ResourceType,
        request: Request<'_>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let Request { mut names, nonce, error, .. } = request;
        check_names(&names, 0)?;
        let error = error.as_ref().map(|status| status.message.as_str());
        let handled = self.answer(kind, nonce, error, now);

        let named_everything = take_everything(&mut names);
        names.sort_unstable();
        names.dedup();
        let (watch, first) = self.watch(kind);
        let anew = first || nonce.is_empty();
        if kind.is_wildcard() {
            watch_everything(watch, named_everything, names.is_empty(), anew);
        }
        if !anew && watch.names().map(|name| &**name).eq(names.iter().copied()) {
            // As in most answers.
            return Ok(handled);
        }
        let is_listed = |name: &&Arc<str>| names.binary_search(&&***name).is_ok();
        let gone: Vec<_> = watch.names().filter(|name| !is_listed(name)).cloned().collect();
        names.retain(|name| anew || !watch.is_named(name));
        self.unsubscribe(kind, gone.iter().map(|name| &**name));
        self.subscribe(kind, &names, |_| false);
        Ok(handled)
    }
}

/// To name nothing is to watch everything, until something was named on the stream; from then on it
/// is to watch nothing. (xDS protocol, "how the client specifies what resources to return".)
fn watch_everything(watch: &mut Subscription, named: bool, no_names: bool, anew: bool) {
    let everything = named || (no_names && !watch.was_named());
    watch.note_named(named || !no_names);
    if !everything {
        watch.unsubscribe_all();
    } else if anew || !watch.is_wildcard() {
        watch.subscribe_all();
    }
}

/// Field numbers of `DiscoveryResponse`.
mod field {
    pub(super) const VERSION_INFO: u32 = 1;
    pub(super) const RESOURCES: u32 = 2;
    pub(super) const TYPE_URL: u32 = 4;
    pub(super) const NONCE: u32 = 5;
}

/// Writes a response as a `DiscoveryResponse`.
pub(super) fn encode(response: &Response, out: &mut Rope) {
    put_bytes(field::VERSION_INFO, &response.version.text(), out);
    response.pieces.iter().for_each(|piece| out.put_shared(piece.fields(Form::Sotw)));
    response.resources.iter().for_each(|one| put_resource(response.kind, one, out));
    put_bytes(field::TYPE_URL, response.kind.url().as_bytes(), out);
    put_bytes(field::NONCE, response.nonce.as_bytes(), out);
}

/// Writes a resource of a response.
pub(super) fn put_resource(kind: ResourceType, resource: &Resource, out: &mut Rope) {
    put_any(field::RESOURCES, kind, resource, out);
}

/// The length of what [`encode`] writes.
pub(super) fn encoded_len(response: &Response) -> usize {
    let resources =
        response.resources.iter().map(|one| any_len(field::RESOURCES, response.kind, one));
    let pieces = response.pieces.iter().map(|piece| piece.fields(Form::Sotw).len());
    bytes_len(field::VERSION_INFO, &response.version.text())
        + pieces.sum::<usize>()
        + resources.sum::<usize>()
        + bytes_len(field::TYPE_URL, response.kind.url().as_bytes())
        + bytes_len(field::NONCE, response.nonce.as_bytes())
}
