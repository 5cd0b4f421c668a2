//! The operator file (`--members`): which objects may define member clusters, and the identities
//! that the control plane lends to them.
//!
//! An object selects an identity or a proxy by name, and never defines one. The file belongs to the
//! operator: its addresses may be loopback or link-local. Parsing is strict, so that a misspelt
//! limit is an error instead of a missing limit.

mod access_text;
mod aws;
mod azure;
pub mod book;
mod checked;
mod endpoint;
mod file;
mod form;
mod google;
mod oauth;
mod obtained;
pub mod placement;
pub mod profile;
pub mod provider_file;
mod remarks;
mod selector;
mod servers;
mod token_endpoint;
pub mod token_source;

pub use self::endpoint::OperatorUrl;
pub(crate) use self::endpoint::parse_proxy_url;
use self::placement::DECISION_KEY_LABEL;
use self::profile::{ProviderAccess, ProviderAccessKind};
use self::provider_file::ProviderFile;
pub use self::selector::SelectorExpression;
pub use self::servers::ServerPattern;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;

use strait_kube_client::ConnectProxy;

/// The name of the system namespace as a source.
pub const SYSTEM_SOURCE: &str = "system";

/// The content of the operator file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemberSources {
    /// The sources, in the order of the file.
    pub sources: Vec<Source>,
    /// The identities.
    pub identities: Vec<MemberIdentity>,
    /// The proxies, in the order of the file.
    pub proxies: Vec<MemberProxy>,
    /// The access to the clusters of providers, in the order of the file.
    pub access: Vec<ProviderAccess>,
    /// The namespace in which members are published as ClusterProfiles.
    pub publish_profiles: Option<Arc<str>>,
    /// Parts of the file that this version validates and does not use, for a warning.
    pub unused: Vec<String>,
}

/// A place whose objects define members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name.
    pub name: Arc<str>,
    /// The objects.
    pub objects: SourceObjects,
    /// The cluster IDs that they may define: patterns, in which `*` matches any characters.
    pub ids: Vec<String>,
}

/// The objects of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceObjects {
    /// Secrets.
    Secrets(ObjectSelection),
    /// ClusterProfiles.
    ClusterProfiles {
        /// The profiles.
        selection: ObjectSelection,
        /// The decisions that limit them.
        placement: Option<PlacementSelection>,
    },
}

/// The decisions of a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementSelection {
    /// Their namespace.
    pub namespace: Arc<str>,
    /// The value of their label `multicluster.x-k8s.io/decision-key`.
    pub decision_key: String,
}

/// Objects of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSelection {
    /// The namespace.
    pub namespace: Arc<str>,
    /// Their labels.
    pub selector: SelectorExpression,
}

/// A proxy that connects API servers of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberProxy {
    /// Its name.
    pub name: Arc<str>,
    /// Its URL: `http`, `https` or `socks5`.
    pub url: Uri,
    /// The servers that it may connect.
    pub servers: Vec<ServerPattern>,
    /// The proxy.
    pub connect: Arc<ConnectProxy>,
}

impl MemberProxy {
    /// Whether it may connect this host.
    pub fn may_reach(&self, host: &str) -> bool {
        self.servers.iter().any(|server| server.matches(host))
    }

    /// Whether a text is its URL.
    pub fn has_url(&self, text: &str) -> bool {
        endpoint::parse_url(text).is_ok_and(|url| url == self.url)
    }
}

/// An identity of the control plane at member clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberIdentity {
    /// Its name.
    pub name: Arc<str>,
    /// The servers to which its token may be sent.
    pub servers: Vec<ServerPattern>,
    /// How it obtains a token.
    pub kind: IdentityKind,
}

/// How an identity obtains a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityKind {
    /// The content of a file.
    TokenFile(PathBuf),
    /// A token of a service account of the config cluster.
    Kubernetes {
        /// The namespace of the account.
        namespace: String,
        /// The name of the account.
        account: String,
        /// The audience, in which `{id}` is the placeholder of the member's ID.
        audience: String,
    },
    /// A presigned URL for EKS.
    Aws(AwsIdentity),
    /// An access token of Google.
    Google(GoogleIdentity),
    /// A token of Entra ID.
    Azure(AzureIdentity),
    /// A token that an endpoint issues for another token (RFC 8693).
    Exchange(ExchangeIdentity),
}

/// A Google identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoogleIdentity {
    /// The source of its tokens.
    pub credentials: GoogleCredentials,
    /// The file of the roots that verify the endpoints.
    pub roots: Option<PathBuf>,
}

/// The source of Google's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoogleCredentials {
    /// The metadata server of the node.
    Metadata {
        /// Its URL, if it is not the usual address.
        endpoint: Option<OperatorUrl>,
    },
    /// A workload identity pool that trusts another issuer.
    Federation(GoogleFederation),
}

/// The exchange of another issuer's token at Google.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoogleFederation {
    /// The name of the pool's provider.
    pub audience: String,
    /// The file with the other issuer's token.
    pub token_file: PathBuf,
    /// The server of Google's services, if it is not the public one.
    pub endpoint: Option<OperatorUrl>,
    /// The e-mail address of the service account that the principal impersonates.
    pub service_account: Option<String>,
}

/// An identity of Entra ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AzureIdentity {
    /// The tenant.
    pub tenant: String,
    /// The ID of the application.
    pub client_id: String,
    /// The file with the federated token.
    pub token_file: PathBuf,
    /// The server of Entra ID, if it is not the public one.
    pub authority: Option<OperatorUrl>,
    /// The file of the roots that verify it.
    pub roots: Option<PathBuf>,
}

/// An identity whose token an endpoint issues for another token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeIdentity {
    /// The endpoint.
    pub endpoint: OperatorUrl,
    /// The file with the other token.
    pub token_file: PathBuf,
    /// The audience, in which `{id}` is the placeholder of the member's ID.
    pub audience: String,
    /// The requested scope.
    pub scope: Option<String>,
    /// The file of the roots that verify the endpoint.
    pub roots: Option<PathBuf>,
}

/// An AWS identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsIdentity {
    /// The region whose STS signs and verifies.
    pub region: String,
    /// The source of the credentials; `None` in a file that is only checked.
    pub credentials: Option<AwsCredentials>,
    /// The role that these credentials assume.
    pub assume_role: Option<String>,
    /// The endpoint of STS, if it is not the region's public one.
    pub endpoint: Option<OperatorUrl>,
    /// The file of the roots that verify the endpoint.
    pub roots: Option<PathBuf>,
}

/// The source of AWS credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AwsCredentials {
    /// The Pod Identity agent of the node.
    PodIdentity {
        /// Its URL.
        url: OperatorUrl,
        /// The file with the token of the pod.
        token_file: PathBuf,
    },
    /// A role for the service account (IRSA).
    WebIdentity {
        /// The role.
        role: String,
        /// The file with the account's token.
        token_file: PathBuf,
        /// The lifetime of the credentials.
        lifetime: Duration,
    },
}

impl MemberSources {
    /// Returns a source by name, and its position among the sources. Position 0 is the system
    /// namespace.
    pub fn source(&self, name: &str) -> Option<(usize, &Source)> {
        (1..).zip(&self.sources).find(|(_, source)| *source.name == *name)
    }

    /// Returns the sources of Secrets.
    pub fn secret_sources(&self) -> impl Iterator<Item = (&Source, &ObjectSelection)> {
        self.sources.iter().filter_map(|source| match &source.objects {
            SourceObjects::Secrets(selection) => Some((source, selection)),
            SourceObjects::ClusterProfiles { .. } => None,
        })
    }

    /// Returns a proxy by name.
    pub fn proxy(&self, name: &str) -> Option<&MemberProxy> {
        self.proxies.iter().find(|proxy| *proxy.name == *name)
    }

    /// Adds the access providers of another file, after the own ones.
    pub fn with_providers(&self, file: &ProviderFile) -> Self {
        let mut joined = self.clone();
        joined.access.extend(file.access.iter().cloned());
        joined.unused.extend(file.unused.iter().cloned());
        joined
    }

    /// Whether it contains an identity or a program with this name whose token may be sent to this
    /// host.
    pub fn issues(&self, name: &str, host: &str) -> bool {
        let is_own = |entry: &ProviderAccess| match &entry.kind {
            ProviderAccessKind::Program(program) => {
                entry.provider == name && program.may_reach(host)
            }
            _ => false,
        };
        self.identity(name).is_some_and(|identity| identity.may_reach(host))
            || self.access.iter().any(is_own)
    }

    /// Returns an identity by name.
    pub fn identity(&self, name: &str) -> Option<&MemberIdentity> {
        self.identities.iter().find(|identity| *identity.name == *name)
    }
}

impl PlacementSelection {
    /// Returns the selection of the decisions.
    pub fn decisions(&self) -> ObjectSelection {
        let selector = SelectorExpression::equal(DECISION_KEY_LABEL, &self.decision_key);
        ObjectSelection { namespace: Arc::clone(&self.namespace), selector }
    }
}

impl ObjectSelection {
    /// Whether an object with this namespace and these labels is selected.
    pub fn includes(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        *self.namespace == *namespace && self.selector.matches(labels)
    }
}

impl Source {
    /// Returns the selection of its objects, and whether they are ClusterProfiles.
    pub fn selection(&self) -> (&ObjectSelection, bool) {
        match &self.objects {
            SourceObjects::Secrets(selection) => (selection, false),
            SourceObjects::ClusterProfiles { selection, .. } => (selection, true),
        }
    }

    /// Returns the placement that limits its objects.
    pub fn placement(&self) -> Option<&PlacementSelection> {
        match &self.objects {
            SourceObjects::Secrets(_) => None,
            SourceObjects::ClusterProfiles { placement, .. } => placement.as_ref(),
        }
    }

    /// Whether the source selects an object.
    pub fn includes(
        &self,
        is_profile: bool,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let (selection, of_profiles) = self.selection();
        of_profiles == is_profile && selection.includes(namespace, labels)
    }

    /// Whether its objects may define a cluster with this ID.
    pub fn may_define(&self, id: &str) -> bool {
        self.ids.iter().any(|pattern| glob_matches(pattern.as_bytes(), id.as_bytes()))
    }
}

impl AwsIdentity {
    /// Returns the public host of STS in its region. Authenticators of clusters accept no other host
    /// in a presigned URL.
    pub(crate) fn sts_host(&self) -> String {
        let region = &self.region;
        let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
        format!("sts.{region}.amazonaws.com{suffix}")
    }

    /// Returns the role that its tokens represent, if it is known.
    pub fn role(&self) -> Option<&str> {
        match (&self.assume_role, &self.credentials) {
            (Some(role), _) | (None, Some(AwsCredentials::WebIdentity { role, .. })) => Some(role),
            _ => None,
        }
    }
}

impl MemberIdentity {
    /// Whether its token may be sent to this host.
    pub fn may_reach(&self, host: &str) -> bool {
        self.servers.iter().any(|server| server.matches(host))
    }

    /// Whether its token is the same at all members, so that one of them can use it at the others.
    pub fn is_replayable(&self) -> bool {
        matches!(self.kind, IdentityKind::Google(_) | IdentityKind::Azure(_))
    }

    /// Returns the type's name in the operator file.
    pub fn type_name(&self) -> &'static str {
        match &self.kind {
            IdentityKind::TokenFile(_) => "tokenFile",
            IdentityKind::Kubernetes { .. } => "kubernetes",
            IdentityKind::Aws(_) => "aws",
            IdentityKind::Google(_) => "google",
            IdentityKind::Azure(_) => "azure",
            IdentityKind::Exchange(_) => "exchange",
        }
    }
}

/// Whether `text` matches a pattern in which `*` matches any characters. Takes time proportional
/// to the product of both lengths at most.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_pattern, mut last_star) = (0, 0, None);
    while at < text.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                last_star = Some((in_pattern, at));
                in_pattern += 1;
            }
            Some(byte) if *byte == text[at] => {
                (at, in_pattern) = (at + 1, in_pattern + 1);
            }
            _ => {
                let Some((star, matched)) = last_star else { return false };
                last_star = Some((star, matched + 1));
                (at, in_pattern) = (matched + 1, star + 1);
            }
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    mod clouds;

    use super::glob_matches;

    #[test]
    fn pattern_matches_the_whole_id() {
        for (pattern, id, matches) in [
            ("*", "a", true),
            ("prod-*", "prod-eu", true),
            ("prod-*", "prod-", true),
            ("prod-*", "xprod-eu", false),
            ("*-eu-*", "a-eu-b-eu-c", true),
            ("*-eu", "a-eu-b", false),
            ("a*b*c", "axxbyyc", true),
            ("east", "east2", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob_matches(pattern.as_bytes(), id.as_bytes()), matches, "{pattern} {id}");
        }
    }
}
