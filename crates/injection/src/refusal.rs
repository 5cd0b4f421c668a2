//! How an injection ends.

use std::fmt;

use serde_json::Value;

use strait_base::codes::Code;

/// What became of a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Injection {
    /// It has a sidecar now.
    Injected {
        /// The pod with it.
        pod: Value,
        /// What its owner should know: it works, and not as they may think.
        warnings: Vec<String>,
    },
    /// It stays as it is.
    Skipped(SkipReason),
    /// It must not be made as it is.
    Refused(InjectRefusal),
}

/// Why a pod stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// It says so itself.
    Declined,
    /// Its namespace is Kubernetes' own, or that of a cluster's storage.
    NeverThere,
    /// Its namespace is the control plane's, and it doesn't ask.
    SystemNamespace,
    /// It uses its node's network, so nothing of it can be redirected.
    HostNetwork,
    /// It has its sidecar.
    Already,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Declined => "it declines by label or annotation",
            Self::NeverThere => "nothing is injected in that namespace",
            Self::SystemNamespace => {
                "in the control plane's namespace only pods that ask for it are injected"
            }
            Self::HostNetwork => "it uses its node's network",
            Self::Already => "it has its sidecar already",
        })
    }
}

/// Why a pod must not be made as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectRefusal {
    /// The kind of trouble, for `strait help`.
    pub code: &'static Code,
    /// The fact, with the names of what it is about.
    pub fact: String,
}

impl InjectRefusal {
    pub(super) fn new(code: &'static Code, fact: impl Into<String>) -> Self {
        Self { code, fact: fact.into() }
    }
}

impl fmt::Display for InjectRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.code.id, self.fact, self.code.next.replace('\n', " "))
    }
}

impl std::error::Error for InjectRefusal {}
