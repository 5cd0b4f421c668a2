//! Sidecar: the services that proxies of a namespace import, and their inbound listeners (Istio,
//! "Sidecar"; docs/reference/traffic.md, "Sidecar").

mod egress;
mod ingress;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use self::egress::{CaptureMode, RawEgressProxy, RawListenerPort};
pub use self::egress::{EgressAddress, EgressProxy};
use self::ingress::RawIngressListener;
pub use self::ingress::{IngressAddress, SidecarIngress, SidecarTls, WorkloadBackend};
use super::changes::TrafficChanges;
use super::hosts::HostPattern;
use super::kind::KindSettings;
use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::policy::PoolLimits;
use super::scoped::{Scoped, ScopedInForce, ScopedObjects};
use super::selection::{self, RuleSelector, Selection};
use super::virtual_service_selection::RoutedService;
use super::withheld::Withheld;
use strait_base::codes;
use strait_model::mesh_config::{OutboundTrafficPolicy, WrittenOutboundMode, WrittenPool};
use strait_model::{Hostname, Interception, Labels, Namespace, Protocol, labels_match};

/// A parsed Sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// Selector of the proxies in its namespace; `None` for all proxies.
    pub selector: Option<RuleSelector>,
    /// Egress listeners; never empty.
    egress: Vec<EgressListener>,
    /// Handling of connections to unknown destinations, if set.
    pub outbound: Option<OutboundTrafficPolicy>,
    /// Service that receives connections to unknown destinations, if these are allowed.
    pub egress_proxy: Option<EgressProxy>,
    /// Inbound listeners that replace the ports of the workload's services; `None` to use these
    /// ports.
    pub ingress: Option<Vec<SidecarIngress>>,
    /// Connection limits for inbound connections to the workloads.
    pub inbound_pool: Option<Arc<PoolLimits>>,
}

/// Services that are reached at one port, or at all ports without a separate listener.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EgressListener {
    port: Option<u16>,
    /// Declared protocol, or `Auto` if the listener declares none.
    protocol: Protocol,
    traffic: EgressTraffic,
    /// Address at which the services are reached, if it is not their own.
    address: Option<EgressAddress>,
    imported: Vec<HostImport>,
    /// Excluded hosts.
    excluded: Vec<HostImport>,
    /// Index in the object.
    index: usize,
}

/// Kind of traffic of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EgressTraffic {
    /// HTTP requests, or unknown.
    Any,
    /// Raw TCP connections.
    Bytes,
    /// HTTP proxy requests, each with a host and a port.
    ProxyRequests,
}

impl EgressTraffic {
    fn from_port(port: &RawListenerPort) -> Self {
        if port.protocol.eq_ignore_ascii_case("HTTP_PROXY") {
            return Self::ProxyRequests;
        }
        let protocol = port.declared();
        if protocol.is_http() || protocol == Protocol::Auto { Self::Any } else { Self::Bytes }
    }
}

/// Hosts of some namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostImport {
    namespace: ImportNamespace,
    host: HostPattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ImportNamespace {
    Any,
    /// The namespace of the proxy.
    Own,
    Named(Namespace),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSidecar {
    workload_selector: Option<RawWorkloadSelector>,
    ingress: Vec<RawIngressListener>,
    egress: Vec<RawEgressListener>,
    inbound_connection_pool: Option<WrittenPool>,
    outbound_traffic_policy: Option<RawOutboundTrafficPolicy>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawEgressListener {
    port: Option<RawListenerPort>,
    bind: String,
    capture_mode: CaptureMode,
    hosts: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawOutboundTrafficPolicy {
    mode: Option<WrittenOutboundMode>,
    egress_proxy: Option<RawEgressProxy>,
}

impl Sidecar {
    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawSidecar>(object)?;
        let has_ingress = !raw.ingress.is_empty();
        let ingress = ingress::read(raw.ingress, &mut reasons);
        let inbound_pool = raw.inbound_connection_pool.map(|raw| {
            Arc::new(ingress::inbound_pool(raw, "spec.inboundConnectionPool", &mut reasons))
        });
        let mut policy = raw.outbound_traffic_policy;
        if policy.as_ref().is_some_and(|policy| policy.mode.is_none()) {
            let text = "the mode is not set, so REGISTRY_ONLY applies: unknown destinations are \
                        unreachable";
            let path = "spec.outboundTrafficPolicy";
            reasons.push(Reason::warning(&codes::SIDECAR_POLICY, path, text));
        }
        if policy.as_ref().and_then(|policy| policy.mode)
            == Some(WrittenOutboundMode::AllowAnyDynamicDns)
        {
            let text = "ALLOW_ANY applies instead: requests go to the address that the client \
                        resolved, and proxies do not resolve the host again";
            let path = "spec.outboundTrafficPolicy.mode";
            reasons.push(Reason::warning(&codes::TRAFFIC_UNSUPPORTED, path, text));
        }
        let egress_proxy = policy.as_mut().and_then(|policy| policy.egress_proxy.take());
        let outbound =
            policy.map(|policy| policy.mode.unwrap_or(WrittenOutboundMode::RegistryOnly).read());
        let egress_proxy = egress_proxy.and_then(|raw| {
            let read = raw.read(outbound, &meta.namespace, settings);
            read.map_err(|(field, fact)| {
                let path = format!("spec.outboundTrafficPolicy.egressProxy{field}");
                let text = format!(
                    "{fact}; connections to unknown destinations go to their \
                                    original destination"
                );
                reasons.push(Reason::lost(&codes::SIDECAR_EGRESS_PROXY, path, text));
            })
            .ok()
        });
        let mut egress: Vec<EgressListener> = Vec::new();
        // All listeners of a port must have the address and kind of the first one.
        let mut first_at_port = BTreeMap::new();
        for (at, raw) in raw.egress.into_iter().enumerate() {
            let read = EgressListener::read(raw, at, settings, &mut reasons);
            let mut is_elsewhere = |read: &EgressListener| {
                let place = (read.address, read.is_proxy());
                *first_at_port.entry(read.port).or_insert(place) != place
            };
            if read.as_ref().is_some_and(&mut is_elsewhere) {
                let text = "an earlier listener has the port at another address or for other \
                            traffic; this one is left out";
                let path = format!("spec.egress[{at}].port");
                reasons.push(Reason::lost(&codes::SIDECAR_EGRESS_ADDRESS, path, text));
                continue;
            }
            let same = |read: &EgressListener| egress.iter().find(|one| one.port == read.port);
            if let Some(first) = read.as_ref().and_then(same) {
                let what =
                    if first.port.is_some() { "has the port of" } else { "has no port, like" };
                let text =
                    format!("{what} spec.egress[{}]: the hosts of both are imported", first.index);
                let path = format!("spec.egress[{at}]");
                reasons.push(Reason::warning(&codes::SIDECAR_HOST, path, text));
            }
            egress.extend(read);
        }
        if egress.is_empty() && reasons.iter().all(|one| !one.path.starts_with("spec.egress")) {
            egress.push(EgressListener::import_all());
        }
        let selector = raw.workload_selector.and_then(|raw| selection::selector(&raw.match_labels));
        let ingress = has_ingress.then_some(ingress);
        let sidecar =
            Self { meta, selector, egress, outbound, egress_proxy, ingress, inbound_pool };
        Ok((sidecar, reasons))
    }

    /// Iterates over the listeners for a port of services.
    fn listener(&self, port: u16) -> impl Iterator<Item = &EgressListener> {
        let has_own = self.egress.iter().any(|one| one.port == Some(port));
        let wanted = has_own.then_some(port);
        let takes = move |one: &&EgressListener| one.port == wanted && !one.is_proxy();
        self.egress.iter().filter(takes)
    }

    /// Iterates over the ports on which its proxies listen themselves, each with its path in the
    /// object.
    pub fn own_ports(&self, interception: Interception) -> impl Iterator<Item = (String, u16)> {
        let listens = move |listener: &&EgressListener| {
            interception == Interception::None || listener.address.is_some_and(|at| at.listens)
        };
        let egress = self.egress.iter().filter(listens);
        let egress =
            egress.filter_map(|one| Some((format!("spec.egress[{}]", one.index), one.port?)));
        let ingress = self.ingress.iter().flatten();
        let ingress = ingress.filter(move |one| one.is_apart(interception));
        egress.chain(ingress.map(|one| (format!("spec.ingress[{}]", one.index), one.port.number)))
    }

    /// Iterates over the egress listeners that declare a protocol for their port. Returns the index,
    /// the port, the protocol, and the exact hosts of each.
    pub fn declared_ports(
        &self,
    ) -> impl Iterator<Item = (usize, u16, Protocol, impl Iterator<Item = &Hostname>)> {
        let all =
            self.egress.iter().filter(|one| !one.is_proxy() && one.protocol != Protocol::Auto);
        all.filter_map(|listener| {
            let hosts = listener.imported.iter().filter_map(|import| import.host.exact());
            Some((listener.index, listener.port?, listener.protocol, hosts))
        })
    }

    /// Iterates over the egress listeners with a port for connections to services. Returns the
    /// index, the port, whether it carries raw TCP, and the imported hosts of each.
    pub fn service_ports(
        &self,
    ) -> impl Iterator<Item = (usize, u16, bool, impl Iterator<Item = &HostPattern>)> {
        self.egress.iter().filter(|one| !one.is_proxy()).filter_map(|one| {
            let is_tcp = one.traffic == EgressTraffic::Bytes;
            Some((one.index, one.port?, is_tcp, one.imported.iter().map(|import| &import.host)))
        })
    }

    /// Iterates over the listeners for HTTP proxy requests, each with its port.
    fn proxies(&self) -> impl Iterator<Item = (u16, &EgressListener)> {
        let all = self.egress.iter().filter(|one| one.is_proxy());
        all.filter_map(|one| Some((one.port?, one)))
    }
}

impl EgressListener {
    fn import_all() -> Self {
        let all = HostImport { namespace: ImportNamespace::Any, host: HostPattern::all() };
        let traffic = EgressTraffic::Any;
        Self {
            port: None,
            protocol: Protocol::Auto,
            traffic,
            address: None,
            imported: vec![all],
            excluded: Vec::new(),
            index: 0,
        }
    }

    fn is_proxy(&self) -> bool {
        self.traffic == EgressTraffic::ProxyRequests
    }

    fn read(
        raw: RawEgressListener,
        at: usize,
        settings: &KindSettings,
        reasons: &mut Vec<Reason>,
    ) -> Option<Self> {
        let path = format!("spec.egress[{at}]");
        // A Unix socket has no port, and is reported below.
        let is_socket = raw.bind.starts_with("unix:");
        let port = raw.port.filter(|port| port.number != 0 || !is_socket);
        let traffic = port.as_ref().map_or(EgressTraffic::Any, EgressTraffic::from_port);
        let protocol = port.as_ref().map_or(Protocol::Auto, RawListenerPort::declared);
        if let Some(port) = &port {
            port.note_unknown_protocol(&path, reasons);
        }
        let port = match port.map(|port| (u16::try_from(port.number), port.number)) {
            None => None,
            Some((Ok(port @ 1..), _)) => Some(port),
            Some((_, number)) => {
                let text = format!("{number} is not a valid port; the listener is left out");
                let path = format!("{path}.port.number");
                reasons.push(Reason::lost(&codes::TRAFFIC_PORT, path, text));
                return None;
            }
        };
        let address = match egress::address(&raw.bind, raw.capture_mode, port) {
            Ok(address) => address,
            Err((field, fact)) => {
                let path = format!("{path}.{field}");
                reasons.push(Reason::lost(&codes::SIDECAR_EGRESS_ADDRESS, path, fact));
                return None;
            }
        };
        let (mut imported, mut excluded) = (Vec::new(), Vec::new());
        if raw.hosts.is_empty() {
            let text = "is empty: the listener imports nothing";
            reasons.push(Reason::lost(&codes::SIDECAR_HOST, format!("{path}.hosts"), text));
        }
        for (place, text) in raw.hosts.iter().enumerate() {
            if let Some((_, host)) = text.split_once('/').filter(|(_, host)| is_single_label(host))
            {
                let text = format!(
                    "{text:?} is a host with one label, which a ServiceEntry may have; a Service \
                     is {host}.NAMESPACE.svc.{}",
                    settings.domain
                );
                let path = format!("{path}.hosts[{place}]");
                reasons.push(Reason::warning(&codes::SIDECAR_HOST, path, text));
            }
            match HostImport::read(text) {
                Ok((import, true)) => imported.push(import),
                Ok((import, false)) => excluded.push(import),
                Err(fact) => {
                    let text = format!("{text:?} {fact}; it imports nothing");
                    let path = format!("{path}.hosts[{place}]");
                    reasons.push(Reason::lost(&codes::SIDECAR_HOST, path, text));
                }
            }
        }
        Some(Self { port, protocol, traffic, address, imported, excluded, index: at })
    }

    /// Returns whether a service of the namespace `owner` is among its hosts.
    fn has(&self, host: &HostPattern, owner: &Namespace, own: &Namespace) -> bool {
        let fits = |one: &HostImport| one.is_in(owner, own) && one.host.contains(host);
        self.imported.iter().any(fits) && !self.excluded.iter().any(fits)
    }

    /// Returns whether it lists exactly this host of a service of the namespace `owner`.
    fn names(&self, host: &HostPattern, owner: &Namespace, own: &Namespace) -> bool {
        let is = |one: &HostImport| one.is_in(owner, own) && one.host == *host;
        self.imported.iter().any(is) && self.has(host, owner, own)
    }

    /// Returns whether it lists a namespace by name.
    fn names_namespace(&self, owner: &Namespace) -> bool {
        let is_named = |one: &HostImport| matches!(&one.namespace, ImportNamespace::Named(name) if name == owner);
        self.imported.iter().any(is_named)
    }

    /// Returns whether rules in the namespace `owner` for a host overlap with its hosts.
    fn has_rules(&self, host: &HostPattern, owner: &Namespace, own: &Namespace) -> bool {
        let meets = |one: &HostImport| one.is_in(owner, own) && one.host.meets(host);
        let excludes = |one: &HostImport| one.is_in(owner, own) && one.host.contains(host);
        self.imported.iter().any(meets) && !self.excluded.iter().any(excludes)
    }
}

/// Returns whether a host is a name without a dot. In an import, it is not a short name.
fn is_single_label(host: &str) -> bool {
    HostPattern::written(host)
        .is_ok_and(|host| host.exact().is_some_and(|host| !host.as_str().contains(['.', ':'])))
}

impl HostImport {
    /// Parses `namespace/host`. Also returns whether it is imported; otherwise it is excluded.
    fn read(text: &str) -> Result<(Self, bool), String> {
        let (namespace, host) =
            text.split_once('/').ok_or("has no namespace before a slash, as in ./* or shop/*")?;
        let (namespace, imports) = match namespace.strip_prefix('~') {
            None => (namespace, true),
            Some("") => ("*", false),
            Some(excluded) => (excluded, false),
        };
        let namespace = match namespace {
            "" => return Err("has no namespace before its slash".to_owned()),
            "*" => ImportNamespace::Any,
            "." => ImportNamespace::Own,
            name => ImportNamespace::Named(Namespace::from(name)),
        };
        let host = HostPattern::written(host).map_err(|error| error.to_string())?;
        Ok((Self { namespace, host }, imports))
    }

    fn is_in(&self, owner: &Namespace, own: &Namespace) -> bool {
        match &self.namespace {
            ImportNamespace::Any => true,
            ImportNamespace::Own => owner == own,
            ImportNamespace::Named(name) => owner == name,
        }
    }
}

/// The imports of a proxy, according to Sidecars. The default is everything.
#[derive(Debug, Clone, Copy)]
pub struct ImportScope<'a> {
    sidecar: Option<&'a Arc<Sidecar>>,
    /// Namespace of the proxy.
    namespace: &'a Namespace,
    /// Objects that do not apply to some proxies, independent of Sidecars.
    withheld: Option<&'a Withheld>,
}

impl<'a> ImportScope<'a> {
    /// Returns the Sidecar that defines the scope.
    pub fn sidecar(&self) -> Option<&'a Arc<Sidecar>> {
        self.sidecar
    }

    /// Returns whether a service of the namespace `owner` is reached at any port.
    pub fn includes(&self, host: &HostPattern, owner: &Namespace) -> bool {
        self.sidecar.is_none_or(|sidecar| {
            sidecar.egress.iter().any(|one| one.has(host, owner, self.namespace))
        })
    }

    /// Returns whether a service of the namespace `owner` is reached at this port.
    pub fn includes_port(&self, host: &HostPattern, owner: &Namespace, port: u16) -> bool {
        self.sidecar.is_none_or(|sidecar| {
            sidecar.listener(port).any(|one| one.has(host, owner, self.namespace))
        })
    }

    /// Returns whether the upstream cluster of a service for this port is needed. HTTP proxy
    /// requests may need it too. If it is the only port of the service, listeners for other ports
    /// may also need it.
    pub fn needs_port(
        &self,
        host: &HostPattern,
        owner: &Namespace,
        (port, is_only): (u16, bool),
    ) -> bool {
        let by_proxy = |sidecar: &Sidecar| {
            sidecar.proxies().any(|(_, one)| one.has(host, owner, self.namespace))
        };
        self.includes_port(host, owner, port)
            || self.sidecar.is_some_and(|sidecar| by_proxy(sidecar))
            || (is_only && self.ports_to_only(host, owner, port).next().is_some())
    }

    /// Iterates over the ports of TCP listeners that list exactly this service and route to its
    /// only port.
    pub fn ports_to_only(
        &self,
        host: &HostPattern,
        owner: &Namespace,
        only: u16,
    ) -> impl Iterator<Item = u16> {
        let all = self.sidecar.into_iter().flat_map(|sidecar| &sidecar.egress);
        let names = move |listener: &&EgressListener| {
            listener.traffic == EgressTraffic::Bytes && listener.names(host, owner, self.namespace)
        };
        all.filter(names).filter_map(|one| one.port).filter(move |port| *port != only)
    }

    /// Returns the ports of HTTP proxy listeners, each with its address, if set.
    pub fn proxies(&self) -> BTreeMap<u16, Option<EgressAddress>> {
        let all = self.sidecar.into_iter().flat_map(|sidecar| sidecar.proxies());
        all.map(|(port, one)| (port, one.address)).collect()
    }

    /// Returns whether HTTP proxy requests at a port may be for a service.
    pub fn proxies_to(&self, proxy: u16, host: &HostPattern, owner: &Namespace) -> bool {
        let mut all = self.sidecar.into_iter().flat_map(|sidecar| sidecar.proxies());
        all.any(|(port, one)| port == proxy && one.has(host, owner, self.namespace))
    }

    /// Returns the ports with an address from the Sidecar instead of the addresses of services. If
    /// connections are not redirected, these are all ports in the Sidecar.
    pub fn addresses(&self, interception: Interception) -> BTreeMap<u16, EgressAddress> {
        let listens = interception == Interception::None;
        let loopback = EgressAddress { address: Ipv4Addr::LOCALHOST.into(), listens };
        let all = self.sidecar.into_iter().flat_map(|sidecar| &sidecar.egress);
        all.filter_map(|one| Some((one.port?, one.address.or(listens.then_some(loopback))?)))
            .map(|(port, at)| (port, EgressAddress { listens: at.listens || listens, ..at }))
            .collect()
    }

    /// Returns whether the imports may differ between ports.
    pub fn is_by_port(&self) -> bool {
        self.sidecar.is_some_and(|sidecar| sidecar.egress.iter().any(|one| one.port.is_some()))
    }

    /// Returns whether rules in the namespace `owner` for a host apply to the proxy.
    pub fn includes_rules(&self, host: &HostPattern, owner: &Namespace) -> bool {
        let is_imported = self.sidecar.is_none_or(|sidecar| {
            sidecar.egress.iter().any(|one| one.has_rules(host, owner, self.namespace))
        });
        is_imported && !self.is_past_total(owner)
    }

    /// Returns whether rules in the namespace `owner` do not apply, because objects of other
    /// namespaces add too much configuration to a proxy that imports everything. A Sidecar that
    /// lists the namespace overrides this.
    pub fn is_past_total(&self, owner: &Namespace) -> bool {
        let names =
            |sidecar: &Arc<Sidecar>| sidecar.egress.iter().any(|one| one.names_namespace(owner));
        self.withheld.is_some_and(|withheld| withheld.is_past_total(owner, self.namespace))
            && !self.sidecar.is_some_and(names)
    }

    /// Returns this scope with objects that do not apply.
    #[must_use]
    pub(super) fn withholding(self, withheld: &'a Withheld) -> Self {
        Self { withheld: Some(withheld), ..self }
    }

    /// Iterates over the rules for a host that apply to the proxy.
    pub(super) fn applicable_rules<'r>(
        self,
        host: &'a HostPattern,
        all: impl Iterator<Item = &'r Arc<RoutedService>>,
    ) -> impl Iterator<Item = &'r Arc<RoutedService>> {
        all.filter(move |one| self.includes_rules(host, &one.service.meta.namespace))
    }
}

/// All active Sidecars.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sidecars {
    objects: ScopedObjects<Sidecar>,
}

impl Scoped for Sidecar {
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn selector(&self) -> Option<&RuleSelector> {
        self.selector.as_ref()
    }
}

impl Sidecars {
    /// Returns whether there are no Sidecars.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns whether proxies in this namespace may have a Sidecar.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        !self.objects.in_namespace(namespace).is_empty() || self.objects.root_default().is_some()
    }

    /// Returns the ports of all HTTP proxy listeners in all Sidecars.
    pub fn proxies(&self) -> BTreeSet<u16> {
        let all =
            self.objects.namespaces().flat_map(|namespace| self.objects.in_namespace(namespace));
        all.flat_map(|sidecar| sidecar.proxies()).map(|(port, _)| port).collect()
    }

    /// Returns whether a Sidecar defines the inbound ports of a workload with these labels.
    pub fn gives_ports(&self, namespace: &Namespace, labels: &Labels) -> bool {
        let sidecar = self.applicable(namespace, |selector| labels_match(selector, labels));
        sidecar.is_some_and(|sidecar| sidecar.ingress.is_some())
    }

    /// Returns the Sidecar that applies to a proxy.
    fn applicable(
        &self,
        namespace: &Namespace,
        selects: impl Fn(&RuleSelector) -> bool,
    ) -> Option<&Arc<Sidecar>> {
        let selected = |sidecar: &&Arc<Sidecar>| sidecar.selector.as_ref().is_none_or(&selects);
        let own = self.objects.in_namespace(namespace);
        own.iter().find(selected).or_else(|| self.objects.root_default())
    }

    /// Iterates over the namespaces with Sidecars.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.objects.namespaces()
    }

    /// Returns the scope of a proxy. Exactly one Sidecar defines it: a Sidecar in the proxy's
    /// namespace with a matching selector, or else without a selector, or else a Sidecar in the
    /// root namespace without a selector. Sidecars are never combined.
    pub fn scope<'a>(&'a self, namespace: &'a Namespace, selection: &Selection) -> ImportScope<'a> {
        let sidecar = self.applicable(namespace, |selector| selection.contains(selector));
        ImportScope { sidecar, namespace, withheld: None }
    }

    /// Returns whether any proxy of a namespace may import a service.
    pub fn may_include(
        &self,
        namespace: &Namespace,
        host: &HostPattern,
        owner: &Namespace,
    ) -> bool {
        let own = self.objects.in_namespace(namespace);
        let by = |sidecar| {
            ImportScope { sidecar: Some(sidecar), namespace, withheld: None }.includes(host, owner)
        };
        let is_for_all = own.iter().any(|sidecar| sidecar.selector.is_none());
        own.iter().any(by) || (!is_for_all && self.objects.root_default().is_none_or(by))
    }

    /// Returns the reason why a Sidecar applies to no proxy, if any.
    pub fn loss(&self, meta: &ObjectMeta) -> Option<Reason> {
        let (first, proxies) = self.objects.before(meta)?;
        let text = format!(
            "Sidecar {first} is older and applies to {proxies}: this one applies to no \
                            proxy"
        );
        Some(Reason::lost(&codes::SIDECAR_SHADOWED, "spec", text))
    }

    /// Returns whether the proxies of a namespace import the same services as in an earlier
    /// version.
    pub fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.objects.same_in(&before.objects, namespace)
    }

    /// Returns the namespaces whose imports may differ from an earlier version; `None` for all
    /// namespaces.
    pub(super) fn differing(&self, before: &Self) -> Option<BTreeSet<Namespace>> {
        self.objects.differing(&before.objects)
    }

    pub(super) fn insert(&mut self, sidecar: &Arc<Sidecar>, into: ScopedInForce<'_>) {
        self.objects.insert(sidecar, into, note);
    }

    pub(super) fn remove(&mut self, sidecar: &Sidecar, from: ScopedInForce<'_>) {
        self.objects.remove(sidecar, from, note);
    }
}

/// Records that the imports of a namespace, or of all namespaces, may differ.
fn note(changes: &mut TrafficChanges, namespace: &Namespace, affects_all: bool) {
    changes.scopes.insert(namespace.clone());
    changes.every_scope |= affects_all;
}

#[cfg(test)]
mod tests;
