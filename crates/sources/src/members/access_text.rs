//! Parsing of `access` in the operator file: how the clusters of a provider are reached.

use serde::Deserialize;

use super::checked::{Checked, Entry, filled, invalid, namespace, read, server_list};
use super::profile::{ProviderAccess, ProviderAccessKind, ProviderProgram};
use crate::exec::{Program, ProgramVariable};

/// The data key of a provider's token.
pub(super) const PROVIDER_KEY: &str = "token";
const NEEDS_ONE: &str =
    "needs exactly one entry: secretReader, kubeconfigSecretReader, identity or program";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AccessText {
    provider: String,
    secret_reader: Option<SecretReaderText>,
    kubeconfig_secret_reader: Option<NamespacesText>,
    identity: Option<String>,
    program: Option<ProgramText>,
    servers: Option<Vec<String>>,
    profile_arguments: Option<ProfileArgumentsText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecretReaderText {
    namespace: String,
    name: String,
    key: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespacesText {
    namespaces: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProgramText {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<VariableText>,
}

impl ProgramText {
    fn read(self) -> Program {
        let variable = |one: VariableText| ProgramVariable { name: one.name, value: one.value };
        let env = self.env.into_iter().map(variable).collect();
        Program::new(self.command, self.args, env).isolated()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct VariableText {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProfileArgumentsText {
    allow: Vec<String>,
}

pub(super) fn access(
    field: &str,
    entry: Entry,
    is_identity: &dyn Fn(&str) -> bool,
) -> Checked<ProviderAccess> {
    let text: AccessText = read(field, entry)?;
    filled(format!("{field}.provider"), &text.provider)?;
    let kinds = [
        text.secret_reader.is_some(),
        text.kubeconfig_secret_reader.is_some(),
        text.identity.is_some(),
        text.program.is_some(),
    ];
    if kinds.into_iter().filter(|is_set| *is_set).count() != 1 {
        return invalid(field, NEEDS_ONE);
    }
    if let Some(reader) = &text.secret_reader {
        namespace(&format!("{field}.secretReader.namespace"), &reader.namespace)?;
        filled(format!("{field}.secretReader.name"), &reader.name)?;
        filled(format!("{field}.secretReader.key"), reader.key.as_deref().unwrap_or(PROVIDER_KEY))?;
        let rest = reader.name.replace("{clusterName}", "");
        if rest.contains(['{', '}']) {
            let fact = "may only contain the placeholder {clusterName}";
            return invalid(format!("{field}.secretReader.name"), fact);
        }
    }
    if let Some(reader) = &text.kubeconfig_secret_reader {
        let field = format!("{field}.kubeconfigSecretReader.namespaces");
        if reader.namespaces.is_empty() {
            return invalid(field, "is empty, so no Secret could be read");
        }
        for (at, text) in reader.namespaces.iter().enumerate() {
            namespace(&format!("{field}[{at}]"), text)?;
        }
    }
    if let Some(name) = text.identity.as_deref().filter(|name| !is_identity(name)) {
        return invalid(format!("{field}.identity"), format!("{name:?} is not defined"));
    }
    if let Some(program) = &text.program {
        filled(format!("{field}.program.command"), &program.command)?;
        for (at, variable) in program.env.iter().enumerate() {
            filled(format!("{field}.program.env[{at}].name"), &variable.name)?;
        }
        if text.servers.is_none() {
            let fact = "is missing: a program's token is sent only to listed servers";
            return invalid(format!("{field}.servers"), fact);
        }
    } else if text.servers.is_some() {
        return invalid(format!("{field}.servers"), "is only possible with program");
    }
    match &text.profile_arguments {
        Some(arguments) if text.program.is_some() => {
            for (at, flag) in arguments.allow.iter().enumerate() {
                filled(format!("{field}.profileArguments.allow[{at}]"), flag)?;
            }
        }
        Some(_) => {
            return invalid(format!("{field}.profileArguments"), "is only possible with program");
        }
        None => {}
    }
    let servers = text.servers.map(|servers| server_list(field, servers)).transpose()?;
    let program = text.program.map(|program| ProviderProgram {
        program: program.read(),
        servers,
        allowed_arguments: text.profile_arguments.map(|one| one.allow).unwrap_or_default(),
    });
    let kind = match (text.secret_reader, text.kubeconfig_secret_reader, text.identity, program) {
        (Some(reader), ..) => ProviderAccessKind::SecretReader {
            namespace: reader.namespace,
            name: reader.name,
            key: reader.key.unwrap_or_else(|| PROVIDER_KEY.to_owned()),
        },
        (_, Some(reader), ..) => {
            ProviderAccessKind::KubeconfigSecretReader { namespaces: reader.namespaces }
        }
        (_, _, Some(identity), _) => ProviderAccessKind::Identity(identity.into()),
        (.., Some(program)) => ProviderAccessKind::Program(Box::new(program)),
        (None, None, None, None) => return invalid(field, NEEDS_ONE),
    };
    Ok(ProviderAccess { provider: text.provider, kind })
}
