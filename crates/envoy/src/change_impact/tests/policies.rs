//! Which streams an edit of access policies wakes, as the event loop computes it.

use serde_json::json;

use super::*;

const APPS: usize = 100;
const PODS: usize = 10;

fn policy(app: usize, path: &str) -> Arc<serde_json::Value> {
    Arc::new(json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": format!("p{app:03}") },
        "spec": {
            "selector": { "matchLabels": { "app": format!("a{app}") } },
            "rules": [{ "to": [{ "operation": { "paths": [path] } }] }],
        },
    }))
}

#[test]
fn edit_of_a_policy_that_selects_10_of_1000_proxies_wakes_10() {
    let mut mesh = MeshState::new(settings());
    let clusters = [("east".into(), member(None))].into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    let mut update = shard("east", 1).network("n1");
    let mut proxies = Vec::new();
    for (app, pod) in (0..APPS).flat_map(|app| (0..PODS).map(move |pod| (app, pod))) {
        let (name, label) = (format!("pod-{app}-{pod}.shop"), format!("a{app}"));
        update =
            update.pod(workload(&name, &format!("10.0.{app}.{}", pod + 1), &[("app", &label)]));
        proxies.push(sidecar(&name, "east"));
    }
    mesh.apply(MeshEvent::Registry(update.built()));
    let mut index = AccessIndex::new(access_settings());
    let objects = |path: &str| -> Collection {
        (0..APPS).map(|app| policy(app, if app == 7 { path } else { "/" })).collect()
    };
    let first = index.apply(&access_settings(), &objects("/a")).expect("the first time");
    mesh.apply(MeshEvent::Access(first.policies, first.causes));
    mesh.apply(MeshEvent::Complete);
    let (before, _) = mesh.next_version().expect("a first version");
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let subscriptions: Vec<_> = proxies
        .into_iter()
        .map(|proxy| {
            let subscription = subscription_index.subscribe(None);
            subscription.watch_lists(Wildcards::ALL);
            let view = ViewKey::of(&proxy, "n1".into(), Role::Client);
            let whereabouts = before.whereabouts(&proxy);
            let labels = before.known_labels(&proxy).cloned();
            let location =
                ProxyLocation { proxy: Arc::new(proxy), network: "n1".into(), whereabouts };
            subscription.set_location(location, view, labels.as_ref());
            subscription
        })
        .collect();
    let edit = index.apply(&access_settings(), &objects("/b")).expect("a change");
    mesh.apply(MeshEvent::Access(edit.policies, edit.causes));
    let (now, mut changes) = mesh.next_version().expect("a version");
    assert_eq!(now.definitions, before.definitions, "cached services stay valid");
    changes.compute_impact([&before, &now], &subscription_index, &Cache::default());
    assert_eq!(changes.same_access, [], "no other proxy is compared");
    assert_eq!(subscription_index.mark(&changes), PODS);
    let woken = subscriptions.iter().filter(|one| !one.take().is_empty()).count();
    assert_eq!(woken, PODS);
}
