//! The access to the config cluster: from inside it with the pod's own account, or with an
//! operator's kubeconfig.
//!
//! Owns the task that renews credentials: a mounted token, files of a kubeconfig, the credential of
//! a program. While a credential cannot be renewed, the last one stays in use.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tracing::warn;

use super::kubeconfig::{self, ChosenContext};
pub use super::own_cluster_error::OwnClusterError;
use strait_base::latest::publish_change;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, ApiCredential, Loopback, Redacted};

/// The folder of a pod's account (Kubernetes, "Accessing the API from within a Pod").
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The interval at which files are read, and the pause after a failed renewal. A mounted token is
/// renewed long before it expires.
const FILE_INTERVAL: Duration = Duration::from_secs(30);
/// How long before its expiry the credential of a program is renewed.
const MARGIN: Duration = Duration::from_secs(60);
/// The interval of runs of a program whose credential has no expiry.
const PROGRAM_INTERVAL: Duration = Duration::from_secs(300);

/// The access to the config cluster.
pub struct OwnCluster {
    /// The current access; changes when a credential is renewed.
    pub access: watch::Receiver<Access>,
    /// Whether this process runs in a pod.
    pub in_pod: bool,
}

/// Finds the config cluster: `kubeconfig` if given, else the pod's account, else like kubectl.
///
/// # Errors
/// Fails if no config cluster is found, or it cannot be used.
pub async fn own_cluster(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    tasks: &Supervisor,
) -> Result<OwnCluster, OwnClusterError> {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let source = if kubeconfig.is_none() && context.is_none() && in_pod {
        ClusterAccessSource::Account
    } else {
        ClusterAccessSource::Kubeconfig(Box::new(chosen(kubeconfig, context)?))
    };
    let (first, ends) = source.access().await.map_err(|reason| match &source {
        ClusterAccessSource::Account => OwnClusterError::Account(reason),
        ClusterAccessSource::Kubeconfig(chosen) => {
            OwnClusterError::Credential { context: chosen.name.clone(), reason }
        }
    })?;
    let (sender, access) = watch::channel(first);
    tasks.spawn("config cluster's credential", source.renew(ends, sender));
    Ok(OwnCluster { access, in_pod })
}

fn chosen(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<ChosenContext, OwnClusterError> {
    if let Some(named) = kubeconfig {
        if !named.exists() {
            return Err(OwnClusterError::Missing(named.to_owned()));
        }
        return kubeconfig::choose(&[named.to_owned()], context);
    }
    let usual = kubeconfig::usual_files();
    match usual.first() {
        Some(first) if !usual.iter().any(|file| file.exists()) => {
            Err(OwnClusterError::Nowhere(first.clone()))
        }
        _ => kubeconfig::choose(&usual, context),
    }
}

/// The origin of the access.
enum ClusterAccessSource {
    Account,
    Kubeconfig(Box<ChosenContext>),
}

impl ClusterAccessSource {
    /// Returns the current access, and its expiry if known.
    async fn access(&self) -> Result<(Access, Option<Timestamp>), String> {
        match self {
            Self::Account => Ok((pod_access()?, None)),
            Self::Kubeconfig(chosen) => chosen.access().await,
        }
    }

    async fn renew(self, mut ends: Option<Timestamp>, sender: watch::Sender<Access>) {
        let by_program = matches!(&self, Self::Kubeconfig(chosen) if chosen.runs_program());
        let mut failed = false;
        loop {
            let pause = if failed || !by_program { FILE_INTERVAL } else { pause(ends) };
            tokio::time::sleep(pause).await;
            match self.access().await {
                Ok((new, until)) => {
                    (ends, failed) = (until, false);
                    publish_change(&sender, new);
                }
                Err(reason) => {
                    warn!(%reason, "cannot renew the config cluster's credential; the last one stays in use");
                    failed = true;
                }
            }
        }
    }
}

/// Returns the time until a program is run again.
fn pause(ends: Option<Timestamp>) -> Duration {
    let Some(ends) = ends else { return PROGRAM_INTERVAL };
    let remaining = ends.duration_since(Timestamp::now()).unsigned_abs();
    // A credential that expires at once is not requested without a pause.
    if ends < Timestamp::now() {
        FILE_INTERVAL
    } else {
        remaining.saturating_sub(MARGIN).max(FILE_INTERVAL)
    }
}

fn pod_access() -> Result<Access, String> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let read = |name: &str| {
        let path = Path::new(ACCOUNT).join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let token = String::from_utf8(read("token")?).map_err(|_| "the token is not text")?;
    Ok(Access {
        server: format!("https://{host}:{port}").parse().map_err(|_| "the address is not a URL")?,
        ca_pem: Some(read("ca.crt")?),
        tls_server_name: None,
        credential: ApiCredential::Token(Redacted::new(token.trim().to_owned())),
        loopback: Loopback::Allowed,
        proxy: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_runs_again_before_its_credential_expires() {
        let after = |seconds: i64| {
            Some(Timestamp::from_second(Timestamp::now().as_second() + seconds).expect("a time"))
        };
        let hour = pause(after(3600)).as_secs();
        assert!((3530..=3540).contains(&hour), "{hour}");
        for (ends, expected) in
            [(after(10), FILE_INTERVAL), (after(-10), FILE_INTERVAL), (None, PROGRAM_INTERVAL)]
        {
            assert_eq!(pause(ends), expected);
        }
    }
}
