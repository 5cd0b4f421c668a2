//! Tokens that Strait obtains itself. Each request uses the current token without a new client.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{Notify, watch};

use super::redacted::Redacted;

/// The state of a token that a task renews.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IssuedToken {
    /// The current token; `None` before the first one, and after the last one expired.
    pub token: Option<Redacted<String>>,
    /// When it expires.
    pub expires: Option<SystemTime>,
    /// When the next token is requested.
    pub refresh_at: Option<SystemTime>,
    /// Why the last request for a token failed. Never contains a token.
    pub error: Option<Arc<str>>,
}

/// A token that a task renews. Two feeds are equal if they are of the same task.
#[derive(Clone)]
pub struct TokenFeed {
    identity: Arc<str>,
    state: watch::Receiver<IssuedToken>,
    refused: Arc<Notify>,
}

impl TokenFeed {
    /// Creates the feed of the identity with that name. `refused` is notified when a server does
    /// not accept the token.
    pub fn new(
        identity: Arc<str>,
        state: watch::Receiver<IssuedToken>,
        refused: Arc<Notify>,
    ) -> Self {
        Self { identity, state, refused }
    }

    /// Returns the name of the identity.
    pub fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// Returns the current state.
    pub fn current(&self) -> IssuedToken {
        self.state.borrow().clone()
    }

    /// Reports that a server does not accept the current token.
    pub(super) fn note_refused(&self) {
        self.refused.notify_one();
    }

    /// Waits for the next state. Never returns once the task has ended.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl PartialEq for TokenFeed {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && self.state.same_channel(&other.state)
    }
}

impl Eq for TokenFeed {}

impl fmt::Debug for TokenFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenFeed").field(&self.identity).finish()
    }
}

/// No request was sent, because there is no token.
#[derive(Debug, thiserror::Error)]
#[error("identity {identity} has no token: {fact}")]
pub(super) struct NoToken {
    pub(super) identity: Arc<str>,
    pub(super) fact: Arc<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issued_token_never_shows() {
        let token = Some(Redacted::new("canary".to_owned()));
        let (_sender, state) = watch::channel(IssuedToken { token, ..IssuedToken::default() });
        let feed = TokenFeed::new("eks".into(), state, Arc::default());
        assert!(!format!("{feed:?} {:?}", feed.current()).contains("canary"));
        assert_eq!(feed, feed.clone());
    }
}
