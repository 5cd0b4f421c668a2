//! How many objects came, and what was said of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What was said of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationResult {
    /// It may be stored.
    Allowed,
    /// It may be, and its owner should know something.
    Warned,
    /// It may not be.
    Refused,
    /// What came was no question that can be answered.
    Failed,
}

/// Counts by result.
#[derive(Debug, Default)]
pub struct ValidationCounts([AtomicU64; 4]);

impl ValidationCounts {
    const RESULTS: [(ValidationResult, &'static str); 4] = [
        (ValidationResult::Allowed, "allowed"),
        (ValidationResult::Warned, "warned"),
        (ValidationResult::Refused, "refused"),
        (ValidationResult::Failed, "failed"),
    ];

    /// Counts one.
    pub fn count(&self, result: ValidationResult) {
        self.0[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each result by its name, with its count.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::RESULTS
            .iter()
            .map(|(result, name)| (*name, self.0[*result as usize].load(Ordering::Relaxed)))
    }
}
