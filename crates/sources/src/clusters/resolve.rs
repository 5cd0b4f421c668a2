//! Applies the operator file to the members that Secrets define: which IDs a source may define, and
//! which identity reads a member. An object that selects an unavailable identity or proxy is refused.

use std::sync::Arc;

use super::formats::{IDENTITY_ANNOTATION, IdentityChoice, MemberReach, PROXY_ANNOTATION};
use super::kubeconfig::KubeconfigRefusal;
use super::secret::{MemberSecret, MemberSpec};
use crate::members::book::TokenBook;
use crate::members::{IdentityKind, MemberIdentity, MemberSources};
use crate::store::WatchedSecret;
use strait_base::codes;
use strait_kube_client::ApiCredential;
use strait_model::ClusterId;

/// Returns `read`, the content of `secret`, with the operator file applied.
///
/// The Secrets of a source and the operator file change independently. A Secret that the current
/// file does not select defines nothing, until its source has been read again.
pub(super) fn resolve(
    secret: &WatchedSecret,
    read: &MemberSecret,
    sources: &MemberSources,
    book: &TokenBook,
) -> MemberSecret {
    let mut resolved = read.clone();
    let position = read.source.as_ref().and_then(|name| sources.source(name));
    resolved.source_order = position.map_or(0, |(order, _)| order);
    for (id, member) in &mut resolved.clusters {
        let outside = match (&read.source, position) {
            (None, _) => None,
            (Some(name), Some((_, source)))
                if source.includes(&secret.name.namespace, &secret.labels) =>
            {
                (!source.may_define(id.as_str())).then(|| {
                    format!("source {name} may define {}, not {id}", source.ids.join(", "))
                })
            }
            (Some(name), Some(_)) => Some(format!("source {name} no longer selects the Secret")),
            (Some(name), None) => Some(format!("the --members file no longer has source {name}")),
        };
        let refusal = match (outside, &mut *member) {
            (Some(fact), _) => Some(KubeconfigRefusal::new(&codes::ID_OUTSIDE_SOURCE, "", fact)),
            (None, Ok(spec)) => resolve_member(id, spec, sources, book).err(),
            (None, Err(_)) => None,
        };
        if let Some(refusal) = refusal {
            *member = Err(refusal);
        }
    }
    resolved
}

fn resolve_member(
    id: &ClusterId,
    spec: &mut MemberSpec,
    sources: &MemberSources,
    book: &TokenBook,
) -> Result<(), KubeconfigRefusal> {
    let annotation = |name: &str| format!("annotation {name}");
    let MemberReach { identity, identity_cluster, proxy, namespaces, .. } = &spec.reach;
    let unavailable =
        |field: String, fact: &str| KubeconfigRefusal::new(&codes::NOT_AVAILABLE, field, fact);
    if let Some(name) = proxy {
        let fact = match sources.proxies.contains(name) {
            true => format!("selects proxy {name}; this version does not implement proxies"),
            false => format!("selects proxy {name}, which the --members file does not define"),
        };
        return Err(unavailable(annotation(PROXY_ANNOTATION), &fact));
    }
    if !namespaces.is_empty() {
        let fact = format!(
            "limits the reader to {}; this version reads whole clusters: set clusterResources to true",
            namespaces.join(", ")
        );
        return Err(unavailable("namespaces".to_owned(), &fact));
    }
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
    Ok(())
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
