//! Counts of validated objects, by result.

use std::sync::atomic::{AtomicU64, Ordering};

/// Result of the validation of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationResult {
    /// The object may be stored.
    Allowed,
    /// The object may be stored, with warnings.
    Warned,
    /// The object may not be stored.
    Refused,
    /// The request was invalid.
    Failed,
}

/// Number of validations, by result.
#[derive(Debug, Default)]
pub struct ValidationCounts([AtomicU64; 4]);

impl ValidationCounts {
    const RESULTS: [(ValidationResult, &'static str); 4] = [
        (ValidationResult::Allowed, "allowed"),
        (ValidationResult::Warned, "warned"),
        (ValidationResult::Refused, "refused"),
        (ValidationResult::Failed, "failed"),
    ];

    /// Counts one validation.
    pub fn count(&self, result: ValidationResult) {
        self.0[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the name of each result with its count.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::RESULTS
            .iter()
            .map(|(result, name)| (*name, self.0[*result as usize].load(Ordering::Relaxed)))
    }
}
