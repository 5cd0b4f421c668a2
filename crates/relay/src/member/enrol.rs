//! Requests certificates from the hub: the first with an invitation or a token, later ones with the certificate itself.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use strait_base::bounded::bounded;
use strait_base::codes;
use strait_kube_client::one_line;
use tokio::time::timeout;

use super::certificate::RelayCertificate;
use super::dial::{DialError, HostPort, HubDialler};
use crate::wire::{
    CertificateResponse, ENROL_PATH, EnrolRequest, ErrorResponse, RENEW_PATH, RenewRequest,
};

/// The protocol of requests that a relay sends.
const HTTP2: &[u8] = b"h2";
/// The time limit of a request, after the connection is open.
const LIMIT: Duration = Duration::from_secs(15);
/// Maximum size of a response in bytes.
const RESPONSE_BYTES_MAX: usize = 256 << 10;

/// The hub issued no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnrolError {
    /// The hub was not reached.
    #[error("{}: {hub}: {error}", codes::RELAY_HUB)]
    Dial {
        /// The address.
        hub: String,
        /// The reason.
        error: DialError,
    },
    /// The response was interrupted or cannot be read.
    #[error("{}: {hub}: {fact}", codes::RELAY_HUB)]
    Broken {
        /// The address.
        hub: String,
        /// The reason.
        fact: String,
    },
    /// The hub refuses the request, with this code.
    #[error("{code}: {message}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The code that the hub sent.
        code: String,
        /// The message that the hub sent.
        message: String,
    },
}

impl EnrolError {
    /// Returns whether the hub does not accept the token or the certificate.
    pub(super) fn is_about_credential(&self) -> bool {
        let refusals = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
        matches!(self, Self::Refused { status, .. } if refusals.contains(status))
    }
}

/// Requests a first certificate from the first of `hubs` that responds.
pub(super) async fn enrol(
    dialler: &HubDialler,
    hubs: &[HostPort],
    request: &EnrolRequest,
) -> Result<CertificateResponse, EnrolError> {
    post_to_any(dialler, hubs, None, ENROL_PATH, encode(request)).await
}

/// Requests a further certificate, with the present one, from the first of `hubs` that responds.
pub(super) async fn renew(
    dialler: &HubDialler,
    hubs: &[HostPort],
    present: &RelayCertificate,
    request: &RenewRequest,
) -> Result<CertificateResponse, EnrolError> {
    post_to_any(dialler, hubs, Some(present), RENEW_PATH, encode(request)).await
}

/// Encodes a request. All its fields are text, so this does not fail.
fn encode(request: &impl Serialize) -> Bytes {
    serde_json::to_vec(request).unwrap_or_default().into()
}

async fn post_to_any(
    dialler: &HubDialler,
    hubs: &[HostPort],
    certificate: Option<&RelayCertificate>,
    path: &str,
    body: Bytes,
) -> Result<CertificateResponse, EnrolError> {
    let mut last = None;
    for hub in hubs {
        match post(dialler, hub, certificate, path, body.clone()).await {
            Err(error @ (EnrolError::Dial { .. } | EnrolError::Broken { .. })) => {
                last = Some(error);
            }
            answered => return answered,
        }
    }
    let none = || EnrolError::Broken { hub: "--hub".to_owned(), fact: "no address".to_owned() };
    Err(last.unwrap_or_else(none))
}

async fn post(
    dialler: &HubDialler,
    hub: &HostPort,
    certificate: Option<&RelayCertificate>,
    path: &str,
    body: Bytes,
) -> Result<CertificateResponse, EnrolError> {
    let broken = |fact: String| EnrolError::Broken { hub: hub.to_string(), fact: one_line(&fact) };
    let stream = dialler
        .connect(hub, HTTP2, certificate)
        .await
        .map_err(|error| EnrolError::Dial { hub: hub.to_string(), error })?;
    let exchange = async {
        let interrupted = |error: hyper::Error| broken(with_cause(&error));
        let request = Request::post(format!("https://{hub}{path}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| broken(error.to_string()))?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(interrupted)?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(interrupted)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| broken(error.to_string()))?.to_bytes();
            read(status, &body).unwrap_or_else(|fact| Err(broken(fact)))
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            // Requests receive the reason of the end; this branch is for an end without a reason.
            ended = connection => Err(match ended {
                Ok(()) => broken("the connection was closed".to_owned()),
                Err(error) => interrupted(error),
            }),
        }
    };
    timeout(LIMIT, exchange)
        .await
        .unwrap_or_else(|_| Err(broken(format!("no response within {} s", LIMIT.as_secs()))))
}

/// Reads a response of the hub.
///
/// # Errors
/// The reason why it is not a response of a hub.
fn read(
    status: StatusCode,
    body: &[u8],
) -> Result<Result<CertificateResponse, EnrolError>, String> {
    if status == StatusCode::OK {
        return serde_json::from_slice(body)
            .map(Ok)
            .map_err(|error| format!("the response contains no certificate: {error}"));
    }
    let error = serde_json::from_slice::<ErrorResponse>(body)
        .map_err(|_| format!("the hub responds {status} without a reason"))?
        .error;
    let is_code = error.code.len() == 7 && error.code.starts_with("STR");
    let code = if is_code { error.code } else { codes::RELAY_REQUEST.id.to_owned() };
    let message = bounded(error.message.replace(char::is_control, " "));
    Ok(Err(EnrolError::Refused { status, code, message }))
}

/// Returns an error with its cause.
pub(super) fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_cause(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_reported_with_the_code_and_the_message_of_the_hub() {
        let body = br#"{"error": {"code": "STR0343", "message": "the invitation\nhas expired"}}"#;
        let error = read(StatusCode::UNAUTHORIZED, body).expect("readable").expect_err("refused");
        assert!(error.to_string().starts_with("STR0343: the invitation"), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
        assert!(error.is_about_credential());
        let error = read(StatusCode::TOO_MANY_REQUESTS, body).expect("readable").expect_err("busy");
        assert!(!error.is_about_credential());
    }

    #[test]
    fn response_of_another_server_is_not_a_certificate() {
        for (status, body, expected) in [
            (StatusCode::OK, &b"<html>"[..], "contains no certificate"),
            (StatusCode::OK, b"{}", "contains no certificate"),
            (StatusCode::NOT_FOUND, b"<html>", "responds 404"),
            (StatusCode::OK, br#"{"error": {"code": "STR0343", "message": ""}}"#, "no certificate"),
        ] {
            let fact = read(status, body).expect_err(expected);
            assert!(fact.contains(expected), "{fact}");
        }
        let body = br#"{"certificate": "C", "roots": "R", "expires": "2026-12-01T00:00:00Z"}"#;
        let response = read(StatusCode::OK, body).expect("readable").expect("issued");
        assert_eq!((&*response.certificate, &*response.roots), ("C", "R"));
    }
}
