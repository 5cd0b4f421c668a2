//! A soak test that compresses days of a mesh: ten clusters with a random history, a hundred
//! proxies, and two replicas of the control plane, as separate processes.
//!
//! One replica runs from the beginning to the end: it must not grow. The other is stopped
//! repeatedly by SIGTERM or SIGKILL, and restarts from its state on disk, possibly with API servers
//! that are down; its proxies reconnect with their resources. After each burst of events, all
//! proxies must have the result that [`naive`] computes from the objects with plain loops, and in
//! both variants of the protocol and on both replicas the same bytes. While every API server is up,
//! a third replica that starts without state must also give the same bytes.
//!
//! `STRAIT_SOAK=3600` sets the duration in seconds; `STRAIT_SOAK_SEED=7` chooses another history.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::mesh::{Admin, Proxy, SOON, Setup, from_nothing, holds, wait_until};
use super::naive;
use super::simulation::{difference, pictured};
use super::story::{Cast, Story};
use strait_base::task::Supervisor;
use strait_sim::{Fault, Gone};
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::{ClientContents, Options, XdsClient, channel};

/// The default duration in seconds: long enough to exercise everything.
const SECONDS: u64 = 15;
const CLUSTERS: usize = 10;
/// The number of proxies of each kind on each replica; with ten kinds, a hundred in all.
const TWINS: usize = 5;
/// A stopped API server is retried after a delay that grows with the outage.
const LIMIT: Duration = Duration::from_secs(90);
/// Shorter runs do not show growth: the first quarter is warm-up.
const MEASURED_FROM: Duration = Duration::from_secs(60);

fn cast() -> Cast {
    let id = |number: usize| format!("c{number:02}");
    let networks = ["n1", "n2", "n3", ""];
    Cast {
        members: (0..CLUSTERS).map(|number| (id(number), networks[number % 4])).collect(),
        rovers: [3, 6].map(id).into(),
        faults: vec![
            Fault::Gone { how: Gone::Status, times: Some(2) },
            Fault::Gone { how: Gone::Event, times: Some(2) },
            Fault::CloseWatches { after_ms: 50 },
            Fault::ContinueExpired,
            Fault::Unauthorized,
            Fault::Forbidden { resource: "nodes".to_owned() },
            Fault::TooManyRequests { retry_after_seconds: 1 },
            Fault::Errors { codes: vec![500, 200, 503] },
            Fault::Slow { latency_ms: 100, bytes_per_second: None },
            Fault::Flap { up_ms: 100, down_ms: 100 },
            Fault::Html,
            Fault::Truncate,
            Fault::Hang,
        ],
    }
}

/// Returns the kinds of proxies: in clusters of each network, a proxy without a pod, a proxy that
/// claims a network, a proxy with a pod, and gateways.
fn kinds() -> Vec<Proxy> {
    let cluster = |number: usize| format!("c{number:02}");
    let with_pod = Proxy {
        name: "cart-client",
        account: "cart",
        ip: "10.0.9.9".to_owned(),
        ..Proxy::sidecar(&cluster(CLUSTERS - 1))
    };
    let claiming = Proxy { network: Some("n2"), ..Proxy::sidecar("c00") };
    let mut kinds = vec![with_pod, claiming];
    kinds.extend([0, 1, 2, 4, 5].map(|number| Proxy::sidecar(&cluster(number))));
    kinds.extend([0, 1, 2].map(|number| Proxy::gateway(&cluster(number))));
    kinds
}

/// A control plane as a process.
pub(super) struct Replica {
    process: Child,
    pub(super) admin: Admin,
    xds: std::net::SocketAddr,
    clients: Supervisor,
}

impl Replica {
    /// Starts a replica with its state in `state`, and waits until it is ready.
    pub(super) async fn start(setup: &Setup, state: &str) -> Self {
        Self::start_in(setup, state, "").await
    }

    /// Starts a replica in a shell that has run `first`, like [`Self::start`].
    pub(super) async fn start_in(setup: &Setup, state: &str, first: &str) -> Self {
        let state = setup.path(state);
        let arguments = setup.arguments_on(&state);
        let mut process = Command::new("sh")
            .args(["-c", &format!("{first}\nexec \"$@\""), "sh"])
            .args([env!("CARGO_BIN_EXE_strait"), "serve"])
            .args(arguments)
            .args(["--log-level", "error", "--audit-interval", "5s"])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let line = lines.next_line().await.expect("readable").expect("a line");
        let ports: Value = serde_json::from_str(&line).expect("JSON");
        let address =
            |key: &str| ports[key].as_str().and_then(|text| text.parse().ok()).expect("an address");
        let token = std::fs::read_to_string(state.join("admin-token")).expect("a token");
        let admin = Admin::new(address("admin"), token.trim());
        wait_until(LIMIT, async || {
            let (status, text) = admin.text("/readyz?verbose").await;
            holds(status == StatusCode::OK, text)
        })
        .await;
        Self { process, admin, xds: address("xds"), clients: Supervisor::new() }
    }

    pub(super) async fn connect(
        &self,
        setup: &Setup,
        proxy: &Proxy,
        options: Options,
    ) -> XdsClient {
        let tls = setup.certificate(proxy.namespace, proxy.account);
        let channel = channel(self.xds, "localhost", tls).await;
        let channel = channel.unwrap_or_else(|error| panic!("{}: {error}", proxy.id()));
        let opened = XdsClient::open(channel, proxy.node(), options, &self.clients).await;
        opened.unwrap_or_else(|error| panic!("{}: {error}", proxy.id()))
    }

    pub(super) async fn end(&mut self, signal: &str) {
        let id = self.process.id().expect("it runs").to_string();
        let sent = Command::new("kill").args([signal, &id]).status().await.expect("kill runs");
        assert!(sent.success());
        let exit = tokio::time::timeout(SOON, self.process.wait())
            .await
            .expect("the process ends in time");
        let code = exit.expect("it ends").code();
        assert!(signal == "-KILL" || code == Some(0), "after {signal}: {code:?}");
        self.clients.shut_down(Duration::from_secs(5)).await;
    }

    /// Returns the private memory of the process in bytes.
    fn memory(&self) -> u64 {
        let id = self.process.id().expect("it runs");
        let text = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).expect("Linux");
        let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
        let kilobytes =
            line.and_then(|line| line.trim().strip_suffix(" kB")).expect("a line of output");
        kilobytes.parse::<u64>().expect("a number") * 1024
    }

    fn open_files(&self) -> usize {
        let id = self.process.id().expect("it runs");
        std::fs::read_dir(format!("/proc/{id}/fd")).expect("Linux").count()
    }
}

/// A connected proxy, and the kind's index in [`kinds`].
struct Connected {
    kind: usize,
    /// Whether it is connected to the restarted replica.
    on_mortal: bool,
    proxy: Proxy,
    form: ProtocolForm,
    client: XdsClient,
}

/// Gives a proxy a unique name or address. Without a pod, the address makes the node ID unique.
fn duplicate(proxy: &Proxy, number: usize) -> Proxy {
    let ip = match proxy.name {
        "cart-client" => proxy.ip.clone(),
        _ => format!("10.98.{}.{}", number / 200, number % 200 + 1),
    };
    Proxy { ip, ..proxy.clone() }
}

async fn connect_all(replica: &Replica, setup: &Setup, on_mortal: bool) -> Vec<Connected> {
    let from = if on_mortal { 100 } else { 0 };
    let mut all = Vec::new();
    for (kind, proxy) in kinds().iter().enumerate() {
        // A pod is one proxy; more streams of it would exceed the limit per node ID.
        let twins = if proxy.name == "cart-client" { 2 } else { TWINS };
        for number in 0..twins {
            let form = if number % 2 == 0 { ProtocolForm::Delta } else { ProtocolForm::Sotw };
            let proxy = duplicate(proxy, from + kind * TWINS + number);
            let client = replica.connect(setup, &proxy, from_nothing(form)).await;
            all.push(Connected { kind, on_mortal, proxy, form, client });
        }
    }
    all
}

/// Returns the bytes of all resources of a client.
fn bodies(contents: &ClientContents) -> BTreeMap<(ResourceType, &str), &[u8]> {
    let by_kind =
        |kind| contents.names(kind).map(move |name| ((kind, name), contents.body(kind, name)));
    let all = ResourceType::ALL.into_iter().flat_map(by_kind);
    all.filter_map(|(name, body)| Some((name, body?))).collect()
}

impl Connected {
    /// Reconnects with its resources, as a proxy does.
    async fn connect_again(&mut self, setup: &Setup, replica: &Replica) {
        let contents = self.client.held();
        let options = Options { form: self.form, held: contents, ..Options::default() };
        self.client = replica.connect(setup, &self.proxy, options).await;
    }
}

/// Reconnects proxies whose connection has ended: a connection lasts at most half an hour, and is
/// considered dead if the machine stalls for 10 s. Returns their number. A stream that ended with
/// an error is a failure.
async fn come_back(proxies: &mut [Connected], setup: &Setup, replicas: [&Replica; 2]) -> usize {
    let mut count = 0;
    for proxy in proxies {
        let Some(reason) = proxy.client.held().ended else { continue };
        let connection_errors = ["Cancelled", "Unavailable", "Unknown", "the server"];
        assert!(connection_errors.iter().any(|prefix| reason.starts_with(prefix)), "{reason}");
        proxy.connect_again(setup, replicas[usize::from(proxy.on_mortal)]).await;
        count += 1;
    }
    count
}

/// Waits until all proxies have the expected resources. Returns false once a connection has ended.
async fn check(story: &Story, proxies: &[Connected], fresh: &[XdsClient]) -> bool {
    let kinds = kinds();
    let expected: Vec<_> =
        kinds.iter().map(|kind| naive::assignments(story.world(), kind)).collect();
    for connected in proxies {
        let Connected { kind, proxy, form, client, .. } = connected;
        let whole = wait_until(LIMIT, async || {
            if proxies.iter().any(|one| one.client.held().ended.is_some()) {
                return Ok(false);
            }
            let contents = client.held();
            let who = || format!("{} in {} by {form:?}", proxy.id(), proxy.cluster);
            // The first proxy of a kind is compared with the objects, the others with the first.
            let first = proxies.iter().find(|other| other.kind == *kind).expect("at least itself");
            let first = first.client.held();
            if bodies(&contents) != bodies(&first) {
                let difference = difference(&pictured(&first), &pictured(&contents));
                return Err(format!("{} against the first of its kind: {difference}", who()));
            }
            let found = naive::received_assignments(&contents);
            if found != expected[*kind] {
                let difference = difference(&expected[*kind], &found);
                return Err(format!("{} against naive: {difference}", who()));
            }
            if let Some(fresh) = fresh.get(*kind).map(XdsClient::held)
                && bodies(&contents) != bodies(&fresh)
            {
                let difference = difference(&pictured(&fresh), &pictured(&contents));
                return Err(format!("{} against a fresh start: {difference}", who()));
            }
            Ok(true)
        })
        .await;
        if !whole {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_loses_nothing_leaks_nothing_and_does_not_grow() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let length = Duration::from_secs(variable("STRAIT_SOAK").unwrap_or(SECONDS));
    let seed = variable("STRAIT_SOAK_SEED").unwrap_or(1);
    let (mut story, setup) = Story::begin(seed, cast(), Setup::new()).await;
    let began = Instant::now();

    let steady = Replica::start(&setup, "steady").await;
    let mut mortal = Replica::start(&setup, "mortal").await;
    let mut proxies = connect_all(&steady, &setup, false).await;
    proxies.extend(connect_all(&mortal, &setup, true).await);
    let mut returns = 0;
    let all_hold =
        async |story: &Story, proxies: &mut [Connected], mortal: &Replica, fresh: &[XdsClient]| {
            let mut returns = 0;
            while !check(story, proxies, fresh).await {
                returns += come_back(proxies, &setup, [&steady, mortal]).await;
            }
            returns
        };
    returns += all_hold(&story, &mut proxies, &mortal, &[]).await;

    let (mut bursts, mut restarts, mut fresh_starts) = (0, 0, 0);
    let mut samples = Vec::new();
    let files = steady.open_files();
    // At least one burst, even if starting took all the time.
    while bursts == 0 || began.elapsed() < length {
        bursts += 1;
        story.record(format!("burst {bursts} after {:?}", began.elapsed()));
        story.burst(&setup).await;
        returns += all_hold(&story, &mut proxies, &mortal, &[]).await;
        samples.push((began.elapsed(), steady.memory()));

        if story.any(4) == 0 {
            restarts += 1;
            // The last changes may not be on disk yet; they can be read again only if all API
            // servers are up.
            let signal = if story.all_up() && story.any(2) == 0 { "-KILL" } else { "-TERM" };
            story.record(format!("restart by {signal}"));
            mortal.end(signal).await;
            mortal = Replica::start(&setup, "mortal").await;
            for connected in proxies.iter_mut().filter(|connected| connected.on_mortal) {
                connected.connect_again(&setup, &mortal).await;
            }
            returns += all_hold(&story, &mut proxies, &mortal, &[]).await;
        }
        if story.any(6) == 0 {
            fresh_starts += 1;
            story.record("a fresh start");
            story.calm().await;
            let state = format!("fresh-{fresh_starts}");
            let mut fresh = Replica::start(&setup, &state).await;
            let mut newcomers = Vec::new();
            for (kind, proxy) in kinds().iter().enumerate() {
                let proxy = duplicate(proxy, 200 + kind);
                newcomers
                    .push(fresh.connect(&setup, &proxy, from_nothing(ProtocolForm::Delta)).await);
            }
            returns += all_hold(&story, &mut proxies, &mortal, &newcomers).await;
            drop(newcomers);
            fresh.end("-TERM").await;
            std::fs::remove_dir_all(setup.path(&state)).expect("removed");
        }
    }
    for replica in [&steady, &mortal] {
        assert_eq!(replica.admin.metric("strait_task_panics_total").await, 0.0);
        assert_eq!(replica.admin.metric("strait_audit_mismatch_total").await, 0.0);
        assert_ne!(replica.admin.metric("strait_audit_streams_total").await, 0.0);
    }
    let rejected: u64 = proxies.iter().map(|one| one.client.held().rejected).sum();
    assert_eq!(rejected, 0, "responses that a proxy could not take");
    assert!(steady.open_files() < files + 20, "{files} open files, then {}", steady.open_files());

    let mean = |from: u32, to: u32| {
        let part =
            samples.iter().filter(|(at, _)| (length * from / 4..length * to / 4).contains(at));
        let bytes: Vec<u64> = part.map(|(_, bytes)| *bytes).collect();
        bytes.iter().sum::<u64>() / (bytes.len() as u64).max(1)
    };
    let (early, late) = (mean(1, 2), mean(3, 4));
    eprintln!(
        "soak of {} s, seed {seed}: {} proxies, {bursts} bursts, {restarts} restarts, {fresh_starts} fresh \
         starts, {returns} returns; private memory {early} B in the second quarter, {late} B in the last",
        length.as_secs(),
        proxies.len(),
    );
    if length >= MEASURED_FROM {
        let allowed = early + early / 10 + (2 << 20);
        assert!(late <= allowed, "memory grew from {early} to {late} bytes");
    }
}
