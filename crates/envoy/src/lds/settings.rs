//! The inputs of listeners other than services.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cds::PASSTHROUGH;
use crate::class::{Class, ListenerFormat};
use crate::istio_filters::IstioFiltersAt;
use crate::service_metrics::ServiceMetrics;
use crate::spans::SpanReport;
use strait_mesh::push::PushContext;
use strait_model::mesh_config::{MeshConfig, MeshTls, OutboundTrafficPolicy, PathNormalization};
use strait_model::{ClusterId, Hostname, Namespace, Protocol};
use strait_rules::traffic::Selection;
use strait_rules::traffic::envoy_filter::{FiltersAt, PatchPlace};
use strait_rules::traffic::policy::{Algorithm, ConsistentHash, HashKey, ResolvedPolicy, Tunnel};
use strait_rules::traffic::telemetry::{CallEnd, MetricsChoice, WrittenLog};
use strait_xds::names::OutboundName;

/// Application protocols (ALPN) with which a TLS client announces the mesh's mTLS. Plain Envoys
/// offer `istio`, and Istio's proxies offer another value (docs/reference/interface.md,
/// "Networks").
pub(super) const MESH_ALPN: [&str; 5] =
    ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];

/// Settings of the mesh config for listeners and routes.
pub(crate) struct TrafficSettings {
    /// Whether a sidecar allows connections to unknown destinations.
    pub(crate) outbound_any: bool,
    /// The upstream cluster for unknown destinations, instead of the original destination.
    pub(crate) egress_proxy: Option<String>,
    /// The access logs.
    pub(super) logs: Arc<[WrittenLog]>,
    /// The tracing configuration, if spans are reported.
    pub(super) spans: Option<Arc<SpanReport>>,
    /// Additional filters from EnvoyFilters.
    pub(super) filters: FiltersAt,
    /// Istio's own filters that the proxy has.
    pub(super) istio: IstioFiltersAt,
    /// The service metrics, if the proxy reports them.
    pub(super) metrics: Option<ServiceMetrics>,
    /// Default idle timeout of connections; `None` for Envoy's default.
    pub(super) idle_timeout: Option<Duration>,
    /// The port of a sidecar for redirected outbound connections.
    pub(super) outbound_port: u16,
    /// The port of a sidecar for redirected inbound connections.
    pub(super) inbound_port: u16,
    /// Path normalization of workloads; `None` if their policies decide.
    pub(super) path_normalization: Option<PathNormalization>,
    /// TLS versions and ciphers that servers accept for the mesh's mTLS.
    pub(super) mesh_tls: Arc<MeshTls>,
    /// TLS versions and ciphers that servers accept for other TLS, by default.
    pub(super) tls_defaults: Arc<MeshTls>,
    /// Time after which a silent connection is treated as neither TLS nor HTTP; zero disables the
    /// timeout.
    pub(super) detection_timeout: Duration,
}

impl TrafficSettings {
    /// Returns the outbound settings of proxies of a class, including their Sidecar.
    pub(crate) fn for_class(context: &PushContext, class: &Class) -> Self {
        let proxies = (&class.namespace, &class.selection);
        let settings = Self::for_mesh(&context.mesh)
            .logging(context, proxies, CallEnd::Client)
            .tracing(context, proxies, &class.cluster, CallEnd::Client)
            .filtering(context, proxies, PatchPlace::Outbound);
        let scope = context.traffic.scope(&class.namespace, &class.selection);
        let Some(sidecar) = scope.sidecar() else { return settings };
        let Some(policy) = sidecar.outbound else { return settings };
        let egress_proxy = sidecar.egress_proxy.as_ref().map(|proxy| {
            let all = OutboundName::sidecar(proxy.host.clone(), proxy.port);
            all.of_subset(&proxy.subset).to_string()
        });
        let outbound_any = policy == OutboundTrafficPolicy::AllowAny;
        Self { outbound_any, egress_proxy, ..settings }
    }

    /// Returns the upstream cluster for unknown destinations, or `None` if they are not allowed.
    pub(crate) fn to_unknown(&self) -> Option<&str> {
        self.outbound_any.then(|| self.egress_proxy.as_deref().unwrap_or(PASSTHROUGH))
    }

    /// Adds the access logs that a proxy of this namespace and selection writes at this end of
    /// calls.
    pub(crate) fn logging(
        self,
        context: &PushContext,
        proxies: (&Namespace, &Selection),
        end: CallEnd,
    ) -> Self {
        let logs = context.traffic.telemetries.logs(&context.mesh, proxies, end).into();
        Self { logs, ..self }
    }

    /// Adds the tracing configuration of a proxy of this cluster, namespace and selection at this
    /// end of calls.
    pub(crate) fn tracing(
        self,
        context: &PushContext,
        proxies: (&Namespace, &Selection),
        cluster: &ClusterId,
        end: CallEnd,
    ) -> Self {
        Self { spans: SpanReport::for_end(context, proxies, cluster, end), ..self }
    }

    /// Adds the EnvoyFilter filters of a proxy of this namespace and selection at this place.
    pub(crate) fn filtering(
        self,
        context: &PushContext,
        proxies: (&Namespace, &Selection),
        place: PatchPlace,
    ) -> Self {
        Self { filters: context.traffic.envoy_filters.at(proxies, place), ..self }
    }

    /// Adds the service metrics of a proxy of this namespace and selection at this end of calls, if
    /// the proxy reports them.
    pub(crate) fn counting(
        self,
        context: &PushContext,
        proxies: (&Namespace, &Selection),
        form: ListenerFormat,
        end: CallEnd,
    ) -> Self {
        let choice = || context.traffic.telemetries.metrics(proxies, end);
        Self { metrics: form.counts.then(|| ServiceMetrics::new(choice(), end)), ..self }
    }

    /// Adds the settings that the proxy declares in its metadata, for this place.
    pub(crate) fn in_form(self, form: ListenerFormat, place: PatchPlace) -> Self {
        let ListenerFormat { istio: declared, idle_timeout, .. } = form;
        Self { istio: IstioFiltersAt { declared, place }, idle_timeout, ..self }
    }

    /// Returns the settings of the mesh, without logs, tracing, metrics and filters.
    pub(crate) fn for_mesh(mesh: &MeshConfig) -> Self {
        Self {
            outbound_any: mesh.outbound_traffic_policy == OutboundTrafficPolicy::AllowAny,
            egress_proxy: None,
            logs: Arc::default(),
            spans: None,
            filters: Arc::default(),
            istio: IstioFiltersAt::disabled(),
            metrics: None,
            idle_timeout: None,
            outbound_port: mesh.proxy_listen_port,
            inbound_port: mesh.proxy_inbound_listen_port,
            path_normalization: mesh.path_normalization,
            mesh_tls: Arc::clone(&mesh.mesh_tls),
            tls_defaults: Arc::clone(&mesh.tls_defaults),
            detection_timeout: mesh.protocol_detection_timeout,
        }
    }
}

/// The inputs of a listener for a pod of a headless service: its address and port, the service's
/// name, port and protocol, connection limits, effective rules, access logs, tracing, changes to
/// metrics, additional filters, and the format.
pub(crate) type PodListenerKey = (
    IpAddr,
    u16,
    Hostname,
    u16,
    Protocol,
    ConnectionLimits,
    Option<Arc<[u8]>>,
    Arc<[WrittenLog]>,
    Option<Arc<SpanReport>>,
    Option<Arc<MetricsChoice>>,
    FiltersAt,
    ListenerFormat,
);

/// Limits of raw TCP connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionLimits {
    /// Idle timeout; zero disables it, `None` uses Envoy's default.
    pub(super) idle: Option<Duration>,
    /// Maximum duration of a connection.
    pub(super) lasting: Option<Duration>,
    /// Whether all connections of a client go to the same endpoint.
    pub(super) by_source: bool,
    /// The tunnel through which connections are forwarded inside of requests.
    pub(super) tunnel: Option<Arc<Tunnel>>,
    /// Number of connection attempts; `None` for Envoy's default of 1.
    pub(super) attempts: Option<u16>,
}

impl ConnectionLimits {
    pub(super) fn from_policy(policy: &ResolvedPolicy) -> Self {
        let pool = policy.connection_pool.as_deref();
        let algorithm = policy.load_balancer.as_deref().map(|balancing| &balancing.algorithm);
        Self {
            idle: pool.and_then(|pool| pool.tcp_idle_timeout),
            lasting: pool.and_then(|pool| pool.max_connection_duration),
            by_source: matches!(
                algorithm,
                Some(Algorithm::ConsistentHash(ConsistentHash { key: HashKey::SourceIp, .. }))
            ),
            tunnel: policy.tunnel.clone(),
            attempts: None,
        }
    }

    /// Returns the limits of connections that go to either of two destinations: the lower value of
    /// each limit.
    pub(super) fn or(self, other: Self) -> Self {
        let lower = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
        // No timeout ranks as the longest one.
        let rank = |idle: &Duration| (idle.is_zero(), *idle);
        Self {
            idle: self.idle.into_iter().chain(other.idle).min_by_key(rank),
            lasting: lower(self.lasting, other.lasting),
            by_source: self.by_source || other.by_source,
            // Envoy supports one tunnel for all destinations.
            tunnel: self.tunnel.filter(|one| other.tunnel.as_ref() == Some(one)),
            attempts: self.attempts.into_iter().chain(other.attempts).min(),
        }
    }
}
