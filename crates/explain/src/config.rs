//! What becomes of each object of the mesh's configuration: for whom it holds, which parts of it have no effect, and
//! what is missing or came first.
//!
//! Asks the very look-ups by which proxies are given their configuration (`traffic`, `access`), for the clients that
//! there may be. Decides nothing itself. A whole list costs a look at every object; nothing is kept.

mod address_owners;
mod clients;
mod destinations;
mod effect;
mod entries;
mod entry_owners;
mod foreign;
mod gateways;
mod ingresses;
mod libraries;
mod object_status;
mod objects;
mod route_status;
mod routes;
mod rules;
mod scopes;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::address_owners::AddressOwners;
use self::clients::{Audience, ClientGroups, RouterGroup};
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
use strait_rules::traffic::selection::RuleSelector;
use strait_rules::traffic::{Reason, Traffic, TrafficObject, TrafficReport, TrafficReports};

/// What is known of the objects of the stores beside what is in force.
#[derive(Debug, Clone, Default)]
pub struct ConfigReports {
    /// All of them, as they are stored.
    pub objects: Collection,
    /// Those that can't be read as they are stored now, each with what is wrong: what is stored is what they were before.
    pub unread: Arc<BTreeMap<ObjectKey, Arc<str>>>,
    /// Those of the traffic configuration, each as it was last read.
    pub traffic: TrafficReports,
    /// Those of clusters whose own count for their proxies.
    pub members: BTreeMap<ClusterId, MemberReports>,
    /// What is wrong with entries.
    pub entries: Arc<[EntryProblem]>,
    /// The keys of token issuers that have been fetched.
    pub keys: Arc<FetchedKeys>,
    /// What of them waits, while another configuration is held.
    pub waiting: Option<Arc<WaitingConfiguration>>,
}

/// What is known of the traffic objects of a cluster, where they count for its proxies.
#[derive(Debug, Clone, Default)]
pub struct MemberReports {
    /// All of them.
    pub objects: Collection,
    /// Those that the shared store has not as well.
    pub traffic: TrafficReports,
}

/// What objects say while another configuration is held.
#[derive(Debug, Clone)]
pub struct WaitingConfiguration {
    /// Their traffic configuration.
    pub traffic: Arc<Traffic>,
    /// The access policies, where these wait as well.
    pub access: Option<Arc<AccessPolicies>>,
    /// The mesh config.
    pub mesh: Arc<MeshConfig>,
    /// Whether it is being let out to a share of proxies; else it waits until somebody releases what is held.
    pub is_let_out: bool,
    /// What of all that is otherwise than what is held.
    pub what: Arc<Waiting>,
}

impl ConfigReports {
    /// The mesh by which objects are judged: as it would be if nothing were held. Gateways of networks stay as they are.
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

/// Which objects are asked for; all where nothing is named.
#[derive(Debug, Clone, Default)]
pub struct ConfigQuery {
    /// Of this kind.
    pub kind: Option<String>,
    /// In this namespace.
    pub namespace: Option<String>,
    /// Of this name.
    pub name: Option<String>,
}

impl ConfigQuery {
    /// Whether this object is asked for.
    pub fn selects(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let fits =
            |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|one| one == is);
        fits(&self.kind, kind) && fits(&self.namespace, namespace) && fits(&self.name, name)
    }
}

/// The objects at one version of the mesh.
pub struct ConfigView<'a> {
    context: &'a PushContext,
    reports: &'a ConfigReports,
    clients: ClientGroups<'a>,
    /// What routers have asked for and can't be given.
    credentials: Vec<CredentialFault>,
    /// Whether all services of the mesh are known: what isn't among them is not there.
    services_known: bool,
    /// Where it isn't, what would have to be there.
    unknown: RefCell<BTreeSet<String>>,
    /// The routers among the clients.
    routers: OnceCell<Vec<RouterGroup<'a>>>,
    /// By workloads that entries describe, the services that have them.
    workloads: OnceCell<BTreeMap<WorkloadKey, BTreeSet<Hostname>>>,
    /// The services by their addresses.
    address_owners: OnceCell<AddressOwners<'a>>,
    /// The namespaces of workloads that selectors of Gateways select, as far as that was asked.
    selected: RefCell<BTreeMap<RuleSelector, Audience>>,
}

/// What was found out of an object.
#[derive(Debug, Default)]
struct Finding {
    reasons: Vec<Reason>,
    /// Where that is no matter of its parts.
    standing: Option<ObjectStanding>,
    proxies: usize,
}

impl Finding {
    /// Nothing that is known could use it.
    fn unused(code: &'static Code, path: &str, text: impl std::fmt::Display) -> Self {
        Self {
            reasons: vec![Reason::warning(code, path, text)],
            standing: Some(ObjectStanding::Unused),
            proxies: 0,
        }
    }
}

impl<'a> ConfigView<'a> {
    /// Looks at what is in force, for those that are connected, each named once.
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
            selected: RefCell::default(),
        }
    }

    /// The same, with what routers have asked for and can't be given.
    #[must_use]
    pub fn with_credentials(self, credentials: Vec<CredentialFault>) -> Self {
        Self { credentials, ..self }
    }

    /// The same where there may be further services, workloads and proxies, as where nothing is known but some files.
    #[must_use]
    pub fn of_files(self) -> Self {
        Self { services_known: false, ..self }
    }

    /// What becomes of the objects that are asked for, by kind, namespace and name; those of clusters behind those for all.
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

    /// What becomes of the traffic objects of a cluster, for its proxies.
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
                        "the shared store has a {} {}/{} as well, which counts alone",
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

    /// What becomes of the objects that are asked for, of those `of` which something is wanted.
    fn keyed_states(
        &self,
        query: &ConfigQuery,
        of: impl Fn(&ObjectKey) -> bool,
    ) -> Vec<(ObjectKey, ConfigState)> {
        let asked =
            |key: &ObjectKey| query.selects(&key.kind, &key.namespace, &key.name) && of(key);
        let keys = self.reports.objects.iter().map(|(key, _)| key).filter(|key| asked(key));
        let mut states: Vec<_> =
            keys.filter_map(|key| Some((ObjectKey::clone(key), self.state(key)?))).collect();
        let policies = policy_states(
            self.context,
            self.clients.proxies(),
            self.services_known,
            |name: &PolicyName| asked(&name.key()),
        );
        states.extend(policies);
        states.iter_mut().for_each(|(_, state)| note_unread(state, &self.reports.unread));
        if let Some(waiting) = &self.reports.waiting {
            states.iter_mut().for_each(|(_, state)| note_waiting(state, waiting));
        }
        states
    }

    /// The routers that are connected, without east-west gateways.
    fn routers(&self) -> &[RouterGroup<'a>] {
        self.routers.get_or_init(|| RouterGroup::all(self.context, self.clients.proxies()))
    }

    /// The hosts that objects name and that no service is here, so that nothing can be said of what is led there.
    pub fn unknown_hosts(&self) -> BTreeSet<String> {
        self.unknown.borrow().clone()
    }

    /// Whether a service that isn't known here is none; if not, notes it.
    fn is_none(&self, host: impl std::fmt::Display) -> bool {
        if !self.services_known {
            self.unknown.borrow_mut().insert(host.to_string());
        }
        self.services_known
    }

    /// Whether some workload of a namespace that is known carries all of these labels; be it by a proxy that is connected
    /// alone, whose pod nobody knows.
    fn is_carried(&self, labels: &Labels, namespace: &Namespace) -> bool {
        let mut known = self.context.workload_labels(Some(namespace));
        let mut connected = self.clients.proxies().iter();
        known.any(|(_, carried)| labels_match(labels, carried))
            || connected.any(|proxy| {
                proxy.namespace() == namespace
                    && labels_match(labels, self.context.labels_of(proxy))
            })
    }

    /// What becomes of an object; `None` of one that is no part of the mesh's configuration, or that others tell of.
    fn state(&self, key: &ObjectKey) -> Option<ConfigState> {
        if let Some(report) = self.reports.traffic.get(key) {
            return Some(self.read(key, report));
        }
        if let Some(state) = self.entry(key) {
            return Some(state);
        }
        objects::is_of_mesh(key).then(|| {
            let text = format!("Strait does not follow objects of kind {}", key.kind);
            let finding = Finding::unused(&codes::KIND_UNREAD, "kind", text);
            state_of(key, ObjectStanding::Unused, finding)
        })
    }

    /// What becomes of an object of the traffic configuration.
    fn read(&self, key: &ObjectKey, report: &TrafficReport) -> ConfigState {
        let (standing, finding) = self.found(report);
        state_of(key, standing, finding)
    }

    /// What was found out of an object of the traffic configuration.
    fn found(&self, report: &TrafficReport) -> (ObjectStanding, Finding) {
        let mut told = report.state.reasons.clone();
        let Some((stored, object)) = report.good() else {
            return (ObjectStanding::Refused, Finding { reasons: told, ..Finding::default() });
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
            // What stands in for it is another text than the one that its owner looks at.
            let text = "what it said before it was changed is in force";
            told.push(Reason::warning(&codes::TRAFFIC_LAST_GOOD, "spec", text));
            let finding = Finding { reasons: told, proxies: found.proxies, standing: None };
            return (ObjectStanding::Refused, finding);
        }
        let mut found = found;
        told.append(&mut found.reasons);
        found.reasons = told;
        self.note_effect(object, &stored.to_value(), &mut found);
        let is_partly = found.reasons.iter().any(|reason| reason.is_lost);
        let by_parts = if is_partly { ObjectStanding::Partly } else { ObjectStanding::InForce };
        let standing = found.standing.unwrap_or(by_parts);
        (standing, found)
    }
}

/// Says of an object that can't be read as it is stored now that what it was before counts.
fn note_unread(state: &mut ConfigState, unread: &BTreeMap<ObjectKey, Arc<str>>) {
    let is_it = |(key, _): &(&ObjectKey, &Arc<str>)| {
        (&*key.kind, &*key.namespace, &*key.name) == (&*state.kind, &*state.namespace, &*state.name)
    };
    let Some((_, wrong)) = unread.iter().find(is_it) else { return };
    state.state = ObjectStanding::Refused;
    let text = format!("{wrong}; what it said before is in force");
    state.reasons.insert(0, ConfigReason::new(&codes::CONFIG_FILE, "", text));
}

/// Says of an object that waits that it does. What else is told of it is what would become of it.
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
    let (code, text) = match waiting.is_let_out {
        true => {
            (&codes::ROLLOUT_RUNS, "what the object says now is given to a share of proxies first")
        }
        false => (
            &codes::HELD,
            "the configuration is held, and what the object says now counts when that is released",
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
