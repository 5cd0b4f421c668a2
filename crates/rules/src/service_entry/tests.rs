use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::EntryIndex;
use super::convert::service_entry;
use strait_base::testing::rounds;
use strait_model::registry::{Contents, ServiceRecord, ShardChange};
use strait_model::{
    Collection, Endpoint, ExportTo, Health, Hostname, LastValidObject, NO_ADDRESS, ObjectKey,
    Resolution, TlsMode, WorkloadKey,
};

fn entry(name: &str, spec: Value) -> Arc<Value> {
    object("ServiceEntry", name, spec)
}

fn object(kind: &str, name: &str, spec: Value) -> Arc<Value> {
    let (namespace, name) = name.split_once('/').expect("namespace/name");
    let metadata = json!({ "name": name, "namespace": namespace });
    let version = "networking.istio.io/v1beta1";
    Arc::new(json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec }))
}

/// Returns a static entry for `db.example.com`, port 5432, with additional fields.
fn database(fields: Value) -> Value {
    let mut spec = json!({
        "hosts": ["db.example.com"],
        "ports": [{ "name": "tcp", "number": 5432, "protocol": "TCP" }],
        "resolution": "STATIC",
    });
    let spec_fields = spec.as_object_mut().expect("an object");
    spec_fields.extend(fields.as_object().expect("fields").clone());
    spec
}

fn at(mut object: Arc<Value>, created: &str) -> Arc<Value> {
    Arc::make_mut(&mut object)["metadata"]["creationTimestamp"] = json!(created);
    object
}

/// An index, with all services that it has sent.
struct TrackedIndex {
    index: EntryIndex,
    services: BTreeMap<Hostname, ServiceRecord>,
}

impl TrackedIndex {
    fn new() -> Self {
        Self { index: EntryIndex::new("cluster.local"), services: BTreeMap::new() }
    }

    /// Replaces all objects and returns whether there is something to send.
    fn has_news(&mut self, objects: &[Arc<Value>]) -> bool {
        self.take(&objects.iter().cloned().collect()).is_some()
    }

    /// Replaces all objects and returns all services that have been sent.
    fn apply(&mut self, objects: &[Arc<Value>]) -> Contents {
        self.take(&objects.iter().cloned().collect());
        let services =
            self.services.iter().map(|(host, record)| (host.clone(), Some(record.clone())));
        Contents { services: services.collect(), ..Contents::default() }
    }

    /// Applies objects and returns the number of sent hosts.
    fn take(&mut self, objects: &Collection) -> Option<usize> {
        let change = self.index.apply(objects)?;
        let contents = match change {
            ShardChange::Reset(contents) => {
                self.services.clear();
                contents
            }
            ShardChange::Update(contents) => contents,
            ShardChange::Removed => panic!("the shard is never removed"),
        };
        let count = contents.services.len();
        for (host, record) in contents.services {
            let before = self.services.get(&host);
            assert!(before.is_none() || before != record.as_ref(), "{host} did not change");
            match record {
                Some(record) => drop(self.services.insert(host, record)),
                None => assert!(self.services.remove(&host).is_some(), "it was never sent"),
            }
        }
        Some(count)
    }
}

impl Deref for TrackedIndex {
    type Target = EntryIndex;

    fn deref(&self) -> &EntryIndex {
        &self.index
    }
}

impl DerefMut for TrackedIndex {
    fn deref_mut(&mut self) -> &mut EntryIndex {
        &mut self.index
    }
}

fn read(objects: &[Arc<Value>]) -> (Contents, Vec<String>) {
    let mut index = TrackedIndex::new();
    let contents = index.apply(objects);
    (contents, index.problems().iter().map(ToString::to_string).collect())
}

fn record<'a>(contents: &'a Contents, host: &str) -> &'a ServiceRecord {
    contents.services.get(host).and_then(Option::as_ref).expect("the host exists")
}

fn endpoints(contents: &Contents, host: &str) -> Vec<Endpoint> {
    record(contents, host).endpoints.to_vec()
}

fn sockets(contents: &Contents, host: &str) -> Vec<String> {
    let socket = |one: Endpoint| format!("{}:{}", one.address, one.port);
    endpoints(contents, host).into_iter().map(socket).collect()
}

#[test]
fn redundant_export_entries_are_reported_without_effect() {
    let mut tracked = TrackedIndex::new();
    let exported = database(json!({ "exportTo": ["web", "*", "web"] }));
    tracked.has_news(&[entry("shop/db", exported)]);
    let problems = tracked.index.problems();
    let faults: Vec<_> = problems.iter().map(|one| (one.fault.to_string(), one.refused)).collect();
    let expected = [
        ("spec.exportTo[0]: \"web\" is redundant next to *", false),
        ("spec.exportTo[2]: \"web\" is a duplicate", false),
    ];
    assert_eq!(faults, expected.map(|(text, refused)| (text.to_owned(), refused)));
}

#[test]
fn export_entries_that_are_no_namespaces_are_reported() {
    let exported = |list: Value| {
        let (contents, problems) = read(&[entry("shop/db", database(json!({ "exportTo": list })))]);
        (record(&contents, "db.example.com").service.export_to.clone(), problems.len())
    };
    let to = |names: &[&str]| ExportTo::Namespaces(names.iter().map(|&name| name.into()).collect());
    assert_eq!(exported(json!([])), (ExportTo::Public, 0));
    assert_eq!(exported(json!([""])), (to(&[]), 1));
    assert_eq!(exported(json!(["Shop", "web"])), (to(&["Shop", "web"]), 1));
    assert_eq!(exported(json!(["./x"])), (to(&["./x"]), 1));
    assert_eq!(exported(json!([".", "web-2"])), (to(&["shop", "web-2"]), 0));
}

#[test]
fn entry_adds_its_ports_addresses_and_endpoints_to_each_host() {
    let spec = json!({
        "hosts": ["db.example.com", "*.Db.example.com"],
        "addresses": ["192.0.2.7", "192.0.2.8/32"],
        "ports": [
            { "name": "tcp", "number": 5432, "protocol": "TCP", "targetPort": 15432 },
            { "name": "web", "number": 80, "protocol": "HTTP" },
        ],
        "resolution": "STATIC",
        "exportTo": ["."],
        "subjectAltNames": ["spiffe://other/ns/a/sa/b"],
        "endpoints": [
            { "address": "10.0.0.1", "ports": { "web": 8080 }, "weight": 3, "network": "n1",
              "locality": "r/z/s", "serviceAccount": "db" },
            { "address": "10.0.0.2", "labels": { "topology.istio.io/network": "n2",
              "security.istio.io/tlsMode": "istio" } },
        ],
    });
    let (contents, problems) = read(&[entry("shop/db", spec)]);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(contents.services.len(), 2);
    let wildcard = record(&contents, "*.db.example.com");
    assert_eq!(wildcard.service.vips.len(), 2);
    assert!(wildcard.service.mesh_external);
    assert_eq!(wildcard.service.export_to, ExportTo::Namespaces(vec!["shop".into()]));
    assert_eq!(
        sockets(&contents, "db.example.com"),
        ["10.0.0.1:15432", "10.0.0.2:15432", "10.0.0.1:8080", "10.0.0.2:80"]
    );
    let all = endpoints(&contents, "db.example.com");
    let (first, second) = (&all[0], &all[1]);
    assert_eq!((first.weight, second.weight), (3, 1));
    assert_eq!(first.locality.to_string(), "r/z/s");
    assert_eq!(first.network_label, Some("n1".into()));
    assert_eq!(second.network_label, Some("n2".into()));
    assert_eq!(first.service_account.as_deref(), Some("spiffe://cluster.local/ns/shop/sa/db"));
}

#[test]
fn mtls_follows_the_label_or_inside_the_mesh_the_account() {
    let cases = [
        ("MESH_INTERNAL", json!({}), TlsMode::Disabled),
        ("MESH_INTERNAL", json!({ "serviceAccount": "db" }), TlsMode::Istio),
        ("MESH_EXTERNAL", json!({ "serviceAccount": "db" }), TlsMode::Disabled),
        (
            "MESH_EXTERNAL",
            json!({ "labels": { "security.istio.io/tlsMode": "istio" } }),
            TlsMode::Istio,
        ),
        (
            "MESH_INTERNAL",
            json!({ "serviceAccount": "db", "labels": { "security.istio.io/tlsMode": "disabled" } }),
            TlsMode::Disabled,
        ),
    ];
    for (location, mut endpoint, expected) in cases {
        endpoint["address"] = json!("10.0.0.1");
        let spec = database(json!({ "location": location, "endpoints": [endpoint] }));
        let (contents, _) = read(&[entry("shop/db", spec.clone())]);
        assert_eq!(endpoints(&contents, "db.example.com")[0].tls_mode, expected, "{spec}");
    }
}

#[test]
fn selector_selects_workload_entries_of_its_own_namespace() {
    let select = |labels: Value| {
        entry("shop/db", database(json!({ "workloadSelector": { "labels": labels } })))
    };
    let workload = |name: &str, address: &str, labels: Value| {
        object("WorkloadEntry", name, json!({ "address": address, "labels": labels }))
    };
    let workloads = [
        workload("shop/a", "10.0.0.1", json!({ "app": "db" })),
        workload("shop/b", "10.0.0.2", json!({ "app": "web" })),
        workload("bank/c", "10.0.0.3", json!({ "app": "db" })),
        workload("shop/d", "by.name", json!({ "app": "db" })),
    ];
    let with = |selector| [&[selector], &workloads[..]].concat();
    let (contents, _) = read(&with(select(json!({ "app": "db" }))));
    assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432"]);
    let workload = endpoints(&contents, "db.example.com")[0].workload.clone();
    assert_eq!(workload.expect("named").to_string(), "a.shop");
    let (contents, _) = read(&with(select(json!({}))));
    assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432", "10.0.0.2:5432"]);
}

#[test]
fn workload_with_a_health_check_is_unhealthy_without_its_condition() {
    let cases = [
        (json!(null), Health::Unhealthy),
        (json!([{ "type": "Healthy", "status": "False" }]), Health::Unhealthy),
        (json!([{ "type": "Healthy", "status": "True" }]), Health::Healthy),
    ];
    for (conditions, expected) in cases {
        let mut checked = object("WorkloadEntry", "shop/a", json!({ "address": "10.0.0.1" }));
        let fields = Arc::make_mut(&mut checked);
        fields["metadata"]["annotations"] =
            json!({ "proxy.istio.io/health-checks-enabled": "true" });
        fields["status"]["conditions"] = conditions;
        let entry = entry("shop/db", database(json!({ "workloadSelector": {} })));
        let (contents, _) = read(&[entry, checked]);
        assert_eq!(endpoints(&contents, "db.example.com")[0].health, expected);
    }
}

#[test]
fn null_fields_equal_absent_fields() {
    let null_fields = json!({
        "ports": [{ "name": "tcp", "number": 5432, "protocol": "TCP", "targetPort": null }],
        "endpoints": [{ "address": "10.0.0.1", "ports": null, "weight": null, "labels": null }],
        "addresses": null,
    });
    let selecting = json!({ "workloadSelector": { "labels": { "app": "db" } }, "hosts": ["own"] });
    let workload = json!({ "address": "10.0.0.2", "labels": { "app": "db" }, "locality": null });
    let (contents, problems) = read(&[
        entry("shop/db", database(null_fields)),
        entry("shop/own", database(selecting)),
        object("WorkloadEntry", "shop/db", workload),
    ]);
    assert_eq!(problems, [""; 0]);
    assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432"]);
    assert_eq!(sockets(&contents, "own"), ["10.0.0.2:5432"]);
}

#[test]
fn invalid_object_reports_its_field_and_affects_no_other() {
    let port = |port: Value| json!({ "ports": [port] });
    let endpoint = |endpoint: Value| json!({ "endpoints": [endpoint] });
    let cases = [
        (json!({ "hosts": [] }), "spec.hosts: "),
        (json!({ "hosts": ["a b"] }), "spec.hosts[0]: "),
        (json!({ "hosts": "x" }), "spec.hosts: "),
        (json!({ "ports": null }), "spec.ports: "),
        (port(json!({ "name": "a", "number": 0 })), "spec.ports[0].number: "),
        (port(json!({ "name": "a", "number": 70000 })), "spec.ports[0].number: "),
        (port(json!({ "number": 1 })), "spec.ports[0].name: "),
        (json!({ "resolution": "MAGIC" }), "spec.resolution: "),
        (json!({ "location": "MARS" }), "spec.location: "),
        (endpoint(json!({ "address": "a.name" })), "spec.endpoints[0].address: "),
        (endpoint(json!({ "address": "unix://x" })), "spec.endpoints[0].address: "),
        (
            json!({ "endpoints": [{ "address": "unix:///x" }, { "address": "10.0.0.1" }] }),
            "spec.endpoints[0].address: ",
        ),
        (
            json!({
                "resolution": "DNS",
                "endpoints": [{ "address": "unix:///x" }, { "address": "a.name" }],
            }),
            "spec.endpoints[1].address: ",
        ),
        (endpoint(json!({})), "spec.endpoints[0].address: "),
        (endpoint(json!({ "address": "a b" })), "spec.endpoints[0].address: "),
        (json!({ "hosts": ["*.example.com"], "resolution": "DNS" }), "spec.resolution: "),
        (
            endpoint(json!({ "address": "10.0.0.1", "ports": { "tcp": 0 } })),
            "spec.endpoints[0].ports.tcp: ",
        ),
        (
            json!({ "endpoints": [{ "address": "10.0.0.1" }], "workloadSelector": {} }),
            "spec.workloadSelector: ",
        ),
    ];
    for (fields, expected) in cases {
        let good = entry("shop/good", database(json!({ "hosts": ["good.example.com"] })));
        let (contents, problems) = read(&[entry("shop/bad", database(fields.clone())), good]);
        let expected = format!("ServiceEntry shop/bad: {expected}");
        assert!(problems.len() == 1 && problems[0].starts_with(&expected), "{problems:?}");
        let hosts: Vec<_> = contents.services.keys().map(|host| host.as_str()).collect();
        assert_eq!(hosts, ["good.example.com"], "{fields}");
    }
}

#[test]
fn invalid_part_of_an_entry_is_left_out_and_the_rest_applies() {
    let two = |one: Value, other: Value| json!({ "endpoints": [one, other] });
    let good = || json!({ "address": "10.0.0.1" });
    let cases = [
        (
            json!({ "hosts": ["db.example.com", "a b"], "endpoints": [good()] }),
            r#"spec.hosts[1]: "a b" is not a DNS name; the entry applies without this host"#,
        ),
        (
            json!({ "hosts": ["db.example.com", "db.example.com."], "endpoints": [good()] }),
            r#"spec.hosts[1]: "db.example.com." is a duplicate; the entry applies without this host"#,
        ),
        (
            two(good(), json!({ "address": "a b" })),
            r#"spec.endpoints[1].address: "a b" is neither an IP address nor a DNS name; the entry applies without this endpoint"#,
        ),
        (
            two(good(), json!({ "address": "0.0.0.0" })),
            "spec.endpoints[1].address: 0.0.0.0 is the unspecified address, which no host has; the entry applies without this endpoint",
        ),
        (
            two(good(), json!({ "address": "10.0.0.1", "weight": 50 })),
            "spec.endpoints[1]: has the address and the ports of endpoints[0]; the entry applies without this endpoint and its weight",
        ),
        (
            json!({ "endpoints": [{ "address": "10.0.0.1", "ports": { "tpc": 1 } }] }),
            "spec.endpoints[0].ports.tpc: no port of the entry has this name; this setting has no effect",
        ),
        (
            json!({ "endpoints": [good()], "ports": [
                { "name": "tcp", "number": 5432, "protocol": "TCP" }, { "name": "b", "number": 0 },
            ] }),
            "spec.ports[1].number: is not between 1 and 65535; the entry applies without this port",
        ),
        (
            json!({ "endpoints": [good()], "ports": [
                { "name": "tcp", "number": 5432, "protocol": "HTPP" },
            ] }),
            r#"spec.ports[0].protocol: "HTPP" is not a known protocol; the protocol of the port is detected"#,
        ),
    ];
    for (fields, expected) in cases {
        let (contents, problems) = read(&[entry("shop/db", database(fields))]);
        assert_eq!(problems, [format!("ServiceEntry shop/db: {expected}")]);
        assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432"]);
    }
}

#[test]
fn endpoints_and_resolutions_without_effect_are_reported() {
    let with = |resolution: &str, count: usize| {
        let endpoints: Vec<_> =
            (0..count).map(|at| json!({ "address": format!("a{at}.example.com") })).collect();
        let mut spec = database(json!({ "endpoints": endpoints }));
        spec["resolution"] = json!(resolution);
        let (_, problems) = read(&[entry("shop/db", spec)]);
        problems
    };
    let expected = |fact: &str| vec![format!("ServiceEntry shop/db: {fact}")];
    let idle = "this endpoint and later ones have no effect";
    let unused = format!("spec.endpoints[0]: resolution NONE uses 0 of 2 endpoints; {idle}");
    assert_eq!(with("NONE", 2), expected(&unused));
    assert_eq!(with("", 2), expected(&unused));
    let second =
        format!("spec.endpoints[1]: resolution DNS_ROUND_ROBIN uses 1 of 2 endpoints; {idle}");
    assert_eq!(with("DNS_ROUND_ROBIN", 2), expected(&second));
    assert_eq!(with("DNS_ROUND_ROBIN", 1), [""; 0]);
    assert_eq!(with("DNS", 2), [""; 0]);
    let dynamic =
        "spec.resolution: DYNAMIC_DNS does not resolve hosts again; it is handled as NONE";
    assert_eq!(with("DYNAMIC_DNS", 0), expected(dynamic));
}

#[test]
fn entries_of_one_host_serve_all_port_numbers() {
    let with = |name: &str, day: u8, address: &str, (port, number): (&str, u16), own: Value| {
        let spec = database(json!({
            "endpoints": [{ "address": address, "ports": own }],
            "ports": [{ "name": port, "number": number, "protocol": "HTTP" }],
        }));
        at(entry(name, spec), &format!("2026-01-0{day}T00:00:00Z"))
    };
    let (contents, problems) = read(&[
        with("shop/a", 1, "10.0.0.1", ("http", 80), json!({})),
        with("shop/b", 2, "10.0.0.2", ("http", 8080), json!({ "http": 9 })),
        with("shop/c", 3, "10.0.0.3", ("web", 80), json!({})),
    ]);
    assert_eq!(problems, [""; 0]);
    let service = &record(&contents, "db.example.com").service;
    let ports: Vec<_> = service.ports.iter().map(|port| (&*port.name, port.number)).collect();
    assert_eq!(ports, [("http", 80), ("http-8080", 8080)]);
    let all = endpoints(&contents, "db.example.com");
    let all: Vec<_> =
        all.iter().map(|one| format!("{} {}:{}", one.port_name, one.address, one.port)).collect();
    assert_eq!(all, ["http 10.0.0.1:80", "http-8080 10.0.0.2:9", "http 10.0.0.3:80"]);
}

#[test]
fn port_number_with_another_protocol_is_a_conflict_of_the_younger_entry_alone() {
    let with = |name: &str, day: u8, address: &str, ports: Value| {
        let spec = database(json!({ "endpoints": [{ "address": address }], "ports": ports }));
        at(entry(name, spec), &format!("2026-01-0{day}T00:00:00Z"))
    };
    let port = |name: &str, number: u16, protocol: &str| json!({ "name": name, "number": number, "protocol": protocol });
    let (contents, problems) = read(&[
        with("shop/a", 1, "10.0.0.1", json!([port("http", 80, "HTTP")])),
        with("shop/b", 2, "10.0.0.2", json!([port("http", 80, "TCP"), port("tcp", 81, "TCP")])),
    ]);
    let expected = "ServiceEntry shop/b: spec.ports[0].protocol: ServiceEntry shop/a has port 80 with protocol HTTP; for this host the entry applies without this port";
    assert_eq!(problems, [expected]);
    assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:80", "10.0.0.2:81"]);
}

#[test]
fn endpoint_limit_of_an_entry_counts_each_host_and_port() {
    let fields = |hosts: usize| {
        let hosts: Vec<_> = (0..hosts).map(|at| format!("h{at}.example.com")).collect();
        let endpoints: Vec<_> = (0..500)
            .map(|at| json!({ "address": format!("10.0.{}.{}", at / 250, at % 250) }))
            .collect();
        entry("shop/db", database(json!({ "hosts": hosts, "endpoints": endpoints })))
    };
    assert_eq!(read(&[fields(131)]).1, [""; 0]);
    let (_, problems) = read(&[fields(132)]);
    let expected = "ServiceEntry shop/db: spec.endpoints: 500 endpoints for each of 132 hosts and 1 ports exceed";
    assert!(problems.len() == 1 && problems[0].starts_with(expected), "{problems:?}");
}

#[test]
fn unknown_field_is_reported_and_the_rest_applies() {
    let fields = json!({
        "resolutoin": "DNS",
        "endpoints": [{ "address": "10.0.0.1", "prots": { "tcp": 1 } }],
        "workloadSelector": null,
    });
    let workload = json!({ "address": "10.0.0.2", "weigth": 3, "lables": {} });
    let (contents, problems) =
        read(&[entry("shop/db", database(fields)), object("WorkloadEntry", "shop/vm", workload)]);
    let unknown_field = |object: &str, field: &str| {
        let text = "unknown or unsupported field: it has no effect; the rest applies";
        format!("{object}: spec.{field}: {text}")
    };
    assert_eq!(
        problems,
        [
            unknown_field("ServiceEntry shop/db", "endpoints[0].prots"),
            unknown_field("ServiceEntry shop/db", "resolutoin"),
            unknown_field("WorkloadEntry shop/vm", "lables"),
            unknown_field("WorkloadEntry shop/vm", "weigth"),
        ]
    );
    assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432"]);
}

#[test]
fn invalid_address_is_left_out_and_the_entry_applies() {
    for wrong in ["10.0.0.0/40", "0.0.0.0/0", "a.name", "0.0.0.0", "224.0.0.1"] {
        let fields = json!({ "addresses": ["192.0.2.7", wrong] });
        let (contents, problems) = read(&[entry("shop/db", database(fields))]);
        let [problem] = &problems[..] else { panic!("{wrong}: {problems:?}") };
        let beginning = format!("ServiceEntry shop/db: spec.addresses[1]: {wrong:?} is ");
        assert!(problem.starts_with(&beginning), "{problem}");
        assert!(problem.ends_with("; the entry applies without this address"), "{problem}");
        let vips = &record(&contents, "db.example.com").service.vips;
        assert_eq!(vips[..], [IpAddr::from([192, 0, 2, 7])], "{wrong}");
    }
}

#[test]
fn changed_default_export_applies_to_entries_without_export() {
    let entries = [
        entry("shop/db", database(json!({}))),
        entry("shop/x", database(json!({ "hosts": ["x.example.com"], "exportTo": ["*"] }))),
    ];
    let mut index = TrackedIndex::new();
    index.apply(&entries);
    index.export_by_default(&["bank".to_owned(), ".".to_owned()]);
    let contents = index.apply(&entries);
    let exported = |host| record(&contents, host).service.export_to.clone();
    let both = ExportTo::Namespaces(vec!["bank".into(), "shop".into()]);
    assert_eq!(exported("db.example.com"), both);
    assert_eq!(exported("x.example.com"), ExportTo::Public);
    index.export_by_default(&["bank".to_owned(), ".".to_owned()]);
    assert!(!index.has_news(&entries));
}

#[test]
fn last_valid_version_of_an_invalid_object_is_persisted() {
    let mut index = TrackedIndex::new();
    let good = entry("shop/db", database(json!({})));
    let bad = entry("shop/db", database(json!({ "hosts": [] })));
    index.apply(std::slice::from_ref(&good));
    assert!(index.last_valid_objects().is_empty());
    index.apply(std::slice::from_ref(&bad));
    // The store returns an equal object; the stand-in refers to the current one.
    let again = Arc::new(Value::clone(&bad));
    index.apply(std::slice::from_ref(&again));
    let [LastValidObject { now, good: before, .. }] = &index.last_valid_objects()[..] else {
        panic!("{:?}", index.last_valid_objects())
    };
    assert!(now.to_value() == *bad && before.to_value() == *good);
}

#[test]
fn last_valid_version_survives_a_restart() {
    let good = entry("shop/db", database(json!({})));
    let gone = entry("shop/x", database(json!({ "hosts": ["x.example.com"] })));
    let bad = entry("shop/db", database(json!({ "hosts": [] })));
    let mut index = TrackedIndex::new();
    index.remember(&[good.clone(), gone].into_iter().collect());
    let contents = index.apply(std::slice::from_ref(&bad));
    let hosts: Vec<_> = contents.services.keys().map(ToString::to_string).collect();
    assert_eq!(hosts, ["db.example.com"]);
    let [LastValidObject { now, good: before, .. }] = &index.last_valid_objects()[..] else {
        panic!("{:?}", index.last_valid_objects())
    };
    assert!(now.to_value() == *bad && before.to_value() == *good);
}

#[test]
fn changed_trust_domain_renames_accounts_and_keeps_all_versions() {
    let endpoint = json!({ "address": "10.0.0.1", "serviceAccount": "db" });
    let good = entry("shop/db", database(json!({ "endpoints": [endpoint] })));
    let bad = entry("shop/db", database(json!({ "hosts": [] })));
    let mut index = TrackedIndex::new();
    index.apply(&[good]);
    index.apply(std::slice::from_ref(&bad));
    index.move_to("example.org");
    let contents = index.apply(std::slice::from_ref(&bad));
    let account = endpoints(&contents, "db.example.com")[0].service_account.clone();
    assert_eq!(account.as_deref(), Some("spiffe://example.org/ns/shop/sa/db"));
    assert_eq!(index.last_valid_objects().len(), 1, "the last valid version");
    index.move_to("example.org");
    assert!(!index.has_news(&[bad]));
}

#[test]
fn object_without_effect_is_noted_at_its_host() {
    let mut index = TrackedIndex::new();
    let objects = [
        at(entry("shop/db", database(json!({}))), "2026-01-01T00:00:00Z"),
        at(entry("bank/db", database(json!({}))), "2026-01-02T00:00:00Z"),
    ];
    index.apply(&objects);
    let host = "db.example.com".into();
    let [note] = index.selections().notes(&host) else { panic!() };
    assert_eq!(*note, index.problems()[0].to_string());
    let shadowed = (vec!["db.example.com".into()], "it is shadowed".to_owned());
    index.shadowed(&[shadowed]);
    index.apply(&objects);
    assert_eq!(
        index.selections().notes(&host),
        ["it is shadowed", &*index.problems()[0].to_string()]
    );
}

#[test]
fn invalid_object_keeps_its_last_valid_version_until_deleted() {
    let mut index = TrackedIndex::new();
    let good = entry("shop/db", database(json!({ "endpoints": [{ "address": "10.0.0.1" }] })));
    let bad = entry("shop/db", database(json!({ "hosts": [] })));
    assert!(index.has_news(std::slice::from_ref(&good)));
    assert!(!index.has_news(std::slice::from_ref(&good)), "nothing changed");
    let contents = index.apply(std::slice::from_ref(&bad));
    assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432"]);
    assert_eq!(index.problems().len(), 1);
    assert!(index.apply(&[]).services.is_empty());
    assert!(index.problems().is_empty());
}

#[test]
fn entries_merge_only_within_one_namespace() {
    let with = |address: &str, port: &str, number: u16| {
        database(json!({
            "endpoints": [{ "address": address }],
            "ports": [{ "name": port, "number": number }],
        }))
    };
    let first = at(entry("shop/z", with("10.0.0.1", "tcp", 5432)), "2026-01-01T00:00:00Z");
    let same = at(entry("shop/a", with("10.0.0.2", "tcp", 5432)), "2026-01-02T00:00:00Z");
    let more = at(entry("shop/b", with("10.0.0.3", "web", 80)), "2026-01-02T00:00:00Z");
    let invalid = at(entry("shop/c", with("10.0.0.4", "tcp", 80)), "2026-01-02T00:00:00Z");
    let thief = at(entry("bank/a", with("10.6.6.6", "tcp", 5432)), "2026-01-02T00:00:00Z");
    let (contents, problems) = read(&[thief, invalid, same, first, more]);
    assert_eq!(
        sockets(&contents, "db.example.com"),
        ["10.0.0.1:5432", "10.0.0.2:5432", "10.0.0.3:80"]
    );
    assert_eq!(record(&contents, "db.example.com").service.name.as_ref(), "z");
    let named: Vec<_> = problems.iter().map(|one| one.split(':').next()).collect();
    assert_eq!(named, [Some("ServiceEntry bank/a"), Some("ServiceEntry shop/c")]);
}

#[test]
fn private_entry_next_to_a_public_one_is_seen_only_in_its_namespace() {
    let public = database(json!({ "endpoints": [{ "address": "10.0.0.1" }] }));
    let private = database(json!({
        "exportTo": ["."], "endpoints": [{ "address": "10.0.0.5" }],
        "ports": [{ "number": 5432, "name": "tcp" }, { "number": 9000, "name": "more" }],
    }));
    for private_at in ["2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z"] {
        let public = at(entry("shop/public", public.clone()), "2026-01-01T00:00:00Z");
        let private = at(entry("shop/private", private.clone()), private_at);
        let (contents, problems) = read(&[public, private]);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(sockets(&contents, "db.example.com"), ["10.0.0.1:5432"], "{private_at}");
        let mut own = sockets(&contents, "db.example.com@shop");
        own.sort();
        assert_eq!(own, ["10.0.0.1:5432", "10.0.0.5:5432", "10.0.0.5:9000"], "{private_at}");
        let shop = ExportTo::Namespaces(["shop".into()].into());
        assert_eq!(record(&contents, "db.example.com@shop").service.export_to, shop);
        assert_eq!(record(&contents, "db.example.com").service.export_to, ExportTo::Public);
    }
}

#[test]
fn name_of_a_kubernetes_service_belongs_to_the_namespace_in_it() {
    let with = |address: &str, host: &str| {
        database(json!({ "hosts": [host], "endpoints": [{ "address": address }] }))
    };
    let foreign_first = |host: &str| {
        let foreign = at(entry("bank/a", with("10.6.6.6", host)), "2026-01-01T00:00:00Z");
        let own = at(entry("shop/z", with("10.0.0.1", host)), "2026-01-02T00:00:00Z");
        let (contents, problems) = read(&[foreign, own]);
        (sockets(&contents, host), problems.len())
    };
    for host in ["db.shop.svc.cluster.local", "db.shop.svc.clusterset.local"] {
        assert_eq!(foreign_first(host), (vec!["10.0.0.1:5432".to_owned()], 1), "{host}");
    }
    let elsewhere = ["db.other.svc.cluster.local", "db.shop.example.com", "db.shop"];
    for host in elsewhere {
        assert_eq!(foreign_first(host), (vec!["10.6.6.6:5432".to_owned()], 1), "{host}");
    }
}

/// Returns the names, each with the port number of `tcp`, that proxies resolve for the first host
/// of `spec`.
fn names(spec: Value, others: &[Arc<Value>]) -> Vec<String> {
    let (contents, problems) = read(&[&[entry("shop/db", spec)], others].concat());
    assert_eq!(problems, Vec::<String>::new());
    let record = record(&contents, "db.example.com");
    assert!(record.endpoints.is_empty());
    let Resolution::ByName(found) = &record.service.resolution else { return Vec::new() };
    let name = |endpoint: &strait_model::NamedEndpoint| {
        format!("{}:{}", endpoint.address, endpoint.ports.get("tcp").expect("a port"))
    };
    found.endpoints.iter().map(name).collect()
}

#[test]
fn resolved_names_are_those_of_endpoints_or_workloads_or_the_host() {
    let by_name = |fields: Value| {
        let mut spec = database(fields);
        spec["resolution"] = json!("DNS");
        spec
    };
    assert_eq!(names(by_name(json!({})), &[]), ["db.example.com:5432"]);
    let listed = json!({ "endpoints": [
        { "address": "a.example.com", "ports": { "tcp": 1 } }, { "address": "192.0.2.1" },
    ] });
    assert_eq!(names(by_name(listed), &[]), ["a.example.com:1", "192.0.2.1:5432"]);
    let selects = || by_name(json!({ "workloadSelector": { "labels": {} } }));
    let workload = object("WorkloadEntry", "shop/a", json!({ "address": "b.example.com" }));
    assert_eq!(names(selects(), &[workload]), ["b.example.com:5432"]);
    assert_eq!(names(selects(), &[]), Vec::<String>::new(), "selected, but none exists");
    let unresolved = database(json!({ "resolution": "NONE" }));
    assert_eq!(names(unresolved, &[]), Vec::<String>::new());
}

#[test]
fn automatic_address_depends_on_the_host_and_is_stable() {
    let vips = |objects: &[Arc<Value>], host: &str| {
        let (contents, _) = read(objects);
        record(&contents, host).service.vips.clone()
    };
    let old = || at(entry("shop/db", database(json!({}))), "2026-01-01T00:00:00Z");
    let first = vips(&[old()], "db.example.com");
    let [IpAddr::V4(address), IpAddr::V6(ipv6)] = first[..] else { panic!("{first:?}") };
    assert!(address.to_string().starts_with("240.240."), "{address}");
    assert_eq!(ipv6.to_bits() & u128::from(u32::MAX), u128::from(address.to_bits()), "{ipv6}");
    assert!(ipv6.to_string().starts_with("2001:2::"), "{ipv6}");
    let later = (0..2000).map(|number| {
        let host = format!("h{number}.example.com");
        let fields = json!({ "hosts": [host] });
        at(entry(&format!("shop/h{number}"), database(fields)), "2026-01-02T00:00:00Z")
    });
    let objects: Vec<_> = later.chain([old()]).collect();
    let (contents, _) = read(&objects);
    assert_eq!(record(&contents, "db.example.com").service.vips, first);
    let all: std::collections::BTreeSet<_> =
        contents.services.values().flatten().flat_map(|one| one.service.vips.clone()).collect();
    assert_eq!(all.len(), 2 * 2001, "each its own");
    for fields in [json!({ "hosts": ["*.example.com"] }), json!({ "resolution": "NONE" })] {
        let host = fields["hosts"][0].as_str().unwrap_or("db.example.com").to_owned();
        assert!(vips(&[entry("shop/db", database(fields))], &host).is_empty());
    }
}

#[test]
fn address_in_the_status_is_used_unless_another_host_has_it() {
    let status = |host: &str, addresses: &[&str]| {
        let allocation = |address: &&str| json!({ "host": host, "value": address });
        addresses.iter().map(allocation).collect::<Vec<_>>()
    };
    let with_status = |name: &str, host: &str, addresses: &[&str], at_: &str| {
        let mut object = entry(name, database(json!({ "hosts": [host] })));
        Arc::make_mut(&mut object)["status"] = json!({ "addresses": status(host, addresses) });
        at(object, at_)
    };
    let (old, young) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let both = ["240.240.0.7", "2001:2::f0f0:7"];
    let named = database(json!({ "hosts": ["named.example"], "addresses": ["240.240.0.9"] }));
    let objects = [
        with_status("shop/a", "a.example", &both, young),
        with_status("shop/b", "b.example", &both[..1], old),
        with_status("shop/c", "c.example", &["240.240.0.9"], old),
        with_status("shop/d", "d.example", &["192.0.2.7"], old),
        with_status("shop/e", "e.example", &["nonsense", "240.240.0.11"], old),
        with_status("shop/f", "*.f.example", &["240.240.0.12"], old),
        entry("shop/named", named),
    ];
    let (contents, problems) = read(&objects);
    assert_eq!(problems, Vec::<String>::new());
    let vips = |host: &str| -> Vec<String> {
        record(&contents, host).service.vips.iter().map(ToString::to_string).collect()
    };
    assert_eq!(vips("b.example"), ["240.240.0.7"], "the older host has it");
    assert_eq!(vips("e.example"), ["240.240.0.11"]);
    assert_eq!(vips("*.f.example"), Vec::<String>::new());
    for host in ["a.example", "c.example", "d.example"] {
        let vips = vips(host);
        assert_eq!(vips.len(), 2, "{host} has other addresses: {vips:?}");
        assert!(
            !vips
                .iter()
                .any(|one| ["240.240.0.7", "240.240.0.9", "192.0.2.7"].contains(&one.as_str()))
        );
    }
    // No other host has these addresses.
    let (contents, _) = read(&objects[..1]);
    let vips = &record(&contents, "a.example").service.vips;
    assert_eq!(vips.iter().map(ToString::to_string).collect::<Vec<_>>(), both);
}

#[test]
fn deleted_entry_leaves_other_entries_of_its_host() {
    let with = |name: &str, address: &str| {
        entry(name, database(json!({ "endpoints": [{ "address": address }] })))
    };
    let (a, b) = (with("shop/a", "10.0.0.1"), with("shop/b", "10.0.0.2"));
    let mut index = TrackedIndex::new();
    let both = index.apply(&[a, b.clone()]);
    assert_eq!(sockets(&both, "db.example.com"), ["10.0.0.1:5432", "10.0.0.2:5432"]);
    let after_first = index.apply(&[b]);
    assert_eq!(sockets(&after_first, "db.example.com"), ["10.0.0.2:5432"]);
    let after_both = index.apply(&[]);
    assert!(after_both.services.get("db.example.com").and_then(Option::as_ref).is_none());
}

#[test]
fn entry_without_an_address_needs_a_network() {
    let vm = |name: &str, mut spec: Value| {
        spec["labels"] = json!({ "app": "db" });
        spec["serviceAccount"] = json!("db");
        object("WorkloadEntry", name, spec)
    };
    let selecting =
        json!({ "workloadSelector": { "labels": { "app": "db" } }, "location": "MESH_INTERNAL" });
    let (contents, problems) = read(&[
        entry("shop/db", database(selecting)),
        vm("shop/nowhere", json!({})),
        vm("shop/there", json!({ "network": "n2" })),
    ]);
    let empty = "is empty, which is allowed only with a network";
    let expected =
        format!("WorkloadEntry shop/nowhere: spec.address: {empty}; the object has no effect");
    assert_eq!(problems, [expected]);
    let [there] = <[Endpoint; 1]>::try_from(endpoints(&contents, "db.example.com")).expect("one");
    assert_eq!((there.address, there.network_label), (NO_ADDRESS, Some("n2".into())));
    assert_eq!(there.tls_mode, TlsMode::Istio);

    // The same applies to inline endpoints, but not to DNS names.
    let inline = |resolution: &str| {
        let endpoints = json!([{ "network": "n2" }, { "address": "10.0.0.1" }]);
        database(json!({ "resolution": resolution, "endpoints": endpoints }))
    };
    let (contents, problems) = read(&[entry("shop/db", inline("STATIC"))]);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(sockets(&contents, "db.example.com"), ["0.0.0.0:5432", "10.0.0.1:5432"]);
    let (contents, _) = read(&[entry("shop/db", inline("DNS"))]);
    let Resolution::ByName(named) = &record(&contents, "db.example.com").service.resolution else {
        panic!("by name")
    };
    assert_eq!(named.endpoints.len(), 1);
}

/// Generator of random entries. There are few names, hosts and labels, so that entries conflict.
struct Dice(StdRng);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0.random_range(0..sides)
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[usize::try_from(self.roll(all.len() as u64)).expect("a place")]
    }

    fn labels(&mut self) -> Value {
        json!({ "app": self.pick(&["a", "b"]) })
    }

    fn service_entry(&mut self) -> Value {
        let mut hosts = vec![self.pick(&["a.example", "b.example", "c.example", "*.d.example"])];
        let more = self.pick(&["a.example", "e.example", "f.example"]);
        if self.roll(3) == 0 && !hosts.contains(&more) {
            hosts.push(more);
        }
        let resolution = self.pick(&["STATIC", "STATIC", "DNS", "NONE", "nonsense"]);
        let number = self.pick(&["80", "443"]).parse::<u16>().expect("a number");
        let mut spec = json!({
            "hosts": hosts,
            "ports": [{ "number": number, "name": self.pick(&["x", "y"]), "protocol": "TCP" }],
            "resolution": resolution,
            "location": self.pick(&["MESH_INTERNAL", "MESH_EXTERNAL"]),
            "exportTo": [self.pick(&["*", "."])],
        });
        match self.roll(4) {
            0 => spec["workloadSelector"] = json!({ "labels": self.labels() }),
            1 => {
                let address = format!("10.0.0.{}", self.roll(4));
                spec["endpoints"] = json!([{ "address": address, "serviceAccount": "x" }]);
            }
            2 => spec["workloadSelector"] = json!({ "labels": {} }),
            _ => {}
        }
        if self.roll(3) == 0 {
            spec["addresses"] = json!([self.pick(&["192.0.2.1", "240.240.0.9", "0.0.0.0"])]);
        }
        spec
    }

    fn workload_entry(&mut self) -> Value {
        let address = self.pick(&["10.0.0.7", "10.0.0.8", "vm.example", "", "not a name"]);
        json!({ "address": address, "labels": self.labels(), "network": self.pick(&["", "n1"]) })
    }

    fn object(&mut self) -> Arc<Value> {
        let kind = self.pick(&["ServiceEntry", "ServiceEntry", "WorkloadEntry"]);
        let spec = match kind {
            "ServiceEntry" => self.service_entry(),
            _ => self.workload_entry(),
        };
        let name = format!("{}/{}", self.pick(&["shop", "bank"]), self.pick(&["a", "b", "c", "d"]));
        let entry = at(
            object(kind, &name, spec),
            self.pick(&["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
        );
        let mut entry = Value::clone(&entry);
        if self.roll(4) == 0 {
            let host = self.pick(&["a.example", "b.example"]);
            entry["status"] = json!({ "addresses": [{ "host": host, "value": self.pick(&["240.240.0.7", "240.240.0.9"]) }] });
        }
        Arc::new(entry)
    }
}

#[test]
fn incremental_and_complete_application_have_the_same_result() {
    for seed in 0..rounds(25) {
        let mut dice = Dice(StdRng::seed_from_u64(seed));
        let mut tracked = TrackedIndex::new();
        let (mut objects, mut good) = (Collection::default(), Collection::default());
        for step in 0..40 {
            let object = dice.object();
            let key = ObjectKey::of(&object).expect("a key");
            if dice.roll(4) == 0 {
                objects.remove(&key);
                good.remove(&key);
            } else {
                objects.insert(key.clone(), Arc::clone(&object));
                if read(&[Arc::clone(&object)])
                    .1
                    .iter()
                    .all(|one| !one.contains("the object has no effect"))
                {
                    good.insert(key, object);
                }
            }
            match dice.roll(12) {
                0 => tracked.export_by_default(&["*".to_owned()]),
                1 => tracked.export_by_default(&[".".to_owned()]),
                2 => tracked.move_to("example.org"),
                3 => tracked.shadowed(&[(vec!["a.example".into()], format!("shadowed at {step}"))]),
                _ => {}
            }
            tracked.take(&objects);

            // Applies the last valid versions first, then the current objects.
            let mut rebuilt =
                TrackedIndex { index: tracked.index.like(), services: BTreeMap::new() };
            rebuilt.take(&good);
            rebuilt.take(&objects);
            let context = format!("seed {seed}, step {step}: {objects:#?}");
            assert_eq!(tracked.services, rebuilt.services, "{context}");
            assert_eq!(tracked.problems(), rebuilt.problems(), "{context}");
            assert_eq!(tracked.selections(), rebuilt.selections(), "{context}");
            assert_eq!(tracked.last_valid_objects(), rebuilt.last_valid_objects(), "{context}");
        }
    }
}

#[test]
fn only_the_changed_entry_is_sent() {
    let named = |number: usize, address: &str| {
        let spec = database(json!({
            "hosts": [format!("h{number}.example.com")],
            "endpoints": [{ "address": address }],
        }));
        at(entry(&format!("shop/e{number}"), spec), "2026-01-01T00:00:00Z")
    };
    let mut objects: Collection = (0..500).map(|number| named(number, "10.0.0.1")).collect();
    let mut tracked = TrackedIndex::new();
    assert_eq!(tracked.take(&objects), Some(500));
    let mut put = |tracked: &mut TrackedIndex, object: Arc<Value>| {
        objects.insert(ObjectKey::of(&object).expect("a key"), object);
        tracked.take(&objects)
    };
    assert_eq!(put(&mut tracked, named(7, "10.0.0.2")), Some(1));
    assert_eq!(put(&mut tracked, named(7, "10.0.0.2")), None);
    assert_eq!(put(&mut tracked, at(named(1000, "10.0.0.1"), "2026-02-01T00:00:00Z")), Some(1));
}

#[test]
fn label_keeps_an_entry_in_the_cluster_of_its_store_and_other_values_are_ignored() {
    let read = |value: &str| {
        let object = json!({
            "metadata": {"labels": {"strait.dev/share": value}},
            "spec": {"hosts": ["a.example"], "ports": [{"name": "tcp", "number": 80}], "resolution": "NONE"},
        });
        let (entry, _) = service_entry(WorkloadKey::new("shop", "a"), &object, &[]).expect("valid");
        let faults: Vec<_> = entry.faults.iter().map(|one| one.fault.to_string()).collect();
        (entry.share, faults.join("; "))
    };
    assert_eq!(read("false"), (Some(false), String::new()));
    assert_eq!(read("true"), (Some(true), String::new()));
    let ignored = "metadata.labels[strait.dev/share]: \"no\" is neither true nor false";
    assert_eq!(read("no"), (None, ignored.to_owned()));
}
