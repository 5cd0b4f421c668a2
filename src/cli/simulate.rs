//! `strait policy simulate`: what requests of the past would come to under policies that are not in force yet.

mod compare;
mod log;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::Value;

use self::compare::{PolicyTrial, Simulation};
use super::access_log::LogCoverage;
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::offline_mesh::{OfflineMesh, read_files};
use super::output::{self, Format, clean};
use strait_explain::AccessSnapshot;
use strait_model::ISTIO_SECURITY;
use strait_rules::access::PolicyErrors;
use strait_sources::store::files::{ManifestNamespaces, read_manifests};

/// How many changes are shown to people.
const SHOWN: usize = 50;

/// `strait policy simulate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Access logs are read in Istio's two formats, text and JSON. A line needs the method and path (none for TCP), the authority, \
the upstream cluster, and the downstream local and remote addresses; it is used where it is of the way in of a workload that is known by its address. \
Who called is downstream_peer_uri_san (add it to the JSON format, or as the last field of the text), else the one known workload at the remote address. \
Lines that lack something are left out, counted, and named."
)]
pub(crate) struct SimulateArgs {
    /// The new policies, which replace those of the same names; '-' for standard input
    #[arg(long = "file", short = 'f', value_name = "FILE", num_args = 1.., required = true)]
    files: Vec<PathBuf>,
    /// Access logs of proxies; '-' for standard input
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    from_log: Vec<PathBuf>,
    /// Take the policies in force, and the pods, from these files and directories, without a control plane
    #[arg(long, value_name = "FILE", num_args = 1..)]
    mesh: Vec<PathBuf>,
    /// With --mesh: the system namespace
    #[arg(long, value_name = "NS", default_value = "strait-system")]
    system_namespace: String,
    /// The namespace of new policies that name none
    #[arg(long, short, value_name = "NS", default_value = "default")]
    namespace: String,
    #[command(flatten)]
    ask: QueryArgs,
}

/// Runs `strait policy simulate`. Exit code 2: something would be denied that was not.
pub(crate) async fn run(args: &SimulateArgs) -> CommandResult {
    let new = new_policies(args)?;
    let snapshot = snapshot(args).await?;
    let (mut trial, faults) = PolicyTrial::new(&snapshot, &new);
    for fault in faults.iter().take(SHOWN) {
        tell!("{}", clean(fault));
    }
    if let more @ 1.. = faults.len().saturating_sub(SHOWN) {
        tell!("and {more} more: strait check config -f FILE");
    }
    for file in &args.from_log {
        read_log(file, &mut trial)?;
    }
    let found = trial.end();
    match args.ask.show.output {
        Format::Json => {
            let text = serde_json::to_string_pretty(&found).map_err(CommandFailure::of)?;
            output::print(&(text + "\n"))?;
        }
        Format::Yaml => {
            let value = serde_json::to_value(&found).map_err(CommandFailure::of)?;
            output::print(&output::yaml(&value))?;
        }
        _ => output::print(&render(&found))?,
    }
    if found.lines > 0 && found.compared == 0 {
        // Whoever asks this in a script must not take it for a yes.
        let text = format!(
            "none of {} lines could be compared: nothing is known of what would be denied",
            found.lines
        );
        let next = "give logs of the workloads' own proxies (the way in), of a mesh whose pods are known: strait proxy list";
        return Err(CommandFailure::failed(text).next(next));
    }
    Ok(if found.newly_denied() > 0 { Exit::Unhealthy } else { Exit::Fine })
}

fn new_policies(args: &SimulateArgs) -> Result<Vec<Arc<Value>>, CommandFailure> {
    let namespaces =
        ManifestNamespaces { of_objects: &args.namespace, system: Some(&args.system_namespace) };
    let contents = read_manifests(read_files(&args.files)?, namespaces);
    for warning in &contents.objects.warnings {
        tell!("{}", clean(&warning.to_string()));
    }
    let policies = contents.objects.others.iter();
    let policies = policies.filter(|(key, _)| &*key.group == ISTIO_SECURITY);
    let policies: Vec<_> = policies.map(|(_, object)| Arc::new(object.to_value())).collect();
    if policies.is_empty() {
        let text = "the files of -f hold no AuthorizationPolicy, PeerAuthentication or RequestAuthentication";
        return Err(CommandFailure::usage(text));
    }
    Ok(policies)
}

async fn snapshot(args: &SimulateArgs) -> Result<AccessSnapshot, CommandFailure> {
    if args.mesh.is_empty() {
        let answer = args.ask.ask("/debug/access", &[]).await?;
        return serde_json::from_value(answer.value).map_err(CommandFailure::of);
    }
    let mesh = OfflineMesh::of(read_files(&args.mesh)?, &args.namespace, &args.system_namespace)?;
    for warning in &mesh.warnings {
        tell!("{}", clean(&warning.to_string()));
    }
    Ok(AccessSnapshot::of(&mesh.context, &mesh.reports.objects, PolicyErrors::default()))
}

/// Has every call of a file decided.
fn read_log(file: &Path, trial: &mut PolicyTrial<'_>) -> Result<(), CommandFailure> {
    let wrong = |error: std::io::Error| {
        CommandFailure::usage(format!("{} can't be read: {error}", file.display()))
    };
    let source: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        Box::new(BufReader::new(std::fs::File::open(file).map_err(wrong)?))
    };
    let mut coverage = LogCoverage::default();
    coverage.read(source, |call| trial.take(log::entry(&call))).map_err(wrong)?;
    trial.leave_out(log::NO_LINE, coverage.unread);
    Ok(())
}

fn render(found: &Simulation) -> String {
    let mut out = String::new();
    let sections =
        [("deny", "would be denied, and was not"), ("allow", "would be allowed, and was not")];
    for (verdict, title) in sections {
        let of: Vec<_> = found.changes.iter().filter(|one| one.verdict == verdict).collect();
        let untold = found.untold.get(verdict).copied().unwrap_or_default();
        let count = untold + of.iter().map(|one| one.count).sum::<usize>();
        if count == 0 {
            continue;
        }
        out += &format!("{count} {title}:\n");
        for one in of.iter().take(SHOWN) {
            let [source, destination, request, by] =
                [&one.source, &one.destination, &one.request, &one.by].map(|text| clean(text));
            out += &format!(
                "  {:>6}  {source} -> {destination} {request}\n          {by}\n",
                one.count
            );
        }
        if of.len() > SHOWN {
            out += &format!("  and {} more kinds; -o json shows them\n", of.len() - SHOWN);
        }
        if untold > 0 {
            out += &format!("  and {untold} requests of further kinds, which are only counted\n");
        }
    }
    let asked = [
        ("would be asked about", found.newly_asked),
        ("would no longer be asked about", found.no_longer_asked),
    ];
    for (what, count) in asked.into_iter().filter(|(_, count)| *count > 0) {
        out += &format!("Providers {what} {count}: no log says what they would answer\n");
    }
    let is_alike = found.changes.is_empty() && asked.iter().all(|(_, count)| *count == 0);
    if is_alike && found.compared > found.undecided {
        out += "Nothing would be decided otherwise.\n";
    }
    out += &format!("{} lines, {} compared\n", found.lines, found.compared);
    if found.undecided > 0 {
        out += &format!(
            "{} of these can't be decided: rules look at headers, tokens or forwarded addresses, which no log has\n",
            found.undecided
        );
    }
    for (reason, count) in &found.skipped {
        out += &format!("left out {count}: a line that {reason}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_providers_would_be_asked_about_is_no_nothing() {
        let quiet = Simulation { lines: 9, compared: 9, ..Simulation::default() };
        assert!(render(&quiet).starts_with("Nothing would be decided otherwise.\n9 lines"));
        let asked = Simulation { newly_asked: 7, ..quiet };
        let expected = "Providers would be asked about 7: no log says what they would answer\n9 lines, 9 compared\n";
        assert_eq!(render(&asked), expected);
    }
}
