//! Certificates by token: how they are requested, written and renewed, and how failures are handled.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use rcgen::KeyPair;
use rustix::process::Signal;
use serde_json::Value;

use crate::authority::{Authority, root};
use crate::harness::{Pod, http, until};

const DAY: Duration = Duration::from_secs(86_400);

fn idle(pod: &Pod) -> [String; 2] {
    pod.idle_envoy()
}

fn words(line: &[String]) -> Vec<&str> {
    line.iter().map(String::as_str).collect()
}

#[test]
fn new_pod_receives_a_certificate_and_starts_envoy() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let _agent = pod.start(&words(&idle(&pod)));
    until("Envoy is started", || pod.starts().first().copied().ok_or(String::new()));
    assert_eq!(authority.calls(), [("Bearer token-1".to_owned(), "east".to_owned())]);

    let key = KeyPair::from_pem(&pod.secret("key.pem").expect("there")).expect("a key");
    assert!(key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256));
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(pod.path("strait").join(name)).expect("there").permissions().mode() & 0o777
    };
    assert_eq!((mode("key.pem"), mode("cert-chain.pem")), (0o600, 0o644));
    let pem = pod.secret("root-cert.pem").expect("there");
    assert_eq!(
        pem.matches("BEGIN").count(),
        1,
        "the response's root and the mounted root are equal"
    );

    let folder = pod.path("strait").display().to_string();
    let sds: Value =
        serde_json::from_str(&pod.secret("sds-cert.yaml").expect("there")).expect("JSON");
    let certificate = &sds["resources"][0]["tls_certificate"];
    assert_eq!(certificate["private_key"]["filename"], format!("{folder}/key.pem"));
    assert_eq!(certificate["watched_directory"]["path"], folder);

    let bootstrap: Value =
        serde_json::from_str(&pod.secret("bootstrap.json").expect("there")).expect("JSON");
    let node = &bootstrap["node"];
    assert_eq!(node["id"], format!("sidecar~{}~web-0.shop~shop.svc.cluster.local", pod.ip));
    assert_eq!(node["metadata"]["STRAIT_SDS"]["cert"], format!("{folder}/sds-cert.yaml"));
    assert_eq!(node["metadata"]["SERVICE_ACCOUNT"], "web");
}

#[test]
fn no_envoy_only_renews_the_certificate() {
    let authority = Authority::start(Duration::from_secs(5));
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.push("--no-envoy".to_owned());
    let mut agent = pod.start(&[]);
    until("it is ready", || match http(pod.port(15021), "GET /healthz/ready")? {
        (200, _) => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
    let first = pod.secret("cert-chain.pem").expect("there");
    until("it is renewed", || match pod.secret("cert-chain.pem") {
        Ok(now) if now != first => Ok(()),
        now => Err(format!("{now:?}")),
    });
    assert!(pod.starts().is_empty(), "no Envoy was started");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
}

#[test]
fn certificate_is_renewed_atomically_with_the_current_token() {
    let authority = Authority::start(Duration::from_secs(5));
    let pod = Pod::new(authority.root(), &[authority.address]);
    let _agent = pod.start(&words(&idle(&pod)));
    until("a certificate exists", || pod.secret("cert-chain.pem"));
    pod.write("token", "token-2");
    let mut seen = BTreeSet::new();
    until("three certificates were issued", || {
        // As Envoy reads: from the folder to which the link points at one moment.
        let data = fs::read_link(pod.path("strait").join("..data")).expect("a link");
        let folder = pod.path("strait").join(data);
        let read = |name: &str| fs::read_to_string(folder.join(name));
        let (Ok(chain), Ok(key)) = (read("cert-chain.pem"), read("key.pem")) else {
            return Err("it was renewed meanwhile".to_owned());
        };
        let public = KeyPair::from_pem(&key).expect("a whole key").public_key_raw().to_vec();
        let block = pem(&chain);
        let holds = block.windows(public.len()).any(|window| window == public);
        assert!(holds, "the certificate does not match the key next to it");
        seen.insert(chain);
        if seen.len() >= 3 { Ok(()) } else { Err(format!("{}", seen.len())) }
    });
    let calls = authority.calls();
    assert_eq!(calls.last().map(|call| &*call.0), Some("Bearer token-2"), "{calls:?}");
    assert_eq!(pod.starts().len(), 1, "Envoy was not restarted");
    let left = fs::read_dir(pod.path("strait")).expect("a folder").filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with("..generation")
    });
    assert!(left.count() <= 2, "old keys are deleted");
}

fn pem(text: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::CertificateDer::from_pem_slice(text.as_bytes()).expect("PEM").to_vec()
}

#[test]
fn next_control_plane_is_used_if_the_first_is_unreachable() {
    let authority = Authority::start(DAY);
    let nobody =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let pod = Pod::new(authority.root(), &[nobody, authority.address]);
    let _agent = pod.start(&words(&idle(&pod)));
    until("a certificate exists", || pod.secret("cert-chain.pem"));
    until("the bootstrap exists", || pod.secret("bootstrap.json"));
    let bootstrap: Value =
        serde_json::from_str(&pod.secret("bootstrap.json").expect("there")).expect("JSON");
    let endpoints = &bootstrap["static_resources"]["clusters"][0]["load_assignment"]["endpoints"];
    assert_eq!(endpoints[1]["priority"], 1);
}

#[test]
fn token_is_not_sent_to_an_untrusted_control_plane() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(&root().1, &[authority.address]);
    let agent = pod.start(&words(&idle(&pod)));
    until("the problem is reported", || {
        let log = agent.log();
        if log.contains("STR0954") && log.contains("invalid peer certificate") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert!(authority.calls().is_empty(), "the token was sent");
}

#[test]
fn refusal_is_reported_and_retried() {
    let authority = Authority::start(DAY);
    authority.refuse(Some(tonic::Code::Unauthenticated));
    let pod = Pod::new(authority.root(), &[authority.address]);
    let agent = pod.start(&words(&idle(&pod)));
    until("the problem is reported", || {
        let log = agent.log();
        if log.contains("STR0955") && log.contains("audience") { Ok(()) } else { Err(log) }
    });
    assert!(pod.starts().is_empty());
    authority.refuse(None);
    until("a certificate exists", || pod.secret("cert-chain.pem"));
}

#[test]
fn new_mounted_roots_are_trusted_before_they_are_used() {
    let authority = Authority::start(DAY);
    let pod = Pod::new(authority.root(), &[authority.address]);
    let _agent = pod.start(&words(&idle(&pod)));
    until("a certificate exists", || pod.secret("cert-chain.pem"));
    pod.write("roots.pem", &format!("{}{}", authority.root(), root().1));
    until("both are trusted", || {
        let roots = pod.secret("root-cert.pem")?;
        if roots.matches("BEGIN").count() == 2 { Ok(()) } else { Err(roots) }
    });
    assert_eq!(authority.calls().len(), 1);
}

#[test]
fn key_on_disk_needs_a_flag() {
    let authority = Authority::start(DAY);
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.arguments.clear();
    let mut agent = pod.start(&words(&idle(&pod)));
    assert_eq!(agent.exit_code(), Some(1));
    let log = agent.log();
    assert!(log.contains("STR0951") && log.contains("--allow-key-on-disk"), "{log}");
}

#[test]
fn invalid_usage_is_reported_first() {
    let pod = Pod::new("", &["127.0.0.1:1".parse().expect("an address")]);
    let mut agent = pod.start(&["envoy", "-c", "mine.yaml"]);
    assert_eq!(agent.exit_code(), Some(64));
    assert!(agent.log().contains("STR0950"), "{}", agent.log());
}

/// Needs permission to mount in a separate mount namespace.
#[test]
fn full_volume_keeps_the_files_and_renewal_resumes_with_free_space() {
    let possible = Command::new("unshare").args(["--mount", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        crate::real::skip("a full volume: mount namespaces can't be made here");
        return;
    }
    let authority = Authority::start(Duration::from_secs(5));
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    // The volume is in memory, so the flag is not needed.
    pod.arguments.clear();
    let folder = pod.path("strait");
    fs::create_dir(&folder).expect("made");
    let line = pod.command(&words(&idle(&pod)));
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs -o size=128k tmpfs {} && exec \"$@\"", folder.display());
    command.args(["--mount", "sh", "-c", &script, "sh"]).args(&line);
    let agent = pod.start_command(command);
    let inside =
        std::path::PathBuf::from(format!("/proc/{}/root{}", agent.pid(), folder.display()));
    let chain =
        || fs::read_to_string(inside.join("cert-chain.pem")).map_err(|error| error.to_string());
    until("a certificate exists", chain);
    // Writes as much as fits.
    let room = vec![0; 256 << 10];
    assert!(fs::write(inside.join("filler"), room).is_err());
    let before = until("it is full", || {
        let log = agent.log();
        if log.contains("STR0957") { chain() } else { Err(log) }
    });
    let after = chain().expect("still there");
    assert_eq!(after, before, "existing files stay");
    let link = fs::read_link(inside.join("..data")).expect("a link");
    assert!(
        fs::read_to_string(inside.join(link).join("key.pem")).is_ok_and(|key| key.contains("END"))
    );
    fs::remove_file(inside.join("filler")).expect("removed");
    until("there is another", || if chain()? == before { Err(agent.log()) } else { Ok(()) });
}
