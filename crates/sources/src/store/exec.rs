//! Credentials from a program, like client-go's credential plugins.
//!
//! Only for the operator's own kubeconfig: a member's cannot name a program. The program has no
//! terminal and must end within [`LIMIT`]. Its output is a credential, so it is never logged.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use strait_kube_client::{ApiCredential, Redacted};

/// The time limit of a program. Programs of cloud providers call an API, which may be slow.
const LIMIT: Duration = Duration::from_secs(30);

/// `users[].user.exec`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Program {
    pub(super) command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    api_version: Option<String>,
    #[serde(default)]
    pub(super) provide_cluster_info: bool,
    interactive_mode: Option<String>,
    install_hint: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// The credential from a program.
pub(super) struct ExecToken {
    pub(super) credential: ApiCredential,
    /// When it expires, according to the program.
    pub(super) ends: Option<Timestamp>,
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Program {
    /// Resolves a command with a slash relative to the kubeconfig; others are found on PATH.
    pub(super) fn relative_to(mut self, folder: &Path) -> Self {
        if self.command.contains('/') {
            self.command = folder.join(&self.command).to_string_lossy().into_owned();
        }
        self
    }

    /// Runs the program once. `cluster` is passed to it if it requests that.
    pub(super) async fn run(&self, cluster: Option<&Value>) -> Result<ExecToken, String> {
        let Self { command, .. } = self;
        if self.interactive_mode.as_deref() == Some("Always") {
            return Err(format!("{command} requires a terminal, which is not available"));
        }
        let mut spec = json!({ "interactive": false });
        if let Some(cluster) = cluster {
            spec["cluster"] = cluster.clone();
        }
        let version = self.api_version.as_deref().unwrap_or("client.authentication.k8s.io/v1");
        let info = json!({ "apiVersion": version, "kind": "ExecCredential", "spec": spec });
        let mut started = tokio::process::Command::new(command);
        started.args(self.args.iter().flatten());
        started.envs(self.env.iter().flatten().map(|one| (&one.name, &one.value)));
        started.env("KUBERNETES_EXEC_INFO", info.to_string());
        started.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, started.output())
            .await
            .map_err(|_| format!("{command} did not end within {} s", LIMIT.as_secs()))?
            .map_err(|error| {
                let hint = self.install_hint.as_deref().unwrap_or_default().trim();
                let hint = hint.lines().next().map(|line| format!("; {line}")).unwrap_or_default();
                format!("{command} can't be run: {error}{hint}")
            })?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
            let last: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
            return Err(format!("{command} failed ({}): {last}", output.status));
        }
        issued(&output.stdout)
            .ok_or_else(|| format!("{command} printed no ExecCredential with a usable status"))
    }
}

/// Parses the credential that a program printed.
fn issued(printed: &[u8]) -> Option<ExecToken> {
    let answer: ExecCredential = serde_saphyr::from_slice(printed).ok()?;
    let status = answer.status?;
    let token = status.token.filter(|token| !token.is_empty()).map(Redacted::new);
    let pair = status.client_certificate_data.zip(status.client_key_data);
    let pair = pair.map(|(chain, key)| (chain.into_bytes(), Redacted::new(key.into_bytes())));
    let credential = match (pair, token) {
        (Some((certificate_pem, key_pem)), Some(token)) => {
            ApiCredential::CertificateAndToken { certificate_pem, key_pem, token }
        }
        (Some((certificate_pem, key_pem)), None) => {
            ApiCredential::Certificate { certificate_pem, key_pem }
        }
        (None, Some(token)) => ApiCredential::Token(token),
        (None, None) => return None,
    };
    let ends = match status.expiration_timestamp {
        Some(text) => Some(text.parse().ok()?),
        None => None,
    };
    Some(ExecToken { credential, ends })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a program that runs `script`.
    fn program(script: &str) -> Program {
        let text = json!({ "command": "sh", "args": ["-c", script], "env": [{ "name": "WHO", "value": "me" }] });
        serde_json::from_value(text).expect("a program")
    }

    #[tokio::test]
    async fn program_receives_its_inputs_and_returns_a_credential() {
        let script = r#"case "$KUBERNETES_EXEC_INFO" in *'"server":"https://a"'*) ;; *) exit 3;; esac
            printf '{"status":{"token":"%s","expirationTimestamp":"2030-01-01T00:00:00Z"}}' "$WHO""#;
        let issued = program(script).run(Some(&json!({"server": "https://a"}))).await.expect("it");
        assert_eq!(issued.credential, ApiCredential::Token(Redacted::new("me".into())));
        assert_eq!(issued.ends, Some("2030-01-01T00:00:00Z".parse().expect("a time")));
    }

    #[tokio::test]
    async fn failed_program_is_reported_with_its_errors_and_without_its_output() {
        for (script, message) in [
            ("echo canary; echo early >&2; echo 'log in first' >&2; exit 2", "log in first"),
            ("echo canary", "no ExecCredential"),
            ("printf '{\"status\": {\"token\": \"\"}, \"canary\": 1}'", "no ExecCredential"),
        ] {
            let error = program(script).run(None).await.err().expect(message);
            assert!(error.contains(message) && !error.contains("canary"), "{error}");
        }
        let absent = Program { command: "/nowhere/aws".into(), ..program("") };
        let error = absent.run(None).await.err().expect("no such program");
        assert!(error.contains("/nowhere/aws can't be run"), "{error}");
    }
}
