//! Clients that request virtual hosts one by one receive the same virtual hosts as others.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;

use super::ProxyLocation;
use crate::{Cache, ProxyConfig};
use strait_mesh::push::PushContext;
use strait_model::{Proxy, ProxyType, VirtualHostDelivery};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_xds::resource::{Resource, ResourceSource, ResourceType};
use strait_xds::virtual_hosts::{HeldHosts, changes};

type Hosts = BTreeMap<String, route::VirtualHost>;

/// Updates a client of this kind from one version to the next.
pub(super) fn check(
    contexts: [&Arc<PushContext>; 2],
    location: &ProxyLocation,
    cache: &Cache,
    place: &str,
) {
    if location.proxy.is_proxyless() {
        return;
    }
    let virtual_hosts = VirtualHostDelivery::OneByOne;
    let proxy = Proxy { virtual_hosts, ..Proxy::clone(&location.proxy) };
    let pictures = contexts.map(|context| {
        let proxy_config = ProxyConfig::new(context, &proxy, location.network.clone(), cache);
        proxy_config.at(location.whereabouts.clone()).with_hosts_apart()
    });
    let [mut old, mut new] = pictures;
    let names: &[&str] = match proxy.kind {
        ProxyType::Sidecar => &["80", "8080", "5432", "7000", "a.shop.svc.cluster.local:7000"],
        ProxyType::Router => &["http.80", "http.8080"],
    };
    for name in names {
        let [old, whole] = [&mut old, &mut new].map(|proxy_config| {
            proxy_config.one(ResourceType::VirtualHost, name).expect("an answer")
        });
        let (others, mut updated) = (read(&whole), read(&old));
        let all = changes(&HeldHosts::Nothing, &whole);
        assert_eq!(all.changed.len(), others.virtual_hosts.len(), "{place}: {name}");
        let changes = changes(&HeldHosts::Of(old), &whole);
        let mut hosts = by_name(std::mem::take(&mut updated.virtual_hosts));
        for resource in &changes.changed {
            let mut host = route::VirtualHost::decode(resource.body.to_bytes()).expect("a host");
            assert_eq!(host.name, *resource.name, "{place}");
            let own =
                resource.name.strip_prefix(&format!("{name}/")).expect("ROUTE/HOST").to_owned();
            host.name.clone_from(&own);
            let was = hosts.insert(own, host.clone());
            assert_ne!(was, Some(host), "{place}: {} is the same", resource.name);
        }
        for gone in &changes.removed {
            let own = gone.strip_prefix(&format!("{name}/")).expect("ROUTE/HOST");
            assert!(hosts.remove(own).is_some(), "{place}: {gone}");
        }
        assert_eq!(hosts, by_name(others.virtual_hosts.clone()), "{place}: {name} of {proxy:?}");

        let apart = new.one(ResourceType::Route, name).expect("an answer");
        let apart = read(&apart);
        assert!(apart.vhds.is_some(), "{place}: {name}");
        let rest = route::RouteConfiguration { virtual_hosts: Vec::new(), ..others };
        assert_eq!(route::RouteConfiguration { vhds: None, ..apart }, rest, "{place}: {name}");
    }
}

fn read(resource: &Resource) -> route::RouteConfiguration {
    route::RouteConfiguration::decode(resource.body.to_bytes()).expect("a route")
}

fn by_name(hosts: Vec<route::VirtualHost>) -> Hosts {
    let count = hosts.len();
    let hosts: Hosts = hosts.into_iter().map(|host| (host.name.clone(), host)).collect();
    assert_eq!(hosts.len(), count, "two hosts have the same name");
    hosts
}
