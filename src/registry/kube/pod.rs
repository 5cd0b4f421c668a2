//! Pods: identity, labels, network and ports of what runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::namespace::network;
use super::node::claimed_by_pod;
use crate::apiserver::{Metadata, Object, null_as_default};
use crate::model::{Labels, Locality, Namespace, TlsMode, Workload, WorkloadKey};

const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";

/// What is decoded of a Pod.
#[derive(Debug, Deserialize)]
pub(super) struct PodObject {
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
    service_account_name: Option<Arc<str>>,
    node_name: Option<Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    init_containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    restart_policy: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    ports: Vec<ContainerPort>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: Option<Arc<str>>,
    container_port: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs", deserialize_with = "null_as_default")]
    pod_ips: Vec<PodIp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: Option<String>,
}

impl Object for PodObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What is kept of a Pod: its workload, and what each of its endpoints shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    /// What others are told. Its locality is the pod's own claim or its node's.
    pub(super) workload: Arc<Workload>,
    /// The workload's key, shared by its endpoints.
    pub(super) key: Arc<WorkloadKey>,
    /// Its SPIFFE ID.
    pub(super) identity: Arc<str>,
    /// Whether it takes mTLS.
    pub(super) tls_mode: TlsMode,
    /// Whether its own labels say where it runs.
    claims_locality: bool,
}

impl PodObject {
    /// Whether it has ended: it never runs again, and its address may be another's.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Keeps what is needed; the second value says what of it makes no sense.
    pub(super) fn convert(self, trust_domain: &str) -> (Pod, Option<String>) {
        let Self { metadata, spec, status } = self;
        let mut odd = None;
        let texts = status.pod_ips.into_iter().filter_map(|one| one.ip).chain(status.pod_ip);
        let mut addresses: Vec<IpAddr> = Vec::new();
        for text in texts.filter(|text| !text.is_empty()) {
            match text.parse() {
                // `podIP` repeats the first of `podIPs`.
                Ok(address) if addresses.contains(&address) => {}
                Ok(address) => addresses.push(address),
                Err(_) => odd = Some(format!("{text:?} is no address")),
            }
        }
        let service_account = spec
            .service_account_name
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "default".into());
        let identity = identity(trust_domain, &metadata.namespace, &service_account);
        let key = WorkloadKey::new(Namespace::new(metadata.namespace), metadata.name);
        // An init container that restarts is a sidecar, which runs as long as the pod.
        let sidecars = spec.init_containers.into_iter();
        let sidecars = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let mut named_ports = BTreeMap::new();
        for port in spec.containers.into_iter().chain(sidecars).flat_map(|one| one.ports) {
            let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0);
            if let (Some(name), Some(number)) = (port.name, number) {
                named_ports.entry(name).or_insert(number);
            }
        }
        let claim = claimed_by_pod(&metadata.labels);
        let pod = Pod {
            key: Arc::new(key.clone()),
            identity,
            tls_mode: TlsMode::from_label(label(&metadata.labels, TLS_MODE_LABEL)),
            claims_locality: claim.is_some(),
            workload: Arc::new(Workload {
                key,
                addresses,
                network_label: network(&metadata.labels),
                labels: Arc::new(metadata.labels),
                service_account,
                locality: Arc::new(claim.unwrap_or_default()),
                node: spec.node_name.filter(|name| !name.is_empty()),
                named_ports,
            }),
        };
        (pod, odd)
    }
}

impl Pod {
    /// Takes over the locality of its node, unless it claims one of its own.
    pub(super) fn settle(&mut self, node: Option<&Arc<Locality>>) {
        if self.claims_locality {
            return;
        }
        let locality = node.map(Arc::clone).unwrap_or_default();
        if self.workload.locality != locality {
            Arc::make_mut(&mut self.workload).locality = locality;
        }
    }
}

/// The SPIFFE ID of a service account.
pub(super) fn identity(trust_domain: &str, namespace: &str, service_account: &str) -> Arc<str> {
    format!("spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}").into()
}

fn label<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    labels.get(name).map(|value| &**value)
}
