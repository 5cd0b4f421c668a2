//! Status of each object of the mesh's configuration: the clients to which it applies, its parts
//! without effect, missing references, and objects that take precedence.
//!
//! It calls the functions that generate the configuration of proxies (`traffic`, `access`), for
//! each possible group of clients, and decides nothing itself. A complete list visits every object
//! and uses no cache.

mod address_owners;
mod client_tls;
mod clients;
mod covered_objects;
mod covered_rules;
mod destinations;
mod effect;
mod entries;
mod entry_owners;
mod foreign;
mod gateways;
mod ingresses;
mod libraries;
mod listener_ports;
mod object_status;
mod objects;
mod route_status;
mod routes;
mod rules;
mod scopes;
mod senders;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use self::address_owners::AddressOwners;
use self::clients::{Audience, ClientGroups, RouterGroup};
use self::covered_rules::CoveredRules;
pub use self::gateways::CredentialFault;
use super::access::policy_states;
use super::standing::{ConfigReason, ConfigState, ObjectStanding};
use strait_base::codes::{self, Code};
use strait_mesh::hold::Waiting;
use strait_mesh::push::PushContext;
use strait_model::fetched_keys::FetchedKeys;
use strait_model::mesh_config::MeshConfig;
use strait_model::{
    ClusterId, Collection, Hostname, Labels, Namespace, ObjectKey, Proxy, WorkloadKey, labels_match,
};
use strait_rules::access::{AccessPolicies, PolicyName};
use strait_rules::service_entry::EntryProblem;
use strait_rules::traffic::gateway_servers::Gateways;
use strait_rules::traffic::selection::RuleSelector;
use strait_rules::traffic::virtual_service_selection::RoutedService;
use strait_rules::traffic::{
    ObjectMeta, Reason, Traffic, TrafficObject, TrafficReport, TrafficReports,
};

/// Facts about the objects of the stores, in addition to the active configuration.
#[derive(Debug, Clone, Default)]
pub struct ConfigReports {
    /// All objects as stored.
    pub objects: Collection,
    /// Objects whose stored version is invalid, with the error; `objects` contains their last valid
    /// version.
    pub unread: Arc<BTreeMap<ObjectKey, Arc<str>>>,
    /// Reports of the traffic objects, each from its last parse.
    pub traffic: TrafficReports,
    /// Reports of the clusters whose own traffic objects apply to their proxies.
    pub members: BTreeMap<ClusterId, MemberReports>,
    /// Problems of service entries.
    pub entries: Arc<[EntryProblem]>,
    /// The fetched keys of token issuers.
    pub keys: Arc<FetchedKeys>,
    /// The configuration that waits for the release of a held configuration.
    pub waiting: Option<Arc<WaitingConfiguration>>,
}

/// Facts about the traffic objects of a cluster that apply to its own proxies.
#[derive(Debug, Clone, Default)]
pub struct MemberReports {
    /// All traffic objects of the cluster.
    pub objects: Collection,
    /// Reports of the objects that the shared store does not contain too.
    pub traffic: TrafficReports,
}

/// The configuration of the current objects, which waits for the release of a held configuration.
#[derive(Debug, Clone)]
pub struct WaitingConfiguration {
    /// The traffic configuration.
    pub traffic: Arc<Traffic>,
    /// The access policies, if they wait as well.
    pub access: Option<Arc<AccessPolicies>>,
    /// The mesh config.
    pub mesh: Arc<MeshConfig>,
    /// Whether it is being rolled out gradually. If not, it waits until the held configuration is
    /// released.
    pub rolls_out_gradually: bool,
    /// Differences from the held configuration.
    pub what: Arc<Waiting>,
}

impl ConfigReports {
    /// Returns the mesh against which objects are judged: as if no configuration were held.
    /// Gateways of networks stay unchanged.
    pub fn judged(&self, context: &Arc<PushContext>) -> Arc<PushContext> {
        let Some(waiting) = &self.waiting else { return Arc::clone(context) };
        let released = PushContext {
            traffic: Arc::clone(&waiting.traffic),
            mesh: Arc::clone(&waiting.mesh),
            ..PushContext::clone(context)
        };
        Arc::new(match &waiting.access {
            Some(policies) => released.with_access(Arc::clone(policies)),
            None => released,
        })
    }
}

/// Filter for objects; a filter without fields selects all.
#[derive(Debug, Clone, Default)]
pub struct ConfigQuery {
    /// Kind of the objects.
    pub kind: Option<String>,
    /// Namespace of the objects.
    pub namespace: Option<String>,
    /// Name of the objects.
    pub name: Option<String>,
}

impl ConfigQuery {
    /// Returns whether the filter selects this object.
    pub fn selects(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let fits =
            |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|one| one == is);
        fits(&self.kind, kind) && fits(&self.namespace, namespace) && fits(&self.name, name)
    }
}

/// A view of the status of all objects at one version of the mesh.
pub struct ConfigView<'a> {
    context: &'a PushContext,
    reports: &'a ConfigReports,
    clients: ClientGroups<'a>,
    /// Credentials that routers have requested and cannot receive.
    credentials: Vec<CredentialFault>,
    /// Whether all services of the mesh are known, so that any other service does not exist.
    services_known: bool,
    /// Hosts that are referenced but unknown, if `services_known` is false.
    unknown: RefCell<BTreeSet<String>>,
    /// The routers among the clients.
    routers: OnceCell<Vec<RouterGroup<'a>>>,
    /// The services that use each workload described by an entry.
    workloads: OnceCell<BTreeMap<WorkloadKey, BTreeSet<Hostname>>>,
    /// The services by their addresses.
    address_owners: OnceCell<AddressOwners<'a>>,
    /// The ports of all services.
    service_ports: OnceCell<BTreeSet<u16>>,
    /// Whether rules for routers are evaluated.
    covered_rules: OnceCell<CoveredRules>,
    /// Whether merged routes of the Gateway API are evaluated, by their active form.
    covered_routes: RefCell<HashMap<*const RoutedService, Rc<CoveredRules>>>,
    /// The Gateways without the parts that they lose to others.
    remaining_gateways: OnceCell<Gateways>,
    /// Cache of whether Gateways have no effect.
    idle_gateways: RefCell<BTreeMap<ObjectMeta, bool>>,
    /// Cache of the namespaces with workloads that a Gateway's selector selects.
    selected: RefCell<BTreeMap<RuleSelector, Audience>>,
}

/// Result of the check of an object.
#[derive(Debug, Default)]
struct Finding {
    reasons: Vec<Reason>,
    /// Standing of the object, if its parts do not determine it.
    standing: Option<ObjectStanding>,
    proxies: usize,
}

impl Finding {
    /// Creates the finding that no known client could use the object.
    fn unused(code: &'static Code, path: &str, text: impl std::fmt::Display) -> Self {
        Self {
            reasons: vec![Reason::warning(code, path, text)],
            standing: Some(ObjectStanding::Unused),
            proxies: 0,
        }
    }
}

impl<'a> ConfigView<'a> {
    /// Creates a view of the active configuration for these connected proxies, each listed once.
    pub fn new(
        context: &'a PushContext,
        reports: &'a ConfigReports,
        proxies: &'a [&'a Proxy],
    ) -> Self {
        let clients = ClientGroups::of(context, proxies);
        Self {
            context,
            reports,
            clients,
            credentials: Vec::new(),
            services_known: true,
            unknown: RefCell::default(),
            routers: OnceCell::new(),
            workloads: OnceCell::new(),
            address_owners: OnceCell::new(),
            service_ports: OnceCell::new(),
            covered_rules: OnceCell::new(),
            covered_routes: RefCell::default(),
            remaining_gateways: OnceCell::new(),
            idle_gateways: RefCell::default(),
            selected: RefCell::default(),
        }
    }

    /// Adds the credentials that routers have requested and cannot receive.
    #[must_use]
    pub fn with_credentials(self, credentials: Vec<CredentialFault>) -> Self {
        Self { credentials, ..self }
    }

    /// Marks that further services, workloads and proxies may exist, as for a mesh built from
    /// files.
    #[must_use]
    pub fn of_files(self) -> Self {
        Self { services_known: false, ..self }
    }

    /// Returns the status of the selected objects, by kind, namespace and name. Objects of single
    /// clusters follow the ones for the whole mesh.
    pub fn states(&self, query: &ConfigQuery) -> Vec<ConfigState> {
        let all = self.keyed_states(query, |_| true).into_iter();
        let mut states: Vec<_> = all.map(|(_, state)| state).collect();
        let members = self.reports.members.iter();
        states.extend(members.flat_map(|(cluster, own)| self.states_of(cluster, own, query)));
        states.sort_by(|a, b| {
            let order = |one: &'_ ConfigState| {
                (one.kind.clone(), one.namespace.clone(), one.name.clone(), one.cluster.clone())
            };
            order(a).cmp(&order(b))
        });
        states
    }

    /// Returns the status of a cluster's own traffic objects, for its proxies.
    fn states_of(
        &self,
        cluster: &ClusterId,
        own: &MemberReports,
        query: &ConfigQuery,
    ) -> Vec<ConfigState> {
        let edition = self.context.edition(cluster);
        let proxies = self.clients.proxies().iter().copied();
        let proxies: Vec<_> = proxies.filter(|proxy| proxy.cluster == *cluster).collect();
        let reports = ConfigReports { traffic: own.traffic.clone(), ..ConfigReports::default() };
        let view = ConfigView {
            services_known: self.services_known,
            ..ConfigView::new(edition.as_ref().unwrap_or(self.context), &reports, &proxies)
        };
        let keys = own.objects.iter().map(|(key, _)| key);
        let keys = keys.filter(|key| query.selects(&key.kind, &key.namespace, &key.name));
        let state = |key: &ObjectKey| {
            let state = match own.traffic.get(key) {
                Some(report) => view.read(key, report),
                None => {
                    let text = format!(
                        "the shared store also has a {} {}/{}, which applies instead",
                        key.kind, key.namespace, key.name
                    );
                    let reasons =
                        vec![Reason::lost(&codes::OF_SHARED_STORE, "metadata.name", text)];
                    let finding = Finding { reasons, ..Finding::default() };
                    state_of(key, ObjectStanding::Shadowed, finding)
                }
            };
            ConfigState { store: "member", cluster: Some(cluster.to_string()), ..state }
        };
        keys.map(state).collect()
    }

    /// Returns the status of the objects that the query and the filter `of` select.
    fn keyed_states(
        &self,
        query: &ConfigQuery,
        of: impl Fn(&ObjectKey) -> bool,
    ) -> Vec<(ObjectKey, ConfigState)> {
        let is_selected =
            |key: &ObjectKey| query.selects(&key.kind, &key.namespace, &key.name) && of(key);
        let keys = self.reports.objects.iter().map(|(key, _)| key).filter(|key| is_selected(key));
        let mut states: Vec<_> =
            keys.filter_map(|key| Some((ObjectKey::clone(key), self.state(key)?))).collect();
        let policies = policy_states(
            self.context,
            self.clients.proxies(),
            self.services_known,
            |name: &PolicyName| is_selected(&name.key()),
        );
        states.extend(policies);
        states.iter_mut().for_each(|(_, state)| note_unread(state, &self.reports.unread));
        if let Some(waiting) = &self.reports.waiting {
            states.iter_mut().for_each(|(_, state)| note_waiting(state, waiting));
        }
        states
    }

    /// Returns the connected routers, without east-west gateways.
    fn routers(&self) -> &[RouterGroup<'a>] {
        self.routers.get_or_init(|| RouterGroup::all(self.context, self.clients.proxies()))
    }

    /// Returns the hosts that objects refer to and that are not known as services. The effect of
    /// routes to them is unknown.
    pub fn unknown_hosts(&self) -> BTreeSet<String> {
        self.unknown.borrow().clone()
    }

    /// Returns whether an unknown service certainly does not exist. If this is uncertain, records
    /// the host.
    fn is_none(&self, host: impl std::fmt::Display) -> bool {
        if !self.services_known {
            self.unknown.borrow_mut().insert(host.to_string());
        }
        self.services_known
    }

    /// Returns whether a workload of a namespace has all of these labels: a known workload, or one
    /// whose pod is unknown and whose proxy is connected.
    fn is_carried(&self, labels: &Labels, namespace: &Namespace) -> bool {
        let mut known = self.context.workload_labels(Some(namespace));
        let mut connected = self.clients.proxies().iter();
        known.any(|(_, carried)| labels_match(labels, carried))
            || connected.any(|proxy| {
                proxy.namespace() == namespace
                    && labels_match(labels, self.context.labels_of(proxy))
            })
    }

    /// Returns the status of an object. Returns `None` if it is not part of the mesh's
    /// configuration, or if its status comes from elsewhere.
    fn state(&self, key: &ObjectKey) -> Option<ConfigState> {
        if let Some(report) = self.reports.traffic.get(key) {
            return Some(self.read(key, report));
        }
        if let Some(state) = self.entry(key) {
            return Some(state);
        }
        objects::is_of_mesh(key).then(|| {
            let text = format!("Strait does not support kind {} of {}", key.kind, key.group);
            let finding = Finding::unused(&codes::KIND_UNREAD, "kind", text);
            state_of(key, ObjectStanding::Unused, finding)
        })
    }

    /// Returns the status of a traffic object.
    fn read(&self, key: &ObjectKey, report: &TrafficReport) -> ConfigState {
        let (standing, finding) = self.found(report);
        state_of(key, standing, finding)
    }

    /// Returns the standing of a traffic object and the finding about it.
    fn found(&self, report: &TrafficReport) -> (ObjectStanding, Finding) {
        let mut reasons = report.state.reasons.clone();
        let Some((stored, object)) = report.good() else {
            return (ObjectStanding::Refused, Finding { reasons, ..Finding::default() });
        };
        let found = match object {
            TrafficObject::DestinationRule(rule) => self.destination_rule(rule, &stored.to_value()),
            TrafficObject::VirtualService(service) => {
                self.virtual_service(service, &stored.to_value())
            }
            TrafficObject::Gateway(gateway) => self.gateway(gateway),
            TrafficObject::Sidecar(sidecar) => self.sidecar(sidecar),
            TrafficObject::Telemetry(telemetry) => self.telemetry(telemetry),
            TrafficObject::EnvoyFilter(filter) => self.envoy_filter(filter),
            TrafficObject::SidecarDefaults(defaults) => self.sidecar_defaults(defaults),
            TrafficObject::GatewayRoute(route) => self.gateway_route(route),
            TrafficObject::ReferenceGrant(grant) => self.reference_grant(grant),
            TrafficObject::Ingress(ingress) => self.ingress(ingress),
            TrafficObject::IngressClass(class) => self.ingress_class(class),
        };
        if report.state.refused {
            // The active version differs from the version that the object's owner sees.
            let text = "the last valid version stays active";
            reasons.push(Reason::warning(&codes::TRAFFIC_LAST_GOOD, "spec", text));
            let finding = Finding { reasons, proxies: found.proxies, standing: None };
            return (ObjectStanding::Refused, finding);
        }
        let mut found = found;
        reasons.append(&mut found.reasons);
        found.reasons = reasons;
        self.note_effect(object, &stored.to_value(), &mut found);
        let is_partly = found.reasons.iter().any(|reason| reason.is_lost);
        let by_parts = if is_partly { ObjectStanding::Partly } else { ObjectStanding::InForce };
        let standing = found.standing.unwrap_or(by_parts);
        (standing, found)
    }
}

/// Marks an object whose stored version is invalid: its last valid version is active.
fn note_unread(state: &mut ConfigState, unread: &BTreeMap<ObjectKey, Arc<str>>) {
    let is_it = |(key, _): &(&ObjectKey, &Arc<str>)| {
        (&*key.kind, &*key.namespace, &*key.name) == (&*state.kind, &*state.namespace, &*state.name)
    };
    let Some((_, wrong)) = unread.iter().find(is_it) else { return };
    state.state = ObjectStanding::Refused;
    let text = format!("{wrong}; the last valid version stays active");
    state.reasons.insert(0, ConfigReason::new(&codes::CONFIG_FILE, "", text));
}

/// Marks an object that waits. Its other reasons describe its future effect.
fn note_waiting(state: &mut ConfigState, waiting: &WaitingConfiguration) {
    let is_it = |key: &ObjectKey| {
        (&*key.kind, &*key.namespace, &*key.name) == (&*state.kind, &*state.namespace, &*state.name)
    };
    if !waiting.what.objects.iter().any(is_it) {
        return;
    }
    if state.state != ObjectStanding::Refused {
        state.state = ObjectStanding::Waiting;
    }
    state.proxies = 0;
    let (code, text) = match waiting.rolls_out_gradually {
        true => (&codes::ROLLOUT_RUNS, "the new version is being rolled out gradually"),
        false => (
            &codes::HELD,
            "the configuration is held; the new version takes effect after its release",
        ),
    };
    state.reasons.insert(0, ConfigReason::new(code, "", text));
}

fn state_of(key: &ObjectKey, state: ObjectStanding, found: Finding) -> ConfigState {
    ConfigState {
        kind: key.kind.to_string(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        store: "config",
        cluster: None,
        state,
        proxies: found.proxies,
        reasons: found.reasons.iter().map(ConfigReason::from).collect(),
    }
}

#[cfg(test)]
mod tests;
