//! Requests to token endpoints, which the operator names.
//!
//! Time and size are limited, redirects are not followed, and compression is not requested. An error
//! contains the response of the endpoint without the credentials of the request.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use jiff::Timestamp;
use serde_json::Value;
use tower::ServiceExt as _;

use strait_kube_client::{one_line, retry_after, server_time, transport_to};

/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 10 });
/// Maximum size of a response in bytes.
const BYTES_MAX: usize = 64 << 10;
/// The longest pause that an endpoint can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// The difference between two clocks that is reported.
const SKEW_MIN: Duration = Duration::from_secs(60);
/// A longer sequence of letters and digits in an error of an endpoint may be a credential.
const WORD_MAX: usize = 40;

/// The reason why a token could not be obtained. Never contains a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenFailure {
    /// The reason, and what to do next.
    pub fact: String,
    /// The pause that the endpoint requests.
    pub retry_after: Option<Duration>,
    /// The status of the endpoint's response, if it refused the request.
    pub(super) status: Option<StatusCode>,
}

impl From<String> for TokenFailure {
    fn from(fact: String) -> Self {
        Self { fact, retry_after: None, status: None }
    }
}

impl TokenFailure {
    /// Adds the next step for a request that the endpoint refuses as such.
    pub(super) fn with_advice(mut self, advice: impl FnOnce() -> String) -> Self {
        let is_refusal = |status: StatusCode| {
            status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS
        };
        if self.status.is_some_and(is_refusal) {
            self.fact = format!("{}; {}", self.fact, advice());
        }
        self
    }
}

/// A request to a token endpoint.
pub(super) struct EndpointRequest<'a> {
    pub(super) url: Uri,
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    /// The file of the roots that verify the endpoint; the machine's roots if absent.
    pub(super) roots: Option<&'a Path>,
    /// The credentials in the request, which no error may contain.
    pub(super) secrets: &'a [&'a str],
}

impl<'a> EndpointRequest<'a> {
    /// Creates a request `GET`.
    pub(super) fn get(url: Uri, roots: Option<&'a Path>, secrets: &'a [&'a str]) -> Self {
        let (method, headers) = (Method::GET, HeaderMap::new());
        Self { url, method, headers, body: String::new(), roots, secrets }
    }

    /// Creates a request `POST` with a body of this type.
    pub(super) fn post(
        url: Uri,
        content_type: &'static str,
        body: String,
        roots: Option<&'a Path>,
        secrets: &'a [&'a str],
    ) -> Self {
        let content_type = HeaderValue::from_static(content_type);
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type)]);
        Self { url, method: Method::POST, headers, body, roots, secrets }
    }

    /// Sets the header `Authorization`.
    pub(super) fn authorized(mut self, value: &str) -> Result<Self, String> {
        self.headers.insert(AUTHORIZATION, secret_header(value)?);
        Ok(self)
    }

    /// Sends the request and returns a successful response.
    pub(super) async fn send(self) -> Result<EndpointResponse, TokenFailure> {
        let shown = shown(&self.url);
        let limit = || format!("{shown}: no answer within {} s", LIMIT.as_secs());
        let answered = tokio::time::timeout(LIMIT, self.answered(&shown)).await;
        answered.unwrap_or_else(|_| Err(limit().into()))
    }

    async fn answered(&self, shown: &str) -> Result<EndpointResponse, TokenFailure> {
        let failed = |fact: &str| TokenFailure::from(format!("{shown}: {}", one_line(fact)));
        let roots = match self.roots {
            Some(path) => {
                let pem = std::fs::read(path);
                Some(pem.map_err(|error| format!("{}: {error}", path.display()))?)
            }
            None => None,
        };
        let transport =
            transport_to(&self.url, roots.as_deref()).map_err(|e| failed(&e.to_string()))?;
        let mut request = Request::builder().method(self.method.clone()).uri(self.url.clone());
        if let Some(headers) = request.headers_mut() {
            *headers = self.headers.clone();
            let host = self.url.authority().map(http::uri::Authority::as_str);
            let host = host.and_then(|host| HeaderValue::try_from(host).ok());
            headers.extend(host.map(|host| (HOST, host)));
        }
        let request = request.body(Full::new(Bytes::from(self.body.clone())));
        let request = request.map_err(|error| error.to_string())?;
        let response = transport.oneshot(request).await.map_err(|error| {
            let mut deepest: &dyn std::error::Error = error.as_ref();
            while let Some(source) = deepest.source() {
                deepest = source;
            }
            failed(&deepest.to_string())
        })?;
        let (status, headers) = (response.status(), response.headers().clone());
        let date = server_time(&headers);
        let body = Limited::new(response.into_body(), BYTES_MAX).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => failed("the answer is larger than 64 KiB"),
            false => failed(&error.to_string()),
        })?;
        let body = body.to_bytes();
        if status == StatusCode::OK {
            let (shown, now) = (shown.to_owned(), SystemTime::now());
            return Ok(EndpointResponse { shown, headers, body, now: date.unwrap_or(now) });
        }
        let mut fact = format!("status {status}");
        if let Some(reason) = reason(&String::from_utf8_lossy(&body)) {
            fact += &format!(": {}", without_credentials(&reason, self.secrets));
        } else if status.is_redirection() && headers.contains_key(LOCATION) {
            fact += ": redirects are not followed";
        }
        let mut failure = failed(&fact);
        failure.fact += &clock_difference(date);
        failure.status = Some(status);
        failure.retry_after = requested_pause(&headers);
        Err(failure)
    }
}

/// A successful response of a token endpoint.
pub(super) struct EndpointResponse {
    /// The URL without its query.
    pub(super) shown: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The time by the clock of the endpoint, if the response has it, otherwise by this machine's.
    pub(super) now: SystemTime,
}

/// Returns a header value that is never shown.
pub(super) fn secret_header(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| "a credential contains a character that no header has".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn shown(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or_default();
    let authority = url.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    format!("{scheme}://{authority}{}", url.path())
}

/// Returns the pause that an endpoint requests, at most [`RETRY_AFTER_MAX`].
fn requested_pause(headers: &HeaderMap) -> Option<Duration> {
    retry_after(headers).map(|pause| pause.min(RETRY_AFTER_MAX))
}

/// Describes the difference between the endpoint's clock and this machine's, if it is large.
fn clock_difference(date: Option<SystemTime>) -> String {
    let Some(date) = date else { return String::new() };
    let now = SystemTime::now();
    let (difference, order) = match now.duration_since(date) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    if difference < SKEW_MIN {
        return String::new();
    }
    format!("; the clock of this machine is {} s {order} the endpoint's", difference.as_secs())
}

/// Returns the reason in the body of a refusal: the fields of OAuth, of Google or of AWS, otherwise a
/// text. JSON without such a field is not shown, because it may contain a token.
fn reason(body: &str) -> Option<String> {
    let aws = ["Code", "Message"].map(|name| element(body, name));
    let aws: Vec<_> = aws.into_iter().flatten().collect();
    if !aws.is_empty() {
        return Some(aws.join(": "));
    }
    if let Ok(answer) = serde_json::from_str::<Value>(body) {
        let error = &answer["error"];
        let parts = [
            error.as_str(),
            answer["error_description"].as_str(),
            error["status"].as_str(),
            error["message"].as_str(),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        return (!parts.is_empty()).then(|| parts.join(": "));
    }
    let text = body.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty() && !text.contains("token")).then_some(text)
}

/// Returns the content of the first XML element with this name, which must have no attributes.
pub(super) fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(content, _)| content)
}

/// Replaces the credentials of the request, and each sequence of characters that may be another one.
fn without_credentials(text: &str, secrets: &[&str]) -> String {
    let known = |text: String, secret: &&str| text.replace(secret, "…");
    let text = secrets.iter().filter(|secret| !secret.is_empty()).fold(text.to_owned(), known);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.+/=~%".contains(c);
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let is_word = is_part(first);
        let end = rest.find(|c| is_part(c) != is_word).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        out += if is_word && run.len() > WORD_MAX { "…" } else { run };
        rest = after;
    }
    out
}

/// Returns the time that a response states.
pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_shows_the_fields_of_each_cloud_and_no_credential() {
        let shown = |body: &str| {
            reason(body).map(|text| without_credentials(&text, &["canary", "eyJ.sent"]))
        };
        let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlLWNhbmFyeQ";
        for (body, expected) in [
            ("<E><Code>ExpiredToken</Code><Message>late</Message></E>", Some("ExpiredToken: late")),
            (
                r#"{"error": "invalid_grant", "error_description": "AADSTS700024: late"}"#,
                Some("invalid_grant: AADSTS700024: late"),
            ),
            (
                r#"{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}"#,
                Some("PERMISSION_DENIED: no"),
            ),
            (r#"{"access_token": "canary"}"#, None),
            (&format!(r#"{{"error": "bad {jwt} here canary"}}"#), Some("bad … here …")),
            ("Service  is\nbusy", Some("Service is busy")),
            ("access_token=canary", None),
            ("", None),
        ] {
            assert_eq!(shown(body).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn requested_pause_is_read_in_both_forms_and_limited() {
        let pause = |value: &str| {
            let date = HeaderValue::from_static("Sun, 29 Nov 2026 10:00:00 GMT");
            let value = HeaderValue::try_from(value).expect("a header");
            let headers = [(http::header::DATE, date), (http::header::RETRY_AFTER, value)];
            requested_pause(&HeaderMap::from_iter(headers)).map(|pause| pause.as_secs())
        };
        assert_eq!(pause("7"), Some(7));
        assert_eq!(pause("Sun, 29 Nov 2026 10:00:30 GMT"), Some(30));
        assert_eq!(pause("86400"), Some(600));
        assert_eq!(pause("99999999999999999999"), Some(600));
        assert_eq!(pause("soon"), None);
    }

    #[test]
    fn large_difference_of_clocks_is_reported() {
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        assert_eq!(clock_difference(Some(now)), "");
        assert_eq!(clock_difference(None), "");
        assert!(clock_difference(Some(now - hour)).contains("3600 s ahead of"));
        assert!(clock_difference(Some(now + hour)).contains("s behind"));
    }
}
