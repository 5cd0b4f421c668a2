//! The conditions that Strait wrote into the ServiceExports of a cluster, which outlive its membership.

use serde_json::{Value, json};

use super::api::ClusterApi;
use super::done;
use super::mcs_purge::VERSIONS;
use crate::cli::failure::CommandFailure;
use crate::cli::output::{items, text};
use strait_model::MCS_API;

/// The field manager of the control plane.
const MANAGER: &str = "strait";

/// The ServiceExports with conditions that Strait wrote.
#[derive(Debug, Default)]
pub(super) struct ExportConditions(Vec<ConditionedExport>);

#[derive(Debug)]
struct ConditionedExport {
    path: String,
    /// The merge patch that removes Strait's conditions from this version of the object.
    patch: Value,
}

impl ExportConditions {
    /// Lists the ServiceExports of a cluster.
    pub(super) async fn list(cluster: &ClusterApi) -> Result<Self, CommandFailure> {
        for version in VERSIONS {
            let api = format!("/apis/{MCS_API}/{version}");
            let Some(list) = cluster.get(&format!("{api}/serviceexports")).await? else { continue };
            return Ok(Self(
                items(&list["items"]).iter().filter_map(|one| of(&api, one)).collect(),
            ));
        }
        Ok(Self::default())
    }

    /// Returns a line of the plan; `None` without conditions.
    pub(super) fn describe(&self) -> Option<String> {
        match self.0.len() {
            0 => None,
            1 => Some("  the conditions of 1 ServiceExport\n".to_owned()),
            count => Some(format!("  the conditions of {count} ServiceExports\n")),
        }
    }

    /// Removes the conditions. The conditions of an export that cannot be changed stay, and are
    /// reported.
    pub(super) async fn remove(&self, cluster: &ClusterApi) {
        for ConditionedExport { path, patch } in &self.0 {
            if let Err(failure) = cluster.merge(&format!("{path}/status"), patch).await {
                done(&format!("the conditions of {path} stay: {}", failure.message()));
            }
        }
    }
}

/// Returns an export with conditions that Strait wrote.
fn of(api: &str, export: &Value) -> Option<ConditionedExport> {
    let metadata = &export["metadata"];
    let is_ours = |entry: &&Value| entry["manager"] == MANAGER && entry["subresource"] == "status";
    let owned = items(&metadata["managedFields"]).iter().filter(is_ours);
    let owned: Vec<&Value> =
        owned.map(|entry| &entry["fieldsV1"]["f:status"]["f:conditions"]).collect();
    let is_owned = |condition: &&Value| {
        let key = format!("k:{}", json!({ "type": condition["type"] }));
        owned.iter().any(|fields| fields.get(&key).is_some())
    };
    let (ours, others): (Vec<&Value>, Vec<&Value>) =
        items(&export["status"]["conditions"]).iter().partition(is_owned);
    (!ours.is_empty()).then(|| ConditionedExport {
        path: format!(
            "{api}/namespaces/{}/serviceexports/{}",
            text(&metadata["namespace"]),
            text(&metadata["name"])
        ),
        patch: json!({
            "metadata": { "resourceVersion": metadata["resourceVersion"] },
            "status": { "conditions": others },
        }),
    })
}
