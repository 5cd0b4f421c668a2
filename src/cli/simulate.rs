//! `strait policy simulate`: decides logged requests again with policies that are not active yet.

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
use strait_admin_api::AccessSnapshot;
use strait_explain::access_snapshot;
use strait_model::ISTIO_SECURITY;
use strait_rules::access::PolicyErrors;
use strait_sources::store::files::{ManifestNamespaces, read_manifests};

/// Maximum number of changes that are shown to people.
const SHOWN: usize = 50;

/// `strait policy simulate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Access logs can have Istio's two formats, text and JSON. A line needs the method and path (none for TCP), the authority, \
the upstream cluster, and the downstream local and remote addresses. Only inbound lines of workloads with a known address are used. \
The caller is downstream_peer_uri_san (add it to the JSON format, or as the last field of the text), or else the only known workload with the remote address. \
Incomplete lines are left out, counted, and listed."
)]
pub(crate) struct SimulateArgs {
    /// Files with the new policies, which replace policies of the same names; '-' for standard
    /// input
    #[arg(long = "file", short = 'f', value_name = "FILE", num_args = 1.., required = true)]
    files: Vec<PathBuf>,
    /// Access logs of proxies; '-' for standard input
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    from_log: Vec<PathBuf>,
    /// Read the active policies and the pods from these files and directories, without a control
    /// plane
    #[arg(long, value_name = "FILE", num_args = 1..)]
    mesh: Vec<PathBuf>,
    /// With --mesh: system namespace
    #[arg(long, value_name = "NS", default_value = "strait-system")]
    system_namespace: String,
    /// Namespace of new policies that name none
    #[arg(long, short, value_name = "NS", default_value = "default")]
    namespace: String,
    #[command(flatten)]
    common: QueryArgs,
}

/// Runs `strait policy simulate`. Exit code 2 means that a request would be denied that was
/// allowed.
pub(crate) async fn run(args: &SimulateArgs) -> CommandResult {
    let new = new_policies(args)?;
    let snapshot = snapshot(args).await?;
    let (mut trial, faults) = PolicyTrial::new(&snapshot, &new);
    for fault in faults.iter().take(SHOWN) {
        eprint_line!("{}", clean(fault));
    }
    if let more @ 1.. = faults.len().saturating_sub(SHOWN) {
        eprint_line!("and {more} more; list them with: strait check config -f FILE");
    }
    for file in &args.from_log {
        read_log(file, &mut trial)?;
    }
    let found = trial.end();
    match args.common.show.output {
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
        // A script must not interpret this result as success.
        let text = format!(
            "none of {} lines could be compared, so the effect of the policies is unknown",
            found.lines
        );
        let next = "use inbound logs of the workloads' own proxies, from a mesh whose pods are known: strait proxy list";
        return Err(CommandFailure::failed(text).next(next));
    }
    Ok(if found.newly_denied() > 0 { Exit::Unhealthy } else { Exit::Fine })
}

fn new_policies(args: &SimulateArgs) -> Result<Vec<Arc<Value>>, CommandFailure> {
    let namespaces =
        ManifestNamespaces { of_objects: &args.namespace, system: Some(&args.system_namespace) };
    let contents = read_manifests(read_files(&args.files)?, namespaces);
    for warning in &contents.objects.warnings {
        eprint_line!("{}", clean(&warning.to_string()));
    }
    let policies = contents.objects.others.iter();
    let policies = policies.filter(|(key, _)| &*key.group == ISTIO_SECURITY);
    let policies: Vec<_> = policies.map(|(_, object)| Arc::new(object.to_value())).collect();
    if policies.is_empty() {
        let text = "the files of -f contain no AuthorizationPolicy, PeerAuthentication or RequestAuthentication";
        return Err(CommandFailure::usage(text));
    }
    Ok(policies)
}

async fn snapshot(args: &SimulateArgs) -> Result<AccessSnapshot, CommandFailure> {
    if args.mesh.is_empty() {
        return args.common.request("/debug/access", &[]).await?.read();
    }
    let mesh = OfflineMesh::of(read_files(&args.mesh)?, &args.namespace, &args.system_namespace)?;
    for warning in &mesh.warnings {
        eprint_line!("{}", clean(&warning.to_string()));
    }
    Ok(access_snapshot(&mesh.context, &mesh.reports.objects, PolicyErrors::default()))
}

/// Decides every call of a log file.
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
    let sections = [
        ("deny", "would be denied and were allowed"),
        ("allow", "would be allowed and were denied"),
    ];
    for (verdict, title) in sections {
        let matching: Vec<_> = found.changes.iter().filter(|one| one.verdict == verdict).collect();
        let untold = found.untold.get(verdict).copied().unwrap_or_default();
        let count = untold + matching.iter().map(|one| one.count).sum::<usize>();
        if count == 0 {
            continue;
        }
        out += &format!("{count} {title}:\n");
        for one in matching.iter().take(SHOWN) {
            let [source, destination, request, by] =
                [&one.source, &one.destination, &one.request, &one.by].map(|text| clean(text));
            out += &format!(
                "  {:>6}  {source} -> {destination} {request}\n          {by}\n",
                one.count
            );
        }
        if matching.len() > SHOWN {
            out += &format!("  and {} more kinds; -o json shows them\n", matching.len() - SHOWN);
        }
        if untold > 0 {
            out += &format!("  and {untold} requests of further kinds, which are only counted\n");
        }
    }
    let queries = [
        ("would be called for", found.newly_asked),
        ("would no longer be called for", found.no_longer_asked),
    ];
    for (what, count) in queries.into_iter().filter(|(_, count)| *count > 0) {
        out += &format!("Providers {what} {count} requests: logs do not contain their decisions\n");
    }
    let is_unchanged = found.changes.is_empty() && queries.iter().all(|(_, count)| *count == 0);
    if is_unchanged && found.compared > found.undecided {
        out += "No decision would change.\n";
    }
    out += &format!("{} lines, {} compared\n", found.lines, found.compared);
    if found.undecided > 0 {
        out += &format!(
            "{} of them can't be decided: rules depend on headers, tokens or forwarded addresses, which logs do not contain\n",
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
    fn requests_for_new_providers_count_as_a_difference() {
        let quiet = Simulation { lines: 9, compared: 9, ..Simulation::default() };
        assert!(render(&quiet).starts_with("No decision would change.\n9 lines"));
        let busy = Simulation { newly_asked: 7, ..quiet };
        let expected = "Providers would be called for 7 requests: logs do not contain their decisions\n9 lines, 9 compared\n";
        assert_eq!(render(&busy), expected);
    }
}
