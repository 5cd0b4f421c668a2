//! The policy file and the operator file of member sources: read at start, and again whenever the
//! text changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::members::MemberSources;
use crate::members::provider_file::ProviderFile;
use strait_base::codes;
use strait_base::latest::publish_change;
use strait_base::task::Supervisor;
use strait_model::policy::{InvalidPolicy, Policy};

/// How often the file is read.
const POLL: Duration = Duration::from_secs(1);

/// The reason why an operator's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file does not exist or cannot be read.
    #[error("{}: {flag} {}: {fact}", codes::POLICY, path.display())]
    Missing {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        fact: String,
    },
    /// The content is invalid.
    #[error("{}: {flag} {}: {invalid}", codes::POLICY, path.display())]
    Invalid {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error in it.
        invalid: InvalidPolicy,
    },
}

/// An operator's file of a certain kind.
pub trait OperatorFile: Default + PartialEq + Send + Sync + 'static {
    /// The flag that names the file.
    const FLAG: &'static str;
    /// The name of the file in messages.
    const NAME: &'static str;

    /// Parses the text.
    ///
    /// # Errors
    /// Returns the field and the problem with it.
    fn parse(text: &str) -> Result<Self, InvalidPolicy>;
}

impl OperatorFile for Policy {
    const FLAG: &'static str = "--policy";
    const NAME: &'static str = "policy";

    fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        Self::parse(text)
    }
}

impl OperatorFile for MemberSources {
    const FLAG: &'static str = "--members";
    const NAME: &'static str = "member sources";

    fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        Self::parse(text)
    }
}

impl OperatorFile for ProviderFile {
    const FLAG: &'static str = "--clusterprofile-provider-file";
    const NAME: &'static str = "access providers";

    fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        Self::parse(text)
    }
}

/// Keeps a value up to date with its file. An invalid file keeps the last valid value.
pub struct FileWatcher<T> {
    path: PathBuf,
    /// The text that was read last, valid or not, or why it could not be read.
    last: Result<String, String>,
    value: watch::Sender<Arc<T>>,
    problem: watch::Sender<Option<String>>,
}

/// Receivers of the value of a file and of the problem with the file.
#[derive(Debug)]
pub struct WatchedFile<T> {
    /// The effective value.
    pub value: watch::Receiver<Arc<T>>,
    /// Why the current file does not take effect, if it doesn't.
    pub problem: watch::Receiver<Option<String>>,
}

impl<T> Clone for WatchedFile<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), problem: self.problem.clone() }
    }
}

impl<T: OperatorFile> WatchedFile<T> {
    /// Returns an empty value that never changes.
    pub fn none() -> Self {
        Self { value: watch::Sender::default().subscribe(), problem: watch::channel(None).1 }
    }

    /// Reads the file that `path` names, and starts to watch it under `tasks`. Without one, the value
    /// is empty.
    ///
    /// # Errors
    /// Fails if the file cannot be used: at start there is no older value, and serving without the
    /// requested rules would not be safe.
    pub fn start(path: Option<&PathBuf>, tasks: &Supervisor) -> Result<Self, PolicyError> {
        let Some(path) = path else { return Ok(Self::none()) };
        let (watcher, watched) = FileWatcher::open(path.clone())?;
        tasks.spawn(T::NAME, watcher.run());
        Ok(watched)
    }
}

impl WatchedFile<MemberSources> {
    /// Reads the operator file and the file of access providers, and starts to watch both. The access
    /// in the operator file precedes the providers of the other file.
    ///
    /// # Errors
    /// Fails if one of the files cannot be used.
    pub fn start_members(
        members: Option<&PathBuf>,
        providers: Option<&PathBuf>,
        tasks: &Supervisor,
    ) -> Result<Self, PolicyError> {
        let own = Self::start(members, tasks)?;
        if providers.is_none() {
            return Ok(own);
        }
        let more = WatchedFile::<ProviderFile>::start(providers, tasks)?;
        let (own_now, more_now) = (own.clone(), more.clone());
        let join = move || {
            let value = own_now.value.borrow().with_providers(&more_now.value.borrow());
            let problems = [&own_now.problem, &more_now.problem];
            let problem = problems.iter().find_map(|problem| problem.borrow().clone());
            (Arc::new(value), problem)
        };
        let (value, problem) = join();
        let (value, joined) = watch::channel(value);
        let (problem, joined_problem) = watch::channel(problem);
        tasks.spawn("member sources and access providers", async move {
            let (mut own, mut more) = (own, more);
            loop {
                let changed = tokio::select! {
                    changed = own.value.changed() => changed,
                    changed = own.problem.changed() => changed,
                    changed = more.value.changed() => changed,
                    changed = more.problem.changed() => changed,
                };
                if changed.is_err() {
                    return;
                }
                let (new_value, new_problem) = join();
                publish_change(&value, new_value);
                problem.send_replace(new_problem);
            }
        });
        Ok(Self { value: joined, problem: joined_problem })
    }
}

impl<T: OperatorFile> FileWatcher<T> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Fails if the file cannot be used.
    pub fn open(path: PathBuf) -> Result<(Self, WatchedFile<T>), PolicyError> {
        let flag = T::FLAG;
        let text = match read(&path) {
            Ok(text) => text,
            Err(fact) => return Err(PolicyError::Missing { flag, path, fact }),
        };
        let first = match T::parse(&text) {
            Ok(first) => first,
            Err(invalid) => return Err(PolicyError::Invalid { flag, path, invalid }),
        };
        let (value, value_receiver) = watch::channel(Arc::new(first));
        let (problem, problem_receiver) = watch::channel(None);
        let watched = WatchedFile { value: value_receiver, problem: problem_receiver };
        Ok((Self { path, last: Ok(text), value, problem }, watched))
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
        let (path, name) = (self.path.display(), T::NAME);
        let read = match &text {
            Ok(text) => T::parse(text).map_err(|invalid| invalid.to_string()),
            Err(fact) => Err(fact.clone()),
        };
        match read {
            Ok(value) => {
                info!(%path, "{name} read");
                self.problem.send_replace(None);
                let value = Arc::new(value);
                publish_change(&self.value, value);
            }
            Err(fact) => {
                let code = &codes::POLICY;
                warn!(%path, %code, %fact, "{name} not used; the last valid version stays active");
                self.problem.send_replace(Some(format!("{path}: {fact}")));
            }
        }
        self.last = text;
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}
