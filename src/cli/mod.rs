//! The commands: one tree of flags, and what each does.
//!
//! Commands that look at a mesh only render what the admin API answers, so they can't disagree with it
//! or with each other. Data goes to standard output, everything else to standard error.

// First: what it defines for all others is known to those after it alone.
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
mod explain_policy;
mod explain_route;
mod failure;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod history;
mod hold;
mod inject;
mod list;
mod network;
mod network_join;
mod offline_mesh;
mod policy;
mod proxy;
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
    /// See it all on one machine, with nothing installed
    Demo(demo::DemoArgs),
    /// Show clusters, networks, proxies and problems on one screen
    Status(status::StatusArgs),
    /// Find what is not as it should be, each with a code; exit code 2 if there is anything
    Check(check::CheckArgs),
    /// Open the page that shows all of it in a browser
    Ui(ui::UiArgs),
    /// Say why a proxy has, or has not, the endpoints of a service
    Explain(explain::ExplainArgs),
    /// Show what changed lately, which object caused it, and which proxies followed
    Events(events::EventsArgs),
    /// Show what is otherwise now than it was (--at), or which proxies would be sent what else if objects were applied (-f)
    ///
    /// Exit code: with --at 2 if anything is otherwise; with -f and --delete 2 if an object is refused, shadowed, or has no
    /// effect in part, else 0, whether proxies would be sent something or not.
    Diff(diff::DiffArgs),
    /// Show the versions that are kept, and what each changed; hold a configuration, or go back to one
    #[command(subcommand)]
    History(history::HistoryCommand),
    /// Pack what the control plane answers into one archive without secrets, for whoever is to help
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
    /// Check a policy file, and say what it would refuse
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Find out what the proxies of a namespace have to be given
    #[command(subcommand)]
    Scope(scope::ScopeCommand),
    /// Make certificates without a control plane
    Certs(certs::CertsArgs),
    /// Print the version
    Version(about::VersionArgs),
    /// Print a completion script
    Completion {
        /// The shell
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

/// Reads the command line, does what it says, and turns the end into an exit code. Of no generic type, so that
/// all it calls is compiled here, once, and not again in the program.
pub fn main(args: std::env::ArgsOs) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output and is no error; a closed one is nobody's trouble.
            let _ = error.print();
            return exit(if error.use_stderr() { Exit::Usage } else { Exit::Fine });
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return end(Err(CommandFailure::failed(format!("no threads can be had: {error}"))));
        }
    };
    let ended = end(runtime.block_on(run(cli.command)));
    // A name being resolved, or a prompt that nobody answered, must not hold us up.
    runtime.shutdown_background();
    ended
}

/// Reads the command line. A variable that is set to nothing, as templates do it, counts as unset.
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
    // Ctrl-C drains what serves; every other command it just ends.
    let serves = match &command {
        Command::Serve(_) | Command::Demo(_) => true,
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
        Command::Policy(command) => Box::pin(policy::run(&command)).await,
        Command::Ui(args) => ui::run(&args).await,
        Command::Explain(args) => explain::run(&args).await,
        Command::Events(args) => events::run(&args).await,
        Command::Diff(args) => match args.then() {
            Some((at, cluster, ask)) => history::diff(at, cluster, ask).await,
            None => Box::pin(diff::run(&args)).await,
        },
        Command::History(command) => history::run(&command).await,
        Command::SupportBundle(args) => Box::pin(bundle::run(&args)).await,
        Command::Cluster(command) => cluster::run(command).await,
        Command::Network(command) => network::run(&command).await,
        Command::Service(command) => service::run(&command).await,
        Command::Proxy(command) => proxy::run(&command).await,
        Command::Scope(command) => Box::pin(scope::run(&command)).await,
        Command::Certs(args) => match args.status() {
            Some(ask) => certs::status::run(ask).await,
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

/// How a command of files alone ended.
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
            tell!("{failure}");
            exit(failure.exit)
        }
    }
}

fn exit(code: Exit) -> ExitCode {
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests;
