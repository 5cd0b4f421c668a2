//! A kube-apiserver and its etcd on loopback ports for the duration of a test, as the reference for the
//! simulator.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;

const TOKEN: &str = "contract-admin";
const LIMIT: Duration = Duration::from_secs(120);

/// A restarted server, which no longer has the history from before the restart.
pub(crate) struct RealServer {
    // Killed in this order, because a server without its etcd ends slowly.
    server: Running,
    _etcd: Running,
    folder: tempfile::TempDir,
    kubeconfig: String,
}

/// A process that is killed on drop.
struct Running(Child);

impl Running {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the folder with kube-apiserver and etcd: the folder in `KUBEBUILDER_ASSETS`, or the
/// folder that `tests/components/install` filled.
pub(crate) fn assets() -> Option<PathBuf> {
    if std::env::var("STRAIT_REAL").is_ok_and(|value| value == "off") {
        return None;
    }
    let named = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let folder = named.or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
        let installed = std::fs::read_to_string(cache.join("strait/components/env")).ok()?;
        let line =
            installed.lines().find_map(|line| line.strip_prefix("export KUBEBUILDER_ASSETS="));
        line.map(PathBuf::from)
    })?;
    folder.join("kube-apiserver").exists().then_some(folder)
}

impl RealServer {
    /// Starts both programs, and restarts the server.
    pub(crate) async fn start(assets: &Path) -> Self {
        let folder = super::directory();
        let path = folder.path().to_owned();
        let at = |name: &str| path.join(name);
        let [etcd_port, peer_port, port] = free_ports();
        let etcd_url = format!("http://127.0.0.1:{etcd_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let mut etcd = Command::new(assets.join("etcd"));
        etcd.arg("--data-dir").arg(at("etcd")).args(["--unsafe-no-fsync", "--log-level", "warn"]);
        etcd.args(["--listen-client-urls", &etcd_url, "--advertise-client-urls", &etcd_url]);
        etcd.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        etcd.args(["--initial-cluster", &format!("default={peer_url}")]);
        let etcd = run(etcd, &at("etcd.log"));

        let root = root();
        let (certificate, key) = serving(&root);
        let signing = KeyPair::generate().expect("a key");
        for (name, text) in [
            ("tls.crt", certificate),
            ("tls.key", key),
            ("sa.key", signing.serialize_pem()),
            ("sa.pub", signing.public_key_pem()),
            ("tokens.csv", format!("{TOKEN},admin,1,\"system:masters\"\n")),
        ] {
            std::fs::write(at(name), text).expect("a file");
        }
        let file = |flag: &str, name: &str| format!("--{flag}={}", at(name).display());
        let arguments = [
            format!("--etcd-servers={etcd_url}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            file("tls-cert-file", "tls.crt"),
            file("tls-private-key-file", "tls.key"),
            file("cert-dir", "certs"),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
            file("token-auth-file", "tokens.csv"),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount".into(),
            // Endpoints must not have a loopback address.
            "--endpoint-reconciler-type=none".into(),
        ];
        let launch = |log: &str| {
            let mut server = Command::new(assets.join("kube-apiserver"));
            server.args(&arguments);
            run(server, &at(log))
        };
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "real",
            "clusters": [{"name": "real", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(root.pem()),
            }}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
        })
        .to_string();
        let mut real = Self { server: launch("first.log"), _etcd: etcd, folder, kubeconfig };
        real.until_ready().await;
        // The second server uses the same port, so the first one must have ended.
        real.server.end();
        real.server = launch("second.log");
        real.until_ready().await;
        real
    }

    /// Returns a kubeconfig as JSON with inline credentials.
    pub(crate) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    async fn until_ready(&mut self) {
        let client = super::client_of(&self.kubeconfig).await;
        let began = Instant::now();
        loop {
            let request = http::Request::get("/readyz").body(Vec::new()).expect("a request");
            if client.request_text(request).await.is_ok() {
                return;
            }
            if let Some(status) = self.server.0.try_wait().expect("a child") {
                panic!("kube-apiserver ended with {status}; its log is {:?}", self.folder.path());
            }
            assert!(began.elapsed() < LIMIT, "kube-apiserver is not ready after {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn run(mut command: Command, log: &Path) -> Running {
    let log = std::fs::File::create(log).expect("a log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Running(command.spawn().expect("a program that starts"))
}

/// Returns three different ports that were free a moment ago.
fn free_ports() -> [u16; 3] {
    let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|listener| listener.local_addr().expect("an address").port())
}

fn root() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a root")
}

fn serving(root: &CertifiedIssuer<'static, KeyPair>) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    (params.signed_by(&key, root).expect("a certificate").pem(), key.serialize_pem())
}
