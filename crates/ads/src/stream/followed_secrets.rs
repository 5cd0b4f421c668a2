//! The credentials that a stream follows: what becomes of one costs the others nothing.
//!
//! Owns who is waited for. Whose they may be, and what comes of them, is the stream's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use strait_model::credential::CredentialState;

/// Credentials that are followed.
#[derive(Default)]
pub(super) struct FollowedSecrets {
    /// How many more are asked for than are given.
    pub(super) surplus: usize,
    /// By name; what stops following it.
    names: BTreeMap<Arc<str>, AbortHandle>,
    changes: FuturesUnordered<Abortable<CredentialChange>>,
}

/// Waits until a credential is another.
type CredentialChange = BoxFuture<'static, (Arc<str>, watch::Receiver<CredentialState>)>;

impl FollowedSecrets {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Stops following all others.
    pub(super) fn keep(&mut self, names: &BTreeSet<Arc<str>>) {
        self.names.retain(|name, handle| {
            let stays = names.contains(name);
            if !stays {
                handle.abort();
            }
            stays
        });
    }

    pub(super) fn follow(&mut self, name: Arc<str>, mut state: watch::Receiver<CredentialState>) {
        let (handle, registration) = AbortHandle::new_pair();
        self.names.insert(Arc::clone(&name), handle);
        let change = async move {
            // An error says that nobody reads it any more.
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            (name, state)
        };
        self.changes.push(Abortable::new(change.boxed(), registration));
    }

    /// Waits until one of them is another; says which, and what it is now. Nothing is lost where this is given up.
    pub(super) async fn changed(&mut self) -> (Arc<str>, CredentialState) {
        loop {
            match self.changes.next().await {
                Some(Ok((name, mut state))) => {
                    let now = state.borrow_and_update().clone();
                    self.follow(Arc::clone(&name), state);
                    return (name, now);
                }
                Some(Err(Aborted)) => {}
                None => std::future::pending().await,
            }
        }
    }
}
