//! Real requests through real Envoys, if Envoy is installed.
//!
//! The demo runs itself again inside separate namespaces ([`run`]). This isolates it completely: it
//! needs no rights on the machine and leaves nothing behind. Inside ([`inside`]), each pod is a
//! network namespace:
//!
//! ```text
//!  this process: API servers, control plane, 172.30.0.1
//!    |  transit 172.30.0.0/24
//!    +-- n1: gateway 172.30.0.11 | 10.1.0.2 -- pods of n1, 10.1.0.0/16
//!    +-- n2: gateway 172.30.0.21 | 10.1.0.2 -- pods of n2, 10.1.0.0/16
//! ```

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Subcommand;
use tokio::process::{Child, Command};

use super::app::{self, RequestCounts};
use super::mesh::DemoMesh;
use super::netns;
use super::pod::{self, HUB};
use super::world::{CLIENT, World};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::{Cell, OutputStyle, print, table};

/// Programs that real traffic requires.
const TOOLS: [&str; 6] = ["envoy", "unshare", "mount", "ip", "nsenter", "iptables-restore"];
const REQUESTS: usize = 200;
/// Time limit for Envoys to start and receive their configuration.
const START: Duration = Duration::from_secs(25);

/// Parts of the demo that run inside namespaces.
#[derive(Debug, Subcommand)]
pub(super) enum Part {
    /// The demo with real traffic, in new namespaces
    #[command(hide = true)]
    Inside,
    /// The application of a pod
    #[command(hide = true)]
    Echo {
        /// Address to listen on
        address: SocketAddr,
        /// Text of the response
        name: String,
    },
    /// The application of the client
    #[command(hide = true)]
    SendRequests {
        /// Address to send requests to
        address: SocketAddr,
        /// Virtual host of the requests
        host: String,
        /// Number of requests, each on a new connection
        count: usize,
    },
}

/// Result of the attempt to send real requests.
pub(super) enum Ran {
    /// The requests were sent and reached both clusters.
    Passed,
    /// The requests can't be sent on this machine, with the reason.
    Skipped(String),
}

/// Runs one part of the demo.
pub(super) async fn part(part: &Part) -> CommandResult {
    match part {
        Part::Inside => return inside().await,
        Part::Echo { address, name } => {
            app::echo(*address, name).await.map_err(CommandFailure::of)?;
        }
        Part::SendRequests { address, host, count } => {
            let answers = app::send_requests(*address, host, *count).await;
            print(&serde_json::to_string(&answers).map_err(CommandFailure::of)?)?;
        }
    }
    Ok(Exit::Fine)
}

/// Sends real requests, if this machine supports it.
///
/// # Errors
/// If not all requests arrive, or not in both clusters.
pub(super) async fn run(folder: &Path) -> Result<Ran, CommandFailure> {
    if !cfg!(target_os = "linux") {
        return Ok(Ran::Skipped("it needs the network namespaces of Linux".into()));
    }
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !on_path(tool)).collect();
    if !missing.is_empty() {
        return Ok(Ran::Skipped(format!("not on PATH: {}", missing.join(", "))));
    }
    let spaces = match enter_namespaces().await {
        Ok(spaces) => spaces,
        Err(fact) => return Ok(Ran::Skipped(fact)),
    };
    let program = std::env::current_exe().map_err(CommandFailure::of)?;
    let mut command = Command::new("unshare");
    command.args(spaces).arg("--").arg(program).args(["demo", "inside"]);
    // Inside the demo's own folder, so that it is deleted with it, however the process ends.
    command.env("TMPDIR", folder).kill_on_drop(true).stdin(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(CommandFailure::of)?;
    let output = child.wait_with_output().await.map_err(CommandFailure::of)?;
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches("error: ");
    match output.status.code() {
        Some(0) => Ok(Ran::Passed),
        Some(code) if code == Exit::NoRights as i32 => Ok(Ran::Skipped(message.to_owned())),
        _ => Err(CommandFailure::failed(format!("real requests: {message} ({})", output.status))),
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the flags of `unshare` that work on this machine: as the current user, or else as root
/// of a user namespace. When the first process of a process namespace ends, all others in it are
/// killed.
async fn enter_namespaces() -> Result<Vec<&'static str>, String> {
    let own = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
    let mut refusal = String::new();
    for user in [&[][..], &["--user", "--map-root-user"][..]] {
        let flags = [user, &own[..]].concat();
        match netns::run(Command::new("unshare").args(&flags).arg("true"), "").await {
            Ok(_) => return Ok(flags),
            Err(fact) => refusal = fact,
        }
    }
    Err(format!("this machine does not allow namespaces: {refusal}"))
}

/// Runs the demo with real traffic as the first process in the demo's Linux namespaces.
async fn inside() -> CommandResult {
    let world = World::new(2);
    // From here on, nothing depends on the machine.
    let pods =
        pod::create(&world).await.map_err(|fact| CommandFailure::new(Exit::NoRights, fact))?;
    let mesh = DemoMesh::start(world, HUB.into()).await?;
    let mut running = Vec::new();
    for pod in &pods {
        running.extend(pod.start(&mesh).await?);
    }
    let client = pods
        .iter()
        .find(|pod| pod.app == CLIENT)
        .ok_or_else(|| CommandFailure::failed("no client"))?;
    let service = &mesh.world.clusters[0].services[0];
    let load = |count| {
        client.send_requests(
            SocketAddr::new(service.vip.into(), service.port.port),
            service.hostname(),
            count,
        )
    };

    let until = Instant::now() + START;
    loop {
        let answers = load(REQUESTS / 10).await?;
        if reached_both(&answers) && mesh.connected().await? == pods.len() {
            break;
        }
        let ended = running.iter_mut().find_map(|child: &mut Child| child.try_wait().ok()?);
        if let Some(status) = ended {
            return Err(CommandFailure::failed(format!(
                "a pod's program ended with {status}{}",
                logs(mesh.folder())
            )));
        }
        if Instant::now() > until {
            let logs = logs(mesh.folder());
            return Err(CommandFailure::failed(format!(
                "requests still fail after {START:?}: {answers:?}{logs}"
            )));
        }
    }
    let answers = load(REQUESTS).await?;
    if !reached_both(&answers) {
        return Err(CommandFailure::failed(format!(
            "not all requests succeeded, or not in both clusters: {answers:?}"
        )));
    }
    print(&show(&mesh.world, &answers))?;
    drop(running);
    mesh.shut_down().await;
    Ok(Exit::Fine)
}

/// Returns whether every request got a response and both clusters responded.
fn reached_both(answers: &RequestCounts) -> bool {
    let reached = |id: &str| answers.by.keys().any(|pod| pod.starts_with(id));
    answers.failures.is_empty() && reached("east/") && reached("west/")
}

fn show(world: &World, answers: &RequestCounts) -> String {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (pod, count) in &answers.by {
        let (cluster, pod) = pod.split_once('/').unwrap_or(("", pod));
        let gateway = world.clusters.iter().find(|one| one.id == cluster).and_then(|one| one.edge);
        let path = match gateway {
            Some(edge) if cluster != "east" => format!("through {}", edge.gateway),
            _ => "directly".into(),
        };
        rows.push(vec![cluster.into(), pod.into(), path.into(), count.to_string().into()]);
    }
    let seen: Vec<_> = answers.seen_as.keys().map(String::as_str).collect();
    format!(
        "{} requests from {CLIENT}.shop in east to web.shop, all answered:\n\n{}\n\
         The pods saw the client as {}: mTLS from end to end.\n",
        answers.by.values().sum::<usize>(),
        table(&["CLUSTER", "POD", "REACHED", "REQUESTS"], rows, &OutputStyle::of_stdout()),
        seen.join(", ")
    )
}

/// Returns the last lines of the Envoys' logs, for an error message.
fn logs(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let lines = logs.filter_map(|path| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some(format!("\n{}: {}", path.file_stem()?.to_string_lossy(), text.lines().next_back()?))
    });
    lines.collect()
}
