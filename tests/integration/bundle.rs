//! Support bundles: their contents, the secrets that they must not contain, and commands that read
//! a bundle like a server.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::mesh::{Member, Proxy, SHOP, SOON, SYSTEM, Setup, endpoints_until, holds, wait_until};

/// A credential in the wrong field of an object.
const CANARY: &str = "Bearer c4n4ryAbCdEf0123";

async fn strait(arguments: &[&str], server: &str, token_file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(arguments)
        .env_clear()
        .env("STRAIT_SERVER", server)
        .env("STRAIT_TOKEN_FILE", token_file)
        .stdin(Stdio::null())
        .output()
        .await
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the files of an archive by name, without their folder.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let bytes = std::fs::read(archive).expect("an archive");
    let mut archive = tar::Archive::new(GzDecoder::new(&bytes[..]));
    let mut files = BTreeMap::new();
    for entry in archive.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let name = text(&entry.path_bytes());
        let (_, name) = name.split_once('/').expect("in a folder");
        let name = name.to_owned();
        let mut content = String::new();
        entry.read_to_string(&mut content).expect("text");
        files.insert(name, content);
    }
    files
}

#[tokio::test]
async fn bundle_has_the_responses_of_the_server_without_secrets_and_is_read_like_a_server() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    east.serve("web", &["10.0.0.1"]);
    west.serve("web", &["10.0.0.2"]);
    let setup = Setup::new();
    setup.put(
        "mesh",
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "strait", "namespace": SYSTEM },
            "data": { "mesh": format!("connectTimeout: {CANARY}") },
        }),
    );
    setup.join(&[&east, &west]);
    let server = setup.start_ready().await;
    let proxy = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&proxy, "web", &[("10.0.0.1:8080", 1), ("198.18.0.2:15443", 1)]).await;
    let problem = server.admin.json("/debug/mesh").await["problem"].to_string();
    assert!(problem.contains(CANARY), "nothing to find: {problem}");

    let url = format!("http://{}", server.bound.admin);
    let token_file = server.bound.token_file.clone();
    let archive = setup.path("bundle.tar.gz");
    let file = archive.to_str().expect("UTF-8").to_owned();
    let listed = strait(&["support-bundle", "--dry-run", "--file", &file], &url, &token_file).await;
    assert!(listed.status.success() && !archive.exists(), "{}", text(&listed.stderr));
    let written = strait(&["support-bundle", "--file", &file], &url, &token_file).await;
    assert!(written.status.success(), "{}", text(&written.stderr));
    let table = text(&written.stdout);
    for row in ["debug/clusters.json", "metrics.txt", "/debug/endpoints?hostname=web.shop"] {
        assert!(table.contains(row) && text(&listed.stdout).contains(row), "{row}: {table}");
    }
    let mode = std::fs::metadata(&archive).expect("written").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = strait(&["support-bundle", "--file", &file], &url, &token_file).await;
    assert_eq!(again.status.code(), Some(64), "an existing file is not overwritten");

    // The bundle contains neither the planted credential nor a secret of this mesh.
    let files = unpacked(&archive);
    let token = std::fs::read_to_string(&token_file).expect("a token");
    let key = std::fs::read_to_string(setup.path("ca").join("ca-key.pem")).expect("a key");
    let key = key.lines().nth(1).expect("a line of the key").to_owned();
    for secret in ["c4n4ryAbCdEf0123", token.trim(), &east.api.token(), &key] {
        for (name, content) in &files {
            assert!(!content.contains(secret), "{name} holds {secret}");
        }
    }
    assert!(files["debug/mesh.json"].contains("<redacted>"), "{}", files["debug/mesh.json"]);
    let contents: Value = serde_json::from_str(&files["contents.json"]).expect("JSON");
    let mesh_files = contents["files"].as_array().expect("a list").iter();
    let mesh_files = mesh_files.filter(|file| file["path"] == "/debug/mesh").collect::<Vec<_>>();
    assert_eq!(mesh_files.len(), 1);
    assert!(mesh_files[0]["redacted"].as_u64() > Some(0), "{}", mesh_files[0]);
    assert!(files.len() > 12 && contents["leftOut"] == json!([]), "{contents:#}");

    // Commands show the same output from the bundle without a server.
    let (by_name, by_place) = (format!("client.{SHOP}"), format!("client.{SHOP}@east"));
    let commands: [&[&str]; 5] = [
        &["service", "list", "-o", "json"],
        &["network", "list"],
        &["explain", &by_name, "web.shop:80", "-o", "json"],
        &["explain", &by_place, "web.shop.svc.cluster.local", "-o", "json"],
        &["events", "-o", "json"],
    ];
    let mut before = Vec::new();
    for arguments in commands {
        before.push(text(&strait(arguments, &url, &token_file).await.stdout));
    }
    assert!(before[2].contains("\"via\": \"198.18.0.2:15443\""), "{}", before[2]);
    server.shut_down().await;

    let mut page = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["ui", "--print", "--bundle", &file])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let mut lines = BufReader::new(page.stderr.take().expect("its errors")).lines();
    let mut exported = BTreeMap::new();
    while exported.len() < 2 {
        let line = timeout(SOON, lines.next_line()).await.expect("in time").expect("read");
        let line = line.expect("a further line");
        let value = line.trim().strip_prefix("export ").and_then(|line| line.split_once('='));
        exported.extend(value.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    let (offline, token_file) = (&exported["STRAIT_SERVER"], &exported["STRAIT_TOKEN_FILE"]);
    assert!(offline.starts_with("http://127.0.0.1:"), "{offline}");
    for (arguments, before) in commands.iter().zip(before) {
        let output = strait(arguments, offline, Path::new(token_file)).await;
        assert_eq!(text(&output.stdout), before, "{arguments:?}: {}", text(&output.stderr));
    }
    let status = strait(&["status"], offline, Path::new(token_file)).await;
    assert!(text(&status.stdout).contains("connectTimeout"), "{}", text(&status.stdout));
    let other = strait(&["explain", &by_name, "absent.shop"], offline, Path::new(token_file)).await;
    let other = text(&other.stderr);
    assert!(
        other.contains("does not hold") && other.contains("--explain PROXY SERVICE"),
        "{other}"
    );
    // Commands without the token are rejected, and no file remains when the command ends.
    let unauthenticated = strait(&["status"], offline, Path::new(&file)).await;
    assert_eq!(unauthenticated.status.code(), Some(77));
    let ended = Command::new("kill").arg(page.id().expect("running").to_string()).status();
    assert!(ended.await.expect("kill(1)").success());
    let ended = timeout(SOON, page.wait()).await.expect("in time").expect("ended");
    assert_eq!(ended.code(), Some(0));
    wait_until(SOON, async || holds(!Path::new(token_file).exists(), token_file)).await;
}

#[tokio::test]
async fn invalid_bundle_is_reported() {
    let setup = Setup::new();
    let file = setup.path("no-bundle");
    std::fs::write(&file, "no bundle").expect("written");
    for (file, code) in [(file.to_str().expect("UTF-8"), 1), ("/nowhere/bundle.tar.gz", 64)] {
        let output = strait(&["ui", "--bundle", file], "", Path::new("")).await;
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains("support-bundle"), "{errors}");
    }
}

/// `/metrics` and `/readyz?verbose` need no authentication.
#[tokio::test]
async fn password_in_the_url_of_token_keys_is_never_shown() {
    let setup = Setup::new();
    let uri = "https://me:c4n4ry-password@127.0.0.1:1/keys?tenant=shop&access_token=c4n4ry-token";
    setup.put(
        "tokens",
        &json!({
            "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
            "metadata": { "name": "users", "namespace": "shop" },
            "spec": { "jwtRules": [{ "issuer": "https://issuer.example", "jwksUri": uri }] },
        }),
    );
    let server = setup.start_ready().await;
    let shown = "https://***@127.0.0.1:1/keys?tenant=shop&access_token=***";
    wait_until(SOON, async || {
        let (_, text) = server.admin.text("/debug/sources").await;
        holds(text.contains(shown) && text.contains("STR0833"), text)
    })
    .await;
    for path in [
        "/metrics",
        "/readyz?verbose",
        "/debug/sources",
        "/debug/summary",
        "/debug/config",
        "/debug/events",
    ] {
        let (_, text) = server.admin.text(path).await;
        assert!(!text.contains("c4n4ry"), "{path}: {text}");
    }
    let status = server.strait(&["status"]).await;
    assert!(!super::mesh::text(&status).contains("c4n4ry"), "{}", text(&status.stdout));
    server.shut_down().await;
}
