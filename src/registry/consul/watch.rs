//! Reads the Consuls that flags name: which datacentres each has, and all of them at once.

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

use super::address::{Address, is_datacentre};
use super::catalog;
use super::client::{Client, Credential, Query};
use super::datacentre::{Datacentre, code_of};
use crate::apiserver::{Error, Redacted};
use crate::model::ClusterId;
use crate::registry::{Change, Epoch, RegistryUpdate, ShardKey};
use crate::sources::{Board, Facts};
use crate::task::Supervisor;

/// How often the datacentres are asked for, which can't be waited on.
const LIST: Duration = Duration::from_secs(30);
/// How soon after a failure.
const LIST_AGAIN: Duration = Duration::from_secs(2);
/// How many lists in a row must lack a datacentre before it is withdrawn: 10 minutes of them.
const LACKING: u32 = 20;
/// More datacentres than any Consul has.
const DATACENTRES_MAX: usize = 100;

/// What the registries need.
pub struct Config {
    /// One Consul each.
    pub addresses: Vec<Address>,
    /// Where what they say goes. A full channel makes them wait, and merge what they have to say.
    pub updates: mpsc::Sender<RegistryUpdate>,
    /// Where they say how they fare.
    pub board: Board,
}

/// Starts a task for each Consul under `tasks`.
pub fn start(config: Config, tasks: &Supervisor) {
    let only = config.addresses.len() == 1;
    let epochs = Arc::new(AtomicU64::new(0));
    for (at, address) in config.addresses.into_iter().enumerate() {
        let name = match (address.name.as_str(), at) {
            ("", 0) => "consul".to_owned(),
            ("", at) => format!("consul-{}", at + 1),
            (name, _) => name.to_owned(),
        };
        // With several, the environment would hand the token of one to the others.
        let variable = |name| std::env::var(name).ok().filter(|value| only && !value.is_empty());
        let credential = match &address.token_file {
            Some(file) => Credential::File(file.clone()),
            None => match (variable("CONSUL_HTTP_TOKEN_FILE"), variable("CONSUL_HTTP_TOKEN")) {
                (Some(file), _) => Credential::File(file.into()),
                (None, Some(token)) => Credential::Text(Redacted::new(token)),
                (None, None) => Credential::None,
            },
        };
        let consul = Arc::new(Consul {
            name: name.into(),
            ca_file: address.ca_file.clone().or(variable("CONSUL_CACERT").map(PathBuf::from)),
            credential: Arc::new(credential),
            address: Arc::new(address),
            updates: config.updates.clone(),
            board: config.board.clone(),
            epochs: Arc::clone(&epochs),
        });
        let label = format!("registry {}", consul.name);
        consul.board.tell(&consul.name, &Facts::starting("consul", consul.address.to_string()));
        tasks.spawn_restarting(label, Duration::from_secs(1), move || {
            let consul = Arc::clone(&consul);
            async move { consul.run().await }
        });
    }
}

struct Consul {
    name: Arc<str>,
    address: Arc<Address>,
    ca_file: Option<PathBuf>,
    credential: Arc<Credential>,
    updates: mpsc::Sender<RegistryUpdate>,
    board: Board,
    epochs: Arc<AtomicU64>,
}

type Running<'a> = FuturesUnordered<Abortable<BoxFuture<'a, ()>>>;

impl Consul {
    /// Keeps a reader for each datacentre there is. All of them run in this one task, so a panic starts
    /// all of this Consul again, with greater epochs; what was said stays until then.
    async fn run(&self) {
        let mut facts = Facts::starting("consul", self.address.to_string());
        let mut datacentres = Datacentres::default();
        let mut ca = None;
        let mut reading: BTreeMap<String, AbortHandle> = BTreeMap::new();
        let mut running = Running::new();
        loop {
            let listed = beside(&mut running, self.list()).await;
            let now = SystemTime::now();
            let rest = match listed {
                Ok(Listed { client, ca: ca_now, names }) => {
                    facts.heard(now);
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
                        let datacentre = self.datacentre(&client, name);
                        running.push(Abortable::new(Box::pin(datacentre.run()), registration));
                    }
                    for name in gone {
                        if let Some(reader) = reading.remove(&name) {
                            reader.abort();
                        }
                        if beside(&mut running, self.withdraw(&name)).await.is_err() {
                            return;
                        }
                    }
                    LIST
                }
                Err(error) => {
                    if facts.trouble.is_none() {
                        warn!(registry = %self.name, %error, "datacentres can't be listed; those known stay");
                    }
                    facts.failed(now, error.to_string(), code_of(&error));
                    LIST_AGAIN
                }
            };
            self.board.tell(&self.name, &facts);
            let rest = rest.mul_f64(0.8 + rand::random::<f64>() / 5.0);
            beside(&mut running, tokio::time::sleep(rest)).await;
        }
    }

    /// The datacentres, and a client that believes the CAs in force.
    async fn list(&self) -> Result<Listed, Error> {
        let ca = match &self.ca_file {
            None => None,
            Some(path) => Some(tokio::fs::read(path).await.map_err(|error| {
                Error::Tls(format!("CA file {} can't be read ({error})", path.display()))
            })?),
        };
        let client = Client::new(&self.address, ca.as_deref(), &self.credential)?;
        let names = if self.address.datacentres.is_empty() {
            let query = Query { path: "catalog/datacenters", ..Query::default() };
            let answer = client.ask(&query).await?;
            let names = catalog::datacentres(&answer.body).map_err(Error::Misbehaving)?;
            names.into_iter().filter(|name| is_datacentre(name)).take(DATACENTRES_MAX).collect()
        } else {
            self.address.datacentres.iter().cloned().collect()
        };
        Ok(Listed { client, ca, names })
    }

    fn datacentre(&self, client: &Client, name: String) -> Datacentre {
        Datacentre {
            client: client.clone(),
            shard: self.shard(&name),
            name,
            epoch: Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1),
            updates: self.updates.clone(),
            board: self.board.clone(),
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
        warn!(registry = %shard.cluster, "the datacentre has left Consul and is withdrawn");
        self.board.forget(shard.cluster.as_str());
        let epoch = Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1);
        self.updates.send(RegistryUpdate { shard, epoch, change: Change::Removed }).await
    }
}

struct Listed {
    client: Client,
    ca: Option<Vec<u8>>,
    names: BTreeSet<String>,
}

/// Waits for `work` while readers run.
async fn beside<T>(running: &mut Running<'_>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some(_) = running.next() => {}
        }
    }
}

/// The datacentres, and how often each has been lacking in a row. Pure.
#[derive(Debug, Default)]
struct Datacentres(BTreeMap<String, u32>);

#[derive(Debug, PartialEq, Eq)]
struct Changed {
    come: Vec<String>,
    gone: Vec<String>,
}

impl Datacentres {
    /// Takes a list in. One that lacks a datacentre may be of a Consul that has just lost sight of it.
    fn apply(&mut self, names: BTreeSet<String>) -> Changed {
        for (name, lacking) in &mut self.0 {
            *lacking = if names.contains(name) { 0 } else { *lacking + 1 };
        }
        let is_gone = |lacking: u32| lacking >= LACKING;
        let gone = self.0.iter().filter(|(_, lacking)| is_gone(**lacking));
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        self.0.retain(|_, lacking| !is_gone(*lacking));
        let come: Vec<_> = names.into_iter().filter(|name| !self.0.contains_key(name)).collect();
        self.0.extend(come.iter().map(|name| (name.clone(), 0)));
        Changed { come, gone }
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_datacentre_goes_only_when_it_has_been_lacking_for_long() {
        let mut known = Datacentres::default();
        assert_eq!(known.apply(list(&["a", "b"])).come, ["a", "b"]);
        for _ in 1..LACKING {
            assert_eq!(known.apply(list(&["a"])), Changed { come: vec![], gone: vec![] });
        }
        assert_eq!(known.apply(list(&["a", "b"])), Changed { come: vec![], gone: vec![] });
        for _ in 1..LACKING {
            assert!(known.apply(list(&["a"])).gone.is_empty());
        }
        assert_eq!(known.apply(list(&["a"])).gone, ["b"]);
        assert_eq!(known.apply(list(&["a", "b"])).come, ["b"]);
    }
}
