//! The common part of the routes of a port in all namespaces, and the differences in each
//! namespace.
//!
//! In the DNS domain of a namespace, its own services have one additional name each; everything
//! else is equal. The fragments of a route (its virtual hosts) are generated once for all
//! namespaces, and once for all versions with equal content ([`Chunks`]). The route in a namespace
//! is the common route with a few edits.
//!
//! Envoy refuses a domain that occurs in two virtual hosts. Resolving such conflicts requires all
//! hosts, takes long and is rarely needed: hashes of domains detect conflicts.

mod amend;
mod groups;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use prost::Message;
use prost::encoding::{WireType, decode_varint, encode_key, encode_varint, string};

use self::groups::HostGroups;
use super::lists::{self, RouteList, RouteLists};
use super::rules::{self, to_service};
use super::{
    TrafficSettings, address_authority, aliases, all_else, called, counting, ending, host_names,
    in_full, is_anothers, is_domain, routed_ports, searched_domains, shortened,
};
use crate::chunks::{Chunks, DomainHash, Draft, FragmentChunk, RewrittenFragments, count, digest};
use crate::class::Class;
use strait_base::hash::SecretHasher;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::{ListenAddresses, Vip};
use strait_model::{Hostname, Namespace, Resolution};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_xds::body::{Edit, ResourceBody};
use strait_xds::resource::Resource;
use strait_xds::virtual_hosts;

/// Field numbers of `RouteConfiguration` and `VirtualHost`.
pub(super) mod field {
    pub(in crate::rds) const VIRTUAL_HOSTS: u32 = 2;
    pub(super) const DOMAINS: u32 = 2;
}

/// The route of a port for a class of proxies in a DNS domain without services. The routes of
/// namespaces are derived from it.
#[derive(Debug)]
pub(crate) struct RouteBase {
    number: u16,
    addresses: Arc<ListenAddresses>,
    /// The index among `addresses` of each fragment that belongs to a service.
    places: Arc<[u32]>,
    /// The routes of services with rules, by fragment. Few differ between versions.
    lists: OrdMap<usize, Arc<RouteList>>,
    /// The hosts that only rules name. Their fragments follow the fragments of the services.
    ruled: Arc<[RuledHost]>,
    /// The groups of hosts that share one virtual host.
    groups: HostGroups,
    aliases: Arc<BTreeMap<Hostname, Vec<Hostname>>>,
    chunks: Arc<[Arc<FragmentChunk>]>,
    /// The first fragment of each chunk and the position of the chunk's bytes.
    starts: Box<[(usize, usize)]>,
    /// All bytes: the name, the chunks, and the end of all routes.
    runs: Arc<[Bytes]>,
    /// Whether names are completed with the search domains that all namespaces share.
    completes: bool,
    /// All domains, sorted; `disputed` contains the domains that occur twice.
    domains: Arc<[DomainHash]>,
    disputed: Box<[DomainHash]>,
    /// Namespaces in which conflicts of domains may be resolved differently.
    settled_apart: BTreeSet<Namespace>,
    /// The fragments of services that have an additional name in a namespace.
    by_namespace: Arc<HashMap<Box<str>, Vec<u32>, SecretHasher>>,
}

/// A host that no service of the port has.
#[derive(Debug)]
struct RuledHost {
    host: Hostname,
    /// The namespace of the object that owns the host.
    namespace: Namespace,
    routes: Arc<RouteList>,
}

/// A service with the port, or a host that rules name.
#[derive(Clone, Copy)]
struct RoutedHost<'a> {
    hostname: &'a Hostname,
    /// The service, unless only rules name the host.
    service: Option<&'a MergedService>,
    namespace: &'a Namespace,
    /// The routes from rules.
    routes: Option<&'a RouteList>,
    vips: &'a [Vip],
    /// The aliases of the host.
    aliases: &'a [Hostname],
    number: u16,
}

/// A virtual host before encoding.
struct Planned<'a> {
    /// The host at this position, which names the virtual host.
    host: RoutedHost<'a>,
    /// The hosts of this virtual host, in order. Empty if the host belongs to the virtual host of
    /// an earlier host.
    members: Vec<RoutedHost<'a>>,
    completes: bool,
    /// The domains after the resolution of conflicts, if there were any.
    settled: Option<Vec<String>>,
}

impl Planned<'_> {
    fn write(&self, searched: &[String], chunk_cache: &Chunks, draft: &mut Draft) {
        let made;
        let domains = match &self.settled {
            Some(settled) => settled,
            None => {
                made = member_domains(&self.members, searched);
                &made
            }
        };
        self.host.write(domains, &mut draft.bytes);
        draft.domains.extend(domains.iter().map(|domain| chunk_cache.domain_hash(domain)));
    }
}

impl Hash for Planned<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.host.hostname, self.members.len(), self.completes).hash(state);
        for RoutedHost { hostname, aliases, number, service, routes, .. } in &self.members {
            (hostname, aliases, number, service.is_some()).hash(state);
            routes.map(|routes| routes.digest).hash(state);
        }
        for member in &self.members {
            member.is_headless().hash(state);
            member.addresses().for_each(|vip| vip.address.hash(state));
        }
        self.settled.hash(state);
    }
}

/// Returns the domains of hosts that share a virtual host.
fn member_domains(members: &[RoutedHost<'_>], searched: &[String]) -> Vec<String> {
    members.iter().flat_map(|host| host.domains(host.names(searched))).collect()
}

impl<'a> RoutedHost<'a> {
    fn is_headless(&self) -> bool {
        self.service.is_some_and(|service| service.primary.resolution == Resolution::Headless)
    }

    fn addresses(&self) -> impl Iterator<Item = &'a Vip> {
        self.vips.iter().filter(|vip| vip.has(self.number))
    }

    fn hostnames(&self) -> impl Iterator<Item = &'a Hostname> {
        [self.hostname].into_iter().chain(self.aliases)
    }

    /// Returns its names with these search domains.
    fn names(&self, searched: &[String]) -> Vec<String> {
        if self.service.is_none() {
            return vec![self.hostname.to_string()];
        }
        self.hostnames().flat_map(|name| host_names(name.as_str(), searched)).collect()
    }

    /// Returns all domains of the host, given its names.
    fn domains(&self, names: Vec<String>) -> Vec<String> {
        let mut domains = names;
        if self.is_headless() {
            // Each pod has a name below the service's.
            domains.extend(domains.clone().iter().map(|domain| format!("*.{domain}")));
        }
        domains.extend(self.addresses().map(|vip| address_authority(&vip.address)));
        domains.retain(|domain| is_domain(domain));
        domains
    }

    /// Writes its virtual host as a field of the route. A host without domains has none.
    fn write(&self, domains: &[String], out: &mut Vec<u8>) {
        if domains.is_empty() {
            return;
        }
        let host = route::VirtualHost {
            name: format!("{}:{}", self.hostname, self.number),
            domains: domains.to_vec(),
            ..Default::default()
        };
        let counts = counting();
        let plain;
        let routes = match self.routes {
            Some(list) => &list.bytes[..],
            None => {
                plain = rules::plain(&to_service(self.hostname, self.number));
                &plain
            }
        };
        encode_key(field::VIRTUAL_HOSTS, WireType::LengthDelimited, out);
        let length = host.encoded_len() + routes.len() + counts.encoded_len();
        encode_varint(length as u64, out);
        host.encode(out).expect("a vector has room");
        out.extend_from_slice(routes);
        counts.encode(out).expect("a vector has room");
    }
}

/// Returns the hosts with routes from rules and their positions. Hosts that only rules name follow
/// the services.
fn with_rules<'a>(
    lists: &'a OrdMap<usize, Arc<RouteList>>,
    ruled: &'a [RuledHost],
    services: usize,
) -> impl Iterator<Item = (usize, &'a Arc<RouteList>)> {
    let service_lists = lists.iter().map(|(at, list)| (*at, list));
    service_lists
        .chain(ruled.iter().enumerate().map(move |(at, host)| (services + at, &host.routes)))
}

impl RouteBase {
    /// Generates the route. Without completion of names, it is the route in a DNS domain without
    /// services.
    pub(crate) fn new(
        context: &PushContext,
        addresses: Arc<ListenAddresses>,
        (class, number, completes): (&Class, u16, bool),
        (chunks, lists): (&Chunks, &RouteLists),
    ) -> Self {
        let has_port = |service: &MergedService| {
            routed_ports(service, &class.cluster).any(|port| port.number == number)
        };
        let all = addresses.services.iter().enumerate();
        let places = all.filter(|(_, (service, _))| has_port(service));
        let places: Arc<[_]> =
            places.map(|(place, _)| u32::try_from(place).expect("fewer services")).collect();
        let routed = places.iter().map(|place| &*addresses.services[*place as usize].0);
        let ruled = lists::beyond(context, class, number, routed.clone(), lists);
        let listed = routed.enumerate().filter_map(|(at, service)| {
            Some((at, lists::service_routes(context, class, number, service.hostname(), lists)?))
        });
        let listed: OrdMap<_, _> = listed.collect();
        let ruled = ruled.into_iter().map(|(host, namespace, routes)| RuledHost {
            host,
            namespace,
            routes,
        });
        let ruled: Arc<[_]> = ruled.collect();
        let mut base = Self {
            number,
            groups: HostGroups::new(with_rules(&listed, &ruled, places.len())),
            ruled,
            lists: listed,
            places,
            aliases: Arc::new(aliases(&addresses)),
            completes,
            addresses,
            chunks: Arc::default(),
            starts: Box::default(),
            runs: Arc::default(),
            domains: Arc::default(),
            disputed: Box::default(),
            settled_apart: BTreeSet::new(),
            by_namespace: Arc::default(),
        };
        base.lay(context, &TrafficSettings::for_class(context, class), chunks);
        base
    }

    /// Generates the fragments. Equal fragments of earlier versions are reused.
    fn lay(&mut self, context: &PushContext, settings: &TrafficSettings, chunk_cache: &Chunks) {
        let searched = self.searched(context);
        let mut planned = self.planned();
        let make = |planned: &[Planned<'_>]| {
            chunk_cache.split(planned, |one, draft| one.write(&searched, chunk_cache, draft))
        };
        let mut chunks = make(&planned);
        let mut domains: Vec<_> =
            chunks.iter().flat_map(|chunk| chunk.domains().iter().copied()).collect();
        domains.sort_unstable();
        let twice = domains.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let disputed: Box<[_]> = twice.collect();
        let mut settled_apart = BTreeSet::new();
        if !disputed.is_empty() {
            let hosts: Vec<_> = self.hosts().collect();
            let settled = settle(context, &hosts, &searched, "");
            settled_apart = settled.restricted_namespaces;
            let domains = self.groups.joined(settled.domains);
            for (fragment, domains) in planned.iter_mut().zip(domains) {
                fragment.settled = Some(domains);
            }
            chunks = make(&planned);
        }
        let mut by_namespace = HashMap::<Box<str>, Vec<u32>, SecretHasher>::default();
        let services = format!("svc.{}", context.settings.domain);
        for (at, fragment) in planned.iter().enumerate().take(self.places.len()) {
            for name in fragment.host.hostnames() {
                let short = shortened(name.as_str(), &services);
                if let Some((_, namespace)) = short.and_then(|short| short.rsplit_once('.')) {
                    let at = u32::try_from(at).expect("fewer services");
                    match by_namespace.get_mut(namespace) {
                        Some(all) if all.last() == Some(&at) => {}
                        Some(all) => all.push(at),
                        None => _ = by_namespace.insert(namespace.into(), vec![at]),
                    }
                }
            }
        }
        drop(planned);
        let name = self.number.to_string();
        let named = route::RouteConfiguration { name, ..Default::default() };
        let end = ending(all_else(settings));
        let ends = [named, end].map(|message| Bytes::from(message.encode_to_vec()));
        self.join(chunks, ends);
        (self.domains, self.disputed) = (domains.into(), disputed);
        (self.settled_apart, self.by_namespace) = (settled_apart, Arc::new(by_namespace));
    }

    /// Returns all virtual hosts without resolution of conflicts.
    fn planned(&self) -> Vec<Planned<'_>> {
        (0..self.len()).map(|at| self.planned_at(at)).collect()
    }

    fn planned_at(&self, at: usize) -> Planned<'_> {
        let (host, completes) = (self.host(at), self.completes);
        Planned { host, members: self.members(at), completes, settled: None }
    }

    /// Returns the hosts of the virtual host at a position.
    fn members(&self, at: usize) -> Vec<RoutedHost<'_>> {
        self.groups.members(at).map(|at| self.host(at)).collect()
    }

    /// Sets the chunks, between the given head and end.
    fn join(&mut self, chunks: Arc<[Arc<FragmentChunk>]>, [head, end]: [Bytes; 2]) {
        let mut start = (0, head.len());
        let starts = chunks.iter().map(|chunk| {
            let this = start;
            start = (start.0 + chunk.len(), start.1 + chunk.bytes().len());
            this
        });
        self.starts = starts.collect();
        let runs = chunks.iter().map(|chunk| chunk.bytes().clone());
        self.runs = [head].into_iter().chain(runs).chain([end]).collect();
        self.chunks = chunks;
    }

    /// Returns whether the route in a namespace's DNS domain may differ from the route of
    /// namespaces without services.
    pub(crate) fn is_other_in(&self, namespace: &Namespace) -> bool {
        self.by_namespace.contains_key(namespace.as_str())
            || self.settled_apart.contains(namespace)
            || namespace.as_str().contains('.')
    }

    /// Returns the route without its virtual hosts, for clients that request these one by one. It
    /// is equal in all DNS domains.
    pub(crate) fn outline(&self) -> Resource {
        let ends = self.runs.first().into_iter().chain(self.runs.last());
        virtual_hosts::outline(&self.number.to_string().into(), ends.cloned())
    }

    /// Returns the route in a DNS domain without services.
    pub(crate) fn route(&self) -> Resource {
        self.resource(RewrittenFragments::default())
    }

    /// Returns the route in a DNS domain, which may be that of a namespace, `NAMESPACE.svc.DOMAIN`.
    pub(crate) fn route_in(
        &self,
        context: &PushContext,
        dns_domain: &str,
        chunk_cache: &Chunks,
    ) -> Resource {
        let searched = searched_domains(dns_domain);
        let (namespace, rest) = dns_domain.split_once('.').unwrap_or((dns_domain, ""));
        let is_namespaces = rest.strip_prefix("svc.") == Some(&context.settings.domain);
        let own = if is_namespaces && !self.settled_apart.contains(namespace) {
            self.own(namespace, &searched, chunk_cache)
        } else {
            None
        };
        let rewritten = own.unwrap_or_else(|| {
            let hosts: Vec<_> = self.hosts().collect();
            let settled = settle(context, &hosts, &searched, namespace).domains;
            let mut all = RewrittenFragments::default();
            self.groups.joined(settled).into_iter().enumerate().for_each(|(at, domains)| {
                self.rewrite(at, &domains, (0, 0), &mut all);
            });
            all
        });
        self.resource(rewritten)
    }

    /// Returns the changed fragments of services that have an additional name in a namespace, or
    /// `None` if such a name may conflict with another host. Chunks that are shared with another
    /// version are not processed again.
    fn own(
        &self,
        namespace: &str,
        searched: &[String],
        chunk_cache: &Chunks,
    ) -> Option<RewrittenFragments> {
        let services = self.by_namespace.get(namespace).map_or(&[][..], |all| all);
        let fragments: BTreeSet<_> = services.iter().map(|at| self.groups.first(*at)).collect();
        let fragments: Vec<_> = fragments.into_iter().collect();
        let mut places = &fragments[..];
        let mut own = RewrittenFragments::default();
        while let Some(next) = places.first() {
            let chunk = self.chunk_index(*next as usize);
            let (from, this) = (self.starts[chunk], &self.chunks[chunk]);
            let end = from.0 + this.len();
            let (these, rest) =
                places.split_at(places.partition_point(|place| (*place as usize) < end));
            let rewrite = || self.rewrite_chunk(these, from, searched, chunk_cache);
            let rewritten = match self.disputed.is_empty() {
                true => this.rewritten_in(namespace, rewrite)?,
                false => Arc::new(rewrite()?),
            };
            own.append(&rewritten, from);
            places = rest;
        }
        own.domains.sort_unstable();
        let is_twice = own.domains.windows(2).any(|pair| pair[0] == pair[1]);
        let is_there = |one: &DomainHash| self.domains.binary_search(one).is_ok();
        (!is_twice && !own.domains.iter().any(is_there)).then_some(own)
    }

    /// Returns the changed fragments of one chunk, relative to its first fragment and byte.
    fn rewrite_chunk(
        &self,
        places: &[u32],
        from: (usize, usize),
        searched: &[String],
        chunk_cache: &Chunks,
    ) -> Option<RewrittenFragments> {
        let mut own = RewrittenFragments::default();
        for at in places.iter().map(|at| *at as usize) {
            let domains = member_domains(&self.members(at), searched);
            let (_, _, before) = self.fragment(at);
            if before.iter().any(|one| self.disputed.binary_search(one).is_ok()) {
                return None;
            }
            let hashes = domains.iter().map(|domain| chunk_cache.domain_hash(domain));
            let count = own.domains.len();
            own.domains.extend(hashes.filter(|one| !before.contains(one)));
            if before.len() + own.domains.len() - count != domains.len() {
                return None;
            }
            self.rewrite(at, &domains, from, &mut own);
        }
        Some(own)
    }

    /// Replaces the domains of a fragment. Positions are relative to a first fragment and byte.
    fn rewrite(
        &self,
        at: usize,
        domains: &[String],
        (first, start): (usize, usize),
        to: &mut RewrittenFragments,
    ) {
        let (place, old, _) = self.fragment(at);
        let mut new = Vec::with_capacity(old.len() + 128);
        if old.is_empty() || domains.is_empty() {
            self.host(at).write(domains, &mut new);
        } else {
            write_with(old, domains, &mut new);
        }
        if new != old {
            to.digests.push((at - first, digest(&new)));
            edit(place - start, old, &new, &mut to.edits, &mut to.text);
        }
    }

    fn resource(&self, rewritten: RewrittenFragments) -> Resource {
        let mut digests = self.digests();
        for (at, digest) in rewritten.digests {
            digests[at + 1] = digest;
        }
        let body = ResourceBody::edited(Arc::clone(&self.runs), rewritten.edits, rewritten.text);
        let digests = digests.into_iter().filter(|one| *one != 0);
        Resource::of_parts(self.number.to_string(), digests, body)
    }

    /// Returns the digests of the first run, of all fragments, and of the last run.
    fn digests(&self) -> Vec<u64> {
        let [head, end] = [self.runs.first(), self.runs.last()];
        let [head, end] = [head, end].map(|run| run.map(|run| digest(run)));
        let fragments = self.chunks.iter().flat_map(|chunk| chunk.digests());
        head.into_iter().chain(fragments).chain(end).collect()
    }

    /// Returns the search domains that all namespaces share.
    fn searched(&self, context: &PushContext) -> Vec<String> {
        if !self.completes {
            return Vec::new();
        }
        let mut searched = searched_domains(&format!("svc.{}", context.settings.domain));
        searched.truncate(2);
        searched
    }

    fn hosts(&self) -> impl Iterator<Item = RoutedHost<'_>> {
        (0..self.len()).map(|at| self.host(at))
    }

    /// Returns the number of fragments.
    fn len(&self) -> usize {
        self.places.len() + self.ruled.len()
    }

    fn host(&self, at: usize) -> RoutedHost<'_> {
        let number = self.number;
        let Some(place) = self.places.get(at) else {
            let RuledHost { host, namespace, routes } = &self.ruled[at - self.places.len()];
            let (service, routes) = (None, Some(&**routes));
            let (vips, aliases) = (&[][..], &[][..]);
            return RoutedHost {
                hostname: host,
                service,
                namespace,
                routes,
                vips,
                aliases,
                number,
            };
        };
        let (service, vips) = &self.addresses.services[*place as usize];
        let hostname = service.hostname();
        let aliases = self.aliases.get(hostname).map_or(&[][..], |all| all);
        let namespace = &service.primary.namespace;
        let routes = self.lists.get(&at).map(|routes| &**routes);
        RoutedHost { hostname, service: Some(service), namespace, routes, vips, aliases, number }
    }

    /// Returns the chunk of a fragment.
    fn chunk_index(&self, at: usize) -> usize {
        self.starts.partition_point(|(first, _)| *first <= at) - 1
    }

    /// Returns the position of a fragment in the bytes of all runs, its bytes and its domains.
    fn fragment(&self, at: usize) -> (usize, &[u8], &[DomainHash]) {
        let chunk = self.chunk_index(at);
        let (first, start) = self.starts[chunk];
        let chunk = &self.chunks[chunk];
        let (range, domains) = chunk.fragment(at - first);
        (start + range.start, &chunk.bytes()[range], domains)
    }
}

/// The domains of hosts after the resolution of conflicts.
struct Settled {
    /// The domains of each host.
    domains: Vec<Vec<String>>,
    /// Namespaces of hosts whose full name is a short name of another host. Conflicts may be
    /// resolved differently for proxies of these namespaces.
    restricted_namespaces: BTreeSet<Namespace>,
}

/// Assigns each domain to one host, for proxies of `namespace`. Earlier hosts win. Envoy refuses a
/// domain that occurs in two virtual hosts, regardless of case.
fn settle(
    context: &PushContext,
    hosts: &[RoutedHost<'_>],
    searched: &[String],
    namespace: &str,
) -> Settled {
    let in_full = in_full(hosts.iter().map(|host| (host.hostname, host.namespace)));
    let (mut used_domains, mut restricted_namespaces) = (BTreeSet::new(), BTreeSet::new());
    let domains = hosts.iter().map(|host| {
        let mut names = host.names(searched);
        names.retain(|name| {
            let others = called(&in_full, host.hostname, name);
            restricted_namespaces.extend(others.iter().map(|other| (*other).clone()));
            let service = (host.hostname, host.namespace);
            !is_anothers(&in_full, context, namespace, service, name)
        });
        let mut domains = host.domains(names);
        domains.retain(|domain| used_domains.insert(domain.to_ascii_lowercase()));
        domains
    });
    let domains = domains.collect();
    Settled { domains, restricted_namespaces }
}

/// Writes an existing virtual host with other domains.
fn write_with(old: &[u8], domains: &[String], out: &mut Vec<u8>) {
    let (_, content, _) = split_field(old);
    // The name comes first, then the domains.
    let (head, name, mut rest) = split_field(content);
    let mut key = Vec::with_capacity(1);
    encode_key(field::DOMAINS, WireType::LengthDelimited, &mut key);
    while rest.starts_with(&key) {
        (_, _, rest) = split_field(rest);
    }
    let named = &content[..head.len() + name.len()];
    let length = named.len() + string::encoded_len_repeated(field::DOMAINS, domains) + rest.len();
    encode_key(field::VIRTUAL_HOSTS, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
    out.extend_from_slice(named);
    string::encode_repeated(field::DOMAINS, domains, out);
    out.extend_from_slice(rest);
}

/// Splits off the first field, whose number is below 16. Returns its head, its content, and the
/// rest.
fn split_field(bytes: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let mut rest = &bytes[1..];
    let length = decode_varint(&mut rest).expect("it was written here") as usize;
    let (content, rest) = rest.split_at(length);
    (&bytes[..bytes.len() - rest.len() - length], content, rest)
}

/// Records the edits that replace a field at `place`.
fn edit(place: usize, old: &[u8], new: &[u8], edits: &mut Vec<Edit>, text: &mut Vec<u8>) {
    if old.is_empty() || new.is_empty() {
        return replace(place, old, new, edits, text);
    }
    let ((old_head, old, _), (new_head, new, _)) = (split_field(old), split_field(new));
    replace(place, old_head, new_head, edits, text);
    replace(place + old_head.len(), old, new, edits, text);
}

/// Records an edit from the first difference to the last.
fn replace(place: usize, old: &[u8], new: &[u8], edits: &mut Vec<Edit>, text: &mut Vec<u8>) {
    let same = |(a, b): &(&u8, &u8)| a == b;
    let first = old.iter().zip(new).take_while(same).count();
    let (old, new) = (&old[first..], &new[first..]);
    let last = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let (old, new) = (&old[..old.len() - last], &new[..new.len() - last]);
    if old.is_empty() && new.is_empty() {
        return;
    }
    edits.push(Edit { at: count(place + first), drops: count(old.len()), puts: count(new.len()) });
    text.extend_from_slice(new);
}

#[cfg(test)]
mod tests;
