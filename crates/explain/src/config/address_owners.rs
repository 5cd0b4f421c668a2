//! The services of the mesh by their addresses and ranges.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::has_no_known_address;
use strait_model::mesh_config::OutboundTrafficPolicy;
use strait_model::{ExportTo, Namespace, Port, Protocol, Resolution};
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::policy::ClientTls;
use strait_rules::traffic::{HostPattern, Selection};

/// The services by their addresses and ranges.
#[derive(Debug, Default)]
pub(super) struct AddressOwners<'a> {
    pub(super) addresses: BTreeMap<IpAddr, Vec<&'a MergedService>>,
    pub(super) ranges: BTreeMap<IpNet, Vec<&'a MergedService>>,
    /// The service that receives the connections to unknown addresses at a TCP port, for clients in
    /// a namespace or in all others.
    rest: BTreeMap<(u16, Option<Namespace>), &'a MergedService>,
}

/// Returns the order in which services claim an address.
pub(super) fn order(service: &MergedService) -> impl Ord + use<> {
    (service.rank(), service.hostname().clone())
}

/// Returns whether no address and no SNI distinguishes connections to a port of a service.
pub(super) fn is_indistinguishable(service: &MergedService, port: &Port) -> bool {
    let is_by_name = matches!(port.protocol, Protocol::Tls | Protocol::Https);
    has_no_known_address(service)
        && !port.protocol.is_http()
        && port.protocol != Protocol::Udp
        && !is_by_name
}

impl<'a> AddressOwners<'a> {
    /// Collects the services of a snapshot.
    pub(super) fn of(context: &'a PushContext) -> Self {
        let mut owners = Self::default();
        for service in context.all_services() {
            for one in service.by_cluster.values().chain([&service.primary]) {
                for address in &one.vips {
                    owners.addresses.entry(*address).or_default().push(service);
                }
                for range in &one.ranges {
                    owners.ranges.entry(*range).or_default().push(service);
                }
            }
            let clients = match &service.primary.export_to {
                ExportTo::Public => vec![None],
                ExportTo::Namespaces(named) => named.iter().cloned().map(Some).collect(),
            };
            for port in service.ports().filter(|port| is_indistinguishable(service, port)) {
                for namespace in &clients {
                    if takes_rest(context, service, port, namespace.as_ref()) {
                        let place = (port.number, namespace.clone());
                        let first = owners.rest.entry(place).or_insert(service);
                        if order(service) < order(first) {
                            *first = service;
                        }
                    }
                }
            }
        }
        owners
    }

    /// Returns the service that receives the connections of clients in a namespace to unknown
    /// addresses at a TCP port.
    pub(super) fn rest(&self, port: u16, namespace: &Namespace) -> Option<&'a MergedService> {
        let clients = [None, Some(namespace.clone())];
        let found = clients.into_iter().filter_map(|one| self.rest.get(&(port, one)).copied());
        found.min_by_key(|service| order(service))
    }
}

/// Returns whether clients have a listener for the connections to a port of a service at unknown
/// addresses. Otherwise such connections pass their proxies unchanged.
fn takes_rest(
    context: &PushContext,
    service: &MergedService,
    port: &Port,
    namespace: Option<&Namespace>,
) -> bool {
    let namespace = &namespace.cloned().unwrap_or_default();
    let selection = &Selection::default();
    let sets_tls = || {
        let rules = context.rules_for(service);
        let client = RuleClient { namespace, selection };
        let rule = rules.rule(client, &service.primary.namespace);
        let tls = rule.and_then(|rule| rule.resolved("", port.number).tls);
        tls.is_some_and(|tls| *tls != ClientTls::Disable)
    };
    let host = HostPattern::for_service(service.hostname());
    let mut routed = context.traffic.routed_for_host(&host, namespace, selection);
    context.mesh.outbound_traffic_policy != OutboundTrafficPolicy::AllowAny
        || service.primary.resolution == Resolution::Passthrough
        || sets_tls()
        || routed.any(|routed| routed.routes_connections(port, namespace, selection))
}
