//! The redirection of a pod's connections to its Envoy, as iptables rules (`nft.rs` translates them), and the
//! comparison with the existing rules of the kernel.
//!
//! Pure. `deploy/examples/sidecar.yaml` shows the rules for the default settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ipnet::IpNet;

/// User and group ID of the sidecar, whose connections are not redirected.
const PROXY: u32 = 1337;
/// Envoy's ports for inbound and outbound connections, and the agent's port for DNS.
const INBOUND: u16 = 15006;
const OUTBOUND: u16 = 15001;
const DNS: u16 = 15053;
/// Ports of the agent and Envoy themselves.
const OWN_PORTS: [u16; 3] = [15020, 15021, 15090];
/// The prefix of all our chains.
const PREFIX: &str = "MESH_";

/// All values, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selected<T> {
    All,
    Only(Vec<T>),
}

/// The settings of redirection.
#[derive(Debug, Clone)]
pub(crate) struct Redirection {
    pub(crate) include_outbound_ranges: Selected<IpNet>,
    pub(crate) exclude_outbound_ranges: Vec<IpNet>,
    pub(crate) include_outbound_ports: Vec<u16>,
    pub(crate) exclude_outbound_ports: Vec<u16>,
    pub(crate) include_inbound_ports: Selected<u16>,
    pub(crate) exclude_inbound_ports: Vec<u16>,
    pub(crate) exclude_interfaces: Vec<String>,
    /// DNS servers whose queries the agent answers.
    pub(crate) name_servers: Vec<std::net::IpAddr>,
}

/// The address family of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    fn has(self, range: &IpNet) -> bool {
        matches!((self, range), (Self::V4, IpNet::V4(_)) | (Self::V6, IpNet::V6(_)))
    }

    /// Returns the loopback address, and the address from which Envoy connects to the workload.
    fn loopback(self) -> [&'static str; 2] {
        match self {
            Self::V4 => ["127.0.0.1/32", "127.0.0.6/32"],
            Self::V6 => ["::1/128", "::6/128"],
        }
    }
}

/// Rules by table and chain, in order. Built-in chains contain only our jumps.
pub(crate) type Tables = BTreeMap<&'static str, BTreeMap<String, Vec<String>>>;

impl Redirection {
    pub(crate) fn tables(&self, family: Family) -> Tables {
        let mut tables = Tables::new();
        let nat = tables.entry("nat").or_default();
        let mut add =
            |chain: &str, rule: String| nat.entry(chain.to_owned()).or_default().push(rule);

        add("PREROUTING", "-p tcp -j MESH_IN".to_owned());
        for interface in &self.exclude_interfaces {
            add("MESH_IN", format!("-i {interface} -j RETURN"));
        }
        for port in OWN_PORTS.iter().chain(&self.exclude_inbound_ports) {
            add("MESH_IN", format!("-p tcp --dport {port} -j RETURN"));
        }
        match &self.include_inbound_ports {
            Selected::All => add("MESH_IN", "-p tcp -j MESH_IN_REDIRECT".to_owned()),
            Selected::Only(ports) => {
                for port in ports {
                    add("MESH_IN", format!("-p tcp --dport {port} -j MESH_IN_REDIRECT"));
                }
            }
        }
        add("MESH_IN_REDIRECT", format!("-p tcp -j REDIRECT --to-ports {INBOUND}"));

        let [loopback, inbound_source] = family.loopback();
        add("OUTPUT", "-p tcp -j MESH_OUT".to_owned());
        for interface in &self.exclude_interfaces {
            add("MESH_OUT", format!("-o {interface} -j RETURN"));
        }
        add("MESH_OUT", format!("-o lo -s {inbound_source} -j RETURN"));
        add(
            "MESH_OUT",
            format!(
                "! -d {loopback} -o lo -p tcp -m owner --uid-owner {PROXY} -j MESH_IN_REDIRECT"
            ),
        );
        add("MESH_OUT", format!("-o lo -m owner ! --uid-owner {PROXY} -j RETURN"));
        add("MESH_OUT", format!("-m owner --uid-owner {PROXY} -j RETURN"));
        add("MESH_OUT", format!("-m owner --gid-owner {PROXY} -j RETURN"));
        let servers =
            || self.name_servers.iter().copied().map(IpNet::from).filter(|one| family.has(one));
        for server in servers() {
            add("MESH_OUT", format!("-d {server} -p tcp --dport 53 -j REDIRECT --to-ports {DNS}"));
        }
        add("MESH_OUT", format!("-d {loopback} -j RETURN"));
        for range in self.exclude_outbound_ranges.iter().filter(|range| family.has(range)) {
            add("MESH_OUT", format!("-d {range} -j RETURN"));
        }
        for port in &self.exclude_outbound_ports {
            add("MESH_OUT", format!("-p tcp --dport {port} -j RETURN"));
        }
        for port in &self.include_outbound_ports {
            add("MESH_OUT", format!("-p tcp --dport {port} -j REDIRECT --to-ports {OUTBOUND}"));
        }
        match &self.include_outbound_ranges {
            Selected::All => add("MESH_OUT", format!("-p tcp -j REDIRECT --to-ports {OUTBOUND}")),
            Selected::Only(ranges) => {
                for range in ranges.iter().filter(|range| family.has(range)) {
                    add("MESH_OUT", format!("-d {range} -p tcp -j REDIRECT --to-ports {OUTBOUND}"));
                }
            }
        }
        if servers().next().is_some() {
            self.names(family, &mut tables);
        }
        tables
    }

    /// Adds the rules for DNS over UDP. Queries of the workload and of the agent have separate conntrack zones, because
    /// they may have the same ports and the same server.
    fn names(&self, family: Family, tables: &mut Tables) {
        let servers =
            self.name_servers.iter().copied().map(IpNet::from).filter(|one| family.has(one));
        let servers: Vec<IpNet> = servers.collect();
        let mut add = |table: &'static str, chain: &str, rule: String| {
            tables.entry(table).or_default().entry(chain.to_owned()).or_default().push(rule);
        };
        let (to, own) = ("-p udp --dport 53", format!("-m owner --uid-owner {PROXY}"));
        let own_group = format!("-m owner --gid-owner {PROXY}");
        add("nat", "OUTPUT", "-p udp -j MESH_DNS".to_owned());
        add("nat", "MESH_DNS", format!("{own} -j RETURN"));
        add("nat", "MESH_DNS", format!("{own_group} -j RETURN"));
        add("raw", "OUTPUT", "-p udp -j MESH_DNS_OUT".to_owned());
        add("raw", "PREROUTING", "-p udp -j MESH_DNS_IN".to_owned());
        add("raw", "MESH_DNS_OUT", format!("-p udp --sport {DNS} {own} -j CT --zone 2"));
        add("raw", "MESH_DNS_OUT", format!("{to} {own} -j CT --zone 1"));
        add("raw", "MESH_DNS_OUT", format!("{own} -j RETURN"));
        for server in &servers {
            add("nat", "MESH_DNS", format!("-d {server} {to} -j REDIRECT --to-ports {DNS}"));
            add("raw", "MESH_DNS_OUT", format!("-d {server} {to} -j CT --zone 2"));
            add("raw", "MESH_DNS_IN", format!("-s {server} -p udp --sport 53 -j CT --zone 1"));
        }
    }

    /// Returns the input for iptables-restore (with --noflush), given the output of iptables-save in `saved`: replaces
    /// our chains and adds our jumps once. Other chains are not touched.
    pub(crate) fn restore(&self, family: Family, saved: &str) -> String {
        let (tables, mut text) = (self.tables(family), String::new());
        let standing = Standing::read(saved);
        let names: BTreeSet<&str> =
            tables.keys().copied().chain(standing.tables.keys().map(String::as_str)).collect();
        for table in names {
            let wanted = tables.get(table);
            let chains = standing.tables.get(table);
            let jumps = chains.into_iter().flatten().filter(|(chain, _)| !is_ours(chain));
            let jumps: Vec<_> = jumps
                .flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule)))
                .collect();
            let ours = |chain: &&String| is_ours(chain);
            let old: Vec<&String> =
                chains.into_iter().flat_map(BTreeMap::keys).filter(ours).collect();
            let new: Vec<&String> =
                wanted.into_iter().flat_map(BTreeMap::keys).filter(ours).collect();
            if jumps.is_empty() && old.is_empty() && new.is_empty() {
                continue;
            }
            let _ = writeln!(text, "*{table}");
            let all: BTreeSet<&String> = old.iter().chain(&new).copied().collect();
            for chain in &all {
                let _ = writeln!(text, ":{chain} - [0:0]");
            }
            for (chain, rule) in jumps {
                let _ = writeln!(text, "-D {chain} {rule}");
            }
            for (chain, rules) in wanted.into_iter().flatten() {
                for rule in rules {
                    let _ = writeln!(text, "-A {chain} {rule}");
                }
            }
            for chain in all.into_iter().filter(|chain| !new.contains(chain)) {
                let _ = writeln!(text, "-X {chain}");
            }
            text.push_str("COMMIT\n");
        }
        text
    }

    /// Returns the rules that are missing in the output of iptables-save, one per line; empty if none is missing.
    pub(crate) fn missing(&self, family: Family, saved: &str) -> Vec<String> {
        let standing = Standing::read(saved);
        let mut missing = Vec::new();
        for (table, chains) in self.tables(family) {
            for (chain, rules) in chains {
                let none = Vec::new();
                let there = standing
                    .tables
                    .get(table)
                    .and_then(|chains| chains.get(&chain))
                    .unwrap_or(&none);
                let [wanted, is] = [&rules, there]
                    .map(|rules| rules.iter().map(|rule| normal(rule)).collect::<Vec<_>>());
                let lacks = rules.iter().zip(&wanted).filter(|(_, normal)| !is.contains(normal));
                let lacks: Vec<_> =
                    lacks.map(|(rule, _)| format!("{table}: -A {chain} {rule}")).collect();
                if lacks.is_empty() && wanted != is {
                    missing
                        .push(format!("{table}: {chain} has different rules, or in another order"));
                }
                missing.extend(lacks);
            }
        }
        missing
    }
}

fn is_ours(chain: &str) -> bool {
    chain.starts_with(PREFIX)
}

/// Our existing rules: our chains with all their rules, and jumps to them from other chains.
#[derive(Debug, Default)]
struct Standing {
    tables: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl Standing {
    fn read(saved: &str) -> Self {
        let (mut standing, mut table) = (Self::default(), String::new());
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.trim().clone_into(&mut table);
            } else if let Some((chain, _)) =
                line.strip_prefix(':').and_then(|rest| rest.split_once(' '))
            {
                if is_ours(chain) {
                    standing.chain(&table, chain);
                }
            } else if let Some((chain, rule)) =
                line.strip_prefix("-A ").and_then(|rest| rest.split_once(' '))
                && (is_ours(chain) || rule.contains(&format!("-j {PREFIX}")))
            {
                standing.chain(&table, chain).push(rule.to_owned());
            }
        }
        standing
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        self.tables.entry(table.to_owned()).or_default().entry(chain.to_owned()).or_default()
    }
}

/// Returns the parts of a rule in a fixed order, without optional parts, because iptables-save writes rules in a
/// different form.
fn normal(rule: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut not = false;
    for word in rule.split_whitespace() {
        match word {
            "!" => not = true,
            _ if word.starts_with('-') => {
                parts.push(format!("{}{word}", if std::mem::take(&mut not) { "! " } else { "" }));
            }
            _ => {
                if let Some(part) = parts.last_mut() {
                    let _ = write!(part, " {word}");
                }
            }
        }
    }
    parts.retain(|part| !part.starts_with("-m "));
    parts.sort();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Redirection {
        Redirection {
            include_outbound_ranges: Selected::All,
            exclude_outbound_ranges: Vec::new(),
            include_outbound_ports: Vec::new(),
            exclude_outbound_ports: Vec::new(),
            include_inbound_ports: Selected::All,
            exclude_inbound_ports: Vec::new(),
            exclude_interfaces: Vec::new(),
            name_servers: Vec::new(),
        }
    }

    /// Returns the rules of the example, which the tests with real traffic use in their pods.
    fn example() -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples/sidecar.yaml");
        let text = std::fs::read_to_string(file).expect("the example");
        let (_, rules) = text.split_once("rules: |\n").expect("it has rules");
        let rules = rules.split("---").next().expect("they end");
        rules.lines().map(|line| format!("{}\n", line.trim())).collect()
    }

    #[test]
    fn default_rules_match_the_example() {
        assert_eq!(all().missing(Family::V4, &example()), Vec::<String>::new());
        let restored = all().restore(Family::V4, "");
        let rules = |text: &str| text.lines().filter(|line| line.starts_with("-A")).count();
        assert_eq!(rules(&restored), rules(&example()), "{restored}");
    }

    #[test]
    fn missing_and_reordered_rules_are_reported() {
        let without = example().replace("-A MESH_OUT -m owner --uid-owner 1337 -j RETURN\n", "");
        assert_eq!(
            all().missing(Family::V4, &without),
            ["nat: -A MESH_OUT -m owner --uid-owner 1337 -j RETURN"]
        );
        let first = "-A MESH_IN -p tcp --dport 15020 -j RETURN\n";
        let turned = example().replace(first, "").replace("COMMIT", &format!("{first}COMMIT"));
        let missing = all().missing(Family::V4, &turned);
        assert!(missing.len() == 1 && missing[0].contains("another order"), "{missing:?}");
        assert_eq!(all().missing(Family::V4, "").len(), 14);
    }

    #[test]
    fn second_run_replaces_our_rules_and_no_others() {
        let saved = "*nat\n:PREROUTING ACCEPT [0:0]\n:MESH_IN - [0:0]\n:MESH_OLD - [0:0]\n:OTHER - [0:0]\n\
            -A PREROUTING -j OTHER\n-A PREROUTING -p tcp -j MESH_IN\n-A OTHER -p udp -j ACCEPT\nCOMMIT\n";
        let text = all().restore(Family::V4, saved);
        assert!(
            text.contains("-D PREROUTING -p tcp -j MESH_IN\n") && text.contains("-X MESH_OLD\n"),
            "{text}"
        );
        assert!(!text.contains("OTHER"), "{text}");
    }

    #[test]
    fn settings_limit_the_redirected_connections() {
        let parse = |text: &str| text.parse::<IpNet>().expect("a range");
        let some = Redirection {
            include_outbound_ranges: Selected::Only(vec![parse("10.0.0.0/8"), parse("fd00::/8")]),
            exclude_outbound_ranges: vec![parse("10.9.0.0/16")],
            include_outbound_ports: vec![443],
            exclude_outbound_ports: vec![5432],
            include_inbound_ports: Selected::Only(vec![8080]),
            exclude_inbound_ports: vec![9000],
            exclude_interfaces: vec!["eth1".to_owned()],
            name_servers: vec![[10, 96, 0, 10].into()],
        };
        let v4 = some.restore(Family::V4, "");
        let at = |rule: &str| v4.find(rule).unwrap_or_else(|| panic!("{rule}: {v4}"));
        assert!(
            at("-A MESH_IN -i eth1 -j RETURN") < at("-A MESH_IN -p tcp --dport 9000 -j RETURN")
        );
        assert!(
            at("--dport 9000 -j RETURN") < at("-A MESH_IN -p tcp --dport 8080 -j MESH_IN_REDIRECT")
        );
        assert!(
            at("-A MESH_OUT -d 10.9.0.0/16 -j RETURN")
                < at("-A MESH_OUT -p tcp --dport 443 -j REDIRECT")
        );
        assert!(
            at("-A MESH_OUT -p tcp --dport 5432 -j RETURN")
                < at("-A MESH_OUT -d 10.0.0.0/8 -p tcp -j REDIRECT")
        );
        at("-A MESH_DNS -d 10.96.0.10/32 -p udp --dport 53 -j REDIRECT --to-ports 15053");
        assert!(
            !v4.contains("fd00") && !v4.contains("-A MESH_IN -p tcp -j MESH_IN_REDIRECT"),
            "{v4}"
        );
        let v6 = some.restore(Family::V6, "");
        assert!(
            v6.contains("-d fd00::/8 -p tcp") && !v6.contains("10.") && !v6.contains("MESH_DNS"),
            "{v6}"
        );
    }
}
