//! `strait-agent run`: starts all parts, on one thread, until the lifecycle ends.

use std::convert::Infallible;
use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::control_plane::ControlPlane;
use crate::credentials::Credentials;
use crate::dns::{NamePort, NameServer};
use crate::envoy::EnvoyAdmin;
use crate::files::SecretFolder;
use crate::lifecycle::{EnvoyStatus, Lifecycle, ShutdownStage};
use crate::names;
use crate::pages::{Pages, Port, bind};
use crate::probes::{self, AppProbes};
use crate::problem::Problem;
use crate::redirect::name_servers;
use crate::renewal::Renewal;
use crate::scrape::{self, AppMetrics};
use crate::settings::RunArgs;

/// Runs the agent until the end is requested or its Envoy keeps failing. Returns the exit code.
///
/// # Errors
/// The reason why it can't start.
pub(crate) async fn run(args: RunArgs) -> Result<u8, Problem> {
    args.check()?;
    let args = Arc::new(args);
    let pod = args.ip.first().copied();
    let probes = match env::var(probes::VARIABLE) {
        Ok(text) if !text.is_empty() => AppProbes::parse(&text, pod)?,
        _ => AppProbes::default(),
    };
    let app_metrics = match (env::var(scrape::VARIABLE), pod) {
        (Ok(text), Some(pod)) if !text.is_empty() => Some(AppMetrics::parse(&text, pod)?),
        _ => None,
    };
    let folder = SecretFolder::open(&args.dir, args.allow_key_on_disk)?;
    let agent = bind(args.agent_address(), "--agent-address").await?;
    let health = bind(args.health_address(), "--health-address").await?;
    let names = Naming::open(&args).await?;
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [terminate, interrupt] = signals.map(|signal| {
        signal.map_err(|error| {
            Problem::new(
                "STR0959",
                format!("cannot register signal handlers: {error}"),
                "report it",
            )
        })
    });
    let (terminate, interrupt) = (terminate?, interrupt?);

    let renewal = Renewal::new(ControlPlane::new(Arc::clone(&args)), folder.clone());
    let (shutdown, envoy) =
        (watch::Sender::new(ShutdownStage::Serve), watch::Sender::new(EnvoyStatus::default()));
    let pages = Arc::new(Pages {
        admin: EnvoyAdmin { address: args.admin_address },
        envoy: envoy.subscribe(),
        certificate: renewal.status(),
        shutdown: shutdown.clone(),
        has_envoy: !args.no_envoy,
        probes,
        app_metrics,
        configured: AtomicU64::new(0),
    });
    let (certificate, held) = (renewal.status(), renewal.credentials());
    let lifecycle = Lifecycle {
        args: Arc::clone(&args),
        folder,
        shutdown: shutdown.subscribe(),
        status: envoy,
    };
    info!(version = env!("CARGO_PKG_VERSION"), node = args.node().id(), "started");
    tokio::select! {
        code = lifecycle.run(certificate) => code,
        never = renewal.run() => never,
        never = pages.serve(agent, Port::Agent) => match never {},
        never = pages.serve(health, Port::Health) => match never {},
        never = names.serve(&args, held) => match never {},
        never = handle_signals(terminate, interrupt, &shutdown) => never,
    }
}

/// The sockets for DNS queries, and the servers to forward to; empty without `--dns`.
struct Naming {
    ports: Vec<NamePort>,
    servers: Vec<SocketAddr>,
}

impl Naming {
    async fn open(args: &RunArgs) -> Result<Self, Problem> {
        let (mut ports, mut servers) = (Vec::new(), Vec::new());
        if args.dns {
            servers =
                name_servers()?.into_iter().map(|server| SocketAddr::new(server, 53)).collect();
            for address in args.dns_addresses() {
                ports.push(NamePort::bind(address).await?);
            }
        }
        Ok(Self { ports, servers })
    }

    async fn serve(
        self,
        args: &Arc<RunArgs>,
        held: watch::Receiver<Option<Credentials>>,
    ) -> Infallible {
        if self.ports.is_empty() {
            return std::future::pending().await;
        }
        let names = watch::Sender::default();
        let server = Arc::new(NameServer { names: names.subscribe(), servers: self.servers });
        let mut serving = JoinSet::new();
        for port in self.ports {
            serving.spawn(Arc::clone(&server).serve(port));
        }
        names::follow(ControlPlane::new(Arc::clone(args)), Arc::clone(args), held, names).await
    }
}

/// Handles signals: the first one drains and ends the proxy, the second one ends it immediately.
async fn handle_signals(
    mut terminate: Signal,
    mut interrupt: Signal,
    shutdown: &watch::Sender<ShutdownStage>,
) -> ! {
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.send_modify(|stage| {
            *stage =
                if *stage < ShutdownStage::End { ShutdownStage::End } else { ShutdownStage::EndNow }
        });
    }
}
