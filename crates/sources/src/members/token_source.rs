//! How the token of an identity is obtained, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::aws::{self, AwsSession};
use super::obtained::{ObtainedToken, expiring, read_token};
use super::token_endpoint::TokenFailure;
use super::{AzureIdentity, ExchangeIdentity, GoogleIdentity, azure, google, oauth};
use crate::lifetime::Lifetime;
use strait_kube_client::{Access, ApiClient, Redacted, one_line};

/// The lifetime of a requested service account token, in seconds.
const ACCOUNT_TOKEN_SECONDS: u64 = 3600;
/// How often a token file is read.
const FILE_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 10_000 });

/// Obtains a token.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// The content of a file.
    File(PathBuf),
    /// A token of a service account of the config cluster.
    Account {
        /// The config cluster; `None` with a configuration directory.
        hub: Option<watch::Receiver<Access>>,
        /// The namespace of the account.
        namespace: String,
        /// The name of the account.
        account: String,
        /// The audience.
        audience: String,
    },
    /// A presigned URL for the EKS cluster with this name.
    Eks {
        /// The AWS credentials of the identity.
        session: Arc<AwsSession>,
        /// The name of the cluster.
        cluster: String,
    },
    /// An access token of Google.
    Google(Box<GoogleIdentity>),
    /// A token of Entra ID.
    Entra(Box<AzureIdentity>),
    /// A token with this audience, for the token in a file.
    Exchange {
        /// The endpoint and the file.
        identity: Box<ExchangeIdentity>,
        /// The audience.
        audience: String,
    },
}

impl TokenSource {
    /// Obtains a token.
    ///
    /// # Errors
    /// Returns the reason. It never contains a token.
    pub(super) async fn obtain(&self) -> Result<ObtainedToken, TokenFailure> {
        match self {
            Self::File(path) => Ok(from_file(path)?),
            Self::Account { hub, namespace, account, audience } => {
                let hub = hub.as_ref().ok_or_else(|| {
                    "an identity of type kubernetes needs a config cluster; --config-dir has none"
                        .to_owned()
                })?;
                let access = hub.borrow().clone();
                Ok(request_token(&access, (namespace, account), audience).await?)
            }
            Self::Eks { session, cluster } => aws::eks_token(session, cluster).await,
            Self::Google(identity) => google::google_token(identity).await,
            Self::Entra(identity) => azure::entra_token(identity).await,
            Self::Exchange { identity, audience } => {
                oauth::exchanged_token(identity, audience).await
            }
        }
    }
}

fn from_file(path: &Path) -> Result<ObtainedToken, String> {
    let token = read_token(path)?;
    let lifetime = Lifetime::from_token(&token);
    if let Some(Lifetime { expires, .. }) = lifetime.filter(|one| one.expires <= Timestamp::now()) {
        return Err(format!("{}: the token expired at {expires}", path.display()));
    }
    let expires = lifetime.map(|lifetime| SystemTime::from(lifetime.expires));
    Ok(ObtainedToken {
        token: Redacted::new(token),
        expires,
        refresh_after: FILE_INTERVAL,
        shows_refresh: false,
    })
}

#[derive(Deserialize)]
struct TokenRequest {
    status: TokenRequestStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenRequestStatus {
    token: String,
    expiration_timestamp: Timestamp,
}

/// Requests a token of a service account of the config cluster.
async fn request_token(
    hub: &Access,
    (namespace, account): (&str, &str),
    audience: &str,
) -> Result<ObtainedToken, String> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [audience], "expirationSeconds": ACCOUNT_TOKEN_SECONDS },
    });
    let client = ApiClient::new(hub).map_err(|error| error.to_string())?;
    let answer: TokenRequest = client.create(&path, &request).await.map_err(|error| {
        format!("token of account {namespace}/{account}: {}", one_line(&error.to_string()))
    })?;
    let TokenRequestStatus { token, expiration_timestamp } = answer.status;
    Ok(expiring(token, SystemTime::from(expiration_timestamp), SystemTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn token_of_an_account_is_valid_for_one_audience() {
        let hub = strait_sim::SimCluster::start("hub", Default::default()).await.expect("a port");
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "reader", "namespace": "strait-system" },
        });
        hub.store().apply(account).expect("applied");
        let access = Access {
            server: hub.url().parse().expect("a URL"),
            ca_pem: Some(hub.certificate_authority().as_bytes().to_vec()),
            tls_server_name: None,
            credential: strait_kube_client::ApiCredential::Token(Redacted::new(hub.token())),
            loopback: strait_kube_client::Loopback::Allowed,
            proxy: None,
        };
        let (_access, access) = watch::channel(access);
        let source = |account: &str| TokenSource::Account {
            hub: Some(access.clone()),
            namespace: "strait-system".to_owned(),
            account: account.to_owned(),
            audience: "strait-member-east".to_owned(),
        };
        let obtained = source("reader").obtain().await.expect("a token");
        let claims = obtained.token.reveal().split('.').nth(1).expect("a JWT").to_owned();
        let claims =
            base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims);
        let claims: serde_json::Value =
            serde_json::from_slice(&claims.expect("base64")).expect("JSON");
        assert_eq!(claims["aud"], json!(["strait-member-east"]));
        assert!(obtained.refresh_after.as_secs().abs_diff(1800) <= 1);
        let error = source("missing").obtain().await.expect_err("no such account").fact;
        assert!(error.contains("strait-system/missing"), "{error}");
        let without_hub = TokenSource::Account {
            hub: None,
            namespace: String::new(),
            account: String::new(),
            audience: String::new(),
        };
        assert!(without_hub.obtain().await.expect_err("no hub").fact.contains("--config-dir"));
    }
}
