//! `strait relay`: connects the API server of this cluster to a hub that cannot dial it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::failure::{CommandFailure, CommandResult, Exit};
use super::serve::start_logging;
use strait_base::signal::signalled;
use strait_base::task::Supervisor;
use strait_model::ClusterId;
use strait_relay::member::{
    self, CertificateStore, EnrolCredential, HostPort, HttpProxy, HubDialler, RelaySettings,
    RequestList,
};
use strait_server::config::LogFormat;
use strait_sources::store::own_cluster::{OwnClusterError, own_cluster};

/// The time in which open requests can end.
const DRAIN_LIMIT: Duration = Duration::from_secs(8);
/// The time limit for the head of a request to the health address.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct RelayArgs {
    /// ID of this cluster, as in the invitation
    #[arg(long, value_name = "ID", value_parser = parse_cluster)]
    cluster: ClusterId,

    /// Address of the hub, which its certificate must name: the port of --xds-address. Can be
    /// repeated, preferably with one address for each replica of the hub
    #[arg(long, value_name = "HOST:PORT", required = true, value_delimiter = ',')]
    hub: Vec<HostPort>,

    /// File with the roots of the hub's certificate, PEM
    #[arg(long, value_name = "FILE")]
    hub_roots: PathBuf,

    /// File with the invitation from `strait cluster invite`, which is valid once
    #[arg(long, value_name = "FILE")]
    invitation_file: Option<PathBuf>,

    /// File with a token of the relay's service account, if the policy of the hub accepts one
    #[arg(long, value_name = "FILE", conflicts_with = "invitation_file")]
    token_file: Option<PathBuf>,

    /// Kubeconfig for the API server of this cluster [default: the account of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Directory for the certificate of the relay and its key; without it, a restarted relay must
    /// enrol again
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Existing Secret of this cluster for the certificate of the relay and its key, which several
    /// relays share
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = parse_secret, conflicts_with = "state_dir")]
    state_secret: Option<(String, String)>,

    /// HTTP proxy through which the hub is dialled (CONNECT): http://[USER:PASSWORD@]HOST:PORT
    #[arg(long, value_name = "URL")]
    proxy: Option<HttpProxy>,

    /// File with the complete value of the header Proxy-Authorization
    #[arg(long, value_name = "FILE", requires = "proxy")]
    proxy_authorization_file: Option<PathBuf>,

    /// Namespace whose Secrets the hub may read by name, for the gateways in it; can be repeated
    #[arg(long, value_name = "NAMESPACE", value_parser = parse_namespace, value_delimiter = ',')]
    gateway_secrets: Vec<String>,

    /// Let the hub write the roots for workloads into the ConfigMaps istio-ca-root-cert and
    /// strait-ca-root-cert
    #[arg(long)]
    roots: bool,

    /// Let the hub write statuses of ServiceExports and ServiceImports, and events
    #[arg(long)]
    mcs_status: bool,

    /// Let the hub read the traffic objects of this cluster (trafficFrom of the policy file)
    #[arg(long)]
    own_traffic: bool,

    /// Address for health checks: GET /readyz responds 200 while the hub is connected, GET /livez
    /// always
    #[arg(long, value_name = "ADDRESS:PORT")]
    health_address: Option<SocketAddr>,

    /// Log format [default: text on a terminal, otherwise json]
    #[arg(long, env = "STRAIT_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// Log level: error, warn, info, debug, trace, or directives like info,strait_relay=debug
    #[arg(long, env = "STRAIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

pub(super) async fn run(args: RelayArgs) -> CommandResult {
    start_logging(&args.log_level, args.log_format)?;
    let stop = signalled();
    let tasks = Supervisor::new();
    let (kubeconfig, health_address) = (args.kubeconfig.clone(), args.health_address);
    let settings = settings(args)?;
    let cluster = own_cluster(kubeconfig.as_deref(), None, &tasks).await;
    let cluster = cluster.map_err(|error| unusable(&error))?;
    let (ready, readiness) = watch::channel(0);
    if let Some(address) = health_address {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            CommandFailure::failed(format!("strait relay: --health-address {address}: {error}"))
        })?;
        let connections = tasks.clone();
        tasks.spawn("health", serve_health(listener, readiness, connections));
    }
    info!(
        cluster = settings.cluster,
        requests = settings.list.groups().join(", "),
        "the relay starts"
    );
    member::run(settings, cluster.access, ready, stop)
        .await
        .map_err(|error| CommandFailure::failed(format!("strait relay: {error}")))?;
    tasks.stop();
    tasks.shut_down(DRAIN_LIMIT).await;
    Ok(Exit::Fine)
}

fn settings(args: RelayArgs) -> Result<RelaySettings, CommandFailure> {
    if !args.hub_roots.is_file() {
        let text = format!("--hub-roots {}: there is no such file", args.hub_roots.display());
        return Err(CommandFailure::usage(text));
    }
    let own_secret = args.state_secret.clone();
    let store = match (args.state_dir, args.state_secret) {
        (Some(folder), _) => CertificateStore::Folder(folder),
        (None, Some((namespace, name))) => CertificateStore::Secret { namespace, name },
        (None, None) => CertificateStore::Memory,
    };
    if let CertificateStore::Folder(folder) = &store {
        check_state_dir(folder)?;
    }
    let credential = match (args.invitation_file, args.token_file) {
        (Some(file), _) => EnrolCredential::Invitation(file),
        (None, Some(file)) => EnrolCredential::Token(file),
        (None, None) => EnrolCredential::None,
    };
    match (&credential, &store) {
        (EnrolCredential::None, CertificateStore::Memory) => {
            let text = "the relay has neither a credential for its first certificate nor a place with a certificate";
            return Err(CommandFailure::usage(text).next(
                "create an invitation: strait cluster invite ID; and set --invitation-file",
            ));
        }
        (EnrolCredential::Invitation(_), CertificateStore::Memory) => warn!(
            "an invitation is valid once, and the certificate is not stored: set --state-dir to restart without another invitation"
        ),
        _ => {}
    }
    Ok(RelaySettings {
        cluster: args.cluster.to_string(),
        instance: host_name(),
        hubs: args.hub,
        dialler: HubDialler {
            roots: args.hub_roots,
            proxy: args.proxy,
            proxy_authorization: args.proxy_authorization_file,
        },
        credential,
        store,
        list: RequestList {
            gateway_secrets: args.gateway_secrets.into_iter().collect(),
            roots: args.roots,
            mcs_status: args.mcs_status,
            own_traffic: args.own_traffic,
            own_secret,
        },
    })
}

/// Checks that files can be created in a state directory without a certificate: an invitation is
/// valid once, and must not be used for a certificate that is lost.
fn check_state_dir(folder: &Path) -> Result<(), CommandFailure> {
    if std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    let probe = folder.join(".writable");
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&probe, ""))
        .and_then(|()| std::fs::remove_file(&probe));
    written.map_err(|error| {
        let text = format!("--state-dir {}: it is not writable: {error}", folder.display());
        CommandFailure::failed(text).next(
            "set a directory in which the relay may create files; the invitation is still valid",
        )
    })
}

fn unusable(error: &OwnClusterError) -> CommandFailure {
    let exit = match error {
        OwnClusterError::Nowhere(_) | OwnClusterError::Missing(_) | OwnClusterError::Context(_) => {
            Exit::Usage
        }
        OwnClusterError::Credential { .. } => Exit::NoRights,
        _ => Exit::Failed,
    };
    let text = format!("strait relay: cannot use the API server of this cluster: {error}");
    CommandFailure::new(exit, text)
}

/// Returns the name of the host, which is the name of the pod in a pod.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Answers health checks.
async fn serve_health(listener: TcpListener, ready: watch::Receiver<usize>, tasks: Supervisor) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a connection to the health address");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let ready = ready.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let response = health(request.method(), request.uri().path(), *ready.borrow() > 0);
            async { Ok::<_, Infallible>(response) }
        });
        tasks.spawn("health check", async move {
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEALTH_LIMIT);
            let served = server.serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                debug!(%error, "a health check was interrupted");
            }
        });
    }
}

fn health(method: &Method, path: &str, is_ready: bool) -> Response<Full<Bytes>> {
    let (status, text) = match (method, path, is_ready) {
        (&Method::GET, "/livez", _) | (&Method::GET, "/readyz", true) => (StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz", false) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the hub is not connected\n")
        }
        _ => (StatusCode::NOT_FOUND, "not found\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

fn parse_cluster(text: &str) -> Result<ClusterId, String> {
    ClusterId::parse(text).map_err(|error| error.to_string())
}

fn parse_namespace(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = !text.is_empty() && text.len() <= 63 && text.chars().all(is_plain);
    if is_name { Ok(text.to_owned()) } else { Err("expected the name of a namespace".to_owned()) }
}

fn parse_secret(text: &str) -> Result<(String, String), String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    match text.split_once('/') {
        Some((namespace, name)) if !name.is_empty() && name.chars().all(is_plain) => {
            Ok((parse_namespace(namespace)?, name.to_owned()))
        }
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_is_ready_while_the_hub_is_connected() {
        let status = |path, is_ready| health(&Method::GET, path, is_ready).status().as_u16();
        assert_eq!((status("/readyz", true), status("/readyz", false)), (200, 503));
        assert_eq!((status("/livez", false), status("/", true)), (200, 404));
        assert_eq!(health(&Method::POST, "/readyz", true).status().as_u16(), 404);
    }

    #[test]
    fn secret_is_a_namespace_and_a_name() {
        let parsed = parse_secret("strait-system/strait-relay").expect("valid");
        assert_eq!(parsed, ("strait-system".to_owned(), "strait-relay".to_owned()));
        for text in ["strait-relay", "a/b/c", "/a", "a/", "A/b", "a/../b"] {
            parse_secret(text).expect_err(text);
        }
    }

    #[test]
    fn state_directory_must_be_writable_before_the_invitation_is_used() {
        let unwritable = Path::new("/proc/strait-relay");
        let failure = check_state_dir(unwritable).expect_err("not writable");
        assert!(failure.message().contains("--state-dir /proc/strait-relay"), "{failure:?}");
        let folder = tempfile::tempdir().expect("a directory");
        check_state_dir(&folder.path().join("state")).expect("it is created");
    }
}
