//! Problems of entries, with their effect.

use std::fmt;

use super::convert::Fault;
use strait_model::WorkloadKey;

/// A problem of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryProblem {
    /// `ServiceEntry` or `WorkloadEntry`.
    pub kind: &'static str,
    /// Namespace and name of the object.
    pub object: WorkloadKey,
    /// Field and description of the error.
    pub fault: Fault,
    /// Whether the whole object is refused, not only a part.
    pub refused: bool,
    /// Effect of the problem.
    pub effect: &'static str,
    /// The ServiceEntry of another namespace that has the host instead.
    pub holder: Option<WorkloadKey>,
}

impl EntryProblem {
    /// Creates a problem of a part of a ServiceEntry.
    pub(super) fn for_part(object: &WorkloadKey, fault: Fault, effect: &'static str) -> Self {
        let (kind, object) = ("ServiceEntry", object.clone());
        Self { kind, object, fault, refused: false, effect, holder: None }
    }
}

impl fmt::Display for EntryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, object, fault, effect, .. } = self;
        write!(f, "{kind} {}/{}: {fault}; {effect}", object.namespace, object.name)
    }
}
