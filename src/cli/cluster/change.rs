//! What commands that change clusters have in common: whether they ask, and how they say what is done.

use clap::Args;

use super::api;
use crate::cli::consent::Consent;
use crate::cli::failure::CommandFailure;
use crate::cli::output::{self, OutputStyle};

/// Where a command changes clusters, and what it does with its plan.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ClusterChange {
    #[command(flatten)]
    pub(in crate::cli) hub: api::Hub,
    #[command(flatten)]
    consent: Consent,
}

impl ClusterChange {
    /// Shows the plan and asks whether to go on; `false` for a dry run.
    pub(in crate::cli) async fn confirmed(&self, plan: &str) -> Result<bool, CommandFailure> {
        self.consent.given(plan).await
    }
}

/// A step that is done.
pub(in crate::cli) fn done(text: &str) {
    let look = OutputStyle::of_stdout();
    tell!("{} {}", if look.unicode { "✓" } else { "+" }, output::clean(text));
}
