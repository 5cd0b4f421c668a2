//! Costs of access policies: an edit that affects few of many proxies, the filters of many rules,
//! and the memory of many policies.

use std::hint::black_box;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::{NAMESPACE, pod_name, service_name};
use crate::{Case, DOMAIN, mesh};
use strait_ads::node;
use strait_envoy::{Cache, ProxyConfig};
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::MeshEvent;
use strait_mesh::push::scope::ProxyLocation;
use strait_mesh::push::subscription_index::SubscriptionIndex;
use strait_mesh::push::view::{Role, ViewKey};
use strait_model::dirty::Wildcards;
use strait_model::{Collection, NetworkId, Proxy};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::google::protobuf::{Struct, Value as NodeValue, value::Kind};
use strait_rules::access::{AccessIndex, AccessPolicies, AccessSettings, PolicyErrors};
use strait_xds::resource::{ResourceSource, ResourceType};

fn settings() -> AccessSettings {
    AccessSettings { root: "strait-system".into(), errors: PolicyErrors::Narrow }
}

/// Returns a policy for the pods of a service, with this number of rules. Another `salt` gives
/// other rules.
fn policy(number: usize, service: usize, rules: usize, salt: usize) -> Arc<Value> {
    let rule = |rule: usize| {
        let account = format!("cluster.local/ns/{NAMESPACE}/sa/client-{rule}");
        json!({
            "from": [{ "source": { "principals": [account] } }],
            "to": [{ "operation": { "methods": ["GET"], "paths": [format!("/v{salt}/item-{rule}/*")] } }],
        })
    };
    Arc::new(json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": { "namespace": NAMESPACE, "name": format!("policy-{number}"), "resourceVersion": "1" },
        "spec": {
            "selector": { "matchLabels": { "app": service_name(service) } },
            "action": "ALLOW",
            "rules": (0..rules).map(rule).collect::<Vec<_>>(),
        },
    }))
}

fn proxy_of(service: usize, number: usize) -> Proxy {
    let text = |text: &str| NodeValue { kind: Some(Kind::StringValue(text.into())) };
    let fields = [("CLUSTER_ID".to_owned(), text("c1"))].into();
    let (pod, address) = (pod_name(service, number), format!("10.0.0.{}", number + 1));
    node::read(&Node {
        id: format!("sidecar~{address}~{pod}.{NAMESPACE}~{NAMESPACE}.svc.{DOMAIN}"),
        metadata: Some(Struct { fields }),
        ..Default::default()
    })
    .expect("a node")
}

/// Edits one policy among a hundred (the policy selects 10 of 1,000 proxies): reading, indexing,
/// the next version, computing the affected proxies, and waking their streams.
pub(crate) fn edit_for_10_of_1000() -> Case {
    const EDITS: usize = 20;
    const SERVICES: usize = 100;
    const PODS: usize = 10;
    let (mut mesh, _, _) = mesh(1, SERVICES, PODS);
    let mut index = AccessIndex::new(settings());
    let mut objects: Collection =
        (0..SERVICES).map(|number| policy(number, number, 3, 0)).collect();
    let first = index.apply(&settings(), &objects).expect("the first time");
    mesh.apply(MeshEvent::Access(first.policies, first.causes));
    let (mut before, _) = mesh.next_version().expect("a version with policies");
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let mut subscriptions = Vec::new();
    for proxy in (0..SERVICES).flat_map(|at| (0..PODS).map(move |number| proxy_of(at, number))) {
        assert!(before.workload_of(&proxy).is_some(), "its pod is known");
        let subscription = subscription_index.subscribe(None);
        subscription.watch_lists(Wildcards::ALL);
        let view = ViewKey::of(&proxy, NetworkId::default(), Role::Client);
        let whereabouts = before.whereabouts(&proxy);
        let labels = before.known_labels(&proxy).cloned();
        let stand =
            ProxyLocation { proxy: Arc::new(proxy), network: NetworkId::default(), whereabouts };
        subscription.set_location(stand, view, labels.as_ref());
        subscriptions.push(subscription);
    }
    let cache = Cache::default();
    let run = move || {
        let _kept = &subscriptions;
        for salt in 1..=EDITS {
            let key = objects.iter().next().expect("one").0.clone();
            objects.insert(key, policy(0, 0, 3, salt));
            let change = index.apply(&settings(), &objects).expect("a change");
            mesh.apply(MeshEvent::Access(change.policies, change.causes));
            let (now, mut changes) = mesh.next_version().expect("a version");
            changes.compute_impact([&before, &now], &subscription_index, &cache);
            assert_eq!(black_box(subscription_index.mark(&changes)), PODS);
            before = now;
        }
    };
    Case::new(EDITS, run)
}

/// Generates the inbound listener of a workload that 200 rules guard, for HTTP and for TCP.
pub(crate) fn rbac_of_200_rules() -> Case {
    const TIMES: usize = 20;
    let (mut mesh, _, _) = mesh(1, 1, 1);
    let mut index = AccessIndex::new(settings());
    let objects: Collection = [policy(0, 0, 200, 0)].into_iter().collect();
    let change = index.apply(&settings(), &objects).expect("the first time");
    mesh.apply(MeshEvent::Access(change.policies, change.causes));
    let (context, _) = mesh.next_version().expect("a version with policies");
    let (proxy, cache) = (proxy_of(0, 0), Cache::default());
    assert!(inbound(&context, &proxy, &cache) > 200 * 100, "200 rules are in it");
    Case::new(TIMES, move || {
        for _ in 0..TIMES {
            black_box(inbound(&context, &proxy, &cache));
        }
    })
}

/// Generates the same listener for the first proxy after an edit: the policy is new, so its rules
/// are not cached. All parts that the edit does not affect are cached.
pub(crate) fn rbac_of_200_rules_edited() -> Case {
    const EDITS: usize = 20;
    let (mut mesh, _, _) = mesh(1, 1, 1);
    let mut index = AccessIndex::new(settings());
    let mut edited = |salt| {
        let objects: Collection = [policy(0, 0, 200, salt)].into_iter().collect();
        let change = index.apply(&settings(), &objects).expect("a change");
        mesh.apply(MeshEvent::Access(change.policies, change.causes));
        mesh.next_version().expect("a version with other policies").0
    };
    let (proxy, cache) = (proxy_of(0, 0), Cache::default());
    assert!(inbound(&edited(0), &proxy, &cache) > 200 * 100, "200 rules are in it");
    let contexts: Vec<_> = (1..=EDITS).map(edited).collect();
    Case::new(EDITS, move || {
        for context in &contexts {
            black_box(inbound(context, &proxy, &cache));
        }
    })
}

/// Returns the bytes of the listeners that belong to only this proxy.
fn inbound(context: &Arc<PushContext>, proxy: &Proxy, cache: &Cache) -> usize {
    let mut proxy_config = ProxyConfig::new(context, proxy, NetworkId::default(), cache);
    let all = proxy_config.all(ResourceType::Listener);
    all.own.iter().map(|one| one.body.len()).sum()
}

fn many(count: usize) -> (AccessIndex, Collection, Arc<AccessPolicies>) {
    let mut index = AccessIndex::new(settings());
    let objects: Collection =
        (0..count).map(|number| policy(number, number % 100, 3, number)).collect();
    let change = index.apply(&settings(), &objects).expect("the first time");
    (index, objects, change.policies)
}

/// Measures active policies.
pub(crate) fn bytes_policies(count: usize) -> Case {
    let (_, _, policies) = many(count);
    Case::holding(count, policies)
}

/// Measures active policies with their stored objects.
pub(crate) fn bytes_policies_stored(count: usize) -> Case {
    Case::holding(count, many(count))
}
