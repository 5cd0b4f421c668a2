//! What the fast path costs: bytes kept per endpoint, and work per endpoint and per change.
//!
//! `cargo bench --bench fast_path` prints times and memory. For figures that a busy machine doesn't
//! blur, count instructions: run one scenario twice under `valgrind --tool=callgrind`, with rounds
//! that differ by what is to be known, and take the difference (docs/fast-path.md).
//!
//! ```text
//! fast_path [encode|change|fanout|memory [ROUNDS]]
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait::model::{
    ClusterId, Endpoint, ExportTo, Health, Hostname, Labels, Locality, PodState, Port, Protocol,
    Proxy, Resolution, Service, TargetPort, TlsMode, WorkloadKey,
};
use strait::push::event_loop::{Event, Mesh};
use strait::push::interest::Interest;
use strait::push::{PushContext, Settings};
use strait::registry::{Change, Contents, Epoch, RegistryUpdate, ServiceRecord, ShardKey};
use strait::xds::generate::{Cache, Picture};
use strait::xds::resource::{ResourceSource, ResourceType};

const CLUSTERS: u8 = 10;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let scenario = arguments.next();
    let rounds = arguments.next().and_then(|text| text.parse().ok());
    for (name, run) in SCENARIOS {
        if scenario.as_ref().is_none_or(|wanted| wanted == name) {
            run(rounds);
        }
    }
}

type Scenario = fn(Option<usize>);
const SCENARIOS: [(&str, Scenario); 4] =
    [("encode", encode), ("change", change), ("fanout", fan_out), ("memory", memory)];

/// One service of 10 clusters with 100 endpoints each, encoded as often as is asked.
fn encode(rounds: Option<usize>) {
    let context = settled(&mut mesh(1, 100));
    let name = format!("outbound|80||{}", hostname(0));
    let endpoints = usize::from(CLUSTERS) * 100;
    let cost = time(rounds.unwrap_or(200), |_| {
        let cache = Cache::default();
        bytes_of(&context, &cache, &name)
    });
    println!("encode: {:.1} ns per endpoint", nanos(cost) / endpoints as f64);
}

/// One endpoint comes or goes in one of 10,000 services: the next context.
fn change(rounds: Option<usize>) {
    for services in [1_000, 10_000] {
        let mut mesh = mesh(services, 2);
        settled(&mut mesh);
        let words: Vec<_> =
            (0..rounds.unwrap_or(1000)).map(|round| word(round * 7 % services, round)).collect();
        let mut words = words.into_iter();
        let rounds = words.len();
        let cost = time(rounds, |_| {
            mesh.apply(Event::Registry(words.next().expect("one for each round")));
            mesh.next_version().expect("a change").0.version as usize
        });
        println!("change: {:.1} us for the next context of {services} services", nanos(cost) / 1e3);
    }
}

/// 1,000 streams that watch 50 of 1,000 names each: what one changed name costs.
fn fan_out(rounds: Option<usize>) {
    let interest = Arc::new(Interest::default());
    let streams: Vec<_> = (0..1000)
        .map(|stream| {
            let mut subscription = interest.subscribe(None);
            subscription
                .watch((0..50).map(|name| hostname((stream * 31 + name * 20) % 1000)).collect());
            subscription
        })
        .collect();
    let mut woken = 0;
    let rounds = rounds.unwrap_or(1000);
    let cost = time(rounds, |round| {
        let changes = strait::push::interest::Changes {
            endpoints: [hostname(round % 1000)].into(),
            ..Default::default()
        };
        woken += interest.mark(&changes);
        woken
    });
    drop(streams);
    println!(
        "fanout: {:.2} us per change, {} of 1000 streams woken",
        nanos(cost) / 1e3,
        woken / (rounds + 1)
    );
}

/// Resident bytes per endpoint: the mesh with 1,000 services and one view of each, encoded.
fn memory(_: Option<usize>) {
    // Each mesh stays, so that what is freed isn't taken again and hidden.
    let mut held = Vec::new();
    let mut before: Option<(usize, usize, usize)> = None;
    for per_service in [100, 200, 400] {
        let start = resident();
        let mut mesh = mesh(1000, per_service / usize::from(CLUSTERS));
        let context = settled(&mut mesh);
        let packed = resident() - start;
        let cache = Cache::default();
        for service in 0..1000 {
            bytes_of(&context, &cache, &format!("outbound|80||{}", hostname(service)));
        }
        let encoded = resident() - start;
        let endpoints = per_service * 1000;
        if let Some((fewer, less_packed, less)) = before {
            let each = |more: usize, less: usize| (more - less) as f64 / (endpoints - fewer) as f64;
            println!(
                "memory: {:.1} B for each further endpoint, {:.1} with a view of each service, encoded",
                each(packed, less_packed),
                each(encoded, less),
            );
        }
        before = Some((endpoints, packed, encoded));
        held.push((mesh, context, cache));
    }
}

fn time(rounds: usize, mut run: impl FnMut(usize) -> usize) -> Duration {
    std::hint::black_box(run(0));
    let begun = Instant::now();
    for round in 1..rounds {
        std::hint::black_box(run(round));
    }
    begun.elapsed() / u32::try_from(rounds.max(2) - 1).expect("few rounds")
}

fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

fn bytes_of(context: &Arc<PushContext>, cache: &Cache, name: &str) -> usize {
    let proxy = proxy();
    let mut picture = Picture::new(context, &proxy, "".into(), cache);
    picture.one(ResourceType::Endpoint, name).map_or(0, |resource| resource.body.len())
}

fn settled(mesh: &mut Mesh) -> Arc<PushContext> {
    mesh.apply(Event::Complete);
    mesh.next_version().expect("a first version").0
}

/// A mesh of [`CLUSTERS`] that all have the same services, with so many endpoints in each.
fn mesh(services: usize, endpoints: usize) -> Mesh {
    let mut mesh = Mesh::new(Arc::new(Settings {
        domain: "cluster.local".into(),
        trust_domain: "cluster.local".into(),
        system_namespace: "strait-system".into(),
        config_cluster: None,
        allow_direct_cross_network: false,
    }));
    for cluster in 0..CLUSTERS {
        let records = (0..services).map(|number| {
            let endpoints = (0..endpoints).map(|at| endpoint(cluster, number, at));
            let service = Arc::new(service(number));
            let record = ServiceRecord { service, endpoints: endpoints.collect::<Vec<_>>().into() };
            (hostname(number), Some(record))
        });
        mesh.apply(Event::Registry(RegistryUpdate {
            shard: shard(cluster),
            epoch: Epoch(1),
            change: Change::Reset(Contents { services: records.collect(), ..Contents::default() }),
        }));
    }
    mesh
}

/// What cluster 3 says when service `number` has one endpoint more, or less.
fn word(number: usize, round: usize) -> RegistryUpdate {
    let endpoints: Vec<_> =
        (0..3 + round / 1000 % 2).map(|at| endpoint(3, number, at + round % 5)).collect();
    let record = ServiceRecord { service: Arc::new(service(number)), endpoints: endpoints.into() };
    let services = [(hostname(number), Some(record))].into();
    RegistryUpdate {
        shard: shard(3),
        epoch: Epoch(1),
        change: Change::Update(Contents { services, ..Contents::default() }),
    }
}

fn shard(cluster: u8) -> ShardKey {
    ShardKey::kubernetes(ClusterId::from(format!("cluster-{cluster}")))
}

fn hostname(number: usize) -> Hostname {
    Hostname::from(format!("service-{number}.team-{}.svc.cluster.local", number % 50))
}

fn service(number: usize) -> Service {
    Service {
        hostname: hostname(number),
        name: format!("service-{number}").into(),
        namespace: format!("team-{}", number % 50).into(),
        ports: vec![Port {
            name: "http".into(),
            number: 80,
            protocol: Protocol::Http,
            target: TargetPort::Number(8080),
        }],
        resolution: Resolution::ClientSide,
        vips: vec![IpAddr::from(Ipv4Addr::from_bits(0x0a60_0000 + number as u32))],
        external_addresses: Vec::new(),
        external_ports: Default::default(),
        labels: Labels::new(),
        selector: [("app".into(), format!("service-{number}").into())].into(),
        service_accounts: Vec::new(),
        export_to: ExportTo::Public,
        created: 0,
        node_local: false,
        publish_not_ready: false,
        mesh_external: false,
    }
}

fn endpoint(cluster: u8, service: usize, number: usize) -> Endpoint {
    let namespace = format!("team-{}", service % 50);
    let address = (service * 1000 + number) as u32 + (u32::from(cluster) << 24) + 0x0a00_0000;
    let pod = format!("service-{service}-7d8b9c6f5-{:05x}", address % 0xf_ffff);
    Endpoint {
        address: IpAddr::from(Ipv4Addr::from_bits(address)),
        port: 8080,
        port_name: "http".into(),
        health: Health::Healthy,
        weight: 1,
        locality: Arc::new(Locality::parse(&format!("region-{cluster}/zone-{}", number % 3))),
        network_label: None,
        tls_mode: TlsMode::Istio,
        service_account: Some(
            format!("spiffe://cluster.local/ns/{namespace}/sa/service-{service}").into(),
        ),
        workload: Some(Arc::new(WorkloadKey::new(namespace, pod))),
        pod: PodState::Known,
        node: None,
    }
}

fn proxy() -> Proxy {
    let id = "sidecar~10.0.0.1~client.team-1~team-1.svc.cluster.local";
    let (kind, address, workload, domain) = Proxy::parse_id(id).expect("a node id");
    Proxy {
        id: id.into(),
        kind,
        addresses: address.into_iter().collect(),
        workload,
        dns_domain: domain.into(),
        cluster: ClusterId::from("cluster-0"),
        network: None,
        service_account: None,
        labels: Labels::new(),
        locality: Locality::default(),
        node_name: None,
        istio_version: None,
        generator: None,
        envoy_version: "1.40.0".into(),
        extensions: Arc::new([]),
    }
}

/// Bytes of memory this process has now.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = pss.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.unwrap_or_default() * 1024
}
