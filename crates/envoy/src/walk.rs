//! Explains the route of a request through a proxy's configuration. (docs/reference/traffic-support.md, "Which
//! way a request goes".)
//!
//! Evaluates the proxy's actual resources like Envoy: the listener of the destination address, a
//! filter chain, a virtual host, and a route. The functions that generate routes from rules report
//! the rule of each route.

mod answer;
mod bytes;
mod connection;
mod fit;
mod library;
mod request;
mod secured;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use prost::Message;

use self::answer::{BEHIND, lost_object};
pub use self::answer::{LostRule, RequestDestination, RequestWalk, RuleName};
use self::bytes::ConnectionAtRouter;
use self::connection::WorkloadConnection;
use self::fit::{ArrivingConnection, accepting_chain, misfit, selected_domain, selected_host};
pub use self::request::ProbedRequest;
use super::ProxyConfig;
use super::class::Class;
use super::clients::Client;
use super::lds::{ConnectionRules, TrafficSettings, apart_name, path_normalization};
use super::rds::{self, Contenders, RouteCaller};
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::addresses::{ListenAddresses, proxied_addresses};
use strait_mesh::push::ingress::IngressOutline;
use strait_mesh::push::proxy::{inbound_targets, target_port};
use strait_model::{Hostname, Resolution, Service};
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::endpoint::v3 as endpoint;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use strait_proto::envoy::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
use strait_rules::service_entry::is_given;
use strait_rules::traffic::HostPattern;
use strait_rules::traffic::route::{AbortStatus, HttpRule, PathRewrite};
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_xds::names::OutboundName;
use strait_xds::resource::Resource;

/// The reason why a rule with an error is not considered.
const ABSENT: &str = "it has an error and is ignored";
/// Maximum number of reported rules that do not apply.
const LOST_MAX: usize = 100;

/// The sender of a request, and its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestDirection {
    /// The proxy's workload.
    Out,
    /// Another client, to the workload, with mTLS.
    InByMtls,
    /// Another client, to the workload, in plain text or with TLS other than mTLS.
    InAsItIs,
}

/// Records which of the rules that several objects define for a host decides, and why the others do
/// not. Returns the deciding rule.
fn served<'a>(
    rules: &[(&'a Arc<RoutedService>, &'a HttpRule)],
    (misfits, decided): (&[Option<String>], Option<usize>),
    walk: &mut RequestWalk,
) -> Option<&'a HttpRule> {
    if rules.len() != misfits.len() {
        // The rules and routes were not generated from the same input, so nothing can be reported.
        return None;
    }
    for (at, ((routed, rule), misfit)) in rules.iter().zip(misfits).enumerate() {
        let name = RuleName::for_http_rule(routed, &rule.place);
        let reason = match (misfit, decided) {
            (None, Some(first)) if first == at => {
                walk.rule = Some(name);
                continue;
            }
            (None, _) => BEHIND.to_owned(),
            (Some(reason), first) if first.is_none_or(|first| at < first) => reason.clone(),
            (Some(_), _) => continue,
        };
        walk.lost.push(LostRule { rule: name, reason });
    }
    decided.and_then(|at| rules.get(at)).map(|(_, rule)| *rule)
}

/// The destination of a client's host name.
struct TargetService<'a> {
    address: Option<IpAddr>,
    service: Option<&'a MergedService>,
}

impl ProxyConfig<'_> {
    /// Follows a request, or a connection at an east-west gateway.
    pub fn walk(&self, request: &ProbedRequest, direction: RequestDirection) -> RequestWalk {
        let proxy = self.inputs.proxy.id.to_string();
        let mut walk = RequestWalk { proxy, ..RequestWalk::default() };
        match self.library() {
            Some(library) => self.call(&library, request, &mut walk),
            None => self.follow(request, direction, &mut walk),
        }
        walk.lost.truncate(LOST_MAX);
        walk
    }

    fn follow(&self, request: &ProbedRequest, direction: RequestDirection, walk: &mut RequestWalk) {
        let inbound = direction != RequestDirection::Out;
        let class = self.inputs.common().class(&self.inputs.view);
        let addresses = self.inputs.common().addresses(&class);
        let target = self.resolve_target(request, &addresses);
        let is_east_west = matches!(self.client, Client::EastWest(_));
        let all = self.listeners();
        let resources = || all.shared.resources().iter().chain(&all.own);
        let named = |name: &str| resources().find(|one| *one.name == *name);
        if let Some(port) = request.by_proxy {
            let scope = self.inputs.context.traffic.scope(&class.namespace, &class.selection);
            let proxies = scope.proxies();
            if !proxies.contains_key(&port) {
                let has = match proxies.keys().map(u16::to_string).collect::<Vec<_>>() {
                    ports if ports.is_empty() => "no HTTP_PROXY listeners".to_owned(),
                    ports => format!("HTTP_PROXY listeners on {}", ports.join(", ")),
                };
                walk.outcome = format!(
                    "no HTTP_PROXY listener on port {port}: the Sidecar of this proxy has {has}"
                );
                return;
            }
            if request.is_tls {
                walk.answer = Some(404);
                walk.outcome =
                    "clients send https requests to a proxy with CONNECT, which this proxy does not support"
                        .to_owned();
                return;
            }
        }
        let any = if self.inputs.view.ipv4 { "0.0.0.0" } else { "::" };
        let ingress = self.ingress_outline();
        let server_name = request.sni.as_deref().unwrap_or(&request.host);
        let server_name = Some(server_name).filter(|_| request.is_tls);
        let at_router = ingress.and_then(|ingress| {
            let port = ingress.port_for_number(request.port)?;
            Some(ConnectionAtRouter { ingress, port, selection: &class.selection, server_name })
        });
        // The port on which the proxy itself would have to listen.
        let mut own_port = None;
        let found = if ingress.is_some() {
            at_router.as_ref().and_then(|ConnectionAtRouter { port, .. }| {
                let address = port.bind.map_or_else(|| any.to_owned(), |bind| bind.to_string());
                named(&format!("{address}_{}", port.number))
            })
        } else if is_east_west {
            resources().next()
        } else if inbound {
            let served = self.inputs.cache.served(
                self.inputs.context,
                &self.inputs.proxy.cluster,
                self.inputs.proxy.namespace(),
            );
            let targets = inbound_targets(self.inputs.context, self.inputs.proxy, &served);
            let own = self.workload_port(&served, request.port);
            let target = targets.iter().find(|one| one.target == own);
            let apart =
                target.and_then(|target| apart_name(target, self.inputs.proxy.interception));
            own_port = target.filter(|_| apart.is_some()).map(|target| target.target);
            named(apart.as_deref().unwrap_or("virtualInbound"))
        } else {
            let port = request.by_proxy.unwrap_or(request.port);
            let own = target.address.filter(|_| request.by_proxy.is_none());
            let own = own.map(|address| format!("{address}_{port}"));
            let scope = self.inputs.context.traffic.scope(&class.namespace, &class.selection);
            let placed = scope.addresses(self.inputs.proxy.interception).get(&port).copied();
            own_port = placed.filter(|at| at.listens).map(|_| port);
            let placed = placed.map(|at| format!("{}_{port}", at.address));
            let listener = placed.or(own).as_deref().and_then(named);
            let listener = listener.or_else(|| named(&format!("{any}_{port}")));
            // Requests to the HTTP proxy itself are not redirected.
            let rest = || named("virtualOutbound").filter(|_| request.by_proxy.is_none());
            listener.or_else(rest)
        };
        let settings = TrafficSettings::for_mesh(&self.inputs.context.mesh);
        let workload_connection = found.as_ref().and_then(|found| {
            let service = target
                .service
                .filter(|_| self.inputs.proxy.kind.serves_one_workload() && !inbound)?;
            let mut ports = service.ports_in(&class.cluster);
            let rules = ConnectionRules {
                context: self.inputs.context,
                class: &class,
                settings: &settings,
            };
            Some(WorkloadConnection {
                rules,
                host: service.hostname(),
                port: ports.find(|port| port.number == request.port)?,
                destination: target.address,
                address: found.name.rsplit_once('_')?.0.parse().ok()?,
                server_name,
            })
        });
        let judge = |chain: Option<&str>, walk: &mut RequestWalk| {
            at_router.iter().for_each(|connection| connection.judged(chain, walk));
            workload_connection.iter().for_each(|connection| connection.judged(chain, walk));
        };
        let Some(found) = found else {
            judge(None, walk);
            walk.outcome = self.refusal_reason(request, own_port, ingress);
            return;
        };
        walk.listener = Some(found.name.to_string());
        let listener: listener::Listener = decoded(found);
        let mut connection = ArrivingConnection {
            address: target.address,
            port: request.port,
            is_tls: request.is_tls || is_east_west,
            server_name: request.sni.as_deref().or(request.is_tls.then_some(&*request.host)),
            protocols: if request.is_tls || request.is_bytes { &[] } else { &["http/1.1"] },
        };
        if is_east_west {
            connection.protocols = &["istio"];
        }
        if inbound {
            let served = self.inputs.cache.served(
                self.inputs.context,
                &self.inputs.proxy.cluster,
                self.inputs.proxy.namespace(),
            );
            connection.port = self.workload_port(&served, request.port);
            if direction == RequestDirection::InByMtls {
                (connection.is_tls, connection.protocols) = (true, &["istio"]);
            }
        }
        let Some(chain) = accepting_chain(&listener, &connection) else {
            judge(None, walk);
            walk.outcome = "no chain of the listener matches: the connection is closed".to_owned();
            return;
        };
        walk.chain = Some(chain.name.clone());
        secured::note(chain, direction == RequestDirection::InByMtls, walk);
        let filter = chain.filters.last().and_then(|filter| filter.config_type.as_ref());
        let Some(listener::filter::ConfigType::TypedConfig(config)) = filter else { return };
        if config.type_url.ends_with(".TcpProxy") {
            let proxy = tcp_proxy::TcpProxy::decode(&*config.value).expect("it was written here");
            judge(Some(&chain.name), walk);
            return self.connected(proxy, walk);
        }
        if request.is_bytes {
            walk.answer = Some(400);
            walk.outcome = "the chain parses HTTP: other data is refused".to_owned();
            return;
        }
        let manager =
            hcm::HttpConnectionManager::decode(&*config.value).expect("it was written here");
        let request =
            &request.normalized(path_normalization(&manager), self.inputs.proxy.dot_parameters());
        use hcm::http_connection_manager::RouteSpecifier;
        let table = match manager.route_specifier {
            Some(RouteSpecifier::Rds(rds)) => {
                walk.route = Some(rds.route_config_name.clone());
                decoded(&self.route(&rds.route_config_name))
            }
            Some(RouteSpecifier::RouteConfig(table)) => {
                walk.route = Some(table.name.clone());
                table
            }
            _ => return,
        };
        self.routed(&table, request, &class, &addresses, walk);
    }

    /// Returns the port of the workload at which a request to the port of a service arrives.
    fn workload_port(&self, served: &[Arc<Service>], port: u16) -> u16 {
        target_port(self.inputs.context, self.inputs.proxy, served, port).unwrap_or(port)
    }

    /// Returns the reason why no listener accepts a request. `own` is the port on which the proxy
    /// itself would have to listen.
    fn refusal_reason(
        &self,
        request: &ProbedRequest,
        own: Option<u16>,
        ingress: Option<&IngressOutline<'_>>,
    ) -> String {
        let port = request.by_proxy.unwrap_or(request.port);
        let own = own.filter(|own| !self.inputs.proxy.may_listen_at(*own));
        let closed = ingress.and_then(|ingress| ingress.closed.get(&port).copied()).or(own);
        let why = match (closed, ingress) {
            (Some(own), _) => {
                let code = &codes::PORT_PRIVILEGED;
                format!(
                    "the proxy cannot listen on {own}, because its node states UNPRIVILEGED_POD ({code})"
                )
            }
            (None, Some(ingress)) if ingress.port_for_number(port).is_some() => {
                "no rule routes a connection of its server".to_owned()
            }
            (None, Some(_)) => "no Gateway that selects the router has a server there".to_owned(),
            (None, None) => {
                return "the proxy has no listener for it: the connection is refused".to_owned();
            }
        };
        format!("no listener at port {port}: {why}; the connection is refused")
    }

    /// Resolves a host like the workload's resolver.
    fn resolve_target<'a>(
        &self,
        request: &ProbedRequest,
        addresses: &'a ListenAddresses,
    ) -> TargetService<'a> {
        if let Ok(address) = request.host.parse::<IpAddr>() {
            let mut all = addresses.services.iter();
            let service = all.find(|(_, vips)| {
                vips.iter().any(|vip| vip.address == address && vip.has(request.port))
            });
            let has_port = |service: &&MergedService| service.port(request.port).is_some();
            let in_range = || {
                let all = addresses.services.iter().map(|(service, _)| &**service);
                let length = |service: &MergedService| {
                    let ranges = service.primary.ranges.iter();
                    let ranges = ranges.filter(|range| range.contains(&address));
                    ranges.map(IpNet::prefix_len).max()
                };
                let fitting = all.filter(has_port).filter_map(|one| Some((length(one)?, one)));
                fitting.max_by_key(|(length, _)| *length).map(|(_, service)| service)
            };
            let service = service.map(|(service, _)| &**service).or_else(in_range);
            return TargetService { address: Some(address), service };
        }
        // A full name wins over short names, and these win over wildcards.
        let is_own = |host: &str| host.eq_ignore_ascii_case(&request.host);
        let is_called =
            |host: &str| rds::is_called(host, &self.inputs.proxy.dns_domain, &request.host);
        let is_under = |host: &str| HostPattern::for_service(&host.into()).matches(&request.host);
        let find = |is: &dyn Fn(&str) -> bool| {
            addresses.services.iter().find(|(service, _)| is(service.hostname().as_str()))
        };
        let found = find(&is_own).or_else(|| find(&is_called)).or_else(|| find(&is_under));
        let Some((service, vips)) = found else {
            return TargetService { address: None, service: None };
        };
        // Proxies that resolve names with Strait's addresses know the addresses that Strait
        // allocated.
        let takes_given = self.inputs.proxy.takes_given_addresses;
        let mut usable = vips.iter().filter(|vip| takes_given || !is_given(&vip.address));
        let vip = usable.find(|vip| vip.has(request.port)).map(|vip| vip.address);
        // For a service without an address, a client receives the addresses of the service's pods.
        let pod = || {
            let mut pods = service.endpoints_of_port(request.port);
            let is_headless = service.primary.resolution == Resolution::Headless;
            pods.next().filter(|_| is_headless).map(|(_, pod, _)| pod.address)
        };
        // The name of a service with address ranges resolves to an address within them.
        let ranged = || service.primary.ranges.first().map(IpNet::addr);
        TargetService { address: vip.or_else(pod).or_else(ranged), service: Some(service) }
    }

    /// Reports how a raw TCP connection is forwarded.
    fn connected(&self, proxy: tcp_proxy::TcpProxy, walk: &mut RequestWalk) {
        use tcp_proxy::tcp_proxy::ClusterSpecifier;
        let clusters: Vec<(String, u32)> = match proxy.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => vec![(name, 1)],
            Some(ClusterSpecifier::WeightedClusters(all)) => {
                all.clusters.into_iter().map(|one| (one.name, one.weight)).collect()
            }
            None => Vec::new(),
        };
        walk.destinations = self.destinations(clusters);
        walk.outcome = match &*walk.destinations {
            [only] if only.cluster == super::cds::BLACK_HOLE => "the connection is closed",
            [only] if only.cluster == super::cds::PASSTHROUGH => {
                "forwarded to the original destination without inspection"
            }
            all if all.iter().all(|one| !one.known) => {
                "the proxy has no such upstream cluster: the connection is closed"
            }
            all if all.iter().all(|one| one.endpoints == Some(0)) => {
                "the upstream cluster has no endpoints: the connection is closed"
            }
            _ => "raw TCP is forwarded; requests in it are not parsed",
        }
        .to_owned();
    }

    /// Finds the virtual host and the route.
    fn routed(
        &self,
        table: &route::RouteConfiguration,
        request: &ProbedRequest,
        class: &Class,
        addresses: &ListenAddresses,
        walk: &mut RequestWalk,
    ) {
        let Some(host) = selected_host(table, request.authority()) else {
            walk.answer = Some(404);
            walk.outcome = format!("no virtual host matches {}", request.authority());
            return;
        };
        walk.virtual_host = Some(host.name.clone());
        if host.require_tls() == route::virtual_host::TlsRequirementType::All && !request.is_tls {
            (walk.answer, walk.location) = (Some(301), Some(request.in_tls()));
            walk.outcome = "the client is redirected to https by httpsRedirect".to_owned();
            return;
        }
        let misfits: Vec<_> =
            host.routes.iter().map(|route| misfit(route.r#match.as_ref(), request)).collect();
        let decided = misfits.iter().position(Option::is_none);
        let proxied;
        let addresses = match rds::proxy_port(&table.name) {
            Some(port) => {
                let Class { cluster, namespace, selection, families } = class;
                let whose = (namespace, selection);
                proxied = proxied_addresses(self.inputs.context, cluster, whose, *families, port);
                &proxied
            }
            None => addresses,
        };
        let contenders = self.contenders((table, host), request, class, addresses);
        let rule = match &self.client {
            Client::Ingress(gateway) => {
                let rules = gateway.rules(&self.inputs, &table.name, &host.name);
                served(&rules, (&misfits, decided), walk)
            }
            // Its listener uses no routes.
            Client::EastWest(_) => None,
            Client::Sidecar(_) | Client::Library(_) => {
                contenders.as_ref().and_then(|all| self.judged(all, (&misfits, decided), walk))
            }
        };
        let Some(route) = decided.and_then(|at| host.routes.get(at)) else {
            walk.answer = Some(404);
            walk.outcome = "no rule matches the request".to_owned();
            return;
        };
        self.acted(route, request, walk);
        walk.notes.extend(rule.map(notes).unwrap_or_default());
        walk.notes.extend(self.retries(route, rule));
    }

    /// Returns the objects that name the host of a request.
    fn contenders<'a>(
        &'a self,
        (table, virtual_host): (&route::RouteConfiguration, &route::VirtualHost),
        request: &ProbedRequest,
        class: &'a Class,
        addresses: &ListenAddresses,
    ) -> Option<Contenders<'a>> {
        let (first, port) = virtual_host.name.rsplit_once(':')?;
        let domain = selected_domain(table, virtual_host, request.authority())?;
        // The domains of an HTTP proxy's routes include the port, except for port 80.
        let port = if rds::proxy_port(&table.name).is_some() { "80" } else { port };
        let (domain, port) = match domain.rsplit_once(':') {
            Some((name, number)) if number.parse::<u16>().is_ok() => (name, number),
            _ => (domain, port),
        };
        let host = self.host_named((&first.into(), virtual_host), domain, addresses);
        let port = port.parse().ok()?;
        let lists = &self.inputs.cache.route_lists;
        let caller = RouteCaller::Sidecar;
        Some(rds::contenders(self.inputs.context, class, (&host, port, caller), addresses, lists))
    }

    /// Returns the host that has a domain of a virtual host. Hosts with equal routes from rules
    /// share a virtual host, which is named after the first.
    fn host_named(
        &self,
        (first, virtual_host): (&Hostname, &route::VirtualHost),
        domain: &str,
        addresses: &ListenAddresses,
    ) -> Hostname {
        let below = domain.strip_prefix("*.");
        let is_called = |host: &Hostname| {
            let names = below.into_iter().chain([domain]);
            let mut names = names
                .map(|name| rds::is_called(host.as_str(), &self.inputs.proxy.dns_domain, name));
            names.any(|is| is)
        };
        if is_called(first) {
            return first.clone();
        }
        // A domain that rules name in full is not the short name of a service, which has another
        // virtual host.
        let is_member = |host: &Hostname| {
            virtual_host.domains.iter().any(|domain| {
                let rest = domain.strip_prefix(host.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
            })
        };
        let services = || {
            let all = addresses.services.iter();
            all.filter(|(service, _)| is_member(service.hostname()))
        };
        let by_name = services().find(|(service, _)| is_called(service.hostname()));
        let found = by_name.or_else(|| {
            let mut services = services();
            services.find(|(_, vips)| vips.iter().any(|vip| rds::is_address_domain(vip, domain)))
        });
        if let Some((service, _)) = found {
            return self
                .inputs
                .context
                .target(service.hostname(), &self.inputs.view.namespace)
                .clone();
        }
        let ruled = Hostname::from(domain);
        let pattern = HostPattern::for_service(&ruled);
        let services = &self.inputs.context.traffic.virtual_services;
        let is_ruled = services.for_pattern(&pattern, &self.inputs.view.namespace).next().is_some();
        if is_ruled { ruled } else { first.clone() }
    }

    /// Records which rule decides, and why the others do not. Returns the deciding rule.
    fn judged<'a>(
        &self,
        all: &Contenders<'a>,
        (misfits, decided): (&[Option<String>], Option<usize>),
        walk: &mut RequestWalk,
    ) -> Option<&'a HttpRule> {
        if !all.shared.is_empty() {
            let found = served(&all.shared, (misfits, decided), walk);
            walk.lost.extend(all.others.iter().map(lost_object));
            return found;
        }
        let mut found = None;
        if let Some(winner) = all.winner {
            let rules = &winner.http.rules;
            let mut reasons: BTreeMap<usize, Vec<String>> = BTreeMap::new();
            // If the numbers differ, rules and routes were not generated from the same input, and
            // nothing can be reported.
            let is_consistent = all.places.len() == misfits.len();
            for (at, (rule, misfit)) in all.places.iter().zip(misfits).enumerate() {
                match (misfit, decided) {
                    _ if !is_consistent => {}
                    (None, Some(first)) if first == at => found = Some(*rule),
                    (None, _) => reasons.entry(*rule).or_default().push(BEHIND.to_owned()),
                    (Some(reason), first) if first.is_none_or(|first| at < first) => {
                        reasons.entry(*rule).or_default().push(reason.clone());
                    }
                    (Some(_), _) => {}
                }
            }
            for (at, rule) in rules.iter().enumerate() {
                if rule.is_absent {
                    reasons.entry(at).or_default().push(ABSENT.to_owned());
                } else if !all.places.contains(&at) {
                    reasons.entry(at).or_default().push(all.reason_against(rule));
                }
            }
            if let Some(found) = found {
                reasons.remove(&found);
                walk.rule =
                    rules.get(found).map(|rule| RuleName::for_http_rule(winner, &rule.place));
            }
            walk.lost.extend(reasons.into_iter().filter_map(|(at, mut reasons)| {
                reasons.dedup();
                let rule = RuleName::for_http_rule(winner, &rules.get(at)?.place);
                Some(LostRule { rule, reason: reasons.join("; or: ") })
            }));
        }
        walk.lost.extend(all.others.iter().map(lost_object));
        found.and_then(|at| all.winner?.http.rules.get(at))
    }

    /// Reports the action of a route.
    fn acted(&self, route: &route::Route, request: &ProbedRequest, walk: &mut RequestWalk) {
        use route::route::Action;
        use route::route_action::{ClusterNotFoundResponseCode, ClusterSpecifier};
        match &route.action {
            Some(Action::Route(action)) => {
                let clusters = match &action.cluster_specifier {
                    Some(ClusterSpecifier::Cluster(name)) => vec![(name.clone(), 1)],
                    Some(ClusterSpecifier::WeightedClusters(all)) => {
                        let weight = |cluster: &route::weighted_cluster::ClusterWeight| {
                            cluster.weight.map_or(0, |weight| weight.value)
                        };
                        all.clusters.iter().map(|one| (one.name.clone(), weight(one))).collect()
                    }
                    _ => Vec::new(),
                };
                walk.destinations = self.destinations(clusters);
                walk.outcome = "sent on".to_owned();
                if walk.destinations.iter().all(|one| !one.known) {
                    let strict = ClusterNotFoundResponseCode::InternalServerError;
                    let is_strict = action.cluster_not_found_response_code == strict as i32;
                    walk.answer = Some(if is_strict { 500 } else { 503 });
                    walk.outcome = "the proxy has no such upstream cluster".to_owned();
                } else if walk.destinations.iter().all(|one| one.endpoints == Some(0)) {
                    walk.answer = Some(503);
                    walk.outcome = "the upstream cluster has no endpoints".to_owned();
                }
            }
            Some(Action::DirectResponse(answer)) => {
                walk.answer = Some(answer.status);
                walk.outcome = "the proxy responds itself".to_owned();
            }
            Some(Action::Redirect(redirect)) => {
                let (status, location) = request.redirected(redirect, route.r#match.as_ref());
                (walk.answer, walk.location) = (Some(status), Some(location));
                walk.outcome = "the client is redirected".to_owned();
            }
            _ => {}
        }
    }

    /// Returns the conditions under which a route retries requests, and the origin of this setting.
    fn retries(&self, route: &route::Route, rule: Option<&HttpRule>) -> Option<String> {
        let Some(route::route::Action::Route(action)) = &route.action else { return None };
        // The mesh's default applies to requests to services, not to unknown destinations or
        // inbound requests.
        let is_outbound = || match &action.cluster_specifier {
            Some(route::route_action::ClusterSpecifier::Cluster(name)) => {
                OutboundName::parts(name).is_some()
            }
            _ => false,
        };
        let reason = match rule {
            Some(rule) if rule.retries.is_some() => "as the rule says",
            rule if self.inputs.context.mesh.retries.is_some()
                && (rule.is_some() || is_outbound()) =>
            {
                "as the mesh config says"
            }
            _ => "by default",
        };
        let Some(policy) = &action.retry_policy else {
            return Some(format!("no retries: {reason}"));
        };
        let times = match policy.num_retries.map_or(1, |times| times.value) {
            1 => "1 retry".to_owned(),
            times => format!("{times} retries"),
        };
        let conditions = policy.retry_on.replace(',', ", ");
        let statuses: Vec<_> =
            policy.retriable_status_codes.iter().map(ToString::to_string).collect();
        let statuses = match &*statuses {
            [] => String::new(),
            statuses => format!(" ({})", statuses.join(", ")),
        };
        let each = policy.per_try_timeout.as_ref().map_or_else(String::new, |limit| {
            let limit = Duration::new(limit.seconds.unsigned_abs(), limit.nanos.unsigned_abs());
            format!(", {limit:?} for each try")
        });
        Some(format!("up to {times} on {conditions}{statuses}{each}: {reason}"))
    }

    fn destinations(&self, clusters: Vec<(String, u32)>) -> Vec<RequestDestination> {
        let library = self.library();
        let all = library.is_none().then(|| self.clusters());
        let find = |name: &str| match &library {
            Some(library) => library.cluster(name),
            None => {
                let all = all.as_ref()?;
                let mut resources = all.shared.resources().iter().chain(&all.own);
                resources.find(|one| *one.name == *name).cloned()
            }
        };
        let destination = |(name, weight): (String, u32)| {
            let subset = OutboundName::parts(&name).map_or("", |parts| parts.2).to_owned();
            let upstream = find(&name).map(|one| decoded::<cluster::Cluster>(&one));
            let known = upstream.is_some();
            let endpoints = upstream.map_or(Some(0), |upstream| self.endpoints(&name, &upstream));
            RequestDestination { cluster: name, subset, weight, endpoints, known }
        };
        clusters.into_iter().map(destination).collect()
    }

    /// Returns the number of endpoints of an upstream cluster, or `None` if it forwards to the
    /// original destination.
    fn endpoints(&self, name: &str, upstream: &cluster::Cluster) -> Option<usize> {
        use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
        let count = |assignment: &endpoint::ClusterLoadAssignment| {
            assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len()).sum()
        };
        match upstream.cluster_discovery_type {
            Some(ClusterDiscoveryType::Type(kind)) if kind == DiscoveryType::Eds as i32 => {
                let eds = upstream.eds_cluster_config.as_ref();
                let service_name = eds.map_or("", |eds| &eds.service_name);
                let service_name = if service_name.is_empty() { name } else { service_name };
                Some(count(&decoded(&self.inputs.assignment(service_name))))
            }
            Some(ClusterDiscoveryType::Type(kind)) if kind == DiscoveryType::OriginalDst as i32 => {
                None
            }
            _ => upstream.load_assignment.as_ref().map(count),
        }
    }
}

/// Returns other effects of a rule on requests.
fn notes(rule: &HttpRule) -> Vec<String> {
    let percent = |per_million: u32| format!("{} %", f64::from(per_million) / 10_000.0);
    let mut notes = Vec::new();
    if rule.refused {
        notes.push(
            "the rule has a value that Envoy refuses: it responds with 500 instead".to_owned(),
        );
    }
    if let Some(fault) = &rule.fault {
        if let Some((delay, share)) = fault.delay {
            notes.push(format!("{} are delayed by {delay:?} (injected fault)", percent(share)));
        }
        if let Some((status, share)) = fault.abort {
            let status = match status {
                AbortStatus::Http(status) => format!("HTTP status {status}"),
                AbortStatus::Grpc(status) => format!("gRPC status {status}"),
            };
            notes.push(format!("{} receive {status} (injected fault)", percent(share)));
        }
    }
    for mirror in rule.mirrors.iter().flatten() {
        let to = &mirror.destination;
        notes.push(format!("{} are mirrored to {}", percent(mirror.per_million), to.host));
    }
    if let Some(rewrite) = &rule.rewrite {
        match &rewrite.path {
            Some(PathRewrite::Matched(path) | PathRewrite::Segments(path)) => {
                notes.push(format!("the matched part of the path becomes {path}"));
            }
            Some(PathRewrite::Whole(path)) => notes.push(format!("the path becomes {path}")),
            Some(PathRewrite::Regex(from, to)) => {
                notes.push(format!("in the path, {from} becomes {to}"));
            }
            None => {}
        }
        notes.extend(rewrite.authority.iter().map(|host| format!("the host becomes {host}")));
    }
    notes.extend(rule.timeout.map(|timeout| format!("timeout {timeout:?}")));
    notes
}

fn decoded<M: Message + Default>(resource: &Resource) -> M {
    M::decode(resource.body.to_bytes()).expect("it was written here")
}

#[cfg(test)]
mod tests;
