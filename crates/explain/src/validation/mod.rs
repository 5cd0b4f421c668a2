//! Says of objects of the mesh's configuration, before an API server stores them, what would become of them.
//!
//! Judges by what judges stored objects ([`crate::ConfigTrials`]), and puts its answer into the words of
//! `admission.k8s.io/v1`. An object that can't be read, or holds an error, is refused, unless [`ValidationMode::Warn`] is set;
//! what has no effect in part, or names what isn't there (yet), is stored with warnings. Whatever it doesn't know, and
//! whatever is to be deleted, may be.

mod counts;
mod review;

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

pub use self::counts::{ValidationCounts, ValidationResult};
use crate::{ConfigReports, ConfigTrials, ObjectVerdict};
use strait_mesh::push::PushContext;
use strait_rules::access::PolicyErrors;

/// What the webhook does with objects that hold errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValidationMode {
    /// Refuses them.
    #[default]
    Reject,
    /// Has them stored, with warnings.
    Warn,
}

/// Answers API servers.
pub struct Validator {
    context: watch::Receiver<Option<Arc<PushContext>>>,
    reports: watch::Receiver<Arc<ConfigReports>>,
    trials: ConfigTrials,
    mode: ValidationMode,
    counts: Arc<ValidationCounts>,
}

impl Validator {
    /// One that judges by this mesh and these objects of it, each as it is when it is asked.
    pub fn new(
        context: watch::Receiver<Option<Arc<PushContext>>>,
        reports: watch::Receiver<Arc<ConfigReports>>,
        errors: PolicyErrors,
        mode: ValidationMode,
        counts: Arc<ValidationCounts>,
    ) -> Self {
        Self { context, reports, trials: ConfigTrials::new(errors), mode, counts }
    }

    /// The answer to an AdmissionReview. Works for milliseconds, and waits for nobody but others that ask.
    ///
    /// # Errors
    /// The text is no AdmissionReview of the version that we know.
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
