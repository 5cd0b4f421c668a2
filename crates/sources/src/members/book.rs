//! The tokens of identities: one task per identity and parameters, independent of the number of
//! members.
//!
//! Tokens are in memory only. A task renews its token before it expires; while its source fails, the
//! previous token stays in use until it expires. A task ends when no member uses its token.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::aws::AwsSession;
use super::obtained::ObtainedCredential;
use super::token_endpoint::TokenFailure;
use super::token_source::TokenSource;
use super::{IdentityKind, MemberIdentity};
use crate::exec::Program;
use strait_base::codes;
use strait_base::lock::lock;
use strait_base::task::Supervisor;
use strait_kube_client::{Access, Backoff, CredentialFeed, IssuedCredential};

/// The time limit of obtaining one token. A program has a shorter one, whose message names it.
const LIMIT: Duration = Duration::from_secs(35);
/// The number of programs that run at once.
const PROGRAMS_MAX: usize = 4;
/// The minimum time between two renewals because a server refused the token.
const FORCED_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 30_000 });
/// The pauses after failures.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The tokens of all identities in use.
#[derive(Debug)]
pub struct TokenBook {
    hub: Option<watch::Receiver<Access>>,
    tasks: Supervisor,
    entries: Arc<Mutex<BTreeMap<TokenKey, TokenEntry>>>,
    /// The AWS credentials of each identity in use, with the settings that they were created for.
    /// The tasks own them.
    sessions: Mutex<BTreeMap<Arc<str>, Weak<AwsSession>>>,
    /// Limits the number of programs that run at once.
    turns: Arc<Semaphore>,
}

/// Key of a token: the name of the identity or of the provider, and the audience, the name of the
/// cluster in the cloud or the description of the cluster.
type TokenKey = (Arc<str>, String);

/// The settings that a token depends on.
#[derive(Debug, PartialEq)]
enum TokenOrigin {
    Identity(IdentityKind),
    Program(Program),
}

#[derive(Debug)]
struct TokenEntry {
    origin: TokenOrigin,
    state: watch::Sender<IssuedCredential>,
    refused: Arc<Notify>,
}

impl TokenBook {
    /// Creates an empty book. `hub` is the access to the config cluster.
    pub fn new(hub: Option<watch::Receiver<Access>>, tasks: &Supervisor) -> Self {
        let (entries, sessions) = (Arc::default(), Mutex::default());
        let turns = Arc::new(Semaphore::new(PROGRAMS_MAX));
        Self { hub, tasks: tasks.clone(), entries, sessions, turns }
    }

    /// Returns the token of an identity for a member. `cluster` is the member's name in the cloud.
    ///
    /// # Errors
    /// Returns the reason if the identity cannot provide tokens.
    pub fn feed(
        &self,
        identity: &MemberIdentity,
        id: &str,
        cluster: &str,
    ) -> Result<CredentialFeed, String> {
        let (parameter, source) = match &identity.kind {
            IdentityKind::TokenFile(path) => (String::new(), TokenSource::File(path.clone())),
            IdentityKind::Kubernetes { namespace, account, audience } => {
                let audience = audience.replace("{id}", id);
                let source = TokenSource::Account {
                    hub: self.hub.clone(),
                    namespace: namespace.clone(),
                    account: account.clone(),
                    audience: audience.clone(),
                };
                (audience, source)
            }
            IdentityKind::Aws(aws) => {
                if aws.credentials.is_none() {
                    let fact = "has neither podIdentity nor webIdentity, so it has no credentials";
                    return Err(format!("identity {} {fact}", identity.name));
                }
                let session = {
                    let mut sessions = lock(&self.sessions);
                    sessions.retain(|_, session| session.strong_count() > 0);
                    let known = sessions.get(&identity.name).and_then(Weak::upgrade);
                    let known = known.filter(|known| known.is_of(aws));
                    let session = known.unwrap_or_else(|| AwsSession::new(aws.clone()));
                    sessions.insert(Arc::clone(&identity.name), Arc::downgrade(&session));
                    session
                };
                (cluster.to_owned(), TokenSource::Eks { session, cluster: cluster.to_owned() })
            }
            IdentityKind::Google(google) => {
                (String::new(), TokenSource::Google(Box::new(google.clone())))
            }
            IdentityKind::Azure(azure) => {
                (String::new(), TokenSource::Entra(Box::new(azure.clone())))
            }
            IdentityKind::Exchange(exchange) => {
                let audience = exchange.audience.replace("{id}", id);
                let identity = Box::new(exchange.clone());
                (audience.clone(), TokenSource::Exchange { identity, audience })
            }
        };
        let origin = TokenOrigin::Identity(identity.kind.clone());
        Ok(self.feed_of((Arc::clone(&identity.name), parameter), origin, source))
    }

    /// Returns the token that a program prints for the cluster with this description.
    pub fn feed_of_program(
        &self,
        provider: &str,
        program: Program,
        cluster: Value,
    ) -> CredentialFeed {
        // Begins with a brace, which no other parameter does.
        let key = (provider.into(), cluster.to_string());
        let turns = Arc::clone(&self.turns);
        let source = TokenSource::Program { program: Box::new(program.clone()), cluster, turns };
        self.feed_of(key, TokenOrigin::Program(program), source)
    }

    /// Returns the token of the running task, otherwise of a new one that obtains it from `source`.
    fn feed_of(&self, key: TokenKey, origin: TokenOrigin, source: TokenSource) -> CredentialFeed {
        let name = Arc::clone(&key.0);
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(&key).filter(|entry| entry.origin == origin) {
            let (state, refused) = (entry.state.subscribe(), Arc::clone(&entry.refused));
            return CredentialFeed::new(name, state, refused);
        }
        let (state, receiver) = watch::channel(IssuedCredential::default());
        let refused = Arc::<Notify>::default();
        entries.insert(
            key.clone(),
            TokenEntry { origin, state: state.clone(), refused: Arc::clone(&refused) },
        );
        let task = TokenTask {
            key,
            source,
            state,
            refused: Arc::clone(&refused),
            entries: Arc::clone(&self.entries),
        };
        self.tasks.spawn(format!("identity {name}"), task.run());
        CredentialFeed::new(name, receiver, refused)
    }
}

/// Renews one token.
struct TokenTask {
    key: TokenKey,
    source: TokenSource,
    state: watch::Sender<IssuedCredential>,
    refused: Arc<Notify>,
    entries: Arc<Mutex<BTreeMap<TokenKey, TokenEntry>>>,
}

impl Drop for TokenTask {
    /// Removes the entry, so that the next member starts a new task.
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        if entries.get(&self.key).is_some_and(|entry| entry.state.same_channel(&self.state)) {
            entries.remove(&self.key);
        }
    }
}

impl TokenTask {
    async fn run(self) {
        tokio::select! {
            () = self.renew() => {}
            () = self.unused() => {}
        }
    }

    /// Waits until no member uses the token, and removes the entry under the lock, before another
    /// member can use it.
    async fn unused(&self) {
        loop {
            self.state.closed().await;
            let mut entries = lock(&self.entries);
            if self.state.receiver_count() == 0 {
                entries.remove(&self.key);
                return;
            }
        }
    }

    async fn renew(&self) {
        let identity = &self.key.0;
        let mut again = AGAIN;
        loop {
            let turn = self.meanwhile(self.source.turn()).await;
            let began = Instant::now();
            let obtained = self.meanwhile(timeout(LIMIT, self.source.obtain())).await;
            drop(turn);
            let limit = || format!("no answer within {} s", LIMIT.as_secs());
            let obtained = obtained.unwrap_or_else(|_| Err(limit().into()));
            let mut earliest = began + FORCED_INTERVAL;
            let pause = match obtained {
                Ok(obtained) => {
                    again = AGAIN;
                    self.publish(obtained)
                }
                Err(TokenFailure { fact, retry_after, .. }) => {
                    let fact: Arc<str> = format!("{}: {fact}", codes::IDENTITY_FAILED).into();
                    let is_new = self.state.borrow().error.as_ref() != Some(&fact);
                    if is_new {
                        warn!(%identity, reason = %fact, "no credential for an identity");
                    }
                    self.state.send_modify(|state| state.error = Some(fact));
                    let requested = retry_after.unwrap_or_default();
                    earliest = earliest.max(Instant::now() + requested);
                    again.pause(rand::random()).max(requested)
                }
            };
            self.meanwhile(self.wait(earliest, Instant::now() + pause)).await;
        }
    }

    /// Publishes a token. Returns the pause until the next one.
    fn publish(&self, obtained: ObtainedCredential) -> Duration {
        let ObtainedCredential { credential, expires, refresh_after, shows_refresh } = obtained;
        // Up to 10 % earlier or later, so that the requests to one source are spread.
        let pause = match shows_refresh {
            true => refresh_after.mul_f64(rand::random_range(0.9..1.1)),
            false => refresh_after,
        };
        let refresh_at = shows_refresh.then(|| SystemTime::now() + pause);
        let credential = Some(credential);
        let state = IssuedCredential { credential, expires, refresh_at, error: None };
        self.state.send_if_modified(|current| {
            if current.error.is_some() {
                info!(identity = %self.key.0, "the identity has a credential again");
            }
            let differs = *current != state;
            *current = state;
            differs
        });
        pause
    }

    /// Waits for the next request: until its time, or until a server refuses the token.
    /// The latter does not cause a request before `earliest`.
    async fn wait(&self, earliest: Instant, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            () = self.refused.notified() => sleep_until(earliest.min(until)).await,
        }
    }

    /// Runs `work`, and drops the token if it expires in the meantime.
    async fn meanwhile<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let expires = {
            let state = self.state.borrow();
            state.expires.filter(|_| state.credential.is_some())
        };
        if let Some(expires) = expires {
            let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                done = &mut work => return done,
                () = sleep_until(Instant::now() + left) => {
                    self.state.send_modify(|state| state.credential = None);
                }
            }
        }
        work.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::{AwsCredentials, AwsIdentity, ServerPattern};
    use strait_kube_client::{ApiCredential, Redacted};

    fn identity(path: &std::path::Path) -> MemberIdentity {
        MemberIdentity {
            name: "file".into(),
            servers: vec![ServerPattern::parse("a.example").expect("valid")],
            kind: IdentityKind::TokenFile(path.to_owned()),
        }
    }

    async fn until(feed: &CredentialFeed, is_met: impl Fn(&IssuedCredential) -> bool) {
        let mut feed = feed.clone();
        let wait = async {
            while !is_met(&feed.current()) {
                feed.changed().await;
            }
        };
        let met = timeout(Duration::from_secs(60), wait).await;
        assert!(met.is_ok(), "{:?}", feed.current());
    }

    #[tokio::test]
    async fn members_share_one_token_task_that_follows_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let tasks = Supervisor::new();
        let book = TokenBook::new(None, &tasks);
        let identity = identity(&path);
        let east = book.feed(&identity, "east", "east").expect("a feed");
        let west = book.feed(&identity, "west", "west").expect("a feed");
        assert_eq!(east, west);
        assert_eq!(tasks.running(), 1);
        until(&east, |state| state.error.is_some() && state.credential.is_none()).await;
        let has_token = |wanted: &'static str| {
            move |state: &IssuedCredential| {
                let token = state.credential.as_ref().and_then(ApiCredential::token);
                state.error.is_none() && token == Some(wanted)
            }
        };
        std::fs::write(&path, "canary-1\n").expect("written");
        until(&east, has_token("canary-1")).await;
        std::fs::write(&path, "canary-2\n").expect("written");
        until(&west, has_token("canary-2")).await;
        // The previous token stays while the file is unusable.
        std::fs::write(&path, "").expect("written");
        until(&west, |state| state.error.is_some() && state.credential.is_some()).await;
        assert!(!format!("{book:?}{east:?}{:?}", east.current()).contains("canary"));
        drop((east, west));
        while tasks.running() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(lock(&book.entries).is_empty());
    }

    #[tokio::test]
    async fn token_that_expires_during_a_request_is_dropped() {
        let (state, receiver) = watch::channel(IssuedCredential {
            credential: Some(ApiCredential::Token(Redacted::new("canary".to_owned()))),
            expires: Some(SystemTime::now() + Duration::from_millis(50)),
            ..IssuedCredential::default()
        });
        let task = TokenTask {
            key: ("file".into(), String::new()),
            source: TokenSource::File("/none".into()),
            state,
            refused: Arc::default(),
            entries: Arc::default(),
        };
        let feed = CredentialFeed::new("file".into(), receiver, Arc::default());
        tokio::select! {
            () = task.meanwhile(std::future::pending()) => panic!("it never completes"),
            () = until(&feed, |state| state.credential.is_none()) => {}
        }
        assert_eq!(task.meanwhile(std::future::ready(7)).await, 7);
    }

    #[tokio::test]
    async fn credentials_of_an_unused_identity_are_forgotten() {
        let tasks = Supervisor::new();
        let book = TokenBook::new(None, &tasks);
        let of = |name: &str| MemberIdentity {
            name: name.into(),
            kind: IdentityKind::Aws(AwsIdentity {
                region: "eu-central-1".into(),
                credentials: Some(AwsCredentials::WebIdentity {
                    role: "arn:aws:iam::1:role/x".into(),
                    token_file: "/none".into(),
                    lifetime: Duration::from_secs(3600),
                }),
                assume_role: None,
                endpoint: None,
                roots: None,
            }),
            ..identity(std::path::Path::new("/t"))
        };
        let feed = book.feed(&of("one"), "a", "a").expect("a feed");
        drop(feed);
        while tasks.running() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _other = book.feed(&of("two"), "b", "b").expect("a feed");
        let _same = book.feed(&of("two"), "c", "c").expect("a feed");
        let sessions = lock(&book.sessions);
        assert_eq!(sessions.keys().map(|name| &**name).collect::<Vec<_>>(), ["two"]);
    }
}
