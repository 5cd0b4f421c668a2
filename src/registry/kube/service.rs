//! Services: names, ports, virtual and external addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::node::Node;
use super::pod::identity;
use crate::apiserver::{Metadata, Object, null_as_default};
use crate::model::{
    ExportTo, Hostname, Labels, Namespace, Port, Protocol, Resolution, Service, TargetPort,
    labels_match,
};

const EXPORT_TO: &str = "networking.istio.io/exportTo";
const NODE_SELECTOR: &str = "traffic.istio.io/nodeSelector";
const CANONICAL_ACCOUNTS: &str = "alpha.istio.io/canonical-serviceaccounts";
const KUBERNETES_ACCOUNTS: &str = "alpha.istio.io/kubernetes-serviceaccounts";
/// Either asks that running sessions go on; the peer honours the second one half-way only.
const PERSISTENT_SESSIONS: [&str; 2] =
    ["istio.io/persistent-session", "istio.io/persistent-session-header"];

/// What is decoded of a Service.
#[derive(Debug, Deserialize)]
pub(super) struct ServiceObject {
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "null_as_default")]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    kind: String,
    #[serde(rename = "clusterIP", deserialize_with = "null_as_default")]
    cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "null_as_default")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs", deserialize_with = "null_as_default")]
    external_ips: Vec<Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    external_name: String,
    #[serde(deserialize_with = "null_as_default")]
    ports: Vec<PortObject>,
    #[serde(deserialize_with = "null_as_default")]
    selector: Labels,
    internal_traffic_policy: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    publish_not_ready_addresses: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PortObject {
    #[serde(deserialize_with = "null_as_default")]
    name: Arc<str>,
    #[serde(deserialize_with = "null_as_default")]
    protocol: String,
    port: i64,
    target_port: Option<TargetPortObject>,
    #[serde(deserialize_with = "null_as_default")]
    node_port: i64,
    app_protocol: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TargetPortObject {
    Number(i64),
    Name(Arc<str>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_as_default")]
    load_balancer: LoadBalancer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoadBalancer {
    #[serde(deserialize_with = "null_as_default")]
    ingress: Vec<Ingress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ingress {
    ip: Option<Arc<str>>,
    hostname: Option<Arc<str>>,
}

impl Object for ServiceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What is kept of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KubeService {
    /// What others are told, except for the addresses of a NodePort gateway.
    pub(super) service: Arc<Service>,
    /// The nodes by whose external addresses a NodePort gateway is reached; `None` for all other
    /// services.
    pub(super) node_selector: Option<Labels>,
    /// Whether sessions outlive the readiness of their endpoint.
    pub(super) persistent_sessions: bool,
}

impl KubeService {
    /// The service with the addresses that `nodes` give it, in a stable order.
    pub(super) fn reached_by<'a>(&self, nodes: impl Iterator<Item = &'a Node>) -> Arc<Service> {
        let Some(selector) = &self.node_selector else {
            return Arc::clone(&self.service);
        };
        let mut addresses: Vec<IpAddr> = nodes
            .filter(|node| selector.is_empty() || labels_match(selector, &node.labels))
            .filter_map(|node| node.external_address)
            .collect();
        addresses.sort();
        addresses.dedup();
        let mut service = Service::clone(&self.service);
        service.external_addresses = addresses.iter().map(|one| one.to_string().into()).collect();
        Arc::new(service)
    }
}

impl ServiceObject {
    /// Keeps what is needed; the second value says what of it makes no sense.
    pub(super) fn convert(self, domain: &str, trust_domain: &str) -> (KubeService, Option<String>) {
        let Self { metadata, spec, status } = self;
        let annotation = |name: &str| metadata.annotations.get(name).map(|value| &**value);
        let namespace = Namespace::new(Arc::clone(&metadata.namespace));
        let mut odd = None;

        let headless = spec.cluster_ip == "None";
        let resolution = if headless {
            Resolution::Headless
        } else if spec.kind == "ExternalName" && !spec.external_name.is_empty() {
            let alias = spec.external_name.trim_end_matches('.').to_ascii_lowercase();
            Resolution::Alias(Hostname::from(alias))
        } else {
            Resolution::ClientSide
        };

        let all =
            if spec.cluster_ips.is_empty() { vec![spec.cluster_ip] } else { spec.cluster_ips };
        let mut vips: Vec<IpAddr> = Vec::with_capacity(all.len());
        for text in all.iter().filter(|text| !matches!(text.as_str(), "" | "None")) {
            match text.parse() {
                Ok(address) => vips.push(address),
                Err(_) => odd = Some(format!("{text:?} is no cluster IP")),
            }
        }

        let mut ports = Vec::with_capacity(spec.ports.len());
        let mut node_ports = BTreeMap::new();
        for port in spec.ports {
            let port_number = |number: i64| u16::try_from(number).ok().filter(|port| *port > 0);
            let Some(number) = port_number(port.port) else {
                odd = Some(format!("{} is no port", port.port));
                continue;
            };
            let target = match port.target_port {
                Some(TargetPortObject::Name(name)) if !name.is_empty() => TargetPort::Name(name),
                Some(TargetPortObject::Number(target)) if target != 0 => {
                    match port_number(target) {
                        Some(target) => TargetPort::Number(target),
                        None => {
                            odd = Some(format!("{target} is no target port"));
                            continue;
                        }
                    }
                }
                _ => TargetPort::Number(number),
            };
            if let Some(node_port) = port_number(port.node_port) {
                node_ports.insert(number, node_port);
            }
            let app_protocol = port.app_protocol.as_deref();
            let protocol = Protocol::of_port(&port.protocol, app_protocol, &port.name, number);
            ports.push(Port { name: port.name, number, protocol, target });
        }

        let node_selector = annotation(NODE_SELECTOR)
            .filter(|_| spec.kind == "NodePort")
            // What can't be read selects all nodes, as `{}` does.
            .map(|json| serde_json::from_str(json).unwrap_or_default());
        let ingress = status.load_balancer.ingress.into_iter().filter_map(|one| {
            let given = |text: &Arc<str>| !text.is_empty();
            one.ip.filter(given).or(one.hostname.filter(given))
        });
        let external_ips = spec.external_ips.into_iter().filter(|text| !text.is_empty());

        let listed = |name| {
            let texts = annotation(name).unwrap_or_default().split(',').map(str::trim);
            texts.filter(|text| !text.is_empty())
        };
        let service_accounts = listed(CANONICAL_ACCOUNTS)
            .map(Arc::from)
            .chain(
                listed(KUBERNETES_ACCOUNTS)
                    .map(|account| identity(trust_domain, &metadata.namespace, account)),
            )
            .collect();

        let service = Service {
            hostname: Hostname::of_kubernetes_service(&metadata.name, &metadata.namespace, domain),
            mesh_external: matches!(resolution, Resolution::Alias(_)),
            resolution,
            vips,
            external_addresses: match &node_selector {
                Some(_) => Vec::new(),
                None => ingress.chain(external_ips).collect(),
            },
            external_ports: if node_selector.is_some() { node_ports } else { BTreeMap::new() },
            selector: spec.selector,
            service_accounts,
            export_to: annotation(EXPORT_TO)
                .map_or(ExportTo::Public, |text| ExportTo::parse(text, &namespace)),
            created: metadata
                .creation_timestamp
                .parse::<jiff::Timestamp>()
                .map_or(0, jiff::Timestamp::as_second),
            node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            publish_not_ready: spec.publish_not_ready_addresses,
            ports,
            name: metadata.name,
            namespace,
            labels: metadata.labels,
        };
        let persistent_sessions =
            PERSISTENT_SESSIONS.iter().any(|label| service.labels.contains_key(*label));
        (KubeService { service: Arc::new(service), node_selector, persistent_sessions }, odd)
    }
}
