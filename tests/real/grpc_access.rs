//! Access policies as gRPC's own libraries enforce them: sets of policies, one after the other, on
//! the same servers of both libraries. An independent evaluator computes the expected results of
//! the calls (`tests/access/evaluator.rs`).

#[path = "../access/evaluator.rs"]
#[expect(dead_code, reason = "libraries support no tokens, modes and providers")]
mod evaluator;
#[path = "../access/generator.rs"]
#[expect(dead_code, reason = "it generates calls for Envoy; calls for gRPC are generated here")]
mod generator;
mod sets;

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use self::evaluator::{Call, Server, passes};
use self::generator::random_policy;
use self::sets::{FIELDS, FLAWS, PolicySet};
use crate::apiserver::{Apiserver, Settings, reader_rights};
use crate::certs::TRUST_DOMAIN;
use crate::grpc::{CLUSTER, DISCOVERY, Library, Rig, pod};
use crate::host::Host;
use crate::kube::namespace;
use crate::process::Process;
use crate::strait::Strait;
use crate::wait;

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);
const PORTS: [u16; 2] = [7000, 7001];
const ROOT: &str = "root";
/// The trust domains of the mesh, its own first.
const DOMAINS: [&str; 2] = [TRUST_DOMAIN, "old.example"];
/// The number of calls for each set, to either library.
const CALLS: usize = 16;
/// The number of random sets, in addition to the fixed ones.
const RANDOM_SETS: usize = 83;

/// The servers by name, which is also their app and account: library, address, and whether they
/// have a certificate.
const SERVERS: [(&str, Library, &str, bool); 4] = [
    ("go", Library::Go, "10.80.0.1", true),
    ("core", Library::CCore, "10.80.0.2", true),
    ("plain-go", Library::Go, "10.80.0.3", false),
    ("plain-core", Library::CCore, "10.80.0.4", false),
];
const CALLERS: [&str; 2] = ["10.80.0.7", "10.80.0.8"];
/// The callers: trust domain, namespace and account, or none in plain text.
const IDENTITIES: [Option<(&str, &str, &str)>; 5] = [
    Some((TRUST_DOMAIN, "shop", "a")),
    Some((TRUST_DOMAIN, "other", "b")),
    Some(("old.example", "shop", "a")),
    Some(("foreign.org", "shop", "a")),
    None,
];
const PATHS: [&str; 4] = ["/pkg.Shop/Get", "/pkg.Shop/List", "/pkg.Admin/Reset", "/pkg.Admin/Get"];
const HOSTS: [&str; 4] = ["a.example", "A.Example", "a.example:7000", "b.example"];
const ROLES: [&[&str]; 6] =
    [&[], &["admin"], &["user"], &["user", "admin"], &["user, admin"], &["adm"]];

/// The running programs.
struct Scene {
    rig: Rig,
    control_plane: Strait,
    config: PathBuf,
    _apiserver: Apiserver,
    _serving: Vec<Process>,
}

/// The response of a server.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The call succeeded.
    Done,
    Denied,
    /// Any other result.
    Lost(String),
}

impl Scene {
    fn create(host: &Host, rig: Rig) -> Self {
        let addresses = SERVERS.iter().map(|one| one.2).chain(CALLERS);
        for address in addresses {
            rig.hub.ip(&format!("address add {address}/32 dev lo"));
        }
        let settings = Settings {
            cluster: "grpc-access",
            address: "127.0.0.1",
            port: 6443,
            service_cidr: "10.96.0.0/16",
        };
        let mut apiserver = Apiserver::start(host, &rig.hub, &rig.authority, &settings);
        apiserver.wait_until_ready();
        let mut objects = vec![namespace("shop", json!({}))];
        objects.extend(reader_rights());
        objects.extend(
            SERVERS
                .iter()
                .map(|(name, _, address, mtls)| pod(&format!("{name}-0"), address, *mtls)),
        );
        apiserver.apply(&objects);

        let config = host.subfolder("grpc-access-config");
        let member = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": CLUSTER, "namespace": "strait-system",
                "labels": { "istio/multiCluster": "true" },
            },
            "stringData": { CLUSTER: apiserver.reader_kubeconfig() },
        });
        std::fs::write(config.join("member.yaml"), member.to_string()).expect("ours");
        let mesh = rig.folder.join("mesh.yaml");
        let text = json!({
            "trustDomain": DOMAINS[0], "trustDomainAliases": &DOMAINS[1..], "rootNamespace": ROOT,
        });
        std::fs::write(&mesh, text.to_string()).expect("ours");
        let arguments = [
            ("--config-dir", config.to_str().expect("UTF-8")),
            ("--mesh-config", mesh.to_str().expect("UTF-8")),
            ("--ca-dir", rig.authority.folder().to_str().expect("UTF-8")),
            ("--xds-address", DISCOVERY),
            ("--admin-address", "127.0.0.1:0"),
        ];
        let arguments = arguments.into_iter().flat_map(|(flag, value)| [flag, value]);
        let control_plane = Strait::start(host, &rig.hub, arguments.map(str::to_owned).collect());
        control_plane.wait_until_ready();
        control_plane.wait_for_cluster_state(CLUSTER, &["live"], LIMIT);
        let serving = SERVERS
            .iter()
            .map(|(name, library, address, mtls)| {
                rig.serve(*library, name, (address, &PORTS), *mtls)
            })
            .collect();
        Self { rig, control_plane, config, _apiserver: apiserver, _serving: serving }
    }

    /// Replaces all policies at once.
    fn configure(&self, policies: &[Value]) {
        let documents: Vec<String> = policies.iter().map(Value::to_string).collect();
        let file = self.config.join("policies.yaml");
        let temporary = file.with_extension("new");
        std::fs::write(&temporary, documents.join("\n---\n")).expect("ours");
        std::fs::rename(&temporary, &file).expect("ours");
    }

    /// Makes calls, each to the named server.
    fn make_calls(&self, calls: &[(&str, &Call)]) -> Vec<Answer> {
        let questions: Vec<String> =
            calls.iter().map(|(_, call)| self.question(call).to_string()).collect();
        let mut asking = self.rig.hub.command(&self.rig.go);
        asking.arg("ask").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut asking = asking.spawn().expect("the client starts");
        let mut stdin = asking.stdin.take().expect("piped");
        // The client responds as it reads. The responses fit into a pipe.
        stdin.write_all(questions.join("\n").as_bytes()).expect("the client reads");
        drop(stdin);
        let output = asking.wait_with_output().expect("our own child");
        let answers = String::from_utf8_lossy(&output.stdout).into_owned();
        let answers: Vec<Answer> =
            answers.lines().zip(calls).map(|(line, (server, _))| answer(line, server)).collect();
        let stale = "is it older than this test? run tests/components/install";
        assert_eq!(answers.len(), calls.len(), "grpc-go ask: {}: {stale}", output.status);
        answers
    }

    fn question(&self, call: &Call) -> Value {
        let mut question = json!({
            "server": format!("{}:{}", call.address, call.port), "from": call.from.to_string(),
            "method": call.path, "authority": call.host, "headers": call.headers,
        });
        if let Some((domain, namespace, account)) = &call.identity {
            let files = self.rig.authority.workload_in_domain(domain, namespace, account);
            question["certificate"] = json!(files.certificate);
            question["key"] = json!(files.key);
        }
        question
    }

    /// Checks whether every server responds to a call of `path` as expected, on each port. Returns
    /// the responses otherwise.
    fn probe(&self, path: &str, wanted: &Answer) -> Result<(), String> {
        let mut probes = Vec::new();
        for (server, _, address, mtls) in SERVERS {
            for port in PORTS {
                let identity = if mtls { IDENTITIES[0] } else { None };
                probes.push((server, call(identity, address, port, path)));
            }
        }
        let probes: Vec<(&str, &Call)> = probes.iter().map(|(name, call)| (*name, call)).collect();
        let found = self.make_calls(&probes);
        if found.iter().all(|one| one == wanted) {
            return Ok(());
        }
        Err(format!("{found:?} of {SERVERS:?} at {PORTS:?}"))
    }

    /// Waits until [`Self::probe`] succeeds, for the named set.
    fn wait_for(&self, name: &str, path: &str, wanted: &Answer) {
        let what = format!("{name}: {path} is {wanted:?} at every server");
        wait::until(LIMIT, &what, || self.probe(path, wanted));
    }

    /// Replaces the policies of every server, and returns once each enforces them.
    fn enforce(&self, name: &str, policies: &[Value], marker: &str) {
        let path = format!("/strait.Set/{marker}");
        // A path that is allowed before can only be denied by the new policies. A file without any
        // policy would be mistaken for an incomplete file.
        if self.probe(&path, &Answer::Done).is_err() {
            self.configure(&[denying("nothing", "/strait.Set/none")]);
            self.wait_for(name, &path, &Answer::Done);
        }
        let marker = denying("marker", &path);
        let all: Vec<Value> = policies.iter().cloned().chain([marker]).collect();
        self.configure(&all);
        self.wait_for(name, &path, &Answer::Denied);
    }
}

/// Parses a line of the client's output. A response of another server is an error.
fn answer(line: &str, server: &str) -> Answer {
    let result: Value = serde_json::from_str(line).expect("JSON");
    match result["code"].as_str() {
        Some("OK") if result["server"] == server => Answer::Done,
        Some("PermissionDenied") => Answer::Denied,
        _ => Answer::Lost(line.to_owned()),
    }
}

/// Returns a call in which only the given attributes can match policies.
fn call(identity: Option<(&str, &str, &str)>, address: &str, port: u16, path: &str) -> Call {
    let text = |text: &str| text.to_owned();
    let from: IpAddr = CALLERS[0].parse().expect("an address");
    Call {
        identity: identity
            .map(|(domain, namespace, account)| (text(domain), text(namespace), text(account))),
        from,
        client: from,
        host: text(HOSTS[0]),
        method: text("POST"),
        path: text(path),
        headers: Vec::new(),
        port,
        address: address.parse().expect("an address"),
        sni: String::new(),
        is_http: true,
        tokens: Vec::new(),
    }
}

/// Returns a random call of an identity to either library.
fn random_calls(
    random: &mut StdRng,
    identity: Option<(&str, &str, &str)>,
) -> Vec<(&'static str, Call)> {
    let port = *PORTS.choose(random).expect("some");
    let path = *PATHS.choose(random).expect("some");
    let host = *HOSTS.choose(random).expect("some");
    let from: IpAddr = CALLERS.choose(random).expect("some").parse().expect("an address");
    let roles = ROLES.choose(random).expect("some").iter();
    let headers: Vec<_> = roles.map(|role| ("x-role".to_owned(), (*role).to_owned())).collect();
    let fitting = SERVERS.iter().filter(|(.., mtls)| *mtls == identity.is_some());
    let addressed = |(name, _, address, _): &(&'static str, Library, &str, bool)| {
        let call = call(identity, address, port, path);
        (*name, Call { from, client: from, host: host.into(), headers: headers.clone(), ..call })
    };
    fitting.map(addressed).collect()
}

/// Returns the expected result of a call under these policies.
fn expected(policies: &[Value], server: &str, call: &Call) -> Answer {
    let labels = [("app", server)];
    let guarded = Server {
        namespace: "shop",
        labels: &labels,
        root: ROOT,
        domains: &DOMAINS,
        providers: &[],
    };
    let is_own_domain = |(domain, ..): &(String, _, _)| DOMAINS.contains(&&**domain);
    let passes =
        call.identity.as_ref().is_none_or(is_own_domain) && passes(policies, &guarded, call);
    if passes { Answer::Done } else { Answer::Denied }
}

/// Parses the policies of a table, with unique names per set, so that the last valid version of
/// another set's policy is never used.
fn policies(text: &str, seed: usize) -> Vec<Value> {
    let all: serde_json::Map<String, Value> = serde_json::from_str(text).expect(text);
    let policy = |(name, content): (String, Value)| {
        let mut parts = name.split(' ');
        let action = parts.next().expect("the first");
        let rest: Vec<&str> = parts.collect();
        let mut spec = if content.is_array() { json!({ "rules": content }) } else { content };
        spec["action"] = action.into();
        let namespace = if rest.contains(&"root") { ROOT } else { "shop" };
        let mut policy =
            object(&format!("{}-{seed}", name.to_lowercase().replace(' ', "-")), namespace, spec);
        if rest.contains(&"dry-run") {
            policy["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
        }
        policy
    };
    all.into_iter().map(policy).collect()
}

fn object(name: &str, namespace: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": namespace, "name": name }, "spec": spec,
    })
}

/// Returns a policy that denies one path.
fn denying(name: &str, path: &str) -> Value {
    let rules = json!([{ "to": [{ "operation": { "paths": [path] } }] }]);
    object(name, "shop", json!({ "action": "DENY", "rules": rules }))
}

/// A set that is ready to be tested.
struct Trial {
    name: String,
    /// The seed of random calls and of the names in the set.
    seed: usize,
    before: Vec<Value>,
    written: Vec<Value>,
    holds: Vec<Value>,
    mistake: Option<Vec<Value>>,
}

impl Trial {
    fn new(set: &PolicySet, seed: usize) -> Self {
        let holds = if set.holds.is_empty() { set.policies } else { set.holds };
        let before = if set.before.is_empty() { "{}" } else { set.before };
        Self {
            name: set.name.to_owned(),
            seed,
            before: policies(before, seed),
            written: policies(set.policies, seed),
            holds: policies(holds, seed),
            mistake: Some(policies(set.mistake, seed)),
        }
    }

    fn random(seed: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed as u64);
        let count = random.random_range(1..5);
        let policy = |at| for_grpc(&random_policy(&mut random, &format!("p{at}-{seed}")));
        let written: Vec<Value> = (0..count).map(policy).collect();
        Self {
            name: format!("random {seed}: {written:?}"),
            seed,
            before: Vec::new(),
            holds: written.clone(),
            written,
            mistake: None,
        }
    }

    /// Returns the calls of this set: a call by each identity in turn, and a call that
    /// distinguishes the correct result from the mistake.
    fn calls(&self) -> Vec<(&'static str, Call)> {
        let mut random = StdRng::seed_from_u64(self.seed as u64);
        let mut draws = IDENTITIES.iter().cycle().map(|one| random_calls(&mut random, *one));
        let mut calls: Vec<_> = draws.by_ref().take(CALLS).flatten().collect();
        if let Some(mistake) = &self.mistake {
            let differs = |(server, call): &(&str, Call)| {
                expected(&self.holds, server, call) != expected(mistake, server, call)
            };
            if !calls.iter().any(differs) {
                let distinguishing = draws.take(1000).find(|calls| calls.iter().any(differs));
                calls.extend(distinguishing.unwrap_or_else(|| {
                    panic!("{}: no call distinguishes the two results", self.name)
                }));
            }
        }
        calls
    }
}

/// Adapts the text of a random policy to the servers and calls here, without attributes that a
/// library ignores.
fn for_grpc(policy: &Value) -> Value {
    let text = policy.to_string();
    let text = [
        ("mesh.example", TRUST_DOMAIN),
        ("\"mesh*\"", "\"cluster*\""),
        ("istio-system", ROOT),
        ("\"web\"", "\"go\""),
        ("\"db\"", "\"core\""),
        ("8080", "7000"),
        ("\"5432\"", "\"7001\""),
        ("\"0\"", "\"7001\""),
        ("/a/{*}/c", "/pkg.Admin/Reset"),
        ("/a/{**}", "/pkg.Admin/*"),
        ("/a/b", "/pkg.Shop/List"),
        ("/admin", "/pkg.Admin"),
        ("*.php", "*/Get"),
        ("\"/\"", "\"/pkg.Shop/Get\""),
        ("connection.sni", "request.headers[x-tier]"),
        ("10.0.0.0/24", "10.80.0.0/29"),
        ("10.0.0.0/29", "10.80.0.8/29"),
        ("10.0.0.7", CALLERS[0]),
        ("192.0.2.0/25", "10.80.0.0/29"),
        ("192.0.2.9", CALLERS[1]),
        ("10.1.0.0/16", "10.80.0.2/31"),
        ("10.1.0.1", SERVERS[0].2),
    ]
    .iter()
    .fold(text, |text, (envoy_text, here)| text.replace(envoy_text, here));
    serde_json::from_str(&text).expect("JSON")
}

/// Makes the calls of a set. Returns the numbers of allowed and denied calls, and the results that
/// differ from the evaluator's.
fn attempt(scene: &Scene, trial: &Trial) -> ([usize; 2], Vec<String>) {
    let Trial { name, seed, before, written, holds, .. } = trial;
    if !before.is_empty() {
        scene.enforce(name, before, &format!("before-{seed}"));
    }
    scene.enforce(name, written, &seed.to_string());
    let calls = trial.calls();
    let calls: Vec<(&str, &Call)> = calls.iter().map(|(name, call)| (*name, call)).collect();
    let answers = scene.make_calls(&calls);
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    let judged = answers.iter().zip(&calls).filter_map(|(found, (server, call))| {
        let expected = expected(holds, server, call);
        (*found != expected)
            .then(|| format!("{name}: {found:?}, not {expected:?}: {server} {call:?}"))
    });
    ([count(Answer::Done), count(Answer::Denied)], judged.collect())
}

/// Tests all sets on the same servers.
pub(crate) fn run(host: &Host) {
    let Some(rig) = Rig::create(host, "grpc-access", "real::grpc_access") else { return };
    let scene = Scene::create(host, rig);
    let written = FIELDS.iter().chain(FLAWS).enumerate();
    let random = (0..RANDOM_SETS).map(|seed| Trial::random(1000 + seed));
    let trials = written.map(|(seed, set)| Trial::new(set, seed)).chain(random);
    let (mut counts, mut wrong) = ([0; 2], Vec::new());
    for trial in trials {
        let ([done, denied], set_failures) = attempt(&scene, &trial);
        counts = [counts[0] + done, counts[1] + denied];
        // Printed immediately, because a set that never takes effect ends the test.
        set_failures.iter().for_each(|line| eprintln!("{line}"));
        wrong.extend(set_failures);
    }
    let [done, denied] = counts;
    println!("calls that were let in: {done}, denied: {denied}, wrongly answered: {}", wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    let proxies = scene.control_plane.json("/debug/proxies");
    assert!(!proxies.to_string().contains("nack"), "{proxies}");
}
