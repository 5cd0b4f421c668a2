//! What one Delta stream costs, from requests of a proxy to the bytes of its answers: a first sync, a
//! reconnect with all that was held, and a change that one assignment tells of. Without sockets and TLS.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

use strait::model::{NetworkId, Proxy};
use strait::push::PushContext;
use strait::push::event_loop::Event;
use strait::push::interest::Dirty;
use strait::registry::Change;
use strait::xds::generate::{Cache, Picture};
use strait::xds::resource::ResourceType;
use strait::xds::session::{Form, RESPONSE_BYTES, Session};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::DeltaDiscoveryRequest;

use crate::{Case, mesh, names, objects, proxy, tell, update};

const SERVICES: usize = 1000;
/// Assignments that the proxy asks for.
const WATCHED: usize = 50;

/// One proxy's stream, and what it has been sent.
struct Client {
    session: Session,
    proxy: Proxy,
    held: HashMap<ResourceType, HashMap<String, String>>,
}

impl Client {
    fn new() -> Self {
        Self { session: Session::new(Form::Delta), proxy: proxy(), held: HashMap::new() }
    }

    /// Asks for all upstream clusters and for `names`, with the versions of what it holds.
    fn ask(&mut self, names: &[String]) {
        for kind in [ResourceType::Cluster, ResourceType::Endpoint] {
            let subscribe = if kind == ResourceType::Endpoint { names } else { &[] };
            self.say(DeltaDiscoveryRequest {
                node: Some(Node { id: "n".into(), ..Default::default() }),
                type_url: kind.url().into(),
                resource_names_subscribe: subscribe.to_vec(),
                initial_resource_versions: self.held.get(&kind).cloned().unwrap_or_default(),
                ..Default::default()
            });
        }
    }

    fn say(&mut self, request: DeltaDiscoveryRequest) {
        self.session.on_delta_request(request, SystemTime::UNIX_EPOCH).expect("it is sound");
    }

    /// Takes and acknowledges all there is to send; returns how many resources that were.
    fn drain(&mut self, context: &Arc<PushContext>, cache: &Cache) -> usize {
        let mut count = 0;
        loop {
            let mut picture = Picture::new(context, &self.proxy, NetworkId::default(), cache);
            let now = SystemTime::UNIX_EPOCH;
            let Some(response) = self.session.next_response(&mut picture, RESPONSE_BYTES, now)
            else {
                return count;
            };
            black_box(response.to_bytes());
            count += response.count();
            self.say(DeltaDiscoveryRequest {
                type_url: response.kind.url().into(),
                response_nonce: response.nonce,
                ..Default::default()
            });
        }
    }

    /// Notes what was sent, for a reconnect; not part of what is counted.
    fn note(&mut self, context: &Arc<PushContext>, cache: &Cache) {
        let mut picture = Picture::new(context, &self.proxy, NetworkId::default(), cache);
        let now = SystemTime::UNIX_EPOCH;
        while let Some(response) = self.session.next_response(&mut picture, RESPONSE_BYTES, now) {
            let held = self.held.entry(response.kind).or_default();
            held.extend(
                response.all().map(|(one, version)| (one.name.to_string(), version.to_string())),
            );
        }
    }
}

/// Streams of proxies that hold nothing, of a kind that is known.
pub(crate) fn first_sync() -> Case {
    const STREAMS: usize = 20;
    let (_, _, context) = mesh(1, SERVICES, 1);
    let cache = Cache::default();
    let watched = names(WATCHED);
    let mut first = Client::new();
    first.ask(&watched);
    first.drain(&context, &cache);
    let run = move || {
        for _ in 0..STREAMS {
            let mut client = Client::new();
            client.ask(&watched);
            assert!(client.drain(&context, &cache) >= SERVICES + WATCHED);
            black_box(&client);
        }
    };
    Case::new(STREAMS, run)
}

/// Streams of proxies that come back with all they held, which is as it was.
pub(crate) fn reconnect() -> Case {
    const STREAMS: usize = 20;
    let (_, _, context) = mesh(1, SERVICES, 1);
    let cache = Cache::default();
    let watched = names(WATCHED);
    let mut before = Client::new();
    before.ask(&watched);
    before.note(&context, &cache);
    assert!(before.held.values().map(HashMap::len).sum::<usize>() >= SERVICES + WATCHED);
    let run = move || {
        for _ in 0..STREAMS {
            let mut client = Client { held: before.held.clone(), ..Client::new() };
            client.ask(&watched);
            assert_eq!(client.drain(&context, &cache), 0);
            black_box(&client);
        }
    };
    Case::new(STREAMS, run)
}

/// Changes of one endpoint each, told to streams that watch all services.
pub(crate) fn deliver() -> Case {
    const STREAMS: usize = 10;
    const CHANGES: usize = 20;
    let (mut mesh, mut registries, context) = mesh(1, SERVICES, 10);
    let cache = Cache::default();
    let names = names(SERVICES);
    let mut clients: Vec<_> = (0..STREAMS).map(|_| Client::new()).collect();
    for client in &mut clients {
        client.ask(&names);
        client.drain(&context, &cache);
    }
    let registry = registries.first_mut().expect("a cluster");
    let versions: Vec<_> = (0..CHANGES)
        .map(|number| {
            let service = number * SERVICES / CHANGES;
            let slice = objects::slice(service, 10, 100);
            tell(registry, "endpointslices", strait::apiserver::Encoding::Json, &slice);
            mesh.apply(Event::Registry(update(
                0,
                Change::Update(registry.changes().expect("a change")),
            )));
            let endpoints = vec![Arc::from(names.get(service).expect("one of them").as_str())];
            let (context, _) = mesh.next_version().expect("a version");
            (context, Dirty { endpoints, ..Dirty::default() })
        })
        .collect();
    // Made once for all streams, and counted elsewhere.
    let mut first = Client::new();
    first.ask(&names);
    for (context, dirty) in &versions {
        first.session.on_change(dirty);
        first.drain(context, &cache);
    }
    let run = move || {
        for (context, dirty) in &versions {
            for client in &mut clients {
                client.session.on_change(dirty);
                assert_eq!(client.drain(context, &cache), 1);
            }
        }
    };
    Case::new(STREAMS * CHANGES, run)
}
