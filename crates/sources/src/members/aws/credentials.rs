//! The AWS credentials of an identity: from the Pod Identity agent, or from STS for a web identity
//! or an assumed role.

use std::path::Path;
use std::time::SystemTime;

use http::Uri;
use http::header::{ACCEPT, HeaderValue};
use jiff::Timestamp;
use serde::Deserialize;

use super::sigv4::{ALGORITHM, CanonicalRequest, SigningScope};
use crate::members::form::form_text;
use crate::members::obtained::{limited_lifetime, read_token};
use crate::members::token_endpoint::{EndpointRequest, TokenFailure, element, secret_header};
use crate::members::{AwsCredentials, AwsIdentity};
use strait_kube_client::Redacted;

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
pub(super) async fn request(settings: &AwsIdentity) -> Result<Credentials, TokenFailure> {
    let base = match &settings.credentials {
        Some(AwsCredentials::PodIdentity { url, token_file }) => {
            pod_identity(url.uri(), token_file, settings.roots.as_deref()).await?
        }
        Some(AwsCredentials::WebIdentity { role, token_file, lifetime }) => {
            let token = read_token(token_file)?;
            let seconds = lifetime.as_secs().to_string();
            let form = form_text(&[
                ("Action", "AssumeRoleWithWebIdentity"),
                ("Version", "2011-06-15"),
                ("RoleArn", role),
                ("RoleSessionName", SESSION_NAME),
                ("WebIdentityToken", &token),
                ("DurationSeconds", &seconds),
            ]);
            sts(settings, form, &[&token], None).await?
        }
        None => return Err("the identity has no AWS credentials".to_owned().into()),
    };
    match &settings.assume_role {
        None => Ok(base),
        Some(role) => {
            let form = form_text(&[
                ("Action", "AssumeRole"),
                ("Version", "2011-06-15"),
                ("RoleArn", role),
                ("RoleSessionName", SESSION_NAME),
                ("DurationSeconds", ROLE_SECONDS),
            ]);
            sts(settings, form, &[], Some(&base)).await
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
) -> Result<Credentials, TokenFailure> {
    let token = read_token(token_file)?;
    let secrets = [token.as_str()];
    let mut request = EndpointRequest::get(url.clone(), roots, &secrets).authorized(&token)?;
    request.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let answer = request.send().await?;
    // The parser's text may quote a credential.
    let answer: AgentAnswer = serde_json::from_slice(&answer.body)
        .map_err(|_| format!("{url}: the answer has no AWS credentials"))?;
    Ok(Credentials {
        access_key_id: answer.access_key_id,
        secret_access_key: Redacted::new(answer.secret_access_key),
        session_token: Some(Redacted::new(answer.token)),
        expires: limited(answer.expiration),
    })
}

/// Sends a form with `secrets` to STS, signed with `signer` if there is one.
async fn sts(
    settings: &AwsIdentity,
    form: String,
    secrets: &[&str],
    signer: Option<&Credentials>,
) -> Result<Credentials, TokenFailure> {
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
    let roots = settings.roots.as_deref();
    let mut request =
        EndpointRequest::post(url.clone(), content_type, form.clone(), roots, secrets);
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
        request = request.authorized(&authorization)?;
        request.headers.insert("x-amz-date", secret_header(&date)?);
        if let Some(token) = token {
            request.headers.insert("x-amz-security-token", secret_header(token)?);
        }
    }
    let answer = request.send().await?;
    let text = std::str::from_utf8(&answer.body);
    let text = text.map_err(|_| format!("{url}: the answer is not text"))?;
    let credentials = from_xml(text);
    Ok(credentials.ok_or_else(|| format!("{url}: the answer has no AWS credentials"))?)
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

/// Whether a text needs no decoding and can be sent in a header.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && !b"<>&\"'".contains(&b))
}

/// Limits the lifetime that a response states.
fn limited(expires: Timestamp) -> SystemTime {
    let now = SystemTime::now();
    now + limited_lifetime(SystemTime::from(expires), now)
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
}
