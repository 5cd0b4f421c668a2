//! ClusterProfiles (multicluster.x-k8s.io): a cluster in an inventory, and the providers that give
//! access to it. Pure.
//!
//! The author of a profile writes the metadata, and a manager the status. The operator's file decides
//! which provider is used, and how. Arguments that a profile adds to a program are ignored unless the
//! operator permits them, variables always.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::servers::ServerPattern;
use crate::exec::Program;
use strait_kube_client::Access;

/// The extension that configures a provider.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
/// The extension with arguments for a provider's program.
const ARGUMENTS_EXTENSION: &str = "clusterprofiles.multicluster.x-k8s.io/exec/additional-args";
/// The extension with variables for a provider's program, which are ignored.
const VARIABLES_EXTENSION: &str = "clusterprofiles.multicluster.x-k8s.io/exec/additional-envs";
/// The property with the name of a cluster in its cluster set.
pub const ID_PROPERTY: &str = "cluster.clusterset.k8s.io";
/// The name of Strait as the manager of the profiles that it publishes.
pub const PUBLISHING_MANAGER: &str = "strait";
/// The condition that the control plane of the cluster responds.
const HEALTHY: &str = "ControlPlaneHealthy";
/// The condition that the cluster has joined its manager.
const JOINED: &str = "Joined";
/// Maximum number of providers of a profile.
const PROVIDERS_MAX: usize = 64;
/// The placeholder in the name of a provider's Secret.
const CLUSTER_NAME: &str = "{clusterName}";

/// A ClusterProfile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterProfile {
    /// The state in its inventory.
    pub inventory: InventoryState,
    /// The value of [`ID_PROPERTY`].
    pub set_id: Option<String>,
    /// The access providers. Of equal names, `accessProviders` precedes `credentialProviders`.
    pub providers: Vec<AccessProvider>,
}

/// The state of a cluster in its inventory. Shown, and never the reason for an action: contact with the
/// API server is better evidence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InventoryState {
    /// The manager that wrote the profile.
    pub manager: String,
    /// The status of the condition `ControlPlaneHealthy`: `True`, `False` or `Unknown`.
    pub healthy: ConditionStatus,
    /// The status of the condition `Joined`.
    pub joined: ConditionStatus,
    /// When `ControlPlaneHealthy` last changed.
    pub since: Option<Timestamp>,
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConditionStatus {
    /// It is true.
    True,
    /// It is false.
    False,
    /// It is unknown, or absent.
    #[default]
    Unknown,
}

impl ConditionStatus {
    /// Returns the text in a condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// An access provider of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessProvider {
    /// Its name.
    pub name: String,
    /// The cluster as in a kubeconfig, without extensions.
    pub cluster: Map<String, Value>,
    /// The content of the extension that configures the provider.
    pub config: Value,
    /// The arguments that the profile adds to a program.
    pub arguments: Vec<String>,
    /// An extension about programs that is not known.
    pub unknown_extension: Option<String>,
}

/// How the operator gives access to the clusters of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderAccess {
    /// The name of the provider.
    pub provider: String,
    /// The origin of the credential.
    pub kind: ProviderAccessKind,
}

/// The origin of a credential for the clusters of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderAccessKind {
    /// A token in a Secret.
    SecretReader {
        /// The namespace of the Secret.
        namespace: String,
        /// Its name, in which `{clusterName}` is the placeholder of the provider's name of the cluster.
        name: String,
        /// The data key.
        key: String,
    },
    /// The credential in a kubeconfig, in a Secret that the profile selects.
    KubeconfigSecretReader {
        /// The namespaces that a profile may select.
        namespaces: Vec<String>,
    },
    /// An identity of the operator file.
    Identity(Arc<str>),
    /// A program that prints a token.
    Program(Box<ProviderProgram>),
}

/// A program that prints tokens for the clusters of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderProgram {
    /// The program.
    pub program: Program,
    /// The servers to which its tokens may be sent; `None` for all.
    pub servers: Option<Vec<ServerPattern>>,
    /// The flags that a profile may add to its arguments.
    pub allowed_arguments: Vec<String>,
}

impl ProviderProgram {
    /// Whether its token may be sent to this host.
    pub fn may_reach(&self, host: &str) -> bool {
        let servers = self.servers.as_ref();
        servers.is_none_or(|servers| servers.iter().any(|server| server.matches(host)))
    }

    /// Returns the program for a cluster, with the permitted arguments of the profile: `FLAG` and
    /// `FLAG=VALUE`.
    pub fn program_for(&self, provider: &AccessProvider) -> Program {
        let is_allowed = |argument: &&String| {
            let flag = argument.split('=').next().unwrap_or_default();
            self.allowed_arguments.iter().any(|allowed| allowed == flag)
        };
        let added = provider.arguments.iter().filter(is_allowed).cloned();
        self.program.clone().with_arguments(added)
    }
}

/// The Secret from which a provider's credential is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProviderSecret {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The data key.
    pub key: String,
    /// Whether the key contains a kubeconfig instead of a token.
    pub is_kubeconfig: bool,
    /// The context of the kubeconfig.
    pub context: Option<String>,
}

impl ClusterProfile {
    /// Reads `spec` and `status`. Parts that do not have the expected form are absent.
    pub fn read(spec: &Value, status: &Value) -> Self {
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|condition| condition["type"] == *kind);
        let state = |kind: &str| match condition(kind).and_then(|one| one["status"].as_str()) {
            Some("True") => ConditionStatus::True,
            Some("False") => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        let since = condition(HEALTHY).and_then(|one| one["lastTransitionTime"].as_str());
        let properties = status["properties"].as_array().map(Vec::as_slice).unwrap_or_default();
        let property = properties.iter().find(|property| property["name"] == *ID_PROPERTY);
        let set_id = property.and_then(|property| property["value"].as_str());
        let mut providers: Vec<AccessProvider> = Vec::new();
        for list in ["accessProviders", "credentialProviders"] {
            for entry in status[list].as_array().into_iter().flatten() {
                let provider = AccessProvider::read(entry);
                let is_new =
                    |new: &AccessProvider| providers.iter().all(|known| known.name != new.name);
                if let Some(provider) =
                    provider.filter(is_new).filter(|_| providers.len() < PROVIDERS_MAX)
                {
                    providers.push(provider);
                }
            }
        }
        Self {
            inventory: InventoryState {
                manager: spec["clusterManager"]["name"].as_str().unwrap_or_default().to_owned(),
                healthy: state(HEALTHY),
                joined: state(JOINED),
                since: since.and_then(|time| time.parse().ok()),
            },
            set_id: set_id.filter(|id| !id.is_empty()).map(str::to_owned),
            providers,
        }
    }

    /// Returns the first access of the operator file whose provider the profile lists. A provider that
    /// fails is not replaced by another one, so that the failure is visible.
    pub fn choose<'a>(
        &'a self,
        access: &'a [ProviderAccess],
    ) -> Option<(&'a ProviderAccessKind, &'a AccessProvider)> {
        access.iter().find_map(|entry| {
            let named = self.providers.iter().find(|one| one.name == entry.provider)?;
            Some((&entry.kind, named))
        })
    }
}

impl AccessProvider {
    fn read(entry: &Value) -> Option<Self> {
        let name = entry["name"].as_str().filter(|name| !name.is_empty())?.to_owned();
        let mut cluster = entry["cluster"].as_object().cloned().unwrap_or_default();
        let extensions = cluster.remove("extensions").unwrap_or_default();
        let (mut config, mut arguments, mut unknown_extension) = (Value::Null, Vec::new(), None);
        for extension in extensions.as_array().into_iter().flatten() {
            let name = extension["name"].as_str().unwrap_or_default();
            if name == EXEC_EXTENSION {
                config = extension["extension"].clone();
            } else if name == ARGUMENTS_EXTENSION {
                let listed = extension["extension"].as_array().into_iter().flatten();
                arguments = listed.filter_map(Value::as_str).map(str::to_owned).collect();
            } else if name.contains("exec") && name != VARIABLES_EXTENSION {
                unknown_extension.get_or_insert_with(|| name.chars().take(100).collect());
            }
        }
        Some(Self { name, cluster, config, arguments, unknown_extension })
    }

    /// Returns the description of the cluster for a program (client.authentication.k8s.io/v1,
    /// `Cluster`), with the server and the TLS name of `access`.
    pub fn cluster_info(&self, access: &Access) -> Value {
        let mut info = json!({ "server": access.server.to_string().trim_end_matches('/') });
        if let Some(name) = &access.tls_server_name {
            info["tls-server-name"] = json!(name);
        }
        for (name, value) in [
            ("certificate-authority-data", self.cluster.get("certificate-authority-data")),
            ("config", Some(&self.config)),
        ] {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                info[name] = value.clone();
            }
        }
        info
    }

    fn setting(&self, name: &str) -> Result<Option<&str>, String> {
        match &self.config[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            _ => Err(format!("{name} in extension {EXEC_EXTENSION} is not a text")),
        }
    }

    fn required(&self, name: &str) -> Result<&str, String> {
        let found = self.setting(name)?;
        found.ok_or_else(|| format!("extension {EXEC_EXTENSION} has no {name}"))
    }

    /// Returns the Secret that contains the credential; `None` for another origin.
    ///
    /// # Errors
    /// Returns why the profile cannot select a Secret.
    pub fn secret(&self, kind: &ProviderAccessKind) -> Result<Option<ProviderSecret>, String> {
        match kind {
            ProviderAccessKind::SecretReader { namespace, name, key } => {
                let name = match name.contains(CLUSTER_NAME) {
                    true => name.replace(CLUSTER_NAME, self.required("clusterName")?),
                    false => name.clone(),
                };
                checked_name(&name)?;
                let (namespace, name) = (namespace.as_str().into(), name.into());
                let (key, is_kubeconfig, context) = (key.clone(), false, None);
                Ok(Some(ProviderSecret { namespace, name, key, is_kubeconfig, context }))
            }
            ProviderAccessKind::KubeconfigSecretReader { namespaces } => {
                let (name, key) = (self.required("name")?, self.required("key")?);
                let namespace = match (self.setting("namespace")?, &namespaces[..]) {
                    (Some(own), _) => own,
                    (None, [only]) => only,
                    (None, _) => {
                        return Err(format!("extension {EXEC_EXTENSION} has no namespace"));
                    }
                };
                if !namespaces.iter().any(|listed| listed == namespace) {
                    return Err(format!(
                        "selects a Secret of namespace {:?}; the --members file permits {}",
                        namespace.chars().take(63).collect::<String>(),
                        namespaces.join(", ")
                    ));
                }
                checked_name(name)?;
                Ok(Some(ProviderSecret {
                    namespace: namespace.into(),
                    name: name.into(),
                    key: key.to_owned(),
                    is_kubeconfig: true,
                    context: self.setting("context")?.map(str::to_owned),
                }))
            }
            ProviderAccessKind::Identity(_) | ProviderAccessKind::Program(_) => Ok(None),
        }
    }
}

/// Checks that a text is the name of an object, so that it cannot change a path or a selector.
fn checked_name(name: &str) -> Result<(), String> {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    match (1..=253).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.') {
        true => Ok(()),
        false => {
            let shown: String = name.chars().take(63).collect();
            Err(format!("{shown:?} is not the name of a Secret"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn provider(name: &str, config: &Value) -> Value {
        json!({ "name": name, "cluster": {
            "server": format!("https://{name}.test"),
            "extensions": [{ "name": EXEC_EXTENSION, "extension": config }],
        } })
    }

    fn profile(status: &Value) -> ClusterProfile {
        ClusterProfile::read(&json!({ "clusterManager": { "name": "ocm" } }), status)
    }

    fn entry(provider: &str, kind: ProviderAccessKind) -> ProviderAccess {
        ProviderAccess { provider: provider.to_owned(), kind }
    }

    fn token_of(name: &str) -> ProviderAccessKind {
        let (namespace, key) = ("fleet".to_owned(), "token".to_owned());
        ProviderAccessKind::SecretReader { namespace, name: name.to_owned(), key }
    }

    #[test]
    fn status_is_read_and_unexpected_parts_are_absent() {
        let read = profile(&json!({
            "conditions": [
                { "type": "ControlPlaneHealthy", "status": "False", "lastTransitionTime": "2026-11-29T10:00:00Z" },
                { "type": "Joined", "status": "True" },
            ],
            "properties": [{ "name": "other", "value": "x" }, { "name": ID_PROPERTY, "value": "east" }],
            "accessProviders": [provider("a", &json!({ "clusterName": "one" })), { "name": "" }, 7],
            "credentialProviders": [provider("a", &json!({ "clusterName": "two" })), provider("b", &Value::Null)],
        }));
        assert_eq!(read.inventory.manager, "ocm");
        assert_eq!(
            (read.inventory.healthy, read.inventory.joined),
            (ConditionStatus::False, ConditionStatus::True)
        );
        assert_eq!(read.inventory.since, "2026-11-29T10:00:00Z".parse().ok());
        assert_eq!(read.set_id.as_deref(), Some("east"));
        let names: Vec<_> = read.providers.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(read.providers[0].config["clusterName"], "one", "accessProviders precedes");
        assert!(!read.providers[0].cluster.contains_key("extensions"));
        for status in [
            json!(null),
            json!([]),
            json!({ "conditions": 1, "accessProviders": {}, "properties": "" }),
        ] {
            let read = profile(&status);
            assert_eq!(read.inventory.healthy, ConditionStatus::Unknown);
            assert!(read.providers.is_empty() && read.set_id.is_none());
        }
    }

    #[test]
    fn order_of_the_operator_file_decides() {
        let status = json!({ "accessProviders": [provider("a", &Value::Null), provider("b", &Value::Null)] });
        let profile = profile(&status);
        let chosen = |names: &[&str]| {
            let access: Vec<_> = names
                .iter()
                .map(|name| entry(name, ProviderAccessKind::Identity("any".into())))
                .collect();
            profile.choose(&access).map(|(_, provider)| provider.name.clone())
        };
        assert_eq!(chosen(&["b", "a"]).as_deref(), Some("b"));
        assert_eq!(chosen(&["c", "a", "b"]).as_deref(), Some("a"));
        assert_eq!(chosen(&["c"]), None);
    }

    #[test]
    fn secret_is_selected_within_the_limits_of_the_operator() {
        let secret = |config: Value, kind: &ProviderAccessKind| {
            let status = json!({ "accessProviders": [provider("a", &config)] });
            let found = profile(&status).providers[0].secret(kind);
            found.map(|secret| {
                secret.map(|one| format!("{}/{} {}", one.namespace, one.name, one.key))
            })
        };
        let some = |text: &str| Ok(Some(text.to_owned()));
        let template = token_of("{clusterName}-msa");
        assert_eq!(
            secret(json!({ "clusterName": "east" }), &template),
            some("fleet/east-msa token")
        );
        assert_eq!(secret(json!(null), &token_of("one")), some("fleet/one token"));
        for name in ["../x", "a,metadata.name=b", "", "A", ".x"] {
            assert!(secret(json!({ "clusterName": name }), &template).is_err(), "{name}");
        }
        assert!(secret(json!({ "clusterName": 7 }), &template).is_err());
        let listed = ProviderAccessKind::KubeconfigSecretReader {
            namespaces: vec!["fleet".to_owned(), "other".to_owned()],
        };
        let select =
            |namespace: &str| json!({ "name": "k", "key": "config", "namespace": namespace });
        assert_eq!(secret(select("other"), &listed), some("other/k config"));
        let refused = secret(select("kube-system"), &listed).expect_err("a foreign namespace");
        assert!(refused.contains("kube-system") && refused.contains("fleet, other"), "{refused}");
        assert!(secret(json!({ "name": "k", "key": "config" }), &listed).is_err(), "ambiguous");
        assert!(secret(json!({ "name": "k", "namespace": "fleet" }), &listed).is_err(), "no key");
    }

    #[test]
    fn profile_adds_only_permitted_arguments_to_a_program() {
        let program = |allowed: &[&str]| ProviderProgram {
            program: Program::new("p".to_owned(), vec!["a".to_owned()], Vec::new()),
            servers: None,
            allowed_arguments: allowed.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        let extensions = json!([
            { "name": ARGUMENTS_EXTENSION, "extension": ["--region=eu", "--verbose", "--role", "x", 7] },
            { "name": VARIABLES_EXTENSION, "extension": { "LD_PRELOAD": "x" } },
        ]);
        let entry = json!({ "name": "a", "cluster": { "extensions": extensions } });
        let provider = AccessProvider::read(&entry).expect("a provider");
        assert_eq!(provider.unknown_extension, None);
        let with = |more: &[&str]| {
            program(&[]).program.with_arguments(more.iter().map(|one| (*one).to_owned()))
        };
        assert_eq!(program(&[]).program_for(&provider), with(&[]));
        let allowed = program(&["--region", "--verbose", "--other"]);
        assert_eq!(allowed.program_for(&provider), with(&["--region=eu", "--verbose"]));
    }

    #[test]
    fn description_of_a_cluster_has_the_effective_server() {
        let entry = json!({ "name": "a", "cluster": {
            "server": "https://other.test", "certificate-authority-data": "Q0E=", "proxy-url": "http://p",
            "extensions": [{ "name": EXEC_EXTENSION, "extension": { "clusterName": "east" } }],
        } });
        let provider = AccessProvider::read(&entry).expect("a provider");
        let access = Access {
            server: "https://a.test/prefix/".parse().expect("a URL"),
            tls_server_name: Some("b.test".to_owned()),
            ..Access::relay()
        };
        assert_eq!(
            provider.cluster_info(&access),
            json!({
                "server": "https://a.test/prefix", "tls-server-name": "b.test",
                "certificate-authority-data": "Q0E=", "config": { "clusterName": "east" },
            })
        );
    }
}
