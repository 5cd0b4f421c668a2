//! gRPC's own libraries without a proxy, in Go and in C core: clients and servers that find each
//! other by xDS, with mTLS and in plain text, in a separate namespace with a real API server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::apiserver::{Apiserver, Settings};
use crate::certs::{Authority, Files};
use crate::host::{self, Host};
use crate::kube::{endpoint_slice, istio_kind, namespace, service};
use crate::netns::Netns;
use crate::process::Process;
use crate::strait::{self, Strait};
use crate::wait;

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const CLUSTER: &str = "grpc";
/// The port of every server.
const PORT: u16 = 7000;
/// The address of the control plane. A library compares the text of an address with the
/// certificate.
pub(crate) const DISCOVERY: &str = "127.0.0.1:15012";

/// A gRPC library, by its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Go,
    CCore,
}

/// The environment of the scenario.
pub(crate) struct Rig {
    pub(crate) hub: Rc<Netns>,
    pub(crate) folder: PathBuf,
    pub(crate) go: PathBuf,
    python: PathBuf,
    pub(crate) authority: Authority,
}

impl Rig {
    /// Creates the rig in a separate namespace. Returns `None` and reports a skip of `scenario` if
    /// a library is missing.
    pub(crate) fn create(host: &Host, label: &str, scenario: &str) -> Option<Self> {
        let (Some(go), Some(python)) = (&host.grpc_go, &host.grpc_python) else {
            host::skip_without(scenario, "no grpc-go or no grpcio");
            return None;
        };
        Some(Self {
            hub: Rc::new(Netns::create(label)),
            folder: host.subfolder(label),
            go: go.clone(),
            python: python.clone(),
            authority: Authority::create(&host.subfolder(&format!("{label}-ca")), label),
        })
    }

    fn program(&self, library: Library) -> Command {
        match library {
            Library::Go => self.hub.command(&self.go),
            Library::CCore => {
                let mut command = self.hub.command(&self.python);
                command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/grpc_xds.py"));
                // With an unreachable name server, the default resolver would wait for it.
                command.env("GRPC_DNS_RESOLVER", "native");
                command
            }
        }
    }

    /// Writes the bootstrap that `strait proxy bootstrap` prints for a pod to a file, without mesh
    /// certificates unless `mtls` is set. Returns its path.
    fn bootstrap(&self, pod: &str, address: &str, mtls: bool) -> PathBuf {
        let name = account(pod);
        let Files { certificate, key, root } = self.authority.workload("shop", name);
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let label =
            format!("security.istio.io/tlsMode={}", if mtls { "istio" } else { "disabled" });
        let printed = strait::command(&[
            "proxy",
            "bootstrap",
            "--grpc",
            "--type",
            "sidecar",
            "--name",
            pod,
            "--namespace",
            "shop",
            "--service-account",
            name,
            "--cluster",
            CLUSTER,
            "--ip",
            address,
            "--label",
            &label,
            "--discovery",
            DISCOVERY,
            "--cert",
            &text(&certificate),
            "--key",
            &text(&key),
            "--root-ca",
            &text(&root),
        ]);
        let mut bootstrap: Value = serde_json::from_str(&printed).expect("JSON");
        if !mtls {
            let fields = bootstrap.as_object_mut().expect("an object");
            fields.remove("certificate_providers");
            fields["node"]["metadata"]["STRAIT_GRPC_MTLS"] = json!("false");
        }
        let file = self.folder.join(format!("{pod}.json"));
        std::fs::write(&file, bootstrap.to_string()).expect("the folder of this run is ours");
        file
    }

    /// Starts a server on these ports of an address.
    pub(crate) fn serve(
        &self,
        library: Library,
        name: &str,
        (address, ports): (&str, &[u16]),
        mtls: bool,
    ) -> Process {
        let mut command = self.program(library);
        let sockets = ports.iter().map(|port| format!("{address}:{port}"));
        command.args(["serve", &sockets.collect::<Vec<_>>().join(","), name]);
        command.env("GRPC_XDS_BOOTSTRAP", self.bootstrap(&format!("{name}-0"), address, mtls));
        Process::spawn(command, &self.folder, &format!("server-{name}"))
    }

    fn call(&self, library: Library, bootstrap: &Path, label: &str, target: &str) -> Process {
        let mut command = self.program(library);
        command.args(["call", &format!("xds:///{target}")]).env("GRPC_XDS_BOOTSTRAP", bootstrap);
        Process::spawn(command, &self.folder, &format!("client-{label}"))
    }
}

/// Returns the last results of a client's calls.
fn last(client: &Process, count: usize) -> Vec<Value> {
    let text = client.stdout();
    let lines: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

/// Waits until exactly these servers respond to a client's calls, and see the client as `identity`.
fn wait_for(client: &Process, what: &str, servers: &[&str], identity: &str) {
    wait::until(LIMIT, what, || {
        let lines = last(client, 8);
        let is_fine = |line: &Value| {
            servers.iter().any(|name| line["server"] == *name) && line["client"] == identity
        };
        let all = servers.iter().all(|name| lines.iter().any(|line| line["server"] == *name));
        if lines.len() == 8 && all && lines.iter().all(is_fine) {
            Ok(())
        } else {
            Err(format!("{lines:?}; {}", client.log_end()))
        }
    });
}

/// Returns the account of a pod: its name without the number.
pub(crate) fn account(pod: &str) -> &str {
    pod.rsplit_once('-').map_or(pod, |(name, _)| name)
}

pub(crate) fn pod(pod: &str, address: &str, mtls: bool) -> Value {
    let name = account(pod);
    let mode = if mtls { "istio" } else { "disabled" };
    let labels = json!({ "app": name, "security.istio.io/tlsMode": mode });
    crate::kube::pod("shop", pod, name, address, &labels)
}

fn id(name: &str) -> String {
    format!("spiffe://{}/ns/shop/sa/{name}", crate::certs::TRUST_DOMAIN)
}

/// Clients of both libraries call servers of both, with mTLS and in plain text. Then a server is
/// added, one is removed, and policies restrict the callers.
pub(crate) fn run(host: &Host) {
    let Some(rig) = Rig::create(host, "grpc", "real::grpc") else { return };
    let hub = Rc::clone(&rig.hub);
    let servers = [
        ("go", "10.80.0.1", Library::Go, true),
        ("core", "10.80.0.2", Library::CCore, true),
        ("plain-go", "10.80.0.3", Library::Go, false),
        ("plain-core", "10.80.0.4", Library::CCore, false),
        ("slow", "10.80.0.5", Library::CCore, false),
    ];
    // Each library has its own caller, because a pod's identity may have at most four streams.
    let clients = [
        ("caller-0", "10.80.0.7", true),
        ("caller-1", "10.80.0.8", true),
        ("stranger-0", "10.80.0.9", false),
    ];
    let addresses = servers.iter().map(|one| one.1).chain(clients.iter().map(|one| one.1));
    for address in addresses {
        hub.ip(&format!("address add {address}/32 dev lo"));
    }
    let settings = Settings {
        cluster: CLUSTER,
        address: "127.0.0.1",
        port: 6443,
        service_cidr: "10.96.0.0/16",
    };
    let mut apiserver = Apiserver::start(host, &hub, &rig.authority, &settings);
    apiserver.wait_until_ready();
    let (networking, security) = ("networking.istio.io", "security.istio.io");
    apiserver.apply(&[
        istio_kind(networking, "DestinationRule", "destinationrules"),
        istio_kind(networking, "VirtualService", "virtualservices"),
        istio_kind(security, "AuthorizationPolicy", "authorizationpolicies"),
        istio_kind(security, "PeerAuthentication", "peerauthentications"),
    ]);
    let mut objects = vec![namespace("shop", json!({})), namespace("strait-system", json!({}))];
    objects.extend(
        servers.iter().map(|(name, address, _, mtls)| pod(&format!("{name}-0"), address, *mtls)),
    );
    objects.extend(clients.iter().map(|(name, address, mtls)| pod(name, address, *mtls)));
    let grpc_service = |name: &str, vip: &str| service("shop", name, vip, &[("grpc", 80, PORT)]);
    let [mesh, plain, mixed] =
        [("mesh", "10.96.1.1"), ("plain", "10.96.1.2"), ("mixed", "10.96.1.3")]
            .map(|(name, vip)| grpc_service(name, vip));
    let slice = |service: &Value, names: &[&str]| {
        let pods = servers.iter().filter(|one| names.contains(&one.0));
        let pods =
            pods.map(|(name, address, ..)| (format!("{name}-0"), (*address).to_owned(), true));
        endpoint_slice(service, &pods.collect::<Vec<_>>())
    };
    objects.extend([
        slice(&mesh, &["go", "core"]),
        slice(&plain, &["plain-go", "plain-core"]),
        slice(&mixed, &["go", "plain-core"]),
    ]);
    objects.extend([mesh.clone(), plain.clone(), mixed]);
    apiserver.apply(&objects);

    let kubeconfig = apiserver.admin_kubeconfig();
    let arguments = [
        ("--kubeconfig", kubeconfig.to_str().expect("UTF-8")),
        ("--cluster-id", CLUSTER),
        ("--ca-dir", rig.authority.folder().to_str().expect("UTF-8")),
        ("--xds-address", DISCOVERY),
        ("--admin-address", "127.0.0.1:0"),
    ];
    let arguments = arguments.iter().flat_map(|(flag, value)| [*flag, *value].map(str::to_owned));
    let control_plane = Strait::start(host, &hub, arguments.collect());
    control_plane.wait_until_ready();
    control_plane.wait_for_cluster_state(CLUSTER, &["live"], LIMIT);

    let _serving: Vec<Process> = servers
        .iter()
        .map(|(name, address, library, mtls)| rig.serve(*library, name, (address, &[PORT]), *mtls))
        .collect();
    let files = clients.map(|(name, address, mtls)| rig.bootstrap(name, address, mtls));
    let [first, second, stranger] = &files;
    let mut running = Vec::new();
    for (library, caller) in [(Library::Go, first), (Library::CCore, second)] {
        let start = |bootstrap: &Path, service: &str| {
            let caller = bootstrap.file_stem().and_then(|name| name.to_str()).expect("UTF-8");
            let label = format!("{library:?}-{service}-{caller}");
            rig.call(library, bootstrap, &label, &format!("{service}.shop.svc.cluster.local:80"))
        };
        let by_mtls = start(caller, "mesh");
        wait_for(&by_mtls, "servers with certificates answer", &["go", "core"], &id("caller"));
        let peers = last(&by_mtls, 8);
        // Go reports the server's certificate. C core rejects a wrong certificate too, but does not
        // report it.
        if library == Library::Go {
            let matches_server =
                |line: &Value| line["peer"] == id(line["server"].as_str().unwrap_or_default());
            assert!(peers.iter().all(matches_server), "{peers:?}");
        }
        let plain = start(caller, "plain");
        wait_for(&plain, "servers without certificates answer", &["plain-go", "plain-core"], "");
        let mixed = start(caller, "mixed");
        wait_for(
            &mixed,
            "in a mixed service, only servers with certificates respond",
            &["go"],
            &id("caller"),
        );
        let without = start(stranger, "plain");
        wait_for(
            &without,
            "a client without certificates is answered",
            &["plain-go", "plain-core"],
            "",
        );
        running.push((by_mtls, plain, mixed, without));
    }

    // Withheld endpoints are explained, and no client has rejected a response.
    let path = "/debug/explain?proxy=caller-0.shop&hostname=mixed.shop&port=80";
    let explained = control_plane.json(path);
    assert_eq!(explained["clusters"][0]["code"], "STR0416", "{explained}");
    assert_nothing_is_refused(&control_plane);

    // A change of endpoints reaches running clients.
    apiserver.apply(&[slice(&mesh, &["core"]), slice(&plain, &["plain-go"])]);
    for (by_mtls, plain, ..) in &running {
        wait_for(by_mtls, "only the remaining server responds", &["core"], &id("caller"));
        wait_for(plain, "only the remaining server responds", &["plain-go"], "");
    }
    // A service that joins the mesh changes from plain text to mTLS without a call to another
    // server in between.
    apiserver.apply(&[slice(&plain, &["go"])]);
    for (_, plain, ..) in &running {
        wait_for(plain, "its calls use mTLS now", &["go"], &id("caller"));
    }

    // Rules for its routes, and for the connections to a service.
    let rule = |kind: &str, name: &str, spec: Value| {
        apiserver.apply(&[istio_object(networking, kind, name, spec)]);
    };
    apiserver.apply(&[slice(&mesh, &["go", "core"]), slice(&plain, &["slow"])]);
    let part = |name: &str| json!({ "name": name, "labels": { "app": name } });
    let parts = json!({ "host": "mesh", "subsets": [part("go"), part("core")] });
    rule("DestinationRule", "mesh", parts.clone());
    let to = |subset: &str| json!({ "destination": { "host": "mesh", "subset": subset } });
    let lead = |http: Value| {
        rule("VirtualService", "mesh", json!({ "hosts": ["mesh"], "http": http }));
    };
    let all_calls = |what: &str, servers: &[&str]| {
        for (mesh, ..) in &running {
            wait_for(mesh, what, servers, &id("caller"));
        }
    };
    let all_fail = |what: &str, codes: [&str; 2]| {
        for (mesh, ..) in &running {
            wait_for_code(mesh, what, codes);
        }
    };
    // Clients send a fixed path, and C core also sends a header.
    let [(go_caller, ..), (core_caller, ..)] = &running[..] else { panic!("two libraries") };
    let each_calls = |what: &str, [by_go, by_core]: [&str; 2]| {
        wait_for(go_caller, what, &[by_go], &id("caller"));
        wait_for(core_caller, what, &[by_core], &id("caller"));
    };
    let by_path = json!([{ "uri": { "exact": "/grpc.health.v1.Health/Check" } }]);
    let user = json!({ "x-user": { "exact": "jo" } });
    lead(
        json!([{ "match": [{ "headers": user }], "route": [to("go")] }, { "route": [to("core")] }]),
    );
    each_calls("a rule about a header routes it", ["core", "go"]);
    lead(json!([
        { "match": [{ "withoutHeaders": user }], "route": [to("go")] },
        { "route": [to("core")] },
    ]));
    each_calls("a header that isn't there has no value", ["go", "core"]);
    let share = |subset: &str| json!({ "destination": to(subset)["destination"], "weight": 50 });
    lead(json!([{ "match": by_path, "route": [share("go"), share("core")] }]));
    all_calls("both subsets receive calls", &["go", "core"]);
    let abort = json!({ "grpcStatus": "RESOURCE_EXHAUSTED", "percentage": { "value": 100 } });
    lead(
        json!([{ "fault": { "abort": abort }, "retries": { "attempts": 0 }, "route": [to("go")] }]),
    );
    all_fail("calls fail on purpose", ["ResourceExhausted", "RESOURCE_EXHAUSTED"]);
    // Requests that match a rule which a library does not support are not sent to another
    // destination, and other rules are not affected.
    let by_host = json!([{ "authority": { "exact": "elsewhere" } }]);
    lead(json!([{ "match": by_host, "route": [to("go")] }, { "route": [to("core")] }]));
    all_fail("a rule that it can't tell fails", ["Unavailable", "UNAVAILABLE"]);
    let states = control_plane.json("/debug/config?kind=VirtualService");
    assert!(states.to_string().contains("STR0417"), "{states}");
    lead(
        json!([{ "match": by_path, "redirect": { "authority": "b.example" } }, { "route": [to("core")] }]),
    );
    all_fail("redirects are not followed", ["Unavailable", "UNAVAILABLE"]);
    let mut policy = parts;
    policy["trafficPolicy"] = json!({
        "connectionPool": { "http": { "http2MaxRequests": 100 } },
        "loadBalancer": { "consistentHash": { "httpHeaderName": "x-user" } },
        "outlierDetection": { "consecutive5xxErrors": 5, "interval": "1s" },
    });
    rule("DestinationRule", "mesh", policy.clone());
    lead(json!([{ "route": [{ "destination": { "host": "mesh" } }] }]));
    wait_for(go_caller, "without the header any server responds", &["go", "core"], &id("caller"));
    wait::until(LIMIT, "one server responds for a hash of the header", || {
        let lines = last(core_caller, 8);
        let is_same =
            |line: &Value| line["server"].is_string() && line["server"] == lines[0]["server"];
        if lines.len() == 8 && lines.iter().all(is_same) {
            Ok(())
        } else {
            Err(format!("{lines:?}"))
        }
    });
    policy["trafficPolicy"]["loadBalancer"] = json!({ "simple": "LEAST_REQUEST" });
    rule("DestinationRule", "mesh", policy);
    lead(
        json!([{ "match": by_path, "route": [{ "destination": { "host": "mesh", "subset": "none" } }] }]),
    );
    all_fail("a part that isn't there has no endpoint", ["Unavailable", "UNAVAILABLE"]);
    lead(json!([{ "route": [{ "destination": { "host": "mesh" } }] }]));
    all_calls("all calls succeed", &["go", "core"]);

    let plainly = |http: Value| {
        rule("VirtualService", "plain", json!({ "hosts": ["plain"], "http": http }));
    };
    let to_plain = || json!([{ "destination": { "host": "plain" } }]);
    for (_, plain, ..) in &running {
        wait_for(plain, "a slow server answers", &["slow"], "");
    }
    plainly(json!([{ "timeout": "0.2s", "retries": { "attempts": 0 }, "route": to_plain() }]));
    for (_, plain, ..) in &running {
        wait_for_code(
            plain,
            "the call exceeds its timeout",
            ["DeadlineExceeded", "DEADLINE_EXCEEDED"],
        );
    }
    let again = json!({ "attempts": 2, "retryOn": "unavailable,5xx" });
    plainly(json!([{ "retries": again, "route": to_plain() }]));
    for (_, plain, ..) in &running {
        wait_for(plain, "the timeout is removed, and failed calls are retried", &["slow"], "");
    }
    let states = control_plane.json("/debug/config?kind=VirtualService");
    assert!(states.to_string().contains("STR0418"), "{states}");
    assert_nothing_is_refused(&control_plane);
    rule("DestinationRule", "mesh", json!({ "host": "mesh" }));
    apiserver.apply(&[slice(&mesh, &["core"]), slice(&plain, &["go"])]);
    for (mesh, plain, ..) in &running {
        wait_for(mesh, "the general rule routes to the remaining server", &["core"], &id("caller"));
        wait_for(plain, "its calls use mTLS again", &["go"], &id("caller"));
    }

    // The servers of both libraries enforce policies themselves.
    let policy = |spec: Value| {
        let kind = "AuthorizationPolicy";
        apiserver.apply(&[access(kind, "callers", spec)]);
    };
    let from =
        |who: &str| json!({ "rules": [{ "from": [{ "source": { "principals": [who] } }] }] });
    let without_scheme = |name: &str| id(name).replace("spiffe://", "");
    let to_both = || running.iter().map(|(core, go, ..)| (core, go));
    policy(from(&without_scheme("somebody-else")));
    for (core, go) in to_both() {
        wait_for_denial(core, "its account is not allowed");
        wait_for_denial(go, "its account is not allowed");
    }
    policy(from(&without_scheme("caller")));
    for (core, go) in to_both() {
        wait_for(core, "its account may call", &["core"], &id("caller"));
        wait_for(go, "its account may call", &["go"], &id("caller"));
    }
    // A policy without rules is different from no policy.
    policy(json!({}));
    for (core, go) in to_both() {
        wait_for_denial(core, "an ALLOW policy without rules denies all callers");
        wait_for_denial(go, "an ALLOW policy without rules denies all callers");
    }
    policy(from(&without_scheme("caller")));
    for (core, go) in to_both() {
        wait_for(core, "its account may call again", &["core"], &id("caller"));
        wait_for(go, "its account may call again", &["go"], &id("caller"));
    }
    // A library verifies no tokens, so a rule about tokens is applied without them, and denies all.
    let by_token = json!([{ "from": [{ "source": { "requestPrincipals": ["a/b"] } }] }]);
    policy(json!({ "action": "DENY", "rules": by_token }));
    for (core, go) in to_both() {
        wait_for_denial(core, "a DENY rule about tokens applies to calls without tokens");
        wait_for_denial(go, "a DENY rule about tokens applies to calls without tokens");
    }
    let states = control_plane.json("/debug/config?kind=AuthorizationPolicy");
    assert!(states.to_string().contains("STR0830"), "{states}");

    // A server that must accept only mTLS, and cannot, accepts nothing.
    policy(json!({ "action": "ALLOW", "rules": [{}] }));
    apiserver.apply(&[slice(&plain, &["plain-go", "plain-core"])]);
    for (_, go) in to_both() {
        wait_for(go, "no call is denied any more", &["plain-go", "plain-core"], "");
    }
    let strict = json!({ "mtls": { "mode": "STRICT" } });
    apiserver.apply(&[access("PeerAuthentication", "default", strict)]);
    for (core, go) in to_both() {
        wait_for_denial(go, "a server without a certificate refuses all calls");
        wait_for(core, "a caller with a certificate continues", &["core"], &id("caller"));
    }
    let states = control_plane.json("/debug/config?kind=PeerAuthentication");
    assert!(states.to_string().contains("STR0831"), "{states}");
}

/// Checks that no client has rejected a response.
fn assert_nothing_is_refused(control_plane: &Strait) {
    let proxies = control_plane.json("/debug/proxies");
    let all = proxies.as_array().into_iter().flatten();
    let refused: Vec<&Value> = all.filter(|one| one.to_string().contains("nack")).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// Returns an access policy in namespace `shop`.
fn access(kind: &str, name: &str, spec: Value) -> Value {
    istio_object("security.istio.io", kind, name, spec)
}

/// Returns an object in namespace `shop`.
fn istio_object(group: &str, kind: &str, name: &str, spec: Value) -> Value {
    let metadata = json!({ "namespace": "shop", "name": name });
    json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata, "spec": spec })
}

/// Waits until the server denies all calls of a client.
fn wait_for_denial(client: &Process, what: &str) {
    wait_for_code(client, what, ["PermissionDenied", "PERMISSION_DENIED"]);
}

/// Waits until all calls of a client fail with a code, in the notation of either library.
fn wait_for_code(client: &Process, what: &str, codes: [&str; 2]) {
    wait::until(LIMIT, what, || {
        let lines = last(client, 8);
        let is_such = |line: &Value| {
            let error = line["error"].as_str().unwrap_or_default();
            codes.iter().any(|code| error.contains(code))
        };
        if lines.len() == 8 && lines.iter().all(is_such) {
            Ok(())
        } else {
            Err(format!("{lines:?}; {}", client.log_end()))
        }
    });
}
