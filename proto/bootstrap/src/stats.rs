//! The statistics of a proxy: which ones Envoy keeps, and the labels that it derives from their names.

use serde_json::{Value, json};

/// The statistics of a proxy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats<'a> {
    /// Prefixes of statistics that Envoy keeps in addition to the default ones.
    pub prefixes: &'a [String],
    /// Suffixes of such statistics.
    pub suffixes: &'a [String],
    /// Regular expressions (RE2) that match the entire name of such statistics.
    pub regexps: &'a [String],
    /// Whether the proxy reports service metrics such as `istio_requests_total`.
    pub service_metrics: bool,
}

/// The prefix of service metrics. Envoy's extension for Wasm registers it as a namespace, so that Envoy prints their
/// names without it and without `envoy_`.
const NAMESPACE: &str = "wasmcustom.";

/// A WebAssembly module without code, in base64: `proxy_abi_version_0_2_0` and `malloc` are empty functions, and the
/// memory has no page.
const EMPTY_MODULE: &str = "AGFzbQEAAAABCQJgAABgAX8BfwMDAgABBQMBAAAHLQMXcHJveHlfYWJpX3ZlcnNpb25fMF8yXzAAAAZtYWxsb2MAAQZtZW1vcnkCAAoJAgIACwQAQQAL";

/// Prefixes of statistics that exist once per proxy, or that only few upstream clusters have.
const PREFIXES: [&str; 11] = [
    "cluster_manager.",
    "listener_manager.",
    "server.",
    "control_plane.",
    "cluster.strait.",
    "overload.",
    "runtime.",
    "rds.",
    "sds.",
    "vhds.",
    NAMESPACE,
];

/// Statistics of upstream clusters, listeners, HTTP connection managers and TCP proxies, and of routes that users name.
const REGEXPS: [&str; 5] = [
    r"cluster\..+\.(upstream_cx_(active|connect_fail|connect_timeout|http1_total|http2_total|none_healthy|overflow|rx_bytes_total|total|tx_bytes_total)|upstream_rq_(active|cancelled|pending_overflow|per_try_timeout|retry|retry_overflow|retry_success|rx_reset|time|timeout|total|tx_reset|\d\d\d|\dxx)|membership_(excluded|healthy|total)|outlier_detection\.ejections_(active|enforced_total)|circuit_breakers\.default\.(cx|rq|rq_pending|rq_retry)_open|ssl\.(connection_error|fail_verify_error|fail_verify_no_cert|fail_verify_san|handshake)|lb_healthy_panic|update_(rejected|success)|init_fetch_timeout|warming_state)",
    r"listener\.(\d+\.\d+\.\d+\.\d+_\d+|[^.]+)\.(downstream_cx_(active|overflow|total)|no_filter_chain_match|ssl\.(connection_error|fail_verify_error|fail_verify_no_cert|fail_verify_san|handshake))",
    r"http\..+\.(downstream_cx_(active|total)|downstream_rq_(active|rx_reset|timeout|total|\dxx)|no_cluster|no_route|(rbac|ext_authz|jwt_authn|fault|rds|vhds)\..+)",
    r"tcp\..+\.(downstream_cx_(no_route|rx_bytes_total|total|tx_bytes_total)|(rbac|ext_authz)\..+)",
    r"vhost\..+\.route\..+",
];

/// Envoy's own rules for labels that apply to these statistics. The rules for upstream clusters, HTTP connection
/// managers and TCP proxies are replaced, because they end a name at its first dot.
const USUAL_LABELS: [&str; 18] = [
    "envoy.clientssl_prefix",
    "envoy.ext_authz_prefix",
    "envoy.fault_downstream_cluster",
    "envoy.http_user_agent",
    "envoy.listener_address",
    "envoy.local_http_ratelimit_prefix",
    "envoy.rbac_policy_name",
    "envoy.rbac_prefix",
    "envoy.rds_route_config",
    "envoy.response_code",
    "envoy.response_code_class",
    "envoy.route",
    "envoy.ssl_cipher",
    "envoy.ssl_curve",
    "envoy.ssl_version",
    "envoy.virtual_cluster",
    "envoy.virtual_host",
    "envoy.worker_id",
];

/// The start of the statistics of an upstream cluster after its name.
const AFTER_CLUSTER: &str = r"(?:upstream_|(?:external|internal|canary)\.upstream_|circuit_breakers\.[a-z]+\.[a-z_]+$|(?:outlier_detection|ssl|http[123]|default)\.[a-z_]+$|[a-z_]+$)";

impl Stats<'_> {
    /// Returns `stats_config`. `domain` is the DNS domain of services.
    pub(crate) fn config(&self, domain: &str) -> Value {
        let usual = USUAL_LABELS.iter().map(|name| json!({ "tag_name": name }));
        let named = labels(domain).map(|(name, regex)| json!({ "tag_name": name, "regex": regex }));
        let prefixes = PREFIXES.iter().copied().chain(self.prefixes.iter().map(String::as_str));
        let patterns = prefixes.map(|prefix| json!({ "prefix": prefix }));
        let suffixes = self.suffixes.iter().map(|suffix| json!({ "suffix": suffix }));
        let regexps = REGEXPS.iter().copied().chain(self.regexps.iter().map(String::as_str));
        let regexps = regexps.map(|regex| json!({ "safe_regex": { "regex": regex } }));
        json!({
            "use_all_default_tags": false,
            "stats_tags": usual.chain(named).collect::<Vec<_>>(),
            "stats_matcher": {
                "inclusion_list": {
                    "patterns": patterns.chain(suffixes).chain(regexps).collect::<Vec<_>>(),
                },
            },
        })
    }

    /// Returns `bootstrap_extensions`, if any.
    pub(crate) fn extensions(&self) -> Option<Value> {
        self.service_metrics.then(|| {
            json!([{
                "name": "envoy.bootstrap.wasm",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.wasm.v3.WasmService",
                    "singleton": true,
                    "config": {
                        "name": "service-metrics",
                        "vm_config": {
                            "runtime": "envoy.wasm.runtime.v8",
                            "code": { "local": { "inline_bytes": EMPTY_MODULE } },
                        },
                    },
                },
            }])
        })
    }
}

/// Returns the labels with their rules. In each rule, the first group is removed from the name, and the second group is
/// the value. Rules see the complete name, so their groups may overlap.
///
/// The names of upstream clusters are `outbound|PORT|SUBSET|HOST`, `outbound_.PORT_.SUBSET_.HOST` at east-west gateways,
/// and `inbound|PORT||`.
fn labels(domain: &str) -> [(&'static str, String); 8] {
    const BAR: &str = r"(?:\||_\.)";
    // A part of a host may equal the start of a statistic, so hosts of Kubernetes Services end at their domain, and other
    // hosts include a last part `internal`.
    let host = format!(r".+?\.svc\.{}|.+?\.internal|.+?", domain.replace('.', r"\."));
    let to_host = format!(r"^cluster\.outbound{BAR}\d+{BAR}[^|.]*?{BAR}");
    let of_svc = format!(r"[^.]+\.(([^.]+)\.svc\.{})\.", domain.replace('.', r"\."));
    [
        ("envoy.cluster_name", format!(r"^cluster\.(({host})\.){AFTER_CLUSTER}")),
        ("direction", r"^cluster\.(((?:in|out)bound)[|_])".to_owned()),
        ("upstream_port", format!(r"^cluster\.(?:in|out)bound{BAR}((\d+){BAR})")),
        ("upstream_subset", format!(r"^cluster\.outbound{BAR}\d+{BAR}(([^|.]+?){BAR})")),
        ("upstream_service", format!(r"{to_host}(({host})\.){AFTER_CLUSTER}")),
        ("upstream_namespace", format!("{to_host}{of_svc}")),
        ("envoy.http_conn_manager_prefix", r"^http\.((outbound_[0-9.]+_\d+|[^.]+)\.)".to_owned()),
        ("envoy.tcp_prefix", r"^tcp\.((.+)\.)downstream_".to_owned()),
    ]
}
