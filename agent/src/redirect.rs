//! `strait-agent redirect`: makes the kernel redirect a pod's connections to its Envoy, or lists the missing rules.
//!
//! It reads the existing rules and writes the missing ones, with iptables-save and iptables-restore, or with nft if
//! these do not exist. A second run changes nothing.

use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::files::read_text;
use crate::problem::Problem;
use crate::rules::{Family, Redirection, Selected};
use crate::{loopback, nft};

/// Arguments of `strait-agent redirect`.
#[derive(Debug, Args)]
pub(crate) struct RedirectArgs {
    /// Changes nothing; lists missing rules and exits with 2 if there are any
    #[arg(long)]
    check: bool,
    /// Changes and reads no rules; opens a connection as Envoy would, and exits with 126 if it is not redirected,
    /// whichever component set the rules. Runs as user 1337, without privileges, before Envoy starts
    #[arg(long = "try", conflicts_with_all = ["check", "dns", "tool"], requires = "ip")]
    tries: bool,
    /// With --try: the pod's addresses, comma-separated
    #[arg(long, env = "POD_IP", value_name = "IP", value_delimiter = ',')]
    ip: Vec<IpAddr>,
    /// Ranges whose connections are redirected to Envoy, comma-separated; * for all
    #[arg(long, value_name = "CIDR", default_value = "*", hide_default_value = true)]
    include_outbound_ranges: String,
    /// Ranges whose connections are not redirected, comma-separated
    #[arg(long, value_name = "CIDR", default_value = "")]
    exclude_outbound_ranges: String,
    /// Ports whose connections are redirected to Envoy in any range, comma-separated
    #[arg(long, value_name = "PORT", default_value = "")]
    include_outbound_ports: String,
    /// Ports whose connections are not redirected, comma-separated
    #[arg(long, value_name = "PORT", default_value = "")]
    exclude_outbound_ports: String,
    /// Ports of the pod whose inbound connections are redirected to Envoy, comma-separated; * for all
    #[arg(long, value_name = "PORT", default_value = "*", hide_default_value = true)]
    include_inbound_ports: String,
    /// Ports of the pod whose inbound connections are not redirected, comma-separated
    #[arg(long, value_name = "PORT", default_value = "")]
    exclude_inbound_ports: String,
    /// Network interfaces whose traffic is not redirected, comma-separated
    #[arg(long, value_name = "NAME", default_value = "")]
    exclude_interfaces: String,
    /// Redirects DNS queries to the agent, which must run with --dns
    #[arg(long)]
    dns: bool,
    /// Program that sets the rules [default: iptables; nft if iptables does not exist]
    #[arg(long, value_name = "PROGRAM", value_enum)]
    tool: Option<RuleProgram>,
}

impl RedirectArgs {
    /// Returns the addresses to test, with `--try`.
    pub(crate) fn tried(&self) -> Option<&[IpAddr]> {
        self.tries.then_some(&self.ip)
    }
}

/// Sets or checks the rules. Returns the exit code.
///
/// # Errors
/// A flag has an invalid value, a program is missing, or the kernel refuses the rules.
pub(crate) fn run(args: &RedirectArgs) -> Result<u8, Problem> {
    let redirection = redirection(args)?;
    let program = args.tool.unwrap_or_else(RuleProgram::found);
    let mut lacks = Vec::new();
    for family in families() {
        if family == Family::V6 && !args.check {
            inbound_source();
        }
        let program_name = program.program_name(family);
        let missing = program.missing(&redirection, family)?;
        if args.check {
            lacks.extend(missing.into_iter().map(|rule| format!("{program_name}: {rule}")));
        } else if !missing.is_empty() {
            program.set(&redirection, family)?;
            let left = program.missing(&redirection, family)?;
            if let Some(first) = left.first() {
                let fact = format!(
                    "{program_name}: {} rules are missing after they were written, the first: {first}",
                    left.len()
                );
                return Err(Problem::new(
                    "STR0960",
                    fact,
                    "find out which other program writes rules in this pod",
                ));
            }
            crate::print(format_args!("{program_name}: {} rules are set", missing.len()));
        } else {
            crate::print(format_args!("{program_name}: nothing to do, all rules are set"));
        }
    }
    if lacks.is_empty() {
        return Ok(0);
    }
    for rule in &lacks {
        crate::print(format_args!("missing: {rule}"));
    }
    crate::eprint(format_args!(
        "error: STR0961: {} rules are missing\nnext: run strait-agent redirect with the same flags, with NET_ADMIN",
        lacks.len()
    ));
    Ok(2)
}

/// The program that reads and writes rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RuleProgram {
    Iptables,
    Nft,
}

impl RuleProgram {
    /// Returns nft if it exists and iptables does not.
    fn found() -> Self {
        let there = |program| !matches!(Command::new(program).arg("--version").output(), Err(error) if error.kind() == ErrorKind::NotFound);
        if !there("iptables-save") && there("nft") { Self::Nft } else { Self::Iptables }
    }

    /// Returns the name of the program for messages.
    fn program_name(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Iptables, Family::V4) => "iptables-save",
            (Self::Iptables, Family::V6) => "ip6tables-save",
            (Self::Nft, Family::V4) => "nft ip",
            (Self::Nft, Family::V6) => "nft ip6",
        }
    }

    /// Returns the missing rules.
    fn missing(self, rules: &Redirection, family: Family) -> Result<Vec<String>, Problem> {
        match self {
            Self::Iptables => Ok(rules.missing(family, &saved(family)?)),
            Self::Nft => {
                // Priorities and protocols are listed as numbers, because their names differ between versions and
                // images.
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
    tool(RuleProgram::Iptables.program_name(family), &[], "")
}

/// Adds the IPv6 address from which Envoy connects to the workload.
fn inbound_source() {
    if let Err(error) = loopback::add_inbound_source() {
        crate::eprint(format_args!(
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
                "write ports as 8080, ranges as 10.0.0.0/8 and interfaces as eth1, separated by commas",
            )
        })
    };
    words.map(one).collect()
}

/// Parses a range or an address, without the bits beyond the prefix, as the kernel stores it.
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

/// Returns the DNS servers of the pod's resolv.conf.
///
/// # Errors
/// The file can't be read, or contains no server.
pub(crate) fn name_servers() -> Result<Vec<IpAddr>, Problem> {
    const FILE: &str = "/etc/resolv.conf";
    let problem = |fact| Problem::new("STR0963", fact, "add a nameserver to the pod's resolv.conf");
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

/// Returns the families to set. Rules for IPv6 can be set only if the pod has IPv6.
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
        // If the program has exited already, its output is more helpful.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(problem(format!("failed ({}): {error}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
