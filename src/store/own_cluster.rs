//! How the config cluster is reached: from inside it by the pod's own account, or by an operator's
//! kubeconfig.
//!
//! Unlike a member's kubeconfig, this one is the operator's own and may name files. It may not name a
//! program: a server must not depend on one for each request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::watch;

use crate::apiserver::{Access, Credential, Loopback, Redacted};
use crate::task::Supervisor;

/// Where a pod finds its account (Kubernetes, "Accessing the API from within a Pod").
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// How often a mounted token is looked at; it is renewed long before it expires.
const TOKEN_INTERVAL: Duration = Duration::from_secs(30);

/// The way to the config cluster.
pub struct OwnCluster {
    /// How it is reached; changes when a mounted token is renewed.
    pub access: watch::Receiver<Access>,
    /// Whether this process runs in a pod.
    pub in_pod: bool,
}

/// Why the config cluster can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum OwnClusterError {
    /// Neither in a pod, nor is there a kubeconfig.
    #[error(
        "no config cluster: this is not a pod, and there is no kubeconfig at {}; pass --kubeconfig FILE, or --config-dir DIR to do without a cluster", .0.display()
    )]
    Nowhere(PathBuf),
    /// The kubeconfig can't be used.
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The fact.
        reason: String,
    },
    /// The pod's account can't be read.
    #[error("the pod's service account can't be read: {0}")]
    Account(String),
}

/// Finds the config cluster: `kubeconfig` if given, else the pod's account, else as kubectl does.
///
/// # Errors
/// When there is none, or it can't be used.
pub fn own_cluster(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    tasks: &Supervisor,
) -> Result<OwnCluster, OwnClusterError> {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if kubeconfig.is_none() && context.is_none() && in_pod {
        let (sender, access) = watch::channel(pod_access().map_err(OwnClusterError::Account)?);
        tasks.spawn("pod token", async move {
            loop {
                tokio::time::sleep(TOKEN_INTERVAL).await;
                if let Ok(new) = pod_access() {
                    sender.send_if_modified(|old| {
                        let differs = *old != new;
                        *old = new;
                        differs
                    });
                }
            }
        });
        return Ok(OwnCluster { access, in_pod });
    }
    let path = kubeconfig.map_or_else(usual_kubeconfig, Path::to_owned);
    if kubeconfig.is_none() && !path.exists() {
        return Err(OwnClusterError::Nowhere(path));
    }
    let access = kubeconfig_access(&path, context)
        .map_err(|reason| OwnClusterError::Kubeconfig { path, reason })?;
    // The value stays; the sender isn't needed for that.
    let (_, access) = watch::channel(access);
    Ok(OwnCluster { access, in_pod })
}

fn usual_kubeconfig() -> PathBuf {
    let first = std::env::var_os("KUBECONFIG")
        .and_then(|list| std::env::split_paths(&list).find(|path| !path.as_os_str().is_empty()));
    first.unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".kube/config")
    })
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
        server: format!("https://{host}:{port}").parse().map_err(|_| "the address is no URL")?,
        ca_pem: Some(read("ca.crt")?),
        tls_server_name: None,
        credential: Credential::Token(Redacted::new(token.trim().to_owned())),
        loopback: Loopback::Allowed,
    })
}

/// As much of a kubeconfig as a server can use.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    #[serde(default)]
    contexts: Vec<Named<Context>>,
    #[serde(default)]
    clusters: Vec<Named<Cluster>>,
    #[serde(default)]
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
}

fn kubeconfig_access(path: &Path, context: Option<&str>) -> Result<Access, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let config: Kubeconfig =
        serde_saphyr::from_str(&text).map_err(|error| error.without_snippet().to_string())?;
    // Paths are relative to the file that names them, as kubectl has it.
    let files = Files(path.parent().unwrap_or(Path::new("")));
    let name = context
        .or(config.current_context.as_deref().filter(|name| !name.is_empty()))
        .ok_or("it has no current-context; pass --context NAME")?;
    let context = find(&config.contexts, "context", name)?;
    let cluster = find(&config.clusters, "cluster", &context.cluster)?;
    if cluster.insecure_skip_tls_verify {
        return Err("insecure-skip-tls-verify is not supported; name the CA instead".to_owned());
    }
    let credential = match context.user.as_str() {
        "" => Credential::None,
        user => files.credential(find(&config.users, "user", user)?)?,
    };
    Ok(Access {
        server: cluster
            .server
            .parse()
            .map_err(|_| format!("server {:?} is no URL", cluster.server))?,
        ca_pem: files.bytes(
            cluster.certificate_authority_data.as_ref(),
            cluster.certificate_authority.as_ref(),
        )?,
        tls_server_name: cluster.tls_server_name.clone(),
        credential,
        loopback: Loopback::Allowed,
    })
}

fn find<'a, T>(list: &'a [Named<T>], kind: &str, name: &str) -> Result<&'a T, String> {
    let found = list.iter().find(|one| one.name == name);
    found.map(|one| &one.value).ok_or_else(|| format!("it has no {kind} {name:?}"))
}

/// Files beside a kubeconfig.
struct Files<'a>(&'a Path);

impl Files<'_> {
    /// Inline data, else what the file holds.
    fn bytes(
        &self,
        data: Option<&String>,
        file: Option<&PathBuf>,
    ) -> Result<Option<Vec<u8>>, String> {
        match (data, file) {
            (Some(data), _) => BASE64
                .decode(data.trim())
                .map(Some)
                .map_err(|error| format!("inline data is not base64: {error}")),
            (None, Some(file)) => {
                let file = self.0.join(file);
                let read = std::fs::read(&file);
                read.map(Some).map_err(|error| format!("{}: {error}", file.display()))
            }
            (None, None) => Ok(None),
        }
    }

    fn credential(&self, user: &User) -> Result<Credential, String> {
        if user.exec.is_some() || user.auth_provider.is_some() {
            return Err("its user gets a credential from a program, which a server can't depend on; use a token or a client certificate, or run in a pod".to_owned());
        }
        let token = match (&user.token, &user.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, file) => {
                let bytes = self.bytes(None, file.as_ref())?;
                bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
            }
        };
        let chain =
            self.bytes(user.client_certificate_data.as_ref(), user.client_certificate.as_ref())?;
        let key = self.bytes(user.client_key_data.as_ref(), user.client_key.as_ref())?;
        Ok(match (chain, key, token.map(Redacted::new)) {
            (Some(certificate_pem), Some(key), Some(token)) => Credential::CertificateAndToken {
                certificate_pem,
                key_pem: Redacted::new(key),
                token,
            },
            (Some(certificate_pem), Some(key), None) => {
                Credential::Certificate { certificate_pem, key_pem: Redacted::new(key) }
            }
            (Some(_), None, _) | (None, Some(_), _) => {
                return Err(
                    "its user has a client certificate without key, or a key without certificate"
                        .to_owned(),
                );
            }
            (None, None, Some(token)) => Credential::Token(token),
            (None, None, None) => match (&user.username, &user.password) {
                (Some(username), Some(password)) => Credential::Basic {
                    username: username.clone(),
                    password: Redacted::new(password.clone()),
                },
                _ => Credential::None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Result<Access, String> {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("token"), "from-file\n").expect("written");
        let path = directory.path().join("config");
        std::fs::write(&path, text).expect("written");
        kubeconfig_access(&path, None)
    }

    fn config(user: &str) -> String {
        format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:6443'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        )
    }

    #[test]
    fn an_operators_kubeconfig_may_name_files_but_no_program() {
        let token = access(&config("{tokenFile: token}")).expect("usable");
        assert_eq!(token.credential, Credential::Token(Redacted::new("from-file".into())));
        let program = access(&config("{exec: {command: aws}}")).expect_err("a program");
        assert!(program.contains("program"), "{program}");
        let missing = access(&config("{tokenFile: nowhere}")).expect_err("no such file");
        assert!(missing.contains("nowhere"), "{missing}");
        let nothing = access("contexts: []").expect_err("no context");
        assert!(nothing.contains("--context"), "{nothing}");
    }
}
