//! `strait service`: services merged over all clusters.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};

use super::client::AdminResponse;
use super::explain_import;
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::{LastShown, ListArgs, QueryArgs, watch_pause};
use super::output::{self, Cell, Column, OutputStyle, Show, TableLayout, source_names, text};
use strait_admin_api::{
    EndpointHealth, Service, ServiceEndpoint, ServiceImport, ServicePort, ServiceSharing,
};

/// Show services, merged over all clusters.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// List services
    List(ListArgs),
    /// Show one service by cluster and network
    Get(ServiceGetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServiceGetArgs {
    /// NAME.NAMESPACE, or the full host name
    name: String,
    /// List the endpoints of the service instead
    #[arg(long)]
    endpoints: bool,
    /// Keep running and show changes
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    common: QueryArgs,
}

pub(super) const SERVICES: TableLayout<Service> = TableLayout {
    kind: "service",
    name: |row| text(&row.hostname),
    columns: &[
        Column::new("HOSTNAME", |row, _| text(&row.hostname).into()),
        Column::new("PORTS", |row, _| ports(row).into()),
        Column::new("CLUSTERS", |row, _| text(&row.clusters).into()),
        Column::new("CONFLICTS", |row, _| match row.conflicts.as_slice() {
            [] => "<none>".into(),
            conflicts => Cell::doubtful(
                conflicts.iter().map(|one| text(&one.field)).collect::<Vec<_>>().join(","),
            ),
        }),
        Column::wide("RESOLUTION", |row, _| text(&row.resolution).into()),
        Column::wide("VIPS", |row, _| by_cluster(&row.cluster_vips).into()),
        Column::wide("EXTERNAL", |row, _| by_cluster(&row.external_addresses).into()),
        Column::wide("SERVICE ACCOUNTS", |row, _| text(&row.service_accounts).into()),
    ],
};

pub(super) const ENDPOINTS: TableLayout<ServiceEndpoint> = TableLayout {
    kind: "endpoint",
    name: |row| format!("{}:{}", text(&row.address), text(&row.port)),
    columns: &[
        Column::new("ADDRESS", |row, _| text(&row.address).into()),
        Column::new("PORT", |row, _| text(&row.port).into()),
        Column::new("NAME", |row, _| text(&row.port_name).into()),
        Column::new("CLUSTER", |row, _| text(&row.cluster).into()),
        Column::new("NETWORK", |row, _| text(&row.network).into()),
        Column::new("HEALTH", |row, _| match &row.health {
            _ if row.withdrawn.is_some() => Cell::doubtful("withdrawn"),
            EndpointHealth::Healthy => Cell::good(row.health.as_str()),
            health => Cell::doubtful(text(health.as_str())),
        }),
        Column::new("MTLS", |row, _| text(&row.tls_mode).into()),
        Column::new("WORKLOAD", |row, _| text(&row.workload).into()),
        Column::wide("LOCALITY", |row, _| text(&row.locality).into()),
        Column::wide("WEIGHT", |row, _| text(&row.weight).into()),
        Column::wide("SERVICE ACCOUNT", |row, _| text(&row.service_account).into()),
        Column::wide("PROVIDER", |row, _| text(&row.provider).into()),
    ],
};

/// Runs `strait service`.
pub(crate) async fn run(command: &ServiceCommand) -> CommandResult {
    match command {
        ServiceCommand::List(list) => list.run("/debug/services", &SERVICES).await,
        ServiceCommand::Get(get) => get.run().await,
    }
}

impl ServiceGetArgs {
    /// Prints the service, and with `--watch` its changes.
    async fn run(&self) -> CommandResult {
        let mut shown = LastShown::default();
        loop {
            shown.text(&self.printed().await?)?;
            if !self.watch {
                return Ok(Exit::Fine);
            }
            watch_pause().await;
        }
    }

    async fn printed(&self) -> Result<String, CommandFailure> {
        let Self { name, endpoints, common, .. } = self;
        let look = OutputStyle::of_stdout();
        let query = [("hostname", name.as_str())];
        let found = common.request("/debug/endpoints", &query).await;
        let found = found.map_err(|failure| failure.or_next("strait service list"))?;
        if *endpoints {
            return ENDPOINTS.render(&found.raw, &found.value, &common.show, &look);
        }
        let service = common.request("/debug/services", &query).await?;
        get(&service, &found.read::<Vec<_>>()?, &common.show, &look)
    }
}

pub(super) fn get(
    service: &AdminResponse,
    endpoints: &[ServiceEndpoint],
    show: &Show,
    look: &OutputStyle,
) -> Result<String, CommandFailure> {
    if !show.output.is_for_people() {
        return SERVICES.render(&service.raw, &service.value, show, look);
    }
    let services: Vec<Service> = service.read()?;
    let Some(row) = services.first() else {
        return Err(
            CommandFailure::failed("the service no longer exists").next("strait service list")
        );
    };
    let mut fields: Vec<(&str, Cell)> = vec![
        ("Hostname", text(&row.hostname).into()),
        ("Ports", ports(row).into()),
        ("Resolution", text(&row.resolution).into()),
        ("Service accounts", text(&row.service_accounts).into()),
    ];
    for conflict in &row.conflicts {
        let field = text(&conflict.field);
        let (winner, losers) = (source_names([&conflict.winner]), source_names(&conflict.losers));
        fields.push(("Conflict", Cell::doubtful(format!("{field}: {winner} wins over {losers}"))));
    }
    // Clusters with the service but without endpoints get a line too.
    let mut groups: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for endpoint in endpoints {
        let key = (text(&endpoint.cluster), text(&endpoint.network));
        let (ready, total) = groups.entry(key).or_default();
        *total += 1;
        let is_ready = endpoint.health == EndpointHealth::Healthy && endpoint.withdrawn.is_none();
        *ready += usize::from(is_ready);
    }
    let withdrawn = endpoints.iter().filter_map(|endpoint| {
        Some(format!("{}: {}", text(&endpoint.cluster), text(endpoint.withdrawn.as_ref()?)))
    });
    let withdrawn: BTreeSet<_> = withdrawn.collect();
    fields.extend(withdrawn.into_iter().map(|why| ("Withdrawn", Cell::doubtful(why))));
    for cluster in &row.clusters {
        let cluster = text(cluster);
        if !groups.keys().any(|(known, _)| *known == cluster) {
            groups.insert((cluster, "<none>".into()), (0, 0));
        }
    }
    let rows = groups
        .into_iter()
        .map(|((cluster, network), (ready, total))| {
            let vips = text(&row.cluster_vips.get(&cluster).cloned()).into();
            let count = format!("{ready}/{total}");
            let ready = if ready == total { Cell::good(count) } else { Cell::doubtful(count) };
            vec![cluster.into(), network.into(), ready, vips]
        })
        .collect();
    let headers: &[&str] =
        if show.no_headers { &[] } else { &["CLUSTER", "NETWORK", "READY", "VIPS"] };
    let mut out = output::describe(fields, look) + "\n" + &output::table(headers, rows, look);
    let sharing: Vec<_> = row.sharing.iter().map(sharing).collect();
    if !sharing.is_empty() {
        let headers: &[&str] =
            if show.no_headers { &[] } else { &["CLUSTER", "SHARING", "DECIDED BY"] };
        out += &format!("\n{}", output::table(headers, sharing, look));
    }
    let exports = explain_import::exports(&row.exports);
    if !exports.is_empty() {
        let headers: &[&str] = if show.no_headers { &[] } else { &explain_import::EXPORTS };
        out += &format!("\n{}", output::table(headers, exports, look));
    }
    let imports: Vec<_> = row.imports.iter().map(import).collect();
    if !imports.is_empty() {
        let headers: &[&str] = if show.no_headers {
            &[]
        } else {
            &["CLUSTER", "IMPORT", "ADDRESSES", "SLICES", "WRITER", "REASON"]
        };
        out += &format!("\n{}", output::table(headers, imports, look));
    }
    Ok(out)
}

/// Returns the row that states whether a cluster shares the service.
fn sharing(sharing: &ServiceSharing) -> Vec<Cell> {
    [&sharing.cluster, &sharing.state, &sharing.rule].map(|field| text(field).into()).into()
}

/// Returns the row of an import.
fn import(import: &ServiceImport) -> Vec<Cell> {
    let state = match (import.present, import.ready) {
        (true, true) => Cell::good("ready"),
        (true, false) => Cell::doubtful("not ready"),
        (false, _) => Cell::doubtful("missing"),
    };
    let writer = match (import.present, import.ours) {
        (false, _) => "<none>",
        (true, true) => "strait",
        (true, false) => "another",
    };
    let code = import.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
    let reason = match &import.reason {
        None => "<none>".to_owned(),
        Some(reason) => text(reason) + &code,
    };
    let ips = text(&import.ips);
    let cluster = text(&import.cluster).into();
    let slices = text(&import.slices).into();
    vec![cluster, state, ips.into(), slices, writer.into(), reason.into()]
}

fn ports(row: &Service) -> String {
    let port = |port: &ServicePort| {
        let (name, number, protocol) = (text(&port.name), port.port, text(&port.protocol));
        format!("{name}:{number}/{protocol}")
    };
    let ports: Vec<String> = row.ports.iter().map(port).collect();
    if ports.is_empty() { "<none>".into() } else { ports.join(",") }
}

fn by_cluster(map: &BTreeMap<String, Vec<String>>) -> String {
    if map.is_empty() {
        return "<none>".into();
    }
    let one = |(cluster, value): (&String, &Vec<String>)| {
        format!("{}={}", output::clean(cluster), text(value))
    };
    map.iter().map(one).collect::<Vec<_>>().join(" ")
}
