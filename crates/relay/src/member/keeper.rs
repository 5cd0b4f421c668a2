//! Obtains the certificate of a relay, and replaces it before it expires.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strait_base::codes;
use strait_base::hex;
use strait_base::time::rfc3339;
use strait_kube_client::{Backoff, Redacted};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use super::api_server::ApiServer;
use super::certificate::{KeyRequest, RelayCertificate, UnusableCertificate};
use super::dial::{HostPort, HubDialler};
use super::enrol::{EnrolError, enrol, renew};
use super::store::{CertificateStore, read_secret};
use crate::wire::{EnrolRequest, RenewRequest};

/// The pauses after a failed attempt.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// The minimum time between two certificates, if the clock of this host is wrong.
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// Maximum time without a look at the stored certificate, which another relay of the cluster may have replaced.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);

/// The credential for a first certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnrolCredential {
    /// None: a stored certificate is required.
    None,
    /// A file with an invitation, which is valid once.
    Invitation(PathBuf),
    /// A file with a token of the relay's account, which is renewed in place.
    Token(PathBuf),
}

/// Owns the certificate of a relay.
pub(super) struct CertificateKeeper {
    pub(super) cluster: String,
    pub(super) hubs: Vec<HostPort>,
    pub(super) dialler: HubDialler,
    pub(super) credential: EnrolCredential,
    pub(super) store: CertificateStore,
    pub(super) api: Arc<ApiServer>,
    /// Notified if the hub closes connections before its first request.
    pub(super) closed_early: Arc<Notify>,
    /// The certificate that the hub asks to renew.
    pub(super) outdated: watch::Receiver<Option<Arc<RelayCertificate>>>,
    pub(super) current: watch::Sender<Option<Arc<RelayCertificate>>>,
}

/// A certificate cannot be obtained now.
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    #[error(transparent)]
    Enrol(#[from] EnrolError),
    #[error(transparent)]
    Unusable(#[from] UnusableCertificate),
    #[error("{code}: the UID of the cluster cannot be read: {0}", code = codes::RELAY_API_SERVER)]
    Uid(String),
    #[error("{code}: {0}", code = codes::RELAY_INVITATION)]
    Credential(String),
}

impl CertificateKeeper {
    /// Runs until the process ends.
    pub(super) async fn run(mut self) {
        let mut backoff = RETRY;
        // A new invitation replaces a stored certificate. It is tried once, since another relay may have used it.
        let mut try_invitation = matches!(self.credential, EnrolCredential::Invitation(_));
        loop {
            self.load().await;
            let current = self.current.borrow().clone();
            let now = SystemTime::now();
            let valid = current.filter(|current| !current.has_expired(now));
            let is_new = match &valid {
                Some(current) => try_invitation && self.has_new_invitation(current),
                None => true,
            };
            let obtained = match &valid {
                Some(current) if !is_new => {
                    let until = current.until_renewal(now, rand::random());
                    // Another relay, or a request on another connection, may have replaced it.
                    let outdated = self.outdated.borrow_and_update().clone();
                    let is_outdated = outdated.is_some_and(|it| Arc::ptr_eq(&it, current));
                    if !until.is_zero() && !is_outdated {
                        backoff = RETRY;
                        tokio::select! {
                            () = sleep(until.min(LOOK_INTERVAL)) => {}
                            Ok(()) = self.outdated.changed() => {}
                            () = self.closed_early.notified() => {
                                self.replace_doubtful(current).await;
                                sleep(PAUSE_MIN).await;
                            }
                        }
                        continue;
                    }
                    self.renew_by(current).await
                }
                _ => self.enrol_new().await,
            };
            try_invitation = false;
            let pause = match obtained {
                Ok(()) => self.pause_after_success(),
                Err(error) => {
                    warn!("no new certificate: {error}");
                    backoff.pause(rand::random())
                }
            };
            sleep(pause).await;
        }
    }

    /// A new certificate that is due at once means that the clock of this host is wrong.
    fn pause_after_success(&self) -> Duration {
        let current = self.current.borrow();
        let until = current.as_ref().map(|it| it.until_renewal(SystemTime::now(), 0.0));
        if until.unwrap_or_default().is_zero() { PAUSE_MIN } else { Duration::ZERO }
    }

    /// Publishes the stored certificate if it ends later than the current one.
    async fn load(&self) {
        match self.store.load(&self.api, &self.cluster).await {
            Ok(Some(stored)) => {
                self.current.send_if_modified(|current| {
                    let is_newer =
                        current.as_ref().is_none_or(|current| current.ends < stored.ends);
                    if is_newer {
                        *current = Some(Arc::new(stored));
                    }
                    is_newer
                });
            }
            Ok(None) => {}
            Err(fact) => warn!("the stored certificate is not used: {fact}"),
        }
    }

    fn has_new_invitation(&self, current: &RelayCertificate) -> bool {
        let token = self.token();
        token.is_ok_and(|token| hex::sha256(token.reveal().as_bytes()) != current.token_hash)
    }

    fn token(&self) -> Result<Redacted<String>, CertificateError> {
        let path = match &self.credential {
            EnrolCredential::None => {
                let fact = "no certificate is stored, and neither --invitation-file nor --token-file is set";
                return Err(CertificateError::Credential(fact.to_owned()));
            }
            EnrolCredential::Invitation(path) | EnrolCredential::Token(path) => path,
        };
        read_secret(path).map_err(CertificateError::Credential)
    }

    async fn enrol_new(&self) -> Result<(), CertificateError> {
        let token = self.token()?;
        let cluster_uid =
            self.api.uid().await.map_err(|error| CertificateError::Uid(error.to_string()))?;
        let key = KeyRequest::new()?;
        let request = EnrolRequest {
            token: token.reveal().clone(),
            csr: key.csr.clone(),
            cluster_uid,
            cluster: self.cluster.to_string(),
        };
        let response = enrol(&self.dialler, &self.hubs, &request).await?;
        let token_hash = hex::sha256(token.reveal().as_bytes());
        let certificate = key.answered(response, &self.cluster, &token_hash)?;
        info!(expires = expiry(&certificate), "the hub has issued a certificate for this relay");
        self.publish(certificate).await;
        Ok(())
    }

    async fn renew_by(&self, current: &RelayCertificate) -> Result<(), CertificateError> {
        let key = KeyRequest::new()?;
        let request = RenewRequest { csr: key.csr.clone() };
        match renew(&self.dialler, &self.hubs, current, &request).await {
            Ok(response) => {
                let certificate = key.answered(response, &self.cluster, &current.token_hash)?;
                info!(expires = expiry(&certificate), "the certificate of this relay was renewed");
                self.publish(certificate).await;
                Ok(())
            }
            Err(error) if error.is_about_credential() => {
                warn!("the certificate was not renewed: {error}");
                self.enrol_new().await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Tries to replace a certificate that the hub may not accept any more.
    async fn replace_doubtful(&self, current: &RelayCertificate) {
        self.load().await;
        let is_replaced = self.current.borrow().as_ref().is_some_and(|newer| **newer != *current);
        let has_credential = match self.credential {
            EnrolCredential::None => false,
            EnrolCredential::Invitation(_) => self.has_new_invitation(current),
            EnrolCredential::Token(_) => true,
        };
        if is_replaced || !has_credential {
            return;
        }
        if let Err(error) = self.enrol_new().await {
            warn!("no new certificate: {error}");
        }
    }

    /// Stores a certificate and starts to use it.
    async fn publish(&self, certificate: RelayCertificate) {
        if let Err(fact) = self.store.save(&self.api, &certificate).await {
            warn!("the certificate is not stored, and a restarted relay must enrol again: {fact}");
        }
        self.current.send_replace(Some(Arc::new(certificate)));
    }
}

/// Returns the expiry, for logs.
fn expiry(certificate: &RelayCertificate) -> String {
    rfc3339(certificate.ends)
}
