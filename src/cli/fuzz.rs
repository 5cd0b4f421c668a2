//! Fuzz targets from stored traffic configuration to generated resources: see [`strait_base::testing::fuzz`].

use std::net::{IpAddr, Ipv4Addr};

use super::offline_mesh::OfflineMesh;
use strait_base::testing::fuzz::Target;
use strait_envoy::testing::check_given;
use strait_model::{ClusterId, Labels, Locality, Proxy};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("traffic_objects", traffic_objects)];

/// Two services with pods and a gateway, to which the objects can refer.
const BASE: &str = include_str!("fuzz/base.yaml");

/// Reads a file of manifests. A sidecar and a router receive no resource that violates the rules of Envoy's API.
pub fn traffic_objects(bytes: &[u8]) -> bool {
    let files = [("base.yaml", BASE.as_bytes()), ("fuzz.yaml", bytes)];
    let files = files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
    let Ok(mesh) = OfflineMesh::of(files.into(), "default", "istio-system") else { return false };
    let sidecar = proxy("sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local", &[("app", "web")]);
    assert!(check_given(&mesh.context, &sidecar) > 0, "a sidecar is always given its way in");
    // Without a valid Gateway a router receives no resources.
    let router = "router~10.0.0.9~gateway-1.istio-system~istio-system.svc.cluster.local";
    check_given(&mesh.context, &proxy(router, &[("istio", "ingressgateway")]));
    mesh.reports.traffic.values().any(|report| report.good().is_some())
}

fn proxy(id: &str, labels: &[(&str, &str)]) -> Proxy {
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let (kind, address, workload, domain) = Proxy::parse_id(id).expect("a node id, written above");
    let labels: Labels =
        labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Proxy {
        id: id.into(),
        kind,
        addresses: vec![address.unwrap_or(unknown)],
        workload,
        dns_domain: domain.into(),
        cluster: ClusterId::from("files"),
        network: None,
        service_account: None,
        labels,
        locality: Locality::default(),
        node_name: None,
        takes_given_addresses: false,
        visible_networks: None,
        sds: None,
        topology: None,
        istio_version: None,
        interception: Default::default(),
        is_unprivileged: false,
        idle_timeout: None,
        mounted: Default::default(),
        named_ports: Default::default(),
        grpc: None,
        envoy_version: "1.40.0".into(),
        envoy_release: Some((1, 40)),
        istio_filters: Default::default(),
        reports_services: false,
        virtual_hosts: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}
