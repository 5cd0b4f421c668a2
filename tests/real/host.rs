//! The capabilities of this machine: the components of `tests/components/install`, and the right to
//! create namespaces. Never installs anything.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::netns::Netns;

/// A machine that can run the rig, and the folder of this run.
pub(crate) struct Host {
    pub(crate) kube_apiserver: PathBuf,
    pub(crate) etcd: PathBuf,
    pub(crate) envoy: PathBuf,
    /// An Envoy of an older minor version. Optional.
    pub(crate) envoy_old: Option<PathBuf>,
    /// A python3 with gRPC. Optional.
    pub(crate) grpc_python: Option<PathBuf>,
    /// The client and server of grpc-go. Optional.
    pub(crate) grpc_go: Option<PathBuf>,
    /// Istio's agent, with its bootstrap next to it. Optional.
    pub(crate) pilot_agent: Option<PathBuf>,
    /// Consul, which one scenario needs. Optional.
    pub(crate) consul: Option<PathBuf>,
    folder: Option<TempDir>,
}

/// Returns whether a skipped real test is a failure: in CI, or if required by the environment.
pub(crate) fn required() -> bool {
    let set = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    set("STRAIT_REAL", "required") || (set("CI", "true") && !set("STRAIT_REAL", "off"))
}

/// Prints a skipped test, and appends it to the file that .ci/run collects.
pub(crate) fn note_skip(lines: &str) {
    eprintln!("{lines}");
    if let Some(path) = std::env::var_os("STRAIT_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "{lines}")).expect("STRAIT_SKIPS is a file");
    }
}

/// Skips a scenario that lacks a component. Panics if real tests are required.
pub(crate) fn skip_without(scenario: &str, what: &str) {
    let line = format!("SKIPPED {scenario}: {what}: run tests/components/install");
    assert!(!required(), "{line}");
    note_skip(&line);
}

impl Host {
    /// Returns the machine, or all missing capabilities in one line.
    pub(crate) fn find() -> Result<Self, String> {
        if std::env::var("STRAIT_REAL").is_ok_and(|value| value == "off") {
            return Err("STRAIT_REAL=off".into());
        }
        let installed = installed();
        let named = |name: &str| std::env::var(name).ok().or_else(|| installed.get(name).cloned());
        let mut lacking = Vec::new();
        let mut program = |path: Option<PathBuf>, what: &str| match path {
            Some(path) if path.is_file() => path,
            Some(path) => {
                lacking.push(format!("{what} is not at {}", path.display()));
                PathBuf::new()
            }
            None => {
                lacking.push(format!("no {what}: run tests/components/install"));
                PathBuf::new()
            }
        };
        let assets = named("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let kube_apiserver =
            program(assets.as_ref().map(|folder| folder.join("kube-apiserver")), "kube-apiserver");
        let etcd = program(assets.as_ref().map(|folder| folder.join("etcd")), "etcd");
        let envoy = program(named("STRAIT_ENVOY").map(PathBuf::from), "envoy");
        let optional = |name| named(name).map(PathBuf::from).filter(|path| path.is_file());
        let consul = optional("STRAIT_CONSUL");
        let envoy_old = optional("STRAIT_ENVOY_OLD");
        let grpc_python = optional("STRAIT_GRPC_PYTHON");
        let grpc_go = optional("STRAIT_GRPC_GO");
        let pilot_agent = optional("STRAIT_PILOT_AGENT");
        for tool in ["ip", "iptables-restore", "nsenter", "setpriv"] {
            let answer = Command::new(tool)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if answer.is_err() {
                lacking.push(format!("no {tool} on PATH"));
            }
        }
        if lacking.is_empty() {
            lacking.extend(Netns::possible().err());
        }
        if !lacking.is_empty() {
            return Err(lacking.join("; "));
        }
        Netns::remove_leftovers();
        let folder = tempfile::Builder::new()
            .prefix("strait-real-")
            .tempdir()
            .expect("a folder for this run");
        let folder = Some(folder);
        let mut host = Self {
            kube_apiserver,
            etcd,
            envoy,
            envoy_old,
            grpc_python,
            grpc_go,
            pilot_agent,
            consul,
            folder,
        };
        host.envoy = host.readable_by_all(&host.envoy, "envoy");
        host.envoy_old = host.envoy_old.as_ref().map(|old| host.readable_by_all(old, "envoy-old"));
        host.pilot_agent = host.pilot_agent.as_ref().map(|agent| {
            let bootstrap = agent.with_file_name("envoy_bootstrap.json");
            host.readable_by_all(&bootstrap, "envoy_bootstrap.json");
            host.readable_by_all(agent, "pilot-agent")
        });
        Ok(host)
    }

    /// Returns the folder of this run's configurations, certificates and logs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_ref().expect("taken only by drop").path()
    }

    /// Creates a folder of this run that Envoy's user can read.
    pub(crate) fn subfolder(&self, name: &str) -> PathBuf {
        let path = self.folder().join(name);
        std::fs::create_dir_all(&path).expect("the folder of this run is ours");
        path
    }

    /// Moves the files of this run except programs to a folder below it, so that the next world
    /// starts empty. Otherwise an existing certificate would be reused with a new CA.
    pub(crate) fn set_aside(&self, name: &str) {
        let aside = self.subfolder(name);
        let all = std::fs::read_dir(self.folder()).expect("the folder of this run is ours");
        for entry in all.flatten() {
            let file = entry.file_name();
            let stays = file == "bin" || file.to_string_lossy().starts_with("before-");
            if !stays {
                std::fs::rename(entry.path(), aside.join(&file)).expect("of the same volume");
            }
        }
    }

    /// Returns a link to (or a copy of) a program. Envoy's user cannot enter root's home, which
    /// contains the cache.
    pub(crate) fn readable_by_all(&self, program: &Path, name: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let folder = self.folder();
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))
            .expect("the folder of this run is ours");
        let link = self.subfolder("bin").join(name);
        if std::fs::hard_link(program, &link).is_err() {
            std::fs::copy(program, &link).expect("space for a copy of envoy");
        }
        link
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::env::var_os("STRAIT_REAL_KEEP").is_some()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("kept: {}", folder.keep().display());
        }
    }
}

/// Returns the `export NAME=VALUE` lines that `tests/components/install` wrote to its cache.
fn installed() -> BTreeMap<String, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .unwrap_or_default();
    let text = std::fs::read_to_string(cache.join("strait/components/env")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
