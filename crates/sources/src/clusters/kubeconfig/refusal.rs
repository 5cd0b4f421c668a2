//! Why a kubeconfig, or a cluster in a Secret, is not used.

use std::fmt;

use strait_base::codes::{self, Code};

/// The reason why a kubeconfig, or a cluster in a Secret, is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeconfigRefusal {
    /// The error code.
    pub code: &'static Code,
    /// The path of the field, such as `users[0].user.exec`; empty for the whole file.
    pub field: String,
    /// The problem with the field. Never contains a credential.
    pub fact: String,
}

impl KubeconfigRefusal {
    pub(crate) fn new(
        code: &'static Code,
        field: impl Into<String>,
        fact: impl Into<String>,
    ) -> Self {
        Self { code, field: field.into(), fact: fact.into() }
    }

    /// Returns how an operator can fix it.
    pub fn next(&self) -> &'static str {
        self.code.next
    }

    /// Whether the file requests something a credential store must never do, as opposed to being
    /// invalid.
    pub(super) fn is_dangerous(&self) -> bool {
        [
            &codes::RUNS_PROGRAM,
            &codes::READS_FILE,
            &codes::SKIPS_VERIFICATION,
            &codes::IMPERSONATES,
            &codes::USES_PROXY,
        ]
        .contains(&self.code)
    }
}

impl fmt::Display for KubeconfigRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.code)?;
        if !self.field.is_empty() {
            write!(f, "{} ", self.field)?;
        }
        f.write_str(&self.fact)
    }
}

impl std::error::Error for KubeconfigRefusal {}
