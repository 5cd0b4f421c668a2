//! Tokens for GKE: from the metadata server of the node, or from Google's token service for a token of
//! another issuer.

use std::path::Path;

use http::Uri;
use http::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::json;

use super::endpoint::OperatorUrl;
use super::form::form_text;
use super::oauth::{FORM, exchange_form, issued, read_answer};
use super::obtained::{ObtainedCredential, read_token};
use super::token_endpoint::{EndpointRequest, TokenFailure, parse_time};
use super::{GoogleCredentials, GoogleFederation, GoogleIdentity};

/// The metadata server by its address: a name could lead anywhere else.
const METADATA: &str = "http://169.254.169.254";
const METADATA_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const FLAVOR: HeaderName = HeaderName::from_static("metadata-flavor");
const STS: &str = "https://sts.googleapis.com";
const STS_PATH: &str = "/v1/token";
const IAM: &str = "https://iamcredentials.googleapis.com";
/// Without the second one, GKE sees a number instead of the account's e-mail address.
const SCOPES: [&str; 2] = [
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
];
/// The lifetime of the token of a service account.
const ACCOUNT_LIFETIME: &str = "3600s";

/// Requests an access token.
pub(super) async fn google_token(
    identity: &GoogleIdentity,
) -> Result<ObtainedCredential, TokenFailure> {
    match &identity.credentials {
        GoogleCredentials::Metadata { endpoint } => metadata(identity, endpoint.as_ref()).await,
        GoogleCredentials::Federation(federation) => {
            federated(federation, identity.roots.as_deref()).await
        }
    }
}

/// Returns the URL of a path at an endpoint: the operator's, otherwise the public one.
fn url(endpoint: Option<&OperatorUrl>, public: &str, path: &str) -> Result<Uri, String> {
    let base = endpoint.map(OperatorUrl::to_string);
    let base = base.as_deref().unwrap_or(public).trim_end_matches('/');
    let url = format!("{base}{path}");
    url.parse().map_err(|_| format!("{url} is not a URL"))
}

async fn metadata(
    identity: &GoogleIdentity,
    endpoint: Option<&OperatorUrl>,
) -> Result<ObtainedCredential, TokenFailure> {
    let query = form_text(&[("scopes", &SCOPES.join(","))]);
    let url = url(endpoint, METADATA, &format!("{METADATA_PATH}?{query}"))?;
    let mut request = EndpointRequest::get(url, identity.roots.as_deref(), &[]);
    let google = HeaderValue::from_static("Google");
    request.headers.insert(FLAVOR, google.clone());
    let answer = request.send().await.map_err(|failure| {
        failure.with_advice(|| {
            "check that the pod's service account is linked to a Google service account, or that the node has one".to_owned()
        })
    })?;
    if answer.headers.get(FLAVOR) != Some(&google) {
        let fact =
            "the answer has no header Metadata-Flavor: Google, so it is not of a metadata server";
        return Err(format!("{}: {fact}", answer.shown).into());
    }
    Ok(read_answer(&answer, |_| true, "")?)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountAnswer {
    access_token: String,
    expire_time: String,
}

/// Exchanges the token in the file, and with `serviceAccount` the result for a token of that account.
async fn federated(
    federation: &GoogleFederation,
    roots: Option<&Path>,
) -> Result<ObtainedCredential, TokenFailure> {
    let GoogleFederation { audience, token_file, endpoint, service_account } = federation;
    let token = read_token(token_file)?;
    // The endpoint of the operator is the token service itself, or a server for all services.
    let has_path = endpoint.as_ref().is_some_and(|url| !matches!(url.uri().path(), "" | "/"));
    let sts = url(endpoint.as_ref(), STS, if has_path { "" } else { STS_PATH })?;
    let form = exchange_form(&token, audience, Some(&SCOPES.join(" ")));
    let secrets = [token.as_str()];
    let answer = EndpointRequest::post(sts, FORM, form, roots, &secrets).send().await;
    let answer = answer.map_err(|failure| {
        failure.with_advice(|| {
            format!(
                "check that the provider {audience} accepts issuer, subject and audience of the token in {}",
                token_file.display()
            )
        })
    })?;
    let obtained = read_answer(&answer, |_| true, "")?;
    let Some((account, federated)) = service_account.as_ref().zip(obtained.credential.token())
    else {
        return Ok(obtained);
    };
    let path = format!("/v1/projects/-/serviceAccounts/{account}:generateAccessToken");
    let iam = match endpoint {
        None => url(None, IAM, &path)?,
        Some(named) => at_server(named.uri(), &path)?,
    };
    let body = json!({ "scope": SCOPES, "lifetime": ACCOUNT_LIFETIME }).to_string();
    let secrets = [token.as_str(), federated];
    let request = EndpointRequest::post(iam, "application/json", body, roots, &secrets);
    let request = request.authorized(&format!("Bearer {federated}"))?;
    let answer = request.send().await.map_err(|failure| {
        failure.with_advice(|| {
            format!("grant the principal roles/iam.workloadIdentityUser on {account}")
        })
    })?;
    let shown = &answer.shown;
    // The parser's text may quote the token.
    let AccountAnswer { access_token, expire_time } = serde_json::from_slice(&answer.body)
        .map_err(|_| format!("{shown}: the answer has no accessToken with expireTime"))?;
    let expires = parse_time(&expire_time)
        .ok_or_else(|| format!("{shown}: expireTime of the answer is not a time"))?;
    let left = expires.duration_since(answer.now);
    let left = left.map_err(|_| format!("{shown}: the token in the answer has expired"))?;
    Ok(issued(shown, access_token, Some(left), answer.now)?)
}

/// Returns the URL of a path at the server of another URL.
fn at_server(server: &Uri, path: &str) -> Result<Uri, String> {
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| format!("{path} is not a path"))?);
    Uri::from_parts(parts).map_err(|error| error.to_string())
}
