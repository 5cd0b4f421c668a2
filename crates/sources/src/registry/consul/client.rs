//! Requests to Consul, with a deadline, a size limit, and the current token.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use tower::ServiceExt;

use super::address::ConsulAddress;
use strait_kube_client::{ApiError, Redacted, Transport, one_line, transport_to};

/// Maximum size of a response in bytes.
const BODY_MAX: usize = 64 << 20;
/// How long a response may take in addition to the requested wait.
const GRACE: Duration = Duration::from_secs(15);
/// Consul adds up to a sixteenth to each wait, so that they don't all end together.
const JITTER: u32 = 16;
/// Maximum size of the token file in bytes.
const TOKEN_MAX: usize = 4096;

/// A client for one Consul.
#[derive(Clone)]
pub(super) struct ConsulClient {
    address: Arc<ConsulAddress>,
    credential: Arc<ConsulToken>,
    transport: Transport,
}

/// The origin of the ACL token.
#[derive(Debug, Default)]
pub(super) enum ConsulToken {
    /// No token: requests are anonymous.
    #[default]
    None,
    /// A file, read for each request, so that the token can be renewed.
    File(PathBuf),
    /// The environment.
    Text(Redacted<String>),
}

/// A complete response.
pub(super) struct ConsulResponse {
    /// `X-Consul-Index`.
    pub(super) index: Option<u64>,
    pub(super) body: Bytes,
}

/// One request.
#[derive(Debug, Clone, Default)]
pub(super) struct Query<'a> {
    /// The path below `/v1/`, escaped.
    pub(super) path: &'a str,
    /// The datacentre; empty for that of the server.
    pub(super) datacentre: &'a str,
    /// The index to wait for, and the maximum wait.
    pub(super) wait: Option<(u64, Duration)>,
}

impl ConsulClient {
    /// Creates a client without opening a connection.
    ///
    /// # Errors
    /// Fails if the address is unusable, for example because of an invalid CA.
    pub(super) fn new(
        address: &Arc<ConsulAddress>,
        ca_pem: Option<&[u8]>,
        credential: &Arc<ConsulToken>,
    ) -> Result<Self, ApiError> {
        let transport = transport_to(&address.server, ca_pem)
            .map_err(|error| ApiError::Tls(error.to_string()))?;
        Ok(Self { address: Arc::clone(address), credential: Arc::clone(credential), transport })
    }

    /// Sends a request, and reads the complete response.
    ///
    /// # Errors
    /// Fails without a usable response. The error never contains the token.
    pub(super) async fn send(&self, query: &Query<'_>) -> Result<ConsulResponse, ApiError> {
        let wait = query.wait.map_or(Duration::ZERO, |(_, wait)| wait);
        let limit = wait + wait / JITTER + GRACE;
        let name = format!("/v1/{}", query.path);
        match tokio::time::timeout(limit, self.exchange(&name, query)).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiError::Silent { request: name, limit }),
        }
    }

    async fn exchange(&self, name: &str, query: &Query<'_>) -> Result<ConsulResponse, ApiError> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = self.uri(query)?;
        let headers = request.headers_mut();
        let agent = concat!("strait/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = self.credential.token().await? {
            headers.insert("x-consul-token", token);
        }
        let sent = self.transport.clone().oneshot(request).await;
        let response = sent.map_err(|error| ApiError::from_exchange(name, &*error))?;
        let status = response.status().as_u16();
        let index = index(response.headers());
        let body = take(name, response).await?;
        if status != 200 {
            let start = body.get(..body.len().min(400)).unwrap_or_default();
            return Err(ApiError::from_status(status, &String::from_utf8_lossy(start), None));
        }
        Ok(ConsulResponse { index, body })
    }

    fn uri(&self, query: &Query<'_>) -> Result<Uri, ApiError> {
        let mut text = format!("{}/v1/{}", self.address, query.path);
        let mut join = '?';
        let mut option = |text: &mut String, key: &str, value: &str| {
            let _ = write!(text, "{join}{key}={value}");
            join = '&';
        };
        if !query.datacentre.is_empty() {
            option(&mut text, "dc", query.datacentre);
        }
        if let Some((index, wait)) = query.wait {
            option(&mut text, "index", &index.to_string());
            option(&mut text, "wait", &format!("{}ms", wait.as_millis()));
        }
        text.parse().map_err(|_| ApiError::Misbehaving(format!("{} is not a URL", one_line(&text))))
    }
}

impl ConsulToken {
    async fn token(&self) -> Result<Option<HeaderValue>, ApiError> {
        let text = match self {
            Self::None => return Ok(None),
            Self::Text(token) => token.reveal().clone(),
            Self::File(path) => {
                let unusable = |fact: String| {
                    ApiError::Unauthorized(format!("token file {}: {fact}", path.display()))
                };
                let bytes = tokio::fs::read(path).await;
                let bytes = bytes.map_err(|error| unusable(error.to_string()))?;
                if bytes.len() > TOKEN_MAX {
                    return Err(unusable(format!("it has more than {TOKEN_MAX} bytes")));
                }
                String::from_utf8(bytes).map_err(|_| unusable("it is not UTF-8".to_owned()))?
            }
        };
        let mut value = HeaderValue::from_str(text.trim()).map_err(|_| {
            ApiError::Unauthorized("the token cannot be sent: it is not text".into())
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

async fn take(name: &str, response: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            let most = BODY_MAX >> 20;
            return ApiError::Misbehaving(format!(
                "the response to {name} has more than {most} MiB"
            ));
        }
        ApiError::from_exchange(name, &*error)
    })
}

fn index(headers: &HeaderMap) -> Option<u64> {
    headers.get("x-consul-index")?.to_str().ok()?.parse().ok()
}

/// Escapes a name for use in a path.
pub(super) fn escape(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
