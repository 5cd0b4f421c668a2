//! The demo, which is the first program that new users run.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn demo_succeeds_and_leaves_no_files_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["demo", "--once", "--clusters", "3"])
        .env("TMPDIR", folder.path())
        // Other tests cover real traffic; here it would only take time.
        .env("PATH", "")
        .output()
        .expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{complaints}");
    for line in [
        "10.1.0.11:8080, 10.1.0.12:8080, 10.1.0.13:8080, 10.1.1.11:8080, 10.1.1.12:8080, 172.30.0.21:15443 (weight 2)",
        "10.1.0.11:8080, 10.1.0.12:8080, 172.30.0.11:15443 (weight 5)",
        "172.30.0.21:15443: weight 2 -> 1",
        "10.1.0.12:8080 removed",
        "No proxy lost anything",
        "Skipped: not on PATH: envoy",
    ] {
        assert!(printed.contains(line), "{line:?} is not in\n{printed}");
    }
    let remaining: Vec<_> = std::fs::read_dir(folder.path()).expect("it stays").flatten().collect();
    assert!(remaining.is_empty(), "{remaining:?}");
}

#[test]
fn demo_leaves_no_files_behind_when_its_terminal_closes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut demo = Command::new(env!("CARGO_BIN_EXE_strait"))
        .arg("demo")
        .env("TMPDIR", folder.path())
        .env("PATH", "")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let stdout = BufReader::new(demo.stdout.take().expect("piped"));
    // Its folder exists before it prints anything.
    let mut lines = stdout.lines();
    assert!(lines.next().is_some(), "it says something");
    let remaining = || std::fs::read_dir(folder.path()).expect("it stays").flatten().count();
    assert_eq!(remaining(), 1);
    let killed = Command::new("kill").args(["-HUP", &demo.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    // Reads the output to its end, so that the demo can write it.
    lines.for_each(drop);
    let exit = demo.wait().expect("it ends");
    assert!(exit.code().is_some(), "it ended by itself: {exit}");
    assert_eq!(remaining(), 0);
}
