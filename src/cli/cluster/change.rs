//! Common parts of commands that change clusters: consent, and reports of finished steps.

use clap::Args;

use super::api;
use crate::cli::consent::Consent;
use crate::cli::failure::CommandFailure;
use crate::cli::output::{self, OutputStyle};

/// Flags of commands that change clusters: the config cluster, and whether to ask for confirmation.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ClusterChange {
    #[command(flatten)]
    pub(in crate::cli) hub: api::Hub,
    #[command(flatten)]
    consent: Consent,
}

impl ClusterChange {
    /// Shows the plan and asks for confirmation. Returns `false` for a dry run.
    pub(in crate::cli) async fn confirmed(&self, plan: &str) -> Result<bool, CommandFailure> {
        self.consent.is_confirmed(plan).await
    }
}

/// Reports a finished step.
pub(in crate::cli) fn done(text: &str) {
    let look = OutputStyle::of_stdout();
    eprint_line!("{} {}", if look.unicode { "✓" } else { "+" }, output::clean(text));
}
