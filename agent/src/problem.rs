//! Errors for operators: the fact with its object, the next step, and a code that `strait help` explains.

use std::fmt;

/// An error for the operator of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `STR` and four digits, documented in `strait help`.
    pub(crate) code: &'static str,
    /// The fact, with the affected object.
    pub(crate) fact: String,
    /// The next step.
    pub(crate) next: &'static str,
}

impl Problem {
    pub(crate) fn new(code: &'static str, fact: impl Into<String>, next: &'static str) -> Self {
        Self { code, fact: fact.into(), next }
    }

    /// Returns whether the pod's token is missing or was refused.
    pub(crate) fn is_about_token(&self) -> bool {
        matches!(self.code, "STR0952" | "STR0955")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}; next: {}", self.code, self.fact, self.next)
    }
}

impl std::error::Error for Problem {}

/// Returns an error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let fact = error.to_string();
        // Many errors repeat the text of their cause.
        if !text.contains(&fact) {
            text = format!("{text}: {fact}");
        }
        cause = error.source();
    }
    text
}
