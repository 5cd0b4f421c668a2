//! Network namespaces: creation, links, commands inside, and removal. Nothing affects the network
//! of the machine: both ends of every link are created inside namespaces, and every client runs in
//! one.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::helper;

/// The user of a sidecar, whose own traffic is not redirected.
pub(crate) const ENVOY_UID: u32 = 1337;

const PREFIX: &str = "strait-";

/// A network namespace, deleted on drop.
pub(crate) struct Netns {
    name: String,
}

impl Netns {
    /// Checks whether this process may create namespaces and redirect traffic in them, by creating
    /// one.
    pub(crate) fn possible() -> Result<(), String> {
        let netns = Self::try_create("probe")
            .map_err(|fact| format!("network namespaces can't be made here: {fact}"))?;
        netns
            .try_iptables(&sidecar_rules())
            .map_err(|fact| format!("iptables does not redirect here: {fact}"))
    }

    /// Creates a namespace of this process, with its loopback interface up.
    pub(crate) fn create(label: &str) -> Self {
        Self::try_create(label).unwrap_or_else(|fact| panic!("namespace {label}: {fact}"))
    }

    fn try_create(label: &str) -> Result<Self, String> {
        let name = format!("{PREFIX}{}-{label}", std::process::id());
        succeed(Command::new("ip").args(["netns", "add", &name]), "")?;
        let netns = Self { name };
        netns.try_ip("link set lo up")?;
        Ok(netns)
    }

    /// Removes the namespaces of rigs whose processes have ended.
    pub(crate) fn remove_leftovers() {
        let listed = succeed(Command::new("ip").args(["netns", "list"]), "").unwrap_or_default();
        for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
            let owner = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.split('-').next())
                .and_then(|pid| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
                drop(Self { name: name.to_owned() });
            }
        }
    }

    /// Runs lines of `ip -batch` inside.
    pub(crate) fn ip(&self, lines: &str) {
        self.try_ip(lines).unwrap_or_else(|fact| panic!("{}: ip {lines}: {fact}", self.name));
    }

    fn try_ip(&self, lines: &str) -> Result<String, String> {
        succeed(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines)
    }

    /// Loads rules in the format of iptables-save inside.
    pub(crate) fn iptables(&self, rules: &str) {
        self.try_iptables(rules)
            .unwrap_or_else(|fact| panic!("{}: iptables {rules}: {fact}", self.name));
    }

    fn try_iptables(&self, rules: &str) -> Result<(), String> {
        succeed(&mut self.command("iptables-restore"), rules).map(drop)
    }

    /// Redirects traffic as a mesh's init container does: outbound to 15001 and inbound to 15006,
    /// except Envoy's own traffic.
    pub(crate) fn redirect_to_sidecar(&self) {
        self.iptables(&sidecar_rules());
    }

    /// Creates a bridge with an address and a fixed MAC. A bridge without a fixed MAC uses the
    /// lowest MAC of all ports, which may change with each new pod; then its neighbors use the old
    /// MAC for half a minute.
    pub(crate) fn bridge(&self, name: &str, address: &str) {
        self.ip(&format!(
            "link add {name} address 02:00:00:00:00:01 type bridge\n\
             address add {address} dev {name}\nlink set {name} up"
        ));
    }

    /// Creates a link from here (`interface`, with `address`) to the bridge `bridge` of `other`.
    pub(crate) fn connect(&self, interface: &str, address: &str, other: &Self, bridge: &str) {
        // The name of the far end contains the address, which is unique on that bridge.
        let host = address.split('/').next().unwrap_or(address).replace('.', "");
        let far = format!("p{}", &host[host.len().saturating_sub(9)..]);
        self.ip(&format!(
            "link add {interface} type veth peer name {far} netns {other}\n\
             address add {address} dev {interface}\nlink set {interface} up",
            other = other.name
        ));
        other.ip(&format!("link set {far} master {bridge}\nlink set {far} up"));
    }

    /// Enables forwarding in this namespace, with source NAT for `source` on `out`.
    pub(crate) fn route_with_source_nat(&self, source: &str, out: &str) {
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        succeed(self.command("sh").args(["-c", forward]), "")
            .unwrap_or_else(|fact| panic!("{forward}: {fact}"));
        self.iptables(&format!(
            "*nat\n-A POSTROUTING -s {source} -o {out} -j MASQUERADE\nCOMMIT\n"
        ));
    }

    /// Returns a command of `program` inside. The kernel kills it if this process ends first.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_with(&[], program)
    }

    /// Returns [`Self::command`] for the user whose traffic is not redirected.
    pub(crate) fn command_as_envoy(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_in_group_of_envoy(program, ENVOY_UID)
    }

    /// Returns [`Self::command`] for another user of the group whose traffic is not redirected. The
    /// kernel's limits per user, for example for inotify instances, are too low for very many
    /// Envoys.
    pub(crate) fn command_in_group_of_envoy(
        &self,
        program: impl AsRef<std::ffi::OsStr>,
        uid: u32,
    ) -> Command {
        let (uid, gid) = (uid.to_string(), ENVOY_UID.to_string());
        self.command_with(&["--reuid", &uid, "--regid", &gid, "--clear-groups"], program)
    }

    fn command_with(&self, setpriv: &[&str], program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args(["setpriv", "--pdeathsig", "KILL"]).args(setpriv).arg("--").arg(program);
        command
    }

    /// Kills the processes inside that run as Envoy's user.
    pub(crate) fn kill_envoys(&self) {
        let inside = succeed(Command::new("ip").args(["netns", "pids", &self.name]), "");
        for pid in inside.unwrap_or_default().lines() {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
            if uid.is_some_and(|ids| ids.split_whitespace().next() == Some(&*ENVOY_UID.to_string()))
            {
                let _ = succeed(Command::new("kill").args(["-KILL", pid]), "");
            }
        }
    }

    /// Returns the command of a helper program ([`crate::helper`]) inside, not yet started.
    pub(crate) fn helper_command(&self, arguments: &[&str]) -> Command {
        let mut command =
            self.command(std::env::current_exe().expect("a running program has a path"));
        command.arg(helper::COMMAND).args(arguments);
        command
    }

    /// Runs a helper inside to its end. Returns its output, or its error.
    pub(crate) fn try_helper(&self, arguments: &[&str], input: &str) -> Result<Value, String> {
        let text = succeed(&mut self.helper_command(arguments), input)?;
        serde_json::from_str(&text).map_err(|error| format!("{error} in {text:?}"))
    }

    /// Runs [`Self::try_helper`] and panics on errors.
    pub(crate) fn helper(&self, arguments: &[&str], input: &str) -> Value {
        self.try_helper(arguments, input)
            .unwrap_or_else(|fact| panic!("{}: {arguments:?}: {fact}", self.name))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // The remaining processes inside were started by a rig, and would keep the namespace alive.
        let inside =
            succeed(Command::new("ip").args(["netns", "pids", &self.name]), "").unwrap_or_default();
        for pid in inside.lines() {
            let _ = succeed(Command::new("kill").args(["-KILL", pid]), "");
        }
        if let Err(fact) = succeed(Command::new("ip").args(["netns", "del", &self.name]), "") {
            eprintln!("namespace {} stays: {fact}", self.name);
        }
    }
}

/// Returns the rules in deploy/examples/sidecar.yaml, in the format of iptables-save.
fn sidecar_rules() -> String {
    let example = include_str!("../../deploy/examples/sidecar.yaml");
    let documents = example.split("\n---\n");
    let documents = documents.map(|text| serde_saphyr::from_str::<Value>(text).expect("YAML"));
    let rules = documents
        .filter(|one| one["kind"] == "ConfigMap")
        .find_map(|one| one["data"]["rules"].as_str().map(str::to_owned));
    rules.expect("the example has a ConfigMap with rules")
}

/// Runs a command to its end. Returns stdout, or the error.
fn succeed(command: &mut Command, input: &str) -> Result<String, String> {
    let output = run(command, input).map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{} ({})", String::from_utf8_lossy(&output.stderr).trim(), output.status))
}

fn run(command: &mut Command, input: &str) -> std::io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it has read everything reports the reason on stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}
