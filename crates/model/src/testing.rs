//! Builders in terms of the domain, for the tests of this crate and of those above it.
#![allow(clippy::panic, reason = "a test fails by a panic")]

use std::net::IpAddr;
use std::sync::Arc;

use crate::registry::{Contents, Epoch, RegistryUpdate, ServiceRecord, ShardChange, ShardKey};
use crate::{
    ClusterId, Definition, Endpoint, ExportTo, Health, Hostname, KnownCluster, Labels, Locality,
    Mode, NamedEndpoint, NetworkId, PodState, Port, Profile, Protocol, Proxy, Resolution, Service,
    SharingFacts, TargetPort, TlsMode, Workload, WorkloadKey,
};

/// Returns a cluster of the mesh, whose Secret may fix its network.
pub fn member(fixed_network: Option<&str>) -> KnownCluster {
    KnownCluster {
        fixed_network: fixed_network.map(NetworkId::from),
        config: false,
        created: None,
        mode: Mode::Normal,
        withdrawn: None,
        trust_domain: "cluster.local".into(),
        set_name: None,
    }
}

/// Returns the hostname of a service `name.namespace` in `cluster.local`.
pub fn host(name: &str) -> Hostname {
    Hostname::from(format!("{name}.svc.cluster.local"))
}

/// Returns labels from pairs.
pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// Returns a service `name.namespace` with port `http` 80 to 8080 that selects `app: name`.
pub fn service(name: &str) -> Service {
    let (short, namespace) = name.split_once('.').expect("name.namespace");
    Service::from(Definition {
        hostname: host(name),
        name: short.into(),
        namespace: namespace.into(),
        ports: vec![port("http", 80, 8080)],
        resolution: Resolution::ClientSide,
        ranges: Vec::new(),
        labels: Labels::new(),
        selector: labels(&[("app", short)]),
        service_accounts: Vec::new(),
        export_to: ExportTo::Public,
        node_local: false,
        prefers: Default::default(),
        sharing: SharingFacts::default(),
        named_pods: Default::default(),
        affinity_seconds: None,
        mesh_external: false,
    })
}

/// Returns a port whose protocol is derived from its name.
pub fn port(name: &str, number: u16, target: u16) -> Port {
    Port {
        name: name.into(),
        number,
        protocol: Protocol::of_port("TCP", None, name, number),
        target: TargetPort::Number(target),
    }
}

impl Service {
    /// Applies a change.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Adds a VIP.
    pub fn vip(mut self, address: &str) -> Self {
        self.vips.push(ip(address));
        self
    }

    /// Makes it an east-west gateway of `network` with the external address `address`.
    pub fn gateway_of(mut self, network: &str, address: &str) -> Self {
        self.labels.insert("topology.istio.io/network".into(), network.into());
        self.external_addresses.push(address.into());
        self.ports = vec![port("tls", 15443, 15443)];
        self
    }

    /// Replaces the ports.
    pub fn ports(mut self, ports: Vec<Port>) -> Self {
        self.ports = ports;
        self
    }

    /// Sets the creation time, in seconds since the Unix epoch.
    pub fn created(mut self, created: i64) -> Self {
        self.created = created;
        self
    }

    /// Makes it headless.
    pub fn headless(mut self) -> Self {
        self.resolution = Resolution::Headless;
        self
    }

    /// Returns the service with its endpoints.
    pub fn pair(self, endpoints: Vec<Endpoint>) -> (Self, Vec<Endpoint>) {
        (self, endpoints)
    }
}

/// Parses an IP address.
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Returns a ready endpoint of port `http` that accepts mTLS.
pub fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        address: ip(address),
        port: 8080,
        port_name: "http".into(),
        health: Health::Healthy,
        weight: 1,
        locality: Arc::new(Locality::default()),
        network_label: None,
        tls_mode: TlsMode::Istio,
        service_account: Some("spiffe://cluster.local/ns/ns/sa/app".into()),
        workload: Some(Arc::new(WorkloadKey::new("ns", format!("pod-{address}")))),
        pod: PodState::Known,
        node: None,
        hostname: None,
        telemetry: None,
        labels: None,
    }
}

/// A builder for the update of one cluster.
pub struct Shard {
    update: RegistryUpdate,
}

/// Starts the first update of `cluster`.
pub fn shard(cluster: &str, epoch: u64) -> Shard {
    let shard = ShardKey::kubernetes(cluster.into());
    let change = ShardChange::Reset(Contents { network_label: Some(None), ..Contents::default() });
    Shard { update: RegistryUpdate { shard, epoch: Epoch(epoch), change } }
}

impl Shard {
    fn contents(&mut self) -> &mut Contents {
        match &mut self.update.change {
            ShardChange::Reset(contents) | ShardChange::Update(contents) => contents,
            ShardChange::Removed => panic!("a removed shard has no contents"),
        }
    }

    /// Makes it an update instead of a reset.
    pub fn update(mut self) -> Self {
        let mut contents = std::mem::take(self.contents());
        contents.network_label = None;
        self.update.change = ShardChange::Update(contents);
        self
    }

    /// Sets the network label of the cluster.
    pub fn network(mut self, network: &str) -> Self {
        self.contents().network_label = Some(Some(NetworkId::from(network)));
        self
    }

    /// Adds a service and its endpoints.
    pub fn with(mut self, service: Service, endpoints: Vec<Endpoint>) -> Self {
        let hostname = service.hostname.clone();
        let record = ServiceRecord { service: Arc::new(service), endpoints: endpoints.into() };
        self.contents().services.insert(hostname, Some(record));
        self
    }

    /// Removes a service.
    pub fn without(mut self, name: &str) -> Self {
        self.contents().services.insert(host(name), None);
        self
    }

    /// Adds a pod.
    pub fn pod(mut self, workload: (WorkloadKey, Workload)) -> Self {
        let (key, pod) = workload;
        let namespace = Arc::from(key.namespace.as_str());
        self.contents().workloads.get_or_insert_default().insert(&namespace, &key.name, pod);
        self
    }

    /// Returns the update.
    pub fn built(self) -> RegistryUpdate {
        self.update
    }
}

/// Returns the update that removes a cluster.
pub fn removed(cluster: &str, epoch: u64) -> RegistryUpdate {
    let shard = ShardKey::kubernetes(cluster.into());
    RegistryUpdate { shard, epoch: Epoch(epoch), change: ShardChange::Removed }
}

/// Returns a pod `name.namespace` at `address`.
pub fn workload(name: &str, address: &str, pairs: &[(&str, &str)]) -> (WorkloadKey, Workload) {
    let (short, namespace) = name.split_once('.').expect("name.namespace");
    let profile = Profile {
        labels: Arc::new(labels(pairs)),
        service_account: "app".into(),
        ..Profile::default()
    };
    let pod = Workload {
        profile: Arc::new(profile),
        addresses: [ip(address)].into_iter().collect(),
        node: None,
    };
    (WorkloadKey::new(namespace, short), pod)
}

/// Returns a sidecar `name.namespace` of `cluster` at 10.0.0.1.
pub fn sidecar(name: &str, cluster: &str) -> Proxy {
    let id = format!("sidecar~10.0.0.1~{name}~{}.svc.cluster.local", "ns");
    let (kind, address, workload, domain) = Proxy::parse_id(&id).expect("a node id");
    Proxy {
        id: id.as_str().into(),
        kind,
        addresses: address.into_iter().collect(),
        workload,
        dns_domain: domain.into(),
        cluster: ClusterId::from(cluster),
        network: None,
        service_account: None,
        labels: Labels::new(),
        locality: Locality::default(),
        node_name: None,
        takes_given_addresses: false,
        visible_networks: None,
        sds: None,
        topology: None,
        istio_version: None,
        interception: Default::default(),
        is_unprivileged: false,
        idle_timeout: None,
        mounted: Default::default(),
        named_ports: Default::default(),
        grpc: None,
        envoy_version: "1.40.0".into(),
        envoy_release: Some((1, 40)),
        istio_filters: Default::default(),
        reports_services: false,
        virtual_hosts: Default::default(),
    }
}

/// Returns an endpoint that proxies resolve, with target port 8080 for the port `http`.
pub fn named_endpoint(address: &str) -> NamedEndpoint {
    NamedEndpoint {
        address: address.into(),
        ports: [("http".into(), 8080)].into_iter().collect(),
        weight: 1,
        locality: Arc::default(),
        network: None,
        tls_mode: TlsMode::Disabled,
        labels: None,
    }
}
