//! The last valid mesh config and mesh networks, kept up to date from files or a ConfigMap.
//!
//! An invalid text never takes effect: the previous value stays (the defaults, if there was none),
//! and the [`SourceProblem`] is reported until a valid text arrives. Files are read again on a
//! notification of the file system and every two seconds, and compared by content, so that renames
//! and the `..data` swap of a mounted ConfigMap are detected on every file system. This module does
//! not depend on Kubernetes: a ConfigMap's data arrives through a channel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::RecommendedWatcher;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use strait_base::{codes, folder};
use strait_model::mesh_config::{
    DefaultProviderFault, Defaults, InvalidYaml, MeshConfig, MeshNetworks, MeshSettings, MeshTexts,
    SourceProblem, normalize_text,
};

/// The key of mesh config in a ConfigMap.
pub const MESH_KEY: &str = "mesh";
/// The key of mesh networks in a ConfigMap.
pub const NETWORKS_KEY: &str = "meshNetworks";

/// How often a file is read without a notification.
const POLL: Duration = Duration::from_secs(2);
/// How long a changed file must stay unchanged before it is used, so that a half-written one isn't.
const SETTLE: Duration = Duration::from_millis(100);
/// Number of checks of a file that keeps changing, before it is used in its current state.
const SETTLE_TRIES: usize = 20;
/// Maximum size of a file in bytes, equal to the limit of a ConfigMap.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// The data of a ConfigMap; `None` if it does not exist.
pub type ConfigMapData = Option<Arc<BTreeMap<String, String>>>;

/// The origin of a text.
#[derive(Debug)]
pub enum ConfigTextSource {
    /// No source: the defaults apply.
    Defaults,
    /// A file named by a flag.
    File(PathBuf),
    /// A ConfigMap. Without it, or without the key, the defaults apply.
    ConfigMap {
        /// Its name in problem reports, such as `strait-system/strait`.
        name: String,
        /// Its data. If the sender is dropped, the last data stays.
        data: watch::Receiver<ConfigMapData>,
    },
}

/// The last valid value, and the problem with the text that should have replaced it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastValid<T> {
    /// The last valid value.
    pub value: Arc<T>,
    /// The problem with the current text, if it is unusable.
    pub problem: Option<UnusableText>,
    /// The text of the value; `None` for the default.
    pub text: Option<Arc<str>>,
}

/// Why a text was not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableText {
    /// The text could not be read.
    #[error("{0}")]
    Unreadable(String),
    /// Its content is invalid.
    #[error("{0}")]
    Invalid(#[from] InvalidYaml),
}

/// Returns the value after a text was read: the text's value, the default if there is no text, or
/// the previous value if the text is unusable. An equal value stays the same `Arc`.
pub fn reload<T: PartialEq>(
    previous: &LastValid<T>,
    text: Result<Option<&str>, UnusableText>,
    default: impl FnOnce() -> T,
    parse: impl FnOnce(&str) -> Result<T, InvalidYaml>,
) -> LastValid<T> {
    let written = text.as_ref().ok().and_then(|text| text.map(normalize_text));
    let read = text.and_then(|text| Ok(text.map(parse).transpose()?));
    match read.map(|value| value.unwrap_or_else(default)) {
        Ok(value) if value == *previous.value => {
            LastValid { value: Arc::clone(&previous.value), problem: None, text: written }
        }
        Ok(value) => LastValid { value: Arc::new(value), problem: None, text: written },
        Err(problem) => LastValid {
            value: Arc::clone(&previous.value),
            problem: Some(problem),
            text: previous.text.clone(),
        },
    }
}

/// Keeps [`MeshSettings`] up to date, as a task.
#[derive(Debug)]
pub struct MeshWatcher {
    defaults: Defaults,
    config_source: ConfigTextSource,
    networks_source: ConfigTextSource,
    config: LastValid<MeshConfig>,
    networks: LastValid<MeshNetworks>,
    settings: watch::Sender<MeshSettings>,
    problems: watch::Sender<Vec<SourceProblem>>,
}

impl MeshWatcher {
    /// Reads both sources once, immediately. The receiver's initial value already takes effect;
    /// [`Self::run`] changes the settings only when their meaning changes. Problems are sent to
    /// `problems`.
    pub fn new(
        config: ConfigTextSource,
        networks: ConfigTextSource,
        defaults: Defaults,
        problems: watch::Sender<Vec<SourceProblem>>,
    ) -> (Self, watch::Receiver<MeshSettings>) {
        let start = MeshSettings {
            config: Arc::new(MeshConfig::new(&defaults)),
            networks: Arc::new(MeshNetworks::default()),
            texts: MeshTexts::default(),
        };
        let (settings, settings_receiver) = watch::channel(start.clone());
        let mut watcher = Self {
            defaults,
            config_source: config,
            networks_source: networks,
            config: LastValid { value: start.config, problem: None, text: None },
            networks: LastValid { value: start.networks, problem: None, text: None },
            settings,
            problems,
        };
        let config_text = watcher.config_source.read(MESH_KEY);
        watcher.apply_config(config_text);
        let networks_text = watcher.networks_source.read(NETWORKS_KEY);
        watcher.apply_networks(networks_text);
        watcher.publish();
        (watcher, settings_receiver)
    }

    /// Runs until its task is stopped.
    pub async fn run(mut self) {
        let mut config_input = WatchedSource::new(&self.config_source, MESH_KEY);
        let mut networks_input = WatchedSource::new(&self.networks_source, NETWORKS_KEY);
        loop {
            tokio::select! {
                text = config_input.changed() => self.apply_config(text),
                text = networks_input.changed() => self.apply_networks(text),
            }
            self.publish();
        }
    }

    fn apply_config(&mut self, text: SourceText) {
        let next = reload(
            &self.config,
            text.as_ref().map(Option::as_deref).map_err(Clone::clone),
            || MeshConfig::new(&self.defaults),
            |text| MeshConfig::parse(text, &self.defaults),
        );
        let source = self.config_source.describe(MESH_KEY);
        let ignored = &next.value.ignored;
        if !ignored.is_empty() && *ignored != self.config.value.ignored {
            warn!(%source, fields = ignored.join(", "), "mesh config has fields without an effect");
        }
        let faults = &next.value.default_provider_faults;
        for DefaultProviderFault { path, text } in faults {
            if *faults != self.config.value.default_provider_faults {
                let code = codes::MESH_DEFAULT_PROVIDER.id;
                warn!(%source, %path, code, "a default provider is not usable: {text}");
            }
        }
        if !Arc::ptr_eq(&next.value, &self.config.value) {
            info!(%source, "mesh config changed");
        }
        self.config = next;
    }

    fn apply_networks(&mut self, text: SourceText) {
        let next = reload(
            &self.networks,
            text.as_ref().map(Option::as_deref).map_err(Clone::clone),
            MeshNetworks::default,
            MeshNetworks::parse,
        );
        if !Arc::ptr_eq(&next.value, &self.networks.value) {
            info!(source = %self.networks_source.describe(NETWORKS_KEY), "mesh networks changed");
        }
        self.networks = next;
    }

    fn publish(&self) {
        let settings = MeshSettings {
            config: Arc::clone(&self.config.value),
            networks: Arc::clone(&self.networks.value),
            texts: MeshTexts {
                config: self.config.text.clone(),
                networks: self.networks.text.clone(),
            },
        };
        self.settings.send_if_modified(|current| {
            // A text with the same meaning is recorded without a notification.
            let differs =
                current.config != settings.config || current.networks != settings.networks;
            *current = settings;
            differs
        });
        let problems = self.problems();
        self.problems.send_if_modified(|current| {
            for problem in problems.iter().filter(|problem| !current.contains(problem)) {
                warn!(code = problem.code, "{}", problem.text);
            }
            replace(current, problems)
        });
    }

    fn problems(&self) -> Vec<SourceProblem> {
        let unusable = |code,
                        (what, key): (&str, &str),
                        source: &ConfigTextSource,
                        known,
                        fact: &UnusableText| {
            let active = match known {
                true => "The previous version stays active",
                false => "No previous version is known, so the defaults are active",
            };
            let source = source.describe(key);
            let text = format!(
                "{what} from {source} is not used: {fact}. {active}. Fix it; it is read again automatically."
            );
            SourceProblem { code, text }
        };
        let mut problems = Vec::new();
        if let Some(problem) = &self.config.problem {
            let (known, source) = (self.config.text.is_some(), &self.config_source);
            problems.push(unusable("STR0110", ("mesh config", MESH_KEY), source, known, problem));
        }
        let source = &self.networks_source;
        if let Some(problem) = &self.networks.problem {
            let (known, what) = (self.networks.text.is_some(), ("mesh networks", NETWORKS_KEY));
            problems.push(unusable("STR0410", what, source, known, problem));
        }
        problems.extend(self.networks.value.conflicts().iter().map(|fact| SourceProblem {
            code: "STR0411",
            text: format!(
                "mesh networks from {}: {fact}. Everything else in it is active. Fix this entry.",
                source.describe(NETWORKS_KEY)
            ),
        }));
        problems
    }
}

/// The content of a source: a text, nothing, or why it cannot be read.
type SourceText = Result<Option<String>, UnusableText>;

impl ConfigTextSource {
    fn read(&self, key: &str) -> SourceText {
        match self {
            Self::Defaults => Ok(None),
            Self::File(path) => read_file(path),
            Self::ConfigMap { data, .. } => Ok(read_value(&data.borrow(), key)),
        }
    }

    fn describe(&self, key: &str) -> String {
        match self {
            Self::Defaults => "the defaults".to_owned(),
            Self::File(path) => format!("file {}", path.display()),
            Self::ConfigMap { name, .. } => format!("configmap {name} key {key}"),
        }
    }
}

fn read_value(data: &ConfigMapData, key: &str) -> Option<String> {
    data.as_ref().and_then(|data| data.get(key)).cloned()
}

/// Replaces `current`. Returns whether the value changed.
fn replace<T: PartialEq>(current: &mut T, next: T) -> bool {
    let differs = *current != next;
    if differs {
        *current = next;
    }
    differs
}

/// The watch of a source.
enum WatchedSource {
    Still,
    File(FileInput),
    ConfigMap { data: watch::Receiver<ConfigMapData>, key: &'static str },
}

impl WatchedSource {
    fn new(source: &ConfigTextSource, key: &'static str) -> Self {
        match source {
            ConfigTextSource::Defaults => Self::Still,
            ConfigTextSource::File(path) => Self::File(FileInput::new(path.clone())),
            ConfigTextSource::ConfigMap { data, .. } => Self::ConfigMap { data: data.clone(), key },
        }
    }

    /// Waits for the next text. Cancel-safe.
    async fn changed(&mut self) -> SourceText {
        match self {
            Self::Still => std::future::pending().await,
            Self::File(file) => file.changed().await,
            Self::ConfigMap { data, key } => match data.changed().await {
                Ok(()) => Ok(read_value(&data.borrow_and_update(), key)),
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// A file that is compared by content.
struct FileInput {
    path: PathBuf,
    /// The last reported text. `None` at first: the content may have changed since it was first
    /// read.
    reported: Option<SourceText>,
    /// Capacity 1: a pending notification covers all later ones.
    hints: mpsc::Receiver<()>,
    tick: tokio::time::Interval,
    /// Sends notifications until it is dropped; `None` if the system provides no more watches.
    _watcher: Option<RecommendedWatcher>,
}

impl FileInput {
    fn new(path: PathBuf) -> Self {
        let (sender, hints) = mpsc::channel(1);
        // Watches the folder, because a rename replaces the file together with its watch.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let watcher = folder::watch(parent.unwrap_or(Path::new(".")), move || {
            let _ = sender.try_send(());
        });
        if let Err(error) = &watcher {
            info!(path = %path.display(), %error, "cannot watch the file; polling it");
        }
        let mut tick = interval(POLL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { path, reported: None, hints, tick, _watcher: watcher.ok() }
    }

    async fn changed(&mut self) -> SourceText {
        loop {
            tokio::select! {
                // Without a watcher, no notification arrives, and the interval triggers the read.
                Some(()) = self.hints.recv() => {}
                _ = self.tick.tick() => {}
            }
            let text = self.settled().await;
            if self.reported.as_ref() != Some(&text) {
                self.reported = Some(text.clone());
                return text;
            }
        }
    }

    /// Returns the content once it has stayed unchanged for a moment.
    async fn settled(&self) -> SourceText {
        let mut text = read_file(&self.path);
        for _ in 0..SETTLE_TRIES {
            if self.reported.as_ref() == Some(&text) {
                break;
            }
            sleep(SETTLE).await;
            let again = read_file(&self.path);
            if again == text {
                break;
            }
            text = again;
        }
        text
    }
}

/// Reads a small local file, which blocks no longer than a page fault.
fn read_file(path: &Path) -> SourceText {
    let unreadable = |error: std::io::Error| UnusableText::Unreadable(error.to_string());
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_SIZE_MAX {
        return Err(UnusableText::Unreadable(format!(
            "it has {size} bytes, more than {FILE_SIZE_MAX}"
        )));
    }
    std::fs::read_to_string(path).map(Some).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use strait_base::task::Supervisor;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Creates a watcher, with receivers of the settings and the problems.
    fn watcher(
        config: ConfigTextSource,
        networks: ConfigTextSource,
    ) -> (MeshWatcher, watch::Receiver<MeshSettings>, watch::Receiver<Vec<SourceProblem>>) {
        let (problems, problems_receiver) = watch::channel(Vec::new());
        let (watcher, settings) = MeshWatcher::new(config, networks, Defaults::default(), problems);
        (watcher, settings, problems_receiver)
    }

    /// Waits until a receiver's value satisfies `wanted`.
    async fn until<T: Clone>(receiver: &mut watch::Receiver<T>, wanted: impl Fn(&T) -> bool) -> T {
        let found = tokio::time::timeout(LIMIT, receiver.wait_for(|value| wanted(value))).await;
        found.expect("in time").expect("the task runs").clone()
    }

    #[test]
    fn invalid_text_keeps_the_previous_value() {
        let parse = |text: &str| {
            text.parse::<u32>().map_err(|_| InvalidYaml {
                line: Some(1),
                field: "x".to_owned(),
                fact: "no number".to_owned(),
            })
        };
        let start = LastValid { value: Arc::new(0), problem: None, text: None };
        let valid = reload(&start, Ok(Some("7")), || 0, parse);
        assert_eq!((*valid.value, &valid.problem), (7, &None));
        let invalid = reload(&valid, Ok(Some("seven")), || 0, parse);
        assert_eq!(*invalid.value, 7);
        assert_eq!(
            invalid.problem.as_ref().map(ToString::to_string).as_deref(),
            Some("line 1, x: no number")
        );
        let same = reload(&invalid, Ok(Some("7")), || 0, parse);
        assert!(Arc::ptr_eq(&same.value, &valid.value) && same.problem.is_none());
        let gone = reload(&same, Ok(None), || 0, parse);
        assert_eq!((*gone.value, &gone.problem), (0, &None));
        let never_valid = reload(&start, Ok(Some("?")), || 0, parse);
        assert_eq!(*never_valid.value, 0);
    }

    #[tokio::test]
    async fn a_file_is_followed_through_renames_and_mistakes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mesh.yaml");
        fs::write(&path, "trustDomain: one\n").expect("written");
        let (watcher, mut settings, mut problems) =
            watcher(ConfigTextSource::File(path.clone()), ConfigTextSource::Defaults);
        assert_eq!(settings.borrow_and_update().config.trust_domain, "one");
        let tasks = Supervisor::new();
        tasks.spawn("mesh", watcher.run());

        let rename = |text: &str| {
            fs::write(folder.path().join("new"), text).expect("written");
            fs::rename(folder.path().join("new"), &path).expect("renamed");
        };
        rename("trustDomain: two\n");
        until(&mut settings, |settings| settings.config.trust_domain == "two").await;

        rename("trustDomain: [\n");
        let reported = until(&mut problems, |problems| !problems.is_empty()).await;
        assert_eq!(reported[0].code, "STR0110");
        assert!(reported[0].text.contains("mesh.yaml"), "{}", reported[0].text);
        assert_eq!(settings.borrow_and_update().config.trust_domain, "two");

        // A text with the same meaning is not a change.
        rename("# comment\ntrustDomain: two\n");
        until(&mut problems, Vec::is_empty).await;
        assert!(!settings.has_changed().expect("the task runs"));

        fs::remove_file(&path).expect("removed");
        until(&mut problems, |problems| !problems.is_empty()).await;
        assert_eq!(settings.borrow().config.trust_domain, "two");
        assert!(tasks.shut_down(LIMIT).await);
    }

    #[tokio::test]
    async fn a_mounted_config_map_is_followed_through_its_swap() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let version = |name: &str, text: &str| {
            fs::create_dir(at(name)).expect("made");
            fs::write(at(name).join("meshNetworks"), text).expect("written");
            std::os::unix::fs::symlink(name, at("..data_tmp")).expect("linked");
            fs::rename(at("..data_tmp"), at("..data")).expect("swapped");
        };
        version("..1", "networks: {n1: {endpoints: [{fromRegistry: a}]}}");
        std::os::unix::fs::symlink("..data/meshNetworks", at("meshNetworks")).expect("linked");
        let (watcher, mut settings, _problems) =
            watcher(ConfigTextSource::Defaults, ConfigTextSource::File(at("meshNetworks")));
        assert_eq!(
            settings.borrow_and_update().networks.network_by_registry(&"a".into()),
            Some(&"n1".into())
        );
        let tasks = Supervisor::new();
        tasks.spawn("mesh", watcher.run());
        version("..2", "networks: {n2: {endpoints: [{fromRegistry: a}]}}");
        until(&mut settings, |settings| {
            settings.networks.network_by_registry(&"a".into()) == Some(&"n2".into())
        })
        .await;
        assert!(tasks.shut_down(LIMIT).await);
    }

    #[tokio::test]
    async fn deleted_config_map_restores_the_defaults() {
        let data = |text: &str| {
            let both = [(MESH_KEY, text), (NETWORKS_KEY, "networks: {n: }")];
            Some(Arc::new(both.map(|(key, text)| (key.to_owned(), text.to_owned())).into()))
        };
        let (sender, receiver) = watch::channel::<ConfigMapData>(None);
        let source =
            || ConfigTextSource::ConfigMap { name: "s/strait".to_owned(), data: receiver.clone() };
        let (watcher, mut settings, mut problems) = watcher(source(), source());
        assert_eq!(*settings.borrow_and_update(), MeshSettings::default());
        let tasks = Supervisor::new();
        tasks.spawn("mesh", watcher.run());

        sender.send_replace(data("trustDomain: x"));
        until(&mut settings, |settings| settings.config.trust_domain == "x").await;
        until(&mut settings, |settings| settings.networks.iter().count() == 1).await;
        sender.send_replace(data("trustDomain: 5"));
        let reported = until(&mut problems, |problems| !problems.is_empty()).await;
        assert!(reported[0].text.contains("configmap s/strait key mesh"), "{}", reported[0].text);
        sender.send_replace(None);
        until(&mut settings, |settings| *settings == MeshSettings::default()).await;
        until(&mut problems, Vec::is_empty).await;
        assert!(tasks.shut_down(LIMIT).await);
    }
}
