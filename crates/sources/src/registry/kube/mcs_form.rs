//! Parts of ServiceExports and ServiceImports that several files read or write.

use serde::Deserialize;
use serde_json::{Value, json};

use strait_kube_client::{BorrowedText, Pairs, list, null_as_default};

/// A condition in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExportCondition {
    /// The type, for example `Valid`.
    pub(super) kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub(super) status: Box<str>,
    pub(super) reason: Box<str>,
    pub(super) message: Box<str>,
    /// The time of the last transition of the status, as written.
    pub(super) since: Box<str>,
    /// The generation of the object to which the condition refers; 0 if not stated.
    pub(super) observed: i64,
}

impl ExportCondition {
    /// Returns a condition without a time and a generation.
    pub(super) fn new(kind: &str, status: bool, reason: &str, message: &str) -> Self {
        Self {
            kind: kind.into(),
            status: if status { "True" } else { "False" }.into(),
            reason: reason.into(),
            message: message.into(),
            since: Box::default(),
            observed: 0,
        }
    }

    /// Returns the condition with its last transition time. An unchanged status keeps its time.
    pub(super) fn dated(self, current: &[Self]) -> Self {
        let same = |one: &&Self| (&one.kind, &one.status) == (&self.kind, &self.status);
        let since = current.iter().find(same).map(|current| current.since.clone());
        Self { since: since.unwrap_or_default(), ..self }
    }

    /// Returns the condition as JSON. A condition without a transition time gets `now`.
    pub(super) fn to_json(&self, now: &str) -> Value {
        let since = if self.since.is_empty() { now } else { &self.since };
        let mut json = json!({
            "type": self.kind, "status": self.status, "reason": self.reason,
            "message": self.message, "lastTransitionTime": since,
        });
        if self.observed > 0 {
            json["observedGeneration"] = self.observed.into();
        }
        json
    }
}

/// The specification of either kind.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct McsSpec<'a> {
    #[serde(borrow)]
    pub(super) r#type: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "list")]
    pub(super) ips: Vec<BorrowedText<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    pub(super) ip_families: Vec<BorrowedText<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    pub(super) ports: Vec<ServiceImportPort<'a>>,
    #[serde(borrow)]
    pub(super) session_affinity: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) session_affinity_config: ImportAffinity,
    #[serde(borrow)]
    pub(super) internal_traffic_policy: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) traffic_distribution: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) exported_labels: Pairs<'a>,
    #[serde(borrow)]
    pub(super) exported_annotations: Pairs<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ImportAffinity {
    #[serde(rename = "clientIP", deserialize_with = "null_as_default")]
    pub(super) client_ip: ImportClientIp,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ImportClientIp {
    #[serde(deserialize_with = "null_as_default")]
    pub(super) timeout_seconds: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServiceImportPort<'a> {
    #[serde(borrow)]
    pub(super) name: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) protocol: BorrowedText<'a>,
    #[serde(borrow)]
    pub(super) app_protocol: BorrowedText<'a>,
    pub(super) port: i64,
}
