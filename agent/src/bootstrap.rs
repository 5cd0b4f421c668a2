//! The bootstrap of this pod's Envoy: the common bootstrap of unmodified Envoys, with secrets from files, and a
//! listener that serves Envoy's metrics to any client that can reach the pod.

use serde_json::{Value, json};
use strait_bootstrap::{Bootstrap, SecretSource, socket_address};

use crate::files::SecretFolder;
use crate::settings::RunArgs;

/// Name of the upstream cluster for Envoy's admin interface.
const METRICS: &str = "prometheus_stats";

/// Returns the bootstrap as JSON text.
pub(crate) fn render(args: &RunArgs, folder: &SecretFolder) -> String {
    let (certificate, roots) = (folder.sds_certificate(), folder.sds_roots());
    let bootstrap = Bootstrap {
        node: args.node(),
        discovery: &args.discovery,
        delta: true,
        admin: args.admin_address,
        secrets: SecretSource::Sds {
            certificate: &certificate.to_string_lossy(),
            roots: &roots.to_string_lossy(),
        },
        stats: args.stats(),
    };
    let mut bootstrap = bootstrap.to_json();
    let resources = &mut bootstrap["static_resources"];
    resources["listeners"] = json!([metrics_listener(args)]);
    if let Some(clusters) = resources["clusters"].as_array_mut() {
        clusters.push(admin_cluster(args));
    }
    format!("{bootstrap:#}\n")
}

fn admin_cluster(args: &RunArgs) -> Value {
    let (ip, port) = (args.admin_address.ip().to_string(), args.admin_address.port());
    json!({
        "name": METRICS,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": METRICS,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket_address(&ip, port) } }] }],
        },
    })
}

/// Returns a listener that serves one path of the admin interface and no other.
fn metrics_listener(args: &RunArgs) -> Value {
    let address = args.metrics_address();
    let mut socket = socket_address(&address.ip().to_string(), address.port());
    if address.ip().is_ipv6() && address.ip().is_unspecified() {
        socket["socket_address"]["ipv4_compat"] = json!(true);
    }
    json!({
        "name": "metrics",
        "address": socket,
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "metrics",
                "route_config": { "virtual_hosts": [{
                    "name": "metrics",
                    "domains": ["*"],
                    "routes": [{
                        "match": { "path": "/stats/prometheus" },
                        "route": { "cluster": METRICS },
                    }],
                }] },
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    },
                }],
            },
        }] }],
    })
}
