//! Upstream clusters for pods of headless services that are reached by name through gateways.
//! (docs/contributing/decisions/0065-headless-services-across-networks.md)

use std::collections::HashMap;
use std::time::Duration;

use super::http_options::limited_options;
use super::{
    ClusterInputs, REQUESTS_PER_CONNECTION, parts, policy, single_endpoint, socket_address,
};
use crate::lds::pod_server_name;
use crate::{duration, encode};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::remote_pods::ServicePods;
use strait_mesh::push::view::Role;
use strait_model::{Port, Protocol, Resolution};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3::Address;
use strait_rules::traffic::policy::{ClientTls, ServerName};
use strait_xds::names::RemotePodsName;
use strait_xds::resource::Resource;

/// Maximum time for a connection from a gateway to a pod in its own network. The gateway has no
/// other pod for the connection, so the client should be able to try another pod soon.
const POD_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl ClusterInputs<'_> {
    /// Returns the upstream clusters of a headless service for pods that are reached by name. A
    /// client has one for each port and cluster in another network, a gateway has one for each port
    /// and pod in its own network.
    pub(super) fn for_remote_pods(&self, service: &MergedService) -> Vec<Resource> {
        let is_headless = service.primary.resolution == Resolution::Headless;
        let pods = self.context.remote_pods.of(service.hostname());
        let Some(pods) = pods.filter(|_| is_headless) else { return Vec::new() };
        match self.view.role {
            Role::Client => self.to_gateways(service, pods),
            Role::Gateway => self.to_pods(service, pods),
        }
    }

    fn to_gateways(&self, service: &MergedService, pods: &ServicePods) -> Vec<Resource> {
        let ports = service.ports_in(&self.view.cluster);
        let ports = ports.filter(|port| port.protocol != Protocol::Udp);
        let clusters = ports.flat_map(|port| {
            let clusters = pods.outside(&self.view.network);
            clusters.filter_map(move |(cluster, _)| {
                let name = RemotePodsName {
                    hostname: service.hostname().clone(),
                    port: port.number,
                    cluster: cluster.clone(),
                };
                self.to_gateways_of(service, port, &name)
            })
        });
        clusters.collect()
    }

    /// Returns an upstream cluster whose endpoints are gateways. Gateways only forward mTLS, so it
    /// does not exist if the policy of the service requires other TLS or plain text. It has no
    /// outlier detection: each connection has the destination that the client selected, and a
    /// failing pod must not eject a gateway.
    fn to_gateways_of(
        &self,
        service: &MergedService,
        port: &Port,
        name: &RemotePodsName,
    ) -> Option<Resource> {
        let rules = self.context.rules_for(service);
        let rule = self.view.rule(&rules, service);
        let mut parts = parts(&self.context.mesh, &rules, rule, service, port).into_iter();
        let part = parts.next().filter(|part| part.policy.can_be_used_by(self.form.kind))?;
        let server = match part.policy.tls.as_deref() {
            None => ServerName::default(),
            Some(ClientTls::Mesh(server)) => server.clone(),
            Some(_) => return None,
        };
        // Requests that select a pod have a connection pool for each SNI, hence for each pod.
        let options = if port.protocol.is_http() {
            limited_options(part.port.protocol, &part.policy, Some(REQUESTS_PER_CONNECTION), None)
        } else {
            HashMap::new()
        };
        let mut cluster = cluster::Cluster {
            typed_extension_protocol_options: options,
            transport_socket: Some(self.mtls(service, &part, &server)),
            ..self.eds(name.to_string())
        };
        policy::limit(&mut cluster, &part.policy, self.context.mesh.tcp_keepalive);
        cluster.outlier_detection = None;
        Some(self.finished(service, cluster))
    }

    /// Returns an upstream cluster for each port of each pod, whose name is the SNI that clients
    /// send.
    fn to_pods(&self, service: &MergedService, pods: &ServicePods) -> Vec<Resource> {
        let mut clusters = Vec::new();
        for (cluster, pods) in pods.inside(&self.view.network) {
            for (addresses, pod) in pods.served() {
                for (port, target) in &pod.ports {
                    let suffix = pod_server_name(cluster, service.hostname(), *port);
                    let target = socket_address(pod.address.to_string(), *target);
                    let names = addresses.iter().map(|address| format!("{address}.{suffix}"));
                    clusters.extend(names.map(|name| self.to_pod(name, target.clone())));
                }
            }
        }
        clusters
    }

    fn to_pod(&self, name: String, target: Address) -> Resource {
        use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
        let timeout = self.context.mesh.connect_timeout.min(POD_CONNECT_TIMEOUT);
        let cluster = cluster::Cluster {
            name: name.clone(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static.into())),
            load_assignment: Some(single_endpoint(&name, target)),
            connect_timeout: Some(duration(timeout)),
            ..super::base(self.context)
        };
        encode(name, &cluster)
    }
}
