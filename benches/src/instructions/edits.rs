//! The cost of an edit of one rule, from the object to the bytes for each proxy that sees it,
//! without sockets and TLS.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::{NAMESPACE, service_name};
use crate::streams::{Client, request};
use crate::{Case, DOMAIN, mesh, proxy_in};
use strait_envoy::Cache;
use strait_mesh::push::event_loop::MeshEvent;
use strait_mesh::push::scope::ProxyLocation;
use strait_mesh::push::subscription_index::SubscriptionIndex;
use strait_mesh::push::view::{Role, ViewKey};
use strait_model::mesh_config::MeshConfig;
use strait_model::{Collection, NetworkId, ObjectKey, VirtualHostDelivery};
use strait_rules::traffic::{KindSettings, TrafficIndex};
use strait_xds::resource::ResourceType;

/// How proxies receive the virtual hosts of a route: in whole tables, or one by one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hosts {
    Whole,
    OneByOne,
}

/// The namespace of the clients that see the rules. In the namespace of the services, services have
/// short names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    WithServices,
    Elsewhere,
}

impl Clients {
    fn namespace(self) -> &'static str {
        match self {
            Self::WithServices => NAMESPACE,
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// Returns a rule for the clients in `namespace`. Another `salt` gives another route.
fn object(namespace: &str, service: usize, salt: usize) -> Arc<Value> {
    let host = format!("{}.{NAMESPACE}.svc.{DOMAIN}", service_name(service));
    let to = json!([{ "destination": { "host": host } }]);
    let path = json!([{ "uri": { "prefix": format!("/api-{salt}") } }]);
    Arc::new(json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {
            "namespace": namespace, "name": format!("rule-{service}"), "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "hosts": [host],
            "exportTo": ["."],
            "http": [{ "match": path, "timeout": "3s", "route": to }, { "route": to }],
        },
    }))
}

/// Edits one rule among 400 (the rule is visible to 50 of 200 proxies in two clusters): reading,
/// indexing, the next version, computing the affected proxies, waking their streams, and each
/// response and acknowledgement.
pub(crate) fn rule(hosts: Hosts, clients: Clients) -> Case {
    let namespace = clients.namespace();
    // The length of the affected chunk depends on the hash seed of each run.
    const EDITS: usize = 25;
    const SERVICES: usize = 400;
    const PROXIES: usize = 200;
    const SEEN_BY: usize = 50;
    let (mut mesh, _, _) = mesh(2, SERVICES, 1);
    let mut index = TrafficIndex::new(KindSettings::for_domain(DOMAIN, &MeshConfig::default()));
    let mut objects: Collection =
        (0..SERVICES).map(|service| object(namespace, service, 0)).collect();
    mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("the first time")));
    let (mut before, _) = mesh.next_version().expect("a version with rules");
    let (subscription_index, cache) = (Arc::new(SubscriptionIndex::default()), Cache::default());
    let mut streams: Vec<_> = (0..PROXIES)
        .map(|number| {
            let namespace = if number < SEEN_BY { namespace } else { "without-rules" };
            let mut proxy = proxy_in(["c1", "c2"][number % 2], namespace);
            if hosts == Hosts::OneByOne {
                proxy.virtual_hosts = VirtualHostDelivery::OneByOne;
            }
            let view = ViewKey::of(&proxy, NetworkId::default(), Role::Client);
            let whereabouts = before.whereabouts(&proxy);
            let mut client = Client::of(proxy.clone());
            let route = ["80".to_owned()];
            let mut asked = vec![request(ResourceType::Route, &route, HashMap::new())];
            if hosts == Hosts::OneByOne {
                client.session.serve_virtual_hosts();
                asked.push(request(ResourceType::VirtualHost, &[], HashMap::new()));
            }
            client.ask(&asked, &before, &cache);
            assert!(client.drain(&before, &cache) > 0, "its route");
            let subscription = subscription_index.subscribe(None);
            subscription.watch_routes(&[route[0].as_str().into()], &[]);
            let stand = ProxyLocation {
                proxy: Arc::new(proxy),
                network: NetworkId::default(),
                whereabouts,
            };
            subscription.set_location(stand, view, None);
            (subscription, client)
        })
        .collect();
    let run = move || {
        for salt in 1..=EDITS {
            let service = salt * SERVICES / (EDITS + 1);
            let edited = object(namespace, service, salt);
            objects.insert(ObjectKey::of(&edited).expect("a key"), edited);
            mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("a change")));
            let (now, mut changes) = mesh.next_version().expect("a version");
            changes.compute_impact([&before, &now], &subscription_index, &cache);
            assert_eq!(black_box(subscription_index.mark(&changes)), SEEN_BY);
            for (subscription, client) in &mut streams {
                let dirty = subscription.take();
                if !dirty.is_empty() {
                    client.session.on_change(&dirty);
                    assert_eq!(client.drain(&now, &cache), 1);
                }
            }
            before = now;
        }
    };
    Case::new(EDITS, run)
}
