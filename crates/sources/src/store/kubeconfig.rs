//! The operator's own kubeconfig: found, merged and read like in kubectl.
//!
//! Unlike a member's kubeconfig it is trusted: it may name files and a program. It must not skip
//! TLS verification, because a control plane must know which server it reads from.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::own_cluster_error::OwnClusterError;
use crate::exec::{ExecToken, Program};
use crate::members::parse_proxy_url;
use strait_kube_client::{Access, ApiCredential, ConnectProxy, Loopback, Redacted};

/// Returns the files that kubectl would read: the list in `KUBECONFIG`, else `~/.kube/config`.
pub fn usual_files() -> Vec<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<_> =
        std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if listed.is_empty() {
        return vec![
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".kube/config"),
        ];
    }
    listed
}

/// The parsed part of one or several kubeconfigs: the first entry with a name applies.
#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: Option<String>,
    contexts: Vec<NamedEntry<UserContext>>,
    clusters: Vec<NamedEntry<UserCluster>>,
    users: Vec<NamedEntry<UserEntry>>,
}

#[derive(Deserialize)]
struct NamedEntry<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
struct UserContext {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct UserCluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct UserEntry {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<Program>,
    auth_provider: Option<IgnoredAny>,
}

/// One context: a cluster, and the credential for it.
pub(super) struct ChosenContext {
    pub(super) name: String,
    cluster: UserCluster,
    user: UserEntry,
}

/// Reads the existing `files` and selects a context: `context`, else the current one.
pub(super) fn choose(
    files: &[PathBuf],
    context: Option<&str>,
) -> Result<ChosenContext, OwnClusterError> {
    let mut merged = Kubeconfig::default();
    for path in files {
        match read(path) {
            Ok(Some(config)) => merged.add(config),
            Ok(None) => {}
            Err(reason) => {
                return Err(OwnClusterError::Kubeconfig { path: path.clone(), reason });
            }
        }
    }
    let shown =
        || files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
    let names = merged.contexts.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    let names = if names.is_empty() { "none".to_owned() } else { names };
    let name = context.map(str::to_owned).or(merged.current_context.take()).ok_or_else(|| {
        OwnClusterError::Context(format!(
            "kubeconfig {} has no current-context; pass --context NAME, one of: {names}",
            shown()
        ))
    })?;
    let Some(wanted) = take(&mut merged.contexts, &name) else {
        return Err(OwnClusterError::Context(format!(
            "kubeconfig {} has no context {name:?}; it has: {names}",
            shown()
        )));
    };
    let lacks = |kind: &str, other: &str| OwnClusterError::Kubeconfig {
        path: shown().into(),
        reason: format!("context {name:?} names {kind} {other:?}, which does not exist"),
    };
    let cluster = take(&mut merged.clusters, &wanted.cluster)
        .ok_or_else(|| lacks("cluster", &wanted.cluster))?;
    let user = match wanted.user.as_str() {
        "" => UserEntry::default(),
        user => take(&mut merged.users, user).ok_or_else(|| lacks("user", user))?,
    };
    let chosen = ChosenContext { name, cluster, user };
    chosen
        .check()
        .map_err(|reason| OwnClusterError::Kubeconfig { path: shown().into(), reason })?;
    Ok(chosen)
}

fn take<T>(list: &mut Vec<NamedEntry<T>>, name: &str) -> Option<T> {
    let at = list.iter().position(|one| one.name == name)?;
    Some(list.swap_remove(at).value)
}

/// Reads one file, whose paths are relative to itself; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Kubeconfig>, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if text.trim().is_empty() {
        return Ok(Some(Kubeconfig::default()));
    }
    // A snippet of the text could contain credentials.
    let mut config: Kubeconfig =
        serde_saphyr::from_str(&text).map_err(|error| error.without_snippet().to_string())?;
    config.current_context = config.current_context.filter(|name| !name.is_empty());
    let folder = path.parent().unwrap_or(Path::new(""));
    let absolute = |file: &mut Option<PathBuf>| {
        *file = file.take().filter(|file| !file.as_os_str().is_empty()).map(|f| folder.join(f));
    };
    for NamedEntry { value, .. } in &mut config.clusters {
        absolute(&mut value.certificate_authority);
    }
    for NamedEntry { value, .. } in &mut config.users {
        absolute(&mut value.token_file);
        absolute(&mut value.client_certificate);
        absolute(&mut value.client_key);
        value.exec = value.exec.take().map(|program| program.relative_to(folder));
    }
    Ok(Some(config))
}

impl Kubeconfig {
    fn add(&mut self, next: Self) {
        fn new<T>(list: &mut Vec<NamedEntry<T>>, more: Vec<NamedEntry<T>>) {
            for entry in more {
                if !list.iter().any(|existing| existing.name == entry.name) {
                    list.push(entry);
                }
            }
        }
        self.current_context = self.current_context.take().or(next.current_context);
        new(&mut self.contexts, next.contexts);
        new(&mut self.clusters, next.clusters);
        new(&mut self.users, next.users);
    }
}

impl ChosenContext {
    /// Checks for settings that cannot work, whatever the files contain and programs print.
    fn check(&self) -> Result<(), String> {
        if self.cluster.insecure_skip_tls_verify {
            return Err("insecure-skip-tls-verify is not supported; name the CA instead".to_owned());
        }
        if self.user.auth_provider.is_some() {
            return Err("auth-provider is not supported (kubectl removed it in 1.26); use exec, a token or a client certificate".to_owned());
        }
        self.proxy()?;
        self.server().map(|_| ())
    }

    /// Returns the proxy that connects the server.
    fn proxy(&self) -> Result<Option<Arc<ConnectProxy>>, String> {
        let Some(text) = self.cluster.proxy_url.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let url = parse_proxy_url(text).map_err(|fact| format!("proxy-url {fact}"))?;
        let name = url.host().unwrap_or_default().into();
        let proxy = ConnectProxy { name, url, roots: None, certificate: None, authorization: None };
        Ok(Some(Arc::new(proxy)))
    }

    fn server(&self) -> Result<http::Uri, String> {
        let server = &self.cluster.server;
        server.parse().map_err(|_| format!("server {server:?} is not a URL"))
    }

    /// Whether its credential comes from a program.
    pub(super) fn runs_program(&self) -> bool {
        self.user.exec.is_some()
    }

    /// Returns the current access to the cluster, and its expiry. Reads files and runs a program on
    /// each call.
    pub(super) async fn access(&self) -> Result<(Access, Option<jiff::Timestamp>), String> {
        let cluster = &self.cluster;
        let ca_pem = bytes(
            cluster.certificate_authority_data.as_ref(),
            cluster.certificate_authority.as_ref(),
        )?;
        let ExecToken { credential, ends } = match &self.user.exec {
            Some(program) => {
                let cluster_info =
                    program.provide_cluster_info.then(|| self.exec_cluster(ca_pem.as_deref()));
                program.run(cluster_info.as_ref()).await?
            }
            None => ExecToken { credential: self.user.credential()?, ends: None },
        };
        let access = Access {
            server: self.server()?,
            ca_pem,
            tls_server_name: cluster.tls_server_name.clone(),
            credential,
            loopback: Loopback::Named,
            proxy: self.proxy()?,
        };
        Ok((access, ends))
    }

    /// Returns the cluster information for a program (client.authentication.k8s.io/v1, `Cluster`).
    fn exec_cluster(&self, ca_pem: Option<&[u8]>) -> Value {
        let mut cluster_info = json!({ "server": self.cluster.server });
        if let Some(name) = &self.cluster.tls_server_name {
            cluster_info["tls-server-name"] = json!(name);
        }
        if let Some(pem) = ca_pem {
            cluster_info["certificate-authority-data"] = json!(BASE64.encode(pem));
        }
        cluster_info
    }
}

/// Returns the inline data, else the content of the file.
fn bytes(data: Option<&String>, file: Option<&PathBuf>) -> Result<Option<Vec<u8>>, String> {
    match (data.filter(|data| !data.is_empty()), file) {
        (Some(data), _) => BASE64
            .decode(data.trim())
            .map(Some)
            .map_err(|error| format!("inline data is not base64: {error}")),
        (None, Some(file)) => {
            std::fs::read(file).map(Some).map_err(|error| format!("{}: {error}", file.display()))
        }
        (None, None) => Ok(None),
    }
}

impl UserEntry {
    /// Returns the credential in it or in its files.
    fn credential(&self) -> Result<ApiCredential, String> {
        let token = match (self.token.as_ref().filter(|token| !token.is_empty()), &self.token_file)
        {
            (Some(token), _) => Some(token.clone()),
            (None, file) => {
                let bytes = bytes(None, file.as_ref())?;
                bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
            }
        };
        let chain = bytes(self.client_certificate_data.as_ref(), self.client_certificate.as_ref())?;
        let key = bytes(self.client_key_data.as_ref(), self.client_key.as_ref())?;
        Ok(match (chain, key, token.map(Redacted::new)) {
            (Some(certificate_pem), Some(key), Some(token)) => ApiCredential::CertificateAndToken {
                certificate_pem,
                key_pem: Redacted::new(key),
                token,
            },
            (Some(certificate_pem), Some(key), None) => {
                ApiCredential::Certificate { certificate_pem, key_pem: Redacted::new(key) }
            }
            (Some(_), None, _) | (None, Some(_), _) => {
                return Err(
                    "its user has a client certificate without key, or a key without certificate"
                        .to_owned(),
                );
            }
            (None, None, Some(token)) => ApiCredential::Token(token),
            (None, None, None) => match (&self.username, &self.password) {
                (Some(username), Some(password)) => ApiCredential::Basic {
                    username: username.clone(),
                    password: Redacted::new(password.clone()),
                },
                _ => ApiCredential::None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(user: &str) -> String {
        format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:6443'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        )
    }

    /// Reads `texts` as a list of files, in a folder with a file `token` and a program `login`.
    async fn access(texts: &[&str], context: Option<&str>) -> Result<Access, String> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("token"), "from-file\n").expect("written");
        let login = folder.path().join("login");
        std::fs::write(&login, "#!/bin/sh\necho '{\"status\": {\"token\": \"from-program\"}}'\n")
            .expect("written");
        std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o700)).expect("set");
        let mut files = vec![folder.path().join("absent")];
        for (at, text) in texts.iter().enumerate() {
            let path = folder.path().join(format!("config{at}"));
            std::fs::write(&path, text).expect("written");
            files.push(path);
        }
        let chosen = choose(&files, context).map_err(|error| error.to_string())?;
        chosen.access().await.map(|(access, _)| access)
    }

    #[tokio::test]
    async fn an_operators_kubeconfig_may_name_files_and_a_program() {
        for (user, token) in [
            ("{tokenFile: token}", "from-file"),
            ("{token: inline, tokenFile: token}", "inline"),
            ("{exec: {command: ./login}}", "from-program"),
        ] {
            let access = access(&[&config(user)], None).await.expect(user);
            assert_eq!(access.credential, ApiCredential::Token(Redacted::new(token.into())));
        }
    }

    #[tokio::test]
    async fn first_of_several_files_with_an_entry_wins() {
        let second = "current-context: b\ncontexts: [{name: b, context: {cluster: c}}, {name: a, context: {cluster: d}}]\nclusters: [{name: c, cluster: {server: 'https://other'}}]\n";
        let files = ["current-context: ''\n", &config("{token: t}"), second];
        for (context, user) in [(None, true), (Some("a"), true), (Some("b"), false)] {
            let access = access(&files, context).await.expect("usable");
            assert_eq!(access.server, "https://127.0.0.1:6443/", "{context:?}");
            assert_eq!(access.credential != ApiCredential::None, user, "{context:?}");
        }
    }

    #[tokio::test]
    async fn an_operators_kubeconfig_may_name_a_proxy() {
        let with = |url: &str| {
            config("{token: t}").replace("server:", &format!("proxy-url: '{url}', server:"))
        };
        for url in ["http://p.test:3128", "socks5://127.0.0.1:1080"] {
            let access = access(&[&with(url)], None).await.expect(url);
            assert_eq!(access.proxy.map(|proxy| proxy.url.clone()), url.parse().ok());
        }
        assert_eq!(access(&[&with("")], None).await.expect("usable").proxy, None);
        for url in ["ftp://p.test:21", "http://me:secret@p.test:3128"] {
            let error = access(&[&with(url)], None).await.expect_err(url);
            assert!(error.contains("proxy-url") && !error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn unusable_settings_are_reported() {
        for (text, context, message) in [
            (&*config("{tokenFile: nowhere}"), None, "nowhere"),
            (&config("{exec: {command: /nowhere/aws}}"), None, "/nowhere/aws"),
            (&config("{auth-provider: {name: oidc}}"), None, "auth-provider"),
            (&config("{client-key-data: eA==}"), None, "key without certificate"),
            (
                &config("{}").replace("server:", "insecure-skip-tls-verify: true, server:"),
                None,
                "CA",
            ),
            (&config("{}").replace("cluster: c,", "cluster: x,"), None, "cluster \"x\""),
            (&config("{}"), Some("z"), "no context \"z\"; it has: a"),
            ("contexts: []", None, "--context"),
            ("contexts: [", None, "config0"),
        ] {
            let error = access(&[text], context).await.expect_err(message);
            assert!(error.contains(message), "{message}: {error}");
        }
    }
}
