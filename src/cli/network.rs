//! `strait network`: the networks, and the gateways by which each is entered.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::failure::{Exit, Outcome};
use super::list::{Ask, Kind};
use super::network_join::JoinArgs;
use super::output::{self, Cell, Column, Format, Listing, Look, Render, Show, items, text};

/// Networks and their gateways.
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// List networks
    List(Ask),
    /// Show one network and its gateways
    Get(GetArgs),
    /// Say which network a cluster is in, and which Service leads into it
    Join(JoinArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The network's name; '' for the one without a name
    name: String,
    #[command(flatten)]
    ask: Ask,
}

/// Networks, as the admin API lists them.
pub(crate) const NETWORKS: Kind = Kind {
    path: "/debug/networks",
    does: "is known",
    next: "strait network list",
    find: |rows, name| Ok(rows.iter().find(|row| row["network"] == name)),
    describe,
    listing: Listing {
        kind: "network",
        name: |row| text(&row["network"]),
        columns: &[
            Column::new("NETWORK", |row, _| text(&row["network"]).into()),
            Column::new("GATEWAYS", |row, _| gateways(row)),
            Column::new("CLUSTERS", |row, _| text(&row["clusters"]).into()),
        ],
    },
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
    match command {
        NetworkCommand::List(ask) => ask.list(NETWORKS.path, &NETWORKS.listing).await,
        NetworkCommand::Get(GetArgs { name, ask }) => {
            ask.get(&NETWORKS, name).await.map(|_| Exit::Fine)
        }
        NetworkCommand::Join(args) => Box::pin(super::network_join::run(args)).await,
    }
}

fn describe(row: &Value, show: &Show, look: &Look) -> String {
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

fn gateways(row: &Value) -> Cell {
    let sockets: Vec<String> = items(&row["gateways"]).iter().map(socket).collect();
    if sockets.is_empty() { Cell::doubtful("<none>") } else { sockets.join(", ").into() }
}

fn socket(gateway: &Value) -> String {
    let (address, port) = (text(&gateway["address"]), text(&gateway["port"]));
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
