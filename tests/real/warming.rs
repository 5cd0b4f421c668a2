//! An upstream cluster that waits for its assignment when the stream breaks.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::helper::{ADS_ADDRESS, ADS_BROKEN, ADS_LISTED, ADS_NAME};
use crate::host::Host;
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::start;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn broken_stream(host: &Host) {
    let netns = Rc::new(Netns::create("warming"));
    let server = Process::spawn(netns.helper_command(&["ads"]), &host.subfolder("ads"), "server");
    let has_printed = |text: &str| {
        let printed = server.stdout();
        if printed.contains(text) {
            Ok(())
        } else {
            Err(format!("{printed}; {}", server.log_end()))
        }
    };
    wait::until(LIMIT, "the server listens", || has_printed("listening"));
    let mut envoy = start(host, &netns, "warming", bootstrap());
    envoy.wait_until_live(LIMIT);
    wait::until(LIMIT, "the stream breaks", || has_printed(ADS_BROKEN));
    // Envoy reports that it has the assignment, which alone does not show that the cluster waits.
    wait::until(LIMIT, "Envoy comes back", || has_printed(ADS_LISTED));
    wait::until(LIMIT, "the changed cluster is in use", || {
        let active = envoy.config_dump("?resource=dynamic_active_clusters");
        let configs = active["configs"].as_array().cloned().unwrap_or_default();
        let changed = |config: &&Value| {
            config["cluster"]["name"] == ADS_NAME && config["cluster"]["connect_timeout"] == "2s"
        };
        configs.iter().find(changed).map(|_| ()).ok_or_else(|| active.to_string())
    });
    assert_eq!(envoy.complaints(), Vec::<String>::new());
}

fn bootstrap() -> Value {
    let (address, port) = ADS_ADDRESS.rsplit_once(':').expect("HOST:PORT");
    let port: u16 = port.parse().expect("a port");
    let socket = json!({ "socket_address": { "address": address, "port_value": port } });
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    json!({
        "node": { "id": "warming", "cluster": "warming" },
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 15000 } } },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC", "transport_api_version": "V3",
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds" } }],
            },
            "cds_config": { "ads": {}, "resource_api_version": "V3" },
        },
        "static_resources": { "clusters": [{
            "name": "xds", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": "xds",
                "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket } }] }],
            },
            "typed_extension_protocol_options": { options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": { "http2_protocol_options": {} },
            }},
        }]},
    })
}
