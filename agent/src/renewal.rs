//! Renewal of the pod's certificate: requests one, writes it, and repeats this at half its lifetime. It also writes
//! mounted roots that have changed.
//!
//! This module owns the certificate. If requesting or writing fails, the existing files stay, and the request is retried.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::control_plane::ControlPlane;
use crate::credentials::{Credentials, Now, RenewalTime, RootSet};
use crate::files::SecretFolder;
use crate::problem::Problem;

/// How often both clocks and the file of roots are checked.
const LOOK: Duration = Duration::from_secs(10);
/// The maximum length of the first pause after a failure, and of any pause.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The status of the certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CertificateStatus {
    /// When the written certificate expires; `None` if none has been written.
    pub(crate) ends: Option<SystemTime>,
    /// The number of certificates written.
    pub(crate) written: u64,
    /// The number of failures to request or write one.
    pub(crate) failures: u64,
}

/// The task that renews the certificate.
pub(crate) struct Renewal {
    control_plane: ControlPlane,
    folder: SecretFolder,
    held: Option<(Credentials, RenewalTime)>,
    /// The written roots.
    roots: Option<RootSet>,
    pause: Pause,
    status: watch::Sender<CertificateStatus>,
    /// The current credentials, for other modules.
    shown: watch::Sender<Option<Credentials>>,
}

impl Renewal {
    /// Continues with the credentials of an earlier run, if they are still valid.
    pub(crate) fn new(control_plane: ControlPlane, folder: SecretFolder) -> Self {
        let now = Now::read();
        let kept = folder.kept().filter(|kept| kept.validity.holds_at(now.wall));
        let roots = kept.as_ref().map(|kept| kept.roots.clone());
        let held = kept.map(|kept| {
            let time = RenewalTime::of_kept(kept.validity, now, rand::random());
            (kept, time)
        });
        let ends = held.as_ref().map(|(kept, _)| kept.validity.ends);
        let status = watch::Sender::new(CertificateStatus { ends, ..Default::default() });
        let shown = watch::Sender::new(held.as_ref().map(|(kept, _)| kept.clone()));
        Self { control_plane, folder, held, roots, pause: Pause::default(), status, shown }
    }

    /// Returns a receiver for the status of the certificate.
    pub(crate) fn status(&self) -> watch::Receiver<CertificateStatus> {
        self.status.subscribe()
    }

    /// Returns a receiver for the current credentials.
    pub(crate) fn credentials(&self) -> watch::Receiver<Option<Credentials>> {
        self.shown.subscribe()
    }

    /// Renews the certificate while it is polled.
    pub(crate) async fn run(mut self) -> ! {
        loop {
            if self.left().is_zero() {
                self.renew().await;
            } else {
                self.write_changed_roots();
            }
            let wait = self.pause.left().max(self.left()).min(LOOK);
            // Prevents a busy loop if both are zero.
            sleep(wait.max(Duration::from_millis(10))).await;
            while !self.pause.left().is_zero() {
                sleep(self.pause.left()).await;
            }
        }
    }

    fn left(&self) -> Duration {
        self.held.as_ref().map_or(Duration::ZERO, |(_, time)| time.left(Now::read()))
    }

    async fn renew(&mut self) {
        let held = self.held.as_ref().map(|(held, _)| held);
        let held = held.filter(|held| held.validity.holds_at(SystemTime::now()));
        let renewed = self.control_plane.certificate(held).await.and_then(|credentials| {
            let now = Now::read();
            if !credentials.validity.holds_at(now.wall) {
                warn!("the new certificate is not valid by this host's clock; next: correct the clock of the node");
            }
            self.publish(&credentials, &self.all_roots(&credentials))?;
            Ok((RenewalTime::of_new(credentials.validity, now, rand::random()), credentials))
        });
        match renewed {
            Ok((time, credentials)) => {
                let ends = credentials.validity.ends;
                self.roots = Some(self.all_roots(&credentials));
                self.shown.send_replace(Some(credentials.clone()));
                self.held = Some((credentials, time));
                self.pause = Pause::default();
                self.status.send_modify(|status| {
                    status.ends = Some(ends);
                    status.written += 1;
                });
                info!(renewed_in = ?time.left(Now::read()), "the certificate is written");
            }
            Err(problem) => self.failed(&problem),
        }
    }

    /// Writes roots that were mounted after the certificate was issued.
    fn write_changed_roots(&mut self) {
        let Some((credentials, _)) = &self.held else { return };
        let roots = self.all_roots(credentials);
        if self.roots.as_ref() == Some(&roots) {
            return;
        }
        match self.publish(credentials, &roots) {
            Ok(()) => {
                info!(roots = roots.certificates().count(), "other roots are trusted");
                self.roots = Some(roots);
            }
            Err(problem) => self.failed(&problem),
        }
    }

    /// Returns the roots from the response and the mounted ones, so that a new root is trusted before the first
    /// certificate is signed with it.
    fn all_roots(&self, credentials: &Credentials) -> RootSet {
        match self.control_plane.mounted_roots() {
            Ok(mounted) => credentials.roots.with(&mounted),
            // The file is being written or was removed: the previous roots stay trusted.
            Err(_) => self.roots.clone().unwrap_or_else(|| credentials.roots.clone()),
        }
    }

    fn publish(&self, credentials: &Credentials, roots: &RootSet) -> Result<(), Problem> {
        self.folder.publish(credentials, roots)
    }

    fn failed(&mut self, problem: &Problem) {
        let wait = self.pause.lengthen(rand::random());
        self.status.send_modify(|status| status.failures += 1);
        warn!(code = problem.code, next = problem.next, again_in = ?wait, "{}", problem.fact);
    }
}

/// The pause before the next attempt, which grows with each failure.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    /// Starts a pause and returns its length: between half and all of the maximum for the number of failures. `random`
    /// is in 0..1.
    pub(crate) fn lengthen(&mut self, random: f64) -> Duration {
        let most = PAUSE_FIRST.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures += 1;
        let wait = most.mul_f64(0.5 + 0.5 * random);
        self.until = Some(Instant::now() + wait);
        wait
    }

    /// Returns the remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns the number of consecutive failures.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_double_up_to_a_minute_with_jitter() {
        let delays = |random: f64| {
            let mut pause = Pause::default();
            (0..12).map(|_| pause.lengthen(random).as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(delays(1.0)[..4], [500, 1000, 2000, 4000]);
        assert_eq!(delays(1.0)[11], 60_000);
        assert_eq!(delays(0.0)[..2], [250, 500]);
    }
}
