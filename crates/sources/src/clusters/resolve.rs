//! Applies the operator file to the members that Secrets define: which IDs a source may define, and
//! which identity reads a member. An object that selects an unavailable identity or proxy is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Uri;

use super::formats::{
    IDENTITY_ANNOTATION, IdentityChoice, MemberReach, PROXY_ANNOTATION, ProxyChoice,
};
use super::kubeconfig::{self, KubeconfigRefusal, ServerOverride};
use super::secret::{MemberSecret, MemberSpec};
use crate::members::book::TokenBook;
use crate::members::profile::{
    AccessProvider, ClusterProfile, ProviderAccessKind, ProviderProgram, ProviderSecret,
};
use crate::members::{IdentityKind, MemberIdentity, MemberSources};
use crate::store::{ObjectName, WatchedSecret};
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential, ConnectProxy, Loopback, Redacted};
use strait_model::ClusterId;

/// Returns `read`, the content of `secret`, with the operator file applied.
///
/// The Secrets of a source and the operator file change independently. A Secret that the current
/// file does not select defines nothing, until its source has been read again.
pub(super) fn resolve(
    secret: &WatchedSecret,
    read: &MemberSecret,
    sources: &MemberSources,
    provider_secrets: &ProviderSecrets,
    book: &TokenBook,
) -> MemberSecret {
    let mut resolved = read.clone();
    let position = read.source.as_ref().and_then(|name| sources.source(name));
    resolved.source_order = position.map_or(0, |(order, _)| order);
    for (id, member) in &mut resolved.clusters {
        let outside = match (&read.source, position) {
            (None, _) => None,
            (Some(name), Some((_, source)))
                if source.includes(
                    secret.profile.is_some(),
                    &secret.name.namespace,
                    &secret.labels,
                ) =>
            {
                (!source.may_define(id.as_str())).then(|| {
                    format!("source {name} may define {}, not {id}", source.ids.join(", "))
                })
            }
            (Some(_), _) => deselection(secret, sources),
        };
        let refusal = match (outside, &mut *member) {
            (Some(fact), _) => Some(KubeconfigRefusal::new(&codes::ID_OUTSIDE_SOURCE, "", fact)),
            (None, Ok(spec)) => {
                let chosen = match &secret.profile {
                    Some(profile) => choose_provider(profile, spec, sources, provider_secrets),
                    None => Ok(None),
                };
                let resolved = chosen.and_then(|program| {
                    resolve_member(id, spec, sources, book)?;
                    if let Some(program) = program {
                        program.authenticate(spec, book)?;
                    }
                    Ok(())
                });
                resolved.err()
            }
            (None, Err(_)) => None,
        };
        if let Some(refusal) = refusal {
            *member = Err(refusal);
        }
    }
    resolved
}

/// Returns why the operator file no longer selects an object of a source; `None` if it does, or if the
/// object is of the system namespace.
pub(super) fn deselection(secret: &WatchedSecret, sources: &MemberSources) -> Option<String> {
    let name = secret.source.as_ref()?;
    let is_profile = secret.profile.is_some();
    let object =
        format!("{} {}", if is_profile { "ClusterProfile" } else { "Secret" }, secret.name);
    match sources.source(name) {
        None => {
            Some(format!("the --members file no longer has source {name}, which selected {object}"))
        }
        Some((_, source)) => {
            let is_selected = source.includes(is_profile, &secret.name.namespace, &secret.labels);
            (!is_selected)
                .then(|| format!("source {name} of the --members file no longer selects {object}"))
        }
    }
}

/// The Secrets with the credentials for clusters of ClusterProfiles.
pub(super) type ProviderSecrets = BTreeMap<ObjectName, Arc<WatchedSecret>>;

/// A program that prints the token for the cluster of a profile.
struct ChosenProgram<'a> {
    program: &'a ProviderProgram,
    provider: &'a AccessProvider,
}

impl ChosenProgram<'_> {
    /// Sets the credential of the member, if its server may receive the token.
    fn authenticate(
        self,
        spec: &mut MemberSpec,
        book: &TokenBook,
    ) -> Result<(), KubeconfigRefusal> {
        let Self { program, provider } = self;
        let (name, host) = (&provider.name, spec.access.server.host().unwrap_or_default());
        if !program.may_reach(host) {
            let field = format!("status.accessProviders[{name}]");
            let fact = format!(
                "selects a program whose servers do not include {host}; to allow it, add {host} to servers of access entry {name}"
            );
            return Err(KubeconfigRefusal::new(&codes::IDENTITY_SERVER, field, fact));
        }
        let cluster = provider.cluster_info(&spec.access);
        let feed = book.feed_of_program(name, program.program_for(provider), cluster);
        spec.access.credential = ApiCredential::Issued(feed);
        Ok(())
    }
}

/// Sets the access of a profile's member: the provider that the operator file selects, and its
/// credential. Returns the program that provides it, if one does.
fn choose_provider<'a>(
    profile: &'a ClusterProfile,
    spec: &mut MemberSpec,
    sources: &'a MemberSources,
    provider_secrets: &ProviderSecrets,
) -> Result<Option<ChosenProgram<'a>>, KubeconfigRefusal> {
    let Some((kind, provider)) = profile.choose(&sources.access) else {
        let listed = profile.providers.iter().map(|provider| provider.name.as_str());
        let listed: Vec<_> = listed.collect();
        let fact = match listed.is_empty() {
            true => "lists no access provider".to_owned(),
            false => format!(
                "lists {}; `access` of the --members file has none of them",
                listed.join(", ")
            ),
        };
        let field = "status.accessProviders";
        return Err(KubeconfigRefusal::new(&codes::PROFILE_PROVIDER, field, fact));
    };
    let field = || format!("status.accessProviders[{}]", provider.name);
    let read = spec.reach.providers.iter().find(|read| read.name == provider.name);
    let Some(read) = read else {
        let fact = "is not read";
        return Err(KubeconfigRefusal::new(&codes::PROFILE_PROVIDER, field(), fact));
    };
    let (mut access, proxy_url) = read.access.clone()?;
    let mut chosen_program = None;
    match kind {
        ProviderAccessKind::Identity(name) => {
            spec.reach.identity = Some(IdentityChoice::Named(Arc::clone(name)));
        }
        ProviderAccessKind::Program(program) => {
            chosen_program = Some(ChosenProgram { program, provider });
        }
        ProviderAccessKind::SecretReader { .. }
        | ProviderAccessKind::KubeconfigSecretReader { .. } => {
            let unusable =
                |fact: String| KubeconfigRefusal::new(&codes::PROFILE_SECRET, field(), fact);
            let secret = provider.secret(kind).map_err(unusable)?;
            access.credential = match secret {
                Some(secret) => provider_credential(&secret, provider_secrets).map_err(unusable)?,
                None => ApiCredential::None,
            };
        }
    }
    spec.access = access;
    spec.reach = std::mem::take(&mut spec.reach).with_proxy_url(proxy_url);
    Ok(chosen_program)
}

/// Returns the credential in the Secret of a provider.
fn provider_credential(
    selected: &ProviderSecret,
    provider_secrets: &ProviderSecrets,
) -> Result<ApiCredential, String> {
    let ProviderSecret { namespace, name, key, is_kubeconfig, context } = selected;
    let found = provider_secrets.get(&ObjectName::new(namespace, name));
    let secret = found
        .ok_or_else(|| format!("Secret {namespace}/{name} does not exist, or cannot be read"))?;
    let value = secret.data.get(key).filter(|value| !value.reveal().is_empty());
    let value = value.ok_or_else(|| format!("Secret {namespace}/{name} has no key {key:?}"))?;
    if !is_kubeconfig {
        let token = std::str::from_utf8(value.reveal()).map(str::trim);
        let token = token.ok().filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        let unusable = || format!("{key:?} of Secret {namespace}/{name} is not a token");
        return Ok(ApiCredential::Token(Redacted::new(token.ok_or_else(unusable)?.to_owned())));
    }
    // Only the credential is used: the profile names the server.
    let other = ServerOverride::default();
    let parsed =
        kubeconfig::parse_with(value.reveal(), context.as_deref(), Loopback::Allowed, &other);
    let (access, _) =
        parsed.map_err(|refusal| format!("Secret {namespace}/{name}, key {key:?}: {refusal}"))?;
    match access.credential {
        ApiCredential::None => {
            Err(format!("{key:?} of Secret {namespace}/{name} has no credential"))
        }
        credential => Ok(credential),
    }
}

fn resolve_member(
    id: &ClusterId,
    spec: &mut MemberSpec,
    sources: &MemberSources,
    book: &TokenBook,
) -> Result<(), KubeconfigRefusal> {
    let annotation = |name: &str| format!("annotation {name}");
    if !spec.access.is_relayed() {
        let host = spec.access.server.host().unwrap_or_default();
        spec.access.proxy = proxy(spec.reach.proxy.as_ref(), host, sources)?;
    }
    let MemberReach { identity, identity_cluster, .. } = &spec.reach;
    let unavailable =
        |field: String, fact: &str| KubeconfigRefusal::new(&codes::NOT_AVAILABLE, field, fact);
    let Some(choice) = identity else { return Ok(()) };
    let host = spec.access.server.host().unwrap_or_default();
    let identity = match choice {
        IdentityChoice::Named(name) => named(name, host, sources)?,
        IdentityChoice::Aws { role } => aws(role.as_deref(), host, sources)?,
    };
    let cluster = identity_cluster.as_deref().unwrap_or(id.as_str());
    let feed = book.feed(identity, id.as_str(), cluster);
    let feed = feed.map_err(|fact| unavailable(annotation(IDENTITY_ANNOTATION), &fact))?;
    spec.access.credential = ApiCredential::Issued(feed);
    if matches!(identity.kind, IdentityKind::Google(_)) && is_named_by_google(host) {
        (spec.access.ca_pem, spec.access.tls_server_name) = (None, None);
    }
    Ok(())
}

/// Whether Google assigns this name. The certificate of its server is public: an object cannot choose
/// the certificate authority of a server that receives a token of Google.
fn is_named_by_google(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let is_below = |suffix: &str| host == suffix || host.ends_with(&format!(".{suffix}"));
    is_below("gke.goog") || is_below("googleapis.com")
}

/// Names that a proxy would resolve to itself or to a metadata service.
const NEVER_CONNECTED: [&str; 6] = [
    "localhost",
    "localhost.localdomain",
    "ip6-localhost",
    "ip6-loopback",
    "metadata",
    "metadata.google.internal",
];

/// Returns the proxy that connects the server of an object: the one that it selects, otherwise the
/// first that lists the server.
fn proxy(
    choice: Option<&ProxyChoice>,
    host: &str,
    sources: &MemberSources,
) -> Result<Option<Arc<ConnectProxy>>, KubeconfigRefusal> {
    let (field, proxy) = match choice {
        Some(ProxyChoice::Named(name)) => {
            let field = format!("annotation {PROXY_ANNOTATION}");
            let Some(proxy) = sources.proxy(name) else {
                let fact =
                    format!("selects proxy {name}, which the --members file does not define");
                return Err(KubeconfigRefusal::new(&codes::PROXY_UNKNOWN, field, fact));
            };
            (field, proxy)
        }
        Some(ProxyChoice::Url { url, field }) => {
            let known = sources.proxies.iter().find(|proxy| proxy.has_url(url));
            let known = known.ok_or_else(|| unlisted_proxy(url, field, sources))?;
            (field.clone(), known)
        }
        None => match sources.proxies.iter().find(|proxy| proxy.may_reach(host)) {
            Some(proxy) => (format!("proxies.{}", proxy.name), proxy),
            None => return Ok(None),
        },
    };
    let name = &proxy.name;
    if !proxy.may_reach(host) {
        let fact = format!(
            "selects proxy {name}, whose servers do not include {host}; to allow it, add {host} to proxies.{name}.servers"
        );
        return Err(KubeconfigRefusal::new(&codes::PROXY_SERVER, field, fact));
    }
    let bare = host.trim_end_matches('.').to_ascii_lowercase();
    if NEVER_CONNECTED.contains(&bare.as_str()) || bare.ends_with(".localhost") {
        let fact = format!("{host} is never connected through a proxy, which would resolve it");
        return Err(KubeconfigRefusal::new(&codes::PROXY_SERVER, field, fact));
    }
    Ok(Some(Arc::clone(&proxy.connect)))
}

/// Whether the operator file still defines the proxy and the issuer of the token of an access, for
/// this server.
pub(super) fn permits(sources: &MemberSources, access: &Access) -> bool {
    let host = access.server.host().unwrap_or_default();
    let has_proxy = access.proxy.as_ref().is_none_or(|proxy| {
        sources.proxies.iter().any(|listed| listed.url == proxy.url && listed.may_reach(host))
    });
    has_proxy
        && match &access.credential {
            ApiCredential::Issued(feed) => sources.issues(feed.identity(), host),
            _ => true,
        }
}

/// Returns the refusal of an object with the URL of a proxy that the operator file does not define.
fn unlisted_proxy(url: &str, field: &str, sources: &MemberSources) -> KubeconfigRefusal {
    let host = url.parse::<Uri>().ok().and_then(|url| url.host().map(str::to_owned));
    let host = host.unwrap_or_else(|| "a proxy".to_owned());
    let listed = sources.proxies.iter().filter_map(|proxy| proxy.url.host());
    let listed: Vec<_> = listed.collect();
    let fact = match listed.is_empty() {
        true => format!("sends the connection through {host}; the --members file has no proxies"),
        false => format!(
            "sends the connection through {host}, whose URL the --members file does not define; it has {}",
            listed.join(", ")
        ),
    };
    KubeconfigRefusal::new(&codes::USES_PROXY, field, fact)
}

/// Returns the identity that an object names, if its token may be sent to the object's server.
fn named<'a>(
    name: &Arc<str>,
    host: &str,
    sources: &'a MemberSources,
) -> Result<&'a MemberIdentity, KubeconfigRefusal> {
    let field = format!("annotation {IDENTITY_ANNOTATION}");
    let Some(identity) = sources.identity(name) else {
        let fact = format!("selects identity {name}, which the --members file does not define");
        return Err(KubeconfigRefusal::new(&codes::IDENTITY_UNKNOWN, field, fact));
    };
    if !identity.may_reach(host) {
        let fact = format!(
            "selects identity {name}, whose servers do not include {host}; to allow it, add {host} to identities.{name}.servers"
        );
        return Err(KubeconfigRefusal::new(&codes::IDENTITY_SERVER, field, fact));
    }
    Ok(identity)
}

/// Returns the only identity of type `aws` that may reach the server with this role.
fn aws<'a>(
    role: Option<&str>,
    host: &str,
    sources: &'a MemberSources,
) -> Result<&'a MemberIdentity, KubeconfigRefusal> {
    let has_role = |identity: &&MemberIdentity| match (&identity.kind, role) {
        (IdentityKind::Aws(_), None) => true,
        (IdentityKind::Aws(aws), Some(role)) => aws.role() == Some(role),
        _ => false,
    };
    let fitting = sources.identities.iter().filter(has_role);
    let fitting: Vec<_> = fitting.filter(|identity| identity.may_reach(host)).collect();
    if let [only] = fitting[..] {
        return Ok(only);
    }
    let role = role.map(|role| format!(" with role {role}")).unwrap_or_default();
    let fact = match fitting.len() {
        0 => format!(
            "needs an identity of type aws{role} whose servers include {host}; the --members file has none"
        ),
        count => format!(
            "needs one identity of type aws{role} for {host}; the --members file has {count}: select one with the annotation {IDENTITY_ANNOTATION}"
        ),
    };
    Err(KubeconfigRefusal::new(&codes::IDENTITY_UNKNOWN, "config.awsAuthConfig", fact))
}

#[cfg(test)]
mod tests;
