//! Which of the names that are asked for stand for services.

use strait_mesh::push::PushContext;
use strait_xds::names::OutboundName;
use strait_xds::resource::ResourceType;

/// Whether a name of that type stands for a service.
pub(super) fn is_of_service(context: &PushContext, kind: ResourceType, name: &str) -> bool {
    let is_known =
        |host: &str| context.services.get(host).is_some() || context.private.get(host).is_some();
    match kind {
        ResourceType::Endpoint | ResourceType::Cluster => {
            OutboundName::parts(name).is_some_and(|(host, ..)| is_known(host))
        }
        ResourceType::Route => {
            let host = name.rsplit_once(':').map(|(host, _)| host);
            // Sidecars name the port, with or without its service; gRPC's own library an upstream cluster.
            let host = OutboundName::parts(name).map(|(host, ..)| host).or(host);
            name.parse::<u16>().is_ok() || host.is_some_and(is_known)
        }
        ResourceType::Listener => name.rsplit_once(':').is_some_and(|(host, _)| is_known(host)),
        // What is asked for are the routes.
        ResourceType::VirtualHost => true,
        ResourceType::NameTable => false,
    }
}
