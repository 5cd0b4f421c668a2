//! `strait serve`: the control plane itself.

use std::io::{ErrorKind, IsTerminal};

use tracing::{debug, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::failure::{CommandFailure, CommandResult, Exit};
use strait_base::bounded::BoundedLines;
use strait_base::{codes, process};
use strait_model::Mcs;
use strait_server::ServeError;
use strait_server::admin::TokenError;
use strait_server::config::{LogFormat, PrometheusError, ServeArgs};
use strait_sources::policy_watch::PolicyError;
use strait_sources::store::own_cluster::OwnClusterError;

pub(super) async fn run(args: &ServeArgs) -> CommandResult {
    if args.mcs.mcs_auto_export && args.mcs.mcs == Mcs::Off {
        let text = "--mcs-auto-export has no effect while --mcs is off";
        return Err(CommandFailure::usage(text).next("enable exports: --mcs exports"));
    }
    start_logging(&args.log.log_level, args.log.log_format)?;
    raise_descriptors();
    match strait_server::run(args).await {
        Ok(()) => Ok(Exit::Fine),
        Err(error) => Err(failure(&error)),
    }
}

/// Raises the limit of file descriptors to the maximum: each proxy needs one, each member ten.
fn raise_descriptors() {
    let unlimited = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |it| it.to_string());
    match process::raise_descriptors() {
        Ok(Some((before, now))) => {
            debug!(before, now = unlimited(now), "raised the limit of file descriptors");
        }
        Ok(None) => {}
        Err(error) => warn!(%error, "can't raise the limit of file descriptors"),
    }
}

/// Returns the failure for a server that could not start.
///
/// | code | when |
/// |---|---|
/// | 64 | the command line has invalid syntax, or names an absent file, directory or context |
/// | 69 | the config cluster is required (it stores the CA) and does not respond |
/// | 77 | the config cluster denies access, or there is no credential for it |
/// | 1 | all other errors: a named object exists but is unusable, a port is in use |
///
/// After the start, no such error ends the server: it also waits for an unreachable config cluster.
fn failure(error: &ServeError) -> CommandFailure {
    let absent = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
    };
    let exit = match error {
        ServeError::Identity(error) => return CommandFailure::identity("strait serve: ", error),
        ServeError::Policy(PolicyError::Missing { .. }) => Exit::Usage,
        ServeError::ClusterId { .. }
        | ServeError::MemberAuthority { .. }
        | ServeError::Prometheus(PrometheusError::Plain { .. })
        | ServeError::ConfigCluster(
            OwnClusterError::Nowhere(_) | OwnClusterError::Missing(_) | OwnClusterError::Context(_),
        ) => Exit::Usage,
        ServeError::ConfigDir { source, .. }
        | ServeError::JwksRoots { source, .. }
        | ServeError::Prometheus(PrometheusError::File { source, .. })
        | ServeError::Token(TokenError::File { source, .. })
            if absent(source) =>
        {
            Exit::Usage
        }
        ServeError::ConfigCluster(OwnClusterError::Credential { .. }) => Exit::NoRights,
        _ => Exit::Failed,
    };
    let failure = CommandFailure::new(exit, format!("strait serve: {error}"));
    match error {
        ServeError::StateDir { .. } | ServeError::Token(TokenError::Write { .. }) => {
            failure.documented(&codes::UNWRITABLE)
        }
        ServeError::StateInUse { .. } => failure.documented(&codes::STATE_IN_USE),
        ServeError::Token(TokenError::Unfit { .. }) => failure.documented(&codes::ADMIN_TOKEN),
        _ => failure,
    }
}

/// Starts logging to standard error. Standard output only contains the line with the addresses that
/// the server listens on.
pub(super) fn start_logging(level: &str, format: Option<LogFormat>) -> Result<(), CommandFailure> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        CommandFailure::usage(format!(
            "--log-level {:?}: {error}; set a level (for example info) or directives (for example info,strait::xds=debug)",
            level
        ))
    })?;
    // The client would log entire responses that it cannot decode, including Secrets.
    let filter = ["kube_client=error", "hickory_resolver=error", "hickory_net=error"]
        .into_iter()
        .filter_map(|directive| directive.parse().ok())
        .fold(filter, EnvFilter::add_directive);
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    // A line that cannot be written is lost. Reporting the error would write to the same place and
    // panic.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| BoundedLines(std::io::stderr()))
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Text => registry.with(lines.with_ansi(terminal)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    started.map_err(|error| CommandFailure::failed(format!("can't start logging: {error}")))
}
