//! Virtual hosts one by one (VHDS): what a stream is sent of the routes that it watches.
//!
//! Envoy asks once for the type, without names, and means the hosts of all routes that it asks for: of a later route it says nothing
//! more. So the watch of this type has the routes' names, and what is held under them are whole routes, as ever; a
//! response has what differs of one of them. Envoy takes such a response as a whole or not at all, so what it holds once it has
//! refused one is what it held before, and until it has answered nobody knows: that route waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::{Handled, Response, Session, Versioned, Violation};
use crate::answers::SentNames;
use crate::asked::check_names;
use crate::form::ProtocolForm;
use crate::request::AdsRequest;
use crate::resource::{ResourceSource, ResourceType, Version};
use crate::served_hosts::Unsettled;
use crate::subscription::OneChange;
use crate::virtual_hosts::{self, HeldHosts};

impl Session {
    /// Serves virtual hosts one by one. Only the Delta form has them so.
    pub fn serve_virtual_hosts(&mut self) {
        if self.form == ProtocolForm::Delta {
            self.hosts = Some(Box::default());
        }
    }

    /// Takes a request for virtual hosts. What it names says nothing: it is the routes whose hosts are meant.
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

    /// Watches the hosts of all routes that are watched, and believes the client in those that it lists.
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
        let Some(routes) = self.watches.get(&ResourceType::Route) else { return };
        // Of a route that it has let go and taken up again it still lists the hosts of before.
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

    /// Takes note of routes that the client had when it came.
    pub(crate) fn note_listed_routes(&mut self, names: impl Iterator<Item = Arc<str>>) {
        if let Some(hosts) = &mut self.hosts {
            hosts.listed_routes.extend(names);
        }
    }

    /// Watches the hosts of routes, sorted, that the client has asked for now: it may have forgotten those of before.
    pub(super) fn watch_hosts(&mut self, routes: &[&str]) {
        self.forget_hosts(routes.iter().copied());
        if let Some(watch) = self.watches.get_mut(&ResourceType::VirtualHost) {
            watch.subscribe(routes, |_| false);
        }
    }

    /// Watches the hosts of routes no more.
    pub(super) fn forget_hosts<'a>(&mut self, routes: impl Iterator<Item = &'a str>) {
        let Some(hosts) = &mut self.hosts else { return };
        let Some(watch) = self.watches.get_mut(&ResourceType::VirtualHost) else {
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

    /// Tells the client that hosts of routes are gone that it has let go.
    pub(super) fn gone_hosts_response(&mut self, now: SystemTime) -> Option<Response> {
        let hosts = self.hosts.as_mut().filter(|hosts| hosts.is_due())?;
        let watch = self.watches.get_mut(&ResourceType::VirtualHost)?;
        let mut removed = std::mem::take(&mut hosts.gone);
        removed.sort_unstable();
        removed.dedup();
        self.last_nonce += 1;
        let nothing = SentNames { pieces: Vec::new(), others: Box::default() };
        Some(Response {
            form: self.form,
            kind: ResourceType::VirtualHost,
            version: watch.sent(self.last_nonce, nothing, now),
            nonce: format!("{:x}", self.last_nonce),
            pieces: Vec::new(),
            resources: Vec::new(),
            removed,
        })
    }

    /// The next response with hosts: all that the client lacks of one route, so that a domain which goes from one host to another
    /// is never with both.
    pub(super) fn hosts_response(
        &mut self,
        source: &mut dyn ResourceSource,
        now: SystemTime,
    ) -> Option<Response> {
        let hosts = self.hosts.as_mut()?;
        // It takes hosts of routes alone that it has taken.
        let routes = self.watches.get(&ResourceType::Route)?;
        let unanswered = routes.awaits_answer_to(self.last_nonce);
        let nack = routes.progress().nack.as_ref();
        let refused = nack.map(|nack| nack.resources.union(&nack.suspects).cloned());
        let refused: BTreeSet<Arc<str>> = refused.into_iter().flatten().collect();
        let watch = self.watches.get_mut(&ResourceType::VirtualHost)?;
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
                nonce: format!("{:x}", self.last_nonce),
                pieces: Vec::new(),
                resources: resources
                    .map(|resource| Versioned { version: resource.version, resource })
                    .collect(),
                removed: changes.removed,
            });
        }
    }
}
