//! The system calls of the process for hostile kubeconfigs: none may be harmful.
//!
//! The built server reads the whole corpus of bad kubeconfigs as Secrets, under strace. Each is
//! rejected with the code in its file's name. No program runs, none of the files in the kubeconfigs
//! is opened, and no connection is made. (reference: reliability, row 41.)

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

#[test]
fn a_bad_kubeconfig_runs_opens_and_reaches_nothing() {
    if Command::new("strace").arg("--version").output().is_err() {
        skip("traced::a_bad_kubeconfig_runs_opens_and_reaches_nothing", "no strace on PATH");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secrets = folder.path().join("secrets");
    std::fs::create_dir(&secrets).expect("a folder for Secrets");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/kubeconfigs/bad");
    let mut expected = BTreeMap::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&corpus)
        .expect("the corpus")
        .map(|entry| entry.expect("an entry").path())
        // With a directory of Secrets a literal loopback address is allowed; it is rejected in
        // pods.
        .filter(|path| !path.to_string_lossy().contains("STR0209-loopback"))
        .collect();
    files.sort();
    let credentials = Credentials::issue(folder.path());
    for (number, file) in files.iter().enumerate() {
        let id = format!("bad-{number}");
        let bytes = credentials.fill(std::fs::read(file).expect("a readable file"));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": &id, "labels": { "istio/multiCluster": "true" } },
            "data": { &id: BASE64.encode(&bytes) },
        });
        std::fs::write(secrets.join(format!("{id}.json")), secret.to_string()).expect("written");
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        expected.insert(id, name);
    }
    assert!(expected.len() > 200, "the corpus exists");

    let trace = folder.path().join("trace");
    let mut server = Server::start(folder.path(), &secrets, &trace);
    let refused = server.clusters_when(|clusters| clusters.len() >= expected.len());
    server.stop();

    let mut wrong = Vec::new();
    for cluster in &refused {
        let name = cluster["id"].as_str().and_then(|id| expected.remove(id)).unwrap_or_default();
        let code = name.split('-').next().unwrap_or_default();
        let reason = cluster["reason"].as_str().unwrap_or_default();
        if cluster["state"] != "rejected" || code.is_empty() || !reason.contains(code) {
            wrong.push(format!("{name}: {} {reason}", cluster["state"]));
        }
    }
    assert!(wrong.is_empty(), "not refused as they should be:\n{}", wrong.join("\n"));
    assert!(expected.is_empty(), "never shown: {expected:?}");

    let named: BTreeSet<String> = files.iter().flat_map(|file| paths_in(file)).collect();
    let trace = std::fs::read_to_string(&trace).expect("a trace");
    let done: Vec<&str> = trace
        .lines()
        .filter(|line| {
            let ran = line.contains("execve(") && !line.contains("/strait\"");
            let opened = line.contains("openat(")
                && named.iter().any(|path| line.contains(&format!("\"{path}\"")));
            let reached = line.contains("connect(") && line.contains("AF_INET");
            ran || opened || reached
        })
        .collect();
    assert!(trace.contains("openat("), "the trace contains events");
    assert!(done.is_empty(), "a kubeconfig made it do:\n{}", done.join("\n"));
}

/// Replacements for the placeholders of certificates and keys in the corpus: no key is ever
/// committed.
struct Credentials(Vec<(&'static str, String)>);

impl Credentials {
    fn issue(folder: &Path) -> Self {
        let strait = |args: &[&str]| {
            let ran = Command::new(env!("CARGO_BIN_EXE_strait")).args(args).output();
            assert!(ran.expect("strait runs").status.success(), "{args:?}");
        };
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let base64 = |name: &str| BASE64.encode(std::fs::read(path(name)).expect("made"));
        strait(&["certs", "init", &path("ca")]);
        for name in ["own", "other"] {
            let to = path(name);
            let identity_arguments = ["--namespace", "ns", "--service-account", name, "--out", &to];
            strait(
                &[&["certs", "issue", "--ca-dir", &path("ca")][..], &identity_arguments].concat(),
            );
        }
        Self(vec![
            ("@CA@", base64("ca/root-cert.pem")),
            ("@CERT@", base64("own/cert-chain.pem")),
            ("@KEY@", base64("own/key.pem")),
            ("@OTHERKEY@", base64("other/key.pem")),
            ("@TOKEN@", "a-token".to_owned()),
        ])
    }

    /// Replaces the placeholders in a kubeconfig, which may not be text.
    fn fill(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        for (mark, value) in &self.0 {
            while let Some(at) = bytes.windows(mark.len()).position(|here| here == mark.as_bytes())
            {
                bytes.splice(at..at + mark.len(), value.bytes());
            }
        }
        bytes
    }
}

/// Returns every absolute path in a kubeconfig.
fn paths_in(file: &Path) -> Vec<String> {
    let text = String::from_utf8_lossy(&std::fs::read(file).expect("a readable file")).into_owned();
    text.split(|c: char| !(c.is_alphanumeric() || "/._-".contains(c)))
        .filter(|word| word.starts_with('/') && word.len() > 1)
        .map(str::to_owned)
        .collect()
}

struct Server {
    child: Child,
    admin: String,
    token: String,
}

impl Server {
    fn start(folder: &Path, secrets: &Path, trace: &Path) -> Self {
        let state = folder.join("state");
        let mut child = Command::new("strace")
            .args(["-f", "-qq", "-e", "trace=execve,openat,open,connect", "-o"])
            .arg(trace)
            .arg(env!("CARGO_BIN_EXE_strait"))
            .args(["serve", "--xds-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
            .arg("--config-dir")
            .arg(secrets)
            .arg("--state-dir")
            .arg(&state)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("strace starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let bound: Value = serde_json::from_str(&line).expect("one line of JSON");
        let admin = bound["admin"].as_str().expect("an address").to_owned();
        let token = std::fs::read_to_string(state.join("admin-token")).expect("a token");
        Self { child, admin, token: token.trim().to_owned() }
    }

    /// Waits until `/debug/clusters` is as expected, and returns it.
    fn clusters_when(&self, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let clusters = self.clusters().unwrap_or_default();
            if wanted(&clusters) || Instant::now() > deadline {
                return clusters;
            }
            std::thread::yield_now();
        }
    }

    fn clusters(&self) -> Option<Vec<Value>> {
        let mut stream = TcpStream::connect(&self.admin).ok()?;
        let Self { token, admin, .. } = self;
        write!(
            stream,
            "GET /debug/clusters HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        serde_json::from_str(body).ok()
    }

    /// Stops the server, which is strace's child. strace ends with it.
    fn stop(&mut self) {
        let pids = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(pids).unwrap_or_default();
        for pid in children.split_whitespace() {
            let _ = Command::new("kill").arg(pid).status();
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a skipped test, and appends it to the file that .ci/run collects.
pub(super) fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
    if let Some(file) = std::env::var_os("STRAIT_SKIPS")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(file)
    {
        let _ = writeln!(file, "{test}: {reason}");
    }
}
