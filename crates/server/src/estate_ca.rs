//! The CA of an Istio installation, in a Secret of the config cluster: read and followed, never
//! written.
//!
//! `cacerts` contains a CA that an operator plugged in, `istio-ca-secret` the CA that istiod
//! generated. Strait uses either if it has no other CA, so that its workloads and those of Istio
//! trust each other from the start.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info};

use super::authority_secret::failed;
use super::kube_secret::KubeSecret;
use strait_base::latest::publish_change;
use strait_base::task::Supervisor;
use strait_identity::{APPROVED, AuthorityPem, FollowedAuthority, IdentityError, RootFingerprint};
use strait_kube_client::{Access, ApiClient, ApiError};

/// Names of the Secrets, in order of precedence.
const SECRETS: [&str; 2] = ["cacerts", "istio-ca-secret"];
/// Interval of reads of the Secret in use.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns the CA of the Istio installation, which a task of `tasks` keeps up to date. Returns
/// `None` if none exists, or if its Secret may not be read.
///
/// # Errors
/// If the config cluster does not respond, or the first existing Secret contains no valid CA.
/// Creating another CA would result in two.
pub(super) async fn follow(
    access: watch::Receiver<Access>,
    namespace: String,
    tasks: &Supervisor,
) -> Result<Option<watch::Receiver<Arc<FollowedAuthority>>>, IdentityError> {
    for name in SECRETS {
        let current = access.borrow().clone();
        let found = match read(&current, &namespace, name).await {
            Ok(found) => found,
            Err(error @ (ApiError::Forbidden(_) | ApiError::Unauthorized(_))) => {
                debug!(%error, name, "cannot find out whether the Istio installation has a CA");
                None
            }
            Err(error) => return Err(failed(&current, &namespace, name, &error)),
        };
        let Some(secret) = found else { continue };
        let (first, approved) = (authority(&namespace, name, &secret)?, approved(&secret));
        info!(%namespace, name, "using the CA in this Secret");
        let origin = origin(&namespace, name);
        let (held, seen) =
            watch::channel(Arc::new(FollowedAuthority { origin, content: Ok(first), approved }));
        tasks.spawn_restarting("estate's CA", INTERVAL, move || {
            keep(access.clone(), namespace.clone(), name, held.clone())
        });
        return Ok(Some(seen));
    }
    Ok(None)
}

/// Reads the Secret regularly. After a failed read, the last state stays.
async fn keep(
    access: watch::Receiver<Access>,
    namespace: String,
    name: &'static str,
    held: watch::Sender<Arc<FollowedAuthority>>,
) {
    let origin = origin(&namespace, name);
    loop {
        sleep(INTERVAL).await;
        let current = access.borrow().clone();
        let (new, approved) = match read(&current, &namespace, name).await {
            Ok(Some(secret)) => {
                let new = authority(&namespace, name, &secret);
                (new.map_err(|error| error.to_string()), approved(&secret))
            }
            Ok(None) => (Err(format!("{origin} was deleted")), BTreeSet::new()),
            Err(error) => {
                debug!(%error, name, "reading the Secret of the CA failed");
                continue;
            }
        };
        let new = FollowedAuthority { origin: origin.clone(), content: new, approved };
        publish_change(&held, Arc::new(new));
    }
}

/// Returns the roots whose steps the operator has approved in the Secret.
fn approved(secret: &KubeSecret) -> BTreeSet<RootFingerprint> {
    let text = secret.part(APPROVED).and_then(Result::ok).unwrap_or_default();
    RootFingerprint::parse_all(&String::from_utf8_lossy(&text))
}

fn origin(namespace: &str, name: &str) -> String {
    format!("Secret {namespace}/{name}")
}

async fn read(
    access: &Access,
    namespace: &str,
    name: &str,
) -> Result<Option<KubeSecret>, ApiError> {
    let client =
        ApiClient::new(access).map_err(|error| ApiError::Misbehaving(error.to_string()))?;
    KubeSecret::get(&client, namespace, name).await
}

/// Returns the CA in a Secret. A CA that istiod generated has a root that signs, and no files, or
/// empty ones, for the chain and the roots.
fn authority(
    namespace: &str,
    name: &str,
    secret: &KubeSecret,
) -> Result<AuthorityPem, IdentityError> {
    let part = |key: &'static str| -> io::Result<Vec<u8>> {
        let held = secret.part(key).ok_or(io::ErrorKind::NotFound)?;
        let held = held.map_err(|_| io::ErrorKind::InvalidData)?;
        if held.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(held) }
    };
    let own = |key: &'static str| match part(key) {
        Err(_) if ["cert-chain.pem", "root-cert.pem"].contains(&key) => part("ca-cert.pem"),
        found => found,
    };
    let origin = origin(namespace, name);
    match name {
        "cacerts" => AuthorityPem::read_parts(Path::new(&origin), part),
        _ => AuthorityPem::read_parts(Path::new(&origin), own),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use strait_identity::Authority;

    #[test]
    fn both_secrets_of_an_istio_installation_are_valid_cas() {
        let made = AuthorityPem::generate(SystemTime::now()).expect("a CA");
        let sound = |name: &str, parts: &[(&str, &str)]| {
            let read = authority("istio-system", name, &KubeSecret::of(parts));
            read.and_then(|files| Authority::new(&files, name, SystemTime::now()))
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        let (cert, key) = (("ca-cert.pem", &*made.ca_cert), ("ca-key.pem", &*made.ca_key));
        let chain = ("cert-chain.pem", &*made.cert_chain);
        let root = ("root-cert.pem", &*made.root_cert);
        assert_eq!(sound("cacerts", &[cert, key, chain, root]), Ok(()));
        let tls = [("tls.crt", cert.1), ("tls.key", key.1), ("ca.crt", root.1)];
        assert_eq!(sound("cacerts", &tls), Ok(()));
        let error = sound("cacerts", &[cert, key]).expect_err("partial");
        assert!(
            error.contains("Secret istio-system/cacerts lacks cert-chain.pem, root-cert.pem"),
            "{error}"
        );
        assert_eq!(sound("istio-ca-secret", &[cert, key]), Ok(()));
        let empty = [cert, key, ("cert-chain.pem", ""), ("root-cert.pem", "")];
        assert_eq!(sound("istio-ca-secret", &empty), Ok(()));
        assert!(sound("istio-ca-secret", &[cert]).expect_err("partial").contains("ca-key.pem"));
    }
}
