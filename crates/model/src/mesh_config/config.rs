//! Mesh config: the settings that apply to all proxies.
//!
//! Parses the supported fields of Istio's `MeshConfig` and reports the names of all others, so that
//! users notice that these have no effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::access_log::{AccessLog, AccessLogFormat, writable_path};
use super::default_providers::{DefaultProviderFault, DefaultProviderNames};
use super::discovery::{self, RawSelector};
use super::ingress::IngressSettings;
use super::limits::{TcpKeepalive, UsualLimits, WrittenUpgrade};
use super::localities::{LocalityFault, LocalitySetting, WrittenLocalities};
use super::providers::{ExtensionProvider, ProviderKind};
use super::retries::{RetryFault, RetryRule, WrittenRetries};
use super::service_scopes::{ObjectSelectors, ServiceScopes};
use super::sources::StoreSource;
use super::tls::{MeshTls, RawMeshTls};
use super::traces::TracingProvider;
use super::yaml::{InvalidYaml, YamlFields};
use super::{default_config, format_duration, parse_duration};
use crate::{GatewayTopology, Hostname, NamespaceFilter, is_trust_domain};

/// The name of the built-in access log. (Istio, "Telemetry", `envoy`.)
const OWN_LOG: &str = "envoy";
/// The default file of the built-in log.
const STANDARD_OUTPUT: &str = "/dev/stdout";

/// The effective settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// `trustDomain`: the first part of a SPIFFE ID.
    pub trust_domain: String,
    /// `trustDomainAliases`, sorted.
    pub trust_domain_aliases: Vec<String>,
    /// `caCertificates`: roots in addition to the client CA.
    pub ca_certificates: Vec<CaCertificates>,
    /// `connectTimeout`: the connect timeout of upstream clusters; above zero.
    pub connect_timeout: Duration,
    /// `protocolDetectionTimeout`: how long a listener detects the protocol; zero for no limit.
    pub protocol_detection_timeout: Duration,
    /// `tcpKeepalive`, if set.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// `pathNormalization.normalization`, if set.
    pub path_normalization: Option<PathNormalization>,
    /// `meshMTLS`: the TLS parameters that servers accept for the mesh's mTLS.
    pub mesh_tls: Arc<MeshTls>,
    /// `tlsDefaults`: the default TLS parameters for other TLS in DestinationRules, Gateways and
    /// Sidecars.
    pub tls_defaults: Arc<MeshTls>,
    /// `outboundTrafficPolicy.mode`: the handling of traffic to unknown hosts.
    pub outbound_traffic_policy: OutboundTrafficPolicy,
    /// `enableAutoMtls`: whether clients use mTLS if the endpoint accepts it.
    pub enable_auto_mtls: bool,
    /// `accessLogFile`, `accessLogEncoding`, `accessLogFormat`: the built-in access log, where it
    /// is enabled.
    pub access_log: Arc<AccessLog>,
    /// `defaultProviders.accessLogging`: the access logs that apply without a Telemetry.
    pub default_logs: Vec<Arc<str>>,
    /// The first of `defaultProviders.tracing`: the tracing provider that applies without a
    /// Telemetry.
    pub default_tracing: Option<Arc<str>>,
    /// `localityLbSetting`: the locality settings that apply without a setting in a rule.
    pub localities: Option<Arc<LocalitySetting>>,
    /// `defaultHttpRetryPolicy`: the retry policy that applies without one in a rule.
    pub retries: Option<Arc<RetryRule>>,
    /// `defaultTrafficPolicy`: the limits and outlier detection that apply without a rule.
    pub usual_limits: UsualLimits,
    /// `h2UpgradePolicy`: whether HTTP ports are upgraded to HTTP/2 if no rule decides it.
    pub h2_upgrade: bool,
    /// `proxyListenPort`: the port that captures outbound traffic.
    pub proxy_listen_port: u16,
    /// `proxyInboundListenPort`: the port that captures inbound traffic.
    pub proxy_inbound_listen_port: u16,
    /// `configSources`: the stores of configuration objects, in order of precedence.
    pub config_sources: Vec<StoreSource>,
    /// `discoverySelectors`: the namespaces whose services and pods belong to the mesh.
    pub namespaces: Arc<NamespaceFilter>,
    /// `serviceScopeConfigs`: the services that are global, if the policy honours them.
    pub service_scopes: Arc<ServiceScopes>,
    /// `defaultServiceExportTo`: the default export of ServiceEntries; empty for all namespaces.
    pub default_service_export_to: Vec<String>,
    /// `defaultDestinationRuleExportTo`: the default export of DestinationRules.
    pub default_destination_rule_export_to: Vec<String>,
    /// `defaultVirtualServiceExportTo`: the default export of VirtualServices.
    pub default_virtual_service_export_to: Vec<String>,
    /// `rootNamespace`: the namespace whose traffic and access objects apply to the whole mesh.
    pub root_namespace: String,
    /// The routers that a Gateway may select, set by a flag.
    pub gateway_scope: GatewayScope,
    /// How several VirtualServices for one host are combined at sidecars, set by a flag.
    pub host_sharing: HostSharing,
    /// `ingressControllerMode`, `ingressClass`, `ingressSelector`, `ingressService`: the Ingresses
    /// that are processed, and the routers that serve them.
    pub ingress: IngressSettings,
    /// `extensionProviders`, in the order of the text.
    pub extension_providers: Vec<ExtensionProvider>,
    /// `defaultConfig.gatewayTopology`: the proxies in front of routers, if set.
    pub gateway_topology: Option<GatewayTopology>,
    /// Fields of the text that have no effect, sorted.
    pub ignored: Vec<String>,
    /// Invalid names in `defaultProviders`.
    pub default_provider_faults: Vec<DefaultProviderFault>,
    /// Whether a host or `*.suffix` is local to its cluster: `serviceSettings`, which override the
    /// built-in rules.
    cluster_local: BTreeMap<String, bool>,
}

/// Root certificates for verifying certificates of proxies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct CaCertificates {
    /// Certificates as PEM. Empty if they must be fetched, which is not supported.
    pub pem: String,
    /// The trust domains for which they may sign; empty for all trust domains without roots of
    /// their own.
    pub trust_domains: Vec<String>,
}

/// Values from flags, for fields that a text omits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `--domain`.
    pub domain: String,
    /// `--trust-domain`.
    pub trust_domain: String,
    /// `--namespace`.
    pub namespace: String,
    /// `--scope-gateway-to-namespace`.
    pub gateway_scope: GatewayScope,
    /// `--join-virtual-services`.
    pub host_sharing: HostSharing,
}

/// The routers that a Gateway may select.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GatewayScope {
    /// Routers in all namespaces.
    #[default]
    AnyNamespace,
    /// Routers in its own namespace.
    OwnNamespace,
}

/// How several VirtualServices for one host are combined at sidecars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostSharing {
    /// Only the first VirtualService with rules for the proxy applies.
    #[default]
    FirstAlone,
    /// The rules of all VirtualServices apply, one after the other.
    AllJoined,
}

/// The handling of traffic to hosts that no registry contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboundTrafficPolicy {
    /// It is forwarded to its original destination.
    AllowAny,
    /// It is dropped.
    RegistryOnly,
}

/// The outbound mode as written in the mesh config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum WrittenOutboundMode {
    /// See [`OutboundTrafficPolicy::AllowAny`].
    #[serde(rename = "ALLOW_ANY")]
    AllowAny,
    /// Istio's proxies resolve the host of each request again. Here, traffic goes to the address
    /// that the client resolved.
    #[serde(rename = "ALLOW_ANY_DYNAMIC_DNS")]
    AllowAnyDynamicDns,
    /// See [`OutboundTrafficPolicy::RegistryOnly`].
    #[serde(rename = "REGISTRY_ONLY")]
    RegistryOnly,
}

impl WrittenOutboundMode {
    /// Returns the effective policy.
    pub fn read(self) -> OutboundTrafficPolicy {
        match self {
            Self::AllowAny | Self::AllowAnyDynamicDns => OutboundTrafficPolicy::AllowAny,
            Self::RegistryOnly => OutboundTrafficPolicy::RegistryOnly,
        }
    }
}

/// The normalization of request paths before routing and access checks. Each value includes the
/// previous ones. (Istio's `MeshConfig.ProxyPathNormalization`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum PathNormalization {
    /// None.
    #[serde(rename = "NONE")]
    None,
    /// Dot segments are resolved, and unnecessary escapes are decoded (RFC 3986).
    #[serde(rename = "BASE", alias = "DEFAULT")]
    Base,
    /// Adjacent slashes are merged.
    #[serde(rename = "MERGE_SLASHES")]
    MergeSlashes,
    /// Escaped slashes are decoded.
    #[serde(rename = "DECODE_AND_MERGE_SLASHES")]
    DecodeAndMergeSlashes,
}

impl PathNormalization {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Base => "BASE",
            Self::MergeSlashes => "MERGE_SLASHES",
            Self::DecodeAndMergeSlashes => "DECODE_AND_MERGE_SLASHES",
        }
    }
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            domain: "cluster.local".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            namespace: "strait-system".to_owned(),
            gateway_scope: GatewayScope::default(),
            host_sharing: HostSharing::default(),
        }
    }
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self::new(&Defaults::default())
    }
}

impl MeshConfig {
    /// Returns the settings that apply without a mesh config.
    pub fn new(defaults: &Defaults) -> Self {
        let Defaults { domain, namespace, .. } = defaults;
        Self {
            trust_domain: defaults.trust_domain.clone(),
            root_namespace: namespace.clone(),
            gateway_scope: defaults.gateway_scope,
            host_sharing: defaults.host_sharing,
            trust_domain_aliases: Vec::new(),
            ca_certificates: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            protocol_detection_timeout: Duration::ZERO,
            tcp_keepalive: None,
            path_normalization: None,
            mesh_tls: Arc::default(),
            tls_defaults: Arc::default(),
            outbound_traffic_policy: OutboundTrafficPolicy::AllowAny,
            enable_auto_mtls: true,
            access_log: Arc::new(AccessLog::to_file(STANDARD_OUTPUT)),
            default_logs: Vec::new(),
            default_tracing: None,
            localities: None,
            retries: None,
            usual_limits: UsualLimits::default(),
            h2_upgrade: false,
            proxy_listen_port: 15001,
            proxy_inbound_listen_port: 15006,
            config_sources: Vec::new(),
            namespaces: Arc::default(),
            service_scopes: Arc::default(),
            default_service_export_to: Vec::new(),
            default_destination_rule_export_to: Vec::new(),
            default_virtual_service_export_to: Vec::new(),
            ingress: IngressSettings::default(),
            gateway_topology: None,
            extension_providers: Vec::new(),
            ignored: Vec::new(),
            default_provider_faults: Vec::new(),
            cluster_local: [
                (format!("*.kube-system.svc.{domain}"), true),
                (format!("kubernetes.default.svc.{domain}"), true),
                // Each cluster connects to the control plane in its own way.
                (format!("strait.{namespace}.svc.{domain}"), true),
                (format!("istiod.{namespace}.svc.{domain}"), true),
            ]
            .into(),
        }
    }

    /// Parses Istio's YAML (or JSON). An empty text gives the default.
    ///
    /// # Errors
    /// Returns the first field with a wrong type or value.
    pub fn parse(text: &str, defaults: &Defaults) -> Result<Self, InvalidYaml> {
        let mut fields = YamlFields::parse(text)?;
        let base = Self::new(defaults);
        let default_providers: DefaultProviderNames =
            fields.take("defaultProviders")?.unwrap_or_default();
        let default_tracing = default_providers.tracing.first().cloned();
        let (access_log, default_logs) =
            read_access_logs(&mut fields, default_providers.access_logging.clone())?;
        let mut take_tls = |field: &'static str| {
            fields
                .take_with(field, |raw: RawMeshTls| raw.read(field))
                .map(Option::unwrap_or_default)
        };
        let (mesh_tls, mut ignored) = take_tls("meshMTLS")?;
        let (tls_defaults, ignored_tls_defaults) = take_tls("tlsDefaults")?;
        ignored.extend(ignored_tls_defaults);
        let mut config = Self {
            mesh_tls: Arc::new(mesh_tls),
            tls_defaults: Arc::new(tls_defaults),
            access_log,
            default_logs,
            default_tracing,
            trust_domain: fields
                .take_with("trustDomain", read_trust_domain)?
                .flatten()
                .unwrap_or(base.trust_domain),
            gateway_scope: base.gateway_scope,
            host_sharing: base.host_sharing,
            root_namespace: fields
                .take("rootNamespace")?
                .filter(|namespace: &String| !namespace.is_empty())
                .unwrap_or(base.root_namespace),
            trust_domain_aliases: sorted(fields.take("trustDomainAliases")?.unwrap_or_default()),
            ca_certificates: fields.take_with("caCertificates", read_roots)?.unwrap_or_default(),
            connect_timeout: fields
                .take_with("connectTimeout", positive_duration)?
                .unwrap_or(base.connect_timeout),
            protocol_detection_timeout: fields
                .take_with("protocolDetectionTimeout", |text: String| parse_duration(&text))?
                .unwrap_or(base.protocol_detection_timeout),
            tcp_keepalive: fields.take_with("tcpKeepalive", RawKeepalive::read)?,
            path_normalization: fields
                .take::<RawPathNormalization>("pathNormalization")?
                .and_then(|paths| paths.normalization),
            outbound_traffic_policy: fields
                .take::<RawOutbound>("outboundTrafficPolicy")?
                .and_then(|policy| policy.mode)
                .map_or(base.outbound_traffic_policy, |mode| {
                    if mode == WrittenOutboundMode::AllowAnyDynamicDns {
                        let text =
                            "outboundTrafficPolicy.mode ALLOW_ANY_DYNAMIC_DNS (ALLOW_ANY applies)";
                        ignored.push(text.to_owned());
                    }
                    mode.read()
                }),
            enable_auto_mtls: fields.take("enableAutoMtls")?.unwrap_or(base.enable_auto_mtls),
            localities: fields.take_with("localityLbSetting", read_localities)?,
            retries: fields.take_with("defaultHttpRetryPolicy", read_retries)?,
            usual_limits: fields
                .take_with("defaultTrafficPolicy", |policy| {
                    UsualLimits::read(policy, &mut ignored)
                })?
                .unwrap_or_default(),
            h2_upgrade: fields
                .take::<WrittenUpgrade>("h2UpgradePolicy")?
                .and_then(WrittenUpgrade::read)
                == Some(true),
            proxy_listen_port: fields
                .take_with("proxyListenPort", listen_port)?
                .unwrap_or(base.proxy_listen_port),
            proxy_inbound_listen_port: fields
                .take_with("proxyInboundListenPort", listen_port)?
                .unwrap_or(base.proxy_inbound_listen_port),
            config_sources: fields
                .take_with("configSources", StoreSource::read_all)?
                .unwrap_or_default(),
            namespaces: fields
                .take_with("discoverySelectors", |raw: Vec<RawSelector>| discovery::read(raw))?
                .map_or(base.namespaces, Arc::new),
            // An invalid value must not take the other fields out of force: by default, the field
            // has no effect.
            service_scopes: fields.take("serviceScopeConfigs")?.map_or(
                base.service_scopes,
                |value| match ServiceScopes::read(value) {
                    Ok(scopes) => Arc::new(scopes),
                    Err(fact) => {
                        ignored.push(format!("serviceScopeConfigs ({fact})"));
                        Arc::default()
                    }
                },
            ),
            default_service_export_to: fields.take("defaultServiceExportTo")?.unwrap_or_default(),
            default_destination_rule_export_to: fields
                .take("defaultDestinationRuleExportTo")?
                .unwrap_or_default(),
            default_virtual_service_export_to: fields
                .take("defaultVirtualServiceExportTo")?
                .unwrap_or_default(),
            ingress: IngressSettings::take(&mut fields)?,
            gateway_topology: default_config::take(&mut fields, &mut ignored)?,
            extension_providers: fields
                .take("extensionProviders")?
                .map(ExtensionProvider::read_all)
                .unwrap_or_default(),
            cluster_local: {
                let mut rules = base.cluster_local;
                let settings: Vec<RawServiceSettings> =
                    fields.take("serviceSettings")?.unwrap_or_default();
                rules.extend(settings.into_iter().flat_map(RawServiceSettings::rules));
                rules
            },
            // Must be last: the fields that were not taken.
            ignored: {
                ignored.extend(fields.into_remaining());
                sorted(ignored)
            },
            default_provider_faults: Vec::new(),
        };
        config.default_provider_faults =
            default_providers.faults(&config.extension_providers, OWN_LOG);
        Ok(config)
    }

    /// Returns the access log with this name.
    pub fn log_named(&self, name: &str) -> Option<&Arc<AccessLog>> {
        let configured =
            self.extension_providers.iter().find_map(|provider| match &provider.kind {
                ProviderKind::Log(log) if *provider.name == *name => Some(log),
                _ => None,
            });
        configured.or_else(|| (name == OWN_LOG).then_some(&self.access_log))
    }

    /// Returns whether a provider with this name exists, of any kind.
    pub fn has_provider(&self, name: &str) -> bool {
        self.extension_providers.iter().any(|one| *one.name == *name)
    }

    /// Returns the tracing provider with this name.
    pub fn tracing_named(&self, name: &str) -> Option<&Arc<TracingProvider>> {
        self.extension_providers.iter().find_map(|one| match &one.kind {
            ProviderKind::Tracing(provider) if *one.name == *name => Some(provider),
            _ => None,
        })
    }

    /// Returns the trust domains that are equivalent to `domain`, starting with `domain`: the
    /// mesh's own and its aliases are equivalent, any other is only equivalent to itself.
    pub fn same_trust_domains<'a>(&'a self, domain: &'a str) -> impl Iterator<Item = &'a str> {
        let mesh = || {
            let aliases = self.trust_domain_aliases.iter().map(String::as_str);
            std::iter::once(self.trust_domain.as_str()).chain(aliases)
        };
        let is_of_mesh = mesh().any(|own| own == domain);
        let equivalents = mesh().filter(move |own| is_of_mesh && *own != domain);
        std::iter::once(domain).chain(equivalents)
    }

    /// Returns whether endpoints of this service are available only to proxies in their own
    /// cluster. The most specific host that matches decides: an exact one, then the longest
    /// wildcard, so that a setting can exclude a single host from a built-in rule.
    pub fn cluster_local(&self, hostname: &Hostname) -> bool {
        let host = hostname.as_str();
        // `*.a.b` matches `x.a.b` and `x.y.a.b`. There are few rules, and this is called for each
        // service and proxy, so this never allocates.
        let matches = |pattern: &str| match pattern.strip_prefix('*') {
            Some("") => true,
            Some(suffix) if suffix.starts_with('.') => host
                .len()
                .checked_sub(suffix.len())
                .and_then(|start| host.as_bytes().get(start..))
                .is_some_and(|end| end.eq_ignore_ascii_case(suffix.as_bytes())),
            Some(_) => false,
            None => host.eq_ignore_ascii_case(pattern),
        };
        self.cluster_local
            .iter()
            .filter(|(pattern, _)| matches(pattern))
            .max_by_key(|(pattern, _)| (!pattern.starts_with('*'), pattern.len()))
            .map(|(_, local)| *local)
            .unwrap_or(false)
    }

    /// Returns these settings with the trust settings of `live`: trust domains and roots, and,
    /// unless the hold includes access policies (`is_access_held`), the authorization providers.
    #[must_use]
    pub fn with_trust_of(&self, live: &Self, is_access_held: bool) -> Self {
        let is_authorization =
            |provider: &&ExtensionProvider| matches!(provider.kind, ProviderKind::Authorization(_));
        let extension_providers = match is_access_held {
            true => self.extension_providers.clone(),
            false => {
                let unrelated =
                    self.extension_providers.iter().filter(|provider| !is_authorization(provider));
                unrelated
                    .chain(live.extension_providers.iter().filter(is_authorization))
                    .cloned()
                    .collect()
            }
        };
        Self {
            trust_domain: live.trust_domain.clone(),
            trust_domain_aliases: live.trust_domain_aliases.clone(),
            ca_certificates: live.ca_certificates.clone(),
            extension_providers,
            ..self.clone()
        }
    }

    /// Returns these settings with a default export of objects to their own namespace only. Kinds
    /// for which the mesh config sets a default keep it.
    #[must_use]
    pub fn private_by_default(&self) -> Self {
        let default = |written: &Vec<String>| match &**written {
            [] => vec![".".to_owned()],
            _ => written.clone(),
        };
        Self {
            default_service_export_to: default(&self.default_service_export_to),
            default_destination_rule_export_to: default(&self.default_destination_rule_export_to),
            default_virtual_service_export_to: default(&self.default_virtual_service_export_to),
            ..self.clone()
        }
    }

    /// Returns the selectors that apply to the objects of clusters.
    pub fn object_selectors(&self) -> ObjectSelectors {
        let (namespaces, scopes) = (Arc::clone(&self.namespaces), Arc::clone(&self.service_scopes));
        ObjectSelectors { namespaces, scopes }
    }

    /// Returns the effective settings in Istio's terms, for `/debug/mesh`.
    pub fn to_json(&self) -> Value {
        let policy = match self.outbound_traffic_policy {
            OutboundTrafficPolicy::AllowAny => "ALLOW_ANY",
            OutboundTrafficPolicy::RegistryOnly => "REGISTRY_ONLY",
        };
        let keepalive = self.tcp_keepalive.map(|keepalive| {
            json!({
                "probes": keepalive.probes,
                "time": keepalive.time.map(format_duration),
                "interval": keepalive.interval.map(format_duration),
            })
        });
        let service_settings: Vec<Value> = self
            .cluster_local
            .iter()
            .map(|(host, local)| json!({"settings": {"clusterLocal": local}, "hosts": [host]}))
            .collect();
        json!({
            "accessLogEncoding": self.access_log.format.encoding(),
            "accessLogFile": if self.default_logs.is_empty() { "" } else { &self.access_log.path },
            "accessLogFormat": self.access_log.format.to_string(),
            "defaultProviders": {
                "accessLogging": self.default_logs,
                "tracing": self.default_tracing.iter().collect::<Vec<_>>(),
            },
            "caCertificates": self.ca_certificates.iter().map(|one| json!({
                "pem": one.pem,
                "trustDomains": one.trust_domains,
            })).collect::<Vec<_>>(),
            "configSources": self.config_sources.iter().map(StoreSource::to_json).collect::<Vec<_>>(),
            "defaultDestinationRuleExportTo": self.default_destination_rule_export_to,
            "defaultServiceExportTo": self.default_service_export_to,
            "defaultVirtualServiceExportTo": self.default_virtual_service_export_to,
            "extensionProviders":
                self.extension_providers.iter().map(ExtensionProvider::to_json).collect::<Vec<_>>(),
            "defaultConfig": default_config::to_json(self.gateway_topology.as_ref()),
            "rootNamespace": self.root_namespace,
            "ingressClass": self.ingress.class,
            "ingressControllerMode": self.ingress.mode.as_str(),
            "ingressSelector": self.ingress.selector,
            "ingressService": self.ingress.service,
            "defaultHttpRetryPolicy": self.retries.as_ref().map(|rule| rule.to_json()),
            "defaultTrafficPolicy": self.usual_limits.to_json(),
            "h2UpgradePolicy": if self.h2_upgrade { "UPGRADE" } else { "DO_NOT_UPGRADE" },
            "meshMTLS": self.mesh_tls.to_json(),
            "tlsDefaults": self.tls_defaults.to_json(),
            "localityLbSetting": self.localities.as_ref().map(|setting| setting.to_json()),
            "discoverySelectors": discovery::to_json(&self.namespaces),
            "connectTimeout": format_duration(self.connect_timeout),
            "enableAutoMtls": self.enable_auto_mtls,
            "outboundTrafficPolicy": {"mode": policy},
            "pathNormalization": {
                "normalization": self.path_normalization.map(PathNormalization::as_str),
            },
            "protocolDetectionTimeout": format_duration(self.protocol_detection_timeout),
            "proxyInboundListenPort": self.proxy_inbound_listen_port,
            "proxyListenPort": self.proxy_listen_port,
            "serviceScopeConfigs": self.service_scopes.to_json(),
            "serviceSettings": service_settings,
            "tcpKeepalive": keepalive,
            "trustDomain": self.trust_domain,
            "trustDomainAliases": self.trust_domain_aliases,
        })
    }
}

#[derive(Deserialize)]
struct RawOutbound {
    mode: Option<WrittenOutboundMode>,
}

#[derive(Deserialize)]
struct RawPathNormalization {
    normalization: Option<PathNormalization>,
}

#[derive(Deserialize)]
struct RawKeepalive {
    probes: Option<u32>,
    time: Option<String>,
    interval: Option<String>,
}

impl RawKeepalive {
    fn read(self) -> Result<TcpKeepalive, String> {
        Ok(TcpKeepalive {
            probes: self.probes,
            time: self.time.as_deref().map(parse_duration).transpose()?,
            interval: self.interval.as_deref().map(parse_duration).transpose()?,
        })
    }
}

#[derive(Deserialize)]
struct RawServiceSettings {
    #[serde(default)]
    settings: RawSettings,
    #[serde(default)]
    hosts: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSettings {
    cluster_local: bool,
}

impl RawServiceSettings {
    fn rules(self) -> impl Iterator<Item = (String, bool)> {
        let local = self.settings.cluster_local;
        self.hosts.into_iter().map(move |host| (host.to_ascii_lowercase(), local))
    }
}

/// Envoy rejects zero here, and every proxy would lose its upstream clusters.
fn positive_duration(text: String) -> Result<Duration, String> {
    match parse_duration(&text)? {
        Duration::ZERO => Err(format!("expected a duration above zero, found {text:?}")),
        duration => Ok(duration),
    }
}

/// Returns the trust domain of a mesh config, whatever else it contains.
///
/// # Errors
/// If the text is no YAML mapping, or the value is no valid trust domain.
pub fn own_trust_domain(text: &str) -> Result<Option<String>, InvalidYaml> {
    Ok(YamlFields::parse(text)?.take_with("trustDomain", read_trust_domain)?.flatten())
}

/// Parses a trust domain; `None` if it is empty, which means it is not set.
fn read_trust_domain(domain: String) -> Result<Option<String>, String> {
    match domain.is_empty() || is_trust_domain(&domain) {
        true => Ok(Some(domain).filter(|domain| !domain.is_empty())),
        false => Err(format!("{domain:?} is not a valid trust domain")),
    }
}

/// Rejects texts without a valid certificate, unless the certificates must be fetched. Without
/// roots, no client would be accepted, which is safe but not intended.
fn read_roots(raw: Vec<CaCertificates>) -> Result<Vec<CaCertificates>, String> {
    for (at, one) in raw.iter().enumerate() {
        let mut found = 0;
        for pem in x509_parser::pem::Pem::iter_from_buffer(one.pem.as_bytes()) {
            let parsed = pem.is_ok_and(|pem| pem.parse_x509().is_ok());
            if !parsed {
                return Err(format!("[{at}].pem: certificate {} can't be parsed", found + 1));
            }
            found += 1;
        }
        if found == 0 && !one.pem.trim().is_empty() {
            return Err(format!("[{at}].pem contains no certificate"));
        }
        if let Some(invalid) = one.trust_domains.iter().find(|one| !is_trust_domain(one)) {
            return Err(format!("[{at}].trustDomains: {invalid:?} is not a valid trust domain"));
        }
    }
    Ok(raw)
}

/// Parses the built-in access log, and the names of the logs that apply without a Telemetry.
fn read_access_logs(
    fields: &mut YamlFields,
    default_names: Vec<Arc<str>>,
) -> Result<(Arc<AccessLog>, Vec<Arc<str>>), InvalidYaml> {
    let path = |text: String| if text.is_empty() { Ok(text) } else { writable_path(text) };
    let path = fields.take_with("accessLogFile", path)?.unwrap_or_default();
    let encoding = fields.take("accessLogEncoding")?.unwrap_or_default();
    let format = fields
        .take_with("accessLogFormat", |text: String| AccessLogFormat::read(encoding, &text))?
        .unwrap_or_else(|| AccessLogFormat::usual(encoding));
    let default_logs = match (default_names, path.is_empty()) {
        (names, _) if !names.is_empty() => names,
        (_, true) => Vec::new(),
        (_, false) => vec![OWN_LOG.into()],
    };
    let path = if path.is_empty() { STANDARD_OUTPUT.to_owned() } else { path };
    Ok((Arc::new(AccessLog { path, format }), default_logs))
}

/// Rejects settings with any invalid part: a setting for the whole mesh applies completely or not
/// at all.
fn read_localities(written: WrittenLocalities) -> Result<Arc<LocalitySetting>, String> {
    let (setting, faults) = written.read();
    match faults.into_iter().next() {
        None => Ok(Arc::new(setting)),
        Some(
            LocalityFault::Unsupported(field, text)
            | LocalityFault::Value(field, text)
            | LocalityFault::Replaced(field, text),
        ) => Err(format!("{field}: {text}")),
    }
}

/// See [`read_localities`].
fn read_retries(written: WrittenRetries) -> Result<Arc<RetryRule>, String> {
    let (rule, faults) = written.read();
    match faults.into_iter().next() {
        None => Ok(Arc::new(rule)),
        Some(RetryFault { field, text, .. }) => Err(format!("{field}: {text}")),
    }
}

fn listen_port(port: i64) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("expected a port from 1 to 65535, found {port}"))
}

fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list.dedup();
    list
}

#[cfg(test)]
mod tests;
