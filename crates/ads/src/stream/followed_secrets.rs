//! The credentials that a stream follows. A change of one costs nothing for the others.
//!
//! This module owns the futures that wait for changes. The stream decides which credentials it may
//! follow, and handles their changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{AbortHandle, Abortable, Aborted, BoxFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use strait_model::credential::CredentialState;

/// The credentials that a stream follows.
#[derive(Default)]
pub(super) struct FollowedSecrets {
    /// The number of subscribed secrets that exceed the limit.
    pub(super) surplus: usize,
    /// By name, the handle that stops following a credential.
    names: BTreeMap<Arc<str>, AbortHandle>,
    changes: FuturesUnordered<Abortable<CredentialChange>>,
}

/// A future that completes when a credential changes.
type CredentialChange = BoxFuture<'static, (Arc<str>, watch::Receiver<CredentialState>)>;

impl FollowedSecrets {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Stops following all credentials that are not in `names`.
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
            // An error means that the credential is no longer read.
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            (name, state)
        };
        self.changes.push(Abortable::new(change.boxed(), registration));
    }

    /// Returns the name and the new state of a credential that has changed.
    pub(super) fn poll_changed(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(Arc<str>, CredentialState)> {
        loop {
            match ready!(self.changes.poll_next_unpin(context)) {
                Some(Ok((name, mut state))) => {
                    let now = state.borrow_and_update().clone();
                    self.follow(Arc::clone(&name), state);
                    return Poll::Ready((name, now));
                }
                Some(Err(Aborted)) => {}
                None => return Poll::Pending,
            }
        }
    }
}
