//! Istio's unmodified agent with an Envoy that it starts with Istio's own bootstrap. It receives
//! only a token and the roots, as in a pod that Istio injects. It calls the other network and is
//! called, and survives a restart of either side.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::helper::{Answers, Load};
use crate::host::{self, Host};
use crate::kube::{Request, path};
use crate::netns::{ENVOY_UID, Netns};
use crate::process::Process;
use crate::rig_check::run_load;
use crate::scenarios::{PROPAGATION, finish, http};
use crate::topology::HUB;
use crate::wait;
use crate::world::{World, application, vip};

const APP: &str = "foreign";
const POD: &str = "foreign-1";
const ADDRESS: &str = "10.10.0.31";
const KEY: &str = "a/foreign-1";
const VIP: u8 = 33;
const TOKEN_SECONDS: u64 = 3600;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(world: &mut World, host: &Host) {
    let Some(agent) = &host.pilot_agent else {
        return host::skip_without("real::istio_agent", "no pilot-agent");
    };
    let mut objects = application(APP, vip("a", VIP), &[(POD, ADDRESS)]);
    objects.push(json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": APP, "namespace": "shop" },
    }));
    world.apiservers["a"].apply(&objects);
    let netns = world.topology.pod("a", POD, ADDRESS);
    world.pods.insert(KEY.to_owned(), Rc::clone(&netns));
    world.start_echo(host, "a", POD);
    let folder = world.agent_folder(host);
    let start = || Envoy::started_by_agent(spawn(host, agent, &netns, &folder), &netns, POD);
    world.envoys.insert(KEY.to_owned(), start());
    world.calls_and_is_called();

    // An agent that is killed together with its Envoy restarts with the same identity.
    world.envoys.remove(KEY);
    netns.kill_envoys();
    world.envoys.insert(KEY.to_owned(), start());
    world.calls_and_is_called();

    // Strait is down for a moment: no request is lost, and the agent reconnects.
    let load = Load { pause_ms: 20, ..http(1).lasting(12) };
    let load = load.spawn(&netns, &world.folder, "istio-agent-load");
    world.strait.kill();
    world.strait.launch();
    world.strait.wait_until_ready();
    wait::until(LIMIT, "the agent is connected again", || world.is_identified_by_token());
    let answers = finish(load);
    assert!(answers.failures.is_empty() && answers.requests > 100, "{answers:?}");
    world.wait_for_everyone();

    world.envoys.remove(KEY);
    world.pods.remove(KEY);
    let gone: Vec<_> = objects.iter().map(|object| Request::delete(&path(object))).collect();
    world.apiservers["a"].requests(&gone);
}

/// Starts the agent as its image does. Paths are relative to its working directory.
fn spawn(host: &Host, agent: &Path, netns: &Netns, folder: &Path) -> Process {
    // The logs of the agent and its Envoy go to one file.
    let mut command = netns.command_as_envoy("sh");
    command.args(["-c", "exec \"$@\" >&2", "sh"]).arg(agent);
    command.args(["proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--templateFile"]);
    command.arg(agent.with_file_name("envoy_bootstrap.json"));
    let config = json!({
        "discoveryAddress": format!("{HUB}:15012"), "binaryPath": host.envoy, "concurrency": 1,
        "terminationDrainDuration": "1s",
    });
    command.current_dir(folder).envs([
        ("PILOT_CERT_PROVIDER", "istiod"),
        ("PROXY_CONFIG", &config.to_string()),
        ("POD_NAME", POD),
        ("POD_NAMESPACE", "shop"),
        ("INSTANCE_IP", ADDRESS),
        ("SERVICE_ACCOUNT", APP),
        ("TRUST_DOMAIN", "cluster.local"),
        ("ISTIO_META_CLUSTER_ID", "a"),
        ("ISTIO_META_NETWORK", "net-a"),
    ]);
    Process::spawn(command, &host.subfolder("envoy"), POD)
}

impl World {
    /// Returns the folder that a pod has mounted: the token that the kubelet requests, and the
    /// roots of `istio-ca-root-cert`.
    fn agent_folder(&self, host: &Host) -> PathBuf {
        let folder = host.subfolder("istio-agent");
        let token = self.apiservers["a"].token(POD, APP, TOKEN_SECONDS);
        let files = [
            ("var/run/secrets/tokens/istio-token", token.as_str()),
            ("var/run/secrets/istio/root-cert.pem", self.ca.pem()),
            ("etc/istio/proxy/.keep", ""),
        ];
        for (file, text) in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("our own folder");
            std::fs::write(path, text).expect("our own folder");
        }
        // The agent creates its sockets and its Envoy's bootstrap below this folder.
        let mut all = Command::new("find");
        let listed = all.arg(&folder).output().expect("find is there").stdout;
        for path in String::from_utf8_lossy(&listed).lines() {
            chown(path, Some(ENVOY_UID), Some(ENVOY_UID)).expect("the rig runs as root");
        }
        folder
    }

    fn is_identified_by_token(&self) -> Result<(), String> {
        let proxies = self.strait.try_json("/debug/proxies")?;
        let id = format!("~{POD}.shop~");
        let is_it = |one: &&Value| one["id"].as_str().is_some_and(|text| text.contains(&id));
        let found = proxies.as_array().into_iter().flatten().find(is_it);
        match found.map(|one| &one["knownBy"]) {
            Some(proof) if proof == "token" => Ok(()),
            _ => Err(format!("{found:?}")),
        }
    }

    /// Checks that the agent's Envoy reaches all endpoints of a service in both networks, where its
    /// identity is known, and that other proxies reach it.
    fn calls_and_is_called(&mut self) {
        self.envoys.get_mut(KEY).expect("just started").wait_until_live(LIMIT);
        wait::until(PROPAGATION, "the agent is admitted with its token", || {
            self.is_identified_by_token()
        });
        let everywhere = |answers: &Answers| {
            let clusters = ["a/", "b/"].map(|id| answers.by.keys().any(|pod| pod.starts_with(id)));
            answers.failures.is_empty() && clusters == [true, true]
        };
        let answers = wait::until(PROPAGATION, "both networks respond", || {
            let answers = run_load(self.pod(KEY), &http(60));
            if everywhere(&answers) { Ok(answers) } else { Err(format!("{answers:?}")) }
        });
        for (pod, sample) in &answers.samples {
            let identity =
                sample["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default();
            assert!(identity.contains(&format!("sa/{APP}")), "{pod} saw {identity:?}");
        }
        let load = Load::http(
            &format!("{}:80", vip("a", VIP)),
            &format!("{APP}.shop.svc.cluster.local"),
            20,
        );
        wait::until(PROPAGATION, "other proxies reach it with mTLS", || {
            let answers = run_load(self.pod("a/client"), &load);
            let sample = answers.samples.values().next();
            let identity = sample.map(|one| one["headers"]["x-forwarded-client-cert"].to_string());
            let is_by_mtls = identity.is_some_and(|identity| identity.contains("sa/client"));
            if answers.failures.is_empty() && is_by_mtls {
                Ok(())
            } else {
                Err(format!("{answers:?}"))
            }
        });
        assert_eq!(self.complaints(), Vec::<String>::new());
    }
}
