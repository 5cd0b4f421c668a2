//! The behavior of an API server on which our clients rely.

use serde_json::{Value, json};
use strait_sim::{Options, SimCluster};

use crate::real::{RealServer, assets};
use crate::script::{Step, apply, delete, get, merge_patch, post, put, run};
use crate::{client, client_of, skipped};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";

fn map(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"color": value}}, "data": {"k": value},
    })
}

/// Creates config maps, and keeps the version of the last one as `{v}`.
fn made(names: &[&str]) -> Vec<Step> {
    names
        .iter()
        .map(|name| {
            let made = post(MAPS, map(name, "red")).gives(201, json!({"data": {"k": "red"}}));
            made.keeping("v", "/metadata/resourceVersion")
        })
        .collect()
}

fn after(mut setup: Vec<Step>, steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    setup.extend(steps);
    setup
}

fn named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"metadata": {"name": name}})).collect()
}

/// Requests all config maps with this query.
fn maps(query: &str) -> Step {
    get(&format!("{MAPS}?{query}"))
}

fn cases() -> Vec<(&'static str, Vec<Step>)> {
    let red = |name| format!("{MAPS}/{name}");
    let reason = |reason: &str| json!({"kind": "Status", "status": "Failure", "reason": reason});
    vec![
        (
            "a stored object is returned with the fields that the server adds",
            after(made(&["a"]), [get(&red("a")).gives(
                200,
                json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": "red"},
                       "metadata": {"name": "a", "namespace": "{ns}", "resourceVersion": "{v}"}}),
            )]),
        ),
        (
            "an absent object is 404, and an existing one cannot be created again",
            after(made(&["a"]), [
                get(&red("b")).gives(404, reason("NotFound")),
                get("/apis/nothing.example/v1/things").gives(404, Value::Null),
                    get("/apis/discovery.k8s.io/v1/things").gives(404, reason("NotFound")),
                    get(&format!("{MAPS}/a/status")).gives(404, reason("NotFound")),
                post(MAPS, map("a", "red")).gives(409, reason("AlreadyExists")),
                post("/api/v1/namespaces/{ns}-not/configmaps", map("a", "red"))
                    .gives(404, reason("NotFound")),
                delete(&red("a")).gives(200, json!({"status": "Success"})),
                delete(&red("a")).gives(404, reason("NotFound")),
            ]),
        ),
        (
            "an update of an old version is refused",
            after(made(&["a"]), [
                merge_patch(&red("a"), json!({"data": {"k": "blue"}})).gives(200, json!({"data": {"k": "blue"}})),
                put(&red("a"), json!({"metadata": {"name": "a", "resourceVersion": "{v}"}}))
                    .gives(409, reason("Conflict")),
                put(&red("a"), json!({"metadata": {"name": "a"}, "data": {"x": "1"}}))
                    .gives(200, json!({"data": {"x": "1", "k": null}})),
            ]),
        ),
        (
            "an update that changes nothing makes no version",
            after(made(&["a"]), [merge_patch(&red("a"), json!({"data": {"k": "red"}}))
                .gives(200, json!({"metadata": {"resourceVersion": "{v}"}}))]),
        ),
        (
            "server-side apply makes and then merges",
            vec![
                apply(&format!("{MAPS}/a?fieldManager=t"), map("a", "red")).gives(201, json!({"data": {"k": "red"}})),
                apply(&format!("{MAPS}/a?fieldManager=u"), json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"l": "blue"},
                }))
                .gives(200, json!({"data": {"k": "red", "l": "blue"}})),
            ],
        ),
        (
            "a dry run changes nothing",
            after(made(&["a"]), [
                merge_patch(&format!("{MAPS}/a?dryRun=All"), json!({"data": {"k": "blue"}}))
                    .gives(200, json!({"data": {"k": "blue"}})),
                post(&format!("{MAPS}?dryRun=All"), map("b", "red")).gives(201, json!({})),
                maps("").gives(200, json!({"items": [{"metadata": {"name": "a"}, "data": {"k": "red"}}]})),
            ]),
        ),
        (
            "the status is written apart",
            vec![
                post("/api/v1/namespaces/{ns}/services", json!({
                    "metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}], "type": "LoadBalancer"},
                    "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
                }))
                .gives(201, json!({
                    "spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]},
                    "status": {"loadBalancer": {"ingress": null}},
                })),
                merge_patch("/api/v1/namespaces/{ns}/services/a/status", json!({
                    "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
                }))
                .gives(200, json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})),
                merge_patch("/api/v1/namespaces/{ns}/services/a", json!({"status": {"loadBalancer": null}}))
                    .gives(200, json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})),
            ],
        ),
        (
            "a secret takes plain text and gives base64",
            vec![post("/api/v1/namespaces/{ns}/secrets", json!({
                "metadata": {"name": "a"}, "stringData": {"k": "value"},
            }))
            .gives(201, json!({"type": "Opaque", "data": {"k": "dmFsdWU="}, "stringData": null}))],
        ),
        (
            "a list shows everything, in the order of names",
            after(made(&["b", "a", "c"]), [
                maps("labelSelector=color%3Dred").gives(200, json!({
                    "kind": "ConfigMapList", "apiVersion": "v1", "items": named(&["a", "b", "c"]),
                })),
                maps("labelSelector=color%3Dred&resourceVersion=0").gives(200, json!({"items": named(&["a", "b", "c"])})),
                maps("labelSelector=color%3Dred&resourceVersion={v}&resourceVersionMatch=Exact")
                    .gives(200, json!({"metadata": {"resourceVersion": "{v}"}, "items": named(&["a", "b", "c"])})),
                maps("labelSelector=color%3Dred&resourceVersion={v}&resourceVersionMatch=NotOlderThan")
                    .gives(200, json!({"items": named(&["a", "b", "c"])})),
            ]),
        ),
        (
            "pages show one moment, whatever happens between them",
            after(made(&["a", "b", "c"]), [
                maps("labelSelector=color%3Dred&limit=1")
                    .gives(200, json!({"items": named(&["a"])}))
                    .keeping("page", "/metadata/continue")
                    .keeping("then", "/metadata/resourceVersion"),
                delete(&red("b")).gives(200, json!({})),
                post(MAPS, map("bb", "red")).gives(201, json!({})),
                maps("labelSelector=color%3Dred&limit=1&continue={page}")
                    .gives(200, json!({"items": named(&["b"]), "metadata": {"resourceVersion": "{then}"}}))
                    .keeping("page", "/metadata/continue"),
                maps("labelSelector=color%3Dred&limit=1&continue={page}")
                    .gives(200, json!({"items": named(&["c"]), "metadata": {"continue": null}})),
            ]),
        ),
        (
            "nonsense in a list is refused",
            vec![
                maps("labelSelector=a%20b%20c").gives(400, reason("BadRequest")),
                maps("fieldSelector=data.k%3D1").gives(400, reason("BadRequest")),
                maps("continue=nonsense").gives(400, reason("BadRequest")),
                maps("resourceVersionMatch=Exact").gives(422, json!({})),
                maps("limit=abc").gives(400, json!({
                    "reason": "BadRequest", "message": "strconv.ParseInt: parsing \"abc\": invalid syntax",
                })),
                maps("limit=").gives(400, json!({"message": "strconv.ParseInt: parsing \"\": invalid syntax"})),
                maps("limit=99999999999999999999").gives(400, json!({
                    "message": "strconv.ParseInt: parsing \"99999999999999999999\": value out of range",
                })),
                maps("limit=-1").gives(200, json!({"kind": "ConfigMapList"})),
                maps("timeoutSeconds=abc").gives(400, reason("BadRequest")),
                maps("watch=1&limit=abc").gives(400, reason("BadRequest")),
                maps("watch=1&timeoutSeconds=abc").gives(400, reason("BadRequest")),
                delete(&format!("{MAPS}?limit=abc")).gives(400, reason("BadRequest")),
                maps("resourceVersion=0&resourceVersionMatch=Exact").gives(422, json!({})),
            ],
        ),
        (
            "selectors choose",
            after(made(&["a", "b"]), [
                merge_patch(&red("b"), json!({"metadata": {"labels": {"color": "blue"}}})).gives(200, json!({})),
                maps("labelSelector=color%3Dblue").gives(200, json!({"items": named(&["b"])})),
                maps("labelSelector=color%20in%20(red,blue)").gives(200, json!({"items": named(&["a", "b"])})),
                maps("labelSelector=color%20notin%20(blue),color").gives(200, json!({"items": named(&["a"])})),
                maps("fieldSelector=metadata.name%3Db").gives(200, json!({"items": named(&["b"])})),
                maps("fieldSelector=metadata.name%21%3Db&labelSelector=color").gives(200, json!({"items": named(&["a"])})),
            ]),
        ),
        (
            "a watch tells what came after its version",
            after(made(&["a"]), [
                post(MAPS, map("b", "red")).gives(201, json!({})),
                merge_patch(&red("a"), json!({"data": {"k": "blue"}})).gives(200, json!({})),
                delete(&red("b")).gives(200, json!({})),
                maps("watch=1&resourceVersion={v}").sees(&["ADDED b", "MODIFIED a", "DELETED b"]),
            ]),
        ),
        (
            "a watch with a selector sees objects come and go",
            after(made(&["a"]), [
                merge_patch(&red("a"), json!({"metadata": {"labels": {"color": "blue"}}})).gives(200, json!({})),
                merge_patch(&red("a"), json!({"data": {"k": "x"}})).gives(200, json!({})),
                merge_patch(&red("a"), json!({"metadata": {"labels": {"color": "red"}}})).gives(200, json!({})),
                maps("watch=1&resourceVersion={v}&labelSelector=color%3Dred").sees(&["DELETED a", "ADDED a"]),
                maps("watch=1&resourceVersion={v}&labelSelector=color%3Dblue")
                    .sees(&["ADDED a", "MODIFIED a", "DELETED a"]),
            ]),
        ),
        (
            "a watch without a version starts with the existing objects",
            after(made(&["a", "b"]), [
                maps("watch=1&labelSelector=color").sees(&["ADDED a", "ADDED b"]),
                maps("watch=1&resourceVersion=0&fieldSelector=metadata.name%3Db").sees(&["ADDED b"]),
            ]),
        ),
        (
            "a streaming list ends with a marked bookmark",
            after(made(&["a", "b"]), [
                maps("watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=color")
                    .sees(&["ADDED a", "ADDED b", "END"]),
                maps("watch=1&sendInitialEvents=true&allowWatchBookmarks=true").gives(422, reason("Invalid")),
            ]),
        ),
        (
            "a watch ends when its time is over",
            after(made(&["a"]), [maps("watch=1&resourceVersion={v}&timeoutSeconds=1").gives(200, json!({}))]),
        ),
        (
            "a forgotten version is gone",
            vec![maps("watch=1&resourceVersion=1").sees(&["ERROR 410"])],
        ),
        (
            "a version that has not come yet is too large",
            vec![
                maps("resourceVersion=999999999999&resourceVersionMatch=NotOlderThan").gives(
                    504,
                    json!({"reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}),
                ),
                maps("watch=1&sendInitialEvents=true&resourceVersion=999999999999&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
                    .sees(&["ERROR 504"]),
            ],
        ),
        (
            "a service account gets a token that works",
            vec![
                post("/api/v1/namespaces/{ns}/serviceaccounts", json!({"metadata": {"name": "reader"}})).gives(201, json!({})),
                post("/api/v1/namespaces/{ns}/serviceaccounts/reader/token", json!({
                    "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600},
                }))
                .gives(201, json!({"kind": "TokenRequest"}))
                .keeping("token", "/status/token"),
                post("/apis/authentication.k8s.io/v1/tokenreviews", json!({
                    "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "{token}"},
                }))
                .gives(201, json!({"status": {"authenticated": true, "user": {
                    "username": "system:serviceaccount:{ns}:reader",
                }}})),
            ],
        ),
        (
            "discovery names versions, groups and kinds",
            vec![
                get("/version").gives(200, json!({"major": "1"})),
                get("/api").gives(200, json!({"kind": "APIVersions", "versions": ["v1"]})),
                get("/apis").gives(200, json!({"kind": "APIGroupList"})),
                get("/apis/discovery.k8s.io").gives(200, json!({"kind": "APIGroup", "name": "discovery.k8s.io"})),
                get("/apis/discovery.k8s.io/v1").gives(200, json!({
                    "kind": "APIResourceList", "groupVersion": "discovery.k8s.io/v1",
                    "resources": [{"name": "endpointslices", "namespaced": true, "kind": "EndpointSlice"}],
                })),
                post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}},
                }))
                .gives(201, json!({"status": {"allowed": true}})),
            ],
        ),
    ]
}

#[tokio::test]
async fn the_simulator_keeps_the_contract() {
    // The history is so short that version 1 is removed, as on any server that has run for some
    // time.
    let options = Options { history: 50, ..Options::default() };
    let cluster = SimCluster::start("c1", options).await.expect("a free port");
    cluster.store().compact();
    let client = client(&cluster).await;
    for (name, steps) in cases() {
        run(&client, name, steps).await;
    }
    // The real server in these tests may be too new to have removed any history.
    let old = "/api/v1/configmaps?resourceVersion=1&resourceVersionMatch=Exact";
    let expired = json!({"kind": "Status", "reason": "Expired"});
    run(&client, "a list of a forgotten moment", vec![get(old).gives(410, expired)]).await;
}

#[tokio::test]
async fn a_real_server_keeps_the_contract() {
    let Some(assets) = assets() else {
        skipped(
            "a_real_server_keeps_the_contract: no kube-apiserver and etcd; tests/components/install gets them",
        );
        return;
    };
    let real = RealServer::start(&assets).await;
    let client = client_of(real.kubeconfig()).await;
    for (name, steps) in cases() {
        run(&client, name, steps).await;
    }
}

mod typed {
    //! Tests with the types of the kube crate, which parse responses more strictly than our client.

    use futures::{StreamExt, TryStreamExt};
    use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use kube::Api;
    use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
    use serde_json::json;
    use strait_sim::objects::{self, Endpoint, HTTP};
    use strait_sim::{Options, SimCluster};

    use crate::client;

    #[tokio::test]
    async fn objects_are_readable_by_the_kube_crate() {
        let cluster = SimCluster::start("c1", Options::default()).await.expect("a free port");
        let store = cluster.store();
        for object in [
            objects::service("shop", "cart", "10.96.0.9", &[HTTP]),
            objects::pod("shop", "cart-1", "cart", "10.0.0.1", "n1"),
            objects::endpoint_slice(
                "shop",
                "cart",
                "cart-x",
                &[HTTP],
                &[Endpoint::new("10.0.0.1").with_pod("cart-1")],
            ),
        ] {
            store.apply(object).expect("valid");
        }
        let client = client(&cluster).await;
        let all = ListParams::default();
        let services = Api::<Service>::all(client.clone()).list(&all).await.expect("a list");
        let slices = Api::<EndpointSlice>::all(client.clone()).list(&all).await.expect("a list");
        let pods = Api::<Pod>::all(client.clone()).list_metadata(&all).await.expect("a list");
        let kind = pods.types.kind.clone();
        assert_eq!(kind, "PartialObjectMetadataList");
        assert_eq!(pods.items[0].metadata.labels.as_ref().expect("labels")["app"], "cart");
        let mut seen = Api::<Pod>::all(client.clone())
            .watch_metadata(&WatchParams::default(), "0")
            .await
            .expect("a watch")
            .boxed();
        let event = seen.try_next().await.expect("no error").expect("an event");
        let WatchEvent::Added(pod) = event else { panic!("{event:?}") };
        assert_eq!(pod.metadata.name.as_deref(), Some("cart-1"));
        assert_eq!([services.items.len(), slices.items.len(), pods.items.len()], [1, 1, 1]);
        assert_eq!(slices.items[0].endpoints.len(), 1);
        let groups = client.list_api_groups().await.expect("groups");
        assert!(groups.groups.iter().any(|group| group.name == "discovery.k8s.io"));
    }

    #[tokio::test]
    async fn live_watch_receives_a_change_immediately() {
        let cluster = SimCluster::start("c1", Options::default()).await.expect("a free port");
        let api = Api::<Namespace>::all(client(&cluster).await);
        let version = cluster.store().version().to_string();
        let mut events =
            api.watch(&WatchParams::default(), &version).await.expect("a watch").boxed();
        let applied = api
            .patch(
                "shop",
                &PatchParams::apply("test"),
                &Patch::Apply(json!({
                    "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"},
                })),
            )
            .await
            .expect("applied");
        let event = events.try_next().await.expect("no error").expect("an event");
        let WatchEvent::Added(seen) = event else { panic!("{event:?}") };
        assert_eq!(seen.metadata.resource_version, applied.metadata.resource_version);
    }
}
