//! `strait explain import`: whether a cluster has the ServiceImport of a service, and why not.
//!
//! The command only renders the server's explanation.

use clap::Args;

use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::output::{self, Cell, Format, OutputStyle, clean, text};
use strait_admin_api::{ImportExplanation, ImportedField, ServiceExport};

/// `strait explain import`.
#[derive(Debug, Args)]
pub(crate) struct ExplainImportArgs {
    /// Service: NAMESPACE/NAME
    #[arg(value_name = "NS/NAME")]
    service: String,
    /// Importing cluster: its ID, or its name in the cluster set
    #[arg(long, value_name = "C")]
    cluster: String,
    #[command(flatten)]
    common: QueryArgs,
}

/// Runs `strait explain import`. Exit code 2 means that the import is missing or not ready.
pub(crate) async fn run(args: &ExplainImportArgs) -> CommandResult {
    let Some((namespace, name)) = args.service.split_once('/') else {
        let text = format!("{:?} is not of the form NAMESPACE/NAME", clean(&args.service));
        return Err(CommandFailure::usage(text));
    };
    let query = [("namespace", namespace), ("name", name), ("cluster", args.cluster.as_str())];
    let answer = args.common.request("/debug/explain/import", &query).await;
    let answer = answer.map_err(|failure| failure.or_next("strait cluster list"))?;
    let explanation: ImportExplanation = answer.read()?;
    match args.common.show.output {
        Format::Json => output::print(&answer.raw)?,
        Format::Yaml => output::print(&output::yaml(&answer.value))?,
        _ => output::print(&render(&explanation, &OutputStyle::of_stdout()))?,
    }
    Ok(if is_ready(&explanation) { Exit::Fine } else { Exit::Unhealthy })
}

fn is_ready(answer: &ImportExplanation) -> bool {
    answer.import.present && answer.import.ready
}

/// Renders the explanation as text.
pub(super) fn render(answer: &ImportExplanation, look: &OutputStyle) -> String {
    let import = &answer.import;
    let state = match (import.present, import.ready) {
        (true, true) => Cell::good("ready"),
        (true, false) => Cell::doubtful("not ready"),
        _ => Cell::doubtful("missing"),
    };
    let service = format!("{}/{}", text(&answer.namespace), text(&answer.name));
    let fields = vec![
        ("Service", service.into()),
        ("Cluster", text(&answer.cluster).into()),
        ("Import", state),
        ("Addresses", text(&import.ips).into()),
        ("Decided by", text(&answer.decides).into()),
    ];
    let mut out = output::describe(fields, look) + "\n";
    let steps = answer.steps.iter().map(|step| {
        let code = step.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        let verdict = if step.ok { Cell::good("ok") } else { Cell::doubtful("no") };
        let detail = format!("{}{code}", text(&step.detail));
        vec![text(&step.step).into(), verdict, detail.into()]
    });
    out += &output::table(&["STEP", "OK", "DETAIL"], steps.collect(), look);
    let field = |field: &ImportedField| -> Vec<Cell> {
        [&field.field, &field.value, &field.cluster].map(|part| text(part).into()).to_vec()
    };
    let fields: Vec<_> = answer.fields.iter().map(field).collect();
    if !fields.is_empty() {
        out += "\n";
        out += &output::table(&["FIELD", "VALUE", "DEFINED BY"], fields, look);
    }
    let exports: Vec<_> = exports(&answer.exports);
    if !exports.is_empty() {
        out += "\n";
        out += &output::table(&EXPORTS, exports, look);
    }
    out
}

/// The header of the table of exports.
pub(super) const EXPORTS: [&str; 5] = ["CLUSTER", "EXPORTED", "VALID", "DECIDES", "OVERRULED"];

/// Returns the rows of the table of exports.
pub(super) fn exports(exports: &[ServiceExport]) -> Vec<Vec<Cell>> {
    let rows = exports.iter().map(|export| {
        let fields: Vec<_> = export.conflicts.iter().map(|one| text(&one.field)).collect();
        let overruled = match fields.as_slice() {
            [] => Cell::from("<none>"),
            fields => Cell::doubtful(fields.join(",")),
        };
        let valid = match export.valid {
            true => Cell::good("yes"),
            false => Cell::doubtful(format!("no: {}", text(&export.reason))),
        };
        let decides = if export.decides { "yes" } else { "" };
        let created = match &export.created {
            None => "unknown".to_owned(),
            Some(created) => text(created),
        };
        vec![text(&export.cluster).into(), created.into(), valid, decides.into(), overruled]
    });
    rows.collect()
}
