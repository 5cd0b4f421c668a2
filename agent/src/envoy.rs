//! The pod's Envoy: its admin interface and its process.
//!
//! The agent starts Envoy with a bootstrap and restarts it when it exits by itself. Envoy ends with the agent, even if
//! the agent is killed.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use http::Method;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use tokio::process::{Child, Command};

use crate::http_client::send;
use crate::problem::Problem;

/// Time limit for one response of the admin interface.
const ANSWER: Duration = Duration::from_secs(2);

/// Envoy's admin interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EnvoyAdmin {
    pub(crate) address: SocketAddr,
}

impl EnvoyAdmin {
    /// Returns an error with Envoy's state unless it accepts traffic (state LIVE).
    pub(crate) async fn live(&self) -> Result<(), String> {
        let answer = send(self.address, Method::GET, "/ready", ANSWER).await?;
        match answer.status() {
            http::StatusCode::OK => Ok(()),
            _ => Err(String::from_utf8_lossy(answer.body()).trim().to_owned()),
        }
    }

    /// Returns an error with the missing types unless upstream clusters and listeners have been received at least once.
    pub(crate) async fn configured(&self) -> Result<(), String> {
        let path = "/stats?filter=^(cluster_manager.cds|listener_manager.lds).update_success$";
        let answer = send(self.address, Method::GET, path, ANSWER).await?;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        let missing = missing_updates(&text);
        if missing.is_empty() { Ok(()) } else { Err(format!("no {} yet", missing.join(" and "))) }
    }

    /// Makes Envoy accept no new inbound connections.
    pub(crate) async fn drain(&self) -> Result<(), String> {
        let path = "/drain_listeners?inboundonly&graceful";
        send(self.address, Method::POST, path, ANSWER).await.map(drop)
    }

    /// Returns the number of open connections of all listeners except the metrics listener.
    pub(crate) async fn connections(&self) -> Result<u64, String> {
        let path = "/stats?usedonly&filter=^listener.*downstream_cx_active$";
        let answer = send(self.address, Method::GET, path, ANSWER).await?;
        Ok(active_connections(&String::from_utf8_lossy(answer.body())))
    }
}

fn missing_updates(stats: &str) -> Vec<&'static str> {
    let came = |name: &str| {
        let counts = stats.lines().filter_map(|line| line.split_once(": "));
        counts.filter(|(stat, _)| *stat == name).any(|(_, count)| count.trim() != "0")
    };
    let all = [
        ("cluster_manager.cds.update_success", "upstream clusters"),
        ("listener_manager.lds.update_success", "listeners"),
    ];
    all.into_iter().filter(|(stat, _)| !came(stat)).map(|(_, what)| what).collect()
}

fn active_connections(stats: &str) -> u64 {
    let counted = |name: &str| {
        !name.contains(".worker_")
            && !name.starts_with("listener.admin.")
            && !name.contains("_15090.")
    };
    let counts = stats.lines().filter_map(|line| line.split_once(": "));
    counts.filter(|(name, _)| counted(name)).filter_map(|(_, n)| n.trim().parse::<u64>().ok()).sum()
}

/// Returns the default arguments that the command line does not set.
fn usual_arguments(line: &[OsString]) -> Vec<&'static str> {
    let is_said = |flag: &str| {
        let is_it = |argument: &str| {
            let rest = argument.strip_prefix(flag);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        line.iter().filter_map(|argument| argument.to_str()).any(is_it)
    };
    let all: [(&str, &[&str]); 3] = [
        // Envoy is never restarted while it runs, so it has nothing to hand over.
        ("--disable-hot-restart", &["--disable-hot-restart"]),
        // Open connections keep the previous configuration, including access policies, until Envoy closes them. By
        // default, Envoy closes more and more of them over ten minutes.
        ("--drain-time-s", &["--drain-time-s", "45"]),
        ("--drain-strategy", &["--drain-strategy", "immediate"]),
    ];
    let unsaid = all.into_iter().filter(|(flag, _)| !is_said(flag));
    unsaid.flat_map(|(_, arguments)| arguments).copied().collect()
}

/// A running Envoy.
pub(crate) struct EnvoyProcess {
    child: Child,
}

impl EnvoyProcess {
    /// Starts Envoy with additional environment variables.
    ///
    /// # Errors
    /// The program can't be started.
    pub(crate) fn start(
        line: &[OsString],
        bootstrap: &Path,
        environment: Vec<(&'static str, String)>,
    ) -> Result<Self, Problem> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("child").arg(getpid().as_raw_nonzero().to_string()).arg("--").args(line);
        command.arg("--config-path").arg(bootstrap).args(usual_arguments(line));
        // A separate process group: signals from a terminal reach only the agent, which drains Envoy first.
        command.envs(environment).process_group(0).kill_on_drop(true);
        let child = command.spawn().map_err(|error| cannot_start(line, &error))?;
        Ok(Self { child })
    }

    /// Waits until Envoy exits.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus, Problem> {
        self.child.wait().await.map_err(|error| {
            Problem::new(
                "STR0958",
                format!("cannot wait for the end of Envoy: {error}"),
                "report it",
            )
        })
    }

    /// Terminates Envoy, and kills it if it is still running after 5 s.
    pub(crate) async fn stop(mut self) -> Result<ExitStatus, Problem> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            // Envoy may have exited already.
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(Duration::from_secs(5), self.child.wait()).await.is_err() {
            let _ = self.child.start_kill();
        }
        self.ended().await
    }
}

/// Implements `strait-agent child PARENT -- ENVOY…`: becomes Envoy, which the kernel kills when the agent exits.
pub(crate) fn become_envoy(parent: i32, line: &[OsString]) -> Problem {
    use std::os::unix::process::CommandExt as _;
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return cannot_start(line, &error.into());
    }
    // The agent may have exited before the line above.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Problem::new(
            "STR0958",
            "the process that starts Envoy has ended",
            "nothing: Envoy is restarted",
        );
    }
    let (program, arguments) = line.split_first().expect("clap demands a program");
    let error = std::process::Command::new(program).args(arguments).exec();
    cannot_start(line, &error)
}

fn cannot_start(line: &[OsString], error: &std::io::Error) -> Problem {
    let program = line.first().map(|program| program.display().to_string()).unwrap_or_default();
    let fact = format!("{program} can't be started: {error}");
    Problem::new("STR0958", fact, "add the path of Envoy after --")
}

/// Returns the exit code that a shell would report.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_and_listeners_must_both_be_received() {
        let none =
            "cluster_manager.cds.update_success: 0\nlistener_manager.lds.update_success: 0\n";
        assert_eq!(missing_updates(none), ["upstream clusters", "listeners"]);
        let clusters = "cluster_manager.cds.update_success: 3\n";
        assert_eq!(missing_updates(clusters), ["listeners"]);
        assert!(
            missing_updates(&format!("{clusters}listener_manager.lds.update_success: 1"))
                .is_empty()
        );
    }

    #[test]
    fn arguments_of_the_command_line_override_the_defaults() {
        let usual = |line: &[&str]| {
            usual_arguments(&line.iter().map(OsString::from).collect::<Vec<_>>()).join(" ")
        };
        assert_eq!(
            usual(&["envoy", "-l", "info"]),
            "--disable-hot-restart --drain-time-s 45 --drain-strategy immediate"
        );
        assert_eq!(
            usual(&["envoy", "--drain-time-s=5", "--disable-hot-restart"]),
            "--drain-strategy immediate"
        );
        assert_eq!(
            usual(&["envoy", "--drain-strategy", "gradual"]),
            "--disable-hot-restart --drain-time-s 45"
        );
    }

    #[test]
    fn connections_are_counted_once_and_without_metrics() {
        let stats = "listener.0.0.0.0_15006.downstream_cx_active: 3\n\
                     listener.0.0.0.0_15006.worker_0.downstream_cx_active: 3\n\
                     listener.0.0.0.0_15090.downstream_cx_active: 1\n\
                     listener.admin.downstream_cx_active: 1\n\
                     listener.[__]_15001.downstream_cx_active: 2\n";
        assert_eq!(active_connections(stats), 5);
    }
}
