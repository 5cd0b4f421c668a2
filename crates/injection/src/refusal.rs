//! The results of an injection: the changed pod, the reason to skip it, or the refusal.

use std::fmt;

use serde_json::Value;

use strait_base::codes::Code;

/// The result of injecting one pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Injection {
    /// The pod received a sidecar.
    Injected {
        /// The pod with its sidecar.
        pod: Value,
        /// Warnings for the pod's owner: the pod works, but perhaps not as expected.
        warnings: Vec<String>,
    },
    /// The pod is unchanged.
    Skipped(SkipReason),
    /// The pod must not be created in this form.
    Refused(InjectRefusal),
}

/// The reason why a pod is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// The pod declines injection by label or annotation.
    Declined,
    /// The namespace belongs to Kubernetes or to a cluster's storage.
    NeverThere,
    /// The namespace is the control plane's, and the pod does not request injection.
    SystemNamespace,
    /// The pod uses its node's network, so its traffic can't be redirected.
    HostNetwork,
    /// The pod already has its sidecar.
    Already,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Declined => "its label or annotation disables injection",
            Self::NeverThere => "injection never applies to that namespace",
            Self::SystemNamespace => {
                "in the control plane's namespace, only pods that request injection are injected"
            }
            Self::HostNetwork => "it uses its node's network",
            Self::Already => "it already has a sidecar",
        })
    }
}

/// The reason why a pod must not be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectRefusal {
    /// The error code, for `strait help`.
    pub code: &'static Code,
    /// The reason, with the names of the affected fields.
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
