//! Restarts of Envoy and of the agent, outages of the control plane, and the end of a pod.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use rustls_pki_types::pem::PemObject as _;

use crate::authority::Authority;
use crate::harness::{Answers, Pod, admin, http, kill, runs, until};

const DAY: Duration = Duration::from_secs(86_400);

/// Starts an agent and waits until its Envoy runs. Returns both, with the Envoy's process ID.
fn started(pod: &Pod) -> (crate::harness::Agent, i32) {
    let line = pod.idle_envoy();
    let before = pod.starts().len();
    let agent = pod.start(&line.each_ref().map(String::as_str));
    let envoy = until("Envoy is started", || pod.starts().get(before).copied().ok_or(agent.log()));
    (agent, envoy)
}

#[test]
fn killed_envoy_is_restarted() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let (agent, envoy) = started(&pod);
    kill(envoy, Signal::KILL);
    let next = until("the agent is restarted", || pod.starts().get(1).copied().ok_or(agent.log()));
    assert!(runs(next) && !runs(envoy));
    assert_eq!(authority.calls().len(), 1, "the existing certificate is used");
}

#[test]
fn envoy_ends_with_a_killed_agent() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let (agent, envoy) = started(&pod);
    agent.signal(Signal::KILL);
    until("Envoy is gone", || if runs(envoy) { Err(String::new()) } else { Ok(()) });
}

#[test]
fn restarted_agent_uses_the_existing_certificate_during_an_outage() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let (mut agent, _) = started(&pod);
    let chain = pod.secret("cert-chain.pem").expect("there");
    agent.signal(Signal::KILL);
    agent.ended();
    drop(authority);
    let (_agent, envoy) = started(&pod);
    assert!(runs(envoy));
    assert_eq!(pod.secret("cert-chain.pem").expect("there"), chain);
}

/// Needs permission to mount in a separate mount namespace.
#[test]
fn restarted_agent_on_a_full_volume_uses_the_existing_files() {
    let possible = Command::new("unshare").args(["--mount", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        crate::real::skip("a full volume: mount namespaces can't be made here");
        return;
    }
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let folder = pod.path("strait");
    fs::create_dir(&folder).expect("made");
    // The first agent is killed, the volume is filled, and another agent is started.
    let script = format!(
        "mount -t tmpfs -o size=128k tmpfs {0} && {{ \"$@\"; cat /dev/zero >{0}/filler; exec \"$@\"; }}",
        folder.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.args(pod.command(&pod.idle_envoy().each_ref().map(String::as_str)));
    let agent = pod.start_command(command);
    let envoy =
        until("Envoy is started", || pod.starts().first().copied().ok_or_else(|| agent.log()));
    kill(parent(envoy), Signal::KILL);
    let next =
        until("Envoy is restarted", || pod.starts().get(1).copied().ok_or_else(|| agent.log()));
    assert!(runs(next) && !runs(envoy));
    assert_eq!(authority.calls().len(), 1, "the existing certificate is used");
}

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let after_name = stat.rsplit(") ").next().expect("a name in parentheses");
    after_name.split(' ').nth(1).and_then(|parent| parent.parse().ok()).expect("a process ID")
}

#[test]
fn certificate_stays_during_an_outage_and_is_renewed_afterwards() {
    let authority = Authority::start(Duration::from_secs(4));
    let pod = Pod::new(authority.root(), &[authority.address]);
    let (agent, envoy) = started(&pod);
    authority.refuse(Some(tonic::Code::Unavailable));
    let kept = until("a renewal fails", || {
        let log = agent.log();
        if log.contains("STR0955") { pod.secret("cert-chain.pem") } else { Err(log) }
    });
    let calls = authority.calls().len();
    until("the request is retried", || {
        if authority.calls().len() > calls + 1 { Ok(()) } else { Err(agent.log()) }
    });
    assert_eq!(pod.secret("cert-chain.pem").expect("there"), kept);
    authority.refuse(None);
    until("the next certificate exists", || {
        if pod.secret("cert-chain.pem")? == kept { Err(agent.log()) } else { Ok(()) }
    });
    assert!(runs(envoy));
}

#[test]
fn expired_certificate_is_renewed_after_an_outage_without_restarting_envoy() {
    let authority = Authority::start(Duration::from_secs(3));
    let pod = Pod::new(authority.root(), &[authority.address]);
    let (agent, envoy) = started(&pod);
    authority.refuse(Some(tonic::Code::Unavailable));
    let ended = || {
        use x509_parser::prelude::FromDer as _;
        let der = rustls_pki_types::CertificateDer::from_pem_slice(
            pod.secret("cert-chain.pem")?.as_bytes(),
        );
        let der = der.map_err(|error| error.to_string())?;
        let (_, leaf) = x509_parser::prelude::X509Certificate::from_der(&der)
            .map_err(|error| error.to_string())?;
        let left = leaf.validity().time_to_expiration();
        if left.is_none() { Ok(()) } else { Err(format!("{left:?}")) }
    };
    until("it has ended", ended);
    assert!(runs(envoy), "Envoy keeps running, with its configuration and connections");
    authority.refuse(None);
    until("another is there", || if ended().is_err() { Ok(()) } else { Err(agent.log()) });
    assert_eq!(pod.starts(), [envoy]);
}

#[test]
fn idle_agent_uses_less_than_12_megabytes() {
    let authority = Authority::start(DAY);
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.push("--dns".to_owned());
    pod.arguments.extend(["--dns-address".to_owned(), pod.port(15053).to_string()]);
    let _answers = Answers::serve(pod.port(15000), admin);
    let (agent, _) = started(&pod);
    until("it is ready", || match http(pod.port(15021), "GET /healthz/ready")? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    http(pod.port(15020), "GET /stats/prometheus").expect("it answers");
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).expect("there");
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let own = own.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    // Memory that agents of the same node share, such as the program, is not included.
    assert!(own.expect("Linux tells") < 12_000, "{own:?} kB");
}

#[test]
fn terminated_pod_drains_and_stops_envoy_before_the_agent() {
    let authority = Authority::start(DAY);
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.extend(["--drain".to_owned(), "1s".to_owned()]);
    let answers = Answers::serve(pod.port(15000), admin);
    let (mut agent, envoy) = started(&pod);
    let ready = || http(pod.port(15021), "GET /healthz/ready");
    until("it is ready", || match ready()? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    agent.signal(Signal::TERM);
    until("it drains", || match ready()? {
        (503, fact) if fact.contains("drains") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(runs(envoy), "the agent serves while it drains");
    // The exit code of `sleep` after SIGTERM.
    assert_eq!(agent.exit_code(), Some(128 + 15));
    assert!(!runs(envoy));
    let requests = answers.requests();
    let drain = "POST /drain_listeners?inboundonly&graceful HTTP/1.1";
    assert_eq!(requests.iter().filter(|line| *line == drain).count(), 1, "{requests:?}");
}

#[test]
fn second_signal_ends_the_drain() {
    let authority = Authority::start(DAY);
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.extend(["--drain".to_owned(), "1h".to_owned()]);
    let answers = Answers::serve(pod.port(15000), admin);
    let (mut agent, envoy) = started(&pod);
    agent.signal(Signal::TERM);
    until("it drains", || answers.requests().first().cloned().ok_or(agent.log()));
    agent.signal(Signal::INT);
    agent.ended();
    assert!(!runs(envoy));
}

#[test]
fn drain_until_idle_ends_with_the_last_connection() {
    let authority = Authority::start(DAY);
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.extend(["--drain", "0s", "--drain-until-idle"].map(str::to_owned));
    let held = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let holds = std::sync::Arc::clone(&held);
    let answers = Answers::serve(pod.port(15000), move |head| {
        let count = u8::from(holds.load(std::sync::atomic::Ordering::SeqCst));
        let stats = format!("listener.0.0.0.0_15006.downstream_cx_active: {count}\n");
        if head.contains("downstream_cx_active") { crate::harness::ok(&stats) } else { admin(head) }
    });
    let (mut agent, envoy) = started(&pod);
    agent.signal(Signal::TERM);
    let has_requests = |least: usize| {
        let requests = answers.requests();
        let count = requests.iter().filter(|line| line.contains("cx_active")).count();
        if count >= least { Ok(()) } else { Err(format!("{requests:?}")) }
    };
    until("the agent has checked twice", || has_requests(2));
    assert!(runs(envoy), "a connection is left");
    held.store(false, std::sync::atomic::Ordering::SeqCst);
    agent.ended();
    assert!(!runs(envoy));
}

#[test]
fn envoy_that_can_not_be_started_is_reported() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let agent = pod.start(&["/nowhere/envoy"]);
    until("the problem is reported", || {
        let log = agent.log();
        if log.contains("STR0958") && log.contains("/nowhere/envoy") { Ok(()) } else { Err(log) }
    });
}

#[test]
fn process_of_the_pod_may_end_it() {
    let authority = Authority::start(DAY);
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.extend(["--drain".to_owned(), "0s".to_owned()]);
    let _answers = Answers::serve(pod.port(15000), admin);
    let (mut agent, envoy) = started(&pod);
    let (status, _) = http(pod.port(15020), "POST /quitquitquit").expect("it answers");
    assert_eq!(status, 200);
    agent.ended();
    assert!(!runs(envoy));
}
