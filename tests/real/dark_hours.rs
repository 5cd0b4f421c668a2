//! A member whose API server is down for thirteen hours: known pods start their proxies, renew
//! their certificates and lose no request, although Strait restarts in the middle and the tokens of
//! their nodes expire.
//!
//! Strait and the agents use a clock that libfaketime moves forward. The clock starts in the past,
//! by the duration of the test, so that the certificates are also valid for Envoys, whose clock
//! cannot be changed. The API server is real until it stops. Its tokens are signed again with its
//! own key, with the start of that clock as their time.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::apiserver::{Apiserver, Settings, reader_rights};
use crate::certs::Authority;
use crate::envoy::Envoy;
use crate::grpc::account;
use crate::helper::Load;
use crate::host::{self, Host};
use crate::kube::namespace;
use crate::netns::{ENVOY_UID, Netns};
use crate::process::Process;
use crate::rig_check::{echo, run_load};
use crate::scenarios::finish;
use crate::strait::Strait;
use crate::topology::{HUB, Topology};
use crate::wait;
use crate::world::application;

const CLUSTER: &str = "east";
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit of a renewal. Agents check the clock every 10 s.
const RENEWED: Duration = Duration::from_secs(90);
const HOUR: u64 = 3600;
/// The lifetime of tokens in stock injection.
const TOKEN_SECONDS: u64 = 12 * HOUR;
/// The time without the API server.
const ALL: u64 = TOKEN_SECONDS + HOUR;
/// The pods that exist from the beginning, start after an hour, and start after tokens have
/// expired. Each has its own service, because their API server never reports that they have stopped
/// meanwhile.
const WEB: (&str, &str) = ("web-1", "10.10.0.41");
const LATE: (&str, &str) = ("late-1", "10.10.0.42");
const LATER: (&str, &str) = ("later-1", "10.10.0.43");
const CALLER: (&str, &str) = ("caller-1", "10.10.0.44");

/// The clock of Strait and the agents.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    fn find(folder: &Path) -> Option<Self> {
        let libraries = ["x86_64", "aarch64"]
            .map(|machine| format!("/usr/lib/{machine}-linux-gnu/faketime/libfaketime.so.1"));
        let library = libraries.into_iter().map(PathBuf::from).find(|path| path.is_file())?;
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0);
        Some(clock)
    }

    /// Sets the clock to this number of seconds after its start.
    fn set(&self, seconds: u64) {
        let temporary = self.file.with_extension("new");
        std::fs::write(&temporary, format!("-{}\n", ALL - seconds)).expect("our own folder");
        std::fs::rename(&temporary, &self.file).expect("our own folder");
    }

    /// Returns the environment with which a program uses this clock. Waits for a duration keep
    /// their real length.
    fn environment(&self) -> [(String, String); 4] {
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file)),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    }
}

/// The running programs. Fields drop in this order: Envoys before their peers.
struct Rig<'a> {
    host: &'a Host,
    clock: Clock,
    agent: PathBuf,
    folder: PathBuf,
    strait: Strait,
    apiserver: Apiserver,
    ca: Authority,
    topology: Topology,
}

/// A pod with its agent, its Envoy and its application.
struct Pod {
    envoy: Envoy,
    netns: Rc<Netns>,
    certificate: PathBuf,
    _echo: Process,
}

pub(crate) fn run(host: &Host) {
    let folder = host.subfolder("dark-hours");
    let Some(clock) = Clock::find(&folder) else {
        return host::skip_without("real::dark_hours", "no libfaketime");
    };
    let mut rig = Rig::create(host, folder, clock);
    let tokens = [CALLER, WEB, LATE, LATER].map(|(pod, _)| rig.token(pod));
    let [caller_token, web_token, late_token, later_token] = tokens;
    let caller = rig.start(CALLER, &caller_token);
    let web = rig.start(WEB, &web_token);
    answered_by(&caller, WEB);
    rig.strait.wait_until_remembered(CLUSTER, UNIX_EPOCH);

    rig.apiserver.stop();
    rig.strait.kill();
    rig.strait.launch();
    rig.strait.wait_until_ready();
    let end = rig.folder.join("end");
    let load = rig.load(&caller, &end);

    // An hour later, a known pod starts.
    rig.clock.set(HOUR);
    let late = rig.start(LATE, &late_token);
    answered_by(&caller, LATE);

    // After thirteen hours, certificates have passed half of their lifetime, and tokens have
    // expired.
    let written = [&caller, &web, &late].map(Pod::serial);
    rig.clock.set(ALL);
    for (pod, before) in [&caller, &web, &late].into_iter().zip(written) {
        wait::until(RENEWED, "a certificate is renewed", || {
            let now = pod.serial();
            if now == before { Err(format!("{now} still")) } else { Ok(()) }
        });
    }
    // A proxy without a certificate is not admitted with an expired token, unless an operator
    // allows it while the cluster is unreachable.
    let mut later = rig.spawn(LATER, &later_token);
    wait::until(LIMIT, "its token has expired", || {
        let log = later.envoy.log_lines("STR0522");
        if log.is_empty() { Err(later.envoy.log_end()) } else { Ok(()) }
    });
    rig.strait.set_policy(&format!("clusters: {{{CLUSTER}: {{darkTokenGrace: 24h}}}}"));
    later.envoy.wait_until_live(RENEWED);
    answered_by(&caller, LATER);
    let shown = rig.strait.json("/debug/clusters").to_string();
    assert!(shown.contains("darkTokenGrace"), "{shown}");

    std::fs::write(&end, "").expect("our own folder");
    let answers = finish(load);
    assert!(answers.failures.is_empty() && answers.requests > 100, "{answers:?}");
    for pod in [&caller, &web, &late, &later] {
        assert_eq!(pod.envoy.complaints(), Vec::<String>::new());
    }
}

/// Returns the hostname and the VIP of a pod's service.
fn service((pod, address): (&str, &str)) -> (String, String) {
    let last = address.rsplit('.').next().unwrap_or_default();
    (format!("{}.shop.svc.cluster.local", account(pod)), format!("10.93.0.{last}"))
}

/// Returns a load of requests to a pod's service.
fn to(pod: (&str, &str), requests: usize) -> Load {
    let (host, vip) = service(pod);
    Load::http(&format!("{vip}:80"), &host, requests)
}

/// Waits until a pod responds to every request.
fn answered_by(caller: &Pod, pod: (&str, &str)) {
    let load = to(pod, 20);
    wait::until(LIMIT, &format!("{} answers", pod.0), || {
        let answers = run_load(&caller.netns, &load);
        let is_it = answers.by.contains_key(&format!("{CLUSTER}/{}", pod.0));
        if is_it && answers.failures.is_empty() { Ok(()) } else { Err(format!("{answers:?}")) }
    });
}

impl<'a> Rig<'a> {
    fn create(host: &'a Host, folder: PathBuf, clock: Clock) -> Self {
        let topology = Topology::create("dark");
        let ca = Authority::create(&host.subfolder("dark-ca"), "dark");
        let (port, service_cidr) = (6461, "10.93.0.0/16");
        let settings = Settings { cluster: "dark", address: HUB, port, service_cidr };
        let mut apiserver = Apiserver::start(host, &topology.hub, &ca, &settings);
        apiserver.wait_until_ready();
        let mut objects = reader_rights();
        objects.push(namespace("shop", json!({})));
        for pod in [WEB, LATE, LATER, CALLER] {
            let name = account(pod.0);
            objects.push(json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": name, "namespace": "shop" },
            }));
            objects.extend(application(name, service(pod).1, &[pod]));
        }
        apiserver.apply(&objects);

        let config = host.subfolder("dark-config");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": CLUSTER, "namespace": "strait-system", "labels": { "istio/multiCluster": "true" },
            },
            "data": { CLUSTER: BASE64.encode(apiserver.reader_kubeconfig()) },
        });
        std::fs::write(config.join("east.json"), secret.to_string()).expect("our own folder");
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let arguments = vec![
            format!("--config-dir={}", text(&config)),
            format!("--ca-dir={}", text(ca.folder())),
            format!("--xds-address={HUB}:15012"),
            "--admin-address=127.0.0.1:15014".to_owned(),
            format!("--tls-san={HUB}"),
        ];
        let environment = clock.environment().into();
        let strait = Strait::start_with(host, &topology.hub, arguments, environment);
        strait.wait_until_ready();
        strait.wait_for_cluster_state(CLUSTER, &["live"], LIMIT);
        let agent = host.readable_by_all(&crate::strait::agent_program(), "strait-agent");
        Self { host, clock, agent, folder, strait, apiserver, ca, topology }
    }

    /// Returns a token as the pod's node would request it.
    fn token(&self, pod: &str) -> String {
        let token = self.apiserver.token(pod, account(pod), TOKEN_SECONDS);
        let parts: Vec<&str> = token.split('.').collect();
        let claims = URL_SAFE_NO_PAD.decode(parts[1]).expect("a token's claims");
        let mut claims: Value = serde_json::from_slice(&claims).expect("JSON");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let begun = now - ALL;
        for (name, time) in [("iat", begun), ("nbf", begun), ("exp", begun + TOKEN_SECONDS)] {
            claims[name] = json!(time);
        }
        let signed = format!("{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = URL_SAFE_NO_PAD.encode(self.apiserver.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn start(&self, pod: (&str, &str), token: &str) -> Pod {
        let mut pod = self.spawn(pod, token);
        pod.envoy.wait_until_live(LIMIT);
        pod
    }

    fn spawn(&self, (name, address): (&str, &str), token: &str) -> Pod {
        let netns = self.topology.pod("a", name, address);
        let echo = echo(self.host, &netns, name, CLUSTER);
        let folder = self.folder.join(name);
        let secrets = folder.join("secrets");
        std::fs::create_dir_all(&secrets).expect("our own folder");
        let [token_file, roots_file] = ["token", "root-cert.pem"].map(|file| folder.join(file));
        std::fs::write(&token_file, token).expect("our own folder");
        std::fs::write(&roots_file, self.ca.pem()).expect("our own folder");
        for path in [&folder, &secrets, &token_file, &roots_file] {
            chown(path, Some(ENVOY_UID), Some(ENVOY_UID)).expect("the rig runs as root");
        }
        // As the pod's user, because libfaketime shares its counters only between processes of one
        // user.
        let mut command = netns.command_as_envoy("env");
        command.args(self.clock.environment().map(|(name, value)| format!("{name}={value}")));
        command.arg(&self.agent).args([
            "run",
            "--discovery",
            &format!("{HUB}:15012"),
            "--cluster",
            CLUSTER,
        ]);
        command.args(["--name", name, "--namespace", "shop", "--service-account", account(name)]);
        command.args(["--ip", address, "--allow-key-on-disk", "--dir"]).arg(&secrets);
        command.arg("--token-file").arg(&token_file).arg("--roots-file").arg(&roots_file);
        command.args(["--", "env", "-u", "LD_PRELOAD"]).arg(&self.host.envoy);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        let process = Process::spawn(command, &self.host.subfolder("envoy"), name);
        let envoy = Envoy::started_by_agent(process, &netns, name);
        Pod { envoy, netns, certificate: secrets.join("cert-chain.pem"), _echo: echo }
    }

    /// Starts requests of a pod that end when the file exists.
    fn load(&self, caller: &Pod, end: &Path) -> Process {
        let load = to(WEB, 1).lasting(400);
        let load = Load { pause_ms: 50, until: Some(end.to_owned()), ..load };
        load.spawn(&caller.netns, &self.folder, "load")
    }
}

impl Pod {
    /// Returns the serial number of the certificate that its Envoy presents.
    fn serial(&self) -> String {
        let certificates: Value =
            serde_json::from_str(&self.envoy.get("/certs")).expect("Envoy's page is JSON");
        assert!(self.certificate.is_file(), "{}", self.certificate.display());
        let chain = &certificates["certificates"][0]["cert_chain"][0]["serial_number"];
        chain.as_str().unwrap_or_default().to_owned()
    }
}
