//! How many pods came, and what became of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a pod that the webhook was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectionResult {
    /// It has a sidecar.
    Injected,
    /// It is as it was.
    Skipped,
    /// It is not made.
    Refused,
    /// What came was no question that can be answered.
    Failed,
}

/// Counts by result.
#[derive(Debug, Default)]
pub struct InjectionCounts([AtomicU64; 4]);

impl InjectionCounts {
    const RESULTS: [(InjectionResult, &'static str); 4] = [
        (InjectionResult::Injected, "injected"),
        (InjectionResult::Skipped, "skipped"),
        (InjectionResult::Refused, "refused"),
        (InjectionResult::Failed, "failed"),
    ];

    pub(super) fn count(&self, result: InjectionResult) {
        self.0[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each result by its name, with its count.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::RESULTS
            .iter()
            .map(|(result, name)| (*name, self.0[*result as usize].load(Ordering::Relaxed)))
    }
}
