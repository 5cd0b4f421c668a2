//! What listeners depend on beside services.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cds::PASSTHROUGH;
use crate::class::{Class, ListenerFormat};
use crate::istio_filters::IstioFiltersAt;
use crate::spans::SpanReport;
use strait_mesh::push::PushContext;
use strait_model::mesh_config::{MeshConfig, MeshTls, OutboundTrafficPolicy, PathNormalization};
use strait_model::{ClusterId, Hostname, Namespace, Protocol};
use strait_rules::traffic::Selection;
use strait_rules::traffic::envoy_filter::{FiltersAt, PatchPlace};
use strait_rules::traffic::policy::{Algorithm, ConsistentHash, HashKey, ResolvedPolicy, Tunnel};
use strait_rules::traffic::telemetry::{CallEnd, WrittenLog};
use strait_xds::names::OutboundName;

/// The application protocols (ALPN) by which a TLS client says that it speaks the mesh's mTLS: plain
/// Envoys offer `istio`, Istio's proxies one of the others (docs/reference/interface.md, "Networks").
pub(super) const MESH_ALPN: [&str; 5] =
    ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];

/// What the mesh config says of listeners and routes.
pub(crate) struct TrafficSettings {
    /// Whether a sidecar lets its workload connect to what the mesh doesn't know.
    pub(crate) outbound_any: bool,
    /// The upstream cluster that such connections go to where that isn't the one that leads to where the client means.
    pub(crate) egress_proxy: Option<String>,
    /// What is written of requests and connections.
    pub(super) logs: Arc<[WrittenLog]>,
    /// Where spans of requests go, if anywhere.
    pub(super) spans: Option<Arc<SpanReport>>,
    /// The filters that requests pass besides.
    pub(super) filters: FiltersAt,
    /// Those of Istio's own filters that the proxy has.
    pub(super) istio: IstioFiltersAt,
    /// How long a connection may be silent of which nothing else says it; `None` for Envoy's default.
    pub(super) idle_timeout: Option<Duration>,
    /// Where a sidecar's redirected outbound connections arrive.
    pub(super) outbound_port: u16,
    /// Where a sidecar's redirected inbound connections arrive.
    pub(super) inbound_port: u16,
    /// What of a path is the same path to a workload; `None` leaves it to what its policies look at.
    pub(super) path_normalization: Option<PathNormalization>,
    /// What servers take of the mesh's mTLS.
    pub(super) mesh_tls: Arc<MeshTls>,
    /// What they take of other TLS, where nothing else says it.
    pub(super) tls_defaults: Arc<MeshTls>,
    /// How long a connection may stay silent before it counts as neither TLS nor HTTP; zero for ever.
    pub(super) detection_timeout: Duration,
}

impl TrafficSettings {
    /// For the way out of proxies of a class, as far as their Sidecar says otherwise.
    pub(crate) fn of_class(context: &PushContext, class: &Class) -> Self {
        let of = (&class.namespace, &class.selection);
        let settings = Self::of(&context.mesh)
            .logging(context, of, CallEnd::Client)
            .tracing(context, of, &class.cluster, CallEnd::Client)
            .filtering(context, of, PatchPlace::Outbound);
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

    /// The upstream cluster that takes what the mesh doesn't know; `None` where that may not pass.
    pub(crate) fn to_unknown(&self) -> Option<&str> {
        self.outbound_any.then(|| self.egress_proxy.as_deref().unwrap_or(PASSTHROUGH))
    }

    /// With the logs that a proxy of that namespace and selection writes at this end of calls.
    pub(crate) fn logging(
        self,
        context: &PushContext,
        of: (&Namespace, &Selection),
        end: CallEnd,
    ) -> Self {
        let logs = context.traffic.telemetries.logs(&context.mesh, of, end).into();
        Self { logs, ..self }
    }

    /// With the spans that a proxy of that cluster, namespace and selection sends at this end of calls.
    pub(crate) fn tracing(
        self,
        context: &PushContext,
        of: (&Namespace, &Selection),
        cluster: &ClusterId,
        end: CallEnd,
    ) -> Self {
        Self { spans: SpanReport::of(context, of, cluster, end), ..self }
    }

    /// With the filters that a proxy of that namespace and selection has besides at this place.
    pub(crate) fn filtering(
        self,
        context: &PushContext,
        of: (&Namespace, &Selection),
        place: PatchPlace,
    ) -> Self {
        Self { filters: context.traffic.envoy_filters.at(of, place), ..self }
    }

    /// With what a proxy of that form says of them at this place.
    pub(crate) fn in_form(self, form: ListenerFormat, place: PatchPlace) -> Self {
        let ListenerFormat { istio: declared, idle_timeout, .. } = form;
        Self { istio: IstioFiltersAt { declared, place }, idle_timeout, ..self }
    }

    /// What holds for all, which says nothing of logs, of spans and of filters.
    pub(crate) fn of(mesh: &MeshConfig) -> Self {
        Self {
            outbound_any: mesh.outbound_traffic_policy == OutboundTrafficPolicy::AllowAny,
            egress_proxy: None,
            logs: Arc::default(),
            spans: None,
            filters: Arc::default(),
            istio: IstioFiltersAt::none(),
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

/// The listener of a pod of a headless service: its address and port, the service's name, port and protocol, what
/// connections are held to, what rules make of them, what is written of them, where spans go, what filters requests pass besides, and the form.
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
    FiltersAt,
    ListenerFormat,
);

/// What a rule holds connections to whose bytes nobody reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionLimits {
    /// How long one may be silent; zero for ever, `None` for Envoy's default.
    pub(super) idle: Option<Duration>,
    /// How long one lives.
    pub(super) lasting: Option<Duration>,
    /// Whether all of one client go to one endpoint.
    pub(super) by_source: bool,
    /// To where they are passed on inside of requests.
    pub(super) tunnel: Option<Arc<Tunnel>>,
    /// How often an endpoint is looked for that takes the connection; `None` for Envoy's default, once.
    pub(super) attempts: Option<u16>,
}

impl ConnectionLimits {
    pub(super) fn of(policy: &ResolvedPolicy) -> Self {
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

    /// Those of connections that may go here or there: each limit is the lower one.
    pub(super) fn or(self, other: Self) -> Self {
        let lower = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
        // Silence for ever is the longest.
        let rank = |idle: &Duration| (idle.is_zero(), *idle);
        Self {
            idle: self.idle.into_iter().chain(other.idle).min_by_key(rank),
            lasting: lower(self.lasting, other.lasting),
            by_source: self.by_source || other.by_source,
            // Envoy has one for all.
            tunnel: self.tunnel.filter(|one| other.tunnel.as_ref() == Some(one)),
            attempts: self.attempts.into_iter().chain(other.attempts).min(),
        }
    }
}
