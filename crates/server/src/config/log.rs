//! The flags of `strait serve` about its log.

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// The log.
#[derive(Debug, Clone, Args)]
pub struct LogFlags {
    /// Log format [default: text on a terminal, otherwise json]
    #[arg(long, env = "STRAIT_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Log level: error, warn, info, debug, trace, or directives like info,strait::xds=debug
    #[arg(long, env = "STRAIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info", value_parser = parse_log_level)]
    pub log_level: String,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Parses directives of `tracing_subscriber`. That crate accepts any word as a module name, so a
/// misspelled level would disable all logs.
fn parse_log_level(text: &str) -> Result<String, String> {
    const FORM: &str =
        "give error, warn, info, debug, trace or off, or directives like info,strait::xds=debug";
    EnvFilter::try_new(text).map_err(|error| format!("{error}; {FORM}"))?;
    let is_level = |one: &str| one.parse::<LevelFilter>().is_ok();
    let mut of_ours = false;
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        match one.rsplit_once('=') {
            None if is_level(one) => of_ours = true,
            None => return Err(format!("{one:?} is not a level; {FORM}")),
            Some((_, level)) if !is_level(level) => {
                return Err(format!("{level:?} is not a level; {FORM}"));
            }
            Some((target, _)) => of_ours |= target.starts_with("strait"),
        }
    }
    match of_ours {
        true => Ok(text.to_owned()),
        false => Err(format!("no directive matches strait, which would log nothing; {FORM}")),
    }
}
