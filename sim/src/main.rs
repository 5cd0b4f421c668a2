//! `strait-sim`: serves a generated world of simulated clusters until it is terminated.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use clap::error::ErrorKind;
use serde_json::json;
use strait_sim::{Family, RATES, World, WorldError, WorldOptions, control};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code for invalid usage, as in sysexits.h.
const USAGE: u8 = 64;

/// The maximum length of a namespace and of a cluster's ID, in characters.
const NAME_MAX: usize = 63;

/// Simulated Kubernetes API servers on loopback ports, generated from a seed
#[derive(Debug, Parser)]
#[command(name = "strait-sim", version)]
struct Arguments {
    /// Number of clusters: c1, c2, ...
    #[arg(long, value_name = "K", value_parser = at_least_one, required_unless_present = "world")]
    clusters: Option<usize>,
    /// Services in each cluster
    #[arg(long, value_name = "S", required_unless_present = "world")]
    services: Option<usize>,
    /// Endpoints of each service in each cluster
    #[arg(long, value_name = "E", required_unless_present = "world")]
    endpoints: Option<usize>,
    /// A standard world instead of these three: W1, W1d or W2; W1/10 has a tenth of the services
    #[arg(long, value_name = "W", value_parser = size,
          conflicts_with_all = ["clusters", "services", "endpoints", "same_names"])]
    world: Option<Size>,
    /// How many of each cluster's services, the last ones, are headless: one TCP port, no ClusterIP
    #[arg(long, value_name = "N", default_value_t = 0)]
    headless: usize,
    /// Number of networks: n1, n2, ...; each uses the same pod addresses
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    networks: usize,
    /// Seed of all random values
    #[arg(long, value_name = "X", default_value_t = 1)]
    seed: u64,
    /// Generates the same services in all clusters
    #[arg(long)]
    same_names: bool,
    /// Exports each service (ServiceExport); adds multi-cluster to --apis
    #[arg(long)]
    exports: bool,
    /// Generates a pod in the mesh for each endpoint; needed with more than one network
    #[arg(long)]
    pods: bool,
    /// Stores all objects encoded as protobuf, so that lists use little CPU while a server starts; needs
    /// about 6 KB per pod
    #[arg(long)]
    encoded: bool,
    /// Offers only HTTP/1.1, as some proxies in front of API servers do
    #[arg(long)]
    http1: bool,
    /// Endpoint changes per second, at random in the entire world
    #[arg(long, value_name = "R/s", value_parser = rate)]
    churn: Option<f64>,
    /// Folder for ID.kubeconfig and secrets/ID.yaml
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// System namespace of all clusters and of the Secrets
    #[arg(long, value_name = "NS", default_value = "strait-system", value_parser = namespace)]
    namespace: String,
    /// The cluster whose system namespace contains the Secrets of all others; any ID other than c1, c2, ...
    /// adds an empty cluster
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    config_cluster: Option<String>,
    /// APIs served in addition to the core, without objects: istio, gateway-api, multi-cluster,
    /// trust-bundles, external-dns
    #[arg(long, value_name = "API,...", value_delimiter = ',', value_parser = family)]
    apis: Vec<Family>,
    /// Address of the control port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    control_address: SocketAddr,
}

/// The size of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    clusters: usize,
    services: usize,
    endpoints: usize,
    same_names: bool,
}

fn size(text: &str) -> Result<Size, String> {
    let (name, divisor) = text.split_once('/').unwrap_or((text, "1"));
    let mut size = match name {
        "W1" => Size { clusters: 10, services: 1000, endpoints: 10, same_names: true },
        "W1d" => Size { clusters: 10, services: 1000, endpoints: 10, same_names: false },
        "W2" => Size { clusters: 50, services: 2000, endpoints: 5, same_names: true },
        _ => {
            return Err("expected W1, W1d or W2, or a fraction of it, for example W1/10".to_owned());
        }
    };
    size.services /= at_least_one(divisor)?;
    Ok(size)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// Parses a rate. `100` and `100/s` are equivalent.
fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.trim_end_matches("/s").parse().map_err(|_| "not a rate")?;
    let known = format!("must be from {} to {}", RATES.start(), RATES.end());
    RATES.contains(&rate).then_some(rate).ok_or(known)
}

fn namespace(text: &str) -> Result<String, String> {
    let reason = "a namespace is a DNS-1123 label: lower-case letters, digits and '-', a letter or digit at both \
                  ends, at most 63 characters";
    let fits = is_label(text) && text.len() <= NAME_MAX;
    fits.then(|| text.to_owned()).ok_or_else(|| reason.to_owned())
}

/// Parses a cluster ID, which is also used in file names.
fn cluster_id(text: &str) -> Result<String, String> {
    let reason = "a cluster ID is a DNS-1123 subdomain of at most 63 characters: lower-case letters, digits, '-' \
                  and '.', each label starting and ending with a letter or digit";
    let fits = text.split('.').all(is_label) && text.len() <= NAME_MAX;
    fits.then(|| text.to_owned()).ok_or_else(|| reason.to_owned())
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges = [text.bytes().next(), text.bytes().last()];
    edges.iter().all(|edge| edge.is_some_and(alphanumeric))
        && text.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
}

fn family(text: &str) -> Result<Family, String> {
    match text {
        "istio" => Ok(Family::Istio),
        "gateway-api" => Ok(Family::GatewayApi),
        "multi-cluster" => Ok(Family::MultiCluster),
        "trust-bundles" => Ok(Family::TrustBundles),
        "external-dns" => Ok(Family::ExternalDns),
        _ => {
            Err("expected istio, gateway-api, multi-cluster, trust-bundles or external-dns"
                .to_owned())
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Fails if nothing reads the output.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "strait-sim: {failure}");
            match failure {
                Failure::World(WorldError::TooLarge(_)) => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// The reason why the program can't serve.
enum Failure {
    World(WorldError),
    Signals(io::Error),
    Control(SocketAddr, io::Error),
    File(PathBuf, io::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::World(error) => {
                let cause = std::error::Error::source(error);
                let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
                write!(f, "{error}{cause}")
            }
            Failure::Signals(error) => write!(f, "can't wait for signals: {error}"),
            Failure::Control(address, error) => write!(f, "can't listen on {address}: {error}"),
            Failure::File(path, error) => write!(f, "can't write {}: {error}", path.display()),
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let mut terminated = signal(SignalKind::terminate()).map_err(Failure::Signals)?;
    let control_failure = |error| Failure::Control(arguments.control_address, error);
    let listener = TcpListener::bind(arguments.control_address).await.map_err(control_failure)?;
    let control = listener.local_addr().map_err(control_failure)?;
    let size = arguments.world.unwrap_or(Size {
        clusters: arguments.clusters.unwrap_or_default(),
        services: arguments.services.unwrap_or_default(),
        endpoints: arguments.endpoints.unwrap_or_default(),
        same_names: arguments.same_names,
    });
    let mut families = BTreeSet::from_iter(arguments.apis);
    families.extend(arguments.exports.then_some(Family::MultiCluster));
    let world = World::generate(WorldOptions {
        clusters: size.clusters,
        services: size.services,
        endpoints: size.endpoints,
        headless: arguments.headless,
        networks: arguments.networks,
        seed: arguments.seed,
        same_names: size.same_names,
        pods: arguments.pods,
        encoded: arguments.encoded,
        http2: !arguments.http1,
        system_namespace: arguments.namespace.clone(),
        families,
        exports: arguments.exports,
        config_cluster: arguments.config_cluster,
    });
    let world = Arc::new(world.await.map_err(Failure::World)?);
    if let Some(directory) = &arguments.out {
        write_files(&world, directory, &arguments.namespace)?;
    }
    let clusters: Vec<_> =
        world.clusters().map(|cluster| json!({"id": cluster.id(), "url": cluster.url()})).collect();
    let line = json!({"control": control.to_string(), "clusters": clusters});
    // Errors are ignored: the clusters run even if nothing reads the output.
    let _ = writeln!(io::stdout(), "{line}");
    let churn = async {
        match arguments.churn {
            Some(rate) => world.churn(rate).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = control::serve(world.clone(), listener) => {}
        () = churn => {}
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}

fn write_files(world: &World, directory: &Path, namespace: &str) -> Result<(), Failure> {
    let secrets = directory.join("secrets");
    std::fs::create_dir_all(&secrets).map_err(|error| Failure::File(secrets.clone(), error))?;
    for cluster in world.clusters() {
        let id = cluster.id();
        replace(&directory.join(format!("{id}.kubeconfig")), &cluster.kubeconfig())?;
        let secret = format!("{:#}\n", cluster.member_secret(namespace));
        replace(&secrets.join(format!("{id}.yaml")), &secret)?;
    }
    Ok(())
}

/// Replaces a file atomically, because another program may watch the folder.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|error| Failure::File(path.to_owned(), error))
}
