//! Synchronization of holds between replicas, through Secrets of the config cluster.
//!
//! A replica that receives a request to hold or release writes it; the others read it and follow.
//! If two replicas receive different requests, the later one wins. A replica that can't write, or
//! can't reach the config cluster, holds on its own and reports it
//! (docs/contributing/decisions/0048-held-configuration.md).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::IgnoredAny;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::config_client::ConfigClient;
use super::kube_secret::{self, KubeSecret};
use strait_base::codes;
use strait_kube_client::{ApiClient, Patch};
use strait_mesh::hold::{
    ConfigurationHold, HoldChange, HoldMark, HoldRequest, HoldRequests, HoldSharing, HoldState,
    PARTS_MAX, SharedHold, milliseconds, pack, unpack,
};

/// Name of the Secret that describes the hold; its content is in `strait-hold-0` and following.
const NAME: &str = "strait-hold";
/// The only key of each Secret.
const KEY: &str = "hold";
/// Field manager of the Secrets.
const MANAGER: &str = "strait";
/// Interval of reads.
const INTERVAL: Duration = Duration::from_secs(2);
/// Delay after a failed read or write.
const RETRY: Duration = Duration::from_secs(5);

/// Access to the Secrets.
#[derive(Debug, Clone)]
pub(super) struct SharedHoldStore {
    pub(super) client: ConfigClient,
    /// The system namespace.
    pub(super) namespace: String,
}

/// Content of the Secret and its version.
#[derive(Debug)]
struct StoredHold {
    /// The reason if the content is invalid.
    shared: Result<SharedHold, String>,
    version: String,
}

/// The hold of all replicas, with its configuration.
#[derive(Debug, Clone)]
pub(super) struct FoundHold {
    /// See [`SharedHold::changed`].
    pub(super) changed: u64,
    pub(super) held: Option<Arc<ConfigurationHold>>,
}

/// Returns the content of a hold's Secret.
fn content(secret: &KubeSecret) -> Result<Vec<u8>, String> {
    let decoded = secret.part(KEY).ok_or_else(|| format!("key {KEY} is missing"))?;
    decoded.map_err(|error| error.to_string())
}

impl SharedHoldStore {
    fn client(&self) -> Result<ApiClient, String> {
        self.client.get().map_err(|error| error.to_string())
    }

    async fn secret(&self, name: &str) -> Result<Option<KubeSecret>, String> {
        let read = KubeSecret::get(&self.client()?, &self.namespace, name).await;
        read.map_err(|error| self.fault(name, &error))
    }

    fn fault(&self, name: &str, fact: &impl std::fmt::Display) -> String {
        self.client.reconnect();
        format!("Secret {}/{name} of the config cluster: {fact}", self.namespace)
    }

    async fn stored(&self) -> Result<Option<StoredHold>, String> {
        let secret = self.secret(NAME).await?;
        Ok(secret.map(|secret| StoredHold {
            shared: content(&secret).and_then(|text| SharedHold::parse(&text)),
            version: secret.version(),
        }))
    }

    /// Reads the configuration of a hold from its parts.
    async fn content(&self, mark: &HoldMark, parts: usize) -> Result<ConfigurationHold, String> {
        let mut contents = Vec::new();
        for part in 0..parts.min(PARTS_MAX) {
            let name = format!("{NAME}-{part}");
            let secret = self.secret(&name).await?;
            let secret = secret.ok_or_else(|| self.fault(&name, &"there is none"))?;
            contents.push(content(&secret).map_err(|fact| self.fault(&name, &fact))?);
        }
        let unpacked = {
            let mark = mark.clone();
            tokio::task::spawn_blocking(move || unpack(&mark, &contents)).await
        };
        let unpacked = unpacked.map_err(|error| error.to_string())?;
        unpacked.map_err(|fact| self.fault(&format!("{NAME}-0"), &fact))
    }

    /// Writes the hold of this replica, if the Secret still has the version of `read`.
    async fn write(
        &self,
        changed: u64,
        hold: Option<&Arc<ConfigurationHold>>,
        read: Option<&StoredHold>,
    ) -> Result<SharedHold, String> {
        let Some(hold) = hold else {
            let shared = SharedHold { changed, held: None };
            self.write_head(&shared, read).await?;
            return Ok(shared);
        };
        let packing = Arc::clone(hold);
        let packed = tokio::task::spawn_blocking(move || (HoldMark::of(&packing), pack(&packing)));
        let (mark, parts) = packed.await.map_err(|error| error.to_string())?;
        let parts = parts.map_err(|error| error.to_string())?;
        self.write_parts(&parts).await?;
        let shared = SharedHold { changed, held: Some((mark.clone(), parts.len())) };
        self.write_head(&shared, read).await?;
        // Another replica may have overwritten the parts before its own write of the head failed.
        if self.content(&mark, parts.len()).await.is_err() {
            self.write_parts(&parts).await?;
        }
        Ok(shared)
    }

    async fn write_parts(&self, parts: &[Vec<u8>]) -> Result<(), String> {
        let client = self.client()?;
        for (number, part) in parts.iter().enumerate() {
            let name = format!("{NAME}-{number}");
            let path = kube_secret::path(&self.namespace, &name);
            let object = kube_secret::object(&self.namespace, &name, (KEY, part));
            let written = client.patch::<IgnoredAny>(&path, Patch::Apply(MANAGER), &object).await;
            written.map_err(|error| self.fault(&name, &error))?;
        }
        Ok(())
    }

    async fn write_head(
        &self,
        shared: &SharedHold,
        read: Option<&StoredHold>,
    ) -> Result<(), String> {
        let (text, client) = (shared.to_text(), self.client()?);
        let version = read.map(|read| &*read.version);
        let part = (KEY, text.as_bytes());
        let written = kube_secret::write(&client, &self.namespace, NAME, part, version).await;
        written.map_err(|error| self.fault(NAME, &error))
    }

    /// Reads the hold of all replicas. Returns `None` if there never was one.
    ///
    /// # Errors
    /// If the Secrets can't be read within `wait`.
    pub(super) async fn at_start(&self, wait: Duration) -> Result<Option<FoundHold>, String> {
        let read = async {
            let Some(stored) = self.stored().await? else { return Ok(None) };
            let shared = stored.shared?;
            let held = match &shared.held {
                None => None,
                Some((mark, parts)) => Some(Arc::new(self.content(mark, *parts).await?)),
            };
            Ok::<_, String>(Some(FoundHold { changed: shared.changed, held }))
        };
        let read = timeout(wait, read).await;
        read.unwrap_or_else(|_| Err(format!("no response within {wait:?}")))
    }
}

/// Next action to synchronize this replica with the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// None: both agree.
    Agree,
    /// Write the hold of this replica.
    Write,
    /// Adopt the hold of the other replicas, or release it.
    Follow,
}

/// State of this replica and of the Secret when they last agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Agreement {
    mark: Option<HoldMark>,
    changed: Option<u64>,
}

/// Decides the next action. `own` is the hold of this replica since `own_at`, `stored` the content
/// of the Secret.
fn step(
    (own, own_at): (Option<&HoldMark>, u64),
    stored: Option<&SharedHold>,
    agreed: Option<&Agreement>,
) -> Step {
    let Some(stored) = stored else {
        // The Secret was deleted, or never existed. A deletion does not release a hold.
        return if own.is_some() { Step::Write } else { Step::Agree };
    };
    if stored.mark() == own {
        return Step::Agree;
    }
    let is_own_new = agreed.is_none_or(|agreed| agreed.mark.as_ref() != own);
    let is_stored_new = agreed.is_none_or(|agreed| agreed.changed != Some(stored.changed));
    match (is_own_new, is_stored_new) {
        (true, false) => Step::Write,
        (false, true) => Step::Follow,
        _ if own_at > stored.changed => Step::Write,
        _ => Step::Follow,
    }
}

/// Task that synchronizes this replica with the Secrets.
pub(super) struct HoldFollower {
    pub(super) store: SharedHoldStore,
    /// The hold of this replica.
    pub(super) hold: watch::Receiver<Arc<HoldState>>,
    /// Sends hold requests to this replica's feed.
    pub(super) holds: HoldRequests,
    /// Whether the other replicas have the same hold.
    pub(super) sharing: watch::Sender<HoldSharing>,
    pub(super) now: fn() -> SystemTime,
}

/// The hold of this replica and its time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct OwnHold {
    hold: Option<Arc<ConfigurationHold>>,
    /// In milliseconds since the epoch. For a release, the time when it was noticed.
    at: u64,
}

impl OwnHold {
    fn mark(&self) -> Option<HoldMark> {
        self.hold.as_deref().map(HoldMark::of)
    }
}

impl HoldFollower {
    /// Synchronizes until the process ends.
    pub(super) async fn run(mut self) {
        let (mut own, mut agreed) = (OwnHold::default(), None);
        // Here and below, an error means that the process is ending.
        if self.hold.wait_for(|state| state.live.is_some()).await.is_err() {
            return;
        }
        loop {
            self.update_own(&mut own);
            let wait = match self.turn(&mut own, &mut agreed).await {
                Ok(()) => {
                    self.report(HoldSharing::Shared(own.mark()));
                    INTERVAL
                }
                Err(fact) => {
                    self.report(HoldSharing::Failing(own.mark(), fact.into()));
                    RETRY
                }
            };
            let last = own.hold.clone();
            tokio::select! {
                changed = self.hold.wait_for(|state| state.held != last) => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// Updates `own` from this replica's current hold.
    fn update_own(&mut self, own: &mut OwnHold) {
        let hold = self.hold.borrow_and_update().held.clone();
        if hold == own.hold {
            return;
        }
        let at = hold.as_ref().map_or_else(|| milliseconds((self.now)()), |hold| hold.since_ms());
        *own = OwnHold { hold, at };
    }

    async fn turn(
        &mut self,
        own: &mut OwnHold,
        agreed: &mut Option<Agreement>,
    ) -> Result<(), String> {
        let read = self.store.stored().await?;
        let stored = match &read {
            None => None,
            // An unreadable Secret is replaced only by a replica with a new hold; its content is
            // not guessed.
            Some(StoredHold { shared: Err(fact), .. }) => {
                let is_own_new = agreed.as_ref().is_some_and(|agreed| agreed.mark != own.mark());
                if !is_own_new {
                    return Err(self.store.fault(NAME, fact));
                }
                None
            }
            Some(StoredHold { shared: Ok(shared), .. }) => Some(shared.clone()),
        };
        let next = step((own.mark().as_ref(), own.at), stored.as_ref(), agreed.as_ref());
        let shared = match (next, stored) {
            (Step::Agree, stored) => stored,
            (Step::Follow, Some(stored)) => {
                self.follow(&stored).await?;
                self.update_own(own);
                Some(stored)
            }
            (Step::Write | Step::Follow, stored) => {
                let before = stored.map_or(0, |stored| stored.changed.saturating_add(1));
                let changed = milliseconds((self.now)()).max(own.at).max(before);
                let written = self.store.write(changed, own.hold.as_ref(), read.as_ref()).await?;
                info!(held = own.hold.is_some(), "sent the hold state to the other replicas");
                Some(written)
            }
        };
        let changed = shared.map(|shared| shared.changed);
        *agreed = Some(Agreement { mark: own.mark(), changed });
        Ok(())
    }

    /// Adopts the hold of the other replicas, or releases it.
    async fn follow(&self, shared: &SharedHold) -> Result<(), String> {
        let change = match &shared.held {
            None => HoldChange::Release,
            Some((mark, parts)) => {
                HoldChange::Hold(Arc::new(self.store.content(mark, *parts).await?))
            }
        };
        info!(held = shared.held.is_some(), "adopting the hold state of another replica");
        let (answer, answered) = oneshot::channel();
        let ends = "the process is shutting down";
        self.holds.send(HoldRequest { change, answer }).await.map_err(|_| ends.to_owned())?;
        let done = answered.await.map_err(|_| ends.to_owned())?;
        done.map_err(|refusal| refusal.to_string())
    }

    fn report(&self, new: HoldSharing) {
        self.sharing.send_if_modified(|held| {
            let differs = *held != new;
            if differs {
                if let HoldSharing::Failing(_, fact) = &new {
                    let code = &codes::HOLD_NOT_SHARED;
                    warn!(%fact, %code, next = code.next, "replicas may hold different configurations");
                }
                *held = new;
            }
            differs
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(since: u64) -> HoldMark {
        HoldMark { configuration: "abc".into(), since, with_access: false }
    }

    fn stored(changed: u64, since: Option<u64>) -> SharedHold {
        SharedHold { changed, held: since.map(|since| (mark(since), 1)) }
    }

    #[test]
    fn later_hold_wins() {
        use Step::{Agree, Follow, Write};
        let agreed = |since: Option<u64>, changed| Agreement { mark: since.map(mark), changed };
        let (none, five, seven) = (None, Some(mark(5)), Some(mark(7)));
        for (own, own_at, there, before, expected) in [
            // There never was a hold.
            (&none, 0, None, None, Agree),
            // At a start: both agree, only one has a hold, or it was released during the absence.
            (&five, 5, Some(stored(6, Some(5))), None, Agree),
            (&five, 5, None, None, Write),
            (&none, 0, Some(stored(6, Some(5))), None, Follow),
            (&five, 5, Some(stored(6, None)), None, Follow),
            // Requested here while the config cluster was unreachable, before a restart.
            (&seven, 7, Some(stored(6, None)), None, Write),
            // Requested here, or elsewhere.
            (&five, 5, Some(stored(3, None)), Some(agreed(None, Some(3))), Write),
            (&none, 8, Some(stored(6, Some(5))), Some(agreed(Some(5), Some(6))), Write),
            (&five, 5, Some(stored(8, None)), Some(agreed(Some(5), Some(6))), Follow),
            (&none, 0, Some(stored(8, Some(7))), Some(agreed(None, Some(6))), Follow),
            // A slow clock does not suppress a request.
            (&five, 5, Some(stored(900, None)), Some(agreed(None, Some(900))), Write),
            // Requested both here and elsewhere: the later request wins.
            (&seven, 7, Some(stored(6, Some(5))), Some(agreed(None, Some(3))), Write),
            (&five, 5, Some(stored(8, Some(7))), Some(agreed(None, Some(3))), Follow),
            // A deleted Secret releases nothing.
            (&five, 5, None, Some(agreed(Some(5), Some(6))), Write),
            (&none, 8, None, Some(agreed(None, Some(8))), Agree),
        ] {
            let found = step((own.as_ref(), own_at), there.as_ref(), before.as_ref());
            assert_eq!(found, expected, "{own:?} {there:?} {before:?}");
        }
    }
}
