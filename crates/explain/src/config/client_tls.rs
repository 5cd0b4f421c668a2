//! TLS modes of DestinationRules that no endpoint of a service accepts, because of a
//! PeerAuthentication or because no pod has a sidecar.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::ConfigView;
use super::clients::{Audience, all_seen, proxied};
use super::objects::{SubsetPaths, port_path};
use strait_base::codes;
use strait_base::names::list_first;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::subset::SubsetFilter;
use strait_model::registry::ShardKey;
use strait_model::{EndpointRef, Near, PodState, Proxy, Resolution, TlsMode, WorkloadKey};
use strait_rules::access::{AccessSubject, PeerMode};
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient};
use strait_rules::traffic::policy::{ClientTls, TrafficPolicy};
use strait_rules::traffic::{Reason, Selection};

/// Maximum number of names that a reason lists.
const NAMED_MAX: usize = 5;

/// The connections that an endpoint refuses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RefusedConnections {
    /// All except the mesh's mTLS, because of this PeerAuthentication.
    AllButMtls(WorkloadKey),
    /// The mesh's mTLS, because of this PeerAuthentication.
    Mtls(WorkloadKey),
    /// The mesh's mTLS, because the pod has no sidecar.
    WithoutSidecar,
}

impl RefusedConnections {
    /// Returns whether it refuses connections of clients with these settings.
    fn covers(&self, tls: &ClientTls) -> bool {
        match (self, tls) {
            (Self::AllButMtls(_), ClientTls::Disable) => true,
            // A foreign client certificate may be one of the mesh.
            (Self::AllButMtls(_), ClientTls::Foreign(foreign)) => foreign.client.is_none(),
            (Self::Mtls(_) | Self::WithoutSidecar, ClientTls::Mesh(_)) => true,
            _ => false,
        }
    }

    fn policy(&self) -> Option<String> {
        match self {
            Self::AllButMtls(policy) | Self::Mtls(policy) => {
                Some(format!("{}/{}", policy.namespace, policy.name))
            }
            Self::WithoutSidecar => None,
        }
    }
}

/// Connections that all endpoints refuse for the same causes.
type RefusedBy = (String, BTreeSet<RefusedConnections>);

impl ConfigView<'_> {
    /// Reports TLS modes that all endpoints of a port refuse. `clients` are the namespaces of the
    /// clients to which the rule applies.
    pub(super) fn refused_tls(
        &self,
        rule: &DestinationRule,
        selection: &Selection,
        clients: &Audience,
        object: &Value,
    ) -> Vec<Reason> {
        let of_subsets = rule.subsets.values().filter_map(|subset| subset.policy.as_ref());
        let mut groups = rule
            .policy
            .iter()
            .chain(of_subsets)
            .flat_map(|policy| std::iter::once(&policy.groups).chain(policy.ports.values()));
        if !groups.any(|groups| groups.tls.is_some()) {
            return Vec::new();
        }
        let mut services: BTreeMap<_, (&MergedService, Arc<DestinationRule>)> = BTreeMap::new();
        for namespace in clients {
            for service in all_seen(self.context, &rule.host, namespace) {
                let client = RuleClient { namespace, selection };
                if let Ok(active) = self.rule_of(service, client, rule.meta()) {
                    services.insert(service.hostname(), (service, active));
                }
            }
        }
        let mut refused: BTreeMap<RefusedBy, BTreeSet<String>> = BTreeMap::new();
        for (service, active) in services.values() {
            if !matches!(service.primary.resolution, Resolution::ByName(_) | Resolution::Alias(_)) {
                self.add_refused(service, active, rule, object, &mut refused);
            }
        }
        let reason = |((path, causes), places): (RefusedBy, BTreeSet<String>)| {
            let text = format!(
                "clients of {} cannot connect: {}",
                list_first(places.iter(), NAMED_MAX),
                describe(&causes)
            );
            Reason::warning(&codes::TLS_REFUSED, path, text)
        };
        refused.into_iter().map(reason).collect()
    }

    /// Adds the ports of a service, and of its subsets, whose endpoints all refuse the TLS mode
    /// that `rule` sets as a part of the active rule.
    fn add_refused(
        &self,
        service: &MergedService,
        active: &DestinationRule,
        rule: &DestinationRule,
        object: &Value,
        refused: &mut BTreeMap<RefusedBy, BTreeSet<String>>,
    ) {
        let rules = self.context.rules_for(service);
        let paths = SubsetPaths::of(object);
        let host = service.hostname();
        for port in proxied(service) {
            let mut whole = None;
            for name in std::iter::once("").chain(rule.subsets.keys().map(|name| &**name)) {
                let Some(path) = tls_path(active, rule, name, port.number, &paths, object) else {
                    continue;
                };
                let Some(tls) = active.resolved(name, port.number).tls else { continue };
                let Some(subset) = SubsetFilter::new(&rules, Some(active), service, name) else {
                    continue;
                };
                let all = service.endpoints_of_port(port.number);
                let all = all
                    .filter(|(shard, one, network)| subset.contains(&shard.cluster, network, *one));
                let causes = all.map(|(shard, one, _)| {
                    self.refused_by(shard, one).filter(|refused| refused.covers(&tls))
                });
                let causes: Option<BTreeSet<RefusedConnections>> = causes.collect();
                let Some(causes) = causes.filter(|causes| !causes.is_empty()) else { continue };
                // The reason about all endpoints includes the ones of a subset.
                if whole.as_ref() == Some(&path) {
                    continue;
                }
                let place = match name {
                    "" => {
                        whole = Some(path.clone());
                        format!("port {} of {host}", port.number)
                    }
                    name => format!("port {} of subset {name} of {host}", port.number),
                };
                refused.entry((path, causes)).or_default().insert(place);
            }
        }
    }

    /// Returns the connections that an endpoint certainly refuses. Sidecars and Gateways may define
    /// how their workloads accept connections, and a proxy without the label may accept mTLS.
    fn refused_by(
        &self,
        shard: &ShardKey,
        endpoint: EndpointRef<'_>,
    ) -> Option<RefusedConnections> {
        let key = endpoint.workload.filter(|_| endpoint.pod == PodState::Known)?;
        let (namespace, pods) = (key.namespace, self.context.workloads.get(&shard.cluster)?);
        let pod = pods.find_next(&mut Near::default(), key)?;
        let labels = &*pod.labels;
        let mut gateways = self.context.traffic.gateways.selecting(namespace, labels);
        if self.context.traffic.sidecars.gives_ports(namespace, labels)
            || gateways.any(|gateway| gateway.selector.is_some())
        {
            return None;
        }
        if pod.tls_mode != TlsMode::Istio {
            let proxies = self.clients.proxies();
            let is_own = |proxy: &&Proxy| proxy.cluster == shard.cluster && key == proxy.workload;
            // Without any proxy, the connected ones are not known.
            return (!proxies.is_empty() && !proxies.iter().any(is_own))
                .then_some(RefusedConnections::WithoutSidecar);
        }
        let subject = AccessSubject { namespace, labels, is_known: true };
        let modes = self.context.access.modes(subject);
        let mode = modes.of_port(endpoint.port);
        let policy = mode.by.clone()?;
        match mode.mode {
            PeerMode::Strict => Some(RefusedConnections::AllButMtls(policy)),
            PeerMode::Disable => Some(RefusedConnections::Mtls(policy)),
            PeerMode::Permissive => None,
        }
    }
}

/// Returns the path of the TLS settings that decide for a port of a subset, if they are a part of
/// this object.
fn tls_path(
    active: &DestinationRule,
    rule: &DestinationRule,
    subset: &str,
    port: u16,
    paths: &SubsetPaths<'_>,
    object: &Value,
) -> Option<String> {
    let own = |rule: &DestinationRule| rule.subsets.get(subset).and_then(|one| one.policy.clone());
    let decides =
        |policy: &TrafficPolicy| policy.ports.contains_key(&port) || policy.groups.tls.is_some();
    let of_subset = own(active).filter(|policy| decides(policy));
    let (policy, path) = match of_subset {
        Some(policy) if own(rule).as_ref() == Some(&policy) => {
            (policy, format!("{}.trafficPolicy", paths.path(subset)))
        }
        Some(_) => return None,
        None => {
            let policy = active.policy.clone()?;
            let is_own = rule.policy.as_ref() == Some(&policy);
            (is_own.then_some(policy)?, "spec.trafficPolicy".to_owned())
        }
    };
    Some(match policy.ports.contains_key(&port) {
        true => format!("{}.tls", port_path(object, &path, port)),
        false => format!("{path}.tls"),
    })
}

/// Describes why endpoints refuse the TLS mode of their clients.
fn describe(causes: &BTreeSet<RefusedConnections>) -> String {
    let policies: BTreeSet<String> = causes.iter().filter_map(RefusedConnections::policy).collect();
    let named = list_first(policies.iter(), NAMED_MAX);
    let is_strict = causes.iter().any(|cause| matches!(cause, RefusedConnections::AllButMtls(_)));
    let without = causes.contains(&RefusedConnections::WithoutSidecar);
    let note = "no endpoint has a sidecar that accepts mTLS (label security.istio.io/tlsMode)";
    match (is_strict, policies.is_empty(), without) {
        (true, ..) => format!("PeerAuthentication {named} accepts only mTLS at all endpoints"),
        (_, true, _) => note.to_owned(),
        (_, false, false) => {
            format!("PeerAuthentication {named} accepts only plain text at all endpoints")
        }
        (_, false, true) => format!(
            "endpoints accept only plain text, by PeerAuthentication {named} or without a sidecar"
        ),
    }
}
