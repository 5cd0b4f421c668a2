//! The mesh of all scenarios: clusters a and b on networks net-a and net-b, a service with pods in
//! both, their gateways, and clients in a (one with Delta, one with SotW, one with an older Envoy).
//! Cluster a is the config cluster; b is a member by a Secret in Istio's format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::apiserver::{Apiserver, Settings, reader_rights};
use crate::certs::{Authority, Files};
use crate::consul::Agent;
use crate::envoy::{ADMIN, Envoy};
use crate::helper::{Answers, HTTP_PORT, Load, TCP_PORT};
use crate::host::Host;
use crate::kube::{Request, endpoint_slice, istio_kind, namespace, pod, service};
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::{echo, run_load, sidecar_in, start};
use crate::strait::{self, Strait};
use crate::topology::{GATEWAY_POD_ADDRESS, HUB, Topology, gateway_address};
use crate::{mode_rollout, wait};

/// The namespace of Strait's own objects and of the gateways.
pub(crate) const SYSTEM: &str = "strait-system";
/// The removal grace of clusters in this world.
pub(crate) const GRACE: Duration = Duration::from_secs(4);
/// The service with pods in both clusters, at its VIP in cluster a.
pub(crate) const ECHO_VIP: &str = "10.91.0.10";
/// The service whose pod has a certificate of another account.
pub(crate) const IMPOSTER_VIP: &str = "10.91.0.11";
const IMPOSTER_POD: (&str, &str) = ("imposter-1", "10.10.1.11");
/// Pods of the echo service by cluster. The pods of both clusters have the same names and
/// addresses.
pub(crate) const ECHO_PODS: [(&str, &[(&str, &str)]); 2] = [
    ("a", &[("echo-1", "10.10.1.1"), ("echo-2", "10.10.1.2"), ("echo-3", "10.10.1.3")]),
    ("b", &[("echo-1", "10.10.1.1"), ("echo-2", "10.10.1.2")]),
];

/// The calling pods, in cluster a.
pub(crate) const CLIENT_PODS: [(&str, &str); 3] =
    [("client", "10.10.0.10"), ("client-sotw", "10.10.0.11"), OLD_CLIENT];

/// The service with one pod, which calls itself.
pub(crate) const SOLO_VIP: &str = "10.91.0.12";
pub(crate) const SOLO_POD: (&str, &str) = ("solo-1", "10.10.1.12");

const OLD_CLIENT: (&str, &str) = ("client-old", "10.10.0.12");

/// The ports of every application.
pub(crate) const PORTS: [(&str, u16, u16); 2] = [("http", 80, HTTP_PORT), ("tcp", 9000, TCP_PORT)];

const XDS_PORT: u16 = 15012;
const GATEWAY_PORT: u16 = 15443;
const SECRET: &str = "istio-remote-secret-b";

/// All running components. Fields drop in this order: Envoys before their peers, namespaces last.
pub(crate) struct World {
    pub(crate) envoys: BTreeMap<String, Envoy>,
    _echoes: Vec<Process>,
    pub(crate) strait: Strait,
    /// A Consul with instances in net-a, if this machine has one.
    pub(crate) consul: Option<Agent>,
    pub(crate) apiservers: BTreeMap<&'static str, Apiserver>,
    pub(crate) ca: Authority,
    pub(crate) pods: BTreeMap<String, Rc<Netns>>,
    pub(crate) topology: Topology,
    /// The folder for files of scenarios.
    pub(crate) folder: PathBuf,
}

/// A proxy of the world, with its bootstrap parameters.
pub(crate) struct Proxy<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) service_account: &'a str,
    pub(crate) app: &'a str,
    pub(crate) ip: &'a str,
    /// `delta`, `sotw`, `vhds` (Delta with single virtual hosts), or `metrics` (Delta, with service
    /// metrics).
    pub(crate) protocol: &'a str,
}

impl<'a> Proxy<'a> {
    /// Returns an east-west gateway.
    pub(crate) fn gateway(cluster: &'a str, name: &'a str, ip: &'a str) -> Self {
        Self {
            cluster,
            kind: "router",
            namespace: SYSTEM,
            name,
            service_account: "eastwest",
            app: "eastwest",
            ip,
            protocol: "delta",
        }
    }

    /// Returns the sidecar of an application's pod, with the application's account.
    pub(crate) fn sidecar(cluster: &'a str, name: &'a str, app: &'a str, ip: &'a str) -> Self {
        Self {
            cluster,
            kind: "sidecar",
            namespace: "shop",
            name,
            service_account: app,
            app,
            ip,
            protocol: "delta",
        }
    }
}

impl World {
    /// Starts everything, and returns when every Envoy is live.
    pub(crate) fn create(host: &Host) -> Self {
        let topology = Topology::create("mesh");
        let ca = Authority::create(&host.subfolder("ca"), "rig");
        let apiservers = apiservers(host, &topology, &ca);
        populate(&apiservers);

        let consul = host.consul.as_ref();
        let consul = consul.map(|program| Agent::for_mesh(host, program, &topology.hub, "net-a"));
        let mut arguments = vec![
            "--kubeconfig".into(),
            apiservers["a"].admin_kubeconfig().display().to_string(),
            "--cluster-id=a".into(),
            format!("--namespace={SYSTEM}"),
            format!("--ca-dir={}", ca.folder().display()),
            format!("--xds-address={HUB}:{XDS_PORT}"),
            "--admin-address=127.0.0.1:15014".into(),
            format!("--tls-san={HUB}"),
            format!("--tls-san=strait.{SYSTEM}.svc"),
            format!("--cluster-removal-grace={}s", GRACE.as_secs()),
        ];
        if consul.is_some() {
            arguments.push("--consul-address=http://127.0.0.1:8500".into());
        }
        let strait = Strait::start(host, &topology.hub, arguments);
        strait.wait_until_ready();
        strait.wait_for_cluster_state("b", &["live"], Duration::from_secs(30));

        let mut world = Self {
            envoys: BTreeMap::new(),
            _echoes: Vec::new(),
            strait,
            consul,
            apiservers,
            ca,
            pods: BTreeMap::new(),
            topology,
            folder: host.subfolder("scenarios"),
        };
        world.start_pods(host);
        for envoy in world.envoys.values_mut() {
            envoy.wait_until_live(Duration::from_secs(30));
        }
        world
    }

    fn start_pods(&mut self, host: &Host) {
        for (cluster, pods) in ECHO_PODS {
            let gateway = self.topology.gateway(cluster);
            let proxy = Proxy::gateway(cluster, "eastwest-1", GATEWAY_POD_ADDRESS);
            self.start_proxy(host, &host.envoy, &proxy, gateway);
            for (name, ip) in pods {
                self.start_sidecar(host, cluster, name, "echo", ip, "delta");
                self.start_echo(host, cluster, name);
            }
        }
        self.start_imposter(host);
        let (name, ip) = SOLO_POD;
        self.start_sidecar(host, "a", name, "solo", ip, "delta");
        self.start_echo(host, "a", name);
        self.start_sidecar(host, "a", "client", "client", "10.10.0.10", "delta");
        self.start_sidecar(host, "a", "client-sotw", "client", "10.10.0.11", "sotw");
        if let Some(program) = host.envoy_old.clone() {
            let (name, ip) = OLD_CLIENT;
            self.start_sidecar_with(host, &program, "a", name, "client", ip);
        }
    }

    /// Starts a pod that responds for one service account with the certificate of another.
    fn start_imposter(&mut self, host: &Host) {
        let (name, ip) = IMPOSTER_POD;
        let netns = self.topology.pod("b", name, ip);
        let configuration = sidecar_in(&self.ca.workload("shop", "mallory"));
        self.envoys.insert(format!("b/{name}"), start(host, &netns, "b-imposter", configuration));
        self.pods.insert(format!("b/{name}"), netns);
        self.start_echo(host, "b", name);
    }

    pub(crate) fn start_sidecar(
        &mut self,
        host: &Host,
        cluster: &str,
        name: &str,
        app: &str,
        ip: &str,
        protocol: &str,
    ) {
        let netns = self.topology.pod(cluster, name, ip);
        let proxy = Proxy { protocol, ..Proxy::sidecar(cluster, name, app, ip) };
        self.start_proxy(host, &host.envoy, &proxy, netns);
    }

    /// Starts a sidecar with another Envoy, like [`Self::start_sidecar`].
    pub(crate) fn start_sidecar_with(
        &mut self,
        host: &Host,
        program: &Path,
        cluster: &str,
        name: &str,
        app: &str,
        ip: &str,
    ) {
        let netns = self.topology.pod(cluster, name, ip);
        let proxy = Proxy::sidecar(cluster, name, app, ip);
        self.start_proxy(host, program, &proxy, netns);
    }

    pub(crate) fn start_proxy(
        &mut self,
        host: &Host,
        program: &Path,
        proxy: &Proxy<'_>,
        netns: Rc<Netns>,
    ) {
        let files = self.ca.workload(proxy.namespace, proxy.service_account);
        let key = format!("{}/{}", proxy.cluster, proxy.name);
        let bootstrap = bootstrap(host, proxy, &files, self.strait.xds());
        let name = key.replace('/', "-");
        let envoy = Envoy::start_program(host, program, &netns, &name, &bootstrap);
        self.envoys.insert(key.clone(), envoy);
        self.pods.insert(key, netns);
    }

    pub(crate) fn start_echo(&mut self, host: &Host, cluster: &str, name: &str) {
        let netns = &self.pods[&format!("{cluster}/{name}")];
        self._echoes.push(echo(host, netns, name, cluster));
    }

    /// Returns the namespace of a pod, by `cluster/name`.
    pub(crate) fn pod(&self, key: &str) -> &Netns {
        self.pods.get(key).unwrap_or_else(|| panic!("no pod {key}"))
    }

    /// Returns the Envoy of a pod, by `cluster/name`.
    pub(crate) fn envoy(&self, key: &str) -> &Envoy {
        self.envoys.get(key).unwrap_or_else(|| panic!("no Envoy {key}"))
    }

    pub(crate) fn apiserver(&mut self, cluster: &str) -> &mut Apiserver {
        self.apiservers.get_mut(cluster).unwrap_or_else(|| panic!("no cluster {cluster}"))
    }

    /// Returns the number of Envoys with configuration from Strait.
    pub(crate) fn dynamic_envoys(&self) -> usize {
        self.envoys.keys().filter(|key| !key.contains("imposter")).count()
    }

    /// Runs a load in the client's pod.
    pub(crate) fn run_load(&self, load: &Load) -> Answers {
        run_load(self.pod("a/client"), load)
    }

    /// Returns the problems of all Envoys.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.envoys.values().flat_map(Envoy::complaints).collect()
    }

    /// Makes cluster b a member, with a Secret as `istioctl create-remote-secret` writes it.
    pub(crate) fn add_member(&self) {
        self.add_member_with(&self.apiservers["b"].reader_kubeconfig());
    }

    /// Makes cluster b a member with another kubeconfig.
    pub(crate) fn add_member_with(&self, kubeconfig: &str) {
        self.apiservers["a"].apply(&[member_secret(kubeconfig)]);
    }

    /// Deletes cluster b's Secret.
    pub(crate) fn remove_member(&self) {
        self.apiservers["a"]
            .requests(&[Request::delete(&format!("/api/v1/namespaces/{SYSTEM}/secrets/{SECRET}"))]);
    }
}

fn apiservers(
    host: &Host,
    topology: &Topology,
    ca: &Authority,
) -> BTreeMap<&'static str, Apiserver> {
    let start = |(cluster, port, service_cidr)| {
        let settings = Settings { cluster, address: HUB, port, service_cidr };
        (cluster, Apiserver::start(host, &topology.hub, ca, &settings))
    };
    let mut apiservers: BTreeMap<_, _> =
        [("a", 6441, "10.91.0.0/16"), ("b", 6451, "10.92.0.0/16")].map(start).into();
    for apiserver in apiservers.values_mut() {
        apiserver.wait_until_ready();
    }
    apiservers
}

fn populate(apiservers: &BTreeMap<&'static str, Apiserver>) {
    for (cluster, pods) in ECHO_PODS {
        let mut objects = reader_rights();
        let network = format!("net-{cluster}");
        objects.push(namespace(SYSTEM, json!({ "topology.istio.io/network": network })));
        objects.push(namespace("shop", json!({})));
        objects.push(gateway_service(&network, gateway_address(cluster)));
        objects.push(pod(
            SYSTEM,
            "eastwest-1",
            "eastwest",
            GATEWAY_POD_ADDRESS,
            &pod_labels("eastwest"),
        ));
        objects.extend(application("echo", vip(cluster, 10), pods));
        let imposters: &[_] = if cluster == "b" { &[IMPOSTER_POD] } else { &[] };
        objects.extend(application("imposter", vip(cluster, 11), imposters));
        if cluster == "a" {
            objects.push(istio_kind("networking.istio.io", "WorkloadEntry", "workloadentries"));
            objects.push(istio_kind("networking.istio.io", "DestinationRule", "destinationrules"));
            objects.push(istio_kind("networking.istio.io", "Sidecar", "sidecars"));
            objects.push(istio_kind("networking.istio.io", "VirtualService", "virtualservices"));
            objects.push(istio_kind("networking.istio.io", "ServiceEntry", "serviceentries"));
            objects.push(istio_kind("networking.istio.io", "Gateway", "gateways"));
            objects.push(istio_kind("gateway.networking.k8s.io", "HTTPRoute", "httproutes"));
            let policies = "authorizationpolicies";
            objects.push(istio_kind("security.istio.io", "AuthorizationPolicy", policies));
            let policies = "peerauthentications";
            objects.push(istio_kind("security.istio.io", "PeerAuthentication", policies));
            objects.extend(application("solo", SOLO_VIP.to_owned(), &[SOLO_POD]));
            for (name, ip) in CLIENT_PODS {
                objects.push(pod("shop", name, "client", ip, &pod_labels("client")));
            }
        }
        apiservers[cluster].apply(&objects);
    }
    apiservers["a"].apply(&[member_secret(&apiservers["b"].reader_kubeconfig())]);
    // The CustomResourceDefinition was created just before.
    let first: Vec<_> = Request::apply(&mode_rollout::from_the_beginning()).into_iter().collect();
    wait::until(Duration::from_secs(20), "PeerAuthentications are served", || {
        apiservers["a"].try_requests(&first).map(drop)
    });
}

/// Returns a service with its pods and slice.
pub(crate) fn application(name: &str, vip: String, pods: &[(&str, &str)]) -> Vec<Value> {
    let service = service("shop", name, &vip, &PORTS);
    let endpoints: Vec<_> =
        pods.iter().map(|(pod, ip)| ((*pod).to_owned(), (*ip).to_owned(), true)).collect();
    let slice = endpoint_slice(&service, &endpoints);
    let pods = pods.iter().map(|(pod_name, ip)| pod("shop", pod_name, name, ip, &pod_labels(name)));
    let mut objects: Vec<Value> = pods.collect();
    objects.extend([service, slice]);
    objects
}

/// Returns a service's VIP in a cluster.
pub(crate) fn vip(cluster: &str, last: u8) -> String {
    format!("10.{}.0.{last}", if cluster == "a" { 91 } else { 92 })
}

pub(crate) fn pod_labels(app: &str) -> Value {
    json!({ "app": app, "security.istio.io/tlsMode": "istio" })
}

pub(crate) fn gateway_service(network: &str, address: &str) -> Value {
    let mut service = service(SYSTEM, "eastwest", "", &[("tls", GATEWAY_PORT, GATEWAY_PORT)]);
    service["metadata"]["labels"]["topology.istio.io/network"] = network.into();
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["allocateLoadBalancerNodePorts"] = false.into();
    if let Some(spec) = service["spec"].as_object_mut() {
        spec.remove("clusterIP");
    }
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": address }] } });
    service
}

pub(crate) fn member_secret(kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": SECRET, "namespace": SYSTEM,
            "annotations": { "networking.istio.io/cluster": "b" },
            "labels": { "istio/multiCluster": "true" },
        },
        "stringData": { "b": kubeconfig },
    })
}

/// Writes the bootstrap that `strait proxy bootstrap` prints to a file, and returns its path.
pub(crate) fn bootstrap(host: &Host, proxy: &Proxy<'_>, files: &Files, discovery: &str) -> PathBuf {
    let network = format!("net-{}", proxy.cluster);
    let labels = [format!("app={}", proxy.app), "security.istio.io/tlsMode=istio".to_owned()];
    let path = |path: &PathBuf| path.display().to_string();
    let (certificate, key, root) = (path(&files.certificate), path(&files.key), path(&files.root));
    let (protocol, more) = match proxy.protocol {
        "vhds" => ("delta", &["--vhds"][..]),
        "metrics" => ("delta", &["--service-metrics"][..]),
        protocol => (protocol, &[][..]),
    };
    let arguments = [
        "proxy",
        "bootstrap",
        "--type",
        proxy.kind,
        "--name",
        proxy.name,
        "--namespace",
        proxy.namespace,
        "--service-account",
        proxy.service_account,
        "--cluster",
        proxy.cluster,
        "--network",
        &network,
        "--ip",
        proxy.ip,
        "--label",
        &labels[0],
        "--label",
        &labels[1],
        "--discovery",
        discovery,
        "--cert",
        &certificate,
        "--key",
        &key,
        "--root-ca",
        &root,
        "--protocol",
        protocol,
        "--admin-address",
        ADMIN,
    ];
    let text = strait::command(&[&arguments[..], more].concat());
    let file = host.subfolder("bootstrap").join(format!("{}-{}.yaml", proxy.cluster, proxy.name));
    std::fs::write(&file, text).unwrap();
    file
}
