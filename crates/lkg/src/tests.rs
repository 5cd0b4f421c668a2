mod crash;
mod exports;

use std::fs;
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use super::files::{GENERATIONS, open_file, to_file};
use super::flaw::{Flaw, OLDEST, VERSION};
use super::*;
use strait_model::{
    Addresses, ByName, ClusterExports, ClusterFacts, Collection, DeclaredGateway, Definition,
    Distribution, Endpoint, ExportTo, GatewayHost, Health, Labels, Locality, Mode, NamedEndpoint,
    NamedPodScope, ObjectKey, PodState, Port, Profile, Protocol, Resolution, Service, SharingFacts,
    TargetPort, TlsMode, UidMark, Workload, WorkloadKey, Workloads,
};

fn origin() -> StateOrigin {
    StateOrigin {
        domain: "cluster.local".into(),
        trust_domain: "example.org".into(),
        system_namespace: "strait-system".into(),
    }
}

/// A generator of random values: over many seeds, every field takes every value, in all combinations.
struct Dice(StdRng);

impl Dice {
    fn upto(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    fn flip(&mut self) -> bool {
        self.0.random()
    }

    fn sharing(&mut self) -> SharingFacts {
        loop {
            if let Some(facts) = SharingFacts::from_code(self.0.random()) {
                return facts;
            }
        }
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all.choose(&mut self.0).expect("one to choose").clone()
    }

    fn text(&mut self) -> Arc<str> {
        self.of(&["", "a", "cart", "cart-1", "ü-é", "üb", "spiffe://a/ns/b/sa/c"]).into()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flip() { Some(make(self)) } else { None }
    }

    fn some<T, C: FromIterator<T>>(&mut self, make: impl Fn(&mut Self) -> T) -> C {
        (0..self.upto(4)).map(|_| make(self)).collect()
    }

    fn address(&mut self) -> std::net::IpAddr {
        if self.flip() {
            std::net::Ipv4Addr::from_bits(self.0.random()).into()
        } else {
            std::net::Ipv6Addr::from_bits(self.0.random()).into()
        }
    }

    fn by_name(&mut self) -> ByName {
        ByName {
            just_then: self.flip(),
            endpoints: self.some(|dice| NamedEndpoint {
                address: dice.text(),
                ports: dice.some(|dice| (dice.text(), dice.0.random())),
                weight: dice.0.random(),
                locality: dice.locality(),
                network: dice.flip().then(|| dice.text().as_ref().into()),
                tls_mode: dice.of(&[TlsMode::Istio, TlsMode::Disabled]),
                // Labels are not stored.
                labels: None,
            }),
        }
    }

    fn locality(&mut self) -> Arc<Locality> {
        Arc::new(Locality::parse(self.of(&["", "r/z/s", "r/z", "q//s"])))
    }

    fn facts(&mut self) -> ClusterFacts {
        let names = |dice: &mut Self| WorkloadKey::new(&*dice.text(), dice.text());
        ClusterFacts {
            localities: Arc::new(self.some(|dice| (dice.text(), dice.locality()))),
            unready: self.some(names),
            unserved: Arc::default(),
            gateways: Arc::new(self.some(|dice| {
                let gateway = DeclaredGateway {
                    network: dice.text().as_ref().into(),
                    of_config_cluster_only: dice.flip(),
                    addresses: dice.some(|dice| {
                        if dice.flip() {
                            GatewayHost::Address(dice.address())
                        } else {
                            GatewayHost::Name(dice.text())
                        }
                    }),
                    entrances: dice.some(|dice| (dice.0.random(), dice.0.random())),
                };
                (names(dice), gateway)
            })),
            entries: Arc::new(self.some(|dice| {
                let entry = serde_json::json!({"spec": {"address": *dice.text()}, "status": null});
                (names(dice), Arc::new(entry))
            })),
            traffic: if self.flip() { Collection::default() } else { self.own_traffic() },
            exports: if self.flip() { ClusterExports::default() } else { self.exports() },
        }
    }

    fn own_traffic(&mut self) -> Collection {
        let objects: Vec<_> = self.some(|dice| {
            let metadata = serde_json::json!({"namespace": *dice.text(), "name": *dice.text()});
            Arc::new(serde_json::json!({
                "apiVersion": "networking.istio.io/v1",
                "kind": "Sidecar",
                "metadata": metadata,
                "spec": {"egress": [*dice.text()]},
            }))
        });
        objects.into_iter().collect()
    }

    fn range(&mut self) -> ipnet::IpNet {
        let (address, length) = (self.address(), self.upto(33));
        ipnet::IpNet::new(address, u8::try_from(length).expect("small")).expect("at most 32")
    }

    fn labels(&mut self) -> Labels {
        self.some(|dice| (dice.text(), dice.text()))
    }

    fn service(&mut self) -> Service {
        use Protocol::*;
        let protocols =
            [Http, Http2, Grpc, GrpcWeb, Https, Tls, Tcp, Mysql, Mongo, Redis, Udp, Auto];
        let definition = Definition {
            hostname: Hostname::new(self.text()),
            name: self.text(),
            namespace: self.text().as_ref().into(),
            ports: self.some(|dice| Port {
                name: dice.text(),
                number: dice.0.random(),
                protocol: dice.of(&protocols),
                target: if dice.flip() {
                    TargetPort::Number(dice.0.random())
                } else {
                    TargetPort::Name(dice.text())
                },
            }),
            resolution: match self.upto(5) {
                0 => Resolution::ClientSide,
                1 => Resolution::Headless,
                2 => Resolution::Passthrough,
                3 => Resolution::ByName(self.by_name()),
                _ => Resolution::Alias(Hostname::new(self.text())),
            },
            ranges: self.some(Self::range),
            labels: self.labels(),
            selector: self.labels(),
            service_accounts: self.some(Self::text),
            export_to: if self.flip() {
                ExportTo::Public
            } else {
                ExportTo::Namespaces(self.some(|dice| dice.text().as_ref().into()))
            },
            node_local: self.flip(),
            prefers: self.of(&[Distribution::Any, Distribution::SameZone, Distribution::SameNode]),
            sharing: self.sharing(),
            named_pods: NamedPodScope { unready: self.flip(), everywhere: self.flip() },
            affinity_seconds: self.flip().then_some(7),
            mesh_external: self.flip(),
        };
        Service {
            definition: Arc::new(definition),
            vips: self.some(Self::address),
            external_addresses: self.some(Self::text),
            external_ports: self.some(|dice| (dice.0.random(), dice.0.random())),
            created: self.0.random(),
        }
    }

    fn endpoint(&mut self) -> Endpoint {
        use Health::*;
        Endpoint {
            address: self.address(),
            port: self.0.random(),
            port_name: self.text(),
            health: self.of(&[Healthy, Unhealthy, Draining, Terminating]),
            weight: self.0.random(),
            locality: self.locality(),
            network_label: self.maybe(|dice| dice.text().as_ref().into()),
            tls_mode: self.of(&[TlsMode::Istio, TlsMode::Disabled]),
            service_account: self.maybe(Self::text),
            workload: self.maybe(|dice| {
                let namespace = dice.text();
                Arc::new(WorkloadKey::new(&*namespace, dice.text()))
            }),
            pod: self.of(&[
                PodState::Known,
                PodState::Missing,
                PodState::Unnamed,
                PodState::Mirrored,
            ]),
            node: self.maybe(Self::text),
            hostname: self.maybe(Self::text),
            telemetry: self.maybe(Self::text),
            labels: self.maybe(|dice| Arc::new(dice.labels())),
        }
    }

    fn workloads(&mut self) -> Workloads {
        let mut workloads = Workloads::default();
        let profiles: [Arc<Profile>; 3] = std::array::from_fn(|_| {
            Arc::new(Profile {
                labels: Arc::new(self.labels()),
                service_account: self.text(),
                identity: self.text(),
                tls_mode: self.of(&[TlsMode::Istio, TlsMode::Disabled]),
                network_label: self.maybe(|dice| dice.text().as_ref().into()),
                locality: self.maybe(Self::locality),
                telemetry: self.maybe(Self::text),
                subdomain: self.maybe(Self::text),
                named_ports: self.some(|dice| (dice.text(), dice.0.random())),
            })
        });
        for at in 0..self.upto(150) {
            let addresses: Addresses = self.some(Self::address);
            let uid = self.maybe(Self::text).unwrap_or_default();
            let pod = Workload {
                profile: self.of(&profiles),
                addresses: addresses.marked(UidMark::of(&uid)),
                node: self.maybe(|dice| Arc::new(dice.text())),
            };
            let namespace = self.text();
            workloads.insert(&namespace, &format!("{}-{at}", self.text()), pod);
        }
        workloads
    }

    fn shard(&mut self, cluster: &str) -> ShardState {
        let mut services = BTreeMap::new();
        for at in 0..self.upto(20) {
            let service = Arc::new(self.service());
            let copies = 1 + self.upto(3);
            let kinds: Vec<_> = (0..self.upto(10)).map(|_| self.endpoint()).collect();
            let endpoints: Vec<_> =
                kinds.iter().flat_map(|one| std::iter::repeat_n(one.clone(), copies)).collect();
            let record = ServiceRecord { service, endpoints: endpoints.into() };
            services.insert(Hostname::from(format!("{at}.{}", self.text())), record);
        }
        ShardState {
            cluster: cluster.into(),
            uid: self.maybe(Self::text),
            network_label: self.maybe(|dice| dice.text().as_ref().into()),
            workloads: self.workloads(),
            facts: self.facts(),
            services,
        }
    }
}

fn dice(seed: u64) -> Dice {
    Dice(StdRng::seed_from_u64(seed))
}

/// Returns a shard of `cluster` that varies with `seed`.
fn shard(cluster: &str, seed: u64) -> ShardState {
    dice(seed).shard(cluster)
}

fn members(seed: u64) -> MembersState {
    let mut dice = dice(seed);
    let note = |dice: &mut Dice| Note {
        secret: dice.maybe(Dice::text),
        network: dice.maybe(|dice| dice.text().as_ref().into()),
        mode: dice.of(&[Mode::Normal, Mode::Drain, Mode::Pause]),
        last_contact: dice.maybe(|dice| dice.0.random()),
    };
    let mesh = |dice: &mut Dice| dice.some(|dice| (dice.text().to_string(), "x: y".to_owned()));
    MembersState {
        members: (0..dice.upto(5)).map(|at| (at.to_string().into(), note(&mut dice))).collect(),
        sources: dice.some(|dice| (dice.text(), dice.0.random())),
        mesh: dice.maybe(mesh),
        created: dice.some(|dice| (dice.text().as_ref().into(), dice.0.random())),
        found_by: dice.some(|dice| (dice.text().as_ref().into(), dice.text())),
    }
}

fn stored(name: &str, spec: serde_json::Value) -> Arc<serde_json::Value> {
    let (api, metadata) = ("networking.istio.io/v1", serde_json::json!({"name": name}));
    Arc::new(serde_json::json!({
        "apiVersion": api, "kind": "ServiceEntry", "metadata": metadata, "spec": spec,
    }))
}

/// Returns the state of a datacentre and of a store that vary with `seed`.
fn others(seed: u64) -> (DatacentreState, StoredObjects) {
    let mut dice = dice(seed);
    let ShardState { services, .. } = dice.shard("");
    let object = |dice: &mut Dice| {
        let spec = serde_json::json!({"hosts": [*dice.text()], "weight": dice.0.random::<u32>()});
        stored(&dice.text(), spec)
    };
    let objects = dice.some::<_, Vec<_>>(object).into_iter().collect();
    let store = format!("xds://[::1]:{seed}/ü").into();
    (DatacentreState { name: "consul/dc_1".into(), services }, StoredObjects { store, objects })
}

#[test]
fn files_of_objects_are_stored_separately() {
    let key = |kind: &str, name: &str| ObjectKey {
        kind: kind.into(),
        group: "".into(),
        namespace: "shop".into(),
        name: name.into(),
    };
    let files = [
        ("a.yaml".into(), Arc::new(vec![key("Secret", "east"), key("Secret", "west")])),
        ("b.yaml".into(), Arc::new(Vec::new())),
    ];
    let files = StoredFiles { store: "config directory".into(), files: Arc::new(files.into()) };
    let directory = tempfile::tempdir().expect("a directory");
    store(&directory).put(&files).expect("written");
    assert_eq!(store(&directory).read_all::<StoredFiles>(), [(files, None)]);
    assert_eq!(store(&directory).read_all::<StoredObjects>(), []);
}

fn clusters(store: &mut StateDirectory) -> Vec<String> {
    store.read_all::<ShardState>().into_iter().map(|(shard, _)| shard.cluster.to_string()).collect()
}

fn store(directory: &TempDir) -> StateDirectory {
    StateDirectory::open(&directory.path().join("lkg"), origin())
}

fn files(directory: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.path().join("lkg")).expect("it is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

#[test]
fn values_survive_a_round_trip_with_equal_bytes() {
    for seed in 0..200 {
        let east = shard("east", seed);
        let (bytes, _) = to_file(&east, &origin());
        let (read, _) = open_file::<ShardState>(&bytes, &origin()).expect("sound");
        assert_eq!(read, east, "seed {seed}");
        let (again, _) = to_file(&read, &origin());
        assert!(bytes == again, "seed {seed}: equal values have different bytes");
        let (bytes, _) = to_file(&members(seed), &origin());
        assert_eq!(open_file(&bytes, &origin()).map(|(read, _)| read), Ok(members(seed)));
        let (datacentre, objects) = others(seed);
        let (bytes, _) = to_file(&datacentre, &origin());
        assert_eq!(open_file(&bytes, &origin()).map(|(read, _)| read), Ok(datacentre));
        let (bytes, _) = to_file(&objects, &origin());
        assert_eq!(open_file(&bytes, &origin()).map(|(read, _)| read), Ok(objects));
    }
}

#[test]
fn truncated_file_is_refused() {
    let (bytes, _) = to_file(&shard("east", 7), &origin());
    for length in 0..bytes.len() {
        let flaw = open_file::<ShardState>(&bytes[..length], &origin()).expect_err("cut");
        assert!(matches!(flaw, Flaw::Length { .. }), "{length}: {flaw}");
    }
    let longer = [&bytes[..], b"x"].concat();
    let flaw = open_file::<ShardState>(&longer, &origin()).expect_err("longer");
    assert!(matches!(flaw, Flaw::Length { .. }), "{flaw}");
}

#[test]
fn file_with_a_flipped_bit_is_refused() {
    let (bytes, _) = to_file(&dice(1).service_only(), &origin());
    for at in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(open_file::<ShardState>(&damaged, &origin()).is_err(), "bit {at}");
    }
}

impl Dice {
    /// Returns a small shard, for tests that flip every bit.
    fn service_only(&mut self) -> ShardState {
        let services = [(
            Hostname::from("a"),
            ServiceRecord {
                service: Arc::new(self.service()),
                endpoints: vec![self.endpoint()].into(),
            },
        )];
        ShardState {
            cluster: "east".into(),
            uid: None,
            network_label: None,
            workloads: Workloads::default(),
            facts: self.facts(),
            services: services.into(),
        }
    }
}

#[test]
fn decoding_random_bytes_does_not_panic() {
    use super::codec::{Encode as _, StateDecoder};
    for seed in 0..20_000 {
        let mut dice = dice(seed);
        let bytes: Vec<u8> = if seed % 2 == 0 {
            (0..dice.upto(60)).map(|_| dice.0.random()).collect()
        } else {
            let (mut bytes, _) = to_file(&dice.service_only(), &origin());
            let at = dice.upto(bytes.len());
            bytes[at] = dice.0.random();
            bytes.split_off(36)
        };
        // Decoding may fail, but it ends and does not panic.
        let _ = ShardState::read(&mut StateDecoder::new(&bytes));
        let _ = MembersState::read(&mut StateDecoder::new(&bytes));
        let _ = DatacentreState::read(&mut StateDecoder::new(&bytes));
        let _ = StoredObjects::read(&mut StateDecoder::new(&bytes));
    }
}

#[test]
fn invalid_file_is_refused_with_the_reason() {
    let (good, _) = to_file(&shard("east", 3), &origin());
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let other_domain = StateOrigin { domain: "other.local".into(), ..origin() };
    let cases: [(&str, Vec<u8>, &str); 5] = [
        ("foreign", b"apiVersion: v1\nkind: List\n".to_vec(), "not a file of last-known-good"),
        (
            "future",
            with(&|bytes| bytes[8] = VERSION as u8 + 1),
            "has format 8; this version reads formats 5 to 7",
        ),
        ("damaged", with(&|bytes| *bytes.last_mut().expect("bytes") ^= 1), "checksum is wrong"),
        ("another cluster's", to_file(&shard("west", 3), &origin()).0, "holds cluster west"),
        ("another domain's", to_file(&shard("east", 3), &other_domain).0, "another --domain"),
    ];
    for (name, bytes, reason) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let mut first = store(&directory);
        first.put(&shard("east", 1)).expect("written");
        first.put(&shard("east", 2)).expect("written");
        let newest = files(&directory).pop().expect("two files");
        fs::write(&newest, bytes).expect("written");
        let mut second = store(&directory);
        let (read, refused) = second.read::<ShardState>("east");
        assert_eq!(read, Some(shard("east", 1)), "{name}");
        let refused = refused.expect("a reason").to_string();
        assert!(refused.contains(reason), "{name}: {refused}");
        assert!(refused.contains(&*newest.to_string_lossy()), "{name}: {refused}");
        // The next generation is above the refused one.
        second.put(&shard("east", 4)).expect("written");
        assert_eq!(store(&directory).read::<ShardState>("east"), (Some(shard("east", 4)), None));
    }
}

#[test]
fn generations_are_limited_and_equal_state_is_not_rewritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut first = store(&directory);
    for seed in 0..10 {
        assert_ne!(first.put(&shard("east", seed)).expect("written"), 0);
        assert_eq!(first.put(&shard("east", seed)).expect("nothing to do"), 0);
        first.put_members(&members(seed)).expect("written");
    }
    first.put(&shard("a.b", 1)).expect("written");
    assert_eq!(files(&directory).len(), 2 * GENERATIONS + 1);
    let mut second = store(&directory);
    assert_eq!(clusters(&mut second), ["a.b", "east"]);
    assert_eq!(second.read::<ShardState>("east"), (Some(shard("east", 9)), None));
    assert_eq!(second.members(), (Some(members(9)), None));
    // The content of the newest file is known from reading, too.
    assert_eq!(second.put(&shard("east", 9)).expect("nothing to do"), 0);
    second.forget_others::<ShardState>(["a.b", "west"].into_iter()).expect("removed");
    assert_eq!(clusters(&mut store(&directory)), ["a.b"]);
    assert_eq!(store(&directory).members(), (Some(members(9)), None));
}

#[test]
fn sources_with_any_name_have_separate_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut first = store(&directory);
    let (datacentre, objects) = others(1);
    first.put(&datacentre).expect("written");
    // The longest names differ only at the end.
    let long = ["a", "b"].map(|end| StoredObjects {
        store: format!("fs:///{}{end}", "x/".repeat(1000)).into(),
        ..objects.clone()
    });
    for stored in long.iter().chain([&objects]) {
        first.put(stored).expect("written");
    }
    let mut second = store(&directory);
    assert_eq!(second.read_all(), [(datacentre.clone(), None)]);
    let read = second.read_all::<StoredObjects>().into_iter().map(|(one, _)| one.store);
    let mut wanted: Vec<_> = long.iter().chain([&objects]).map(|one| &one.store).cloned().collect();
    wanted.sort();
    let mut read: Vec<_> = read.collect();
    read.sort();
    assert_eq!(read, wanted);
    second.forget_others::<StoredObjects>([&*objects.store].into_iter()).expect("removed");
    assert_eq!(store(&directory).read_all(), [(objects, None)]);
    assert_eq!(store(&directory).read_all(), [(datacentre, None)]);
}

#[test]
fn interrupted_write_leaves_the_previous_file() {
    let directory = tempfile::tempdir().expect("a directory");
    store(&directory).put(&shard("east", 1)).expect("written");
    let (half, _) = to_file(&shard("east", 2), &origin());
    let unfinished = directory.path().join("lkg").join(".cluster-east.new");
    fs::write(unfinished, &half[..half.len() / 2]).expect("written");
    let mut second = store(&directory);
    assert_eq!(second.read::<ShardState>("east"), (Some(shard("east", 1)), None));
    second.put(&shard("east", 3)).expect("written over it");
    assert_eq!(store(&directory).read::<ShardState>("east"), (Some(shard("east", 3)), None));
}

#[test]
fn files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    store(&directory).put(&shard("east", 1)).expect("written");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&directory.path().join("lkg")), 0o700);
    assert_eq!(mode(&files(&directory)[0]), 0o600);
}

/// 100,000 endpoints with their pods in one cluster. The test prints the durations.
#[test]
fn file_of_100000_endpoints_stays_below_10_megabytes() {
    let began = std::time::Instant::now();
    let directory = tempfile::tempdir().expect("a directory");
    let large = large(100_000);
    let made = began.elapsed();
    let began = std::time::Instant::now();
    let bytes = store(&directory).put(&large).expect("written");
    let written = began.elapsed();
    let began = std::time::Instant::now();
    let (read, _) = store(&directory).read::<ShardState>("east");
    let loaded = began.elapsed();
    println!("made {made:?}, {bytes} bytes written in {written:?}, loaded in {loaded:?}");
    assert!(read == Some(large));
    assert!(bytes < 10_000_000, "{bytes} bytes");
}

fn large(count: u32) -> ShardState {
    let mut workloads = Workloads::default();
    let mut services = BTreeMap::new();
    let locality: Arc<Locality> = Arc::new(Locality::parse("r/z/s"));
    let nodes: Vec<Arc<Arc<str>>> =
        (0..500).map(|at| Arc::new(format!("node-{at}").into())).collect();
    for service in 0..count / 100 {
        let name: Arc<str> = format!("service-{service}").into();
        let identity: Arc<str> = format!("spiffe://cluster.local/ns/shop/sa/{name}").into();
        let labels: Labels = [("app".into(), Arc::clone(&name))].into();
        let profile = Arc::new(Profile {
            labels: Arc::new(labels.clone()),
            service_account: Arc::clone(&name),
            identity: Arc::clone(&identity),
            tls_mode: TlsMode::Istio,
            ..Profile::default()
        });
        let endpoints = (0..100_u32).map(|at| {
            let number = service * 100 + at;
            let hash = number.wrapping_mul(2_654_435_761);
            let pod = format!("{name}-{:06x}-{:05x}", hash % 0xff_ffff, number * 7919 % 0xf_ffff);
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into();
            let workload = Workload {
                profile: Arc::clone(&profile),
                addresses: [address].into_iter().collect(),
                node: nodes.get(number as usize % 500).cloned(),
            };
            workloads.insert(&"shop".into(), &pod, workload);
            Endpoint {
                address,
                port: 8080,
                port_name: "http".into(),
                health: Health::Healthy,
                weight: 1,
                locality: Arc::clone(&locality),
                network_label: None,
                tls_mode: TlsMode::Istio,
                service_account: Some(Arc::clone(&identity)),
                workload: Some(Arc::new(WorkloadKey::new("shop", pod))),
                pod: PodState::Known,
                node: None,
                hostname: None,
                telemetry: None,
                labels: Some(Arc::clone(&profile.labels)),
            }
        });
        let endpoints: Vec<_> = endpoints.collect();
        let hostname = Hostname::of_kubernetes_service(&name, "shop", "cluster.local");
        let mut service = dice(u64::from(service)).service();
        (service.name, service.hostname, service.selector) = (name, hostname.clone(), labels);
        let record = ServiceRecord { service: Arc::new(service), endpoints: endpoints.into() };
        services.insert(hostname, record);
    }
    let (uid, network_label, facts) = (None, None, ClusterFacts::default());
    ShardState { cluster: "east".into(), uid, network_label, workloads, facts, services }
}

/// Returns the folder of state files that an earlier version wrote.
fn earlier(version: u32) -> PathBuf {
    strait_base::testing::repository().join(format!("tests/lkg/format-{version}"))
}

/// Returns the content of the files in `tests/lkg`: one cluster, one datacentre and one store, with every kind
/// of field. Endpoints have labels since format 7.
fn of_version(version: u32) -> (ShardState, DatacentreState, StoredObjects, MembersState) {
    let key = |name: &str| WorkloadKey::new("shop", name);
    let locality = Arc::new(Locality::parse("r/z/s"));
    let account: Arc<str> = "spiffe://cluster.local/ns/shop/sa/cart".into();
    let profile = Arc::new(Profile {
        labels: Arc::new([("app".into(), "cart".into())].into()),
        service_account: "cart".into(),
        identity: Arc::clone(&account),
        tls_mode: TlsMode::Istio,
        network_label: Some("n2".into()),
        locality: Some(Arc::clone(&locality)),
        telemetry: Some("cart".into()),
        subdomain: Some("pets".into()),
        named_ports: [("http".into(), 8080)].into_iter().collect(),
    });
    let mut workloads = Workloads::default();
    for (name, address) in [("cart-7d8b9-aaaaa", "10.0.0.1"), ("cart-7d8b9-bbbbb", "fd00::2")] {
        let pod = Workload {
            profile: Arc::clone(&profile),
            addresses: [address.parse().expect("an address")].into_iter().collect(),
            node: Some(Arc::new("node-1".into())),
        };
        workloads.insert(&"shop".into(), name, pod);
    }
    let gateway = DeclaredGateway {
        network: "n2".into(),
        of_config_cluster_only: true,
        addresses: vec![
            GatewayHost::Address("198.51.100.1".parse().expect("an address")),
            GatewayHost::Name("gateway.example.org".into()),
        ],
        entrances: [(15443, 15008)].into(),
    };
    let entry = serde_json::json!({"metadata": {"name": "vm"}, "spec": {"address": "10.9.0.1"}});
    let facts = ClusterFacts {
        localities: Arc::new([("node-1".into(), Arc::clone(&locality))].into()),
        unready: [key("cart-7d8b9-bbbbb")].into_iter().collect(),
        gateways: Arc::new([(key("east-west"), gateway)].into()),
        entries: Arc::new([(key("vm"), Arc::new(entry))].into()),
        traffic: Collection::default(),
        unserved: Arc::default(),
        exports: ClusterExports::default(),
    };
    let endpoint = |address: &str, pod: Option<&str>| Endpoint {
        address: address.parse().expect("an address"),
        port: 8080,
        port_name: "http".into(),
        health: Health::Healthy,
        weight: 3,
        locality: Arc::clone(&locality),
        network_label: Some("n2".into()),
        tls_mode: TlsMode::Istio,
        service_account: Some(Arc::clone(&account)),
        workload: pod.map(|pod| Arc::new(key(pod))),
        pod: PodState::Known,
        node: Some("node-1".into()),
        hostname: None,
        telemetry: Some("cart".into()),
        labels: (version >= 7).then(|| Arc::clone(&profile.labels)),
    };
    let by_name = ByName {
        just_then: true,
        endpoints: vec![NamedEndpoint {
            address: "db.example.org".into(),
            ports: [("tcp".into(), 5432)].into_iter().collect(),
            weight: 2,
            locality: Arc::clone(&locality),
            network: Some("n3".into()),
            tls_mode: TlsMode::Disabled,
            labels: None,
        }],
    };
    let record = |name: &str, resolution: Resolution, endpoints: Vec<Endpoint>| {
        let hostname = Hostname::from(format!("{name}.shop.svc.cluster.local"));
        let definition = Definition {
            hostname: hostname.clone(),
            name: name.into(),
            namespace: "shop".into(),
            ports: vec![
                Port {
                    name: "http".into(),
                    number: 80,
                    protocol: Protocol::Http,
                    target: TargetPort::Name("http".into()),
                },
                Port {
                    name: "tcp".into(),
                    number: 81,
                    protocol: Protocol::Tcp,
                    target: TargetPort::Number(8081),
                },
            ],
            resolution,
            ranges: vec!["10.1.0.0/16".parse().expect("a range")],
            labels: [("team".into(), "pets".into())].into(),
            selector: [("app".into(), "cart".into())].into(),
            service_accounts: vec![Arc::clone(&account)],
            export_to: ExportTo::Namespaces(vec!["shop".into()]),
            node_local: true,
            prefers: Distribution::SameZone,
            // A flag in earlier files, with the same byte.
            sharing: SharingFacts { export: Some(false), ..SharingFacts::default() },
            // A flag in earlier files, with the same byte.
            named_pods: NamedPodScope { unready: true, everywhere: false },
            affinity_seconds: Some(7),
            mesh_external: false,
        };
        let service = Service {
            definition: Arc::new(definition),
            vips: vec!["10.96.0.1".parse().expect("an address")],
            external_addresses: vec!["lb.example.org".into()],
            external_ports: [(80, 30080)].into_iter().collect(),
            created: 1_700_000_000,
        };
        (hostname, ServiceRecord { service: Arc::new(service), endpoints: endpoints.into() })
    };
    let two = vec![
        endpoint("10.0.0.1", Some("cart-7d8b9-aaaaa")),
        Endpoint { health: Health::Unhealthy, ..endpoint("fd00::2", None) },
    ];
    let services: BTreeMap<_, _> = [
        record("cart", Resolution::ClientSide, two),
        record("db", Resolution::ByName(by_name), Vec::new()),
        record("old", Resolution::Alias("cart.shop.svc.cluster.local".into()), Vec::new()),
    ]
    .into();
    let shard = ShardState {
        cluster: "east".into(),
        uid: Some("8a1f".into()),
        network_label: Some("n2".into()),
        workloads,
        facts,
        services: services.clone(),
    };
    let datacentre = DatacentreState { name: "consul/dc1".into(), services };
    let object = stored("a", serde_json::json!({"hosts": ["a.example"]}));
    let objects = [object].into_iter().collect();
    let objects = StoredObjects { store: "config cluster".into(), objects };
    let note = Note {
        secret: Some("strait-system/east".into()),
        network: Some("n2".into()),
        mode: Mode::Drain,
        last_contact: Some(1_700_000_000_000),
    };
    let members = MembersState {
        members: [("east".into(), note)].into(),
        sources: [("consul/dc1".into(), 1_700_000_000_001)].into(),
        mesh: Some([("mesh".to_owned(), "connectTimeout: 3s".to_owned())].into()),
        created: BTreeMap::new(),
        found_by: BTreeMap::new(),
    };
    (shard, datacentre, objects, members)
}

/// An upgrade reads the files that the last version of each format wrote.
#[test]
fn state_of_earlier_versions_is_read() {
    for version in OLDEST..=VERSION {
        let folder = earlier(version);
        let mut store = StateDirectory::open(&folder, origin());
        let (shard, datacentre, objects, members) = of_version(version);
        assert_eq!(store.read_all::<ShardState>(), [(shard, None)], "format {version}");
        assert_eq!(store.read_all::<DatacentreState>(), [(datacentre, None)], "format {version}");
        assert_eq!(store.read_all::<StoredObjects>(), [(objects, None)], "format {version}");
        assert_eq!(store.members(), (Some(members), None), "format {version}");
    }
}

/// Returns files of each kind, for the corpus of [`strait_base::testing::fuzz`].
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("shard", to_file(&shard("east", 7), &origin()).0),
        ("members", to_file(&members(7), &origin()).0),
    ]
}
