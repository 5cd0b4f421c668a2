//! A Secret as a member: the annotations that all formats have, and its kubeconfig.

use std::sync::Arc;

use jiff::Timestamp;

use crate::clusters::kubeconfig::{self, KubeconfigRefusal, ProxyUrl, ServerOverride};
use crate::store::WatchedSecret;
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential, Loopback};
use strait_model::ReadNamespaces;

/// The cluster ID of the Secret, instead of the one in its format.
pub const CLUSTER_ID_ANNOTATION: &str = "strait.dev/cluster-id";
/// The data key that contains the kubeconfig.
pub const KUBECONFIG_KEY_ANNOTATION: &str = "strait.dev/kubeconfig-key";
/// The URL of the API server, instead of the one in the kubeconfig.
pub const API_SERVER_ANNOTATION: &str = "strait.dev/api-server";
/// The name that the API server's certificate must be valid for.
pub const TLS_SERVER_NAME_ANNOTATION: &str = "strait.dev/tls-server-name";
/// The identity of the operator file with which the member is read.
pub const IDENTITY_ANNOTATION: &str = "strait.dev/identity";
/// The name of the cluster in the cloud of the identity, if it is not the cluster ID.
pub const IDENTITY_CLUSTER_ANNOTATION: &str = "strait.dev/identity-cluster";
/// The proxy of the operator file through which the member is reached.
pub const PROXY_ANNOTATION: &str = "strait.dev/proxy";
/// When the credential expires, if the credential itself does not contain it.
pub const EXPIRES_ANNOTATION: &str = "strait.dev/expires";

/// The only namespaces of the member that are read, separated by commas.
pub const READ_NAMESPACES_ANNOTATION: &str = "strait.dev/read-namespaces";

/// How a member is reached and authenticated, in addition to its [`Access`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemberReach {
    /// The identity that provides the credential.
    pub identity: Option<IdentityChoice>,
    /// The cluster's name for the identity, if it is not the cluster ID.
    pub identity_cluster: Option<Arc<str>>,
    /// The proxy.
    pub proxy: Option<ProxyChoice>,
    /// When the credential expires, according to the annotation.
    pub expires: Option<Timestamp>,
    /// The namespaces to which the object limits the reader.
    pub namespaces: ReadNamespaces,
    /// A part of the object that is ignored.
    pub remark: Option<KubeconfigRefusal>,
    /// The providers of a ClusterProfile, of which the operator file selects one.
    pub providers: Vec<ReadProvider>,
}

/// How an access provider of a ClusterProfile reaches its cluster, without a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadProvider {
    /// The name of the provider.
    pub name: String,
    /// The access, and the proxy that it names; or why it is refused.
    pub access: Result<(Access, Option<ProxyUrl>), KubeconfigRefusal>,
}

impl MemberReach {
    /// Adds the URL of a proxy in the object, with its field. The annotation takes precedence.
    pub(in crate::clusters) fn with_proxy_url(mut self, proxy_url: Option<ProxyUrl>) -> Self {
        let by_url =
            proxy_url.map(|ProxyUrl { url, field }| ProxyChoice::Url { url: url.into(), field });
        self.proxy = self.proxy.or(by_url);
        self
    }
}

/// The identity that an object selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityChoice {
    /// The identity with this name.
    Named(Arc<str>),
    /// The only identity of type `aws` that lists the server and has this role, if one is given.
    Aws {
        /// The ARN of the role.
        role: Option<Arc<str>>,
    },
}

/// The proxy that an object selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyChoice {
    /// The proxy with this name.
    Named(Arc<str>),
    /// The proxy with this URL, which the field of the object contains.
    Url {
        /// The text of the URL.
        url: Arc<str>,
        /// The field.
        field: String,
    },
}

/// A cluster that a Secret defines: its ID, or a text that is not a valid one, and how to read it.
pub(in crate::clusters) type FoundMember =
    (String, Result<(Access, MemberReach), KubeconfigRefusal>);

/// A Secret with the settings that all formats have.
pub(super) struct MemberObject<'a> {
    pub(super) secret: &'a WatchedSecret,
    pub(super) loopback: Loopback,
}

impl MemberObject<'_> {
    /// Returns a cluster whose ID is the annotation, otherwise `name`.
    pub(super) fn only(
        &self,
        name: Option<&str>,
        member: Result<(Access, MemberReach), KubeconfigRefusal>,
    ) -> FoundMember {
        match self.annotation(CLUSTER_ID_ANNOTATION).or(name.filter(|name| !name.is_empty())) {
            Some(id) => (id.to_owned(), member),
            None => {
                let fact = format!(
                    "Secret {} has no cluster ID; set the annotation {CLUSTER_ID_ANNOTATION}",
                    self.secret.name
                );
                let refusal = KubeconfigRefusal::new(&codes::ID_MISSING, "", fact);
                (self.secret.name.name.to_string(), Err(refusal))
            }
        }
    }

    /// Returns an annotation. A template may leave the value empty, which counts as absent.
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.secret.annotations.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn refused(&self, annotation: &str, fact: &str) -> KubeconfigRefusal {
        KubeconfigRefusal::new(&codes::ANNOTATION_INVALID, format!("annotation {annotation}"), fact)
    }

    /// Returns the server settings in the annotations, which replace the settings of the format.
    pub(super) fn server_override(&self) -> ServerOverride<'_> {
        let named = |annotation| Some((annotation, self.annotation(annotation)?));
        ServerOverride {
            server: named(API_SERVER_ANNOTATION),
            tls_server_name: named(TLS_SERVER_NAME_ANNOTATION),
        }
    }

    /// Reads the kubeconfig in a data key.
    pub(super) fn kubeconfig(&self, key: &str) -> Result<(Access, MemberReach), KubeconfigRefusal> {
        let bytes = self.secret.data.get(key).ok_or_else(|| {
            let keys = self.secret.data.keys().map(|key| key.escape_debug().to_string());
            let found: Vec<_> = keys.collect();
            let fact = match found.is_empty() {
                true => "is missing; the Secret is empty".to_owned(),
                false => format!("is missing; the Secret has {}", found.join(", ")),
            };
            let field = format!("data.{}", key.escape_debug());
            KubeconfigRefusal::new(&codes::KEY_MISSING, field, fact)
        })?;
        let other = self.server_override();
        let (access, proxy_url) =
            kubeconfig::parse_with(bytes.reveal(), None, self.loopback, &other)?;
        let reach = self.reach(&access.credential)?;
        Ok((access, reach.with_proxy_url(proxy_url)))
    }

    /// Reads the annotations that define how the member is reached. `credential` is the credential in
    /// the object.
    pub(super) fn reach(
        &self,
        credential: &ApiCredential,
    ) -> Result<MemberReach, KubeconfigRefusal> {
        let identity = self.annotation(IDENTITY_ANNOTATION);
        if identity.is_some() && *credential != ApiCredential::None {
            return Err(ambiguous(format!("annotation {IDENTITY_ANNOTATION}")));
        }
        let (expires, remark) = match self.annotation(EXPIRES_ANNOTATION) {
            None => (None, None),
            Some(time) => match time.parse::<Timestamp>() {
                Ok(time) => (Some(time), None),
                Err(_) => {
                    let fact = "is not a time such as 2027-01-31T00:00:00Z, and is ignored";
                    (None, Some(self.refused(EXPIRES_ANNOTATION, fact)))
                }
            },
        };
        Ok(MemberReach {
            identity: identity.map(|name| IdentityChoice::Named(name.into())),
            identity_cluster: self.annotation(IDENTITY_CLUSTER_ANNOTATION).map(Into::into),
            proxy: self.annotation(PROXY_ANNOTATION).map(|name| ProxyChoice::Named(name.into())),
            expires,
            namespaces: read_namespaces(self.secret)?,
            remark,
            providers: Vec::new(),
        })
    }
}

/// Returns the namespaces to which the annotation of a Secret limits the reader.
pub(in crate::clusters) fn read_namespaces(
    secret: &WatchedSecret,
) -> Result<ReadNamespaces, KubeconfigRefusal> {
    let text = secret.annotations.get(READ_NAMESPACES_ANNOTATION).map_or("", String::as_str);
    // A template may leave the value empty.
    if text.trim().is_empty() {
        return Ok(ReadNamespaces::default());
    }
    ReadNamespaces::of(text.split(',').map(str::trim)).map_err(|fact| {
        let field = format!("annotation {READ_NAMESPACES_ANNOTATION}");
        KubeconfigRefusal::new(&codes::ANNOTATION_INVALID, field, fact)
    })
}

/// Returns the refusal of an object with a credential and an identity.
pub(super) fn ambiguous(field: String) -> KubeconfigRefusal {
    let fact = "names an identity, and the object also contains a credential";
    KubeconfigRefusal::new(&codes::CREDENTIAL_AMBIGUOUS, field, fact)
}
