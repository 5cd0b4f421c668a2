//! Trials: the status of an object, and the resulting mesh, as if the object were stored.
//!
//! They use the same readers, indexes and look-ups as for stored objects ([`ConfigView`]), on a
//! mesh that differs only by the tried objects. They change no shared state.

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
    ClusterId, Collection, ConfigRole, ConfigurationSnapshot, GATEWAY_API, Hostname, ObjectJson,
    ObjectKey,
};
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors, PolicyKind};
use strait_rules::service_entry::EntryIndex;
use strait_rules::traffic::retained_subsets::{KEPT_FOR, RetainedSubsets};
use strait_rules::traffic::{
    EditionIndex, KindSettings, Reason, Traffic, TrafficIndex, TrafficObject,
};

/// Codes of reasons that only refer to an earlier version of the object, or to facts that may still
/// become known. They do not affect whether it may be stored.
const OF_STORED: [&Code; 3] =
    [&codes::TRAFFIC_LAST_GOOD, &codes::ACCESS_PARTLY, &codes::WORKLOAD_UNUSED];

/// Tries objects on the mesh. Caches the index of the stored objects, so that a trial only costs
/// the differences since the last one.
#[derive(Debug)]
pub struct ConfigTrials {
    errors: PolicyErrors,
    traffic: Mutex<Option<(KindSettings, TrafficIndex)>>,
}

/// Whether a trial also computes the rules of clusters with their own traffic objects.
#[derive(Debug, Clone, Copy)]
enum TriedEditions {
    /// Only rules for the whole mesh are computed.
    None,
    All,
}

/// Result of the trial of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVerdict {
    /// Whether the object is invalid, contains an error that makes proxies reject a part of it or
    /// respond to requests with 500, or could never have an effect. For an access policy, also
    /// whether a part is invalid, because it would then protect less than it states.
    pub is_refused: bool,
    /// The status that the object would have.
    pub state: ConfigState,
}

/// The mesh with different objects.
#[derive(Debug, Clone)]
pub struct TriedMesh {
    /// The current mesh.
    pub before: Arc<PushContext>,
    /// The resulting mesh.
    pub then: Arc<PushContext>,
    /// Reports about the objects of the resulting mesh.
    pub reports: ConfigReports,
}

impl TriedMesh {
    /// Returns reasons about subsets that DestinationRules would lose while a VirtualService still
    /// routes to them, each with namespace and name of the DestinationRule that defines the subset
    /// now.
    pub fn kept_subsets(&self) -> Vec<([Arc<str>; 2], ConfigReason)> {
        let target = |host: &Hostname| self.before.aliases.target(host).clone();
        let all = RetainedSubsets::predict(&self.before.traffic, &self.then.traffic, target);
        let reasons = all.into_iter().flat_map(|(rule, subset, by)| {
            let text = format!(
                "{subset} no longer exists, and VirtualService {by} still routes to it: proxies keep it for at most {} s, then requests to it \
                 are answered with 503",
                KEPT_FOR.as_secs()
            );
            let reason = ConfigReason::new(&codes::SUBSET_UNKNOWN, "spec.subsets", text);
            let objects = rule.objects.iter().map(|meta| [meta.namespace.as_str().into(), Arc::clone(&meta.name)]);
            objects.map(|name| (name, reason.clone())).collect::<Vec<_>>()
        });
        reasons.collect()
    }
}

impl ConfigTrials {
    /// Creates the trials without any cached index. `errors` states how invalid access policies are
    /// treated.
    pub fn new(errors: PolicyErrors) -> Self {
        Self { errors, traffic: Mutex::default() }
    }

    /// Returns how invalid access policies are treated.
    pub fn errors(&self) -> PolicyErrors {
        self.errors
    }

    /// Returns the result of storing an object in addition to the objects of the stores. Returns
    /// `None` if the object is not part of the mesh's configuration or has no name.
    pub fn verdict(
        &self,
        context: &Arc<PushContext>,
        reports: &ConfigReports,
        object: &Arc<Value>,
    ) -> Option<ObjectVerdict> {
        let key = ObjectKey::of(object)?;
        let mut objects = reports.objects.clone();
        objects.insert(key.clone(), Arc::clone(object));
        let is_policy = PolicyKind::policy_name(&key).is_some();
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
        // Objects of other controllers are not judged.
        if state.reasons.iter().any(|reason| reason.code == codes::INGRESS_CLASS.id) {
            return None;
        }
        // The valid parts of an access policy would be active, and the others would protect
        // nothing.
        let is_narrowed = is_policy && state.state == ObjectStanding::Partly;
        let read = reports.traffic.get(&key).and_then(|report| report.active());
        let is_empty = read.is_some_and(|read| is_empty(read, object));
        // A route that is attached to no Service belongs to another controller.
        let is_fault = match read {
            Some(TrafficObject::GatewayRoute(route)) if route.parents.is_empty() => {
                |_: &Reason| false
            }
            _ if *key.group == *GATEWAY_API => Reason::is_route_fault,
            _ => Reason::is_fault,
        };
        let report = reports.traffic.get(&key);
        let is_faulty = report.is_some_and(|report| report.state.reasons.iter().any(is_fault));
        let is_refused =
            is_narrowed || is_empty || is_faulty || state.state == ObjectStanding::Refused;
        state.reasons.retain(|reason| OF_STORED.iter().all(|code| code.id != reason.code));
        Some(ObjectVerdict { is_refused, state })
    }

    /// Returns the mesh, and the reports about its objects, with the traffic configuration of these
    /// objects.
    fn with_traffic(
        &self,
        context: &Arc<PushContext>,
        reports: &ConfigReports,
        objects: &Collection,
        editions: TriedEditions,
    ) -> (Arc<PushContext>, ConfigReports) {
        let settings = KindSettings::for_domain(&context.settings.domain, &context.mesh);
        // After a panic, the index may be incomplete, so it is rebuilt.
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
        index.take_new_reasons();
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

    /// Returns the current and the resulting mesh, with the reports about its objects, as if the
    /// stores contained these objects. Service entries are not included: their services stay
    /// unchanged.
    pub fn with_objects(
        &self,
        context: &Arc<PushContext>,
        reports: &ConfigReports,
        objects: &Collection,
    ) -> TriedMesh {
        let (tried, reports_then) =
            self.with_traffic(context, reports, objects, TriedEditions::All);
        let touches_access = objects
            .differences(&reports.objects)
            .any(|one| PolicyKind::policy_name(one.key).is_some());
        let (before, then) = match touches_access {
            false => (Arc::clone(context), tried),
            true => {
                // On both sides, invalid objects have no last valid version here, so they cause no
                // difference.
                let settings =
                    AccessSettings { root: context.access.root().clone(), errors: self.errors };
                let mut index = AccessIndex::new(settings.clone());
                index.apply_keys(Arc::clone(&reports.keys));
                // The state after all proxies have received the policies.
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

    /// Returns the current mesh and the mesh with another configuration. The access policies stay
    /// unchanged if `access` is `None`. Gateways of networks stay unchanged, even if the mesh
    /// networks differ.
    ///
    /// # Errors
    /// If the mesh config or the mesh networks of the configuration are invalid.
    pub fn with_configuration(
        &self,
        context: &Arc<PushContext>,
        target: &ConfigurationSnapshot,
        access: Option<&Collection>,
        defaults: &Defaults,
    ) -> Result<[Arc<PushContext>; 2], InvalidYaml> {
        let texts = MeshTexts { config: target.mesh.clone(), networks: target.networks.clone() };
        let settings = MeshSettings::parse(texts, defaults)?;
        let config = settings.config.with_trust_of(&context.mesh, access.is_some());
        let config = match context.policy.traffic().default_visibility {
            DefaultVisibility::Mesh => config,
            DefaultVisibility::Namespace => config.private_by_default(),
        };
        let mut index =
            TrafficIndex::new(KindSettings::for_domain(&context.settings.domain, &config));
        index.apply(&target.traffic);
        let tried = PushContext {
            traffic: withholding(context, &index),
            own_traffic: own_traffic(context, &index),
            mesh: Arc::new(config),
            ..PushContext::clone(context)
        };
        let Some(access) = access else { return Ok([Arc::clone(context), Arc::new(tried)]) };
        // Both without fetched keys, which are not part of a configuration.
        let settings = AccessSettings { root: context.access.root().clone(), errors: self.errors };
        let policies = |objects: &Collection| {
            let mut index = AccessIndex::new(settings.clone());
            index.apply(&settings, objects);
            index.policies()
        };
        let before = context.with_access(policies(&context.configuration.access));
        Ok([Arc::new(before), Arc::new(tried.with_access(policies(access)))])
    }

    /// Returns the mesh with an access policy and the policies that may take precedence over it.
    fn with_policy(
        &self,
        context: &Arc<PushContext>,
        keys: &Arc<FetchedKeys>,
        key: &ObjectKey,
        objects: &Collection,
    ) -> Arc<PushContext> {
        let is_rival = |other: &ObjectKey| {
            let kind = PolicyKind::policy_name(other).map(|name| name.kind);
            kind == Some(PolicyKind::Peer) && other.namespace == key.namespace
        };
        let near = objects.iter().filter(|(other, _)| *other == key || is_rival(other));
        let near: Collection = near.map(|(key, object)| (key.clone(), object.clone())).collect();
        let settings = AccessSettings { root: context.access.root().clone(), errors: self.errors };
        let mut index = AccessIndex::new(settings.clone());
        index.apply_keys(Arc::clone(keys));
        let change = index.apply(&settings, &near);
        let access = change.map_or_else(|| Arc::clone(&context.access), |change| change.policies);
        Arc::new(PushContext { access, ..PushContext::clone(context) })
    }
}

/// Returns the rules of an index, except for the ones that are currently withheld from proxies.
fn withholding(context: &PushContext, index: &TrafficIndex) -> Arc<Traffic> {
    let mut traffic = index.traffic().clone();
    let withheld = Arc::clone(context.traffic.virtual_services.withheld());
    traffic.virtual_services = traffic.virtual_services.withholding(withheld);
    Arc::new(traffic)
}

/// Returns the rules for the proxies of clusters that have their own active traffic objects, based
/// on an index of the shared rules.
fn own_traffic(context: &PushContext, index: &TrafficIndex) -> OrdMap<ClusterId, Arc<Traffic>> {
    let of = |cluster: &ClusterId| {
        let own = &context.facts.get(cluster)?.traffic;
        let edition = EditionIndex::new(cluster.clone(), index, own);
        Some((cluster.clone(), Arc::new(edition.traffic().clone())))
    };
    context.own_traffic.keys().filter_map(of).collect()
}

fn is_entry(key: &ObjectKey) -> bool {
    ConfigRole::of(key) == Some(ConfigRole::Entries)
}

/// Returns whether an object could never have an effect.
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

/// Returns an object as an API server would store it now instead of `before`. It keeps the age of
/// the older version, because older objects take precedence. If objects have no dates, as in files,
/// it gets none either.
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

/// Returns the reports about a single entry.
fn with_entry(context: &PushContext, key: &ObjectKey, object: &Arc<Value>) -> ConfigReports {
    let alone: Collection = [(key.clone(), Arc::clone(object))].into_iter().collect();
    let mut index = EntryIndex::new(&context.settings.trust_domain);
    index.export_by_default(&context.mesh.default_service_export_to);
    index.apply(&alone);
    ConfigReports { entries: index.problems().into(), objects: alone, ..ConfigReports::default() }
}
