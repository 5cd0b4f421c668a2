//! The errors of requests to an API server, as facts that a caller acts on.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tower::BoxError;

use super::access_error::AccessError;
use super::connect_proxy::ProxyError;
use super::credential::NoCredential;
use strait_base::bounded::{head, shortened};
use strait_base::codes;
use strait_base::descriptors::is_none_free;

/// The start of rustls' message about an alert that the server sent.
const ALERT: &str = "received fatal alert: ";

/// The reason why a request has no usable response. The texts state the fact: status, address,
/// dates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The server's certificate is not accepted, or it does not use TLS.
    #[error("{0}")]
    Tls(String),
    /// No connection: unknown host name, address that is not dialled, connection refused, no route.
    #[error("{0}")]
    Unreachable(String),
    /// The server accepted the request and sent nothing for this long.
    #[error("no response to {request} within {} s", .limit.as_secs())]
    Silent {
        /// The request.
        request: String,
        /// The time limit.
        limit: Duration,
    },
    /// The connection or the response was interrupted.
    #[error("the response to {request} was interrupted: {fact}")]
    Broken {
        /// The request.
        request: String,
        /// The reason.
        fact: String,
    },
    /// The server does not accept the credential (401), or rejects the client certificate.
    #[error("{}", unauthorized(.0))]
    Unauthorized(String),
    /// The server accepts the credential, but it lacks the permission (403).
    #[error("not permitted: {0}")]
    Forbidden(String),
    /// The object or kind does not exist (404).
    #[error("not found: {0}")]
    NotFound(String),
    /// The requested version or continuation has expired (410).
    #[error("the requested version has expired: {0}")]
    Gone(String),
    /// The server has not reached the requested version: it was restored, or lags behind.
    #[error("the requested version is not reached yet: {0}")]
    VersionAhead(String),
    /// The server throttles requests (429).
    #[error("too many requests")]
    TooManyRequests {
        /// The value of `Retry-After`, if present.
        retry_after: Option<Duration>,
    },
    /// Another status from 400 to 499, or a 403 of an admission plug-in.
    #[error("{0}")]
    Rejected(ApiStatus),
    /// A status from 500 to 599.
    #[error("{0}")]
    Server(ApiStatus),
    /// The response is not that of an API server.
    #[error("{0}")]
    Misbehaving(String),
    /// The response exceeds its budget.
    #[error("{0}")]
    OverBudget(String),
}

/// Why an unknown issuer is not accepted if no CA is configured.
const NO_CA_GIVEN: &str = "its certificate is not signed by a root certificate of this system; these are used because no CA is given (certificate-authority-data in a kubeconfig)";
/// The maximum length of text from outside in bytes.
const LINE_BYTES_MAX: usize = 200;

/// Why a server responds 401 to requests without a credential.
pub(super) const NO_CREDENTIAL: &str =
    "the API server requires a credential, and the kubeconfig has none";

fn unauthorized(fact: &str) -> String {
    match fact {
        NO_CREDENTIAL => fact.to_owned(),
        _ => format!("the credential is not accepted: {fact}"),
    }
}

/// A status and the server's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("status {code}: {message}")]
pub struct ApiStatus {
    /// The HTTP status.
    pub code: u16,
    /// The message, cut to a line of 200 bytes.
    pub message: String,
}

impl From<AccessError> for ApiError {
    fn from(error: AccessError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl ApiError {
    /// Returns the error for a status of an HTTP response or of an event in a watch.
    pub fn from_status(code: u16, message: &str, retry_after: Option<Duration>) -> Self {
        let message = one_line(message);
        match code {
            401 => Self::Unauthorized(message),
            403 if is_of_admission(&message) => Self::Rejected(ApiStatus { code, message }),
            403 => Self::Forbidden(message),
            404 => Self::NotFound(message),
            410 => Self::Gone(message),
            429 => Self::TooManyRequests { retry_after },
            // The API server has no specific status for this; client-go also checks the text.
            504 if message.to_ascii_lowercase().contains("too large resource version") => {
                Self::VersionAhead(message)
            }
            400..=499 => Self::Rejected(ApiStatus { code, message }),
            500..=599 => Self::Server(ApiStatus { code, message }),
            300..=399 => Self::Misbehaving(format!("status {code}: redirects are not followed")),
            _ => Self::Misbehaving(format!("unexpected status {code}: {message}")),
        }
    }

    /// Returns the error for a failed exchange: TLS, connection or response.
    pub fn from_exchange(request: &str, error: &(dyn StdError + 'static)) -> Self {
        if let Some(proxy) = find::<ProxyError>(error) {
            return Self::Unreachable(proxy.to_string());
        }
        let dial = find::<ServerDialError>(error);
        let through_proxy = |fact: String| match dial.and_then(|dial| dial.proxy.as_ref()) {
            Some(proxy) => one_line(&format!("through proxy {proxy}: {fact}")),
            None => one_line(&fact),
        };
        if let Some(tls) = find::<rustls::Error>(error) {
            return match from_tls(tls, dial.is_some_and(|dial| dial.uses_system_roots)) {
                Self::Tls(fact) => Self::Tls(through_proxy(fact)),
                other => other,
            };
        }
        if let Some(missing) = find::<NoCredential>(error) {
            return Self::Unauthorized(one_line(&missing.to_string()));
        }
        let cut = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        let fact = if find::<io::Error>(error).is_some_and(cut) {
            // Instead of the long explanation of rustls.
            "the connection was closed".to_owned()
        } else if find::<io::Error>(error).is_some_and(is_none_free) {
            // The fault is local, not the server's.
            let code = &codes::DESCRIPTORS;
            format!("{code}: no file descriptor is free for a connection to it")
        } else {
            deepest(error).to_string()
        };
        let connecting = find::<hyper_util::client::legacy::Error>(error)
            .is_some_and(hyper_util::client::legacy::Error::is_connect)
            || find::<NotConnected>(error).is_some();
        // HTTP/2 passes on errors of lower layers as text.
        if let Some(alert) = fact.strip_prefix(ALERT) {
            return from_alert(alert);
        }
        if connecting {
            let is_coded = codes::leading(&fact).is_some();
            Self::Unreachable(if is_coded { one_line(&fact) } else { through_proxy(fact) })
        } else {
            Self::Broken { request: request.into(), fact: one_line(&fact) }
        }
    }
}

/// Returns whether the message of a 403 is that of an admission plug-in or webhook: a quota, a
/// namespace that is being deleted, or a policy refuses the object, and no right is missing. A
/// missing right has the form `pods is forbidden: User "u" cannot list resource "pods" ...`.
fn is_of_admission(message: &str) -> bool {
    let is_plugin = message.contains("\" is forbidden: ") && !message.contains("User \"");
    is_plugin || message.starts_with("admission webhook ")
}

/// A connection that failed, with the facts about it that the error of a lower layer lacks.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub(super) struct ServerDialError {
    /// The name of the proxy that connects the server.
    pub(super) proxy: Option<Arc<str>>,
    /// Whether the host's root certificates verify the server, because no CA is configured.
    pub(super) uses_system_roots: bool,
    pub(super) source: BoxError,
}

fn from_tls(error: &rustls::Error, uses_system_roots: bool) -> ApiError {
    use rustls::CertificateError as CertError;
    let date = |time: &rustls_pki_types::UnixTime| {
        i64::try_from(time.as_secs())
            .ok()
            .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
            .map_or_else(|| "an impossible date".to_owned(), |date| date.to_string())
    };
    let text = match error {
        rustls::Error::InvalidCertificate(certificate_error) => match certificate_error {
            CertError::UnknownIssuer if uses_system_roots => NO_CA_GIVEN.to_owned(),
            CertError::UnknownIssuer => "its certificate is not signed by the CA given".to_owned(),
            CertError::NotValidForNameContext { expected, presented } => format!(
                "its certificate is for {}, not for {}",
                match presented.as_slice() {
                    [] => "nobody".to_owned(),
                    names => names.iter().map(|one| plain(one)).collect::<Vec<_>>().join(", "),
                },
                expected.to_str(),
            ),
            CertError::ExpiredContext { time, not_after } => {
                format!("its certificate expired at {}, now is {}", date(not_after), date(time))
            }
            CertError::NotValidYetContext { time, not_before } => format!(
                "its certificate is valid from {} only, now is {}",
                date(not_before),
                date(time)
            ),
            CertError::InvalidPurpose | CertError::InvalidPurposeContext { .. } => {
                "its certificate is not for servers".to_owned()
            }
            CertError::Other(other)
                if find::<webpki::Error>(other) == Some(&webpki::Error::CaUsedAsEndEntity) =>
            {
                if uses_system_roots {
                    return ApiError::Tls(one_line(NO_CA_GIVEN));
                }
                "its certificate is a CA certificate that is not among the given CAs".to_owned()
            }
            CertError::UnsupportedSignatureAlgorithmContext { .. }
            | CertError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                "its certificate is signed with an algorithm that is not supported, such as ECDSA with P-521; P-256, P-384, RSA and Ed25519 are"
                    .to_owned()
            }
            CertError::Other(other) => {
                format!("its certificate is not acceptable: {}", deepest(other))
            }
            other => format!("its certificate is not acceptable: {other}"),
        },
        // Servers with TLS 1.3 report this only after the handshake, in response to the request.
        rustls::Error::AlertReceived(alert) => return from_alert(&format!("{alert:?}")),
        rustls::Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        other => format!("TLS fails: {other}"),
    };
    ApiError::Tls(one_line(&text))
}

/// The alerts with which a server rejects the client certificate, or its absence (RFC 8446, 6.2).
const CREDENTIAL_ALERTS: [&str; 9] = [
    "NoCertificate",
    "BadCertificate",
    "UnsupportedCertificate",
    "CertificateRevoked",
    "CertificateExpired",
    "CertificateUnknown",
    "UnknownCA",
    "AccessDenied",
    "CertificateRequired",
];

/// Returns the error for an alert of the server: the credential is rejected, or TLS fails.
fn from_alert(alert: &str) -> ApiError {
    let fact = match alert {
        _ if CREDENTIAL_ALERTS.contains(&alert) => {
            return ApiError::Unauthorized(one_line(&format!("TLS alert {alert}")));
        }
        "HandshakeFailure" => {
            ": it has no TLS parameters in common with Strait (P-521 is not supported), or requires a client certificate"
        }
        "ProtocolVersion" => ": it speaks neither TLS 1.2 nor TLS 1.3",
        "UnrecognisedName" => ": it serves no host of this name (see tls-server-name)",
        "InternalError" => ": it reports an internal error",
        _ => "",
    };
    ApiError::Tls(one_line(&format!("the server ended the TLS handshake with alert {alert}{fact}")))
}

/// Returns a certificate name without Rust's debug format: `DnsName("a.example")`. An address has its
/// usual form: `::1` instead of `0::1`.
fn plain(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    let inner = inner.unwrap_or(name).trim_matches('"');
    inner.parse::<IpAddr>().map_or_else(|_| inner.to_owned(), |address| address.to_string())
}

/// Finds a cause of type `T`, also inside I/O errors, whose `source` skips the error that they
/// wrap.
fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = cause(error);
    }
    None
}

fn deepest<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut error = error;
    while let Some(next) = cause(error) {
        error = next;
    }
    error
}

fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// Cuts text from outside to one line of 200 bytes without control characters, at the end of a word.
pub fn one_line(text: &str) -> String {
    let start = head(text, 2 * LINE_BYTES_MAX);
    let line: String = start.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    shortened(&line, LINE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_file_descriptors_is_not_reported_as_server_error() {
        let error = ApiError::from_exchange("GET /", &io::Error::from_raw_os_error(24));
        let ApiError::Broken { fact, .. } = error else { panic!("{error}") };
        assert!(fact.starts_with("STR0810"), "{fact}");
    }

    #[test]
    fn rejected_client_certificate_is_detected_over_http2() {
        let alert = rustls::AlertDescription::CertificateRequired;
        let typed = io::Error::other(rustls::Error::AlertReceived(alert));
        for error in [io::Error::other(typed.to_string()), typed] {
            let mapped = ApiError::from_exchange("GET /", &error);
            assert_eq!(mapped, ApiError::Unauthorized("TLS alert CertificateRequired".into()));
        }
    }

    #[test]
    fn only_alerts_about_certificates_mean_a_rejected_credential() {
        use rustls::AlertDescription as Alert;
        let map_alert = |alert| {
            let error = rustls::Error::AlertReceived(alert);
            let typed = ApiError::from_exchange("GET /", &io::Error::other(error.clone()));
            let as_text = ApiError::from_exchange("GET /", &io::Error::other(error.to_string()));
            assert_eq!(typed, as_text, "over HTTP/2");
            typed
        };
        for alert in [
            Alert::BadCertificate,
            Alert::UnsupportedCertificate,
            Alert::CertificateRevoked,
            Alert::CertificateExpired,
            Alert::CertificateUnknown,
            Alert::UnknownCA,
            Alert::AccessDenied,
            Alert::CertificateRequired,
        ] {
            assert!(matches!(map_alert(alert), ApiError::Unauthorized(_)), "{alert:?}");
        }
        for (alert, fact) in [
            (Alert::HandshakeFailure, "no TLS parameters in common"),
            (Alert::ProtocolVersion, "neither TLS 1.2 nor TLS 1.3"),
            (Alert::UnrecognisedName, "no host of this name"),
            (Alert::InternalError, "internal error"),
            (Alert::DecodeError, "DecodeError"),
            (Alert::NoApplicationProtocol, "NoApplicationProtocol"),
        ] {
            let ApiError::Tls(found) = map_alert(alert) else { panic!("{alert:?}") };
            assert!(found.contains(fact), "{found}");
        }
    }

    #[test]
    fn statuses_map_to_distinct_errors() {
        let map_status = |code, message| ApiError::from_status(code, message, None);
        assert_eq!(map_status(410, "old"), ApiError::Gone("old".into()));
        assert!(matches!(
            map_status(504, "Timeout: Too large resource version: 9"),
            ApiError::VersionAhead(_)
        ));
        assert!(matches!(map_status(504, "slow"), ApiError::Server(ApiStatus { code: 504, .. })));
        assert!(matches!(map_status(302, ""), ApiError::Misbehaving(_)));
        assert!(matches!(map_status(422, "no"), ApiError::Rejected(ApiStatus { code: 422, .. })));
    }

    #[test]
    fn certificate_names_are_reported_without_debug_format() {
        for (presented, expected) in [
            ("DnsName(\"localhost\")", "localhost"),
            ("IpAddress(127.0.0.1)", "127.0.0.1"),
            ("IpAddress(0::1)", "::1"),
            ("IpAddress(fd00::0)", "fd00::"),
            ("a.example", "a.example"),
        ] {
            assert_eq!(plain(presented), expected);
        }
    }

    #[test]
    fn text_from_outside_is_one_short_line() {
        let line = one_line(&format!("a\n\u{1b}[31m{}", "x".repeat(1000)));
        assert_eq!(line.len(), LINE_BYTES_MAX);
        assert!(!line.contains(char::is_control));
    }
}

/// A failed connection attempt, with the reason.
#[derive(Debug, Clone)]
pub(super) struct NotConnected(pub(super) Arc<dyn StdError + Send + Sync>);

impl std::fmt::Display for NotConnected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no connection")
    }
}

impl StdError for NotConnected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
