//! Tests of the filters of EnvoyFilters with real Envoys of two versions.

use super::rules::governed;
use super::*;

/// A filter of each supported type, with its supported fields.
const FILTERS: &[&str] = &[
    "{name: lua, typed_config: {'@type': T/lua.v3.Lua, inline_code: 'function envoy_on_request(h) h:headers():add(\"a\", \"b\") end'}}",
    "{name: lua, typed_config: {'@type': T/lua.v3.Lua, stat_prefix: a, clear_route_cache: true, default_source_code: {inline_string: \"-- x\\nlocal LIMIT = 3\\nlocal t = {1, a = 'b', [2] = {}}\\nlocal function f(a, ...) local n = a.b['c']:d{1} for i = 1, 3 do n = n .. i end while not n do break end repeat n = #t until n == 0 or n ~= 1 return n, ... end\\nfunction envoy_on_response(h)\\n  if h then f(h, 1) elseif LIMIT >= 2 then h:logInfo 'x' else t.x, t.y = 0x1F, 1e-3 end\\nend\"}}}",
    "{name: limit, typed_config: {'@type': T/local_ratelimit.v3.LocalRateLimit, stat_prefix: a, status: {code: 503}, token_bucket: {max_tokens: 1, tokens_per_fill: 1, fill_interval: 0.05s}, filter_enabled: {runtime_key: a, default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 5, denominator: MILLION}}, response_headers_to_add: [{header: {key: x, value: '%PROTOCOL%'}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}], local_rate_limit_per_downstream_connection: true, enable_x_ratelimit_headers: DRAFT_VERSION_03, rate_limited_as_resource_exhausted: true}}",
    "{name: buffer, typed_config: {'@type': T/buffer.v3.Buffer, max_request_bytes: 1000}}",
    "{name: gzip, typed_config: {'@type': T/compressor.v3.Compressor, choose_first: true, response_direction_config: {common_config: {min_content_length: 10, content_type: [text/html]}, disable_on_etag_header: true}, request_direction_config: {}, compressor_library: {name: gzip, typed_config: {'@type': type.googleapis.com/envoy.extensions.compression.gzip.compressor.v3.Gzip, memory_level: 3, window_bits: 10, compression_level: BEST_SPEED, compression_strategy: FIXED, chunk_size: 8192}}}}",
    "{name: brotli, typed_config: {'@type': T/compressor.v3.Compressor, compressor_library: {name: b, typed_config: {'@type': type.googleapis.com/envoy.extensions.compression.brotli.compressor.v3.Brotli, quality: 3}}}}",
    "{name: zstd, typed_config: {'@type': T/compressor.v3.Compressor, compressor_library: {name: z, typed_config: {'@type': type.googleapis.com/envoy.extensions.compression.zstd.compressor.v3.Zstd, enable_checksum: true}}}}",
    "{name: meta, typed_config: {'@type': T/header_to_metadata.v3.Config, request_rules: [{header: x, on_header_present: {metadata_namespace: a, key: b, type: NUMBER}, on_header_missing: {key: b, value: c}, remove: true}, {cookie: d, on_header_present: {key: e, regex_value_rewrite: {pattern: {regex: '^a(.*)$'}, substitution: '\\\\1'}}}], response_rules: [{header: answer, on_header_present: {key: z, value: '1'}}]}}",
    "{name: ask, typed_config: {'@type': T/ext_authz.v3.ExtAuthz, transport_api_version: V3, failure_mode_allow: true, grpc_service: {envoy_grpc: {cluster_name: nowhere, authority: a}, timeout: 1s, initial_metadata: [{key: a, value: b}]}, with_request_body: {max_request_bytes: 10, allow_partial_message: true}, status_on_error: {code: 503}, clear_route_cache: true, stat_prefix: a}}",
    "{name: ask, typed_config: {'@type': T/ext_authz.v3.ExtAuthz, http_service: {server_uri: {uri: 'http://a.example:80', cluster: nowhere, timeout: 0.5s}, path_prefix: /check, authorization_request: {headers_to_add: [{key: a, value: b}]}, authorization_response: {allowed_upstream_headers: {patterns: [{exact: a}, {prefix: b}, {safe_regex: {regex: 'c.*'}}]}}}, allowed_headers: {patterns: [{exact: cookie}]}, include_peer_certificate: true}}",
];

/// All fields that can be merged into managers.
const MERGED: &str = "{use_remote_address: true, xff_num_trusted_hops: 4, skip_xff_append: true, via: hop, server_name: edge, server_header_transformation: PASS_THROUGH, stat_prefix: own, stream_idle_timeout: 0s, request_timeout: 1s, request_headers_timeout: 1s, drain_timeout: 1s, delayed_close_timeout: 1s, max_request_headers_kb: 96, add_user_agent: true, generate_request_id: false, preserve_external_request_id: true, always_set_request_id_in_response: true, common_http_protocol_options: {idle_timeout: 1s, max_connection_duration: 1s, max_headers_count: 7, max_stream_duration: 1s, headers_with_underscores_action: REJECT_REQUEST, max_requests_per_connection: 9}, http_protocol_options: {accept_http_10: true, default_host_for_http_10: a.example, header_key_format: {proper_case_words: {}}}, http2_protocol_options: {max_concurrent_streams: 5, initial_stream_window_size: 65535, initial_connection_window_size: 65535}}";

/// Added clusters of each type.
const ADDED: [&str; 3] = [
    "{name: limits, type: STRICT_DNS, connect_timeout: 1s, lb_policy: RANDOM, dns_lookup_family: V4_ONLY, respect_dns_ttl: true, load_assignment: {cluster_name: limits, endpoints: [{lb_endpoints: [{endpoint: {hostname: x, address: {socket_address: {address: limits.example, port_value: 8081}}}, load_balancing_weight: 3}]}]}, typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {'@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http2_protocol_options: {}}}}}",
    "{name: one, type: LOGICAL_DNS, alt_stat_name: x, load_assignment: {cluster_name: one, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: one.example, port_value: 1}}}}]}]}}",
    "{name: fixed, load_assignment: {cluster_name: fixed, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 192.0.2.1, port_value: 65535}}}}]}]}}",
];

/// Returns a patch that merges these fields.
fn merging(fields: &str) -> String {
    let fields = fields.strip_prefix('{').expect("fields");
    let kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    format!(
        "- {{applyTo: NETWORK_FILTER, match: {{listener: {{filterChain: {{filter: {{name: envoy.filters.network.http_connection_manager}}}}}}}}, patch: {{operation: MERGE, value: {{typed_config: {{'@type': {kind}, {fields}}}}}}}"
    )
}

fn filtered(patches: &[String], ports: Vec<Port>) -> Arc<PushContext> {
    let app = service("app.ns").vip("10.1.0.1").ports(ports);
    let pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
    let services = shard("east", 1).network("n1").with(app, vec![]).pod(pod);
    let spec = format!("configPatches:\n{}", patches.join("\n"));
    governed(services.built(), "EnvoyFilter", &[&spec])
}

fn patch(matches: &str, operation: &str, value: &str) -> String {
    let value = value.replace("T/", "type.googleapis.com/envoy.extensions.filters.http.");
    format!(
        "- {{applyTo: HTTP_FILTER, match: {matches}, patch: {{operation: {operation}, value: {value}}}}}"
    )
}

/// Returns the names of the HTTP filters of the first chain that has any.
fn http_filter_names(listener: &Value) -> Vec<String> {
    let chains = listener["filter_chains"].as_array().into_iter().flatten();
    let chains = chains.chain([&listener["default_filter_chain"]]);
    let managers = chains.filter_map(|chain| chain["filters"].as_array()?.last());
    let mut lists = managers.filter_map(|one| one["typed_config"]["http_filters"].as_array());
    let list = lists.next().cloned().unwrap_or_default();
    list.iter().map(|one| text(&one["name"])).collect()
}

#[test]
fn envoys_accept_every_supported_filter() {
    let Some(_) = envoy() else { return };
    let put_in = FILTERS
        .iter()
        .flat_map(|value| ["INSERT_FIRST", "INSERT_BEFORE"].map(|how| patch("{}", how, value)));
    let adding =
        |value| format!("- {{applyTo: CLUSTER, patch: {{operation: ADD, value: {value}}}}}");
    let patches: Vec<_> = put_in.chain([merging(MERGED)]).chain(ADDED.map(adding)).collect();
    let context = filtered(&patches, vec![port("http", 80, 8080)]);
    let all = listeners(&context, &client());
    for name in ["virtualInbound", "0.0.0.0_80"] {
        let own = http_filter_names(&all[name]);
        assert!(own.len() > 2 * FILTERS.len(), "{name} has all of them: {own:?}");
        let given = all[name].to_string();
        assert!(given.contains("proper_case_words") && given.contains("PASS_THROUGH"), "{name}");
    }
    let clusters = list_resources(&context, &client(), ResourceType::Cluster);
    assert!(["limits", "one", "fixed"].iter().all(|name| clusters.contains_key(*name)));
    let clusters: Vec<_> = clusters.into_values().collect();
    for envoy in envoys() {
        let inbound = all["virtualInbound"].clone();
        let outbound = inlined(&context, &client(), all["0.0.0.0_80"].clone());
        let what = format!("filters by {}", envoy.display());
        let bootstrap = bootstrap(vec![inbound, outbound], clusters.clone());
        let directory = tempfile::tempdir().expect("a directory");
        let file = written(directory.path(), &bootstrap);
        let run = std::process::Command::new(&envoy)
            .args(["--mode", "validate", "-l", "warning", "-c"])
            .arg(&file)
            .output()
            .expect("envoy runs");
        assert!(run.status.success(), "{what}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

#[tokio::test]
async fn requests_pass_through_user_filters() {
    let echo = workload_server().await;
    for envoy in envoys() {
        let [plain, limited, entry] = free_ports();
        let lua = |code: &str| {
            format!(
                "{{name: lua, typed_config: {{'@type': T/lua.v3.Lua, inline_code: {}}}}}",
                json!(code)
            )
        };
        let limit = "{name: limit, typed_config: {'@type': T/local_ratelimit.v3.LocalRateLimit, stat_prefix: a, token_bucket: {max_tokens: 1, fill_interval: 600s}, filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}}}";
        let router = "filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}";
        let patches = [
            patch(
                "{context: SIDECAR_INBOUND}",
                "INSERT_FIRST",
                &lua("function envoy_on_response(h)\n  h:headers():add('x-way', 'in')\nend"),
            ),
            // A filter that Envoy would reject is omitted without affecting the others.
            patch("{context: ANY}", "INSERT_FIRST", &lua("function envoy_on_request(h")),
            patch(
                &format!(
                    "{{context: SIDECAR_INBOUND, listener: {{portNumber: {limited}, {router}}}}}"
                ),
                "INSERT_BEFORE",
                limit,
            ),
            patch(
                &format!("{{context: SIDECAR_OUTBOUND, listener: {{portNumber: 80, {router}}}}}"),
                "INSERT_BEFORE",
                &lua(
                    "function envoy_on_request(h)\n  if h:headers():get(':path') == '/tea' then\n    h:respond({[':status'] = '418'}, 'a pot')\n  end\nend",
                ),
            ),
        ];
        let ports = vec![port("http", 80, plain), port("http-b", 81, limited)];
        let context = filtered(&patches, ports);
        let proxy = client();
        let all_listeners = listeners(&context, &proxy);
        assert_eq!(
            http_filter_names(&all_listeners["0.0.0.0_80"])[2..],
            ["lua", "envoy.filters.http.router"]
        );
        let mut all: Vec<_> = [plain, limited]
            .into_iter()
            .map(|port| {
                let mut listener = all_listeners["virtualInbound"].clone();
                listener["name"] = format!("inbound-{port}").into();
                listener["address"] = at_loopback(port);
                listener
            })
            .collect();
        let mut outbound = inlined(&context, &proxy, all_listeners["0.0.0.0_80"].clone());
        outbound["address"] = at_loopback(entry);
        outbound["bind_to_port"] = true.into();
        all.push(outbound);
        let clusters = list_resources(&context, &proxy, ResourceType::Cluster);
        let clusters = clusters
            .into_iter()
            .map(|(name, cluster)| static_cluster(cluster, to_loopback(&name, echo)))
            .collect();
        let running = Running::start(&envoy, &bootstrap(all, clusters)).await;
        let label = envoy.display();
        let answer =
            async |port: u16, path: &str| request(&format!("127.0.0.1:{port}"), path, "").await;
        for _ in 0..2 {
            let given = answer(plain, "/").await;
            assert!(
                given.starts_with("HTTP/1.1 200 ") && given.contains("x-way: in"),
                "{label}: {given}"
            );
        }
        let given = answer(limited, "/").await;
        assert!(given.starts_with("HTTP/1.1 200 "), "{label}: {given}");
        let given = answer(limited, "/").await;
        assert!(
            given.starts_with("HTTP/1.1 429 ") && given.contains("x-way: in"),
            "{label}: {given}"
        );
        let given = answer(entry, "/tea").await;
        assert!(given.starts_with("HTTP/1.1 418 ") && given.contains("a pot"), "{label}: {given}");
        let given = answer(entry, "/").await;
        assert!(!given.contains("418"), "{label}: {given}");
        drop(running);
    }
}
