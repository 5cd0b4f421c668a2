//! What goes wrong, as it is told: the fact with its object, the next step, and a code that `strait help` explains.

use std::fmt;

/// One trouble for whoever runs the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `STR` and four digits; its page is in `strait help`.
    pub(crate) code: &'static str,
    /// What is so, of which object.
    pub(crate) fact: String,
    /// What to do about it.
    pub(crate) next: &'static str,
}

impl Problem {
    pub(crate) fn new(code: &'static str, fact: impl Into<String>, next: &'static str) -> Self {
        Self { code, fact: fact.into(), next }
    }

    /// Whether it is the pod's token that is not there, or not taken.
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

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let fact = error.to_string();
        // Many errors repeat their cause's text.
        if !text.contains(&fact) {
            text = format!("{text}: {fact}");
        }
        cause = error.source();
    }
    text
}
