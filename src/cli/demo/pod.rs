//! The pods of the demo's real traffic: each is a network namespace with an Envoy.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;

use clap::Parser;
use tokio::process::{Child, Command};

use super::app::RequestCounts;
use super::mesh::DemoMesh;
use super::netns::{Netns, bridge, ip, run};
use super::world::{CLIENT, GATEWAY, SHOP, SYSTEM, World};
use crate::cli::bootstrap::{self, BootstrapArgs};
use crate::cli::failure::CommandFailure;
use strait_base::durable;

/// Address of this process in the transit network.
pub(super) const HUB: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
const TRANSIT: &str = "transit";
const PODS: &str = "pods";

/// Redirects the client's requests for VIPs to its Envoy. Envoy itself never dials a VIP, so its
/// own traffic needs no exception by user.
const REDIRECT_OUT: &str =
    "*nat\n-A OUTPUT -p tcp -d 10.96.0.0/16 -j REDIRECT --to-ports 15001\nCOMMIT\n";
/// Redirects connections to a pod to its Envoy.
const REDIRECT_IN: &str = "*nat\n-A PREROUTING -p tcp -j REDIRECT --to-ports 15006\nCOMMIT\n";

/// A pod with an Envoy, in a separate namespace.
pub(super) struct EnvoyPod {
    netns: Netns,
    cluster: String,
    network: &'static str,
    namespace: &'static str,
    name: String,
    pub(super) app: &'static str,
    address: Ipv4Addr,
    /// Port of the pod's application, if the application is a server.
    listens: Option<u16>,
}

/// Creates and connects the pods: a gateway in each network, the client in the first network, and
/// the pods of the first service.
pub(super) async fn create(world: &World) -> Result<Vec<EnvoyPod>, String> {
    // `ip` stores names in a directory of the machine; this mount replaces it in the current
    // namespace.
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]), "").await?;
    ip(None, "link set lo up").await?;
    bridge(None, TRANSIT, &format!("{HUB}/24")).await?;
    let mut all = Vec::new();
    for (cluster, edge) in world.edges() {
        let pod = |app, name: &str, namespace, address, listens, netns| EnvoyPod {
            netns,
            cluster: cluster.id.clone(),
            network: cluster.network,
            namespace,
            name: name.to_owned(),
            app,
            address,
            listens,
        };
        let gateway = Netns::create(cluster.network).await?;
        gateway.plug(TRANSIT, &format!("{}/24", edge.gateway), None, TRANSIT).await?;
        bridge(Some(&gateway), PODS, &format!("{}/16", edge.gateway_pod)).await?;
        // The gateway is also the router of the cluster's pods: the pods can reach the control
        // plane, and nothing can reach the pods.
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run(gateway.command("sh").args(["-c", forward]), "").await?;
        gateway
            .iptables(&format!("*nat\n-A POSTROUTING -o {TRANSIT} -j MASQUERADE\nCOMMIT\n"))
            .await?;

        let plug = async |name: &str, address: Ipv4Addr, rules: &str| {
            let netns = Netns::create(&format!("{}-{name}", cluster.network)).await?;
            netns.plug("eth0", &format!("{address}/16"), Some(&gateway), PODS).await?;
            let route = format!("route add default via {}", edge.gateway_pod);
            ip(Some(&netns), &route).await?;
            netns.iptables(rules).await?;
            Ok::<_, String>(netns)
        };
        if all.is_empty() {
            let netns = plug(CLIENT, edge.client, REDIRECT_OUT).await?;
            all.push(pod(CLIENT, CLIENT, SHOP, edge.client, None, netns));
        }
        if let Some(service) = cluster.services.first() {
            for one in &service.pods {
                let netns = plug(&one.name, one.address, REDIRECT_IN).await?;
                let port = Some(service.port.target);
                all.push(pod(service.name, &one.name, SHOP, one.address, port, netns));
            }
        }
        all.push(pod(GATEWAY, GATEWAY, SYSTEM, edge.gateway_pod, None, gateway));
    }
    Ok(all)
}

impl EnvoyPod {
    /// Starts the Envoy and the application of the pod.
    pub(super) async fn start(&self, mesh: &DemoMesh) -> Result<Vec<Child>, CommandFailure> {
        let mut running = Vec::new();
        if let Some(port) = self.listens {
            let mut command =
                self.netns.command(std::env::current_exe().map_err(CommandFailure::of)?);
            let address = SocketAddr::new(self.address.into(), port).to_string();
            command.args(["demo", "echo", &address, &format!("{}/{}", self.cluster, self.name)]);
            running.push(command.spawn().map_err(CommandFailure::of)?);
        }
        let file =
            |extension: &str| mesh.folder().join(format!("{}.{extension}", self.netns.name()));
        let bootstrap = self.bootstrap(mesh, &file("certs"))?;
        let configuration = file("yaml");
        durable::replace(&configuration, bootstrap.as_bytes(), durable::SECRET)
            .map_err(CommandFailure::of)?;
        let mut command = self.netns.command("envoy");
        command.arg("--config-path").arg(&configuration).arg("--log-path").arg(file("log"));
        // The client's Envoy shares one connection per thread, and a gateway balances connections.
        // With one thread, all requests that cross networks would reach the same pod.
        let threads = if self.app == CLIENT { "4" } else { "1" };
        command.args(["--concurrency", threads, "--disable-hot-restart", "--log-level", "error"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        running.push(command.spawn().map_err(CommandFailure::of)?);
        Ok(running)
    }

    /// Returns the output of `strait proxy bootstrap`.
    fn bootstrap(&self, mesh: &DemoMesh, certificates: &Path) -> Result<String, CommandFailure> {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: BootstrapArgs,
        }
        mesh.issue(self.namespace, self.app, certificates)?;
        let certificate = |name: &str| certificates.join(name).display().to_string();
        let label = format!("app={}", self.app);
        let (cert, key) = (certificate("cert-chain.pem"), certificate("key.pem"));
        let (root, ip) = (certificate("root-cert.pem"), self.address.to_string());
        let discovery = mesh.xds().to_string();
        let kind = if self.app == GATEWAY { "router" } else { "sidecar" };
        let flags = [
            ("--type", kind),
            ("--name", &self.name),
            ("--namespace", self.namespace),
            ("--service-account", self.app),
            ("--cluster", &self.cluster),
            ("--network", self.network),
            ("--ip", &ip),
            ("--label", &label),
            ("--discovery", &discovery),
            ("--cert", &cert),
            ("--key", &key),
            ("--root-ca", &root),
        ];
        let words = flags.iter().flat_map(|(flag, value)| [*flag, *value]);
        let line = Line::try_parse_from(std::iter::once("bootstrap").chain(words))
            .map_err(CommandFailure::of)?;
        bootstrap::text(&line.args)
    }

    /// Sends requests from this pod.
    pub(super) async fn send_requests(
        &self,
        address: SocketAddr,
        host: String,
        count: usize,
    ) -> Result<RequestCounts, CommandFailure> {
        let program = std::env::current_exe().map_err(CommandFailure::of)?;
        let mut command = self.netns.command(program);
        command.args(["demo", "send-requests", &address.to_string(), &host, &count.to_string()]);
        let text = run(&mut command, "").await.map_err(CommandFailure::of)?;
        serde_json::from_str(&text).map_err(CommandFailure::of)
    }
}
