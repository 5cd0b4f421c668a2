//! Renewal of tokens of members whose reader may request tokens for itself (`strait cluster add
//! --self-renew`).
//!
//! After half of a token's lifetime, Strait uses it to request the next one from the cluster's API
//! server, tries the new token, and writes it into the Secret. The watch of the Secret then
//! delivers it, as if an operator had rotated it. A Secret that another tool or another team writes
//! is never changed: the annotation has no effect there, and the status shows the reason. Needs
//! `get` and `patch` of Secrets in the system namespace. Only a single replica succeeds in writing:
//! the patches of the others name an outdated version. A failure changes nothing: the old token
//! stays in use, and its expiry is reported.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::formats;
use super::kubeconfig::{self, KubeconfigRefusal};
use super::secret::{MemberSecret, MemberSpec, SELF_RENEW_ANNOTATION, flag};
use crate::lifetime::{self, Lifetime};
use crate::store::{ObjectName, Objects, WatchedSecret};
use strait_base::codes;
use strait_kube_client::{Access, ApiClient, ApiCredential, ApiError, Loopback, Patch, Redacted};
use strait_model::{ClusterId, WriterRole};

/// The maximum sleep, because clocks can be set.
const TICK: Duration = Duration::from_secs(60);
/// The pause after a token could not be renewed.
const REST: Duration = Duration::from_secs(600);
/// The time limit of one renewal.
const LIMIT: Duration = Duration::from_secs(30);

/// Whether a Secret requests that Strait renews its tokens.
pub(super) fn is_wanted(secret: &WatchedSecret) -> bool {
    flag(&secret.annotations, SELF_RENEW_ANNOTATION).unwrap_or(false)
}

/// A token in a Secret that Strait renews.
struct RenewableToken<'a> {
    /// The data key of the kubeconfig.
    key: String,
    token: &'a str,
    lifetime: Lifetime,
}

impl<'a> RenewableToken<'a> {
    /// Returns the token of a usable member.
    ///
    /// # Errors
    /// Returns why Strait does not renew it.
    fn find(
        secret: &WatchedSecret,
        id: &ClusterId,
        member: &'a MemberSpec,
    ) -> Result<Self, KubeconfigRefusal> {
        if secret.profile.is_some() {
            return Err(without_effect(
                "the access provider of the ClusterProfile has to renew it",
            ));
        }
        let token = match &member.access.credential {
            ApiCredential::Token(token) => token.reveal(),
            _ if member.reach.identity.is_some() => {
                return Err(without_effect("the identity renews its token itself"));
            }
            ApiCredential::Relay => {
                return Err(without_effect("the relay has the credential, and renews it"));
            }
            ApiCredential::Certificate { .. } | ApiCredential::CertificateAndToken { .. } => {
                return Err(without_effect("the credential is a client certificate"));
            }
            ApiCredential::Basic { .. } => {
                return Err(without_effect("the credential is a password"));
            }
            ApiCredential::None | ApiCredential::Issued(_) => {
                return Err(without_effect("the Secret contains no token"));
            }
        };
        if let Some(source) = &secret.source {
            let fact = format!(
                "Strait writes only Secrets of the system namespace, and this one is from source {source}"
            );
            return Err(without_effect(&fact));
        }
        let Some(key) = formats::kubeconfig_key(secret, id.as_str()) else {
            return Err(without_effect("the tool that writes the Secret has to renew the token"));
        };
        if lifetime::service_account(token).is_none() {
            return Err(without_effect("the token does not belong to a service account"));
        }
        let lifetime = Lifetime::from_token(token);
        let lifetime = lifetime.ok_or_else(|| without_effect("the token does not expire"))?;
        Ok(Self { key, token, lifetime })
    }
}

fn without_effect(why: &str) -> KubeconfigRefusal {
    let field = format!("annotation {SELF_RENEW_ANNOTATION}");
    KubeconfigRefusal::new(&codes::SELF_RENEW_UNUSED, field, format!("has no effect: {why}"))
}

/// Returns whether Strait renews the token of a usable member, or why not. `None` if its Secret does
/// not request it. `writes` is whether Strait writes Secrets at all: it does not with a configuration
/// directory.
pub(super) fn effect(
    secret: &WatchedSecret,
    id: &ClusterId,
    member: &MemberSpec,
    writes: bool,
) -> Option<Result<(), KubeconfigRefusal>> {
    if let Err(invalid) = flag(&secret.annotations, SELF_RENEW_ANNOTATION) {
        return Some(Err(invalid));
    }
    let found = || RenewableToken::find(secret, id, member).map(drop);
    is_wanted(secret).then(|| match writes {
        true => found(),
        false => found().and(Err(without_effect("Strait does not write files of --config-dir"))),
    })
}

/// A token that can be renewed.
#[derive(Debug, Clone)]
struct Renewable {
    secret: ObjectName,
    id: ClusterId,
    /// The data key of the kubeconfig.
    key: String,
    /// The kubeconfig in the Secret.
    kubeconfig: Vec<u8>,
    access: Access,
    token: String,
    lifetime: Lifetime,
}

/// Why a token was not renewed.
type Fact = String;

/// Why tokens could not be renewed at the last attempt, by Secret and cluster.
pub type RenewalFailures = BTreeMap<(ObjectName, ClusterId), String>;

/// Renews tokens until the sender of the configuration is dropped, while this process has the
/// writer role. `access` is that of the config cluster.
pub async fn run(
    access: watch::Receiver<Access>,
    role: watch::Receiver<WriterRole>,
    mut objects: watch::Receiver<Option<Arc<Objects>>>,
    loopback: Loopback,
    failures: watch::Sender<Arc<RenewalFailures>>,
) {
    let mut failed = RenewalFailures::new();
    let mut resting: BTreeMap<(ObjectName, ClusterId), Timestamp> = BTreeMap::new();
    loop {
        let objects_now = objects.borrow_and_update().clone();
        let all =
            objects_now.map(|objects| renewable(&objects.secrets, loopback)).unwrap_or_default();
        for entry in &all {
            let key = (entry.secret.clone(), entry.id.clone());
            let now = Timestamp::now();
            let is_resting = resting.get(&key).is_some_and(|until| *until > now);
            if entry.lifetime.half() > now || is_resting || *role.borrow() != WriterRole::Writes {
                continue;
            }
            let config = access.borrow().clone();
            let renewed = timeout(LIMIT, renew(&config, entry)).await;
            let renewed = renewed.unwrap_or_else(|_| Err(format!("no response within {LIMIT:?}")));
            match renewed {
                Ok(expires) => {
                    info!(cluster = %entry.id, %expires, "token renewed");
                    failed.remove(&key);
                }
                Err(fact) => {
                    let expires = entry.lifetime.expires;
                    warn!(cluster = %entry.id, %expires, reason = fact, "token not renewed; the old one stays in use");
                    failed.insert(key.clone(), fact);
                }
            }
            // The old token is not renewed again until the watch delivers the new one.
            resting.insert(key, now + REST);
        }
        // A token that another replica or an operator has replaced is not due any more.
        let now = Timestamp::now();
        failed.retain(|(secret, id), _| {
            let mut due = all.iter().filter(|entry| entry.lifetime.half() <= now);
            due.any(|entry| entry.secret == *secret && entry.id == *id)
        });
        failures.send_if_modified(|current| {
            let differs = **current != failed;
            if differs {
                *current = Arc::new(failed.clone());
            }
            differs
        });
        resting.retain(|_, until| *until > now);
        let next = all.iter().map(|entry| entry.lifetime.half().duration_since(now));
        let next = next
            .filter_map(|remaining| Duration::try_from(remaining).ok())
            .filter(|remaining| !remaining.is_zero());
        let pause = next.min().unwrap_or(TICK).min(TICK);
        tokio::select! {
            () = sleep(pause) => {}
            changed = objects.changed() => if changed.is_err() { return },
        }
    }
}

fn renewable(secrets: &[Arc<WatchedSecret>], loopback: Loopback) -> Vec<Renewable> {
    let mut found = Vec::new();
    for secret in secrets.iter().filter(|secret| is_wanted(secret)) {
        for (id, member) in MemberSecret::read(secret, loopback).clusters {
            let Ok(member) = member else { continue };
            let Ok(RenewableToken { key, token, lifetime }) =
                RenewableToken::find(secret, &id, &member)
            else {
                continue;
            };
            let Some(bytes) = secret.data.get(&key) else { continue };
            found.push(Renewable {
                secret: secret.name.clone(),
                kubeconfig: bytes.reveal().clone(),
                token: token.to_owned(),
                access: member.access.clone(),
                key,
                lifetime,
                id,
            });
        }
    }
    found
}

async fn renew(config: &Access, entry: &Renewable) -> Result<Timestamp, Fact> {
    let fact = |step: &'static str| move |error: ApiError| format!("{step}: {error}");
    let client = |access: &Access| ApiClient::new(access).map_err(|error| error.to_string());
    let (namespace, name) = lifetime::service_account(&entry.token)
        .ok_or_else(|| "the token does not belong to a service account".to_owned())?;
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let seconds = entry.lifetime.whole().map_or(3600, |whole| whole.as_secs()).max(600);
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "expirationSeconds": seconds },
    });
    let answer: Value =
        client(&entry.access)?.create(&path, &request).await.map_err(fact("requesting it"))?;
    let token = answer["status"]["token"].as_str().unwrap_or_default();
    let expires = Lifetime::from_token(token).map(|lifetime| lifetime.expires);
    let expires = expires.filter(|expires| *expires > entry.lifetime.expires);
    let expires =
        expires.ok_or_else(|| "the new token ends no later than the old one".to_owned())?;
    let credential = ApiCredential::Token(Redacted::new(token.to_owned()));
    let access = Access { credential, ..entry.access.clone() };
    let tried = client(&access)?.get::<IgnoredAny>("/api/v1/namespaces?limit=1").await;
    tried.map_err(fact("trying the new one"))?;

    let hub = client(config)?;
    let path =
        format!("/api/v1/namespaces/{}/secrets/{}", entry.secret.namespace, entry.secret.name);
    let secret: Value = hub.get(&path).await.map_err(fact("reading the Secret"))?;
    let current = BASE64.decode(secret["data"][&entry.key].as_str().unwrap_or_default());
    if current.ok().as_deref() != Some(&entry.kubeconfig[..]) {
        return Err("the Secret has changed meanwhile".to_owned());
    }
    let patch = json!({
        "metadata": { "resourceVersion": secret["metadata"]["resourceVersion"] },
        "data": { &entry.key: BASE64.encode(kubeconfig::write(&entry.id, &access)) },
    });
    hub.patch::<IgnoredAny>(&path, Patch::Merge, &patch)
        .await
        .map_err(fact("writing the Secret"))?;
    Ok(expires)
}
