//! Metrics of the application are asked of the agent, which answers with Envoy's as well: Prometheus has no certificate
//! of the mesh either.

use serde_json::{Value, json};

use super::object::{Fields, text};

const SCRAPE: &str = "prometheus.io/scrape";
const PORT: &str = "prometheus.io/port";
const PATH: &str = "prometheus.io/path";
const MERGE: &str = "prometheus.istio.io/merge-metrics";

/// Where the application's metrics are, as the agent is told; `None` where annotations tell of none.
pub(super) fn of_application(annotations: &Value) -> Option<Value> {
    if text(annotations, SCRAPE) != Some("true") || text(annotations, MERGE) == Some("false") {
        return None;
    }
    let port: u16 = text(annotations, PORT)?.parse().ok().filter(|port| *port > 0)?;
    Some(json!({ "port": port, "path": text(annotations, PATH).unwrap_or("/metrics") }))
}

/// Leads those who ask for metrics to the agent.
pub(super) fn redirect(annotations: &mut Fields) {
    annotations.insert(PORT.into(), json!("15020"));
    annotations.insert(PATH.into(), json!("/stats/prometheus"));
}
