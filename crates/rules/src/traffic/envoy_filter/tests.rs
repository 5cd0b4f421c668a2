use serde_json::json;

use super::*;
use crate::testing::kind_settings;
use crate::traffic::selection::Selectors;
use strait_model::{ISTIO_NETWORKING, Labels, ObjectKey};

fn read(namespace: &str, name: &str, spec: &Value) -> (EnvoyFilter, Vec<Reason>) {
    let key = ObjectKey {
        kind: "EnvoyFilter".into(),
        group: ISTIO_NETWORKING.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let object = json!({ "spec": spec });
    EnvoyFilter::read(ObjectMeta::from_object(&key, &object), &object).expect("the object is valid")
}

/// Returns a filter that Envoy accepts.
fn buffer(name: &str) -> Value {
    json!({ "name": name, "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
        "maxRequestBytes": 10,
    } })
}

fn patch(name: &str) -> Value {
    json!({ "applyTo": "HTTP_FILTER", "patch": { "operation": "INSERT_FIRST", "value": buffer(name) } })
}

/// Returns the patch with one changed value.
fn with(pointer: &str, value: Value) -> Value {
    let mut patch = patch("x");
    let mut at = &mut patch;
    for field in pointer.split('/') {
        at = &mut at[field];
    }
    *at = value;
    patch
}

/// Returns the reason for an invalid patch between two valid ones. Checks that the valid ones
/// apply.
fn patch_fault(bad: Value) -> String {
    let (filter, reasons) =
        read("shop", "one", &json!({ "configPatches": [patch("a"), bad, patch("b")] }));
    assert_eq!(filter.patches.len(), 2, "{bad}: {reasons:?}");
    let [reason] = &reasons[..] else { panic!("{bad}: {reasons:?}") };
    assert!(reason.is_lost);
    let path = reason.path.strip_prefix("spec.configPatches[1]").expect("the bad one is meant");
    format!("{} {path}: {}", reason.code, reason.text)
}

#[test]
fn patch_whose_fields_are_given_by_position_refuses_the_object() {
    let by_position = json!(["HTTP_FILTER", {}, { "operation": "INSERT_FIRST" }]);
    let object = json!({ "spec": { "configPatches": [patch("a"), by_position] } });
    let refused = EnvoyFilter::read(ObjectMeta::before_all(), &object).expect_err("it is a list");
    assert_eq!(
        (refused.code, &*refused.path),
        (&codes::TRAFFIC_MALFORMED, "spec.configPatches[1]")
    );
}

#[test]
fn number_of_proxy_matches_of_an_object_is_limited() {
    let versioned_patch = |version: usize| {
        let mut patch = patch(&format!("f{version}"));
        patch["match"]["proxy"] = json!({ "proxyVersion": format!("^1.{version}$") });
        patch
    };
    let mut patches: Vec<_> = (0..PROXIES_MAX + 2).map(versioned_patch).collect();
    patches.extend([versioned_patch(0), patch("all")]);
    let (filter, reasons) = read("shop", "one", &json!({ "configPatches": patches }));
    assert_eq!(
        filter.patches.len(),
        PROXIES_MAX + 2,
        "the accepted ones, and those for all proxies"
    );
    let paths: Vec<_> = reasons.iter().map(|reason| reason.path.as_str()).collect();
    assert_eq!(paths, [64, 65].map(|at| format!("spec.configPatches[{at}].match.proxy")));
    assert!(reasons[0].text.starts_with("an object may have at most 64 different proxy matches"));
}

#[test]
fn unsupported_patch_is_left_out_with_an_alternative() {
    let cases = [
        (
            with("applyTo", json!("LISTENER")),
            "STR1076 .applyTo: \"LISTENER\" is not supported; use a Sidecar",
        ),
        (
            with("applyTo", json!("HTTP_ROUTE")),
            "STR1076 .applyTo: \"HTTP_ROUTE\" is not supported; use a VirtualService",
        ),
        (with("applyTo", json!(7)), "STR1076 .applyTo: \"\" is not supported"),
        (with("match", json!({ "context": "EVERYWHERE" })), "STR1076 .match.context: "),
        (
            with("match", json!({ "proxy": { "proxyVersion": "1.(" } })),
            "STR1076 .match.proxy.proxyVersion: \"1.(\" has an unmatched (",
        ),
        (
            with("match", json!({ "proxy": { "proxyVersion": "^.{900}a" } })),
            "STR1076 .match.proxy.proxyVersion: \"^.{900}a\" is too large for a version",
        ),
        (
            with("match", json!({ "proxy": { "metadata": { "SOME_KEY": "x" } } })),
            "STR1076 .match.proxy.metadata.SOME_KEY: SOME_KEY of proxies is not stored",
        ),
        (
            with("match", json!({ "proxy": { "metadata": { "CLUSTER_ID": 7 } } })),
            "STR1076 .match.proxy.metadata.CLUSTER_ID: 7 is not a string",
        ),
        (with("match", json!({ "proxy": { "other": 1 } })), "STR1076 .match.proxy.other: "),
        (
            with("match", json!({ "routeConfiguration": { "name": "80" } })),
            "STR1076 .match.routeConfiguration: ",
        ),
        (
            with("match", json!({ "listener": { "name": "virtualInbound" } })),
            "STR1076 .match.listener.name: name is not supported; use its port",
        ),
        (
            with("match", json!({ "listener": { "portNumber": 70000 } })),
            "STR1076 .match.listener.portNumber: 70000 is not a valid port",
        ),
        (
            with("match", json!({ "listener": { "filterChain": { "sni": "a" } } })),
            "STR1076 .match.listener.filterChain.sni: ",
        ),
        (
            with(
                "match",
                json!({ "listener": { "filterChain": { "filter": { "name": "envoy.filters.network.tcp_proxy" } } } }),
            ),
            "STR1076 .match.listener.filterChain.filter.name: ",
        ),
        (
            with(
                "match",
                json!({ "listener": { "filterChain": { "filter": { "subFilter": { "name": "envoy.filters.http.cors" } } } } }),
            ),
            "STR1076 .match.listener.filterChain.filter.subFilter.name: ",
        ),
        (with("match", json!([])), "STR1076 .match: it is not an object"),
        (
            with("patch/operation", json!("MERGE")),
            "STR1076 .patch.operation: \"MERGE\" is not supported",
        ),
        (with("patch/operation", json!("INSERT_AFTER")), "STR1076 .patch.operation: "),
        (with("patch/filterClass", json!("AUTHN")), "STR1076 .patch.filterClass: "),
        (with("patch/value", json!(null)), "STR1077 .patch.value: it is not a filter"),
        (with("patch/value/name", json!("")), "STR1077 .patch.value.name: "),
        (
            with("patch/value/config_discovery", json!({})),
            "STR1077 .patch.value.config_discovery: ",
        ),
        (
            with("patch/value/typed_config", json!({})),
            "STR1077 .patch.value.typed_config: it has no @type",
        ),
        (
            with("patch/value/typed_config/max_bytes", json!(1)),
            "STR1077 .patch.value.typed_config: ",
        ),
        (
            with("patch/value/typed_config/maxRequestBytes", json!(0)),
            "STR1077 .patch.value.typed_config: Envoy refuses it: max_request_bytes: 0 is out of range",
        ),
        (
            with(
                "patch/value/typed_config",
                json!({ "@type": "x/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication" }),
            ),
            "STR1077 .patch.value.typed_config.@type: \"envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication\" is not a supported filter; write a RequestAuthentication",
        ),
        (json!("nothing"), "STR1076 .applyTo: "),
    ];
    for (bad, wanted) in cases {
        let given = patch_fault(bad);
        assert!(given.starts_with(wanted), "{given}");
    }
}

/// Returns a patch with this filter configuration.
fn configured(kind: &str, config: Value) -> Value {
    let mut typed =
        json!({ "@type": format!("type.googleapis.com/envoy.extensions.filters.http.{kind}") });
    typed
        .as_object_mut()
        .expect("an object")
        .extend(config.as_object().expect("an object").clone());
    with("patch/value/typed_config", typed)
}

#[test]
fn filter_that_envoy_would_reject_is_left_out() {
    const LUA: &str = "lua.v3.Lua";
    const LIMIT: &str = "local_ratelimit.v3.LocalRateLimit";
    const AUTHZ: &str = "ext_authz.v3.ExtAuthz";
    const HEADERS: &str = "header_to_metadata.v3.Config";
    let bucket = json!({ "max_tokens": 1, "fill_interval": "1s" });
    let cases = [
        (LUA, json!({ "inline_code": "function f(" }), ".inline_code: line 1: the end is found"),
        (
            LUA,
            json!({ "default_source_code": { "inline_string": "print(1)" } }),
            ".default_source_code.inline_string: line 1: ( runs",
        ),
        (
            LUA,
            json!({ "default_source_code": { "filename": "/x" } }),
            ".default_source_code: write the script as inline_string",
        ),
        (
            LUA,
            json!({ "inline_code": "x = 1", "default_source_code": { "inline_string": "x = 1" } }),
            ".default_source_code: inline_code is set as well",
        ),
        (
            LUA,
            json!({ "source_codes": { "a": { "inline_string": "" } } }),
            ".source_codes: this field",
        ),
        (LIMIT, json!({ "stat_prefix": "a" }), ".token_bucket: it is missing"),
        (
            LIMIT,
            json!({ "stat_prefix": "a", "token_bucket": { "max_tokens": 1, "fill_interval": "0.01s" } }),
            ".token_bucket.fill_interval: Envoy rejects intervals below 50 ms",
        ),
        (LIMIT, json!({ "token_bucket": bucket }), ": Envoy refuses it: stat_prefix: "),
        (
            LIMIT,
            json!({ "stat_prefix": "a", "token_bucket": bucket, "descriptors": [{ "entries": [{ "key": "a", "value": "b" }], "token_bucket": bucket }] }),
            ".descriptors: this field",
        ),
        (
            LIMIT,
            json!({ "stat_prefix": "a", "token_bucket": bucket, "response_headers_to_add": [{ "header": { "key": "x", "value": "%NONE(" } }] }),
            ".response_headers_to_add[0].header: ",
        ),
        (
            LIMIT,
            json!({ "stat_prefix": "a", "token_bucket": bucket, "response_headers_to_add": [{ "header": { "key": ":status", "value": "1" } }] }),
            ".response_headers_to_add[0].header: ",
        ),
        (AUTHZ, json!({}), ".grpc_service: exactly one of"),
        (
            AUTHZ,
            json!({ "grpc_service": { "envoy_grpc": { "cluster_name": "a" } } }),
            ".transport_api_version: ",
        ),
        (
            AUTHZ,
            json!({ "http_service": { "path_prefix": "a", "server_uri": { "uri": "a", "cluster": "b", "timeout": "1s" } } }),
            ".http_service.path_prefix: ",
        ),
        (
            AUTHZ,
            json!({ "http_service": { "server_uri": { "uri": "a", "cluster": "b", "timeout": "1s" } }, "allowed_headers": { "patterns": [{ "safe_regex": { "regex": "(" } }] } }),
            ".allowed_headers.patterns[0].safe_regex.regex: ",
        ),
        (HEADERS, json!({}), ".request_rules: there is no rule"),
        (
            HEADERS,
            json!({ "request_rules": [{ "on_header_present": { "key": "a" } }] }),
            ".request_rules: a rule must have one of",
        ),
        (
            HEADERS,
            json!({ "request_rules": [{ "header": "a" }] }),
            ".request_rules: a rule must have on_header",
        ),
    ];
    let unknown = json!({ "compressor_library": { "name": "a", "typed_config": { "@type": "type.googleapis.com/a.B" } } });
    let wanted = ".compressor_library.typed_config.@type: Strait does not support the message type type.googleapis.com/a.B";
    let cases = cases.into_iter().chain([("compressor.v3.Compressor", unknown, wanted)]);
    for (kind, config, wanted) in cases {
        let given = patch_fault(configured(kind, config));
        let wanted = format!("STR1077 .patch.value.typed_config{wanted}");
        assert!(given.starts_with(&wanted), "{given}\nis not\n{wanted}");
    }
}

#[test]
fn typed_structs_equal_the_message_inside() {
    let config = json!({ "max_request_bytes": 10 });
    let url = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
    let typed_struct = |name: &str| {
        let typed = json!({ "@type": format!("type.googleapis.com/{name}"), "type_url": url, "value": config });
        with("patch/value/typed_config", typed)
    };
    let all = [
        typed_struct("udpa.type.v1.TypedStruct"),
        typed_struct("xds.type.v3.TypedStruct"),
        patch("x"),
    ];
    let (filter, reasons) = read("shop", "one", &json!({ "configPatches": all }));
    assert_eq!(reasons, []);
    let filters: Vec<_> = filter.patches.iter().map(|patch| expect_filter(&patch.what)).collect();
    assert!(filters.iter().all(|one| *one == filters[0]), "{filters:?}");
    assert_eq!(&*filters[0].type_url, url);
}

fn expect_filter(patch: &PlacedPatch) -> &PatchedFilter {
    match patch {
        PlacedPatch::Filter(placed) => &placed.filter,
        other => panic!("{other:?} is no filter"),
    }
}

/// Returns a patch that merges these settings into connection managers.
fn merging(fields: Value) -> Value {
    let name = "envoy.filters.network.http_connection_manager";
    let kind = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let mut config = json!({ "@type": format!("type.googleapis.com/{kind}") });
    config
        .as_object_mut()
        .expect("an object")
        .extend(fields.as_object().expect("an object").clone());
    json!({
        "applyTo": "NETWORK_FILTER",
        "match": { "listener": { "filterChain": { "filter": { "name": name } } } },
        "patch": { "operation": "MERGE", "value": { "name": name, "typed_config": config } },
    })
}

#[test]
fn only_valid_settings_are_merged_into_managers() {
    let good = [
        json!({ "useRemoteAddress": true, "xffNumTrustedHops": 2, "skip_xff_append": true }),
        json!({ "stream_idle_timeout": "0s", "request_timeout": "30s" }),
        json!({ "http_protocol_options": { "header_key_format": { "proper_case_words": {} } } }),
        json!({ "common_http_protocol_options": { "idle_timeout": "10s", "headers_with_underscores_action": "REJECT_REQUEST" } }),
    ];
    let spec = json!({ "configPatches": good.map(merging) });
    let (filter, reasons) = read("shop", "one", &spec);
    assert_eq!((filter.patches.len(), reasons), (4, vec![]));
    let at = |path: &str, value: Value| {
        let mut patch = merging(json!({ "via": "x" }));
        *patch.pointer_mut(path).expect("the field exists") = value;
        patch
    };
    let value = "STR1077 .patch.value.typed_config";
    let cases = [
        (merging(json!({})), format!("{value}: it sets no fields")),
        (merging(json!({ "request_timeout": "-1s" })), format!("{value}.request_timeout: ")),
        (merging(json!({ "via": "a\nb" })), value.to_owned()),
        (merging(json!({ "max_request_headers_kb": 0 })), format!("{value}: Envoy refuses it: ")),
        (
            merging(json!({ "merge_slashes": true })),
            format!("{value}.merge_slashes: this field is not supported; set pathNormalization"),
        ),
        (merging(json!({ "http_filters": [{ "name": "a" }] })), value.to_owned()),
        (
            merging(json!({ "http2_protocol_options": { "allow_connect": true } })),
            format!("{value}.http2_protocol_options.allow_connect: "),
        ),
        (merging(json!({ "no_such": 1 })), value.to_owned()),
        (
            at(
                "/patch/value/typed_config/@type",
                json!("x/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"),
            ),
            format!("{value}.@type: "),
        ),
        (at("/patch/operation", json!("INSERT_FIRST")), "STR1076 .patch.operation: ".to_owned()),
        (
            at("/match/listener/filterChain/filter", json!({})),
            "STR1076 .match.listener.filterChain.filter.name: only the network filter".to_owned(),
        ),
        (
            at("/match/listener/filterChain/filter/name", json!("envoy.filters.network.tcp_proxy")),
            "STR1076 .match.listener.filterChain.filter.name: ".to_owned(),
        ),
    ];
    for (bad, wanted) in cases {
        let given = patch_fault(bad);
        assert!(given.starts_with(&wanted), "{given}");
    }
}

/// Returns a patch that adds a cluster with one changed value.
fn adding(pointer: &str, value: Value) -> Value {
    let address = json!({ "socketAddress": { "address": "limits.example", "portValue": 8081 } });
    let protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let mut cluster = json!({
        "name": "limits", "type": "STRICT_DNS", "connect_timeout": "1s", "lb_policy": "ROUND_ROBIN",
        "load_assignment": {
            "cluster_name": "limits",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
        },
        "typed_extension_protocol_options": { protocol: {
            "@type": format!("type.googleapis.com/{protocol}"),
            "explicit_http_config": { "http2_protocol_options": {} },
        } },
    });
    let mut at = &mut cluster;
    for field in pointer.split('/').filter(|field| !field.is_empty()) {
        at = match field.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[field],
        };
    }
    if !pointer.is_empty() {
        *at = value;
    }
    json!({ "applyTo": "CLUSTER", "patch": { "operation": "ADD", "value": cluster } })
}

#[test]
fn only_valid_clusters_are_added() {
    let (filter, reasons) =
        read("shop", "one", &json!({ "configPatches": [adding("", Value::Null)] }));
    assert_eq!((filter.patches.len(), reasons), (1, vec![]));
    let endpoint = "load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socketAddress";
    let at = |field: &str, value| adding(&format!("{endpoint}/{field}"), value);
    let two = json!([{}, {}]);
    for (bad, wanted) in [
        (adding("name", json!("outbound|80||a")), ".name: names with the prefix outbound|"),
        (adding("name", json!("")), ": Envoy refuses it"),
        (adding("type", json!("EDS")), ".type: EDS is not supported"),
        (
            adding("type", json!("STATIC")),
            ".load_assignment: \"limits.example\" is not a valid address",
        ),
        (adding("type", json!("ORIGINAL_DST")), ".type: "),
        (adding("connect_timeout", json!("0s")), ": Envoy refuses it"),
        (adding("lb_policy", json!("RING_HASH")), ".lb_policy: "),
        (adding("load_assignment", json!(null)), ".load_assignment: it needs an endpoint"),
        (adding("load_assignment/endpoints", two), ".load_assignment: it needs an endpoint"),
        (at("address", json!("a b")), ".load_assignment: \"a b\" is not a valid address"),
        (at("portValue", json!(0)), ".load_assignment: "),
        (adding("transport_socket", json!({ "name": "x" })), ".transport_socket"),
        (
            adding(
                "transport_socket",
                json!({ "name": "x", "typed_config": { "@type": "x/a.B" } }),
            ),
            ".transport_socket.typed_config.@type: Strait does not support the message type x/a.B",
        ),
        (adding("outlier_detection", json!({})), ".outlier_detection: this field is not supported"),
        (adding("no_such", json!(1)), ""),
        (
            adding(
                "typed_extension_protocol_options",
                json!({ "x": { "@type": "type.googleapis.com/google.protobuf.Empty" } }),
            ),
            "",
        ),
    ] {
        let given = patch_fault(bad);
        assert!(given.starts_with(&format!("STR1077 .patch.value{wanted}")), "{given}");
    }
    let mut bad = adding("", Value::Null);
    bad["patch"]["operation"] = json!("MERGE");
    assert!(
        patch_fault(bad)
            .starts_with("STR1076 .patch.operation: \"MERGE\" is not supported for upstream")
    );
    let mut bad = adding("", Value::Null);
    bad["match"] = json!({ "cluster": { "name": "a" } });
    assert!(patch_fault(bad).starts_with("STR1076 .match.cluster: "));
}

/// Returns the names of a proxy's filters for one direction.
fn names(
    filters: &EnvoyFilters,
    proxy: (&Namespace, &Selection),
    place: PatchPlace,
) -> Vec<String> {
    let all = filters.at(proxy, place);
    all.iter()
        .map(|(port, filter)| {
            let port = port.map_or(String::new(), |port| format!(":{port}"));
            format!("{}{port}", expect_filter(filter).name)
        })
        .collect()
}

#[test]
fn objects_are_sorted_by_priority_root_namespace_age_and_name() {
    let filter_spec = |name: &str, more: Value| {
        let mut spec = json!({ "configPatches": [patch(name)] });
        spec.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        spec
    };
    let web = json!({ "workloadSelector": { "labels": { "app": "web" } } });
    let in_place = |name: &str, matches: Value| {
        let mut patch = patch(name);
        patch["match"] = matches;
        json!({ "configPatches": [patch] })
    };
    let root = &kind_settings().root_namespace;
    let objects = [
        ("shop", "b", filter_spec("own-b", json!({}))),
        ("shop", "a", filter_spec("own-a", json!({}))),
        ("shop", "first", filter_spec("own-first", json!({ "priority": -1 }))),
        ("shop", "web", filter_spec("own-web", web.clone())),
        (root.as_str(), "z", filter_spec("root", json!({}))),
        (root.as_str(), "web", filter_spec("root-web", web)),
        (root.as_str(), "late", filter_spec("root-late", json!({ "priority": 10 }))),
        (
            "pay",
            "in",
            in_place(
                "in",
                json!({ "context": "SIDECAR_INBOUND", "listener": { "portNumber": 80 } }),
            ),
        ),
        ("pay", "out", in_place("out", json!({ "context": "SIDECAR_OUTBOUND" }))),
        ("pay", "gate", in_place("gate", json!({ "context": "GATEWAY" }))),
    ];
    let (mut filters, mut selectors) = (EnvoyFilters::default(), Selectors::default());
    for (namespace, name, spec) in &objects {
        let filter = Arc::new(read(namespace, name, spec).0);
        let mut changes = TrafficChanges::default();
        let into = ScopedInForce {
            selectors: &mut selectors,
            changes: &mut changes,
            root_namespace: root,
        };
        filters.insert(&filter, into);
        assert!(changes.filters.contains(*namespace));
    }
    let at = |namespace: &str, labels: &[(&str, &str)], place| {
        let namespace: Namespace = namespace.into();
        let labels: Labels =
            labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let selection = selectors.selection(&namespace, &labels);
        names(&filters, (&namespace, &selection), place)
    };
    let inbound = PatchPlace::Inbound;
    assert_eq!(at("shop", &[], inbound), ["own-first", "root", "own-a", "own-b", "root-late"]);
    assert_eq!(
        at("shop", &[("app", "web")], inbound),
        ["own-first", "root-web", "root", "own-a", "own-b", "own-web", "root-late"]
    );
    // Objects of the root namespace apply to selected proxies in all namespaces, and only once in
    // the root namespace.
    assert_eq!(at("elsewhere", &[("app", "web")], inbound), ["root-web", "root", "root-late"]);
    assert_eq!(at(root.as_str(), &[("app", "web")], inbound), ["root-web", "root", "root-late"]);
    assert_eq!(at("pay", &[], inbound), ["root", "in:80", "root-late"]);
    assert_eq!(at("pay", &[], PatchPlace::Outbound), ["root", "out", "root-late"]);
    assert_eq!(at("pay", &[], PatchPlace::Gateway), ["root", "gate", "root-late"]);
}
