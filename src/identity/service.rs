//! The certificate service of Istio's agent: renews what the caller already is.
//!
//! It can be reached over mTLS only. The caller is who its certificate says, which the server that
//! accepted the connection has put into the request's extensions.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strait_proto::envoy::google::protobuf::value::Kind;
use strait_proto::istio::auth::istio_certificate_service_server::IstioCertificateService;
use strait_proto::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status};
use tracing::{info, warn};

use super::authority::LIFETIME_DEFAULT;
use super::{Error, PeerIdentity, ServerIdentity};

/// Signs for a caller's own identity, within one trust domain.
#[derive(Debug, Clone)]
pub struct CertificateService {
    identity: watch::Receiver<Arc<ServerIdentity>>,
    trust_domain: watch::Receiver<Option<Arc<str>>>,
}

impl CertificateService {
    /// Signs with the CA that `identity` holds when a request comes, for `trust_domain` only: for nobody
    /// while that is not known.
    pub fn new(
        identity: watch::Receiver<Arc<ServerIdentity>>,
        trust_domain: watch::Receiver<Option<Arc<str>>>,
    ) -> Self {
        Self { identity, trust_domain }
    }

    fn sign(
        &self,
        caller: &PeerIdentity,
        request: &IstioCertificateRequest,
        now: SystemTime,
    ) -> Result<IstioCertificateResponse, Status> {
        // A foreign root may be trusted for its own domain; that is no right to a certificate of ours.
        let trust_domain = self.trust_domain.borrow().clone().ok_or_else(|| {
            Status::unavailable("the mesh config, which names the trust domain, is not read yet")
        })?;
        if caller.id().trust_domain() != &*trust_domain {
            return Err(Status::permission_denied(format!(
                "this CA signs for trust domain {trust_domain:?} only"
            )));
        }
        if asks_for_another(request) {
            return Err(Status::permission_denied("this CA signs for the caller only"));
        }
        let identity = Arc::clone(&self.identity.borrow());
        // The connection may be older than the roots are: a certificate must not outlive its trust by
        // being exchanged for a new one.
        if !identity.still_trusts(caller, now) {
            return Err(Status::unauthenticated(
                "STR0707: the client certificate has ended or no longer chains to a trusted root",
            ));
        }
        let Some(authority) = &identity.authority else {
            return Err(Status::unimplemented("this control plane has no CA"));
        };
        let lifetime = match u64::try_from(request.validity_duration) {
            Ok(0) => LIFETIME_DEFAULT,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => return Err(Status::invalid_argument("validity_duration is negative")),
        };
        let chain = authority
            .sign_request(&request.csr, caller.id(), lifetime, now)
            .map_err(|error| Status::new(code(&error), error.to_string()))?;
        // The agent takes the first element for the leaf and the last for the roots, whatever is between.
        let mut cert_chain = chain.to_pems();
        cert_chain.push(authority.roots().to_pem());
        Ok(IstioCertificateResponse { cert_chain })
    }
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let Some(caller) = request.extensions().get::<PeerIdentity>().cloned() else {
            return Err(Status::unauthenticated("no client certificate"));
        };
        let answer = self.sign(&caller, request.get_ref(), SystemTime::now());
        match &answer {
            Ok(_) => info!(peer = %caller.id(), "certificate issued"),
            Err(status) => {
                warn!(peer = %caller.id(), reason = status.message(), "certificate refused");
            }
        }
        answer.map(Response::new)
    }
}

fn code(error: &Error) -> Code {
    match error {
        Error::Request(_) | Error::Lifetime { .. } => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// Whether the request wants somebody else's certificate, as a node proxy does for the pods of its node.
fn asks_for_another(request: &IstioCertificateRequest) -> bool {
    let named = request.metadata.as_ref().and_then(|all| all.fields.get("ImpersonatedIdentity"));
    match named.and_then(|value| value.kind.as_ref()) {
        None | Some(Kind::NullValue(_)) => false,
        Some(Kind::StringValue(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests;
