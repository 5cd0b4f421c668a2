//! Responses of the ports 15020 and 15021.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::authority::Authority;
use crate::harness::{Agent, Answers, Pod, admin, http, ok, until};

const DAY: Duration = Duration::from_secs(86_400);

fn start(pod: &Pod) -> Agent {
    let line = pod.idle_envoy();
    pod.start(&line.each_ref().map(String::as_str))
}

fn pod(authority: &Authority) -> Pod {
    Pod::new(authority.root(), &[authority.address])
}

fn wait_for_status(address: SocketAddr, path: &str, wanted: u16) -> String {
    until(path, || match http(address, &format!("GET {path}"))? {
        (status, body) if status == wanted => Ok(body),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn pod_is_ready_once_envoy_is_live_and_configured() {
    let authority = Authority::start(DAY);
    authority.refuse(Some(tonic::Code::Unavailable));
    let pod = pod(&authority);
    let configured = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&configured);
    let _admin = Answers::serve(pod.port(15000), move |head| {
        if head.starts_with("GET /stats?") && !seen.load(Ordering::SeqCst) {
            return ok(
                "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 0\n",
            );
        }
        admin(head)
    });
    let _agent = start(&pod);
    let health = pod.port(15021);
    assert!(wait_for_status(health, "/healthz/ready", 503).contains("no certificate"));
    authority.refuse(None);
    until("listeners are missed", || match http(health, "GET /healthz/ready")? {
        (503, fact) if fact.contains("no listeners yet") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    configured.store(true, Ordering::SeqCst);
    wait_for_status(health, "/healthz/ready", 200);
    // They have been received once, so a later outage of the control plane changes nothing.
    configured.store(false, Ordering::SeqCst);
    wait_for_status(pod.port(15020), "/healthz/ready", 200);
    assert_eq!(http(health, "GET /stats/prometheus").expect("it answers").0, 404, "health alone");
}

#[test]
fn metrics_of_envoy_and_the_application_are_merged() {
    let authority = Authority::start(DAY);
    let mut pod = pod(&authority);
    pod.environment
        .push(("STRAIT_PROMETHEUS_SCRAPE", r#"{"port": "8080", "path": "/m"}"#.to_owned()));
    let _admin = Answers::serve(pod.port(15000), admin);
    let app = Answers::serve(pod.port(8080), |_| ok("app_x 7\n# EOF\n"));
    let agent = start(&pod);
    until("Envoy is started", || pod.starts().first().copied().ok_or(agent.log()));
    let body = wait_for_status(pod.port(15020), "/stats/prometheus", 200);
    for line in ["envoy_x{} 1", "app_x 7", "strait_agent_certificates_total 1"] {
        assert!(
            body.contains(&format!("{line}\r\n")) || body.contains(&format!("{line}\n")),
            "{line}: {body}"
        );
    }
    assert!(body.contains("strait_agent_certificate_expiry_timestamp_seconds "), "{body}");
    assert!(!body.contains("# EOF"), "{body}");
    assert!(app.last().starts_with("GET /m "), "{}", app.last());
}

#[test]
fn failing_application_metrics_do_not_affect_those_of_envoy() {
    let authority = Authority::start(DAY);
    let mut pod = pod(&authority);
    pod.environment.push(("STRAIT_PROMETHEUS_SCRAPE", r#"{"port": 8080}"#.to_owned()));
    let _admin = Answers::serve(pod.port(15000), admin);
    // The connection breaks in the middle of a line.
    let _app = Answers::serve(pod.port(8080), |_| {
        "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\nconnection: close\r\n\r\napp_x 7\napp_y{a="
            .to_owned()
    });
    let _agent = start(&pod);
    let body = wait_for_status(pod.port(15020), "/stats/prometheus", 200);
    assert!(body.contains("envoy_x{} 1\n") && body.contains("app_x 7\n"), "{body}");
    assert!(!body.contains("app_y"), "{body}");
    assert!(body.contains("strait_agent_scrape_failed{source=\"application\"} 1"), "{body}");
    assert!(body.contains("strait_agent_scrape_failed{source=\"envoy\"} 0"), "{body}");
}

#[test]
fn probes_are_sent_to_the_pods_address_as_the_kubelet_would() {
    let authority = Authority::start(DAY);
    let mut pod = pod(&authority);
    let probes = r#"{
        "/app-health/web/readyz": {"httpGet": {"path": "/ready?x=1", "port": 8080,
            "httpHeaders": [{"name": "Host", "value": "web"}, {"name": "X-Probe", "value": "1"}]}, "timeoutSeconds": 2},
        "/app-health/web/livez": {"tcpSocket": {"port": 8080}},
        "/app-lifecycle/web/prestopz": {"httpGet": {"path": "/bye", "port": 8080}, "timeoutSeconds": 3600},
        "/app-health/web/startupz": {"tcpSocket": {"port": 8081}}
    }"#;
    pod.environment.push(("STRAIT_APP_PROBES", probes.to_owned()));
    let healthy = Arc::new(AtomicBool::new(true));
    let is = Arc::clone(&healthy);
    let app = Answers::serve(pod.port(8080), move |_| {
        if is.load(Ordering::SeqCst) {
            ok("fine")
        } else {
            "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
        }
    });
    let process = start(&pod);
    let agent = pod.port(15020);
    wait_for_status(agent, "/app-health/web/readyz", 200);
    let request = app.last();
    assert!(
        request.starts_with("GET /ready?x=1 HTTP/1.1") && request.contains("x-probe: 1"),
        "{request}"
    );
    assert!(request.contains("host: web\r\n"), "{request}");
    wait_for_status(agent, "/app-lifecycle/web/prestopz", 200);
    assert!(app.last().starts_with("GET /bye HTTP/1.1"), "{}", app.last());
    healthy.store(false, Ordering::SeqCst);
    wait_for_status(agent, "/app-health/web/readyz", 500);
    wait_for_status(agent, "/app-health/web/readyz", 500);
    wait_for_status(agent, "/app-health/web/livez", 200);
    wait_for_status(agent, "/app-health/web/startupz", 503);
    wait_for_status(agent, "/app-health/other/readyz", 404);
    healthy.store(true, Ordering::SeqCst);
    wait_for_status(agent, "/app-health/web/readyz", 200);
    // There is one line for each change, regardless of the number of probes in between.
    let log = process.log();
    let lines = |words: &str| {
        let of_probe = log.lines().filter(|line| line.contains("/app-health/web/readyz"));
        of_probe.filter(|line| line.contains(words)).count()
    };
    assert_eq!(lines("fails its probe: it answers 500"), 1, "{log}");
    assert_eq!(lines("passes its probe again"), 1, "{log}");
}

#[test]
fn grpc_probe_returns_the_status_of_the_health_service() {
    let authority = Authority::start(DAY);
    let mut pod = pod(&authority);
    let service = pod.port(9090);
    let probes = r#"{"/app-health/api/livez": {"grpc": {"port": 9090, "service": "up"}},
        "/app-health/api/readyz": {"grpc": {"port": 9090, "service": "down"}}}"#;
    pod.environment.push(("STRAIT_APP_PROBES", probes.to_owned()));
    let _served = crate::authority::serve_health(service);
    let _agent = start(&pod);
    wait_for_status(pod.port(15020), "/app-health/api/livez", 200);
    assert!(
        wait_for_status(pod.port(15020), "/app-health/api/readyz", 503).contains("NOT_SERVING")
    );
}

#[test]
fn other_clients_may_not_end_the_pod() {
    let authority = Authority::start(DAY);
    let pod = pod(&authority);
    let agent = start(&pod);
    until("it listens", || http(pod.port(15020), "GET /healthz/ready"));
    let request = "POST /quitquitquit HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    // As Envoy forwards requests of other clients.
    let mut passed_on = std::process::Command::new("python3");
    let script = "import socket,sys\n\
        s=socket.create_connection((sys.argv[1],15020),source_address=('127.0.0.6',0))\n\
        s.sendall(sys.argv[2].encode())\nprint(s.recv(100).decode())";
    let answer =
        passed_on.args(["-c", script, &pod.ip.to_string(), request]).output().expect("python3");
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(text.contains(" 403 "), "{text} {}", String::from_utf8_lossy(&answer.stderr));
    assert!(!agent.log().contains("requested from the pod"));
}
