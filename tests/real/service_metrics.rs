//! Service metrics of a sidecar whose bootstrap requests them: they equal the counted requests and
//! have Istio's names and labels. Statistics of upstream clusters have the names of their services
//! as labels, and are few. An Envoy without the access logger is served without the metrics.

use std::collections::BTreeSet;

use crate::host::Host;
use crate::kube::{Request, path, pod};
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, http, tcp};
use crate::wait;
use crate::world::{Proxy, World, pod_labels};

/// A pod with the newer Envoy, and one with the older Envoy.
const PODS: [(&str, &str); 2] = [("metered", "10.10.0.63"), ("metered-old", "10.10.0.64")];
const REQUESTS: usize = 40;
const CONNECTIONS: usize = 10;
/// The maximum number of series of one upstream cluster.
const SERIES_MAX: usize = 100;

pub(crate) fn run(world: &mut World, host: &Host) {
    let pods = PODS.map(|(name, ip)| pod("shop", name, "client", ip, &pod_labels("client")));
    world.apiservers["a"].apply(&pods);
    let programs = [Some(host.envoy.clone()), host.envoy_old.clone()];
    let mut keys = Vec::new();
    for ((name, ip), program) in PODS.into_iter().zip(programs) {
        let Some(program) = program else { continue };
        let netns = world.topology.pod("a", name, ip);
        let proxy = Proxy { protocol: "metrics", ..Proxy::sidecar("a", name, "client", ip) };
        world.start_proxy(host, &program, &proxy, netns);
        let key = format!("a/{name}");
        world.envoys.get_mut(&key).expect("just started").wait_until_live(PROPAGATION);
        let answers = run_load(world.pod(&key), &http(REQUESTS));
        assert_eq!(answers.by.values().sum::<usize>(), REQUESTS, "{answers:?}");
        let answers = run_load(world.pod(&key), &tcp(CONNECTIONS));
        assert_eq!(answers.by.values().sum::<usize>(), CONNECTIONS, "{answers:?}");
        keys.push(key);
    }

    let metered = world.envoy(&keys[0]);
    let is_there = |line: &&str, labels: &[&str]| labels.iter().all(|label| line.contains(label));
    let sum = |text: &str, metric: &str, labels: &[&str]| -> usize {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
        let values = lines.filter(|line| is_there(line, labels)).filter_map(|line| {
            let (_, value) = line.rsplit_once(' ')?;
            value.parse::<usize>().ok()
        });
        values.sum()
    };
    let service = [
        "reporter=\"source\"",
        "destination_service=\"echo.shop.svc.cluster.local\"",
        "destination_service_name=\"echo\"",
        "destination_service_namespace=\"shop\"",
        "response_flags=\"-\"",
        "destination_principal=\"spiffe://cluster.local/ns/shop/sa/echo\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
    ];
    let with = |more: &[&'static str]| [&service[..], more].concat();
    let requests = with(&["request_protocol=\"http\"", "response_code=\"200\""]);
    let connections = with(&["request_protocol=\"tcp\""]);
    for (metric, labels, expected) in [
        ("istio_requests_total", &requests, REQUESTS),
        ("istio_request_duration_milliseconds_count", &requests, REQUESTS),
        ("istio_tcp_connections_opened_total", &connections, CONNECTIONS),
        ("istio_tcp_connections_closed_total", &connections, CONNECTIONS),
    ] {
        wait::until(PROPAGATION, &format!("{metric} is {expected}"), || {
            let text = metered.get("/stats/prometheus");
            let found = sum(&text, metric, labels);
            let lines: Vec<_> = text.lines().filter(|line| line.starts_with(metric)).collect();
            if found == expected { Ok(()) } else { Err(format!("{found}: {lines:#?}")) }
        });
    }

    for key in &keys {
        let text = world.envoy(key).get("/stats/prometheus");
        let cluster = "envoy_cluster_name=\"outbound|80||echo.shop.svc.cluster.local\"";
        let labels = [
            cluster,
            "direction=\"outbound\"",
            "upstream_port=\"80\"",
            "upstream_service=\"echo.shop.svc.cluster.local\"",
            "upstream_namespace=\"shop\"",
        ];
        assert_eq!(sum(&text, "envoy_cluster_upstream_rq_total", &labels), REQUESTS, "{key}");
        let series = text.lines().filter(|line| line.contains(cluster)).count();
        assert!((20..SERIES_MAX).contains(&series), "{key}: {series} series of one cluster");
        let names: BTreeSet<&str> =
            text.lines().filter_map(|line| Some(line.split_once('{')?.0)).collect();
        let named: Vec<_> = names.iter().filter(|name| name.contains("svc")).collect();
        assert!(named.is_empty(), "{key}: names contain a part of a host: {named:?}");
    }
    if let Some(old) = keys.get(1) {
        let text = world.envoy(old).get("/stats/prometheus");
        assert!(
            !text.contains("istio_requests_total"),
            "an old Envoy has no access logger for them"
        );
    }
    assert_eq!(world.complaints(), Vec::<String>::new());

    let gone: Vec<_> = pods.iter().map(path).collect();
    let gone: Vec<_> = gone.iter().map(|path| Request::delete(path)).collect();
    world.apiservers["a"].requests(&gone);
    keys.iter().for_each(|key| _ = world.envoys.remove(key));
}
