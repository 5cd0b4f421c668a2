//! Virtual hosts of a route configuration as separate resources (Envoy, "VHDS"), and the route
//! configuration without them.
//!
//! A route is always generated as a whole, in chunks that its versions share. The hosts that a
//! client lacks are the difference between two whole routes: the held one and the current one.
//! Chunks in the same memory are skipped. Therefore no state is stored per host, and hosts that the
//! client already has are not generated.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field, string};
use xxhash_rust::xxh3::xxh3_64;

use super::body::{BodySegment, Edit, ResourceBody};
use super::resource::{Resource, Version};
use strait_base::hash::SecretHasher;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::route::v3 as route;

/// Field numbers of `RouteConfiguration` and `VirtualHost`.
mod field {
    pub(super) const VIRTUAL_HOSTS: u32 = 2;
    pub(super) const HOST_NAME: u32 = 1;
}

/// The virtual hosts of a route that a client holds.
#[derive(Debug)]
pub enum HeldHosts {
    /// The client holds no hosts.
    Nothing,
    /// The hosts that the client listed when it connected, without the name of the route. A version
    /// is `None` if this server did not create it.
    Listed(BTreeMap<Box<str>, Option<Version>>),
    /// The hosts of this route.
    Of(Arc<Resource>),
}

/// The differences between the hosts that a client holds and a route's hosts, sorted by name.
#[derive(Debug, Default)]
pub struct HostChanges {
    /// Hosts that the client lacks or holds with other content.
    pub changed: Vec<Arc<Resource>>,
    /// Names of hosts that the client holds and that no longer exist.
    pub removed: Vec<Arc<str>>,
}

impl HostChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// A virtual host within a run of a route.
#[derive(Clone, Copy)]
struct HostFragment<'a> {
    run: &'a Bytes,
    content: &'a [u8],
}

impl<'a> HostFragment<'a> {
    /// Splits the host into its name and the bytes after it. An encoded host begins with its name.
    fn split(&self) -> (&'a [u8], &'a [u8]) {
        let first = fields(self.content).next().filter(|first| first.number == field::HOST_NAME);
        let name = first.map_or(0..0, |first| first.content);
        (&self.content[name.clone()], &self.content[name.end..])
    }

    fn version(&self) -> Version {
        Version(xxh3_64(self.content))
    }

    /// Returns the host as a resource. Its name begins with the name of the route, from which Envoy
    /// finds the route.
    fn resource(&self, route: &str) -> Resource {
        let (name, rest) = self.split();
        let name = resource_name(route, name);
        let mut text = Vec::with_capacity(name.len() + 4);
        string::encode(field::HOST_NAME, &name, &mut text);
        let puts = u32::try_from(text.len()).expect("a short name");
        let edits = vec![Edit { at: 0, drops: 0, puts }];
        let body = ResourceBody::edited([self.run.slice_ref(rest)].into(), edits, text);
        Resource { name: name.into(), version: self.version(), body }
    }
}

fn resource_name(route: &str, host: &[u8]) -> String {
    format!("{route}/{}", String::from_utf8_lossy(host))
}

/// Returns a resource name within a route that no host has.
///
/// Its removal informs a client that the route has no hosts to wait for.
pub(super) fn nobody(route: &str) -> Arc<str> {
    format!("{route}/").into()
}

/// Returns the resource names of the hosts that a client holds.
pub(super) fn names(route: &str, held: &HeldHosts) -> Vec<Arc<str>> {
    let of = |host: &[u8]| resource_name(route, host).into();
    match held {
        HeldHosts::Nothing => Vec::new(),
        HeldHosts::Listed(listed) => listed.keys().map(|name| of(name.as_bytes())).collect(),
        HeldHosts::Of(route) => {
            let runs = runs(&route.body.segments());
            by_name(hosts(&runs)).keys().map(|name| of(name)).collect()
        }
    }
}

/// Computes the changes from the hosts that a client holds to the hosts of a route.
pub fn changes(held: &HeldHosts, now: &Resource) -> HostChanges {
    let mut segments = now.body.segments();
    let mut old = Vec::new();
    if let HeldHosts::Of(held) = held {
        let mut rest = held.body.segments();
        // Usually one run differs, and only one host in it.
        trim(&mut segments, &mut rest, |one, other| one.is_same(other));
        let mut others = HashMap::<_, BodySegment<'_>, SecretHasher>::default();
        others.extend(rest.into_iter().map(|one| (one.memory(), one)));
        segments.retain(|one| {
            let is_same = others.get(&one.memory()).is_some_and(|other| other.is_same(one));
            if is_same {
                others.remove(&one.memory());
            }
            !is_same
        });
        old.extend(others.into_values());
        old.sort_by_key(BodySegment::start);
    }
    let (runs_before, runs_now) = (runs(&old), runs(&segments));
    let (mut before, mut after) = (hosts(&runs_before), hosts(&runs_now));
    trim(&mut after, &mut before, |one, other| one.content == other.content);
    let (before, after) = (by_name(before), by_name(after));
    let lacks = |(name, host): &(&&[u8], &HostFragment<'_>)| match held {
        HeldHosts::Nothing => true,
        HeldHosts::Listed(listed) => {
            let name = std::str::from_utf8(name).unwrap_or_default();
            listed.get(name).copied().flatten() != Some(host.version())
        }
        HeldHosts::Of(_) => before.get(*name).is_none_or(|before| before.content != host.content),
    };
    let changed = after.iter().filter(lacks).map(|(_, host)| Arc::new(host.resource(&now.name)));
    let changed = changed.collect();
    let removed = match held {
        HeldHosts::Nothing => Vec::new(),
        HeldHosts::Listed(listed) => {
            let gone = listed.keys().filter(|name| !after.contains_key(name.as_bytes()));
            gone.map(|name| resource_name(&now.name, name.as_bytes()).into()).collect()
        }
        HeldHosts::Of(_) => {
            let gone = before.keys().filter(|name| !after.contains_key(*name));
            gone.map(|name| resource_name(&now.name, name).into()).collect()
        }
    };
    HostChanges { changed, removed }
}

/// Returns a route without its hosts, for a client that receives hosts individually.
///
/// The result changes only if something other than a host changes.
pub fn without_hosts(whole: &Resource) -> Resource {
    let segments = whole.body.segments();
    outline(&whole.name, segments.iter().map(BodySegment::bytes))
}

/// Returns a route without its hosts, from the runs that contain anything other than hosts.
pub fn outline(name: &Arc<str>, runs: impl Iterator<Item = Bytes>) -> Resource {
    let mut rest = Vec::new();
    for bytes in runs {
        let others = fields(&bytes).filter(|field| field.number != field::VIRTUAL_HOSTS);
        others.for_each(|field| rest.extend_from_slice(&bytes[field.whole]));
    }
    let source = core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        ..Default::default()
    };
    let vhds = route::Vhds { config_source: Some(source) };
    let apart = route::RouteConfiguration { vhds: Some(vhds), ..Default::default() };
    apart.encode(&mut rest).expect("a vector has room");
    Resource::new(Arc::clone(name), rest)
}

/// Removes the common prefix and the common suffix of two lists.
fn trim<T>(one: &mut Vec<T>, other: &mut Vec<T>, is_same: impl Fn(&T, &T) -> bool) {
    let alike = |(one, other): &(&T, &T)| is_same(one, other);
    let first = one.iter().zip(other.iter()).take_while(alike).count();
    one.drain(..first);
    other.drain(..first);
    let last = one.iter().rev().zip(other.iter().rev()).take_while(alike).count();
    one.truncate(one.len() - last);
    other.truncate(other.len() - last);
}

fn runs(segments: &[BodySegment<'_>]) -> Vec<Bytes> {
    segments.iter().map(BodySegment::bytes).collect()
}

/// Returns the hosts in some runs of a route, in their order.
fn hosts(runs: &[Bytes]) -> Vec<HostFragment<'_>> {
    let mut hosts = Vec::new();
    for run in runs {
        let those = fields(run).filter(|field| field.number == field::VIRTUAL_HOSTS);
        hosts.extend(those.map(|field| HostFragment { run, content: &run[field.content] }));
    }
    hosts
}

fn by_name(hosts: Vec<HostFragment<'_>>) -> BTreeMap<&[u8], HostFragment<'_>> {
    hosts.into_iter().map(|host| (host.split().0, host)).collect()
}

/// A field of an encoded message.
struct EncodedField {
    number: u32,
    whole: Range<usize>,
    /// The content without the key and length. Empty for a numeric field.
    content: Range<usize>,
}

/// Returns the fields of a message, up to the first unreadable one. The message was encoded by this
/// server.
fn fields(bytes: &[u8]) -> impl Iterator<Item = EncodedField> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut rest = bytes.get(start..).filter(|rest| !rest.is_empty())?;
        let (wire_type, number) = {
            let (number, wire_type) = decode_key(&mut rest).ok()?;
            (wire_type, number)
        };
        let length = if wire_type == WireType::LengthDelimited {
            usize::try_from(decode_varint(&mut rest).ok()?).ok()?
        } else {
            skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?;
            0
        };
        let content = bytes.len() - rest.len();
        let end = content.checked_add(length).filter(|end| *end <= bytes.len())?;
        let field = EncodedField { number, whole: start..end, content: content..end };
        start = end;
        Some(field)
    })
}

#[cfg(test)]
mod tests;
