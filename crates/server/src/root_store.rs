//! Storage of the records about roots: a file of the state directory, and a Secret of the config
//! cluster that replicas share. Replicas also report in the Secret which roots they send to their
//! proxies, and which proxies lack a root.
//!
//! Records only move to later times, so the order of reads and writes does not matter. A replica
//! that can't write the Secret uses its own records and logs a warning.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::config_client::ConfigClient;
use super::kube_secret::{self, KubeSecret};
use super::root_witness::{LateWitness, ReplicaReport, ReplicaReports};
use strait_base::{codes, durable};
use strait_identity::{
    ReplicaId, RootLedger, RootRecords, RootStep, ServerIdentity, assumed_records,
};
use strait_sources::registry::kube::{ROOTS_MAPS, written_roots};

/// Name of the Secret in the system namespace, and its only key.
const NAME: &str = "strait-ca-roots";
const KEY: &str = "roots";
/// Name of the file in the state directory.
const FILE: &str = "ca-roots.json";
/// Maximum size of the file in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Interval of reads of the Secret.
const INTERVAL: Duration = Duration::from_secs(10);
/// Age in seconds after which a replica's report is dropped.
const REPORT_LIFE: u64 = 60;

/// Content of the Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct StoredRoots {
    records: RootRecords,
    /// Reports by replica name.
    replicas: BTreeMap<String, ReplicaReport>,
}

/// File and Secret of the records.
#[derive(Debug, Clone)]
pub(super) struct RootStore {
    file: Option<PathBuf>,
    /// The config cluster and its system namespace.
    secret: Option<(ConfigClient, String)>,
    /// Name of this process.
    us: String,
}

impl RootStore {
    pub(super) fn new(
        state_dir: Option<&std::path::Path>,
        secret: Option<(ConfigClient, String)>,
        replica: &ReplicaId,
    ) -> Self {
        let us = replica.process_name();
        Self { file: state_dir.map(|folder| folder.join(FILE)), secret, us }
    }

    /// Reads the file of this process and the shared records, with a time limit of `wait` for the
    /// latter.
    pub(super) async fn at_start(&self, wait: Duration) -> (RootRecords, RootRecords) {
        let (mut own, mut shared) = (RootRecords::new(), RootRecords::new());
        if let Some(file) = &self.file {
            match durable::read_at_most(file, BYTES_MAX).map(|text| serde_json::from_slice(&text)) {
                Ok(Ok(records)) => own = records,
                Ok(Err(error)) => {
                    let (code, path) = (&codes::STATE_DAMAGED, file.display());
                    warn!(%code, %path, %error, "the records of issued certificates are damaged and are ignored");
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    warn!(path = %file.display(), %error, "reading the records of issued certificates failed");
                }
            }
        }
        match timeout(wait, self.read()).await {
            Ok(Ok(Some((stored, _)))) => shared = stored.records,
            Ok(Ok(None)) => {}
            Ok(Err(fact)) => self.complain(&fact),
            Err(_) => self.complain("the config cluster does not respond"),
        }
        (own, shared)
    }

    /// Returns the roots that Strait wrote into the ConfigMaps of the system namespace, within
    /// `wait`. Empty if they cannot be read.
    pub(super) async fn written_in_namespace(&self, wait: Duration) -> RootRecords {
        let read = async {
            let (client, namespace) = self.secret.as_ref()?;
            let client = client.get().ok()?;
            let mut records = RootRecords::new();
            for name in ROOTS_MAPS {
                let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
                let found = client.get::<serde_json::Value>(&path).await;
                let written = found.as_ref().ok().and_then(written_roots);
                records.extend(written.map(assumed_records).unwrap_or_default());
            }
            Some(records)
        };
        timeout(wait, read).await.ok().flatten().unwrap_or_default()
    }

    /// Stores and exchanges the records until the process ends.
    pub(super) async fn run(
        self,
        mut identity: watch::Receiver<Arc<ServerIdentity>>,
        witness: Arc<LateWitness>,
        replicas: Arc<ReplicaReports>,
    ) {
        let ledger = Arc::clone(&identity.borrow().evidence().ledger);
        let mut changes = ledger.follow();
        let (mut in_file, mut complained) = (RootRecords::new(), false);
        loop {
            let records = changes.borrow_and_update().clone();
            if in_file != records {
                self.write_file(&records);
                in_file = records;
            }
            let report = self.report(&identity.borrow_and_update().clone(), &witness);
            match self.exchange(&ledger, report, &replicas).await {
                Ok(()) => complained = false,
                Err(fact) => {
                    if !std::mem::replace(&mut complained, true) {
                        self.complain(&fact);
                    }
                }
            }
            tokio::select! {
                // An error means that the process is ending.
                changed = changes.changed() => if changed.is_err() { return },
                // Other replicas must learn early which roots this one sends.
                changed = identity.changed() => if changed.is_err() { return },
                () = sleep(INTERVAL) => {}
            }
        }
    }

    fn complain(&self, fact: &str) {
        let code = &codes::ROOTS_NOT_SHARED;
        warn!(%code, fact, next = code.next, "{}", code.title);
    }

    fn write_file(&self, records: &RootRecords) {
        let Some(file) = &self.file else { return };
        let text = serde_json::to_vec_pretty(records).unwrap_or_default();
        if let Err(error) = durable::replace(file, &text, 0o600) {
            let (code, path) = (&codes::UNWRITABLE, file.display());
            warn!(%code, %path, %error, "writing the records of issued certificates failed. {}", code.next);
        }
    }

    /// Returns the report of this replica: the roots that it sends, and the proxies that lack a
    /// root that waits to sign. Also sent if no root waits, so that other replicas know that this
    /// one must send a new root first.
    fn report(&self, identity: &ServerIdentity, witness: &LateWitness) -> Option<ReplicaReport> {
        let now = SystemTime::now();
        let (bundle, witness) = (identity.root_bundle()?, witness.0.get()?);
        let is_waiting = |step| matches!(step, RootStep::Distribute | RootStep::Sign);
        let roots = identity.root_standings(now);
        let given = roots.iter().map(|root| root.fingerprint.clone()).collect();
        let lacks = roots.iter().filter(|root| is_waiting(root.step)).filter_map(|root| {
            let mut lacks = witness.own_lacks(bundle, root.record.as_ref()?, now);
            lacks.retain(|lack| lack.is_seen);
            let first = lacks.first()?.to_string();
            let text = match lacks.len() {
                1 => first,
                more => format!("{first}; and {} more", more - 1),
            };
            Some((root.fingerprint.clone(), text))
        });
        let lacks = lacks.collect();
        (!roots.is_empty()).then(|| ReplicaReport { at: seconds(now), given: Some(given), lacks })
    }

    /// Merges the shared records and writes this replica's changes.
    async fn exchange(
        &self,
        ledger: &RootLedger,
        report: Option<ReplicaReport>,
        replicas: &ReplicaReports,
    ) -> Result<(), String> {
        if self.secret.is_none() {
            return Ok(());
        }
        let read = self.read().await?;
        let (stored, version) = match read {
            Some((stored, version)) => (stored, Some(version)),
            None => (StoredRoots::default(), None),
        };
        if !ledger.has_same_ca(&stored.records) {
            return Err(self.fault(&"it belongs to a control plane with another CA"));
        }
        ledger.merge(&stored.records);
        let mut wanted =
            StoredRoots { records: ledger.records(), replicas: stored.replicas.clone() };
        let now = seconds(SystemTime::now());
        wanted
            .replicas
            .retain(|name, report| *name != self.us && now.saturating_sub(report.at) < REPORT_LIFE);
        let others = wanted.replicas.iter().map(|(name, report)| (name.clone(), report.clone()));
        replicas.set(others.collect());
        let before = stored.replicas.get(&self.us);
        wanted.replicas.extend(report.map(|report| {
            // An unchanged report is written only often enough not to be dropped.
            let is_fresh = |before: &&ReplicaReport| {
                (&before.given, &before.lacks) == (&report.given, &report.lacks)
                    && now.saturating_sub(before.at) < REPORT_LIFE / 2
            };
            let kept = before.filter(is_fresh).cloned();
            (self.us.clone(), kept.unwrap_or(report))
        }));
        if wanted == stored || wanted.records.is_empty() {
            return Ok(());
        }
        self.write(&wanted, version).await
    }

    async fn read(&self) -> Result<Option<(StoredRoots, String)>, String> {
        let Some((client, namespace)) = &self.secret else { return Ok(None) };
        let client = client.get().map_err(|error| error.to_string())?;
        let secret = KubeSecret::get(&client, namespace, NAME).await;
        let Some(secret) = secret.map_err(|error| self.fault(&error))? else { return Ok(None) };
        let text = secret.part(KEY).and_then(Result::ok).unwrap_or_default();
        // Damaged content is rewritten from the records of the replicas.
        let stored = serde_json::from_slice(&text).unwrap_or_default();
        Ok(Some((stored, secret.version())))
    }

    async fn write(&self, wanted: &StoredRoots, version: Option<String>) -> Result<(), String> {
        let Some((client, namespace)) = &self.secret else { return Ok(()) };
        let client = client.get().map_err(|error| error.to_string())?;
        let text = serde_json::to_vec(wanted).map_err(|error| error.to_string())?;
        let part = (KEY, &*text);
        let written = kube_secret::write(&client, namespace, NAME, part, version.as_deref()).await;
        match written {
            // Another replica wrote first; the next read merges its changes.
            Err(strait_kube_client::ApiError::Rejected(status)) if status.code == 409 => Ok(()),
            written => written.map_err(|error| self.fault(&error)),
        }
    }

    fn fault(&self, error: &impl std::fmt::Display) -> String {
        if let Some((client, _)) = &self.secret {
            client.reconnect();
        }
        let namespace = self.secret.as_ref().map(|(_, namespace)| namespace.as_str());
        format!("Secret {}/{NAME} of the config cluster: {error}", namespace.unwrap_or_default())
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
