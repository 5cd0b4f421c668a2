//! The plots of docs/explanation/performance.md: the committed files equal the output of `benches/plots` for
//! the committed JSON, and missing rows are left out.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::traced::skip;

const PAGE: &str = "# P\n\n<!-- benches/plots writes this -->\n<!-- up to here -->\n\nrest\n";

/// Runs the script. Returns `None` and reports a skip if Python is missing.
fn plots(arguments: &[&str]) -> Option<Output> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/plots");
    // -B: no bytecode is written next to the script.
    let run = Command::new("python3").arg("-B").arg(script).args(arguments).output();
    let run = run.map_err(|error| skip("plots", &format!("python3: {error}")));
    run.ok()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn measured(scale: f64, figures: &Value) -> Value {
    json!({
        "options": {
            "scale": scale, "networks": 1, "protocol": "delta", "pods": true, "changes": 30,
            "churn_seconds": 10, "fixed_seconds": 30, "stalled_seconds": 30, "b": "pilot-discovery",
        },
        "machine": { "at": "2026-11-26T10:00:00Z", "cpus": 2, "model": "a <fast> one" },
        "figures": figures,
    })
}

fn write(folder: &Path, name: &str, value: &Value) {
    std::fs::write(folder.join("figures").join(name), value.to_string()).expect("written");
}

#[test]
fn committed_plots_match_the_committed_figures() {
    let Some(checked) = plots(&["--check"]) else { return };
    assert!(checked.status.success(), "{}", errors(&checked));
}

#[test]
fn plot_has_only_measured_rows_and_bars_of_the_same_world() {
    let docs = tempfile::tempdir().expect("a folder");
    let folder = docs.path();
    std::fs::create_dir(folder.join("figures")).expect("a folder");
    std::fs::write(folder.join("performance.md"), PAGE).expect("written");
    let arguments = ["--docs", folder.to_str().expect("UTF-8")];
    let p50 = "one change, 5 %: latency p50, wall ms";
    let [a_figures, both_figures] =
        [json!([{ "a": 2.0 }, { "a": 9.0 }, { "a": 4.0 }]), json!([{ "a": 4.0, "b": 80.0 }])];
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();

    // A small world: its figures are shown without the bar, which is defined for another world.
    write(
        folder,
        "a.json",
        &measured(0.02, &json!({ p50: a_figures, "of nobody's": [{ "a": 1.0 }] })),
    );
    let Some(made) = plots(&arguments) else { return };
    assert!(made.status.success(), "{}", errors(&made));
    let latency = read("figures/latency.svg");
    assert!(latency.contains(">4 ms<") && !latency.contains("class=\"bar\""), "{latency}");
    assert!(
        latency.contains("a &lt;fast&gt; one") && latency.contains("W1 times 0.02"),
        "{latency}"
    );
    assert_eq!(read("figures/memory.svg"), "", "no memory was measured");

    // A later file from the world of the bar: the figure exceeds the bar, which is stated in words
    // and shown as a line.
    write(folder, "b.json", &measured(1.0, &json!({ p50: both_figures })));
    let check = [arguments[0], arguments[1], "--check"];
    let checked = plots(&check).expect("as before");
    assert_eq!(checked.status.code(), Some(1), "the committed files are outdated");
    assert!(
        errors(&checked).contains("latency.svg isn't what benches/plots makes"),
        "{}",
        errors(&checked)
    );
    assert!(plots(&arguments).expect("as before").status.success());
    assert!(
        read("figures/latency.svg").contains("4 ms of 3 ms, over"),
        "{}",
        read("figures/latency.svg")
    );
    assert!(read("figures/latency.svg").contains("class=\"bar\""));
    assert!(read("figures/beside.svg").contains("80 ms"), "{}", read("figures/beside.svg"));
    let page = read("performance.md");
    assert!(page.contains("](figures/latency.svg)") && page.ends_with("rest\n"), "{page}");
    assert!(page.contains("4 ms, beside 80 ms") && page.contains("Strait beside istiod"), "{page}");
    assert!(plots(&check).expect("as before").status.success());

    // A plot without measured rows is deleted.
    write(folder, "b.json", &measured(1.0, &json!({})));
    assert!(plots(&arguments).expect("as before").status.success());
    assert_eq!(read("figures/beside.svg"), "");
    write(folder, "b.json", &json!(["no", "figures"]));
    let refused = plots(&arguments).expect("as before");
    assert!(
        !refused.status.success() && errors(&refused).contains("b.json was not written by"),
        "{}",
        errors(&refused)
    );
}
