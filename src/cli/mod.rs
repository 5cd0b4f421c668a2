//! The commands: the tree of flags, and the function of each command.
//!
//! Commands that show a mesh only render responses of the admin API, so they cannot contradict it
//! or each other. Data is written to standard output, everything else to standard error.

// First, because the macros that it defines are only visible in the modules after it.
#[macro_use]
mod output;

mod about;
pub mod access_log;
mod bootstrap;
mod bundle;
pub mod certs;
mod check;
mod client;
mod cluster;
mod consent;
#[cfg(feature = "demo")]
mod demo;
#[cfg(not(feature = "demo"))]
#[path = "no_demo.rs"]
mod demo;
mod diff;
mod events;
mod explain;
mod explain_import;
mod explain_policy;
mod explain_route;
mod failure;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod history;
mod hold;
mod inject;
mod list;
mod members;
mod network;
mod network_join;
mod offline_mesh;
mod policy;
mod port_forward;
mod proxy;
mod relay;
mod rollout;
mod scope;
mod serve;
mod service;
mod simulate;
mod status;
mod ui;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use self::failure::{CommandFailure, CommandResult, Exit};
use strait_server::config::ServeArgs;

/// One control plane for Envoy proxies in many Kubernetes clusters
#[derive(Debug, Parser)]
#[command(
    name = "strait",
    version,
    disable_help_subcommand = true,
    after_help = "'strait help STRnnnn' explains an error code, 'strait help exit-codes' the exit codes."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the control plane
    Serve(Box<ServeArgs>),
    /// Run a complete mesh on this machine, with nothing installed
    Demo(demo::DemoArgs),
    /// Show clusters, networks, proxies and problems on one screen
    Status(status::StatusArgs),
    /// List problems, each with a code; exit code 2 if there are any
    Check(check::CheckArgs),
    /// Open the web page of the control plane in a browser
    Ui(ui::UiArgs),
    /// Explain why a proxy has, or lacks, the endpoints of a service
    Explain(explain::ExplainArgs),
    /// Show recent changes, the objects that caused them, and the proxies that acknowledged them
    Events(events::EventsArgs),
    /// Show changes since an earlier version (--at), or the effects of objects before they are
    /// applied (-f)
    ///
    /// Exit code: with --at, 2 if anything differs; with -f and --delete, 2 if an object is
    /// refused, shadowed, or partly ineffective, otherwise 0, whether proxies would receive changes
    /// or not.
    Diff(diff::DiffArgs),
    /// Show stored versions and the changes of each; hold a configuration, or roll back to one
    #[command(subcommand)]
    History(history::HistoryCommand),
    /// Collect responses of the control plane in one archive without secrets, for support
    SupportBundle(bundle::BundleArgs),
    /// Add, show and remove member clusters
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Show networks and their gateways
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// Show services merged over all clusters
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Show connected proxies; print an Envoy bootstrap
    #[command(subcommand)]
    Proxy(proxy::ProxyCommand),
    /// Check the operator file of member sources
    #[command(subcommand)]
    Members(members::MembersCommand),
    /// Check a policy file, and show the claims that it would refuse
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Connect this cluster to a hub that cannot dial its API server
    ///
    /// The relay dials the hub, and the hub reads this cluster through the connection. The relay
    /// forwards only lists and watches of the kinds that the hub reads, and reviews of tokens;
    /// flags add more. The hub receives no credential for this cluster.
    Relay(Box<relay::RelayArgs>),
    /// Determine which services the proxies of a namespace need
    #[command(subcommand)]
    Scope(scope::ScopeCommand),
    /// Create CAs and certificates offline, and show the root certificates of the control plane
    Certs(certs::CertsArgs),
    /// Print the version
    Version(about::VersionArgs),
    /// Print a completion script
    Completion {
        /// Shell to generate the script for
        shell: Shell,
    },
    /// Explain an error code, a topic or a command
    Help {
        /// STRnnnn, exit-codes, codes, or a command
        #[arg(value_name = "CODE|TOPIC|COMMAND")]
        what: Vec<String>,
    },
}

/// Returns the tree of all commands, from which the reference page is generated.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Reads the command line, runs the command, and returns its exit code. Not generic, so that all
/// its callees are compiled once in this crate, and not again in the program.
pub fn main(args: std::env::ArgsOs) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help is printed to standard output and is not an error. A closed output is ignored.
            let _ = error.print();
            return exit(if error.use_stderr() { Exit::Usage } else { Exit::Fine });
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return end(Err(CommandFailure::failed(format!("can't start threads: {error}"))));
        }
    };
    let ended = end(runtime.block_on(run(cli.command)));
    // A pending DNS resolution or an unanswered prompt must not delay the exit.
    runtime.shutdown_background();
    ended
}

/// Parses the command line. An environment variable with an empty value, as templates produce it,
/// counts as unset.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    fn without_empty_variables(command: clap::Command) -> clap::Command {
        let empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|it| it.is_empty());
        command
            .mut_args(|arg| match arg.get_env().is_some_and(empty) {
                true => arg.env(None),
                false => arg,
            })
            .mut_subcommands(without_empty_variables)
    }
    let mut command = without_empty_variables(Cli::command());
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

async fn run(command: Command) -> CommandResult {
    // Commands that serve handle Ctrl-C themselves, to drain. It ends all other commands.
    let serves = match &command {
        Command::Serve(_) | Command::Demo(_) | Command::Relay(_) => true,
        Command::Ui(args) => args.serves(),
        _ => false,
    };
    if serves {
        return dispatch(command).await;
    }
    tokio::select! {
        outcome = dispatch(command) => outcome,
        Ok(()) = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
        () = output::unread() => Ok(Exit::Unread),
    }
}

async fn dispatch(command: Command) -> CommandResult {
    match command {
        Command::Serve(args) => serve::run(&args).await,
        Command::Demo(args) => demo::run(&args).await,
        Command::Status(args) => status::run(&args).await,
        Command::Check(args) => Box::pin(check::run(&args)).await,
        Command::Members(command) => members::run(&command),
        Command::Policy(command) => Box::pin(policy::run(&command)).await,
        Command::Ui(args) => ui::run(&args).await,
        Command::Explain(args) => explain::run(&args).await,
        Command::Events(args) => events::run(&args).await,
        Command::Diff(args) => match args.then() {
            Some((at, cluster, common)) => history::diff(at, cluster, common).await,
            None => Box::pin(diff::run(&args)).await,
        },
        Command::History(command) => history::run(&command).await,
        Command::SupportBundle(args) => Box::pin(bundle::run(&args)).await,
        Command::Cluster(command) => cluster::run(command).await,
        Command::Network(command) => network::run(&command).await,
        Command::Service(command) => service::run(&command).await,
        Command::Proxy(command) => proxy::run(&command).await,
        Command::Relay(args) => Box::pin(relay::run(*args)).await,
        Command::Scope(command) => Box::pin(scope::run(&command)).await,
        Command::Certs(args) => match args.status() {
            Some(common) => certs::status::run(common).await,
            None => {
                let mut made_files = Vec::new();
                made(certs::run(&args, &mut made_files))?;
                output::print(&String::from_utf8_lossy(&made_files)).map(|()| Exit::Fine)
            }
        },
        Command::Version(args) => about::version(&args),
        Command::Completion { shell } => about::completion(shell, Cli::command()),
        Command::Help { what } => about::help(&what, Cli::command()),
    }
}

/// Converts the result of a command that works on files only.
fn made(outcome: Result<(), certs::CertsError>) -> Result<(), CommandFailure> {
    match outcome {
        Ok(()) => Ok(()),
        Err(certs::CertsError::Identity(error)) => Err(CommandFailure::identity("", &error)),
        Err(error @ certs::CertsError::Print(_)) => Err(CommandFailure::failed(error.to_string())),
        Err(error) => Err(CommandFailure::usage(error.to_string()).code(error.code())),
    }
}

fn end(outcome: CommandResult) -> ExitCode {
    match outcome {
        Ok(code) => exit(code),
        Err(failure) => {
            eprint_line!("{failure}");
            exit(failure.exit)
        }
    }
}

fn exit(code: Exit) -> ExitCode {
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests;
