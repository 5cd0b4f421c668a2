//! What a stranger, or a proxy, may say on the port of ADS: see [`crate::fuzz`].

use std::sync::Arc;
use std::time::SystemTime;

use super::client::names_in;
use super::generate::{Cache, ProxyConfig};
use super::grpc;
use super::list::SharedList;
use super::request::AdsRequest;
use super::resource::{All, Resource, ResourceSource, ResourceType};
use super::session::{ProtocolForm, Session};
use crate::model::{NetworkId, Proxy};
use crate::push::PushContext;
use crate::push::interest::Dirty;
use strait_http2 as http2;
use strait_proto::rules;

/// Holds all that a proxy is given of a mesh against what Envoy refuses before it looks at what it means; how many resources
/// there are.
pub(crate) fn check_given(context: &Arc<PushContext>, proxy: &Proxy) -> usize {
    let cache = Cache::default();
    let mut config = ProxyConfig::new(context, proxy, NetworkId::default(), &cache);
    let mut count = 0;
    let mut check = |kind: ResourceType, resource: &Resource| {
        let bytes = resource.body.to_bytes();
        let violation = rules::violation(kind.url(), &bytes);
        // What can't be checked is no fault of what is sent.
        let is_kept = match &violation {
            Ok(found) => found.as_ref().is_none_or(|fact| fact.ends_with(rules::UNCHECKED)),
            Err(_) => false,
        };
        assert!(is_kept, "{} {} of {}: {violation:?}", kind.short(), resource.name, proxy.id);
        count += 1;
        names_in(kind, &bytes)
    };
    for (kind, named) in [
        (ResourceType::Cluster, ResourceType::Endpoint),
        (ResourceType::Listener, ResourceType::Route),
    ] {
        let all = config.all(kind);
        let resources = all.shared.resources().iter().chain(&all.own);
        let names: Vec<_> = resources.flat_map(|resource| check(kind, resource)).collect();
        for name in names {
            let resource = config.one(named, &name);
            assert!(resource.is_some(), "no {name} for {}", proxy.id);
            resource.iter().for_each(|resource| drop(check(named, resource)));
        }
    }
    count
}

/// Frames: the first byte says in pieces of which length they arrive.
pub(crate) fn http2(bytes: &[u8]) -> bool {
    http2::fuzz(bytes)
}

/// Blocks of headers, two on one connection: the first byte says where the first ends.
pub(crate) fn hpack(bytes: &[u8]) -> bool {
    let Some((first, bytes)) = bytes.split_first() else { return false };
    let (one, other) = bytes.split_at(usize::from(*first).min(bytes.len()));
    let mut decoder = http2::hpack::HeaderDecoder::default();
    for block in [one, other] {
        let mut size = 0;
        let read = decoder.decode(block, |(name, value)| size += name.len() + value.len());
        // A byte may stand for what is in the table, which is bounded.
        assert!(size <= block.len().max(1) * (64 << 10), "{size} of {}", block.len());
        if read.is_err() {
            return false;
        }
    }
    true
}

/// The body of a call, in pieces: the first byte says of which length.
pub(crate) fn grpc(bytes: &[u8]) -> bool {
    grpc::fuzz(bytes)
}

/// A stream of the Delta form: requests as they come in a body, with the responses to them.
pub(crate) fn discovery_delta(bytes: &[u8]) -> bool {
    converse(ProtocolForm::Delta, bytes)
}

/// A stream of the state-of-the-world form.
pub(crate) fn discovery_sotw(bytes: &[u8]) -> bool {
    converse(ProtocolForm::Sotw, bytes)
}

fn converse(form: ProtocolForm, bytes: &[u8]) -> bool {
    let mut answered = false;
    let mut session = Session::new(form);
    let mut mesh = Few::default();
    let now = SystemTime::UNIX_EPOCH;
    for (turn, content) in grpc::messages(bytes).into_iter().enumerate() {
        let Ok(request) = AdsRequest::read(form, &content) else { return answered };
        // As when the mesh is complete, and as when it isn't yet.
        let source = (turn % 4 != 3).then_some(&mut mesh as &mut dyn ResourceSource);
        if session.on_request(request, source, now).is_err() {
            return answered;
        }
        session.subscription_delta();
        if turn % 3 == 2 {
            mesh.change();
            session.on_change(&Dirty { everything: true, ..Dirty::default() });
        }
        // Each answer is of something that was asked for, or is there: there are few.
        for answers in 0.. {
            let Some(response) = session.next_response(&mut mesh, 1 << 10, now) else { break };
            assert_eq!(response.to_bytes().len(), response.encoded_len());
            assert!(answers < 10_000, "it never ends");
            answered = true;
        }
        while let Some(nothing) = session.next_aside() {
            drop(nothing);
        }
    }
    let _ = (session.progress(), session.held());
    answered
}

/// A mesh of a few resources of each type.
#[derive(Default)]
struct Few(u8);

impl Few {
    fn change(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }

    fn resource(&self, name: &str) -> Arc<Resource> {
        Arc::new(Resource::new(name, vec![self.0; 3]))
    }
}

impl ResourceSource for Few {
    fn all(&mut self, kind: ResourceType) -> All {
        let shared = ["outbound|80||a", "outbound|80||b"].map(|name| self.resource(name));
        All { shared: SharedList::new(kind, shared.into(), 32), own: vec![self.resource("own")] }
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        (!kind.is_wildcard()).then(|| self.resource(name))
    }
}
