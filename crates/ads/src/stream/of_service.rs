//! Decides which subscribed names refer to services.

use strait_mesh::push::PushContext;
use strait_xds::names::{OutboundName, hostname_of};
use strait_xds::resource::ResourceType;

/// Returns whether a name of a type refers to a service.
pub(super) fn is_of_service(context: &PushContext, kind: ResourceType, name: &str) -> bool {
    let is_known =
        |host: &str| context.services.get(host).is_some() || context.private.get(host).is_some();
    match kind {
        ResourceType::Endpoint | ResourceType::Cluster => {
            hostname_of(name).is_some_and(|host| is_known(host.as_str()))
        }
        ResourceType::Route => {
            let host = name.rsplit_once(':').map(|(host, _)| host);
            // The name of a sidecar's route contains the port, with or without the service's host.
            // gRPC's own library uses the name of an upstream cluster.
            let host = OutboundName::parts(name).map(|(host, ..)| host).or(host);
            name.parse::<u16>().is_ok() || host.is_some_and(is_known)
        }
        ResourceType::Listener => name.rsplit_once(':').is_some_and(|(host, _)| is_known(host)),
        // The names are route names, which are checked when the client subscribes to the routes.
        ResourceType::VirtualHost => true,
        ResourceType::NameTable => false,
    }
}
