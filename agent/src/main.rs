//! `strait-agent`: the companion of Envoy in a pod. It requests the workload's certificate with the pod's token and
//! renews it, writes the bootstrap, runs and drains Envoy, and serves health, metrics and probes.
//!
//! It is a small program with one thread. It does not know the mesh: Envoy receives its configuration from the
//! control plane.

mod bootstrap;
mod control_plane;
mod credentials;
mod dns;
mod envoy;
mod files;
mod http_client;
mod lifecycle;
mod loopback;
mod names;
mod nft;
mod pages;
mod probes;
mod problem;
mod redirect;
mod renewal;
mod rules;
mod run;
mod scrape;
mod settings;
mod trial;

use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::problem::Problem;
use crate::settings::RunArgs;

/// Provides a pod's Envoy with its certificate and bootstrap, and runs it
#[derive(Debug, Parser)]
#[command(name = "strait-agent", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs Envoy, renews its certificate, and drains it at the end
    Run(Box<RunArgs>),
    /// Makes the kernel redirect the pod's connections to Envoy
    Redirect(Box<redirect::RedirectArgs>),
    /// Prints the version
    Version,
    /// Becomes Envoy, which ends with the agent
    #[command(hide = true)]
    Child {
        parent: i32,
        #[arg(last = true, required = true)]
        envoy: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // Fails if nothing reads the output.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    let done = match line.command {
        Command::Run(args) => run(*args),
        Command::Redirect(args) => match args.tried() {
            Some(addresses) => on_one_thread(trial::run(addresses)),
            None => redirect::run(&args),
        },
        Command::Version => {
            print(format_args!("strait-agent {}", env!("CARGO_PKG_VERSION")));
            Ok(0)
        }
        Command::Child { parent, envoy } => Err(envoy::become_envoy(parent, &envoy)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprint(format_args!(
                "error: {}: {}\nnext: {}",
                problem.code, problem.fact, problem.next
            ));
            ExitCode::from(if problem.code == "STR0950" { 64 } else { 1 })
        }
    }
}

fn run(args: RunArgs) -> Result<u8, Problem> {
    log();
    // Sets the default for libraries that don't choose a provider. Only a second call can fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    on_one_thread(run::run(args))
}

fn on_one_thread(work: impl Future<Output = Result<u8, Problem>>) -> Result<u8, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Problem::new(
            "STR0959",
            format!("cannot start the event loop: {error}"),
            "raise the limit of open files",
        )
    })?;
    runtime.block_on(work)
}

/// Prints a line to standard output. The pod's proxy must not fail if nothing reads it.
fn print(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a line to standard error. Failures are ignored.
fn eprint(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Logs in the format of the control plane: text on a terminal, otherwise JSON.
fn log() {
    let builder = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    // A line that can't be written is lost. Reporting that would fail in the same way, and panic.
    let builder = builder.log_internal_errors(false);
    if std::io::stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().flatten_event(true).init();
    }
}
