//! `strait network`: the networks, and the gateways by which each is entered.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::client::{Client, Connect};
use super::failure::{Exit, Failure, Outcome};
use super::output::{self, Cell, Column, Format, Listing, Look, Render, Show, items, text};

/// Networks and their gateways.
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// List networks
    List(ListArgs),
    /// Show one network and its gateways
    Get(GetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The network's name; '' for the one without a name
    name: String,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

/// How networks are listed.
pub(crate) const NETWORKS: Listing = Listing {
    kind: "network",
    name: |row| text(&row["network"]),
    columns: &[
        Column::new("NETWORK", |row, _| text(&row["network"]).into()),
        Column::new("GATEWAYS", |row, _| gateways(row)),
        Column::new("CLUSTERS", |row, _| text(&row["clusters"]).into()),
    ],
};

const GATEWAYS: Listing = Listing {
    kind: "gateway",
    name: socket,
    columns: &[
        Column::new("GATEWAY", |row, _| socket(row).into()),
        Column::new("HOSTNAME", |row, _| text(&row["hostname"]).into()),
        Column::new("TTL", |row, _| match row["ttlSeconds"].as_u64() {
            Some(ttl) => format!("{ttl}s").into(),
            None => "<none>".into(),
        }),
        Column::new("CLUSTER", |row, _| text(&row["cluster"]).into()),
        Column::new("SOURCE", |row, _| text(&row["source"]).into()),
        Column::wide("HBONE PORT", |row, _| text(&row["hbonePort"]).into()),
    ],
};

/// Runs `strait network`.
pub(crate) async fn run(command: &NetworkCommand) -> Outcome {
    let look = Look::of_stdout();
    match command {
        NetworkCommand::List(ListArgs { connect, show }) => {
            let answer = Client::new(connect)?.get("/debug/networks", &[]).await?;
            output::print(&NETWORKS.render(&answer.raw, &answer.value, show, &look))?;
        }
        NetworkCommand::Get(GetArgs { name, connect, show }) => {
            let answer = Client::new(connect)?.get("/debug/networks", &[]).await?;
            let row = items(&answer.value)
                .iter()
                .find(|row| row["network"] == name.as_str())
                .ok_or_else(|| {
                    Failure::failed(format!("there is no network {name:?}"))
                        .next("strait network list")
                })?;
            output::print(&get(row, show, &look))?;
        }
    }
    Ok(Exit::Fine)
}

pub(super) fn get(row: &Value, show: &Show, look: &Look) -> String {
    if !matches!(show.output, Format::Table | Format::Wide) {
        return one(&NETWORKS, row, show, look);
    }
    let head = vec![
        ("Network", text(&row["network"]).into()),
        ("Clusters", text(&row["clusters"]).into()),
    ];
    let gateways = items(&row["gateways"]);
    let mut out = output::describe(head, look);
    let pending = items(&row["pending"]);
    if gateways.is_empty() {
        out += "\nNo gateway: endpoints of this network are withheld from all others.\n";
        out += if pending.is_empty() { "help: strait help STR0401\n" } else { "" };
    } else {
        out.push('\n');
        let wide = show.output == Format::Wide;
        out += &GATEWAYS.table(gateways, wide).render(!show.no_headers, look);
    }
    for gateway in pending {
        let (source, reason) = (text(&gateway["source"]), text(&gateway["reason"]));
        let cluster = gateway["cluster"].as_str().filter(|cluster| !cluster.is_empty());
        let of = cluster.map_or_else(String::new, |cluster| format!(" of cluster {cluster}"));
        out += &format!("\nNot yet: {source}{of}: {reason}\nhelp: strait help STR0402\n");
    }
    out
}

/// One object in a format that is not for people.
pub(super) fn one(listing: &Listing, row: &Value, show: &Show, look: &Look) -> String {
    match show.output {
        Format::Json => format!("{row:#}\n"),
        Format::Yaml => output::yaml(row),
        _ => listing.render("", &Value::Array(vec![row.clone()]), show, look),
    }
}

fn gateways(row: &Value) -> Cell {
    let sockets: Vec<String> = items(&row["gateways"]).iter().map(socket).collect();
    if sockets.is_empty() { Cell::doubtful("<none>") } else { sockets.join(", ").into() }
}

fn socket(gateway: &Value) -> String {
    let (address, port) = (text(&gateway["address"]), text(&gateway["port"]));
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
