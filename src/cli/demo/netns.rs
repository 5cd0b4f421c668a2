//! Network namespaces of the demo: creates them, connects them to bridges and runs programs in
//! them.
//!
//! It works inside a network, mount and process namespace that [`super::traffic`] created. It
//! therefore does not affect the machine's network, and everything is deleted when that process
//! ends.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// A named network namespace.
pub(super) struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace and enables its loopback interface.
    pub(super) async fn create(name: &str) -> Result<Self, String> {
        run(Command::new("ip").args(["netns", "add", name]), "").await?;
        let netns = Self { name: name.to_owned() };
        ip(Some(&netns), "link set lo up").await?;
        Ok(netns)
    }

    /// Returns the name of the namespace.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command that runs `program` in the namespace. The process is killed when the child
    /// is dropped.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(program);
        command.kill_on_drop(true).stdin(Stdio::null());
        command
    }

    /// Adds an `interface` with an address (`ADDRESS/PREFIX`) to the namespace, connected to
    /// `bridge` of `switch`.
    pub(super) async fn plug(
        &self,
        interface: &str,
        address: &str,
        switch: Option<&Self>,
        bridge: &str,
    ) -> Result<(), String> {
        let far = &self.name;
        let cable = format!(
            "link add {far} type veth peer name {interface} netns {far}\n\
             link set {far} master {bridge}\nlink set {far} up"
        );
        ip(switch, &cable).await?;
        let near = format!("address add {address} dev {interface}\nlink set {interface} up");
        ip(Some(self), &near).await
    }

    /// Loads rules in the format of iptables-save.
    pub(super) async fn iptables(&self, rules: &str) -> Result<(), String> {
        run(&mut self.command("iptables-restore"), rules).await.map(drop)
    }
}

/// Runs lines of `ip -batch` in a namespace, or in this process's own.
pub(super) async fn ip(netns: Option<&Netns>, lines: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    if let Some(netns) = netns {
        command.args(["-n", &netns.name]);
    }
    run(command.args(["-batch", "-"]), lines).await.map(drop)
}

/// Creates a bridge with an address.
pub(super) async fn bridge(netns: Option<&Netns>, name: &str, address: &str) -> Result<(), String> {
    let lines = format!(
        "link add {name} type bridge\naddress add {address} dev {name}\nlink set {name} up"
    );
    ip(netns, &lines).await
}

/// Runs a command to its end with `input`. Returns its standard output, or else its error message.
pub(super) async fn run(command: &mut Command, input: &str) -> Result<String, String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("{program}: {error}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it has read all input reports the reason on stderr.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
