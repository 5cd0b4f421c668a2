//! `strait service`: services merged over all clusters.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::client::AdminResponse;
use super::explain_import;
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::{LastShown, ListArgs, QueryArgs, watch_pause};
use super::output::{self, Cell, Column, OutputStyle, Show, TableLayout, items, speakers, text};

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
    ask: QueryArgs,
}

pub(super) const SERVICES: TableLayout = TableLayout {
    kind: "service",
    name: |row| text(&row["hostname"]),
    columns: &[
        Column::new("HOSTNAME", |row, _| text(&row["hostname"]).into()),
        Column::new("PORTS", |row, _| ports(row).into()),
        Column::new("CLUSTERS", |row, _| text(&row["clusters"]).into()),
        Column::new("CONFLICTS", |row, _| match items(&row["conflicts"]) {
            [] => "<none>".into(),
            conflicts => Cell::doubtful(
                conflicts.iter().map(|one| text(&one["field"])).collect::<Vec<_>>().join(","),
            ),
        }),
        Column::wide("RESOLUTION", |row, _| text(&row["resolution"]).into()),
        Column::wide("VIPS", |row, _| by_cluster(&row["clusterVIPs"]).into()),
        Column::wide("EXTERNAL", |row, _| by_cluster(&row["externalAddresses"]).into()),
        Column::wide("SERVICE ACCOUNTS", |row, _| text(&row["serviceAccounts"]).into()),
    ],
};

pub(super) const ENDPOINTS: TableLayout = TableLayout {
    kind: "endpoint",
    name: |row| format!("{}:{}", text(&row["address"]), text(&row["port"])),
    columns: &[
        Column::new("ADDRESS", |row, _| text(&row["address"]).into()),
        Column::new("PORT", |row, _| text(&row["port"]).into()),
        Column::new("NAME", |row, _| text(&row["portName"]).into()),
        Column::new("CLUSTER", |row, _| text(&row["cluster"]).into()),
        Column::new("NETWORK", |row, _| text(&row["network"]).into()),
        Column::new("HEALTH", |row, _| match text(&row["health"]) {
            health if health == "healthy" => Cell::good(health),
            health => Cell::doubtful(health),
        }),
        Column::new("MTLS", |row, _| text(&row["tlsMode"]).into()),
        Column::new("WORKLOAD", |row, _| text(&row["workload"]).into()),
        Column::wide("LOCALITY", |row, _| text(&row["locality"]).into()),
        Column::wide("WEIGHT", |row, _| text(&row["weight"]).into()),
        Column::wide("SERVICE ACCOUNT", |row, _| text(&row["serviceAccount"]).into()),
        Column::wide("PROVIDER", |row, _| text(&row["provider"]).into()),
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
        let Self { name, endpoints, ask, .. } = self;
        let look = OutputStyle::of_stdout();
        let query = [("hostname", name.as_str())];
        let found = ask.ask("/debug/endpoints", &query).await;
        let found = found.map_err(|failure| failure.or_next("strait service list"))?;
        if *endpoints {
            return Ok(ENDPOINTS.render(&found.raw, &found.value, &ask.show, &look));
        }
        let service = ask.ask("/debug/services", &query).await?;
        get(&service, &found.value, &ask.show, &look)
    }
}

pub(super) fn get(
    service: &AdminResponse,
    endpoints: &Value,
    show: &Show,
    look: &OutputStyle,
) -> Result<String, CommandFailure> {
    if !show.output.is_for_people() {
        return Ok(SERVICES.render(&service.raw, &service.value, show, look));
    }
    let Some(row) = items(&service.value).first() else {
        return Err(
            CommandFailure::failed("the service no longer exists").next("strait service list")
        );
    };
    let mut fields: Vec<(&str, Cell)> = vec![
        ("Hostname", text(&row["hostname"]).into()),
        ("Ports", ports(row).into()),
        ("Resolution", text(&row["resolution"]).into()),
        ("Service accounts", text(&row["serviceAccounts"]).into()),
    ];
    for conflict in items(&row["conflicts"]) {
        let field = text(&conflict["field"]);
        let [winner, losers] = ["winner", "losers"].map(|part| speakers(&conflict[part]));
        fields.push(("Conflict", Cell::doubtful(format!("{field}: {winner} wins over {losers}"))));
    }
    // Clusters with the service but without endpoints get a line too.
    let mut groups: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for endpoint in items(endpoints) {
        let key = (text(&endpoint["cluster"]), text(&endpoint["network"]));
        let (ready, total) = groups.entry(key).or_default();
        *total += 1;
        *ready += usize::from(endpoint["health"] == "healthy");
    }
    for cluster in items(&row["clusters"]) {
        let cluster = text(cluster);
        if !groups.keys().any(|(known, _)| *known == cluster) {
            groups.insert((cluster, "<none>".into()), (0, 0));
        }
    }
    let rows = groups
        .into_iter()
        .map(|((cluster, network), (ready, total))| {
            let vips = text(&row["clusterVIPs"][&cluster]).into();
            let count = format!("{ready}/{total}");
            let ready = if ready == total { Cell::good(count) } else { Cell::doubtful(count) };
            vec![cluster.into(), network.into(), ready, vips]
        })
        .collect();
    let headers: &[&str] =
        if show.no_headers { &[] } else { &["CLUSTER", "NETWORK", "READY", "VIPS"] };
    let mut out = output::describe(fields, look) + "\n" + &output::table(headers, rows, look);
    let sharing: Vec<_> = items(&row["sharing"]).iter().map(sharing).collect();
    if !sharing.is_empty() {
        let headers: &[&str] =
            if show.no_headers { &[] } else { &["CLUSTER", "SHARING", "DECIDED BY"] };
        out += &format!("\n{}", output::table(headers, sharing, look));
    }
    let exports = explain_import::exports(&row["exports"]);
    if !exports.is_empty() {
        let headers: &[&str] = if show.no_headers { &[] } else { &explain_import::EXPORTS };
        out += &format!("\n{}", output::table(headers, exports, look));
    }
    let imports: Vec<_> = items(&row["imports"]).iter().map(import).collect();
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
fn sharing(sharing: &Value) -> Vec<Cell> {
    ["cluster", "state", "rule"].map(|field| text(&sharing[field]).into()).into()
}

/// Returns the row of an import.
fn import(import: &Value) -> Vec<Cell> {
    let state = match (import["present"] == true, import["ready"] == true) {
        (true, true) => Cell::good("ready"),
        (true, false) => Cell::doubtful("not ready"),
        (false, _) => Cell::doubtful("missing"),
    };
    let writer = match (import["present"] == true, import["ours"] == true) {
        (false, _) => "<none>",
        (true, true) => "strait",
        (true, false) => "another",
    };
    let code = import["code"].as_str().map(|code| format!(" ({code})")).unwrap_or_default();
    let reason = match &import["reason"] {
        Value::Null => "<none>".to_owned(),
        reason => text(reason) + &code,
    };
    let ips = text(&import["ips"]);
    let cluster = text(&import["cluster"]).into();
    let slices = text(&import["slices"]).into();
    vec![cluster, state, ips.into(), slices, writer.into(), reason.into()]
}

fn ports(row: &Value) -> String {
    let port = |port: &Value| {
        let [name, number, protocol] = ["name", "port", "protocol"].map(|part| text(&port[part]));
        format!("{name}:{number}/{protocol}")
    };
    let ports: Vec<String> = items(&row["ports"]).iter().map(port).collect();
    if ports.is_empty() { "<none>".into() } else { ports.join(",") }
}

fn by_cluster(map: &Value) -> String {
    let Some(map) = map.as_object().filter(|map| !map.is_empty()) else { return "<none>".into() };
    let one =
        |(cluster, value): (&String, &Value)| format!("{}={}", output::clean(cluster), text(value));
    map.iter().map(one).collect::<Vec<_>>().join(" ")
}
