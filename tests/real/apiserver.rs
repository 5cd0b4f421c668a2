//! The API server of one member cluster: kube-apiserver with its own etcd, in the namespace `hub`.
//! There are no kubelets and controllers: the rig writes pod statuses and EndpointSlices itself,
//! which makes tests exact.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::certs::{self, Authority, Files};
use crate::host::Host;
use crate::kube::Request;
use crate::netns::Netns;
use crate::process::Process;
use crate::wait;

/// The token of an administrator.
const ADMIN_TOKEN: &str = "rig-admin";
/// The token of the user with which Strait reads a member cluster.
const READER_TOKEN: &str = "rig-reader";

/// The settings that differ between API servers.
pub(crate) struct Settings<'a> {
    /// The cluster's ID.
    pub(crate) cluster: &'a str,
    /// The hub's address on the transit network.
    pub(crate) address: &'a str,
    /// The port of the API server. etcd uses the next two ports, on loopback.
    pub(crate) port: u16,
    /// The range of cluster IPs.
    pub(crate) service_cidr: &'a str,
}

/// A running API server. Killed with SIGKILL on drop, before its etcd, because SIGTERM would wait
/// for open watches.
pub(crate) struct Apiserver {
    // Fields drop in this order.
    server: Option<Process>,
    etcd: Option<Process>,
    etcd_program: PathBuf,
    arguments: Vec<String>,
    program: PathBuf,
    folder: PathBuf,
    hub: Rc<Netns>,
    port: u16,
    url: String,
    root: String,
    starts: usize,
}

impl Apiserver {
    /// Starts etcd and the server, and waits until the server is ready.
    pub(crate) fn start(
        host: &Host,
        hub: &Rc<Netns>,
        ca: &Authority,
        settings: &Settings<'_>,
    ) -> Self {
        let Settings { cluster, address, port, service_cidr } = settings;
        let folder = host.subfolder(&format!("apiserver-{cluster}"));
        let client = format!("http://127.0.0.1:{}", port + 1);
        let Files { certificate, key, .. } = ca.server(&format!("apiserver-{cluster}"), &[address]);
        let (signing_key, signing_public) = certs::signing_key(&folder);
        let tokens = folder.join("tokens.csv");
        let arguments = [
            format!("--etcd-servers={client}"),
            format!("--secure-port={port}"),
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
            format!("--tls-cert-file={}", certificate.display()),
            format!("--tls-private-key-file={}", key.display()),
            format!("--cert-dir={}", folder.display()),
            format!("--service-cluster-ip-range={service_cidr}"),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", signing_public.display()),
            format!("--service-account-signing-key-file={}", signing_key.display()),
            format!("--token-auth-file={}", tokens.display()),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount".into(),
            "--feature-gates=ClusterTrustBundle=true".into(),
            "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true".into(),
        ];
        let mut apiserver = Self {
            server: None,
            etcd: None,
            etcd_program: host.etcd.clone(),
            arguments: arguments.into(),
            program: host.kube_apiserver.clone(),
            folder,
            hub: Rc::clone(hub),
            port: *port,
            url: format!("https://{address}:{port}"),
            root: ca.pem().to_owned(),
            starts: 0,
        };
        let admin = apiserver.kubeconfig(ADMIN_TOKEN).to_string();
        std::fs::write(apiserver.admin_kubeconfig(), admin).unwrap();
        apiserver.accept_reader(true);
        apiserver.launch_etcd();
        apiserver.launch();
        apiserver
    }

    /// Starts its etcd.
    pub(crate) fn launch_etcd(&mut self) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (client, peer) = (url(self.port + 1), url(self.port + 2));
        let mut etcd = self.hub.command(&self.etcd_program);
        etcd.arg("--data-dir").arg(self.data()).args(["--unsafe-no-fsync", "--log-level", "warn"]);
        etcd.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
        ]);
        etcd.args([
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("default={peer}"),
        ]);
        self.etcd = Some(Process::spawn(etcd, &self.folder, &format!("etcd-{}", self.starts)));
    }

    fn data(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// Stops both, calls `change` with the folders of the data and the backup, and starts both
    /// again.
    fn offline(&mut self, change: impl FnOnce(&Path, &Path)) {
        self.stop();
        self.etcd = None;
        change(&self.data(), &self.folder.join("backup"));
        self.launch_etcd();
        self.launch();
        self.wait_until_ready();
    }

    /// Backs up all data. The server is down meanwhile.
    pub(crate) fn back_up(&mut self) {
        self.offline(copy);
    }

    /// Restores the backup, including resource versions.
    pub(crate) fn restore(&mut self) {
        self.offline(|data, backup| copy(backup, data));
    }

    /// Sets whether the reader's token is accepted, from the next start on.
    pub(crate) fn accept_reader(&self, accept: bool) {
        let mut users = format!("{ADMIN_TOKEN},admin,1,\"system:masters\"\n");
        if accept {
            users += &format!("{READER_TOKEN},strait-reader,2,\"strait:readers\"\n");
        }
        std::fs::write(self.folder.join("tokens.csv"), users).unwrap();
    }

    /// Starts the server without waiting for it.
    pub(crate) fn launch(&mut self) {
        let mut command = self.hub.command(&self.program);
        command.args(&self.arguments);
        self.starts += 1;
        self.server =
            Some(Process::spawn(command, &self.folder, &format!("kube-apiserver-{}", self.starts)));
    }

    /// Waits until the server reports that it is ready.
    pub(crate) fn wait_until_ready(&mut self) {
        wait::until(Duration::from_secs(60), "kube-apiserver is ready", || {
            let etcd = self.etcd.as_mut().ok_or("its etcd was stopped")?;
            if let Some(status) = etcd.ended() {
                return Err(format!("etcd ended with {status}; {}", etcd.log_end()));
            }
            let server = self.server.as_mut().ok_or("it was stopped")?;
            if let Some(status) = server.ended() {
                panic!("kube-apiserver ended with {status}; {}", server.log_end());
            }
            self.try_requests(&[Request::get("/readyz")]).map(drop)
        });
    }

    /// Kills the server with SIGKILL. Connections break, and the port is closed.
    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    /// Returns a kubeconfig in JSON, which is valid YAML, with inline credentials.
    fn kubeconfig(&self, token: &str) -> Value {
        use base64::Engine;
        let root = base64::engine::general_purpose::STANDARD.encode(&self.root);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{ "name": "it", "cluster": { "server": self.url, "certificate-authority-data": root } }],
            "users": [{ "name": "it", "user": { "token": token } }],
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
        })
    }

    /// Returns the path of an administrator's kubeconfig.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Returns the kubeconfig of the least-privilege reader.
    pub(crate) fn reader_kubeconfig(&self) -> String {
        self.kubeconfig(READER_TOKEN).to_string()
    }

    /// Returns a kubeconfig with an unknown token.
    pub(crate) fn strangers_kubeconfig(&self) -> String {
        self.kubeconfig("rig-stranger").to_string()
    }

    /// Applies objects in order.
    pub(crate) fn apply(&self, objects: &[Value]) {
        let requests: Vec<Request> = objects.iter().flat_map(Request::apply).collect();
        self.requests(&requests);
    }

    /// Sends requests in order and returns the responses. Panics if one fails.
    pub(crate) fn requests(&self, requests: &[Request]) -> Vec<Value> {
        self.try_requests(requests).unwrap_or_else(|fact| panic!("{}: {fact}", self.url))
    }

    /// Signs a text with the key and algorithm of service account tokens (ES256).
    pub(crate) fn sign(&self, text: &[u8]) -> Vec<u8> {
        use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
        let pem = std::fs::read_to_string(self.folder.join("sa.key")).expect("our own key");
        let key = rcgen::KeyPair::from_pem(&pem).expect("a key").serialize_der();
        let random = ring::rand::SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key, &random);
        key.expect("of P-256").sign(&random, text).expect("it signs").as_ref().to_vec()
    }

    /// Returns a token of a pod in `shop`, as its node would request it, with the audience of
    /// agents.
    pub(crate) fn token(&self, pod: &str, account: &str, seconds: u64) -> String {
        let pod_path = format!("/api/v1/namespaces/shop/pods/{pod}");
        let uid = self.requests(&[Request::get(&pod_path)])[0]["metadata"]["uid"].clone();
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid });
        let request = Request {
            method: "POST".into(),
            path: format!("/api/v1/namespaces/shop/serviceaccounts/{account}/token"),
            content_type: Some("application/json".into()),
            body: Some(json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {
                    "audiences": ["istio-ca"], "expirationSeconds": seconds, "boundObjectRef": bound,
                },
            })),
        };
        let answers = self.requests(&[request]);
        answers[0]["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// Sends requests in order, up to the first failure. Returns the responses or the server's
    /// error.
    pub(crate) fn try_requests(&self, requests: &[Request]) -> Result<Vec<Value>, String> {
        let kubeconfig = self.admin_kubeconfig();
        let input = serde_json::to_string(requests).map_err(|error| error.to_string())?;
        let answers = self.hub.try_helper(&["kube", &kubeconfig.display().to_string()], &input)?;
        answers.as_array().cloned().ok_or_else(|| format!("no list: {answers}"))
    }
}

/// Replaces the folder `to` by a copy of the folder `from`.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} was not copied", from.display());
}

/// Returns the rights of the reader, as `strait cluster add` grants them: reading services,
/// endpointslices, namespaces, pods, nodes and the keys of tokens, and token reviews.
pub(crate) fn reader_rights() -> Vec<Value> {
    let rules = json!([
        { "apiGroups": [""], "resources": ["services", "namespaces", "pods", "nodes"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] },
        { "nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"], "verbs": ["get"] },
    ]);
    vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": "strait-reader" }, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "strait-reader" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "strait-reader" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "strait-reader" }],
        }),
    ]
}
