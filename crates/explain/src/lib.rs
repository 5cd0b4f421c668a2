//! Explanations: why a proxy has an endpoint or lacks it, the status of every configuration object, and the reviews of the
//! validation webhook.
//!
//! Invariants:
//!
//! - Explanations call the functions that make decisions for proxies (`strait_mesh::push::view::decide`,
//!   `strait_rules`) and render their results. This crate decides nothing and defines no rules.
//! - It never changes the mesh.

#![forbid(unsafe_code)]

pub mod findings;
pub mod validation;

mod access;
mod access_findings;
mod access_networks;
mod access_never;
mod access_ports;
mod access_served;
mod access_snapshot;
mod by_name;
mod config;
mod lines;
mod peer_findings;
mod problems;
mod remote_pods;
mod scope;
mod standing;
mod trial;
mod visibility;
mod withheld;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

pub use self::access::{AccessQuery, explain_policy, is_for, transition_by};
pub use self::access_snapshot::access_snapshot;
pub use self::config::{
    ConfigQuery, ConfigReports, ConfigView, CredentialFault, MemberReports, WaitingConfiguration,
};
use self::lines::quoted;
pub use self::lines::{ClusterLine, EndpointLine, Explanation, StepLine, WithheldGroup};
pub use self::problems::{code_of_warning, describe_withheld, is_problem, is_withheld_by_fault};
pub use self::scope::{CalledHosts, ScopeSuggestion, suggest_scope};
pub use self::standing::{ConfigReason, ConfigState, ObjectStanding};
pub use self::trial::{ConfigTrials, ObjectVerdict, TriedMesh, dated};
pub use self::visibility::visible_by_default;
pub use self::withheld::code;
use self::withheld::summary;
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::network::{PendingCause, PlacedBy, ResolvedGateway};
use strait_mesh::push::PushContext;
use strait_mesh::push::imports::Imports;
use strait_mesh::push::view::{
    Path, Role, ViewKey, WithheldReason, WithholdingStep, assignment, decide, preference,
};
use strait_model::policy::{PolicyRefusal, Rank};
use strait_model::registry::{Provider, ShardKey};
use strait_model::{
    ClusterId, Distribution, EndpointRef, Health, Hostname, Mode, Namespace, NetworkId, PodState,
    Port, Protocol, Resolution, SharingRule, TlsMode,
};

/// Reason why a service cannot be explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// No cluster has the service.
    #[error("no cluster has a service {0}")]
    UnknownService(String),
    /// The service lacks the port.
    #[error("service {hostname} has no port {port}; it has {has}")]
    UnknownPort {
        /// Host name of the service.
        hostname: Hostname,
        /// The requested port.
        port: u16,
        /// The existing ports.
        has: String,
    },
    /// The port is UDP.
    #[error("port {port} of service {hostname} is UDP, which is not proxied")]
    NotProxied {
        /// Host name of the service.
        hostname: Hostname,
        /// The requested port.
        port: u16,
    },
    /// The service has no port that is proxied.
    #[error("service {0} has no port that is proxied")]
    NoPort(Hostname),
}

/// Finds a service by its full name, or as `name.namespace` in the mesh's domain.
///
/// # Errors
/// If no cluster has the service.
pub fn find_service<'a>(
    context: &'a PushContext,
    name: &str,
) -> Result<&'a MergedService, ExplainError> {
    find_service_for(context, name, &Namespace::default())
}

/// Finds a service like [`find_service`], as proxies of `namespace` see it.
///
/// # Errors
/// If no cluster has the service.
pub fn find_service_for<'a>(
    context: &'a PushContext,
    name: &str,
    namespace: &Namespace,
) -> Result<&'a MergedService, ExplainError> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let long = |infix: &str| format!("{name}{infix}.{}", context.settings.domain);
    [name.clone(), long(".svc"), long("")]
        .into_iter()
        .find_map(|name| context.service(&name, namespace))
        .map(|service| &**service)
        .ok_or(ExplainError::UnknownService(name))
}

/// Explains one port of a service to a proxy: `port`, or else its first proxied port. With
/// `address`, explains only that endpoint. The flag next to the view states whether the proxy uses
/// Sidecars.
///
/// # Errors
/// If the service or port does not exist.
pub fn explain(
    context: &PushContext,
    proxy: &str,
    (view, is_scoped): (&ViewKey, bool),
    hostname: &str,
    port: Option<u16>,
    address: Option<&str>,
) -> Result<Explanation, ExplainError> {
    let service = match view.role {
        Role::Client => find_service_for(context, hostname, &view.namespace)?,
        Role::Gateway => find_service(context, hostname)?,
    };
    let port = choose_port(service, port)?;
    let preferred = preference(context, view, service);
    let ranks = ranks(context, view, service, port.number);
    let mut groups: BTreeMap<(&ShardKey, &NetworkId), ExplainGroup> = BTreeMap::new();
    let mut endpoints = Vec::new();
    let is_given = !is_scoped || Imports::of(context, view).has_port(service, port.number);
    let other_addresses = other_addresses(context, view, service, port.number);
    for (shard, endpoint, network) in service.endpoints_of_port(port.number) {
        let decided = match decide(context, view, service, shard, endpoint, network) {
            // The endpoints are sent on request, but no route of the proxy leads to them.
            Ok(_) if !is_given => Err(WithheldReason::NotImported),
            Err(reason) if !is_given && reason.step() > WithholdingStep::Export => {
                Err(WithheldReason::NotImported)
            }
            decided => decided,
        };
        // A dual-stack pod counts once, with the address that the proxy can reach.
        let other = pod_port(shard, endpoint).and_then(|pod| other_addresses.get(&pod));
        let other = other.and_then(|families| families[usize::from(endpoint.address.is_ipv6())]);
        let is_repeated = other.is_some_and(|(is_sent, _)| {
            let is_other_family = decided == Err(WithheldReason::EndpointFamily);
            is_sent && (is_other_family || decided.is_ok() && endpoint.address.is_ipv6())
        });
        let is_requested = |shown: &str| address == Some(shown);
        if is_repeated && !is_requested(&endpoint.address.to_string()) {
            continue;
        }
        let group = groups.entry((shard, network)).or_default();
        group.count(endpoint, &decided);
        group.rank = preferred.map(|preferred| {
            preferred.rank((&view.cluster, &view.network), (&shard.cluster, network))
        });
        let shown = endpoint.address.to_string();
        if address.is_none_or(|wanted| wanted == shown) {
            let decision = Decision { context, view, service, shard, endpoint, network };
            let mut line = decision.line(&decided);
            line.priority = rank(&ranks, endpoint, &decided);
            line.additional = other.map(|(_, address)| address.to_string());
            endpoints.push(line);
        }
    }
    // Priorities have no gaps: tiers without sent endpoints are skipped.
    let sent = groups.values().filter(|group| group.sent > 0);
    let tiers: BTreeSet<u32> = sent.filter_map(|group| Some(group.rank?.tier)).collect();
    let mut lines: Vec<_> = groups
        .into_iter()
        .map(|((shard, network), group)| {
            // If locality affects priorities too, they are shown for endpoints only.
            let rank = group.rank.filter(|_| group.sent > 0 && ranks.is_empty());
            let before = rank.map(|rank| tiers.range(..rank.tier).count());
            ClusterLine {
                priority: before.and_then(|before| u32::try_from(before).ok()),
                preference: preferred.map(ToString::to_string),
                ..group.line(shard, network)
            }
        })
        .collect();
    let (named, names) = by_name::lines(view, service, port, address);
    lines.splice(0..0, named);
    endpoints.splice(0..0, names);
    Ok(Explanation {
        found: by_name::how(context, view, service),
        notes: notes(context, service),
        proxy: proxy.to_owned(),
        hostname: service.hostname().clone(),
        port: port.number,
        clusters: lines,
        endpoints,
    })
}

/// A pod of a shard, and a port of the pod.
type ExplainedPod<'a> = (&'a ShardKey, &'a Namespace, &'a str, &'a str, u16);

fn pod_port<'a>(shard: &'a ShardKey, endpoint: EndpointRef<'a>) -> Option<ExplainedPod<'a>> {
    let pod = endpoint.workload?;
    Some((shard, pod.namespace, pod.stem, pod.tail, endpoint.port))
}

/// Returns, for each dual-stack pod, the other address and whether it is sent; the index is whether
/// the endpoint itself is IPv6.
fn other_addresses<'a>(
    context: &PushContext,
    view: &ViewKey,
    service: &'a MergedService,
    port: u16,
) -> BTreeMap<ExplainedPod<'a>, [Option<(bool, IpAddr)>; 2]> {
    let mut found: BTreeMap<_, [Option<(bool, IpAddr)>; 2]> = BTreeMap::new();
    if !service.shards.iter().any(|shard| shard.endpoints.is_dual_stack()) {
        return found;
    }
    for (shard, endpoint, network) in service.endpoints_of_port(port) {
        if let Some(pod) = pod_port(shard, endpoint) {
            let is_sent = decide(context, view, service, shard, endpoint, network).is_ok();
            let other = usize::from(endpoint.address.is_ipv4());
            found.entry(pod).or_default()[other] = Some((is_sent, endpoint.address));
        }
    }
    found
}

/// Returns notes about definitions of a host that have no effect, or that lose against other
/// definitions.
fn notes(context: &PushContext, service: &MergedService) -> Vec<String> {
    let notes = context.entries.notes(service.hostname()).iter().cloned();
    let conflicts = service.conflicts.iter().map(|conflict| {
        let shown = |cluster: &ClusterId| match cluster.as_str() {
            "" => "entries".to_owned(),
            cluster => cluster.to_owned(),
        };
        let losers: Vec<_> = conflict.losers.iter().map(shown).collect();
        let (field, winner) = (conflict.field, shown(&conflict.winner));
        let each = if field == "ports" { "all are served; for ports that differ, " } else { "" };
        format!("{field}: {each}{winner} wins over {}", losers.join(", "))
    });
    notes.chain(conflicts).collect()
}

/// Returns the priority of each sent address; empty if all have the same priority.
fn ranks(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
    port: u16,
) -> BTreeMap<SocketAddr, u32> {
    let has_preference = service.primary.prefers != Distribution::Any;
    let is_usual = context.mesh.usual_limits.outlier_detection.is_some();
    if !has_preference
        && !is_usual
        && !context.traffic.destination_rules.place(service.hostname().as_str())
    {
        return BTreeMap::new();
    }
    let groups = assignment(context, view, service, port).localities;
    if !has_preference && groups.iter().all(|group| group.priority == 0) {
        return BTreeMap::new();
    }
    let members = groups.iter().flat_map(|group| {
        let sockets = group.members.iter();
        sockets.map(|one| (SocketAddr::new(one.address, one.port), group.priority))
    });
    members.collect()
}

/// Returns the first priority that contains an endpoint, or a gateway to it.
fn rank(
    ranks: &BTreeMap<SocketAddr, u32>,
    endpoint: EndpointRef<'_>,
    decided: &Result<Path<'_>, WithheldReason>,
) -> Option<u32> {
    match decided {
        Ok(Path::Direct) => ranks.get(&SocketAddr::new(endpoint.address, endpoint.port)).copied(),
        Ok(Path::Gateways(gateways)) => {
            let sockets = gateways.iter().map(|one| SocketAddr::new(one.address, one.port));
            sockets.filter_map(|socket| ranks.get(&socket).copied()).min()
        }
        Err(_) => None,
    }
}

fn choose_port(service: &MergedService, number: Option<u16>) -> Result<&Port, ExplainError> {
    let ports = service.ports();
    match number {
        None => ports
            .clone()
            .find(|port| port.protocol != Protocol::Udp)
            .ok_or_else(|| ExplainError::NoPort(service.hostname().clone())),
        Some(number) => {
            let mut named = ports.clone().filter(|port| port.number == number).peekable();
            let is_known = named.peek().is_some();
            named.find(|port| port.protocol != Protocol::Udp).ok_or_else(|| {
                let hostname = service.hostname().clone();
                if is_known {
                    return ExplainError::NotProxied { hostname, port: number };
                }
                let has: Vec<_> = ports.map(|port| port.number.to_string()).collect();
                let has = if has.is_empty() { "none".into() } else { has.join(", ") };
                ExplainError::UnknownPort { hostname, port: number, has }
            })
        }
    }
}

#[derive(Default)]
struct ExplainGroup {
    ready: usize,
    total: usize,
    sent: usize,
    direct: bool,
    gateways: Vec<String>,
    /// Number of sent endpoints whose gateways do not respond to probes.
    behind_dead: usize,
    reasons: BTreeMap<WithheldReason, usize>,
    rank: Option<Rank>,
}

impl ExplainGroup {
    fn count(&mut self, endpoint: EndpointRef<'_>, decided: &Result<Path<'_>, WithheldReason>) {
        self.total += 1;
        self.ready += usize::from(endpoint.health == Health::Healthy);
        match decided {
            Ok(Path::Direct) => {
                self.sent += 1;
                self.direct = true;
            }
            Ok(Path::Gateways(gateways)) => {
                self.sent += 1;
                self.behind_dead += usize::from(gateways.iter().all(|gateway| gateway.dead));
                self.gateways.extend(gateways.iter().map(|gateway| socket(gateway)));
            }
            Err(reason) => *self.reasons.entry(*reason).or_default() += 1,
        }
    }

    fn line(mut self, shard: &ShardKey, network: &NetworkId) -> ClusterLine {
        self.gateways.sort();
        self.gateways.dedup();
        let mut via = if self.direct { vec!["direct".to_owned()] } else { Vec::new() };
        via.append(&mut self.gateways);
        let mut reasons: Vec<_> = self.reasons.into_iter().collect();
        // The sort is stable: of equally frequent reasons, the earlier step's reason comes first.
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut reasons = reasons.into_iter().map(|(reason, count)| WithheldGroup {
            reason: format!("{count} {}", summary(reason, network)),
            code: code(reason),
        });
        let dead = (self.behind_dead > 0).then(|| WithheldGroup {
            reason: format!("{} behind gateways that do not respond", self.behind_dead),
            code: codes::GATEWAY_DEAD.id,
        });
        let mut reasons = dead.into_iter().chain(reasons.by_ref());
        let main = reasons.next();
        ClusterLine {
            ready: self.ready,
            total: self.total,
            sent: self.sent,
            via: (!via.is_empty()).then(|| via.join(",")),
            code: main.as_ref().map(|main| main.code),
            reason: main.map(|main| main.reason),
            also: reasons.collect(),
            ..ClusterLine::empty(shard.cluster.as_str(), network)
        }
    }
}

/// One decision with all its inputs.
struct Decision<'a> {
    context: &'a PushContext,
    view: &'a ViewKey,
    service: &'a MergedService,
    shard: &'a ShardKey,
    endpoint: EndpointRef<'a>,
    network: &'a NetworkId,
}

impl Decision<'_> {
    fn line(&self, decided: &Result<Path<'_>, WithheldReason>) -> EndpointLine {
        let (verdict, via) = match decided {
            Ok(Path::Direct) => ("direct", Vec::new()),
            Ok(Path::Gateways(gateways)) => {
                ("gateway", gateways.iter().map(|gateway| socket(gateway)).collect())
            }
            Err(_) => ("withheld", Vec::new()),
        };
        let failed = decided.as_ref().err().map(|reason| reason.step());
        let mut steps = Vec::new();
        for step in WithholdingStep::ALL {
            let ok = failed != Some(step);
            let detail = match decided {
                Err(reason) if !ok => self.refused(*reason),
                _ => self.passed(step, decided),
            };
            steps.push(StepLine { step: step.as_str(), ok, detail });
            if !ok {
                break;
            }
        }
        EndpointLine {
            address: self.endpoint.address.to_string(),
            port: self.endpoint.port,
            cluster: self.shard.cluster.to_string(),
            network: self.network.clone(),
            additional: None,
            verdict,
            via,
            priority: None,
            steps,
        }
    }

    /// Returns the rule by which the cluster keeps its endpoints local, if it does.
    fn local_by(&self) -> Option<SharingRule> {
        let own = self.service.shards.iter().find(|shard| shard.key == *self.shard);
        own.filter(|own| own.sharing.is_local).map(|own| own.sharing.rule)
    }

    /// Returns whether the endpoint is reached without crossing networks.
    fn same_network(&self) -> bool {
        self.is_everywhere() || *self.network == self.view.network
    }

    fn is_entry(&self) -> bool {
        self.shard.provider.is_of_service_entries()
    }

    /// Returns whether the endpoint is a pod of another cluster, identified by its address.
    fn is_elsewhere(&self) -> bool {
        self.endpoint.workload.is_none()
            && self.endpoint.service_account.is_some()
            && self.shard.provider.is_cluster()
    }

    fn is_everywhere(&self) -> bool {
        self.view.role == Role::Client && self.service.is_everywhere(self.shard, self.network)
    }

    /// Returns the reason why a step passed.
    fn passed(&self, step: WithholdingStep, decided: &Result<Path<'_>, WithheldReason>) -> String {
        let endpoint = self.endpoint;
        match step {
            WithholdingStep::Ready => "ready".into(),
            WithholdingStep::Pod => match (endpoint.workload, endpoint.pod) {
                (Some(workload), PodState::Known) => match self.shard.provider {
                    Provider::ServiceEntry => format!("WorkloadEntry {workload}"),
                    Provider::Consul => format!("instance {workload} of {}", self.shard.cluster),
                    Provider::Kubernetes | Provider::WorkloadEntry => format!("pod {workload}"),
                },
                _ if self.is_elsewhere() => {
                    let identity = endpoint.service_account.map_or("", |identity| identity);
                    format!("pod of another cluster at this address: {identity}")
                }
                _ => "no pod is named, or pods can't be read: the identity is unknown".into(),
            },
            WithholdingStep::Export => match self.view.role {
                Role::Gateway => "exported to all namespaces".into(),
                Role::Client => format!("visible to namespace {}", self.view.namespace),
            },
            WithholdingStep::Network if self.is_everywhere() => {
                let external = self.service.primary.mesh_external;
                let why = if external { "outside the mesh" } else { "no network is set" };
                format!("{why}: reached from every network")
            }
            WithholdingStep::Network => {
                let (_, by) = self.context.place(
                    &self.shard.cluster,
                    endpoint.network_label,
                    endpoint.address,
                );
                let own = quoted(&self.view.network);
                let by = match by {
                    _ if self.is_elsewhere() => "the cluster that runs the pod".into(),
                    PlacedBy::WorkloadLabel if self.is_entry() => {
                        "field or label of the entry".into()
                    }
                    by => by.to_string(),
                };
                if self.same_network() {
                    format!("same network as the proxy, {own} (by {by})")
                } else {
                    let network = quoted(self.network);
                    format!("in network {network} (by {by}), the proxy is in {own}")
                }
            }
            WithholdingStep::Gateway => match decided {
                Ok(Path::Gateways(gateways)) => {
                    let sockets: Vec<_> = gateways.iter().map(|gateway| socket(gateway)).collect();
                    format!("through {}", sockets.join(", "))
                }
                Ok(Path::Direct) if !self.same_network() => {
                    "none, and --allow-direct-cross-network is set: reached directly".into()
                }
                Ok(Path::Direct) => "not needed".into(),
                Err(_) if self.same_network() => "not needed".into(),
                Err(_) => "the network has a gateway".into(),
            },
            WithholdingStep::Family => "the proxy supports the address family".into(),
            WithholdingStep::Mtls if self.same_network() => match endpoint.tls_mode {
                TlsMode::Istio => "takes mTLS".into(),
                TlsMode::Changing | TlsMode::Disabled => "plain text, inside one network".into(),
            },
            WithholdingStep::Mtls => format!("tlsMode is {}", endpoint.tls_mode.as_str()),
        }
    }

    /// Explains which cluster owns an address that pods of several clusters have.
    fn same_address(&self) -> String {
        let (address, network) = (self.endpoint.address, quoted(self.network));
        let claimants = self.context.claimants(self.shard, self.network, self.endpoint);
        let claimants = claimants.map_or(&[][..], |all| all);
        let own = claimants.iter().find(|one| **one == self.view.cluster);
        let (holder, why) = match own {
            Some(own) => (Some(own), "the proxy's own cluster"),
            None => (claimants.first(), "which comes first"),
        };
        let holder = holder.unwrap_or(&self.view.cluster);
        let of = &self.shard.cluster;
        format!(
            "same address: pods of {holder} ({why}) and of {of} both have {address} in network {network}; if these are two networks, set their names: strait network join CONTEXT --network NAME"
        )
    }

    /// Returns the policy's own wording.
    fn ruled(&self, decision: Result<(), PolicyRefusal>) -> String {
        match decision {
            Err(refused) => refused.to_string(),
            Ok(()) => "the policy has just changed".into(),
        }
    }

    /// Returns the reason why a step withheld the endpoint, and how to change it.
    fn refused(&self, reason: WithheldReason) -> String {
        let endpoint = self.endpoint;
        let network = quoted(self.network);
        match reason {
            WithheldReason::NotReady(health) => format!("the endpoint is {}", health.as_str()),
            WithheldReason::ClusterDraining => {
                let by = match self.context.policy.mode(&self.shard.cluster) {
                    Some((Mode::Drain, rule)) => format!("policy {rule}"),
                    _ => "strait.dev/mode: drain on its Secret".into(),
                };
                format!("cluster {} is being drained ({by})", self.shard.cluster)
            }
            WithheldReason::ClusterDark => {
                let cluster = self.context.clusters.clusters.get(&self.shard.cluster);
                let why = cluster.and_then(|cluster| cluster.withdrawn.as_deref());
                format!("cluster {} is {}", self.shard.cluster, why.unwrap_or("out of contact"))
            }
            WithheldReason::ExportRefused => {
                let (host, namespace) = (self.service.hostname(), &self.service.primary.namespace);
                let policy = &self.context.policy;
                let decision = policy.may_export(&self.shard.cluster, host.as_str(), namespace.as_str());
                self.ruled(decision)
            }
            WithheldReason::AddressRefused => {
                self.ruled(self.context.policy.may_use(&self.shard.cluster, endpoint.address))
            }
            WithheldReason::NetworkRefused => {
                self.ruled(self.context.policy.may_claim(&self.shard.cluster, self.network))
            }
            WithheldReason::SameAddress => self.same_address(),
            WithheldReason::PodMissing => match endpoint.workload {
                Some(pod) => format!(
                    "the EndpointSlice names pod {pod}, which cluster {} has not reported yet",
                    self.shard.cluster
                ),
                None => "its pod is not known yet".into(),
            },
            WithheldReason::NotExported => match self.view.role {
                Role::Gateway => format!(
                    "{} is not exported to all namespaces, so no gateway serves it",
                    self.service.hostname()
                ),
                Role::Client => format!(
                    "networking.istio.io/exportTo of {} excludes namespace {}",
                    self.service.hostname(),
                    self.view.namespace
                ),
            },
            WithheldReason::NotImported => {
                let ViewKey { namespace, selection, .. } = self.view;
                let scope = self.context.traffic.scope(namespace, selection);
                let name = scope.sidecar().map(|sidecar| sidecar.meta.to_string());
                format!(
                    "spec.egress of Sidecar {}, which applies to the proxy, doesn't import {} of namespace {}",
                    name.unwrap_or_default(),
                    self.service.hostname(),
                    self.service.primary.namespace
                )
            }
            WithheldReason::NotCarried if self.service.primary.mesh_external => format!(
                "the endpoint is in another network, and {} is outside the mesh, so no gateway serves it",
                self.service.hostname()
            ),
            WithheldReason::NotCarried
                if matches!(self.service.primary.resolution, Resolution::ByName(_)) =>
            {
                format!(
                    "the endpoint is in another network, and proxies resolve {} by name, so no gateway serves it",
                    self.service.hostname()
                )
            }
            WithheldReason::NotCarried => format!(
                "the endpoint is in another network, and {} is not exported to all namespaces, so no gateway serves it",
                self.service.hostname()
            ),
            WithheldReason::ClusterLocal => withheld::cluster_local(
                self.service.hostname(),
                &self.shard.cluster,
                self.local_by(),
            ),
            WithheldReason::NodeLocal if self.shard.cluster != self.view.cluster => {
                let own = self.service.by_cluster.get(&self.view.cluster);
                match own.filter(|own| own.node_local) {
                    Some(_) => format!(
                        "internalTrafficPolicy is Local in the proxy's cluster, {}, and the endpoint is not on its node",
                        self.view.cluster
                    ),
                    None => format!(
                        "internalTrafficPolicy is Local in cluster {}: only proxies on the endpoint's own node receive it",
                        self.shard.cluster
                    ),
                }
            }
            WithheldReason::NodeLocal => format!(
                "internalTrafficPolicy is Local and the endpoint is on node {}, not on the proxy's {}",
                endpoint.node.map_or("<unknown>", |node| &**node),
                self.view.node.as_deref().unwrap_or("<unknown>")
            ),
            WithheldReason::NetworkNotVisible => format!(
                "in network {network}: REQUESTED_NETWORK_VIEW in the proxy's metadata names other networks"
            ),
            WithheldReason::OtherNetwork => format!(
                "in network {network}: an east-west gateway forwards into its own network only, {}",
                quoted(&self.view.network)
            ),
            WithheldReason::HeadlessElsewhere => {
                let (pod, at) = ((self.service, &self.shard.cluster), (endpoint, self.network));
                let naming = remote_pods::naming(self.context, self.view, pod, at);
                format!(
                    "in network {network}, the proxy is in {}: {} is headless, so each pod is reached at its own address, and a gateway has one address for all pods{}",
                    quoted(&self.view.network),
                    self.service.hostname(),
                    naming.map(|naming| format!("; {naming}")).unwrap_or_default()
                )
            }
            WithheldReason::NoGateway => format!(
                "network {network} has no gateway: label a Service with topology.istio.io/network, or name one in meshNetworks"
            ),
            WithheldReason::GatewayPending => {
                let mut pending = self.context.networks.pending().iter();
                let of_network = pending.find(|one| one.network == *self.network);
                let fact = of_network.map_or("it has no usable address", |one| &one.reason);
                format!("no gateway of network {network} can be dialled yet: {fact}")
            }
            WithheldReason::GatewayUnserved => {
                let networks = &self.context.networks;
                let unserved = networks.pending_by(self.network, PendingCause::Unserved);
                let sources: Vec<_> = unserved.map(|one| one.source.to_string()).collect();
                format!(
                    "no gateway of network {network} has a ready pod, so the endpoint is unreachable: {}; test the path with strait check --traffic",
                    sources.join(", ")
                )
            }
            WithheldReason::GatewayUnresolved => {
                let networks = &self.context.networks;
                let mut unresolved = networks.pending_by(self.network, PendingCause::Unresolved);
                let fact = unresolved.next().map_or("its name does not resolve", |one| &one.reason);
                format!("no gateway of network {network} can be dialled: {fact}")
            }
            WithheldReason::NoAddress => "the entry has no address: proxies of other networks reach it through the gateways of its network, but proxies of its own network can't reach it".into(),
            WithheldReason::EndpointFamily => {
                format!("the proxy has no address of the family of {}", endpoint.address)
            }
            WithheldReason::GatewayFamily => format!(
                "no gateway of network {network} has an address of a family that the proxy supports"
            ),
            WithheldReason::PlainText if self.is_entry() => {
                "tlsMode is disabled, and traffic across networks requires mTLS: if a proxy runs in front of it, set a serviceAccount or the label security.istio.io/tlsMode=istio in the entry".into()
            }
            WithheldReason::AutoMtlsOff => {
                "the mesh config sets enableAutoMtls: false, so the proxy would use plain text, but gateways require mTLS".into()
            }
            WithheldReason::LibraryElsewhere => format!(
                "in network {network}: a gateway routes by SNI and an ALPN of the mesh, and proxyless gRPC sends neither: run an Envoy next to the client, or the service in its network"
            ),
            WithheldReason::PlainTextForLibrary => {
                "tlsMode is disabled, and proxyless gRPC uses mTLS for all endpoints of a service or for none: add a sidecar to the pod, or certificates to its gRPC server, and set the label security.istio.io/tlsMode=istio".into()
            }
            WithheldReason::PlainText => {
                "tlsMode is disabled, and traffic across networks requires mTLS: add a sidecar to the pod and set the label security.istio.io/tlsMode=istio".into()
            }
        }
    }
}

fn socket(gateway: &ResolvedGateway) -> String {
    SocketAddr::new(gateway.address, gateway.port).to_string()
}

#[cfg(test)]
mod tests;
