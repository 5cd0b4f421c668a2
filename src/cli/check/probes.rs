//! `strait check --traffic --probes`: the last results of the probe in each cluster, read through
//! the cluster's API server.
//!
//! A command can only send requests from its own machine. The probes of the chart `strait-member`
//! send requests from their clusters continuously and store the results. This module reads these
//! results with the rights of the operator and does not contact the control plane.

use serde_json::{Value, json};

use super::schedule::ROUND_PATH;
use crate::cli::cluster::api::Hub;
use crate::cli::failure::CommandFailure;
use crate::cli::output::{items, text};
use strait_base::codes;

/// Label selector for the chart's probes in a URL, and the port on which they serve their results.
const PROBES: &str = "app.kubernetes.io%2Fname%3Dstrait-probe";
const PORT: u16 = 9464;

/// Returns the results of the probes in the clusters of `contexts`. A cluster that cannot be
/// queried gets a row with the reason, and the others are unaffected.
pub(super) async fn gather(hub: &Hub, contexts: &[String]) -> Result<Vec<Value>, CommandFailure> {
    let mut rows = Vec::new();
    for context in contexts {
        // An unknown context is a usage error, not an outage.
        let cluster = hub.remote(context).await?;
        let response = async {
            let list = cluster.get(&format!("/api/v1/pods?labelSelector={PROBES}")).await?;
            let Some((namespace, pod)) = youngest(list.as_ref()) else { return Ok(None) };
            let path =
                format!("/api/v1/namespaces/{namespace}/pods/{pod}:{PORT}/proxy{ROUND_PATH}");
            cluster.get(&path).await
        };
        rows.extend(match response.await {
            Ok(Some(round)) => found(context, &round),
            Ok(None) => vec![failed_probe(
                context,
                "no running pod with the label app.kubernetes.io/name=strait-probe serves results there",
            )],
            Err(failure) => vec![failed_probe(context, failure.message())],
        });
    }
    Ok(rows)
}

/// Returns the newest running pod: an older one is about to end.
fn youngest(list: Option<&Value>) -> Option<(String, String)> {
    let pods = items(&list?["items"]).iter().filter(|pod| pod["status"]["phase"] == "Running");
    let pod = pods.max_by_key(|pod| text(&pod["metadata"]["creationTimestamp"]))?;
    let name = |field: &str| pod["metadata"][field].as_str().map(str::to_owned);
    Some((name("namespace")?, name("name")?))
}

/// Returns the rows of one probe: its last requests with their time, and a row for the reason if
/// its last round failed.
fn found(context: &str, round: &Value) -> Vec<Value> {
    let from = round["from"].as_str().unwrap_or(context);
    let at = &round["at"];
    let mut rows: Vec<Value> = items(&round["requests"]).to_vec();
    for row in &mut rows {
        row["at"] = at.clone();
    }
    if let Some(problem) = round["problem"].as_str() {
        rows.push(failed_probe(from, &format!("the last round of the probe failed: {problem}")));
    } else if at.is_null() {
        rows.push(failed_probe(from, "the probe has not sent requests yet"));
    }
    rows
}

fn failed_probe(from: &str, fact: &str) -> Value {
    json!({
        "from": from, "to": null, "network": null, "gateway": null, "endpoint": null, "service": null, "identity": null, "answer": null, "ms": null, "at": null,
        "steps": [{ "step": "probe", "ok": false, "code": codes::PROBE_AWAY.id, "detail": fact }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_running_pod_is_queried() {
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
    fn last_results_of_a_probe_stay_if_a_round_fails() {
        let request = json!({ "from": "east", "to": "west", "steps": [] });
        let rows_of = |round: Value| {
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
            rows_of(json!({ "from": "east", "at": at, "problem": null, "requests": [request] })),
            std::slice::from_ref(&request_row)
        );
        assert_eq!(
            rows_of(
                json!({ "from": "east", "at": at, "problem": "nobody listens", "requests": [request] })
            ),
            [request_row, problem_row.clone()]
        );
        assert_eq!(
            rows_of(json!({ "from": "east", "at": null, "problem": null, "requests": [] })),
            [problem_row]
        );
    }
}
