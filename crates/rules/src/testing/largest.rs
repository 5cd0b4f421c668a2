//! The largest objects that a store accepts, one for each repeated field of each kind, for tests of
//! limits.
//!
//! A template contains a list or map with the single entry `*`, which [`RepeatedField::spec`]
//! repeats. In its texts, `#` is replaced by the index of the repetition, and `%` by the same
//! number as the last two groups of an IPv6 address.

mod traffic;

use serde_json::{Map, Value, json};

use strait_model::{
    GATEWAY_API, INGRESS_API, ISTIO_NETWORKING, ISTIO_SECURITY, ISTIO_TELEMETRY, ObjectJson,
    ObjectKey,
};

use self::traffic::{destination_rule, gateway, virtual_service};
use crate::bounds;

/// Maximum size in bytes of an object in etcd.
pub const STORED_MAX: usize = 1_500_000;

/// Name of the key that marks the repeated entry of a template.
const REPEATED: &str = "*repeated";

/// A field of an object kind that may be repeated.
#[derive(Debug, Clone)]
pub struct RepeatedField {
    /// API group of the kind.
    pub group: &'static str,
    /// Name of the kind.
    pub kind: &'static str,
    /// Name of the field, or of the fields that are repeated together.
    pub field: &'static str,
    template: Value,
}

impl RepeatedField {
    /// Returns the spec of an object that contains the field `count` times.
    pub fn spec(&self, count: usize) -> Value {
        repeat(&self.template, count, None)
    }

    /// Returns an object that contains the field `count` times.
    pub fn object(&self, namespace: &str, count: usize) -> Value {
        let key = self.key(namespace);
        json!({
            "apiVersion": format!("{}/v1", self.group),
            "kind": self.kind,
            "metadata": {
                "name": key.name,
                "namespace": namespace,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": self.spec(count),
        })
    }

    /// Returns the key of the object in `namespace`.
    pub fn key(&self, namespace: &str) -> ObjectKey {
        ObjectKey {
            kind: self.kind.into(),
            group: self.group.into(),
            namespace: namespace.into(),
            name: "large".into(),
        }
    }

    /// Returns how often the field fits into the largest accepted object.
    pub fn accepted_max(&self) -> usize {
        let is_accepted = |count: usize| {
            let object = ObjectJson::from(self.object("shop", count));
            bounds::to_value(&self.key("shop"), &object).is_ok()
        };
        // The steps are coarse, because the exact maximum has no different effect.
        let counts = [4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128];
        let accepted = counts.into_iter().find(|count| is_accepted(*count));
        accepted.expect("real objects are accepted")
    }

    /// Returns how often the field fits into the largest object that a store accepts.
    pub fn count_max(&self) -> usize {
        let length = |count| self.spec(count).to_string().len();
        let (few, more) = (length(1_000), length(2_000));
        STORED_MAX.saturating_sub(few) * 1_000 / (more - few) + 1_000
    }
}

fn repeat(template: &Value, count: usize, number: Option<usize>) -> Value {
    let text = |text: &str| match number {
        Some(number) => {
            let (high, low) = (number >> 16, number & 0xffff);
            text.replace('#', &number.to_string()).replace('%', &format!("{high:x}:{low:x}"))
        }
        None => text.to_owned(),
    };
    match template {
        Value::String(written) if written == "#number" => json!(number.unwrap_or_default() + 1),
        Value::String(written) => Value::String(text(written)),
        Value::Array(all) => match all.as_slice() {
            [Value::Object(entry)] if number.is_none() && entry.contains_key(REPEATED) => {
                let template = &entry[REPEATED];
                (0..count).map(|at| repeat(template, count, Some(at))).collect()
            }
            all => all.iter().map(|one| repeat(one, count, number)).collect(),
        },
        Value::Object(all) => match all.get(REPEATED) {
            Some(Value::Array(entry)) if number.is_none() => {
                let name =
                    |at: usize| entry[0].as_str().unwrap_or_default().replace('#', &at.to_string());
                let entries = (0..count).map(|at| (name(at), repeat(&entry[1], count, Some(at))));
                Value::Object(entries.collect())
            }
            _ => {
                let entries =
                    all.iter().map(|(name, one)| (text(name), repeat(one, count, number)));
                Value::Object(entries.collect::<Map<_, _>>())
            }
        },
        other => other.clone(),
    }
}

/// Returns a template of a list with a repeated entry.
fn list(entry: Value) -> Value {
    json!([{ REPEATED: entry }])
}

/// Returns a template of a map with repeated names and values.
fn map(name: &str, value: Value) -> Value {
    json!({ REPEATED: [name, value] })
}

/// Returns every repeated field of every supported kind.
pub fn repeated_fields() -> Vec<RepeatedField> {
    let mut fields = Vec::new();
    let mut add = |group, kind, all: Vec<(&'static str, Value)>| {
        fields.extend(all.into_iter().map(|(field, template)| RepeatedField {
            group,
            kind,
            field,
            template,
        }));
    };
    add(ISTIO_NETWORKING, "VirtualService", virtual_service());
    add(ISTIO_NETWORKING, "DestinationRule", destination_rule());
    add(ISTIO_NETWORKING, "Gateway", gateway());
    add(ISTIO_NETWORKING, "ServiceEntry", service_entry());
    add(
        ISTIO_NETWORKING,
        "WorkloadEntry",
        vec![
            ("labels", json!({"address": "10.0.0.1", "labels": map("k#", json!("v"))})),
            ("ports", json!({"address": "10.0.0.1", "ports": map("p#", json!(80))})),
        ],
    );
    add(ISTIO_NETWORKING, "Sidecar", sidecar());
    add(ISTIO_NETWORKING, "EnvoyFilter", envoy_filter());
    add(
        ISTIO_NETWORKING,
        "ProxyConfig",
        vec![
            ("environmentVariables", json!({"environmentVariables": map("K#", json!("v"))})),
            ("selector", json!({"selector": {"matchLabels": map("k#", json!("v"))}})),
        ],
    );
    add(ISTIO_TELEMETRY, "Telemetry", telemetry());
    add(ISTIO_SECURITY, "AuthorizationPolicy", authorization_policy());
    add(
        ISTIO_SECURITY,
        "PeerAuthentication",
        vec![
            (
                "portLevelMtls",
                json!({
                    "selector": {"matchLabels": {"app": "a"}},
                    "portLevelMtls": map("#", json!({"mode": "STRICT"})),
                }),
            ),
            ("selector", json!({"selector": {"matchLabels": map("k#", json!("v"))}})),
        ],
    );
    add(ISTIO_SECURITY, "RequestAuthentication", request_authentication());
    add(GATEWAY_API, "HTTPRoute", http_route());
    add(GATEWAY_API, "GRPCRoute", grpc_route());
    for kind in ["TCPRoute", "TLSRoute"] {
        let parents = json!([{"name": "g", "kind": "Service", "group": ""}]);
        let to = json!({"name": "b#", "port": 80});
        let mut all = vec![
            (
                "parentRefs",
                json!({
                    "parentRefs": list(json!({"name": "g#", "kind": "Service", "group": ""})),
                    "rules": [{"backendRefs": [{"name": "b", "port": 80}]}],
                }),
            ),
            (
                "rules",
                json!({
                    "parentRefs": parents.clone(),
                    "rules": list(json!({"backendRefs": [to]})),
                }),
            ),
            (
                "backendRefs",
                json!({
                    "parentRefs": parents.clone(),
                    "rules": [{"backendRefs": list(json!({"name": "b#", "port": 80}))}],
                }),
            ),
        ];
        if kind == "TLSRoute" {
            all.push((
                "hostnames",
                json!({
                    "parentRefs": parents,
                    "hostnames": list(json!("h#.example")),
                    "rules": [{"backendRefs": [{"name": "b", "port": 80}]}],
                }),
            ));
        }
        add(GATEWAY_API, kind, all);
    }
    add(
        GATEWAY_API,
        "ReferenceGrant",
        vec![
            (
                "from",
                json!({
                    "from": list(json!({"group": GATEWAY_API, "kind": "HTTPRoute", "namespace": "n#"})),
                    "to": [{"group": "", "kind": "Service"}],
                }),
            ),
            (
                "to",
                json!({
                    "from": [{"group": GATEWAY_API, "kind": "HTTPRoute", "namespace": "n"}],
                    "to": list(json!({"group": "", "kind": "Service", "name": "s#"})),
                }),
            ),
        ],
    );
    add(INGRESS_API, "Ingress", ingress());
    fields
}

fn service_entry() -> Vec<(&'static str, Value)> {
    let ports = json!([{"number": 80, "name": "http", "protocol": "HTTP"}]);
    let entry = |field: &str, value: Value| {
        let mut spec = json!({
            "hosts": ["h.b"],
            "ports": ports,
            "resolution": "STATIC",
            "location": "MESH_INTERNAL",
        });
        spec[field] = value;
        spec
    };
    let mut hosts_and_addresses = entry("hosts", list(json!("h#.b")));
    hosts_and_addresses["addresses"] = list(json!("10.0.0.0/8"));
    let mut hosts_and_endpoints = entry("hosts", list(json!("h#.b")));
    hosts_and_endpoints["endpoints"] = list(json!({"address": "10.0.0.1"}));
    let mut names = entry("endpoints", list(json!({"address": "h#.b"})));
    names["resolution"] = json!("DNS");
    vec![
        ("hosts", entry("hosts", list(json!("h#.b")))),
        ("same hosts", entry("hosts", list(json!("h.b")))),
        ("addresses", entry("addresses", list(json!("fd00::%")))),
        ("ranges", entry("addresses", list(json!("fd00:%::/64")))),
        ("same addresses", entry("addresses", list(json!("10.0.0.1")))),
        ("invalid addresses", entry("addresses", list(json!("a#")))),
        ("hosts and addresses", hosts_and_addresses),
        ("hosts and endpoints", hosts_and_endpoints),
        (
            "ports",
            entry("ports", list(json!({"number": "#number", "name": "p#", "protocol": "TCP"}))),
        ),
        ("endpoints", entry("endpoints", list(json!({"address": "fd00::%"})))),
        ("endpoints by name", names),
        (
            "endpoints.labels",
            entry("endpoints", json!([{"address": "10.0.0.1", "labels": map("k#", json!("v"))}])),
        ),
        (
            "endpoints.ports",
            entry("endpoints", json!([{"address": "10.0.0.1", "ports": map("p#", json!(80))}])),
        ),
        ("exportTo", entry("exportTo", list(json!("n#")))),
        ("same exportTo", entry("exportTo", list(json!("*")))),
        ("subjectAltNames", entry("subjectAltNames", list(json!("spiffe://a/#")))),
        ("workloadSelector", entry("workloadSelector", json!({"labels": map("k#", json!("v"))}))),
    ]
}

fn sidecar() -> Vec<(&'static str, Value)> {
    let hosts = |one: &str| json!({"egress": [{"hosts": list(json!(one))}]});
    vec![
        (
            "egress",
            json!({"egress": list(json!({
                "port": {"number": "#number", "name": "p#", "protocol": "HTTP"}, "hosts": ["./*"],
            }))}),
        ),
        ("egress.hosts", hosts("./h#.b")),
        ("egress.hosts of namespaces", hosts("n#/*")),
        ("egress.hosts below", hosts("*/*.h#.b")),
        ("same egress.hosts", hosts("./*")),
        (
            "ingress",
            json!({
                "workloadSelector": {"labels": {"a": "b"}},
                "ingress": list(json!({
                    "port": {"number": "#number", "name": "p#", "protocol": "HTTP"},
                    "defaultEndpoint": "127.0.0.1:80",
                })),
            }),
        ),
        (
            "workloadSelector",
            json!({
                "workloadSelector": {"labels": map("k#", json!("v"))}, "egress": [{"hosts": ["./*"]}],
            }),
        ),
    ]
}

fn envoy_filter() -> Vec<(&'static str, Value)> {
    let patch = json!({
        "applyTo": "CLUSTER",
        "match": {"context": "SIDECAR_OUTBOUND", "cluster": {"service": "h#"}},
        "patch": {"operation": "MERGE", "value": {"connect_timeout": "1s"}},
    });
    let lua = json!({
        "applyTo": "HTTP_FILTER",
        "match": {"context": "SIDECAR_INBOUND"},
        "patch": {"operation": "INSERT_BEFORE", "value": {
            "name": "f#",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": {"inline_string": "function envoy_on_request(h) end"},
            },
        }},
    });
    let inner = json!({
        "applyTo": "HTTP_FILTER",
        "match": {"context": "SIDECAR_INBOUND"},
        "patch": {"operation": "INSERT_BEFORE", "value": {
            "name": "f",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
                "request_rules": list(json!({"header": "h#", "on_header_present": {"key": "k"}})),
            },
        }},
    });
    vec![
        ("configPatches", json!({"configPatches": list(patch.clone())})),
        ("configPatches of filters", json!({"configPatches": list(lua)})),
        ("configPatches.patch.value", json!({"configPatches": [inner]})),
        (
            "workloadSelector",
            json!({
                "workloadSelector": {"labels": map("k#", json!("v"))}, "configPatches": [patch],
            }),
        ),
        (
            "targetRefs",
            json!({
                "targetRefs": list(json!({"group": "", "kind": "Service", "name": "s#"})),
                "configPatches": [],
            }),
        ),
    ]
}

fn telemetry() -> Vec<(&'static str, Value)> {
    vec![
        ("selector", json!({"selector": {"matchLabels": map("k#", json!("v"))}})),
        (
            "targetRefs",
            json!({"targetRefs": list(json!({"group": "", "kind": "Service", "name": "s#"}))}),
        ),
        ("tracing", json!({"tracing": list(json!({"randomSamplingPercentage": 1}))})),
        ("tracing.providers", json!({"tracing": [{"providers": list(json!({"name": "p#"}))}]})),
        (
            "tracing.customTags",
            json!({"tracing": [{"customTags": map("t#", json!({"literal": {"value": "v"}}))}]}),
        ),
        ("metrics", json!({"metrics": list(json!({"providers": [{"name": "prometheus"}]}))})),
        (
            "metrics.overrides",
            json!({"metrics": [{
                "providers": [{"name": "prometheus"}],
                "overrides": list(json!({"match": {"metric": "REQUEST_COUNT"}, "tagOverrides": {"t#": {"value": "v"}}})),
            }]}),
        ),
        (
            "metrics.overrides.tagOverrides",
            json!({"metrics": [{
                "providers": [{"name": "prometheus"}],
                "overrides": [{"match": {"metric": "REQUEST_COUNT"}, "tagOverrides": map("t#", json!({"value": "request.host"}))}],
            }]}),
        ),
        (
            "accessLogging",
            json!({"accessLogging": list(json!({"filter": {"expression": "response.code >= 400"}}))}),
        ),
        (
            "accessLogging.providers",
            json!({"accessLogging": [{"providers": list(json!({"name": "p#"}))}]}),
        ),
    ]
}

fn authorization_policy() -> Vec<(&'static str, Value)> {
    let source = |field: &str, text: &str| {
        let mut source = json!({});
        source[field] = list(json!(text));
        json!({"rules": [{"from": [{ "source": source }]}]})
    };
    let operation = |field: &str, text: &str| {
        let mut operation = json!({});
        operation[field] = list(json!(text));
        json!({"rules": [{"to": [{ "operation": operation }]}]})
    };
    let when = |key: &str, one: &str| json!({"rules": [{"when": [{"key": key, "values": list(json!(one))}]}]});
    vec![
        ("rules", json!({"rules": list(json!({"to": [{"operation": {"paths": ["/#"]}}]}))})),
        ("empty rules", json!({"rules": list(json!({}))})),
        (
            "rules.from",
            json!({"rules": [{"from": list(json!({"source": {"namespaces": ["n#"]}}))}]}),
        ),
        ("rules.to", json!({"rules": [{"to": list(json!({"operation": {"paths": ["/#"]}}))}]})),
        (
            "rules.when",
            json!({"rules": [{"when": list(json!({"key": "request.headers[h#]", "values": ["v"]}))}]}),
        ),
        ("principals", source("principals", "a/ns/b/sa/c#")),
        ("notPrincipals", source("notPrincipals", "a/ns/b/sa/c#")),
        ("namespaces", source("namespaces", "n#")),
        ("serviceAccounts", source("serviceAccounts", "n/s#")),
        ("requestPrincipals", source("requestPrincipals", "i/s#")),
        ("ipBlocks", source("ipBlocks", "10.0.0.0/8")),
        ("remoteIpBlocks", source("remoteIpBlocks", "10.0.0.0/8")),
        ("operation.hosts", operation("hosts", "h#")),
        ("operation.ports", operation("ports", "80")),
        ("operation.methods", operation("methods", "M#")),
        ("operation.paths", operation("paths", "/#")),
        ("operation.paths with templates", operation("paths", "/{*}/#")),
        ("operation.notPaths", operation("notPaths", "/#*")),
        ("when.values of a claim", when("request.auth.claims[a]", "v#")),
        ("when.values of a header", when("request.headers[a]", "v#")),
        ("when.values of ports", when("destination.port", "80")),
        ("when.values of addresses", when("destination.ip", "10.0.0.0/8")),
        ("selector", json!({"selector": {"matchLabels": map("k#", json!("v"))}, "rules": [{}]})),
        (
            "targetRefs",
            json!({
                "targetRefs": list(json!({"group": "", "kind": "Service", "name": "s#"})), "rules": [{}],
            }),
        ),
    ]
}

fn request_authentication() -> Vec<(&'static str, Value)> {
    let rule_with = |field: &str, value: Value| {
        let mut rule = json!({"issuer": "i", "jwksUri": "https://a.example/keys"});
        rule[field] = value;
        json!({"jwtRules": [rule]})
    };
    vec![
        (
            "jwtRules",
            json!({"jwtRules": list(json!({"issuer": "i#", "jwksUri": "https://a.example/#"}))}),
        ),
        (
            "same jwtRules",
            json!({"jwtRules": list(json!({"issuer": "i", "jwksUri": "https://a.example/"}))}),
        ),
        ("audiences", rule_with("audiences", list(json!("a#")))),
        ("fromHeaders", rule_with("fromHeaders", list(json!({"name": "h#", "prefix": "p"})))),
        ("fromParams", rule_with("fromParams", list(json!("p#")))),
        ("fromCookies", rule_with("fromCookies", list(json!("c#")))),
        (
            "outputClaimToHeaders",
            rule_with("outputClaimToHeaders", list(json!({"header": "h#", "claim": "c#"}))),
        ),
        ("selector", json!({"selector": {"matchLabels": map("k#", json!("v"))}})),
        (
            "targetRefs",
            json!({"targetRefs": list(json!({"group": "", "kind": "Service", "name": "s#"}))}),
        ),
    ]
}

fn http_route() -> Vec<(&'static str, Value)> {
    let parents = json!([{"name": "g", "kind": "Service", "group": ""}]);
    let to = json!([{"name": "b", "port": 80}]);
    let rules = |rules: Value| json!({"parentRefs": parents, "rules": rules});
    let with_match = |one: Value| rules(json!([{"matches": [one], "backendRefs": to}]));
    let filter = |change: Value| {
        rules(json!([{
            "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": change}],
            "backendRefs": to,
        }]))
    };
    vec![
        (
            "parentRefs",
            json!({
                "parentRefs": list(json!({"name": "g#", "kind": "Service", "group": ""})),
                "rules": [{ "backendRefs": to }],
            }),
        ),
        (
            "parentRefs of gateways",
            json!({
                "parentRefs": list(json!({"name": "g#"})), "rules": [{ "backendRefs": to }],
            }),
        ),
        (
            "hostnames",
            json!({
                "parentRefs": [{"name": "g"}], "hostnames": list(json!("h#.b")), "rules": [{ "backendRefs": to }],
            }),
        ),
        ("rules", rules(list(json!({"matches": [{"path": {"value": "/#"}}], "backendRefs": to})))),
        (
            "rules to many services",
            rules(list(json!({
                "matches": [{"path": {"value": "/#"}}], "backendRefs": [{"name": "b#", "port": 80}],
            }))),
        ),
        (
            "matches",
            rules(json!([{"matches": list(json!({"path": {"value": "/#"}})), "backendRefs": to}])),
        ),
        (
            "matches.headers",
            with_match(json!({"headers": list(json!({"name": "h#", "value": "v"}))})),
        ),
        (
            "matches.queryParams",
            with_match(json!({"queryParams": list(json!({"name": "q#", "value": "v"}))})),
        ),
        ("backendRefs", rules(json!([{"backendRefs": list(json!({"name": "b#", "port": 80}))}]))),
        (
            "filters",
            rules(json!([{
                "filters": list(json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b#", "port": 80}}})),
                "backendRefs": to,
            }])),
        ),
        ("filters.set", filter(json!({"set": list(json!({"name": "h#", "value": "v"}))}))),
        ("filters.add", filter(json!({"add": list(json!({"name": "h#", "value": "v"}))}))),
        ("filters.remove", filter(json!({"remove": list(json!("h#"))}))),
    ]
}

fn grpc_route() -> Vec<(&'static str, Value)> {
    let parents = json!([{"name": "g", "kind": "Service", "group": ""}]);
    let to = json!([{"name": "b", "port": 80}]);
    let method = json!({"method": {"service": "s#", "method": "m"}});
    vec![
        (
            "hostnames",
            json!({
                "parentRefs": [{"name": "g"}], "hostnames": list(json!("h#.b")), "rules": [{ "backendRefs": to }],
            }),
        ),
        (
            "rules",
            json!({"parentRefs": parents, "rules": list(json!({"matches": [method], "backendRefs": to}))}),
        ),
        (
            "matches",
            json!({"parentRefs": parents, "rules": [{"matches": list(method), "backendRefs": to}]}),
        ),
        (
            "backendRefs",
            json!({
                "parentRefs": parents, "rules": [{"backendRefs": list(json!({"name": "b#", "port": 80}))}],
            }),
        ),
    ]
}

fn ingress() -> Vec<(&'static str, Value)> {
    let to = json!({"service": {"name": "s", "port": {"number": 80}}});
    let path = |path: &str, to: &Value| json!({"path": path, "pathType": "Prefix", "backend": to});
    let with = |field: &str, value: Value| {
        let mut spec = json!({"rules": [{"host": "h.b", "http": {"paths": [path("/", &to)]}}]});
        spec[field] = value;
        spec
    };
    let many = json!({"service": {"name": "s#", "port": {"number": 80}}});
    vec![
        (
            "rules",
            with("rules", list(json!({"host": "h#.b", "http": {"paths": [path("/", &to)]}}))),
        ),
        (
            "same rules",
            with("rules", list(json!({"host": "h.b", "http": {"paths": [path("/#", &to)]}}))),
        ),
        (
            "paths",
            with("rules", json!([{"host": "h.b", "http": {"paths": list(path("/#", &many))}}])),
        ),
        ("tls", with("tls", list(json!({"hosts": ["h#.b"], "secretName": "s#"})))),
        ("tls.hosts", with("tls", json!([{"hosts": list(json!("h#.b")), "secretName": "s"}]))),
    ]
}
