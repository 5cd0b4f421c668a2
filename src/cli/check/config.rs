//! `strait check config`: the state of each object of the mesh's configuration, in a running mesh
//! or, with `-f`, in a mesh built from files only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::junit::{self, TestCase, TestFailure, TestSuite};
use super::objects::of_cluster;
use crate::cli::cluster::api::{Hub, HubKubeconfig, SYSTEM_NAMESPACE};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::list::QueryArgs;
use crate::cli::offline_mesh::{OfflineMesh, read_files};
use crate::cli::output::{self, Cell, Column, Format, OutputStyle, Show, TableLayout, clean, text};
use strait_admin_api::{ObjectReason, ObjectState, ObjectStatus};
use strait_base::codes;
use strait_base::names::list_first;
use strait_explain::{ConfigQuery, ConfigView};
use strait_sources::store::Warning;

/// Maximum number of listed hosts that no file defines.
const HOSTS_NAMED: usize = 10;

/// The flags of `strait check config`.
#[derive(Debug, Args)]
pub(crate) struct ObjectCheckArgs {
    /// With 'config': check these files and directories, or '-' for standard input, without a
    /// control plane
    #[arg(long = "file", short = 'f', value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    /// With --traffic or 'config': also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE", conflicts_with = "every")]
    pub(super) junit: Option<PathBuf>,
}

/// The config cluster, and the namespaces of the control plane and of objects in files.
#[derive(Debug, Args)]
pub(crate) struct CheckPlaces {
    #[command(flatten)]
    kubeconfig: HubKubeconfig,
    /// With -f: namespace of objects without metadata.namespace [default: default]; otherwise the
    /// namespace of the control plane
    #[arg(long, short, value_name = "NS")]
    namespace: Option<String>,
    /// Namespace of the control plane
    #[arg(long, env = "STRAIT_NAMESPACE", value_name = "NS", default_value = SYSTEM_NAMESPACE)]
    system_namespace: String,
}

impl CheckPlaces {
    /// Returns the config cluster for checks without files.
    pub(super) fn hub(&self) -> Hub {
        self.kubeconfig.hub(self.namespace.clone().unwrap_or_else(|| self.system_namespace.clone()))
    }
}

impl ObjectCheckArgs {
    /// Rejects these flags if the category is not `config`. `--junit` is also accepted with
    /// `--traffic`.
    pub(super) fn refuse(&self, is_traffic: bool) -> Result<(), CommandFailure> {
        if self.junit.is_some() && !is_traffic {
            let next = "strait check config --junit FILE, or strait check --traffic --junit FILE";
            return Err(CommandFailure::usage(
                "--junit requires the category 'config' or --traffic",
            )
            .next(next));
        }
        if self.files.is_empty() {
            return Ok(());
        }
        Err(CommandFailure::usage("-f requires the category 'config'")
            .next("strait check config -f FILE"))
    }
}

const FINDINGS: TableLayout<Value> = TableLayout {
    kind: "finding",
    name: |row| format!("{}/{}", text(&row["code"]), text(&row["object"])),
    columns: &[
        Column::new("STATE", |row, _| match row["state"].as_str() {
            Some(state @ ("refused" | "partly" | "shadowed")) => Cell::bad(state),
            Some(state @ "unused") => Cell::doubtful(state),
            _ => text(&row["state"]).into(),
        }),
        Column::new("OBJECT", |row, _| text(&row["object"]).into()),
        Column::new("CODE", |row, _| text(&row["code"]).into()),
        Column::new("PATH", |row, _| text(&row["path"]).into()),
        Column::new("FINDING", |row, _| text(&row["text"]).into()),
        Column::wide("NEXT", |row, _| text(&row["next"]).into()),
    ],
};

/// Runs `strait check config`. Exit code 2 means that an object, or a part of one, has no effect.
pub(super) async fn run(
    args: &ObjectCheckArgs,
    places: &CheckPlaces,
    common: &QueryArgs,
) -> CommandResult {
    let look = OutputStyle::of_stdout();
    let write_suite = |states: &[ObjectStatus], warnings: &[Warning]| match &args.junit {
        Some(file) => junit::write(file, &suite(states, warnings)),
        None => Ok(()),
    };
    if args.files.is_empty() {
        let answer = common.request("/debug/config", &[]).await?;
        let states: Vec<ObjectStatus> = answer.read()?;
        output::print(&match common.show.output {
            Format::Json => answer.raw,
            Format::Yaml => output::yaml(&answer.value),
            _ => render(&states, &common.show, &look),
        })?;
        write_suite(&states, &[])?;
        return Ok(exit(&states));
    }
    let files = read_files(&args.files)?;
    let namespace = places.namespace.as_deref().unwrap_or("default");
    let mesh = OfflineMesh::of(files, namespace, &places.system_namespace)?;
    let view = ConfigView::new(&mesh.context, &mesh.reports, &[]).of_files();
    let states = mesh.settings.iter().cloned().chain(view.states(&ConfigQuery::default()));
    let states: Vec<ObjectStatus> = states.map(ObjectStatus::from).collect();
    output::print(&match common.show.output {
        Format::Json => serde_json::to_string_pretty(&states).map_err(CommandFailure::of)? + "\n",
        Format::Yaml => output::yaml(&json!(states)),
        _ => render(&states, &common.show, &look),
    })?;
    write_suite(&states, &mesh.warnings)?;
    for warning in &mesh.warnings {
        eprint_line!("{}", clean(&warning.to_string()));
    }
    for note in &mesh.notes {
        eprint_line!("{}", clean(note));
    }
    if states.is_empty() {
        let files: Vec<_> = args.files.iter().map(|file| file.display().to_string()).collect();
        eprint_line!(
            "{}: no object of a kind that Strait supports (for example VirtualService); check the spelling of the kinds",
            clean(&files.join(", "))
        );
    }
    if let Some(note) = unknown(&view.unknown_hosts()) {
        eprint_line!("{}", clean(&note));
    }
    let unread = mesh.warnings.iter().any(is_unread);
    Ok(if unread { Exit::Unhealthy } else { exit(&states) })
}

/// Returns whether a warning is about a file that can't be read completely.
fn is_unread(warning: &Warning) -> bool {
    warning.text.starts_with(codes::CONFIG_FILE.id)
}

/// Returns a test case for each object and for each file that can't be read completely. Cases fail
/// if they cause exit code 2.
fn suite(states: &[ObjectStatus], warnings: &[Warning]) -> TestSuite {
    let of_object = |state: &ObjectStatus| {
        let [kind, namespace, name] = [&state.kind, &state.namespace, &state.name].map(text);
        let reasons = &state.reasons;
        let failure = has_no_effect(state).then(|| TestFailure {
            code: reasons.first().map_or_else(String::new, |reason| text(&reason.code)),
            message: std::iter::once(text(state.state.as_str()))
                .chain(reasons.iter().map(|reason| {
                    let [code, path, fact] = [&reason.code, &reason.path, &reason.text].map(text);
                    format!("{code} {path}: {fact}")
                }))
                .collect::<Vec<_>>()
                .join("; "),
        });
        TestCase { class: kind, name: format!("{namespace}/{name}"), seconds: 0.0, failure }
    };
    let of_file = |warning: &Warning| TestCase {
        class: "file".to_owned(),
        name: warning.source.clone(),
        seconds: 0.0,
        failure: Some(TestFailure {
            code: codes::CONFIG_FILE.id.to_owned(),
            message: warning.to_string(),
        }),
    };
    let unread = warnings.iter().filter(|warning| is_unread(warning));
    let cases = states.iter().map(of_object).chain(unread.map(of_file)).collect();
    TestSuite { name: "strait check config", cases }
}

/// Returns a note about hosts that no file defines.
fn unknown(hosts: &BTreeSet<String>) -> Option<String> {
    let named = list_first(hosts.iter(), HOSTS_NAMED);
    (!hosts.is_empty()).then(|| {
        format!(
            "no file defines the hosts {named}: use strait check config without -f to check them against a running mesh"
        )
    })
}

/// Returns exit code 2 if an object, or a part of one, has no effect.
fn exit(states: &[ObjectStatus]) -> Exit {
    if states.iter().any(has_no_effect) { Exit::Unhealthy } else { Exit::Fine }
}

/// Returns whether an object, or a part of it, has no effect.
fn has_no_effect(state: &ObjectStatus) -> bool {
    matches!(state.state, ObjectState::Refused | ObjectState::Partly | ObjectState::Shadowed)
}

/// Renders a line for each reason, and the number of objects in each state.
fn render(states: &[ObjectStatus], show: &Show, look: &OutputStyle) -> String {
    let rows: Vec<Value> = states.iter().flat_map(findings).collect();
    if show.output == Format::Name {
        return FINDINGS.shown(&rows, show, look);
    }
    let mut out = String::new();
    if !rows.is_empty() {
        out += &FINDINGS.shown(&rows, show, look);
        out.push('\n');
    }
    let mut counts = BTreeMap::<String, usize>::new();
    for state in states {
        let standing = match &state.state {
            ObjectState::InForce => "active".to_owned(),
            other => text(other.as_str()),
        };
        *counts.entry(standing).or_default() += 1;
    }
    let total = states.len();
    let counts: Vec<_> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    out += &match total {
        0 => "The mesh has no configuration objects.\n".to_owned(),
        1 => format!("1 object: {}\n", counts.join(", ")),
        _ => format!("{total} objects: {}\n", counts.join(", ")),
    };
    if show.output == Format::Table {
        let codes: BTreeMap<_, _> =
            rows.iter().map(|row| (text(&row["code"]), text(&row["next"]))).collect();
        out.extend(codes.iter().map(|(code, next)| format!("strait help {code}: {next}\n")));
    }
    out
}

/// Returns a row for each reason of an object.
fn findings(state: &ObjectStatus) -> Vec<Value> {
    let [kind, namespace, name] = [&state.kind, &state.namespace, &state.name].map(text);
    let object = format!("{kind} {namespace}/{name}{}", of_cluster(state));
    let row = |reason: &ObjectReason| {
        json!({
            "state": state.state,
            "object": object,
            "code": reason.code,
            "path": reason.path,
            "text": reason.text,
            "next": codes::find(&reason.code).map_or("", |code| code.next),
        })
    };
    state.reasons.iter().map(row).collect()
}
