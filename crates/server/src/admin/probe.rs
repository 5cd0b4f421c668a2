//! `/api/probe-identity`: a certificate for clients like `strait check --traffic` that send
//! requests instead of a proxy.
//!
//! Requires the token. The certificate is for one service account in the system namespace, which
//! runs nothing, and expires within minutes. The private key never leaves the client.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde::Deserialize;
use tracing::info;

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::sources::{SourcesState, current};
use strait_admin_api::ProbeIdentity;
use strait_base::time::rfc3339;
use strait_identity::{IdentityError, SpiffeId};

/// Service account of the certificate.
const ACCOUNT: &str = "strait-probe";
/// Lifetime of the certificate: longer than a round of requests takes.
const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum size of a request in bytes.
pub(super) const QUESTION_BYTES_MAX: usize = 32 << 10;

/// Body of a request.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProbeQuestion {
    /// A certificate request in PEM, which only serves to transfer the public key.
    csr: String,
}

/// Issues a certificate for ten minutes, with which `strait check --traffic` sends requests.
pub(super) async fn identity(
    State(sources): SourcesState,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let body = body.map_err(|error| AdminFailure(error.status(), error.body_text()))?;
    let asked: ProbeQuestion = serde_json::from_slice(&body)
        .map_err(|error| bad(&format!("expected {{\"csr\": a request in PEM}}: {error}")))?;
    let authority = sources.metrics.identity.borrow().authority.clone();
    let authority = authority.ok_or_else(|| {
        let text = "this control plane has no CA (--ca none, or certificates from --tls-cert) and can't issue an identity; set --identity to an identity of the mesh";
        AdminFailure(StatusCode::CONFLICT, text.into())
    })?;
    let context = current(&sources)?;
    let fault = |fact: String| AdminFailure(StatusCode::INTERNAL_SERVER_ERROR, fact);
    let namespace = &context.settings.system_namespace;
    let id = SpiffeId::new(&context.mesh.trust_domain, namespace, ACCOUNT)
        .map_err(|error| fault(error.to_string()))?;
    let (peer, roots) = (id.clone(), Arc::clone(authority.roots()));
    let signed = tokio::task::spawn_blocking(move || {
        let now = SystemTime::now();
        authority.sign_request(&asked.csr, &id, None, LIFETIME, now, now)
    });
    let chain = match signed.await.map_err(|error| fault(error.to_string()))? {
        Ok(chain) => chain,
        Err(error @ IdentityError::Request(_)) => return Err(bad(&error.to_string())),
        Err(error) => return Err(fault(error.to_string())),
    };
    info!(%peer, "issued a probe certificate to a holder of the admin token");
    let answer = ProbeIdentity {
        identity: peer.to_string(),
        expires: rfc3339(chain.not_after()),
        cert_chain: chain.to_pem(),
        root_cert: roots.to_pem(),
    };
    Ok(pretty(StatusCode::OK, &answer))
}
