//! The last good mesh config and mesh networks, from files or from the texts of a ConfigMap.
//!
//! A text is read when it differs from the one before. A bad one keeps the value before and leaves a
//! [`Problem`]; a missing one stands for the defaults.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::config::{Defaults, MeshConfig};
use super::networks::MeshNetworks;
use super::yaml::Invalid;
use crate::codes::{self, Code};

/// How often files are looked at. They are small, and looking at the content sees every way of
/// replacing a file: atomic renames and swapped links alike.
const FILE_INTERVAL: Duration = Duration::from_secs(1);

/// Both values, and what is wrong with the texts they should come from.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The effective mesh config.
    pub config: Arc<MeshConfig>,
    /// The effective mesh networks.
    pub networks: Arc<MeshNetworks>,
    /// What could not be read, in a stable order.
    pub problems: Vec<Problem>,
}

/// A text that can't be used. The value before it stays in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The code.
    pub code: &'static Code,
    /// Where the text is from, such as a path or `ConfigMap strait-system/istio key mesh`.
    pub origin: String,
    /// What is wrong with it.
    pub fact: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, origin, fact } = self;
        write!(f, "{code}: {origin}: {fact}; the value before it stays in force. {}", code.next)
    }
}

/// The two texts as their source has them; `None` where it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    /// The mesh config and where it is from.
    pub config: Option<Text>,
    /// The mesh networks and where they are from.
    pub networks: Option<Text>,
}

/// One text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Where it is from.
    pub origin: String,
    /// The text, or why it can't be had.
    pub text: Result<String, String>,
}

/// Reads texts and remembers what was good.
#[derive(Debug, Clone)]
pub struct Reader {
    defaults: Defaults,
    seen: Texts,
    settings: Settings,
}

impl Reader {
    /// Nothing read yet: the defaults hold.
    pub fn new(defaults: Defaults) -> Self {
        let config = Arc::new(MeshConfig::new(&defaults));
        let settings = Settings { config, ..Settings::default() };
        Self { defaults, seen: Texts::default(), settings }
    }

    /// What holds now.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the texts as they are now. Returns whether anything changed, problems included.
    pub fn read(&mut self, texts: &Texts) -> bool {
        if *texts == self.seen {
            return false;
        }
        let before = self.settings.clone();
        let mut problems = Vec::new();
        let config = texts.config.as_ref();
        match read(config, |text| MeshConfig::parse(text, &self.defaults)) {
            Ok(Some(parsed)) => {
                if !parsed.ignored.is_empty() && texts.config != self.seen.config {
                    info!(fields = parsed.ignored.join(", "), "mesh config: fields without effect");
                }
                keep_if_equal(&mut self.settings.config, parsed.config);
            }
            Ok(None) => keep_if_equal(&mut self.settings.config, MeshConfig::new(&self.defaults)),
            Err(problem) => problems.push(problem),
        }
        match read(texts.networks.as_ref(), MeshNetworks::parse) {
            Ok(networks) => {
                let networks = networks.unwrap_or_default();
                for conflict in networks.conflicts() {
                    warn!("mesh networks: {conflict}");
                }
                keep_if_equal(&mut self.settings.networks, networks);
            }
            Err(problem) => problems.push(problem),
        }
        for problem in problems.iter().filter(|problem| !before.problems.contains(problem)) {
            warn!(code = %problem.code, "{problem}");
        }
        self.settings.problems = problems;
        self.seen = texts.clone();
        !Arc::ptr_eq(&before.config, &self.settings.config)
            || !Arc::ptr_eq(&before.networks, &self.settings.networks)
            || before.problems != self.settings.problems
    }
}

fn read<T>(
    text: Option<&Text>,
    parse: impl FnOnce(&str) -> Result<T, Invalid>,
) -> Result<Option<T>, Problem> {
    let Some(Text { origin, text }) = text else { return Ok(None) };
    let parsed = match text {
        Ok(text) => parse(text).map_err(|invalid| invalid.to_string()),
        Err(fact) => Err(fact.clone()),
    };
    parsed.map(Some).map_err(|fact| Problem {
        code: &codes::MESH_SETTINGS_UNREADABLE,
        origin: origin.clone(),
        fact,
    })
}

/// The same `Arc` stays where the value is the same, so that nobody is told of no change.
fn keep_if_equal<T: PartialEq>(current: &mut Arc<T>, new: T) {
    if **current != new {
        *current = Arc::new(new);
    }
}

/// Keeps `settings` up to date: with the files where they are named, else with `config_map`. Runs
/// until nobody listens.
///
/// `first` has been read already, by [`read_files`] or from a first `config_map`.
pub async fn run(
    mut reader: Reader,
    files: Files,
    mut config_map: watch::Receiver<Texts>,
    settings: watch::Sender<Settings>,
) {
    let mut look = tokio::time::interval(FILE_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let texts = files.over(config_map.borrow_and_update().clone());
        if reader.read(&texts) {
            settings.send_replace(reader.settings().clone());
        }
        tokio::select! {
            _ = look.tick(), if files.any() => {}
            changed = config_map.changed() => if changed.is_err() {
                // The source has ended; files, where there are any, are still looked at.
                if !files.any() {
                    return;
                }
                look.tick().await;
            },
            () = settings.closed() => return,
        }
    }
}

/// The files an operator names, each in place of its ConfigMap key.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// `--mesh-config`.
    pub config: Option<PathBuf>,
    /// `--mesh-networks`.
    pub networks: Option<PathBuf>,
}

impl Files {
    /// The texts as they are now: of the files, where they are named, else `others`.
    pub fn over(&self, others: Texts) -> Texts {
        Texts {
            config: self.config.as_deref().map(text_of).or(others.config),
            networks: self.networks.as_deref().map(text_of).or(others.networks),
        }
    }

    fn any(&self) -> bool {
        self.config.is_some() || self.networks.is_some()
    }
}

fn text_of(path: &Path) -> Text {
    Text {
        origin: path.display().to_string(),
        text: std::fs::read_to_string(path).map_err(|error| format!("can't be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(config: &str, networks: &str) -> Texts {
        let text = |text: &str| Some(Text { origin: "test".into(), text: Ok(text.into()) });
        Texts { config: text(config), networks: text(networks) }
    }

    #[test]
    fn a_bad_text_keeps_the_last_good_value_and_says_so() {
        let mut reader = Reader::new(Defaults::default());
        assert!(reader.read(&texts("connectTimeout: 3s", "networks: {}")));
        assert_eq!(reader.settings().config.connect_timeout, Duration::from_secs(3));
        assert!(reader.read(&texts("connectTimeout: soon", "networks: {}")));
        assert_eq!(reader.settings().config.connect_timeout, Duration::from_secs(3));
        assert_eq!(reader.settings().problems.len(), 1);
        assert!(reader.read(&texts("connectTimeout: 4s", "networks: {}")));
        assert_eq!(reader.settings().config.connect_timeout, Duration::from_secs(4));
        assert!(reader.settings().problems.is_empty());
    }

    #[test]
    fn another_text_with_the_same_meaning_changes_nothing() {
        let mut reader = Reader::new(Defaults::default());
        reader.read(&texts("connectTimeout: 3s", "networks: {}"));
        let before = reader.settings().clone();
        assert!(!reader.read(&texts("# a comment\nconnectTimeout: 3s", "")));
        assert!(Arc::ptr_eq(&before.config, &reader.settings().config));
    }

    #[test]
    fn a_missing_text_stands_for_the_defaults() {
        let mut reader = Reader::new(Defaults::default());
        reader.read(&texts(
            "connectTimeout: 3s",
            "networks: {n: {endpoints: [{fromCidr: 10.0.0.0/8}]}}",
        ));
        assert!(reader.read(&Texts::default()));
        assert_eq!(*reader.settings().config, MeshConfig::default());
        assert_eq!(*reader.settings().networks, MeshNetworks::default());
    }

    #[tokio::test]
    async fn a_replaced_file_is_seen() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mesh.yaml");
        std::fs::write(&path, "connectTimeout: 3s").expect("written");
        let files = Files { config: Some(path.clone()), networks: None };
        let (_texts, config_map) = watch::channel(Texts::default());
        let (sender, mut settings) = watch::channel(Settings::default());
        let task = run(Reader::new(Defaults::default()), files, config_map, sender);
        let wanted = async {
            let is = |seconds| {
                move |settings: &Settings| {
                    settings.config.connect_timeout == Duration::from_secs(seconds)
                }
            };
            settings.wait_for(is(3)).await.expect("first");
            let other = directory.path().join("other");
            std::fs::write(&other, "connectTimeout: 4s").expect("written");
            std::fs::rename(&other, &path).expect("renamed");
            settings.wait_for(is(4)).await.expect("second");
        };
        tokio::select! {
            () = task => panic!("ended"),
            done = tokio::time::timeout(Duration::from_secs(20), wanted) => done.expect("in time"),
        }
    }
}
