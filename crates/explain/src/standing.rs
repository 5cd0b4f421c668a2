//! Status of an object of the mesh's configuration: whether it is active, and the reasons
//! for parts without effect.

use strait_admin_api::{ObjectReason, ObjectState, ObjectStatus};
use strait_base::bounded::bounded;
use strait_base::codes::Code;
use strait_rules::traffic::Reason;

/// A finding about an access policy: its code, the path in the object, and the consequence.
pub(super) type PolicyFinding = (&'static Code, String, String);

/// Status of an object, from which an entry of `/debug/config` is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigState {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The store that contains the object: `config` for the stores that apply to the whole mesh,
    /// `member` for the store of [`Self::cluster`].
    pub store: &'static str,
    /// The cluster to whose proxies the object applies, if the object comes from that cluster.
    pub cluster: Option<String>,
    /// Summary of the status.
    pub state: ObjectStanding,
    /// Number of node IDs whose configuration the object affects.
    pub proxies: usize,
    /// Reasons for the status, and warnings.
    pub reasons: Vec<ConfigReason>,
}

/// Summary of an object's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectStanding {
    /// All of the object is active.
    InForce,
    /// A part of it has no effect.
    Partly,
    /// Other objects take precedence wherever it could apply.
    Shadowed,
    /// The object is invalid.
    Refused,
    /// No known client could use the object, connected or not.
    Unused,
    /// The object takes effect after the release of a held configuration.
    Waiting,
}

/// A finding about a part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigReason {
    /// Code of the finding.
    pub code: &'static str,
    /// Path of the part, for example `spec.http[1].route[0]`.
    pub path: String,
    /// The finding and its consequence.
    pub text: String,
}

impl ConfigReason {
    /// Creates a finding. Its texts are bounded.
    pub fn new(code: &Code, path: impl Into<String>, text: impl Into<String>) -> Self {
        let texts: [String; 2] = [path.into(), text.into()];
        let [path, text] = texts.map(bounded);
        Self { code: code.id, path, text }
    }
}

impl From<&Reason> for ConfigReason {
    fn from(reason: &Reason) -> Self {
        Self::new(reason.code, reason.path.clone(), reason.text.clone())
    }
}

impl From<ConfigReason> for ObjectReason {
    fn from(reason: ConfigReason) -> Self {
        Self { code: reason.code.to_owned(), path: reason.path, text: reason.text }
    }
}

impl From<ObjectStanding> for ObjectState {
    fn from(standing: ObjectStanding) -> Self {
        match standing {
            ObjectStanding::InForce => Self::InForce,
            ObjectStanding::Partly => Self::Partly,
            ObjectStanding::Shadowed => Self::Shadowed,
            ObjectStanding::Refused => Self::Refused,
            ObjectStanding::Unused => Self::Unused,
            ObjectStanding::Waiting => Self::Waiting,
        }
    }
}

impl From<ConfigState> for ObjectStatus {
    fn from(state: ConfigState) -> Self {
        Self {
            kind: state.kind,
            namespace: state.namespace,
            name: state.name,
            store: state.store.to_owned(),
            cluster: state.cluster,
            state: state.state.into(),
            proxies: state.proxies,
            reasons: state.reasons.into_iter().map(ObjectReason::from).collect(),
        }
    }
}
