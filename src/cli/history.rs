//! `strait history` and `strait diff --at`: earlier versions of the mesh, and changes since then.
//! The subcommands that change something are in [`super::hold`].

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::Value;

use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::output::{
    self, Cell, Column, Format, OutputStyle, TableLayout, age, clean, items, text,
};
use super::{hold, rollout};
use strait_admin_api::{
    HistoryRow, HistoryVersion, HoldStatus, MeshChanges, MeshDiff, SetChange, ValueChange,
    VersionTime,
};
use strait_base::duration::HumanDuration;

/// Show earlier versions of the mesh, and hold or roll back its configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum HistoryCommand {
    /// List the stored versions with the size of each change
    List(HistoryListArgs),
    /// Show the changes of one version
    Show(HistoryShowArgs),
    /// Hold the active configuration, or an earlier one: proxies keep it, and changes to objects
    /// wait
    Pin(hold::PinArgs),
    /// Go back to an earlier configuration and hold it
    Rollback(hold::RollbackArgs),
    /// End the hold: the current objects take effect again
    Release(hold::ReleaseArgs),
    /// Show the change that is being rolled out gradually, roll it out to all proxies, or withdraw
    /// it
    Rollout(rollout::RolloutArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HistoryListArgs {
    /// Only the last N versions; 0: all stored versions
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: usize,
    #[command(flatten)]
    common: QueryArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryShowArgs {
    /// Version, as 'history list' shows it
    version: u64,
    #[command(flatten)]
    common: QueryArgs,
}

const RECORDS: TableLayout<HistoryRow> = TableLayout {
    kind: "version",
    name: |row| text(&row.version),
    columns: &[
        Column::new("VERSION", |row, _| text(&row.version).into()),
        Column::new("AGE", |row, look| age(&row.at, look).into()),
        Column::new("SERVICES", |row, _| text(&row.services).into()),
        Column::new("ENDPOINTS", |row, _| endpoints(row).into()),
        Column::new("NETWORKS", |row, _| text(&row.networks).into()),
        Column::new("SETTINGS", |row, _| text(&row.settings).into()),
        Column::new("OBJECTS", |row, _| text(&row.objects).into()),
        Column::new("CONFIGURATION", |row, _| hold::digits(&row.configuration).into()),
        Column::new("NOTE", |row, _| note(row)),
        Column::wide("AT", |row, _| text(&row.at).into()),
    ],
};

fn endpoints(row: &HistoryRow) -> String {
    format!("+{} -{}", row.endpoints_added, row.endpoints_removed)
}

fn note(row: &HistoryRow) -> Cell {
    if let Some(replica) = &row.replica {
        let replica = clean(replica);
        return format!("of replica {replica}: add --replica {replica}").into();
    }
    match (&row.gap, row.restored) {
        (Some(gap), _) => Cell::doubtful(format!("unknown: {}", clean(gap))),
        (None, true) => "before the last start: refer to it by its time".into(),
        _ => "".into(),
    }
}

/// Runs `strait history`.
pub(crate) async fn run(command: &HistoryCommand) -> CommandResult {
    match command {
        HistoryCommand::List(args) => list(args).await,
        HistoryCommand::Show(args) => show(args).await,
        HistoryCommand::Pin(args) => Box::pin(hold::pin(args)).await,
        HistoryCommand::Rollback(args) => Box::pin(hold::rollback(args)).await,
        HistoryCommand::Release(args) => Box::pin(hold::release(args)).await,
        HistoryCommand::Rollout(args) => Box::pin(rollout::run(args)).await,
    }
}

async fn list(args: &HistoryListArgs) -> CommandResult {
    let answer = args.common.request("/debug/history", &[]).await?;
    let all = items(&answer.value);
    let from = if args.last == 0 { 0 } else { all.len().saturating_sub(args.last) };
    let rows = Value::Array(all.get(from..).unwrap_or_default().to_vec());
    let raw = format!("{rows:#}\n");
    output::print(&RECORDS.render(&raw, &rows, &args.common.show, &OutputStyle::of_stdout())?)?;
    if all.is_empty() && args.common.show.output.is_for_people() {
        eprint_line!("Nothing has been recorded yet.");
    }
    if args.common.show.output.is_for_people() {
        let held: HoldStatus = args.common.request("/debug/hold", &[]).await?.read()?;
        if let Some(line) = hold::line(&held, &OutputStyle::of_stdout()) {
            output::eprint(format_args!("{line}"));
        }
    }
    Ok(Exit::Fine)
}

async fn show(args: &HistoryShowArgs) -> CommandResult {
    let version = args.version.to_string();
    let answer = args.common.request("/debug/history", &[("version", &version)]).await;
    let answer = answer.map_err(|failure| failure.or_next("strait history list"))?;
    let look = OutputStyle::of_stdout();
    output::print(&match args.common.show.output {
        Format::Json => answer.raw,
        Format::Yaml => output::yaml(&answer.value),
        _ => {
            let row: HistoryVersion = answer.read()?;
            let gap = row.gap.as_ref().map(|gap| format!("unknown: {}\n", clean(gap)));
            let head = format!("version {version}, {} ago\n", age(&row.at, &look));
            head + &gap.unwrap_or_default() + &lines(&row.changes, None, &look)
        }
    })?;
    Ok(Exit::Fine)
}

/// Runs `strait diff --at` for a version, a time or an age; only for endpoints of `cluster`, if it
/// is set.
pub(super) async fn diff(at: &str, cluster: Option<&str>, common: &QueryArgs) -> CommandResult {
    let at = moment(at, Timestamp::now())?;
    let answer = common.request("/debug/diff", &[("at", &at)]).await;
    let answer = answer.map_err(|failure| failure.or_next("strait history list"))?;
    let look = OutputStyle::of_stdout();
    let diff: MeshDiff = answer.read()?;
    let found = lines(&diff.changes, cluster, &look);
    output::print(&match common.show.output {
        Format::Json => answer.raw,
        Format::Yaml => output::yaml(&answer.value),
        _ => {
            let end =
                |end: &VersionTime| format!("version {}, {} ago", end.version, age(&end.at, &look));
            let (from, to) = (end(&diff.from), end(&diff.to));
            let nothing = if found.is_empty() { "no changes\n" } else { "" };
            format!("- {from}\n+ {to}\n{found}{nothing}")
        }
    })?;
    Ok(if found.is_empty() { Exit::Fine } else { Exit::Unhealthy })
}

/// Converts a moment to the form that the control plane accepts: a version or a time.
fn moment(text: &str, now: Timestamp) -> Result<String, CommandFailure> {
    if text.parse::<u64>().is_ok() || text.parse::<Timestamp>().is_ok() {
        return Ok(text.to_owned());
    }
    let ago = text.parse::<HumanDuration>().ok();
    let then =
        ago.and_then(|ago| now.checked_sub(jiff::SignedDuration::try_from(ago.0).ok()?).ok());
    then.map(|then| then.to_string()).ok_or_else(|| {
        let text = format!("{text:?} is not a version, a time (for example 2026-11-25T02:00:00Z) or a duration (for example 10m)");
        CommandFailure::usage(text).next("strait history list")
    })
}

/// Renders the changes: a heading for each service, network and setting, and a line for each added
/// or removed item.
fn lines(changes: &MeshChanges, cluster: Option<&str>, look: &OutputStyle) -> String {
    let mut out = String::new();
    let sign = |gone: bool, text: String| {
        let cell = match gone {
            true => Cell::bad(format!("- {text}")),
            false => Cell::good(format!("+ {text}")),
        };
        format!("    {}\n", cell.paint(look))
    };
    let values = |was: &Value, is: &Value| {
        let of = |value: &Value, gone| match value.is_null() {
            true => String::new(),
            false => sign(gone, text(value)),
        };
        of(was, true) + &of(is, false)
    };
    let set = |set: &SetChange| -> String {
        let of =
            |all: &[String], gone| all.iter().map(|one| sign(gone, text(one))).collect::<String>();
        of(&set.removed, true) + &of(&set.added, false)
    };
    // The form of a definition is that of the server's release.
    let fields = |of: &Value| of.as_object().cloned().unwrap_or_default();
    for (host, service) in &changes.services {
        let mut part = String::new();
        if let Some(definition) = service.definition.as_ref().filter(|_| cluster.is_none()) {
            let ValueChange { before, after } = definition;
            match (before.is_null(), after.is_null()) {
                (true, _) => part += "  added\n",
                (_, true) => part += "  removed\n",
                _ => {}
            }
            for (name, _) in fields(if after.is_null() { before } else { after }) {
                let (was, is) = (&before[&name], &after[&name]);
                if was != is {
                    part += &format!("  {name}\n");
                    part += &values(was, is);
                }
            }
        }
        for (id, endpoints) in &service.endpoints {
            if cluster.is_none_or(|wanted| wanted == id) {
                part += &format!("  endpoints of {}\n{}", text(id), set(endpoints));
            }
        }
        if !part.is_empty() {
            out += &format!("service {}\n{part}", clean(host));
        }
    }
    if cluster.is_some() {
        return out;
    }
    for (network, gateways) in &changes.networks {
        out += &format!("gateways of network {}\n{}", clean(network), set(gateways));
    }
    for (field, ValueChange { before: was, after: is }) in &changes.settings {
        out += &format!("setting {}\n", clean(field));
        out += &values(was, is);
    }
    for (name, ValueChange { before: was, after: is }) in &changes.objects {
        let word = match (was.is_null(), is.is_null()) {
            (true, _) => "added",
            (_, true) => "removed",
            _ => "changed",
        };
        out += &format!("object {}\n  {word}\n{}", clean(&object_name(name)), values(was, is));
    }
    out
}

/// Returns the name of an object, without the API group if Istio defines the group.
fn object_name(name: &str) -> String {
    let Some((kind, name_in_kind)) = name.split_once(' ') else { return name.to_owned() };
    match kind.split_once('.') {
        Some((kind, group)) if group.ends_with("istio.io") => format!("{kind} {name_in_kind}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::output::tests::{LOOK, typed};
    use super::*;

    #[test]
    fn changes_are_grouped_by_service_network_and_setting() {
        let answer = json!({
            "services": {
                "new.shop": { "definition": { "before": null, "after": { "ports": ["http 80/http"] } } },
                "web.shop": {
                    "definition": {
                        "before": { "ports": ["http 80/http"], "resolution": "ClientSideLB" },
                        "after": { "ports": ["http 81/http"], "resolution": "ClientSideLB" },
                    },
                    "endpoints": {
                        "east": { "added": ["10.0.0.2:80 in n1"], "removed": ["10.0.0.1:80 in n1"] },
                        "west": { "added": [], "removed": ["10.0.0.9:80 in n2"] },
                    },
                },
            },
            "networks": { "n2": { "added": ["198.18.0.1:15443 (service gw)"], "removed": [] } },
            "settings": { "connectTimeout": { "before": "10s", "after": "3s" } },
            "objects": {
                "Gateway.gateway.networking.k8s.io shop/web": { "before": null, "after": "aa" },
                "MeshConfig": { "before": "bb", "after": "cc" },
                "VirtualService.networking.istio.io shop/web": { "before": "dd", "after": null },
            },
        });
        let expected = "\
service new.shop
  added
  ports
    + http 80/http
service web.shop
  ports
    - http 80/http
    + http 81/http
  endpoints of east
    - 10.0.0.1:80 in n1
    + 10.0.0.2:80 in n1
  endpoints of west
    - 10.0.0.9:80 in n2
gateways of network n2
    + 198.18.0.1:15443 (service gw)
setting connectTimeout
    - 10s
    + 3s
object Gateway.gateway.networking.k8s.io shop/web
  added
    + aa
object MeshConfig
  changed
    - bb
    + cc
object VirtualService shop/web
  removed
    - dd
";
        let answer: MeshChanges = typed(answer);
        assert_eq!(lines(&answer, None, &LOOK), expected);
        let west = "service web.shop\n  endpoints of west\n    - 10.0.0.9:80 in n2\n";
        assert_eq!(lines(&answer, Some("west"), &LOOK), west);
        assert_eq!(lines(&MeshChanges::default(), None, &LOOK), "");
    }

    #[test]
    fn moment_is_a_version_a_time_or_an_age() {
        let now: Timestamp = "2026-11-25T02:10:00Z".parse().expect("a time");
        for (text, moment_is) in [
            ("12", "12"),
            ("2026-11-25T02:00:00Z", "2026-11-25T02:00:00Z"),
            ("10m", "2026-11-25T02:00:00Z"),
        ] {
            assert_eq!(moment(text, now).expect(text), moment_is);
        }
        assert!(moment("yesterday", now).is_err());
    }
}
