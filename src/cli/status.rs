//! `strait status`: the mesh on one screen, problems last.

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, Connect};
use super::cluster::CLUSTERS;
use super::failure::{Exit, Failure, Outcome};
use super::network::NETWORKS;
use super::output::{self, Cell, Format, Look, Render, Show, items, text};
use super::proxy;

/// `strait status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

/// Runs `strait status`.
pub(crate) async fn run(args: &StatusArgs) -> Outcome {
    let client = Client::new(&args.connect)?;
    let clusters = client.get("/debug/clusters", &[]).await?.value;
    let proxies = client.get("/debug/proxies", &[]).await?.value;
    // Without a complete mesh there are no networks yet, but the clusters say what it waits for.
    let (networks, not_ready) = match client.get("/debug/networks", &[]).await {
        Ok(answer) => (answer.value, None),
        Err(failure) if failure.exit == Exit::Unhealthy => (json!([]), Some(failure)),
        Err(failure) => return Err(failure),
    };
    let sources = client.get("/debug/sources", &[]).await?.value;
    let mesh = match not_ready {
        Some(_) => Value::Null,
        None => client.get("/debug/mesh", &[]).await?.value,
    };
    let mut problems = problems(&clusters, &proxies, not_ready.as_ref());
    problems.extend(beside_clusters(&sources, &mesh));
    let whole = json!({
        "clusters": clusters, "networks": networks, "proxies": proxies, "problems": problems,
    });
    output::print(&match args.show.output {
        Format::Json => format!("{whole:#}\n"),
        Format::Yaml => output::yaml(&whole),
        _ => render(&whole, &args.show, &Look::of_stdout()),
    })?;
    Ok(if problems.is_empty() { Exit::Fine } else { Exit::Unhealthy })
}

pub(super) fn problems(
    clusters: &Value,
    proxies: &Value,
    not_ready: Option<&Failure>,
) -> Vec<String> {
    let mut found: Vec<String> =
        not_ready.map(|failure| failure.message().to_owned()).into_iter().collect();
    for row in items(clusters) {
        let (id, state) = (text(&row["id"]), text(&row["state"]));
        let reason = row["reason"].as_str().filter(|reason| !reason.is_empty());
        if !super::cluster::is_well(row) {
            let why = reason.map(|reason| format!(": {}", output::clean(reason)));
            found.push(format!("cluster {id}: {state}{}", why.unwrap_or_default()));
        } else if let Some(reason) = reason.filter(|_| state == "live") {
            // A working cluster whose update was refused goes on with the old one.
            found.push(format!("cluster {id}: {}", output::clean(reason)));
        }
        if let Some(count) = row["withheld"].as_u64().filter(|count| *count > 0) {
            let network = text(&row["network"]);
            found.push(format!("cluster {id}: {count} endpoints are withheld from proxies of other networks (strait network get {network})"));
        }
    }
    for row in items(proxies) {
        for (kind, entry) in row["types"].as_object().into_iter().flatten() {
            if !entry["nack"].is_null() {
                let kind = output::clean(&kind.to_uppercase());
                let error = text(&entry["nack"]["error"]);
                found.push(format!("proxy {} rejected {kind}: {error}", proxy::name(row)));
            }
        }
    }
    found
}

/// What is wrong with sources that are no member clusters, and with the mesh's settings.
pub(super) fn beside_clusters(sources: &Value, mesh: &Value) -> Vec<String> {
    let found = super::check::of_sources(sources).into_iter().chain(super::check::of_mesh(mesh));
    found
        .filter(|row| row["severity"] != "note")
        .map(|row| {
            let [object, code, fact] = ["object", "code", "fact"].map(|part| text(&row[part]));
            let object = object.replacen('/', " ", 1);
            format!("{object}: {code}: {fact}")
        })
        .collect()
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
            vec!["PROBLEMS".into(), or_bad(problems.len(), problems.len().to_string())],
        ],
        look,
    );
    out.extend(
        problems.iter().map(|problem| format!("  {}\n", problem.as_str().unwrap_or_default())),
    );
    out
}
