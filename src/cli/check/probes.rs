//! `strait check --traffic --probes`: what the probe in each cluster found last, asked for by way of the cluster's API server.
//!
//! A command can only ask from where it runs. The probes of the chart `strait-member` ask from their clusters all the time and keep
//! what came of it; this reads that, with the rights that the operator has there, and asks the control plane nothing.

use serde_json::{Value, json};

use super::schedule::ROUND_PATH;
use crate::cli::cluster::api::Hub;
use crate::cli::failure::CommandFailure;
use crate::cli::output::{items, text};
use strait_base::codes;

/// The chart's name for probes, as a selector in a URL; and the port at which they tell what they found.
const PROBES: &str = "app.kubernetes.io%2Fname%3Dstrait-probe";
const PORT: u16 = 9464;

/// The requests of the probes in the clusters of `contexts`; of one that can't be asked a row that says why, which costs the others nothing.
pub(super) async fn gather(hub: &Hub, contexts: &[String]) -> Result<Vec<Value>, CommandFailure> {
    let mut rows = Vec::new();
    for context in contexts {
        // No such context is wrong usage, and nobody's outage.
        let cluster = hub.remote(context).await?;
        let asked = async {
            let list = cluster.get(&format!("/api/v1/pods?labelSelector={PROBES}")).await?;
            let Some((namespace, pod)) = youngest(list.as_ref()) else { return Ok(None) };
            let path =
                format!("/api/v1/namespaces/{namespace}/pods/{pod}:{PORT}/proxy{ROUND_PATH}");
            cluster.get(&path).await
        };
        rows.extend(match asked.await {
            Ok(Some(round)) => found(context, &round),
            Ok(None) => vec![unasked(
                context,
                "no pod labelled app.kubernetes.io/name=strait-probe runs there that tells what it found",
            )],
            Err(failure) => vec![unasked(context, failure.message())],
        });
    }
    Ok(rows)
}

/// The pod that runs, and the youngest of several: an older one is about to end.
fn youngest(list: Option<&Value>) -> Option<(String, String)> {
    let pods = items(&list?["items"]).iter().filter(|pod| pod["status"]["phase"] == "Running");
    let pod = pods.max_by_key(|pod| text(&pod["metadata"]["creationTimestamp"]))?;
    let name = |field: &str| pod["metadata"][field].as_str().map(str::to_owned);
    Some((name("namespace")?, name("name")?))
}

/// What a probe tells: its last requests, each with when it was sent, and why the last round could not be asked, if it could not.
fn found(context: &str, round: &Value) -> Vec<Value> {
    let from = round["from"].as_str().unwrap_or(context);
    let at = &round["at"];
    let mut rows: Vec<Value> = items(&round["requests"]).to_vec();
    for row in &mut rows {
        row["at"] = at.clone();
    }
    if let Some(problem) = round["problem"].as_str() {
        rows.push(unasked(from, &format!("its last round could not be asked: {problem}")));
    } else if at.is_null() {
        rows.push(unasked(from, "it has not asked yet"));
    }
    rows
}

fn unasked(from: &str, fact: &str) -> Value {
    json!({
        "from": from, "to": null, "network": null, "gateway": null, "endpoint": null, "service": null, "identity": null, "answer": null, "ms": null, "at": null,
        "steps": [{ "step": "probe", "ok": false, "code": codes::PROBE_AWAY.id, "detail": fact }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_pod_that_runs_is_asked() {
        let pod = |name: &str, phase: &str, at: &str| json!({ "metadata": { "namespace": "probes", "name": name, "creationTimestamp": at }, "status": { "phase": phase } });
        let list = json!({ "items": [
            pod("old", "Running", "2026-01-01T00:00:00Z"),
            pod("young", "Running", "2026-01-02T00:00:00Z"),
            pod("coming", "Pending", "2026-01-03T00:00:00Z"),
        ] });
        assert_eq!(youngest(Some(&list)), Some(("probes".to_owned(), "young".to_owned())));
        assert_eq!(youngest(Some(&json!({ "items": [] }))), None);
        assert_eq!(youngest(None), None);
    }

    #[test]
    fn what_a_probe_found_stands_while_it_can_not_ask() {
        let request = json!({ "from": "east", "to": "west", "steps": [] });
        let asked = |round: Value| {
            let rows = found("laptop", &round);
            rows.iter()
                .map(|row| (text(&row["from"]), text(&row["to"]), row["at"].is_string()))
                .collect::<Vec<_>>()
        };
        let east = || "east".to_owned();
        let request_row = (east(), "west".to_owned(), true);
        let problem_row = (east(), "<none>".to_owned(), false);
        let at = "2026-01-01T00:00:00Z";
        assert_eq!(
            asked(json!({ "from": "east", "at": at, "problem": null, "requests": [request] })),
            std::slice::from_ref(&request_row)
        );
        assert_eq!(
            asked(
                json!({ "from": "east", "at": at, "problem": "nobody listens", "requests": [request] })
            ),
            [request_row, problem_row.clone()]
        );
        assert_eq!(
            asked(json!({ "from": "east", "at": null, "problem": null, "requests": [] })),
            [problem_row]
        );
    }
}
