//! `strait network`: the networks and their gateways.

use clap::{Args, Subcommand};

use super::failure::{CommandResult, Exit};
use super::list::{GetOne, ListArgs, ListedKind};
use super::network_join::JoinArgs;
use super::output::{self, Cell, Column, Format, OutputStyle, Render, Show, TableLayout, text};
use strait_admin_api::{Network, NetworkGateway};

/// Show networks and their gateways.
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// List networks
    List(ListArgs),
    /// Show one network and its gateways
    Get(NetworkGetArgs),
    /// Assign a cluster to a network, and mark the Service that is its gateway
    Join(JoinArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NetworkGetArgs {
    /// Name of the network; '' for the network without a name
    name: String,
    #[command(flatten)]
    one: GetOne,
}

/// Networks, as the admin API lists them.
pub(crate) const NETWORKS: ListedKind<Network> = ListedKind {
    path: "/debug/networks",
    does: "is known",
    next: "strait network list",
    // The network without a name is also found by its displayed name `<none>`, which no label can
    // have as its value.
    find: |rows, name| {
        let name = if name == "<none>" { "" } else { name };
        Ok(rows.iter().find(|row| row.network == name))
    },
    describe,
    listing: TableLayout {
        kind: "network",
        name: |row| text(&row.network),
        columns: &[
            Column::new("NETWORK", |row, _| text(&row.network).into()),
            Column::new("GATEWAYS", |row, _| gateways(row)),
            Column::new("CLUSTERS", |row, _| text(&row.clusters).into()),
        ],
    },
};

const GATEWAYS: TableLayout<NetworkGateway> = TableLayout {
    kind: "gateway",
    name: socket,
    columns: &[
        Column::new("GATEWAY", |row, _| socket(row).into()),
        Column::new("HOSTNAME", |row, _| text(&row.hostname).into()),
        Column::new("TTL", |row, _| match row.ttl_seconds {
            Some(ttl) => format!("{ttl}s").into(),
            None => "<none>".into(),
        }),
        Column::new("CLUSTER", |row, _| text(&row.cluster).into()),
        Column::new("STATE", |row, _| match row.dead {
            true => Cell::bad("dead"),
            false => "in use".into(),
        }),
        Column::new("SOURCE", |row, _| text(&row.source).into()),
        Column::wide("HBONE PORT", |row, _| text(&row.hbone_port).into()),
    ],
};

/// Runs `strait network`.
pub(crate) async fn run(command: &NetworkCommand) -> CommandResult {
    match command {
        NetworkCommand::List(list) => list.run(NETWORKS.path, &NETWORKS.listing).await,
        NetworkCommand::Get(NetworkGetArgs { name, one }) => {
            one.run(&NETWORKS, name, can_be_entered).await.map(|_| Exit::Fine)
        }
        NetworkCommand::Join(args) => Box::pin(super::network_join::run(args)).await,
    }
}

fn describe(row: &Network, show: &Show, look: &OutputStyle) -> String {
    let head =
        vec![("Network", text(&row.network).into()), ("Clusters", text(&row.clusters).into())];
    let gateways = &row.gateways;
    let mut out = output::describe(head, look);
    let pending = &row.pending;
    if gateways.is_empty() {
        out += "\nNo gateway: endpoints of this network are withheld from proxies in other networks.\n";
        out += if pending.is_empty() { "help: strait help STR0401\n" } else { "" };
    } else {
        out.push('\n');
        let wide = show.output == Format::Wide;
        out += &GATEWAYS.table(gateways, wide).render(!show.no_headers, look);
        if gateways.iter().any(|gateway| gateway.dead) {
            out += "\nA dead gateway does not respond; proxies receive the other gateways, or all if none responds.\nhelp: strait help STR0409\n";
        }
    }
    for gateway in pending {
        let (source, reason) = (text(&gateway.source), text(&gateway.reason));
        let of = match gateway.cluster.as_str() {
            "" => String::new(),
            cluster => format!(" of cluster {cluster}"),
        };
        let code = gateway.code.as_deref().unwrap_or("STR0402");
        out += &format!(
            "\nNot used: {source}{of}: {reason}\nhelp: strait help {}\n",
            output::clean(code)
        );
    }
    out
}

fn gateways(row: &Network) -> Cell {
    let all = &row.gateways;
    let one = |gateway: &NetworkGateway| match gateway.dead {
        true => format!("{} (dead)", socket(gateway)),
        false => socket(gateway),
    };
    let sockets = all.iter().map(one).collect::<Vec<_>>().join(", ");
    match all.iter().filter(|gateway| gateway.dead).count() {
        _ if all.is_empty() => Cell::doubtful("<none>"),
        0 => sockets.into(),
        dead if dead < all.len() => Cell::doubtful(sockets),
        _ => Cell::bad(sockets),
    }
}

/// Returns whether other networks can reach this network.
fn can_be_entered(row: &Network) -> bool {
    row.gateways.iter().any(|gateway| !gateway.dead)
}

/// Returns `address:port` of a gateway.
pub(super) fn socket(gateway: &NetworkGateway) -> String {
    let (address, port) = (text(&gateway.address), text(&gateway.port));
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// Returns the cluster and the source of each gateway of a network, usable or not.
pub(super) fn gateway_sources(network: &Network) -> impl Iterator<Item = (&str, &str)> {
    let usable = network.gateways.iter().map(|one| (&*one.cluster, &*one.source));
    usable.chain(network.pending.iter().map(|one| (&*one.cluster, &*one.source)))
}
