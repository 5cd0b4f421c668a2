//! Tests of source namespaces with a simulated config cluster, and with a directory's Secrets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use strait_kube_client::testing::loopback_access;
use strait_kube_client::{ApiCredential, Loopback};
use strait_sim::objects::namespace;
use strait_sim::{Fault, Options, SimCluster};

const LIMIT: Duration = Duration::from_secs(20);

fn parse(text: &str) -> Arc<MemberSources> {
    let text = format!("apiVersion: strait.dev/v1\nkind: MemberSources\n{text}");
    Arc::new(MemberSources::parse(&text).expect("a valid file"))
}

fn secret(namespace: &str, name: &str, label: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": { "namespace": namespace, "name": name, "labels": { "tier": label } },
        "data": { "value": "eA==" },
    })
}

/// Returns `source name` of each Secret.
fn names(objects: &Objects) -> Vec<String> {
    let source = |secret: &WatchedSecret| secret.source.as_deref().unwrap_or("system").to_owned();
    objects.secrets.iter().map(|one| format!("{} {}", source(one), one.name)).collect()
}

async fn until(joined: &mut ObjectsWithSources, wanted: &[&str]) {
    let is_met = |objects: &Option<Arc<Objects>>| {
        objects.as_ref().is_some_and(|objects| names(objects) == wanted)
    };
    let met = tokio::time::timeout(LIMIT, joined.objects.wait_for(is_met)).await.is_ok();
    let found = joined.objects.borrow().as_deref().map(names);
    assert!(met, "wanted {wanted:?}, is {found:?}");
}

async fn hub() -> SimCluster {
    let hub = SimCluster::start("hub", Options::default()).await.expect("a free port");
    for name in ["kube-system", "capi", "other"] {
        hub.store().apply(namespace(name)).expect("a namespace");
    }
    hub
}

fn access(hub: &SimCluster) -> Access {
    loopback_access(&hub.url(), hub.certificate_authority(), hub.token())
}

#[tokio::test]
async fn secrets_of_source_namespaces_are_read_by_selector_and_follow_the_file() {
    let hub = hub().await;
    let (_access, access) = watch::channel(access(&hub));
    let own = Arc::new(Objects::default());
    let (_own, own) = watch::channel(Some(own));
    let (file, sources) = watch::channel(parse(
        "sources: [{name: capi, secrets: {namespace: capi, selector: tier=prod}, ids: ['*']}]",
    ));
    hub.store().apply(secret("capi", "east", "prod")).expect("applied");
    hub.store().apply(secret("capi", "lab", "test")).expect("applied");
    let tasks = Supervisor::new();
    let mut joined = with_sources(own, Some(access), sources, &tasks);
    until(&mut joined, &["capi capi/east"]).await;
    let read = joined.objects.borrow().clone().expect("objects");
    assert_eq!(read.secrets[0].secret_type, "cluster.x-k8s.io/secret");
    hub.store().apply(secret("capi", "west", "prod")).expect("applied");
    until(&mut joined, &["capi capi/east", "capi capi/west"]).await;
    file.send_replace(parse(
        "sources:\n- {name: any, secrets: {namespace: capi}, ids: ['*']}\n- {name: capi, secrets: {namespace: capi, selector: tier=prod}, ids: ['*']}",
    ));
    until(&mut joined, &["any capi/east", "any capi/lab", "any capi/west"]).await;
    hub.store().delete("Secret", "capi", "west").expect("it exists");
    until(&mut joined, &["any capi/east", "any capi/lab"]).await;
    file.send_replace(parse("sources: []"));
    until(&mut joined, &[]).await;
    assert!(joined.problems.borrow().is_empty());
    assert!(tasks.shut_down(LIMIT).await);
}

#[tokio::test]
async fn source_keeps_its_secrets_while_it_is_unknown_which_cluster_responds() {
    let hub = hub().await;
    let (_access, access) = watch::channel(access(&hub));
    let (_own, own) = watch::channel(Some(Arc::new(Objects::default())));
    let file = parse("sources: [{name: capi, secrets: {namespace: capi}, ids: ['*']}]");
    let (_file, sources) = watch::channel(file);
    hub.store().apply(secret("capi", "east", "prod")).expect("applied");
    let tasks = Supervisor::new();
    let mut joined = with_sources(own, Some(access), sources, &tasks);
    until(&mut joined, &["capi capi/east"]).await;

    // A different cluster may answer from now on: the UID is not readable, and a Secret is missing.
    hub.fault(Fault::Forbidden { resource: "namespaces".to_owned() });
    hub.stop().await;
    hub.restart().await;
    let is_reported =
        |problems: &Vec<String>| problems.iter().any(|one| one.contains("cannot read the UID"));
    let text = tokio::time::timeout(LIMIT, joined.problems.wait_for(is_reported)).await;
    let text = text.expect("the problem is shown").expect("the task runs").join(" ");
    assert!(text.contains("STR0231") && text.contains("which was "), "{text}");
    hub.store().delete("Secret", "capi", "east").expect("it exists");
    hub.store().apply(secret("capi", "west", "prod")).expect("applied");
    tokio::time::sleep(2 * AGAIN_PAUSE).await;
    until(&mut joined, &["capi capi/east"]).await;

    hub.heal();
    until(&mut joined, &["capi capi/west"]).await;
    let none = joined.problems.wait_for(Vec::is_empty);
    tokio::time::timeout(LIMIT, none).await.expect("no problem is left").expect("the task runs");
    assert!(tasks.shut_down(LIMIT).await);
}

#[tokio::test]
async fn unreadable_source_is_named_and_delays_nothing() {
    let access = Access {
        server: "https://127.0.0.1:9".parse().expect("a URL"),
        ca_pem: None,
        tls_server_name: None,
        credential: ApiCredential::None,
        loopback: Loopback::Allowed,
        proxy: None,
    };
    let (_access, access) = watch::channel(access);
    let (_own, own) = watch::channel(Some(Arc::new(Objects::default())));
    let file = parse("sources: [{name: capi, secrets: {namespace: capi}, ids: ['*']}]");
    let (_file, sources) = watch::channel(file);
    let tasks = Supervisor::new();
    let mut joined = with_sources(own, Some(access), sources, &tasks);
    until(&mut joined, &[]).await;
    let objects = joined.objects.borrow().clone().expect("objects");
    assert_eq!(objects.partial.as_deref(), Some("source capi"));
    let problems = joined.problems.borrow().join(" ");
    assert!(problems.starts_with("source capi: Secrets of namespace capi: STR0231"), "{problems}");
}

#[tokio::test]
async fn sources_select_among_all_secrets_of_a_directory() {
    let labels: BTreeMap<_, _> = [("tier".to_owned(), "prod".to_owned())].into();
    let watched = |namespace: &str, name: &str| {
        let name = ObjectName::new(namespace, name);
        Arc::new(WatchedSecret { name, labels: labels.clone(), ..WatchedSecret::default() })
    };
    let objects = Objects {
        secrets: vec![watched("strait-system", "own")],
        other_secrets: vec![watched("capi", "east"), watched("other", "x")],
        ..Objects::default()
    };
    let (_own, own) = watch::channel(Some(Arc::new(objects)));
    let file = parse(
        "sources:\n- {name: none, secrets: {namespace: capi, selector: tier=x}, ids: ['*']}\n- {name: capi, secrets: {namespace: capi, selector: tier=prod}, ids: ['*']}",
    );
    let (_file, sources) = watch::channel(file);
    let mut joined = with_sources(own, None, sources, &Supervisor::new());
    until(&mut joined, &["system strait-system/own", "capi capi/east"]).await;
}

#[tokio::test]
async fn cluster_without_the_kind_of_profiles_is_an_unread_source() {
    let hub = hub().await;
    let (_access, access) = watch::channel(access(&hub));
    let (_own, own) = watch::channel(Some(Arc::new(Objects::default())));
    let file = parse("sources: [{name: fleet, clusterProfiles: {namespace: capi}, ids: ['*']}]");
    let (_file, sources) = watch::channel(file);
    let tasks = Supervisor::new();
    let mut joined = with_sources(own, Some(access), sources, &tasks);
    until(&mut joined, &[]).await;
    let objects = joined.objects.borrow().clone().expect("objects");
    assert_eq!(
        objects.partial.as_deref(),
        Some("source fleet"),
        "its members are not known to be none"
    );
    let problems = joined.problems.borrow().join(" ");
    assert!(problems.starts_with("source fleet: ClusterProfiles of namespace capi"), "{problems}");

    hub.enable(strait_sim::Family::MultiCluster);
    let profile = json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
        "metadata": { "namespace": "capi", "name": "east" },
    });
    hub.store().apply(profile).expect("applied");
    until(&mut joined, &["fleet capi/east"]).await;
    assert!(tasks.shut_down(LIMIT).await);
}

fn decision(name: &str, index: Option<&str>, profiles: &[&str]) -> Value {
    let mut labels = json!({ "multicluster.x-k8s.io/decision-key": "k" });
    if let Some(index) = index {
        labels["multicluster.x-k8s.io/decision-index"] = index.into();
    }
    let entries: Vec<_> =
        profiles.iter().map(|name| json!({ "clusterProfileRef": { "name": name } })).collect();
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "PlacementDecision",
        "metadata": { "namespace": "capi", "name": name, "labels": labels },
        "decisions": entries,
    })
}

fn profile(name: &str) -> Value {
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
        "metadata": { "namespace": "capi", "name": name },
    })
}

#[tokio::test]
async fn complete_decisions_of_a_placement_limit_its_source() {
    let hub = hub().await;
    hub.enable(strait_sim::Family::MultiCluster);
    let (_access, access) = watch::channel(access(&hub));
    let (_own, own) = watch::channel(Some(Arc::new(Objects::default())));
    let file = parse(
        "sources: [{name: fleet, clusterProfiles: {namespace: capi}, placement: {namespace: capi, decisionKey: k}, ids: ['*']}]",
    );
    let (_file, sources) = watch::channel(file);
    let store = hub.store();
    for name in ["east", "west", "north"] {
        store.apply(profile(name)).expect("applied");
    }
    store.apply(decision("d0", Some("0"), &["east"])).expect("applied");
    let tasks = Supervisor::new();
    let mut joined = with_sources(own, Some(access), sources, &tasks);
    until(&mut joined, &["fleet capi/east"]).await;
    // Slice 1 is missing: the previous set stays.
    store.apply(decision("d2", Some("2"), &["north"])).expect("applied");
    tokio::time::sleep(Duration::from_millis(300)).await;
    until(&mut joined, &["fleet capi/east"]).await;
    store.apply(decision("d1", Some("1"), &["west"])).expect("applied");
    until(&mut joined, &["fleet capi/east", "fleet capi/north", "fleet capi/west"]).await;
    assert!(joined.problems.borrow().is_empty());
    // Without any decision, the previous set stays, and it is reported. An empty one removes all.
    for name in ["d0", "d1", "d2"] {
        store.delete("PlacementDecision", "capi", name).expect("it exists");
    }
    let undecided = |problems: &Vec<String>| {
        problems.iter().any(|fact| fact.starts_with("source fleet: STR0241"))
    };
    let waited = tokio::time::timeout(LIMIT, joined.problems.wait_for(undecided)).await;
    waited.expect("in time").expect("running");
    assert_eq!(joined.objects.borrow().as_ref().map_or(0, |all| all.secrets.len()), 3);
    store.apply(decision("d0", None, &[])).expect("applied");
    until(&mut joined, &[]).await;
    assert!(joined.problems.borrow().is_empty());
    assert!(tasks.shut_down(LIMIT).await);
}

#[tokio::test]
async fn profile_with_the_name_of_a_selected_secret_is_reported() {
    let hub = hub().await;
    hub.enable(strait_sim::Family::MultiCluster);
    let (_access, access) = watch::channel(access(&hub));
    let (_own, own) = watch::channel(Some(Arc::new(Objects::default())));
    let file = parse(
        "sources: [{name: capi, secrets: {namespace: capi}, ids: ['*']}, {name: fleet, clusterProfiles: {namespace: capi}, ids: ['*']}]",
    );
    let (_file, sources) = watch::channel(file);
    hub.store().apply(secret("capi", "east", "prod")).expect("applied");
    for name in ["east", "west"] {
        hub.store().apply(profile(name)).expect("applied");
    }
    let tasks = Supervisor::new();
    let mut published = profile("published");
    published["spec"] = json!({ "clusterManager": { "name": "strait" } });
    hub.store().apply(published).expect("applied");
    let mut joined = with_sources(own, Some(access), sources, &tasks);
    until(&mut joined, &["capi capi/east", "fleet capi/west"]).await;
    let only = "source fleet: STR0240: the ClusterProfile capi/east is not used";
    let reported = |problems: &Vec<String>| problems.iter().any(|fact| fact.starts_with(only));
    let waited = tokio::time::timeout(LIMIT, joined.problems.wait_for(reported)).await;
    waited.expect("in time").expect("running");
    hub.store().delete("Secret", "capi", "east").expect("it exists");
    until(&mut joined, &["fleet capi/east", "fleet capi/west"]).await;
    assert!(joined.problems.borrow().is_empty());
    assert!(tasks.shut_down(LIMIT).await);
}

#[test]
fn profiles_and_decisions_of_a_directory_define_members() {
    let directory = tempfile::tempdir().expect("a directory");
    let status = json!({ "accessProviders": [{ "name": "ocm", "cluster": { "server": "https://a.test" } }] });
    let mut east = profile("east");
    east["status"] = status;
    let objects =
        [east, profile("west"), decision("d", None, &["east"]), secret("capi", "msa", "x")];
    for (at, object) in objects.iter().enumerate() {
        std::fs::write(directory.path().join(format!("{at}.yaml")), object.to_string())
            .expect("written");
    }
    let own = Arc::new(crate::store::files::read_once(directory.path(), "strait-system"));
    let file = parse(
        "sources: [{name: fleet, clusterProfiles: {namespace: capi}, placement: {namespace: capi, decisionKey: k}, ids: ['*']}]\naccess: [{provider: ocm, secretReader: {namespace: capi, name: msa}}]",
    );
    let mut joining = JoinedSources {
        own: watch::channel(None).1,
        access: None,
        sources: watch::channel(Arc::clone(&file)).1,
        readers: BTreeMap::new(),
        provider_readers: BTreeMap::new(),
        placement_readers: BTreeMap::new(),
        placed: BTreeMap::new(),
        changed: Arc::default(),
        tasks: Supervisor::new(),
    };
    joining.update_placed(Some(&own), &file);
    let joined = joining.join(&own, &file, None).objects;
    assert_eq!(names(&joined), ["fleet capi/east"]);
    let provider: Vec<_> = joined.provider_secrets.keys().map(ToString::to_string).collect();
    assert_eq!(provider, ["capi/msa"]);
}
