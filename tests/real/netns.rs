//! Network namespaces: made, wired, entered, and taken away again. Nothing here touches the network of the machine:
//! both ends of every link are born inside namespaces, and every client runs in one.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::helper;

/// The user a sidecar runs as, whose own traffic is not redirected.
pub(crate) const ENVOY_UID: u32 = 1337;

const PREFIX: &str = "strait-";

/// One network namespace, deleted on drop.
pub(crate) struct Netns {
    name: String,
}

impl Netns {
    /// Whether this process may make namespaces and redirect in them, tried on one.
    pub(crate) fn possible() -> Result<(), String> {
        let netns = Self::try_create("probe")
            .map_err(|fact| format!("network namespaces can't be made here: {fact}"))?;
        netns
            .try_iptables(&sidecar_rules())
            .map_err(|fact| format!("iptables does not redirect here: {fact}"))
    }

    /// A namespace of this process, with its loopback up.
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

    /// Takes away what rigs of dead processes left behind.
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

    /// Loads rules in the form of iptables-save inside.
    pub(crate) fn iptables(&self, rules: &str) {
        self.try_iptables(rules)
            .unwrap_or_else(|fact| panic!("{}: iptables {rules}: {fact}", self.name));
    }

    fn try_iptables(&self, rules: &str) -> Result<(), String> {
        succeed(&mut self.command("iptables-restore"), rules).map(drop)
    }

    /// Redirects as a mesh's init container does: all that goes out to 15001, all that comes in to 15006, except
    /// what Envoy itself sends.
    pub(crate) fn redirect_to_sidecar(&self) {
        self.iptables(&sidecar_rules());
    }

    /// A bridge with an address. Its MAC is given: else it is the lowest of its ports', and each pod that is plugged
    /// in may change it under the neighbours, who then send into nothing for half a minute.
    pub(crate) fn bridge(&self, name: &str, address: &str) {
        self.ip(&format!(
            "link add {name} address 02:00:00:00:00:01 type bridge\n\
             address add {address} dev {name}\nlink set {name} up"
        ));
    }

    /// A link from here (`interface`, with `address`) to the bridge `bridge` of `other`.
    pub(crate) fn connect(&self, interface: &str, address: &str, other: &Self, bridge: &str) {
        // The far end is named after the address, which no other link on that bridge has.
        let host = address.split('/').next().unwrap_or(address).replace('.', "");
        let far = format!("p{}", &host[host.len().saturating_sub(9)..]);
        self.ip(&format!(
            "link add {interface} type veth peer name {far} netns {other}\n\
             address add {address} dev {interface}\nlink set {interface} up",
            other = other.name
        ));
        other.ip(&format!("link set {far} master {bridge}\nlink set {far} up"));
    }

    /// Lets this namespace forward, with `source` hidden behind its own address on `out`.
    pub(crate) fn route_with_source_nat(&self, source: &str, out: &str) {
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        succeed(self.command("sh").args(["-c", forward]), "")
            .unwrap_or_else(|fact| panic!("{forward}: {fact}"));
        self.iptables(&format!(
            "*nat\n-A POSTROUTING -s {source} -o {out} -j MASQUERADE\nCOMMIT\n"
        ));
    }

    /// `program` inside, killed by the kernel if this process goes first.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_with(&[], program)
    }

    /// [`Self::command`] as the user whose traffic is not redirected.
    pub(crate) fn command_as_envoy(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_in_group_of_envoy(program, ENVOY_UID)
    }

    /// The same as another user of that group, whose traffic isn't redirected either: what the kernel gives a user, such as inotify
    /// instances, is not enough for very many.
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

    /// Ends what still runs inside as the user of Envoys.
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

    /// One of the rig's own programs ([`crate::helper`]) inside, not yet started.
    pub(crate) fn helper_command(&self, arguments: &[&str]) -> Command {
        let mut command =
            self.command(std::env::current_exe().expect("a running program has a path"));
        command.arg(helper::COMMAND).args(arguments);
        command
    }

    /// Runs a helper inside to its end; its answer, or what it complained of.
    pub(crate) fn try_helper(&self, arguments: &[&str], input: &str) -> Result<Value, String> {
        let text = succeed(&mut self.helper_command(arguments), input)?;
        serde_json::from_str(&text).map_err(|error| format!("{error} in {text:?}"))
    }

    /// [`Self::try_helper`] that must succeed.
    pub(crate) fn helper(&self, arguments: &[&str], input: &str) -> Value {
        self.try_helper(arguments, input)
            .unwrap_or_else(|fact| panic!("{}: {arguments:?}: {fact}", self.name))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Whatever still runs inside was started by a rig, and would keep the namespace alive.
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

/// The rules that deploy/examples/sidecar.yaml ships, in the form of iptables-save.
fn sidecar_rules() -> String {
    let example = include_str!("../../deploy/examples/sidecar.yaml");
    let documents = example.split("\n---\n");
    let documents = documents.map(|text| serde_saphyr::from_str::<Value>(text).expect("YAML"));
    let rules = documents
        .filter(|one| one["kind"] == "ConfigMap")
        .find_map(|one| one["data"]["rules"].as_str().map(str::to_owned));
    rules.expect("the example has a ConfigMap with rules")
}

/// Runs to the end; stdout on success, else what it said.
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
        // A program that ends before it has read everything says why on stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}
