//! `strait status`: the mesh on one screen, problems last.

use clap::Args;
use serde_json::{Value, json};

use super::check::{Answers, is_problem, problems};
use super::client::{Client, Connect};
use super::cluster::CLUSTERS;
use super::failure::{Exit, Outcome};
use super::list::{Follow, Shown, watch_pause};
use super::network::NETWORKS;
use super::output::{self, Cell, Format, Look, Render, Show, items, text};

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
pub(crate) async fn run(args: &StatusArgs) -> Outcome {
    let client = Client::new(&args.connect)?;
    let deadline = args.follow.wait.deadline();
    let mut shown = Shown::default();
    loop {
        let answers = Answers::of(&client).await?;
        let found = problems(&answers);
        let bad = found.iter().any(is_problem);
        if bad && deadline.pause().await {
            continue;
        }
        let whole = whole(answers, &found);
        let look = Look::of_stdout();
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

/// What is shown, as one object.
pub(super) fn whole(answers: Answers, found: &[Value]) -> Value {
    let problems: Vec<String> = found.iter().filter(|row| is_problem(row)).map(line).collect();
    let notes = found.iter().filter(|row| !is_problem(row)).count();
    let Answers { clusters, networks, proxies, .. } = answers;
    json!({
        "clusters": clusters, "networks": networks, "proxies": proxies,
        "problems": problems, "notes": notes,
    })
}

/// A finding in a line: `cluster east: STR0301: stale: refused`.
fn line(row: &Value) -> String {
    let [object, code, fact] = ["object", "code", "fact"].map(|part| text(&row[part]));
    let object = object.replacen('/', " ", 1);
    match fact.contains(&code) {
        true => format!("{object}: {fact}"),
        false => format!("{object}: {code}: {fact}"),
    }
}

pub(super) fn render(whole: &Value, show: &Show, look: &Look) -> String {
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
    let problems = items(&whole["problems"]);
    let or_bad =
        |count: usize, text: String| if count == 0 { text.into() } else { Cell::bad(text) };
    out.push('\n');
    out += &output::table(
        &[],
        vec![
            vec![
                "PROXIES".into(),
                format!("{} connected", proxies.len()).into(),
                format!("{} in sync", proxies.len() - behind).into(),
                or_bad(rejecting, format!("{rejecting} rejecting")),
                format!("{} waiting", behind - rejecting).into(),
            ],
            vec!["NOTES".into(), format!("{} (strait check)", text(&whole["notes"])).into()],
            vec!["PROBLEMS".into(), or_bad(problems.len(), problems.len().to_string())],
        ],
        look,
    );
    out.extend(
        problems.iter().map(|problem| format!("  {}\n", problem.as_str().unwrap_or_default())),
    );
    out
}
