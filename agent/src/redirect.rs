//! `strait-agent redirect`: has the kernel redirect a pod's connections to its Envoy, or says what of that lacks.
//!
//! Reads what stands and writes what lacks, by iptables-save and iptables-restore, or by nft where these are not there: a
//! second run changes nothing.

use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::files::read_text;
use crate::problem::Problem;
use crate::rules::{Family, Redirection, Selected};
use crate::{loopback, nft};

/// `strait-agent redirect`.
#[derive(Debug, Args)]
pub(crate) struct RedirectArgs {
    /// Changes nothing: exits 2 with what lacks, where anything does
    #[arg(long)]
    check: bool,
    /// Changes nothing and reads no rules: connects as Envoy would, and exits 126 where that is not redirected, whoever's rules it is. As
    /// user 1337, without any rights, before Envoy runs
    #[arg(long = "try", conflicts_with_all = ["check", "dns", "tool"], requires = "ip")]
    tries: bool,
    /// With --try: the pod's addresses, by commas
    #[arg(long, env = "POD_IP", value_name = "IP", value_delimiter = ',')]
    ip: Vec<IpAddr>,
    /// Ranges whose connections go to Envoy, by commas; * is all
    #[arg(long, value_name = "CIDR", default_value = "*", hide_default_value = true)]
    include_outbound_ranges: String,
    /// Ranges whose connections do not
    #[arg(long, value_name = "CIDR", default_value = "")]
    exclude_outbound_ranges: String,
    /// Ports whose connections go to Envoy whatever their range
    #[arg(long, value_name = "PORT", default_value = "")]
    include_outbound_ports: String,
    /// Ports whose connections do not
    #[arg(long, value_name = "PORT", default_value = "")]
    exclude_outbound_ports: String,
    /// Ports of the pod that are reached through Envoy; * is all
    #[arg(long, value_name = "PORT", default_value = "*", hide_default_value = true)]
    include_inbound_ports: String,
    /// Ports of the pod that are not
    #[arg(long, value_name = "PORT", default_value = "")]
    exclude_inbound_ports: String,
    /// Network interfaces on which nothing is redirected
    #[arg(long, value_name = "NAME", default_value = "")]
    exclude_interfaces: String,
    /// Questions for names go to the agent, which is then to run with --dns
    #[arg(long)]
    dns: bool,
    /// By which program [default: iptables; nft where that is not there]
    #[arg(long, value_name = "PROGRAM", value_enum)]
    tool: Option<RuleProgram>,
}

impl RedirectArgs {
    /// The addresses at which it is only tried.
    pub(crate) fn tried(&self) -> Option<&[IpAddr]> {
        self.tries.then_some(&self.ip)
    }
}

/// Does it, or checks it: the exit code.
///
/// # Errors
/// A value that is none, a tool that is not there, what the kernel refuses.
pub(crate) fn run(args: &RedirectArgs) -> Result<u8, Problem> {
    let redirection = redirection(args)?;
    let program = args.tool.unwrap_or_else(RuleProgram::found);
    let mut lacks = Vec::new();
    for family in families() {
        if family == Family::V6 && !args.check {
            inbound_source();
        }
        let says = program.says(family);
        let missing = program.missing(&redirection, family)?;
        if args.check {
            lacks.extend(missing.into_iter().map(|rule| format!("{says}: {rule}")));
        } else if !missing.is_empty() {
            program.set(&redirection, family)?;
            let left = program.missing(&redirection, family)?;
            if let Some(first) = left.first() {
                let fact = format!(
                    "{says} was given rules, and {} do not stand, the first: {first}",
                    left.len()
                );
                return Err(Problem::new("STR0960", fact, "see who else writes rules in this pod"));
            }
            crate::print(format_args!("{says}: {} rules are set", missing.len()));
        } else {
            crate::print(format_args!("{says}: nothing to do, the rules stand"));
        }
    }
    if lacks.is_empty() {
        return Ok(0);
    }
    for rule in &lacks {
        crate::print(format_args!("missing: {rule}"));
    }
    crate::say(format_args!(
        "error: STR0961: {} rules do not stand\nnext: run strait-agent redirect with the same flags, with NET_ADMIN",
        lacks.len()
    ));
    Ok(2)
}

/// By which rules are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RuleProgram {
    Iptables,
    Nft,
}

impl RuleProgram {
    /// nft where there is no iptables.
    fn found() -> Self {
        let there = |program| !matches!(Command::new(program).arg("--version").output(), Err(error) if error.kind() == ErrorKind::NotFound);
        if !there("iptables-save") && there("nft") { Self::Nft } else { Self::Iptables }
    }

    /// What is called, as people are told of it.
    fn says(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Iptables, Family::V4) => "iptables-save",
            (Self::Iptables, Family::V6) => "ip6tables-save",
            (Self::Nft, Family::V4) => "nft ip",
            (Self::Nft, Family::V6) => "nft ip6",
        }
    }

    /// What of the rules does not stand.
    fn missing(self, rules: &Redirection, family: Family) -> Result<Vec<String>, Problem> {
        match self {
            Self::Iptables => Ok(rules.missing(family, &saved(family)?)),
            Self::Nft => {
                // Priorities and protocols as numbers: versions and images differ in their names.
                let listed = ["-y", "-p", "list", "ruleset", nft::family_name(family)];
                Ok(nft::missing(rules, family, &tool("nft", &listed, "")?))
            }
        }
    }

    fn set(self, rules: &Redirection, family: Family) -> Result<(), Problem> {
        let (program, arguments, input): (_, &[&str], _) = match (self, family) {
            (Self::Iptables, Family::V4) => {
                ("iptables-restore", &["--noflush"], rules.restore(family, &saved(family)?))
            }
            (Self::Iptables, Family::V6) => {
                ("ip6tables-restore", &["--noflush"], rules.restore(family, &saved(family)?))
            }
            (Self::Nft, _) => ("nft", &["-f", "-"], nft::script(rules, family)),
        };
        tool(program, arguments, &input).map(drop)
    }
}

fn saved(family: Family) -> Result<String, Problem> {
    tool(RuleProgram::Iptables.says(family), &[], "")
}

/// Has the pod the address from which Envoy reaches the workload by IPv6.
fn inbound_source() {
    if let Err(error) = loopback::add_inbound_source() {
        crate::say(format_args!(
            "warning: the loopback can't be given the address ::6: {error}; so Envoy reaches no workload by IPv6\n\
             next: run it with NET_ADMIN, or give the pod no IPv6"
        ));
    }
}

fn redirection(args: &RedirectArgs) -> Result<Redirection, Problem> {
    let name_servers = if args.dns { name_servers()? } else { Vec::new() };
    Ok(Redirection {
        include_outbound_ranges: selected(
            &args.include_outbound_ranges,
            "--include-outbound-ranges",
            range,
        )?,
        exclude_outbound_ranges: list(
            &args.exclude_outbound_ranges,
            "--exclude-outbound-ranges",
            range,
        )?,
        include_outbound_ports: list(
            &args.include_outbound_ports,
            "--include-outbound-ports",
            port,
        )?,
        exclude_outbound_ports: list(
            &args.exclude_outbound_ports,
            "--exclude-outbound-ports",
            port,
        )?,
        include_inbound_ports: selected(
            &args.include_inbound_ports,
            "--include-inbound-ports",
            port,
        )?,
        exclude_inbound_ports: list(&args.exclude_inbound_ports, "--exclude-inbound-ports", port)?,
        exclude_interfaces: list(&args.exclude_interfaces, "--exclude-interfaces", interface)?,
        name_servers,
    })
}

fn selected<T>(
    text: &str,
    flag: &str,
    parse: fn(&str) -> Option<T>,
) -> Result<Selected<T>, Problem> {
    if text.trim() == "*" { Ok(Selected::All) } else { list(text, flag, parse).map(Selected::Only) }
}

fn list<T>(text: &str, flag: &str, parse: fn(&str) -> Option<T>) -> Result<Vec<T>, Problem> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let one = |word| {
        parse(word).ok_or_else(|| {
            let fact = format!("{flag}: {word:?} is none");
            Problem::new(
                "STR0950",
                fact,
                "give ports as 8080, ranges as 10.0.0.0/8, interfaces as eth1; several by commas",
            )
        })
    };
    words.map(one).collect()
}

/// As the kernel keeps it: without what is beyond the prefix.
fn range(word: &str) -> Option<IpNet> {
    let range = word.parse::<IpNet>().or_else(|_| word.parse::<IpAddr>().map(IpNet::from));
    range.ok().map(|range| range.trunc())
}

fn port(word: &str) -> Option<u16> {
    word.parse().ok().filter(|port| *port > 0)
}

fn interface(word: &str) -> Option<String> {
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:@-+".contains(&byte);
    let is_name = word.len() <= 15 && word.bytes().all(usable) && !word.starts_with('-');
    is_name.then(|| word.to_owned())
}

/// Servers of names that programs of this pod ask.
///
/// # Errors
/// A file that can't be read, or names none.
pub(crate) fn name_servers() -> Result<Vec<IpAddr>, Problem> {
    const FILE: &str = "/etc/resolv.conf";
    let problem =
        |fact| Problem::new("STR0963", fact, "give the pod a resolv.conf with a nameserver");
    let text = read_text(FILE.as_ref())
        .map_err(|error| problem(format!("{FILE} can't be read: {error}")))?;
    let config =
        resolv_conf::Config::parse(&text).map_err(|error| problem(format!("{FILE}: {error}")))?;
    let servers: Vec<IpAddr> = config.nameservers.iter().map(IpAddr::from).collect();
    if servers.is_empty() {
        Err(problem(format!("{FILE} names no nameserver")))
    } else {
        Ok(servers)
    }
}

/// IPv6 only where the pod has any: elsewhere its rules can't be set.
fn families() -> impl Iterator<Item = Family> {
    let has_ipv6 = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| !text.is_empty());
    [Some(Family::V4), has_ipv6.then_some(Family::V6)].into_iter().flatten()
}

fn tool(program: &'static str, arguments: &[&str], input: &str) -> Result<String, Problem> {
    let problem = |fact| {
        let next = "run it as root with NET_ADMIN and NET_RAW, in an image with iptables or nft";
        Problem::new("STR0960", format!("{program} {fact}"), next)
    };
    let failed = |error: std::io::Error| problem(format!("can't be run: {error}"));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Where it has ended already, what it said tells more.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(problem(format!("failed ({}): {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
