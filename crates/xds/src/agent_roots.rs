//! Trust roots that the agent of a proxy receives on the proxy's stream, as
//! `istio.mesh.v1alpha1.ProxyConfig` (PCDS).
//!
//! An agent that requests the roots interprets silence as "my roots are complete", and never
//! answers an empty response. Therefore a response is sent only if there are more roots than the
//! agent can have, and again whenever the roots change. Pure: the stream passes in requests and
//! roots.

use std::sync::Arc;

use prost::Message;

use super::form::ProtocolForm;
use super::request::AdsRequest;
use super::request_limits::Handled;
use super::unknown_types::{PROXY_CONFIG, SideResource, SideResponse};
use strait_model::RootBundle;

/// The fields of the message that this server sets.
#[derive(Clone, PartialEq, Message)]
struct AgentConfig {
    #[prost(string, repeated, tag = "34")]
    ca_certificates_pem: Vec<String>,
}

/// The state of the trust roots for the agent of one stream.
#[derive(Debug, Default)]
pub(super) struct AgentRoots {
    was_requested: bool,
    /// The roots that were sent last, or that the agent has from its certificate chain.
    sent: Option<Arc<RootBundle>>,
    is_due: bool,
    /// The nonce of the unanswered response.
    nonce: Option<u64>,
}

impl AgentRoots {
    /// Handles a request for the roots.
    pub(super) fn on_request(&mut self, request: &AdsRequest<'_>) -> Handled {
        let answered = u64::from_str_radix(request.nonce, 16).ok();
        let is_answer = self.nonce.take_if(|nonce| Some(*nonce) == answered).is_some();
        self.was_requested = true;
        // A rejection counts as a plain answer: it does not affect whether the proxy accepts its
        // configuration.
        if is_answer { Handled::Answer } else { Handled::Request }
    }

    /// Returns whether the agent has requested the roots and [`Self::offer`] has not been called
    /// yet.
    pub(super) fn waits(&self) -> bool {
        self.was_requested && self.sent.is_none()
    }

    /// Records the current roots.
    ///
    /// They are sent if they differ from the roots of the previous call. On the first call, they
    /// are sent if `news` is true.
    pub(super) fn offer(&mut self, bundle: &Arc<RootBundle>, news: bool) {
        let differs = self.sent.as_ref().map(|sent| sent.pem != bundle.pem);
        self.is_due |= differs.unwrap_or(news);
        self.sent = Some(Arc::clone(bundle));
    }

    /// Returns whether the agent has acknowledged these roots or has them from its certificate
    /// chain, or `None` if it never requested roots.
    pub(super) fn has(&self, bundle: &RootBundle) -> Option<bool> {
        let sent = self.sent.as_ref().is_some_and(|sent| sent.pem == bundle.pem);
        self.was_requested.then_some(sent && !self.is_due && self.nonce.is_none())
    }

    /// Returns whether a response is due.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns the response that is due, with the given nonce.
    pub(super) fn take(&mut self, form: ProtocolForm, nonce: u64) -> Option<SideResponse> {
        let bundle = self.sent.as_ref().filter(|_| self.is_due)?;
        self.is_due = false;
        self.nonce = Some(nonce);
        let config = AgentConfig { ca_certificates_pem: vec![bundle.pem.to_string()] };
        let resource = SideResource {
            name: String::new(),
            type_url: PROXY_CONFIG.to_owned(),
            body: config.encode_to_vec(),
        };
        Some(SideResponse::of(form, PROXY_CONFIG, nonce, vec![resource]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(pem: &str) -> Arc<RootBundle> {
        Arc::new(RootBundle { pem: pem.into(), certificates: [pem.into()].into() })
    }

    fn answer(nonce: &str) -> AdsRequest<'_> {
        AdsRequest { type_url: PROXY_CONFIG, nonce, ..AdsRequest::default() }
    }

    #[test]
    fn agent_receives_roots_it_cannot_have_yet_and_each_change() {
        let mut roots = AgentRoots::default();
        assert!(!roots.waits());
        assert_eq!(roots.has(&bundle("a")), None, "it never requested roots");
        assert_eq!(roots.on_request(&answer("")), Handled::Request);
        assert!(roots.waits());
        roots.offer(&bundle("a"), false);
        assert!(!roots.waits() && !roots.is_due(), "its chain ended with them");
        assert_eq!((roots.has(&bundle("a")), roots.has(&bundle("ab"))), (Some(true), Some(false)));
        assert!(roots.take(ProtocolForm::Sotw, 1).is_none());
        roots.offer(&bundle("ab"), false);
        let sent = roots.take(ProtocolForm::Sotw, 7).expect("they have changed");
        // Field 34, a text of two bytes.
        assert_eq!(sent.resources[0].body, [0x92, 2, 2, b'a', b'b']);
        assert_eq!(roots.on_request(&answer("6")), Handled::Request);
        assert_eq!(roots.has(&bundle("ab")), Some(false), "it has not answered");
        assert_eq!(roots.on_request(&answer("7")), Handled::Answer);
        assert_eq!(roots.has(&bundle("ab")), Some(true));
        assert_eq!(roots.on_request(&answer("7")), Handled::Request, "it was answered");
        roots.offer(&bundle("ab"), true);
        assert!(!roots.is_due(), "it was sent");
    }
}
