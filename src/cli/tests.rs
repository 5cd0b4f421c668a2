//! Golden tests of the commands' output, with files in `tests/cli/`. `BLESS=1` rewrites them.
//!
//! The inputs are responses of the admin API as described in docs/reference/interface.md, with
//! unusual names.

use std::path::{Path, PathBuf};

use clap::Parser;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::check::{CheckInputs, problems};
use super::client::AdminResponse;
use super::output::tests::{sent, typed};
use super::output::{Format, OutputStyle, Sent, Show, TableLayout};
use super::status::Status;
use super::{Cli, Command, bootstrap, cluster, explain, network, proxy, service};
use strait_admin_api::{Cluster, Explanation, Network, Proxy};
use strait_model::SdsFiles;

const LOOK: OutputStyle =
    OutputStyle { now: Timestamp::constant(1_795_242_600, 0), colour: false, unicode: true };

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli")
}

/// Reads a response of the admin API.
fn answer(name: &str) -> AdminResponse {
    let raw = std::fs::read_to_string(folder().join(format!("{name}.json"))).expect("an answer");
    let value = serde_json::from_str(&raw).expect("JSON");
    AdminResponse { raw, value }
}

fn show(output: Format) -> Show {
    Show { output, no_headers: false }
}

/// Compares the output with `tests/cli/NAME`.
fn check(name: &str, printed: &str) {
    let file = folder().join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, printed).expect("written");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(expected == printed, "{name} differs (BLESS=1 rewrites it); printed:\n{printed}");
    assert!(!printed.contains('\u{1b}'), "{name} holds an escape sequence");
}

#[test]
fn lists_are_tables() {
    list("cluster-list", "clusters", &cluster::CLUSTERS.listing);
    list("network-list", "networks", &network::NETWORKS.listing);
    list("service-list", "services", &service::SERVICES);
    list("endpoint-list", "endpoints", &service::ENDPOINTS);
    list("proxy-list", "proxies", &proxy::PROXIES.listing);
}

fn list<T: DeserializeOwned>(name: &str, input: &str, listing: &TableLayout<T>) {
    let AdminResponse { raw, value } = answer(input);
    let render = |format| listing.render(&raw, &value, &show(format), &LOOK).expect("rows");
    for (suffix, format) in [("", Format::Table), ("-wide", Format::Wide), ("-name", Format::Name)]
    {
        check(&format!("{name}{suffix}.txt"), &render(format));
    }
    assert_eq!(render(Format::Json), raw);
}

/// Adds a field to each object of a response, like a newer server.
fn with_a_new_field(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(with_a_new_field).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), with_a_new_field(value)));
            fields.chain([("addedLater".to_owned(), json!({ "a": [1] }))]).collect()
        }
        value => value.clone(),
    }
}

#[test]
fn lists_of_a_newer_server_are_shown_without_its_new_fields() {
    fn compare<T: DeserializeOwned>(name: &str, input: &str, listing: &TableLayout<T>) {
        // Maps by cluster have names as keys, so only rows and lists of objects get new fields.
        let mut value = answer(input).value;
        for row in value.as_array_mut().expect("rows") {
            row["addedLater"] = json!({ "a": [1] });
            for list in row.as_object_mut().expect("a row").values_mut() {
                if list.is_array() {
                    *list = with_a_new_field(list);
                }
            }
        }
        let shown = listing.render("", &value, &show(Format::Wide), &LOOK).expect("rows");
        check(&format!("{name}-wide.txt"), &shown);
    }
    compare("cluster-list", "clusters", &cluster::CLUSTERS.listing);
    compare("network-list", "networks", &network::NETWORKS.listing);
    compare("service-list", "services", &service::SERVICES);
    compare("endpoint-list", "endpoints", &service::ENDPOINTS);
    compare("proxy-list", "proxies", &proxy::PROXIES.listing);
    let mut explanation = answer("explain").value;
    explanation = with_a_new_field(&explanation);
    let of = first("proxies", |_: &Proxy| true);
    let shown = explain::render(&typed(explanation), &of, None, &show(Format::Table), &LOOK);
    check("explain.txt", &shown);
}

#[test]
fn objects_of_an_older_server_are_shown_although_they_lack_fields() {
    fn shown<T: DeserializeOwned>(row: Value, listing: &TableLayout<T>) -> String {
        listing.render("", &json!([row]), &show(Format::Wide), &LOOK).expect("a row")
    }
    let rows = [
        shown(json!({ "id": "only" }), &cluster::CLUSTERS.listing),
        shown(json!({ "network": "only" }), &network::NETWORKS.listing),
        shown(json!({ "hostname": "only" }), &service::SERVICES),
        shown(json!({ "address": "only" }), &service::ENDPOINTS),
        shown(json!({ "id": "~~only" }), &proxy::PROXIES.listing),
    ];
    for row in rows {
        assert!(row.lines().nth(1).is_some_and(|line| line.starts_with("only ")), "{row}");
    }
    let cluster = sent(json!({ "id": "only", "state": "hibernating" }));
    let described = cluster::CLUSTERS.one(&cluster, &show(Format::Table), &LOOK);
    assert!(described.contains("hibernating"), "{described}");
}

#[test]
fn response_of_another_form_is_an_error_with_a_next_step() {
    let listing = &cluster::CLUSTERS.listing;
    let clusters = json!([{ "id": 7 }]);
    let failure = listing.render("", &clusters, &show(Format::Table), &LOOK).expect_err("no text");
    assert!(failure.to_string().contains("can't be read"), "{failure}");
    let raw = listing.render("raw", &clusters, &show(Format::Json), &LOOK);
    assert_eq!(raw.expect("unchanged"), "raw", "scripts get the response as it is");
}

/// Returns the row of a response that fits.
fn first<T: DeserializeOwned + Clone>(name: &str, fits: impl Fn(&T) -> bool) -> Sent<T> {
    let rows: Vec<Sent<T>> = answer(name).rows().expect("rows");
    rows.iter().find(|row| fits(row)).expect("a row").clone()
}

#[test]
fn one_object_is_described() {
    let table = show(Format::Table);
    let cluster = first("clusters", |row: &Cluster| row.id == "prod-ap");
    check("cluster-get.txt", &cluster::CLUSTERS.one(&cluster, &table, &LOOK));
    let network = |name: &str| first("networks", |row: &Network| row.network == name);
    check("network-get.txt", &network::NETWORKS.one(&network("eu-west"), &table, &LOOK));
    check("network-get-bare.txt", &network::NETWORKS.one(&network("ap-sg"), &table, &LOOK));
    let proxies: Vec<Sent<Proxy>> = answer("proxies").rows().expect("rows");
    let found = proxy::find(&proxies, "sleep-7f.sample@prod-eu");
    let found = found.expect("one fits").expect("a proxy");
    check("proxy-get.txt", &proxy::PROXIES.one(found, &table, &LOOK));
    let endpoints: Vec<_> = answer("endpoints").read().expect("rows");
    let service = service::get(&answer("services"), &endpoints, &table, &LOOK);
    check("service-get.txt", &service.expect("a service"));
    let config = answer("config_dump");
    check("proxy-config.txt", &proxy::config(&config.raw, &config.value, found, &table, &LOOK));
}

#[test]
fn explanations_end_at_the_first_failed_step() {
    let proxies: Vec<Proxy> = answer("proxies").read().expect("rows");
    let of = &proxies[0];
    let answer: Explanation = answer("explain").read().expect("an explanation");
    check("explain.txt", &explain::render(&answer, of, None, &show(Format::Table), &LOOK));
    check("explain-wide.txt", &explain::render(&answer, of, None, &show(Format::Wide), &LOOK));
    let ascii = OutputStyle { unicode: false, ..LOOK };
    let mut one = answer;
    one.endpoints = vec![one.endpoints[3].clone()];
    check(
        "explain-address.txt",
        &explain::render(&one, of, Some("10.3.0.1"), &show(Format::Table), &ascii),
    );
}

#[test]
fn ambiguous_proxy_names_are_rejected() {
    let stream = |key: &str, cluster: &str, id: &str, at: &str| {
        let id = format!("sidecar~{id}~client.shop~shop.svc.cluster.local");
        sent(
            json!({ "key": key, "id": id, "cluster": cluster, "network": cluster, "connectedAt": at }),
        )
    };
    let rows = [
        stream("client.shop-1", "east", "10.0.0.1", "2026-01-01T00:00:01Z"),
        stream("client.shop-2", "east", "10.0.0.1", "2026-01-01T00:00:02Z"),
        stream("client.shop-3", "west", "10.0.0.1", "2026-01-01T00:00:03Z"),
        stream("client.shop-4", "west", "10.0.0.2", "2026-01-01T00:00:04Z"),
    ];
    let key = |wanted: &str| match proxy::find(&rows, wanted) {
        Ok(found) => found.map(|found: &Sent<Proxy>| found.key.clone()).unwrap_or_default(),
        Err(failure) => format!("{} {failure}", failure.exit as u8),
    };
    assert_eq!(key("client.shop@east"), "client.shop-2", "its newest stream");
    assert_eq!(key("client.shop-1"), "client.shop-1");
    assert_eq!(key("sidecar~10.0.0.2~client.shop~shop.svc.cluster.local"), "client.shop-4");
    assert_eq!(key("client.other"), "");
    let all = key("client.shop");
    assert!(all.starts_with("64 error: client.shop matches 3 proxies"), "{all}");
    for named in ["client.shop@east", "client.shop-3 ", "client.shop-4 ", "network west"] {
        assert!(all.contains(named), "{named}: {all}");
    }
    // Pods in two networks may have the same address, and therefore the same node ID.
    let same = key("sidecar~10.0.0.1~client.shop~shop.svc.cluster.local");
    assert!(same.starts_with("64 ") && same.contains("client.shop@west"), "{same}");
}

#[test]
fn status_names_every_problem() {
    let (clusters, networks, proxies) = (
        sent(answer("clusters").value),
        sent(answer("networks").value),
        sent(answer("proxies").value),
    );
    let answers = CheckInputs { clusters, networks, proxies, ..CheckInputs::default() };
    let found = problems(&answers);
    let whole = Status::of(answers, &found);
    check("status.txt", &whole.render(&show(Format::Table), &LOOK));
}

#[test]
fn explain_is_unhealthy_if_a_ready_endpoint_is_withheld() {
    use super::failure::Exit;
    let endpoint = |verdict: &str, failed: &str| {
        let steps = if failed.is_empty() {
            vec![]
        } else {
            vec![serde_json::json!({"step": failed, "ok": false})]
        };
        serde_json::json!({ "verdict": verdict, "steps": steps })
    };
    let sent = || endpoint("direct", "");
    for (endpoints, asked, expected) in [
        (vec![sent()], None, Exit::Fine),
        (vec![sent(), endpoint("withheld", "ready")], None, Exit::Fine),
        (vec![sent(), endpoint("withheld", "gateway")], None, Exit::Unhealthy),
        (vec![endpoint("withheld", "ready")], None, Exit::Unhealthy),
        (vec![], None, Exit::Unhealthy),
        (vec![endpoint("withheld", "ready")], Some("10.0.0.1"), Exit::Unhealthy),
        (vec![sent()], Some("10.0.0.1"), Exit::Fine),
    ] {
        let answer = serde_json::json!({ "endpoints": endpoints });
        assert_eq!(explain::verdict(&typed(answer.clone()), asked), expected, "{answer}");
    }
    // Endpoints of an unreachable cluster are withdrawn, although they were ready.
    let clusters = serde_json::json!([{ "code": strait_base::codes::CLUSTER_DARK.id }]);
    let partly = serde_json::json!({ "endpoints": [sent()], "clusters": clusters });
    assert_eq!(explain::verdict(&typed(partly), None), Exit::Unhealthy);
    let notes = ["STR0507: the proxy refused the last eds response"];
    let rejected = serde_json::json!({ "endpoints": [sent()], "notes": notes });
    assert_eq!(explain::verdict(&typed(rejected), None), Exit::Unhealthy);
    // A service that the proxy resolves itself needs no endpoints.
    let passed_on = serde_json::json!({ "endpoints": [], "found": "as the client asks (NONE)" });
    let passed_on = typed(passed_on);
    assert_eq!(explain::verdict(&passed_on, None), Exit::Fine);
    assert_eq!(explain::verdict(&passed_on, Some("10.0.0.1")), Exit::Unhealthy);
    let of = Proxy::default();
    let shown = explain::render(&passed_on, &of, None, &show(Format::Table), &LOOK);
    assert!(shown.contains("as the client asks") && !shown.contains("No cluster"), "{shown}");
}

#[test]
fn status_lists_problems_of_sources_and_counts_notes() {
    let sources = typed(json!([
        { "name": "consul", "kind": "consul", "state": "stale", "code": "STR0320", "reason": "500" },
        { "name": "entries", "kind": "entries", "state": "live", "warnings": ["shop/a: no hosts"] },
        { "name": "xds://a", "kind": "mcp", "state": "restored", "warnings": [] },
    ]));
    let mesh = typed(json!({ "problems": [{ "code": "STR0110", "text": "line 3" }] }));
    let answers = CheckInputs { sources, mesh, ..CheckInputs::default() };
    let found = problems(&answers);
    let whole = Status::of(answers, &found).to_json();
    assert_eq!(
        whole["problems"],
        serde_json::json!([
            "source consul: STR0320: stale: 500",
            "source entries: STR0221: shop/a: no hosts",
            "meshConfig: STR0110: line 3",
        ])
    );
    assert_eq!(whole["notes"], 1);
}

#[test]
fn status_lists_the_first_service_conflicts() {
    let service = |number: usize| {
        typed(json!({
            "hostname": format!("s{number}.shop"),
            "conflicts": [{ "field": "ports", "winner": "east", "losers": ["west"] }],
        }))
    };
    let services = (0..10).map(service).collect();
    let answers = CheckInputs { services, ..CheckInputs::default() };
    let found = problems(&answers);
    let whole = Status::of(answers, &found);
    let conflicts = whole.to_json()["conflicts"].as_array().map(Vec::len);
    assert_eq!(conflicts, Some(10), "scripts have them all");
    let shown = whole.render(&show(Format::Table), &LOOK);
    let first = "  service s0.shop: STR0430: ports: west and east differ; east wins; all ports are served\n";
    assert!(shown.contains(first) && shown.contains("CONFLICTS   10\n"), "{shown}");
    assert!(shown.contains("s7.shop") && !shown.contains("s8.shop"), "{shown}");
    assert!(shown.ends_with("  and 2 more conflicts (strait check services)\n"), "{shown}");
}

#[test]
fn invalid_flag_values_are_rejected() {
    for (flag, bad, good) in [
        (
            "--log-level",
            &["foo", "info,foo", "info=", "h2=debug"][..],
            &["off", "info,strait::xds=debug"][..],
        ),
        ("--max-connections", &["0", "-1"], &["1"]),
        ("--namespace", &["Bad NS", "", "a.b", "-a"], &["istio-system"]),
        ("--trust-domain", &["Bad Td!", "a/b"], &["west.example"]),
        ("--domain", &["Bad Td!", "a..b", ".a", "-a.b"], &["cluster.local", "local"]),
        ("--cluster-id", &["Bad_ID", "a_b"], &["prod-eu.1"]),
    ] {
        let parsed = |value: &str| {
            let line = ["strait", "serve", "--config-dir", "/x", &format!("{flag}={value}")];
            Cli::try_parse_from(line).map(drop)
        };
        for value in bad {
            let error = parsed(value).expect_err(value).to_string();
            assert!(error.contains(flag), "{error}");
        }
        for value in good {
            parsed(value).expect(value);
        }
    }
}

/// Returns the output of `strait proxy bootstrap` with these flags, without SDS files.
fn bootstrap(flags: &str) -> Result<String, String> {
    bootstrap_with(flags, None)
}

/// Returns the output of `strait proxy bootstrap` with these flags and SDS files.
fn bootstrap_with(flags: &str, sds: Option<&SdsFiles>) -> Result<String, String> {
    let line = format!("strait proxy bootstrap {flags}");
    let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
    let Command::Proxy(proxy::ProxyCommand::Bootstrap(args)) = cli.command else {
        return Err("another command".into());
    };
    bootstrap::render(&args, sds).map_err(|failure| failure.to_string())
}

const WHO: &str = "--type sidecar --name web-0 --namespace shop --service-account web --cluster east \
    --cert /c/cert-chain.pem --key /c/key.pem --root-ca /c/root-cert.pem";

#[test]
fn bootstrap_contains_identity_and_control_plane() {
    let sidecar = "--network n1 --ip 10.0.0.5 --ip fd00::5 --label app=web --label version=1.0 --discovery strait.strait-system.svc.cluster.local:15012";
    let files =
        SdsFiles { certificate: "/c/sds-cert.yaml".into(), roots: "/c/sds-roots.yaml".into() };
    let printed = bootstrap_with(&format!("{WHO} {sidecar}"), Some(&files));
    check("bootstrap-sidecar.yaml", &printed.expect("printed"));
    let address =
        "--ip 10.0.0.5 --discovery [::1]:15012 --protocol sotw --admin-address 127.0.0.1:0";
    check("bootstrap-address.yaml", &bootstrap(&format!("{WHO} {address}")).expect("printed"));
}

#[test]
fn vhds_flag_enables_virtual_hosts_one_by_one() {
    let rest = "--ip 10.0.0.5 --discovery a:1";
    let [without, with] = ["", "--vhds"].map(|flag| {
        let printed = bootstrap(&format!("{WHO} {rest} {flag}")).expect("printed");
        printed.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let added: Vec<_> = with.iter().filter(|line| !without.contains(line)).collect();
    assert_eq!((added.len(), with.len()), (1, without.len() + 1), "{with:#?}");
    assert!(added[0].contains("STRAIT_VHDS") && added[0].contains("\"true\""), "{added:?}");
}

#[test]
fn bootstrap_flags_select_statistics_and_service_metrics() {
    let rest = "--ip 10.0.0.5 --discovery a:1 -o json";
    let flags = "--service-metrics --stats-inclusion-prefix cluster.outbound \
        --stats-inclusion-suffix _rq --stats-inclusion-regexp a.*b";
    let [without, with] = ["", flags].map(|flags| {
        let printed = bootstrap(&format!("{WHO} {rest} {flags}")).expect("printed");
        serde_json::from_str::<Value>(&printed).expect("JSON")
    });
    assert_eq!(with["node"]["metadata"]["STRAIT_SERVICE_METRICS"], "true");
    assert_eq!(with["bootstrap_extensions"][0]["name"], "envoy.bootstrap.wasm");
    assert!(without.get("bootstrap_extensions").is_none(), "{without}");
    let patterns = |bootstrap: &Value| {
        let matcher = &bootstrap["stats_config"]["stats_matcher"];
        matcher["inclusion_list"]["patterns"].as_array().cloned().unwrap_or_default()
    };
    let (usual, all) = (patterns(&without), patterns(&with));
    let added: Vec<_> = all.into_iter().filter(|one| !usual.contains(one)).collect();
    let expected = json!([
        {"prefix": "cluster.outbound"}, {"suffix": "_rq"}, {"safe_regex": {"regex": "a.*b"}},
    ]);
    assert_eq!(Value::Array(added), expected);
}

#[test]
fn invalid_bootstrap_flags_are_rejected() {
    let rest = "--ip 10.0.0.5 --discovery a:1";
    for (flags, said) in [
        ("--ip 10.0.0.5 --discovery a", "HOST:PORT"),
        ("--ip 10.0.0.5 --discovery ::1:15012", "HOST:PORT"),
        ("--ip 10.0.0.5 --discovery a:0", "HOST:PORT"),
        ("--ip 10.0.0 --discovery a:1", "--ip"),
        ("--discovery a:1", "--ip"),
        (&format!("{rest} --label app"), "KEY=VALUE"),
        (&format!("{rest} --domain a~b"), "--domain"),
        (&format!("{rest} --vhds --protocol sotw"), "--vhds requires the Delta protocol"),
        (&format!("{rest} -o table"), "yaml or -o json"),
    ] {
        let refused = bootstrap(&format!("{WHO} {flags}")).expect_err(flags);
        assert!(refused.contains(said), "{flags}: {refused}");
    }
    for (old, new, said) in [
        ("--cluster east", "--cluster East", "--cluster"),
        ("--namespace shop", "--namespace a.b", "dot"),
        ("--name web-0", "--name a~b", "--name"),
        ("--type sidecar", "--type ztunnel", "sidecar or router"),
    ] {
        let flags = format!("{} {rest}", WHO.replace(old, new));
        let refused = bootstrap(&flags).expect_err(new);
        assert!(refused.contains(said), "{new}: {refused}");
    }
}

#[test]
fn every_flag_is_well_formed() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
