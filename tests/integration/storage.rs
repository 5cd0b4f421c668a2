//! The state directory on real systems: full, used by another process, unwritable, damaged.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::mesh::{
    Proxy, SOON, SYSTEM, Server, Setup, endpoints_until, holds, replace, wait_until,
};
use super::restart::{CART, members};
use super::traced::skip;
use strait_sim::{SimCluster, objects};

fn strait(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(arguments).env_clear().stdin(Stdio::null()).output().expect("the program runs")
}

/// Creates a full disk of 64 KiB at $1, and runs commands there that need a file.
const FULL: &str = r#"
mount -t tmpfs -o size=64k strait-test "$1" || exit 99
head -c 1000000 /dev/zero > "$1/fill" 2> /dev/null
flags="--xds-address 127.0.0.1:0 --admin-address 127.0.0.1:0"
echo "== serve on a full disk"; timeout 60 "$2" serve $flags --config-dir "$3" --state-dir "$1" 2>&1; echo "exit $?"
echo "== init on a full disk"; "$2" certs init "$1/made" 2>&1; echo "exit $?"
echo "== left"; ls -A "$1"
rm "$1/fill"
"$2" certs init "$1/made" > /dev/null
issue() {
    "$2" certs issue --ca-dir "$1/made" --namespace a --service-account b --out "$1/out"
}
issue "$@" > /dev/null && cat "$1/out/"* | cksum > "$3.before"
head -c 1000000 /dev/zero > "$1/fill" 2> /dev/null
echo "== issue on a full disk"; issue "$@" 2>&1; echo "exit $?"
echo "== issued"; ls -A "$1/out"; cat "$1/out/"* | cksum | cmp - "$3.before" && echo same
rm "$1/fill"
echo "== serve with room"
timeout 60 "$2" serve $flags --config-dir "$3" --state-dir "$1" > /dev/null 2>&1 & server=$!
tries=0
until [ -s "$1/admin-token" ] && [ -s "$1/ca/ca-key.pem" ] || [ $tries = 600 ]; do sleep 0.1; tries=$((tries + 1)); done
kill $server; wait $server
stat -c '%a %s' "$1/admin-token"
"#;

#[test]
fn full_disk_leaves_no_partial_file_and_writing_resumes_with_free_space() {
    let name = "storage::full_disk_leaves_no_partial_file_and_writing_resumes_with_free_space";
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, config) = (folder.path().join("disk"), folder.path().join("config"));
    for path in [&disk, &config] {
        std::fs::create_dir(path).expect("made");
    }
    let run = Command::new("unshare")
        .args(["--mount", "sh", "-c", FULL, "sh"])
        .arg(&disk)
        .arg(env!("CARGO_BIN_EXE_strait"))
        .arg(&config)
        .stdin(Stdio::null())
        .output();
    let run = match run {
        Ok(run) if run.status.code() != Some(99) && !run.stdout.is_empty() => run,
        Ok(run) => {
            return skip(name, &format!("not root: {}", String::from_utf8_lossy(&run.stderr)));
        }
        Err(error) => return skip(name, &format!("no unshare: {error}")),
    };
    let text = String::from_utf8_lossy(&run.stdout);
    let part = |title: &str| {
        let (_, rest) =
            text.split_once(&format!("== {title}\n")).unwrap_or_else(|| panic!("{text}"));
        rest.split("== ").next().unwrap_or_default().to_owned()
    };
    let serve = part("serve on a full disk");
    for message in ["admin-token can't be written: No space left", "STR0801", "df -h", "exit 1"] {
        assert!(serve.contains(message), "no {message:?} in {serve}");
    }
    for title in ["init on a full disk", "issue on a full disk"] {
        let section = part(title);
        assert!(
            section.contains("STR0801") && section.contains("No space left"),
            "{title}: {section}"
        );
        assert!(section.contains("exit 1"), "{title}: {section}");
    }
    assert_eq!(part("left"), "fill\nlock\n");
    assert_eq!(part("issued"), "cert-chain.pem\nkey.pem\nroot-cert.pem\nsame\n");
    assert!(part("serve with room").ends_with("600 65\n"), "{text}");
}

/// Starts the program, waits until it listens, and returns it.
fn serve(setup: &Setup) -> std::process::Child {
    let mut server = Command::new(env!("CARGO_BIN_EXE_strait"))
        .arg("serve")
        .args(setup.arguments())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let lines = server.stdout.take().expect("piped");
    BufReader::new(lines).read_line(&mut line).expect("a line");
    assert!(line.contains("xds"), "{line}");
    server
}

#[test]
fn state_directory_has_one_server_and_a_killed_one_releases_it() {
    let setup = Setup::new();
    let mut first = serve(&setup);
    let arguments = setup.arguments();
    let mut second = vec!["serve"];
    second.extend(arguments.iter().map(String::as_str));
    let refused = strait(&second);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    for part in ["STR0803", &format!("process {}", first.id()), "--state-dir", "state"] {
        assert!(errors.contains(part), "no {part:?} in {errors}");
    }
    first.kill().expect("killed");
    first.wait().expect("it ended");
    let mut third = serve(&setup);
    third.kill().expect("killed");
    third.wait().expect("it ended");
}

/// Runs `strait check` against a server. Returns its exit code and its output.
async fn check(server: &Server) -> (i32, String) {
    let url = format!("http://{}", server.bound.admin);
    let token = server.bound.token_file.display().to_string();
    let run = move || strait(&["check", "sources", "--server", &url, "--token-file", &token]);
    let done = tokio::task::spawn_blocking(run).await.expect("it ran");
    (done.status.code().expect("an exit code"), String::from_utf8_lossy(&done.stdout).into_owned())
}

#[tokio::test]
async fn unwritable_state_is_reported_until_it_is_writable() {
    let setup = Setup::new();
    std::fs::create_dir(setup.path("state")).expect("made");
    let blocking_file = setup.path("state").join("lkg");
    // A file instead of the directory, so that not even root can write into it.
    replace(&blocking_file, "in the way");
    let server = setup.start_ready().await;
    wait_until(SOON, async || {
        let (_, text) = server.admin.text("/readyz?verbose").await;
        holds(text.contains("[-] state directory: STR0801") && text.contains("ready"), text)
    })
    .await;
    wait_until(SOON, async || {
        let (code, printed) = check(&server).await;
        holds(code == 2 && printed.contains("STR0801") && printed.contains("state"), printed)
    })
    .await;
    std::fs::remove_file(&blocking_file).expect("removed");
    wait_until(SOON, async || {
        let (code, printed) = check(&server).await;
        holds(code == 0, printed)
    })
    .await;
    let (_, text) = server.admin.text("/readyz?verbose").await;
    assert!(!text.contains("state directory"), "{text}");
    server.shut_down().await;
}

#[tokio::test]
async fn no_proxy_is_served_without_the_list_of_members_or_the_config_cluster() {
    let (east, west) = members().await;
    let hub = SimCluster::start("hub", Default::default()).await.expect("a free port");
    let apply = |object| hub.store().apply(object).expect("a valid object");
    apply(objects::namespace(SYSTEM));
    apply(east.secret());
    apply(west.secret());
    apply(json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": { "name": "other", "namespace": "shop" },
        "spec": { "hosts": ["other.example"], "ports": [{ "number": 80, "name": "http", "protocol": "HTTP" }], "resolution": "DNS" },
    }));
    let setup = Setup::new();
    let arguments = setup.arguments_with(&hub);
    let first = setup.start_as(arguments.clone()).await;
    first.ready().await;
    first.cluster_in("east", "live").await;
    first.cluster_in("west", "live").await;
    first.shut_down().await;
    hub.stop().await;
    east.api.stop().await;
    west.api.stop().await;

    // The other files exist: without the list they would give a mesh without members.
    let lost = |directory: &Path, what: &str| {
        for entry in std::fs::read_dir(directory.join("lkg")).expect("there") {
            let path = entry.expect("an entry").path();
            if path.to_string_lossy().contains(what) {
                std::fs::write(&path, "damaged").expect("written");
            }
        }
    };
    lost(&setup.path("state"), "/members.");
    let second = setup.start_as(arguments).await;
    wait_until(SOON, async || {
        let (status, text) = second.admin.text("/readyz?verbose").await;
        assert_eq!(status, http::StatusCode::SERVICE_UNAVAILABLE, "{text}");
        holds(text.contains("STR0311"), text)
    })
    .await;
    hub.restart().await;
    second.ready().await;
    // The members are restored with their objects.
    for id in ["east", "west"] {
        second.cluster_in(id, "restored").await;
    }
    let client = second.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "cart", CART).await;
}
