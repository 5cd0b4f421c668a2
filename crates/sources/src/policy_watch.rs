//! The policy file, read at start and again whenever its text changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use strait_base::codes;
use strait_model::policy::{InvalidPolicy, Policy};

/// How often the file is read.
const POLL: Duration = Duration::from_secs(1);

/// The reason why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file does not exist or cannot be read.
    #[error("{}: --policy {}: {fact}", codes::POLICY, path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        fact: String,
    },
    /// The content is not a valid policy.
    #[error("{}: --policy {}: {invalid}", codes::POLICY, path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The error in it.
        invalid: InvalidPolicy,
    },
}

/// Keeps a policy up to date with its file. An invalid file keeps the last valid policy.
pub struct PolicyWatcher {
    path: PathBuf,
    /// The text that was read last, valid or not, or why it could not be read.
    last: Result<String, String>,
    policy: watch::Sender<Arc<Policy>>,
    problem: watch::Sender<Option<String>>,
}

/// Receivers of a policy and of the problem with its file.
#[derive(Debug, Clone)]
pub struct WatchedPolicy {
    /// The effective policy.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Why the current file does not take effect, if it doesn't.
    pub problem: watch::Receiver<Option<String>>,
}

impl WatchedPolicy {
    /// Returns an empty policy that never changes.
    pub fn none() -> Self {
        Self { policy: watch::Sender::default().subscribe(), problem: watch::channel(None).1 }
    }
}

impl PolicyWatcher {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Fails if the file cannot be used: at start there is no older policy, and serving without the
    /// requested rules would not be safe.
    pub fn open(path: PathBuf) -> Result<(Self, WatchedPolicy), PolicyError> {
        let text = match read(&path) {
            Ok(text) => text,
            Err(fact) => return Err(PolicyError::Missing { path, fact }),
        };
        let first = match Policy::parse(&text) {
            Ok(first) => first,
            Err(invalid) => return Err(PolicyError::Invalid { path, invalid }),
        };
        let (policy, policy_receiver) = watch::channel(Arc::new(first));
        let (problem, problem_receiver) = watch::channel(None);
        let watched = WatchedPolicy { policy: policy_receiver, problem: problem_receiver };
        Ok((Self { path, last: Ok(text), policy, problem }, watched))
    }

    /// Reads the file periodically. Never returns.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(POLL);
        loop {
            tick.tick().await;
            self.look();
        }
    }

    fn look(&mut self) {
        let text = read(&self.path);
        if text == self.last {
            return;
        }
        let path = self.path.display();
        let read = match &text {
            Ok(text) => Policy::parse(text).map_err(|invalid| invalid.to_string()),
            Err(fact) => Err(fact.clone()),
        };
        match read {
            Ok(policy) => {
                info!(%path, "policy read");
                self.problem.send_replace(None);
                let policy = Arc::new(policy);
                self.policy.send_if_modified(|current| {
                    let differs = *current != policy;
                    *current = policy;
                    differs
                });
            }
            Err(fact) => {
                let code = &codes::POLICY;
                warn!(%path, %code, %fact, "policy not used; the last valid one stays active");
                self.problem.send_replace(Some(format!("{path}: {fact}")));
            }
        }
        self.last = text;
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}
