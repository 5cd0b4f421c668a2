//! Providers of external authorization. All their pods are in the other network, behind its
//! gateway. Workloads with two versions of Envoy ask them over HTTP and over gRPC, with mTLS and
//! their own identities. While the gateway or the providers are unavailable, no request that
//! requires authorization passes unless the provider has `failOpen`. All requests pass again when
//! the providers return. A separate policy denies by identity, in both networks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::helper::{ANSWERED_BY, ASKED_BY, GRPC_PORT, HTTP_PORT, Load};
use crate::host::Host;
use crate::kube::{Request, endpoint_slice, path, pod, service};
use crate::netns::Netns;
use crate::process::Process;
use crate::rig_check::{listening, run_load};
use crate::scenarios::{PROPAGATION, http, spiffe};
use crate::wait;
use crate::world::{ECHO_PODS, PORTS, SOLO_POD, SYSTEM, World, pod_labels, vip};

/// The guarded workloads, with the last byte of their services' VIPs. Each has its own service and
/// account.
const GUARDED: [(&str, &str, u8); 2] =
    [("guarded", "10.10.1.41", 15), ("guarded-old", "10.10.1.42", 16)];
/// The pods of the providers, all in cluster b.
const PROVIDERS: [(&str, &str); 2] = [("opa-1", "10.10.1.43"), ("opa-2", "10.10.1.44")];
const SERVICE: &str = "opa.shop.svc.cluster.local";
const PROVIDER_PORTS: [(&str, u16, u16); 2] =
    [("http", 4180, HTTP_PORT), ("grpc", 9191, GRPC_PORT)];
const GATEWAY: &str = "b/eastwest-1";

/// The parts of a workload's paths, each with a different provider, and whether the provider fails
/// open.
const ASKED: [(&str, bool); 4] =
    [("web", false), ("rpc", false), ("web-open", true), ("rpc-open", true)];

/// The availability of the providers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Providers {
    Answer,
    AreAway,
}

pub(crate) fn run(world: &mut World, host: &Host) {
    let old = host.envoy_old.as_ref();
    let programs = [Some(&host.envoy), old].map(|program| program.cloned());
    let guarded: Vec<Guarded> = GUARDED
        .into_iter()
        .zip(&programs)
        .filter_map(|((name, ip, last), program)| {
            Some(Guarded { name, ip, vip: vip("a", last), program: program.clone()? })
        })
        .collect();
    for each in &guarded {
        world.start_sidecar_with(host, &each.program, "a", each.name, each.name, each.ip);
        world.start_echo(host, "a", each.name);
    }
    let mut authorizers = Vec::new();
    // With only one Envoy on this machine, both providers use it.
    for ((name, ip), program) in PROVIDERS.into_iter().zip(&programs) {
        let program = program.as_ref().unwrap_or(&host.envoy);
        world.start_sidecar_with(host, program, "b", name, "opa", ip);
        authorizers.push(authorizer(host, world.pod(&format!("b/{name}")), name));
    }
    world.apiservers["b"].apply(&providers(true));
    let objects: Vec<Value> = guarded.iter().flat_map(Guarded::objects).chain(rules()).collect();
    world.apiservers["a"].apply(&objects);
    let keys = guarded.iter().map(|each| format!("a/{}", each.name));
    let keys: Vec<String> =
        keys.chain(PROVIDERS.iter().map(|(name, _)| format!("b/{name}"))).collect();
    for key in &keys {
        world.envoys.get_mut(key).expect("just started").wait_until_live(PROPAGATION);
    }

    for each in &guarded {
        world.wait_until_configured(each);
        world.wait_for_providers(each, Providers::Answer, "at first");
        world.check_all_providers(each);
    }

    // The gateway of their network stops and returns.
    world.envoys.remove(GATEWAY);
    for each in &guarded {
        world.wait_for_providers(each, Providers::AreAway, "without their gateway");
    }
    world.start_again(host, GATEWAY);
    for each in &guarded {
        world.wait_for_providers(each, Providers::Answer, "behind a gateway again");
    }

    // All of them become unready, and ready again.
    world.apiservers["b"].apply(&providers(false));
    for each in &guarded {
        world.wait_for_providers(each, Providers::AreAway, "while no provider is ready");
    }
    world.apiservers["b"].apply(&providers(true));
    for each in &guarded {
        world.wait_for_providers(each, Providers::Answer, "ready again");
    }
    assert_eq!(world.complaints(), Vec::<String>::new());

    world.client_is_denied_in_both_networks();

    // They are killed without any notification of the mesh.
    drop(authorizers);
    for each in &guarded {
        world.wait_for_providers(each, Providers::AreAway, "after they were killed");
    }

    for (cluster, objects) in [("a", objects), ("b", providers(true))] {
        let gone: Vec<_> = objects.iter().map(|one| Request::delete(&path(one))).collect();
        world.apiservers[cluster].requests(&gone);
    }
    keys.iter().for_each(|key| _ = world.envoys.remove(key));
}

/// A guarded workload.
struct Guarded {
    name: &'static str,
    ip: &'static str,
    vip: String,
    program: PathBuf,
}

impl Guarded {
    fn objects(&self) -> Vec<Value> {
        let service = service("shop", self.name, &self.vip, &PORTS);
        let slice = endpoint_slice(&service, &[(self.name.to_owned(), self.ip.to_owned(), true)]);
        let mut labels = pod_labels(self.name);
        labels["asks"] = "yes".into();
        vec![pod("shop", self.name, self.name, self.ip, &labels), slice, service]
    }
}

/// Returns the objects of the providers' service in cluster b with its pods.
fn providers(ready: bool) -> Vec<Value> {
    let service = service("shop", "opa", &vip("b", 17), &PROVIDER_PORTS);
    let endpoints = PROVIDERS.map(|(name, ip)| (name.to_owned(), ip.to_owned(), ready));
    let pods = PROVIDERS.map(|(name, ip)| pod("shop", name, "opa", ip, &pod_labels("opa")));
    pods.into_iter().chain([endpoint_slice(&service, &endpoints), service]).collect()
}

/// Returns the mesh config with the providers, and the policies that use them: each for one part of
/// the paths, and for connections that are not HTTP.
fn rules() -> Vec<Value> {
    let provider = |(name, open): (&str, bool)| {
        let mut fields = json!({ "service": SERVICE, "timeout": "2s", "failOpen": open });
        let kind = if name.starts_with("web") {
            fields["port"] = 4180.into();
            fields["headersToUpstreamOnAllow"] = json!(["x-a*"]);
            "envoyExtAuthzHttp"
        } else {
            fields["port"] = 9191.into();
            "envoyExtAuthzGrpc"
        };
        json!({ "name": name, kind: fields })
    };
    let mesh = json!({ "extensionProviders": ASKED.map(provider) }).to_string();
    let mesh = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "strait", "namespace": SYSTEM }, "data": { "mesh": mesh },
    });
    let policy = |name: &str, provider: &str, operation: Value| {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": { "name": name, "namespace": "shop" },
            "spec": {
                "selector": { "matchLabels": { "asks": "yes" } },
                "action": "CUSTOM", "provider": { "name": provider },
                "rules": [{ "to": [{ "operation": operation }] }],
            },
        })
    };
    let requests = ASKED.map(|(name, _)| {
        let port = HTTP_PORT.to_string();
        policy(name, name, json!({ "paths": [format!("/{name}/*")], "ports": [port] }))
    });
    let connections = policy("connections", "rpc", json!({ "ports": ["9000"] }));
    [mesh, connections].into_iter().chain(requests).collect()
}

/// Starts the provider's program in a namespace.
fn authorizer(host: &Host, netns: &Netns, name: &str) -> Process {
    let command = netns.helper_command(&["authorizer", name]);
    listening(Process::spawn(command, &host.subfolder("echo"), name))
}

impl World {
    /// Restarts an Envoy of the world with the same bootstrap.
    fn start_again(&mut self, host: &Host, key: &str) {
        let name = key.replace('/', "-");
        let file = host.subfolder("bootstrap").join(format!("{name}.yaml"));
        let mut envoy = Envoy::start(host, &self.pods[key], &name, &file);
        envoy.wait_until_live(PROPAGATION);
        self.envoys.insert(key.to_owned(), envoy);
    }

    /// Waits until a workload's Envoy has the policies. Requests on a client's older connection may
    /// pass until it is drained.
    fn wait_until_configured(&self, guarded: &Guarded) {
        wait::until(PROPAGATION, &format!("{} has the policies", guarded.name), || {
            let envoy = self.envoy(&format!("a/{}", guarded.name));
            let listeners = envoy.config_dump("?resource=dynamic_listeners").to_string();
            let lacks =
                |(name, _): &(&str, bool)| !listeners.contains(&format!("ext_authz_{name}_"));
            let missing: Vec<_> = ASKED.iter().filter(|one| lacks(one)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
        });
    }

    /// Waits until all parts of a workload's paths have the expected result. Requests that a
    /// fail-closed provider does not allow must not pass meanwhile.
    fn wait_for_providers(&self, guarded: &Guarded, providers: Providers, when: &str) {
        let what = format!("{} {when}: providers {providers:?}", guarded.name);
        wait::until(PROPAGATION, &what, || {
            for (part, fails_open) in ASKED {
                for allows in [true, false] {
                    let path = format!("/{part}/{}", if allows { "ok" } else { "no" });
                    let (status, headers) = self.request(guarded, &path);
                    let never = status == 200 && !allows && !fails_open;
                    assert!(!never, "{what}: {path} passed");
                    let answers = providers == Providers::Answer;
                    let passes = if answers { allows } else { fails_open };
                    let by = headers[ASKED_BY].as_str();
                    let uri = format!("URI={}", spiffe(guarded.name));
                    let wanted = (answers && passes).then_some(uri.as_str());
                    let as_wanted = status == if passes { 200 } else { 403 } && by == wanted;
                    if !as_wanted {
                        return Err(format!("{path}: {status}, asked by {by:?}"));
                    }
                }
            }
            let load = Load::tcp(&format!("{}:9000", guarded.vip), 4);
            let answers = run_load(self.pod("a/client"), &load);
            let passed = answers.by.values().sum::<usize>();
            let wanted = if providers == Providers::Answer { 4 } else { 0 };
            if passed == wanted { Ok(()) } else { Err(format!("connections: {answers:?}")) }
        });
    }

    /// Checks that a policy denies the client by its identity, in both networks and also on open
    /// connections of the client's sidecar, and denies no other caller.
    fn client_is_denied_in_both_networks(&self) {
        let reaches_all = |who: &str| {
            let answers = run_load(self.pod(who), &http(60));
            let pods = ECHO_PODS.iter().map(|(_, pods)| pods.len()).sum::<usize>();
            let all = answers.by.len() == pods && answers.failures.is_empty();
            if all { Ok(()) } else { Err(format!("{answers:?}")) }
        };
        wait::until(PROPAGATION, "the client reaches all", || reaches_all("a/client"));
        let principal = spiffe("client").trim_start_matches("spiffe://").to_owned();
        let deny = json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": { "name": "no-client", "namespace": "shop" },
            "spec": {
                "selector": { "matchLabels": { "app": "echo" } },
                "action": "DENY",
                "rules": [{ "from": [{ "source": { "principals": [principal] } }] }],
            },
        });
        self.apiservers["a"].apply(std::slice::from_ref(&deny));
        wait::until(PROPAGATION, "the client is denied everywhere", || {
            let answers = run_load(self.pod("a/client"), &http(60));
            let denied =
                |(fact, count): (&String, &usize)| fact.starts_with("403").then_some(*count);
            let count: usize = answers.failures.iter().filter_map(denied).sum();
            if count == 60 { Ok(()) } else { Err(format!("{answers:?}")) }
        });
        wait::until(PROPAGATION, "another reaches all", || {
            reaches_all(&format!("a/{}", SOLO_POD.0))
        });
        self.apiservers["a"].requests(&[Request::delete(&path(&deny))]);
        wait::until(PROPAGATION, "the client reaches all again", || reaches_all("a/client"));
    }

    /// Checks that both providers receive requests, over both protocols.
    fn check_all_providers(&self, guarded: &Guarded) {
        let all: BTreeSet<String> = PROVIDERS.iter().map(|(name, _)| (*name).to_owned()).collect();
        for part in ["web", "rpc"] {
            let mut answered = BTreeSet::new();
            wait::until(PROPAGATION, &format!("{}: {part} asks all", guarded.name), || {
                let (_, headers) = self.request(guarded, &format!("/{part}/ok"));
                answered.extend(headers[ANSWERED_BY].as_str().map(str::to_owned));
                if answered == all { Ok(()) } else { Err(format!("{answered:?}")) }
            });
        }
    }

    /// Sends a request of the client. Returns the status and the headers that the workload
    /// received.
    fn request(&self, guarded: &Guarded, path: &str) -> (u16, Value) {
        let mut command = self.pod("a/client").command("curl");
        command.args(["-s", "--max-time", "10", "-w", "\n%{http_code}"]);
        command.args(["-H", &format!("Host: {}.shop", guarded.name)]);
        let url = format!("http://{}{path}", guarded.vip);
        let output = command.arg(url).output().expect("curl is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or(("", &text));
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        (status.trim().parse().unwrap_or_default(), body["headers"].clone())
    }
}
