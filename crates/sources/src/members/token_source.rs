//! How the token of an identity is obtained, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::aws::{self, AwsSession};
use super::obtained::{ObtainedCredential, expiring_token, read_token};
use super::token_endpoint::TokenFailure;
use super::{AzureIdentity, ExchangeIdentity, GoogleIdentity, azure, google, oauth};
use crate::exec::{ExecToken, Program};
use crate::lifetime::Lifetime;
use strait_kube_client::{Access, ApiClient, ApiCredential, Redacted, one_line};

/// The lifetime of a requested service account token, in seconds.
const ACCOUNT_TOKEN_SECONDS: u64 = 3600;
/// How often a token file is read.
const FILE_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 10_000 });
/// How often a program runs whose token has no expiry.
const PROGRAM_INTERVAL: Duration = Duration::from_secs(600);

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
    /// The token or client certificate that a program prints.
    Program {
        /// The program.
        program: Box<Program>,
        /// The description of the cluster.
        cluster: Value,
        /// Limits the number of programs that run at once.
        turns: Arc<Semaphore>,
    },
    /// A token with this audience, for the token in a file.
    Exchange {
        /// The endpoint and the file.
        identity: Box<ExchangeIdentity>,
        /// The audience.
        audience: String,
    },
}

impl TokenSource {
    /// Waits until a token may be obtained. The permit must be kept until then.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        match self {
            Self::Program { turns, .. } => Arc::clone(turns).acquire_owned().await.ok(),
            _ => None,
        }
    }

    /// Obtains a token.
    ///
    /// # Errors
    /// Returns the reason. It never contains a token.
    pub(super) async fn obtain(&self) -> Result<ObtainedCredential, TokenFailure> {
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
            Self::Program { program, cluster, .. } => {
                let cluster = program.provide_cluster_info.then_some(cluster);
                Ok(from_program(&program.command, program.run(cluster).await?)?)
            }
            Self::Exchange { identity, audience } => {
                oauth::exchanged_token(identity, audience).await
            }
        }
    }
}

fn from_file(path: &Path) -> Result<ObtainedCredential, String> {
    let token = read_token(path)?;
    let lifetime = Lifetime::from_token(&token);
    if let Some(Lifetime { expires, .. }) = lifetime.filter(|one| one.expires <= Timestamp::now()) {
        return Err(format!("{}: the token expired at {expires}", path.display()));
    }
    let expires = lifetime.map(|lifetime| SystemTime::from(lifetime.expires));
    Ok(ObtainedCredential {
        credential: ApiCredential::Token(Redacted::new(token)),
        expires,
        refresh_after: FILE_INTERVAL,
        shows_refresh: false,
    })
}

/// Reads the credential that a program printed. Without an expiry, the program runs again after a
/// fixed time.
fn from_program(command: &str, printed: ExecToken) -> Result<ObtainedCredential, String> {
    let ExecToken { credential, ends } = printed;
    if credential.token().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(format!("{command} printed a token with a character that no token has"));
    }
    if let ApiCredential::Certificate { certificate_pem, .. }
    | ApiCredential::CertificateAndToken { certificate_pem, .. } = &credential
        && Lifetime::from_certificate(certificate_pem).is_none()
    {
        return Err(format!("{command} printed a clientCertificateData without a PEM certificate"));
    }
    let now = Timestamp::now();
    let own_end = || Lifetime::from_credential(&credential).map(|lifetime| lifetime.expires);
    match ends.or_else(own_end) {
        Some(expires) if expires <= now => {
            Err(format!("{command} printed a credential that expired at {expires}"))
        }
        Some(expires) => Ok(ObtainedCredential::expiring(
            credential,
            SystemTime::from(expires),
            SystemTime::from(now),
        )),
        None => Ok(ObtainedCredential {
            credential,
            expires: None,
            refresh_after: PROGRAM_INTERVAL,
            shows_refresh: true,
        }),
    }
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
) -> Result<ObtainedCredential, String> {
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
    Ok(expiring_token(token, SystemTime::from(expiration_timestamp), SystemTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_of_a_program_is_used_until_it_expires() {
        let token = |text: &str| ApiCredential::Token(Redacted::new(text.to_owned()));
        let in_seconds = |seconds| Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        let read = |credential, ends| from_program("/plugin", ExecToken { credential, ends });
        let hour = read(token("canary"), Some(in_seconds(3600))).expect("a token");
        assert!(hour.refresh_after.as_secs().abs_diff(1800) <= 1 && hour.expires.is_some());
        let endless = read(token("canary"), None).expect("a token");
        assert_eq!((endless.refresh_after.as_secs(), endless.expires), (600, None));
        let certificate = |certificate_pem: &str| {
            let certificate_pem = certificate_pem.as_bytes().to_vec();
            let key_pem = Redacted::new(b"canary".to_vec());
            ApiCredential::Certificate { certificate_pem, key_pem }
        };
        let issued = rcgen::generate_simple_self_signed(["reader".to_owned()]).expect("a pair");
        let usable = read(certificate(&issued.cert.pem()), None).expect("a certificate");
        // It is valid for longer than the limit of 24 h.
        assert_eq!((usable.refresh_after.as_secs(), usable.credential.token()), (12 * 3600, None));
        for (credential, ends, fact) in [
            (token("canary"), Some(in_seconds(-1)), "expired at"),
            (token("canary\n"), None, "a character"),
            (certificate("canary"), None, "without a PEM certificate"),
        ] {
            let error = read(credential, ends).expect_err(fact);
            assert!(error.contains(fact) && !error.contains("canary"), "{error}");
        }
    }

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
            credential: ApiCredential::Token(Redacted::new(hub.token())),
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
        let claims = obtained
            .credential
            .token()
            .expect("a token")
            .split('.')
            .nth(1)
            .expect("a JWT")
            .to_owned();
        let claims =
            base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims);
        let claims: Value = serde_json::from_slice(&claims.expect("base64")).expect("JSON");
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
