//! Secrets that a gateway requests on its stream: which ones the proxy may receive, and how their
//! state reaches the session.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;
use tonic::Status;
use tracing::warn;

use super::wakeups::EVENTS;
use super::{Stream, StreamEnd, violation_status};
use strait_base::codes;
use strait_base::lock::lock;
use strait_model::credential::{CredentialName, CredentialState, CredentialTrouble};
use strait_xds::request::AdsRequest;
use strait_xds::secrets::SECRETS_MAX;
use strait_xds::session::Handled;

impl Stream {
    /// Handles a request for secrets, and follows the secrets that are now subscribed to.
    pub(super) fn handle_secrets_request(
        &mut self,
        request: &AdsRequest<'_>,
    ) -> Result<(), StreamEnd> {
        let handled = lock(&self.session)
            .on_secrets_request(request)
            .map_err(|violation| violation_status(&violation))?;
        if handled == Handled::Request && !self.budget.take(Instant::now()) {
            let text = "STR0503: more than 50 unsolicited requests per second";
            return Err(StreamEnd::by("requests", Status::resource_exhausted(text)));
        }
        if handled == Handled::Refusal
            && let Some(admitted) = &self.admitted
        {
            let error = lock(&self.session).refused_secret().unwrap_or_default().to_owned();
            let error: String = error.chars().take(400).collect();
            let proxy = &admitted.proxy.id;
            warn!(code = "STR0507", %proxy, kind = "sds", error, "the proxy rejected a secret");
        }
        let surplus = lock(&self.session).surplus_secrets();
        if surplus > self.secrets.surplus
            && let Some(admitted) = &self.admitted
        {
            let code = &codes::SECRETS_SURPLUS;
            let proxy = &admitted.proxy.id;
            warn!(code = code.id, %proxy, surplus, given = SECRETS_MAX, "{}", code.title);
        }
        self.secrets.surplus = surplus;
        self.follow_secrets();
        Ok(())
    }

    /// Follows the subscribed secrets in the proxy's own namespace, once the proxy is verified as a
    /// pod of the cluster.
    pub(super) fn follow_secrets(&mut self) {
        let Some(admitted) = &self.admitted else { return };
        let mut session = lock(&self.session);
        let names: BTreeSet<Arc<str>> = session.secrets().cloned().collect();
        if names.is_empty() && self.secrets.is_empty() {
            return;
        }
        self.secrets.keep(&names);
        let own = admitted.proxy.namespace();
        for name in names {
            if self.secrets.has(&name) {
                continue;
            }
            let missing = |fact: String| CredentialState {
                trouble: Some(CredentialTrouble { code: &codes::SECRET_MISSING, fact }),
                settled: true,
                ..CredentialState::default()
            };
            match CredentialName::parse(&name, own) {
                None => session.offer_secret(&name, &missing(format!("{name} names no Secret"))),
                Some(found) if found.namespace != *own => {
                    let fact = format!("{found} is in another namespace than the proxy, {own}");
                    session.offer_secret(&name, &missing(fact));
                }
                // Until the pod is known, any client could claim to be it. The secrets are followed
                // once it is known.
                Some(_) if !admitted.account.charge().verified => {}
                Some(found) => {
                    let (cluster, account) = (&admitted.proxy.cluster, self.caller.identity());
                    let mut state = self.shared.credentials.follow(cluster, account, &found);
                    session.offer_secret(&name, &state.borrow_and_update());
                    self.secrets.follow(name, state);
                }
            }
        }
        drop(session);
        self.idle = false;
        self.wakeups.add(EVENTS);
    }

    /// Handles the new state of a secret. Returns whether one has changed.
    pub(super) fn pass_changed_secret(&mut self) -> bool {
        let waker = self.wakeups.events();
        let changed = self.secrets.poll_changed(&mut Context::from_waker(&waker));
        let Poll::Ready((name, now)) = changed else { return false };
        self.idle = false;
        lock(&self.session).offer_secret(&name, &now);
        true
    }
}
