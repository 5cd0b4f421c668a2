//! Telemetry names of the members of an assignment, if they are sent to proxies
//! (`--endpoint-metadata`).

use std::collections::BTreeMap;

use super::assignment::{EndpointSocket, TelemetryOrigin};
use crate::network::ResolvedGateway;

/// The origins of an assignment while they are collected.
#[derive(Default, PartialEq)]
pub(super) struct Origins {
    pub(super) all: Vec<TelemetryOrigin>,
    /// The positions of gateways in `all`, starting at 1.
    pub(super) gateways: BTreeMap<EndpointSocket, u16>,
}

impl Origins {
    /// Appends an origin and returns its position, starting at 1, or 0 if positions are exhausted.
    pub(super) fn place(&mut self, origin: TelemetryOrigin) -> u16 {
        self.all.push(origin);
        u16::try_from(self.all.len()).unwrap_or_default()
    }

    /// Adds a gateway. The first of two gateways with the same address and port applies.
    pub(super) fn add(&mut self, gateway: &ResolvedGateway) {
        let socket = (gateway.address, gateway.port);
        if !self.gateways.contains_key(&socket) {
            let cluster = gateway.cluster.clone().unwrap_or_default();
            let place = self.place(TelemetryOrigin { telemetry: None, cluster });
            self.gateways.insert(socket, place);
        }
    }
}
