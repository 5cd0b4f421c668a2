//! The names of other resources that an encoded resource refers to.

use prost::{Message as _, Name as _};

use crate::resource::ResourceType;
use strait_proto::envoy::envoy::config::cluster::v3::Cluster;
use strait_proto::envoy::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, DiscoveryType,
};
use strait_proto::envoy::envoy::config::listener::v3::{Listener, filter};
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};

/// Returns the names of other resources that an encoded resource refers to.
///
/// For a cluster: the name of its endpoint assignment, if it uses EDS. For a listener: the names of
/// the route configurations that it requests over RDS. Other types refer to nothing. An unreadable
/// body refers to nothing either.
pub fn names_in(kind: ResourceType, body: &[u8]) -> Vec<String> {
    match kind {
        ResourceType::Cluster => assignment(body).into_iter().collect(),
        ResourceType::Listener => routes(body),
        ResourceType::Endpoint
        | ResourceType::Route
        | ResourceType::VirtualHost
        | ResourceType::NameTable => Vec::new(),
    }
}

fn assignment(body: &[u8]) -> Option<String> {
    let cluster = Cluster::decode(body).ok()?;
    let eds = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()));
    let service_name = cluster.eds_cluster_config.unwrap_or_default().service_name;
    (cluster.cluster_discovery_type == eds).then_some(if service_name.is_empty() {
        cluster.name
    } else {
        service_name
    })
}

fn routes(body: &[u8]) -> Vec<String> {
    let listener = Listener::decode(body).unwrap_or_default();
    let chains = listener.filter_chains.into_iter().chain(listener.default_filter_chain);
    let managers =
        chains.flat_map(|chain| chain.filters).filter_map(|one| match one.config_type? {
            filter::ConfigType::TypedConfig(any)
                if any.type_url.ends_with(&HttpConnectionManager::full_name()) =>
            {
                HttpConnectionManager::decode(&*any.value).ok()
            }
            _ => None,
        });
    let names = managers.filter_map(|manager| match manager.route_specifier? {
        RouteSpecifier::Rds(rds) => Some(rds.route_config_name),
        _ => None,
    });
    names.collect()
}
