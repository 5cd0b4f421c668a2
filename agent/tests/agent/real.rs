//! Real Envoys of two minor versions, started by the agent: they accept its bootstrap, and its certificates as they
//! are renewed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::authority::Authority;
use crate::harness::{Pod, http, until};

/// Returns the Envoy that the variable names, or that `tests/components/install` has installed.
fn envoy(variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let installed = || {
        let folder = PathBuf::from(std::env::var_os("HOME")?).join(".cache/strait/components/env");
        let text = std::fs::read_to_string(folder).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("export {variable}=")).map(PathBuf::from));
        line.filter(|path| path.is_file())
    };
    let found = named.or_else(installed);
    if found.is_none() {
        skip(&format!("agent with a real Envoy: no {variable}: run tests/components/install"));
    }
    found
}

/// Prints a skipped test, and writes it to the file in which .ci/run collects skipped tests.
pub(crate) fn skip(line: &str) {
    use std::io::Write as _;
    eprintln!("skipped: {line}");
    if let Some(path) = std::env::var_os("STRAIT_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "{line}")).expect("STRAIT_SKIPS is a file");
    }
}

/// Returns the serial numbers of the certificates that Envoy uses.
fn serials(pod: &Pod) -> Result<BTreeSet<String>, String> {
    let (_, body) = http(pod.port(15000), "GET /certs")?;
    let start = body.find('{').ok_or_else(|| body.clone())?;
    let end = body.rfind('}').ok_or_else(|| body.clone())?;
    let certs: Value =
        serde_json::from_str(&body[start..=end]).map_err(|error| format!("{error}: {body}"))?;
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let chains = list(&certs, "certificates").into_iter().flat_map(|one| list(&one, "cert_chain"));
    let serials: BTreeSet<_> =
        chains.filter_map(|one| Some(one["serial_number"].as_str()?.to_owned())).collect();
    if serials.is_empty() { Err(body) } else { Ok(serials) }
}

fn takes_renewed_certificates(variable: &str) {
    let Some(envoy) = envoy(variable) else { return };
    let authority = Authority::start(Duration::from_secs(8));
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    pod.environment.push(("STRAIT_SERVICE_METRICS", "true".to_owned()));
    let words = [&envoy.display().to_string(), "--concurrency", "1", "--log-level", "warning"];
    let agent = pod.start(&words);
    until("it is ready", || match http(pod.port(15021), "GET /healthz/ready")? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?} {}", agent.log())),
    });
    let mut seen = serials_of(&pod, &agent);
    for _ in 0..2 {
        let before = seen.clone();
        seen = until("Envoy uses its new certificate", || {
            let now = serials(&pod)?;
            if now.is_disjoint(&before) { Ok(now) } else { Err(format!("{now:?} {}", agent.log())) }
        });
    }
    let (status, metrics) = http(pod.port(15090), "GET /stats/prometheus").expect("it answers");
    assert!(status == 200 && metrics.contains("envoy_server_live"), "{status}");
    let kept = "envoy_cluster_upstream_cx_total{envoy_cluster_name=\"strait\"}";
    assert!(metrics.contains(kept), "{metrics}");
    assert_eq!(
        http(pod.port(15090), "GET /config_dump").expect("it answers").0,
        404,
        "metrics alone"
    );
    let merged = http(pod.port(15020), "GET /stats/prometheus").expect("it answers").1;
    assert!(
        merged.contains("envoy_server_live")
            && merged.contains("strait_agent_envoy_starts_total 1")
    );
}

fn serials_of(pod: &Pod, agent: &crate::harness::Agent) -> BTreeSet<String> {
    until("Envoy has a certificate", || {
        serials(pod).map_err(|fact| format!("{fact} {}", agent.log()))
    })
}

#[test]
fn newer_envoy_uses_renewed_certificates_without_a_restart() {
    takes_renewed_certificates("STRAIT_ENVOY");
}

#[test]
fn older_envoy_uses_renewed_certificates_without_a_restart() {
    takes_renewed_certificates("STRAIT_ENVOY_OLD");
}
