//! Tokens in responses of OAuth 2.0 endpoints, and the exchange of tokens (RFC 8693).

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use super::ExchangeIdentity;
use super::form::form_text;
use super::obtained::{ObtainedCredential, expiring_token, read_token};
use super::token_endpoint::{EndpointRequest, EndpointResponse, TokenFailure};
use crate::lifetime::{Lifetime, audiences};

/// The type of a form.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";
/// The lifetime of a token of which neither the response nor the token itself states one.
const LIFETIME_UNSTATED: Duration = Duration::from_secs(300);
const GRANT_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const TYPE_ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const TYPE_JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Value>,
}

/// Returns the form that exchanges a JWT for an access token.
pub(super) fn exchange_form(token: &str, audience: &str, scope: Option<&str>) -> String {
    let mut form = vec![
        ("grant_type", GRANT_EXCHANGE),
        ("audience", audience),
        ("requested_token_type", TYPE_ACCESS_TOKEN),
        ("subject_token_type", TYPE_JWT),
        ("subject_token", token),
    ];
    form.extend(scope.map(|scope| ("scope", scope)));
    form_text(&form)
}

/// Exchanges the token in a file for a token with this audience.
pub(super) async fn exchanged_token(
    identity: &ExchangeIdentity,
    audience: &str,
) -> Result<ObtainedCredential, TokenFailure> {
    let token = read_token(&identity.token_file)?;
    let form = exchange_form(&token, audience, identity.scope.as_deref());
    let (url, secrets) = (identity.endpoint.uri().clone(), [token.as_str()]);
    let request = EndpointRequest::post(url, FORM, form, identity.roots.as_deref(), &secrets);
    let answer = request.send().await.map_err(|failure| {
        failure.with_advice(|| {
            format!(
                "check that the endpoint accepts the issuer of {} and may issue tokens for the audience {audience}",
                identity.token_file.display()
            )
        })
    })?;
    Ok(read_answer(&answer, |found| found == audience, audience)?)
}

/// Reads the token of a response. A JWT must have an accepted audience, if it has any.
pub(super) fn read_answer(
    answer: &EndpointResponse,
    is_accepted: impl Fn(&str) -> bool,
    audience: &str,
) -> Result<ObtainedCredential, String> {
    let EndpointResponse { shown, body, now, .. } = answer;
    // The parser's text may quote the token.
    let TokenAnswer { access_token, token_type, expires_in } = serde_json::from_slice(body)
        .map_err(|_| format!("{shown}: the answer has no access_token"))?;
    if let Some(other) = token_type.filter(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err(format!("{shown}: the token is of type {:?}, not Bearer", shorten(&other)));
    }
    let stated = expires_in.as_ref().and_then(seconds);
    if expires_in.is_some() && stated.is_none() {
        return Err(format!("{shown}: expires_in of the answer is not a number of seconds"));
    }
    let audiences = audiences(&access_token);
    if !audiences.is_empty() && !audiences.iter().any(|one| is_accepted(one)) {
        let audiences = shorten(&audiences.join(", "));
        return Err(format!("{shown}: the token is for audience {audiences}, not {audience}"));
    }
    issued(shown, access_token, stated, *now)
}

/// Checks a token. `now` is the time by the clock of the endpoint.
pub(super) fn issued(
    shown: &str,
    token: String,
    stated: Option<Duration>,
    now: SystemTime,
) -> Result<ObtainedCredential, String> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{shown}: the answer has a token that no header can contain"));
    }
    let own = match Lifetime::from_token(&token).map(|lifetime| lifetime.expires) {
        None => None,
        Some(expires) => match SystemTime::from(expires).duration_since(now) {
            Ok(left) if !left.is_zero() => Some(left),
            _ => return Err(format!("{shown}: the token in the answer expired at {expires}")),
        },
    };
    // The lifetime is relative to the endpoint's clock, which may differ from this machine's.
    let lifetime = own.into_iter().chain(stated).min().unwrap_or(LIFETIME_UNSTATED);
    let here = SystemTime::now();
    let expires = here.checked_add(lifetime).ok_or(format!("{shown}: the lifetime is too long"))?;
    Ok(expiring_token(token, expires, here))
}

/// Returns a number of seconds, which some endpoints send as text. A negative one is zero.
fn seconds(value: &Value) -> Option<Duration> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    // Longer than any accepted lifetime.
    const MAX: f64 = 1e9;
    number.is_finite().then(|| Duration::from_secs_f64(number.clamp(0.0, MAX)))
}

/// Returns the start of a text that another program wrote.
fn shorten(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}
