//! Counters of the pods that the webhook handled, by result.

use std::sync::atomic::{AtomicU64, Ordering};

/// The result of one admission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectionResult {
    /// The pod received a sidecar.
    Injected,
    /// The pod is unchanged.
    Skipped,
    /// The pod was rejected.
    Refused,
    /// The request was invalid.
    Failed,
}

/// The number of admission requests by result.
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

    /// Returns the name and the count of each result.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::RESULTS
            .iter()
            .map(|(result, name)| (*name, self.0[*result as usize].load(Ordering::Relaxed)))
    }
}
