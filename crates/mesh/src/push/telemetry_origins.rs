//! What telemetry calls the members of an assignment, where proxies are sent that (`--endpoint-metadata`).

use std::collections::BTreeMap;

use super::assignment::{EndpointSocket, TelemetryOrigin};
use crate::network::ResolvedGateway;

/// The origins of an assignment, as they are found.
#[derive(Default, PartialEq)]
pub(super) struct Origins {
    pub(super) all: Vec<TelemetryOrigin>,
    /// The places of gateways in it, from 1.
    pub(super) gateways: BTreeMap<EndpointSocket, u16>,
}

impl Origins {
    /// The place of one more, from 1; 0 once there are more than can be numbered.
    pub(super) fn place(&mut self, origin: TelemetryOrigin) -> u16 {
        self.all.push(origin);
        u16::try_from(self.all.len()).unwrap_or_default()
    }

    /// Numbers a gateway. Of two that listen at one place the first counts.
    pub(super) fn add(&mut self, gateway: &ResolvedGateway) {
        let socket = (gateway.address, gateway.port);
        if !self.gateways.contains_key(&socket) {
            let cluster = gateway.cluster.clone().unwrap_or_default();
            let place = self.place(TelemetryOrigin { telemetry: None, cluster });
            self.gateways.insert(socket, place);
        }
    }
}
