//! Tokens for EKS: presigned URLs of STS, which the cluster's authenticator calls. A token is signed
//! without a request. The signing credentials are requested once per identity, and renewed after half
//! of their lifetime.

mod credentials;
mod sigv4;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::credentials::Credentials;
use super::AwsIdentity;
use super::form::form_text;
use super::obtained::{ObtainedCredential, renewal_after};
use super::token_endpoint::TokenFailure;
use crate::lifetime::{EKS_LIFETIME, EKS_PREFIX};
use strait_kube_client::{ApiCredential, Redacted};

/// How long a token is used, and when the next one is made: STS accepts it for 15 min.
const USED_FOR: Duration = Duration::from_secs(14 * 60);
const REFRESHED_AFTER: Duration = Duration::from_secs(7 * 60);
/// The value of `X-Amz-Expires`, which STS ignores.
const EXPIRES: &str = "60";
/// The pause before another request for credentials after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The AWS credentials of one identity, shared by the tokens of all its clusters.
#[derive(Debug)]
pub struct AwsSession {
    settings: AwsIdentity,
    current: Mutex<CurrentCredentials>,
}

#[derive(Debug, Default)]
struct CurrentCredentials {
    credentials: Option<Arc<Credentials>>,
    /// When they are requested again.
    renewed_at: Option<Instant>,
    /// Why the last request failed.
    failure: Option<TokenFailure>,
}

impl AwsSession {
    /// Creates a session without credentials.
    pub(super) fn new(settings: AwsIdentity) -> Arc<Self> {
        Arc::new(Self { settings, current: Mutex::default() })
    }

    /// Whether it was created for these settings.
    pub(super) fn is_of(&self, settings: &AwsIdentity) -> bool {
        self.settings == *settings
    }

    /// Returns valid credentials. While they cannot be renewed, the previous ones stay in use.
    async fn credentials(&self) -> Result<Arc<Credentials>, TokenFailure> {
        let mut current = self.current.lock().await;
        if current.renewed_at.is_none_or(|at| at <= Instant::now()) {
            match credentials::request(&self.settings).await {
                Ok(credentials) => {
                    let left = credentials.expires.duration_since(SystemTime::now());
                    let pause = renewal_after(left.unwrap_or_default()).max(AGAIN_AFTER);
                    *current = CurrentCredentials {
                        credentials: Some(Arc::new(credentials)),
                        renewed_at: Some(Instant::now() + pause),
                        failure: None,
                    };
                }
                Err(failure) => {
                    let pause = AGAIN_AFTER.max(failure.retry_after.unwrap_or_default());
                    current.failure = Some(failure);
                    current.renewed_at = Some(Instant::now() + pause);
                }
            }
        }
        let now = SystemTime::now();
        let valid = current.credentials.as_ref().filter(|credentials| credentials.expires > now);
        match (valid, &current.failure) {
            (Some(credentials), _) => Ok(Arc::clone(credentials)),
            (None, Some(failure)) => Err(failure.clone()),
            (None, None) => Err("the AWS credentials have expired".to_owned().into()),
        }
    }
}

/// Makes a token for the EKS cluster with this name.
pub(super) async fn eks_token(
    session: &AwsSession,
    cluster: &str,
) -> Result<ObtainedCredential, TokenFailure> {
    let credentials = session.credentials().await?;
    let now = SystemTime::now();
    let time = Timestamp::try_from(now).map_err(|error| error.to_string())?;
    let token = presign(&session.settings, &credentials, cluster, time)?;
    let used_until = (now + USED_FOR).min(credentials.expires);
    let left = used_until.duration_since(now).unwrap_or_default();
    Ok(ObtainedCredential {
        credential: ApiCredential::Token(Redacted::new(token)),
        expires: Some((now + EKS_LIFETIME.unsigned_abs()).min(credentials.expires)),
        refresh_after: REFRESHED_AFTER.min(left / 2),
        shows_refresh: true,
    })
}

/// Returns `k8s-aws-v1.` and the encoded URL of a signed request `GetCallerIdentity`, whose signed
/// header names the cluster.
fn presign(
    settings: &AwsIdentity,
    credentials: &Credentials,
    cluster: &str,
    time: Timestamp,
) -> Result<String, String> {
    if cluster.is_empty() || !cluster.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{cluster:?} is not the name of an EKS cluster"));
    }
    let host = settings.sts_host();
    let scope = sigv4::SigningScope { time, region: &settings.region, service: "sts" };
    let credential = format!("{}/{}", credentials.access_key_id, scope.text());
    let date = scope.date_time();
    let mut query = vec![
        ("Action", "GetCallerIdentity"),
        ("Version", "2011-06-15"),
        ("X-Amz-Algorithm", sigv4::ALGORITHM),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &date),
        ("X-Amz-Expires", EXPIRES),
        ("X-Amz-SignedHeaders", "host;x-k8s-aws-id"),
    ];
    if let Some(token) = &credentials.session_token {
        query.push(("X-Amz-Security-Token", token.reveal()));
    }
    let query = form_text(&query);
    let request = sigv4::CanonicalRequest {
        method: "GET",
        path: "/",
        query: &query,
        headers: &[("host", &host), ("x-k8s-aws-id", cluster)],
        body: b"",
    };
    let signature = scope.sign(&request, &credentials.secret_access_key);
    let url = format!("https://{host}/?{query}&X-Amz-Signature={signature}");
    Ok(format!("{EKS_PREFIX}{}", URL_SAFE_NO_PAD.encode(url)))
}

#[cfg(test)]
mod tests;
