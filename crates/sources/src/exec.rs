//! Credentials from a program, like client-go's credential plugins.
//!
//! Only the operator's own kubeconfig and the operator file name programs: no object does. A program
//! has no terminal, must end within 30 seconds, and may print a limited number of bytes. Its output is a
//! credential, so it is never logged.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use strait_base::process::kill_group;
use strait_kube_client::{ApiCredential, Redacted, one_line};

/// The time limit of a program. Programs of cloud providers call an API, which may be slow.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum size in bytes of each output of a program.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// The variables that an isolated program inherits.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// A program that prints a credential: `users[].user.exec` of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    pub(crate) command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<ProgramVariable>>,
    api_version: Option<String>,
    #[serde(default)]
    pub(crate) provide_cluster_info: bool,
    interactive_mode: Option<String>,
    install_hint: Option<String>,
    #[serde(skip)]
    is_isolated: bool,
}

/// A variable in the environment of a program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProgramVariable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The credential from a program.
pub(crate) struct ExecToken {
    pub(crate) credential: ApiCredential,
    /// When it expires, according to the program.
    pub(crate) ends: Option<Timestamp>,
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
    /// Creates a program that receives the description of the cluster.
    pub(crate) fn new(command: String, args: Vec<String>, env: Vec<ProgramVariable>) -> Self {
        Self {
            command,
            args: Some(args),
            env: Some(env),
            api_version: None,
            provide_cluster_info: true,
            interactive_mode: None,
            install_hint: None,
            is_isolated: false,
        }
    }

    /// Limits its environment to PATH, HOME and its own variables. Its children end with it if it is
    /// killed.
    pub(crate) fn isolated(self) -> Self {
        Self { is_isolated: true, ..self }
    }

    /// Adds arguments.
    pub(crate) fn with_arguments(mut self, more: impl IntoIterator<Item = String>) -> Self {
        self.args.get_or_insert_default().extend(more);
        self
    }

    /// Returns the values that an argument sets, for example `a` of `--name=a` and of `--name a`.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        let args = self.args.as_deref().unwrap_or_default();
        let at = args.iter().position(|arg| arg.split('=').next() == Some(name))?;
        args[at].split_once('=').map(|(_, value)| value).or_else(|| Some(args.get(at + 1)?))
    }

    /// Returns the value of a variable that the entry defines.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let variable = self.env.iter().flatten().rfind(|variable| variable.name == name);
        variable.map(|variable| variable.value.as_str())
    }

    /// Resolves a command with a slash relative to the kubeconfig; others are found on PATH.
    pub(crate) fn relative_to(mut self, folder: &Path) -> Self {
        if self.command.contains('/') {
            self.command = folder.join(&self.command).to_string_lossy().into_owned();
        }
        self
    }

    /// Runs the program once, with the description of the cluster if it is given.
    pub(crate) async fn run(&self, cluster: Option<&Value>) -> Result<ExecToken, String> {
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
        let mut started = Command::new(command);
        if self.is_isolated {
            started.env_clear();
            let inherited =
                INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
            started.envs(inherited).process_group(0);
        }
        started.args(self.args.iter().flatten());
        started.envs(self.env.iter().flatten().map(|one| (&one.name, &one.value)));
        started.env("KUBERNETES_EXEC_INFO", info.to_string());
        started.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = started.kill_on_drop(true).spawn().map_err(|error| {
            let hint = self.install_hint.as_deref().unwrap_or_default().trim();
            let hint = hint.lines().next().map(|line| format!("; {line}")).unwrap_or_default();
            format!("{command} can't be run: {error}{hint}")
        })?;
        let running = RunningProgram { child, is_group: self.is_isolated };
        let output = tokio::time::timeout(LIMIT, running.output())
            .await
            .map_err(|_| format!("{command} did not end within {} s", LIMIT.as_secs()))?
            .map_err(|fact| format!("{command} {fact}"))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
            let last = one_line(last);
            return Err(format!("{command} failed ({}): {last}", output.status));
        }
        issued(&output.stdout)
            .ok_or_else(|| format!("{command} printed no ExecCredential with a usable status"))
    }
}

/// A program that runs. It is killed when it is dropped before it has ended, with its children if it
/// leads a process group.
struct RunningProgram {
    child: Child,
    is_group: bool,
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The number is known only until the process was waited for, so it is never another process.
        if let Some(leader) = self.child.id().filter(|_| self.is_group) {
            kill_group(leader);
        }
    }
}

impl RunningProgram {
    /// Reads its outputs, and waits until it has ended.
    async fn output(mut self) -> Result<Output, String> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        // Before waiting: a child of the program may have the outputs too.
        let (stdout, stderr) =
            tokio::try_join!(read_limited(stdout, "stdout"), read_limited(stderr, "stderr"))?;
        let status =
            self.child.wait().await.map_err(|error| format!("was not waited for: {error}"))?;
        Ok(Output { status, stdout, stderr })
    }
}

/// Reads an output of a program.
async fn read_limited(
    output: Option<impl AsyncRead + Unpin>,
    name: &str,
) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let Some(output) = output else { return Ok(bytes) };
    let read = output.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes).await;
    match read {
        Ok(read) if read as u64 <= OUTPUT_BYTES_MAX => Ok(bytes),
        Ok(_) => Err(format!("printed more than {} MiB to {name}", OUTPUT_BYTES_MAX >> 20)),
        Err(error) => Err(format!("has an unreadable {name}: {error}")),
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
        let endless = program("yes").run(None).await.err().expect("too much");
        assert!(endless.contains("more than 1 MiB to stdout"), "{endless}");
        let absent = Program { command: "/nowhere/aws".into(), ..program("") };
        let error = absent.run(None).await.err().expect("no such program");
        assert!(error.contains("/nowhere/aws can't be run"), "{error}");
    }

    #[tokio::test]
    async fn isolated_program_inherits_path_and_home_only() {
        let script = r#"env | cut -d= -f1 | sort | tr '\n' ' ' >&2; exit 1"#;
        let error = program(script).isolated().run(None).await.err().expect("it fails");
        let (_, names) = error.rsplit_once(": ").expect("a message");
        // The shell sets PWD and others itself.
        let of_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
        let names: Vec<_> = names.split(' ').filter(|name| !of_shell.contains(name)).collect();
        assert_eq!(names, ["HOME", "KUBERNETES_EXEC_INFO", "PATH", "WHO", ""]);
    }

    #[tokio::test]
    async fn children_of_an_isolated_program_end_with_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let program = program(&script).isolated();
        let child = async {
            loop {
                let pid = std::fs::read_to_string(&file).unwrap_or_default();
                if pid.ends_with('\n') {
                    return pid.trim().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let pid = tokio::select! {
            _ = program.run(None) => panic!("it does not end"),
            pid = child => pid,
        };
        // Gone, or a zombie that its new parent has not collected yet.
        let is_running = || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !state.is_empty() && !state.contains(") Z ")
        };
        let ended = async {
            while is_running() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the child ends");
    }
}
