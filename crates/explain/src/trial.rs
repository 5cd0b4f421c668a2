//! Objects tried on: what would become of an object, and of the mesh, if it were stored as it is.
//!
//! The same readers, indexes and look-ups as those of what is stored ([`ConfigView`]), on a mesh that differs by the
//! objects that are tried alone. Changes nothing that others see.

use std::sync::{Arc, Mutex, PoisonError};

use imbl::OrdMap;
use serde_json::Value;

use super::config::{ConfigQuery, ConfigReports, ConfigView};
use super::standing::{ConfigReason, ConfigState, ObjectStanding};
use strait_base::codes::{self, Code};
use strait_mesh::push::PushContext;
use strait_model::fetched_keys::FetchedKeys;
use strait_model::mesh_config::{Defaults, InvalidYaml, MeshSettings, MeshTexts};
use strait_model::policy::DefaultVisibility;
use strait_model::{
    ClusterId, Collection, ConfigurationSnapshot, GATEWAY_API, Hostname, ISTIO_NETWORKING,
    ObjectJson, ObjectKey,
};
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors, PolicyKind};
use strait_rules::service_entry::EntryIndex;
use strait_rules::traffic::kept_subsets::{KEPT_FOR, KeptSubsets};
use strait_rules::traffic::{
    EditionIndex, KindSettings, Reason, Traffic, TrafficIndex, TrafficObject,
};

/// What is said of objects only because of what they were before, or of what is not known of them yet: no matter to
/// whoever asks whether they may be stored.
const OF_STORED: [&Code; 3] =
    [&codes::TRAFFIC_LAST_GOOD, &codes::ACCESS_PARTLY, &codes::WORKLOAD_UNUSED];

/// Tries objects on the mesh. Keeps what it made of the stored ones, so that one costs what differs since the last.
#[derive(Debug)]
pub struct ConfigTrials {
    errors: PolicyErrors,
    traffic: Mutex<Option<(KindSettings, TrafficIndex)>>,
}

/// Whether it is of interest what clusters' own traffic objects come to beside those that are tried.
#[derive(Debug, Clone, Copy)]
enum TriedEditions {
    /// Whoever asks looks at what holds for all.
    None,
    All,
}

/// What would become of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVerdict {
    /// Whether it can't be read, or holds an error for which proxies would refuse a part of it or answer requests with 500, or
    /// nothing of it could have an effect, whatever else there is; of an access policy, whether a part of it can't be read, so
    /// that it would guard less than it says.
    pub is_refused: bool,
    /// What would be said of it.
    pub state: ConfigState,
}

/// The mesh as it would be with other objects.
#[derive(Debug, Clone)]
pub struct TriedMesh {
    /// As it is.
    pub before: Arc<PushContext>,
    /// As it would be.
    pub then: Arc<PushContext>,
    /// What would be said of its objects.
    pub reports: ConfigReports,
}

impl TriedMesh {
    /// Of DestinationRules what is to be said of subsets that they would have no more while something still leads there: each by
    /// namespace and name of the object that has it now.
    pub fn kept_subsets(&self) -> Vec<([Arc<str>; 2], ConfigReason)> {
        let target = |host: &Hostname| self.before.aliases.target(host).clone();
        let all = KeptSubsets::foreseen(&self.before.traffic, &self.then.traffic, target);
        let told = all.into_iter().flat_map(|(rule, subset, by)| {
            let text = format!(
                "{subset} is gone, and VirtualService {by} leads there: who has it keeps it for {} s at most, then what goes there \
                 is answered 503",
                KEPT_FOR.as_secs()
            );
            let reason = ConfigReason::new(&codes::SUBSET_UNKNOWN, "spec.subsets", text);
            let objects = rule.objects.iter().map(|meta| [meta.namespace.as_str().into(), Arc::clone(&meta.name)]);
            objects.map(|name| (name, reason.clone())).collect::<Vec<_>>()
        });
        told.collect()
    }
}

impl ConfigTrials {
    /// None yet; of access policies that can't be read becomes what `errors` says.
    pub fn new(errors: PolicyErrors) -> Self {
        Self { errors, traffic: Mutex::default() }
    }

    /// What becomes of access policies that can't be read.
    pub fn errors(&self) -> PolicyErrors {
        self.errors
    }

    /// What would become of an object among those of the stores; `None` of one that is no part of the mesh's
    /// configuration, or has no name.
    pub fn verdict(
        &self,
        context: &Arc<PushContext>,
        reports: &ConfigReports,
        object: &Arc<Value>,
    ) -> Option<ObjectVerdict> {
        let key = ObjectKey::of(object)?;
        let mut objects = reports.objects.clone();
        objects.insert(key.clone(), Arc::clone(object));
        let is_policy = PolicyKind::of(&key).is_some();
        let (context, reports) = if is_policy {
            (self.with_policy(context, &reports.keys, &key, &objects), reports.clone())
        } else if is_entry(&key) {
            (Arc::clone(context), with_entry(context, &key, object))
        } else {
            self.with_traffic(context, reports, &objects, TriedEditions::None)
        };
        let query = ConfigQuery {
            kind: Some(key.kind.to_string()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
        };
        let states = ConfigView::new(&context, &reports, &[]).states(&query);
        let mut state = states.into_iter().next()?;
        // Those of other controllers are their matter.
        if state.reasons.iter().any(|reason| reason.code == codes::INGRESS_CLASS.id) {
            return None;
        }
        // What can be read of an access policy would be in force, and the rest would not guard anybody.
        let is_narrowed = is_policy && state.state == ObjectStanding::Partly;
        let read = reports.traffic.get(&key).and_then(|report| report.in_force());
        let is_empty = read.is_some_and(|read| is_empty(read, object));
        // The Gateway API has routes stored whose parts it answers with 500.
        let report = reports.traffic.get(&key).filter(|_| *key.group != *GATEWAY_API);
        let is_faulty =
            report.is_some_and(|report| report.state.reasons.iter().any(Reason::is_fault));
        let is_refused =
            is_narrowed || is_empty || is_faulty || state.state == ObjectStanding::Refused;
        state.reasons.retain(|reason| OF_STORED.iter().all(|code| code.id != reason.code));
        Some(ObjectVerdict { is_refused, state })
    }

    /// The mesh, and what is said of its objects, if the traffic configuration were that of these objects.
    fn with_traffic(
        &self,
        context: &Arc<PushContext>,
        reports: &ConfigReports,
        objects: &Collection,
        editions: TriedEditions,
    ) -> (Arc<PushContext>, ConfigReports) {
        let settings = KindSettings::of(&context.settings.domain, &context.mesh);
        // A reader that panicked leaves an index that may lack something: it is made anew.
        let mut kept = self.traffic.lock().unwrap_or_else(|poisoned| {
            let mut kept = PoisonError::into_inner(poisoned);
            *kept = None;
            self.traffic.clear_poison();
            kept
        });
        if kept.as_ref().is_none_or(|(of, _)| *of != settings) {
            *kept = Some((settings.clone(), TrafficIndex::new(settings)));
        }
        let Some((_, index)) = &mut *kept else { return (Arc::clone(context), reports.clone()) };
        index.follow(&reports.objects, &reports.traffic);
        index.apply(objects);
        index.take_news();
        let traffic = withholding(context, index);
        let own_traffic = match editions {
            TriedEditions::None => OrdMap::new(),
            TriedEditions::All => own_traffic(context, index),
        };
        let context = PushContext { traffic, own_traffic, ..PushContext::clone(context) };
        let mut members = reports.members.clone();
        for own in members.values_mut() {
            own.traffic = own
                .traffic
                .iter()
                .filter(|(key, _)| objects.get(key).is_none())
                .map(|(key, report)| (Arc::clone(key), Arc::clone(report)))
                .collect();
        }
        let reports = ConfigReports {
            members,
            objects: objects.clone(),
            unread: Arc::default(),
            traffic: index.reports().clone(),
            entries: Arc::clone(&reports.entries),
            keys: Arc::clone(&reports.keys),
            waiting: None,
        };
        (Arc::new(context), reports)
    }

    /// The mesh as it is and as it would be, with what would be said of its objects, if the stores held these objects.
    /// Entries are no part of it: what they describe stays as it is.
    pub fn with_objects(
        &self,
        context: &Arc<PushContext>,
        reports: &ConfigReports,
        objects: &Collection,
    ) -> TriedMesh {
        let (tried, reports_then) =
            self.with_traffic(context, reports, objects, TriedEditions::All);
        let touches_access =
            objects.differences(&reports.objects).any(|one| PolicyKind::of(one.key).is_some());
        let (before, then) = match touches_access {
            false => (Arc::clone(context), tried),
            true => {
                // What can't be read has no last good form here, on neither side: it makes no difference.
                let settings =
                    AccessSettings { root: context.access.root().clone(), errors: self.errors };
                let mut index = AccessIndex::new(settings.clone());
                index.take_keys(Arc::clone(&reports.keys));
                // As it is once all have learnt of it.
                let mut policies = |objects: &Collection| {
                    index.apply(&settings, objects).map(|change| change.policies)
                };
                let now = policies(&reports.objects).unwrap_or_else(|| Arc::clone(&context.access));
                let then = policies(objects).unwrap_or_else(|| Arc::clone(&now));
                (Arc::new(context.with_access(now)), Arc::new(tried.with_access(then)))
            }
        };
        TriedMesh { before, then, reports: reports_then }
    }

    /// The mesh as it is and as it would be with another configuration in force; access policies as they are where `access` names
    /// none. Gateways of networks stay as they are, whatever the mesh networks say.
    ///
    /// # Errors
    /// When its mesh config or its mesh networks can't be read.
    pub fn with_configuration(
        &self,
        context: &Arc<PushContext>,
        target: &ConfigurationSnapshot,
        access: Option<&Collection>,
        defaults: &Defaults,
    ) -> Result<[Arc<PushContext>; 2], InvalidYaml> {
        let texts = MeshTexts { config: target.mesh.clone(), networks: target.networks.clone() };
        let settings = MeshSettings::of_texts(texts, defaults)?;
        let config = settings.config.trusting(&context.mesh, access.is_some());
        let config = match context.policy.traffic().default_visibility {
            DefaultVisibility::Mesh => config,
            DefaultVisibility::Namespace => config.private_by_default(),
        };
        let mut index = TrafficIndex::new(KindSettings::of(&context.settings.domain, &config));
        index.apply(&target.traffic);
        let tried = PushContext {
            traffic: withholding(context, &index),
            own_traffic: own_traffic(context, &index),
            mesh: Arc::new(config),
            ..PushContext::clone(context)
        };
        let Some(access) = access else { return Ok([Arc::clone(context), Arc::new(tried)]) };
        // Both without the keys that were fetched: these are no part of a configuration.
        let settings = AccessSettings { root: context.access.root().clone(), errors: self.errors };
        let policies = |objects: &Collection| {
            let mut index = AccessIndex::new(settings.clone());
            index.apply(&settings, objects);
            index.policies()
        };
        let before = context.with_access(policies(&context.configuration.access));
        Ok([Arc::new(before), Arc::new(tried.with_access(policies(access)))])
    }

    /// The mesh with an access policy among those that may count in its place.
    fn with_policy(
        &self,
        context: &Arc<PushContext>,
        keys: &Arc<FetchedKeys>,
        key: &ObjectKey,
        objects: &Collection,
    ) -> Arc<PushContext> {
        let is_rival = |other: &ObjectKey| {
            let kind = PolicyKind::of(other).map(|name| name.kind);
            kind == Some(PolicyKind::Peer) && other.namespace == key.namespace
        };
        let near = objects.iter().filter(|(other, _)| *other == key || is_rival(other));
        let near: Collection = near.map(|(key, object)| (key.clone(), object.clone())).collect();
        let settings = AccessSettings { root: context.access.root().clone(), errors: self.errors };
        let mut index = AccessIndex::new(settings.clone());
        index.take_keys(Arc::clone(keys));
        let change = index.apply(&settings, &near);
        let access = change.map_or_else(|| Arc::clone(&context.access), |change| change.policies);
        Arc::new(PushContext { access, ..PushContext::clone(context) })
    }
}

/// The rules of an index, without those that are withheld from proxies now.
fn withholding(context: &PushContext, index: &TrafficIndex) -> Arc<Traffic> {
    let mut traffic = index.traffic().clone();
    let withheld = Arc::clone(context.traffic.virtual_services.withheld());
    traffic.virtual_services = traffic.virtual_services.withholding(withheld);
    Arc::new(traffic)
}

/// What holds for the proxies of clusters whose own traffic objects count, where an index says what holds for all.
fn own_traffic(context: &PushContext, index: &TrafficIndex) -> OrdMap<ClusterId, Arc<Traffic>> {
    let of = |cluster: &ClusterId| {
        let own = &context.facts.get(cluster)?.traffic;
        let edition = EditionIndex::new(cluster.clone(), index, own);
        Some((cluster.clone(), Arc::new(edition.traffic().clone())))
    };
    context.own_traffic.keys().filter_map(of).collect()
}

fn is_entry(key: &ObjectKey) -> bool {
    *key.group == *ISTIO_NETWORKING && matches!(&*key.kind, "ServiceEntry" | "WorkloadEntry")
}

/// Whether nothing of an object could have an effect, whatever else there is.
fn is_empty(read: &TrafficObject, object: &Value) -> bool {
    match read {
        TrafficObject::VirtualService(service) => {
            let names_hosts = object["spec"]["hosts"].as_array().is_some_and(|all| !all.is_empty());
            let has_hosts = service.mesh_hosts().next().is_some()
                || service.own_gateways().next().is_some() && !service.hosts.is_empty();
            names_hosts && !has_hosts
        }
        TrafficObject::Gateway(gateway) => gateway.servers.is_empty(),
        TrafficObject::Ingress(ingress) => ingress.rules.is_empty(),
        _ => false,
    }
}

/// An object as an API server would store it now in the place of `before`: the older object comes first, so its age counts.
/// Where objects have no dates, as in files, it has none either.
pub fn dated(object: &Arc<Value>, before: Option<&ObjectJson>, is_dated: bool) -> Arc<Value> {
    const CREATED: &str = "creationTimestamp";
    if !object["metadata"][CREATED].is_null() {
        return Arc::clone(object);
    }
    let stored = before.map(|before| before.to_value()["metadata"][CREATED].clone());
    let now = || is_dated.then(|| Value::from(format!("{:.0}", jiff::Timestamp::now())));
    let Some(created) = stored.filter(|stored| !stored.is_null()).or_else(now) else {
        return Arc::clone(object);
    };
    let mut object = Value::clone(object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.insert(CREATED.to_owned(), created);
    }
    Arc::new(object)
}

/// What is said of an entry by itself.
fn with_entry(context: &PushContext, key: &ObjectKey, object: &Arc<Value>) -> ConfigReports {
    let alone: Collection = [(key.clone(), Arc::clone(object))].into_iter().collect();
    let mut index = EntryIndex::new(&context.settings.trust_domain);
    index.export_by_default(&context.mesh.default_service_export_to);
    index.apply(&alone);
    ConfigReports { entries: index.problems().into(), objects: alone, ..ConfigReports::default() }
}
