//! One Envoy in a namespace, as the mesh's own user, and what its admin page says.

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

/// Where every Envoy of the rig has its admin page, inside its namespace.
pub(crate) const ADMIN: &str = "127.0.0.1:15000";

/// A running Envoy. SIGKILL on drop.
pub(crate) struct Envoy {
    process: Process,
    netns: Rc<Netns>,
    name: String,
}

impl Envoy {
    /// Starts it with the bootstrap in `file` (JSON or YAML). Does not wait for configuration from a server.
    pub(crate) fn start(host: &Host, netns: &Rc<Netns>, name: &str, file: &Path) -> Self {
        Self::start_program(host, &host.envoy, netns, name, file)
    }

    /// [`Self::start`] with an Envoy of another version.
    pub(crate) fn start_program(
        host: &Host,
        program: &Path,
        netns: &Rc<Netns>,
        name: &str,
        file: &Path,
    ) -> Self {
        Self::start_command(host, netns.command_as_envoy(program), netns, name, file)
    }

    /// The same by a command of [`Netns`] that runs it as somebody.
    pub(crate) fn start_command(
        host: &Host,
        mut command: Command,
        netns: &Rc<Netns>,
        name: &str,
        file: &Path,
    ) -> Self {
        command.arg("--config-path").arg(file);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        // As strait-agent starts it.
        command.args(["--drain-time-s", "45", "--drain-strategy", "immediate"]);
        let process = Process::spawn(command, &host.subfolder("envoy"), name);
        Self { process, netns: Rc::clone(netns), name: name.to_owned() }
    }

    /// One that an agent has started, of which the process is given: what the agent says is what it says.
    pub(crate) fn of_agent(process: Process, netns: &Rc<Netns>, name: &str) -> Self {
        Self { process, netns: Rc::clone(netns), name: name.to_owned() }
    }

    /// What it, or its agent, said that contains `word`.
    pub(crate) fn said(&self, word: &str) -> Vec<String> {
        self.process.said(word)
    }

    /// The end of what it said, for a failure's text.
    pub(crate) fn last_words(&self) -> String {
        self.process.last_words()
    }

    /// Waits until it has had all it needs from wherever its configuration comes (state LIVE).
    pub(crate) fn wait_until_live(&mut self, limit: Duration) {
        let name = self.name.clone();
        wait::until(limit, &format!("{name} is live"), || {
            if let Some(status) = self.process.ended() {
                panic!("{name} ended with {status}; {}", self.process.last_words());
            }
            match self.try_get("/ready") {
                Ok(text) if text.contains("LIVE") => Ok(()),
                Ok(other) => Err(other),
                Err(fact) => Err(format!("{fact}; {}", self.process.last_words())),
            }
        });
    }

    fn try_get(&self, path: &str) -> Result<String, String> {
        let answer = self.netns.try_helper(&["get", ADMIN, path], "")?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// A page of the admin interface.
    pub(crate) fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap_or_else(|fact| {
            panic!("{}: {path}: {fact}; {}", self.name, self.process.last_words())
        })
    }

    /// The part of the effective configuration that a query names.
    pub(crate) fn config_dump(&self, query: &str) -> Value {
        serde_json::from_str(&self.get(&format!("/config_dump{query}")))
            .expect("Envoy's dump is JSON")
    }

    /// Counters and gauges whose name matches `filter` (a regular expression).
    pub(crate) fn stats(&self, filter: &str) -> BTreeMap<String, u64> {
        let text = self.get(&format!("/stats?filter={filter}"));
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }

    /// What is wrong with how it took its configuration: anything rejected, warming or never fetched.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let counters = self.stats("update_rejected$|init_fetch_timeout$|warming");
        assert!(!counters.is_empty(), "{} counts nothing", self.name);
        let mut complaints: Vec<String> = counters
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .map(|(name, value)| format!("{}: {name} = {value}", self.name))
            .collect();
        let rejected = self.process.said("rejected");
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
