//! The instruments themselves: that they start, agree with each other, and measure what happened.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn scenarios_run_and_see_every_change() {
    let xdsload = Path::new(env!("CARGO_BIN_EXE_xdsload"));
    let binaries = xdsload.parent().expect("a binary is in a folder");
    for name in ["strait", "strait-sim"] {
        if !binaries.join(name).exists() {
            return skipped(&format!("{name} isn't built; cargo test --workspace builds it"));
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let figures = folder.path().join("figures.json");
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("run");
    let output = Command::new(run)
        .args(["change", "reconnect", "--scale", "0.01", "--changes", "3"])
        .arg("--binaries")
        .arg(binaries)
        .arg("--json")
        .arg(&figures)
        .output()
        .expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let figures = std::fs::read(figures).expect("figures were written");
    let figures: Value = serde_json::from_slice(&figures).expect("figures in JSON");
    let figure = |name: &str| {
        let value = &figures["figures"][name][0]["a"];
        value.as_f64().unwrap_or_else(|| unreachable!("no figure {name:?} in {figures}"))
    };
    // Ten proxies ask for everything, so each change reaches all of them.
    assert_eq!(figure("one change, all: deliveries/change"), 10.0);
    assert_eq!(figure("one change, all: unseen changes"), 0.0);
    assert!(figure("one change, all: latency p50, wall ms") > 0.0);
    // Who holds everything is sent next to nothing.
    let [held, nothing] = ["held", "nothing held"]
        .map(|what| figure(&format!("reconnect of 10, all, {what}: wire kB/proxy")));
    assert!(held * 3.0 < nothing, "{held} kB against {nothing} kB");
}

#[test]
fn cases_that_are_counted_run() {
    let instructions = env!("CARGO_BIN_EXE_instructions");
    let listed = Command::new(instructions).output().expect("it starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // The cheap ones. A case checks itself that what it does is what it is called.
    for case in ["decode_json", "decode_protobuf", "eds_encode_10x10", "bytes_rotated_301"] {
        assert!(listed.lines().any(|line| line.starts_with(case)), "{case} in {listed}");
        let run = Command::new(instructions).arg(case).output().expect("it starts");
        assert!(run.status.success(), "{case}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

fn skipped(reason: &str) {
    let line = format!("benches::run: {reason}\n");
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("STRAIT_SKIPS") {
        let file = OpenOptions::new().append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("STRAIT_SKIPS is a file");
    }
}
