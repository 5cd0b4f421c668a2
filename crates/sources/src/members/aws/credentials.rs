//! The AWS credentials of an identity: from the Pod Identity agent, or from STS for a web identity
//! or an assumed role.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use jiff::Timestamp;
use serde::Deserialize;
use tower::ServiceExt as _;

use super::sigv4::{ALGORITHM, CanonicalRequest, SigningScope, canonical_query};
use crate::members::obtained::{limited_lifetime, read_token};
use crate::members::{AwsCredentials, AwsIdentity};
use strait_kube_client::{Redacted, one_line, transport_to};

/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a response in bytes.
const BYTES_MAX: usize = 64 << 10;
/// The lifetime of the credentials of an assumed role, in seconds.
const ROLE_SECONDS: &str = "3600";
/// The name of sessions, which CloudTrail shows.
const SESSION_NAME: &str = "strait";

/// Credentials for signing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) access_key_id: String,
    pub(super) secret_access_key: Redacted<String>,
    pub(super) session_token: Option<Redacted<String>>,
    pub(super) expires: SystemTime,
}

/// Requests credentials.
///
/// # Errors
/// Returns the reason, without any credential.
pub(super) async fn request(settings: &AwsIdentity) -> Result<Credentials, String> {
    let base = match &settings.credentials {
        Some(AwsCredentials::PodIdentity { url, token_file }) => {
            pod_identity(url.uri(), token_file, settings.roots.as_deref()).await?
        }
        Some(AwsCredentials::WebIdentity { role, token_file, lifetime }) => {
            let token = read_token(token_file)?;
            let seconds = lifetime.as_secs().to_string();
            let form = canonical_query(&[
                ("Action", "AssumeRoleWithWebIdentity"),
                ("Version", "2011-06-15"),
                ("RoleArn", role),
                ("RoleSessionName", SESSION_NAME),
                ("WebIdentityToken", &token),
                ("DurationSeconds", &seconds),
            ]);
            sts(settings, form, None).await?
        }
        None => return Err("the identity has no AWS credentials".to_owned()),
    };
    match &settings.assume_role {
        None => Ok(base),
        Some(role) => {
            let form = canonical_query(&[
                ("Action", "AssumeRole"),
                ("Version", "2011-06-15"),
                ("RoleArn", role),
                ("RoleSessionName", SESSION_NAME),
                ("DurationSeconds", ROLE_SECONDS),
            ]);
            sts(settings, form, Some(&base)).await
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AgentAnswer {
    access_key_id: String,
    secret_access_key: String,
    token: String,
    expiration: Timestamp,
}

/// Requests credentials from the Pod Identity agent. The token file is read for each request: the
/// kubelet replaces it.
async fn pod_identity(
    url: &Uri,
    token_file: &Path,
    roots: Option<&Path>,
) -> Result<Credentials, String> {
    let token = read_token(token_file)?;
    let request = Request::get(url.clone())
        .header(AUTHORIZATION, secret(&token)?)
        .header(ACCEPT, "application/json")
        .body(Full::default())
        .map_err(|error| error.to_string())?;
    let body = exchange(request, roots).await?;
    // The parser's text may quote a credential.
    let answer: AgentAnswer = serde_json::from_slice(&body)
        .map_err(|_| format!("{url}: the answer has no AWS credentials"))?;
    Ok(Credentials {
        access_key_id: answer.access_key_id,
        secret_access_key: Redacted::new(answer.secret_access_key),
        session_token: Some(Redacted::new(answer.token)),
        expires: limited(answer.expiration),
    })
}

/// Sends a form to STS, signed with `signer` if there is one.
async fn sts(
    settings: &AwsIdentity,
    form: String,
    signer: Option<&Credentials>,
) -> Result<Credentials, String> {
    let url = match &settings.endpoint {
        Some(endpoint) => endpoint.uri().clone(),
        None => {
            let host = settings.sts_host();
            format!("https://{host}/").parse().map_err(|_| format!("{host} is no host"))?
        }
    };
    let host = url.authority().map(ToString::to_string).unwrap_or_default();
    let path = if url.path().is_empty() { "/" } else { url.path() };
    let content_type = "application/x-www-form-urlencoded; charset=utf-8";
    let mut request = Request::builder().method(Method::POST).header(CONTENT_TYPE, content_type);
    if let Some(signer) = signer {
        let scope =
            SigningScope { time: Timestamp::now(), region: &settings.region, service: "sts" };
        let date = scope.date_time();
        let token = signer.session_token.as_ref().map(Redacted::reveal);
        let mut headers =
            vec![("content-type", content_type), ("host", &*host), ("x-amz-date", &*date)];
        headers.extend(token.map(|token| ("x-amz-security-token", token.as_str())));
        let canonical = CanonicalRequest {
            method: "POST",
            path,
            query: "",
            headers: &headers,
            body: form.as_bytes(),
        };
        let signature = scope.sign(&canonical, &signer.secret_access_key);
        let (key, signed) = (&signer.access_key_id, canonical.signed_headers());
        let authorization = format!(
            "{ALGORITHM} Credential={key}/{}, SignedHeaders={signed}, Signature={signature}",
            scope.text()
        );
        request = request.header(AUTHORIZATION, secret(&authorization)?).header("x-amz-date", date);
        if let Some(token) = token {
            request = request.header("x-amz-security-token", secret(token)?);
        }
    }
    let request = request.uri(url.clone()).body(Full::new(Bytes::from(form)));
    let request = request.map_err(|error| error.to_string())?;
    let body = exchange(request, settings.roots.as_deref()).await?;
    let text = std::str::from_utf8(&body).map_err(|_| format!("{url}: the answer is not text"))?;
    from_xml(text).ok_or_else(|| format!("{url}: the answer has no AWS credentials"))
}

/// Reads the credentials in an answer of STS.
fn from_xml(text: &str) -> Option<Credentials> {
    let credentials = element(text, "Credentials")?;
    let filled = |name: &str| element(credentials, name).filter(|text| is_plain(text));
    let expires = filled("Expiration")?.parse().ok()?;
    Some(Credentials {
        access_key_id: filled("AccessKeyId")?.to_owned(),
        secret_access_key: Redacted::new(filled("SecretAccessKey")?.to_owned()),
        session_token: Some(Redacted::new(filled("SessionToken")?.to_owned())),
        expires: limited(expires),
    })
}

/// Returns the content of the first element with this name, which must have no attributes.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(content, _)| content)
}

/// Whether a text needs no decoding and can be sent in a header.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !b"<>&\"'".contains(&b))
}

/// Limits the lifetime that a response states.
fn limited(expires: Timestamp) -> SystemTime {
    let now = SystemTime::now();
    now + limited_lifetime(SystemTime::from(expires), now)
}

fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| "a credential contains a character that no header has".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Sends a request to a server that the operator names, and returns the body of its answer.
/// Redirects are not followed, compression is not requested.
async fn exchange(
    mut request: Request<Full<Bytes>>,
    roots: Option<&Path>,
) -> Result<Bytes, String> {
    let server = request.uri().clone();
    let host = server.authority().map(|authority| authority.as_str().to_owned());
    let host = host.and_then(|host| HeaderValue::try_from(host).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    let failed = |fact: &str| format!("{server}: {}", one_line(fact));
    let roots = match roots {
        Some(path) => {
            let pem = std::fs::read(path);
            Some(pem.map_err(|error| format!("{}: {error}", path.display()))?)
        }
        None => None,
    };
    let transport = transport_to(&server, roots.as_deref()).map_err(|e| failed(&e.to_string()))?;
    let answered = async {
        let response = transport.oneshot(request).await.map_err(|error| {
            let mut deepest: &dyn std::error::Error = error.as_ref();
            while let Some(source) = deepest.source() {
                deepest = source;
            }
            failed(&deepest.to_string())
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BYTES_MAX).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => failed("the answer is larger than 64 KiB"),
            false => failed(&error.to_string()),
        })?;
        let body = body.to_bytes();
        match status {
            StatusCode::OK => Ok(body),
            _ => Err(failed(&refusal(status, &String::from_utf8_lossy(&body)))),
        }
    };
    let limit = || failed(&format!("no answer within {} s", LIMIT.as_secs()));
    tokio::time::timeout(LIMIT, answered).await.unwrap_or_else(|_| Err(limit()))
}

/// Describes an answer that is not successful. STS writes a code and a message.
fn refusal(status: StatusCode, body: &str) -> String {
    let parts = ["Code", "Message"].map(|name| element(body, name));
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => format!("status {status}"),
        false => format!("status {status}: {}", parts.join(": ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::obtained::LIFETIME_MAX;

    #[test]
    fn answer_of_sts_is_read_within_its_credentials_element() {
        let answer = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>\
            <AccessKeyId>other</AccessKeyId><Credentials><AccessKeyId>ASIA1</AccessKeyId>\
            <SecretAccessKey>canary+/=</SecretAccessKey><SessionToken>canary</SessionToken>\
            <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>\
            </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
        let read = from_xml(answer).expect("credentials");
        assert_eq!(read.access_key_id, "ASIA1");
        assert!(!format!("{read:?}").contains("canary"));
        let left = read.expires.duration_since(SystemTime::now()).expect("in the future");
        assert!(left <= LIFETIME_MAX);
        for broken in [
            "",
            "<Credentials></Credentials>",
            &answer.replace("ASIA1", "a&amp;b"),
            &answer.replace("2099-01-01T00:00:00Z", "soon"),
            &answer.replace("</Credentials>", ""),
        ] {
            assert_eq!(from_xml(broken), None, "{broken}");
        }
    }

    #[test]
    fn refusal_of_sts_is_shown_with_code_and_message() {
        let body = "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>Token expired</Message></Error></ErrorResponse>";
        let text = refusal(StatusCode::BAD_REQUEST, body);
        assert_eq!(text, "status 400 Bad Request: ExpiredTokenException: Token expired");
    }
}
