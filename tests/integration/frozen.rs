//! A cluster that loses contact too often is quarantined, and a cluster that suddenly lacks most
//! objects keeps them for a time. Checked at a proxy, which must receive nothing, and in
//! `/debug/clusters`.

use std::time::Duration;

use serde_json::Value;

use super::mesh::{
    Member, Proxy, SHOP, Server, Setup, endpoints_until, holds, outbound, replace, wait_until,
};
use strait_xds_client::XdsClient;

/// More than the longest wait here, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Waits for a state of the cluster `far`.
async fn far_in(server: &Server, state: &str, fact: &str) -> Value {
    wait_until(LIMIT, async || {
        let entry = server.cluster("far").await;
        let has_fact = entry["reason"].as_str().is_some_and(|reason| reason.contains(fact));
        holds(entry["state"] == state && (has_fact || fact.is_empty()), &entry).map(|()| entry)
    })
    .await
}

/// Checks that a proxy has received only one change of the cluster `home` since then.
async fn undisturbed(client: &XdsClient, since: u64, home: &Member, at: &str) {
    home.serve("pay", &[at]);
    let socket = format!("{at}:8080");
    endpoints_until(client, "pay", &[(&socket, 1)]).await;
    assert_eq!(client.held().resources, since + 1, "more was sent than the local change");
}

/// Waits until all responses have arrived: a change of the cluster `home` is the last of them.
async fn settled(client: &XdsClient, home: &Member) -> u64 {
    home.serve("pay", &["10.0.9.9"]);
    endpoints_until(client, "pay", &[("10.0.9.9:8080", 1)]).await;
    client.held().resources
}

#[tokio::test]
async fn loss_of_most_endpoints_is_delayed_by_the_policy() {
    const ALL: [&str; 6] = ["10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4", "10.0.1.5", "10.0.1.6"];
    let home = Member::start("home", "n1", "198.18.0.1").await;
    let far = Member::start("far", "n1", "198.18.0.2").await;
    home.serve("pay", &["10.0.0.1"]);
    far.serve("web", &ALL);
    let setup = Setup::new();
    let file = setup.path("policy.yaml");
    // The unknown cluster is reported, which shows which text is active.
    let rule = |hold: &str| {
        let rule = format!("massWithdrawal: {{above: 50%, atLeast: 3, hold: {hold}}}");
        let marker = format!("clusters: {{held-{hold}: {{mode: normal}}}}");
        let head = "apiVersion: strait.dev/v1\nkind: Policy";
        replace(&file, &format!("{head}\nmesh: {{{rule}}}\n{marker}\n"));
    };
    rule("10m");
    let name = file.display().to_string();
    let setup = setup.with(&["--policy", &name]);
    setup.join(&[&home, &far]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("home")).await;
    let at_port =
        |addresses: &[&str]| addresses.iter().map(|one| format!("{one}:8080")).collect::<Vec<_>>();
    let web = async |addresses: &[&str]| {
        let sockets = at_port(addresses);
        let expected: Vec<_> = sockets.iter().map(|one| (one.as_str(), 1)).collect();
        endpoints_until(&client, "web", &expected).await;
    };
    web(&ALL).await;

    // A loss up to the limit takes effect immediately.
    far.serve("web", &ALL[..4]);
    web(&ALL[..4]).await;
    // A larger loss is delayed. If the endpoints return meanwhile, the proxy receives no change.
    let since = settled(&client, &home).await;
    far.serve("web", &ALL[..1]);
    let entry = far_in(&server, "quarantined", "STR0606").await;
    assert!(entry["reason"].to_string().contains("3 of 4 ready endpoints"), "{entry}");
    undisturbed(&client, since, &home, "10.0.0.2").await;
    far.serve("web", &ALL[..4]);
    far_in(&server, "live", "").await;
    undisturbed(&client, since + 1, &home, "10.0.0.3").await;
    web(&ALL[..4]).await;

    // A loss that lasts longer takes effect. The removal of a whole service counts in the same way.
    rule("1s");
    wait_until(LIMIT, async || {
        let policy = server.admin.json("/debug/policy").await;
        holds(policy["unknownClusters"][0]["cluster"] == "held-1s", policy)
    })
    .await;
    far.api.store().delete("EndpointSlice", SHOP, "web-1").expect("it was there");
    wait_until(LIMIT, async || {
        let endpoints = client.held().endpoints(&outbound("web"));
        holds(endpoints.is_empty(), endpoints)
    })
    .await;
    far_in(&server, "live", "").await;
}

/// Takes more than a minute, most of it waiting, and needs a machine that is fast enough for five
/// losses of contact in two minutes.
#[tokio::test]
async fn flapping_cluster_is_frozen_and_retried() {
    if std::env::var_os("STRAIT_SOAK").is_none() {
        return super::traced::skip(
            "frozen::flapping_cluster_is_frozen_and_retried",
            "takes over a minute: STRAIT_SOAK=300 cargo test --workspace --test integration -- frozen",
        );
    }
    let home = Member::start("home", "n1", "198.18.0.1").await;
    let far = Member::start("far", "n1", "198.18.0.2").await;
    home.serve("pay", &["10.0.0.1"]);
    far.serve("web", &["10.0.1.1"]);
    let setup = Setup::new();
    setup.join(&[&home, &far]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("home")).await;
    endpoints_until(&client, "web", &[("10.0.1.1:8080", 1)]).await;
    let since = settled(&client, &home).await;

    // A loss counts after 3 s without contact, whether or not the cluster has become stale by then.
    let contact_is = async |wanted: fn(i64) -> bool| {
        wait_until(LIMIT, async || {
            let entry = server.cluster("far").await;
            let last: Option<jiff::Timestamp> =
                entry["lastContact"].as_str().and_then(|text| text.parse().ok());
            let age = last.map_or(0, |last| jiff::Timestamp::now().duration_since(last).as_secs());
            holds(wanted(age) || entry["state"] == "quarantined", &entry)
        })
        .await;
    };
    for _ in 0..20 {
        if server.cluster("far").await["state"] == "quarantined" {
            break;
        }
        far.api.stop().await;
        contact_is(|age| age >= 5).await;
        far.api.restart().await;
        contact_is(|age| age < 2).await;
    }
    let entry = far_in(&server, "quarantined", "next attempt in").await;
    assert!(entry["reason"].to_string().contains("STR0308"), "{entry}");
    // Its server works again, and its changes are delayed.
    far.serve("web", &["10.0.1.2"]);
    let requests = far.api.requests(|_| true).len();
    undisturbed(&client, since, &home, "10.0.0.2").await;
    assert_eq!(far.api.requests(|_| true).len(), requests, "no request is sent meanwhile");
    endpoints_until(&client, "web", &[("10.0.1.1:8080", 1)]).await;
    // It is tried again, watched, and reported to be on trial.
    far_in(&server, "quarantined", "on trial").await;
    endpoints_until(&client, "web", &[("10.0.1.2:8080", 1)]).await;
    assert_eq!(server.cluster("home").await["state"], "live");
}
