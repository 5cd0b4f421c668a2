//! Checks of resources for gRPC libraries in random histories.

use std::collections::BTreeSet;

use prost::Message;

use crate::ProxyConfig;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_xds::resource::{Resource, ResourceSource, ResourceType};

/// Checks that the routes of a library name only existing upstream clusters, and none twice. A
/// library waits for a missing one.
pub(super) fn check_route_clusters(proxy_config: &mut ProxyConfig<'_>, table: &Resource) {
    use route::route::Action;
    use route::route_action::ClusterSpecifier;
    let table = route::RouteConfiguration::decode(table.body.to_bytes()).expect("a message");
    for entry in table.virtual_hosts.iter().flat_map(|host| &host.routes) {
        let action = match &entry.action {
            Some(Action::Route(action)) => action,
            Some(Action::DirectResponse(_)) => continue,
            _ => panic!("{entry:?}"),
        };
        let names: Vec<&String> = match &action.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => vec![name],
            Some(ClusterSpecifier::WeightedClusters(all)) => {
                all.clusters.iter().map(|share| &share.name).collect()
            }
            _ => panic!("{entry:?} leads nowhere"),
        };
        let once: BTreeSet<_> = names.iter().copied().collect();
        assert_eq!(once.len(), names.len(), "one upstream cluster twice in {entry:?}");
        for name in names {
            assert!(
                proxy_config.one(ResourceType::Cluster, name).is_some(),
                "no {name} for {entry:?}"
            );
        }
    }
}
