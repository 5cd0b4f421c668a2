//! The cost of one Delta stream, from the requests of a proxy to the bytes of the responses: a
//! first sync, a reconnect with all known versions, and a change of one assignment. Without sockets
//! and TLS.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

use prost::Message;

use crate::{Case, mesh, names, objects, proxy, tell, update};
use strait_envoy::{Cache, ProxyConfig};
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::MeshEvent;
use strait_model::dirty::Dirty;
use strait_model::registry::ShardChange;
use strait_model::{NetworkId, Proxy};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use strait_xds::request::AdsRequest;
use strait_xds::resource::{ResourceSource, ResourceType};
use strait_xds::session::{ProtocolForm, RESPONSE_BYTES, Session};

const SERVICES: usize = 1000;
/// The number of assignments to which the proxy subscribes.
const WATCHED: usize = 50;

/// The resources that a client has: versions by name, by type.
type Held = HashMap<ResourceType, HashMap<String, String>>;

/// One proxy's stream.
pub(crate) struct Client {
    pub(crate) session: Session,
    proxy: Proxy,
    /// The buffer of a response.
    answer: Vec<u8>,
}

/// Returns the first requests of a stream, for all upstream clusters and for `names`, with the
/// versions that the client has.
fn first_requests(names: &[String], held: &Held) -> Vec<Vec<u8>> {
    let of = |(kind, names)| request(kind, names, held.get(&kind).cloned().unwrap_or_default());
    [(ResourceType::Cluster, &[][..]), (ResourceType::Endpoint, names)].map(of).into()
}

/// Returns the first request of a type, for these names, with the versions that the client has.
pub(crate) fn request(
    kind: ResourceType,
    names: &[String],
    held: HashMap<String, String>,
) -> Vec<u8> {
    let request = DeltaDiscoveryRequest {
        node: Some(Node { id: "n".into(), ..Default::default() }),
        type_url: kind.url().into(),
        resource_names_subscribe: names.to_vec(),
        initial_resource_versions: held,
        ..Default::default()
    };
    request.encode_to_vec()
}

impl Client {
    fn new() -> Self {
        Self::of(proxy())
    }

    pub(crate) fn of(proxy: Proxy) -> Self {
        Self { session: Session::new(ProtocolForm::Delta), proxy, answer: Vec::new() }
    }

    /// Passes `requests` to the session.
    pub(crate) fn ask(&mut self, requests: &[Vec<u8>], context: &Arc<PushContext>, cache: &Cache) {
        for request in requests {
            let mut proxy_config =
                ProxyConfig::new(context, &self.proxy, NetworkId::default(), cache)
                    .with_hosts_apart();
            say(&mut self.session, request, Some(&mut proxy_config));
        }
    }

    /// Takes and acknowledges all pending responses. Returns the number of resources in them.
    pub(crate) fn drain(&mut self, context: &Arc<PushContext>, cache: &Cache) -> usize {
        let mut count = 0;
        loop {
            let mut proxy_config =
                ProxyConfig::new(context, &self.proxy, NetworkId::default(), cache)
                    .with_hosts_apart();
            let now = SystemTime::UNIX_EPOCH;
            let Some(response) = self.session.next_response(&mut proxy_config, RESPONSE_BYTES, now)
            else {
                return count;
            };
            black_box(response.to_bytes());
            count += response.count();
            self.answer.clear();
            for (field, text) in [(2, response.kind.url()), (6, &response.nonce)] {
                self.answer.extend([field << 3 | 2, u8::try_from(text.len()).expect("short")]);
                self.answer.extend(text.as_bytes());
            }
            say(&mut self.session, &self.answer, None);
        }
    }

    /// Returns the resources that the client receives now; this is not part of the measurement.
    fn held(mut self, context: &Arc<PushContext>, cache: &Cache) -> Held {
        let mut all = Held::new();
        let mut proxy_config = ProxyConfig::new(context, &self.proxy, NetworkId::default(), cache);
        let now = SystemTime::UNIX_EPOCH;
        while let Some(response) =
            self.session.next_response(&mut proxy_config, RESPONSE_BYTES, now)
        {
            let held = all.entry(response.kind).or_default();
            held.extend(
                response.all().map(|(one, version)| (one.name.to_string(), version.to_string())),
            );
        }
        all
    }
}

fn say(session: &mut Session, request: &[u8], source: Option<&mut dyn ResourceSource>) {
    let request = AdsRequest::read(ProtocolForm::Delta, request).expect("it is one");
    session.on_request(request, source, SystemTime::UNIX_EPOCH).expect("it is sound");
}

/// Measures first syncs: streams of proxies without resources, with a cached view.
pub(crate) fn first_sync() -> Case {
    const STREAMS: usize = 20;
    let (_, _, context) = mesh(1, SERVICES, 1);
    let cache = Cache::default();
    let asked = first_requests(&names(WATCHED), &Held::new());
    let mut first = Client::new();
    first.ask(&asked, &context, &cache);
    first.drain(&context, &cache);
    let run = move || {
        for _ in 0..STREAMS {
            let mut client = Client::new();
            client.ask(&asked, &context, &cache);
            assert!(client.drain(&context, &cache) >= SERVICES + WATCHED);
            black_box(&client);
        }
    };
    Case::new(STREAMS, run)
}

/// Measures reconnects: streams of proxies that have all resources, which have not changed.
pub(crate) fn reconnect() -> Case {
    const STREAMS: usize = 20;
    let (_, _, context) = mesh(1, SERVICES, 1);
    let cache = Cache::default();
    let watched = names(WATCHED);
    let mut before = Client::new();
    before.ask(&first_requests(&watched, &Held::new()), &context, &cache);
    let held = before.held(&context, &cache);
    assert!(held.values().map(HashMap::len).sum::<usize>() >= SERVICES + WATCHED);
    let asked = first_requests(&watched, &held);
    let run = move || {
        for _ in 0..STREAMS {
            let mut client = Client::new();
            client.ask(&asked, &context, &cache);
            assert_eq!(client.drain(&context, &cache), 0);
            black_box(&client);
        }
    };
    Case::new(STREAMS, run)
}

/// Measures deliveries: changes of one endpoint each, for streams that subscribe to all services.
pub(crate) fn deliver() -> Case {
    const STREAMS: usize = 10;
    const CHANGES: usize = 20;
    let (mut mesh, mut registries, context) = mesh(1, SERVICES, 10);
    let cache = Cache::default();
    let names = names(SERVICES);
    let asked = first_requests(&names, &Held::new());
    let mut clients: Vec<_> = (0..STREAMS).map(|_| Client::new()).collect();
    for client in &mut clients {
        client.ask(&asked, &context, &cache);
        client.drain(&context, &cache);
    }
    let registry = registries.first_mut().expect("a cluster");
    let versions: Vec<_> = (0..CHANGES)
        .map(|number| {
            let service = number * SERVICES / CHANGES;
            let slice = objects::slice(service, 10, 100);
            tell(registry, "endpointslices", strait_kube_client::Encoding::Json, &slice);
            mesh.apply(MeshEvent::Registry(update(
                0,
                ShardChange::Update(registry.changes().expect("a change")),
            )));
            let endpoints = vec![Arc::from(names.get(service).expect("one of them").as_str())];
            let (context, _) = mesh.next_version().expect("a version");
            (context, Dirty { endpoints, ..Dirty::default() })
        })
        .collect();
    // Resources that all streams share are encoded here, and counted elsewhere.
    let mut first = Client::new();
    first.ask(&asked, &context, &cache);
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
