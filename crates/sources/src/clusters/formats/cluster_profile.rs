//! ClusterProfiles: each access provider contains the cluster part of a kubeconfig.

use serde_json::{Value, json};

use super::object::{FoundMember, IDENTITY_ANNOTATION, MemberObject, MemberReach, ReadProvider};
use crate::clusters::kubeconfig::{self, KubeconfigRefusal};
use crate::members::profile::{AccessProvider, ClusterProfile};
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential};

/// Reads the cluster of a profile. Its access has no server until the operator file selects a provider.
pub(super) fn read(object: &MemberObject<'_>, profile: &ClusterProfile) -> FoundMember {
    let name = profile.set_id.as_deref().unwrap_or(&object.secret.name.name);
    let member = || {
        if object.annotation(IDENTITY_ANNOTATION).is_some() {
            let fact = "is not possible on a ClusterProfile: `access` of the --members file selects the credential";
            return Err(object.refused(IDENTITY_ANNOTATION, fact));
        }
        let reach = object.reach(&ApiCredential::None)?;
        let providers = profile.providers.iter().map(|provider| ReadProvider {
            name: provider.name.clone(),
            access: access(object, provider),
        });
        let access = Access { loopback: object.loopback, ..Access::relay() };
        Ok((access, MemberReach { providers: providers.collect(), ..reach }))
    };
    object.only(Some(name), member())
}

/// Reads the cluster of a provider with the rules of kubeconfigs.
fn access(
    object: &MemberObject<'_>,
    provider: &AccessProvider,
) -> Result<(Access, Option<kubeconfig::ProxyUrl>), KubeconfigRefusal> {
    let field = |name: &str| format!("status.accessProviders[{}].{name}", provider.name);
    if let Some(extension) = &provider.unknown_extension {
        let fact = format!("has the unknown extension {extension} about programs");
        return Err(KubeconfigRefusal::new(
            &codes::RUNS_PROGRAM,
            field("cluster.extensions"),
            fact,
        ));
    }
    let mut cluster = provider.cluster.clone();
    cluster.remove("disable-compression");
    let kubeconfig = json!({
        "clusters": [{ "name": provider.name, "cluster": cluster }],
        "contexts": [{ "name": "a", "context": { "cluster": provider.name } }],
        "current-context": "a",
    });
    let text = Value::to_string(&kubeconfig);
    let other = object.server_override();
    kubeconfig::parse_with(text.as_bytes(), None, object.loopback, &other)
}
