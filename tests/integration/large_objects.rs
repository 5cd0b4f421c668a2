//! A running server, and its restart, with the largest object of every kind that a store accepts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::mesh::{Member, Proxy, SOON, Setup, endpoints_until, holds, replace, wait_until};
use strait_rules::testing::largest::{RepeatedField, repeated_fields};

/// How long another change may take meanwhile. A build without optimization needs some 20 times as long as a release.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// How much memory 20 objects of 1.5 MB may take, with their copies in the test that writes them.
const MEMORY_MAX: usize = 1 << 30;

/// The memory of this process, in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is reported");
    let kibibytes = line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    kibibytes.map_or(0, |number: usize| number << 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn largest_stored_objects_neither_delay_other_changes_nor_fail_liveness() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let web = Proxy {
        name: "web-10-0-0-1",
        account: "web",
        ip: "10.0.0.1".to_owned(),
        ..Proxy::sidecar("east")
    };
    let proxy = server.connect(&setup, &web).await;
    endpoints_until(&proxy, "web", &[("10.0.0.1:8080", 1)]).await;
    let memory_before = memory();

    // One object for each kind: the field that is named first. They are written within a moment, because
    // each reading reads all of them.
    let fields = repeated_fields();
    let by_kind: BTreeMap<_, _> = fields.iter().rev().map(|field| (field.kind, field)).collect();
    let object = |(kind, field): (_, &&RepeatedField)| {
        (format!("large-{kind}.json"), field.object("evil", field.count_max()).to_string())
    };
    let objects: Vec<_> = by_kind.iter().map(object).collect();
    for (file, text) in &objects {
        replace(&setup.path("config").join(file), text);
    }
    wait_until(SOON * 6, async || {
        let report = server.admin.json("/debug/config").await.to_string();
        let refused = report.matches("but an object may have at most").count();
        // The table of sources lists the entries.
        let is_refused = refused >= by_kind.len() - 2 && report.contains("STR1096");
        holds(is_refused, (refused, by_kind.len()))
    })
    .await;

    let begun = Instant::now();
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    endpoints_until(&proxy, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    assert!(begun.elapsed() < DELAY_MAX, "{:?}", begun.elapsed());
    let (status, text) = server.admin.text("/livez").await;
    assert!(status.is_success(), "{text}");
    let grown = memory().saturating_sub(memory_before);
    assert!(grown < MEMORY_MAX, "{} MB", grown >> 20);

    server.shut_down().await;
    let server = setup.start_ready().await;
    let proxy = server.connect(&setup, &web).await;
    endpoints_until(&proxy, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    let (status, text) = server.admin.text("/livez").await;
    assert!(status.is_success(), "{text}");
    server.shut_down().await;
}
