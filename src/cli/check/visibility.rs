//! Recommendation of `strait check` for meshes with several tenants.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::note;
use crate::cli::network::gateway_sources;
use crate::cli::output::text;
use strait_admin_api::{Network, Policy};
use strait_base::codes;
use strait_base::names::list_first;

/// Namespace of the gateways that `strait cluster add --gateway` creates.
const OWN_GATEWAYS: &str = crate::cli::cluster::GATEWAY_NAMESPACE;

/// Recommends that objects apply to their own namespace by default, if several namespaces have objects that apply to the mesh
/// without saying so. The root namespace's objects are the operator's.
pub(super) fn recommended(policy: &Policy) -> Option<Value> {
    let objects = &policy.visible_by_default;
    let root = policy.root_namespace.as_deref();
    let of_tenants = objects.iter().filter(|one| root != Some(&*one.namespace));
    let namespaces: BTreeSet<String> = of_tenants.map(|one| text(&one.namespace)).collect();
    if namespaces.len() < 2 {
        return None;
    }
    let fact = format!(
        "{} objects apply to the whole mesh by default, of namespaces {}",
        objects.len(),
        list_first(namespaces.iter(), 2)
    );
    Some(note("policy", &codes::DEFAULT_VISIBILITY, "policy".into(), fact))
}

/// Reports network gateways outside of the root namespace, unless the policy lists the namespaces
/// of gateways.
pub(super) fn foreign_gateways(policy: &Policy, networks: &[Network]) -> Vec<Value> {
    // A server without these fields does not report the namespaces.
    let Some(root_namespace) = &policy.root_namespace else { return Vec::new() };
    if policy.gateway_namespaces.is_some() {
        return Vec::new();
    }
    let mut claims = BTreeSet::new();
    for network in networks {
        for (cluster, source) in gateway_sources(network) {
            let source = text(source);
            let object = ["service ", "gateway "].iter().find_map(|kind| source.strip_prefix(kind));
            let namespace = object.and_then(|object| object.split_once('/')).map(|(name, _)| name);
            let is_foreign = |name: &str| *root_namespace != name && name != OWN_GATEWAYS;
            if namespace.is_some_and(is_foreign) {
                claims.insert((text(&network.network), cluster.to_owned(), source));
            }
        }
    }
    let note = |(network, cluster, source): (String, String, String)| {
        let owner =
            if cluster.is_empty() { String::new() } else { format!(" of cluster {cluster}") };
        let fact = format!("{source}{owner} is a gateway of the network because of its label");
        note("networks", &codes::FOREIGN_GATEWAY, format!("network/{network}"), fact)
    };
    claims.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn gateways_outside_of_the_root_namespace_are_noted_without_a_list() {
        let gateway = |source: &str| json!({ "source": source, "cluster": "east" });
        let networks = json!([{
            "network": "n1",
            "gateways": [
                gateway("service shop/gw"), gateway("service shop/gw"), gateway("gateway edge/gw"),
                gateway("service root/gw"), gateway("meshNetworks address"),
            ],
            "pending": [gateway("service pay/gw")],
        }]);
        let networks: Vec<Network> = typed(networks);
        let found = foreign_gateways(&typed(json!({ "rootNamespace": "root" })), &networks);
        let facts: Vec<_> = found.iter().map(|row| text(&row["fact"])).collect();
        let expected = ["gateway edge/gw", "service pay/gw", "service shop/gw"].map(|source| {
            format!("{source} of cluster east is a gateway of the network because of its label")
        });
        assert_eq!(facts, expected);
        assert_eq!((&found[0]["severity"], &found[0]["code"]), (&json!("note"), &json!("STR1113")));
        let limited = json!({ "rootNamespace": "root", "gatewayNamespaces": ["shop"] });
        assert!(foreign_gateways(&typed(limited), &networks).is_empty());
    }

    #[test]
    fn default_visibility_is_recommended_if_several_tenants_rely_on_it() {
        let policy = |namespaces: &[&str]| {
            let object = |namespace: &&str| json!({ "kind": "VirtualService", "namespace": namespace, "name": "a" });
            let objects: Vec<_> = namespaces.iter().map(object).collect();
            typed(json!({ "rootNamespace": "root", "visibleByDefault": objects }))
        };
        for alone in [&[][..], &["shop", "shop"], &["shop", "root"]] {
            assert_eq!(recommended(&policy(alone)), None, "{alone:?}");
        }
        let found = recommended(&policy(&["shop", "pay", "root", "a"])).expect("a note");
        assert_eq!((&found["severity"], &found["code"]), (&json!("note"), &json!("STR1111")));
        let fact = "4 objects apply to the whole mesh by default, of namespaces a, pay and 1 more";
        assert_eq!(found["fact"], fact);
    }
}
