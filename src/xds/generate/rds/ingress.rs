//! Routes of a router: by which host a request finds its rules. (docs/reference/traffic.md, "Gateway".)
//!
//! Nothing is found there but what rules say: no service has a route of its own, and another host gets 404.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use strait_proto::envoy::envoy::config::route::v3 as route;

use super::base::field;
use super::lists::{RouteEntrance, RouteList, RouteLists, list};
use super::{bool_value, is_domain};
use crate::traffic::HostPattern;
use crate::traffic::gateways::{GatewayPort, PlacedServer};
use crate::xds::generate::class::Class;
use crate::xds::generate::ingress::IngressOutline;
use crate::xds::resource::Resource;

/// What becomes of a host.
#[derive(Default)]
struct ServedHost {
    /// The port that its clients mean.
    port: u16,
    /// The rules for it, in the order in which they count.
    lists: Vec<Arc<RouteList>>,
    /// Whether plain text is sent to HTTPS.
    redirects: bool,
}

/// The routes of that name, which servers of a port share.
pub(in crate::xds::generate) fn of_servers(
    ingress: &IngressOutline<'_>,
    class: &Class,
    name: &str,
    (port, servers): (&GatewayPort<'_>, Vec<&PlacedServer<'_>>),
    kept: &RouteLists,
) -> Resource {
    let mut hosts = BTreeMap::<&HostPattern, ServedHost>::new();
    for placed in servers {
        let served = placed.server.port;
        let start = |port| ServedHost { port, ..ServedHost::default() };
        for routed in ingress.bound(placed) {
            let own = placed.hosts_of(&routed.service);
            if own.is_empty() {
                continue;
            }
            let token_rules = ingress.token_rules;
            let gateway = Some(&placed.gateway.name);
            let entrance = RouteEntrance { gateway, port: served, token_rules };
            let list = list(ingress.context, class, entrance, routed, kept);
            if list.bytes.is_empty() {
                continue;
            }
            for host in own {
                let host = hosts.entry(host).or_insert_with(|| start(served));
                host.redirects |= placed.server.https_redirect;
                // Two servers of one Gateway may lead here.
                if !host.lists.iter().any(|other| Arc::ptr_eq(other, &list)) {
                    host.lists.push(Arc::clone(&list));
                }
            }
        }
        if placed.server.https_redirect {
            for host in &placed.hosts {
                hosts.entry(&host.host).or_insert_with(|| start(served)).redirects = true;
            }
        }
    }
    hosts.retain(|host, _| **host == HostPattern::all() || is_domain(&host.to_string()));
    let mut bytes = route::RouteConfiguration {
        name: name.into(),
        // Services come and go; a route may name one whose upstream cluster isn't there yet.
        validate_clusters: bool_value(false),
        ignore_port_in_host_matching: true,
        ..Default::default()
    }
    .encode_to_vec();
    if hosts.is_empty() {
        let nothing = route::VirtualHost {
            name: format!("blackhole:{}", port.number),
            domains: vec!["*".into()],
            ..Default::default()
        };
        write(&nothing, &[], &mut bytes);
    }
    for (host, served) in &hosts {
        let virtual_host = route::VirtualHost {
            name: format!("{host}:{}", served.port),
            domains: vec![host.to_string()],
            require_tls: if served.redirects {
                route::virtual_host::TlsRequirementType::All.into()
            } else {
                0
            },
            ..Default::default()
        };
        write(&virtual_host, &served.lists, &mut bytes);
    }
    Resource::new(name, bytes)
}

/// Writes a virtual host. Rules of several objects stand one behind the other; those that take every request come last.
fn write(host: &route::VirtualHost, lists: &[Arc<RouteList>], out: &mut Vec<u8>) {
    let routes: usize = lists.iter().map(|list| list.bytes.len()).sum();
    encode_key(field::VIRTUAL_HOSTS, WireType::LengthDelimited, out);
    encode_varint((host.encoded_len() + routes) as u64, out);
    host.encode(out).expect("a vector has room");
    for list in lists {
        out.extend_from_slice(&list.bytes[..list.conditional]);
    }
    for list in lists {
        out.extend_from_slice(&list.bytes[list.conditional..]);
    }
}
