//! `strait version`, `strait completion` and `strait help`.

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use serde_json::{Value, json};

use super::failure::{CommandFailure, CommandResult, EXIT_CODES, Exit};
use super::output;
use strait_base::codes;

/// `strait version`.
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Output format
    #[arg(long, short, value_enum)]
    output: Option<VersionFormat>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum VersionFormat {
    Json,
    Yaml,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the version, commit and platform as `strait version -o json` prints them.
pub(super) fn versions() -> Value {
    json!({
        "version": VERSION,
        "commit": option_env!("STRAIT_COMMIT"),
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Runs `strait version`.
pub(crate) fn version(args: &VersionArgs) -> CommandResult {
    let whole = versions();
    output::print(&match args.output {
        None => format!("strait {VERSION}\n"),
        Some(VersionFormat::Json) => format!("{whole:#}\n"),
        Some(VersionFormat::Yaml) => output::yaml(&whole),
    })?;
    Ok(Exit::Fine)
}

/// Runs `strait completion`.
pub(crate) fn completion(shell: Shell, mut command: Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "strait", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Fine)
}

/// Runs `strait help`: prints the page of an error code, a topic or a command.
pub(crate) fn help(what: &[String], mut command: Command) -> CommandResult {
    let text = match what {
        [topic] if topic == "exit-codes" => EXIT_CODES.to_owned(),
        [topic] if topic == "codes" => {
            let line = |code: &&codes::Code| format!("{}  {}\n", code.id, code.title);
            codes::all().iter().map(line).collect()
        }
        [id] if id.get(..3).is_some_and(|head| head.eq_ignore_ascii_case("STR")) => {
            let page = codes::find(id).ok_or_else(|| {
                CommandFailure::usage(format!("there is no code {id}")).next("strait help codes")
            })?;
            page.help()
        }
        path => {
            command.build();
            let mut found = &mut command;
            for name in path {
                found = found.find_subcommand_mut(name).ok_or_else(|| {
                    CommandFailure::usage(format!("there is no command or topic {:?}", path.join(" ")))
                        .next("strait help, strait help exit-codes, strait help codes, strait help STRnnnn")
                })?;
            }
            found.render_long_help().to_string()
        }
    };
    output::print(&text)?;
    Ok(Exit::Fine)
}
