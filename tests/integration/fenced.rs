//! Isolation of broken objects: 500 broken objects among 100 good ones affect only themselves.
//! Proxies receive the same bytes for the good objects: proxies that are connected when the broken
//! objects are added, proxies that connect later, and proxies of a server that started with all
//! objects.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::harness::{Collection, Estate, LIMIT, Setup, Trust, to_json};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_xds::resource::ResourceType;
use strait_xds_client::{ClientContents, XdsClient};

/// The number of good objects, and of services with them.
const GOOD: usize = 100;
/// The number of mutated objects. Some of them remain valid.
const SPOILT: usize = 1200;
/// The minimum number of mutated objects that must be reported as wrong.
const BROKEN_MIN: usize = 500;

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "HTTPRoute" | "GRPCRoute" => "gateway.networking.k8s.io/v1",
        "Ingress" => "networking.k8s.io/v1",
        "Telemetry" => "telemetry.istio.io/v1",
        "EnvoyFilter" => "networking.istio.io/v1alpha3",
        _ => "networking.istio.io/v1",
    };
    // Good objects are older, so they win if two objects name the same host.
    let year = if namespace == "shop" { 2025 } else { 2026 };
    json!({
        "apiVersion": version, "kind": kind, "spec": spec,
        "metadata": {
            "namespace": namespace, "name": name,
            "creationTimestamp": format!("{year}-01-01T00:00:00Z"),
            "annotations": { "kubernetes.io/ingress.class": "istio" },
        },
    })
}

/// Returns the good objects, of several kinds.
fn good() -> Vec<Value> {
    let to = |at: usize| json!([{ "destination": { "host": format!("good-{at}") }, "weight": 1 }]);
    let server = json!({
        "port": { "number": 80, "name": "http", "protocol": "HTTP" }, "hosts": ["*.good.example"],
    });
    let gateway = json!({ "selector": { "istio": "ingressgateway" }, "servers": [server] });
    let rest = (1..GOOD).map(|at| {
        let (host, name) = (format!("good-{at}"), format!("good-{at}"));
        let (kind, spec) = match at % 4 {
            0 => (
                "VirtualService",
                json!({ "hosts": [host], "http": [
                    { "match": [{ "uri": { "regex": "/a[0-9]+" } }], "fault": { "abort": { "httpStatus": 418 } }, "route": to(at) },
                    { "timeout": "2s", "route": to(at) },
                ] }),
            ),
            1 => (
                "DestinationRule",
                json!({
                    "host": host, "subsets": [{ "name": "v1", "labels": { "version": "v1" } }],
                    "trafficPolicy": { "connectionPool": { "tcp": { "maxConnections": 7 } } },
                }),
            ),
            2 => (
                "VirtualService",
                json!({
                    "gateways": ["gateway"], "hosts": [format!("{host}.good.example")],
                    "http": [{ "route": to(at) }],
                }),
            ),
            _ => (
                "HTTPRoute",
                json!({
                    "parentRefs": [{ "group": "", "kind": "Service", "name": host }],
                    "rules": [{ "backendRefs": [{ "name": host, "port": 80 }] }],
                }),
            ),
        };
        object(kind, "shop", &name, spec)
    });
    std::iter::once(object("Gateway", "shop", "gateway", gateway)).chain(rest).collect()
}

/// Returns the objects to mutate, about the service `bad` and hosts that good objects don't use.
fn templates() -> Vec<(&'static str, Value)> {
    let to = json!([{ "destination": { "host": "bad", "port": { "number": 80 }, "subset": "v1" }, "weight": 60 }, { "destination": { "host": "bad" }, "weight": 40 }]);
    let filter = |kind: &str, fields: Value| {
        let mut config =
            json!({ "@type": format!("type.googleapis.com/envoy.extensions.filters.http.{kind}") });
        let fields = fields.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(fields);
        json!({
            "applyTo": "HTTP_FILTER", "match": { "context": "ANY", "listener": { "portNumber": 80 } },
            "patch": { "operation": "INSERT_FIRST", "value": { "name": "one", "typed_config": config } },
        })
    };
    vec![
        (
            "VirtualService",
            json!({ "hosts": ["bad"], "exportTo": ["."], "http": [{
                "name": "one",
                "match": [{
                    "uri": { "regex": "/a(b|c)+" }, "method": { "exact": "GET" }, "port": 80,
                    "headers": { "x": { "prefix": "a" } }, "queryParams": { "q": { "exact": "1" } },
                    "withoutHeaders": { "y": { "regex": "z*" } }, "sourceLabels": { "app": "a" },
                }],
                "route": to, "timeout": "1s",
                "retries": { "attempts": 2, "perTryTimeout": "1s", "retryOn": "5xx,503", "backoff": "1s" },
                "rewrite": { "uriRegexRewrite": { "match": "(a)", "rewrite": "\\1" } },
                "headers": { "request": { "set": { "a": "b" }, "add": { "c": "d" }, "remove": ["e"] } },
            }] }),
        ),
        (
            "VirtualService",
            json!({ "hosts": ["bad"], "http": [
                { "match": [{ "uri": { "prefix": "/r" } }], "redirect": { "uri": "/x", "authority": "bad.example", "redirectCode": 302, "scheme": "https", "port": 443 } },
                { "match": [{ "uri": { "prefix": "/d" } }], "directResponse": { "status": 503, "body": { "string": "no" } } },
                { "fault": { "delay": { "fixedDelay": "1s", "percentage": { "value": 1 } }, "abort": { "httpStatus": 500, "percentage": { "value": 1 } } }, "route": to },
                { "mirror": { "host": "bad" }, "mirrorPercentage": { "value": 10 }, "route": to },
                { "corsPolicy": { "allowOrigins": [{ "regex": ".*" }], "allowMethods": ["GET"], "maxAge": "1h" }, "route": to },
            ] }),
        ),
        (
            "VirtualService",
            json!({
                "hosts": ["bad.example"], "gateways": ["spoilt"],
                "tls": [{ "match": [{ "port": 8443, "sniHosts": ["bad.example"] }], "route": to }],
                "tcp": [{ "match": [{ "port": 9000, "destinationSubnets": ["10.0.0.0/8"] }], "route": to }],
                "http": [{ "route": to }],
            }),
        ),
        (
            "DestinationRule",
            json!({
                "host": "bad", "exportTo": ["."],
                "trafficPolicy": {
                    "connectionPool": {
                        "tcp": { "maxConnections": 1, "connectTimeout": "1s", "tcpKeepalive": { "probes": 1, "time": "1s", "interval": "1s" } },
                        "http": { "http1MaxPendingRequests": 1, "http2MaxRequests": 1, "idleTimeout": "1s", "h2UpgradePolicy": "UPGRADE", "maxConcurrentStreams": 5 },
                    },
                    "outlierDetection": { "consecutive5xxErrors": 3, "interval": "1s", "baseEjectionTime": "1s", "maxEjectionPercent": 50, "minHealthPercent": 10 },
                    "portLevelSettings": [{ "port": { "number": 80 }, "tls": { "mode": "SIMPLE", "sni": "bad.example", "subjectAltNames": ["bad.example"] } }],
                },
                "subsets": [{
                    "name": "v1", "labels": { "version": "v1" },
                    "trafficPolicy": { "loadBalancer": { "consistentHash": { "httpCookie": { "name": "c", "ttl": "1s" }, "maglev": { "tableSize": 65537 } } } },
                }],
            }),
        ),
        (
            "DestinationRule",
            json!({
                "host": "bad", "workloadSelector": { "matchLabels": { "app": "a" } },
                "trafficPolicy": {
                    "loadBalancer": {
                        "simple": "ROUND_ROBIN", "warmup": { "duration": "10s", "minimumPercent": 5, "aggression": 1 },
                        "localityLbSetting": { "distribute": [{ "from": "r/*", "to": { "r/z": 80, "s/*": 20 } }] },
                    },
                    "tls": { "mode": "MUTUAL", "clientCertificate": "/c", "privateKey": "/k", "caCertificates": "/r" },
                },
            }),
        ),
        (
            "Gateway",
            json!({ "selector": { "istio": "ingressgateway" }, "servers": [
                { "port": { "number": 8081, "name": "http", "protocol": "HTTP" }, "hosts": ["bad.example"], "tls": { "httpsRedirect": true } },
                { "port": { "number": 8443, "name": "https", "protocol": "HTTPS" }, "hosts": ["trial/bad.example"], "tls": { "mode": "SIMPLE", "credentialName": "bad", "minProtocolVersion": "TLSV1_2", "cipherSuites": ["AES128-SHA"] } },
                { "port": { "number": 9000, "name": "tcp", "protocol": "TCP" }, "hosts": ["bad.example"], "bind": "10.9.9.9" },
            ] }),
        ),
        (
            "Sidecar",
            json!({
                "workloadSelector": { "labels": { "app": "a" } },
                "egress": [{ "port": { "number": 80, "protocol": "HTTP", "name": "http" }, "hosts": ["trial/*"], "bind": "127.0.0.1", "captureMode": "NONE" }, { "hosts": ["./*"] }],
                "ingress": [{ "port": { "number": 8080, "protocol": "HTTP", "name": "in" }, "defaultEndpoint": "127.0.0.1:8081", "bind": "0.0.0.0" }],
                "outboundTrafficPolicy": { "mode": "REGISTRY_ONLY" },
            }),
        ),
        (
            "HTTPRoute",
            json!({
                "parentRefs": [{ "group": "", "kind": "Service", "name": "bad", "port": 80 }],
                "rules": [{
                    "matches": [{ "path": { "type": "RegularExpression", "value": "/a+" }, "method": "GET", "headers": [{ "name": "x", "value": "y", "type": "Exact" }] }],
                    "filters": [
                        { "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": [{ "name": "a", "value": "b" }] } },
                        { "type": "URLRewrite", "urlRewrite": { "hostname": "bad.example", "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/x" } } },
                    ],
                    "backendRefs": [{ "name": "bad", "port": 80, "weight": 1 }],
                    "timeouts": { "request": "1s", "backendRequest": "1s" },
                }],
            }),
        ),
        (
            "GRPCRoute",
            json!({
                "parentRefs": [{ "group": "", "kind": "Service", "name": "bad", "port": 80 }],
                "rules": [{ "matches": [{ "method": { "service": "a.B", "method": "C", "type": "Exact" } }], "backendRefs": [{ "name": "bad", "port": 80 }] }],
            }),
        ),
        (
            "Ingress",
            json!({
                "tls": [{ "hosts": ["bad.example"], "secretName": "bad" }],
                "rules": [{ "host": "bad.example", "http": { "paths": [
                    { "path": "/a", "pathType": "Prefix", "backend": { "service": { "name": "bad", "port": { "number": 80 } } } },
                    { "path": "/b", "pathType": "Exact", "backend": { "service": { "name": "bad", "port": { "name": "http" } } } },
                ] } }],
            }),
        ),
        (
            "Telemetry",
            json!({
                "selector": { "matchLabels": { "app": "a" } },
                "accessLogging": [{ "providers": [{ "name": "envoy" }], "match": { "mode": "CLIENT" }, "filter": { "expression": "response.code >= 400" } }],
                "tracing": [{ "randomSamplingPercentage": 5, "customTags": { "a": { "literal": { "value": "b" } } } }],
            }),
        ),
        (
            "EnvoyFilter",
            json!({ "workloadSelector": { "labels": { "app": "a" } }, "priority": 1, "configPatches": [
                filter("buffer.v3.Buffer", json!({ "max_request_bytes": 10 })),
                filter("lua.v3.Lua", json!({ "inline_code": "function envoy_on_request(h) end" })),
                filter("local_ratelimit.v3.LocalRateLimit", json!({ "stat_prefix": "a", "token_bucket": { "max_tokens": 1, "fill_interval": "1s" } })),
            ] }),
        ),
        (
            "ProxyConfig",
            json!({ "selector": { "matchLabels": { "app": "a" } }, "concurrency": 2, "environmentVariables": { "A": "b" } }),
        ),
    ]
}

/// Returns a replacement for a valid value.
fn junk(random: &mut StdRng) -> Value {
    let all = [
        json!(null),
        json!(""),
        json!("("),
        json!("a b"),
        json!("\n"),
        json!("%NO("),
        json!("-1"),
        json!("0s"),
        json!("1h1"),
        json!("~"),
        json!("a{1001}"),
        json!("..."),
        json!("x|y"),
        json!("http://[::1"),
        json!("x".repeat(2000)),
        json!(-1),
        json!(0),
        json!(1),
        json!(99),
        json!(65536),
        json!(4294967296_u64),
        json!(1e30),
        json!(0.5),
        json!(true),
        json!([]),
        json!({}),
        json!([[]]),
        json!([null]),
        json!([""]),
        json!({ "a": { "b": [1] } }),
    ];
    all.choose(random).expect("some").clone()
}

/// Replaces, removes or duplicates one value.
fn spoil(random: &mut StdRng, value: &mut Value) {
    let descends = random.random_ratio(5, 6);
    match value {
        Value::Object(fields) if descends && !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = keys.choose(random).expect("some").clone();
            if random.random_ratio(1, 12) {
                fields.remove(&key);
            } else {
                spoil(random, &mut fields[&key]);
            }
        }
        Value::Array(items) if descends && !items.is_empty() => {
            let at = random.random_range(0..items.len());
            if random.random_ratio(1, 12) {
                items.push(items[at].clone());
            } else {
                spoil(random, &mut items[at]);
            }
        }
        _ => *value = junk(random),
    }
}

/// Returns the mutated objects, all in a separate namespace.
fn spoilt() -> Vec<Value> {
    let mut random = StdRng::seed_from_u64(500);
    let templates = templates();
    let mutated = |at: usize| {
        let (kind, spec) = &templates[at % templates.len()];
        let mut spec = spec.clone();
        for _ in 0..random.random_range(1..4) {
            spoil(&mut random, &mut spec);
        }
        object(kind, "trial", &format!("spoilt-{at}"), spec)
    };
    (0..SPOILT).map(mutated).collect()
}

/// Returns a good object that is added with them: a client that has it has received all of them.
fn last() -> Value {
    let http = json!([{ "directResponse": { "status": 200 } }]);
    object("VirtualService", "trial", "last", json!({ "hosts": ["last.example"], "http": http }))
}

fn text(objects: &[Value]) -> String {
    objects.iter().map(|one| format!("---\n{one}\n")).collect()
}

fn setup(objects: &[Value]) -> Setup {
    let mut cluster = Vec::new();
    let mut add = |namespace: &str, name: &str, at: usize| {
        cluster.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name },
            "spec": { "clusterIP": format!("172.16.1.{at}"), "ports": [{ "name": "http", "port": 80 }] },
        }));
        cluster.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "namespace": namespace, "name": name, "labels": { "kubernetes.io/service-name": name } },
            "endpoints": [{ "addresses": [format!("10.0.1.{at}")], "conditions": { "ready": true } }],
            "ports": [{ "name": "http", "port": 8080 }],
        }));
    };
    (0..GOOD).for_each(|at| add("shop", &format!("good-{at}"), at + 1));
    add("trial", "bad", 200);
    Setup {
        clusters: [("east".to_owned(), cluster)].into(),
        config: text(objects),
        ..Setup::default()
    }
}

/// The proxies to compare: kind, namespace and label.
const PROXIES: [(&str, &str, &str); 3] =
    [("sidecar", "shop", "web"), ("sidecar", "web", "web"), ("router", "edge", "ingressgateway")];

fn node((kind, namespace, label): (&str, &str, &str)) -> Node {
    let labels = json!({ "app": "web", "istio": label });
    let node = json!({
        "id": format!("{kind}~10.9.9.9~one.{namespace}~{namespace}.svc.cluster.local"),
        "metadata": {
            "CLUSTER_ID": "east", "NAMESPACE": namespace, "SERVICE_ACCOUNT": "web",
            "INSTANCE_IPS": "10.9.9.9", "LABELS": labels,
        },
    });
    let bytes = strait_proto::json::from_json("envoy.config.core.v3.Node", &node).expect("a node");
    prost::Message::decode(&*bytes).expect("a node")
}

/// Returns the resources that a proxy receives for the good objects: upstream clusters,
/// assignments, virtual hosts, listeners without filter chains, and filter chains, each with its
/// bytes or its content.
fn pieces(collection: &Collection) -> BTreeSet<String> {
    let mut pieces = BTreeSet::new();
    let mut note = |kind: ResourceType, name: &str, part: &dyn std::fmt::Display| {
        let text = format!("{kind:?} {name} {part}");
        if !["bad", "trial", "spoilt", "last.example", "172.16.1.200"]
            .iter()
            .any(|other| text.contains(other))
        {
            pieces.insert(text);
        }
    };
    for (kind, all) in collection {
        for (name, body) in all {
            let mut value = to_json(*kind, body);
            let lists: &[&str] = match kind {
                ResourceType::Route => &["virtual_hosts"],
                ResourceType::Listener => &["filter_chains"],
                _ => {
                    note(*kind, name, &format!("{body:?}"));
                    continue;
                }
            };
            for list in lists {
                let parts = value[*list].take();
                for part in parts.as_array().into_iter().flatten() {
                    note(*kind, name, part);
                }
            }
            note(*kind, name, &value);
        }
    }
    pieces
}

async fn fresh(estate: &Estate, trust: &Trust) -> Vec<BTreeSet<String>> {
    let mut all = Vec::new();
    for proxy in PROXIES {
        let tls = trust.workload("cluster.local", proxy.1, "web");
        let collected = tokio::time::timeout(LIMIT, estate.collect(node(proxy), tls, &[])).await;
        all.push(pieces(&collected.expect("in time").expect("the proxy is admitted")));
    }
    all
}

/// Checks that the resources of the good objects are unchanged.
fn assert_same(before: &[BTreeSet<String>], now: &[BTreeSet<String>], when: &str) {
    for ((before, now), proxy) in before.iter().zip(now).zip(PROXIES) {
        let lost: Vec<&String> = before.difference(now).take(2).collect();
        assert!(lost.is_empty(), "{when}, {proxy:?}: {lost:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_objects_affect_only_themselves() {
    let trust = Trust::new();
    let good = good();
    assert_eq!(good.len(), GOOD);
    let estate = Estate::start(&setup(&good), &trust).await;
    let before = fresh(&estate, &trust).await;
    assert!(
        before.iter().all(|pieces| pieces.len() > GOOD / 4),
        "endpoints exist that can be lost"
    );

    // Connected proxies.
    let mut clients = Vec::new();
    for proxy in PROXIES {
        let tls = trust.workload("cluster.local", proxy.1, "web");
        let mut client = estate.connect(node(proxy), tls).await.expect("the proxy is admitted");
        let complete = client.wait_for(ClientContents::is_complete);
        tokio::time::timeout(LIMIT, complete).await.expect("in time").expect("all comes");
        clients.push(client);
    }
    let spoilt = spoilt();
    let more = [spoilt.clone(), vec![last()]].concat();
    estate.add("spoilt.yaml", &text(&more));
    let has_last = |contents: &ClientContents| {
        let body = contents.body(ResourceType::Route, "80").unwrap_or_default();
        body.windows(12).any(|part| part == b"last.example")
    };
    for client in &mut clients[..2] {
        let last = tokio::time::timeout(LIMIT * 3, client.wait_for(has_last)).await;
        last.expect("in time").expect("the last update arrives");
    }
    let current_pieces = |client: &XdsClient| {
        let contents = client.held();
        let by_kind = |kind: ResourceType| {
            let body = |name: &str| contents.body(kind, name).unwrap_or_default().to_vec();
            (kind, contents.names(kind).map(|name| (name.to_owned(), body(name))).collect())
        };
        pieces(&ResourceType::ALL.into_iter().map(by_kind).collect())
    };
    let connected: Vec<_> = clients[..2].iter().map(current_pieces).collect();
    assert_same(&before[..2], &connected, "connected");

    // Proxies that connect now, and after a restart of the server.
    assert_same(&before, &fresh(&estate, &trust).await, "connected anew");
    let states = estate.get("/debug/config?namespace=trial").await;
    let states = states.as_array().expect("states");
    let is_broken = |one: &&Value| matches!(one["state"].as_str(), Some("refused" | "partly"));
    let broken: Vec<_> = states.iter().filter(is_broken).collect();
    assert!(broken.len() >= BROKEN_MIN, "{} of {}", broken.len(), states.len());
    let has_reason = |one: &&&Value| one["reasons"].as_array().is_some_and(|all| !all.is_empty());
    assert_eq!(broken.iter().filter(has_reason).count(), broken.len(), "each says why");
    drop(clients);
    estate.stop().await;
    let estate = Estate::start(&setup(&[good, spoilt].concat()), &trust).await;
    assert_same(&before, &fresh(&estate, &trust).await, "after a restart");
    estate.stop().await;
}
