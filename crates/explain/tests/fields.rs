//! The effect of every field: no field of a published schema may have less effect than it says without a reason.
//!
//! `tests/fields/README.md` describes the data. For each case the configuration of all proxies and the status of all objects are
//! computed with and without the field, in one process and without connections. The result is the cell of the case.

#![allow(clippy::panic, reason = "a test fails by a panic")]

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use strait_envoy::{Cache, ProxyConfig};
use strait_explain::{ConfigQuery, ConfigReason, ConfigReports, ConfigView};
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::{FixedSettings, PushContext};
use strait_model::mesh_config::{Defaults, MeshConfig};
use strait_model::registry::{Epoch, RegistryUpdate, ShardKey};
use strait_model::testing::{endpoint, labels, port, service, shard, sidecar, workload};
use strait_model::{
    ClusterId, Collection, Endpoint, EndpointMetadata, GrpcLibrary, IstioFilter, Locality,
    NetworkId, ObjectKey, Proxy, ProxyType, WorkloadKey,
};
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors};
use strait_rules::service_entry::EntryIndex;
use strait_rules::traffic::{KindSettings, TrafficIndex, proxy_config_selection};
use strait_xds::references::names_in;
use strait_xds::resource::{ResourceSource as _, ResourceType, Version};

const DOMAIN: &str = "cluster.local";
const CLUSTER: &str = "east";
const ROOT: &str = "istio-system";

/// Codes of reasons that only concern gRPC clients without a proxy. They do not explain a field that has no effect for proxies.
const OF_LIBRARIES: [&str; 2] = ["STR0417", "STR0418"];

macro_rules! kinds {
    ($($test:ident: $name:literal,)*) => {
        const KINDS: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                check($name);
            }
        )*
    };
}

kinds! {
    authorization_policies_have_no_silent_field: "AuthorizationPolicy.security.istio.io",
    destination_rules_have_no_silent_field: "DestinationRule.networking.istio.io",
    envoy_filters_have_no_silent_field: "EnvoyFilter.networking.istio.io",
    gateways_have_no_silent_field: "Gateway.networking.istio.io",
    grpc_routes_have_no_silent_field: "GRPCRoute.gateway.networking.k8s.io",
    http_routes_have_no_silent_field: "HTTPRoute.gateway.networking.k8s.io",
    ingress_classes_have_no_silent_field: "IngressClass.networking.k8s.io",
    ingresses_have_no_silent_field: "Ingress.networking.k8s.io",
    peer_authentications_have_no_silent_field: "PeerAuthentication.security.istio.io",
    proxy_configs_have_no_silent_field: "ProxyConfig.networking.istio.io",
    reference_grants_have_no_silent_field: "ReferenceGrant.gateway.networking.k8s.io",
    request_authentications_have_no_silent_field: "RequestAuthentication.security.istio.io",
    service_entries_have_no_silent_field: "ServiceEntry.networking.istio.io",
    sidecars_have_no_silent_field: "Sidecar.networking.istio.io",
    tcp_routes_have_no_silent_field: "TCPRoute.gateway.networking.k8s.io",
    telemetries_have_no_silent_field: "Telemetry.telemetry.istio.io",
    tls_routes_have_no_silent_field: "TLSRoute.gateway.networking.k8s.io",
    virtual_services_have_no_silent_field: "VirtualService.networking.istio.io",
    workload_entries_have_no_silent_field: "WorkloadEntry.networking.istio.io",
}

#[test]
fn every_kind_with_data_is_checked() {
    let entries = fs::read_dir(folder()).expect("the folder of the data");
    let files: BTreeSet<String> = entries
        .filter_map(|entry| entry.expect("readable").file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".txt").map(str::to_owned))
        .collect();
    assert_eq!(files, KINDS.iter().map(|&name| name.to_owned()).collect());
}

/// The lists of cases follow the versions that other tests use.
#[test]
fn listed_versions_are_those_of_the_components() {
    let readme = fs::read_to_string(folder().join("README.md")).expect("the README");
    for (file, module) in [
        ("tests/components/pilot-agent/go.mod", "istio.io/api"),
        ("tests/cluster/conformance/suite/go.mod", "sigs.k8s.io/gateway-api"),
    ] {
        let text = fs::read_to_string(root().join(file));
        let text = text.expect("go.mod");
        let mut words = text.split_whitespace().skip_while(|word| *word != module);
        let version = words.nth(1).expect("a version");
        assert!(readme.contains(&format!("{module}@{version}")), "README.md: {module}@{version}");
    }
}

/// Compares the computed cells of a kind with its file. `BLESS=1` writes them, with `?` for a field without effect and reason.
fn check(name: &str) {
    let file = folder().join(format!("{name}.txt"));
    let text = fs::read_to_string(&file).expect("the cases");
    let objects = documents(&folder().join(format!("{name}.yaml")));
    let (kind, group) = name.split_once('.').expect("KIND.GROUP");
    let mut matrix = Matrix::new(Mesh::new(), objects, kind, group);
    let blesses = std::env::var_os("BLESS").is_some();
    let (mut written, mut wrong) = (String::new(), String::new());
    for line in text.lines() {
        let Some((case, expected)) = line.split_once("  ").filter(|_| !line.starts_with('#'))
        else {
            let _ = writeln!(written, "{line}");
            continue;
        };
        let expected = expected.trim();
        let found = matrix.cell(case);
        let is_right = found.as_deref().is_ok_and(|found| match expected.split_once(": ") {
            Some(("ignored", reason)) => found.is_empty() && is_documented(reason, case),
            Some(("descriptive", source)) => is_unchanged(found) && source.contains(": "),
            None if expected == "default" => is_unchanged(found) && shows_another(&text, case),
            _ => found == expected && !found.is_empty(),
        });
        let cell = match &found {
            _ if is_right || !blesses => expected,
            Ok(cell) if cell.is_empty() => "?",
            Ok(cell) => cell.as_str(),
            Err(_) => expected,
        };
        let width = line.len() - line[case.len()..].trim_start().len();
        let _ = writeln!(written, "{case:<width$}{cell}");
        if !is_right {
            let found = match found {
                Ok(cell) if cell.is_empty() => "no effect and no reason".to_owned(),
                Ok(cell) => cell,
                Err(fault) => fault,
            };
            let _ = writeln!(wrong, "  {case}: {found}, expected: {expected}");
        }
    }
    if blesses {
        fs::write(&file, written).expect("written");
    }
    assert!(wrong.is_empty(), "cells of {} differ:\n{wrong}", file.display());
}

/// Returns whether a computed cell has neither an effect nor a reason for the field itself.
fn is_unchanged(cell: &str) -> bool {
    cell.is_empty() || cell.starts_with("under ")
}

/// Returns whether another value of the field has an effect or a reason. A cell `default` requires this.
fn shows_another(cases: &str, case: &str) -> bool {
    let path = |case: &str| case.split('=').next().unwrap_or(case).to_owned();
    let others = cases.lines().filter_map(|line| line.split_once("  "));
    let mut others = others.filter(|(other, _)| *other != case && path(other) == path(case));
    others.any(|(_, cell)| cell.trim().starts_with("output") || cell.trim().starts_with("STR"))
}

/// Whether the page that a reason names mentions the field: `PAGE: TEXT`.
fn is_documented(reason: &str, case: &str) -> bool {
    let Some((page, _)) = reason.split_once(": ") else { return false };
    let path = case.split('=').next().unwrap_or(case);
    let field = path.rsplit('.').next().unwrap_or(path);
    let file = root().join("docs").join(page);
    fs::read_to_string(file).is_ok_and(|text| text.contains(field))
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("tests/fields")
}

fn documents(file: &Path) -> Vec<Value> {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// The effect of some objects: the resources of all proxies, and the reasons in the status of each object.
struct Effect {
    context: Arc<PushContext>,
    cache: Cache,
    /// The versions of the resources of each proxy by type and name, once they are needed.
    resources: Vec<OnceCell<Resources>>,
    /// Other results, which proxies do not receive by xDS: settings of injected sidecars and fetched keys.
    others: String,
    /// Object, code, path and text.
    reasons: BTreeSet<[String; 4]>,
}

type Resources = BTreeMap<(ResourceType, String), Version>;

impl Effect {
    fn resources(&self, at: usize, proxy: &Proxy) -> &Resources {
        self.resources[at].get_or_init(|| resources(&self.context, &self.cache, proxy))
    }
}

/// All resources that a proxy receives.
fn resources(context: &Arc<PushContext>, cache: &Cache, proxy: &Proxy) -> Resources {
    let config = ProxyConfig::new(context, proxy, NetworkId::default(), cache);
    let mut config = config.at(context.whereabouts(proxy));
    let mut resources = Resources::new();
    let mut names: Vec<(ResourceType, String)> = Vec::new();
    if proxy.is_proxyless() {
        names.extend(LIBRARY_TARGETS.iter().map(|&name| (ResourceType::Listener, name.to_owned())));
    } else {
        for kind in [ResourceType::Cluster, ResourceType::Listener, ResourceType::NameTable] {
            let all = config.all(kind);
            for resource in all.shared.resources().iter().chain(&all.own) {
                resources.insert((kind, resource.name.to_string()), resource.version);
                names.extend(followed(kind, &resource.body.to_bytes()));
            }
        }
    }
    while let Some((kind, name)) = names.pop() {
        if resources.contains_key(&(kind, name.clone())) {
            continue;
        }
        if let Some(resource) = config.one(kind, &name) {
            names.extend(followed(kind, &resource.body.to_bytes()));
            resources.insert((kind, name), resource.version);
        }
    }
    resources
}

/// The mesh without the objects of any case.
struct Mesh {
    state: MeshState,
    config: Arc<MeshConfig>,
    proxies: Vec<Proxy>,
}

impl Mesh {
    fn new() -> Self {
        let text = fs::read_to_string(folder().join("mesh.yaml")).expect("the mesh config");
        let defaults = Defaults {
            domain: DOMAIN.to_owned(),
            trust_domain: DOMAIN.to_owned(),
            namespace: ROOT.to_owned(),
            ..Defaults::default()
        };
        let config = Arc::new(MeshConfig::parse(&text, &defaults).expect("a valid mesh config"));
        let mut state = MeshState::new(Arc::new(FixedSettings {
            domain: DOMAIN.to_owned(),
            trust_domain: DOMAIN.to_owned(),
            system_namespace: ROOT.to_owned(),
            config_cluster: Some(ClusterId::from(CLUSTER)),
            allow_direct_cross_network: false,
            headless_pods_max: 1000,
            metadata: EndpointMetadata::Lean,
            cluster_aliases: [].into(),
        }));
        state.apply(MeshEvent::MeshConfig(Arc::clone(&config)));
        state.apply(MeshEvent::Registry(cluster()));
        Self { state, config, proxies: proxies() }
    }

    /// Whether a proxy receives different resources.
    fn differs(&self, one: &Effect, other: &Effect) -> bool {
        let mut proxies = self.proxies.iter().enumerate();
        proxies.any(|(at, proxy)| one.resources(at, proxy) != other.resources(at, proxy))
    }

    /// The effect of these objects, which are the only ones.
    fn effect(&self, objects: &Collection) -> Effect {
        let mut state = self.state.clone();
        let settings = AccessSettings { root: ROOT.into(), errors: PolicyErrors::default() };
        let mut access = AccessIndex::new(settings.clone());
        if let Some(change) = access.apply(&settings, objects) {
            state.apply(MeshEvent::Access(change.policies, change.causes));
        }
        let mut entries = EntryIndex::new(DOMAIN);
        if let Some(change) = entries.apply(objects) {
            let shard = ShardKey::service_entries();
            let update = RegistryUpdate { shard, epoch: Epoch(0), change };
            state.apply(MeshEvent::Entries(update, Arc::clone(entries.selections())));
        }
        let mut traffic = TrafficIndex::new(KindSettings::for_domain(DOMAIN, &self.config));
        if let Some(update) = traffic.apply(objects) {
            state.apply(MeshEvent::Traffic(update));
        }
        state.apply(MeshEvent::Complete);
        state.apply(MeshEvent::CompleteWithoutNames);
        let (context, _) = state.next_version().expect("the first version always differs");
        let mut others = format!("{:?}", access.wanted_keys());
        for proxy in &self.proxies {
            let labels = context.labels_of(proxy);
            let of_pod = proxy_config_selection::for_pod(
                traffic.reports(),
                &ROOT.into(),
                proxy.namespace(),
                labels,
            );
            let _ = write!(others, "{of_pod:?}");
        }
        let reports = ConfigReports {
            objects: objects.clone(),
            traffic: traffic.reports().clone(),
            entries: entries.problems().into(),
            ..ConfigReports::default()
        };
        let proxies: Vec<&Proxy> = self.proxies.iter().collect();
        let states = ConfigView::new(&context, &reports, &proxies).states(&ConfigQuery::default());
        let reasons = states.into_iter().flat_map(|state| {
            let object = format!("{} {}/{}", state.kind, state.namespace, state.name);
            let of_object = move |reason: ConfigReason| {
                [object.clone(), reason.code.to_owned(), reason.path, reason.text]
            };
            state.reasons.into_iter().map(of_object)
        });
        let reasons = reasons.collect();
        let resources = proxies.iter().map(|_| OnceCell::new()).collect();
        Effect { context, cache: Cache::default(), resources, others, reasons }
    }
}

/// The names by which a library of gRPC calls services.
const LIBRARY_TARGETS: &[&str] = &[
    "web.shop.svc.cluster.local:80",
    "web2.shop.svc.cluster.local:80",
    "api.pay.svc.cluster.local:80",
];

/// The resources that a resource refers to.
fn followed(kind: ResourceType, body: &[u8]) -> Vec<(ResourceType, String)> {
    let named = match kind {
        ResourceType::Cluster => ResourceType::Endpoint,
        ResourceType::Listener => ResourceType::Route,
        _ => return Vec::new(),
    };
    names_in(kind, body).into_iter().map(|name| (named, name)).collect()
}

/// A pod: name and namespace, address, account, labels, region and zone.
type Pod = (&'static str, &'static str, &'static [(&'static str, &'static str)], [&'static str; 2]);

const CLIENT: Pod =
    ("client.shop", "10.1.0.1", &[("app", "client"), ("version", "v1")], ["r1", "z1"]);
const WEB_1: Pod = ("web-v1.shop", "10.1.0.2", &[("app", "web"), ("version", "v1")], ["r1", "z1"]);
const WEB_2: Pod = ("web-v2.shop", "10.1.0.3", &[("app", "web"), ("version", "v2")], ["r2", "z2"]);
const API: Pod = ("api.pay", "10.1.0.4", &[("app", "api")], ["r1", "z1"]);
const WEB_3: Pod = ("web-v3.shop", "10.1.0.8", &[("app", "web"), ("version", "v1")], ["r3", "z3"]);
const INGRESS: Pod = (
    "ingress.gateways",
    "10.1.0.5",
    &[("istio", "ingressgateway"), ("gateway.networking.k8s.io/gateway-name", "ingress")],
    ["r1", "z1"],
);
const EGRESS: Pod = ("egress.gateways", "10.1.0.6", &[("istio", "egressgateway")], ["r1", "z1"]);
const TOOLS: Pod = ("tools.shop", "10.1.0.7", &[("app", "tools")], ["r1", "z1"]);

const WEB_PORTS: &[(&str, u16, u16)] = &[
    ("http", 80, 8080),
    ("http-alt", 81, 8081),
    ("grpc", 9090, 9090),
    ("https", 443, 8443),
    ("tcp", 5432, 5432),
];
/// Additional ports of the service `web`, which then has two TLS ports.
const MORE_PORTS: &[(&str, u16, u16)] = &[("https-alt", 444, 8444)];
const GATEWAY_PORTS: &[(&str, u16, u16)] =
    &[("http", 80, 8080), ("http2", 8081, 8081), ("https", 443, 8443), ("tcp", 31400, 31400)];

/// The services and pods of the one cluster.
fn cluster() -> RegistryUpdate {
    let mut all = shard(CLUSTER, 0);
    for (name, address, pairs, _) in [CLIENT, WEB_1, WEB_2, WEB_3, API, INGRESS, EGRESS, TOOLS] {
        all = all.pod(workload(name, address, pairs));
    }
    let webs = ["web", "web2", "web3", "web4", "web5", "web6", "web7", "web8"];
    let ports_of =
        |name| if name == "web" { [WEB_PORTS, MORE_PORTS].concat() } else { WEB_PORTS.to_vec() };
    let webs = webs.map(|name| (format!("{name}.shop"), ports_of(name), vec![WEB_1, WEB_2, WEB_3]));
    let others: [(&str, &[_], _); 5] = [
        ("api.pay", &[("http", 80, 8080), ("tcp", 5432, 5432)], API),
        ("collector.shop", &[("grpc", 4317, 4317)], TOOLS),
        ("authorizer.shop", &[("http", 80, 8000)], TOOLS),
        ("ingressgateway.gateways", GATEWAY_PORTS, INGRESS),
        ("egressgateway.gateways", GATEWAY_PORTS, EGRESS),
    ];
    let others = others.map(|(name, ports, pod)| (name.to_owned(), ports.to_vec(), vec![pod]));
    for (at, (name, ports, pods)) in webs.into_iter().chain(others).enumerate() {
        let endpoints = pods.iter().flat_map(|&(pod, address, pairs, [region, zone])| {
            let locality =
                Locality { region: region.into(), zone: zone.into(), ..Locality::default() };
            ports.iter().map(move |&(port_name, _, target)| Endpoint {
                port: target,
                port_name: port_name.into(),
                locality: Arc::new(locality.clone()),
                workload: pod
                    .split_once('.')
                    .map(|(name, namespace)| Arc::new(WorkloadKey::new(namespace, name))),
                labels: Some(Arc::new(labels(pairs))),
                ..endpoint(address)
            })
        });
        let endpoints = endpoints.collect();
        let of_service = service(&name).vip(&format!("10.2.0.{}", at + 1)).with(|service| {
            service.ports =
                ports.iter().map(|&(name, number, to)| port(name, number, to)).collect();
            service.selector = labels(&pods[0].2[..1]);
        });
        all = all.with(of_service, endpoints);
    }
    for (name, host) in [
        ("web3.shop", "web3.shop.svc.clusterset.local"),
        ("api.pay", "api.pay.svc.clusterset.local"),
    ] {
        let imported = service(name).vip("10.2.1.1").with(|service| service.hostname = host.into());
        all = all.with(imported, vec![endpoint("10.9.0.1")]);
    }
    all.built()
}

/// One proxy of each role.
fn proxies() -> Vec<Proxy> {
    let proxy = |(name, address, _, [region, zone]): Pod| {
        let (_, namespace) = name.split_once('.').expect("name.namespace");
        let filters = [
            IstioFilter::PeerMetadata,
            IstioFilter::Alpn,
            IstioFilter::HttpStats,
            IstioFilter::MetadataExchange,
            IstioFilter::UpstreamMetadataExchange,
            IstioFilter::TcpStats,
        ];
        Proxy {
            id: name.into(),
            addresses: vec![address.parse().expect("an address")],
            dns_domain: format!("{namespace}.svc.{DOMAIN}").as_str().into(),
            istio_filters: filters.into_iter().collect(),
            reports_services: true,
            takes_given_addresses: true,
            locality: Locality { region: region.into(), zone: zone.into(), ..Locality::default() },
            ..sidecar(name, CLUSTER)
        }
    };
    let router = |proxy: Proxy| Proxy { kind: ProxyType::Router, ..proxy };
    vec![
        proxy(CLIENT),
        proxy(WEB_1),
        proxy(WEB_2),
        proxy(API),
        router(proxy(INGRESS)),
        router(proxy(EGRESS)),
        Proxy {
            id: "library.shop".into(),
            grpc: Some(GrpcLibrary { mtls: true, least_request: true }),
            ..proxy(TOOLS)
        },
    ]
}

/// The cases of one kind.
struct Matrix {
    mesh: Mesh,
    /// The objects of the kind, and the objects that they need.
    objects: Vec<Value>,
    kind: String,
    group: String,
    whole: Effect,
    /// The effects without the field of the last case, by object and JSON pointer.
    without: BTreeMap<(usize, String), Effect>,
    path: String,
}

impl Matrix {
    fn new(mesh: Mesh, objects: Vec<Value>, kind: &str, group: &str) -> Self {
        let whole = mesh.effect(&collection(&objects));
        let (kind, group) = (kind.to_owned(), group.to_owned());
        Self { mesh, objects, kind, group, whole, without: BTreeMap::new(), path: String::new() }
    }

    /// The cell of a case: `output` if a proxy is configured differently, and the codes of the reasons that the field causes.
    /// Empty for a field without any effect.
    fn cell(&mut self, case: &str) -> Result<String, String> {
        let (path, value) = match case.split_once('=') {
            Some((path, value)) => (path, Some(value)),
            None => (case, None),
        };
        let value: Option<Value> =
            value.map(|text| serde_json::from_str(text).expect("a value in JSON"));
        if self.path != path {
            path.clone_into(&mut self.path);
            self.without.clear();
        }
        let places = self.places(path);
        if places.is_empty() {
            return Err("no object in the YAML file has the field".to_owned());
        }
        let mut best = String::new();
        for (object, pointer) in places {
            let cell = self.cell_at(object, &pointer, value.as_ref());
            if cell.starts_with("output") {
                return Ok(cell);
            }
            if best.is_empty() {
                best = cell;
            }
        }
        Ok(best)
    }

    fn cell_at(&mut self, object: usize, pointer: &str, value: Option<&Value>) -> String {
        let changed = value.map(|value| {
            let mut objects = self.objects.clone();
            *objects[object].pointer_mut(pointer).expect("found before") = value.clone();
            self.mesh.effect(&collection(&objects))
        });
        let key = (object, pointer.to_owned());
        if !self.without.contains_key(&key) {
            let mut objects = self.objects.clone();
            remove(&mut objects[object], pointer);
            self.without.insert(key.clone(), self.mesh.effect(&collection(&objects)));
        }
        let (with, without) = (changed.as_ref().unwrap_or(&self.whole), &self.without[&key]);
        let mut words = BTreeSet::new();
        let own = ObjectKey::of(&self.objects[object]).expect("a key").to_string();
        let new = with.reasons.difference(&without.reasons);
        words.extend(new.filter(|[object, ..]| *object == own).map(|[_, code, ..]| code.as_str()));
        // A reason about a whole part covers the fields of the part.
        let place = indexed(pointer);
        let around = with.reasons.iter().filter(|[object, _, path, _]| {
            let rest = place.strip_prefix(path.as_str()).filter(|_| path.starts_with("spec."));
            *object == own && rest.is_some_and(|rest| rest.starts_with(['.', '[']))
        });
        let around = around.filter(|[_, code, ..]| !OF_LIBRARIES.contains(&code.as_str()));
        let at_field =
            with.reasons.iter().filter(|[object, _, path, _]| *object == own && *path == place);
        words.extend(at_field.map(|[_, code, ..]| code.as_str()));
        let around = around.map(|[_, code, ..]| format!("under {code}")).min();
        let differs = with.others != without.others || self.mesh.differs(with, without);
        let words: Vec<_> = differs.then_some("output").into_iter().chain(words).collect();
        if !words.is_empty() {
            return words.join(" ");
        }
        around.or_else(|| self.dead_item(object, pointer, value)).unwrap_or_default()
    }

    /// Returns the code of a reason inside the innermost list item around the field, if the whole item has no effect.
    fn dead_item(&self, object: usize, pointer: &str, value: Option<&Value>) -> Option<String> {
        let mut objects = self.objects.clone();
        if let Some(value) = value {
            *objects[object].pointer_mut(pointer).expect("found before") = value.clone();
        }
        let own = ObjectKey::of(&objects[object]).expect("a key").to_string();
        let with = self.mesh.effect(&collection(&objects));
        let ends = pointer.match_indices('/').map(|(at, _)| &pointer[..at]);
        let is_item =
            |end: &&str| end.rsplit('/').next().is_some_and(|name| name.parse::<usize>().is_ok());
        let items: Vec<&str> = ends.filter(is_item).collect();
        items.into_iter().rev().find_map(|item| {
            let path = indexed(item);
            let inside = with.reasons.iter().filter(|[of, _, at, _]| {
                *of == own && at.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.'))
            });
            let code = inside.map(|[_, code, ..]| format!("under {code}")).min()?;
            let mut fewer = objects.clone();
            remove(&mut fewer[object], item);
            let without = self.mesh.effect(&collection(&fewer));
            (with.others == without.others && !self.mesh.differs(&with, &without)).then_some(code)
        })
    }

    /// The places at which objects have a field.
    fn places(&self, path: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (at, object) in self.objects.iter().enumerate() {
            let key = ObjectKey::of(object).expect("a kind and a name");
            if *key.kind == *self.kind && *key.group == *self.group {
                let names: Vec<&str> = path.split('.').collect();
                let mut pointers = Vec::new();
                places_in(object, &names, "", &mut pointers);
                found.extend(pointers.into_iter().map(|pointer| (at, pointer)));
            }
        }
        found
    }
}

/// The JSON pointers of a field. `NAME[]` matches any item of a list, `NAME{}` any value of a map.
fn places_in(value: &Value, names: &[&str], pointer: &str, found: &mut Vec<String>) {
    let Some((name, rest)) = names.split_first() else {
        found.push(pointer.to_owned());
        return;
    };
    let plain = name.trim_end_matches("[]").trim_end_matches("{}");
    let Some(field) = value.get(plain) else { return };
    let pointer = format!("{pointer}/{plain}");
    match field {
        Value::Array(items) if name.ends_with("[]") => {
            for (at, item) in items.iter().enumerate() {
                places_in(item, rest, &format!("{pointer}/{at}"), found);
            }
        }
        Value::Object(fields) if name.ends_with("{}") => {
            for (key, item) in fields {
                let key = key.replace('~', "~0").replace('/', "~1");
                places_in(item, rest, &format!("{pointer}/{key}"), found);
            }
        }
        _ if name.len() > plain.len() => {}
        field => places_in(field, rest, &pointer, found),
    }
}

/// A JSON pointer in the form in which reasons have it: `spec.http[0].timeout`.
fn indexed(pointer: &str) -> String {
    let mut path = String::new();
    for name in pointer.split('/').skip(1) {
        let _ = match name.parse::<usize>() {
            Ok(at) => write!(path, "[{at}]"),
            Err(_) if path.is_empty() => write!(path, "{name}"),
            Err(_) => write!(path, ".{name}"),
        };
    }
    path
}

fn remove(object: &mut Value, pointer: &str) {
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer has a slash");
    match object.pointer_mut(parent).expect("found before") {
        Value::Array(items) => drop(items.remove(name.parse().expect("an index"))),
        parent => drop(parent.as_object_mut().expect("a field is in an object").remove(name)),
    }
}

fn collection(objects: &[Value]) -> Collection {
    let keyed = |object: &Value| {
        let key = ObjectKey::of(object).expect("a kind and a name");
        (key, Arc::new(object.clone()))
    };
    objects.iter().map(keyed).collect()
}
