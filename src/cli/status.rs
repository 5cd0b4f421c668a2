//! `strait status`: the mesh on one screen, with problems last.

use clap::Args;
use serde_json::{Value, json};

use super::check::{CheckInputs, is_problem, problems};
use super::client::{AdminClient, Connect};
use super::cluster::CLUSTERS;
use super::failure::{CommandResult, Exit};
use super::list::{Follow, LastShown, watch_pause};
use super::network::NETWORKS;
use super::output::{self, Cell, Format, OutputStyle, Render, Show, text};
use super::{hold, proxy, rollout};
use strait_admin_api::TypeDelivery;

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
        let whole = Status::of(answers, &found);
        let json = whole.to_json();
        let look = OutputStyle::of_stdout();
        let printed = match args.show.output {
            Format::Json => format!("{json:#}\n"),
            Format::Yaml => output::yaml(&json),
            _ => whole.render(&args.show, &look),
        };
        shown.whole(&json, &printed)?;
        if !args.follow.watch {
            return Ok(if bad { Exit::Unhealthy } else { Exit::Fine });
        }
        watch_pause().await;
    }
}

/// The status of the mesh.
pub(super) struct Status {
    answers: CheckInputs,
    problems: Vec<String>,
    conflicts: Vec<String>,
    notes: usize,
}

impl Status {
    pub(super) fn of(answers: CheckInputs, found: &[Value]) -> Self {
        let notes = || found.iter().filter(|row| !is_problem(row));
        Self {
            answers,
            problems: found.iter().filter(|row| is_problem(row)).map(line).collect(),
            // Conflicts are notes, because no cluster is at fault, but they are listed here since
            // users would not look for them.
            conflicts: notes().filter(|row| row["category"] == "services").map(line).collect(),
            notes: notes().count(),
        }
    }

    /// Returns the status as one JSON object.
    pub(super) fn to_json(&self) -> Value {
        let Self { answers, problems, conflicts, notes } = self;
        let CheckInputs { clusters, networks, proxies, hold, rollout, replicas, .. } = answers;
        let part = |value: &Value, name: &str| value.get(name).cloned().unwrap_or_default();
        let mut whole = json!({
            "held": part(&hold.value, "held"),
            "rollout": part(&rollout.value, "running"),
            "clusters": clusters.value, "networks": networks.value, "proxies": proxies.value,
            "problems": problems, "conflicts": conflicts, "notes": notes,
        });
        if !replicas.missing_replicas.is_empty() {
            whole["missingReplicas"] = json!(replicas.missing_replicas);
        }
        whole
    }

    /// Renders the status for people.
    pub(super) fn render(&self, show: &Show, look: &OutputStyle) -> String {
        let Self { answers, problems, conflicts, notes } = self;
        let wide = show.output == Format::Wide;
        let headers = !show.no_headers;
        let clusters = answers.clusters.iter();
        let mut out = CLUSTERS.listing.table(clusters, wide).render(headers, look);
        if !answers.networks.is_empty() {
            out.push('\n');
            let networks = answers.networks.iter();
            out += &NETWORKS.listing.table(networks, wide).render(headers, look);
        }
        let proxies: Vec<_> =
            answers.proxies.iter().filter(|row| !proxy::is_of_agent(row)).collect();
        let count = |wanted: fn(&TypeDelivery) -> bool| {
            proxies.iter().filter(|row| row.types.values().any(wanted)).count()
        };
        let rejecting = count(|entry| entry.nack.is_some());
        let behind = count(|entry| entry.nack.is_some() || entry.sent != entry.acked);
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
            vec!["NOTES".into(), format!("{notes} (strait check)").into()],
            vec!["PROBLEMS".into(), or_bad(problems.len(), problems.len().to_string())],
        ];
        let missing = &answers.replicas.missing_replicas;
        if !missing.is_empty() {
            let names = missing.iter().map(text).collect::<Vec<_>>().join(", ");
            rows.push(vec!["MISSING".into(), Cell::bad(format!("replica {names}"))]);
        }
        if !conflicts.is_empty() {
            rows.insert(2, vec!["CONFLICTS".into(), Cell::doubtful(conflicts.len().to_string())]);
        }
        out += &output::table(&[], rows, look);
        out += &hold::line(&answers.hold, look).unwrap_or_default();
        out += &rollout::line(&answers.rollout, look).unwrap_or_default();
        out.extend(problems.iter().map(|one| format!("  {one}\n")));
        out.extend(conflicts.iter().take(CONFLICTS_SHOWN).map(|one| format!("  {one}\n")));
        if conflicts.len() > CONFLICTS_SHOWN {
            out += &format!(
                "  and {} more conflicts (strait check services)\n",
                conflicts.len() - CONFLICTS_SHOWN
            );
        }
        out
    }
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
