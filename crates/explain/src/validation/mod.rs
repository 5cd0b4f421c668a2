//! Validation webhook: reviews objects of the mesh's configuration before an API server stores
//! them.
//!
//! It uses the same functions as for stored objects ([`crate::ConfigTrials`]), and formats the
//! result as `admission.k8s.io/v1`. An object that is invalid or contains an error is refused,
//! unless [`ValidationMode::Warn`] is set. An object with parts without effect, or with references
//! to objects that do not exist yet, is stored with warnings. Objects of unknown kinds and
//! deletions are always allowed.

mod counts;
mod review;

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

pub use self::counts::{ValidationCounts, ValidationResult};
use crate::{ConfigReports, ConfigTrials, ObjectVerdict};
use strait_mesh::push::PushContext;
use strait_rules::access::PolicyErrors;

/// How the webhook treats objects with errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValidationMode {
    /// Refuse the objects.
    #[default]
    Reject,
    /// Allow the objects, with warnings.
    Warn,
}

/// Responds to the requests of API servers.
pub struct Validator {
    context: watch::Receiver<Option<Arc<PushContext>>>,
    reports: watch::Receiver<Arc<ConfigReports>>,
    trials: ConfigTrials,
    mode: ValidationMode,
    counts: Arc<ValidationCounts>,
}

impl Validator {
    /// Creates a validator that uses the current mesh and objects at the time of each request.
    pub fn new(
        context: watch::Receiver<Option<Arc<PushContext>>>,
        reports: watch::Receiver<Arc<ConfigReports>>,
        errors: PolicyErrors,
        mode: ValidationMode,
        counts: Arc<ValidationCounts>,
    ) -> Self {
        Self { context, reports, trials: ConfigTrials::new(errors), mode, counts }
    }

    /// Returns the response to an AdmissionReview. It takes milliseconds, and waits only for
    /// concurrent reviews.
    ///
    /// # Errors
    /// If the body is not an AdmissionReview of a supported version.
    pub fn answer(&self, body: &[u8]) -> Result<String, String> {
        let context = self.context.borrow().clone();
        let reports = Arc::clone(&self.reports.borrow());
        let judge = |object: &Arc<Value>| match &context {
            Some(context) => {
                let verdict = self.trials.verdict(context, &reports, object);
                let rejects = self.mode == ValidationMode::Reject;
                Ok(verdict
                    .map(|one| ObjectVerdict { is_refused: one.is_refused && rejects, ..one }))
            }
            None => Err("the control plane has not read the mesh yet"),
        };
        match review::answer(body, judge) {
            Ok((answer, result)) => {
                self.counts.count(result);
                Ok(answer.to_string())
            }
            Err(reason) => {
                self.counts.count(ValidationResult::Failed);
                Err(reason)
            }
        }
    }
}
