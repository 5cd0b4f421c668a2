//! Request handling of the incremental form.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::request::AdsRequest;
use super::request_limits::{EVERYTHING, Handled, Violation, check_names, take_everything};
use super::resource::{ResourceSource, ResourceType, Version};
use super::session::Session;
use strait_base::hash::SecretHasher;

impl Session {
    /// Handles a Delta request.
    ///
    /// Its names apply whatever its nonce: a stale nonce only means that a response and this
    /// request crossed on the way.
    pub(super) fn on_delta_request(
        &mut self,
        kind: ResourceType,
        request: AdsRequest<'_>,
        source: Option<&mut dyn ResourceSource>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        if kind == ResourceType::VirtualHost {
            return self.on_hosts_request(&request, source, now);
        }
        let AdsRequest { mut names, mut dropped, listed, nonce, error, .. } = request;
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
            // The client subscribes to the resources that it lists, even if it does not name them
            // again.
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
        let mut versions = HashMap::<_, _, SecretHasher>::default();
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
        if kind == ResourceType::Route {
            self.note_listed_routes(versions.keys().map(|name| Arc::from(*name)));
        }
        Ok(handled)
    }

    /// Records the versions that the client lists for names. `names` is sorted.
    fn list_named(
        &mut self,
        kind: ResourceType,
        names: &[&str],
        versions: &HashMap<&str, &str, SecretHasher>,
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
