//! The memory of traffic rules: active, and with their stored objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::{NAMESPACE, service_name};
use crate::{Case, DOMAIN};
use strait_model::Collection;
use strait_model::mesh_config::MeshConfig;
use strait_rules::traffic::{KindSettings, TrafficIndex};

fn object(kind: &str, number: usize, spec: Value) -> Arc<Value> {
    Arc::new(json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": kind,
        "metadata": {
            "namespace": NAMESPACE, "name": format!("rule-{number}"), "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
    }))
}

/// Whether rules are equal and can share their parts, or have different numbers.
#[derive(Clone, Copy)]
pub(crate) enum Said {
    Alike,
    Unlike,
}

impl Said {
    fn of(self, number: usize) -> usize {
        match self {
            Self::Alike => 0,
            Self::Unlike => number,
        }
    }
}

/// A route for a header, and a route with two weighted destinations.
fn virtual_service(number: usize, said: Said) -> Arc<Value> {
    let host = format!("{}.{NAMESPACE}.svc.{DOMAIN}", service_name(number));
    let to = |subset: &str, weight: u32| json!({ "destination": { "host": host, "subset": subset }, "weight": weight });
    let own = said.of(number);
    let spec = json!({
        "hosts": [host],
        "http": [
            {
                "match": [{ "headers": { "end-user": { "exact": format!("jason{own}") } } }],
                "route": [{ "destination": { "host": host, "subset": "v2" } }],
            },
            {
                "route": [to("v1", 75), to("v2", 25)],
                "timeout": format!("{}ms", 5000 + own),
                "retries": { "attempts": 3, "perTryTimeout": format!("{}ms", 1000 + own) },
            },
        ],
    });
    object("VirtualService", number, spec)
}

fn destination_rule(number: usize, said: Said) -> Arc<Value> {
    let subset = |version: &str| json!({ "name": version, "labels": { "version": version } });
    let own = said.of(number);
    let spec = json!({
        "host": format!("{}.{NAMESPACE}.svc.{DOMAIN}", service_name(number)),
        "trafficPolicy": {
            "connectionPool": { "tcp": { "maxConnections": 100 + own } },
            "outlierDetection": { "consecutive5xxErrors": 7 + own, "interval": "5m" },
        },
        "subsets": [subset("v1"), subset("v2")],
    });
    object("DestinationRule", number, spec)
}

/// Measures this number of both kinds, with their stored objects.
pub(crate) fn bytes_stored(count: usize, said: Said) -> Case {
    let mut index = TrafficIndex::new(KindSettings::for_domain(DOMAIN, &MeshConfig::default()));
    let objects = (0..count)
        .flat_map(|number| [virtual_service(number, said), destination_rule(number, said)]);
    let objects: Collection = objects.collect();
    let update = index.apply(&objects).expect("the first time");
    Case::holding(2 * count, (index, objects, update.traffic))
}
