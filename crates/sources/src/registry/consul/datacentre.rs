//! Reads one datacentre: a blocking query for the catalogue, one for each service, and a probe.
//!
//! Readers send queries and pass the responses on; only the loop changes the index and reports
//! changes. A reader that fails pauses longer each time, until the probe reaches the datacentre
//! again. A probe also detects that the server no longer responds, which a blocking query cannot.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tracing::{info, warn};

use super::catalog::{self, Instances};
use super::client::{ConsulClient, ConsulResponse, Query, escape};
use super::cursor::QueryCursor;
use super::index::{CatalogOutcome, ConsulIndex};
use strait_base::codes::{self, Code};
use strait_base::mass_deletion::CONFIRM_AFTER;
use strait_base::source_status::{SourceFacts, SourceStatusTable};
use strait_kube_client::{ApiError, Backoff};
use strait_model::Hostname;
use strait_model::registry::{Epoch, RegistryUpdate, ServiceRecord, ShardKey};

/// Number of concurrent queries, each on a separate connection. By default, an agent accepts 200
/// from one client.
const QUERIES: usize = 128;
/// Maximum wait of a query with its own connection.
const WAIT: Duration = Duration::from_secs(5 * 60);
/// Approximate maximum age of a service's data if queries share connections.
const TURN: Duration = Duration::from_secs(10);
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The interval of probes.
const PROBE: Duration = Duration::from_secs(5);
/// The time limit of a probe.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// The first and the maximum pause after a failure.
const REST: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Capacity of the channel of responses. A full channel makes the readers wait, and with them
/// Consul.
const ANSWERS: usize = 64;

/// The inputs of the reader of one datacentre.
pub(super) struct Datacentre {
    pub(super) client: ConsulClient,
    /// Its name in Consul.
    pub(super) name: String,
    pub(super) shard: ShardKey,
    /// The services from before this process started.
    pub(super) restored: BTreeMap<Hostname, ServiceRecord>,
    pub(super) epoch: Epoch,
    pub(super) updates: mpsc::Sender<RegistryUpdate>,
    pub(super) source_statuses: SourceStatusTable,
    pub(super) address: String,
}

/// The reports of readers. The reader is notified whether the response is to be confirmed.
enum DatacentreInput {
    Catalogue(Result<Vec<Arc<str>>, ApiError>, oneshot::Sender<Unconfirmed>),
    Service(Arc<str>, Result<Instances, ApiError>, oneshot::Sender<Unconfirmed>),
    Probed(Result<(), ApiError>),
}

/// Whether a response is doubtful and must be requested again.
type Unconfirmed = bool;

impl Datacentre {
    /// Reads until the receiver of updates is dropped. Survives every error.
    pub(super) async fn run(self) {
        let (sink, mut inputs) = mpsc::channel(ANSWERS);
        let readers = Readers {
            client: self.client.clone(),
            datacentre: self.name.clone(),
            slots: Semaphore::new(QUERIES),
            sink,
            revived: Notify::new(),
        };
        let name: Arc<str> = self.shard.cluster.as_str().into();
        let mut state = DatacentreRun {
            name: Arc::clone(&name),
            index: ConsulIndex::with_remembered(&self.name, self.restored),
            facts: SourceFacts::starting("consul", self.address.clone()),
            catalogue: None,
            contact: None,
            readers: &readers,
            reading: BTreeMap::new(),
            running: FuturesUnordered::new(),
            wait: WAIT,
        };
        state.report(&self.source_statuses);
        let mut always = pin!(async { tokio::join!(readers.catalogue(), readers.probe()) });
        loop {
            tokio::select! {
                Some(input) = inputs.recv() => {
                    state.apply(input);
                    while let Ok(input) = inputs.try_recv() {
                        state.apply(input);
                    }
                    state.report(&self.source_statuses);
                }
                // Readers run here. A reader ends when its service is removed.
                Some(_) = state.running.next() => {}
                _ = &mut always => return,
                permit = self.updates.reserve(), if state.index.has_news() => {
                    let Ok(permit) = permit else { return };
                    let Some(change) = state.index.take_change() else { continue };
                    let (shard, epoch) = (self.shard.clone(), self.epoch);
                    permit.send(RegistryUpdate { shard, epoch, change });
                    if !std::mem::replace(&mut state.facts.synced, true) {
                        info!(registry = %name, "all services have been read");
                    }
                    state.report(&self.source_statuses);
                }
            }
        }
    }
}

struct DatacentreRun<'a> {
    name: Arc<str>,
    index: ConsulIndex,
    facts: SourceFacts,
    /// Why the catalogue cannot be read, and why there is no contact at all.
    catalogue: Option<(String, &'static Code)>,
    contact: Option<(String, &'static Code)>,
    readers: &'a Readers,
    reading: BTreeMap<Arc<str>, AbortHandle>,
    running: FuturesUnordered<Abortable<BoxFuture<'a, ()>>>,
    /// The maximum wait of queries for services.
    wait: Duration,
}

impl DatacentreRun<'_> {
    fn apply(&mut self, input: DatacentreInput) {
        let now = SystemTime::now();
        match input {
            DatacentreInput::Catalogue(Ok(names), reader) => {
                self.facts.last_contact = Some(now);
                let outcome = self.index.catalogue(names, Instant::now());
                // A reader that has ended needs no reply.
                let _ = reader.send(!matches!(outcome, CatalogOutcome::Yes { .. }));
                match outcome {
                    CatalogOutcome::Yes { come, gone } => {
                        self.catalogue = None;
                        self.follow(come, &gone);
                    }
                    CatalogOutcome::Doubtful(reason) => {
                        self.facts.failures += 1;
                        self.catalogue = Some((reason, &codes::CONSUL_ODD));
                    }
                    CatalogOutcome::Denied(reason) => {
                        self.facts.failures += 1;
                        self.catalogue = Some((reason.to_owned(), &codes::CONSUL_DENIED));
                    }
                }
            }
            DatacentreInput::Catalogue(Err(error), _) => {
                self.facts.failures += 1;
                self.catalogue = Some((error.to_string(), error_code(&error)));
            }
            DatacentreInput::Service(name, Ok(instances), reader) => {
                self.facts.last_contact = Some(now);
                let outcome = self.index.service(&name, instances);
                let _ = reader.send(!outcome);
            }
            DatacentreInput::Service(name, Err(error), _) => {
                self.facts.failures += 1;
                self.index.failed(&name, &format!("{}: {error}", error_code(&error)));
            }
            DatacentreInput::Probed(Ok(())) => {
                self.facts.last_contact = Some(now);
                if self.contact.take().is_some() {
                    // Queries that were blocked when contact was lost may never complete.
                    self.restart_readers();
                    self.readers.revived.notify_waiters();
                }
            }
            DatacentreInput::Probed(Err(error)) => {
                self.facts.failures += 1;
                self.contact = Some((error.to_string(), error_code(&error)));
            }
        }
        self.note_trouble(now);
    }

    fn note_trouble(&mut self, now: SystemTime) {
        let before = self.facts.trouble.take();
        let trouble = self.contact.as_ref().or(self.catalogue.as_ref());
        let Some((reason, code)) = trouble else {
            if before.is_some() {
                info!(registry = %self.name, "Consul is reachable again");
            }
            return;
        };
        if before.is_none() {
            let next = code.next;
            warn!(registry = %self.name, %code, reason, next, "cannot read Consul; the last known state stays in use");
        }
        let since = before.map_or(now, |before| before.since);
        self.facts.trouble =
            Some(strait_base::source_status::Trouble { since, reason: reason.clone(), code });
    }

    /// Starts readers for new services, and stops readers of removed services.
    fn follow(&mut self, come: Vec<Arc<str>>, gone: &[Arc<str>]) {
        for name in gone {
            if let Some(reader) = self.reading.remove(name) {
                reader.abort();
            }
        }
        let wait = wait(self.index.names().count());
        if wait == self.wait {
            come.into_iter().for_each(|name| self.read(name));
        } else {
            // Queries with a long wait would delay queries for other services.
            self.wait = wait;
            self.restart_readers();
        }
    }

    fn restart_readers(&mut self) {
        for reader in std::mem::take(&mut self.reading).into_values() {
            reader.abort();
        }
        let names: Vec<_> = self.index.names().cloned().collect();
        names.into_iter().for_each(|name| self.read(name));
    }

    fn read(&mut self, name: Arc<str>) {
        let (handle, registration) = AbortHandle::new_pair();
        self.reading.insert(Arc::clone(&name), handle);
        let reader: BoxFuture<'_, ()> = Box::pin(self.readers.service(name, self.wait));
        self.running.push(Abortable::new(reader, registration));
    }

    fn report(&mut self, source_statuses: &SourceStatusTable) {
        (self.facts.services, self.facts.endpoints) = self.index.counts();
        self.facts.warnings = self.index.warnings();
        self.facts.doubts = self.index.unconfirmed_lists();
        source_statuses.report(&self.name, &self.facts);
    }
}

/// Returns the maximum wait of queries if this many services share the connections.
fn wait(services: usize) -> Duration {
    match u32::try_from(services.div_ceil(QUERIES)) {
        Ok(0 | 1) => WAIT,
        Ok(turns) => (TURN / turns).max(WAIT_MIN),
        Err(_) => WAIT_MIN,
    }
}

pub(super) fn error_code(error: &ApiError) -> &'static Code {
    match error {
        ApiError::Unauthorized(_) | ApiError::Forbidden(_) => &codes::CONSUL_DENIED,
        ApiError::Tls(_) => &codes::CONSUL_TLS,
        ApiError::Misbehaving(_)
        | ApiError::OverBudget(_)
        | ApiError::NotFound(_)
        | ApiError::Rejected(_) => &codes::CONSUL_ODD,
        _ => &codes::CONSUL_UNREACHABLE,
    }
}

/// The state that readers share.
struct Readers {
    client: ConsulClient,
    datacentre: String,
    slots: Semaphore,
    sink: mpsc::Sender<DatacentreInput>,
    /// Notified when the datacentre responds again: pauses end.
    revived: Notify,
}

impl Readers {
    async fn catalogue(&self) {
        let read = |answer: &ConsulResponse| catalog::names(&answer.body);
        self.follow("catalog/services", WAIT, None, read, DatacentreInput::Catalogue).await;
    }

    async fn service(&self, name: Arc<str>, wait: Duration) {
        let path = format!("health/service/{}", escape(&name));
        let read = |answer: &ConsulResponse| catalog::instances(&answer.body);
        let to_input = |result, reader| DatacentreInput::Service(Arc::clone(&name), result, reader);
        self.follow(&path, wait, Some(&self.slots), read, to_input).await;
    }

    /// Sends probes, independent of the queries.
    async fn probe(&self) {
        loop {
            let query = Query { path: "status/leader", datacentre: &self.datacentre, wait: None };
            let response = tokio::time::timeout(PROBE_LIMIT, self.client.send(&query)).await;
            let result = match response {
                Err(_) => Err(ApiError::Silent { request: "a probe".into(), limit: PROBE_LIMIT }),
                Ok(Ok(answer)) if answer.body.trim_ascii() == b"\"\"" => {
                    Err(ApiError::Unreachable("it has no leader".into()))
                }
                Ok(answer) => answer.map(|_| ()),
            };
            if self.sink.send(DatacentreInput::Probed(result)).await.is_err() {
                return;
            }
            tokio::time::sleep(PROBE).await;
        }
    }

    /// Repeats a query, and passes on responses that may be new.
    async fn follow<T>(
        &self,
        path: &str,
        wait: Duration,
        slots: Option<&Semaphore>,
        read: impl Fn(&ConsulResponse) -> Result<T, String>,
        to_input: impl Fn(Result<T, ApiError>, oneshot::Sender<Unconfirmed>) -> DatacentreInput,
    ) {
        let mut cursor = QueryCursor::default();
        let mut failures = Backoff::new(REST.0, REST.1);
        loop {
            let slot = match slots {
                Some(slots) => slots.acquire().await.ok(),
                None => None,
            };
            let sent_at = Instant::now();
            let wait_limit = wait.mul_f64(0.8 + rand::random::<f64>() / 5.0);
            let query = Query {
                path,
                datacentre: &self.datacentre,
                wait: cursor.index().map(|index| (index, wait_limit)),
            };
            let answer = self.client.send(&query).await;
            drop(slot);
            let (result, rest) = match answer {
                Ok(answer) => {
                    let answered = cursor.answered(answer.index, sent_at.elapsed());
                    if !answered.news {
                        tokio::time::sleep(answered.rest).await;
                        continue;
                    }
                    (read(&answer).map_err(ApiError::Misbehaving), answered.rest)
                }
                Err(error) => (Err(error), Duration::ZERO),
            };
            let failed = result.is_err();
            let (reader, doubted) = oneshot::channel();
            if self.sink.send(to_input(result, reader)).await.is_err() {
                return;
            }
            if failed {
                // So that the next response arrives at once.
                cursor.forget();
                tokio::select! {
                    () = tokio::time::sleep(failures.pause(rand::random())) => {}
                    () = self.revived.notified() => {}
                }
                continue;
            }
            failures = Backoff::new(REST.0, REST.1);
            let doubted = doubted.await.unwrap_or(false);
            if doubted {
                cursor.forget();
            }
            tokio::time::sleep(if doubted { CONFIRM_AFTER } else { rest }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_wait_long_unless_they_share_connections() {
        for (services, seconds) in [(0, 300.0), (128, 300.0), (129, 5.0), (640, 2.0), (9999, 1.0)] {
            assert_eq!(wait(services).as_secs_f64(), seconds, "{services}");
        }
    }
}
