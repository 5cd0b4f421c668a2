//! Individual virtual hosts (VHDS) of the routes that a stream subscribes to.
//!
//! Envoy requests the type once, without names, for the hosts of all its routes. It sends no
//! further request when it subscribes to another route. Therefore the subscription for this type
//! contains the names of the routes, and the held resources are whole routes. A response contains
//! the differences of one route. Envoy accepts or rejects this response as a whole, so after a
//! rejection it still holds the previous hosts. Until it answers, its state is unknown, and further
//! responses for that route wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::{Handled, Response, Session, Versioned, Violation};
use crate::answers::SentNames;
use crate::form::ProtocolForm;
use crate::request::AdsRequest;
use crate::request_limits::check_names;
use crate::resource::{ResourceSource, ResourceType, Version};
use crate::response::nonce_of;
use crate::served_hosts::Unsettled;
use crate::subscription::OneChange;
use crate::virtual_hosts::{self, HeldHosts};

impl Session {
    /// Serves virtual hosts individually. Has no effect in the SotW form, which does not support
    /// this.
    pub fn serve_virtual_hosts(&mut self) {
        if self.form == ProtocolForm::Delta {
            self.hosts = Some(Box::default());
        }
    }

    /// Handles a request for virtual hosts. Its names are ignored: the subscribed routes determine
    /// the hosts.
    pub(crate) fn on_hosts_request(
        &mut self,
        request: &AdsRequest<'_>,
        source: Option<&mut dyn ResourceSource>,
        now: SystemTime,
    ) -> Result<Handled, Violation> {
        check_names(&request.names, 0)?;
        check_names(request.listed.iter().map(|(name, _)| name), 0)?;
        let (_, first) = self.watch(ResourceType::VirtualHost);
        let error = request.error.as_ref().map(|status| status.message.as_str());
        let handled = self.answer(ResourceType::VirtualHost, request.nonce, error, now);
        if let Some(hosts) = &mut self.hosts
            && let Ok(number) = u64::from_str_radix(request.nonce, 16)
        {
            hosts.answered(number, error.is_some());
        }
        if first {
            self.watch_all_hosts(&request.listed, source);
        }
        Ok(handled)
    }

    /// Subscribes to the hosts of all subscribed routes, and records the hosts that the client
    /// lists.
    fn watch_all_hosts(
        &mut self,
        listed: &[(&str, &str)],
        mut source: Option<&mut dyn ResourceSource>,
    ) {
        let mut by_route = BTreeMap::<&str, BTreeMap<Box<str>, Option<Version>>>::new();
        for (name, version) in listed {
            if let Some((route, host)) = name.rsplit_once('/') {
                by_route.entry(route).or_default().insert(host.into(), Version::parse(version));
            }
        }
        let Some(hosts) = &mut self.hosts else { return };
        let Some(routes) = self.watches.get(ResourceType::Route) else { return };
        // After the client has unsubscribed from a route and subscribed to it again, it still lists
        // the route's previous hosts.
        let listed_routes = std::mem::take(&mut hosts.listed_routes);
        by_route.retain(|route, listed| {
            let is_believed = listed_routes.contains(*route);
            if !is_believed {
                let forgotten = HeldHosts::Listed(std::mem::take(listed));
                hosts.gone.extend(virtual_hosts::names(route, &forgotten));
            }
            is_believed
        });
        let names: Vec<_> = routes.names().cloned().collect();
        let mut current = BTreeMap::new();
        for name in &names {
            let Some(held) = by_route.remove(&**name).map(HeldHosts::Listed) else { continue };
            let now = source.as_mut().and_then(|it| it.one(ResourceType::VirtualHost, name));
            match now.filter(|now| virtual_hosts::changes(&held, now).is_empty()) {
                Some(now) => _ = current.insert(&**name, now),
                None => {
                    let unsettled = Unsettled { held, awaited: None, names: Vec::new() };
                    hosts.unsettled.insert(Arc::clone(name), unsettled);
                }
            }
        }
        let (watch, _) = self.watch(ResourceType::VirtualHost);
        watch.list_current(current.values().map(Arc::clone));
        let all: Vec<&str> = names.iter().map(|name| &**name).collect();
        watch.subscribe(&all, |name| current.contains_key(name));
    }

    /// Records routes that the client already had when it connected.
    pub(crate) fn note_listed_routes(&mut self, names: impl Iterator<Item = Arc<str>>) {
        if let Some(hosts) = &mut self.hosts {
            hosts.listed_routes.extend(names);
        }
    }

    /// Subscribes to the hosts of routes that the client has just requested, which are sorted. The
    /// client may have forgotten the hosts that it was sent before.
    pub(super) fn watch_hosts(&mut self, routes: &[&str]) {
        self.forget_hosts(routes.iter().copied());
        if let Some(watch) = self.watches.get_mut(ResourceType::VirtualHost) {
            watch.subscribe(routes, |_| false);
        }
    }

    /// Unsubscribes from the hosts of routes.
    pub(super) fn forget_hosts<'a>(&mut self, routes: impl Iterator<Item = &'a str>) {
        let Some(hosts) = &mut self.hosts else { return };
        let Some(watch) = self.watches.get_mut(ResourceType::VirtualHost) else {
            routes.for_each(|route| _ = hosts.listed_routes.remove(route));
            return;
        };
        let forget = |route: &&str| {
            if let Some(sent) = watch.sent_of(route).map(HeldHosts::Of) {
                hosts.gone.extend(virtual_hosts::names(route, &sent));
            }
            if let Some(Unsettled { held, names, .. }) = hosts.unsettled.remove(*route) {
                hosts.gone.extend(virtual_hosts::names(route, &held));
                watch.forget_refused(&names);
            }
        };
        let routes: Vec<_> = routes.inspect(forget).collect();
        watch.unsubscribe(routes);
    }

    /// Returns a response that removes the hosts of routes from which the client has unsubscribed.
    pub(super) fn gone_hosts_response(&mut self, now: SystemTime) -> Option<Response> {
        let hosts = self.hosts.as_mut().filter(|hosts| hosts.is_due())?;
        let watch = self.watches.get_mut(ResourceType::VirtualHost)?;
        let mut removed = std::mem::take(&mut hosts.gone);
        removed.sort_unstable();
        removed.dedup();
        self.last_nonce += 1;
        let nothing = SentNames { pieces: Vec::new(), others: Box::default() };
        Some(Response {
            form: self.form,
            kind: ResourceType::VirtualHost,
            version: watch.sent(self.last_nonce, nothing, now),
            nonce: nonce_of(self.last_nonce),
            pieces: Vec::new(),
            resources: Vec::new(),
            removed,
        })
    }

    /// Returns the next response with hosts. It contains all changes of one route, so that two
    /// hosts never have the same domain while it moves from one to the other.
    pub(super) fn hosts_response(
        &mut self,
        source: &mut dyn ResourceSource,
        now: SystemTime,
    ) -> Option<Response> {
        let hosts = self.hosts.as_mut()?;
        // The client accepts hosts only for routes that it has accepted.
        let routes = self.watches.get(ResourceType::Route)?;
        let unanswered = routes.awaits_answer_to(self.last_nonce);
        let nack = routes.progress().nack.as_ref();
        let refused = nack.map(|nack| nack.resources.union(&nack.suspects).cloned());
        let refused: BTreeSet<Arc<str>> = refused.into_iter().flatten().collect();
        let watch = self.watches.get_mut(ResourceType::VirtualHost)?;
        loop {
            let OneChange { is_awaited, before, now: route } =
                watch.take_one(source, |name, is_held| {
                    hosts.awaits(name) || (!is_held && (unanswered || refused.contains(name)))
                })?;
            let unsettled = hosts.unsettled.remove(&route.name);
            let is_refused = unsettled.is_some();
            let (held, mut names) = match unsettled {
                Some(unsettled) => (unsettled.held, unsettled.names),
                None => (before.map_or(HeldHosts::Nothing, HeldHosts::Of), Vec::new()),
            };
            let mut changes = virtual_hosts::changes(&held, &route);
            if changes.is_empty() {
                if !is_awaited && !is_refused {
                    continue;
                }
                changes.removed.push(virtual_hosts::nobody(&route.name));
            }
            self.last_nonce += 1;
            names.extend(changes.changed.iter().map(|one| Arc::clone(&one.name)));
            names.sort_unstable();
            names.dedup();
            let sent = SentNames { pieces: Vec::new(), others: names.clone().into() };
            let version = watch.sent(self.last_nonce, sent, now);
            let awaited = Some(self.last_nonce);
            hosts.unsettled.insert(Arc::clone(&route.name), Unsettled { held, awaited, names });
            let resources = changes.changed.into_iter();
            return Some(Response {
                form: self.form,
                kind: ResourceType::VirtualHost,
                version,
                nonce: nonce_of(self.last_nonce),
                pieces: Vec::new(),
                resources: resources
                    .map(|resource| Versioned { version: resource.version, resource })
                    .collect(),
                removed: changes.removed,
            });
        }
    }
}
