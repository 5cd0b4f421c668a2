//! Status of Sidecars, Telemetries, EnvoyFilters and ProxyConfigs.

use std::collections::BTreeMap;

use super::{ConfigView, Finding};
use crate::standing::ObjectStanding;
use strait_base::codes;
use strait_model::{Interception, Labels, Namespace, Protocol, Proxy, is_privileged};
use strait_rules::access::PeerMode;
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::envoy_filter::{EnvoyFilter, PatchPlace};
use strait_rules::traffic::proxy_config::SidecarDefaults;
use strait_rules::traffic::sidecar::{Sidecar, SidecarIngress};
use strait_rules::traffic::telemetry::Telemetry;
use strait_rules::traffic::{Reason, Selection, proxy_config_selection};

impl ConfigView<'_> {
    /// Returns the status of a Sidecar. It applies to the proxies that use it.
    pub(super) fn sidecar(&self, sidecar: &Sidecar) -> Finding {
        let sidecars = &self.context.traffic.sidecars;
        if let Some(reason) = sidecars.loss(&sidecar.meta) {
            let standing = Some(ObjectStanding::Shadowed);
            return Finding { reasons: vec![reason], standing, proxies: 0 };
        }
        if let Some(labels) = &sidecar.selector
            && let Some(finding) =
                self.unmatched_selector(labels, &sidecar.meta.namespace, "spec.workloadSelector")
        {
            return finding;
        }
        let proxies = self.clients.count(|namespace, selection| {
            let followed = sidecars.scope(namespace, selection).sidecar();
            followed.is_some_and(|followed| followed.meta == sidecar.meta)
        });
        let mut reasons = self.tls_at_mtls(sidecar);
        reasons.extend(self.privileged_ports(sidecar));
        reasons.extend(self.overridden_protocols(sidecar));
        reasons.extend(self.ingress_at_service_port(sidecar));
        reasons.extend(self.egress_without_host(sidecar));
        Finding { proxies, reasons, ..Finding::default() }
    }

    /// Reports TLS settings of ports that accept mTLS on a proxy that uses the Sidecar.
    fn tls_at_mtls(&self, sidecar: &Sidecar) -> Vec<Reason> {
        let ingress = sidecar.ingress.iter().flatten();
        let with_tls: Vec<_> = ingress.filter(|one| one.tls.is_some()).collect();
        if with_tls.is_empty() {
            return Vec::new();
        }
        let takes_mtls = |port: u16| {
            self.following(sidecar).any(|proxy| {
                let modes = self.context.access_of(proxy).modes;
                modes.of_port(port).mode != PeerMode::Disable
            })
        };
        let without = with_tls.into_iter().filter(|one| takes_mtls(one.port.number));
        let reason = |one: &SidecarIngress| {
            let path = format!("spec.ingress[{}].tls", one.index);
            let text = format!(
                "port {} accepts the mTLS of the mesh, and therefore no other TLS",
                one.port.number
            );
            Reason::lost(&codes::SIDECAR_INGRESS_TLS, path, text)
        };
        without.map(reason).collect()
    }

    /// Reports egress listeners that declare another protocol than a service that they name. The
    /// protocol of the service applies.
    fn overridden_protocols(&self, sidecar: &Sidecar) -> Vec<Reason> {
        let kind = |protocol: Protocol| (protocol.is_http(), protocol == Protocol::Auto);
        let all = sidecar.declared_ports().filter_map(|(index, number, declared, mut hosts)| {
            let (host, port) = hosts.find_map(|host| {
                let port =
                    self.context.service(host.as_str(), &sidecar.meta.namespace)?.port(number)?;
                (kind(port.protocol) != kind(declared)).then_some((host, port))
            })?;
            let actual = match port.protocol {
                Protocol::Auto => "detected",
                protocol => protocol.as_str(),
            };
            let path = format!("spec.egress[{index}].port.protocol");
            let text = format!(
                "the protocol of {host} at port {number} is {actual}, which applies instead"
            );
            Some(Reason::warning(&codes::TRAFFIC_UNSUPPORTED, path, text))
        });
        all.collect()
    }

    /// Reports ports on which a proxy that uses the Sidecar would have to listen itself, but
    /// cannot.
    fn privileged_ports(&self, sidecar: &Sidecar) -> Vec<Reason> {
        // Few Sidecars have such ports, and finding the proxies of one requires a search of all
        // proxies.
        if !sidecar.own_ports(Interception::None).any(|(_, port)| is_privileged(port)) {
            return Vec::new();
        }
        let mut reasons = BTreeMap::new();
        for proxy in self.following(sidecar) {
            let own = sidecar.own_ports(proxy.interception);
            for (path, port) in own.filter(|(_, port)| !proxy.may_listen_at(*port)) {
                let text = format!(
                    "{} can't listen on {port}, because its node metadata contains UNPRIVILEGED_POD: it has no listener for this port",
                    proxy.id
                );
                let path = format!("{path}.port.number");
                let reason = Reason::lost(&codes::PORT_PRIVILEGED, path.clone(), text);
                reasons.entry(path).or_insert(reason);
            }
        }
        reasons.into_values().collect()
    }

    /// Returns the proxies that use a Sidecar.
    fn following(&self, sidecar: &Sidecar) -> impl Iterator<Item = &Proxy> {
        let sidecars = &self.context.traffic.sidecars;
        let follows = move |proxy: &&Proxy| {
            let selection = self.context.selection(proxy);
            let followed = sidecars.scope(proxy.namespace(), &selection).sidecar();
            followed.is_some_and(|followed| followed.meta == sidecar.meta)
        };
        self.clients.proxies().iter().copied().filter(follows)
    }

    /// Returns the status of a Telemetry. It applies to proxies of one namespace or all namespaces.
    pub(super) fn telemetry(&self, telemetry: &Telemetry) -> Finding {
        let telemetries = &self.context.traffic.telemetries;
        let meta = &telemetry.meta;
        if let Some(reason) = telemetries.loss(meta) {
            let standing = Some(ObjectStanding::Shadowed);
            return Finding { reasons: vec![reason], standing, proxies: 0 };
        }
        if let Some(labels) = &telemetry.selector
            && let Some(finding) = self.unmatched_selector(labels, &meta.namespace, "spec.selector")
        {
            return finding;
        }
        let names = telemetry.providers();
        let unknown = names.filter(|(_, name)| self.context.mesh.log_named(name).is_none());
        let reasons = unknown.map(|(path, name)| {
            let text = match self.context.mesh.has_provider(name) {
                true => {
                    format!("the extensionProviders entry {name:?} accepts no access logs")
                }
                false => format!("{name:?} is neither envoy nor a provider of the mesh config"),
            };
            Reason::lost(&codes::TELEMETRY_PROVIDER, path, text)
        });
        let holds = |proxy: &&&Proxy| {
            let selection = self.context.selection(proxy);
            let levels = telemetries.for_proxy(proxy.namespace(), &selection);
            levels.iter().any(|level| level.meta == *meta)
        };
        let held: Vec<&Proxy> = self.clients.proxies().iter().filter(holds).copied().collect();
        let mut reasons: Vec<_> = reasons.collect();
        reasons.extend(self.untraced(telemetry, &held));
        Finding { reasons, proxies: held.len(), standing: None }
    }

    /// Reports tracing providers of a Telemetry to which some proxy sends no spans; without
    /// connected proxies, to which no proxy could.
    fn untraced(&self, telemetry: &Telemetry, proxies: &[&Proxy]) -> Vec<Reason> {
        let fault = |name: &str| {
            let of = |proxy: &&Proxy| {
                let (namespace, selection) = (proxy.namespace(), &self.context.selection(proxy));
                let client = RuleClient { namespace, selection };
                self.context.tracer(name, client, &proxy.cluster).err()
            };
            let mut faults = proxies.iter().filter_map(of);
            match proxies {
                [] => self.context.tracing_provider(name).err(),
                _ => faults.next(),
            }
        };
        let named = telemetry.tracing_providers();
        let reasons = named.filter_map(|(path, name)| {
            let text = format!("{name:?} receives no spans: {}", fault(name)?);
            Some(Reason::lost(&codes::TELEMETRY_PROVIDER, path, text))
        });
        reasons.collect()
    }

    /// Returns the status of an EnvoyFilter. It applies to the proxies whose filters contain it.
    pub(super) fn envoy_filter(&self, filter: &EnvoyFilter) -> Finding {
        let filters = &self.context.traffic.envoy_filters;
        let meta = &filter.meta;
        if filter.is_empty() {
            let text = "it has no supported patch";
            return Finding::unused(&codes::ENVOY_FILTER_FIELD, "spec.configPatches", text);
        }
        let is_of_all = meta.namespace.as_str() == self.context.mesh.root_namespace;
        if let Some(labels) = filter.selector.as_ref().filter(|_| !is_of_all)
            && let Some(finding) =
                self.unmatched_selector(labels, &meta.namespace, "spec.workloadSelector")
        {
            return finding;
        }
        let proxies = self.clients.proxies();
        let in_scope = proxies.iter().filter_map(|proxy| {
            let selection = self.context.selection(proxy);
            let all = filters.for_proxy(proxy.namespace(), &selection);
            all.iter().any(|one| one.meta == *meta).then_some((*proxy, selection))
        });
        let in_scope: Vec<(&Proxy, Selection)> = in_scope.collect();
        let held = in_scope.iter().filter(|(_, selection)| filter.patches(selection));
        let held: Vec<&Proxy> = held.map(|(proxy, _)| *proxy).collect();
        let mut reasons = self.unreachable_upstreams(filter, &held);
        reasons.extend(self.patches_without_listener(filter, &held));
        // Right after a start, no proxy is connected yet.
        if !proxies.is_empty() {
            let unmet = filter.unmet_conditions(&in_scope).into_iter();
            let reason = |(path, fact)| Reason::warning(&codes::ENVOY_FILTER_UNMATCHED, path, fact);
            reasons.extend(unmet.map(reason));
        }
        Finding { reasons, proxies: held.len(), standing: None }
    }

    /// Reports external services that filters call for requests and that a proxy cannot reach.
    fn unreachable_upstreams(&self, filter: &EnvoyFilter, proxies: &[&Proxy]) -> Vec<Reason> {
        let mut faults = BTreeMap::new();
        for proxy in proxies {
            let (namespace, selection) = (proxy.namespace(), &self.context.selection(proxy));
            let client = RuleClient { namespace, selection };
            for (at, name, to) in filter.queried_upstreams(PatchPlace::for_proxy(proxy), selection)
            {
                let end = if to.fails_open { "passes without a check" } else { "is denied" };
                let path = format!("spec.configPatches[{at}].patch.value.typed_config");
                let added = self.context.traffic.envoy_filters.clusters_for(proxy, selection);
                if added.iter().any(|one| one.name == to.name) {
                    continue;
                }
                let reason = if to.service.is_none() {
                    let text = format!(
                        "{name} calls {:?}, which is not an upstream cluster of a service (outbound|PORT||HOST): unless the proxy's bootstrap defines it, every request {end}",
                        to.name
                    );
                    Reason::warning(&codes::ENVOY_FILTER_UPSTREAM, path, text)
                } else {
                    let fault = self.context.upstream_fault(to, client, &proxy.cluster);
                    let Some(fault) = fault else { continue };
                    let text =
                        format!("{name} calls {}, and {fault}: every request {end}", to.name);
                    Reason::lost(&codes::ENVOY_FILTER_UPSTREAM, path, text)
                };
                faults.entry(at).or_insert(reason);
            }
        }
        faults.into_values().collect()
    }

    /// Returns the status of a ProxyConfig. It applies to the sidecars that would contain its
    /// settings if their pods were created now.
    pub(super) fn sidecar_defaults(&self, defaults: &SidecarDefaults) -> Finding {
        let (reports, meta) = (&self.reports.traffic, &defaults.meta);
        if let Some(first) = proxy_config_selection::before(reports, defaults) {
            let text =
                format!("ProxyConfig {} is older and applies to the same pods instead", first.meta);
            let reasons = vec![Reason::lost(&codes::PROXY_CONFIG_SHADOWED, "spec", text)];
            return Finding { reasons, standing: Some(ObjectStanding::Shadowed), proxies: 0 };
        }
        let root = Namespace::from(&*self.context.mesh.root_namespace);
        let holds = |proxy: &&&Proxy| {
            let labels = self.context.labels_of(proxy);
            let levels = proxy_config_selection::for_pod(reports, &root, proxy.namespace(), labels);
            proxy.kind.serves_one_workload() && levels.iter().any(|one| one.meta == *meta)
        };
        let proxies = self.clients.proxies().iter().filter(holds).count();
        Finding { proxies, ..Finding::default() }
    }

    /// Returns the finding that no workload has the labels of a selector.
    fn unmatched_selector(
        &self,
        labels: &Labels,
        namespace: &Namespace,
        path: &str,
    ) -> Option<Finding> {
        let is_none = self.services_known && !self.is_carried(labels, namespace);
        let text = "no known workload has these labels";
        is_none.then(|| Finding::unused(&codes::SELECTOR_UNUSED, path, text))
    }
}
