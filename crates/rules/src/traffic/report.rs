//! Last read version of each object of the traffic configuration.

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

/// A parsed object.
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

/// An object with its status.
#[derive(Debug)]
pub struct TrafficReport {
    /// The last valid version, as stored.
    stored: Option<ObjectJson>,
    /// The last valid version, as parsed. If no version was ever valid, the replacement: see
    /// [`DestinationRule::guard`].
    read: Option<TrafficObject>,
    /// Whether that version contains [errors](super::object::Reason::is_fault).
    pub(super) is_faulty: bool,
    /// Status of the current version.
    pub state: Arc<ObjectState>,
}

impl TrafficReport {
    /// Creates a report from the last valid version and the status of the current one.
    pub(super) fn from_parts(
        good: (ObjectJson, TrafficObject),
        is_faulty: bool,
        state: Arc<ObjectState>,
    ) -> Self {
        Self { stored: Some(good.0), read: Some(good.1), is_faulty, state }
    }

    /// Creates a report of an object that was never valid, with its replacement.
    pub(super) fn guarded(guard: Option<TrafficObject>, state: Arc<ObjectState>) -> Self {
        Self { stored: None, read: guard, is_faulty: false, state }
    }

    /// Returns the last valid version, as stored and as parsed.
    pub fn good(&self) -> Option<(&ObjectJson, &TrafficObject)> {
        self.stored.as_ref().zip(self.read.as_ref())
    }

    /// Returns the active version.
    pub fn active(&self) -> Option<&TrafficObject> {
        self.read.as_ref()
    }
}

/// Reports of all objects that are read. A clone shares everything.
pub type TrafficReports = OrdMap<Arc<ObjectKey>, Arc<TrafficReport>>;
