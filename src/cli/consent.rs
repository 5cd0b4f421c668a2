//! Confirmation of changes: a command prints its plan and asks, unless a flag disables the
//! question.

use std::io::IsTerminal as _;

use clap::Args;

use super::failure::CommandFailure;
use super::output;

/// Flags for the confirmation of a plan.
#[derive(Debug, Clone, Args)]
pub(super) struct Consent {
    /// Print what would change without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Don't ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

impl Consent {
    /// Prints the plan and asks for confirmation. Returns `false` for a dry run.
    pub(super) async fn is_confirmed(&self, plan: &str) -> Result<bool, CommandFailure> {
        output::eprint(format_args!("{plan}"));
        if self.dry_run {
            eprint_line!("Dry run: nothing was changed.");
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() {
            return Err(CommandFailure::usage("confirmation requires a terminal").next("add --yes"));
        }
        output::eprint(format_args!("Continue? [Y/n] "));
        // On a separate thread, so that Ctrl-C still works.
        let read = || {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|bytes| (bytes, line)).unwrap_or_default()
        };
        let (bytes, line) = tokio::task::spawn_blocking(read).await.unwrap_or_default();
        match line.trim().to_lowercase().as_str() {
            "" if bytes > 0 => Ok(true),
            "y" | "yes" => Ok(true),
            _ => Err(CommandFailure::failed("stopped; nothing was changed")),
        }
    }
}
