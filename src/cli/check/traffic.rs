//! `strait check --traffic`: sends real requests through each network's gateways, as a proxy of the
//! mesh would send them, and optionally to pods of other clusters in the same network.
//!
//! Requests start on the machine that runs the command. It dials a gateway or a pod, presents its
//! identity, names the service by SNI like a sidecar, and sends a request. The first failed step is
//! reported with the codes of `strait explain`.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Args;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::junit::{self, TestCase, TestFailure, TestSuite};
use super::matrix::matrix;
use super::row::{failed, sign, way};
use super::{probes, schedule};
use crate::cli::client::AdminClient;
use crate::cli::cluster::api::Hub;
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::list::QueryArgs;
use crate::cli::output::{self, Cell, Column, OutputStyle, Show, TableLayout, items, text};
use strait_admin_api::{
    Cluster, EndpointHealth, Network, ProbeIdentity, Service, ServiceEndpoint, ServicePort,
};
use strait_base::codes::{self, Code};
use strait_base::duration::HumanDuration;
use strait_identity::mesh_client::{MeshClientRequest, mesh_client, workload};
use strait_identity::tls;
use strait_xds::names::OutboundName;

/// Time limit of each step.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of services per cluster that are searched for a callable one.
const SERVICES_ASKED: usize = 50;
/// Path at which the control plane issues an identity for these requests.
const GIVER: &str = "/api/probe-identity";
/// Time for which an issued identity is used. Its lifetime is ten minutes.
const GIVEN_FOR: Duration = Duration::from_secs(300);
/// Next step if the control plane issues none.
const IDENTITY_NEXT: &str = "strait certs issue --ca-dir CA --namespace NS --service-account SA --out DIR\nstrait check --traffic --identity DIR";
/// Maximum size of the response that is read, in bytes.
const HEAD_MAX: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct TrafficArgs {
    /// Send a request through each network's gateways, from this machine, as a sidecar would
    #[arg(long)]
    pub(super) traffic: bool,
    /// Identity of the caller: a directory with cert-chain.pem, key.pem and root-cert.pem, as
    /// 'strait certs issue' creates [default: a certificate for 'strait-probe' in the control
    /// plane's namespace, which its CA issues for some minutes]
    #[arg(long, value_name = "DIR", requires = "traffic")]
    identity: Option<PathBuf>,
    /// Cluster that this machine represents: gateways of its networks are not used; with --probes,
    /// only the probe of this cluster
    #[arg(long, value_name = "ID", requires = "traffic")]
    from: Option<String>,
    /// Also send requests directly to pods of other clusters in the network of --from, as proxies
    /// there do; needs a machine that can reach pods
    #[arg(long, requires = "from", conflicts_with = "probes")]
    direct: bool,
    /// Only send requests to services of this cluster
    #[arg(long, value_name = "ID", requires = "traffic")]
    to: Option<String>,
    /// Show the last results of the probes in the clusters of these kubeconfig contexts, instead of
    /// sending requests
    #[arg(
        long,
        value_name = "CONTEXT",
        value_delimiter = ',',
        requires = "traffic",
        conflicts_with_all = ["identity", "every"]
    )]
    probes: Vec<String>,
    /// Repeat the requests at this interval, at least 1s, until terminated, and report changes
    #[arg(long, value_name = "DURATION", requires = "traffic")]
    every: Option<HumanDuration>,
    /// Address on which to serve the results as metrics, at /metrics; requires --every
    #[arg(long, value_name = "HOST:PORT", requires = "every")]
    metrics_address: Option<SocketAddr>,
}

const RESULTS: TableLayout<Value> = TableLayout {
    kind: "request",
    name: |row| format!("{}/{}/{}", text(&row["from"]), text(&row["to"]), way(row)),
    columns: &[
        Column::new("FROM", |row, _| text(&row["from"]).into()),
        Column::new("TO", |row, _| text(&row["to"]).into()),
        Column::new("NETWORK", |row, _| text(&row["network"]).into()),
        Column::new("GATEWAY", |row, _| way(row).into()),
        Column::new("SERVICE", |row, _| text(&row["service"]).into()),
        Column::new("RESULT", result),
        Column::new("TOOK", |row, _| match row["ms"].as_f64() {
            Some(ms) => format!("{ms:.1} ms").into(),
            None => "<none>".into(),
        }),
        Column::new("ANSWERED BY", |row, _| text(&row["identity"]).into()),
        Column::wide("ENDPOINT", |row, _| text(&row["endpoint"]).into()),
        Column::wide("ASKED AT", |row, _| text(&row["at"]).into()),
    ],
};

fn result(row: &Value, look: &OutputStyle) -> Cell {
    match failed(row) {
        None => Cell::good(format!("{} {}", sign(true, look), text(&row["answer"]))),
        Some(step) => Cell::bad(format!("{} {}", sign(false, look), text(&step["step"]))),
    }
}

/// Runs `strait check --traffic`. Exit code 2 means that a request failed or a probe is
/// unreachable.
pub(super) async fn run(
    args: &TrafficArgs,
    hub: &Hub,
    junit: Option<&Path>,
    common: &QueryArgs,
) -> CommandResult {
    if !args.probes.is_empty() {
        // The control plane is not contacted, because it may be unreachable.
        let found = probes::gather(hub, &args.probes).await?;
        return report(chosen(args, found)?, junit, &common.show);
    }
    let client = AdminClient::new(&common.connect).await?;
    let mut given = None;
    let Some(every) = args.every else {
        return report(requests(args, &client, &mut given).await?, junit, &common.show);
    };
    let round = async || requests(args, &client, &mut given).await;
    schedule::run(every.0, args.metrics_address, args.from.as_deref(), round).await
}

/// Selects the results of probes that match `--from` and `--to`. Rows about unreachable probes are
/// always included.
fn chosen(args: &TrafficArgs, mut found: Vec<Value>) -> Result<Vec<Value>, CommandFailure> {
    if let Some(from) = &args.from {
        found.retain(|row| row["from"] == **from);
        if found.is_empty() {
            let text =
                format!("no probe of {} sends requests from {from:?}", args.probes.join(", "));
            return Err(CommandFailure::failed(text).next("strait cluster list"));
        }
    }
    found.retain(|row| row["to"].is_null() || args.to.as_ref().is_none_or(|to| row["to"] == **to));
    Ok(found)
}

/// Prints the results: for people first a table of cluster pairs, then each request, then the
/// failures.
fn report(rows: Vec<Value>, junit: Option<&Path>, show: &Show) -> CommandResult {
    let answer = Value::Array(rows);
    let raw = format!("{answer:#}\n");
    let look = OutputStyle::of_stdout();
    let printed = if show.output.is_for_people() {
        let pairs = matrix(items(&answer), &look);
        let separate = if pairs.is_empty() { "" } else { "\n" };
        let each = RESULTS.render(&raw, &answer, show, &look)?;
        pairs + separate + &each + &failures(items(&answer))
    } else {
        RESULTS.render(&raw, &answer, show, &look)?
    };
    output::print(&printed)?;
    if let Some(file) = junit {
        junit::write(file, &suite(items(&answer)))?;
    }
    let bad = items(&answer).iter().any(|row| failed(row).is_some());
    Ok(if bad { Exit::Unhealthy } else { Exit::Fine })
}

/// Identity that the control plane issued, with the time of issue.
pub(super) type GivenIdentity = Option<(Instant, Arc<ClientConfig>)>;

/// Returns the identity for requests: the identity from `--identity`, or else an identity that the
/// control plane issues.
async fn identity(
    args: &TrafficArgs,
    client: &AdminClient,
    given: &mut GivenIdentity,
) -> Result<Arc<ClientConfig>, CommandFailure> {
    if let Some(directory) = &args.identity {
        // Read for each round, because certificates are rotated.
        return mesh_client(directory, SystemTime::now())
            .map_err(|error| CommandFailure::identity("--identity: ", &error));
    }
    if let Some((at, identity)) = given
        && at.elapsed() < GIVEN_FOR
    {
        return Ok(Arc::clone(identity));
    }
    let unusable = |error| CommandFailure::identity("the control plane's certificate: ", &error);
    let request = MeshClientRequest::new().map_err(unusable)?;
    let answer = client.post(GIVER, &[], &json!({ "csr": request.csr })).await;
    let answer = answer.map_err(|failure| match failure.exit {
        Exit::NoRights => failure.next(format!(
            "use the admin token, because a reader token is not sufficient, or set an identity:\n{IDENTITY_NEXT}"
        )),
        _ => failure.or_next(IDENTITY_NEXT),
    })?;
    let ProbeIdentity { cert_chain, root_cert, .. } = answer.read()?;
    let identity = request.answered(&cert_chain, &root_cert, GIVER, SystemTime::now());
    let identity = identity.map_err(unusable)?;
    *given = Some((Instant::now(), Arc::clone(&identity)));
    Ok(identity)
}

/// Sends a request through each gateway of each other network and, with `--direct`, to a pod of
/// each other cluster in the same network. Returns a row for each request.
pub(super) async fn requests(
    args: &TrafficArgs,
    client: &AdminClient,
    given: &mut GivenIdentity,
) -> Result<Vec<Value>, CommandFailure> {
    let identity = identity(args, client, given).await?;
    let clusters: Vec<Cluster> = client.get("/debug/clusters", &[]).await?.read()?;
    for id in [&args.from, &args.to].into_iter().flatten() {
        if !clusters.iter().any(|row| row.id == **id) {
            let text = format!("no cluster {id:?} is known");
            return Err(CommandFailure::failed(text).next("strait cluster list"));
        }
    }
    let networks: Vec<Network> = client.get("/debug/networks", &[]).await?.read()?;
    let services: Vec<Service> = client.get("/debug/services", &[]).await?.read()?;
    let mut rows = Vec::new();
    for network in &networks {
        let is_in = |id: &String| network.clusters.contains(id);
        let is_own = args.from.as_ref().is_some_and(is_in);
        if is_own && !args.direct {
            continue;
        }
        let way = match is_own {
            true => Passage::Direct,
            false => Passage::Gateways { needed: networks.len() > 1 },
        };
        for cluster in &network.clusters {
            let is_from = args.from.as_ref() == Some(cluster);
            if !is_from && args.to.as_ref().is_none_or(|to| to == cluster) {
                let target = target(client, &services, network, cluster).await?;
                let from = args.from.as_deref();
                rows.extend(call(&identity, from, way, network, cluster, target).await);
            }
        }
    }
    Ok(rows)
}

/// Renders the failures, a paragraph for each.
fn failures(rows: &[Value]) -> String {
    let mut out = String::new();
    for row in rows {
        let Some(step) = failed(row) else { continue };
        let (from, to, code) = (text(&row["from"]), &row["to"], text(&step["code"]));
        let found = codes::find(&code).map_or("", |code| code.next);
        let to = if to.is_null() { String::new() } else { format!(" to {}", text(to)) };
        out += &format!("\n{from}{to}: {}: {}\n", text(&step["step"]), text(&step["detail"]));
        out +=
            &format!("  next: {}\n  help: strait help {code}\n", found.replace('\n', "\n        "));
    }
    if rows.is_empty() {
        out += "The mesh has no other network. Use --from ID --direct on a machine that can reach pods to check clusters in the same network.\n";
    }
    out
}

/// A service of a cluster that proxies of other networks can call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TrafficTarget {
    hostname: String,
    port: u16,
    /// Whether the request is HTTP/1.1.
    speaks_http: bool,
    accounts: Vec<String>,
    /// Address of a pod for direct requests.
    endpoint: Option<SocketAddr>,
}

/// Path of a request to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    /// Through each gateway of the cluster's network. `needed` is false if the mesh has only one
    /// network.
    Gateways { needed: bool },
    /// Directly to the address of a pod.
    Direct,
}

/// Returns the first service by name that other networks can call in `cluster`.
async fn target(
    client: &AdminClient,
    services: &[Service],
    network: &Network,
    cluster: &str,
) -> Result<Option<TrafficTarget>, CommandFailure> {
    let of_cluster = services.iter().filter(|row| row.clusters.iter().any(|one| one == cluster));
    for row in of_cluster.take(SERVICES_ASKED) {
        let query = [("hostname", row.hostname.as_str())];
        let endpoints: Vec<_> = client.get("/debug/endpoints", &query).await?.read()?;
        if let Some(target) = callable(row, &endpoints, network, cluster) {
            return Ok(Some(target));
        }
    }
    Ok(None)
}

/// Returns the service as a target, if it has a port with a ready endpoint that accepts mTLS.
fn callable(
    service: &Service,
    endpoints: &[ServiceEndpoint],
    network: &Network,
    cluster: &str,
) -> Option<TrafficTarget> {
    if service.resolution != "ClientSideLB" {
        return None;
    }
    let taking = |port: &ServicePort| {
        endpoints.iter().find(|one| {
            let ports = one.service_ports.as_ref();
            one.cluster == cluster
                && one.network == network.network
                && one.health == EndpointHealth::Healthy
                && one.tls_mode == "istio"
                && ports.is_some_and(|ports| ports.contains(&port.port))
        })
    };
    // HTTP ports are preferred, because they respond to a request.
    let http = |port: &&ServicePort| port.protocol == "HTTP";
    let ports = || service.ports.iter().filter(|port| taking(port).is_some());
    let port = ports().find(http).or_else(|| ports().find(|port| port.protocol != "UDP"))?;
    let endpoint = taking(port).and_then(|one| socket(&one.address, one.port));
    Some(TrafficTarget {
        endpoint,
        hostname: service.hostname.clone(),
        port: port.port,
        speaks_http: http(&port),
        accounts: service.service_accounts.clone(),
    })
}

/// Returns the address and port of a gateway or an endpoint, if they are valid.
fn socket(address: &str, port: u16) -> Option<SocketAddr> {
    (port > 0).then_some(SocketAddr::new(address.parse().ok()?, port))
}

/// Sends a request through each gateway of the network, or to a pod.
async fn call(
    identity: &Arc<ClientConfig>,
    from: Option<&str>,
    way: Passage,
    network: &Network,
    cluster: &str,
    target: Option<TrafficTarget>,
) -> Vec<Value> {
    let mut row = json!({
        "from": from.unwrap_or("here"), "to": cluster, "network": network.network,
        "gateway": null, "endpoint": null, "service": null, "identity": null, "answer": null, "ms": null,
    });
    let Some(target) = target else {
        let detail = "no service of the cluster has a ready endpoint in this network that accepts mTLS and has an IP address";
        row["steps"] = json!([failure("ready", &codes::NOT_READY, detail.to_owned())]);
        return vec![row];
    };
    row["service"] = json!(format!("{}:{}", target.hostname, target.port));
    let sockets: Vec<SocketAddr> = match way {
        Passage::Gateways { .. } => {
            network.gateways.iter().filter_map(|one| socket(&one.address, one.port)).collect()
        }
        Passage::Direct => target.endpoint.into_iter().collect(),
    };
    if let (true, Passage::Gateways { needed }) = (network.gateways.is_empty(), way) {
        let unneeded = match needed {
            true => "",
            false => {
                "; all clusters are in this network, so no gateway is needed: use --from ID --direct on a machine that can reach pods"
            }
        };
        let network = text(&network.network);
        let detail = format!("network {network} has no gateway that can be dialled{unneeded}");
        row["steps"] = json!([failure("gateway", &codes::NO_GATEWAY, detail)]);
        return vec![row];
    }
    let mut rows = Vec::new();
    for socket in sockets {
        let begun = Instant::now();
        let probed = probe(identity, way, socket, &target).await;
        let mut row = row.clone();
        let place = if way == Passage::Direct { "endpoint" } else { "gateway" };
        row[place] = json!(socket.to_string());
        row["identity"] = json!(probed.identity);
        row["answer"] = json!(probed.answer);
        row["ms"] = json!((begun.elapsed().as_secs_f64() * 1e6).round() / 1e3);
        row["steps"] = json!(probed.steps);
        rows.push(row);
    }
    rows
}

fn failure(step: &str, code: &Code, detail: String) -> Value {
    json!({ "step": step, "ok": false, "code": code.id, "detail": detail })
}

/// Result of one request.
#[derive(Debug, Default)]
struct ProbeOutcome {
    steps: Vec<Value>,
    identity: Option<String>,
    answer: Option<String>,
}

/// Connects, performs the TLS handshake and sends a request, until a step fails.
async fn probe(
    identity: &Arc<ClientConfig>,
    way: Passage,
    socket: SocketAddr,
    target: &TrafficTarget,
) -> ProbeOutcome {
    let mut outcome = ProbeOutcome::default();
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {STEP_LIMIT:?}"));
    let dialled = timeout(STEP_LIMIT, TcpStream::connect(socket)).await;
    let stream = match dialled.unwrap_or_else(|_| Err(late())) {
        Ok(stream) => stream,
        Err(error) => {
            let detail = format!("connect {socket}: {error}");
            outcome.steps.push(match way {
                Passage::Gateways { .. } => failure("gateway", &codes::GATEWAY_DEAD, detail),
                Passage::Direct => failure("network", &codes::POD_UNREACHABLE, detail),
            });
            return outcome;
        }
    };
    let ok = |step: &str, detail: &str| json!({ "step": step, "ok": true, "detail": detail });
    let step = if way == Passage::Direct { "network" } else { "gateway" };
    outcome.steps.push(ok(step, &format!("{socket} answers")));
    let TrafficTarget { hostname, port, .. } = target;
    let sni = OutboundName::sni(hostname.as_str().into(), *port).to_string();
    let shaken = match ServerName::try_from(sni.clone()) {
        Ok(name) => {
            let connector = TlsConnector::from(Arc::clone(identity));
            let shaken = timeout(STEP_LIMIT, connector.connect(name, stream)).await;
            shaken.unwrap_or_else(|_| Err(late())).map_err(|error| tls::failure(&error))
        }
        Err(_) => Err("the name is not valid in TLS".to_owned()),
    };
    let mut stream = match shaken {
        Ok(stream) => stream,
        Err(fact) => {
            let detail = format!("mTLS for {sni}: {fact}");
            outcome.steps.push(failure("mtls", &codes::TRAFFIC_FAILS, detail));
            return outcome;
        }
    };
    let peer = workload(stream.get_ref().1).map(|peer| peer.id().to_string());
    match peer {
        Ok(peer) if target.accounts.is_empty() || target.accounts.contains(&peer) => {
            outcome.steps.push(ok("mtls", &format!("{peer} answers")));
            outcome.identity = Some(peer);
        }
        Ok(peer) => {
            let known = target.accounts.join(", ");
            let detail = format!("{peer} answers, but proxies expect one of {known}");
            outcome.steps.push(failure("mtls", &codes::TRAFFIC_FAILS, detail));
            outcome.identity = Some(peer);
            return outcome;
        }
        Err(error) => {
            outcome.steps.push(failure("mtls", &codes::TRAFFIC_FAILS, error.to_string()));
            return outcome;
        }
    }
    if !target.speaks_http {
        outcome.answer = Some("connected".to_owned());
        return outcome;
    }
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {hostname}:{port}\r\nUser-Agent: strait-check\r\nConnection: close\r\n\r\n"
    );
    let response = async {
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        while head.len() < HEAD_MAX && !head.contains(&b'\n') {
            if stream.read_buf(&mut head).await? == 0 {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&head).into_owned())
    };
    let response: io::Result<String> =
        timeout(STEP_LIMIT, response).await.unwrap_or_else(|_| Err(late()));
    let status = response.and_then(|head| {
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        let status = status.and_then(|text| text.trim_end().parse::<u16>().ok());
        status.ok_or_else(|| io::Error::other("the response is not HTTP/1.1"))
    });
    match status {
        // The service may respond with any status except the statuses that mean it is unreachable.
        Ok(status) if ![502, 503, 504].contains(&status) => {
            outcome.steps.push(ok("answer", &status.to_string()));
            outcome.answer = Some(status.to_string());
        }
        Ok(status) => {
            let detail = format!("the status is {status}: the sidecar can't reach the workload");
            outcome.steps.push(failure("answer", &codes::TRAFFIC_FAILS, detail));
        }
        Err(error) => {
            let detail = format!("GET / of {hostname}:{port}: {}", tls::failure(&error));
            outcome.steps.push(failure("answer", &codes::TRAFFIC_FAILS, detail));
        }
    }
    outcome
}

/// Converts the results into a JUnit test suite, with a test case for each request.
fn suite(rows: &[Value]) -> TestSuite {
    let case = |row: &Value| {
        let part = |name: &str| text(&row[name]);
        let failure = failed(row).map(|step| TestFailure {
            code: text(&step["code"]),
            message: format!("{}: {}", text(&step["step"]), text(&step["detail"])),
        });
        TestCase {
            class: format!("network {}", part("network")),
            name: format!(
                "{} to {} by {} for {}",
                part("from"),
                part("to"),
                way(row),
                part("service")
            ),
            seconds: row["ms"].as_f64().unwrap_or(0.0) / 1e3,
            failure,
        }
    };
    TestSuite { name: "strait check --traffic", cases: rows.iter().map(case).collect() }
}

#[cfg(test)]
mod tests {
    use rustls::ServerConfig;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::cli::output::tests::{LOOK, typed};
    use strait_identity::authority::write_workload;
    use strait_identity::{Authority, AuthorityPem, SpiffeId};

    const BY_GATEWAY: Passage = Passage::Gateways { needed: true };
    const WEB: &str = "web.shop.svc.cluster.local";

    fn service(protocol: &str) -> Service {
        typed(json!({
            "hostname": WEB, "resolution": "ClientSideLB", "clusters": ["west"],
            "ports": [{ "name": "tls", "port": 443, "protocol": "TLS" }, { "name": "http", "port": 80, "protocol": protocol }],
            "serviceAccounts": ["spiffe://cluster.local/ns/shop/sa/web"],
        }))
    }

    /// An endpoint of the port with that number. Its own cluster names the port differently from the service.
    fn endpoint(port: u16, health: &str, tls: &str) -> ServiceEndpoint {
        typed(json!({
            "cluster": "west", "network": "n2", "health": health, "tlsMode": tls, "portName": "web-port",
            "servicePorts": [port],
        }))
    }

    #[test]
    fn only_ready_mtls_endpoints_are_called() {
        let network = typed(json!({ "network": "n2" }));
        let found = |protocol: &str, endpoints: &[ServiceEndpoint], cluster: &str| {
            callable(&service(protocol), endpoints, &network, cluster)
                .map(|target| (target.port, target.speaks_http))
        };
        let both = [endpoint(443, "healthy", "istio"), endpoint(80, "healthy", "istio")];
        assert_eq!(found("HTTP", &both, "west"), Some((80, true)));
        assert_eq!(found("UDP", &both, "west"), Some((443, false)));
        assert_eq!(found("HTTP", &both[..1], "west"), Some((443, false)));
        assert_eq!(found("HTTP", &both, "east"), None);
        assert_eq!(found("HTTP", &[endpoint(80, "draining", "istio")], "west"), None);
        assert_eq!(found("HTTP", &[endpoint(80, "healthy", "disabled")], "west"), None);
    }

    /// Creates a CA, a client identity of it, and a gateway behind which a workload of `account`
    /// responds with `answer`.
    #[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
    async fn rig(account: &str, answer: &'static str) -> (Arc<ClientConfig>, SocketAddr) {
        let now = SystemTime::now();
        let pem = AuthorityPem::generate(now).expect("a CA");
        let authority = Authority::new(&pem, "test", now).expect("a sound CA");
        let issue = |account: &str| {
            let id = SpiffeId::new("cluster.local", "shop", account).expect("an identity");
            authority.issue_workload(&id, Duration::from_secs(600), now).expect("issued")
        };
        let folder = tempfile::tempdir().expect("a folder");
        write_workload(folder.path(), &issue("client"), authority.roots()).expect("written");
        let client = mesh_client(folder.path(), now).expect("a client");
        let issued = issue(account);
        let server = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(issued.chain.certificates().to_vec(), issued.key_der())
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(server));
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                // Routes by SNI only, like a gateway.
                let wanted = format!("outbound_.80_._.{WEB}");
                if stream.get_ref().1.server_name() != Some(wanted.as_str()) {
                    continue;
                }
                let mut bytes = [0; 512];
                let _ = stream.read(&mut bytes).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        (client, address)
    }

    #[tokio::test]
    async fn request_through_a_gateway_stops_at_the_first_failed_step() {
        let target = TrafficTarget {
            hostname: WEB.into(),
            port: 80,
            speaks_http: true,
            accounts: vec!["spiffe://cluster.local/ns/shop/sa/web".into()],
            endpoint: None,
        };
        let ends = |outcome: &ProbeOutcome| {
            let last = outcome.steps.last().expect("a step");
            (text(&last["step"]), last["ok"] == true, text(&last["detail"]))
        };
        let fine = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let (client, gateway) = rig("web", fine).await;
        let outcome = probe(&client, BY_GATEWAY, gateway, &target).await;
        assert_eq!(ends(&outcome), ("answer".into(), true, "404".into()));
        assert_eq!(outcome.identity.as_deref(), Some("spiffe://cluster.local/ns/shop/sa/web"));
        // The gateway does not know this service.
        let other = TrafficTarget { hostname: "db.shop".into(), ..target.clone() };
        let (step, ok, detail) = ends(&probe(&client, BY_GATEWAY, gateway, &other).await);
        assert!(step == "answer" && !ok, "{detail}");

        let (client, gateway) = rig("web", "HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
        let (step, ok, detail) = ends(&probe(&client, BY_GATEWAY, gateway, &target).await);
        assert!(step == "answer" && !ok && detail.contains("503"), "{detail}");

        let (client, gateway) = rig("thief", fine).await;
        let (step, ok, detail) = ends(&probe(&client, BY_GATEWAY, gateway, &target).await);
        assert!(step == "mtls" && !ok && detail.contains("sa/thief answers"), "{detail}");

        // Root certificate of another mesh.
        let (_, gateway) = rig("web", fine).await;
        let (step, ok, detail) = ends(&probe(&client, BY_GATEWAY, gateway, &target).await);
        assert!(step == "mtls" && !ok, "{detail}");

        let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let gateway = closed.local_addr().expect("bound");
        drop(closed);
        let (step, ok, detail) = ends(&probe(&client, BY_GATEWAY, gateway, &target).await);
        assert!(step == "gateway" && !ok && detail.contains("refused"), "{detail}");
    }

    #[tokio::test]
    async fn pod_of_another_cluster_in_the_same_network_is_called_directly() {
        let (client, pod) = rig("web", "HTTP/1.1 200 OK\r\n\r\n").await;
        let network =
            typed(json!({ "network": "n2", "clusters": ["east", "west"], "gateways": [] }));
        let response = async |pod: SocketAddr| {
            let mut endpoint = endpoint(80, "healthy", "istio");
            (endpoint.address, endpoint.port) = (pod.ip().to_string(), pod.port());
            let target = callable(&service("HTTP"), &[endpoint], &network, "west");
            let rows = call(&client, Some("east"), Passage::Direct, &network, "west", target).await;
            assert_eq!(rows.len(), 1, "{rows:?}");
            rows.into_iter().next().expect("one")
        };
        let row = response(pod).await;
        assert_eq!(failed(&row), None, "{row}");
        assert_eq!((&row["gateway"], &row["endpoint"]), (&Value::Null, &json!(pod.to_string())));
        assert_eq!((way(&row), &row["answer"]), ("direct".to_owned(), &json!("200")));
        assert_eq!(row["identity"], "spiffe://cluster.local/ns/shop/sa/web");
        assert!(
            suite(std::slice::from_ref(&row)).xml().contains("name=\"east to west by direct for")
        );

        let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let away = closed.local_addr().expect("bound");
        drop(closed);
        let row = response(away).await;
        let step = failed(&row).expect("it fails");
        assert_eq!((&step["step"], &step["code"]), (&json!("network"), &json!("STR0914")));

        // In a mesh with one network, no gateway is needed.
        let none = Passage::Gateways { needed: false };
        let target =
            callable(&service("HTTP"), &[endpoint(80, "healthy", "istio")], &network, "west");
        let rows = call(&client, None, none, &network, "west", target).await;
        assert!(failures(&rows).contains("--from ID --direct"), "{}", failures(&rows));
    }

    #[test]
    fn results_of_probes_are_filtered_by_cluster() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            traffic: TrafficArgs,
        }
        let row = |from: &str, to: Option<&str>| json!({ "from": from, "to": to, "steps": [] });
        let found = || {
            vec![
                row("c1", Some("c2")),
                row("c1", Some("c3")),
                row("c2", Some("c1")),
                row("c2", None),
            ]
        };
        let shown = |words: &str| {
            let words = format!("check --traffic --probes a,b {words}");
            let line =
                <Line as clap::Parser>::try_parse_from(words.split_whitespace()).expect("flags");
            let rows = chosen(&line.traffic, found())?;
            let pair = |row: &Value| format!("{} {}", text(&row["from"]), text(&row["to"]));
            Ok::<_, CommandFailure>(rows.iter().map(pair).collect::<Vec<_>>())
        };
        let none = |words| shown(words).expect_err("no such probe").to_string();
        assert_eq!(shown("").expect("all"), ["c1 c2", "c1 c3", "c2 c1", "c2 <none>"]);
        assert_eq!(shown("--to c3").expect("one"), ["c1 c3", "c2 <none>"]);
        assert_eq!(shown("--from c1").expect("two"), ["c1 c2", "c1 c3"]);
        assert!(none("--from c9").contains("no probe of a, b sends requests from \"c9\""));
    }

    #[tokio::test]
    async fn failed_requests_are_reported_and_written_as_junit() {
        let (client, _) = rig("web", "").await;
        let network = typed(json!({ "network": "n2", "clusters": ["west"], "gateways": [] }));
        let target =
            callable(&service("HTTP"), &[endpoint(80, "healthy", "istio")], &network, "west");
        let mut rows = call(&client, Some("east"), BY_GATEWAY, &network, "west", target).await;
        rows.extend(call(&client, None, BY_GATEWAY, &network, "we<st\"", None).await);
        rows.push(json!({ "from": "here", "to": "a", "network": "n3", "gateway": "g", "service": "s", "answer": "200", "ms": 12.5, "steps": [] }));
        let steps: Vec<_> =
            rows.iter().map(|row| failed(row).map(|step| text(&step["step"]))).collect();
        assert_eq!(steps, [Some("gateway".to_owned()), Some("ready".to_owned()), None]);
        assert!(
            failures(&rows).contains("east to west: gateway: network n2 has no gateway"),
            "{}",
            failures(&rows)
        );
        assert_eq!(result(&rows[2], &LOOK).paint(&LOOK), "✓ 200");
        let xml = suite(&rows).xml();
        assert!(xml.contains("tests=\"3\" failures=\"2\""), "{xml}");
        assert!(xml.contains("here to we&lt;st&quot; by") && !xml.contains("we<st"), "{xml}");
        assert!(xml.contains("<failure type=\"STR0401\" message=\"gateway: network n2"), "{xml}");
        assert!(xml.contains("time=\"0.013\"/>") || xml.contains("time=\"0.012\"/>"), "{xml}");
    }
}
