//! Parses Envoy's node into a proxy's claims.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use serde::Deserialize;

use strait_model::mesh_config::parse_duration;
use strait_model::{
    ClusterId, ForwardedCertificate, GatewayTopology, GrpcLibrary, Interception, IstioFilter,
    IstioFilters, Labels, Locality, MountedSecrets, NetworkId, NodeError, Proxy, SdsFiles,
    SecretNames, TLS_MODE_LABEL, VirtualHostDelivery,
};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind};

/// The maximum size of a node's metadata, in bytes.
const METADATA_BYTES_MAX: usize = 64 << 10;
/// The maximum size of a node's metadata that Istio's agent wrote, in bytes. It contains all
/// annotations of the pod.
const AGENT_METADATA_BYTES_MAX: usize = 256 << 10;
/// The maximum size of the labels, in bytes. They are stored for the lifetime of the stream.
const LABELS_BYTES_MAX: usize = 64 << 10;
/// The maximum number of named ports of a pod. They are stored for the lifetime of the stream.
const NAMED_PORTS_MAX: usize = 64;
/// The maximum length of a node ID, in bytes.
pub(super) const ID_BYTES_MAX: usize = 1 << 10;

/// The first release of Envoy that is known to accept individual virtual hosts on the aggregated
/// stream (`ads`). Older releases reject a route that requests this.
const FIRST_WITH_VHDS: (u32, u32) = (1, 40);

/// Returns the cluster that a node claims, if any. The client may be a tool instead of a proxy.
pub fn cluster(node: &core::Node) -> Option<ClusterId> {
    let claimed = NodeMetadata(node.metadata.as_ref()).text("CLUSTER_ID")?;
    (!claimed.is_empty()).then(|| ClusterId::from(claimed))
}

/// Parses a node.
///
/// # Errors
/// The first reason why the node is unusable.
pub fn read(node: &core::Node) -> Result<Proxy, NodeError> {
    if node.id.len() > ID_BYTES_MAX || node.id.chars().any(char::is_control) {
        return Err(NodeError::Metadata {
            key: "id",
            reason: format!("longer than {ID_BYTES_MAX} bytes, or with control characters"),
        });
    }
    let metadata = NodeMetadata::of(node)?;
    let labels = metadata.labels("LABELS")?;
    let (kind, address, workload, dns_domain) = Proxy::parse_id(&node.id)?;
    let listed = metadata.text("INSTANCE_IPS").map(|list| {
        list.split(',').map(|one| one.trim().parse::<IpAddr>()).collect::<Result<Vec<_>, _>>()
    });
    // The list is used only if all of it is valid. Otherwise, the address in the ID is used.
    let addresses = match listed {
        Some(Ok(list)) if !list.is_empty() => list,
        _ => address.into_iter().collect(),
    };
    if addresses.is_empty() {
        return Err(NodeError::NoAddress);
    }
    if let Some(namespace) = metadata.text("NAMESPACE")
        && namespace != workload.namespace.as_str()
    {
        return Err(NodeError::Namespace { id: node.id.clone(), claimed: namespace.to_owned() });
    }
    let locality = node.locality.clone().unwrap_or_default();
    let optional = |key: &str| metadata.text(key).filter(|text| !text.is_empty()).map(Arc::from);
    Ok(Proxy {
        id: node.id.as_str().into(),
        kind,
        addresses,
        workload,
        dns_domain: dns_domain.into(),
        cluster: ClusterId::from(metadata.text("CLUSTER_ID").unwrap_or_default()),
        // An empty value, for example from a template, is ignored.
        network: metadata.text("NETWORK").filter(|text| !text.is_empty()).map(NetworkId::from),
        visible_networks: optional("REQUESTED_NETWORK_VIEW").map(|text: Arc<str>| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            let names: BTreeSet<_> = names.map(NetworkId::from).collect();
            names.into_iter().collect()
        }),
        service_account: optional("SERVICE_ACCOUNT"),
        grpc: grpc(node, &metadata, &labels),
        labels,
        locality: Locality {
            region: locality.region.into(),
            zone: locality.zone.into(),
            subzone: locality.sub_zone.into(),
        },
        node_name: optional("NODE_NAME"),
        takes_given_addresses: metadata.text("DNS_AUTO_ALLOCATE") == Some("true"),
        sds: metadata.sds_files("STRAIT_SDS")?,
        topology: metadata.topology(),
        istio_version: optional("ISTIO_VERSION"),
        interception: metadata.interception()?,
        is_unprivileged: metadata.text("UNPRIVILEGED_POD") == Some("true"),
        // An invalid value is ignored.
        idle_timeout: metadata.text("IDLE_TIMEOUT").and_then(|text| parse_duration(text).ok()),
        mounted: Arc::new(metadata.mounted()?),
        named_ports: metadata.named_ports(),
        envoy_version: version(node).into(),
        envoy_release: release(node),
        istio_filters: istio_filters(node),
        reports_services: reports_services(node, &metadata),
        virtual_hosts: virtual_hosts(node, &metadata)?,
    })
}

/// The first release of grpc-go that supports `LEAST_REQUEST` without an environment variable. C
/// core does not support it.
const LEAST_REQUEST_SINCE: (u32, u32) = (1, 70);

/// Detects gRPC's own library, from the generator that Istio's agent sets for it, or from its user
/// agent name.
///
/// Only the library's bootstrap states whether a certificate provider is configured, so the
/// metadata must state it. For a pod whose label makes it part of the mesh, Istio's agent always
/// configures one.
fn grpc(node: &core::Node, metadata: &NodeMetadata<'_>, labels: &Labels) -> Option<GrpcLibrary> {
    let by_agent = metadata.text("GENERATOR") == Some("grpc");
    if !by_agent && !node.user_agent_name.starts_with("gRPC ") {
        return None;
    }
    let is_in_mesh = labels.get(TLS_MODE_LABEL).is_some_and(|mode| &**mode == "istio");
    let mtls = match metadata.text("STRAIT_GRPC_MTLS") {
        Some(given) => given == "true",
        None => by_agent && is_in_mesh,
    };
    let least_request = node.user_agent_name == "gRPC Go"
        && numbers_of(&version(node)).is_some_and(|release| release >= LEAST_REQUEST_SINCE);
    Some(GrpcLibrary { mtls, least_request })
}

/// Returns Istio's own filters that the proxy declares.
fn istio_filters(node: &core::Node) -> IstioFilters {
    let enabled = node.extensions.iter().filter(|extension| !extension.disabled);
    let declared = enabled.flat_map(|extension| {
        let of = |url: &String| IstioFilter::declared(&extension.category, url);
        extension.type_urls.iter().filter_map(of)
    });
    declared.collect()
}

/// Returns whether the proxy requests the access logger for service metrics and has it. Envoy has
/// it since 1.37. A proxy with Istio's filter counts requests by that filter.
fn reports_services(node: &core::Node, metadata: &NodeMetadata<'_>) -> bool {
    const LOGGER: &str = "envoy.extensions.access_loggers.stats.v3.Config";
    let has_logger = node.extensions.iter().any(|extension| {
        let is_logger =
            |url: &String| url.rsplit_once('/').map_or(&**url, |(_, name)| name) == LOGGER;
        extension.category == "envoy.access_loggers"
            && !extension.disabled
            && extension.type_urls.iter().any(is_logger)
    });
    metadata.text("STRAIT_SERVICE_METRICS") == Some("true")
        && has_logger
        && !istio_filters(node).has(IstioFilter::HttpStats)
}

/// Returns how virtual hosts are delivered, from the metadata and the release of Envoy.
fn virtual_hosts(
    node: &core::Node,
    metadata: &NodeMetadata<'_>,
) -> Result<VirtualHostDelivery, NodeError> {
    let key = "STRAIT_VHDS";
    match metadata.value(key) {
        None | Some(Kind::NullValue(_)) => return Ok(VirtualHostDelivery::InRoutes),
        Some(Kind::StringValue(text)) if text == "true" => {}
        Some(Kind::StringValue(text)) if text.is_empty() || text == "false" => {
            return Ok(VirtualHostDelivery::InRoutes);
        }
        Some(_) => {
            let reason = "expected the text true or false".to_owned();
            return Err(NodeError::Metadata { key, reason });
        }
    }
    Ok(match release(node) {
        Some(release) if release >= FIRST_WITH_VHDS => VirtualHostDelivery::OneByOne,
        Some(_) => VirtualHostDelivery::Refused("its Envoy is older than 1.40"),
        None => VirtualHostDelivery::Refused("it does not report its release of Envoy"),
    })
}

fn version(node: &core::Node) -> String {
    use core::node::UserAgentVersionType::{UserAgentBuildVersion, UserAgentVersion};
    match &node.user_agent_version_type {
        Some(UserAgentVersion(text)) => text.chars().take(64).collect(),
        Some(UserAgentBuildVersion(build)) => {
            build.version.as_ref().map_or_else(String::new, |version| {
                format!("{}.{}.{}", version.major_number, version.minor_number, version.patch)
            })
        }
        None => String::new(),
    }
}

/// Returns the release of an Envoy. Other xDS clients, such as gRPC's library, number their
/// versions differently.
fn release(node: &core::Node) -> Option<(u32, u32)> {
    if node.user_agent_name != "envoy" {
        return None;
    }
    numbers_of(&version(node))
}

fn numbers_of(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

struct NodeMetadata<'a>(Option<&'a Struct>);

impl<'a> NodeMetadata<'a> {
    fn of(node: &'a core::Node) -> Result<Self, NodeError> {
        let size = node.metadata.as_ref().map_or(0, Message::encoded_len);
        let metadata = Self(node.metadata.as_ref());
        let has_agent = metadata.text("ISTIO_VERSION").is_some();
        let most = if has_agent { AGENT_METADATA_BYTES_MAX } else { METADATA_BYTES_MAX };
        if size > most {
            return Err(NodeError::Metadata {
                key: "metadata",
                reason: format!("{size} bytes, at most {most} are read"),
            });
        }
        Ok(metadata)
    }

    fn value(&self, key: &str) -> Option<&'a Kind> {
        self.0?.fields.get(key)?.kind.as_ref()
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        match self.value(key)? {
            Kind::StringValue(text) => Some(text),
            _ => None,
        }
    }

    fn sds_files(&self, key: &'static str) -> Result<Option<Arc<SdsFiles>>, NodeError> {
        let wrong = || NodeError::Metadata {
            key,
            reason: format!(
                "expected cert and roots, each an absolute path of at most {} bytes",
                SdsFiles::PATH_BYTES_MAX
            ),
        };
        let files = match self.value(key) {
            None | Some(Kind::NullValue(_)) => return Ok(None),
            Some(Kind::StructValue(files)) => NodeMetadata(Some(files)),
            Some(_) => return Err(wrong()),
        };
        let path = |key| files.text(key).filter(|path| SdsFiles::is_path(path)).map(Arc::from);
        match (path("cert"), path("roots")) {
            (Some(certificate), Some(roots)) => Ok(Some(Arc::new(SdsFiles { certificate, roots }))),
            _ => Err(wrong()),
        }
    }

    fn interception(&self) -> Result<Interception, NodeError> {
        let key = "INTERCEPTION_MODE";
        let given = self.text(key).filter(|text| !text.is_empty());
        given.map_or(Ok(Interception::default()), |text| {
            Interception::parse(text).ok_or_else(|| NodeError::Metadata {
                key,
                reason: format!("{text:?} is not REDIRECT, TPROXY or NONE"),
            })
        })
    }

    fn mounted(&self) -> Result<MountedSecrets, NodeError> {
        let names = |chain, key, roots| {
            let (chain, private) = (self.path(chain)?, self.path(key)?);
            if chain.is_some() != private.is_some() {
                let reason = "a certificate and its key must both be set".to_owned();
                return Err(NodeError::Metadata { key, reason });
            }
            let both = chain.zip(private);
            let certificate = both.map(|(chain, key)| format!("file-cert:{chain}~{key}").into());
            let roots = self.path(roots)?.map(|roots| format!("file-root:{roots}").into());
            Ok(SecretNames { certificate, roots })
        };
        if self.text("ISTIO_VERSION").is_none() {
            // Only Istio's agent serves these files.
            return Ok(MountedSecrets::default());
        }
        Ok(MountedSecrets {
            server: names("TLS_SERVER_CERT_CHAIN", "TLS_SERVER_KEY", "TLS_SERVER_ROOT_CERT")?,
            client: names("TLS_CLIENT_CERT_CHAIN", "TLS_CLIENT_KEY", "TLS_CLIENT_ROOT_CERT")?,
        })
    }

    /// Returns a path, if the metadata contains one.
    fn path(&self, key: &'static str) -> Result<Option<&'a str>, NodeError> {
        let Some(path) = self.text(key).filter(|path| !path.is_empty()) else { return Ok(None) };
        if SdsFiles::is_path(path) && !path.contains('~') {
            return Ok(Some(path));
        }
        let reason = format!(
            "expected an absolute path without '~' of at most {} bytes",
            SdsFiles::PATH_BYTES_MAX
        );
        Err(NodeError::Metadata { key, reason })
    }

    /// Parses `POD_PORTS`, a text with JSON. An unreadable value results in no ports.
    fn named_ports(&self) -> BTreeMap<Arc<str>, u16> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PodPort {
            #[serde(default)]
            name: Arc<str>,
            container_port: u16,
        }
        let text = self.text("POD_PORTS").unwrap_or_default();
        let ports: Vec<PodPort> = serde_json::from_str(text).unwrap_or_default();
        let named = ports.into_iter().filter(|port| !port.name.is_empty());
        named.take(NAMED_PORTS_MAX).map(|port| (port.name, port.container_port)).collect()
    }

    fn inner(&self, key: &str) -> Option<Self> {
        match self.value(key)? {
            Kind::StructValue(fields) => Some(Self(Some(fields))),
            _ => None,
        }
    }

    /// Returns the topology in front of the proxy, from its agent's configuration. Invalid values
    /// are replaced by their defaults.
    fn topology(&self) -> Option<GatewayTopology> {
        let given = self.inner("PROXY_CONFIG")?.inner("gatewayTopology")?;
        let trusted_proxies = match given.value("numTrustedProxies") {
            Some(Kind::NumberValue(number)) => number.to_string().parse().unwrap_or_default(),
            _ => 0,
        };
        let client_certificate =
            given.text("forwardClientCertDetails").and_then(ForwardedCertificate::named);
        Some(GatewayTopology {
            trusted_proxies,
            client_certificate: client_certificate.unwrap_or_default(),
            proxy_protocol: given.inner("proxyProtocol").is_some(),
        })
    }

    fn labels(&self, key: &'static str) -> Result<Labels, NodeError> {
        let Some(Kind::StructValue(labels)) = self.value(key) else { return Ok(Labels::new()) };
        let size = labels.encoded_len();
        if size > LABELS_BYTES_MAX {
            let reason = format!("{size} bytes, at most {LABELS_BYTES_MAX} are read");
            return Err(NodeError::Metadata { key, reason });
        }
        let pair = |(key, value): (&'a String, &'a Value)| match &value.kind {
            Some(Kind::StringValue(text)) => {
                Some((Arc::from(key.as_str()), Arc::from(text.as_str())))
            }
            _ => None,
        };
        Ok(labels.fields.iter().filter_map(pair).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::ProxyType;

    fn text(text: &str) -> Value {
        Value { kind: Some(Kind::StringValue(text.into())) }
    }

    fn node(id: &str, metadata: Vec<(&str, Value)>) -> core::Node {
        let fields = metadata.into_iter().map(|(key, value)| (key.into(), value)).collect();
        core::Node { id: id.into(), metadata: Some(Struct { fields }), ..Default::default() }
    }

    const ID: &str = "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local";

    #[test]
    fn individual_virtual_hosts_require_an_opt_in_and_a_recent_envoy() {
        use super::core::node::UserAgentVersionType::UserAgentVersion;
        let asks = |given: Value, name: &str, version: &str| {
            let mut node = node(ID, vec![("STRAIT_VHDS", given)]);
            node.user_agent_name = name.into();
            node.user_agent_version_type = Some(UserAgentVersion(version.into()));
            read(&node).map(|proxy| proxy.virtual_hosts)
        };
        let yes = || text("true");
        assert_eq!(asks(yes(), "envoy", "1.40.0"), Ok(VirtualHostDelivery::OneByOne));
        assert_eq!(asks(yes(), "envoy", "2.0.0"), Ok(VirtualHostDelivery::OneByOne));
        for (name, version) in [("envoy", "1.36.4"), ("envoy", ""), ("gRPC C++", "1.85.1")] {
            let refused = asks(yes(), name, version);
            assert!(matches!(refused, Ok(VirtualHostDelivery::Refused(_))), "{name} {version}");
        }
        for given in [text("false"), text("")] {
            assert_eq!(asks(given, "envoy", "1.40.0"), Ok(VirtualHostDelivery::InRoutes));
        }
        for given in [text("yes"), Value { kind: Some(Kind::BoolValue(true)) }] {
            let error = asks(given, "envoy", "1.40.0").expect_err("neither true nor false");
            assert!(error.to_string().contains("STRAIT_VHDS"), "{error}");
        }
        let sotw = VirtualHostDelivery::OneByOne.on_stream(false);
        assert!(matches!(sotw, VirtualHostDelivery::Refused(_)));
    }

    #[test]
    fn empty_network_is_ignored() {
        let proxy = read(&node(ID, vec![("NETWORK", text(""))])).expect("valid");
        assert_eq!(proxy.network, None);
    }

    #[test]
    fn claims_are_parsed_from_the_id_and_the_metadata() {
        let labels = Struct { fields: [("app".to_owned(), text("web"))].into_iter().collect() };
        let labels = Value { kind: Some(Kind::StructValue(labels)) };
        let proxy = read(&node(
            ID,
            vec![
                ("CLUSTER_ID", text("east")),
                ("NETWORK", text("n1")),
                ("INSTANCE_IPS", text("10.0.0.1,fd00::1")),
                ("SERVICE_ACCOUNT", text("web")),
                ("LABELS", labels),
            ],
        ))
        .expect("readable");
        assert_eq!(proxy.kind, ProxyType::Sidecar);
        assert_eq!(proxy.cluster.as_str(), "east");
        assert_eq!(proxy.network.as_ref().map(NetworkId::as_str), Some("n1"));
        assert!(proxy.has_ipv4() && proxy.has_ipv6());
        assert_eq!(proxy.labels.get("app").map(|value| &**value), Some("web"));
    }

    #[test]
    fn gateway_topology_is_read_from_the_agents_configuration() {
        let inside = |fields: Vec<(&str, Value)>| {
            let fields = fields.into_iter().map(|(key, value)| (key.into(), value)).collect();
            Value { kind: Some(Kind::StructValue(Struct { fields })) }
        };
        let number = |number| Value { kind: Some(Kind::NumberValue(number)) };
        let read_as = |fields| {
            let config = inside(vec![("gatewayTopology", inside(fields))]);
            read(&node(ID, vec![("PROXY_CONFIG", config)])).expect("a node").topology
        };
        let all = read_as(vec![
            ("numTrustedProxies", number(2.0)),
            ("forwardClientCertDetails", text("APPEND_FORWARD")),
            ("proxyProtocol", inside(Vec::new())),
        ]);
        let expected = GatewayTopology {
            trusted_proxies: 2,
            client_certificate: ForwardedCertificate::AppendForward,
            proxy_protocol: true,
        };
        assert_eq!(all, Some(expected));
        let odd = read_as(vec![
            ("numTrustedProxies", number(-1.0)),
            ("forwardClientCertDetails", text("WHATEVER")),
            ("proxyProtocol", text("yes")),
        ]);
        assert_eq!(odd, Some(GatewayTopology::default()));
        let config = inside(vec![("concurrency", number(2.0))]);
        let given = read(&node(ID, vec![("PROXY_CONFIG", config)])).expect("a node");
        assert_eq!(given.topology, None);
    }

    #[test]
    fn only_an_envoy_has_a_release() {
        use super::core::node::UserAgentVersionType::{UserAgentBuildVersion, UserAgentVersion};
        use strait_proto::envoy::envoy::r#type::v3::SemanticVersion;
        let built = |major_number, minor_number| {
            let version = SemanticVersion { major_number, minor_number, patch: 1 };
            UserAgentBuildVersion(core::BuildVersion { version: Some(version), metadata: None })
        };
        for (name, version, release) in [
            ("envoy", Some(built(1, 36)), Some((1, 36))),
            ("envoy", Some(UserAgentVersion("1.40.0-dev".into())), Some((1, 40))),
            ("envoy", Some(UserAgentVersion("next".into())), None),
            ("envoy", None, None),
            ("gRPC C-core linux", Some(UserAgentVersion("1.85.1".into())), None),
        ] {
            let given = core::Node {
                user_agent_name: name.into(),
                user_agent_version_type: version,
                ..node(ID, vec![])
            };
            assert_eq!(read(&given).expect("readable").envoy_release, release, "{given:?}");
        }
    }

    #[test]
    fn grpc_library_is_detected_by_its_generator_or_its_name() {
        let labels = Struct { fields: [(TLS_MODE_LABEL.to_owned(), text("istio"))].into() };
        let labels = || ("LABELS", Value { kind: Some(Kind::StructValue(labels.clone())) });
        let generator = || ("GENERATOR", text("grpc"));
        let says = |given: &str| ("STRAIT_GRPC_MTLS", text(given));
        for (name, metadata, mtls) in [
            ("envoy", vec![], None),
            ("envoy", vec![labels(), says("true")], None),
            ("gRPC Go", vec![], Some(false)),
            ("gRPC Go", vec![labels()], Some(false)),
            ("gRPC C-core linux", vec![says("true")], Some(true)),
            ("", vec![generator()], Some(false)),
            ("", vec![generator(), labels()], Some(true)),
            ("", vec![generator(), labels(), says("false")], Some(false)),
        ] {
            let node = core::Node { user_agent_name: name.into(), ..node(ID, metadata) };
            let found = read(&node).expect("readable").grpc;
            assert_eq!(found.map(|library| library.mtls), mtls, "{node:?}");
        }
    }

    #[test]
    fn grpc_library_supports_least_request_from_a_known_release_on() {
        let given = |text: &str| core::node::UserAgentVersionType::UserAgentVersion(text.into());
        for (name, version, counts) in [
            ("gRPC Go", "1.80.0", true),
            ("gRPC Go", "1.70.0-dev", true),
            ("gRPC Go", "1.62.0", false),
            ("gRPC Go", "", false),
            ("gRPC C-core linux", "1.85.1", false),
            ("gRPC Java", "1.80.0", false),
        ] {
            let node = core::Node {
                user_agent_name: name.into(),
                user_agent_version_type: Some(given(version)),
                ..node(ID, vec![])
            };
            let found = read(&node).expect("readable").grpc.expect("a library");
            assert_eq!(found.least_request, counts, "{name} {version}");
        }
    }

    #[test]
    fn istio_filters_are_detected_by_category_and_type() {
        let extension = |category: &str, url: &str, disabled| core::Extension {
            name: "istio.stats".into(),
            category: category.into(),
            type_urls: vec![url.into()],
            disabled,
            ..Default::default()
        };
        let (http, network) = ("envoy.filters.http", "envoy.filters.network");
        for (category, url, disabled, found) in [
            (http, "stats.PluginConfig", false, vec![IstioFilter::HttpStats]),
            (network, "type.googleapis.com/stats.PluginConfig", false, vec![IstioFilter::TcpStats]),
            (http, "stats.PluginConfig", true, vec![]),
            ("envoy.access_loggers", "stats.PluginConfig", false, vec![]),
            (http, "envoy.extensions.filters.http.router.v3.Router", false, vec![]),
        ] {
            let extensions = vec![extension(category, url, disabled)];
            let node = core::Node { extensions, ..node(ID, vec![]) };
            let read = read(&node).expect("readable").istio_filters;
            assert_eq!(read, found.into_iter().collect(), "{node:?}");
        }
    }

    #[test]
    fn service_metrics_need_a_wish_and_the_logger_and_no_filter_of_istio() {
        let logger = ("envoy.access_loggers", "envoy.extensions.access_loggers.stats.v3.Config");
        let filter = ("envoy.filters.http", "stats.PluginConfig");
        for (wish, declared, expected) in [
            (Some("true"), vec![logger], true),
            (Some("false"), vec![logger], false),
            (None, vec![logger], false),
            (Some("true"), vec![], false),
            (Some("true"), vec![("envoy.filters.http", logger.1)], false),
            (Some("true"), vec![logger, filter], false),
        ] {
            let extensions = declared.into_iter().map(|(category, url)| core::Extension {
                category: category.into(),
                type_urls: vec![url.into()],
                ..Default::default()
            });
            let metadata = wish.map(|wish| ("STRAIT_SERVICE_METRICS", text(wish)));
            let node = node(ID, metadata.into_iter().collect());
            let node = core::Node { extensions: extensions.collect(), ..node };
            let found = read(&node).expect("readable").reports_services;
            assert_eq!(found, expected, "{node:?}");
        }
    }

    #[test]
    fn address_in_the_id_is_used_if_the_address_list_is_invalid() {
        let proxy = read(&node(ID, vec![("INSTANCE_IPS", text("10.9.9.9,x"))])).expect("readable");
        assert_eq!(proxy.addresses, ["10.0.0.1".parse::<IpAddr>().expect("an address")]);
    }

    #[test]
    fn paths_of_secret_files_are_absolute() {
        let files = |cert: &str, roots: &str| {
            let pairs =
                [("cert", cert), ("roots", roots)].map(|(key, path)| (key.into(), text(path)));
            let files = Struct { fields: pairs.into_iter().collect() };
            let value = Value { kind: Some(Kind::StructValue(files)) };
            read(&node(ID, vec![("STRAIT_SDS", value)])).map(|proxy| proxy.sds)
        };
        let found = files("/c/sds-cert.yaml", "/c/sds-roots.yaml").expect("readable");
        assert_eq!(found.as_ref().map(|found| &*found.roots), Some("/c/sds-roots.yaml"));
        let long = format!("/{}", "x".repeat(SdsFiles::PATH_BYTES_MAX));
        for wrong in ["", "sds-cert.yaml", "/a\nb", &long] {
            assert!(files(wrong, "/c/sds-roots.yaml").is_err(), "{wrong}");
        }
        assert!(read(&node(ID, vec![("STRAIT_SDS", text("/c"))])).is_err());
    }

    fn agent() -> (&'static str, Value) {
        ("ISTIO_VERSION", text("1.30.0"))
    }

    fn annotations(bytes: usize) -> (&'static str, Value) {
        let fields = [("note".to_owned(), text(&"x".repeat(bytes)))].into();
        ("ANNOTATIONS", Value { kind: Some(Kind::StructValue(Struct { fields })) })
    }

    #[test]
    fn metadata_of_an_agent_may_be_larger_but_its_labels_may_not() {
        let many = || annotations(100 << 10);
        assert!(read(&node(ID, vec![many()])).is_err(), "no agent's");
        assert!(read(&node(ID, vec![agent(), many()])).is_ok());
        assert!(read(&node(ID, vec![agent(), annotations(256 << 10)])).is_err());
        let (_, labels) = many();
        assert!(read(&node(ID, vec![agent(), ("LABELS", labels)])).is_err());
    }

    #[test]
    fn interception_mode_and_mounted_files_are_read_from_the_agents_metadata() {
        let proxy = read(&node(
            ID,
            vec![
                agent(),
                ("INTERCEPTION_MODE", text("TPROXY")),
                ("TLS_CLIENT_CERT_CHAIN", text("/c/chain.pem")),
                ("TLS_CLIENT_KEY", text("/c/key.pem")),
                ("TLS_SERVER_ROOT_CERT", text("/c/root.pem")),
                (
                    "POD_PORTS",
                    text(
                        r#"[{"name":"web","containerPort":8080,"protocol":"TCP"},{"containerPort":9000}]"#,
                    ),
                ),
            ],
        ))
        .expect("readable");
        assert_eq!(proxy.interception, Interception::Transparent);
        let name = |text: &str| Some(Arc::from(text));
        assert_eq!(proxy.mounted.client.certificate, name("file-cert:/c/chain.pem~/c/key.pem"));
        assert_eq!(proxy.mounted.client.roots, None);
        assert_eq!(proxy.mounted.server.roots, name("file-root:/c/root.pem"));
        assert_eq!(proxy.named_ports, [("web".into(), 8080)].into());
        let given = |ports: &str| read(&node(ID, vec![("POD_PORTS", text(ports))]));
        for odd in ["", "web", "[{}]", r#"[{"name":"web","containerPort":70000}]"#] {
            assert!(given(odd).expect("readable").named_ports.is_empty(), "{odd}");
        }
    }

    #[test]
    fn unusable_nodes_are_refused() {
        let huge = "x".repeat(METADATA_BYTES_MAX);
        let cases = [
            node("", vec![]),
            node("sidecar~10.0.0.1~web-0.shop", vec![]),
            node("ztunnel~10.0.0.1~web-0.shop~d", vec![]),
            node("sidecar~~web-0.shop~d", vec![]),
            node("sidecar~nowhere~web-0.shop~d", vec![]),
            node("sidecar~10.0.0.1~web~d", vec![]),
            node("sidecar~10.0.0.1~web.shop\0~d", vec![]),
            node(ID, vec![("BIG", text(&huge))]),
            node(ID, vec![("NAMESPACE", text("other"))]),
            node(ID, vec![("INTERCEPTION_MODE", text("SOMEHOW"))]),
            node(ID, vec![agent(), ("TLS_CLIENT_KEY", text("/etc/certs/key.pem"))]),
            node(ID, vec![agent(), ("TLS_CLIENT_ROOT_CERT", text("root.pem"))]),
            node(ID, vec![agent(), ("TLS_SERVER_ROOT_CERT", text("/a~b"))]),
        ];
        for node in cases {
            assert!(read(&node).is_err(), "{:?}", node.id);
        }
    }
}
