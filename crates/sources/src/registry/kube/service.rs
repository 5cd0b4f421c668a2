//! Services: names, ports, virtual and external addresses.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::import_objects::{DerivedService, derived, exported_port, family_of};
use super::index::{IndexedObject, ReadKind};
use super::node::NodeRecord;
use super::scope::Scope;
use strait_kube_client::{
    BorrowedText, FieldValue, Form, Identity, MalformedMessage, Meta, NamespacedName, NumberOrName,
    Pairs, ProtobufMessage, list, null_as_default,
};
use strait_model::{
    Definition, Distribution, ExportTo, HEADLESS_EVERYWHERE, Hostname, ISTIO_GLOBAL_LABEL,
    IpFamily, Labels, NETWORK_LABEL, NamedPodScope, Namespace, Port, Protocol, RawService,
    Resolution, SHARE_LABEL, Service, SharingFacts, SortedMap, TargetPort, labels_match,
};

const EXPORT_TO: &str = "networking.istio.io/exportTo";
const NODE_SELECTOR: &str = "traffic.istio.io/nodeSelector";
const AUTO_EXPORT: &str = "strait.dev/auto-export";
/// The session affinity timeout of a Service that specifies none (Kubernetes,
/// `sessionAffinityConfig`).
pub(super) const AFFINITY_SECONDS: u32 = 10_800;
const CANONICAL_ACCOUNTS: &str = "alpha.istio.io/canonical-serviceaccounts";
const KUBERNETES_ACCOUNTS: &str = "alpha.istio.io/kubernetes-serviceaccounts";
/// Labels that request that running sessions continue. Istio supports the second only in part.
const PERSISTENT_SESSIONS: [&str; 2] =
    ["istio.io/persistent-session", "istio.io/persistent-session-header"];

/// The decoded part of a Service.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ServiceForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: ServiceSpec<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    status: ServiceStatus<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec<'a> {
    #[serde(borrow, rename = "type")]
    kind: BorrowedText<'a>,
    #[serde(borrow, rename = "clusterIP")]
    cluster_ip: BorrowedText<'a>,
    #[serde(borrow, rename = "clusterIPs", deserialize_with = "list")]
    cluster_ips: Vec<BorrowedText<'a>>,
    #[serde(borrow, rename = "externalIPs", deserialize_with = "list")]
    external_ips: Vec<BorrowedText<'a>>,
    #[serde(borrow)]
    external_name: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "list")]
    ports: Vec<ServicePort<'a>>,
    #[serde(borrow)]
    selector: Pairs<'a>,
    #[serde(borrow)]
    internal_traffic_policy: BorrowedText<'a>,
    #[serde(borrow)]
    external_traffic_policy: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    publish_not_ready_addresses: bool,
    #[serde(borrow)]
    traffic_distribution: BorrowedText<'a>,
    #[serde(borrow)]
    session_affinity: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    session_affinity_config: AffinityConfig,
    #[serde(borrow, deserialize_with = "list")]
    ip_families: Vec<BorrowedText<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "null_as_default")]
    client_ip: ClientIp,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientIp {
    #[serde(deserialize_with = "null_as_default")]
    timeout_seconds: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServicePort<'a> {
    #[serde(borrow)]
    name: BorrowedText<'a>,
    #[serde(borrow)]
    protocol: BorrowedText<'a>,
    port: i64,
    #[serde(borrow)]
    target_port: NumberOrName<'a>,
    #[serde(deserialize_with = "null_as_default")]
    node_port: i64,
    #[serde(borrow)]
    app_protocol: BorrowedText<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceStatus<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    load_balancer: LoadBalancer<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct LoadBalancer<'a> {
    #[serde(borrow, deserialize_with = "list")]
    ingress: Vec<LoadBalancerIngress<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct LoadBalancerIngress<'a> {
    #[serde(borrow)]
    ip: BorrowedText<'a>,
    #[serde(borrow)]
    hostname: BorrowedText<'a>,
}

// Field numbers: k8s.io/api/core/v1/generated.proto.

impl<'a> ProtobufMessage<'a> for ServiceForm<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => value.message(&mut self.metadata),
            2 => value.message(&mut self.spec),
            3 => value.message(&mut self.status),
            _ => Ok(()),
        }
    }
}

impl<'a> ProtobufMessage<'a> for ServiceSpec<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => value.push(&mut self.ports)?,
            2 => self.selector.take(value)?,
            3 => self.cluster_ip = value.text()?,
            4 => self.kind = value.text()?,
            5 => value.push_text(&mut self.external_ips)?,
            7 => self.session_affinity = value.text()?,
            10 => self.external_name = value.text()?,
            11 => self.external_traffic_policy = value.text()?,
            13 => self.publish_not_ready_addresses = value.flag()?,
            14 => value.message(&mut self.session_affinity_config)?,
            18 => value.push_text(&mut self.cluster_ips)?,
            19 => value.push_text(&mut self.ip_families)?,
            22 => self.internal_traffic_policy = value.text()?,
            23 => self.traffic_distribution = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for AffinityConfig {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 { value.message(&mut self.client_ip) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for ClientIp {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 {
            self.timeout_seconds = value.number()?;
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ServicePort<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.name = value.text()?,
            2 => self.protocol = value.text()?,
            3 => self.port = value.number()?,
            4 => value.message(&mut self.target_port)?,
            5 => self.node_port = value.number()?,
            6 => self.app_protocol = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ServiceStatus<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 { value.message(&mut self.load_balancer) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for LoadBalancer<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 { value.push(&mut self.ingress) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for LoadBalancerIngress<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.ip = value.text()?,
            2 => self.hostname = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Form<'a> for ServiceForm<'a> {
    fn from_protobuf(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut form = Self::default();
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

/// The stored part of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KubeService {
    /// The service as reported, except for the addresses of a NodePort gateway.
    pub(super) service: Arc<Service>,
    /// The nodes whose external addresses reach a NodePort gateway; `None` for all other services.
    pub(super) node_selector: Option<Labels>,
    /// Whether nodes without a pod of the service drop its traffic (`externalTrafficPolicy: Local`).
    pub(super) only_nodes_with_pods: bool,
    /// Whether its namespace determines the traffic distribution.
    pub(super) namespace_prefers: bool,
    /// Whether sessions outlive the readiness of their endpoint.
    pub(super) persistent_sessions: bool,
    /// Whether it is excluded from automatic export (`--mcs-auto-export`).
    pub(super) declines_export: bool,
    /// The fields that multi-cluster services merge.
    pub(super) raw: Arc<RawService>,
    /// All labels, which `serviceScopeConfigs` may select.
    pub(super) labels: Arc<Labels>,
    /// The data of the derived Service of a ServiceImport, which is not part of the mesh.
    pub(super) derived: Option<Box<DerivedService>>,
}

/// Whether a label is part of the service's definition: only labels that make it a gateway are. Its pods are found
/// by its selector, not by its labels.
fn is_used_label(label: &str) -> bool {
    let (domain, _) = label.split_once('/').unwrap_or_default();
    matches!(domain, "topology.istio.io" | "networking.istio.io")
}

/// Reads the value of the label [`SHARE_LABEL`].
///
/// # Errors
/// Returns the reason why another value than `true` and `false` is ignored.
pub(super) fn share_label(value: Option<&str>) -> Result<Option<bool>, Box<str>> {
    let invalid = |text: &str| {
        format!("label {SHARE_LABEL}: {text:?} is neither true nor false, so it is ignored").into()
    };
    value.map(|text| text.parse().map_err(|_| invalid(text))).transpose()
}

/// Reads the value of the annotation [`HEADLESS_EVERYWHERE`].
///
/// # Errors
/// Returns the reason why the annotation is ignored.
fn is_everywhere(value: Option<&str>, is_headless: bool) -> Result<bool, Box<str>> {
    let (name, everywhere) = HEADLESS_EVERYWHERE;
    let reason = match value {
        None => return Ok(false),
        Some(text) if text != everywhere => format!("the only value is {everywhere}"),
        Some(_) if is_headless => return Ok(true),
        Some(_) => "the Service has a cluster IP".to_owned(),
    };
    let text = value.unwrap_or_default();
    Err(format!("annotation {name}: {text:?} is ignored, because {reason}").into())
}

impl KubeService {
    /// Returns the service in a namespace with this default distribution, with the addresses of
    /// `nodes` in a stable order. `runs_pod` returns whether a ready pod of the service runs on a
    /// node.
    pub(super) fn reached_by<'a>(
        &self,
        namespace_default: Distribution,
        nodes: impl Iterator<Item = (&'a Arc<str>, &'a NodeRecord)>,
        runs_pod: impl Fn(&str) -> bool,
    ) -> Arc<Service> {
        let prefers = if self.namespace_prefers { namespace_default } else { self.service.prefers };
        let Some(selector) = &self.node_selector else {
            if prefers == self.service.prefers {
                return Arc::clone(&self.service);
            }
            let mut service = Service::clone(&self.service);
            service.prefers = prefers;
            return Arc::new(service);
        };
        let mut addresses: Vec<IpAddr> = nodes
            .filter(|(_, node)| selector.is_empty() || labels_match(selector, &node.labels))
            .filter(|(name, _)| !self.only_nodes_with_pods || runs_pod(name))
            .flat_map(|(_, node)| node.external_addresses.iter().copied())
            .collect();
        addresses.sort();
        addresses.dedup();
        let mut service = Service::clone(&self.service);
        if service.prefers != prefers {
            service.prefers = prefers;
        }
        service.external_addresses = addresses.iter().map(|one| one.to_string().into()).collect();
        Arc::new(service)
    }
}

/// Returns the traffic distribution in the annotation of a Service or a Namespace.
pub(super) fn distribution(metadata: &Meta<'_>) -> Option<Distribution> {
    let text = metadata.annotations.get("networking.istio.io/traffic-distribution");
    text.filter(|text| !text.is_empty()).map(Distribution::parse)
}

/// Returns the fields that multi-cluster services merge, as the API server stores them.
fn raw_service(spec: &ServiceSpec<'_>, scope: &Scope) -> RawService {
    let ports = spec.ports.iter().filter_map(|port| {
        let number = u16::try_from(port.port).ok().filter(|number| *number > 0)?;
        Some(exported_port(&port.name, &port.protocol, &port.app_protocol, number, scope))
    });
    let seconds = spec.session_affinity_config.client_ip.timeout_seconds;
    let mut ip_families: Vec<_> =
        spec.ip_families.iter().filter_map(|family| IpFamily::named(family)).collect();
    if ip_families.is_empty() {
        // API servers before 1.20 store no families.
        let ips = std::iter::once(&spec.cluster_ip).chain(&spec.cluster_ips);
        let families = ips.filter_map(|ip| ip.parse().ok()).map(family_of);
        for family in families {
            if !ip_families.contains(&family) {
                ip_families.push(family);
            }
        }
    }
    RawService {
        headless: *spec.cluster_ip == *"None",
        ports: ports.collect(),
        sticky: *spec.session_affinity == *"ClientIP",
        sticky_seconds: u32::try_from(seconds).ok().filter(|seconds| *seconds > 0),
        internal_traffic_policy: spec.internal_traffic_policy.given().map(|text| scope.text(text)),
        traffic_distribution: spec.traffic_distribution.given().map(|text| scope.text(text)),
        ip_families,
    }
}

impl ReadKind for KubeService {
    type Form<'a> = ServiceForm<'a>;
    type List = Vec<IndexedObject<Self>>;

    fn convert(form: ServiceForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let ServiceForm { metadata, spec, status } = form;
        let raw = scope.raw_service(raw_service(&spec, scope));
        let cluster_ips =
            std::iter::once(&spec.cluster_ip).chain(&spec.cluster_ips).map(|ip| &**ip);
        let is_plain = matches!(spec.kind.given(), None | Some("ClusterIP"))
            && spec.selector == Pairs::default()
            && spec.external_ips.is_empty();
        let derived = derived(&metadata, cluster_ips, scope).map(|derived| DerivedService {
            service: Arc::clone(&raw),
            has_other_fields: !is_plain,
            ..derived
        });
        // The name also occurs in slices and labels, and in other clusters.
        let name = scope.text(&metadata.name);
        let key = NamespacedName { namespace: scope.text(&metadata.namespace), name };
        let annotation = |name: &str| metadata.annotations.get(name);
        let namespace = Namespace::new(Arc::clone(&key.namespace));
        let mut invalid: Option<Box<str>> = None;

        let headless = *spec.cluster_ip == *"None";
        let resolution = if headless {
            Resolution::Headless
        } else if *spec.kind == *"ExternalName" && !spec.external_name.is_empty() {
            let alias = spec.external_name.trim_end_matches('.').to_ascii_lowercase();
            Resolution::Alias(Hostname::from(alias))
        } else {
            Resolution::ClientSide
        };

        let all =
            if spec.cluster_ips.is_empty() { vec![spec.cluster_ip] } else { spec.cluster_ips };
        let mut vips: Vec<IpAddr> = Vec::with_capacity(all.len());
        for text in all.iter().filter(|text| !matches!(&***text, "" | "None")) {
            match text.parse() {
                Ok(address) => vips.push(address),
                Err(_) => invalid = Some(format!("{text:?} is not a cluster IP").into()),
            }
        }

        let mut ports = Vec::with_capacity(spec.ports.len());
        let mut node_ports = Vec::new();
        // SCTP port numbers are independent of TCP's, and proxies do not carry SCTP.
        for port in spec.ports.into_iter().filter(|port| *port.protocol != *"SCTP") {
            let port_number = |number: i64| u16::try_from(number).ok().filter(|port| *port > 0);
            let Some(number) = port_number(port.port) else {
                invalid = Some(format!("{} is not a port", port.port).into());
                continue;
            };
            let target = match (port.target_port.name(), port.target_port.number()) {
                (Some(name), _) => TargetPort::Name(scope.text(name)),
                (None, 0) => TargetPort::Number(number),
                (None, target) => match port_number(target) {
                    Some(target) => TargetPort::Number(target),
                    None => {
                        invalid = Some(format!("{target} is not a target port").into());
                        continue;
                    }
                },
            };
            let app_protocol = port.app_protocol.given();
            let protocol = Protocol::of_port(&port.protocol, app_protocol, &port.name, number);
            if let Some(node_port) = port_number(port.node_port)
                && protocol != Protocol::Udp
            {
                node_ports.push((number, node_port));
            }
            ports.push(Port { name: scope.text(&port.name), number, protocol, target });
        }

        let node_selector = annotation(NODE_SELECTOR)
            .filter(|_| *spec.kind == *"NodePort")
            // An unreadable selector selects all nodes, like `{}`.
            .map(|json| serde_json::from_str(json).unwrap_or_default());
        let ingress = status.load_balancer.ingress.iter();
        let ingress = ingress.filter_map(|one| one.ip.given().or(one.hostname.given()));
        let external_ips = spec.external_ips.iter().filter_map(BorrowedText::given);

        let listed = |name| {
            let texts = annotation(name).unwrap_or_default().split(',').map(str::trim);
            texts.filter(|text| !text.is_empty())
        };
        let service_accounts = listed(CANONICAL_ACCOUNTS)
            .map(Arc::from)
            .chain(
                listed(KUBERNETES_ACCOUNTS)
                    .map(|account| scope.identity(&metadata.namespace, account)),
            )
            .collect();

        let distribution_value = spec.traffic_distribution.given().map(Distribution::parse);
        let distribution_value = distribution_value.or_else(|| distribution(&metadata));
        let persistent_sessions =
            PERSISTENT_SESSIONS.iter().any(|label| metadata.labels.get(label).is_some());
        let share = share_label(metadata.labels.get(SHARE_LABEL)).unwrap_or_else(|reason| {
            invalid = Some(reason);
            None
        });
        let (headless_annotation, _) = HEADLESS_EVERYWHERE;
        let everywhere =
            is_everywhere(annotation(headless_annotation), headless).unwrap_or_else(|reason| {
                invalid = Some(reason);
                false
            });
        let istio_label = metadata.labels.get(ISTIO_GLOBAL_LABEL);
        let istio_label = istio_label.and_then(|text| text.parse().ok());
        let sharing = SharingFacts { label: share, istio_label, ..SharingFacts::default() };
        let declines_export = annotation(AUTO_EXPORT) == Some("false");
        let is_gateway = metadata.labels.get(NETWORK_LABEL).is_some_and(|name| !name.is_empty());
        let definition = Definition {
            hostname: Hostname::of_kubernetes_service(
                &metadata.name,
                &metadata.namespace,
                &scope.settings.domain,
            ),
            mesh_external: matches!(resolution, Resolution::Alias(_)),
            resolution,
            ranges: Vec::new(),
            selector: scope.labels(spec.selector),
            service_accounts,
            // Proxies of other networks connect to a gateway, but no workload calls it.
            export_to: match annotation(EXPORT_TO).or(is_gateway.then_some("~")) {
                None => ExportTo::Public,
                Some(text) => ExportTo::parse(text, &namespace),
            },
            node_local: *spec.internal_traffic_policy == *"Local",
            prefers: distribution_value.unwrap_or_default(),
            sharing,
            named_pods: NamedPodScope { unready: spec.publish_not_ready_addresses, everywhere },
            affinity_seconds: (*spec.session_affinity == *"ClientIP").then(|| {
                let timeout = spec.session_affinity_config.client_ip.timeout_seconds;
                u32::try_from(timeout)
                    .ok()
                    .filter(|timeout| *timeout > 0)
                    .unwrap_or(AFFINITY_SECONDS)
            }),
            ports,
            name: Arc::clone(&key.name),
            namespace,
            labels: scope.labels(metadata.labels.clone().only(is_used_label)),
        };
        let labels = scope.service_labels(metadata.labels);
        vips.shrink_to_fit();
        let service = Service {
            definition: scope.definition(definition),
            vips,
            external_addresses: match &node_selector {
                Some(_) => Vec::new(),
                None => ingress.chain(external_ips).map(Arc::from).collect(),
            },
            external_ports: match &node_selector {
                Some(_) => node_ports.into_iter().collect(),
                None => SortedMap::new(),
            },
            created: metadata.creation_timestamp.seconds(),
        };
        let value = Self {
            service: Arc::new(service),
            node_selector,
            only_nodes_with_pods: *spec.external_traffic_policy == *"Local",
            namespace_prefers: distribution_value.is_none(),
            persistent_sessions,
            declines_export,
            raw,
            labels,
            derived: derived.map(Box::new),
        };
        IndexedObject { key, value: Some(value), invalid }
    }
}
