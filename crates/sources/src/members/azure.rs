//! Tokens for AKS: Entra ID issues one for a federated token of the control plane.

use super::AzureIdentity;
use super::endpoint::OperatorUrl;
use super::form::form_text;
use super::oauth::{FORM, read_answer};
use super::obtained::{ObtainedCredential, read_token};
use super::token_endpoint::{EndpointRequest, TokenFailure};

/// The server application of AKS, which is the same for all clusters.
const AKS_APPLICATION: &str = "6dae42f8-4368-4678-94ff-3960e28e3630";
const AUTHORITY: &str = "https://login.microsoftonline.com";

/// Requests a token of the application.
pub(super) async fn entra_token(
    identity: &AzureIdentity,
) -> Result<ObtainedCredential, TokenFailure> {
    let assertion = read_token(&identity.token_file)?;
    let scope = format!("{AKS_APPLICATION}/.default");
    let form = form_text(&[
        ("grant_type", "client_credentials"),
        ("client_id", &identity.client_id),
        ("scope", &scope),
        ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
        ("client_assertion", &assertion),
    ]);
    let authority = identity.authority.as_ref().map(OperatorUrl::to_string);
    let authority = authority.as_deref().unwrap_or(AUTHORITY).trim_end_matches('/');
    let url = format!("{authority}/{}/oauth2/v2.0/token", identity.tenant);
    let url = url.parse().map_err(|_| format!("{url} is not a URL"))?;
    let secrets = [assertion.as_str()];
    let request = EndpointRequest::post(url, FORM, form, identity.roots.as_deref(), &secrets);
    let answer = request.send().await.map_err(|failure| {
        failure.with_advice(|| {
            format!(
                "check the federated credential of application {}: issuer and subject of the token in {}, audience api://AzureADTokenExchange",
                identity.client_id,
                identity.token_file.display()
            )
        })
    })?;
    // The application's ID, also as `spn:ID` or `api://ID`.
    let is_aks = |audience: &str| audience.rsplit([':', '/']).next() == Some(AKS_APPLICATION);
    Ok(read_answer(&answer, is_aks, AKS_APPLICATION)?)
}
