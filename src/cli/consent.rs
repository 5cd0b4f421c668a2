//! Whether a command that changes something may: it shows its plan and asks, unless it is told not to.

use std::io::IsTerminal as _;

use clap::Args;

use super::failure::CommandFailure;
use super::output;

/// What a command does with its plan.
#[derive(Debug, Clone, Args)]
pub(super) struct Consent {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Don't ask
    #[arg(long, short)]
    yes: bool,
}

impl Consent {
    /// Shows the plan and asks whether to go on; `false` for a dry run.
    pub(super) async fn given(&self, plan: &str) -> Result<bool, CommandFailure> {
        output::say(format_args!("{plan}"));
        if self.dry_run {
            tell!("Dry run: nothing was changed.");
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() {
            return Err(CommandFailure::usage("there is no terminal to ask on").next("add --yes"));
        }
        output::say(format_args!("Continue? [Y/n] "));
        // On a thread of its own, so that Ctrl-C is heard meanwhile.
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
