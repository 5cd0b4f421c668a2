//! The redirection rules in the syntax of nft, for images without iptables: one table in each family, with a chain for
//! each of our chains and for each hook of the kernel that leads to them.
//!
//! Pure. Rules are written in the form in which nft lists them, so that they can be compared with the existing ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::rules::{Family, Redirection};

/// Name of the table.
const TABLE: &str = "strait";

/// Returns nft's name of a family.
pub(crate) fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Chains with their rules in order. The first line of a base chain defines its hook.
type Chains = BTreeMap<String, Vec<String>>;

fn chains(redirection: &Redirection, family: Family) -> Chains {
    let mut chains = Chains::new();
    for (table, wanted) in redirection.tables(family) {
        for (chain, rules) in wanted {
            let (name, hook) = place(table, &chain);
            let rules = rules.iter().map(|rule| translated(rule, family));
            chains.insert(name, hook.into_iter().chain(rules).collect());
        }
    }
    chains
}

/// Returns the name of a chain and, for a base chain, its hook with the priority that iptables uses.
fn place(table: &str, chain: &str) -> (String, Option<String>) {
    let hook = match chain {
        "PREROUTING" => "prerouting",
        "OUTPUT" => "output",
        _ => return (chain.to_owned(), None),
    };
    let (kind, priority) = if table == "nat" { ("nat", -100) } else { ("filter", -300) };
    let line = format!("type {kind} hook {hook} priority {priority}; policy accept;");
    (format!("{table}_{hook}"), Some(line))
}

/// Translates an iptables rule to the form in which nft lists it.
fn translated(rule: &str, family: Family) -> String {
    let (mut matches, mut verdict) = (Vec::new(), String::new());
    let (mut protocol, mut is) = ("", "");
    let has_port = rule.contains("port ");
    let mut words = rule.split_whitespace();
    let ip = family_name(family);
    let host = |range: &str| {
        let host = range.strip_suffix("/32").or_else(|| range.strip_suffix("/128"));
        host.unwrap_or(range).to_owned()
    };
    let interface = |name: &str| match name.strip_suffix('+') {
        Some(prefix) => format!("\"{prefix}*\""),
        None => format!("\"{name}\""),
    };
    while let Some(word) = words.next() {
        if word == "!" {
            is = "!= ";
            continue;
        }
        let value = words.next().unwrap_or_default();
        match word {
            "-p" if has_port => protocol = value,
            "-p" => matches.push(format!("meta l4proto {}", protocol_number(value))),
            "-s" => matches.push(format!("{ip} saddr {is}{}", host(value))),
            "-d" => matches.push(format!("{ip} daddr {is}{}", host(value))),
            "-i" => matches.push(format!("iifname {is}{}", interface(value))),
            "-o" => matches.push(format!("oifname {is}{}", interface(value))),
            "--dport" => matches.push(format!("{protocol} dport {value}")),
            "--sport" => matches.push(format!("{protocol} sport {value}")),
            "--uid-owner" => matches.push(format!("meta skuid {is}{value}")),
            "--gid-owner" => matches.push(format!("meta skgid {is}{value}")),
            "--to-ports" => verdict = format!("redirect to :{value}"),
            "--zone" => verdict = format!("ct zone set {value}"),
            "-j" if value == "RETURN" => "return".clone_into(&mut verdict),
            "-j" if value.starts_with("MESH_") => verdict = format!("jump {value}"),
            // Match names need no translation: the following match or target is sufficient.
            _ => {}
        }
        is = "";
    }
    matches.push(verdict);
    matches.join(" ")
}

/// Returns a protocol as nft lists it in numeric mode. An image may lack the file with the names (`/etc/protocols`).
fn protocol_number(name: &str) -> &str {
    match name {
        "tcp" => "6",
        "udp" => "17",
        other => other,
    }
}

/// Returns the input for `nft -f -`, which replaces our table in one transaction. Other tables are not touched.
pub(crate) fn script(redirection: &Redirection, family: Family) -> String {
    let ip = family_name(family);
    // A table must exist to be deleted.
    let mut text =
        format!("table {ip} {TABLE}\ndelete table {ip} {TABLE}\ntable {ip} {TABLE} {{\n");
    for (chain, lines) in chains(redirection, family) {
        let _ = writeln!(text, "chain {chain} {{\n{}\n}}", lines.join("\n"));
    }
    text.push_str("}\n");
    text
}

/// Returns the rules that are missing in the output of `nft -y -p list ruleset` for the family, one per line; empty if
/// none is missing.
pub(crate) fn missing(redirection: &Redirection, family: Family, listed: &str) -> Vec<String> {
    let standing = standing(listed, family);
    let mut missing = Vec::new();
    for (chain, wanted) in chains(redirection, family) {
        let none = Vec::new();
        let there = standing.get(&chain).unwrap_or(&none);
        let lacks = wanted.iter().filter(|line| !there.contains(line));
        let lacks: Vec<_> = lacks.map(|line| format!("{chain}: {line}")).collect();
        if lacks.is_empty() && *there != wanted {
            missing.push(format!("{chain} has different rules, or in another order"));
        }
        missing.extend(lacks);
    }
    missing
}

/// Returns the chains of our table, without counters.
fn standing(listed: &str, family: Family) -> Chains {
    let (mut chains, mut chain) = (Chains::new(), None);
    let begin = format!("table {} {TABLE} {{", family_name(family));
    let table = listed.lines().skip_while(|line| line.trim() != begin).skip(1);
    for line in table.take_while(|line| *line != "}").map(str::trim) {
        match (line.strip_prefix("chain "), &mut chain) {
            (Some(name), _) => {
                chain = Some(chains.entry(name.trim_end_matches(" {").to_owned()).or_default());
            }
            (None, Some(lines)) if !line.is_empty() && line != "}" => lines.push(line.to_owned()),
            _ => {}
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_translated_to_the_form_that_nft_lists() {
        for (rule, said) in [
            ("-p tcp -j MESH_OUT", "meta l4proto 6 jump MESH_OUT"),
            ("-i eth+ -j RETURN", "iifname \"eth*\" return"),
            ("-p tcp --dport 15020 -j RETURN", "tcp dport 15020 return"),
            ("-p tcp -j REDIRECT --to-ports 15006", "meta l4proto 6 redirect to :15006"),
            ("-o lo -s 127.0.0.6/32 -j RETURN", "oifname \"lo\" ip saddr 127.0.0.6 return"),
            (
                "! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1337 -j MESH_IN_REDIRECT",
                "ip daddr != 127.0.0.1 oifname \"lo\" meta l4proto 6 meta skuid 1337 jump MESH_IN_REDIRECT",
            ),
            (
                "-o lo -m owner ! --uid-owner 1337 -j RETURN",
                "oifname \"lo\" meta skuid != 1337 return",
            ),
            ("-m owner --gid-owner 1337 -j RETURN", "meta skgid 1337 return"),
            (
                "-d 10.96.0.10/32 -p udp --dport 53 -j CT --zone 2",
                "ip daddr 10.96.0.10 udp dport 53 ct zone set 2",
            ),
            ("-d 10.9.0.0/16 -j RETURN", "ip daddr 10.9.0.0/16 return"),
        ] {
            assert_eq!(translated(rule, Family::V4), said);
        }
        assert_eq!(
            translated("-o lo -s ::6/128 -j RETURN", Family::V6),
            "oifname \"lo\" ip6 saddr ::6 return"
        );
    }

    #[test]
    fn base_chains_contain_their_hook() {
        assert_eq!(
            place("raw", "OUTPUT"),
            (
                "raw_output".to_owned(),
                Some("type filter hook output priority -300; policy accept;".to_owned())
            )
        );
        assert_eq!(place("nat", "MESH_IN"), ("MESH_IN".to_owned(), None));
    }

    #[test]
    fn only_our_table_is_read_from_the_ruleset() {
        let listed = "table ip nat {\n\tchain MESH_IN {\n\t\treturn\n\t}\n}\n\
            table ip strait {\n\tchain MESH_IN {\n\t\ttcp dport 1 return\n\t}\n\n\tchain MESH_OUT {\n\t}\n}\n\
            table ip other {\n\tchain MESH_IN {\n\t\tdrop\n\t}\n}\n";
        let expected = [("MESH_IN", vec!["tcp dport 1 return"]), ("MESH_OUT", vec![])];
        let expected = expected.map(|(chain, lines)| {
            (chain.to_owned(), lines.into_iter().map(str::to_owned).collect())
        });
        assert_eq!(standing(listed, Family::V4), Chains::from(expected));
        assert_eq!(standing(listed, Family::V6), Chains::new());
    }
}
