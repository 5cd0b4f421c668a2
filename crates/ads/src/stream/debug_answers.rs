//! Responses to debug requests of istioctl on a stream.

use tonic::Status;
use tracing::warn;

use super::super::debug_types::{self, Asker};
use super::super::{admission, node};
use super::{DEBUG_ANSWERS_MAX, Stream, StreamEnd, violation_status};
use strait_base::bounded::bounded;
use strait_xds::request::AdsRequest;
use strait_xds::session::{ProtocolForm, Violation};
use strait_xds::unknown_types::SideResponse;

impl Stream {
    /// Answers a debug request of istioctl, which is sent directly or through a proxy's agent. Each
    /// request is answered once.
    pub(super) fn answer_debug(
        &mut self,
        form: ProtocolForm,
        request: &AdsRequest<'_>,
    ) -> Result<(), StreamEnd> {
        // The client acknowledges a response. Requests have nonces too: istioctl uses its clock.
        let nonce = u64::from_str_radix(request.nonce, 16).ok();
        if nonce.is_some_and(|nonce| (1..=self.debug_answers).contains(&nonce)) {
            return Ok(());
        }
        if self.admitted.is_none() && self.debug_answers == 0 && request.node.is_none() {
            return Err(violation_status(&Violation::NoNode));
        }
        if self.debug_answers == DEBUG_ANSWERS_MAX {
            let text =
                format!("STR0503: more than {DEBUG_ANSWERS_MAX} debug requests on one stream");
            return Err(StreamEnd::by("requests", Status::resource_exhausted(text)));
        }
        self.debug_answers += 1;
        let context = self.context()?;
        let node = request.node.as_ref().filter(|_| self.caller.token().is_none());
        if let Some((node, claimed)) = node.and_then(|node| Some((node, node::cluster(node)?))) {
            let claimed = admission::canonical(&context, claimed);
            let fits = admission::fits_certificate(&context, &self.caller, &node.id, &claimed);
            fits.map_err(|refusal| {
                let text = bounded(refusal);
                warn!(identity = %self.caller.identity(), "debug request refused: {text}");
                StreamEnd::by("refused", Status::permission_denied(text))
            })?;
        }
        let cluster = self.caller.proven_cluster();
        let cluster = cluster.map(|cluster| admission::canonical(&context, cluster));
        let asker = Asker { identity: self.caller.identity(), cluster };
        let (names, connections) = (&request.names, &self.shared.connections);
        let members = &self.shared.members;
        let resources =
            debug_types::answer(request.type_url, names, &asker, &context, connections, members);
        let mut answer = SideResponse::of(form, request.type_url, self.debug_answers, resources);
        let port = self.shared.replicas.as_ref();
        let replica = port.map(|port| port.authenticator.name().clone()).unwrap_or_default();
        answer.control_plane = Some(debug_types::control_plane(&replica));
        self.debug.push_back(answer);
        Ok(())
    }
}
