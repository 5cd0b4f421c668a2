//! What becomes of an object of the mesh's configuration, as it is shown.

use serde::Serialize;

use strait_base::bounded::bounded;
use strait_base::codes::Code;
use strait_rules::traffic::Reason;

/// A finding about an access policy: its code, the path in the object, and the consequence.
pub(super) type PolicyFinding = (&'static Code, String, String);

/// What becomes of an object: an entry of `/debug/config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigState {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of the stores it is from: `config` is all that are read as one for the whole mesh, `member` that of [`Self::cluster`].
    pub store: &'static str,
    /// The cluster whose proxies it is for, where it is that cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// In a word.
    pub state: ObjectStanding,
    /// How many node ids are given something because of it.
    pub proxies: usize,
    /// What its owner should know.
    pub reasons: Vec<ConfigReason>,
}

/// What becomes of an object, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ObjectStanding {
    /// All of it counts.
    InForce,
    /// A part of it has no effect.
    Partly,
    /// Others come first wherever it could hold.
    Shadowed,
    /// It can't be read.
    Refused,
    /// Nothing that is known could use it, whoever is connected.
    Unused,
    /// Another configuration is held: it counts once that is released.
    Waiting,
}

/// Something about a part of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigReason {
    /// What kind of thing it is.
    pub code: &'static str,
    /// Where: `spec.http[1].route[0]`.
    pub path: String,
    /// What was found, and what becomes of it.
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
