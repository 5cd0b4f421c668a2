//! `strait proxy`: connected proxies, the configuration that each was sent, and its responses.
//!
//! Every command that accepts a proxy's name looks it up with [`find`]. A name that matches several
//! proxies is an error, because the result for a pod of the same name in another cluster would look
//! plausible.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::bootstrap::{self, BootstrapArgs};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::inject::{self, InjectArgs};
use super::list::{GetOne, ListArgs, ListedKind, QueryArgs};
use super::output::{
    self, Cell, Column, Format, OutputStyle, Sent, Show, TableLayout, age, clean, items, text,
};
use strait_admin_api::{Proxy, TypeDelivery};
use strait_model::{NameMatch, ProxyName};

/// Show connected proxies and their configuration; print a bootstrap; inject sidecars.
#[derive(Debug, Subcommand)]
pub(crate) enum ProxyCommand {
    /// List connected proxies and whether each has acknowledged its configuration
    List(ListArgs),
    /// Show one proxy: last sent, accepted and rejected, by type
    Get(ProxyGetArgs),
    /// Show the configuration that one proxy was last sent
    Config(ConfigArgs),
    /// Print an Envoy bootstrap
    Bootstrap(Box<BootstrapArgs>),
    /// Inject sidecars into the pods of manifests and print the result
    Inject(Box<InjectArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct ProxyGetArgs {
    /// NAME.NAMESPACE[@CLUSTER], a unique prefix of it, deploy/NAME.NAMESPACE, a node ID, or a key from
    /// 'proxy list -o json'
    proxy: String,
    #[command(flatten)]
    one: GetOne,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// NAME.NAMESPACE[@CLUSTER], a unique prefix of it, deploy/NAME.NAMESPACE, a node ID, or a key from
    /// 'proxy list -o json'
    proxy: String,
    /// Only this resource type: cds, eds, lds, rds, ...
    #[arg(value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    common: QueryArgs,
}

/// The connected proxies, as the admin API lists them.
pub(super) const PROXIES: ListedKind<Proxy> = ListedKind {
    path: "/debug/proxies",
    does: "is connected",
    next: "strait proxy list\n\
           a proxy whose connection was refused is not listed; its own log contains the reason",
    find,
    describe,
    listing: TableLayout {
        kind: "proxy",
        name,
        columns: &[
            Column::new("NAME", |row, _| name(row).into()),
            Column::new("CLUSTER", |row, _| text(&row.cluster).into()),
            Column::new("NETWORK", |row, _| text(&row.network).into()),
            Column::new("VERSION", |row, _| match is_of_agent(row) {
                true => "agent".into(),
                false => text(&row.version).into(),
            }),
            Column::new("CDS", |row, look| state(row.types.get("cds"), look)),
            Column::new("EDS", |row, look| state(row.types.get("eds"), look)),
            Column::new("LDS", |row, look| state(row.types.get("lds"), look)),
            Column::new("RDS", |row, look| state(row.types.get("rds"), look)),
            Column::new("SINCE", |row, look| age(&row.connected_at, look).into()),
            Column::wide("TYPE", |row, _| text(&row.kind).into()),
            Column::wide("PROTOCOL", |row, _| text(&row.protocol).into()),
            Column::wide("IDENTITY", |row, _| text(&row.identity).into()),
            Column::wide("VERIFIED", |row, _| text(&row.verified).into()),
            Column::wide("KEY", |row, _| text(&row.key).into()),
            Column::wide("REPLICA", |row, _| text(&row.replica).into()),
        ],
    },
};

/// Runs `strait proxy`.
pub(crate) async fn run(command: &ProxyCommand) -> CommandResult {
    match command {
        ProxyCommand::List(list) => return list.run(PROXIES.path, &PROXIES.listing).await,
        ProxyCommand::Get(ProxyGetArgs { proxy, one }) => {
            one.run(&PROXIES, proxy, is_in_sync).await?;
        }
        ProxyCommand::Config(ConfigArgs { proxy, kind, common }) => {
            let row = one(common, proxy).await?;
            let answer = common.request("/debug/config_dump", &[("proxy", &row.key)]).await;
            let answer = answer.map_err(|failure| failure.or_next(PROXIES.next))?;
            let (raw, value) = match kind {
                None => (answer.raw, answer.value),
                Some(kind) => {
                    let part = answer.value.get(kind).cloned().ok_or_else(|| {
                        let has = answer.value.as_object().into_iter().flat_map(|map| map.keys());
                        let has = has.map(String::as_str).collect::<Vec<_>>().join(", ");
                        CommandFailure::failed(format!(
                            "{proxy} was sent no {kind:?}; the types are {has}"
                        ))
                    })?;
                    (format!("{part:#}\n"), serde_json::json!({ kind: part }))
                }
            };
            output::print(&config(&raw, &value, &row, &common.show, &OutputStyle::of_stdout()))?;
        }
        ProxyCommand::Bootstrap(args) => bootstrap::run(args)?,
        ProxyCommand::Inject(args) => return inject::run(args),
    }
    Ok(Exit::Fine)
}

/// Returns the proxy that a command names.
///
/// # Errors
/// If no proxy is connected under this name, or several match it.
pub(super) async fn one(common: &QueryArgs, wanted: &str) -> Result<Proxy, CommandFailure> {
    let rows = common.request(PROXIES.path, &[]).await?.rows()?;
    Ok(Proxy::clone(PROXIES.named(&rows, wanted)?))
}

/// Returns whether the stream belongs to an agent, which only requests the table of names. The proxy
/// next to it has its own stream.
pub(super) fn is_of_agent(row: &Proxy) -> bool {
    !row.types.is_empty() && row.types.keys().all(|kind| kind == "nds")
}

fn describe(row: &Proxy, show: &Show, look: &OutputStyle) -> String {
    let verified = match row.verified {
        true => Cell::good("yes"),
        false => Cell::doubtful("no: its cluster has not reported the pod"),
    };
    let mut lines: Vec<(&str, Cell)> = vec![
        ("Name", name(row).into()),
        ("Node", text(&row.id).into()),
        ("Type", text(&row.kind).into()),
        ("Cluster", text(&row.cluster).into()),
        ("Network", text(&row.network).into()),
        ("Identity", text(&row.identity).into()),
    ];
    if let Some(replica) = &row.replica {
        lines.push(("Replica", text(replica).into()));
    }
    if let Some(by) = &row.known_by {
        lines.push(("Known by", format!("{}, until {}", clean(by), text(&row.known_until)).into()));
    }
    let connected = format!("{} ago, {}", age(&row.connected_at, look), text(&row.protocol));
    lines.extend([
        ("Verified", verified),
        ("Version", text(&row.version).into()),
        ("Connected", connected.into()),
    ]);
    let mut out = output::describe(lines, look);
    let rows = row
        .types
        .iter()
        .map(|(kind, entry)| {
            vec![
                clean(&kind.to_uppercase()).into(),
                state(Some(entry), look),
                text(&entry.sent).into(),
                age(&entry.last_sent, look).into(),
                text(&entry.acked).into(),
                age(&entry.last_acked, look).into(),
            ]
        })
        .collect();
    let headers: &[&str] =
        if show.no_headers { &[] } else { &["TYPE", "STATE", "SENT", "AGO", "ACCEPTED", "AGO"] };
    out.push('\n');
    out += &output::table(headers, rows, look);
    for (kind, entry) in &row.types {
        if let Some(nack) = &entry.nack {
            out += &format!(
                "\n{} rejected: {}\n  resources: {}\n  it keeps the last accepted version {}\n",
                clean(&kind.to_uppercase()),
                text(&nack.error),
                match nack.resources.as_slice() {
                    [] => "the proxy named none, so any resource of the response may be the cause"
                        .to_owned(),
                    _ => text(&nack.resources),
                },
                text(&entry.acked),
            );
        }
    }
    out
}

/// Renders the names of sent resources by type; in JSON and YAML, the whole resources.
pub(super) fn config(
    raw: &str,
    value: &Value,
    of: &Proxy,
    show: &Show,
    look: &OutputStyle,
) -> String {
    match show.output {
        Format::Json => return raw.to_owned(),
        Format::Yaml => return output::yaml(value),
        _ => {}
    }
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (kind, resources) in value.as_object().into_iter().flatten() {
        let names: Vec<String> = match resources {
            Value::Object(map) => map.keys().map(|name| clean(name)).collect(),
            other => items(other).iter().map(resource_name).collect(),
        };
        rows.extend(names.into_iter().map(|name| vec![clean(kind).into(), name.into()]));
    }
    if show.output == Format::Name {
        let line = |row: &Vec<Cell>| row.iter().map(|cell| cell.paint(look)).collect::<Vec<_>>();
        return rows.iter().map(|row| line(row).join("/") + "\n").collect();
    }
    if show.no_headers {
        return output::table(&[], rows, look);
    }
    format!("{}\n\n", display_name(of)) + &output::table(&["TYPE", "NAME"], rows, look)
}

/// Returns the name of a resource. Endpoint assignments use a different field for it.
fn resource_name(resource: &Value) -> String {
    let name = ["name", "clusterName", "cluster_name"].iter().find_map(|key| resource.get(key));
    text(name.unwrap_or(&Value::Null))
}

/// Returns `name.namespace`, the third part of the node ID.
pub(super) fn name(row: &Proxy) -> String {
    name_of_id(&row.id)
}

/// Returns `name.namespace` from a node ID.
pub(super) fn name_of_id(id: &str) -> String {
    clean(id.split('~').nth(2).unwrap_or(id))
}

/// Returns the name that distinguishes a proxy from others of the same name: `client.shop in
/// cluster east, network n1`.
pub(super) fn display_name(row: &Proxy) -> String {
    let (cluster, network) = (text(&row.cluster), text(&row.network));
    format!("{} in cluster {cluster}, network {network}", name(row))
}

/// Orders the streams of one proxy: the highest one has its configuration.
fn rank(row: &Proxy) -> (bool, &str) {
    let is_of_configuration = ["cds", "lds"].iter().any(|kind| row.types.contains_key(*kind));
    (is_of_configuration, &row.connected_at)
}

/// Finds the proxy that `wanted` names and returns its newest stream with a configuration. Several
/// streams of one node ID in one cluster belong to one proxy: it has reconnected, or its agent has
/// its own stream. Returns `None` if no proxy matches.
///
/// # Errors
/// If the name matches several proxies.
pub(super) fn find<'a>(
    rows: &'a [Sent<Proxy>],
    wanted: &str,
) -> Result<Option<&'a Sent<Proxy>>, CommandFailure> {
    if let Some(stream) = rows.iter().find(|row| row.key == wanted) {
        return Ok(Some(stream));
    }
    let parsed = ProxyName::parse(wanted);
    let matching = |row: &Sent<Proxy>| match row.id == wanted {
        true => Some(NameMatch::Unique),
        false => parsed.matches(&name(row), &row.cluster),
    };
    let best = rows.iter().filter_map(matching).min();
    let mut proxies: BTreeMap<(String, &str, &str), &Sent<Proxy>> = BTreeMap::new();
    for row in rows.iter().filter(|row| best.is_some() && matching(row) == best) {
        let key = (name(row), row.cluster.as_str(), row.id.as_str());
        let newest = proxies.entry(key).or_insert(row);
        if rank(newest) <= rank(row) {
            *newest = row;
        }
    }
    let proxies: Vec<&Sent<Proxy>> = proxies.into_values().collect();
    match proxies[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        // The name of a Deployment matches all of its pods.
        [first, ..] if best == Some(NameMatch::Deployment) => Ok(Some(first)),
        _ => Err(ambiguous(wanted, &proxies)),
    }
}

/// Returns the error for a name that matches several proxies, with a unique name for each.
fn ambiguous(wanted: &str, proxies: &[&Sent<Proxy>]) -> CommandFailure {
    let in_its_cluster = |row: &Proxy| {
        let is_same = |one: &&&Sent<Proxy>| one.cluster == row.cluster && name(one) == name(row);
        proxies.iter().filter(is_same).count() == 1
    };
    let line = |row: &&Sent<Proxy>| {
        let by = match in_its_cluster(row) {
            true => format!("{}@{}", name(row), text(&row.cluster)),
            false => text(&row.key),
        };
        vec![
            "  ".into(),
            by.into(),
            format!("network {}", text(&row.network)).into(),
            text(&row.id).into(),
        ]
    };
    let plain = OutputStyle { colour: false, ..OutputStyle::of_stdout() };
    let list = output::table(&[], proxies.iter().map(line).collect(), &plain);
    CommandFailure::usage(format!(
        "{} matches {} proxies; select one of them:\n{}",
        clean(wanted),
        proxies.len(),
        list.trim_end()
    ))
}

/// Returns whether the proxy has acknowledged everything that it was sent.
fn is_in_sync(row: &Proxy) -> bool {
    row.types.values().all(|entry| entry.nack.is_none() && entry.sent == entry.acked)
}

/// Returns the response of a proxy to the last resources of one type.
pub(super) fn state(entry: Option<&TypeDelivery>, look: &OutputStyle) -> Cell {
    let Some(entry) = entry else { return "<none>".into() };
    if entry.nack.is_some() {
        return Cell::bad(format!("NACK {}", age(&entry.last_sent, look)));
    }
    match (&entry.sent, &entry.acked) {
        (None, _) => "<none>".into(),
        (sent, acked) if sent == acked => Cell::good("ok"),
        _ => Cell::doubtful(format!("waits {}", age(&entry.last_sent, look))),
    }
}
