//! The timeline: each change with the object that caused it, and the proxies that have acknowledged
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::mesh::{Member, Proxy, SHOP, SOON, Server, Setup, endpoints_until, holds, wait_until};
use super::page::send_request;
use strait_xds::resource::ResourceType;
use strait_xds_client::Options;

/// Waits for the last change that passes, and returns it.
async fn change_until(server: &Server, test: impl Fn(&Value) -> bool) -> Value {
    wait_until(SOON, async || {
        let all = server.admin.json("/debug/events").await;
        let found = all.as_array().expect("a list").iter().rev().find(|one| test(one)).cloned();
        found.ok_or_else(|| format!("{all:#}"))
    })
    .await
}

#[tokio::test]
async fn change_has_its_cause_and_the_proxies_that_acknowledged_it() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let willing = server.connect(&setup, &Proxy::sidecar("east")).await;
    let options = Options { rejects: Some(ResourceType::Endpoint), ..Options::default() };
    let second = Proxy { name: "second", ip: "10.9.9.9".into(), ..Proxy::sidecar("east") };
    let unwilling = server.open(&setup, &second, options).await.expect("a stream");
    wait_until(SOON, async || {
        let contents = unwilling.held();
        holds(contents.rejected > 0, contents.rejected)
    })
    .await;

    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    endpoints_until(&willing, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    let change = change_until(&server, |change| {
        change["effect"] == "web.shop.svc.cluster.local: 1 -> 2 endpoints" && change["waiting"] == 0
    })
    .await;
    assert_eq!(change["cause"]["cluster"], "east", "{change:#}");
    let slice =
        json!({"cluster": "east", "kind": "EndpointSlice", "namespace": SHOP, "name": "web-1"});
    let others = change["otherCauses"].as_array().expect("a list");
    assert!(change["cause"] == slice || others.contains(&slice), "{change:#}");
    let counts = ["proxies", "acknowledged", "refused"].map(|name| change[name].as_u64());
    assert_eq!(counts, [Some(2), Some(1), Some(1)], "{change:#}");
    assert_eq!(change["refusedBy"], json!([second.id()]), "{change:#}");
    let steps = ["waitedMs", "publishedMs", "ms"].map(|name| change[name].as_f64());
    assert!(steps.is_sorted() && steps[0] > Some(0.0), "each step is later: {change:#}");

    // These proxies with times, and the error of the proxy that rejected it.
    let seq = change["seq"].as_u64().expect("a number");
    let whole = server.admin.json(&format!("/debug/events?seq={seq}")).await;
    let steps: BTreeMap<_, _> = whole["steps"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| (one["proxy"].as_str().unwrap_or_default(), one))
        .collect();
    let first = Proxy::sidecar("east").id();
    for (id, answer) in [(first, "acknowledged"), (second.id(), "refused")] {
        let step = steps.get(&*id).unwrap_or_else(|| panic!("{id}: {whole:#}"));
        assert_eq!(
            (&step["answer"], &step["cluster"]),
            (&json!(answer), &json!("east")),
            "{step:#}"
        );
        let times = ["sentMs", "answeredMs"].map(|name| step[name].as_f64());
        assert!(times[0] >= whole["publishedMs"].as_f64() && times.is_sorted(), "{whole:#}");
        assert!(times[1] <= whole["ms"].as_f64(), "{whole:#}");
    }
    let refusal = &whole["refusals"][0];
    assert_eq!(refusal["proxy"], second.id());
    assert!(refusal["error"].as_str().is_some_and(|text| text.contains("rejected")), "{whole:#}");
    let unknown = server.admin.text("/debug/events?seq=100000").await;
    assert!(unknown.0 == 404 && unknown.1.contains("there is no change 100000 yet"), "{unknown:?}");

    // A change without a difference for any proxy is sent to none, and an update without effect is
    // no change.
    east.api.store().delete("EndpointSlice", SHOP, "web-1").expect("it was there");
    let gone = change_until(&server, |change| {
        change["effect"] == "web.shop.svc.cluster.local: 2 -> 0 endpoints"
    })
    .await;
    assert!(gone["seq"].as_u64() > Some(seq), "{gone:#}");
    let since = server.admin.json(&format!("/debug/events?since={seq}")).await;
    let since: Vec<_> = since.as_array().expect("a list").iter().map(|one| &one["seq"]).collect();
    assert_eq!(since.first(), Some(&&json!(seq + 1)));

    let printed = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["events", "--since", &(seq - 1).to_string()])
        .env_clear()
        .env("STRAIT_SERVER", format!("http://{}", server.bound.admin))
        .env("STRAIT_TOKEN_FILE", &server.bound.token_file)
        .output()
        .await
        .expect("the program runs");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.contains("web.shop.svc.cluster.local: 1 -> 2 endpoints"), "{printed}");
    assert!(printed.contains("1 of 2, 1 refused"), "{printed}");
    let printed = super::mesh::text(&server.strait(&["events", &seq.to_string()]).await);
    for part in
        ["second.shop refused it: ", "client.shop   east", "acknowledged", "1 of 2, 1 refused"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    server.shut_down().await;
}

#[tokio::test]
async fn latency_metrics_refer_to_changes_of_the_timeline() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    let effect = "web.shop.svc.cluster.local: 1 -> 2 endpoints";
    let change = change_until(&server, |change| change["effect"] == effect).await;

    // The request of Prometheus.
    let accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5";
    let answer = send_request(&server, Method::GET, "/metrics", &[(header::ACCEPT, accept)]).await;
    let kind = answer.headers().get(header::CONTENT_TYPE).cloned().expect("a type");
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    let text = String::from_utf8(body.to_vec()).expect("text");
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let exemplars = text.lines().filter_map(|line| {
        let (sample, exemplar) = line.split_once(" # {version=\"")?;
        let bound =
            sample.strip_prefix("strait_propagation_seconds_bucket{le=\"")?.split('"').next()?;
        let (version, latency) = exemplar.split_once("\"} ")?;
        let bound = bound.replace("+Inf", "inf").parse::<f64>().ok()?;
        Some((bound, version.to_owned(), latency.parse::<f64>().ok()?))
    });
    let exemplars: Vec<_> = exemplars.collect();
    assert!(exemplars.iter().all(|(bound, _, took)| *took > 0.0 && took <= bound), "{exemplars:?}");
    let version = change["version"].to_string();
    assert!(exemplars.iter().any(|(_, of, _)| *of == version), "{exemplars:?} and {change:#}");

    // OpenMetrics requires that each family is declared once, and that counters end in _total, but
    // their families don't.
    let mut families = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a kind");
        // Metrics with istiod's names keep these names.
        let is_ours = !name.starts_with("citadel_");
        assert!((kind != "unknown" || !is_ours) && !name.ends_with("_total"), "{line}");
        assert_eq!(families.insert(name, kind), None, "{name} is declared twice");
    }
    for sample in text.lines().filter(|line| !line.starts_with('#')) {
        let name = sample.split(['{', ' ']).next().expect("a name");
        let family = families.get(name.strip_suffix("_total").unwrap_or(name));
        let from_histogram = ["_bucket", "_sum", "_count"].into_iter();
        let from_histogram = from_histogram.filter_map(|end| families.get(name.strip_suffix(end)?));
        let kinds: Vec<_> = family.into_iter().chain(from_histogram).collect();
        let is_counter = name.ends_with("_total");
        let fits =
            |kind: &&&str| if is_counter { **kind == "counter" } else { **kind != "counter" };
        assert!(kinds.iter().any(fits), "{sample}: {kinds:?}");
    }
}

#[tokio::test]
async fn changes_survive_a_restart_and_numbering_continues() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let first = setup.start_ready().await;
    let client = first.connect(&setup, &Proxy::sidecar("east")).await;
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1)]).await;
    let grown = |change: &Value| {
        change["effect"] == "web.shop.svc.cluster.local: 1 -> 2 endpoints"
            && change["waiting"] == 0
            && change["acknowledged"] == 1
    };
    let mut before = change_until(&first, grown).await;
    let steps = format!("/debug/events?seq={}", before["seq"]);
    let before_steps = first.admin.json(&steps).await["steps"].clone();
    assert_eq!(before_steps.as_array().map(Vec::len), Some(1), "{before_steps}");
    first.shut_down().await;

    let second = setup.start_ready().await;
    let after = change_until(&second, |change| change["seq"] == before["seq"]).await;
    assert_eq!(before["restored"], false);
    before["restored"] = json!(true);
    assert_eq!(after, before);
    assert_eq!(second.admin.json(&steps).await["steps"], before_steps);
    east.serve("web", &["10.0.0.1"]);
    let shrunk = change_until(&second, |change| {
        change["effect"] == "web.shop.svc.cluster.local: 2 -> 1 endpoint"
    })
    .await;
    assert!(shrunk["seq"].as_u64() > after["seq"].as_u64() && shrunk["restored"] == false);
    second.shut_down().await;
}

#[tokio::test]
async fn changes_are_streamed_as_server_sent_events() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    east.serve("web", &["10.0.0.1"]);
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let client = server.connect(&setup, &Proxy::sidecar("east")).await;
    endpoints_until(&client, "web", &[("10.0.0.1:8080", 1)]).await;
    let before = server.admin.json("/debug/events").await;
    let last =
        before.as_array().and_then(|all| all.last()).map_or(json!(0), |one| one["seq"].clone());

    let token = std::fs::read_to_string(&server.bound.token_file).expect("a token");
    let mut line = TcpStream::connect(server.bound.admin).await.expect("connected");
    let request = format!(
        "GET /debug/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nAccept: text/event-stream\r\nLast-Event-ID: {last}\r\n\r\n",
        token.trim()
    );
    line.write_all(request.as_bytes()).await.expect("sent");
    east.serve("web", &["10.0.0.1", "10.0.0.2"]);
    let mut received = String::new();
    let mut bytes = [0; 4096];
    let whole = |received: &str| {
        received.contains("event: answered") && received.contains("1 -> 2 endpoints")
    };
    while !whole(&received) {
        let read = timeout(Duration::from_secs(20), line.read(&mut bytes)).await;
        let count = read.unwrap_or_else(|_| panic!("no further event: {received}")).expect("read");
        assert!(count > 0, "the stream ended: {received}");
        received += &String::from_utf8_lossy(&bytes[..count]);
    }
    assert!(received.contains("content-type: text/event-stream"), "{received}");
    let first = received.find("event: change").expect("the event of the change");
    assert!(
        first < received.find("event: answered").expect("the event of its acknowledgement"),
        "{received}"
    );
    drop(line);
    server.shut_down().await;
}
