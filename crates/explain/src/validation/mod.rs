//! Says of objects of the mesh's configuration, before an API server stores them, what would become of them.
//!
//! Judges by what judges stored objects ([`crate::ConfigTrials`]), and puts its answer into the words of
//! `admission.k8s.io/v1`. What can't be read is refused; what has no effect in part, or names what isn't there (yet), is
//! stored with warnings. Whatever it doesn't know, and whatever is to be deleted, may be.

mod counts;
mod review;

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

pub use self::counts::{ValidationCounts, ValidationResult};
use crate::{ConfigReports, ConfigTrials};
use strait_mesh::push::PushContext;
use strait_rules::access::PolicyErrors;

/// Answers API servers.
pub struct Validator {
    context: watch::Receiver<Option<Arc<PushContext>>>,
    reports: watch::Receiver<Arc<ConfigReports>>,
    trials: ConfigTrials,
    counts: Arc<ValidationCounts>,
}

impl Validator {
    /// One that judges by this mesh and these objects of it, each as it is when it is asked.
    pub fn new(
        context: watch::Receiver<Option<Arc<PushContext>>>,
        reports: watch::Receiver<Arc<ConfigReports>>,
        errors: PolicyErrors,
        counts: Arc<ValidationCounts>,
    ) -> Self {
        Self { context, reports, trials: ConfigTrials::new(errors), counts }
    }

    /// The answer to an AdmissionReview. Works for milliseconds, and waits for nobody but others that ask.
    ///
    /// # Errors
    /// The text is no AdmissionReview of the version that we know.
    pub fn answer(&self, body: &[u8]) -> Result<String, String> {
        let context = self.context.borrow().clone();
        let reports = Arc::clone(&self.reports.borrow());
        let judge = |object: &Arc<Value>| match &context {
            Some(context) => Ok(self.trials.verdict(context, &reports, object)),
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
