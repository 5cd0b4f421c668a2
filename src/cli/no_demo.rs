//! `strait demo` in a program that is built without the demo, for example the program in the
//! images.

use clap::Args;

pub(super) use self::AbsentDemo as DemoArgs;
use super::failure::{CommandFailure, CommandResult};

/// Run a complete mesh on this machine, with nothing installed
#[derive(Debug, Args)]
pub(super) struct AbsentDemo {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<String>,
}

/// Reports how to run the demo.
pub(super) async fn run(_: &AbsentDemo) -> CommandResult {
    let message = "this program is built without the demo, like the programs in the images";
    Err(CommandFailure::usage(message)
        .next("In a checkout of Strait, run: cargo run --release -- demo"))
}
