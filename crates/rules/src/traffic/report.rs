//! Each object of the traffic configuration as it was last read.

use std::sync::Arc;

use imbl::OrdMap;

use super::destination_rule::DestinationRule;
use super::envoy_filter::EnvoyFilter;
use super::gateway::Gateway;
use super::gateway_route::{GatewayRoute, ReferenceGrant};
use super::ingress::{Ingress, IngressClass};
use super::object::ObjectState;
use super::proxy_config::SidecarDefaults;
use super::sidecar::Sidecar;
use super::telemetry::Telemetry;
use super::virtual_service::VirtualService;
use strait_model::{ObjectJson, ObjectKey};

/// An object that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrafficObject {
    /// A DestinationRule.
    DestinationRule(Arc<DestinationRule>),
    /// A VirtualService.
    VirtualService(Arc<VirtualService>),
    /// A Gateway.
    Gateway(Arc<Gateway>),
    /// A Sidecar.
    Sidecar(Arc<Sidecar>),
    /// A Telemetry.
    Telemetry(Arc<Telemetry>),
    /// An EnvoyFilter.
    EnvoyFilter(Arc<EnvoyFilter>),
    /// A ProxyConfig.
    SidecarDefaults(Arc<SidecarDefaults>),
    /// An HTTPRoute or a GRPCRoute.
    GatewayRoute(Arc<GatewayRoute>),
    /// An Ingress.
    Ingress(Arc<Ingress>),
    /// An IngressClass.
    IngressClass(Arc<IngressClass>),
    /// A ReferenceGrant.
    ReferenceGrant(Arc<ReferenceGrant>),
}

/// An object, and what is said of it.
#[derive(Debug)]
pub struct TrafficReport {
    /// The last of it that made sense, as it was stored.
    stored: Option<ObjectJson>,
    /// The same as it was read. Where none of it ever made sense, what counts in its place: see [`DestinationRule::guard`].
    read: Option<TrafficObject>,
    /// Whether that version holds [errors](super::object::Reason::is_fault).
    pub(super) is_faulty: bool,
    /// How it was taken as it is now.
    pub state: Arc<ObjectState>,
}

impl TrafficReport {
    /// The last of an object that made sense, and how it is taken as it is now.
    pub(super) fn of(
        good: (ObjectJson, TrafficObject),
        is_faulty: bool,
        state: Arc<ObjectState>,
    ) -> Self {
        Self { stored: Some(good.0), read: Some(good.1), is_faulty, state }
    }

    /// One that never made sense, and what counts in its place.
    pub(super) fn guarded(guard: Option<TrafficObject>, state: Arc<ObjectState>) -> Self {
        Self { stored: None, read: guard, is_faulty: false, state }
    }

    /// The last of it that made sense, as it was stored and as it was read.
    pub fn good(&self) -> Option<(&ObjectJson, &TrafficObject)> {
        self.stored.as_ref().zip(self.read.as_ref())
    }

    /// What of it counts.
    pub fn in_force(&self) -> Option<&TrafficObject> {
        self.read.as_ref()
    }
}

/// All objects that are read, each as it was last read. A clone shares everything.
pub type TrafficReports = OrdMap<Arc<ObjectKey>, Arc<TrafficReport>>;
