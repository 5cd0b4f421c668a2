//! `strait members`: reads an operator file of member sources like the control plane.

use std::path::PathBuf;

use clap::Subcommand;

use super::failure::{CommandFailure, CommandResult, Exit};
use super::output;
use strait_base::codes;
use strait_sources::members::MemberSources;

/// Check the operator file of member sources.
#[derive(Debug, Subcommand)]
pub(crate) enum MembersCommand {
    /// Check whether a file is valid, and list its sources and identities; reads no other file
    Check {
        /// Operator file, as for 'strait serve --members'
        file: PathBuf,
    },
}

/// Runs `strait members`.
pub(crate) fn run(command: &MembersCommand) -> CommandResult {
    let MembersCommand::Check { file } = command;
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| CommandFailure::usage(format!("{shown}: {error}")))?;
    let sources = MemberSources::parse(&text)
        .map_err(|invalid| CommandFailure::coded(&codes::POLICY, format!("{shown}: {invalid}")))?;
    let mut out = format!("{shown} is valid.\n");
    for (source, selection) in sources.secret_sources() {
        let ids = source.ids.join(", ");
        out += &format!(
            "  source {}: Secrets of namespace {} may define {ids}\n",
            source.name, selection.namespace
        );
    }
    for identity in &sources.identities {
        out += &format!("  identity {} of type {}\n", identity.name, identity.type_name());
    }
    for field in &sources.unused {
        out += &format!("  {field} is valid, but this version does not use it\n");
    }
    for remark in sources.remarks() {
        out += &format!("  warning: {remark}\n");
    }
    output::print(&out)?;
    Ok(Exit::Fine)
}
