//! The program itself: exit codes, and adding and removing clusters with simulated API servers.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use strait_sim::{Options, SimCluster};

/// Runs `strait` without the environment of this machine.
fn strait(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn exit_codes_distinguish_kinds_of_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").expect("written");
    let token = token.to_str().expect("UTF-8");
    let unreachable = "http://127.0.0.1:1";
    for (expected, arguments) in [
        (0, vec!["version"]),
        (0, vec!["--help"]),
        (0, vec!["help", "str0203"]),
        (0, vec!["help", "exit-codes"]),
        (0, vec!["help", "proxy", "bootstrap"]),
        (0, vec!["completion", "bash"]),
        (64, vec![]),
        (64, vec!["nonsense"]),
        (64, vec!["help", "STR9999"]),
        (64, vec!["status", "--timeout", "soon"]),
        (64, vec!["status", "--server", "ftp://x"]),
        (64, vec!["explain", "a.b", "c.d:http"]),
        (64, vec!["check", "-f", "/nowhere"]),
        (64, vec!["check", "config", "clusters"]),
        (64, vec!["check", "config", "-f", "/nowhere"]),
        (69, vec!["status", "--server", unreachable, "--token-file", token]),
        (77, vec!["status", "--server", unreachable, "--token-file", "/nowhere/token"]),
    ] {
        let output = strait(&arguments, &[]);
        assert_eq!(code(&output), expected, "{arguments:?}: {}", stderr(&output));
    }
}

#[tokio::test]
async fn commands_end_normally_when_their_output_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = folder.path().join("ca");
    let made = made.to_str().expect("UTF-8");
    let unreachable = ["check", "--server", "http://127.0.0.1:1"];
    let empty_server = answering("200 OK", "[]");
    let list = ["events", "--server", &empty_server];
    let live = answering("200 OK", r#"[{"id":"east","state":"live"}]"#);
    let stale = answering("200 OK", r#"[{"id":"east","state":"stale"}]"#);
    for (expected, arguments) in [
        (0, &["version"][..]),
        (0, &["--help"]),
        (64, &["nonsense"]),
        (0, &["help", "codes"]),
        (0, &["completion", "bash"]),
        (0, &["certs", "init", made]),
        (64, &["check", "config", "-f", "/nowhere"]),
        (69, &unreachable),
        (0, &list),
        (0, &["cluster", "get", "east", "--server", &live]),
        (2, &["cluster", "get", "east", "--server", &stale]),
        // Commands that would print without end stop.
        (141, &["cluster", "list", "-w", "--server", &live]),
        (141, &["demo", "--once"]),
    ] {
        assert_eq!(unread(arguments).await, Some(expected), "{arguments:?}");
    }
    assert!(Path::new(made).join("ca-key.pem").exists());
}

/// Returns the exit code of a command whose two outputs are closed.
async fn unread(arguments: &[&str]) -> Option<i32> {
    // The read end is closed immediately.
    let closed = || std::io::pipe().expect("a pipe").1;
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_strait"));
    command
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(closed())
        .stderr(closed())
        .kill_on_drop(true);
    let limit = std::time::Duration::from_secs(60);
    let ended = tokio::time::timeout(limit, command.status()).await.expect("it ends");
    ended.expect("it ran").code()
}

#[test]
fn exit_codes_distinguish_errors_of_a_server_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("UTF-8").to_owned()
    };
    let here = folder.path().to_str().expect("UTF-8");
    let junk = write("junk.pem", "junk");
    let kubeconfig = |name: &str, user: &str| {
        let text = format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}], clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}], users: [{{name: u, user: {user}}}]}}"
        );
        write(name, &text)
    };
    let (token, program) = (
        kubeconfig("by-token", "{token: canary}"),
        kubeconfig("by-program", "{exec: {command: sh, args: ['-c', 'echo canary; exit 3']}}"),
    );
    let broken = write("broken", "users: [{name: u, user: {token: canary}");
    let files = ["--config-dir", here, "--state-dir", here];
    let [plain, secure] = ["http://p:9090", "https://p"].map(|url| ["--prometheus", url]);
    for (expected, arguments, message) in [
        (64, vec![], "--config-dir DIR"),
        (64, vec!["--config-dir", "/nowhere/dir"], "create it"),
        (64, vec!["--kubeconfig", "/nowhere/config"], "no such file"),
        (64, vec!["--kubeconfig", &token, "--context", "b"], "it has: a"),
        (64, vec!["--config-dir", here, "--context", "a"], "cannot be used with"),
        (64, vec!["--cluster-id", "No", "--kubeconfig", &token], "--cluster-id"),
        (64, [&files[..], &["--xds-address", "15012"]].concat(), "HOST:PORT"),
        (64, [&files[..], &["--log-level", "a=b=c"]].concat(), "--log-level"),
        (64, [&files[..], &["--tls-cert", &junk]].concat(), "--tls-key"),
        (64, [&files[..], &["--mcs-auto-export"]].concat(), "--mcs exports"),
        (64, [&files[..], &["--ca-dir", "/nowhere/ca"]].concat(), "STR0705"),
        (64, [&files[..], &["--client-ca", "/nowhere/ca.pem"]].concat(), "STR0701"),
        (64, [&files[..], &["--admin-token-file", "/nowhere/token"]].concat(), "/nowhere/token"),
        (
            64,
            [&files[..], &["--admin-reader-token-file", "/nowhere/reader"]].concat(),
            "/nowhere/reader",
        ),
        (64, [&files[..], &["--jwks-roots", "/nowhere/roots.pem"]].concat(), "/nowhere/roots.pem"),
        (1, [&files[..], &["--jwks-roots", &junk]].concat(), "contains no PEM certificate"),
        (1, [&files[..], &["--jwks-roots", here]].concat(), "--jwks-roots"),
        (64, [&files[..], &["--prometheus-ca", &junk]].concat(), "--prometheus <URL>"),
        (64, [&files[..], &["--prometheus", "https://a:b@p"]].concat(), "--prometheus-token-file"),
        (64, [&files[..], &plain, &["--prometheus-ca", &junk]].concat(), "uses no TLS"),
        (64, [&files[..], &plain, &["--prometheus-token-file", &junk]].concat(), "in plain text"),
        (1, [&files[..], &secure, &["--prometheus-ca", &junk]].concat(), "no PEM certificate"),
        (
            64,
            [&files[..], &secure, &["--prometheus-token-file", "/nowhere/t"]].concat(),
            "/nowhere/t",
        ),
        (1, [&files[..], &["--tls-cert", &junk, "--tls-key", &junk]].concat(), "STR0702"),
        (1, [&files[..], &["--ca-dir", here]].concat(), "STR0705"),
        (1, [&files[..], &["--xds-address", "nowhere.invalid:0"]].concat(), "--xds-address"),
        (1, vec!["--kubeconfig", &broken], "broken"),
        (1, vec!["--kubeconfig", &token, "--state-dir", &junk], "--state-dir"),
        (77, vec!["--kubeconfig", &program], "failed (exit status: 3)"),
    ] {
        let output = strait(&[&["serve"], &*arguments].concat(), &[("HOME", "/nowhere")]);
        let errors = stderr(&output);
        assert_eq!(code(&output), expected, "{arguments:?}: {errors}");
        assert!(errors.contains(message) && !errors.contains("canary"), "{arguments:?}: {errors}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn empty_environment_variable_counts_as_unset() {
    let names = strait(&["serve", "--help"], &[]);
    let names = stdout(&names);
    let names: Vec<&str> =
        names.split("[env: ").skip(1).filter_map(|rest| rest.split(['=', ']']).next()).collect();
    assert!(names.len() > 20, "{names:?}");
    let empty: Vec<(&str, &str)> = names.iter().map(|name| (*name, "")).collect();
    let output = strait(&["serve", "--config-dir", "/nowhere/dir"], &empty);
    assert!(stderr(&output).contains("create it"), "{}", stderr(&output));
    let output = strait(&["status"], &[("STRAIT_SERVER", ""), ("STRAIT_TOKEN_FILE", "")]);
    assert!(stderr(&output).contains("http://127.0.0.1:15014"), "{}", stderr(&output));
}

#[test]
fn admin_api_statuses_map_to_exit_codes() {
    for (status, body, expected, message) in [
        ("200 OK", r#"[{"id":"east","state":"live"}]"#, 0, ""),
        ("200 OK", r#"[{"id":"east","state":"authFailed"}]"#, 2, ""),
        ("200 OK", "[]", 1, "no cluster \"east\" is a member"),
        ("401 Unauthorized", r#"{"error":"no"}"#, 77, "--token-file"),
        ("404 Not Found", r#"{"error":"no such thing"}"#, 1, "no such thing"),
        ("503 Service Unavailable", r#"{"error":"waiting for west"}"#, 2, "waiting for west"),
        ("200 OK", "<html>", 1, "--server"),
    ] {
        let server = answering(status, body);
        let output = strait(&["cluster", "get", "east"], &[("STRAIT_SERVER", &server)]);
        assert_eq!(code(&output), expected, "{status} {body}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", silent.local_addr().expect("an address"));
    let output = strait(&["status", "--server", &server, "--timeout", "100ms"], &[]);
    assert_eq!(code(&output), 124, "{}", stderr(&output));
}

#[test]
fn json_output_is_the_unchanged_response() {
    let body = "[ {\"id\":\"east\",  \"state\":\"live\", \"new\": 1.50} ]\n";
    let server = answering("200 OK", body);
    let output = strait(&["cluster", "list", "-o", "json", "--server", &server], &[]);
    assert_eq!(stdout(&output), body);
}

#[test]
fn empty_history_names_the_requested_range() {
    let server = answering("200 OK", "[]");
    for (more, message) in [
        (&[][..], "Nothing has changed since the control plane was started."),
        (&["--since", "7"], "Nothing has changed after number 7."),
    ] {
        let output = strait(&[&["events", "--server", &server], more].concat(), &[]);
        assert!(code(&output) == 0 && stderr(&output).contains(message), "{}", stderr(&output));
    }
}

#[test]
fn policy_test_reports_an_unknown_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let rules = "apiVersion: strait.dev/v1\nkind: Policy\nclusters: {west: {networks: [n1]}}\n";
    std::fs::write(&file, rules).expect("written");
    let file = file.to_str().expect("UTF-8");
    let server = answering("200 OK", r#"[{"id":"east","state":"live"}]"#);
    for (cluster, network, at, expected, message) in [
        ("east", "n9", &*server, 0, "Nothing is refused"),
        ("west", "n9", "http://127.0.0.1:1", 2, "STR0604"),
        ("eats", "n9", &*server, 1, "it is not a member"),
        ("eats", "n9", "http://127.0.0.1:1", 69, "can't check whether it is a member"),
    ] {
        let test = ["policy", "test", file, "--cluster", cluster, "--network", network];
        let output = strait(&test, &[("STRAIT_SERVER", at)]);
        let text = stdout(&output) + &stderr(&output);
        assert_eq!(code(&output), expected, "{cluster}: {text}");
        assert!(text.contains(message), "{cluster}: {text}");
    }
}

#[test]
fn network_without_a_name_is_found_by_its_displayed_name() {
    let server = answering("200 OK", r#"[{"network":"","clusters":["east"],"gateways":[]}]"#);
    for name in ["", "<none>"] {
        let output = strait(&["network", "get", name, "--server", &server], &[]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stdout(&output).contains("east"), "{}", stdout(&output));
    }
}

#[test]
fn timeout_of_a_wait_has_its_own_exit_code() {
    let server =
        answering("200 OK", r#"[{"id":"east","state":"stale","reason":"STR0301: refused"}]"#);
    let get = ["cluster", "get", "east", "--server", &server, "--wait=100ms"];
    let output = strait(&get, &[]);
    assert_eq!(code(&output), 124, "{}", stderr(&output));
    let server = answering("200 OK", r#"[{"id":"east","state":"live"}]"#);
    let get = ["cluster", "get", "east", "--server", &server, "--wait"];
    assert_eq!(code(&strait(&get, &[])), 0);
}

#[test]
fn watched_list_prints_only_changes() {
    let row = |state: &str, contact: u32| {
        format!(
            r#"[{{"id":"west","state":"live"}},{{"id":"east","state":"{state}","lastContact":"2026-01-01T00:00:0{contact}Z"}}]"#
        )
    };
    let server = answering_in_turn(&[row("live", 1), row("live", 2), row("stale", 2)]);
    let shown = first_lines(&["cluster", "list", "-w", "--server", &server], 4);
    let rows: Vec<Vec<&str>> = shown.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][0], "CLUSTER");
    assert_eq!((rows[1][0], rows[2][0], rows[2][2]), ("west", "east", "live"));
    assert_eq!(
        (rows[3][0], rows[3][2]),
        ("east", "stale"),
        "the headers, and west, are not shown again"
    );
}

/// Runs a command that does not end, and kills it after this number of lines.
fn first_lines(arguments: &[&str], count: usize) -> Vec<String> {
    use std::io::{BufRead as _, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(arguments)
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let shown: Vec<String> = lines.take(count).map(|line| line.expect("a line")).collect();
    child.kill().expect("it ran until now");
    child.wait().expect("it ends");
    shown
}

#[test]
fn explanation_and_service_can_be_watched() {
    let proxies = r#"[{"key":"web-0.shop-1","id":"sidecar~10.0.0.1~web-0.shop~d","cluster":"east","network":"n1"}]"#;
    let explained = |sent: u32| {
        format!(
            r#"{{"hostname":"a.shop","port":80,"endpoints":[],"clusters":[{{"cluster":"west","network":"n2","ready":1,"total":1,"sent":{sent},"via":"direct"}}]}}"#
        )
    };
    let turns = [explained(0), explained(0), explained(1)];
    let turns: Vec<_> = turns.into_iter().flat_map(|one| [proxies.to_owned(), one]).collect();
    let server = answering_in_turn(&turns);
    let explain = ["explain", "web-0.shop", "a.shop:80", "-w", "--server", &server];
    let shown = first_lines(&explain, 11);
    let sent: Vec<_> = shown.iter().filter(|line| line.starts_with("west")).collect();
    assert_eq!(sent.len(), 2, "unchanged output is not printed again: {shown:#?}");
    assert!(sent[0].contains("0 direct") && sent[1].contains("1 direct"), "{shown:#?}");

    let endpoint = |health: &str| {
        format!(r#"[{{"address":"10.0.0.1","port":80,"cluster":"east","health":"{health}"}}]"#)
    };
    let service = r#"[{"hostname":"a.shop","clusters":["east"]}]"#;
    let turns = ["healthy", "healthy", "unhealthy"].map(endpoint);
    let turns: Vec<_> = turns.into_iter().flat_map(|one| [one, service.to_owned()]).collect();
    let server = answering_in_turn(&turns);
    let shown = first_lines(&["service", "get", "a.shop", "-w", "--server", &server], 15);
    let ready: Vec<_> = shown.iter().filter(|line| line.starts_with("east")).collect();
    assert!(ready[0].contains("1/1") && ready[1].contains("0/1"), "{shown:#?}");
    let server = answering_in_turn(&["healthy", "healthy", "unhealthy"].map(endpoint));
    let get = ["service", "get", "a.shop", "--endpoints", "--watch", "--server", &server];
    let shown = first_lines(&get, 5);
    assert!(shown[1].contains(" healthy") && shown[4].contains(" unhealthy"), "{shown:#?}");
}

#[test]
fn explanation_can_be_awaited() {
    let explained = |verdict: &str| {
        format!(
            r#"{{"hostname":"a.shop","port":80,"clusters":[],"endpoints":[{{"verdict":"{verdict}","steps":[{{"step":"gateway","ok":false}}]}}]}}"#
        )
    };
    let proxies = r#"[{"key":"web-0.shop-1","id":"sidecar~10.0.0.1~web-0.shop~d"}]"#;
    let turn = |verdict: &str| [proxies.to_owned(), explained(verdict)];
    let explain = ["explain", "web-0.shop", "a.shop"];
    // At first the proxy is not connected.
    let turns = [&["[]".to_owned()], &turn("withheld")[..], &turn("direct")].concat();
    let server = answering_in_turn(&turns);
    let output = strait(&[&explain[..], &["--wait", "--server", &server]].concat(), &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let turns = std::iter::repeat_with(|| turn("withheld")).take(50).flatten();
    let server = answering_in_turn(&turns.collect::<Vec<_>>());
    let output = strait(&[&explain[..], &["--wait=600ms", "--server", &server]].concat(), &[]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
}

/// Starts an HTTP server that sends one response to every request, until the test ends.
fn answering(status: &str, body: &str) -> String {
    serving(status, &[body.to_owned()])
}

/// Starts an HTTP server with a response for each request; the last one is repeated.
fn answering_in_turn(bodies: &[String]) -> String {
    serving("200 OK", bodies)
}

fn serving(status: &str, bodies: &[String]) -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let answers: Vec<String> = bodies
        .iter()
        .map(|body| {
            format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
        })
        .collect();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let answer = &answers[number.min(answers.len() - 1)];
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

/// A config cluster, a cluster to add, and the operator's kubeconfig for both.
struct Rig {
    hub: SimCluster,
    remote: SimCluster,
    folder: tempfile::TempDir,
}

impl Rig {
    async fn start() -> Self {
        let rig = Self {
            hub: SimCluster::start("hub", Options::default()).await.expect("a hub"),
            remote: SimCluster::start("prod-eu", Options::default()).await.expect("a remote"),
            folder: tempfile::tempdir().expect("a folder"),
        };
        let namespace = strait_sim::objects::namespace("strait-system");
        rig.hub.store().apply(namespace).expect("applied");
        let mut merged: Value = serde_json::from_str(&rig.hub.kubeconfig()).expect("JSON");
        let other: Value = serde_json::from_str(&rig.remote.kubeconfig()).expect("JSON");
        for list in ["clusters", "users", "contexts"] {
            let more = other[list].as_array().expect("a list").clone();
            merged[list].as_array_mut().expect("a list").extend(more);
        }
        std::fs::write(rig.kubeconfig(), merged.to_string()).expect("written");
        rig
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    async fn strait(&self, arguments: &[&str]) -> Output {
        let kubeconfig = self.kubeconfig();
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        let run = move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let kubeconfig = kubeconfig.to_str().expect("UTF-8");
            // The port is unused: these tests end with the Secret.
            strait(
                &arguments,
                &[("KUBECONFIG", kubeconfig), ("STRAIT_SERVER", "http://127.0.0.1:1")],
            )
        };
        tokio::task::spawn_blocking(run).await.expect("it ran")
    }

    /// Returns the kubeconfig in the hub's Secret for `id`.
    fn member(&self, id: &str) -> Option<String> {
        let secret = get(&self.hub, "Secret", "strait-system", &format!("strait-cluster-{id}"))?;
        use base64::Engine as _;
        let data = secret["data"][id].as_str().expect("data");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        Some(String::from_utf8(bytes).expect("UTF-8"))
    }
}

fn get(cluster: &SimCluster, kind: &str, namespace: &str, name: &str) -> Option<Value> {
    cluster.store().get(kind, namespace, name).map(|object| object.value())
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_is_added_rotated_and_removed() {
    let rig = Rig::start().await;
    let url = rig.remote.url();
    let output = rig.strait(&["cluster", "add", "prod-eu", "--server", &url]).await;
    assert_eq!(code(&output), 64, "that is the control plane's");
    assert!(stderr(&output).contains("--api-server"), "{}", stderr(&output));
    let add =
        ["cluster", "add", "prod-eu", "--network", "eu", "--self-renew", "--api-server", &url];

    let output = rig.strait(&[&add[..], &["--dry-run"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for message in ["no secrets", "strait-system/strait-cluster-prod-eu", "nothing was changed"] {
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    assert!(rig.member("prod-eu").is_none());
    assert!(get(&rig.remote, "Namespace", "", "strait-reader").is_none());

    let output = rig.strait(&add).await;
    assert_eq!(code(&output), 64, "without a terminal it asks for --yes: {}", stderr(&output));

    let output = rig.strait(&[&add[..], &["--yes"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("strait cluster get prod-eu"), "{}", stderr(&output));
    let first = rig.member("prod-eu").expect("a member");
    assert!(
        first.contains(&url) && !first.contains(&rig.remote.token()),
        "the Secret has a dedicated token"
    );
    let role = get(&rig.remote, "ClusterRole", "", "strait-reader").expect("a role");
    assert!(!role.to_string().contains("secrets"), "{role}");
    let secret = get(&rig.hub, "Secret", "strait-system", "strait-cluster-prod-eu").expect("it");
    assert_eq!(secret["metadata"]["labels"], json!({ "istio/multiCluster": "true" }));
    assert_eq!(secret["metadata"]["annotations"]["strait.dev/network"], "eu");
    assert_eq!(secret["metadata"]["annotations"]["strait.dev/self-renew"], "true");
    let grant = get(&rig.remote, "Role", "strait-reader", "strait-reader").expect("a role");
    assert_eq!(grant["rules"][0]["resources"], json!(["serviceaccounts/token"]));

    let output = rig.strait(&[&add[..], &["--yes"]].concat()).await;
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("STR0207"), "{}", stderr(&output));

    let again = ["cluster", "add", "prod-eu", "--name", "twin", "--api-server", &url, "--yes"];
    let output = rig.strait(&again).await;
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("already the API server of member prod-eu"),
        "{}",
        stderr(&output)
    );

    let output = rig.strait(&["cluster", "rotate", "prod-eu", "--yes"]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let second = rig.member("prod-eu").expect("a member");
    assert!(second != first && second.contains(&url), "a new token for the same server");

    // No token expires within a week, and all do within a century.
    let all = ["cluster", "rotate", "--all", "--yes", "--expiring"];
    let output = rig.strait(&[&all[..], &["7d"]].concat()).await;
    assert_eq!(
        (code(&output), rig.member("prod-eu")),
        (0, Some(second.clone())),
        "{}",
        stderr(&output)
    );
    let output = rig.strait(&[&all[..], &["36500d"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_ne!(rig.member("prod-eu"), Some(second), "{}", stderr(&output));

    for (verb, mode) in
        [("drain", json!("drain")), ("pause", json!("pause")), ("resume", json!(null))]
    {
        let output = rig.strait(&["cluster", verb, "prod-eu", "--yes"]).await;
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let secret =
            get(&rig.hub, "Secret", "strait-system", "strait-cluster-prod-eu").expect("it");
        assert_eq!(secret["metadata"]["annotations"]["strait.dev/mode"], mode, "{verb}");
    }
    let output = rig.strait(&["cluster", "pause", "nobody", "--yes"]).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));

    let output = rig.strait(&["cluster", "remove", "prod-eu", "--purge", "hub", "--yes"]).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("STR0306: context hub is not"), "{}", stderr(&output));
    let output = rig.strait(&["cluster", "remove", "nobody", "--purge", "prod-eu", "--yes"]).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("the cluster of member prod-eu"), "{}", stderr(&output));
    assert!(rig.member("prod-eu").is_some(), "another cluster is not purged");
    let output = rig.strait(&["cluster", "remove", "prod-eu", "--purge", "prod-eu", "--yes"]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(!stderr(&output).contains("check that context"), "{}", stderr(&output));
    assert!(rig.member("prod-eu").is_none());
    assert!(get(&rig.remote, "ClusterRoleBinding", "", "strait-reader").is_none());
    assert!(get(&rig.remote, "Role", "strait-reader", "strait-reader").is_none());
    let output = rig.strait(&["cluster", "remove", "prod-eu", "--yes"]).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_add_registers_the_webhook_with_the_chosen_failure_policy() {
    let rig = Rig::start().await;
    let url = rig.remote.url();
    let roots = rig.folder.path().join("roots.pem");
    std::fs::write(&roots, "-----BEGIN CERTIFICATE-----\n").expect("written");
    let roots = roots.to_str().expect("UTF-8");
    let add = ["cluster", "add", "prod-eu", "--network", "eu", "--api-server", &url];
    let inject = ["--inject", "--inject-at", "https://10.0.0.1:15017"];
    let chosen = ["--inject-failure-policy", "fail"];

    let output = rig.strait(&[&add[..], &inject].concat()).await;
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    assert!(stderr(&output).contains("--inject-failure-policy"), "{}", stderr(&output));

    let output = rig.strait(&[&add[..], &inject, &chosen, &["--dry-run"]].concat()).await;
    assert_eq!(code(&output), 1, "no writer publishes roots: {}", stderr(&output));
    assert!(stderr(&output).contains("--inject-roots FILE"), "{}", stderr(&output));

    let all = [&add[..], &inject, &chosen, &["--inject-roots", roots]].concat();
    let output = rig.strait(&[&all[..], &["--dry-run"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("such pods are rejected"), "{}", stderr(&output));

    let output = rig.strait(&[&all[..], &["-o", "yaml"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for message in [
        "kind: MutatingWebhookConfiguration",
        "failurePolicy: Fail",
        "url: \"https://10.0.0.1:15017/inject/cluster/prod-eu/net/eu\"",
    ] {
        let printed = stdout(&output);
        assert!(
            printed.contains(message) || printed.contains(&message.replace('"', "")),
            "{printed}"
        );
    }
}

/// Creates the control plane's Service, with an external address, which the operator names or not.
fn front(rig: &Rig, is_named: bool) {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "strait", "namespace": "strait-system" },
        "spec": { "type": "LoadBalancer", "ports": [{ "name": "grpc-xds", "port": 15012 }, { "name": "https-inject", "port": 443 }] },
    });
    service["status"]["loadBalancer"]["ingress"] = json!([{ "ip": "203.0.113.7" }]);
    if is_named {
        service["metadata"]["annotations"] = json!({ "strait.dev/address": "203.0.113.7" });
    }
    rig.hub.store().apply(service).expect("applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_is_added_and_removed_together_with_its_gateway() {
    let rig = Rig::start().await;
    let url = rig.remote.url();
    let add = ["cluster", "add", "prod-eu", "--api-server", &url, "--gateway"];
    let with_network = [&add[..], &["--network", "eu"]].concat();
    let output = rig.strait(&add).await;
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    assert!(stderr(&output).contains("--network NET"), "{}", stderr(&output));
    let output = rig.strait(&[&with_network[..], &["--yes"]].concat()).await;
    assert_eq!(code(&output), 1, "nothing outside reaches the control plane: {}", stderr(&output));
    assert!(stderr(&output).contains("--discovery HOST:15012"), "{}", stderr(&output));
    let output = rig.strait(&[&with_network[..], &["--discovery", "a"]].concat()).await;
    assert_eq!(code(&output), 64, "{}", stderr(&output));

    front(&rig, false);
    let output = rig.strait(&[&with_network[..], &["--dry-run"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let printed = stdout(&output);
    for kind in
        ["Namespace", "Deployment", "Service", "ClusterRole", "PodDisruptionBudget", "Secret"]
    {
        assert!(printed.contains(&format!("kind: {kind}\n")), "{kind} in {printed}");
    }
    assert!(printed.contains("made-when-it-is-added"), "{printed}");
    assert!(stderr(&output).contains("strait cluster add --rights"), "{}", stderr(&output));
    // The address is not configured, and the certificate may lack it.
    assert!(stderr(&output).contains("--set service.address=203.0.113.7"), "{}", stderr(&output));
    assert!(get(&rig.remote, "Namespace", "", "strait-gateway").is_none());

    let output = rig.strait(&[&with_network[..], &["--yes"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("next: strait network get eu --wait"), "{}", stderr(&output));
    let gateway = |kind: &str| get(&rig.remote, kind, "strait-gateway", "east-west-gateway");
    let deployment = gateway("Deployment").expect("it is made").to_string();
    for argument in ["--discovery=203.0.113.7:15012", "--cluster=prod-eu", "--network=eu"] {
        assert!(deployment.contains(argument), "{argument} in {deployment}");
    }
    let service = gateway("Service").expect("it is made");
    assert_eq!(service["metadata"]["labels"]["topology.istio.io/network"], "eu");
    let role = get(&rig.remote, "ClusterRole", "", "strait-reader").expect("a role").to_string();
    assert!(role.contains("istio-ca-root-cert"), "its pods start with the roots: {role}");

    // A second run restores deleted objects, and does not change the credential.
    rig.remote.store().delete("Deployment", "strait-gateway", "east-west-gateway").expect("there");
    let before = rig.member("prod-eu");
    front(&rig, true);
    let output = rig.strait(&[&with_network[..], &["--yes"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("already a member"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("service.address"), "{}", stderr(&output));
    assert!(gateway("Deployment").is_some() && rig.member("prod-eu") == before);

    let purge = ["cluster", "remove", "prod-eu", "--purge", "prod-eu", "--yes"];
    let output = rig.strait(&purge).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(get(&rig.remote, "Namespace", "", "strait-gateway").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn config_cluster_gets_a_gateway_and_no_reader() {
    let rig = Rig::start().await;
    let output = rig.strait(&["cluster", "add", "hub", "--yes"]).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("--gateway"), "{}", stderr(&output));
    let add = ["cluster", "add", "hub", "--network", "home", "--gateway", "--yes"];
    // Its reader is the control plane's own account, whose rights come from the chart.
    let output = rig.strait(&[&add[..], &["--gateway-secrets", "edge"]].concat()).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("rbac.gatewaySecrets"), "{}", stderr(&output));
    let output = rig.strait(&add).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let deployment = get(&rig.hub, "Deployment", "strait-gateway", "east-west-gateway");
    let deployment = deployment.expect("it is made").to_string();
    assert!(deployment.contains("--discovery=strait.strait-system.svc:15012"), "{deployment}");
    assert!(
        rig.member("hub").is_none() && get(&rig.hub, "ClusterRole", "", "strait-reader").is_none()
    );
    let system = get(&rig.hub, "Namespace", "", "strait-system").expect("it stays");
    assert_eq!(system["metadata"]["labels"]["topology.istio.io/network"], "home");
    let other = ["cluster", "add", "hub", "--network", "away", "--gateway", "--yes"];
    let output = rig.strait(&other).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("strait network join hub"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn istio_agents_find_the_control_plane_by_a_service_without_pods() {
    let rig = Rig::start().await;
    let url = rig.remote.url();
    let add = ["cluster", "add", "prod-eu", "--api-server", &url, "--yes", "--istio-service"];
    let output = rig.strait(&[&add[..], &["127.0.0.1"]].concat()).await;
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    let output = rig.strait(&[&add[..], &["203.0.113.7"]].concat()).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("istiod.istio-system.svc"), "{}", stderr(&output));
    let slice =
        get(&rig.remote, "EndpointSlice", "strait-system", "istiod-strait").expect("a slice");
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["203.0.113.7"]));
    let service = get(&rig.remote, "Service", "strait-system", "istiod").expect("a Service");
    assert!(service["spec"].get("selector").is_none(), "{service}");
    let purge = ["cluster", "remove", "prod-eu", "--purge", "prod-eu", "--yes"];
    let output = rig.strait(&purge).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(get(&rig.remote, "Service", "strait-system", "istiod").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_added_from_a_file() {
    let rig = Rig::start().await;
    let file = rig.folder.path().join("fleet.yaml");
    let named = file.to_str().expect("UTF-8");
    let url = rig.remote.url();
    let add = async |text: &str, more: &[&str]| {
        std::fs::write(&file, text).expect("written");
        rig.strait(&[&["cluster", "add", "--from", named][..], more].concat()).await
    };
    for (text, message) in [
        ("[]", "lists no cluster"),
        ("- {context: a}\n- {context: b, name: a}", "listed twice"),
        ("- {context: a, nettwork: n}", "nettwork"),
        ("- {context: a, istioService: 'a:1'}", "istioService"),
        ("- {context: a, network: 'a b'}", "--network"),
    ] {
        let output = add(text, &["--yes"]).await;
        assert_eq!(code(&output), 64, "{text}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{text}: {}", stderr(&output));
    }
    let both = format!(
        "- {{context: prod-eu, name: eu, network: n2, apiServer: '{url}'}}\n- {{context: nowhere}}\n"
    );
    let output = add(&both, &["--dry-run"]).await;
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 2 clusters can be added"), "{}", stderr(&output));
    assert!(stdout(&output).contains("kind: Secret"), "{}", stdout(&output));
    assert!(rig.member("eu").is_none());

    let output = add(&both, &["--yes"]).await;
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let table = stdout(&output);
    let row =
        |id: &str| table.lines().find(|line| line.starts_with(id)).unwrap_or(&table).to_owned();
    assert!(row("eu").ends_with("added") && row("nowhere").contains("failed: "), "{table}");
    assert!(rig.member("eu").expect("a member").contains(&url));
    // A second run with the same file changes nothing.
    let before = rig.member("eu");
    let output = add(&both, &["--yes"]).await;
    assert!(stdout(&output).contains("already a member"), "{}", stdout(&output));
    assert_eq!(rig.member("eu"), before);
}

#[test]
fn rights_are_printed_with_their_purpose_without_any_request() {
    let output = strait(&["cluster", "add", "--rights"], &[("KUBECONFIG", "/nowhere")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let table = stdout(&output);
    assert!(table.starts_with("MAY") && table.contains("localities of pods"), "{table}");
    assert!(!table.contains("secrets") && !table.contains("istio-ca-root-cert"), "{table}");
    let more = strait(&["cluster", "add", "--rights", "--gateway", "--self-renew"], &[]);
    assert!(stdout(&more).contains("istio-ca-root-cert"), "{}", stdout(&more));
}

#[test]
fn injected_manifests_are_printed_unless_a_pod_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pods.yaml");
    let pods = |more: &str| {
        let pod = |name: &str, more: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{more}containers: [{{name: app, image: app}}]}}\n"
            )
        };
        std::fs::write(&file, pod("first", "") + &pod("second", more)).expect("written");
        let file = file.to_str().expect("UTF-8");
        strait(&["proxy", "inject", "-f", file, "--cluster", "east", "--network", "n1"], &[])
    };
    let output = pods("");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output).matches("name: strait-proxy").count(), 2, "{}", stdout(&output));

    let output = pods("hostNetwork: true, ");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("pod default/second is unchanged"), "{}", stderr(&output));

    let output = pods("securityContext: {runAsGroup: 1337}, ");
    assert_eq!((code(&output), stdout(&output)), (1, String::new()));
    let errors = stderr(&output);
    assert!(errors.contains("error STR0901: pod default/second: its container app"), "{errors}");

    std::fs::write(&file, "a: [").expect("written");
    let file = file.to_str().expect("UTF-8");
    let output = strait(&["proxy", "inject", "-f", file, "--cluster", "east"], &[]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("neither YAML nor JSON"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_rejected_before_any_change() {
    let rig = Rig::start().await;
    for (arguments, expected, message) in [
        (vec!["cluster", "add", "prod-eu", "--yes"], 1, "STR0209"),
        (vec!["cluster", "add", "hub", "--yes", "--api-server", &rig.hub.url()], 1, "STR0220"),
        (vec!["cluster", "add", "nowhere", "--yes"], 64, "no context"),
        (vec!["cluster", "add", "prod-eu", "--name", "Prod_EU"], 64, "STR0215"),
        (vec!["cluster", "add", "prod-eu", "--network", "a b"], 64, "--network"),
        (vec!["cluster", "add", "prod-eu", "--token-ttl", "1m"], 64, "10m"),
        (vec!["cluster", "add", "prod-eu", "--api-server", "http://10.0.0.1"], 64, "STR0210"),
        (vec!["cluster", "import", "/nowhere/kubeconfig"], 64, "/nowhere/kubeconfig"),
        (
            vec!["cluster", "add", "prod-eu", "--kubeconfig", "/nowhere/kubeconfig"],
            64,
            "--kubeconfig",
        ),
        (vec!["cluster", "rotate", "prod-eu", "--yes"], 1, "strait cluster add"),
    ] {
        let output = rig.strait(&arguments).await;
        assert_eq!(code(&output), expected, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
    }
    rig.remote.stop().await;
    let output =
        rig.strait(&["cluster", "add", "prod-eu", "--api-server", "https://10.0.0.1"]).await;
    assert_eq!(code(&output), 69, "{}", stderr(&output));
    assert!(rig.member("prod-eu").is_none());
    assert!(get(&rig.remote, "Namespace", "", "strait-reader").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_credential_can_come_from_a_program() {
    let rig = Rig::start().await;
    let mut kubeconfig: Value =
        serde_json::from_slice(&std::fs::read(rig.kubeconfig()).expect("read")).expect("JSON");
    for user in kubeconfig["users"].as_array_mut().expect("users") {
        let token = user["user"]["token"].as_str().expect("a token");
        let script = format!("echo '{{\"status\": {{\"token\": \"{token}\"}}}}'");
        user["user"] = json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "/bin/sh", "args": ["-c", script],
        } });
    }
    std::fs::write(rig.kubeconfig(), kubeconfig.to_string()).expect("written");
    let url = rig.remote.url();
    let add = ["cluster", "add", "prod-eu", "--api-server", &url, "--yes"];
    let output = rig.strait(&add).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(rig.member("prod-eu").expect("a member").contains("token"));

    for user in kubeconfig["users"].as_array_mut().expect("users") {
        user["user"]["exec"]["args"][1] = json!("echo canary; echo 'log in first' >&2; exit 1");
    }
    std::fs::write(rig.kubeconfig(), kubeconfig.to_string()).expect("written");
    let output = rig.strait(&add).await;
    assert_eq!(code(&output), 77, "{}", stderr(&output));
    let errors = stderr(&output);
    assert!(errors.contains("log in first") && !errors.contains("canary"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_can_be_printed_instead_of_applied() {
    let rig = Rig::start().await;
    let print =
        ["cluster", "add", "prod-eu", "-o", "yaml", "--api-server", "https://10.0.0.1:6443"];
    let output = rig.strait(&print).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let printed = stdout(&output);
    assert!(
        printed.contains("kind: ClusterRole\n") && !printed.contains("kind: Secret"),
        "{printed}"
    );
    assert!(get(&rig.remote, "Namespace", "", "strait-reader").is_none());
    // Once the reader exists, a token can be created and the Secret printed.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "strait-reader", "namespace": "strait-reader" },
    });
    rig.remote.store().apply(account).expect("applied");
    let printed = stdout(&rig.strait(&print).await);
    assert!(
        printed.contains("kind: Secret") && printed.contains("https://10.0.0.1:6443"),
        "{printed}"
    );
    assert!(rig.member("prod-eu").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfigs_and_istio_secrets_are_imported() {
    let rig = Rig::start().await;
    let write = |name: &str, text: &str| {
        let file = rig.folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("UTF-8").to_owned()
    };
    let url = rig.remote.url();
    let kubeconfig = write("kubeconfig-remote", &rig.remote.kubeconfig());
    let output = rig.strait(&["cluster", "import", &kubeconfig, "--yes"]).await;
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("STR0209"), "{}", stderr(&output));
    let output =
        rig.strait(&["cluster", "import", &kubeconfig, "--api-server", &url, "--yes"]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(rig.member("prod-eu").expect("a member").contains(&url));

    // As 'istioctl create-remote-secret' prints it, including comments and separators.
    let token = rig.remote.token();
    let west = format!(
        "# This file is autogenerated, do not edit.
apiVersion: v1
kind: Secret
metadata:
  annotations:
    networking.istio.io/cluster: west
  creationTimestamp: null
  labels:
    istio/multiCluster: \"true\"
  name: istio-remote-secret-west
  namespace: istio-system
stringData:
  west: |
    apiVersion: v1
    clusters:
    - cluster:
        server: https://10.0.0.1:6443
      name: west
    contexts:
    - context:
        cluster: west
        user: west
      name: west
    current-context: west
    kind: Config
    preferences: {{}}
    users:
    - name: west
      user:
        token: {token}
---
"
    );
    let two = west.clone() + &west.replace("west", "south");
    let both = rig.strait(&["cluster", "import", &write("two", &two), "-o", "yaml"]).await;
    assert_eq!(stdout(&both).matches("kind: Secret").count(), 2, "{}", stderr(&both));
    let secret = write("secret", &west);
    let output = rig.strait(&["cluster", "import", &secret, "-o", "yaml"]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("strait-cluster-west"), "{}", stdout(&output));

    let runs = write("exec", "users: [{name: a, user: {exec: {command: /bin/true}}}]");
    let output = rig.strait(&["cluster", "import", &runs, "--name", "a", "--dry-run"]).await;
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("STR0203"), "{}", stderr(&output));
}

/// Uses a real Envoy if this machine has one, because only Envoy can verify a bootstrap.
#[test]
fn envoy_accepts_every_bootstrap() {
    let Some(envoy) = envoy() else {
        eprintln!(
            "SKIPPED: no envoy (set STRAIT_ENVOY, or put one on PATH); bootstraps were not validated"
        );
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    assert_eq!(code(&strait(&["certs", "init", &at("ca")], &[])), 0);
    let issue = [
        "certs",
        "issue",
        "--ca-dir",
        &at("ca"),
        "--namespace",
        "shop",
        "--service-account",
        "web",
        "--out",
        &at("web"),
    ];
    assert_eq!(code(&strait(&issue, &[])), 0);
    let (cert, key, root) = (at("web/cert-chain.pem"), at("web/key.pem"), at("web/root-cert.pem"));
    for (kind, discovery, protocol, format) in [
        ("sidecar", "strait.strait-system.svc:15012", "delta", "yaml"),
        ("router", "strait.strait-system.svc.cluster.local:15012", "sotw", "json"),
        ("sidecar", "[::1]:15012", "sotw", "yaml"),
        ("router", "10.0.0.1:15012", "delta", "json"),
        ("sidecar", "strait.example:15012,10.0.0.1:15012", "delta", "yaml"),
    ] {
        let file = at(&format!("bootstrap-{kind}.{format}"));
        let written = kind == "router";
        let output = strait(
            &[
                "proxy",
                "bootstrap",
                "--type",
                kind,
                "--name",
                "web-0",
                "--namespace",
                "shop",
                "--service-account",
                "web",
                "--cluster",
                "east",
                "--network",
                "n1",
                "--ip",
                "10.0.0.5",
                "--label",
                "app=web",
                "--label",
                "version=1.0",
                "--discovery",
                discovery,
                "--cert",
                &cert,
                "--key",
                &key,
                "--root-ca",
                &root,
                "--protocol",
                protocol,
                "-o",
                format,
                if written { "--file" } else { "--admin-address" },
                if written { &file } else { "127.0.0.1:15000" },
            ],
            &[],
        );
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        if !written {
            std::fs::write(&file, &output.stdout).expect("written");
        }
        let judged = Command::new(&envoy)
            .args(["--mode", "validate", "-l", "warning", "-c", &file])
            .output()
            .expect("envoy runs");
        assert!(judged.status.success(), "{kind} {discovery}: {}", stderr(&judged));
        let [cert, roots] = ["web/sds-cert.yaml", "web/sds-roots.yaml"].map(at);
        let written = std::fs::read_to_string(&file).expect("read");
        assert!(written.contains(&cert) && written.contains(&roots), "{written}");
        assert!(!written.contains("key.pem"), "the files name the key: {written}");
        let priorities = written.matches("priority").count();
        assert_eq!(priorities, usize::from(discovery.contains(',')), "{written}");
    }
}

#[test]
fn bootstrap_has_static_secrets_if_sds_files_are_impossible() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key, root) = (at("no/cert.pem"), at("no/key.pem"), at("no/root.pem"));
    let who = "--type sidecar --name web-0 --namespace shop --service-account web --cluster east --ip 10.0.0.5 --discovery a:1";
    let mut bootstrap =
        vec!["proxy", "bootstrap", "--cert", &cert, "--key", &key, "--root-ca", &root];
    bootstrap.extend(who.split(' '));
    let output = strait(&bootstrap, &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("--sds-dir"), "{}", stderr(&output));
    assert!(stdout(&output).contains("filename: ") && !stdout(&output).contains("STRAIT_SDS"));

    let output = strait(&[&bootstrap[..], &["--sds-dir", &at("no")]].concat(), &[]);
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    let same_folder = at("");
    let output = strait(&[&bootstrap[..], &["--sds-dir", &same_folder]].concat(), &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("STRAIT_SDS"), "{}", stdout(&output));
    let written = std::fs::read_to_string(at("sds-cert.yaml")).expect("written");
    assert!(written.contains(&cert) && written.contains(&key), "{written}");
}

pub(crate) fn envoy() -> Option<std::path::PathBuf> {
    if let Some(named) = std::env::var_os("STRAIT_ENVOY") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("envoy")).find(|file| Path::is_file(file))
}
