//! Tests of the instruments: they start, agree with each other, and measure real events.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs scenarios and returns their figures, or `None` without the programs that they need.
fn measured(arguments: &[&str]) -> Option<Value> {
    let binaries = binaries()?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let figures = folder.path().join("figures.json");
    let output = run(arguments)
        .arg("--binaries")
        .arg(binaries)
        .arg("--json")
        .arg(&figures)
        .output()
        .expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    Some(read(&figures))
}

#[test]
fn scenarios_run_and_observe_every_change() {
    let Some(figures) = measured(&["change", "reconnect", "--scale", "0.01", "--changes", "3"])
    else {
        return;
    };
    let figure = |name: &str| {
        let value = &figures["figures"][name][0]["a"];
        value.as_f64().unwrap_or_else(|| unreachable!("no figure {name:?} in {figures}"))
    };
    // Ten proxies subscribe to everything, so each change reaches all of them.
    assert_eq!(figure("one change, all: deliveries/change"), 10.0);
    assert_eq!(figure("one change, all: unseen changes"), 0.0);
    assert!(figure("one change, all: latency p50, wall ms") > 0.0);
    assert!(figure("one change, as sidecars: floor µs/delivery") > 0.0);
    // A proxy that reports its versions receives next to nothing.
    let [held, nothing] = ["held", "nothing held"]
        .map(|what| figure(&format!("reconnect of 10, all, {what}: wire kB/proxy")));
    assert!(held * 3.0 < nothing, "{held} kB against {nothing} kB");
}

#[test]
fn definition_changes_reach_the_affected_proxies() {
    let Some(figures) =
        measured(&["definitions", "--scale", "0.01", "--cells", "400x2x2", "--changes", "3"])
    else {
        return;
    };
    let figure = |name: &str| {
        let value = &figures["figures"][format!("definitions 4x2x2, {name}")][0]["a"];
        value.as_f64().unwrap_or_else(|| unreachable!("no figure {name:?} in {figures}"))
    };
    // All four proxies subscribe to all upstream clusters and listeners, regardless of their
    // assignments.
    for kind in ["new service", "removed service", "headless pod"] {
        assert_eq!(figure(&format!("{kind}: proxies told/change")), 4.0, "{kind}");
        assert!(figure(&format!("{kind}: latency p50, wall ms")) > 0.0, "{kind}");
        // A Service and its slices may be in two versions.
        assert!(figure(&format!("{kind}: streams woken/change")) >= 4.0, "{kind}");
    }
    // A pod replaces another pod: one listener is added, and the name table changes. A change in
    // two steps may be sent twice.
    for sent in ["new service: cds", "headless pod: lds", "headless pod: nds"] {
        assert!(figure(&format!("{sent} resources/change")) >= 4.0, "{sent}: {figures}");
    }
    // These kinds send nothing.
    for kind in ["targetPort", "label"] {
        let sent = &figures["figures"][format!("definitions 4x2x2, {kind}: cds resources/change")];
        assert!(sent.is_null(), "{kind}: {sent}");
    }
    assert!(figures["machine"]["cpus"].as_u64() > Some(0), "{figures}");
}

#[test]
fn costs_that_no_proxy_sees_are_measured() {
    let Some(figures) = measured(&[
        "fixed",
        "members",
        "entries",
        "--scale",
        "0.01",
        "--changes",
        "3",
        "--fixed-seconds",
        "2",
    ]) else {
        return;
    };
    for name in [
        "fixed, one proxy, 10/s, with state: server CPU ms/change",
        "fixed, one proxy, 1/s, without state: server CPU ms/change",
        "one proxy that watches everything, 50/s: latency p50, wall ms",
        "20 clusters: ready, wall s",
        "20 clusters: descriptors",
        "20 clusters: idle, % of a core",
        "entries, one of 100 changes: server CPU ms/change",
    ] {
        let value = &figures["figures"][name][0]["a"];
        assert!(value.is_number(), "no figure {name:?} in {figures}");
    }
}

#[test]
fn figures_are_kept_if_the_other_server_prints_nothing() {
    let Some(binaries) = binaries() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let figures = folder.path().join("figures.json");
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).expect("a folder in it");
    let output = run(&["reconnect", "--scale", "0.01", "--sync-seconds", "15", "--pairs", "1"])
        .args(["--b", "sleep 600"])
        .arg("--binaries")
        .arg(binaries)
        .arg("--json")
        .arg(&figures)
        .env("TMPDIR", &temporary)
        .output()
        .expect("python3 is there");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("sleep 600\nprinted nothing for 15 s"), "{told}");
    assert!(told.contains("--b-port"), "{told}");
    let figure = "reconnect of 10, all, held: wire kB/proxy";
    assert!(String::from_utf8_lossy(&output.stdout).contains(figure), "{told}");
    assert!(read(&figures)["figures"][figure][0]["a"].is_number(), "{told}");
    let left = std::fs::read_dir(&temporary).expect("the folder still exists").count();
    assert_eq!(left, 0, "folders were left behind");
}

#[test]
fn options_that_measure_nothing_are_usage_errors() {
    let cases = [
        ["--scale", "0"],
        ["--scale", "nan"],
        ["--pairs", "0"],
        ["--changes", "0"],
        ["--rotations", "1"],
        ["--cells", "800x20"],
        ["--cells", "0x1x1"],
        ["--fixed-seconds", "0"],
        ["--json", "/nowhere/figures.json"],
        ["--a", "/nowhere/server"],
        ["--a", "sleep {second}"],
        ["--a", "sleep '1"],
        ["--a", ""],
    ];
    for case in cases {
        let output = run(&case).output().expect("python3 is there");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{case:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{case:?}: {told}");
        assert!(told.contains(case[0]), "{case:?}: {told}");
    }
}

#[test]
fn instruction_cases_run() {
    let instructions = env!("CARGO_BIN_EXE_instructions");
    let listed = Command::new(instructions).output().expect("it starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // Only cheap cases. Each case verifies its own result.
    for case in ["decode_json", "decode_protobuf", "eds_encode_10x10", "bytes_rotated_301"] {
        assert!(listed.lines().any(|line| line.starts_with(case)), "{case} in {listed}");
        let run = Command::new(instructions).arg(case).output().expect("it starts");
        assert!(run.status.success(), "{case}: {}", String::from_utf8_lossy(&run.stderr));
    }
}

fn run(arguments: &[&str]) -> Command {
    let mut run = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("run"));
    run.args(arguments);
    run
}

/// Returns the folder of the binaries, if the servers are built as well.
fn binaries() -> Option<&'static Path> {
    let xdsload = Path::new(env!("CARGO_BIN_EXE_xdsload"));
    let binaries = xdsload.parent().expect("a binary is in a folder");
    for name in ["strait", "strait-sim"] {
        if !binaries.join(name).exists() {
            skipped(&format!("{name} is not built; cargo test --workspace builds it"));
            return None;
        }
    }
    Some(binaries)
}

fn read(figures: &Path) -> Value {
    let figures = std::fs::read(figures).expect("figures were written");
    serde_json::from_slice(&figures).expect("figures in JSON")
}

fn skipped(reason: &str) {
    let line = format!("benches::run: {reason}\n");
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("STRAIT_SKIPS") {
        let file = OpenOptions::new().append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("STRAIT_SKIPS is a file");
    }
}
