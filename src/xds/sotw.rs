//! The state-of-the-world form: how a request is read, and how a response is written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use strait_proto::envoy::envoy::service::discovery::v3::DiscoveryRequest;

use super::delta::take_everything;
use super::resource::{Resource, ResourceType};
use super::rope::Rope;
use super::session::{Form, Handled, Response, Session, Violation, check_names};
use super::subscription::Subscription;
use super::wire::{any_len, bytes_len, put_any, put_bytes};

impl Session {
    /// Takes a request. What it asks for comes out of [`Session::next_response`].
    ///
    /// A request always lists all the names its client watches, so the last one counts, whatever its
    /// nonce. One without a nonce begins the type anew and is answered in full: the version in it
    /// only says what the client held at some time.
    ///
    /// # Errors
    /// The request ends the stream.
    pub fn on_sotw_request(
        &mut self,
        request: DiscoveryRequest,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let DiscoveryRequest {
            node,
            type_url,
            resource_names: mut names,
            response_nonce,
            error_detail,
            ..
        } = request;
        let Some(kind) = self.open_request(node.as_ref(), &type_url)? else {
            return Ok(Handled::Request);
        };
        check_names(&names, 0)?;
        let error = error_detail.as_ref().map(|status| status.message.as_str());
        let handled = self.answer(kind, &response_nonce, error, now);

        let named_everything = take_everything(&mut names);
        names.sort_unstable();
        let (watch, first) = self.watch(kind);
        let anew = first || response_nonce.is_empty();
        if kind.is_wildcard() {
            watch_everything(watch, named_everything, names.is_empty(), anew);
        }
        let is_listed = |name: &str| names.binary_search_by(|one| (**one).cmp(name)).is_ok();
        let gone: Vec<_> = watch.names().filter(|name| !is_listed(name)).cloned().collect();
        let asked = names.iter().filter(|name| anew || !watch.is_named(name));
        let asked: BTreeSet<Arc<str>> = asked.map(|name| name.as_str().into()).collect();
        self.unsubscribe(kind, gone.iter().map(|name| &**name));
        self.subscribe(kind, &asked, |_| false);
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
