//! Compares requests with the list. [`PERMITTED`] is the whole table; all other forms must be refused.

use http::HeaderValue;
use serde_json::json;

use super::*;

/// Each form that some relay forwards: the flag that permits it, the method, the target and the content type.
const PERMITTED: &[(&str, &str, &str, &str)] = &[
    ("", "GET", "/version", ""),
    ("", "GET", "/readyz", ""),
    ("", "GET", "/openid/v1/jwks", ""),
    ("", "GET", "/.well-known/openid-configuration", ""),
    ("", "GET", "/api/v1/namespaces/kube-system", ""),
    ("", "GET", "/api/v1/services", ""),
    ("", "GET", "/api/v1/pods", ""),
    ("", "GET", "/api/v1/nodes", ""),
    ("", "GET", "/api/v1/namespaces", ""),
    ("", "GET", "/api/v1/namespaces/shop/services", ""),
    ("", "GET", "/api/v1/namespaces/shop/pods", ""),
    ("", "GET", "/apis/discovery.k8s.io/v1/endpointslices", ""),
    ("", "GET", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", ""),
    ("", "GET", "/apis/gateway.networking.k8s.io/v1/gateways", ""),
    ("", "GET", "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways", ""),
    ("", "GET", "/apis/multicluster.x-k8s.io", ""),
    ("", "GET", "/apis/multicluster.x-k8s.io/v1alpha1", ""),
    ("", "GET", "/apis/multicluster.x-k8s.io/v1beta1", ""),
    ("", "GET", "/apis/multicluster.x-k8s.io/v1alpha1/serviceexports", ""),
    ("", "GET", "/apis/multicluster.x-k8s.io/v1beta1/serviceimports", ""),
    ("", "GET", "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/shop/serviceimports", ""),
    ("", "GET", "/apis/networking.istio.io", ""),
    ("", "GET", "/apis/networking.istio.io/v1", ""),
    ("", "GET", "/apis/networking.istio.io/v1/workloadentries", ""),
    ("", "GET", "/apis/networking.istio.io/v1alpha3/namespaces/shop/workloadentries", ""),
    ("", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", JSON),
    ("", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", JSON),
    ("", "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", JSON),
    ("secrets", "GET", "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name%3Dcert", ""),
    ("secrets", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", JSON),
    ("roots", "GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Distio-ca-root-cert", ""),
    (
        "roots",
        "GET",
        "/api/v1/configmaps?fieldSelector=metadata.name%3Dstrait-ca-root-cert&limit=1",
        "",
    ),
    ("roots", "GET", "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert", ""),
    ("roots", "POST", "/api/v1/namespaces/shop/configmaps", JSON),
    ("roots", "PATCH", "/api/v1/namespaces/shop/configmaps/strait-ca-root-cert", PATCHES[1]),
    (
        "roots",
        "PATCH",
        "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert?fieldManager=strait&force=true",
        APPLY,
    ),
    ("roots", "GET", "/api/v1/namespaces/shop/configmaps/strait-ca-root-cert", ""),
    ("roots", "PATCH", "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert", APPLY),
    ("roots", "PUT", "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert", JSON),
    ("roots", "PUT", "/api/v1/namespaces/shop/configmaps/strait-ca-root-cert", JSON),
    (
        "status",
        "PATCH",
        "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/shop/serviceexports/web/status?fieldManager=strait&force=true",
        APPLY,
    ),
    (
        "status",
        "PATCH",
        "/apis/multicluster.x-k8s.io/v1beta1/namespaces/shop/serviceimports/web/status",
        APPLY,
    ),
    ("status", "POST", "/api/v1/namespaces/shop/events", JSON),
    ("status", "PATCH", "/api/v1/namespaces/shop/events/web.1", APPLY),
    ("traffic", "GET", "/apis/networking.istio.io/v1/virtualservices", ""),
    ("traffic", "GET", "/apis/networking.istio.io/v1alpha3/envoyfilters", ""),
    ("traffic", "GET", "/apis/telemetry.istio.io", ""),
    ("traffic", "GET", "/apis/telemetry.istio.io/v1/telemetries", ""),
    ("traffic", "GET", "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes", ""),
];

/// Targets that no relay forwards, with any method.
const NEVER: &[&str] = &[
    "",
    "*",
    "api/v1/pods",
    "/",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/namespaces/shop/deployments/web/scale",
    "/apis/batch/v1/jobs",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/namespaces/shop/localsubjectaccessreviews",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/discovery.k8s.io",
    "/apis/discovery.k8s.io/v1",
    "/apis/discovery.k8s.io/v1beta1/endpointslices",
    "/apis/multicluster.x-k8s.io/v1/serviceexports",
    "/apis/networking.istio.io/v2/workloadentries",
    "/apis/security.istio.io/v1/authorizationpolicies",
    "/apis/networking.istio.io/v1/serviceentries",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/api/v1/secrets",
    "/api/v1/secrets?fieldSelector=metadata.name%3Dcert",
    "/api/v1/namespaces/edge/secrets",
    "/api/v1/namespaces/edge/secrets/cert",
    "/api/v1/namespaces/edge/secrets?watch=1",
    "/api/v1/namespaces/edge/secrets?labelSelector=a%3Db",
    "/api/v1/namespaces/edge/secrets?fieldSelector=",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name%3D",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name%21%3Dcert",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name%3D%3Dcert",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name%3Dcert%2Ctype%3Dx",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.namespace%3Dedge",
    "/api/v1/namespaces/edge/secrets?fieldSelector=type%3DOpaque",
    "/api/v1/namespaces/edge/secrets?fieldselector=metadata.name%3Dcert",
    "/api/v1/namespaces/edge/secrets?fieldSelector=metadata.name%3Dstrait-relay",
    "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dcert",
    "/api/v1/namespaces/EDGE/secrets?fieldSelector=metadata.name%3Dcert",
    "/api/v1/watch/secrets",
    "/api/v1/watch/pods",
    "/api/v1/configmaps",
    "/api/v1/configmaps?fieldSelector=metadata.name%3Dkube-root-ca.crt",
    "/api/v1/namespaces/shop/configmaps/settings",
    "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert/status",
    "/api/v1/namespaces/shop/configmaps/istio-ca-root-cert?pretty=true",
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    "/api/v1/namespaces/shop",
    "/api/v1/namespaces/kube-system/status",
    "/api/v1/namespaces/kube-system/finalize",
    "/api/v1/namespaces/kube-system?pretty=true",
    "/api/v1/namespaces/shop/nodes",
    "/api/v1/namespaces/shop/namespaces",
    "/api/v1/namespaces/Shop/pods",
    "/api/v1/namespaces/a.b/pods",
    "/api/v1/namespaces/-a/pods",
    "/api/v1/namespaces/shop/pods/web",
    "/api/v1/namespaces/shop/pods/web/attach",
    "/api/v1/namespaces/shop/pods/web/binding",
    "/api/v1/namespaces/shop/pods/web/ephemeralcontainers",
    "/api/v1/namespaces/shop/pods/web/eviction",
    "/api/v1/namespaces/shop/pods/web/exec",
    "/api/v1/namespaces/shop/pods/web/exec?command=sh&stdin=true",
    "/api/v1/namespaces/shop/pods/web/log",
    "/api/v1/namespaces/shop/pods/web/portforward",
    "/api/v1/namespaces/shop/pods/web/proxy",
    "/api/v1/namespaces/shop/pods/web/proxy/metrics",
    "/api/v1/namespaces/shop/pods/web:80/proxy",
    "/api/v1/namespaces/shop/pods/web/resize",
    "/api/v1/namespaces/shop/pods/web/status",
    "/api/v1/namespaces/shop/serviceaccounts",
    "/api/v1/namespaces/shop/serviceaccounts/default/token",
    "/api/v1/namespaces/shop/services/web",
    "/api/v1/namespaces/shop/services/web/proxy",
    "/api/v1/namespaces/shop/services/https:web:443/proxy/",
    "/api/v1/nodes/n1",
    "/api/v1/nodes/n1/proxy",
    "/api/v1/nodes/n1/proxy/logs",
    "/api/v1/nodes/n1/status",
    "/api/v1/proxy/nodes/n1",
    "/api/v1/persistentvolumes",
    "/api/v1/events",
    "/api/v1/endpoints",
    "/api/v2/pods",
    "/healthz",
    "/livez",
    "/readyz/etcd",
    "/readyz?verbose",
    "/readyz?verbose=",
    "/metrics",
    "/logs",
    "/logs/audit.log",
    "/debug/pprof/profile",
    "/configz",
    "/openapi/v2",
    "/openapi/v3",
    "/openid/v1/jwks/a",
    "/version?a=b",
    "/strait/relay/v1/hello",
    "/strait/relay/v1/enrol",
    "/strait/relay/v1/renew",
    // Encodings of permitted paths.
    "/api/v1/pods/",
    "//api/v1/pods",
    "/api//v1/pods",
    "/api/v1//pods",
    "/api/./v1/pods",
    "/api/v1/x/../pods",
    "/api/v1/pods/..",
    "/../api/v1/pods",
    "/api/v1/pods/.",
    "/api/v1/%70ods",
    "/api/v1%2Fpods",
    "/api%2fv1/pods",
    "/api/v1/namespaces/shop%2Fpods",
    "/api/v1/namespaces/..%2Fsecrets/pods",
    "/api/v1/namespaces/%2e%2e/pods",
    "/api/v1/namespaces/shop/pods%00",
    "/api/v1/pods%3Fwatch=1",
    "/api/v1/pods;a=b",
    "/api/v1/pods\\",
    "\\api\\v1\\pods",
    "/api/v1/pods#a",
    "/api/v1/p\u{f6}ds",
    "/api/v1/pods ",
    "/API/v1/pods",
    "/api/V1/pods",
    "/api/v1/Pods",
    "/Version",
    "https://kubernetes.default.svc/api/v1/pods",
    "http://169.254.169.254/latest/meta-data",
    "//169.254.169.254/latest",
    "kubernetes.default.svc:443",
    // Queries of permitted paths.
    "/api/v1/pods?",
    "/api/v1/pods?watch",
    "/api/v1/pods?watch=1&watch=0",
    "/api/v1/pods?limit=1&limit=2",
    "/api/v1/pods?watch=1&&limit=1",
    "/api/v1/pods?watch=1&",
    "/api/v1/pods?&watch=1",
    "/api/v1/pods?Watch=1",
    "/api/v1/pods?%77atch=1",
    "/api/v1/pods?watch=1;limit=1",
    "/api/v1/pods?watch=%",
    "/api/v1/pods?watch=%zz",
    "/api/v1/pods?watch=%1",
    "/api/v1/pods?watch=%00",
    "/api/v1/pods?labelSelector=%ff",
    "/api/v1/pods?labelSelector=a%0Ab",
    "/api/v1/pods?labelSelector=a+b",
    "/api/v1/pods?labelSelector=a b",
    "/api/v1/pods?pretty=true",
    "/api/v1/pods?timeout=1s",
    "/api/v1/pods?dryRun=All",
    "/api/v1/pods?fieldManager=a",
    "/api/v1/pods?shardSelector=a",
    "/api/v1/pods?watch=1?limit=1#",
    "/api/v1/pods?propagationPolicy=Background",
    "/api/v1/pods?=1",
    "/api/v1/namespaces/shop/events?fieldManager=a",
    "/api/v1/namespaces/shop/configmaps?dryRun=All",
    "/apis/authentication.k8s.io/v1/tokenreviews?dryRun=All",
    "/apis/authentication.k8s.io/v1beta1/tokenreviews",
    "/apis/authentication.k8s.io/v1/namespaces/shop/tokenreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews?pretty=true",
    "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/shop/serviceexports/web",
    "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/shop/serviceexports/web/scale",
    "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/shop/serviceexports/web/status?dryRun=All",
    "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/shop/serviceexports/WEB/status",
];

const METHODS: &[&str] = &[
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "LIST",
];
const CONTENT_TYPES: &[&str] = &[
    "",
    JSON,
    APPLY,
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
    "application/json; charset=utf-8",
];

/// A relay with all flags.
fn widest() -> RequestList {
    RequestList {
        gateway_secrets: ["edge".to_owned()].into(),
        roots: true,
        mcs_status: true,
        own_traffic: true,
        own_secret: Some(("edge".to_owned(), "strait-relay".to_owned())),
    }
}

fn judge(
    list: &RequestList,
    (method, target, content_type): (&str, &str, &str),
) -> Result<Forward, Refusal> {
    let mut headers = HeaderMap::new();
    if !content_type.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).expect("a value"));
    }
    list.judge(&method.parse().expect("a method"), target, &headers)
}

#[test]
fn requests_of_the_table_are_forwarded_by_relays_with_their_flag_only() {
    for (flag, method, target, content_type) in PERMITTED {
        let form = (*method, *target, *content_type);
        judge(&widest(), form).unwrap_or_else(|refusal| panic!("{form:?}: {refusal}"));
        let without = match *flag {
            "secrets" => RequestList { gateway_secrets: BTreeSet::new(), ..widest() },
            "roots" => RequestList { roots: false, ..widest() },
            "status" => RequestList { mcs_status: false, ..widest() },
            "traffic" => RequestList { own_traffic: false, ..widest() },
            _ => {
                assert!(judge(&RequestList::default(), form).is_ok(), "{form:?} needs no flag");
                continue;
            }
        };
        let refused = judge(&without, form);
        assert!(matches!(refused, Err(Refusal::Off(_))), "{form:?}: {refused:?}");
        assert!(judge(&RequestList::default(), form).is_err(), "{form:?}");
    }
}

#[test]
fn only_the_forms_of_the_table_pass() {
    let list = widest();
    let targets = PERMITTED.iter().map(|row| row.2).chain(NEVER.iter().copied());
    let targets: BTreeSet<&str> = targets.collect();
    assert!(targets.len() > 200, "{} forms of targets", targets.len());
    let mut count = 0;
    for target in targets {
        for method in METHODS {
            for content_type in CONTENT_TYPES {
                let is_permitted = PERMITTED.iter().any(|(_, listed, path, content)| {
                    let is_content = match (*listed, path.contains("configmaps/")) {
                        ("GET", _) => true,
                        // Any form of a change, of which PERMITTED has two.
                        ("PATCH", true) => PATCHES.contains(content_type),
                        _ => content == content_type,
                    };
                    (listed, path) == (method, &target) && is_content
                });
                let passes = judge(&list, (method, target, content_type)).is_ok();
                assert_eq!(passes, is_permitted, "{method} {target} {content_type}");
                count += usize::from(!passes);
            }
        }
    }
    assert!(count > 2000, "{count} refused forms");
}

#[test]
fn all_requests_of_a_reader_are_forwarded() {
    let list = RequestList::default();
    for query in [
        "limit=500",
        "limit=500&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEi%2F%3D",
        "labelSelector=topology.istio.io%2Fnetwork&limit=500",
        "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&watch=1&allowWatchBookmarks=true\
         &sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=&timeoutSeconds=540",
        "limit=1&resourceVersion=12&resourceVersionMatch=NotOlderThan",
        "watch=1&allowWatchBookmarks=true&resourceVersion=12&timeoutSeconds=540",
    ] {
        let forward = judge(&list, ("GET", &format!("/api/v1/pods?{query}"), ""));
        assert_eq!(forward, Ok(Forward::Plain), "{query}");
    }
}

#[test]
fn header_that_asks_for_another_user_or_protocol_is_refused() {
    for (name, value) in [
        ("impersonate-user", "admin"),
        ("Impersonate-Group", "system:masters"),
        ("impersonate-uid", "1"),
        ("impersonate-extra-scopes", "a"),
        ("upgrade", "SPDY/3.1"),
        ("sec-websocket-key", "a"),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ] {
        let headers = HeaderMap::from_iter([(
            HeaderName::from_bytes(name.as_bytes()).expect("a name"),
            HeaderValue::from_static(value),
        )]);
        let refused = widest().judge(&Method::GET, "/api/v1/pods", &headers);
        assert_eq!(refused, Err(Refusal::Header), "{name}");
    }
}

#[test]
fn long_paths_and_queries_are_refused() {
    let list = RequestList::default();
    let path = format!("/api/v1/namespaces/{}/pods", "a".repeat(PATH_BYTES_MAX));
    assert_eq!(judge(&list, ("GET", &path, "")), Err(Refusal::Path));
    let query = format!("/api/v1/pods?continue={}", "a".repeat(QUERY_BYTES_MAX));
    assert_eq!(judge(&list, ("GET", &query, "")), Err(Refusal::Query));
}

#[test]
fn only_config_maps_with_roots_are_created() {
    let target = "/api/v1/namespaces/shop/configmaps";
    let object = |metadata| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    for metadata in [
        json!({"name": "istio-ca-root-cert"}),
        json!({"name": "strait-ca-root-cert", "namespace": "shop"}),
    ] {
        assert!(is_roots_object(&object(metadata.clone()), target), "{metadata}");
    }
    for metadata in [
        json!({"name": "settings"}),
        json!({"generateName": "istio-ca-root-cert"}),
        json!({"name": "istio-ca-root-cert", "generateName": "a"}),
        json!({"name": "istio-ca-root-cert", "namespace": "edge"}),
        json!({"name": ["istio-ca-root-cert"]}),
        json!("istio-ca-root-cert"),
        json!(null),
    ] {
        assert!(!is_roots_object(&object(metadata.clone()), target), "{metadata}");
    }
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "istio-ca-root-cert"}});
    assert!(!is_roots_object(&secret, target));
}

#[test]
fn groups_are_named_for_the_hub() {
    assert_eq!(RequestList::default().groups(), ["read", "tokens"]);
    let all = ["read", "tokens", "gateway-secrets edge", "roots", "mcs-status", "own-traffic"];
    assert_eq!(widest().groups(), all);
}

/// Returns group, resource and verb of each right in a rendered chart.
fn granted(chart: &str) -> BTreeSet<(String, String, String)> {
    let words = |line: &str, name: &str| -> Option<Vec<String>> {
        let list = line.trim_start_matches("- ").trim().strip_prefix(name)?;
        let list = list.trim().trim_start_matches('[').trim_end_matches(']');
        Some(list.split(',').map(|word| word.trim().trim_matches('"').to_owned()).collect())
    };
    let (mut groups, mut resources, mut rights) = (Vec::new(), Vec::new(), BTreeSet::new());
    for line in chart.lines() {
        if line.contains("nonResourceURLs:") {
            (groups, resources) = (Vec::new(), Vec::new());
        } else if let Some(found) = words(line, "apiGroups:") {
            groups = found;
        } else if let Some(found) = words(line, "resources:") {
            resources = found;
        } else if let Some(verbs) = words(line, "verbs:") {
            for (group, resource) in
                groups.iter().flat_map(|g| resources.iter().map(move |r| (g, r)))
            {
                let right = |verb: String| (group.clone(), resource.clone(), verb);
                rights.extend(verbs.iter().cloned().map(right));
            }
        }
    }
    rights
}

#[test]
fn chart_grants_exactly_the_rights_of_the_list() {
    fn needed(list: &RequestList) -> BTreeSet<(String, String, String)> {
        let right = |group: &str, resource: &str, verb: &str| {
            (group.to_owned(), resource.to_owned(), verb.to_owned())
        };
        let own = ConfigKind::in_members().filter(|_| list.own_traffic);
        let kinds = READ
            .iter()
            .flat_map(|kinds| kinds.plurals.iter().map(|plural| (kinds.group, *plural)))
            .chain(own.map(|kind| (kind.group, kind.plural)));
        let mut rights: BTreeSet<_> = kinds
            .flat_map(|(group, plural)| ["list", "watch"].map(|verb| right(group, plural, verb)))
            .collect();
        let more: &[(bool, &str, &str, &[&str])] = &[
            (true, "", "namespaces", &["get"]),
            (true, "authentication.k8s.io", "tokenreviews", &["create"]),
            (true, "authentication.k8s.io", "selfsubjectreviews", &["create"]),
            (true, "authorization.k8s.io", "selfsubjectrulesreviews", &["create"]),
            // Of the relay itself, for its certificate.
            (true, "", "secrets", &["get", "patch"]),
            (!list.gateway_secrets.is_empty(), "", "secrets", &["list", "watch"]),
            (
                !list.gateway_secrets.is_empty(),
                "authorization.k8s.io",
                "subjectaccessreviews",
                &["create"],
            ),
            (list.roots, "", "configmaps", &["create", "get", "list", "patch", "update", "watch"]),
            (list.mcs_status, MCS_API, "serviceexports/status", &["patch"]),
            (list.mcs_status, MCS_API, "serviceimports/status", &["patch"]),
            (list.mcs_status, "", "events", &["create", "patch"]),
        ];
        for (_, group, resource, verbs) in more.iter().filter(|(is_needed, ..)| *is_needed) {
            rights.extend(verbs.iter().map(|verb| right(group, resource, verb)));
        }
        rights
    }
    let smallest = include_str!("../../../../../tests/charts/golden/strait-member.relay.yaml");
    let largest =
        include_str!("../../../../../tests/charts/golden/strait-member.relay-by-token.yaml");
    assert_eq!(granted(smallest), needed(&RequestList::default()));
    assert_eq!(granted(largest), needed(&widest()));
}
