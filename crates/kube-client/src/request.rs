//! Requests and their responses, with a deadline and a size limit for each part.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use tokio::time::timeout;

use super::body::ResponseBody;
use super::connect::SentCredential;
use super::envelope::Encoding;
use super::error::NO_CREDENTIAL;
use super::redacted::without_credential;
use super::transport::StreamPermit;
use super::{ApiClient, ApiError, protobuf};

/// Time limit for the head of a response, and for each further piece. The total time is not
/// limited: a slow server is read to the end, a silent one is abandoned.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// Maximum size of responses other than lists and watches, in bytes: objects are smaller than 1.5
/// MiB in etcd.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Maximum size of an error response that is read for its message, and the time limit.
const ERROR_BYTES_MAX: usize = 64 << 10;
const ERROR_LIMIT: Duration = Duration::from_secs(5);

/// The content types of the two encodings of responses.
const JSON: &str = "application/json";
/// JSON with an API server's signing keys.
const KEY_SET: &str = "application/jwk-set+json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Protobuf if the server supports it; proxies and extension servers often support only JSON.
const EITHER: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");

/// The type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    /// JSON merge patch (RFC 7386).
    Merge,
    /// Server-side apply with this field manager, conflicts forced: the complete object.
    Apply(&'static str),
    /// Server-side apply with this field manager: the complete object. A field of another manager
    /// that has a different value is an error.
    ApplyOwn(&'static str),
}

impl ApiClient {
    /// Reads the JSON at `path`, such as `/api/v1/namespaces/kube-system`.
    ///
    /// # Errors
    /// Every [`ApiError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.json(Method::GET, path, None).await
    }

    /// Creates `object` below `path`. Also for requests that are objects, such as a TokenRequest.
    ///
    /// # Errors
    /// Every [`ApiError`]; an object that exists is [`ApiError::Rejected`] with 409.
    pub async fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &impl Serialize,
    ) -> Result<T, ApiError> {
        self.json(Method::POST, path, Some(("application/json", encode(object)?))).await
    }

    /// Patches the object at `path`.
    ///
    /// # Errors
    /// Every [`ApiError`].
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        patch: Patch,
        change: &impl Serialize,
    ) -> Result<T, ApiError> {
        let (content_type, path) = match patch {
            Patch::Merge => ("application/merge-patch+json", path.to_owned()),
            Patch::Apply(manager) => (
                "application/apply-patch+yaml",
                format!("{path}?fieldManager={}&force=true", percent_encode(manager)),
            ),
            Patch::ApplyOwn(manager) => (
                "application/apply-patch+yaml",
                format!("{path}?fieldManager={}", percent_encode(manager)),
            ),
        };
        self.json(Method::PATCH, &path, Some((content_type, encode(change)?))).await
    }

    /// Replaces the object at `path` if it still has the version in `object`.
    ///
    /// # Errors
    /// Every [`ApiError`]; an object that has changed meanwhile is [`ApiError::Rejected`] with 409.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &impl Serialize,
    ) -> Result<T, ApiError> {
        self.json(Method::PUT, path, Some(("application/json", encode(object)?))).await
    }

    /// Deletes the object at `path`.
    ///
    /// # Errors
    /// Every [`ApiError`]; [`ApiError::NotFound`] if it does not exist.
    pub async fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.json::<IgnoredAny>(Method::DELETE, path, None).await.map(drop)
    }

    /// Deletes the object at `path` if it still has this UID and this version.
    ///
    /// # Errors
    /// Every [`ApiError`]; an object that was changed or replaced is [`ApiError::Rejected`] with
    /// 409.
    pub async fn delete_exactly(
        &self,
        path: &str,
        uid: &str,
        resource_version: &str,
    ) -> Result<(), ApiError> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": { "uid": uid, "resourceVersion": resource_version },
        });
        let body = Some(("application/json", encode(&options)?));
        self.json::<IgnoredAny>(Method::DELETE, path, body).await.map(drop)
    }

    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<T, ApiError> {
        let mut answer = self.open(method, path, body, Encoding::Json).await?;
        let bytes = answer.whole(ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::Broken { request: answer.request, fact: error.to_string() })
    }

    /// Sends a request and waits for the head of a successful response in JSON or `best`.
    pub(super) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
        best: Encoding,
    ) -> Result<OpenResponse, ApiError> {
        let (plain_path, _) = path.split_once('?').unwrap_or((path, ""));
        let description = format!("{method} {plain_path}");
        let mut request = Request::builder().method(method);
        if best == Encoding::Protobuf {
            request = request.header(ACCEPT, EITHER);
        }
        let bytes = match body {
            Some((content_type, bytes)) => {
                request = request.header(CONTENT_TYPE, HeaderValue::from_static(content_type));
                bytes
            }
            None => Bytes::new(),
        };
        let request =
            self.uri(path).and_then(|uri| request.uri(uri).body(Full::new(bytes))).map_err(
                |error| ApiError::Misbehaving(format!("{plain_path} is not a path: {error}")),
            )?;

        // Boxed, so that a watch does not keep the memory of the request.
        let exchange = Box::pin(self.exchange(request));
        let (response, permit) = match timeout(SILENCE_LIMIT, exchange).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => {
                return Err(match ApiError::from_exchange(&description, error.as_ref()) {
                    ApiError::Unreachable(fact) => {
                        let server = self.server().authority().map_or("", Authority::as_str);
                        ApiError::Unreachable(format!("{server}: {fact}"))
                    }
                    other => other,
                });
            }
            Err(_) => return Err(ApiError::Silent { request: description, limit: SILENCE_LIMIT }),
        };
        let answer = OpenResponse::begin(description, response, permit, best).await;
        answer.map_err(|error| match error {
            ApiError::Unauthorized(_) if self.has_no_credential() => {
                ApiError::Unauthorized(NO_CREDENTIAL.into())
            }
            error => error,
        })
    }
}

/// A response with a successful head whose body is still to be read.
#[derive(Debug)]
pub(super) struct OpenResponse {
    /// The request, for messages.
    pub(super) request: String,
    /// The encoding of the body.
    pub(super) encoding: Encoding,
    body: ResponseBody,
    _permit: Option<StreamPermit>,
}

impl OpenResponse {
    async fn begin(
        request: String,
        response: Response<ResponseBody>,
        permit: Option<StreamPermit>,
        best: Encoding,
    ) -> Result<Self, ApiError> {
        let (head, body) = response.into_parts();
        let content_type = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let encoding = match content_type {
            given if [JSON, KEY_SET].iter().any(|json| given.starts_with(json.as_bytes())) => {
                Some(Encoding::Json)
            }
            given if given.starts_with(PROTOBUF.as_bytes()) => Some(Encoding::Protobuf),
            _ => None,
        };
        let mut answer =
            Self { request, encoding: encoding.unwrap_or(Encoding::Json), body, _permit: permit };
        // Compression is not requested, and responses are never decompressed: the size of the
        // result is not limited.
        if let Some(coding) = head.headers.get(CONTENT_ENCODING).filter(|one| **one != "identity") {
            let coding = super::error::one_line(&String::from_utf8_lossy(coding.as_bytes()));
            return Err(ApiError::Misbehaving(format!(
                "the response to {} is compressed ({coding}), which was not requested",
                answer.request
            )));
        }
        if !head.status.is_success() {
            let retry_after = retry_after(&head.headers);
            let mut message = Box::pin(answer.message(head.status)).await;
            if let Some(SentCredential(header)) = head.extensions.get() {
                message = without_credential(&message, header.as_bytes());
            }
            return Err(ApiError::from_status(head.status.as_u16(), &message, retry_after));
        }
        // A captive portal or a load balancer responds 200 with a page, which is not an empty list.
        // Protobuf is not valid for a request that did not accept it.
        if encoding.is_none_or(|encoding| encoding != Encoding::Json && encoding != best) {
            let content_type = super::error::one_line(&String::from_utf8_lossy(content_type));
            return Err(ApiError::Misbehaving(format!(
                "the response to {} is {content_type:?} instead of {JSON}",
                answer.request
            )));
        }
        Ok(answer)
    }

    /// Returns the next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self, silence: Duration) -> Result<Option<Bytes>, ApiError> {
        loop {
            match timeout(silence, self.body.frame()).await {
                Err(_) => {
                    return Err(ApiError::Silent { request: self.request.clone(), limit: silence });
                }
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => {
                    return Err(ApiError::from_exchange(&self.request, error.as_ref()));
                }
                Ok(Some(Ok(frame))) => {
                    // Trailers are not used.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Returns the complete body of at most `bytes_max` bytes.
    pub(super) async fn whole(&mut self, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(SILENCE_LIMIT).await? {
            if whole.len() + piece.len() > bytes_max {
                return Err(ApiError::Misbehaving(format!(
                    "the response to {} is longer than {} MiB",
                    self.request,
                    bytes_max >> 20
                )));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    /// Returns the message of an error response, if it can be read.
    async fn message(&mut self, status: StatusCode) -> String {
        #[derive(serde::Deserialize)]
        struct Status {
            message: String,
        }
        let body = timeout(ERROR_LIMIT, self.whole(ERROR_BYTES_MAX)).await;
        let message = match (body, self.encoding) {
            (Ok(Ok(body)), Encoding::Json) => {
                serde_json::from_slice::<Status>(&body).ok().map(|status| status.message)
            }
            (Ok(Ok(body)), Encoding::Protobuf) => protobuf::status_message(&body),
            _ => None,
        };
        message.unwrap_or_else(|| status.canonical_reason().unwrap_or("unknown status").to_owned())
    }
}

fn encode(object: &impl Serialize) -> Result<Bytes, ApiError> {
    // Only a map with keys that are not strings fails, which no Kubernetes object has.
    serde_json::to_vec(object)
        .map(Bytes::from)
        .map_err(|error| ApiError::Misbehaving(format!("the object can't be sent: {error}")))
}

/// Returns the server's time in the header `Date`.
pub fn server_time(headers: &HeaderMap) -> Option<SystemTime> {
    date(headers.get(DATE)?.to_str().ok()?)
}

/// Parses a date of HTTP (RFC 9110, 5.6.7).
fn date(text: &str) -> Option<SystemTime> {
    Some(jiff::fmt::rfc2822::parse(text).ok()?.timestamp().into())
}

/// Returns the pause in the header `Retry-After`, in seconds or as a date. A number that is too large
/// counts as the maximum.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    // The server's clock may differ from this machine's.
    let now = server_time(headers).unwrap_or_else(SystemTime::now);
    Some(date(text)?.duration_since(now).unwrap_or_default())
}

/// Percent-encodes everything but unreserved characters, for a query.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_value_is_percent_encoded() {
        assert_eq!(percent_encode("a=b,c!=d é"), "a%3Db%2Cc%21%3Dd%20%C3%A9");
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let parse = |text| {
            let date = HeaderValue::from_static("Wed, 21 Oct 2026 07:27:30 GMT");
            let headers = [(DATE, date), (RETRY_AFTER, HeaderValue::from_static(text))];
            retry_after(&HeaderMap::from_iter(headers))
        };
        assert_eq!(parse("7"), Some(Duration::from_secs(7)));
        assert_eq!(parse("99999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(parse("Wed, 21 Oct 2026 07:28:00 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(parse("Wed, 21 Oct 2026 07:27:00 GMT"), Some(Duration::ZERO));
        assert_eq!(parse("soon"), None);
    }
}
