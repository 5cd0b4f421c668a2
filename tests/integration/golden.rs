//! Golden tests of the resources that proxies receive: the cases are the files of `tests/golden/`
//! (its README explains the format).
//!
//! Runs every case through the whole pipeline, compares the resources of a proxy and the responses
//! of the admin API with the files of the case, and reports all cases that differ. Properties of
//! every case are asserted here: both variants of the protocol give the same result, and so does
//! the config dump.

#![expect(clippy::panic, reason = "an unreadable file fails its case and is named")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::archive::Archive;
use super::harness::{Collection, Estate, LIMIT, Setup, Trust, to_json};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_xds::resource::ResourceType;
use strait_xds_client::{XdsClient, XdsConnectError};

/// The number of concurrent cases. Each waits most of the time.
const AT_ONCE: usize = 6;
/// The text for a resource that is not relevant to the case.
const NOT_SHOWN: &str = "(not shown)";
/// The creation time of objects without one.
const CREATED: &str = "2026-01-01T00:00:00Z";
/// The order of steps in an explanation (docs/reference/interface.md, "Admin HTTP").
const STEPS: [&str; 7] = ["ready", "pod", "export", "network", "gateway", "family", "mtls"];

/// Runs all cases. `BLESS=1` overwrites differing files; `GOLDEN=text` runs only the cases whose
/// names contain the text.
#[test]
#[expect(clippy::disallowed_methods, reason = "a panic is reported with its case")]
fn every_golden_case_matches() {
    let wanted = std::env::var("GOLDEN").unwrap_or_default();
    let mut cases: Vec<PathBuf> = fs::read_dir(root())
        .expect("the folder of cases")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|end| end == "txtar"))
        .filter(|path| file_name(path).contains(&wanted))
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "no case is named {wanted:?}");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let mut failures = runtime.block_on(async {
        let trust = Arc::new(Trust::new());
        let runs = cases.into_iter().map(|case| {
            let trust = Arc::clone(&trust);
            async move {
                let run = tokio::spawn(run(case.clone(), trust));
                let problem = match tokio::time::timeout(3 * LIMIT, run).await {
                    Ok(Ok(problems)) => problems,
                    Ok(Err(panic)) => format!("{panic}\n"),
                    Err(_) => "it never ended\n".to_owned(),
                };
                (file_name(&case), problem)
            }
        });
        let runs = futures::stream::iter(runs).buffer_unordered(AT_ONCE);
        runs.filter(|(_, problem)| std::future::ready(!problem.is_empty()))
            .collect::<Vec<_>>()
            .await
    });
    failures.sort();
    let report = failures.iter().fold(String::new(), |mut text, (case, problem)| {
        let _ = write!(text, "\n=== {case}\n{problem}");
        text
    });
    assert!(failures.is_empty(), "{} cases differ\n{report}", failures.len());
}

/// A proxy of a case.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProxyFile {
    #[serde(rename = "type", default = "sidecar")]
    kind: String,
    name: String,
    namespace: String,
    service_account: String,
    cluster: String,
    /// The certificate's trust domain.
    #[serde(default = "cluster_local")]
    trust_domain: String,
    /// The cluster's ID in the mesh, if `cluster` is an alias.
    known_in: Option<String>,
    /// Its addresses. The first is in the node ID.
    ips: Vec<String>,
    /// Its network; without it, the control plane derives one.
    network: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Additional metadata.
    #[serde(default)]
    metadata: Map<String, Value>,
    /// The version of Envoy, such as `1.36`; without it, the proxy reports none.
    envoy: Option<String>,
    /// Additional declarations, as extensions in the node.
    #[serde(default)]
    extensions: Vec<Value>,
    /// The listeners that it subscribes to by name, as gRPC's own library does. Routes, upstream
    /// clusters and assignments follow.
    #[serde(default)]
    ask: Vec<String>,
    /// The services in `explain.txt`, as `name.namespace` or with `:port`.
    #[serde(default)]
    explain: Vec<String>,
    /// The requests in `route.txt`: `METHOD URL`, followed by `K:V` for each header, `sni=S`,
    /// `from=NS/SA`, `httpProxy=PORT`.
    #[serde(default)]
    requests: Vec<String>,
    /// The resources to show by type (`cds`, ...), where `*` at the end of a name matches any rest,
    /// and the fields of each, as paths with `*` for the items of a list. Without paths, all fields
    /// are shown. Other resources are shown only by name. A type without an entry is shown
    /// completely.
    #[serde(default)]
    show: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

fn cluster_local() -> String {
    "cluster.local".into()
}

fn sidecar() -> String {
    "sidecar".into()
}

impl ProxyFile {
    fn node(&self) -> Node {
        let Self { kind, name, namespace, cluster, ips, .. } = self;
        let ip = ips.first().expect("a proxy has an address");
        let mut metadata = json!({
            "CLUSTER_ID": cluster,
            "NAMESPACE": namespace,
            "SERVICE_ACCOUNT": self.service_account,
            "INSTANCE_IPS": ips.join(","),
            "LABELS": self.labels,
        });
        if let Some(network) = &self.network {
            metadata["NETWORK"] = json!(network);
        }
        let fields = metadata.as_object_mut().expect("made above");
        fields.extend(self.metadata.clone());
        let node = json!({
            "user_agent_name": self.envoy.as_ref().map(|_| "envoy"),
            "user_agent_version": self.envoy,
            "id": format!("{kind}~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local"),
            "metadata": metadata,
            "extensions": self.extensions,
        });
        let bytes = strait_proto::json::from_json("envoy.config.core.v3.Node", &node);
        prost::Message::decode(&*bytes.expect("a node")).expect("a node")
    }
}

/// Runs one case. Returns the differences as text. The text is empty if the results are equal.
async fn run(file: PathBuf, trust: Arc<Trust>) -> String {
    let mut archive = Archive::parse(&text(&file));
    let folder = tempfile::tempdir().expect("a folder");
    archive.unpack(folder.path());
    let report = run_in(folder.path().to_owned(), trust).await;
    if blesses() {
        archive.pack_again(folder.path());
        fs::write(&file, archive.to_text()).expect("written");
    }
    report
}

fn blesses() -> bool {
    std::env::var_os("BLESS").is_some()
}

async fn run_in(case: PathBuf, trust: Arc<Trust>) -> String {
    let estate = Estate::start(&setup(&case), &trust).await;
    let mut found = Findings { report: String::new(), compared: 0 };
    let proxies = files(&case, |name| name == "proxy.yaml" || name.starts_with("proxy-"));
    for file in &proxies {
        let proxy: ProxyFile = parse_document(file);
        let stem = file_name(file).replace(".yaml", "");
        let expected = match stem.strip_prefix("proxy-") {
            Some(name) => case.join("expected").join(name),
            None => case.join("expected"),
        };
        found.compare_proxy(&estate, &trust, &proxy, &expected).await;
    }
    found.compare_mesh(&estate, &case.join("expected")).await;
    estate.stop().await;
    if found.compared == 0 {
        found.report +=
            "the case compares nothing: create empty files in expected/ and run with BLESS=1\n";
    }
    found.report
}

/// Reads everything except the proxies and the expected results: `<cluster>.yaml`, `mesh.yaml`,
/// `config.yaml`, `networks.yaml`, `secret-annotations.yaml`, `secret-created.yaml`, `flags.yaml`.
fn setup(case: &Path) -> Setup {
    let mut setup = Setup::default();
    for file in files(case, |name| name.ends_with(".yaml") && !name.starts_with("proxy")) {
        let name = file_name(&file);
        let path = file.to_str().expect("UTF-8").to_owned();
        match name.trim_end_matches(".yaml") {
            "mesh" => setup.flags.extend(["--mesh-config".to_owned(), path]),
            "networks" => setup.flags.extend(["--mesh-networks".to_owned(), path]),
            "config" => setup.config = text(&file),
            "flags" => setup.flags.extend(parse_document::<Vec<String>>(&file)),
            "secret-annotations" => setup.annotations = parse_document(&file),
            "secret-created" => setup.created = parse_document(&file),
            cluster => {
                let objects = serde_saphyr::from_multiple(&text(&file));
                let mut objects: Vec<Value> =
                    objects.unwrap_or_else(|error| panic!("{path}: {error}"));
                for object in &mut objects {
                    // Without a fixed time, the clock would decide which of two objects is older.
                    let created = &mut object["metadata"]["creationTimestamp"];
                    if created.is_null() {
                        *created = json!(CREATED);
                    }
                }
                setup.clusters.insert(cluster.to_owned(), objects);
            }
        }
    }
    setup
}

struct Findings {
    report: String,
    /// The number of compared files.
    compared: usize,
}

impl Findings {
    async fn compare_proxy(
        &mut self,
        estate: &Estate,
        trust: &Trust,
        proxy: &ProxyFile,
        expected: &Path,
    ) {
        let tls = trust.workload(&proxy.trust_domain, &proxy.namespace, &proxy.service_account);
        let client = estate.connect(proxy.node(), Arc::clone(&tls)).await;
        let collected =
            tokio::time::timeout(LIMIT, estate.collect(proxy.node(), tls, &proxy.ask)).await;
        let collected = collected.expect("all requested resources are sent");
        let refused = collected.as_ref().err().map(|status| status.message().to_owned() + "\n");
        self.compare_text(&expected.join("refused.txt"), refused.as_deref().unwrap_or(""));
        match (collected, client) {
            (Ok(collected), Ok(mut client)) => {
                // A library uses only one variant.
                if proxy.ask.is_empty() {
                    self.holds_the_same(&mut client, &collected, estate, proxy).await;
                }
                self.explained(estate, proxy, expected).await;
                self.configured(estate, expected).await;
                self.compare_routes(estate, proxy, expected).await;
                for kind in ResourceType::ALL {
                    let shown = shown(proxy, kind, &collected);
                    self.compare(&expected.join(format!("{}.yaml", kind.short())), &shown);
                }
            }
            (Err(status), client) => {
                let delta = refusal(client).await;
                if !delta.contains(status.message()) {
                    let _ = writeln!(self.report, "delta is refused otherwise: {delta}");
                }
            }
            (Ok(_), Err(error)) => {
                let _ = writeln!(self.report, "delta alone is refused: {error}");
            }
        }
    }

    /// Compares both variants, and the config dump.
    async fn holds_the_same(
        &mut self,
        client: &mut XdsClient,
        collected: &Collection,
        estate: &Estate,
        proxy: &ProxyFile,
    ) {
        let delta = |contents: &strait_xds_client::ClientContents| -> Collection {
            let by_kind = |kind| {
                let body = |name: &str| contents.body(kind, name).expect("named").to_vec();
                (kind, contents.names(kind).map(|name| (name.to_owned(), body(name))).collect())
            };
            ResourceType::ALL.into_iter().map(by_kind).collect()
        };
        let same = client.wait_for(|contents| delta(contents) == *collected);
        if tokio::time::timeout(LIMIT, same).await.is_err() {
            let (sotw, delta) = (readable(collected), readable(&delta(&client.held())));
            let _ = write!(self.report, "SotW (-) and delta (+) differ:\n{}", diff(&sotw, &delta));
        }
        let cluster = proxy.known_in.as_ref().unwrap_or(&proxy.cluster);
        let name = format!("{}.{}@{cluster}", proxy.name, proxy.namespace);
        let dump = estate.get(&format!("/debug/config_dump?proxy={name}")).await;
        for kind in ResourceType::ALL {
            let dumped: BTreeMap<&str, &Value> = dump[kind.short()]
                .as_array()
                .expect("a list by type")
                .iter()
                .map(|entry| (entry["name"].as_str().expect("a name"), &entry["resource"]))
                .collect();
            let received: BTreeMap<&str, Value> = collected
                .get(&kind)
                .into_iter()
                .flatten()
                .map(|(name, body)| (name.as_str(), to_json(kind, body)))
                .collect();
            if dumped != received.iter().map(|(name, body)| (*name, body)).collect() {
                let _ = writeln!(self.report, "the config dump shows other {}", kind.short());
            }
        }
    }

    /// Compares the response of `/debug/explain`, as lines.
    async fn explained(&mut self, estate: &Estate, proxy: &ProxyFile, expected: &Path) {
        let cluster = proxy.known_in.as_ref().unwrap_or(&proxy.cluster);
        let name = format!("{}.{}@{cluster}", proxy.name, proxy.namespace);
        let mut lines = String::new();
        for service in &proxy.explain {
            let (hostname, port) = match service.split_once(':') {
                Some((hostname, port)) => (hostname, format!("&port={port}")),
                None => (service.as_str(), String::new()),
            };
            let query = format!("/debug/explain?proxy={name}&hostname={hostname}{port}");
            let answer = estate.get(&query).await;
            lines += &self.explanation(&answer);
        }
        self.compare_text(&expected.join("explain.txt"), &lines);
    }

    /// Compares the paths of requests in `/debug/explain/route`, as lines.
    async fn compare_routes(&mut self, estate: &Estate, proxy: &ProxyFile, expected: &Path) {
        let name = format!("{}.{}@{}", proxy.name, proxy.namespace, proxy.cluster);
        let mut lines = String::new();
        for request in &proxy.requests {
            let parts: Vec<&str> = request.split_whitespace().collect();
            let [method, url, more @ ..] = &parts[..] else {
                panic!("{request:?} is not a request")
            };
            let mut query = format!("proxy={name}&method={method}&url={}", escaped(url));
            for part in more {
                let (field, value) = match part.split_once('=') {
                    Some((field @ ("sni" | "from" | "httpProxy"), value)) => (field, value),
                    _ => ("header", *part),
                };
                let _ = write!(query, "&{field}={}", escaped(value));
            }
            let answer = estate.get(&format!("/debug/explain/route?{query}")).await;
            let _ = writeln!(lines, "{request}");
            lines += &request_path(&answer);
        }
        self.compare_text(&expected.join("route.txt"), &lines);
    }

    /// Compares the response of `/debug/config` while the proxy is connected, as lines.
    async fn configured(&mut self, estate: &Estate, expected: &Path) {
        let file = expected.join("config.txt");
        if !file.exists() {
            return;
        }
        let mut lines = String::new();
        for object in list(&estate.get("/debug/config").await) {
            let [kind, namespace, name, state] =
                ["kind", "namespace", "name", "state"].map(|field| as_text(&object[field]));
            let proxies = &object["proxies"];
            let _ = writeln!(lines, "{kind} {namespace}/{name}: {state}, proxies: {proxies}");
            for reason in list(&object["reasons"]) {
                let [code, path, text] =
                    ["code", "path", "text"].map(|field| as_text(&reason[field]));
                let _ = writeln!(lines, "  {code} {path}: {text}");
            }
        }
        self.compare_text(&file, &lines);
    }

    fn explanation(&mut self, answer: &Value) -> String {
        let mut lines = format!("{}:{}\n", as_text(&answer["hostname"]), answer["port"]);
        for line in list(&answer["clusters"]) {
            let given = |key: &str| (!line[key].is_null()).then(|| as_text(&line[key]));
            let via = given("via").map_or_else(String::new, |via| format!(" via {via}"));
            let reason = given("reason").map_or_else(String::new, |reason| {
                format!("; {reason} ({})", as_text(&line["code"]))
            });
            let _ = writeln!(
                lines,
                "  {} in {:?}: {} of {} ready, {} sent{via}{reason}",
                as_text(&line["cluster"]),
                as_text(&line["network"]),
                line["ready"],
                line["total"],
                line["sent"],
            );
        }
        for line in list(&answer["endpoints"]) {
            let steps = list(&line["steps"]);
            let failed: Vec<_> = steps.iter().filter(|step| step["ok"] == json!(false)).collect();
            let withheld = line["verdict"] == json!("withheld");
            let in_order =
                steps.iter().map(|step| &step["step"]).eq(STEPS.iter().take(steps.len()));
            if !in_order || failed.len() != usize::from(withheld) {
                let _ =
                    writeln!(self.report, "steps are out of order, or none of them fails: {line}");
            }
            let via = list(&line["via"]).iter().map(as_text).collect::<Vec<_>>().join(", ");
            let _ = write!(
                lines,
                "  {}:{} of {} in {:?}: {}",
                as_text(&line["address"]),
                line["port"],
                as_text(&line["cluster"]),
                as_text(&line["network"]),
                as_text(&line["verdict"]),
            );
            let detail = |step: &Value| as_text(&step["detail"]).to_owned();
            let _ = match failed.first() {
                Some(step) => write!(lines, " at {}: {}", as_text(&step["step"]), detail(step)),
                None if via.is_empty() => Ok(()),
                None => write!(lines, " {via}"),
            };
            // The rule that placed it in its network.
            let placed = steps.iter().find(|step| step["step"] == json!("network"));
            let placed = placed.filter(|step| step["ok"] == json!(true));
            let _ = match placed {
                Some(step) => write!(lines, "; {}", detail(step)),
                None => Ok(()),
            };
            let _ = match &line["priority"] {
                Value::Null => writeln!(lines),
                priority => writeln!(lines, "; priority {priority}"),
            };
        }
        for note in list(&answer["notes"]) {
            let _ = writeln!(lines, "  note: {}", as_text(note));
        }
        lines
    }

    /// Compares the responses of the admin API about the whole mesh.
    async fn compare_mesh(&mut self, estate: &Estate, expected: &Path) {
        let mut services = estate.get("/debug/services").await;
        // Other tasks follow exports and imports, so these fields change later than the services.
        for service in services.as_array_mut().into_iter().flatten() {
            let fields = service.as_object_mut().expect("a service");
            fields.retain(|name, _| name != "exports" && name != "imports");
        }
        let mut endpoints = Map::new();
        for service in list(&services) {
            let hostname = as_text(&service["hostname"]);
            let path = format!("/debug/endpoints?hostname={hostname}");
            endpoints.insert(hostname.to_owned(), estate.get(&path).await);
        }
        self.compare(&expected.join("services.yaml"), &services);
        self.compare(&expected.join("endpoints.yaml"), &Value::Object(endpoints));
        self.compare(&expected.join("networks.yaml"), &estate.get("/debug/networks").await);
    }

    /// Compares with a YAML file by value, independent of comments and style.
    fn compare(&mut self, file: &Path, found: &Value) {
        let Ok(expected) = fs::read_to_string(file) else { return };
        let found = yaml(found);
        let expected = match expected.is_empty() {
            true => expected,
            false => yaml(&serde_saphyr::from_str(&expected).expect("YAML")),
        };
        self.judge(file, &expected, &found);
    }

    fn compare_text(&mut self, file: &Path, found: &str) {
        if let Ok(expected) = fs::read_to_string(file) {
            self.judge(file, &expected, found);
        }
    }

    fn judge(&mut self, file: &Path, expected: &str, found: &str) {
        self.compared += 1;
        if expected == found {
            return;
        }
        if blesses() {
            fs::write(file, found).expect("written");
            return;
        }
        let _ = write!(self.report, "{}:\n{}", file_name(file), diff(expected, found));
    }
}

/// Returns the path of a request, as lines.
fn request_path(answer: &Value) -> String {
    let mut lines = String::new();
    let steps = ["listener", "chain", "route", "virtualHost"].map(|field| &answer[field]);
    let steps: Vec<_> = steps.into_iter().filter(|step| !step.is_null()).map(as_text).collect();
    let _ = writeln!(lines, "  {}", steps.join(" > "));
    let rule = |rule: &Value| -> String {
        let [kind, namespace, name] =
            ["kind", "namespace", "name"].map(|field| as_text(&rule[field]));
        let via = match &rule["via"] {
            Value::Null => String::new(),
            via => format!(" via {} {}", as_text(&via["name"]), via["index"]),
        };
        format!("{kind} {namespace}/{name} {}{via}", rule["index"])
    };
    if !answer["rule"].is_null() {
        let _ = writeln!(lines, "  by {}", rule(&answer["rule"]));
    }
    for to in list(&answer["destinations"]) {
        let cluster = as_text(&to["cluster"]);
        let _ =
            writeln!(lines, "  to {cluster} weight {} endpoints {}", to["weight"], to["endpoints"]);
    }
    let answered = |field: &str| match &answer[field] {
        Value::Null => String::new(),
        Value::String(text) => format!("{text} "),
        value => format!("{value} "),
    };
    let _ = writeln!(
        lines,
        "  {}{}{}",
        answered("answer"),
        answered("location"),
        as_text(&answer["outcome"])
    );
    for note in list(&answer["notes"]) {
        let _ = writeln!(lines, "  note: {}", as_text(note));
    }
    for lost in list(&answer["lost"]) {
        let _ = writeln!(lines, "  not {}: {}", rule(&lost["rule"]), as_text(&lost["reason"]));
    }
    lines
}

/// Escapes a text for a query (RFC 3986, 2.1).
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    let encode = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Returns the part of the held resources of a type that a file shows.
fn shown(proxy: &ProxyFile, kind: ResourceType, resources: &Collection) -> Value {
    let rules = proxy.show.get(kind.short());
    let body = |name: &str, body: &[u8]| match rules {
        None => to_json(kind, body),
        Some(rules) => {
            let fits = |pattern: &str| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == pattern,
            };
            match rules.iter().find(|(pattern, _)| fits(pattern)) {
                None => json!(NOT_SHOWN),
                Some((_, paths)) if paths.is_empty() => to_json(kind, body),
                Some((_, paths)) => {
                    let paths: Vec<Vec<&str>> =
                        paths.iter().map(|path| path.split('/').collect()).collect();
                    let paths: Vec<&[&str]> = paths.iter().map(|path| &**path).collect();
                    only(&to_json(kind, body), &paths)
                }
            }
        }
    };
    let resources = resources.get(&kind).into_iter().flatten();
    resources.map(|(name, bytes)| (name.clone(), body(name, bytes))).collect::<Map<_, _>>().into()
}

/// Returns the parts of `value` at `paths`.
fn only(value: &Value, paths: &[&[&str]]) -> Value {
    if paths.iter().any(|path| path.is_empty()) {
        return value.clone();
    }
    let below = |key: &str| -> Vec<&[&str]> {
        let fitting = paths.iter().filter(|path| path.first() == Some(&key));
        fitting.filter_map(|path| path.get(1..)).collect()
    };
    match value {
        Value::Array(items) => items.iter().map(|item| only(item, &below("*"))).collect(),
        Value::Object(fields) => {
            let selected = fields.iter().map(|(key, field)| (key, field, below(key)));
            let selected = selected.filter(|(_, _, paths)| !paths.is_empty());
            Value::Object(
                selected.map(|(key, field, paths)| (key.clone(), only(field, &paths))).collect(),
            )
        }
        _ => Value::Null,
    }
}

/// Returns the reason why a delta client has no stream.
async fn refusal(client: Result<XdsClient, XdsConnectError>) -> String {
    match client {
        Err(error) => error.to_string(),
        Ok(mut client) => match tokio::time::timeout(LIMIT, client.wait_for(|_| false)).await {
            Ok(Err(ended)) => ended.to_string(),
            _ => "the proxy is admitted".to_owned(),
        },
    }
}

fn readable(resources: &Collection) -> String {
    let by_kind = |(kind, bodies): (&ResourceType, &BTreeMap<String, Vec<u8>>)| {
        let bodies = bodies.iter().map(|(name, body)| (name.clone(), to_json(*kind, body)));
        (kind.short().to_owned(), Value::Object(bodies.collect()))
    };
    yaml(&Value::Object(
        resources.iter().filter(|(_, bodies)| !bodies.is_empty()).map(by_kind).collect(),
    ))
}

/// Returns the lines that differ, each with its number in `old` or `new`.
fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    // The length of the longest common subsequence from each pair of lines on.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            let _ = writeln!(text, "{:>5} - {}", i + 1, old[i]);
            i += 1;
        } else {
            let _ = writeln!(text, "{:>5} + {}", j + 1, new[j]);
            j += 1;
        }
    }
    text
}

fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("a value has a form in YAML")
}

fn as_text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn file_name(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned()
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn parse_document<T: DeserializeOwned>(file: &Path) -> T {
    serde_saphyr::from_str(&text(file))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the files of a case whose names pass `test`, sorted.
fn files(case: &Path, test: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(case).expect("the folder of a case");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.is_file() && test(&file_name(path)))
        .collect();
    files.sort();
    files
}
