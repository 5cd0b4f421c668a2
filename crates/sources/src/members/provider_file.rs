//! The file of access providers in the form of the Cluster Inventory API
//! (`--clusterprofile-provider-file`). Pure.
//!
//! Each provider is a program. The known programs that read Secrets are replaced by built-in readers:
//! their namespace comes from this file.

use serde::Deserialize;

use super::access_text::PROVIDER_KEY;
use super::checked::{Checked, filled, invalid, namespace};
use super::profile::{ProviderAccess, ProviderAccessKind, ProviderProgram};
use crate::exec::Program;
use strait_model::policy::InvalidPolicy;

/// The variable with the namespace of the Secrets.
const NAMESPACE_VARIABLE: &str = "CONSUMER_NAMESPACE";
/// The argument with the name of the account whose token Open Cluster Management copies.
const ACCOUNT_ARGUMENT: &str = "--managed-serviceaccount";

/// The access providers of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderFile {
    /// The access to the clusters of each provider, in the order of the file.
    pub access: Vec<ProviderAccess>,
    /// The fields that have no effect, for a warning.
    pub unused: Vec<String>,
}

#[derive(Deserialize)]
struct ProviderFileText {
    providers: Vec<ProviderText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProviderText {
    name: String,
    exec_config: Program,
    #[serde(rename = "profileSourcedCLIArgsPolicy", default)]
    arguments_policy: String,
    #[serde(default)]
    profile_sourced_env_vars_policy: String,
}

impl ProviderFile {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns the first problem, with the field.
    pub fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        let file: ProviderFileText =
            serde_json::from_str(text).or_else(|error| invalid("", error.to_string()))?;
        let mut read = Self::default();
        for (at, provider) in file.providers.into_iter().enumerate() {
            let field = format!("providers[{at}]");
            filled(format!("{field}.name"), &provider.name)?;
            for (name, policy) in [
                ("profileSourcedCLIArgsPolicy", &provider.arguments_policy),
                ("profileSourcedEnvVarsPolicy", &provider.profile_sourced_env_vars_policy),
            ] {
                if !matches!(policy.as_str(), "" | "Ignore") {
                    read.unused.push(format!("{field}.{name}"));
                }
            }
            let kind = kind(&format!("{field}.execConfig"), provider.exec_config)?;
            read.access.push(ProviderAccess { provider: provider.name, kind });
        }
        Ok(read)
    }
}

fn kind(field: &str, program: Program) -> Checked<ProviderAccessKind> {
    filled(format!("{field}.command"), &program.command)?;
    let reads_token = |name: String| {
        let namespace = secret_namespace(field, &program)?;
        Ok(ProviderAccessKind::SecretReader { namespace, name, key: PROVIDER_KEY.to_owned() })
    };
    match program.command.rsplit('/').next() {
        Some("secretreader-plugin") => reads_token("{clusterName}".to_owned()),
        Some("cp-creds") => {
            match program.argument(ACCOUNT_ARGUMENT).filter(|one| !one.is_empty()) {
                Some(account) => reads_token(format!("{{clusterName}}-{account}")),
                None => invalid(format!("{field}.args"), format!("has no {ACCOUNT_ARGUMENT}=NAME")),
            }
        }
        Some("kubeconfig-secretreader-plugin") => {
            let namespaces = vec![secret_namespace(field, &program)?];
            Ok(ProviderAccessKind::KubeconfigSecretReader { namespaces })
        }
        _ => Ok(ProviderAccessKind::Program(Box::new(ProviderProgram {
            program: program.isolated(),
            servers: None,
            allowed_arguments: Vec::new(),
        }))),
    }
}

/// Returns the namespace of the Secrets that a built-in reader reads.
fn secret_namespace(field: &str, program: &Program) -> Checked<String> {
    let field = format!("{field}.env");
    let Some(text) = program.variable(NAMESPACE_VARIABLE) else {
        return invalid(
            field,
            format!("has no {NAMESPACE_VARIABLE}, the namespace of the Secrets"),
        );
    };
    namespace(&field, text)?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn provider(command: &str, rest: &Value) -> Value {
        let mut config = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": command,
            "env": [{ "name": "CONSUMER_NAMESPACE", "value": "fleet" }],
        });
        let own = config.as_object_mut().expect("an object");
        own.extend(rest.as_object().cloned().unwrap_or_default());
        json!({ "providers": [{ "name": "p", "execConfig": config }] })
    }

    fn read(command: &str, rest: &Value) -> Result<ProviderAccessKind, String> {
        let file = ProviderFile::parse(&provider(command, rest).to_string());
        let file = file.map_err(|error| error.to_string())?;
        let [ProviderAccess { provider, kind }] = &file.access[..] else { panic!("{file:?}") };
        assert_eq!(provider, "p");
        Ok(kind.clone())
    }

    #[test]
    fn known_programs_are_built_in_and_others_run() {
        let token = |name: &str| {
            let (namespace, key) = ("fleet".to_owned(), "token".to_owned());
            Ok(ProviderAccessKind::SecretReader { namespace, name: name.to_owned(), key })
        };
        let none = json!({});
        assert_eq!(read("./bin/secretreader-plugin", &none), token("{clusterName}"));
        for args in
            [json!(["--managed-serviceaccount=msa"]), json!(["--managed-serviceaccount", "msa"])]
        {
            assert_eq!(read("/cp-creds", &json!({ "args": args })), token("{clusterName}-msa"));
        }
        let namespaces = vec!["fleet".to_owned()];
        let by_kubeconfig = ProviderAccessKind::KubeconfigSecretReader { namespaces };
        assert_eq!(read("kubeconfig-secretreader-plugin", &none), Ok(by_kubeconfig));
        let Ok(ProviderAccessKind::Program(program)) = read("/plugins/gcp-auth-plugin", &none)
        else {
            panic!("a program")
        };
        assert!(!program.program.provide_cluster_info && program.may_reach("any.test"));
    }

    #[test]
    fn invalid_entry_is_named() {
        let no_variable = json!({ "env": null });
        for (command, rest, field) in [
            ("secretreader-plugin", &no_variable, "providers[0].execConfig.env"),
            ("kubeconfig-secretreader-plugin", &no_variable, "providers[0].execConfig.env"),
            ("cp-creds", &json!({}), "providers[0].execConfig.args"),
            ("", &json!({}), "providers[0].execConfig.command"),
        ] {
            let error = read(command, rest).expect_err(command);
            assert!(error.contains(field), "{error}");
        }
        for text in ["", "[]", "{}", "{\"providers\": [{\"name\": \"a\"}]}"] {
            assert!(ProviderFile::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_of_profiles_have_no_effect_and_are_named() {
        let mut file = provider("/plugin", &json!({}));
        file["providers"][0]["profileSourcedCLIArgsPolicy"] = json!("Append");
        file["providers"][0]["profileSourcedEnvVarsPolicy"] = json!("Ignore");
        let read = ProviderFile::parse(&file.to_string()).expect("valid");
        assert_eq!(read.unused, ["providers[0].profileSourcedCLIArgsPolicy"]);
    }
}
