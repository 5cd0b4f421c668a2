//! `strait status`: the mesh on one screen, with problems last.

use clap::Args;
use serde_json::{Value, json};

use super::check::{CheckInputs, is_problem, problems};
use super::client::{AdminClient, Connect};
use super::cluster::CLUSTERS;
use super::failure::{CommandResult, Exit};
use super::list::{Follow, LastShown, watch_pause};
use super::network::NETWORKS;
use super::output::{self, Cell, Format, OutputStyle, Render, Show, items, text};
use super::{hold, rollout};

/// Maximum number of listed services with conflicts; a mesh may have thousands.
const CONFLICTS_SHOWN: usize = 8;

/// `strait status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    follow: Follow,
    #[command(flatten)]
    show: Show,
}

/// Runs `strait status`.
pub(crate) async fn run(args: &StatusArgs) -> CommandResult {
    let client = AdminClient::new(&args.connect).await?;
    let deadline = args.follow.wait.deadline();
    let mut shown = LastShown::default();
    loop {
        let answers = CheckInputs::of(&client).await?;
        let found = problems(&answers);
        let bad = found.iter().any(is_problem);
        if bad && deadline.pause().await {
            continue;
        }
        let whole = whole(answers, &found);
        let look = OutputStyle::of_stdout();
        let printed = match args.show.output {
            Format::Json => format!("{whole:#}\n"),
            Format::Yaml => output::yaml(&whole),
            _ => render(&whole, &args.show, &look),
        };
        shown.whole(&whole, &printed)?;
        if !args.follow.watch {
            return Ok(if bad { Exit::Unhealthy } else { Exit::Fine });
        }
        watch_pause().await;
    }
}

/// Returns the status as one object.
pub(super) fn whole(answers: CheckInputs, found: &[Value]) -> Value {
    let problems: Vec<String> = found.iter().filter(|row| is_problem(row)).map(line).collect();
    let notes = || found.iter().filter(|row| !is_problem(row));
    // Conflicts are notes, because no cluster is at fault, but they are listed here since users
    // would not look for them.
    let conflicts: Vec<String> =
        notes().filter(|row| row["category"] == "services").map(line).collect();
    let notes = notes().count();
    let CheckInputs { clusters, networks, proxies, hold, rollout, replicas, .. } = answers;
    let mut whole = json!({
        "held": hold["held"],
        "rollout": rollout["running"],
        "clusters": clusters, "networks": networks, "proxies": proxies,
        "problems": problems, "conflicts": conflicts, "notes": notes,
    });
    if let Some(missing) = replicas.get("missingReplicas") {
        whole["missingReplicas"] = missing.clone();
    }
    whole
}

/// Formats a finding as a line: `cluster east: STR0301: stale: refused`.
fn line(row: &Value) -> String {
    let [object, code, fact] = ["object", "code", "fact"].map(|part| text(&row[part]));
    let object = object.replacen('/', " ", 1);
    match fact.contains(&code) {
        true => format!("{object}: {fact}"),
        false => format!("{object}: {code}: {fact}"),
    }
}

pub(super) fn render(whole: &Value, show: &Show, look: &OutputStyle) -> String {
    let wide = show.output == Format::Wide;
    let headers = !show.no_headers;
    let mut out = CLUSTERS.listing.table(items(&whole["clusters"]), wide).render(headers, look);
    if !items(&whole["networks"]).is_empty() {
        out.push('\n');
        out += &NETWORKS.listing.table(items(&whole["networks"]), wide).render(headers, look);
    }
    let proxies = items(&whole["proxies"]);
    let count = |wanted: fn(&Value) -> bool| {
        let has = |row: &&Value| {
            row["types"].as_object().into_iter().flatten().any(|(_, entry)| wanted(entry))
        };
        proxies.iter().filter(has).count()
    };
    let rejecting = count(|entry| !entry["nack"].is_null());
    let behind = count(|entry| !entry["nack"].is_null() || entry["sent"] != entry["acked"]);
    let [problems, conflicts] = ["problems", "conflicts"].map(|part| items(&whole[part]));
    let or_bad =
        |count: usize, text: String| if count == 0 { text.into() } else { Cell::bad(text) };
    out.push('\n');
    let mut rows = vec![
        vec![
            "PROXIES".into(),
            format!("{} connected", proxies.len()).into(),
            format!("{} in sync", proxies.len() - behind).into(),
            or_bad(rejecting, format!("{rejecting} rejecting")),
            format!("{} waiting", behind - rejecting).into(),
        ],
        vec!["NOTES".into(), format!("{} (strait check)", text(&whole["notes"])).into()],
        vec!["PROBLEMS".into(), or_bad(problems.len(), problems.len().to_string())],
    ];
    let missing = items(&whole["missingReplicas"]);
    if !missing.is_empty() {
        let names = missing.iter().map(text).collect::<Vec<_>>().join(", ");
        rows.push(vec!["MISSING".into(), Cell::bad(format!("replica {names}"))]);
    }
    if !conflicts.is_empty() {
        rows.insert(2, vec!["CONFLICTS".into(), Cell::doubtful(conflicts.len().to_string())]);
    }
    out += &output::table(&[], rows, look);
    out += &hold::line(whole, look).unwrap_or_default();
    let running = json!({ "running": whole["rollout"] });
    out += &rollout::line(&running, look).unwrap_or_default();
    let lines = |of: &[Value]| -> String {
        of.iter().map(|one| format!("  {}\n", one.as_str().unwrap_or_default())).collect()
    };
    out += &lines(problems);
    out += &lines(&conflicts[..conflicts.len().min(CONFLICTS_SHOWN)]);
    if conflicts.len() > CONFLICTS_SHOWN {
        out += &format!(
            "  and {} more conflicts (strait check services)\n",
            conflicts.len() - CONFLICTS_SHOWN
        );
    }
    out
}
