//! What of the entries is not used as it is, and what becomes of it.

use std::fmt;

use super::convert::Fault;
use strait_model::WorkloadKey;

/// An object that can't be used as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryProblem {
    /// `ServiceEntry` or `WorkloadEntry`.
    pub kind: &'static str,
    /// Namespace and name of the object.
    pub object: WorkloadKey,
    /// What is wrong with it.
    pub fault: Fault,
    /// Whether that is wrong with the whole of it, so that it can't be read.
    pub refused: bool,
    /// What becomes of it.
    pub effect: &'static str,
    /// The ServiceEntry of another namespace that has the host instead.
    pub holder: Option<WorkloadKey>,
}

impl EntryProblem {
    /// What is wrong with a part of a ServiceEntry.
    pub(super) fn of_part(object: &WorkloadKey, fault: Fault, effect: &'static str) -> Self {
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
