//! Random histories of a mesh, seen from proxies of many kinds. After each step, the tests compare
//! with a fresh start: the cache must return the same resources, each proxy must be notified of
//! each type that differs, and proxies should not be notified if nothing differs.

mod editions;
mod gateways;
mod heads;
mod hosts;
mod ingresses;
mod libraries;
mod policies;
mod rules;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::class::{Class, class_for};
use crate::common::SharedResources;
use crate::{ProxyConfig, RetainedRoutes, nds, rds};
use strait_base::testing::rounds;
use strait_mesh::push::context::FixedSettings;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::reach::reach;
use strait_mesh::push::scope::{is_worth_computing, related_hosts, same_access};
use strait_mesh::push::subscription_index::{
    ChangedItem, Changes, Subscription, SubscriptionIndex,
};
use strait_mesh::push::view::Role;
use strait_mesh::testing::settings;
use strait_model::dirty::Wildcards;
use strait_model::mesh_config::MeshConfig;
use strait_model::policy::Policy;
use strait_model::registry::{
    Contents, Epoch, RegistryUpdate, ServiceRecord, ShardChange, ShardKey,
};
use strait_model::testing::{
    endpoint, host, labels, member, named_endpoint, port, removed, service, shard, sidecar,
    workload,
};
use strait_model::{
    ByName, Collection, Definition, Endpoint, ExportTo, GATEWAY_API, GrpcLibrary, Health,
    INGRESS_API, ISTIO_NETWORKING, ISTIO_TELEMETRY, Interception, IstioFilter, KnownCluster,
    KnownClusters, Mode, NamedEndpoint, ObjectKey, PodState, Port, Proxy, Resolution, TargetPort,
    TlsMode, WorkloadKey,
};
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;
use strait_xds::names::OutboundName;
use strait_xds::resource::{ResourceSource, ResourceType, Version};

const CLUSTERS: [&str; 3] = ["east", "west", "north"];
const NAMESPACES: [&str; 3] = ["shop", "pay", "web"];
const SERVICES: [&str; 7] =
    ["a.shop", "b.shop", "a.pay", "c.pay", "db.shop", "alias.pay", "gw.web"];
const ENTRIES: [&str; 6] =
    ["a.shop", "ext.example", "db.example", "shop", "c.pay", "*.wild.example"];
const STEPS: usize = 100;

fn pick<T: Copy>(random: &mut StdRng, from: &[T]) -> T {
    *from.choose(random).expect("not empty")
}

/// Returns the address of a pod, which may have a sidecar.
fn address(random: &mut StdRng) -> String {
    format!("10.0.0.{}", random.random_range(1..7))
}

fn ports(random: &mut StdRng) -> Vec<Port> {
    let all = [
        ("http", 80),
        ("http-alt", 8080),
        ("grpc-web", 8080),
        ("tcp", 5432),
        ("tcp-b", 80),
        ("", 7000),
        ("tls", 8443),
    ];
    let mut ports: Vec<Port> = Vec::new();
    for _ in 0..random.random_range(1..4) {
        let (name, number) = pick(random, &all);
        if !ports.iter().any(|one| one.number == number) {
            let mut added = port(name, number, pick(random, &[8080, 8081]));
            if random.random_ratio(1, 6) {
                added.target = TargetPort::Name("web".into());
            }
            ports.push(added);
        }
    }
    ports
}

fn some_endpoints(random: &mut StdRng, ports: &[Port]) -> Vec<Endpoint> {
    let mut all = Vec::new();
    for _ in 0..random.random_range(0..4) {
        let at = address(random);
        for port in ports {
            all.push(Endpoint {
                port: 9000 + port.number % 2,
                port_name: port.name.clone(),
                health: pick(random, &[Health::Healthy, Health::Healthy, Health::Unhealthy]),
                tls_mode: pick(random, &[TlsMode::Istio, TlsMode::Istio, TlsMode::Disabled]),
                service_account: Some(
                    pick(
                        random,
                        &["spiffe://cluster.local/ns/x/sa/a", "spiffe://cluster.local/ns/x/sa/b"],
                    )
                    .into(),
                ),
                workload: Some(Arc::new(WorkloadKey::new("shop", format!("pod-{at}")))),
                pod: PodState::Known,
                labels: Some(Arc::new(labels(&[("version", pick(random, &["v1", "v2"]))]))),
                ..endpoint(&at)
            });
        }
    }
    all
}

fn export_to(random: &mut StdRng) -> ExportTo {
    match random.random_range(0..6) {
        0 => ExportTo::Namespaces(vec![pick(random, &NAMESPACES).into()]),
        1 => ExportTo::Namespaces(vec!["pay".into(), "shop".into()]),
        2 => ExportTo::Namespaces(Vec::new()),
        _ => ExportTo::Public,
    }
}

/// Returns a service as a cluster defines it.
fn some_service(random: &mut StdRng, name: &str) -> (Service, Vec<Endpoint>) {
    let ports = ports(random);
    let endpoints = some_endpoints(random, &ports);
    let mut result = service(name).with(|result| {
        result.ports = ports;
        result.export_to = export_to(random);
        if random.random_ratio(1, 4) {
            result.selector = labels(&[]);
        }
        if random.random_ratio(1, 8) {
            result.sharing.export = Some(false);
        }
        if random.random_ratio(1, 8) {
            result.node_local = true;
        }
        result.labels = labels(&[("some", pick(random, &["a", "b"]))]);
    });
    // A service that is deleted and created again has another age, which is rare.
    result.created = i64::from(name.as_bytes()[0] % 3);
    if random.random_ratio(1, 10) {
        result.created = random.random_range(0..3);
    }
    match name {
        "db.shop" => result.with(|one| one.resolution = Resolution::Headless).pair(endpoints),
        "alias.pay" => {
            let target = host(pick(random, &["a.shop", "a.pay", "b.shop"]));
            result.with(|one| one.resolution = Resolution::Alias(target)).pair(Vec::new())
        }
        "gw.web" => {
            let number = pick(random, &["15443", "15444"]);
            let address = pick(random, &[None, Some("203.0.113.1"), Some("203.0.113.2")]);
            result
                .with(|it| {
                    it.external_addresses = address.into_iter().map(Into::into).collect();
                    it.selector = labels(&[("app", "gw")]);
                    it.ports = [15443, 15444].map(|at| port("tls", at, at)).into();
                    it.labels = labels(&[
                        ("topology.istio.io/network", "n1"),
                        ("networking.istio.io/gatewayPort", number),
                    ]);
                })
                .pair(Vec::new())
        }
        _ => {
            result.vips =
                vec![format!("10.1.0.{}", random.random_range(1..5)).parse().expect("an address")];
            result.pair(endpoints)
        }
    }
}

/// Returns the service of a random entry, possibly for one namespace only.
fn some_entry(random: &mut StdRng, name: &str) -> RegistryUpdate {
    let (mut entry, endpoints) =
        some_service(random, if name.contains('.') { "b.shop" } else { "c.pay" });
    let hostname = if name == "a.shop" { host(name) } else { Hostname::from(name) };
    entry.definition = Arc::new(Definition {
        hostname: hostname.clone(),
        mesh_external: random.random_ratio(1, 2),
        ranges: if random.random_ratio(1, 4) {
            vec!["10.9.0.0/16".parse().expect("a range")]
        } else {
            Vec::new()
        },
        resolution: match random.random_range(0..4) {
            0 => Resolution::Passthrough,
            1 => Resolution::ByName(ByName {
                just_then: false,
                endpoints: vec![NamedEndpoint {
                    ports: entry
                        .ports
                        .iter()
                        .map(|port| (port.name.clone(), port.number))
                        .collect(),
                    ..named_endpoint("far.example")
                }],
            }),
            _ => Resolution::ClientSide,
        },
        ..(*entry.definition).clone()
    });
    if random.random_ratio(1, 3) {
        entry.vips.clear();
    }
    let key = if random.random_ratio(1, 4) {
        hostname.private_to(&pick(random, &NAMESPACES).into())
    } else {
        hostname
    };
    let record = ServiceRecord { service: Arc::new(entry), endpoints: endpoints.into() };
    let record = (!random.random_ratio(1, 3)).then_some(record);
    let services = [(key, record)].into();
    RegistryUpdate {
        shard: ShardKey::service_entries(),
        epoch: Epoch(1),
        change: ShardChange::Update(Contents { services, ..Contents::default() }),
    }
}

/// Hosts of rules: services, unknown hosts, hosts below an entry, and wildcards.
const RULED: [&str; 9] = [
    "a.shop.svc.cluster.local",
    "b.shop.svc.cluster.local",
    "db.shop.svc.cluster.local",
    "*.shop.svc.cluster.local",
    "ext.example",
    "none.example",
    "*.example",
    "a.shop",
    "y.wild.example",
];

/// Returns an object with an HTTP rule and a rule for connections, each for some sources.
fn some_virtual_service(random: &mut StdRng) -> serde_json::Value {
    let hosts: Vec<_> = (0..random.random_range(1..3)).map(|_| pick(random, &RULED)).collect();
    let to = |random: &mut StdRng| {
        let mut to = serde_json::json!({ "host": pick(random, &RULED[..3]) });
        if random.random_ratio(1, 2) {
            to["port"] = serde_json::json!({ "number": 80 });
        }
        serde_json::json!([{ "destination": to }])
    };
    let mut matches = serde_json::json!([{}]);
    match random.random_range(0..5) {
        0 => matches[0]["sourceNamespace"] = pick(random, &NAMESPACES).into(),
        1 => matches[0]["sourceLabels"] = serde_json::json!({ "app": "a" }),
        2 => matches[0]["port"] = 80.into(),
        3 => {
            let field = pick(random, &["headers", "withoutHeaders"]);
            matches[0][field] =
                serde_json::json!({ "@request.auth.claims.group": { "exact": "a" } });
        }
        _ => {}
    }
    let mut spec = serde_json::json!({
        "hosts": hosts,
        "http": [{ "match": matches, "timeout": pick(random, &["1s", "2s"]), "route": to(random) }],
        "tcp": [{ "match": matches, "route": to(random) }],
        "tls": [{ "match": [{ "sniHosts": [hosts[0]] }], "route": to(random) }],
    });
    if random.random_ratio(1, 3) {
        spec["exportTo"] = serde_json::json!([pick(random, &NAMESPACES)]);
    }
    if random.random_ratio(1, 3) {
        spec["gateways"] = serde_json::json!([pick(random, &["mesh", "one"]), "shop/one"]);
    }
    spec
}

/// Returns a Gateway with plain-text and TLS servers for some routers.
fn some_gateway(random: &mut StdRng) -> serde_json::Value {
    let mut servers = Vec::new();
    for (protocol, name) in [("HTTP", "http"), ("TCP", "tcp"), ("HTTPS", "https"), ("TLS", "tls")] {
        if random.random_ratio(1, 3) {
            continue;
        }
        let port = pick(random, &[80, 15443]);
        let mut server = serde_json::json!({
            "port": { "number": port, "name": name, "protocol": protocol },
            "hosts": [pick(random, &["*", "*/*.example", "./none.example"])],
        });
        match protocol {
            "HTTPS" => {
                server["tls"] = serde_json::json!({ "mode": "SIMPLE", "credentialName": "a" });
            }
            "TLS" => server["tls"] = serde_json::json!({ "mode": "PASSTHROUGH" }),
            _ => {}
        }
        servers.push(server);
    }
    let mut spec = serde_json::json!({ "servers": servers });
    if random.random_ratio(1, 2) {
        spec["selector"] = serde_json::json!({ "app": pick(random, &["gw", "db"]) });
    }
    spec
}

/// Returns settings for an entire service, for a port, and for subsets by labels and location, for
/// some clients.
fn some_destination_rule(random: &mut StdRng) -> serde_json::Value {
    let group = match random.random_range(0..10) {
        0 => serde_json::json!({ "connectionPool": { "tcp": {
            "connectTimeout": pick(random, &["1s", "2s"]),
        } } }),
        1 => serde_json::json!({ "connectionPool": { "http": { "useClientProtocol": true } } }),
        2 => serde_json::json!({ "outlierDetection": {} }),
        3 => serde_json::json!({ "tls": {
            "mode": pick(random, &["DISABLE", "ISTIO_MUTUAL", "SIMPLE", "MUTUAL"]),
        } }),
        4 => serde_json::json!({ "loadBalancer": { "simple": "PASSTHROUGH" } }),
        5 => serde_json::json!({ "connectionPool": { "tcp": { "idleTimeout": "5s" } } }),
        6 => serde_json::json!({ "loadBalancer": { "consistentHash": { "useSourceIp": true } } }),
        7 => serde_json::json!({ "loadBalancer": { "localityLbSetting": { "distribute": [
            { "from": "*", "to": { pick(random, &["r1/*", "r2/*", "*"]): 100 } },
        ] } } }),
        _ => serde_json::json!({ "loadBalancer": { "simple": "ROUND_ROBIN" } }),
    };
    let mut policy = group.clone();
    if random.random_ratio(1, 3) {
        let mut port_policy = group;
        port_policy["port"] = serde_json::json!({ "number": 80 });
        policy = serde_json::json!({ "portLevelSettings": [port_policy] });
    }
    let mut spec = serde_json::json!({ "host": pick(random, &RULED), "trafficPolicy": policy });
    if random.random_ratio(2, 3) {
        let version = pick(random, &["v1", "v2"]);
        let cluster = pick(random, &CLUSTERS);
        spec["subsets"] = serde_json::json!([
            { "name": "one", "labels": { "version": version } },
            { "name": "two", "labels": { "topology.istio.io/cluster": cluster } },
        ]);
    }
    if random.random_ratio(1, 4) {
        spec["workloadSelector"] = serde_json::json!({ "matchLabels": { "app": "a" } });
    } else if random.random_ratio(1, 3) {
        spec["exportTo"] = serde_json::json!([pick(random, &NAMESPACES)]);
    }
    spec
}

/// Returns the imports of a namespace's proxies, by namespace, host and port.
fn some_sidecar(random: &mut StdRng) -> serde_json::Value {
    let hosts = [
        "./*",
        "shop/*",
        "*/*.example",
        "*/a.shop.svc.cluster.local",
        "~*/db.shop.svc.cluster.local",
    ];
    let mut some =
        |count: usize| -> Vec<&str> { (0..count).map(|_| pick(random, &hosts)).collect() };
    let mut egress = vec![serde_json::json!({ "hosts": some(2) })];
    let own = serde_json::json!({ "port": { "number": 80 }, "hosts": some(1) });
    if random.random_ratio(1, 3) {
        egress.push(own);
    }
    // Only changes of the oldest service of this port have an effect, so this case is rare.
    if random.random_ratio(1, 12) {
        let port = pick(random, &[7000, 8080]);
        egress.push(serde_json::json!({
            "port": { "number": port }, "captureMode": "NONE", "hosts": ["shop/*"],
        }));
    }
    if random.random_ratio(1, 6) {
        let hosts = pick(random, &hosts);
        egress.push(serde_json::json!({
            "port": { "number": 3128, "protocol": "HTTP_PROXY" }, "hosts": [hosts],
        }));
    }
    if random.random_ratio(1, 12) {
        egress.push(serde_json::json!({
            "port": { "number": 7001, "protocol": "TCP" }, "hosts": ["*/db.shop.svc.cluster.local"],
        }));
    }
    let mut spec = serde_json::json!({ "egress": egress });
    if random.random_ratio(1, 4) {
        let protocol = pick(random, &["HTTP", "TCP", ""]);
        let endpoint = pick(random, &["127.0.0.1:9000", "0.0.0.0:9000"]);
        let mode = pick(random, &["DEFAULT", "NONE"]);
        spec["ingress"] = serde_json::json!([
            { "port": { "number": 8080, "protocol": protocol }, "defaultEndpoint": endpoint,
                "captureMode": mode },
        ]);
    }
    if random.random_ratio(1, 4) {
        spec["inboundConnectionPool"] =
            serde_json::json!({ "tcp": { "maxConnections": random.random_range(1..3) } });
    }
    if random.random_ratio(1, 3) {
        spec["workloadSelector"] = serde_json::json!({ "labels": { "app": "a" } });
    }
    if random.random_ratio(1, 3) {
        spec["outboundTrafficPolicy"] = serde_json::json!({ "mode": "REGISTRY_ONLY" });
    } else if random.random_ratio(1, 3) {
        spec["outboundTrafficPolicy"] = serde_json::json!({ "mode": "ALLOW_ANY", "egressProxy": {
            "host": pick(random, &["a.shop.svc.cluster.local", "ext.example"]),
            "port": { "number": 80 },
        } });
    }
    spec
}

fn some_telemetry(random: &mut StdRng) -> serde_json::Value {
    let mode = pick(random, &["CLIENT", "SERVER", "CLIENT_AND_SERVER"]);
    let entry = serde_json::json!({
        "match": {"mode": mode},
        "providers": [{"name": "envoy"}],
        "disabled": random.random_ratio(1, 4),
    });
    let mut spec = serde_json::json!({ "accessLogging": [&entry] });
    let overrides = serde_json::json!({ "match": { "mode": mode }, "disabled": entry["disabled"] });
    spec["metrics"] = serde_json::json!([{ "overrides": [overrides] }]);
    if random.random_ratio(1, 2) {
        let share = pick(random, &[1, 50]);
        spec["tracing"] = serde_json::json!([{
            "match": { "mode": mode },
            "providers": [{ "name": pick(random, &["traces", "nobody"]) }],
            "randomSamplingPercentage": share,
        }]);
    }
    if random.random_ratio(1, 3) {
        let app = pick(random, &["a", "gw", "db"]);
        spec["selector"] = serde_json::json!({"matchLabels": {"app": app}});
    }
    spec
}

/// Returns an HTTPRoute attached to a Service. If its namespace is not the Service's, it applies to
/// clients in its own namespace only.
fn some_http_route(random: &mut StdRng) -> serde_json::Value {
    let mut service = || {
        let (name, namespace) = (pick(random, &["a", "b", "gw"]), pick(random, &NAMESPACES));
        serde_json::json!({
            "group": "", "kind": "Service", "name": name, "namespace": namespace, "port": 80,
        })
    };
    serde_json::json!({
        "parentRefs": [service()],
        "rules": [{ "backendRefs": [service()] }],
    })
}

/// Returns a filter at the start or end, a merged field, or an added cluster, for some places,
/// ports and workloads.
fn some_envoy_filter(random: &mut StdRng) -> serde_json::Value {
    let context = pick(random, &["ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"]);
    let mut matches = serde_json::json!({ "context": context });
    // Proxies without a listener at the port are notified without effect, so this is rare.
    if random.random_ratio(1, 6) {
        matches["listener"] = serde_json::json!({ "portNumber": pick(random, &[80, 8080, 7000]) });
    }
    let patch = match random.random_range(0..4) {
        0 => {
            matches["listener"]["filterChain"] = serde_json::json!({
                "filter": { "name": "envoy.filters.network.http_connection_manager" },
            });
            serde_json::json!({ "applyTo": "NETWORK_FILTER", "match": matches, "patch": {
                "operation": "MERGE",
                "value": { "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "xff_num_trusted_hops": random.random_range(1..4),
                } },
            } })
        }
        1 => {
            let name = pick(random, &["mine", "yours"]);
            let port = random.random_range(1..4);
            let socket = serde_json::json!({ "address": "192.0.2.1", "port_value": port });
            let endpoint = serde_json::json!({ "address": { "socket_address": socket } });
            let endpoints = [serde_json::json!({ "lb_endpoints": [{ "endpoint": endpoint }] })];
            let assignment = serde_json::json!({ "cluster_name": name, "endpoints": endpoints });
            serde_json::json!({
                "applyTo": "CLUSTER", "match": { "context": context },
                "patch": { "operation": "ADD", "value": { "name": name, "load_assignment": assignment } },
            })
        }
        _ => serde_json::json!({ "applyTo": "HTTP_FILTER", "match": matches, "patch": {
            "operation": "INSERT_FIRST",
            "value": { "name": pick(random, &["one", "two"]), "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                "max_request_bytes": random.random_range(1..4),
            } },
        } }),
    };
    let mut spec =
        serde_json::json!({ "configPatches": [patch], "priority": random.random_range(-1..2) });
    if random.random_ratio(1, 3) {
        let app = pick(random, &["a", "gw", "db"]);
        spec["workloadSelector"] = serde_json::json!({ "labels": { "app": app } });
    }
    spec
}

/// Adds, changes or deletes a rule.
fn ruled(random: &mut StdRng, rules: &mut Rules) -> MeshEvent {
    let (mut namespace, name) = (pick(random, &NAMESPACES), pick(random, &["one", "two"]));
    let kinds = [
        "VirtualService",
        "DestinationRule",
        "VirtualService",
        "DestinationRule",
        "Sidecar",
        "Gateway",
        "Telemetry",
        "HTTPRoute",
        "Ingress",
        "IngressClass",
        "EnvoyFilter",
    ];
    let kind = pick(random, &kinds);
    if matches!(kind, "Sidecar" | "Telemetry" | "EnvoyFilter") && random.random_ratio(1, 8) {
        namespace = "istio-system";
    }
    if kind == "IngressClass" {
        namespace = "";
    }
    let key = ObjectKey {
        kind: kind.into(),
        group: match kind {
            "Telemetry" => ISTIO_TELEMETRY,
            "HTTPRoute" => GATEWAY_API,
            "Ingress" | "IngressClass" => INGRESS_API,
            _ => ISTIO_NETWORKING,
        }
        .into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let nothing = || MeshEvent::CompleteWithoutNames;
    // Simulates the release of a held configuration.
    if random.random_ratio(1, 8) && !rules.past.is_empty() {
        rules.objects = rules.past[random.random_range(0..rules.past.len())].clone();
        return rules.index.restore(&rules.objects).map_or_else(nothing, MeshEvent::Traffic);
    }
    let before = rules.objects.get(&key).map(|object| object.to_value()["spec"].clone());
    rules.objects.remove(&key);
    if random.random_ratio(3, 4) {
        let spec = match kind {
            "VirtualService" => {
                let edited = before.filter(|_| random.random_ratio(1, 2));
                edited.map_or_else(|| some_virtual_service(random), rules::with_other_requests)
            }
            "Sidecar" => some_sidecar(random),
            "Gateway" => some_gateway(random),
            "Telemetry" => some_telemetry(random),
            "HTTPRoute" => some_http_route(random),
            "Ingress" => ingresses::some_ingress(random),
            "IngressClass" => ingresses::some_class(random),
            "EnvoyFilter" => some_envoy_filter(random),
            _ => some_destination_rule(random),
        };
        let object = serde_json::json!({ "spec": spec });
        rules.objects.insert(key, Arc::new(object));
    }
    rules.past.push(rules.index.counting().clone());
    rules.index.apply(&rules.objects).map_or_else(nothing, MeshEvent::Traffic)
}

/// The traffic objects and access policies.
struct Rules {
    objects: Collection,
    index: TrafficIndex,
    policies: Collection,
    access: AccessIndex,
    /// Previous versions of the traffic objects.
    past: Vec<Collection>,
}

fn rules() -> Rules {
    let index = TrafficIndex::new(kind_settings());
    let access = AccessIndex::new(access_settings());
    Rules {
        objects: Collection::default(),
        index,
        policies: Collection::default(),
        access,
        past: Vec::new(),
    }
}

fn access_settings() -> AccessSettings {
    AccessSettings { root: "istio-system".into(), errors: PolicyErrors::Narrow }
}

/// Adds, changes or deletes an access policy: for all proxies, for proxies with a label, or for the
/// routers of a Gateway.
fn guarded(random: &mut StdRng, rules: &mut Rules) -> MeshEvent {
    let kind = pick(
        random,
        &[
            "AuthorizationPolicy",
            "RequestAuthentication",
            "RequestAuthentication",
            "PeerAuthentication",
        ],
    );
    let namespace = pick(random, &["shop", "web", "web", "istio-system"]);
    let name = pick(random, &["one", "two"]);
    let mut spec = match kind {
        "AuthorizationPolicy" => serde_json::json!({
            "action": pick(random, &["ALLOW", "DENY"]),
            "rules": [{ "to": [{ "operation": { "paths": [pick(random, &["/a", "/b"])] } }] }],
        }),
        "RequestAuthentication" => {
            let rule = |issuer| serde_json::json!({ "issuer": issuer, "jwksUri": "https://keys.example/" });
            let rules: Vec<_> = (0..random.random_range(1..3))
                .map(|_| rule(pick(random, &["https://a", "https://b", "https://c"])))
                .collect();
            serde_json::json!({ "jwtRules": rules })
        }
        _ => {
            serde_json::json!({ "mtls": { "mode": pick(random, &["STRICT", "DISABLE", "PERMISSIVE"]) } })
        }
    };
    match random.random_range(0..3) {
        0 => {
            let labels = serde_json::json!({ "app": pick(random, &["a", "gw"]) });
            spec["selector"] = serde_json::json!({ "matchLabels": labels });
        }
        1 if kind != "PeerAuthentication" => {
            spec["targetRefs"] = serde_json::json!([{
                "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public",
            }]);
        }
        _ => {}
    }
    let key = ObjectKey {
        kind: kind.into(),
        group: "security.istio.io".into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    rules.policies.remove(&key);
    if random.random_ratio(3, 4) {
        let object = serde_json::json!({
            "apiVersion": "security.istio.io/v1", "kind": kind, "spec": spec,
            "metadata": { "namespace": namespace, "name": name },
        });
        rules.policies.insert(key, Arc::new(object));
    }
    let change = rules.access.apply(&access_settings(), &rules.policies);
    let nothing = || MeshEvent::CompleteWithoutNames;
    change.map_or_else(nothing, |change| MeshEvent::Access(change.policies, change.causes))
}

/// Returns a mesh config with an authorization provider and a tracing provider.
fn asking_config() -> MeshConfig {
    let text = serde_json::json!({ "extensionProviders": [
        {
            "name": "opa",
            "envoyExtAuthzGrpc": { "service": "a.shop.svc.cluster.local", "port": 80 },
        },
        { "name": "traces", "zipkin": { "service": "b.shop.svc.cluster.local", "port": 80 } },
    ] });
    MeshConfig::parse(&text.to_string(), &Default::default()).expect("valid")
}

/// Returns a policy that makes workloads of one namespace query the provider.
fn asking_policy() -> MeshEvent {
    let object = serde_json::json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "pay", "name": "ask" },
        "spec": { "action": "CUSTOM", "provider": { "name": "opa" }, "rules": [{}] },
    });
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let objects = [Arc::new(object)].into_iter().collect();
    let change = AccessIndex::new(settings.clone()).apply(&settings, &objects);
    let change = change.expect("the first time");
    MeshEvent::Access(change.policies, change.causes)
}

/// Returns an event of any kind; most concern services.
fn event(random: &mut StdRng, epochs: &mut BTreeMap<&str, u64>, rules: &mut Rules) -> MeshEvent {
    if random.random_ratio(1, 5) {
        return ruled(random, rules);
    }
    if random.random_ratio(1, 10) {
        return guarded(random, rules);
    }
    let cluster = pick(random, &CLUSTERS);
    let epoch = *epochs.entry(cluster).or_insert(1);
    let name = pick(random, &SERVICES);
    match random.random_range(0..64) {
        60..62 => MeshEvent::Clusters(some_clusters(random)),
        62.. => {
            let (service, endpoints) = some_service(random, "gw.web");
            let epoch = *epochs.entry("north").or_insert(1);
            MeshEvent::Registry(shard("north", epoch).update().with(service, endpoints).built())
        }
        0 => {
            let mut config = asking_config();
            config.enable_auto_mtls = random.random_ratio(1, 2);
            MeshEvent::MeshConfig(Arc::new(config))
        }
        1 => {
            epochs.insert(cluster, epoch + 2);
            MeshEvent::Registry(removed(cluster, epoch + 1))
        }
        2 => MeshEvent::Registry(full_update(random, cluster, epoch)),
        3..6 => {
            let labels = [("app", pick(random, &["a", "gw", "db"]))];
            let name = pick(random, &["client.shop", "client.shop", "client.web"]);
            let pod = workload(name, "10.0.0.1", &labels);
            MeshEvent::Registry(shard(cluster, epoch).update().pod(pod).built())
        }
        6..16 => MeshEvent::Registry(shard(cluster, epoch).update().without(name).built()),
        16..26 => {
            let entry = pick(random, &ENTRIES);
            MeshEvent::Registry(some_entry(random, entry))
        }
        26..36 => {
            // The service is always the same, so that often only its target ports differ.
            let fixed_random = &mut StdRng::seed_from_u64(1);
            let (mut service, endpoints) = some_service(fixed_random, name);
            let ports = service.ports.len();
            let at = &mut service.ports[random.random_range(0..ports)];
            at.target = TargetPort::Number(pick(random, &[8080, 8081, 8082]));
            let epoch = *epochs.entry("east").or_insert(1);
            MeshEvent::Registry(shard("east", epoch).update().with(service, endpoints).built())
        }
        _ => {
            let (service, endpoints) = some_service(random, name);
            MeshEvent::Registry(shard(cluster, epoch).update().with(service, endpoints).built())
        }
    }
}

/// Returns the clusters. Each drains with a probability of 25 %.
fn some_clusters(random: &mut StdRng) -> Arc<KnownClusters> {
    let mode = |random: &mut StdRng| match random.random_range(0..4) {
        0 => Mode::Drain,
        _ => Mode::Normal,
    };
    let clusters =
        CLUSTERS.map(|id| (id.into(), KnownCluster { mode: mode(random), ..member(None) }));
    Arc::new(KnownClusters { clusters: clusters.into() })
}

fn full_update(random: &mut StdRng, cluster: &str, epoch: u64) -> RegistryUpdate {
    let network = if cluster == "north" { "n1" } else { cluster };
    let mut update = shard(cluster, epoch).network(network);
    for name in SERVICES {
        let (service, endpoints) = some_service(random, name);
        update = update.with(service, endpoints);
    }
    update.built()
}

/// Some of Istio's own filters.
const FILTERS: [IstioFilter; 4] = [
    IstioFilter::PeerMetadata,
    IstioFilter::HttpStats,
    IstioFilter::TcpStats,
    IstioFilter::UpstreamMetadataExchange,
];

/// Returns proxies that differ in all relevant properties.
fn proxies() -> Vec<Proxy> {
    let mut all = Vec::new();
    for cluster in CLUSTERS {
        for namespace in NAMESPACES {
            let domain = format!("{namespace}.svc.cluster.local");
            let name = format!("client.{namespace}");
            all.push(Proxy { dns_domain: domain.as_str().into(), ..sidecar(&name, cluster) });
        }
    }
    let first_proxy = all[0].clone();
    let at = |address: &str| vec![address.parse().expect("an address")];
    all.extend([
        Proxy {
            dns_domain: "pay.svc.cluster.local".into(),
            addresses: at("10.0.0.2"),
            ..first_proxy.clone()
        },
        Proxy { dns_domain: "elsewhere".into(), addresses: at("10.0.0.9"), ..first_proxy.clone() },
        Proxy {
            istio_version: Some("1.27.0".into()),
            istio_filters: FILTERS.into_iter().collect(),
            labels: labels(&[("app", "a")]),
            ..first_proxy.clone()
        },
        Proxy { takes_given_addresses: true, addresses: at("fd00::1"), ..first_proxy.clone() },
        Proxy {
            visible_networks: Some(["n1".into()].into()),
            reports_services: true,
            ..first_proxy.clone()
        },
        Proxy {
            grpc: Some(GrpcLibrary { mtls: true, least_request: true }),
            ..first_proxy.clone()
        },
        Proxy { interception: Interception::None, ..first_proxy.clone() },
        Proxy {
            grpc: Some(GrpcLibrary { mtls: false, least_request: false }),
            addresses: at("10.0.0.3"),
            ..first_proxy
        },
        Proxy {
            kind: ProxyType::Router,
            labels: labels(&[
                ("app", "gw"),
                ("gateway.networking.k8s.io/gateway-name", "public"),
                ("istio", "ingressgateway"),
            ]),
            ..sidecar("gw.web", "east")
        },
        Proxy {
            kind: ProxyType::Router,
            istio_filters: FILTERS.into_iter().collect(),
            ..sidecar("other.web", "west")
        },
        Proxy {
            kind: ProxyType::Router,
            labels: labels(&[("app", "gw")]),
            reports_services: true,
            ..sidecar("gw.shop", "west")
        },
    ]);
    all
}

/// Compares shared routes and name tables with those generated from scratch.
fn check_against_scratch(
    context: &Arc<PushContext>,
    location: &ProxyLocation,
    cache: &Cache,
    place: &str,
) {
    let proxy = &location.proxy;
    if proxy.is_proxyless() {
        return;
    }
    let mut proxy_config = ProxyConfig::new(context, proxy, location.network.clone(), cache)
        .at(location.whereabouts.clone());
    let common = proxy_config.inputs.common();
    let view = common.projected(&proxy_config.inputs.view);
    let addresses = &common.addresses(&class_for(&view));
    let given = proxy.takes_given_addresses;
    let table = nds::NameTableInputs::new(context, &view, addresses, given).at_once();
    let shared = proxy_config.all(ResourceType::NameTable).shared;
    assert_eq!(shared.resources()[0].body.to_bytes(), table, "{place}: names for {proxy:?}");
    if proxy.kind.is_gateway() {
        return;
    }
    let class = common.class(&proxy_config.inputs.view);
    for port in [80, 8080, 5432, 7000] {
        let whole = rds::oracle::route(context, addresses, &class, &proxy.dns_domain, port);
        let route = proxy_config.one(ResourceType::Route, &port.to_string()).expect("an answer");
        assert_eq!(route.body.to_bytes(), whole, "{place}: route {port} for {proxy:?}");
    }
}

type Shape = BTreeMap<(ResourceType, String), Version>;

/// Returns all resources of a proxy.
fn shape(context: &Arc<PushContext>, location: &ProxyLocation, cache: &Cache) -> Shape {
    let mut proxy_config =
        ProxyConfig::new(context, &location.proxy, location.network.clone(), cache)
            .at(location.whereabouts.clone());
    let mut shape = Shape::new();
    for kind in [ResourceType::Cluster, ResourceType::Listener, ResourceType::NameTable] {
        let all = proxy_config.all(kind);
        for resource in all.shared.resources().iter().chain(&all.own) {
            let before = shape.insert((kind, resource.name.to_string()), resource.version);
            assert_eq!(before, None, "{} is there twice", resource.name);
        }
    }
    let mut routes: BTreeSet<String> =
        [80, 8080, 5432, 7000, 8443].map(|port| port.to_string()).into();
    let hosts: Vec<_> = SERVICES.map(host).into_iter().chain(ENTRIES.map(Hostname::from)).collect();
    routes.extend(hosts.iter().map(|host| format!("{host}:7000")));
    routes.insert("http_proxy.3128".to_owned());
    if location.proxy.kind.is_gateway() {
        for port in [80, 8080, 15443] {
            routes.insert(format!("http.{port}"));
            for gateway in
                NAMESPACES.iter().flat_map(|own| ["one", "two"].map(|name| format!("{name}.{own}")))
            {
                routes.insert(format!("https.{port}.https.{gateway}"));
            }
        }
    }
    for host in hosts {
        for port in [80, 8080, 7000] {
            let name = match proxy_config.inputs.view.role {
                Role::Client => OutboundName::sidecar(host.clone(), port),
                Role::Gateway => OutboundName::sni(host.clone(), port),
            };
            for subset in ["", "one", "two"] {
                let name = name.clone().of_subset(subset).to_string();
                let assignment = proxy_config.inputs.assignment(&name);
                shape.insert((ResourceType::Endpoint, name), assignment.version);
            }
        }
    }
    if proxy_config.is_by_name() {
        // With all names that a library may use: full and short, with and without a port.
        let hosts = SERVICES.map(host).into_iter().chain(ENTRIES.map(Hostname::from));
        for host in hosts {
            let short = host.as_str().strip_suffix(".svc.cluster.local").unwrap_or_default();
            for name in [host.as_str(), short, "a", "shop"] {
                let ports = [80, 8080, 5432, 7000, 8443].map(|port| format!("{name}:{port}"));
                for name in ports.into_iter().chain([name.to_owned()]) {
                    if let Some(resource) = proxy_config.one(ResourceType::Listener, &name) {
                        shape.insert((ResourceType::Listener, name), resource.version);
                    }
                }
            }
            for port in [80, 8080, 5432, 7000, 8443] {
                let all = OutboundName::sidecar(host.clone(), port);
                let route =
                    proxy_config.one(ResourceType::Route, &all.to_string()).expect("an answer");
                libraries::check_route_clusters(&mut proxy_config, &route);
                shape.insert((ResourceType::Route, all.to_string()), route.version);
                for subset in ["", "one", "two"] {
                    let name = all.clone().of_subset(subset).to_string();
                    if let Some(resource) = proxy_config.one(ResourceType::Cluster, &name) {
                        shape.insert((ResourceType::Cluster, name), resource.version);
                    }
                }
            }
        }
        return shape;
    }
    for name in routes {
        if let Some(resource) = proxy_config.one(ResourceType::Route, &name) {
            shape.insert((ResourceType::Route, name), resource.version);
        }
    }
    shape
}

fn locations(context: &Arc<PushContext>) -> Vec<Arc<ProxyLocation>> {
    let locate = |proxy: Proxy| {
        let network = context.network_of_cluster(&proxy.cluster);
        let whereabouts = context.whereabouts(&proxy);
        Arc::new(ProxyLocation { proxy: Arc::new(proxy), network, whereabouts })
    };
    proxies().into_iter().map(locate).collect()
}

/// Changed resource names by type. For wildcard subscriptions, the list may be any non-empty set.
fn differing(old: &Shape, new: &Shape) -> BTreeSet<(ResourceType, String)> {
    let keys = old.keys().chain(new.keys());
    keys.filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

fn is_notified(
    affected: &AffectedResources,
    changes: &Changes,
    is_library: bool,
    (kind, name): &(ResourceType, String),
) -> bool {
    match kind {
        ResourceType::Endpoint => {
            let host = OutboundName::parse(name).expect("a name").hostname;
            affected.assignments.contains(&host)
                || changes.deps.contains(&ChangedItem::Endpoints(host))
        }
        ResourceType::Route => affected.routes.contains(name.as_str()),
        // A library that watches endpoints requests their upstream cluster as well.
        ResourceType::Cluster
            if OutboundName::parse(name).is_some_and(|name| {
                changes.deps.contains(&ChangedItem::Endpoints(name.hostname))
            }) && is_library =>
        {
            true
        }
        _ => affected.lists.contains(kind.wildcard().expect("the others are")),
    }
}

/// Number of notifications, and number of notifications without a difference.
#[derive(Debug, Default)]
struct Count {
    notified: usize,
    in_vain: usize,
    steps: usize,
    /// Versions that only differ behind the ports of services.
    behind_ports: usize,
    /// Versions that only differ in the handling of requests.
    request_only: usize,
    /// Number of proxies outside of the namespaces that a change may affect.
    not_reached: usize,
    /// Number of changes to a proxy's access policies.
    guarded: usize,
    /// Versions in which the set of withheld objects changed.
    withheld: usize,
}

/// Returns all clusters, each with some services. The mesh is not complete yet.
fn some_mesh(settings: Arc<FixedSettings>, random: &mut StdRng) -> MeshState {
    let mut mesh = MeshState::new(settings);
    let clusters = CLUSTERS.map(|id| (id.into(), member(None))).into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    for cluster in CLUSTERS {
        mesh.apply(MeshEvent::Registry(full_update(random, cluster, 1)));
    }
    mesh.apply(MeshEvent::MeshConfig(Arc::new(asking_config())));
    mesh
}

/// Sets limits on the size of objects of other namespaces. The objects of a history repeatedly
/// exceed them and fall below them.
fn small_limits(mesh: MeshState) -> MeshState {
    let text = "apiVersion: strait.dev/v1\nkind: Policy\ntraffic: {foreignBytes: {namespace: 1500, total: 2000}}\n";
    let mut mesh = mesh.measuring(rds::rule_bytes);
    mesh.apply(MeshEvent::Policy(Arc::new(Policy::parse(text).expect("a policy"))));
    mesh
}

fn history(seed: u64, limit: impl FnOnce(MeshState) -> MeshState, count: &mut Count) {
    let random = &mut StdRng::seed_from_u64(seed);
    // If networks without a gateway are reached directly, a gateway affects more than assignments.
    let allow_direct_cross_network = seed.is_multiple_of(2);
    let settings = FixedSettings { allow_direct_cross_network, ..(*settings()).clone() };
    let mut mesh = limit(some_mesh(Arc::new(settings), random));
    mesh.apply(asking_policy());
    mesh.apply(MeshEvent::Complete);
    let (mut before, _) = mesh.next_version().expect("a first version");
    let (cache, mut epochs) = (Cache::default(), BTreeMap::new());
    let mut rules = rules();
    let streams = Streams::new(&before);
    let fresh = Cache::default();
    let mut shapes: Vec<_> =
        locations(&before).iter().map(|location| shape(&before, location, &fresh)).collect();
    for step in 0..STEPS {
        for _ in 0..random.random_range(1..3) {
            mesh.apply(event(random, &mut epochs, &mut rules));
        }
        let Some((now, changes)) = mesh.next_version() else { continue };
        let place = format!("seed {seed}, step {step}: {:?}", changes.deps);
        let withheld = [&before, &now].map(|one| one.traffic.virtual_services.withheld());
        count.withheld += usize::from(withheld[0] != withheld[1]);
        let by_access = streams.notified_of_access([&before, &now], &changes);
        shapes = check(&cache, [&before, &now], &changes, (&by_access, &shapes), count, &place);
        if random.random_ratio(1, 10) {
            cache.sweep(&now);
        }
        before = now;
    }
}

/// The streams of all proxies, which report their location like real streams.
struct Streams {
    subscription_index: Arc<SubscriptionIndex>,
    subscriptions: Vec<Subscription>,
}

impl Streams {
    fn new(context: &Arc<PushContext>) -> Self {
        let subscription_index = Arc::new(SubscriptionIndex::default());
        let enter = |location: &Arc<ProxyLocation>| {
            let proxy = &location.proxy;
            let key = (proxy.cluster.clone(), proxy.workload.clone());
            let subscription = subscription_index.subscribe(Some(key));
            subscription.watch_lists(Wildcards::ALL);
            subscription
        };
        let subscriptions = locations(context).iter().map(enter).collect();
        let streams = Self { subscription_index, subscriptions };
        let all = 0..streams.subscriptions.len();
        all.for_each(|at| streams.report_location(at, context));
        streams
    }

    fn report_location(&self, at: usize, context: &Arc<PushContext>) {
        let location = ProxyLocation::clone(&locations(context)[at]);
        let view = ViewKey::of(&location.proxy, location.network.clone(), Role::Client);
        let labels = context.known_labels(&location.proxy).cloned();
        self.subscriptions[at].set_location(location, view, labels.as_ref());
    }

    /// Returns for each stream whether it is notified of a version's changes to access policies.
    /// Streams that are notified of all resources report their location again, and no others do.
    fn notified_of_access(&self, versions: [&Arc<PushContext>; 2], changes: &Changes) -> Vec<bool> {
        let access_changes =
            changes.deps.iter().filter(|dep| matches!(dep, ChangedItem::Access(_))).cloned();
        let mut access_changes: Changes = access_changes.collect();
        access_changes.compute_impact(versions, &self.subscription_index, &Cache::default());
        self.subscription_index.mark(&access_changes);
        let notified = self.subscriptions.iter().map(|one| !one.take().is_empty()).collect();
        let mut changes = changes.clone();
        changes.compute_impact(versions, &self.subscription_index, &Cache::default());
        self.subscription_index.mark(&changes);
        for (at, subscription) in self.subscriptions.iter().enumerate() {
            if subscription.take().everything {
                self.report_location(at, versions[1]);
            }
        }
        notified
    }
}

/// Compares a version with a fresh start and returns the resources. `previous` contains the resources
/// of the previous version.
fn check(
    cache: &Cache,
    [before, now]: [&Arc<PushContext>; 2],
    changes: &Changes,
    (by_access, previous): (&[bool], &[Shape]),
    count: &mut Count,
    place: &str,
) -> Vec<Shape> {
    let (were, locations) = (locations(before), locations(now));
    let services = changes.services();
    let decided = !changes.is_everything() && changes.affects_services();
    let affected = decided.then(|| {
        let hosts = related_hosts([before, now], &services);
        let diff = SnapshotDiff::new(cache, [before, now], &hosts);
        count.behind_ports += usize::from(diff.is_behind_ports);
        count.request_only += usize::from(diff.rules.changes_only_requests);
        cache.seen(before, now, &hosts, &locations)
    });
    let reached = (decided && changes.affects_only_hosts())
        .then(|| reach([before, now], &related_hosts([before, now], &services)))
        .flatten();
    let fresh = Cache::default();
    let all: Vec<_> = locations.iter().map(|location| shape(now, location, &fresh)).collect();
    for ((at, location), new) in locations.iter().enumerate().zip(&all) {
        let proxy = &location.proxy;
        assert_eq!(shape(now, location, cache), *new, "{place}: kept for {proxy:?}");
        check_against_scratch(now, location, cache, place);
        hosts::check([before, now], location, cache, place);
        let own = ChangedItem::Workload(proxy.cluster.clone(), proxy.workload.clone());
        let moved = were[at] != *location
            || before.selection(proxy) != now.selection(proxy)
            || before.known_labels(proxy) != now.known_labels(proxy)
            || !now.traffic.sidecars.same_in(&before.traffic.sidecars, proxy.namespace());
        if changes.is_everything() || changes.deps.contains(&own) || moved {
            continue;
        }
        let differing = differing(&previous[at], new);
        let nothing = Arc::default();
        let mut affected = Arc::clone(affected.as_ref().map_or(&nothing, |affected| &affected[at]));
        if let Some(reach) = &reached
            && !reach.contains(proxy.namespace())
        {
            assert_eq!(affected, nothing, "{place}: an unreached proxy is affected: {proxy:?}");
            count.not_reached += 1;
        }
        let access_differs = changes.affects_access() && !same_access([before, now], location);
        assert_eq!(by_access[at], access_differs, "{place}: of access, at {proxy:?}");
        if access_differs {
            let watched = |(kind, name): &(ResourceType, String)| {
                (*kind == ResourceType::Route).then(|| name.as_str().into())
            };
            let routes: Vec<_> = new.keys().filter_map(watched).collect();
            let guarded = AffectedResources::of_access(Some(proxy), &routes);
            let affected = Arc::make_mut(&mut affected);
            affected.lists.add(guarded.lists);
            affected.routes.extend(guarded.routes);
            count.guarded += 1;
        }
        if !affected.everything {
            for resource in &differing {
                assert!(
                    is_notified(&affected, changes, proxy.is_proxyless(), resource),
                    "{place}: no notification of {resource:?} at {proxy:?}"
                );
            }
        }
        count.steps += 1;
        if *affected != AffectedResources::default() {
            count.notified += 1;
            let notified_by_name = |resource: &(ResourceType, String)| {
                is_notified(&AffectedResources::default(), changes, proxy.is_proxyless(), resource)
            };
            count.in_vain += usize::from(differing.iter().all(notified_by_name));
        }
    }
    all
}

#[test]
fn exactly_the_affected_proxies_are_notified() {
    let mut count = Count::default();
    let seeds = rounds(1);
    for seed in 1..=seeds {
        history(seed, |mesh| mesh, &mut count);
    }
    let seeds = usize::try_from(seeds).expect("few");
    // Proxies are notified without a difference if another service has the same address, name or
    // port, or if a service's precedence changed. The histories use few addresses and ages to cover
    // these cases.
    assert!(count.notified > 250 * seeds && count.steps > 4 * count.notified / 3, "{count:?}");
    // Most of these versions contain rules, which may not affect a client of the service or port.
    assert!(count.in_vain * 4 < count.notified, "{count:?}");
    assert!(count.behind_ports > seeds && count.guarded > 12 * seeds, "{count:?}");
    assert!(count.not_reached > seeds && count.request_only >= seeds, "{count:?}");
}

#[test]
fn proxies_are_notified_of_objects_that_are_withheld_or_no_longer() {
    let mut count = Count::default();
    let seeds = rounds(1);
    for seed in 1..=seeds {
        history(1000 + seed, small_limits, &mut count);
    }
    assert!(count.withheld > 4 * usize::try_from(seeds).expect("few"), "{count:?}");
}

#[test]
fn target_port_changes_affect_only_the_pods_behind_them() {
    let name = |at: usize| format!("s{at}.shop");
    let all_at = |target: u16| {
        (0..300).fold(shard("east", 1), |word, at| {
            let web = service(&name(at)).with(|web| {
                web.ports = vec![port("http", 80, target)];
                web.selector = labels(&[("app", &name(at))]);
            });
            word.with(web, vec![endpoint("10.0.0.9")])
        })
    };
    let mut mesh = MeshState::new(settings());
    let clusters = [("east".into(), member(None))].into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    mesh.apply(MeshEvent::Registry(all_at(8080).built()));
    mesh.apply(MeshEvent::Complete);
    let (before, _) = mesh.next_version().expect("a first version");
    mesh.apply(MeshEvent::Registry(all_at(8081).update().built()));
    let (now, changes) = mesh.next_version().expect("another version");
    let hosts = changes.services();
    assert_eq!(hosts.len(), 300);
    assert!(is_worth_computing([&before, &now], &hosts));

    let proxy = |name: &str, app: &str| {
        let proxy = Arc::new(Proxy { labels: labels(&[("app", app)]), ..sidecar(name, "east") });
        let whereabouts = now.whereabouts(&proxy);
        Arc::new(ProxyLocation { proxy, network: NetworkId::default(), whereabouts })
    };
    let locations = [
        proxy("pod.shop", "s7.shop"),
        proxy("client.shop", "none"),
        proxy("client.pay", "s7.shop"),
    ];
    let cache = Cache::default();
    let view = ViewKey::of(&locations[0].proxy, NetworkId::default(), Role::Client);
    let form = ClusterFormat::for_proxy(&locations[0].proxy);
    let outbound = |context| SharedResources { context, cache: &cache }.outbound(&view, &form);
    let clusters = outbound(&before);
    let affected = cache.seen(&before, &now, &related_hosts([&before, &now], &hosts), &locations);
    let own = AffectedResources {
        lists: [Wildcard::Clusters, Wildcard::Listeners].into_iter().collect(),
        ..AffectedResources::default()
    };
    assert_eq!(
        affected.iter().map(|one| (**one).clone()).collect::<Vec<_>>(),
        [own, AffectedResources::default(), AffectedResources::default()]
    );
    assert!(Arc::ptr_eq(&clusters, &outbound(&now)), "an unchanged list is reused");
}

#[test]
fn proxies_that_cannot_see_a_service_are_not_compared() {
    let ours = |number: u16| {
        let private = service("a.shop").with(|private| {
            private.ports = vec![port("http", number, 8080)];
            private.export_to = ExportTo::Namespaces(vec!["shop".into()]);
        });
        shard("east", 1).with(private, vec![endpoint("10.0.0.9")])
    };
    let mut mesh = MeshState::new(settings());
    let clusters = [("east".into(), member(None))].into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    mesh.apply(MeshEvent::Registry(ours(80).built()));
    mesh.apply(MeshEvent::Complete);
    let (before, _) = mesh.next_version().expect("a first version");
    mesh.apply(MeshEvent::Registry(ours(81).update().built()));
    let (now, changes) = mesh.next_version().expect("another version");
    let locate = |name: &str| {
        let proxy = Arc::new(sidecar(name, "east"));
        let whereabouts = now.whereabouts(&proxy);
        Arc::new(ProxyLocation { proxy, network: NetworkId::default(), whereabouts })
    };
    let (cache, locations) = (Cache::default(), [locate("client.shop"), locate("client.pay")]);
    let hosts = related_hosts([&before, &now], &changes.services());
    let diff = SnapshotDiff::new(&cache, [&before, &now], &hosts);
    let mut groups = Groups::new(&diff);
    assert!(!groups.affected_at(&locations[0]).lists.is_empty());
    assert_eq!(*groups.affected_at(&locations[1]), AffectedResources::default());
    assert_eq!(groups.affected.len(), 1, "only proxies that see the service are compared");
}
