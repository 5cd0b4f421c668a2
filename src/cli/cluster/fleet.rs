//! `strait cluster add --from FILE`: adds many clusters at once and prints a result row for each.
//!
//! All clusters are checked before confirmation is requested and anything is created. A cluster
//! that cannot be added does not affect the others. The same file can be used again: existing
//! members stay unchanged.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::add::{AddArgs, Joining, discovery, is_member, prepare};
use super::{istio_service, webhook};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::{self, Cell, OutputStyle};
use strait_base::codes;

/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One cluster of the file: values that differ from the command line.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FleetEntry {
    context: String,
    name: Option<String>,
    network: Option<String>,
    trust_domain: Option<String>,
    api_server: Option<String>,
    tls_server_name: Option<String>,
    discovery: Option<String>,
    inject_at: Option<String>,
    istio_service: Option<String>,
}

/// Result for one cluster.
enum FleetResult {
    /// The cluster can be added.
    Ready,
    /// The cluster is already a member.
    Member,
    /// The cluster was added. The exit code states whether the control plane has synced it.
    Added(Exit),
    Failed(CommandFailure),
}

struct FleetRow<'a> {
    args: AddArgs,
    joining: Option<Joining<'a>>,
    result: FleetResult,
}

/// Runs `strait cluster add --from`.
pub(crate) async fn run(args: &AddArgs) -> CommandResult {
    args.check()?;
    let file = args.from.as_deref().unwrap_or(Path::new("-"));
    let all = read(file, args)?;
    let hub = args.change.hub.open().await?;
    let mut rows = Vec::new();
    let mut plan = String::new();
    for args in all {
        let (joining, result) = match prepare(&args, &hub).await {
            Ok(joining) => {
                plan += &format!("{}\n", joining.plan);
                (Some(joining), FleetResult::Ready)
            }
            Err(failure) if failure.is(&codes::ID_TAKEN) && is_member(&args, &hub).await? => {
                (None, FleetResult::Member)
            }
            Err(failure) => {
                plan += &format!("! {} can't be added\n{failure}\n\n", context(&args));
                (None, FleetResult::Failed(failure))
            }
        };
        rows.push(FleetRow { args, joining, result });
    }
    let ready = rows.iter().filter(|row| row.joining.is_some()).count();
    plan += &format!("{ready} of {} clusters can be added.\n", rows.len());
    if ready > 0 && !args.change.confirmed(&plan).await? {
        let mut end = if ready == rows.len() { Exit::Fine } else { Exit::Unhealthy };
        for joining in rows.iter().filter_map(|row| row.joining.as_ref()) {
            output::print(&format!("{}---\n", joining.manifests()?))?;
            if joining.dry_exit() == Exit::Unhealthy {
                end = Exit::Unhealthy;
            }
        }
        output::eprint(format_args!("{}", table(&rows)));
        return Ok(end);
    }
    if ready == 0 {
        output::eprint(format_args!("{plan}"));
    }
    // All clusters are added before waiting for any, so that they sync in parallel.
    for row in &mut rows {
        let Some(joining) = &row.joining else { continue };
        row.result = match joining.carry_out().await {
            Ok(()) => FleetResult::Added(Exit::Fine),
            Err(failure) => report_failure(failure),
        };
    }
    for row in &mut rows {
        let (Some(joining), FleetResult::Added(_)) = (&row.joining, &row.result) else { continue };
        row.result = match joining.follow().await {
            Ok(end) => FleetResult::Added(end),
            Err(failure) => {
                let end = failure.exit;
                eprint_line!("{failure}");
                FleetResult::Added(end)
            }
        };
    }
    output::print(&table(&rows))?;
    let failed = |row: &FleetRow<'_>| matches!(row.result, FleetResult::Failed(_));
    let behind =
        |row: &FleetRow<'_>| matches!(row.result, FleetResult::Added(end) if end != Exit::Fine);
    Ok(match (rows.iter().any(failed), rows.iter().any(behind)) {
        (true, _) => {
            eprint_line!(
                "next: fix the reported problems and use the same file again: existing members stay unchanged"
            );
            Exit::Failed
        }
        (false, true) => Exit::Unhealthy,
        (false, false) => Exit::Fine,
    })
}

fn report_failure(failure: CommandFailure) -> FleetResult {
    eprint_line!("{failure}");
    FleetResult::Failed(failure)
}

fn context(args: &AddArgs) -> &str {
    args.remote.as_deref().unwrap_or_default()
}

fn table(rows: &[FleetRow<'_>]) -> String {
    let look = OutputStyle::of_stdout();
    let row = |row: &FleetRow<'_>| {
        let result = match &row.result {
            FleetResult::Ready => Cell::good("can be added"),
            FleetResult::Member => "already a member".into(),
            FleetResult::Added(Exit::Fine) => Cell::good("added"),
            FleetResult::Added(_) => Cell::doubtful("added, but not synced yet: see above"),
            FleetResult::Failed(failure) => Cell::bad(format!("failed: {}", failure.message())),
        };
        let id = row.args.name.as_deref().unwrap_or_else(|| context(&row.args));
        let network = row.args.network.as_deref().unwrap_or("<none>");
        vec![id.into(), context(&row.args).into(), network.into(), result]
    };
    output::table(
        &["CLUSTER", "CONTEXT", "NETWORK", "RESULT"],
        rows.iter().map(row).collect(),
        &look,
    )
}

/// Reads the file. Returns the flags of `strait cluster add` for each entry.
fn read(file: &Path, args: &AddArgs) -> Result<Vec<AddArgs>, CommandFailure> {
    let usage = |fact: String| {
        CommandFailure::usage(format!("--from {}: {fact}; nothing was changed", file.display()))
            .next("list entries, for example '- {context: west, network: n2}'")
    };
    let metadata = std::fs::metadata(file).map_err(|error| usage(error.to_string()))?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(usage(format!("the file is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    let entries: Vec<FleetEntry> = serde_saphyr::from_str(&text)
        .map_err(|error| usage(output::clean(&error.without_snippet().to_string())))?;
    if entries.is_empty() {
        return Err(usage("the file lists no clusters".to_owned()));
    }
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for entry in entries {
        let id = entry.name.clone().unwrap_or_else(|| entry.context.clone());
        let wrong = |field: &str, fact: String| usage(format!("cluster {id}: {field}: {fact}"));
        if !seen.insert(id.clone()) {
            return Err(usage(format!("cluster {id} is listed twice")));
        }
        let mut entry_args = args.clone();
        entry_args.from = None;
        let api_server = entry.api_server.map(|text| text.parse());
        let api_server =
            api_server.transpose().map_err(|error| wrong("apiServer", format!("{error}")))?;
        let parsed = |field, text: Option<String>, parse: fn(&str) -> Result<String, String>| {
            text.map(|text| parse(&text)).transpose().map_err(|fact| wrong(field, fact))
        };
        let discovery = parsed("discovery", entry.discovery, discovery)?;
        let istio_service = parsed("istioService", entry.istio_service, istio_service::address)?;
        let inject_at = entry.inject_at.map(|text| webhook::target(&text)).transpose();
        let inject_at = inject_at.map_err(|fact| wrong("injectAt", fact))?;
        entry_args.remote = Some(entry.context);
        entry_args.name = Some(id.clone());
        entry_args.network = entry.network.or(entry_args.network);
        entry_args.trust_domain = entry.trust_domain.or(entry_args.trust_domain);
        entry_args.api_server = api_server.or(entry_args.api_server);
        entry_args.tls_server_name = entry.tls_server_name.or(entry_args.tls_server_name);
        entry_args.discovery = discovery.or(entry_args.discovery);
        entry_args.istio_service = istio_service.or(entry_args.istio_service);
        entry_args.webhook.inject_at = inject_at.or(entry_args.webhook.inject_at);
        entry_args.check()?;
        all.push(entry_args);
    }
    Ok(all)
}
