//! Index of the traffic configuration, which is updated object by object.

use std::sync::Arc;

use serde_json::Value;

use super::changes::TrafficChanges;
use super::config::Traffic;
use super::destination_rule::{DestinationRule, DestinationRuleObjects, RulesInForce};
use super::envoy_filter::EnvoyFilter;
use super::gateway::Gateway;
use super::gateway_route::{GatewayRoute, ReferenceGrant};
use super::gateway_route_merge::GatewayRouteObjects;
use super::gateway_servers::{GatewayObjects, Gateways};
use super::hosts::HostPattern;
use super::ingress::{Ingress, IngressClass};
use super::ingress_merge::IngressObjects;
use super::kind::KindSettings;
use super::object::{ObjectMeta, ObjectState, Reason, new_reasons};
use super::proxy_config::SidecarDefaults;
use super::report::{TrafficObject, TrafficReport, TrafficReports};
use super::route::{RouteKind, RouteOrigin};
use super::scoped::ScopedInForce;
use super::shared::SharedParts;
use super::sidecar::Sidecar;
use super::telemetry::Telemetry;
use super::virtual_service::VirtualService;
use super::virtual_service_selection::{ServicesInForce, VirtualServiceObjects};
use crate::bounds;
use crate::budget::ObjectBudget;
use strait_base::codes;
use strait_model::{
    CLUSTERSET, Cause, Causes, ClusterId, Collection, GATEWAY_API, INGRESS_API, ISTIO_NETWORKING,
    ISTIO_TELEMETRY, LastValidObject, ObjectJson, ObjectKey, filling,
};

/// Result of a change of objects.
#[derive(Debug, Clone)]
pub struct TrafficUpdate {
    /// The active configuration.
    pub traffic: Arc<Traffic>,
    /// Parts that may differ from the previous configuration.
    pub changes: TrafficChanges,
    /// The objects that caused the change.
    pub causes: Causes,
}

impl TrafficUpdate {
    /// Combines this update with the next one.
    #[must_use]
    pub fn followed_by(mut self, next: Self) -> Self {
        self.changes.merge(next.changes);
        self.causes.merge(next.causes);
        Self { traffic: next.traffic, ..self }
    }
}

/// A kind of object that this index reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrafficKind {
    DestinationRule,
    Gateway,
    VirtualService,
    Sidecar,
    Telemetry,
    EnvoyFilter,
    ProxyConfig,
    HttpRoute,
    GrpcRoute,
    TcpRoute,
    TlsRoute,
    ReferenceGrant,
    Ingress,
    IngressClass,
}

impl TrafficKind {
    fn from_key(key: &ObjectKey) -> Option<Self> {
        match (&*key.group, &*key.kind) {
            (ISTIO_NETWORKING, "DestinationRule") => Some(Self::DestinationRule),
            (ISTIO_NETWORKING, "Gateway") => Some(Self::Gateway),
            (ISTIO_NETWORKING, "VirtualService") => Some(Self::VirtualService),
            (ISTIO_NETWORKING, "Sidecar") => Some(Self::Sidecar),
            (ISTIO_TELEMETRY, "Telemetry") => Some(Self::Telemetry),
            (ISTIO_NETWORKING, "EnvoyFilter") => Some(Self::EnvoyFilter),
            (ISTIO_NETWORKING, "ProxyConfig") => Some(Self::ProxyConfig),
            (GATEWAY_API, "HTTPRoute") => Some(Self::HttpRoute),
            (GATEWAY_API, "GRPCRoute") => Some(Self::GrpcRoute),
            (GATEWAY_API, "TCPRoute") => Some(Self::TcpRoute),
            (GATEWAY_API, "TLSRoute") => Some(Self::TlsRoute),
            (GATEWAY_API, "ReferenceGrant") => Some(Self::ReferenceGrant),
            (INGRESS_API, "Ingress") => Some(Self::Ingress),
            (INGRESS_API, "IngressClass") => Some(Self::IngressClass),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::DestinationRule => "DestinationRule",
            Self::Gateway => "Gateway",
            Self::VirtualService => "VirtualService",
            Self::Sidecar => "Sidecar",
            Self::Telemetry => "Telemetry",
            Self::EnvoyFilter => "EnvoyFilter",
            Self::ProxyConfig => "ProxyConfig",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TcpRoute => "TCPRoute",
            Self::TlsRoute => "TLSRoute",
            Self::ReferenceGrant => "ReferenceGrant",
            Self::Ingress => "Ingress",
            Self::IngressClass => "IngressClass",
        }
    }

    /// Returns whether an object with this reason keeps its last valid version as a whole.
    fn is_fault(self, reason: &Reason) -> bool {
        use TrafficKind::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute};
        match self {
            Self::VirtualService | Self::DestinationRule => reason.is_fault(),
            HttpRoute | GrpcRoute | TcpRoute | TlsRoute => reason.is_route_fault(),
            _ => false,
        }
    }

    fn read(self, meta: ObjectMeta, object: &Value, settings: &KindSettings) -> ReadOutcome {
        Ok(match self {
            Self::DestinationRule => {
                let (rule, reasons) = DestinationRule::read(meta, object, settings)?;
                (TrafficObject::DestinationRule(Arc::new(rule)), reasons)
            }
            Self::Gateway => {
                let (gateway, reasons) = Gateway::read(meta, object)?;
                (TrafficObject::Gateway(Arc::new(gateway)), reasons)
            }
            Self::VirtualService => {
                let (service, reasons) = VirtualService::read(meta, object, settings)?;
                (TrafficObject::VirtualService(Arc::new(service)), reasons)
            }
            Self::Sidecar => {
                let (sidecar, reasons) = Sidecar::read(meta, object, settings)?;
                (TrafficObject::Sidecar(Arc::new(sidecar)), reasons)
            }
            Self::Telemetry => {
                let (telemetry, reasons) = Telemetry::read(meta, object)?;
                (TrafficObject::Telemetry(Arc::new(telemetry)), reasons)
            }
            Self::EnvoyFilter => {
                let (filter, reasons) = EnvoyFilter::read(meta, object)?;
                (TrafficObject::EnvoyFilter(Arc::new(filter)), reasons)
            }
            Self::ProxyConfig => {
                let (defaults, reasons) = SidecarDefaults::read(meta, object)?;
                (TrafficObject::SidecarDefaults(Arc::new(defaults)), reasons)
            }
            Self::HttpRoute | Self::GrpcRoute => {
                let (route, reasons) = GatewayRoute::read(self.name(), meta, object, settings)?;
                (TrafficObject::GatewayRoute(Arc::new(route)), reasons)
            }
            Self::TcpRoute | Self::TlsRoute => {
                let (route, reasons) =
                    GatewayRoute::read_connections(self.name(), meta, object, settings)?;
                (TrafficObject::GatewayRoute(Arc::new(route)), reasons)
            }
            Self::Ingress => {
                let (ingress, reasons) = Ingress::read(meta, object, settings)?;
                (TrafficObject::Ingress(Arc::new(ingress)), reasons)
            }
            Self::IngressClass => {
                let (class, reasons) = IngressClass::read(meta, object)?;
                (TrafficObject::IngressClass(Arc::new(class)), reasons)
            }
            Self::ReferenceGrant => {
                let grant = Arc::new(ReferenceGrant::read(meta, object)?);
                (TrafficObject::ReferenceGrant(grant), Vec::new())
            }
        })
    }
}

/// The last valid version of an object, as stored and as parsed, and whether that version contains
/// errors.
type EarlierVersion = ((ObjectJson, TrafficObject), bool);

/// A parsed object with its reasons, or the reason why it is refused.
type ReadOutcome = Result<(TrafficObject, Vec<Reason>), Reason>;

/// Handling of the last valid version of an object that cannot be read any more.
#[derive(Debug, Clone, Copy)]
enum EarlierForm {
    IsActive,
    IsForgotten,
}

/// Index of the traffic objects. Pure. The result of a history of changes equals the result of its
/// last state.
#[derive(Debug)]
pub struct TrafficIndex {
    settings: KindSettings,
    /// The objects of the last `apply`.
    objects: Collection,
    /// Active versions of the objects of supported kinds. For an object that cannot be read, this
    /// is its last valid version.
    counting: Collection,
    reports: TrafficReports,
    shared: SharedParts,
    destination_rules: DestinationRuleObjects,
    gateways: GatewayObjects,
    virtual_services: VirtualServiceObjects,
    gateway_routes: GatewayRouteObjects,
    ingresses: IngressObjects,
    traffic: Traffic,
    /// Reasons for added or changed objects that [`Self::take_new_reasons`] has not returned yet.
    news: Vec<(ObjectKey, Reason)>,
    /// The versions from before a restart, until the first `apply`.
    remembered: Collection,
    is_initialized: bool,
    budget: ObjectBudget,
}

impl TrafficIndex {
    /// Creates an empty index.
    pub fn new(settings: KindSettings) -> Self {
        Self {
            traffic: Traffic {
                gateways: Gateways::empty(settings.gateway_scope),
                ..Traffic::default()
            },
            settings,
            objects: Collection::default(),
            counting: Collection::default(),
            reports: TrafficReports::new(),
            shared: SharedParts::default(),
            destination_rules: DestinationRuleObjects::default(),
            gateways: GatewayObjects::default(),
            virtual_services: VirtualServiceObjects::default(),
            gateway_routes: GatewayRouteObjects::default(),
            ingresses: IngressObjects::default(),
            news: Vec::new(),
            remembered: Collection::default(),
            is_initialized: false,
            budget: ObjectBudget::default(),
        }
    }

    /// Sets the CPU budget for reading each object.
    #[must_use]
    pub fn with_budget(self, budget: ObjectBudget) -> Self {
        Self { budget, ..self }
    }

    /// Restores the versions of objects from before a restart. If an object cannot be read now, the
    /// restored version is its last valid one. None of them takes effect before [`Self::apply`] is
    /// called.
    pub fn remember(&mut self, objects: &Collection) {
        self.remembered = objects.clone();
    }

    /// Replaces all objects; objects of other kinds are ignored. Returns `None` if nothing changes:
    /// the order and the resource versions of the objects have no effect. The first call always
    /// returns an update.
    pub fn apply(&mut self, objects: &Collection) -> Option<TrafficUpdate> {
        self.take(objects, EarlierForm::IsActive)
    }

    /// Rolls back to an earlier set of active objects. Exactly these versions become active: the
    /// last valid versions that were read since then are dropped. Returns `None` if nothing
    /// changes.
    pub fn restore(&mut self, counting: &Collection) -> Option<TrafficUpdate> {
        self.take(counting, EarlierForm::IsForgotten)
    }

    fn take(&mut self, objects: &Collection, earlier: EarlierForm) -> Option<TrafficUpdate> {
        let before = std::mem::replace(&mut self.objects, objects.clone());
        let mut changes = TrafficChanges::default();
        let mut causes = Causes::default();
        for difference in filling(objects.differences(&before)) {
            let Some(kind) = TrafficKind::from_key(difference.key) else { continue };
            let key = difference.key;
            let touched = match difference.now {
                Some(object) => self.put(kind, key, (object, earlier), &mut changes),
                None => self.remove(key, &mut changes),
            };
            if touched {
                causes.add(Cause {
                    namespace: Arc::clone(&key.namespace),
                    ..Cause::named(ClusterId::default(), kind.name(), &*key.name)
                });
            }
        }
        // Reasons are reported in the order of the objects.
        self.news.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.remembered = Collection::default();
        self.join_routes(&mut changes);
        self.note_news();
        let first = !std::mem::replace(&mut self.is_initialized, true);
        (first || !changes.is_empty()).then(|| TrafficUpdate {
            traffic: Arc::new(self.traffic.clone()),
            changes,
            causes,
        })
    }

    /// Replaces all objects by the objects of another index with the same settings. Its parsed
    /// objects are reused.
    pub fn follow(&mut self, objects: &Collection, reports: &TrafficReports) {
        let before = std::mem::replace(&mut self.objects, objects.clone());
        let mut changes = TrafficChanges::default();
        for difference in filling(objects.differences(&before)) {
            let key = difference.key;
            if TrafficKind::from_key(key).is_none() {
                continue;
            }
            match (reports.get_key_value(key), difference.now) {
                (Some((key, report)), Some(object)) => {
                    self.adopt(key, (object, report), &mut changes);
                }
                _ => drop(self.remove(key, &mut changes)),
            }
        }
        self.join_routes(&mut changes);
        self.note_news();
        self.news.clear();
        self.is_initialized = true;
    }

    /// Replaces all objects by the objects of `others` and of a cluster, `own`. Only the latter are
    /// parsed; `own_before` is its value in the previous call. Returns `None` if nothing changes.
    pub(super) fn apply_with_shared(
        &mut self,
        others: &Self,
        [own_before, own]: [&Collection; 2],
        cluster: &ClusterId,
    ) -> Option<TrafficUpdate> {
        let mut objects = others.counting.clone();
        for (key, object) in own.iter() {
            let shared = own.shared_key(key).filter(|_| others.counting.get(key).is_none());
            shared.into_iter().for_each(|key| objects.insert_shared(key, object.clone()));
        }
        let before = std::mem::replace(&mut self.objects, objects.clone());
        let (mut changes, mut causes) = (TrafficChanges::default(), Causes::default());
        for difference in objects.differences(&before) {
            let Some(kind) = TrafficKind::from_key(difference.key) else { continue };
            let key = difference.key;
            let read = others.reports.get_key_value(key);
            let was_own = || own_before.get(key).is_some();
            let is_own = read.is_none() && (own.get(key).is_some() || was_own());
            let touched = match (difference.now, read) {
                (Some(object), Some((key, report))) => {
                    self.adopt(key, (object, report), &mut changes)
                }
                (Some(object), None) => {
                    // Another object with the same name is not an earlier version of this one.
                    let earlier = match own_before.get(key) {
                        Some(_) => EarlierForm::IsActive,
                        None => EarlierForm::IsForgotten,
                    };
                    self.put(kind, key, (object, earlier), &mut changes)
                }
                (None, _) => self.remove(key, &mut changes),
            };
            if touched {
                let cluster = if is_own { cluster.clone() } else { ClusterId::default() };
                causes.add(Cause {
                    namespace: Arc::clone(&key.namespace),
                    ..Cause::named(cluster, kind.name(), &*key.name)
                });
            }
        }
        self.join_routes(&mut changes);
        self.note_news();
        let traffic = || Arc::new(self.traffic.clone());
        (!changes.is_empty()).then(|| TrafficUpdate { traffic: traffic(), changes, causes })
    }

    /// Returns whether both indexes parse objects in the same way.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        self.settings == other.settings
    }

    /// Returns an index with the same objects and without pending reasons.
    #[must_use]
    pub fn replica(&self) -> Self {
        let mut replica = Self::new(self.settings.clone()).with_budget(self.budget.clone());
        replica.follow(&self.objects, &self.reports);
        replica
    }

    /// Returns a replica for the proxies of a cluster that has dedicated objects.
    pub(super) fn replica_for(&self, cluster: &ClusterId) -> Self {
        self.replica().with_budget(self.budget.for_cluster(cluster))
    }

    /// Returns the active versions of the objects of supported kinds.
    pub fn counting(&self) -> &Collection {
        &self.counting
    }

    /// Returns the active configuration.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Activates the merged routes of the Gateway API and of Ingresses.
    fn join_routes(&mut self, changes: &mut TrafficChanges) {
        let exchanges = self.gateway_routes.take_exchanges(&self.settings.domain);
        let has_requests = |service: &Option<Arc<VirtualService>>| {
            service.as_ref().is_some_and(|one| !one.http.is_empty())
        };
        if exchanges.iter().any(|(before, now)| has_requests(before) != has_requests(now)) {
            let addressed = self.gateway_routes.addressed(&self.settings.domain);
            for namespace in addressed.differing(&self.traffic.addressed) {
                let all = [self.settings.domain.as_str(), CLUSTERSET].into_iter().map(|domain| {
                    HostPattern::parse(&format!("*.{namespace}.svc.{domain}"), "", domain)
                });
                changes.hosts.extend(all.filter_map(Result::ok));
            }
            self.traffic.addressed = addressed;
        }
        for (before, now) in exchanges {
            let object = TrafficObject::VirtualService;
            before.into_iter().for_each(|before| self.remove_object(&object(before), changes));
            now.into_iter().for_each(|now| self.put_in(object(now), changes));
        }
        let exchanges = self.ingresses.take_exchanges(&self.settings);
        let object = TrafficObject::Gateway;
        for (before, now) in exchanges.gateways {
            before.into_iter().for_each(|before| self.remove_object(&object(before), changes));
            now.into_iter().for_each(|now| self.put_in(object(now), changes));
        }
        let object = TrafficObject::VirtualService;
        for (before, now) in exchanges.services {
            before.into_iter().for_each(|before| self.remove_object(&object(before), changes));
            now.into_iter().for_each(|now| self.put_in(object(now), changes));
        }
    }

    /// Collects the reasons that are caused by other objects.
    fn note_news(&mut self) {
        // Reasons for Ingresses of other controllers are dropped.
        let Self { news, reports, ingresses, .. } = self;
        news.retain(|(key, _)| match reports.get(key).and_then(|report| report.active()) {
            Some(TrafficObject::Ingress(ingress)) => ingresses.follows(ingress),
            _ => true,
        });
        let news = self.gateways.take_new_reasons(&self.traffic.gateways);
        self.news.extend(news.into_iter().map(|(meta, reason)| {
            let key = match self.traffic.gateways.source_ingress(&meta) {
                Some(ingress) => object_key(INGRESS_API, TrafficKind::Ingress, ingress.clone()),
                None => object_key(ISTIO_NETWORKING, TrafficKind::Gateway, meta),
            };
            (key, reason)
        }));
        let news = self.ingresses.take_new_reasons();
        let all = news.into_iter().map(|(origin, reason)| (origin_key(&origin), reason));
        self.news.extend(all);
        let services = (&self.traffic.virtual_services, self.settings.host_sharing);
        let news = self.virtual_services.take_new_reasons(services, &self.traffic.gateways);
        let all = news.into_iter().map(|(origin, reason)| (origin_key(&origin), reason));
        self.news.extend(all);
    }

    /// Changes the settings and parses all objects again if they differ.
    pub fn set(&mut self, settings: KindSettings) -> Option<TrafficUpdate> {
        if settings == self.settings {
            return None;
        }
        let objects = self.objects.clone();
        let is_initialized = self.is_initialized;
        let mut rebuilt = Self::new(settings).with_budget(self.budget.clone());
        if !is_initialized {
            rebuilt.remembered = std::mem::take(&mut self.remembered);
            *self = rebuilt;
            return None;
        }
        // The last valid versions are read first, so that they stay active.
        let good = self
            .reports
            .iter()
            .filter_map(|(key, report)| Some((ObjectKey::clone(key), report.good()?.0.clone())));
        rebuilt.apply(&good.collect());
        let mut update = rebuilt.apply(&objects);
        if let Some(update) = &mut update {
            update.causes = Causes::default();
        }
        let changes = self.changes_to(&rebuilt);
        let traffic = Arc::new(rebuilt.traffic.clone());
        *self = rebuilt;
        Some(TrafficUpdate { traffic, changes, causes: Causes::default() })
    }

    /// Returns the parts that may differ if the second index becomes active: everything that either
    /// index mentions.
    pub(super) fn changes_to(&self, after: &Self) -> TrafficChanges {
        let mut changes =
            TrafficChanges { selectors: true, gateways: true, ..TrafficChanges::default() };
        changes.hosts.extend(self.traffic.destination_rules.hosts());
        changes.hosts.extend(after.traffic.destination_rules.hosts());
        for traffic in [&self.traffic, &after.traffic] {
            changes.hosts.extend(traffic.virtual_services.hosts().cloned());
        }
        changes.every_scope |= after.traffic.telemetries != self.traffic.telemetries;
        changes.every_scope |= after.traffic.envoy_filters != self.traffic.envoy_filters;
        match after.traffic.sidecars.differing(&self.traffic.sidecars) {
            Some(scopes) => changes.scopes.extend(scopes),
            None => changes.every_scope = true,
        }
        changes.every_scope |= after.traffic.addressed != self.traffic.addressed;
        changes
    }

    /// Returns the reasons for objects that were added or changed since the last call.
    pub fn take_new_reasons(&mut self) -> Vec<(ObjectKey, Reason)> {
        std::mem::take(&mut self.news)
    }

    /// Returns the reports of all objects that this index reads.
    pub fn reports(&self) -> &TrafficReports {
        &self.reports
    }

    /// Returns the last valid versions of objects that are refused now.
    pub fn last_valid_objects(&self) -> Vec<LastValidObject> {
        let last_valid = |(key, report): (&Arc<ObjectKey>, &Arc<TrafficReport>)| {
            let (good, _) = report.good().filter(|_| report.state.refused)?;
            let (key, now) = (ObjectKey::clone(key), self.objects.get(key)?.clone());
            Some(LastValidObject { key, now, good: good.clone() })
        };
        self.reports.iter().filter_map(last_valid).collect()
    }

    /// Reads and applies an object. Returns whether anything changed.
    fn put(
        &mut self,
        kind: TrafficKind,
        key: &ObjectKey,
        (object, earlier): (&ObjectJson, EarlierForm),
        changes: &mut TrafficChanges,
    ) -> bool {
        self.budget.begin(key);
        let before = self.reports.get(key);
        let was = match (earlier, before) {
            (EarlierForm::IsForgotten, _) => None,
            (EarlierForm::IsActive, None) => self.remembered_form(kind, key, object),
            (EarlierForm::IsActive, Some(report)) => {
                let good = report.good();
                good.map(|(stored, read)| ((stored.clone(), read.clone()), report.is_faulty))
            }
        };
        let read = match bounds::to_value(key, object) {
            Ok(value) => kind.read(ObjectMeta::from_object(key, &value), &value, &self.settings),
            Err(excess) => Err(Reason::lost(&codes::OBJECT_SURPLUS, excess.path.clone(), excess)),
        };
        let read = read.and_then(|read| self.budget_fault().map_or(Ok(read), Err));
        let is_refused = read.is_err();
        let touched = self.install(kind, key, object, (read, was.clone()), changes);
        match self.budget_fault() {
            Some(fault) if !is_refused => {
                self.install(kind, key, object, (Err(fault), was), changes) || touched
            }
            _ => touched,
        }
    }

    /// Returns the reason if the current object exceeds its CPU budget.
    fn budget_fault(&self) -> Option<Reason> {
        let excess = self.budget.excess()?;
        Some(Reason::lost(&codes::OBJECT_COST, "spec", excess))
    }

    /// Applies a parsed object, or its last valid version. Returns whether anything changed.
    fn install(
        &mut self,
        kind: TrafficKind,
        key: &ObjectKey,
        object: &ObjectJson,
        (read, was): (ReadOutcome, Option<EarlierVersion>),
        changes: &mut TrafficChanges,
    ) -> bool {
        let shared = self.objects.shared_key(key);
        let shared = shared.map_or_else(|| Arc::new(key.clone()), Arc::clone);
        let before = self.reports.remove(key);
        let given = before.as_ref().map_or(&[][..], |report| &report.state.reasons);
        let old = before.as_ref().and_then(|report| report.active()).cloned();
        let (good, state) = match read {
            Ok((mut read, reasons)) => {
                let is_faulty = has_faults(kind, &reasons);
                match was.filter(|(_, was_faulty)| is_faulty && !was_faulty) {
                    Some(was) => {
                        (Some(was), ObjectState { reasons, refused: true, is_last_good: true })
                    }
                    None => {
                        self.shared.share(&mut read);
                        let state = ObjectState { reasons, ..ObjectState::default() };
                        (Some(((object.clone(), read), is_faulty)), state)
                    }
                }
            }
            Err(reason) => {
                let is_last_good = was.is_some();
                let state = ObjectState { reasons: vec![reason], refused: true, is_last_good };
                (was, state)
            }
        };
        let is_guarded = good.is_none() && kind == TrafficKind::DestinationRule;
        let guard = is_guarded.then(|| {
            let value = object.to_value();
            DestinationRule::guard(ObjectMeta::from_object(key, &value), &value, &self.settings)
        });
        let guard = guard.flatten().map(|rule| TrafficObject::DestinationRule(Arc::new(rule)));
        let new = new_reasons(&state.reasons, given);
        self.news.extend(new.map(|reason| (key.clone(), reason.clone())));
        let mut state = Arc::new(state);
        self.shared.states.share(&mut state);
        let report = match good {
            Some((good, is_faulty)) => TrafficReport::from_parts(good, is_faulty, state),
            None => TrafficReport::guarded(guard, state),
        };
        let new = report.active().cloned();
        let counts = report.good().map_or(object, |(stored, _)| stored);
        self.counting.insert_shared(&shared, counts.clone());
        self.reports.insert(shared, Arc::new(report));
        if old == new {
            return false;
        }
        if let Some(old) = old {
            self.remove_object(&old, changes);
        }
        if let Some(new) = new {
            self.put_in(new, changes);
        }
        true
    }

    /// Applies an object that another index has parsed. Returns whether anything changed.
    fn adopt(
        &mut self,
        key: &Arc<ObjectKey>,
        (object, report): (&ObjectJson, &Arc<TrafficReport>),
        changes: &mut TrafficChanges,
    ) -> bool {
        let before = self.reports.insert(Arc::clone(key), Arc::clone(report));
        let counts = report.good().map_or(object, |(stored, _)| stored);
        self.counting.insert_shared(key, counts.clone());
        let old = before.as_ref().and_then(|report| report.active());
        let new = report.active();
        if old == new {
            return false;
        }
        if let Some(old) = old {
            self.remove_object(old, changes);
        }
        if let Some(new) = new {
            self.put_in(new.clone(), changes);
        }
        true
    }

    /// Returns the version of an object from before a restart, if it differs from the current one.
    fn remembered_form(
        &self,
        kind: TrafficKind,
        key: &ObjectKey,
        now: &ObjectJson,
    ) -> Option<EarlierVersion> {
        let stored = self.remembered.get(key).filter(|stored| *stored != now)?;
        let value = bounds::to_value(key, stored).ok()?;
        let (read, reasons) =
            kind.read(ObjectMeta::from_object(key, &value), &value, &self.settings).ok()?;
        Some(((stored.clone(), read), has_faults(kind, &reasons)))
    }

    fn remove(&mut self, key: &ObjectKey, changes: &mut TrafficChanges) -> bool {
        let report = self.reports.remove(key);
        self.counting.remove(key);
        let Some(old) = report.as_ref().and_then(|report| report.active()) else { return false };
        self.remove_object(old, changes);
        true
    }

    fn put_in(&mut self, object: TrafficObject, changes: &mut TrafficChanges) {
        let Self { traffic, settings, .. } = self;
        match object {
            TrafficObject::DestinationRule(rule) => {
                let Traffic { destination_rules: rules, selectors, .. } = traffic;
                let into = RulesInForce { rules, selectors, settings, changes };
                self.destination_rules.insert(rule, into);
            }
            TrafficObject::Gateway(gateway) => {
                self.virtual_services.touch_bound(&gateway.name, &traffic.virtual_services);
                self.gateways.insert(gateway, &mut traffic.gateways, changes);
            }
            TrafficObject::VirtualService(service) => {
                let Traffic { virtual_services: services, selectors, sidecars, .. } = traffic;
                let is_scoped = !sidecars.is_empty();
                let into = ServicesInForce { services, selectors, changes, is_scoped };
                self.virtual_services.insert(service, into);
            }
            TrafficObject::Sidecar(sidecar) => {
                let Traffic { sidecars, selectors, .. } = traffic;
                let root_namespace = &settings.root_namespace;
                let into = ScopedInForce { selectors, changes, root_namespace };
                sidecars.insert(&sidecar, into);
            }
            TrafficObject::Telemetry(telemetry) => {
                let Traffic { telemetries, selectors, .. } = traffic;
                let root_namespace = &settings.root_namespace;
                let into = ScopedInForce { selectors, changes, root_namespace };
                telemetries.insert(&telemetry, into);
            }
            TrafficObject::EnvoyFilter(filter) => {
                let Traffic { envoy_filters, selectors, .. } = traffic;
                let root_namespace = &settings.root_namespace;
                let into = ScopedInForce { selectors, changes, root_namespace };
                envoy_filters.insert(&filter, into);
            }
            // It does not affect the configuration of proxies.
            TrafficObject::SidecarDefaults(_) => {}
            TrafficObject::GatewayRoute(route) => self.gateway_routes.insert(&route),
            TrafficObject::ReferenceGrant(grant) => self.gateway_routes.insert_grant(&grant),
            TrafficObject::Ingress(ingress) => self.ingresses.insert(&ingress),
            TrafficObject::IngressClass(class) => self.ingresses.insert_class(&class),
        }
    }

    fn remove_object(&mut self, object: &TrafficObject, changes: &mut TrafficChanges) {
        let Self { traffic, settings, .. } = self;
        match object {
            TrafficObject::DestinationRule(rule) => {
                let Traffic { destination_rules: rules, selectors, .. } = traffic;
                let from = RulesInForce { rules, selectors, settings, changes };
                self.destination_rules.remove(rule, from);
            }
            TrafficObject::Gateway(gateway) => {
                self.virtual_services.touch_bound(&gateway.name, &traffic.virtual_services);
                self.gateways.remove(gateway, &mut traffic.gateways, changes);
            }
            TrafficObject::VirtualService(service) => {
                let Traffic { virtual_services: services, selectors, sidecars, .. } = traffic;
                let is_scoped = !sidecars.is_empty();
                let from = ServicesInForce { services, selectors, changes, is_scoped };
                self.virtual_services.remove(service, from);
            }
            TrafficObject::Sidecar(sidecar) => {
                let Traffic { sidecars, selectors, .. } = traffic;
                let root_namespace = &settings.root_namespace;
                let from = ScopedInForce { selectors, changes, root_namespace };
                sidecars.remove(sidecar, from);
            }
            TrafficObject::Telemetry(telemetry) => {
                let Traffic { telemetries, selectors, .. } = traffic;
                let root_namespace = &settings.root_namespace;
                let from = ScopedInForce { selectors, changes, root_namespace };
                telemetries.remove(telemetry, from);
            }
            TrafficObject::EnvoyFilter(filter) => {
                let Traffic { envoy_filters, selectors, .. } = traffic;
                let root_namespace = &settings.root_namespace;
                let from = ScopedInForce { selectors, changes, root_namespace };
                envoy_filters.remove(filter, from);
            }
            TrafficObject::SidecarDefaults(_) => {}
            TrafficObject::GatewayRoute(route) => self.gateway_routes.remove(route),
            TrafficObject::ReferenceGrant(grant) => self.gateway_routes.remove_grant(grant),
            TrafficObject::Ingress(ingress) => self.ingresses.remove(ingress),
            TrafficObject::IngressClass(class) => self.ingresses.remove_class(class),
        }
    }
}

fn has_faults(kind: TrafficKind, reasons: &[Reason]) -> bool {
    reasons.iter().any(|reason| kind.is_fault(reason))
}

fn object_key(group: &str, kind: TrafficKind, meta: ObjectMeta) -> ObjectKey {
    ObjectKey {
        kind: kind.name().into(),
        group: group.into(),
        namespace: meta.namespace.into(),
        name: meta.name,
    }
}

/// Returns the key of the object that rules come from.
fn origin_key(origin: &RouteOrigin) -> ObjectKey {
    let (group, kind) = match origin.kind {
        RouteKind::HttpRoute => (GATEWAY_API, TrafficKind::HttpRoute),
        RouteKind::GrpcRoute => (GATEWAY_API, TrafficKind::GrpcRoute),
        RouteKind::TcpRoute => (GATEWAY_API, TrafficKind::TcpRoute),
        RouteKind::TlsRoute => (GATEWAY_API, TrafficKind::TlsRoute),
        RouteKind::Ingress => (INGRESS_API, TrafficKind::Ingress),
        RouteKind::VirtualService => (ISTIO_NETWORKING, TrafficKind::VirtualService),
    };
    let RouteOrigin { namespace, name, .. } = origin.clone();
    object_key(group, kind, ObjectMeta { created: 0, name, namespace })
}

#[cfg(test)]
mod tests;
