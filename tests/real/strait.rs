//! Strait as a user starts it: the built binary in the namespace `hub`, and its admin API.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use crate::host::Host;
use crate::netns::Netns;
use crate::process::Process;
use crate::wait;

/// Returns the program under test: the binary that cargo built with this test, unless
/// `STRAIT_REAL_PROGRAM` names another binary, for example a release build.
fn program() -> String {
    std::env::var("STRAIT_REAL_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_strait").to_owned())
}

/// Returns the agent that cargo built in the same folder.
pub(crate) fn agent_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_strait")).with_file_name("strait-agent")
}

/// A running control plane. Killed with SIGKILL on drop.
pub(crate) struct Strait {
    process: Option<Process>,
    addresses: Addresses,
    arguments: Vec<String>,
    hub: Rc<Netns>,
    logs: PathBuf,
    state: PathBuf,
    /// The policy file, if the scenario uses one.
    policy: PathBuf,
    /// Additional environment variables.
    environment: Vec<(String, String)>,
    starts: usize,
}

/// The line on stdout.
#[derive(Clone, Debug, Default, Deserialize)]
struct Addresses {
    xds: String,
    admin: String,
}

/// The number of control planes created in this run.
static MADE: AtomicUsize = AtomicUsize::new(0);

impl Strait {
    /// Starts `strait serve` with `arguments`, a state folder of this run, and an admin port that
    /// it chooses.
    pub(crate) fn start(host: &Host, hub: &Rc<Netns>, arguments: Vec<String>) -> Self {
        Self::start_with(host, hub, arguments, Vec::new())
    }

    /// Starts it with additional environment variables, like [`Self::start`].
    pub(crate) fn start_with(
        host: &Host,
        hub: &Rc<Netns>,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
    ) -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // Each control plane has its own state folder.
        let state = host.subfolder(&format!("strait-state-{number}"));
        let mut strait = Self {
            process: None,
            addresses: Addresses::default(),
            arguments,
            hub: Rc::clone(hub),
            logs: host.subfolder("strait"),
            policy: host.subfolder("policy").join(format!("policy-{number}.yaml")),
            state,
            environment,
            starts: 0,
        };
        strait.set_policy("");
        strait.launch();
        strait
    }

    /// Starts the process and reads its addresses.
    pub(crate) fn launch(&mut self) {
        let mut command = self.hub.command(program());
        command.arg("serve").args(&self.arguments).arg("--state-dir").arg(&self.state);
        command.arg("--policy").arg(&self.policy);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.starts += 1;
        let mut process = Process::spawn(command, &self.logs, &format!("strait-{}", self.starts));
        self.addresses =
            wait::until(Duration::from_secs(30), "strait prints its addresses", || {
                if let Some(status) = process.ended() {
                    panic!("strait ended with {status}; {}", process.log_end());
                }
                let stdout = process.stdout();
                serde_json::from_str(stdout.trim())
                    .map_err(|error| format!("{error} in {stdout:?}"))
            });
        self.process = Some(process);
    }

    /// Replaces the policy rules.
    pub(crate) fn set_policy(&self, rules: &str) {
        let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{rules}\n");
        let temporary = self.policy.with_extension("new");
        std::fs::write(&temporary, text).expect("written");
        // Replaced atomically.
        std::fs::rename(&temporary, &self.policy).expect("renamed");
    }

    /// Kills it with SIGKILL, so that it cannot shut down cleanly.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn wait_until_ready(&self) {
        wait::until(Duration::from_secs(60), "strait is ready", || {
            self.try_get("/readyz?verbose").map_err(|fact| format!("{fact}; {}", self.log_end()))
        });
    }

    /// Returns the HOST:PORT of the ADS server.
    pub(crate) fn xds(&self) -> &str {
        &self.addresses.xds
    }

    fn try_get(&self, path: &str) -> Result<String, String> {
        let token = std::fs::read_to_string(self.state.join("admin-token"))
            .map_err(|error| error.to_string())?;
        let answer =
            self.hub.try_helper(&["get", &self.addresses.admin, path, token.trim()], "")?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Returns the JSON of an admin page.
    pub(crate) fn try_json(&self, path: &str) -> Result<Value, String> {
        let text = self.try_get(path)?;
        serde_json::from_str(&text).map_err(|error| format!("{error} in {text}"))
    }

    /// Returns the JSON of an admin page, and panics on errors.
    pub(crate) fn json(&self, path: &str) -> Value {
        self.try_json(path).unwrap_or_else(|fact| panic!("{path}: {fact}; {}", self.log_end()))
    }

    /// Returns the state of a member cluster in `/debug/clusters`.
    pub(crate) fn cluster_state(&self, cluster: &str) -> Result<String, String> {
        let clusters = self.try_json("/debug/clusters")?;
        let entry = clusters.as_array().into_iter().flatten().find(|entry| entry["id"] == cluster);
        let entry = entry.ok_or_else(|| format!("no cluster {cluster} in {clusters}"))?;
        Ok(entry["state"].as_str().unwrap_or_default().to_owned())
    }

    pub(crate) fn wait_for_cluster_state(&self, cluster: &str, wanted: &[&str], limit: Duration) {
        wait::until(limit, &format!("cluster {cluster} is {wanted:?}"), || {
            let state = self.cluster_state(cluster)?;
            if wanted.contains(&state.as_str()) { Ok(()) } else { Err(state) }
        });
    }

    /// Waits until the state folder contains a file of the cluster that was written after `change`.
    pub(crate) fn wait_until_remembered(&self, cluster: &str, change: SystemTime) {
        let was_saved_since = || -> std::io::Result<bool> {
            for file in std::fs::read_dir(self.state.join("lkg"))? {
                let file = file?;
                let is_its_file =
                    file.file_name().to_string_lossy().starts_with(&format!("cluster-{cluster}."));
                if is_its_file && file.metadata()?.modified()? > change {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        wait::until(Duration::from_secs(30), &format!("{cluster} is remembered"), || {
            match was_saved_since() {
                Ok(true) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }

    /// Runs a command of the CLI with this server to its end. Panics if it fails.
    pub(crate) fn run(&self, arguments: &[&str]) {
        let mut command = self.hub.command(program());
        command.args(arguments).args(["--server", &format!("http://{}", self.addresses.admin)]);
        command.arg("--token-file").arg(self.state.join("admin-token"));
        let output = command.output().expect("the program under test runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "strait {arguments:?}: {}: {errors}", output.status);
    }

    fn log_end(&self) -> String {
        self.process.as_ref().map(Process::log_end).unwrap_or_default()
    }
}

/// Runs `strait` to its end, as in a shell, and returns its stdout.
pub(crate) fn command(arguments: &[&str]) -> String {
    let output =
        Command::new(program()).args(arguments).output().expect("the program under test runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "strait {arguments:?}: {}: {text}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
