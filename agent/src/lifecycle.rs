//! The lifecycle of Envoy: it is started with the first certificate, restarted when it exits by itself, drained and
//! stopped.
//!
//! This module owns Envoy's process. Other modules see whether it runs, and request a drain or the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::bootstrap;
use crate::envoy::{EnvoyAdmin, EnvoyProcess, exit_code};
use crate::files::SecretFolder;
use crate::problem::Problem;
use crate::renewal::{CertificateStatus, Pause};
use crate::settings::RunArgs;

/// An Envoy that ran for this time has started successfully.
const STARTED_WELL: Duration = Duration::from_secs(30);
/// The maximum number of consecutive failed starts.
const BAD_STARTS_MAX: u32 = 10;

/// The requested state of the proxy. Each state includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownStage {
    /// Serve traffic.
    Serve,
    /// Accept no new inbound connections, but continue to serve.
    Drain,
    /// Drain, then exit.
    End,
    /// Exit immediately.
    EndNow,
}

/// The status of Envoy's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EnvoyStatus {
    /// The number of starts.
    pub(crate) starts: u64,
    /// Whether Envoy is running.
    pub(crate) runs: bool,
}

/// The lifecycle of one proxy.
pub(crate) struct Lifecycle {
    pub(crate) args: Arc<RunArgs>,
    pub(crate) folder: SecretFolder,
    pub(crate) shutdown: watch::Receiver<ShutdownStage>,
    pub(crate) status: watch::Sender<EnvoyStatus>,
}

impl Lifecycle {
    /// Runs Envoy until the end is requested or Envoy keeps failing. Returns the exit code. Without an Envoy, waits
    /// until the end is requested.
    ///
    /// # Errors
    /// Envoy can't be started.
    pub(crate) async fn run(
        mut self,
        mut certificate: watch::Receiver<CertificateStatus>,
    ) -> Result<u8, Problem> {
        tokio::select! {
            _ = certificate.wait_for(|status| status.ends.is_some()) => {}
            () = reached(&mut self.shutdown, ShutdownStage::End) => return Ok(0),
        }
        if self.args.no_envoy {
            reached(&mut self.shutdown, ShutdownStage::End).await;
            return Ok(0);
        }
        let mut pause = Pause::default();
        let text = bootstrap::render(&self.args, &self.folder);
        let bootstrap = loop {
            let problem = match self.folder.write_bootstrap(&text) {
                Ok(path) => break path,
                Err(problem) => problem,
            };
            let wait = pause.lengthen(rand::random());
            warn!(code = problem.code, next = problem.next, again_in = ?wait, "{}", problem.fact);
            tokio::select! {
                () = sleep(wait) => {}
                () = reached(&mut self.shutdown, ShutdownStage::End) => return Ok(0),
            }
        };
        let mut pause = Pause::default();
        loop {
            let began = Instant::now();
            let mut envoy =
                EnvoyProcess::start(&self.args.envoy, &bootstrap, self.args.metrics_environment())?;
            self.status.send_modify(|status| {
                status.starts += 1;
                status.runs = true;
            });
            let (mut drains, mut ends) = (self.shutdown.clone(), self.shutdown.clone());
            let ended = tokio::select! {
                ended = envoy.ended() => Some(ended?),
                () = self.drain_when_requested(&mut drains) => None,
                () = reached(&mut ends, ShutdownStage::EndNow) => None,
            };
            let Some(ended) = ended else {
                info!("Envoy is stopped");
                return Ok(exit_code(envoy.stop().await?));
            };
            self.status.send_modify(|status| status.runs = false);
            let code = exit_code(ended);
            if began.elapsed() > STARTED_WELL {
                pause = Pause::default();
            }
            if *self.shutdown.borrow() >= ShutdownStage::End || pause.failures() >= BAD_STARTS_MAX {
                warn!(code = "STR0958", status = %ended, "Envoy has ended and is not started again");
                return Ok(code);
            }
            let wait = pause.lengthen(rand::random());
            warn!(code = "STR0958", status = %ended, again_in = ?wait, "Envoy has ended by itself");
            tokio::select! {
                () = sleep(wait) => {}
                () = reached(&mut self.shutdown, ShutdownStage::End) => return Ok(code),
            }
        }
    }

    /// Waits for the request to drain, drains, and returns when the process may exit.
    async fn drain_when_requested(&self, shutdown: &mut watch::Receiver<ShutdownStage>) {
        let admin = EnvoyAdmin { address: self.args.admin_address };
        reached(shutdown, ShutdownStage::Drain).await;
        let served_until = Instant::now() + self.args.drain;
        match admin.drain().await {
            Ok(()) => info!(drain = ?self.args.drain, "listeners are drained"),
            Err(fact) => warn!(
                "cannot drain listeners: {fact}; next: nothing, connections end when Envoy exits"
            ),
        }
        reached(shutdown, ShutdownStage::End).await;
        sleep_until(served_until).await;
        while self.args.drain_until_idle && admin.connections().await.is_ok_and(|count| count > 0) {
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Waits until at least `least` is requested.
async fn reached(shutdown: &mut watch::Receiver<ShutdownStage>, least: ShutdownStage) {
    if shutdown.wait_for(|stage| *stage >= least).await.is_err() {
        // No sender is left that could request anything.
        std::future::pending::<()>().await;
    }
}
