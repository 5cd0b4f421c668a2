//! Metrics of the application. Prometheus has no certificate of the mesh, so it scrapes the agent, which returns the
//! application's metrics together with Envoy's.

use serde_json::{Value, json};

use super::object::{Fields, text};

const SCRAPE: &str = "prometheus.io/scrape";
const PORT: &str = "prometheus.io/port";
const PATH: &str = "prometheus.io/path";
pub(super) const MERGE: &str = "prometheus.istio.io/merge-metrics";

/// Returns the port and path of the application's metrics, for the agent. `None` if the annotations define none, or
/// disable merging.
pub(super) fn application_metrics(annotations: &Value) -> Option<Value> {
    if text(annotations, SCRAPE) != Some("true") || text(annotations, MERGE) == Some("false") {
        return None;
    }
    let port: u16 = text(annotations, PORT)?.parse().ok().filter(|port| *port > 0)?;
    Some(json!({ "port": port, "path": text(annotations, PATH).unwrap_or("/metrics") }))
}

/// Points the scrape annotations at the agent.
pub(super) fn redirect(annotations: &mut Fields) {
    annotations.insert(PORT.into(), json!("15020"));
    annotations.insert(PATH.into(), json!("/stats/prometheus"));
}
