//! Reads the Consuls that flags name, with all or the selected datacentres of each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::address::{ConsulAddress, is_datacentre};
use super::catalog;
use super::client::{ConsulClient, ConsulToken, Query};
use super::datacentre::{Datacentre, error_code};
use strait_base::source_status::{RememberedSource, SourceFacts, SourceStatusTable};
use strait_base::task::Supervisor;
use strait_kube_client::{ApiError, Redacted};
use strait_model::registry::{
    Contents, Epoch, RegistryUpdate, ServiceRecord, ShardChange, ShardKey,
};
use strait_model::{ClusterId, Hostname};

/// The interval of requests for the list of datacentres, which has no blocking query.
const LIST: Duration = Duration::from_secs(30);
/// The pause after a failed request.
const LIST_AGAIN: Duration = Duration::from_secs(2);
/// Number of consecutive lists without a datacentre after which it is withdrawn: 10 minutes of
/// lists.
const LACKING: u32 = 20;
/// Maximum number of datacentres of one Consul.
const DATACENTRES_MAX: usize = 100;

/// The inputs of the registries.
pub struct ConsulConfig {
    /// The address of each Consul.
    pub addresses: Vec<ConsulAddress>,
    /// The channel for updates. A full channel makes the registries wait and merge their updates.
    pub updates: mpsc::Sender<RegistryUpdate>,
    /// The table in which they publish their status.
    pub source_statuses: SourceStatusTable,
    /// The services of datacentres from before this process started, by the name of their shard.
    pub remembered: BTreeMap<ClusterId, RememberedSource<DatacentreServices>>,
}

/// The services of a datacentre, by host.
type DatacentreServices = BTreeMap<Hostname, ServiceRecord>;

/// Starts a task for each Consul under `tasks`. Returns the remembered state of their datacentres,
/// to be applied before all their reports.
pub fn start(config: ConsulConfig, tasks: &Supervisor) -> Vec<RegistryUpdate> {
    let mut updates = Vec::new();
    let mut remembered = config.remembered;
    let only = config.addresses.len() == 1;
    let epochs = Arc::new(AtomicU64::new(0));
    for (at, address) in config.addresses.into_iter().enumerate() {
        let name = match (address.name.as_str(), at) {
            ("", 0) => "consul".to_owned(),
            ("", at) => format!("consul-{}", at + 1),
            (name, _) => name.to_owned(),
        };
        // With several Consuls, the variable would reveal the token of one to the others.
        let variable = |name| std::env::var(name).ok().filter(|value| only && !value.is_empty());
        let credential = match &address.token_file {
            Some(file) => ConsulToken::File(file.clone()),
            None => match (variable("CONSUL_HTTP_TOKEN_FILE"), variable("CONSUL_HTTP_TOKEN")) {
                (Some(file), _) => ConsulToken::File(file.into()),
                (None, Some(token)) => ConsulToken::Text(Redacted::new(token)),
                (None, None) => ConsulToken::None,
            },
        };
        let restored = take_remembered(&mut remembered, &name, &address);
        let consul = Arc::new(Consul {
            name: name.into(),
            restored: restored
                .iter()
                .map(|(name, restored)| (name.clone(), restored.held.clone()))
                .collect(),
            ca_file: address.ca_file.clone().or(variable("CONSUL_CACERT").map(PathBuf::from)),
            credential: Arc::new(credential),
            address: Arc::new(address),
            updates: config.updates.clone(),
            source_statuses: config.source_statuses.clone(),
            epochs: Arc::clone(&epochs),
        });
        let label = format!("registry {}", consul.name);
        let facts = || SourceFacts::starting("consul", consul.address.to_string());
        // The status of a remembered Consul comes from the datacentre with the newest contact.
        let newest = restored.values().max_by_key(|restored| restored.last_contact);
        consul
            .source_statuses
            .report(&consul.name, &newest.map_or_else(facts, |restored| facts().with(restored)));
        for (datacentre, restored) in restored {
            let shard = consul.shard(&datacentre);
            let name: Arc<str> = shard.cluster.as_str().into();
            let endpoints = restored.held.values().map(|record| record.endpoints.len()).sum();
            let services = restored.held.len();
            consul
                .source_statuses
                .report(&name, &SourceFacts { services, endpoints, ..facts().with(&restored) });
            info!(registry = %name, services, "datacentre restored from disk, until it is read");
            let services = restored.held.into_iter().map(|(host, record)| (host, Some(record)));
            let contents = Contents { services: services.collect(), ..Contents::default() };
            // Older than any run, so that the first update of any run replaces it.
            let change = ShardChange::Reset(contents);
            updates.push(RegistryUpdate { shard, epoch: Epoch(0), change });
        }
        tasks.spawn_restarting(label, Duration::from_secs(1), move || {
            let consul = Arc::clone(&consul);
            async move { consul.run().await }
        });
    }
    updates
}

/// Removes and returns the remembered datacentres of this Consul that are read, by their names in
/// it.
fn take_remembered(
    remembered: &mut BTreeMap<ClusterId, RememberedSource<DatacentreServices>>,
    consul: &str,
    address: &ConsulAddress,
) -> BTreeMap<String, RememberedSource<DatacentreServices>> {
    let wanted = |name: &str| {
        address.datacentres.is_empty() || address.datacentres.iter().any(|one| one == name)
    };
    let mut taken = BTreeMap::new();
    for (shard, source) in std::mem::take(remembered) {
        match shard.as_str().split_once('/') {
            Some((name_of_consul, name))
                if name_of_consul == consul && is_datacentre(name) && wanted(name) =>
            {
                taken.insert(name.to_owned(), source);
            }
            _ => _ = remembered.insert(shard, source),
        }
    }
    taken
}

struct Consul {
    name: Arc<str>,
    /// The services from before this process started, by datacentre.
    restored: BTreeMap<String, DatacentreServices>,
    address: Arc<ConsulAddress>,
    ca_file: Option<PathBuf>,
    credential: Arc<ConsulToken>,
    updates: mpsc::Sender<RegistryUpdate>,
    source_statuses: SourceStatusTable,
    epochs: Arc<AtomicU64>,
}

type DatacentreTasks<'a> = FuturesUnordered<Abortable<BoxFuture<'a, ()>>>;

impl Consul {
    /// Runs a reader for each datacentre. All of them run in this one task, so that a panic
    /// restarts all readers of this Consul, with greater epochs; the reported data stays until
    /// then.
    async fn run(&self) {
        let mut facts = SourceFacts::starting("consul", self.address.to_string());
        let mut restored = self.restored.clone();
        let mut datacentres = Datacentres::with_remembered(restored.keys());
        let mut ca = None;
        let mut reading: BTreeMap<String, AbortHandle> = BTreeMap::new();
        let mut running = DatacentreTasks::new();
        loop {
            let listed = while_running(&mut running, self.list()).await;
            let now = SystemTime::now();
            let rest = match listed {
                Ok(DatacentreList { client, ca: ca_now, names }) => {
                    facts.responded(now);
                    facts.synced = true;
                    let Changed { mut come, gone } = datacentres.apply(names);
                    if ca.replace(ca_now.clone()) != Some(ca_now) {
                        come = datacentres.names();
                    }
                    for name in come {
                        info!(registry = %self.name, datacentre = name, "reading a datacentre");
                        let (handle, registration) = AbortHandle::new_pair();
                        if let Some(before) = reading.insert(name.clone(), handle) {
                            before.abort();
                        }
                        let restored = restored.remove(&name).unwrap_or_default();
                        let datacentre = self.datacentre(&client, name, restored);
                        running.push(Abortable::new(Box::pin(datacentre.run()), registration));
                    }
                    for name in gone {
                        if let Some(reader) = reading.remove(&name) {
                            reader.abort();
                        }
                        if while_running(&mut running, self.withdraw(&name)).await.is_err() {
                            return;
                        }
                    }
                    LIST
                }
                Err(error) => {
                    if facts.trouble.is_none() {
                        warn!(registry = %self.name, %error, "cannot list datacentres; the known ones stay");
                    }
                    facts.failed(now, error.to_string(), error_code(&error));
                    LIST_AGAIN
                }
            };
            self.source_statuses.report(&self.name, &facts);
            let rest = rest.mul_f64(0.8 + rand::random::<f64>() / 5.0);
            while_running(&mut running, tokio::time::sleep(rest)).await;
        }
    }

    /// Returns the datacentres, and a client that trusts the current CAs.
    async fn list(&self) -> Result<DatacentreList, ApiError> {
        let ca = match &self.ca_file {
            None => None,
            Some(path) => Some(tokio::fs::read(path).await.map_err(|error| {
                ApiError::Tls(format!("CA file {} can't be read ({error})", path.display()))
            })?),
        };
        let client = ConsulClient::new(&self.address, ca.as_deref(), &self.credential)?;
        let names = if self.address.datacentres.is_empty() {
            let query = Query { path: "catalog/datacenters", ..Query::default() };
            let answer = client.send(&query).await?;
            let names = catalog::datacentres(&answer.body).map_err(ApiError::Misbehaving)?;
            names.into_iter().filter(|name| is_datacentre(name)).take(DATACENTRES_MAX).collect()
        } else {
            self.address.datacentres.iter().cloned().collect()
        };
        Ok(DatacentreList { client, ca, names })
    }

    fn datacentre(
        &self,
        client: &ConsulClient,
        name: String,
        restored: DatacentreServices,
    ) -> Datacentre {
        Datacentre {
            client: client.clone(),
            shard: self.shard(&name),
            restored,
            name,
            epoch: Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1),
            updates: self.updates.clone(),
            source_statuses: self.source_statuses.clone(),
            address: self.address.to_string(),
        }
    }

    fn shard(&self, datacentre: &str) -> ShardKey {
        ShardKey::consul(ClusterId::from(format!("{}/{datacentre}", self.name)))
    }

    async fn withdraw(
        &self,
        datacentre: &str,
    ) -> Result<(), mpsc::error::SendError<RegistryUpdate>> {
        let shard = self.shard(datacentre);
        warn!(registry = %shard.cluster, "the datacentre was removed from Consul and is withdrawn");
        self.source_statuses.forget(shard.cluster.as_str());
        let epoch = Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1);
        self.updates.send(RegistryUpdate { shard, epoch, change: ShardChange::Removed }).await
    }
}

struct DatacentreList {
    client: ConsulClient,
    ca: Option<Vec<u8>>,
    names: BTreeSet<String>,
}

/// Waits for `work` while readers run.
async fn while_running<T>(running: &mut DatacentreTasks<'_>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some(_) = running.next() => {}
        }
    }
}

/// The set of datacentres. Pure.
#[derive(Debug, Default)]
struct Datacentres(BTreeMap<String, ListedDatacentre>);

#[derive(Debug, Clone, Copy, Default)]
struct ListedDatacentre {
    /// Number of consecutive lists without it.
    lacking: u32,
    /// Whether any list contained it; otherwise it is remembered from before the start.
    listed: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Changed {
    come: Vec<String>,
    gone: Vec<String>,
}

impl Datacentres {
    /// Creates the set of datacentres from before this process started.
    fn with_remembered<'a>(names: impl Iterator<Item = &'a String>) -> Self {
        Self(names.map(|name| (name.clone(), ListedDatacentre::default())).collect())
    }

    /// Processes a list. A list that lacks a datacentre may be from a Consul that has temporarily
    /// lost contact with it.
    fn apply(&mut self, names: BTreeSet<String>) -> Changed {
        for (name, datacentre) in &mut self.0 {
            datacentre.lacking = if names.contains(name) { 0 } else { datacentre.lacking + 1 };
        }
        let is_gone = |datacentre: &ListedDatacentre| datacentre.lacking >= LACKING;
        let gone = self.0.iter().filter(|(_, datacentre)| is_gone(datacentre));
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        self.0.retain(|_, datacentre| !is_gone(datacentre));
        let is_new = |name: &String| {
            !std::mem::replace(&mut self.0.entry(name.clone()).or_default().listed, true)
        };
        let come: Vec<_> = names.into_iter().filter(is_new).collect();
        Changed { come, gone }
    }

    /// Returns the names of the listed datacentres.
    fn names(&self) -> Vec<String> {
        self.0
            .iter()
            .filter(|(_, datacentre)| datacentre.listed)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn datacentre_is_removed_only_after_many_lists_without_it() {
        let mut datacentres = Datacentres::default();
        assert_eq!(datacentres.apply(list(&["a", "b"])).come, ["a", "b"]);
        for _ in 1..LACKING {
            assert_eq!(datacentres.apply(list(&["a"])), Changed { come: vec![], gone: vec![] });
        }
        assert_eq!(datacentres.apply(list(&["a", "b"])), Changed { come: vec![], gone: vec![] });
        for _ in 1..LACKING {
            assert!(datacentres.apply(list(&["a"])).gone.is_empty());
        }
        assert_eq!(datacentres.apply(list(&["a"])).gone, ["b"]);
        assert_eq!(datacentres.apply(list(&["a", "b"])).come, ["b"]);
    }

    #[test]
    fn remembered_datacentre_is_read_when_listed_and_removed_like_any_other() {
        let before = ["a".to_owned(), "b".to_owned()];
        let mut datacentres = Datacentres::with_remembered(before.iter());
        assert_eq!(
            datacentres.apply(list(&["a"])),
            Changed { come: vec!["a".into()], gone: vec![] }
        );
        assert_eq!(datacentres.names(), ["a"]);
        for _ in 2..LACKING {
            assert_eq!(datacentres.apply(list(&["a"])), Changed { come: vec![], gone: vec![] });
        }
        assert_eq!(datacentres.apply(list(&["a"])).gone, ["b"]);
    }
}
