//! Ports in EnvoyFilters and Sidecars for which no proxy has a listener.
//!
//! Inbound listeners have the ports of workloads, and outbound listeners the ports of services.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use super::ConfigView;
use super::clients::proxied;
use strait_base::codes;
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::proxy::served_in;
use strait_model::{Hostname, Labels, Namespace, Protocol, Proxy, TargetPort};
use strait_rules::traffic::envoy_filter::{EnvoyFilter, PatchPlace};
use strait_rules::traffic::sidecar::Sidecar;
use strait_rules::traffic::{HostPattern, Reason};

/// The ports of workloads, and the ports of the services that route to them.
#[derive(Default)]
struct WorkloadPorts<'a> {
    own: BTreeSet<u16>,
    /// The service and the port of the workload, by the port of the service.
    mapped: BTreeMap<u16, (&'a Hostname, u16)>,
    /// Whether the number of a named port is unknown.
    is_partial: bool,
}

impl WorkloadPorts<'_> {
    /// Returns the fact that a service maps a port to another one, which is the intended one.
    fn mapping(&self, port: u16) -> Option<String> {
        let (host, own) = self.mapped.get(&port)?;
        Some(format!("{host} maps its port {port} to port {own} of the workload: write {own}"))
    }
}

impl<'a> ConfigView<'a> {
    /// Returns the ports of the workloads of a namespace (`None` for all namespaces) that a selector
    /// may select.
    fn workload_ports(
        &self,
        namespace: Option<&Namespace>,
        selector: Option<&Labels>,
    ) -> WorkloadPorts<'a> {
        let is_possible = |labels: &Labels| {
            selector.is_none_or(|selector| {
                let mut common =
                    labels.iter().filter_map(|(key, value)| Some((value, selector.get(key)?)));
                common.all(|(one, other)| one == other)
            })
        };
        let mut found = WorkloadPorts::default();
        for merged in self.context.all_services() {
            let own = merged.by_cluster.values();
            let own = own.filter(|one| namespace.is_none_or(|wanted| one.namespace == *wanted));
            for service in own.filter(|one| is_possible(&one.selector)) {
                for port in service.ports.iter().filter(|port| port.protocol != Protocol::Udp) {
                    let selects = !service.selector.is_empty();
                    let targets: BTreeSet<u16> = match &port.target {
                        TargetPort::Number(number) if selects => [*number].into(),
                        _ => {
                            let endpoints = merged.endpoints_of_port(port.number);
                            endpoints.map(|(_, endpoint, _)| endpoint.port).collect()
                        }
                    };
                    found.is_partial |= selects && targets.is_empty();
                    if let Some(first) = targets.first() {
                        found.mapped.entry(port.number).or_insert((&service.hostname, *first));
                    }
                    found.own.extend(targets);
                }
            }
        }
        found
    }

    /// Returns the ports of all services.
    fn service_ports(&self) -> &BTreeSet<u16> {
        self.service_ports.get_or_init(|| {
            let services = self.context.all_services();
            services.flat_map(|one| proxied(one).map(|port| port.number)).collect()
        })
    }

    /// Reports patches for a port of which no proxy of an EnvoyFilter has a listener. `proxies` are
    /// the connected ones.
    pub(super) fn patches_without_listener(
        &self,
        filter: &EnvoyFilter,
        proxies: &[&Proxy],
    ) -> Vec<Reason> {
        if filter.ports().next().is_none() {
            return Vec::new();
        }
        let own = &filter.meta.namespace;
        let is_of_all = own.as_str() == self.context.mesh.root_namespace;
        let namespace = (!is_of_all).then_some(own);
        let workload = LazyCell::new(|| self.workload_ports(namespace, filter.selector.as_deref()));
        let of_sidecars = LazyCell::new(|| self.ports_of_sidecars(proxies));
        let of_routers = LazyCell::new(|| self.ports_of_routers(proxies));
        let has = |place, port: u16| match place {
            PatchPlace::Inbound => {
                workload.own.contains(&port) || of_sidecars.inbound.contains(&port)
            }
            PatchPlace::Outbound => {
                self.service_ports().contains(&port) || of_sidecars.outbound.contains(&port)
            }
            PatchPlace::Gateway => of_routers.contains(&port),
        };
        let exists = |place: &PatchPlace| {
            let mut all = proxies.iter().flat_map(|proxy| PatchPlace::for_proxy(proxy));
            all.any(|one| one == place)
        };
        let places: Vec<_> = [PatchPlace::Inbound, PatchPlace::Outbound, PatchPlace::Gateway]
            .into_iter()
            .filter(exists)
            .collect();
        let reason = |(index, place, port): (usize, Option<PatchPlace>, u16)| {
            let is_inbound = place == Some(PatchPlace::Inbound);
            let mapping = is_inbound.then(|| workload.mapping(port)).flatten();
            // Files may lack proxies and services. A port that is mapped is not the workload's.
            let checked: Vec<PatchPlace> = match self.services_known {
                true => {
                    places.iter().copied().filter(|one| place.is_none_or(|is| is == *one)).collect()
                }
                false => mapping.is_some().then_some(PatchPlace::Inbound).into_iter().collect(),
            };
            let is_unknown = checked.contains(&PatchPlace::Inbound) && workload.is_partial;
            if checked.is_empty() || is_unknown || checked.iter().any(|one| has(*one, port)) {
                return None;
            }
            let why = mapping.map(|text| format!("; {text}")).unwrap_or_default();
            let text = format!(
                "its proxies have no listener with port {port} in this context: the patch has no effect{why}"
            );
            let path = format!("spec.configPatches[{index}].match.listener.portNumber");
            Some(Reason::lost(&codes::TRAFFIC_PORT, path, text))
        };
        filter.ports().filter_map(reason).collect()
    }

    /// Returns the ports of listeners from the Sidecars and policies of these proxies.
    fn ports_of_sidecars(&self, proxies: &[&Proxy]) -> SidecarPorts {
        // Requests to port 80 may have any host.
        let mut found = SidecarPorts { outbound: [80].into(), ..SidecarPorts::default() };
        for proxy in proxies.iter().filter(|proxy| proxy.kind.serves_one_workload()) {
            let selection = self.context.selection(proxy);
            let scope = self.context.traffic.scope(proxy.namespace(), &selection);
            let ingress = scope.sidecar().and_then(|sidecar| sidecar.ingress.as_ref());
            found.inbound.extend(ingress.into_iter().flatten().map(|one| one.port.number));
            found.inbound.extend(self.context.access_of(proxy).modes.ports.keys());
            found.outbound.extend(scope.proxies().keys());
            let listeners = scope.sidecar().into_iter().flat_map(|one| one.service_ports());
            found.outbound.extend(listeners.map(|(_, port, ..)| port));
        }
        found
    }

    /// Returns the ports on which routers listen.
    fn ports_of_routers(&self, proxies: &[&Proxy]) -> BTreeSet<u16> {
        let routers = proxies.iter().filter(|proxy| proxy.kind.is_gateway());
        // All replicas listen on the same ports.
        let distinct: BTreeMap<_, _> = routers
            .map(|one| ((&one.cluster, one.namespace(), self.context.labels_of(one)), *one))
            .collect();
        let ports = distinct.into_values().flat_map(|proxy| {
            let served = served_in(self.context, &proxy.cluster, proxy.namespace());
            let outline = IngressOutline::of(self.context, proxy, &served);
            outline.ports.iter().map(|port| port.number).collect::<Vec<_>>()
        });
        ports.collect()
    }

    /// Reports ingress listeners of a Sidecar at the port of a service that is mapped to another
    /// port of the workload.
    pub(super) fn ingress_at_service_port(&self, sidecar: &Sidecar) -> Vec<Reason> {
        let Some(ingress) = &sidecar.ingress else { return Vec::new() };
        let namespace = Some(&sidecar.meta.namespace);
        let workload = self.workload_ports(namespace, sidecar.selector.as_deref());
        let reasons = ingress.iter().filter_map(|listener| {
            let port = listener.port.number;
            let is_own = workload.is_partial || workload.own.contains(&port);
            let mapping = workload.mapping(port).filter(|_| !is_own)?;
            let text = format!("no connection to a service arrives there: {mapping}");
            let path = format!("spec.ingress[{}].port.number", listener.index);
            Some(Reason::lost(&codes::TRAFFIC_PORT, path, text))
        });
        reasons.collect()
    }

    /// Reports egress listeners of a Sidecar at a port that none of their hosts has.
    pub(super) fn egress_without_host(&self, sidecar: &Sidecar) -> Vec<Reason> {
        let own = &sidecar.meta.namespace;
        // Requests to port 80 may have any host.
        let listeners = sidecar.service_ports().filter(|(_, port, ..)| *port != 80);
        let reasons = listeners.filter_map(|(index, port, is_tcp, hosts)| {
            let mut listed = BTreeSet::new();
            for host in hosts {
                let HostPattern::Exact(name) = host else {
                    if !self.services_known || self.service_ports().contains(&port) {
                        return None;
                    }
                    continue;
                };
                let Some(service) = self.context.service(name.as_str(), own) else {
                    if !self.services_known {
                        return None;
                    }
                    continue;
                };
                let has: BTreeSet<u16> = proxied(service).map(|port| port.number).collect();
                // A TCP listener routes to the only port of a service.
                if has.is_empty() || has.contains(&port) || (is_tcp && has.len() == 1) {
                    return None;
                }
                listed.extend(has);
            }
            let listed: Vec<_> = listed.iter().map(u16::to_string).collect();
            let text = match &*listed {
                [] => format!("no imported host has port {port}: the listener has no effect"),
                _ => format!(
                    "no imported host has port {port}, they have {}: the listener has no effect",
                    listed.join(", ")
                ),
            };
            let path = format!("spec.egress[{index}].port.number");
            Some(Reason::lost(&codes::TRAFFIC_PORT, path, text))
        });
        reasons.collect()
    }
}

/// Ports of the listeners of sidecars that no service defines.
#[derive(Default)]
struct SidecarPorts {
    inbound: BTreeSet<u16>,
    outbound: BTreeSet<u16>,
}
