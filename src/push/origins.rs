//! What telemetry calls the members of an assignment, where proxies are told (`--endpoint-metadata`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::view::Socket;
use crate::model::ClusterId;
use crate::network::ResolvedGateway;

/// What telemetry calls members of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// See [`crate::model::Endpoint::telemetry`]; of a gateway nobody is called anything.
    pub telemetry: Option<Arc<str>>,
    /// The cluster; empty where a gateway's is not known.
    pub cluster: ClusterId,
}

/// The origins of an assignment, as they are found.
#[derive(Default, PartialEq)]
pub(super) struct Origins {
    pub(super) all: Vec<Origin>,
    /// The places of gateways in it, from 1.
    pub(super) gateways: BTreeMap<Socket, u16>,
}

impl Origins {
    /// The place of one more, from 1; 0 once there are more than can be numbered.
    pub(super) fn place(&mut self, origin: Origin) -> u16 {
        self.all.push(origin);
        u16::try_from(self.all.len()).unwrap_or_default()
    }

    /// Numbers a gateway. Of two that listen at one place the first counts.
    pub(super) fn add(&mut self, gateway: &ResolvedGateway) {
        let socket = (gateway.address, gateway.port);
        if !self.gateways.contains_key(&socket) {
            let cluster = gateway.cluster.clone().unwrap_or_default();
            let place = self.place(Origin { telemetry: None, cluster });
            self.gateways.insert(socket, place);
        }
    }
}
