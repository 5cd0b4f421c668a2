//! `xdsload`: simulates many proxies against any ADS server.
//!
//! Measures the view of the proxies: when they are in sync, when a change reaches them, and how
//! many bytes that takes. It decodes as little as possible, so that it costs less than the server
//! under test.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use clap::error::ErrorKind;
use prost::Message;
use rustls_pki_types::ServerName;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use strait_identity::SpiffeId;
use strait_proto::envoy::envoy::config::core::v3::node::UserAgentVersionType;
use strait_proto::envoy::envoy::config::core::v3::{BuildVersion, Node};
use strait_proto::envoy::envoy::r#type::v3::SemanticVersion;
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind as ValueKind};

mod certs;
mod changes;
mod connection;
mod http2;
mod load;
mod names;
mod options;
mod report;
mod response;
mod session;
mod tokens;
mod wire;

use self::changes::{Stamps, now_ns};
use self::connection::Server;
use self::load::{Findings, InSync, Proxy, Stage, Steady, Thread};
use self::options::Options;
use self::report::Told;
use self::session::Profile;
use self::tokens::Token;

/// Wrong usage, as in sysexits.h.
const USAGE: u8 = 64;
/// More than the size of any resource, in bytes: freed memory up to this size is reused.
const LARGEST: usize = 16 << 20;
/// The Istio version that the proxies report.
const ISTIO_VERSION: &str = "1.29.0";

/// The reason for a missing result.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failure(pub(crate) String);

fn failure(error: impl fmt::Display) -> Failure {
    Failure(error.to_string())
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // An error of printing cannot be reported.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    match run(options) {
        Ok(all_in_sync) if all_in_sync => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xdsload: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the measurement and prints the report. Returns whether all proxies were in sync.
fn run(options: Options) -> Result<bool, Failure> {
    raise_descriptor_limit();
    strait_heap::keep_free(LARGEST);
    let stamps = options.stamps.map(|_| Stamps::default());
    let (stage, stages) = watch::channel(Stage::First);
    let (in_sync, mut synced) = mpsc::unbounded_channel();
    let threads = threads(&options, stages, in_sync, stamps.as_ref())?;
    let began = (now_ns(), cpu_seconds());
    let threads: Vec<_> = threads
        .into_iter()
        .map(|thread| std::thread::Builder::new().spawn(move || load::run(thread)))
        .collect::<Result<_, _>>()
        .map_err(failure)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failure)?;
    let measured = async {
        let told = direct(&options, began, &stage, &mut synced).await;
        let last = stage.send_replace(Stage::Over);
        let findings = tokio::task::spawn_blocking(|| join(threads)).await.map_err(failure)??;
        Ok::<_, Failure>((told?, last, findings))
    };
    let (told, last, findings) = runtime.block_on(async {
        match stamps.as_ref().zip(options.stamps) {
            // Polls until the threads have ended. They first search the last responses.
            Some((stamps, control)) => tokio::select! {
                measured = measured => measured,
                failure = stamps.poll(control) => Err(failure),
            },
            None => measured.await,
        }
    })?;
    // The last entry is the steady stage, if it was reached.
    let until_ns = told.last().map_or(0, |told| told.ended_ns);
    let since_ns = if let Stage::Steady(steady) = last { steady.since_ns } else { until_ns };
    for (error, times) in report::sum(findings.iter().flat_map(|it| &it.counts)).errors {
        eprintln!("xdsload: {times} times: {error}");
    }
    print(&options, &told, &findings, stamps.map(|stamps| (stamps, (since_ns, until_ns))));
    Ok(told
        .iter()
        .take(1 + usize::from(options.reconnect))
        .all(|told| told.in_sync.len() == options.proxies as usize))
}

fn join(threads: Vec<JoinHandle<std::io::Result<Findings>>>) -> Result<Vec<Findings>, Failure> {
    let joined = threads.into_iter().map(|thread| match thread.join() {
        Ok(findings) => findings.map_err(failure),
        Err(_) => Err(Failure("a thread panicked".to_owned())),
    });
    joined.collect()
}

/// Controls the stages. Returns the results of each stage that was reached.
async fn direct(
    options: &Options,
    began: (u64, f64),
    stage: &watch::Sender<Stage>,
    synced: &mut mpsc::UnboundedReceiver<InSync>,
) -> Result<Vec<Told>, Failure> {
    let mut terminated = signal(SignalKind::terminate()).map_err(failure)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(failure)?;
    let mut told = Vec::new();
    let (mut began_ns, mut began_cpu) = began;
    let stages = [Stage::First, Stage::Again].into_iter().take(1 + usize::from(options.reconnect));
    for this in stages {
        if this == Stage::Again {
            stage.send_replace(this);
        }
        let mut times: BTreeMap<u32, u64> = BTreeMap::new();
        let stopped = tokio::select! {
            () = all_in_sync(options.proxies, synced, began_ns, &mut times) => false,
            () = tokio::time::sleep(options.timeout) => false,
            _ = terminated.recv() => true,
            _ = interrupted.recv() => true,
        };
        let (ended_ns, cpu) = (now_ns(), cpu_seconds());
        let in_sync: Vec<_> =
            times.into_iter().map(|(proxy, at_ns)| InSync { proxy, at_ns }).collect();
        let seconds = ended_ns.saturating_sub(began_ns) as f64 / 1e9;
        eprintln!("xdsload: {} of {} in sync after {seconds:.3} s", in_sync.len(), options.proxies);
        told.push(Told { began_ns, ended_ns, cpu_seconds: cpu - began_cpu, in_sync });
        (began_ns, began_cpu) = (now_ns(), cpu_seconds());
        if stopped {
            return Ok(told);
        }
    }
    let mut asked = signal(SignalKind::user_defined1()).map_err(failure)?;
    let over = tokio::time::sleep(options.duration);
    tokio::pin!(over);
    let since_ns = began_ns;
    for window in 0.. {
        stage.send_replace(Stage::Steady(Steady { since_ns, window }));
        if window > 0 {
            eprintln!("xdsload: window {window}");
        }
        let another = tokio::select! {
            () = &mut over => false,
            _ = terminated.recv() => false,
            _ = interrupted.recv() => false,
            _ = asked.recv() => true,
        };
        let (ended_ns, cpu) = (now_ns(), cpu_seconds());
        let cpu_seconds = cpu - began_cpu;
        told.push(Told { began_ns, ended_ns, cpu_seconds, in_sync: Vec::new() });
        (began_ns, began_cpu) = (ended_ns, cpu);
        if !another {
            break;
        }
    }
    Ok(told)
}

async fn all_in_sync(
    proxies: u32,
    synced: &mut mpsc::UnboundedReceiver<InSync>,
    since_ns: u64,
    times: &mut BTreeMap<u32, u64>,
) {
    while times.len() < proxies as usize {
        match synced.recv().await {
            Some(InSync { proxy, at_ns }) if at_ns >= since_ns => drop(times.insert(proxy, at_ns)),
            // A message of the previous stage.
            Some(_) => {}
            None => return,
        }
    }
}

fn print(
    options: &Options,
    told: &[Told],
    threads: &[Findings],
    stamps: Option<(Stamps, (u64, u64))>,
) {
    let counts = |stage: usize| report::sum(threads.iter().filter_map(|it| it.counts.get(stage)));
    let connecting = 1 + usize::from(options.reconnect);
    let first = told.first().map(|told| report::connecting(told, &counts(0)));
    let again = told.get(1).filter(|_| options.reconnect);
    let again = again.map(|told| report::connecting(told, &counts(1)));
    let windows = told.get(connecting..).unwrap_or_default();
    let steady = Told::joined(windows).map(|told| {
        let all = threads.iter().filter_map(|it| it.counts.get(Stage::STEADY..)).flatten();
        report::stage(&told, &report::sum(all))
    });
    let windows: Vec<_> = (Stage::STEADY..)
        .zip(windows)
        .map(|(place, told)| report::stage(told, &counts(place)))
        .collect();
    let changes = stamps.map(|(stamps, made)| report::changes(&stamps.all(), made, threads));
    let protocol = format!("{:?}", options.protocol).to_lowercase();
    println!(
        "{}",
        json!({
            "proxies": options.proxies,
            "protocol": protocol,
            "sync": first,
            "reconnect": again,
            "steady": steady,
            "windows": windows,
            "changes": changes,
            "cpuSeconds": cpu_seconds(),
        })
    );
}

/// Creates all proxies with their certificates, and distributes them over the threads.
fn threads(
    options: &Options,
    stage: watch::Receiver<Stage>,
    in_sync: mpsc::UnboundedSender<InSync>,
    stamps: Option<&Stamps>,
) -> Result<Vec<Thread>, Failure> {
    let issuer = certs::Issuer::new(&options.ca_dir)?;
    let mut tokens = options.tokens.as_deref().map(tokens::read).transpose()?;
    if let Some(tokens) = &tokens
        && tokens.len() < options.proxies as usize
    {
        let (found, asked) = (tokens.len(), options.proxies);
        return Err(Failure(format!("--tokens: {found} lines for {asked} proxies")));
    }
    let nobody = issuer.nobody()?;
    let servers = servers(options)?;
    let names = options.names.as_ref().map(|path| {
        std::fs::read_to_string(path)
            .map_err(|error| Failure(format!("--names {}: {error}", path.display())))
    });
    let names = names.transpose()?;
    let mut threads: Vec<_> = (0..options.threads.min(options.proxies))
        .map(|_| Thread {
            servers: servers.clone(),
            proxies: Vec::new(),
            connecting: options.connecting as usize,
            longest_pause: options.longest_pause,
            stage: stage.clone(),
            in_sync: in_sync.clone(),
            stamps: stamps.cloned(),
        })
        .collect();
    let names: Option<Vec<&str>> = names.as_ref().map(|text| text.lines().collect());
    if names.as_ref().is_some_and(Vec::is_empty) {
        return Err(Failure("--names: the file contains no names".to_owned()));
    }
    let turns = threads.len();
    for number in 0..options.proxies {
        // Selects this fraction of the proxies, evenly distributed.
        let of_share = |share: f64| (f64::from(number) + 0.5) * share % 1.0 < share;
        let asked = |name: &&&str| options.subscribe.wants(number, name.as_bytes());
        let profile = Profile {
            number,
            form: options.protocol,
            subscribe: options.subscribe,
            listeners: options.listeners,
            routes: options.routes,
            vhds: options.vhds,
            name_table: options.name_table,
            rejects: of_share(options.nack),
            keeps_versions: options.protocol == wire::Form::Delta && !options.without_versions,
            expected: options.expect_sync,
            node: Bytes::from(node(options, number).encode_to_vec()),
            names: names.as_ref().map(|names| {
                names.iter().filter(asked).map(|name| name.as_bytes().to_vec()).collect()
            }),
        };
        let (namespace, account) =
            (options.namespace_of(number), options.service_account_of(number));
        let id = SpiffeId::new(&options.trust_domain, &namespace, &account).map_err(failure)?;
        let cluster = turn(&options.clusters, number).unwrap_or_default();
        let token = tokens.as_mut().map(|all| std::mem::take(&mut all[number as usize]));
        let token = token.map(|text| Token { text, cluster });
        let tls = if token.is_some() { Arc::clone(&nobody) } else { issuer.client(&id)? };
        let proxy = Proxy { profile, tls, token, slow: of_share(options.slow) };
        if let Some(thread) = threads.get_mut(number as usize % turns) {
            thread.proxies.push(proxy);
        }
    }
    Ok(threads)
}

fn servers(options: &Options) -> Result<Vec<Server>, Failure> {
    options.server.iter().map(|server| find(server, options.server_name.as_deref())).collect()
}

fn find(server: &str, server_name: Option<&str>) -> Result<Server, Failure> {
    use std::net::ToSocketAddrs;
    let unknown = |reason: String| Failure(format!("--server {server}: {reason}"));
    let mut addresses = server.to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
    let address = addresses.next().ok_or_else(|| unknown("no address".to_owned()))?;
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let name = server_name.unwrap_or(host.trim_matches(['[', ']']));
    let name = ServerName::try_from(name.to_owned()).map_err(|e| unknown(e.to_string()))?;
    Ok(Server { address, name, authority: server.to_owned() })
}

/// Returns the entry of a list for proxy `number`, in turn.
fn turn(list: &[String], number: u32) -> Option<String> {
    list.get(number as usize % list.len().max(1)).cloned()
}

/// Returns the node of proxy `number`, in a format that any Istio-compatible server accepts.
fn node(options: &Options, number: u32) -> Node {
    let text = |text: &str| Value { kind: Some(ValueKind::StringValue(text.to_owned())) };
    let namespace = options.namespace_of(number);
    let [_, high, middle, low] = number.to_be_bytes();
    // Addresses for benchmarks (RFC 2544), so that no pod has the same.
    let ip = std::net::Ipv4Addr::new(198, 18 + (high & 1), middle, low);
    let pod = format!("xdsload-{number}");
    let cluster = turn(&options.clusters, number).unwrap_or_default();
    let labels = [("app", "xdsload"), ("round", &options.round_of(number).to_string())]
        .map(|(key, value)| (key.to_owned(), text(value)));
    let labels = Struct { fields: labels.into() };
    let mut fields = vec![
        ("CLUSTER_ID", text(&cluster)),
        ("INSTANCE_IPS", text(&ip.to_string())),
        ("ISTIO_VERSION", text(ISTIO_VERSION)),
        ("LABELS", Value { kind: Some(ValueKind::StructValue(labels)) }),
        ("NAME", text(&pod)),
        ("NAMESPACE", text(&namespace)),
        ("SERVICE_ACCOUNT", text(&options.service_account_of(number))),
    ];
    fields.extend(turn(&options.networks, number).map(|network| ("NETWORK", text(&network))));
    // Some servers send a name table only to proxies that request it in the node.
    fields.extend(options.vhds.then(|| ("STRAIT_VHDS", text("true"))));
    fields.extend(options.name_table.then(|| ("DNS_CAPTURE", text("true"))));
    let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    // Single virtual hosts are sent only to Envoys of a version that supports them.
    let release = SemanticVersion { major_number: 1, minor_number: 40, patch: 0 };
    let build = BuildVersion { version: Some(release), ..Default::default() };
    Node {
        user_agent_name: if options.vhds { "envoy".to_owned() } else { String::new() },
        user_agent_version_type: options
            .vhds
            .then_some(UserAgentVersionType::UserAgentBuildVersion(build)),
        id: format!("{}~{ip}~{pod}.{namespace}~{namespace}.svc.cluster.local", options.node_type),
        cluster: format!("xdsload.{namespace}"),
        metadata: Some(Struct { fields }),
        ..Default::default()
    }
}

/// Returns the CPU time of this process in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
        .as_secs_f64()
}

/// Raises the limit of file descriptors to its maximum, for one descriptor per proxy. If that is
/// too low, connections fail with errors.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
