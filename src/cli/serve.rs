//! `strait serve`: the control plane itself.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::failure::{Exit, Failure, Outcome};
use crate::config::{LogFormat, ServeArgs};
use crate::identity::{self, StoreTrouble};
use crate::server::{self, ServeError};

pub(super) async fn run(args: &ServeArgs) -> Outcome {
    start_logging(args)?;
    match server::run(args).await {
        Ok(()) => Ok(Exit::Fine),
        Err(error) => Err(Failure::new(exit(&error), format!("strait serve: {error}"))),
    }
}

fn exit(error: &ServeError) -> Exit {
    match error {
        ServeError::ClusterId { .. } => Exit::Usage,
        ServeError::Identity(identity::Error::Store { trouble, .. }) => match trouble {
            StoreTrouble::Unreachable => Exit::Unreachable,
            StoreTrouble::NoRights => Exit::NoRights,
            StoreTrouble::Unusable => Exit::Failed,
        },
        _ => Exit::Failed,
    }
}

/// Log lines go to standard error: standard output carries the one line that says where we listen.
fn start_logging(args: &ServeArgs) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&args.log_level).map_err(|error| {
        Failure::usage(format!(
            "--log-level {:?}: {error}; give a level such as info, or directives such as info,strait::xds=debug",
            args.log_level
        ))
    })?;
    // The client would log whole answers it can't decode, Secrets among them.
    let filter = ["kube_client=error", "hickory_resolver=error", "hickory_net=error"]
        .into_iter()
        .filter_map(|directive| directive.parse().ok())
        .fold(filter, EnvFilter::add_directive);
    let terminal = std::io::stderr().is_terminal();
    let format =
        args.log_format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Text => registry.with(lines.with_ansi(terminal)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    started.map_err(|error| Failure::failed(format!("logging can't start: {error}")))
}
