//! Fuzz targets for requests on the ADS port: see [`strait_base::testing::fuzz`].

use std::sync::Arc;
use std::time::SystemTime;

use super::grpc as wire;
use strait_base::testing::fuzz::Target;
use strait_model::dirty::Dirty;
use strait_xds::list::SharedList;
use strait_xds::request::AdsRequest;
use strait_xds::resource::{All, Resource, ResourceSource, ResourceType};
use strait_xds::session::{ProtocolForm, Session};

/// The fuzz targets of this crate.
pub const TARGETS: &[Target] =
    &[("grpc", grpc), ("discovery_delta", discovery_delta), ("discovery_sotw", discovery_sotw)];

/// Parses the body of a gRPC call in pieces. The first byte is the length of a piece.
pub(crate) fn grpc(bytes: &[u8]) -> bool {
    wire::fuzz(bytes)
}

/// Runs a Delta stream with the requests in a body.
pub(crate) fn discovery_delta(bytes: &[u8]) -> bool {
    converse(ProtocolForm::Delta, bytes)
}

/// Runs a SotW stream with the requests in a body.
pub(crate) fn discovery_sotw(bytes: &[u8]) -> bool {
    converse(ProtocolForm::Sotw, bytes)
}

fn converse(form: ProtocolForm, bytes: &[u8]) -> bool {
    let mut answered = false;
    let mut session = Session::new(form);
    let mut mesh = Few::default();
    let now = SystemTime::UNIX_EPOCH;
    for (turn, content) in wire::messages(bytes).into_iter().enumerate() {
        let Ok(request) = AdsRequest::read(form, &content) else { return answered };
        // Every fourth request is handled as if the mesh were not complete yet.
        let source = (turn % 4 != 3).then_some(&mut mesh as &mut dyn ResourceSource);
        if session.on_request(request, source, now).is_err() {
            return answered;
        }
        session.subscription_delta();
        if turn % 3 == 2 {
            mesh.change();
            session.on_change(&Dirty { everything: true, ..Dirty::default() });
        }
        // Each response contains a requested or existing resource, so there are few responses.
        for answers in 0.. {
            let Some(response) = session.next_response(&mut mesh, 1 << 10, now) else { break };
            assert_eq!(response.to_bytes().len(), response.encoded_len());
            assert!(answers < 10_000, "it never ends");
            answered = true;
        }
        while let Some(nothing) = session.next_aside() {
            drop(nothing);
        }
    }
    let _ = (session.progress(), session.held());
    answered
}

/// A mesh with a few resources of each type.
#[derive(Default)]
struct Few(u8);

impl Few {
    fn change(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }

    fn resource(&self, name: &str) -> Arc<Resource> {
        Arc::new(Resource::new(name, vec![self.0; 3]))
    }
}

impl ResourceSource for Few {
    fn all(&mut self, kind: ResourceType) -> All {
        let shared = ["outbound|80||a", "outbound|80||b"].map(|name| self.resource(name));
        All { shared: SharedList::new(kind, shared.into(), 32), own: vec![self.resource("own")] }
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        (!kind.is_wildcard()).then(|| self.resource(name))
    }

    fn is_assigned(&self, cluster: &Resource) -> bool {
        *cluster.name != *"own"
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}
