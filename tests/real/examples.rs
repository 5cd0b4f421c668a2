//! Rules as their users write them, and what becomes of the requests that they are about: from Envoys of two versions and by both
//! forms of the protocol, to pods in two networks. Each file in `examples/` is one, after what the field's guides show: its objects,
//! and requests with what is expected of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::apiserver::Apiserver;
use crate::host::Host;
use crate::kube::{self, Request, pod};
use crate::netns::Netns;
use crate::outside::{self, Outside};
use crate::scenarios::PROPAGATION;
use crate::steering::{clients, version};
use crate::wait;
use crate::world::{CLIENT_PODS, ECHO_PODS, ECHO_VIP, World, pod_labels};

/// A file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    objects: Vec<Value>,
    requests: Vec<Asked>,
}

/// Requests that are all alike, and what is expected of them together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default = "root")]
    path: String,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default = "twelve")]
    times: usize,
    /// How many of them at the same time.
    #[serde(default = "one")]
    at_once: usize,
    /// All that are seen, and no others.
    #[serde(default = "ok")]
    statuses: BTreeSet<u16>,
    /// The versions that answer, all of them and no others.
    versions: Option<BTreeSet<String>>,
    /// Of the answers the share of version v2, in percent, from and to.
    share_of_v2: Option<[usize; 2]>,
    /// How long each takes, from and to.
    takes_seconds: Option<[f64; 2]>,
    /// What each answer has at these places; null where it has nothing there.
    #[serde(default)]
    sees: BTreeMap<String, Value>,
    /// Where each is sent on to.
    location: Option<String>,
    /// The upstream cluster that gets a copy of each.
    copies_to: Option<String>,
    /// The server that is asked, in place of the echo service.
    url: Option<String>,
    /// Whoever asks a server outside the mesh for them: all of these and no others.
    asked_by: Option<Askers>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Askers {
    /// The egress gateways.
    Gateways,
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

/// What came of a request.
#[derive(Debug)]
struct Answer {
    status: u16,
    seconds: f64,
    location: String,
    body: Value,
}

pub(crate) fn run(world: &mut World, host: &Host) {
    label_places(world);
    let outside = Outside::start(world, host);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/examples");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the examples are there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    let config = &world.apiservers["a"];
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let text = text.replace("ROOTS", &outside.roots.display().to_string());
        let place = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let example: Example =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{place}: {error}"));
        let applied = AppliedObjects::of(config, &example.objects);
        for client in clients(world) {
            for asked in &example.requests {
                wait::until(PROPAGATION, &format!("{place}: {client}: {asked:?}"), || {
                    world.hold(client, asked, &outside)
                });
            }
        }
        drop(applied);
        let versions = Some(["v1", "v2"].map(str::to_owned).into());
        let plain =
            Asked { versions, times: 60, ..serde_json::from_str("{}").expect("all optional") };
        for client in clients(world) {
            wait::until(PROPAGATION, &format!("{place}: {client} is without rules"), || {
                world.hold(client, &plain, &outside)
            });
        }
    }
    assert_eq!(world.complaints(), Vec::<String>::new());
    assert_eq!(outside.complaints(), Vec::<String>::new());
    outside.end(world);
}

/// Gives each pod of the echo service the label of its version, and all of cluster a one region, all of b another.
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

/// Objects that go again, whatever becomes of the example: others come after it.
struct AppliedObjects<'a> {
    config: &'a Apiserver,
    paths: Vec<String>,
}

impl<'a> AppliedObjects<'a> {
    fn of(config: &'a Apiserver, objects: &[Value]) -> Self {
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
    /// Makes the requests of a client, and holds what came of them to what is expected.
    fn hold(&self, client: &str, asked: &Asked, outside: &Outside) -> Result<(), String> {
        let copies = || {
            let Some(cluster) = &asked.copies_to else { return 0 };
            let name = format!("cluster.{cluster}.upstream_rq_total");
            self.envoy(client).stats("upstream_rq_total$").get(&name).copied().unwrap_or_default()
        };
        let before = copies();
        let answers = curl(self.pod(client), asked, &outside.roots);
        if asked.copies_to.is_some() && copies() < before + asked.times as u64 {
            return Err(format!("{} copies after {before}", copies()));
        }
        let statuses: BTreeSet<u16> = answers.iter().map(|answer| answer.status).collect();
        if answers.len() != asked.times || statuses != asked.statuses {
            return Err(format!(
                "{} answers with {statuses:?}: {:?}",
                answers.len(),
                answers.first()
            ));
        }
        let versions = answers.iter().filter_map(|answer| answer.body["pod"].as_str()).map(version);
        let versions: Vec<&str> = versions.collect();
        if let Some(wanted) = &asked.versions
            && versions.iter().map(|one| (*one).to_owned()).collect::<BTreeSet<_>>() != *wanted
        {
            return Err(format!("answered by {versions:?}"));
        }
        if let Some([from, to]) = asked.share_of_v2 {
            let share = versions.iter().filter(|one| **one == "v2").count() * 100 / asked.times;
            if !(from..=to).contains(&share) {
                return Err(format!("{share} % to v2"));
            }
        }
        let askers =
            answers.iter().filter_map(|answer| answer.body["headers"]["x-asked-by"].as_str());
        let askers: BTreeSet<&str> = askers.collect();
        if let Some(Askers::Gateways) = asked.asked_by
            && askers != outside.gateways.iter().copied().collect()
        {
            return Err(format!("asked by {askers:?}: {:?}", answers.first()));
        }
        answers.iter().try_for_each(|answer| asked.is_met(answer))
    }
}

impl Asked {
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

/// Makes the requests in the client's namespace, where they are redirected as an application's are.
fn curl(netns: &Netns, asked: &Asked, roots: &Path) -> Vec<Answer> {
    let mut command = netns.command("curl");
    let counted = if asked.path.contains('?') { "&n=" } else { "?n=" };
    let server = match &asked.url {
        Some(url) => url.clone(),
        None => format!("http://{ECHO_VIP}"),
    };
    let url = format!("{server}{}{counted}[1-{}]", asked.path, asked.times);
    command.args(["-s", "--max-time", "10"]);
    if asked.url.is_none() {
        command.args(["-H", "Host: echo"]);
    } else {
        // Each by a connection of its own, so that all gateways have some.
        command.args(["-H", "Connection: close", "--cacert"]).arg(roots);
        for port in [80, 443] {
            command.args(["--resolve", &format!("{}:{port}:{}", outside::NAME, outside::VIP)]);
        }
    }
    command.args(["-w", "\n%{http_code} %{time_total} %{redirect_url}\n"]);
    if asked.at_once > 1 {
        let many = asked.at_once.to_string();
        command.args(["--parallel", "--parallel-immediate", "--parallel-max", &many]);
    }
    if let Some(method) = &asked.method {
        command.args(["-X", method]);
    }
    for (name, value) in &asked.headers {
        command.args(["-H", &format!("{name}: {value}")]);
    }
    let output = command.arg(url).output().expect("curl is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut body = Value::Null;
    let mut answers = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.splitn(3, ' ');
        let status = words.next().and_then(|word| word.parse().ok());
        let seconds = words.next().and_then(|word| word.parse().ok());
        if let (Some(status), Some(seconds)) = (status, seconds) {
            let uncounted = |text: &str| text.split(counted).next().unwrap_or_default().to_owned();
            let location = uncounted(words.next().unwrap_or_default());
            if let Some(path) = body["path"].as_str().map(uncounted) {
                body["path"] = path.into();
            }
            answers.push(Answer { status, seconds, location, body: std::mem::take(&mut body) });
        } else {
            body = serde_json::from_str(line).unwrap_or_default();
        }
    }
    answers
}
