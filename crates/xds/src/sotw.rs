//! Request handling of the state-of-the-world form.

use std::sync::Arc;
use std::time::SystemTime;

use super::request::AdsRequest;
use super::request_limits::{Handled, Violation, check_names, take_everything};
use super::resource::ResourceType;
use super::session::Session;
use super::subscription::TypeSubscription;

impl Session {
    /// Handles a SotW request.
    ///
    /// A SotW request lists all names that the client subscribes to. Therefore the last request
    /// applies, whatever its nonce. A request without a nonce restarts the type and is answered in
    /// full, because its version only states that the client held this version at some time.
    pub(super) fn on_sotw_request(
        &mut self,
        kind: ResourceType,
        request: AdsRequest<'_>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        let AdsRequest { mut names, nonce, error, .. } = request;
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
            // Most answers do not change the subscription.
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

/// Updates the wildcard subscription of a type.
///
/// A request without names subscribes to all resources until the client has named a resource on the
/// stream; after that, it subscribes to nothing (xDS protocol, "how the client specifies what
/// resources to return").
fn watch_everything(watch: &mut TypeSubscription, named: bool, no_names: bool, anew: bool) {
    let everything = named || (no_names && !watch.was_named());
    watch.note_named(named || !no_names);
    if !everything {
        watch.unsubscribe_all();
    } else if anew || !watch.is_wildcard() {
        watch.subscribe_all();
    }
}
