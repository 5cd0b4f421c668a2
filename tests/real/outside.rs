//! The world outside the mesh: a server that no cluster knows, which responds in plain text and in
//! TLS and reports how it was called and by which client, and a Service of ingress and egress
//! gateways with Envoys of two versions.

use std::path::PathBuf;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::certs::{Authority, Files};
use crate::envoy::Envoy;
use crate::helper::{HTTP_PORT, TCP_PORT};
use crate::host::Host;
use crate::ingress;
use crate::kube::{Request, endpoint_slice, path, pod, service};
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::{echo, start};
use crate::scenarios::PROPAGATION;
use crate::world::{Proxy, World, bootstrap};

/// The name of the server, and the address in its ServiceEntries.
pub(crate) const NAME: &str = "outside.example";
pub(crate) const VIP: &str = "10.40.0.1";
/// All names of the server.
const NAMES: [&str; 2] = [NAME, "other.example"];
const SERVER: (&str, &str) = ("outside", "10.10.1.31");
/// The ports of the server for plain text HTTP, TLS, and mutual TLS.
const PORTS: [(u16, &str); 3] = [(8081, "plain text"), (8443, "TLS"), (8444, "TLS of both ends")];
/// Secrets in the namespace of the gateways: a server certificate with its names, and a client
/// certificate.
const SECRETS: [(&str, &[&str]); 2] =
    [("shop-cert", &["shop.example", "ledger.example"]), ("client-cert", &["caller.example"])];
/// The gateways.
const GATEWAYS: [(&str, &str); 2] = [("egress-1", "10.10.1.32"), ("egress-2", "10.10.1.33")];
const GATEWAY_VIP: &str = "10.91.0.14";
const GATEWAY_PORTS: [(&str, u16, u16); 3] =
    [("http", 80, 8080), ("tls", 443, 8443), ("tcp", 9000, TCP_PORT)];

/// The server and the gateways, until they are dropped.
pub(crate) struct Outside {
    /// The root of the server's certificate.
    pub(crate) roots: PathBuf,
    /// The certificate that it requires of a client.
    pub(crate) client: Files,
    /// The addresses of the running gateways.
    pub(crate) gateways: Vec<&'static str>,
    objects: Vec<Value>,
    _envoys: Vec<Envoy>,
    _echo: Process,
    _pods: Vec<Rc<Netns>>,
}

impl Outside {
    /// Starts the server and the gateways in an existing world.
    pub(crate) fn start(world: &World, host: &Host) -> Self {
        let authority = Authority::create(&host.subfolder("outside"), "outside");
        let (name, ip) = SERVER;
        let server = Rc::new(world.topology.stranger("a", name, ip));
        let answers = echo(host, &server, name, "outside");
        let configuration = answering(&authority.server(NAME, &NAMES));
        let mut envoys = vec![start(host, &server, "outside", configuration)];
        let mut pods = vec![server];

        let programs = [Some(&host.envoy), host.envoy_old.as_ref()];
        let gateways: Vec<_> = GATEWAYS
            .into_iter()
            .zip(programs)
            .filter_map(|(gateway, program)| Some((gateway, program?)))
            .collect();
        let service = service("shop", "egress", GATEWAY_VIP, &GATEWAY_PORTS);
        let endpoints: Vec<_> =
            gateways.iter().map(|((name, ip), _)| ((*name).into(), (*ip).into(), true)).collect();
        let mut objects = vec![endpoint_slice(&service, &endpoints), service];
        // A gateway accepts mTLS only if its servers require it. The second label is the selector
        // of Ingresses.
        let labels = json!({ "app": "egress", "istio": "ingressgateway" });
        let egress_pods = gateways.iter();
        objects.extend(egress_pods.map(|((name, ip), _)| pod("shop", name, "egress", ip, &labels)));
        objects.extend(ingress::rights("shop", "egress"));
        objects.extend(SECRETS.map(|(name, names)| {
            ingress::certificate("shop", name, &authority.server(name, names), &authority)
        }));
        world.apiservers["a"].apply(&objects);
        for ((name, ip), program) in &gateways {
            let netns = Rc::new(world.topology.stranger("a", name, ip));
            let proxy = Proxy {
                cluster: "a",
                kind: "router",
                namespace: "shop",
                name,
                service_account: "egress",
                app: "egress",
                ip,
                protocol: "delta",
            };
            let files = world.ca.workload("shop", "egress");
            let file = bootstrap(host, &proxy, &files, world.strait.xds());
            envoys.push(Envoy::start_program(host, program, &netns, name, &file));
            pods.push(netns);
        }
        for envoy in &mut envoys {
            envoy.wait_until_live(PROPAGATION);
        }
        Self {
            roots: authority.folder().join("root-cert.pem"),
            client: authority.server(SECRETS[1].0, SECRETS[1].1),
            gateways: gateways.iter().map(|((_, ip), _)| *ip).collect(),
            objects,
            _envoys: envoys,
            _echo: answers,
            _pods: pods,
        }
    }

    /// Returns the namespace of a client outside.
    pub(crate) fn netns(&self) -> &Netns {
        self._pods.first().expect("the server's certificate is the first")
    }

    /// Replaces the placeholders in capitals by the paths of files.
    pub(crate) fn placed_in(&self, text: &str) -> String {
        let files = [
            ("ROOTS", &self.roots),
            ("CLIENT_CERTIFICATE", &self.client.certificate),
            ("CLIENT_KEY", &self.client.key),
        ];
        files.iter().fold(text.to_owned(), |text, (name, file)| {
            text.replace(name, &file.display().to_string())
        })
    }

    /// Returns the problems of all Envoys.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self._envoys.iter().flat_map(Envoy::complaints).collect()
    }

    /// Deletes its objects from Kubernetes.
    pub(crate) fn end(self, world: &World) {
        let gone: Vec<_> = self.objects.iter().map(|one| Request::delete(&path(one))).collect();
        world.apiservers["a"].requests(&gone);
    }
}

/// Returns the bootstrap of an Envoy that forwards requests to its application, with the caller's
/// identity and protocol.
fn answering(files: &Files) -> Value {
    let socket = |address: &str, port: u16| json!({ "socket_address": { "address": address, "port_value": port } });
    let listener = |(port, how): (u16, &str)| {
        let header_entry = |name: &str, value: &str| {
            let header = json!({ "key": name, "value": value });
            json!({ "header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD" })
        };
        let mut chain = json!({ "filters": [{ "name": "http", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "in",
            "http_filters": [{ "name": "envoy.filters.http.router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            } }],
            "route_config": { "virtual_hosts": [{
                "name": "all", "domains": ["*"],
                "request_headers_to_add": [
                    header_entry("x-asked-by", "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"),
                    header_entry("x-asked-in", how),
                ],
                "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "app" } }],
            }] },
        } }] });
        if port != PORTS[0].0 {
            let both = port == PORTS[2].0;
            let roots = both.then(|| json!({ "trusted_ca": { "filename": files.root } }));
            chain["transport_socket"] = json!({ "name": "tls", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "require_client_certificate": both,
                "common_tls_context": {
                    "validation_context": roots,
                    "tls_certificates": [{
                        "certificate_chain": { "filename": files.certificate },
                        "private_key": { "filename": files.key },
                    }],
                },
            } });
        }
        json!({ "name": how, "address": socket("0.0.0.0", port), "filter_chains": [chain] })
    };
    let endpoint = json!({ "endpoint": { "address": socket("127.0.0.1", HTTP_PORT) } });
    json!({
        "admin": { "address": socket("127.0.0.1", 15000) },
        "static_resources": {
            "listeners": PORTS.map(listener),
            "clusters": [{
                "name": "app", "connect_timeout": "5s",
                "load_assignment": { "cluster_name": "app", "endpoints": [{ "lb_endpoints": [endpoint] }] },
            }],
        },
    })
}
