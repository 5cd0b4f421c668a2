//! An Envoy in a namespace, run as the mesh's own user, and its admin interface.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::host::Host;
use crate::netns::Netns;
use crate::process::Process;
use crate::wait;

/// The address of every Envoy's admin interface, inside its namespace.
pub(crate) const ADMIN: &str = "127.0.0.1:15000";

/// A running Envoy. Killed with SIGKILL on drop.
pub(crate) struct Envoy {
    process: Process,
    netns: Rc<Netns>,
    name: String,
}

impl Envoy {
    /// Starts an Envoy with the bootstrap in `file` (JSON or YAML). Does not wait for configuration
    /// from a server.
    pub(crate) fn start(host: &Host, netns: &Rc<Netns>, name: &str, file: &Path) -> Self {
        Self::start_program(host, &host.envoy, netns, name, file)
    }

    /// Starts an Envoy of another version, like [`Self::start`].
    pub(crate) fn start_program(
        host: &Host,
        program: &Path,
        netns: &Rc<Netns>,
        name: &str,
        file: &Path,
    ) -> Self {
        Self::start_command(host, netns.command_as_envoy(program), netns, name, file)
    }

    /// Starts an Envoy with a command of [`Netns`] that sets its user.
    pub(crate) fn start_command(
        host: &Host,
        mut command: Command,
        netns: &Rc<Netns>,
        name: &str,
        file: &Path,
    ) -> Self {
        command.arg("--config-path").arg(file);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        // The same flags as strait-agent uses.
        command.args(["--drain-time-s", "45", "--drain-strategy", "immediate"]);
        let process = Process::spawn(command, &host.subfolder("envoy"), name);
        Self { process, netns: Rc::clone(netns), name: name.to_owned() }
    }

    /// Returns an Envoy that the agent in `process` has started. The log is the agent's.
    pub(crate) fn started_by_agent(process: Process, netns: &Rc<Netns>, name: &str) -> Self {
        Self { process, netns: Rc::clone(netns), name: name.to_owned() }
    }

    /// Returns the lines of Envoy's log, or the agent's log, that contain `text`.
    pub(crate) fn log_lines(&self, text: &str) -> Vec<String> {
        self.process.log_lines(text)
    }

    /// Returns the end of the log, for error messages.
    pub(crate) fn log_end(&self) -> String {
        self.process.log_end()
    }

    /// Waits until it has its complete configuration (state LIVE).
    pub(crate) fn wait_until_live(&mut self, limit: Duration) {
        let name = self.name.clone();
        wait::until(limit, &format!("{name} is live"), || {
            if let Some(status) = self.process.ended() {
                panic!("{name} ended with {status}; {}", self.process.log_end());
            }
            match self.try_get("/ready") {
                Ok(text) if text.contains("LIVE") => Ok(()),
                Ok(other) => Err(other),
                Err(fact) => Err(format!("{fact}; {}", self.process.log_end())),
            }
        });
    }

    fn try_get(&self, path: &str) -> Result<String, String> {
        let answer = self.netns.try_helper(&["get", ADMIN, path], "")?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Returns a page of the admin interface.
    pub(crate) fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap_or_else(|fact| {
            panic!("{}: {path}: {fact}; {}", self.name, self.process.log_end())
        })
    }

    /// Returns the part of the effective configuration that a query selects.
    pub(crate) fn config_dump(&self, query: &str) -> Value {
        serde_json::from_str(&self.get(&format!("/config_dump{query}")))
            .expect("Envoy's dump is JSON")
    }

    /// Returns counters and gauges whose name matches `filter` (a regular expression).
    pub(crate) fn stats(&self, filter: &str) -> BTreeMap<String, u64> {
        let text = self.get(&format!("/stats?filter={filter}"));
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }

    /// Returns the problems with its configuration: rejected updates, warming or never received
    /// resources.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let counters = self.stats("update_rejected$|init_fetch_timeout$|warming");
        assert!(!counters.is_empty(), "{} counts nothing", self.name);
        let mut complaints: Vec<String> = counters
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .map(|(name, value)| format!("{}: {name} = {value}", self.name))
            .collect();
        let rejected = self.process.log_lines("rejected");
        complaints.extend(rejected.into_iter().map(|line| format!("{}: {line}", self.name)));
        let warming = self.config_dump("?resource=dynamic_warming_clusters");
        if warming
            .get("configs")
            .and_then(Value::as_array)
            .is_some_and(|configs| !configs.is_empty())
        {
            complaints.push(format!("{}: warming {warming}", self.name));
        }
        complaints
    }
}
