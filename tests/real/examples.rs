//! Rules as users write them, and their effect on requests: from Envoys of two versions and with
//! both variants of the protocol, to pods in two networks, and from outside through gateways. Each
//! file in `examples/` is one example, modeled on common guides, with its objects, its requests and
//! their expected results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::apiserver::Apiserver;
use crate::helper::{Load, TCP_PORT};
use crate::host::Host;
use crate::kube::{self, Request, pod};
use crate::netns::Netns;
use crate::outside::{self, Outside};
use crate::rig_check::run_load;
use crate::scenarios::PROPAGATION;
use crate::steering::{clients, version};
use crate::wait;
use crate::world::{CLIENT_PODS, ECHO_PODS, ECHO_VIP, World, pod_labels};

/// An example file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    objects: Vec<Value>,
    requests: Vec<ExampleRequest>,
}

/// Equal requests, and their expected results.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExampleRequest {
    #[serde(default)]
    from: RequestOrigin,
    #[serde(default = "root")]
    path: String,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default = "twelve")]
    times: usize,
    /// The number of concurrent requests.
    #[serde(default = "one")]
    at_once: usize,
    /// Raw TCP connections instead of requests. Each connection sends one line.
    #[serde(default)]
    bytes: bool,
    /// The exact set of statuses; 0 if there is no response.
    #[serde(default = "ok")]
    statuses: BTreeSet<u16>,
    /// The exact set of versions that respond.
    versions: Option<BTreeSet<String>>,
    /// The percentage of responses from version v2: minimum and maximum.
    share_of_v2: Option<[usize; 2]>,
    /// The percentage of responses from cluster b: minimum and maximum.
    share_of_b: Option<[usize; 2]>,
    /// The duration of each request in seconds: minimum and maximum.
    takes_seconds: Option<[f64; 2]>,
    /// The value of each response at these JSON pointers; null if it has none.
    #[serde(default)]
    sees: BTreeMap<String, Value>,
    /// The JSON pointers at which all responses have the same value.
    #[serde(default)]
    alike: BTreeSet<String>,
    /// The redirect target of each response.
    location: Option<String>,
    /// The upstream cluster that receives a copy of each request.
    copies_to: Option<String>,
    /// The URL to request, instead of the echo service.
    url: Option<String>,
    /// The address of the hostname, if it is not the address of the server outside.
    address: Option<String>,
    /// Whether the client presents a certificate that the server outside has signed.
    #[serde(default)]
    shows_certificate: bool,
    /// The exact set of callers that a server outside the mesh sees.
    asked_by: Option<Askers>,
}

/// The origin of a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestOrigin {
    /// Clients with a sidecar.
    #[default]
    Mesh,
    /// A client outside the mesh, once per gateway.
    Outside,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Askers {
    /// The egress gateways.
    Gateways,
    /// The gateway that receives the request.
    Gateway,
}

fn root() -> String {
    "/".into()
}

fn twelve() -> usize {
    12
}

fn one() -> usize {
    1
}

fn ok() -> BTreeSet<u16> {
    [200].into()
}

/// A client of the examples.
struct Asker<'a> {
    name: &'a str,
    netns: &'a Netns,
    /// The address of server names.
    address: &'a str,
}

/// The result of a request.
#[derive(Debug, Default)]
struct Answer {
    status: u16,
    seconds: f64,
    location: String,
    /// Why there is no response.
    error: String,
    body: Value,
}

pub(crate) fn run(world: &mut World, host: &Host) {
    label_places(world);
    let outside = Outside::start(world, host);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/examples");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the examples exist")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    let config = &world.apiservers["a"];
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let text = outside.placed_in(&text);
        let place = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let example: Example =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{place}: {error}"));
        let applied = AppliedObjects::apply(config, &example.objects);
        for (from, asker) in askers(world, &outside) {
            for request in example.requests.iter().filter(|request| request.from == from) {
                wait::until(PROPAGATION, &format!("{place}: {}: {request:?}", asker.name), || {
                    world.hold(&asker, request, &outside)
                });
            }
        }
        drop(applied);
        let versions = Some(["v1", "v2"].map(str::to_owned).into());
        let plain = ExampleRequest {
            versions,
            times: 60,
            ..serde_json::from_str("{}").expect("all optional")
        };
        for (_, asker) in askers(world, &outside).iter().filter(|(from, _)| *from == plain.from) {
            wait::until(PROPAGATION, &format!("{place}: {} is without rules", asker.name), || {
                world.hold(asker, &plain, &outside)
            });
        }
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
    assert_eq!(outside.complaints(), Vec::<String>::new());
    outside.end(world);
}

/// Returns all clients: the clients in the mesh, and then one client outside of the mesh for each
/// gateway.
fn askers<'a>(world: &'a World, outside: &'a Outside) -> Vec<(RequestOrigin, Asker<'a>)> {
    let mesh_askers = clients(world).into_iter().map(|name| {
        (RequestOrigin::Mesh, Asker { name, netns: world.pod(name), address: outside::VIP })
    });
    let gateway_asker = |address: &&'static str| {
        (RequestOrigin::Outside, Asker { name: address, netns: outside.netns(), address })
    };
    mesh_askers.chain(outside.gateways.iter().map(gateway_asker)).collect()
}

/// Labels each pod of the echo service with its version, and gives clusters a and b different
/// regions.
fn label_places(world: &World) {
    let near = "eu.one";
    for (cluster, pods) in ECHO_PODS {
        let place = if cluster == "a" { near } else { "us.one" };
        let labelled = pods.iter().map(|(name, ip)| {
            let mut labels = pod_labels("echo");
            labels["version"] = version(name).into();
            labels["istio-locality"] = place.into();
            pod("shop", name, "echo", ip, &labels)
        });
        world.apiservers[cluster].apply(&labelled.collect::<Vec<_>>());
    }
    let callers = CLIENT_PODS.map(|(name, ip)| {
        let mut labels = pod_labels("client");
        labels["istio-locality"] = near.into();
        pod("shop", name, "client", ip, &labels)
    });
    world.apiservers["a"].apply(&callers);
}

/// Objects that are deleted on drop, even if the example fails, because other examples follow.
struct AppliedObjects<'a> {
    config: &'a Apiserver,
    paths: Vec<String>,
}

impl<'a> AppliedObjects<'a> {
    fn apply(config: &'a Apiserver, objects: &[Value]) -> Self {
        config.apply(objects);
        Self { config, paths: objects.iter().map(kube::path).collect() }
    }
}

impl Drop for AppliedObjects<'_> {
    fn drop(&mut self) {
        let gone: Vec<_> = self.paths.iter().map(|path| Request::delete(path)).collect();
        self.config.requests(&gone);
    }
}

impl World {
    /// Sends the requests of a client, and compares the results with the expected ones.
    fn hold(
        &self,
        asker: &Asker<'_>,
        request: &ExampleRequest,
        outside: &Outside,
    ) -> Result<(), String> {
        let copies = || {
            let Some(cluster) = &request.copies_to else { return 0 };
            let name = format!("cluster.{cluster}.upstream_rq_total");
            self.envoy(asker.name)
                .stats("upstream_rq_total$")
                .get(&name)
                .copied()
                .unwrap_or_default()
        };
        let before = copies();
        let answers =
            if request.bytes { lines(asker, request) } else { curl(asker, request, outside) };
        if request.copies_to.is_some() && copies() < before + request.times as u64 {
            return Err(format!("{} copies after {before}", copies()));
        }
        let statuses: BTreeSet<u16> = answers.iter().map(|answer| answer.status).collect();
        if answers.len() != request.times || statuses != request.statuses {
            let other = answers.iter().find(|one| !request.statuses.contains(&one.status));
            let other = other.or(answers.first());
            let error = other.map_or("", |one| &one.error);
            let count = answers.len();
            return Err(format!("{count} answers with {statuses:?}: {error} {other:?}"));
        }
        let versions = answers.iter().filter_map(|answer| answer.body["pod"].as_str()).map(version);
        let versions: Vec<&str> = versions.collect();
        if let Some(wanted) = &request.versions
            && versions.iter().map(|one| (*one).to_owned()).collect::<BTreeSet<_>>() != *wanted
        {
            return Err(format!("answered by {versions:?}"));
        }
        let v2_count = versions.iter().filter(|one| **one == "v2").count();
        let b_count = answers.iter().filter(|answer| answer.body["cluster"] == "b").count();
        for (who, count, wanted) in
            [("v2", v2_count, request.share_of_v2), ("b", b_count, request.share_of_b)]
        {
            let share = count * 100 / request.times;
            if wanted.is_some_and(|[from, to]| !(from..=to).contains(&share)) {
                return Err(format!("{share} % to {who}"));
            }
        }
        for place in &request.alike {
            let at = |answer: &Answer| answer.body.pointer(place).map(Value::to_string);
            let several: BTreeSet<_> = answers.iter().map(at).collect();
            if several.len() != 1 {
                return Err(format!("several {place}: {several:?}"));
            }
        }
        let askers =
            answers.iter().filter_map(|answer| answer.body["headers"]["x-asked-by"].as_str());
        let askers: BTreeSet<&str> = askers.collect();
        let wanted = match request.asked_by {
            Some(Askers::Gateways) => outside.gateways.iter().copied().collect(),
            Some(Askers::Gateway) => BTreeSet::from([asker.address]),
            None => askers.clone(),
        };
        if askers != wanted {
            return Err(format!("asked by {askers:?}: {:?}", answers.first()));
        }
        answers.iter().try_for_each(|answer| request.is_met(answer))
    }
}

impl ExampleRequest {
    fn is_met(&self, answer: &Answer) -> Result<(), String> {
        let other = |pointer: &String, wanted: &Value| {
            answer.body.pointer(pointer).unwrap_or(&Value::Null) != wanted
        };
        let in_time = |[from, to]: &[f64; 2]| (*from..=*to).contains(&answer.seconds);
        let met = self.takes_seconds.as_ref().is_none_or(in_time)
            && self.location.as_ref().is_none_or(|wanted| *wanted == answer.location)
            && !self.sees.iter().any(|(pointer, wanted)| other(pointer, wanted));
        if met { Ok(()) } else { Err(format!("{answer:?}")) }
    }
}

/// Opens the connections, and sends one line on each.
fn lines(asker: &Asker<'_>, request: &ExampleRequest) -> Vec<Answer> {
    let server = if request.from == RequestOrigin::Outside { asker.address } else { ECHO_VIP };
    let answers = run_load(asker.netns, &Load::tcp(&format!("{server}:{TCP_PORT}"), request.times));
    let answered = answers.by.iter().flat_map(|(who, count)| {
        let (cluster, pod) = who.split_once('/').unwrap_or_default();
        let body = json!({ "cluster": cluster, "pod": pod });
        std::iter::repeat_with(move || Answer {
            status: 200,
            body: body.clone(),
            ..Answer::default()
        })
        .take(*count)
    });
    let failed = answers.failures.values().sum();
    answered.chain(std::iter::repeat_with(Answer::default).take(failed)).collect()
}

/// Sends the requests in the client's namespace, where they are redirected like an application's
/// requests.
fn curl(asker: &Asker<'_>, request: &ExampleRequest, outside: &Outside) -> Vec<Answer> {
    let mut command = asker.netns.command("curl");
    let counted = if request.path.contains('?') { "&n=" } else { "?n=" };
    let server = match &request.url {
        Some(url) => url.clone(),
        None => format!("http://{ECHO_VIP}"),
    };
    let url = format!("{server}{}{counted}[1-{}]", request.path, request.times);
    command.args(["-s", "--max-time", "10"]);
    if let Some(url) = &request.url {
        // A new connection for each request, so that all gateways receive some.
        if !request.headers.contains_key("connection") {
            command.args(["-H", "Connection: close"]);
        }
        command.arg("--cacert").arg(&outside.roots);
        if request.shows_certificate {
            command.arg("--cert").arg(&outside.client.certificate);
            command.arg("--key").arg(&outside.client.key);
        }
        let (scheme, server) = url.split_once("://").unwrap_or(("http", url));
        let usual = if scheme == "https" { "443" } else { "80" };
        let (name, port) = server.split_once(':').unwrap_or((server, usual));
        let address = request.address.as_deref().unwrap_or(asker.address);
        command.args(["--resolve", &format!("{name}:{port}:{address}")]);
    } else {
        command.args(["-H", "Host: echo"]);
    }
    command.args(["-w", "\n%{http_code}\t%{time_total}\t%{redirect_url}\t%{errormsg}\n"]);
    if request.at_once > 1 {
        let many = request.at_once.to_string();
        command.args(["--parallel", "--parallel-immediate", "--parallel-max", &many]);
    }
    if let Some(method) = &request.method {
        command.args(["-X", method]);
    }
    for (name, value) in &request.headers {
        command.args(["-H", &format!("{name}: {value}")]);
    }
    let output = command.arg(url).output().expect("curl is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut body = Value::Null;
    let mut answers = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut fields = line.splitn(4, '\t');
        let status = fields.next().and_then(|word| word.parse().ok());
        let seconds = fields.next().and_then(|word| word.parse().ok());
        if let (Some(status), Some(seconds)) = (status, seconds) {
            let uncounted = |text: &str| text.split(counted).next().unwrap_or_default().to_owned();
            let location = uncounted(fields.next().unwrap_or_default());
            if let Some(path) = body["path"].as_str().map(uncounted) {
                body["path"] = path.into();
            }
            let error = fields.next().unwrap_or_default().to_owned();
            let body = std::mem::take(&mut body);
            answers.push(Answer { status, seconds, location, error, body });
        } else {
            body = serde_json::from_str(line).unwrap_or_default();
        }
    }
    answers
}
