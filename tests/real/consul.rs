//! A real Consul with two datacentres and a Strait that reads them, in a separate namespace.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{self, Host};
use crate::netns::Netns;
use crate::process::Process;
use crate::strait::Strait;
use crate::wait;

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The ports of the two agents: HTTP, server, LAN and WAN gossip.
const DC1: [u16; 4] = [8500, 8300, 8301, 8302];
const DC2: [u16; 4] = [8510, 8310, 8311, 8312];

/// A server of one datacentre in development mode, which forgets everything when it ends.
pub(crate) struct Agent {
    program: PathBuf,
    hub: Rc<Netns>,
    folder: PathBuf,
    datacentre: &'static str,
    /// The network of the instances.
    network: &'static str,
    /// The folder with a file for each instance. The command line cannot register checks that run a
    /// program.
    services: PathBuf,
    ports: [u16; 4],
    starts: usize,
    process: Option<Process>,
}

impl Agent {
    /// Starts the server of a mesh on `hub`, with instances in `network`. It may not be ready yet.
    pub(crate) fn for_mesh(
        host: &Host,
        program: &Path,
        hub: &Rc<Netns>,
        network: &'static str,
    ) -> Self {
        let mut agent = Self {
            program: program.to_owned(),
            hub: Rc::clone(hub),
            folder: host.subfolder("mesh-consul"),
            datacentre: "dc1",
            network,
            services: host.subfolder("mesh-consul-services"),
            ports: DC1,
            starts: 0,
            process: None,
        };
        agent.start();
        agent
    }

    fn start(&mut self) {
        let [http, server, lan, wan] = self.ports.map(|port| port.to_string());
        let mut command = self.hub.command(&self.program);
        command.args(["agent", "-dev", "-bind", "127.0.0.1", "-enable-script-checks"]);
        command.arg("-config-dir").arg(&self.services);
        command.args(["-datacenter", self.datacentre, "-node", self.datacentre]);
        command.args(["-http-port", &http, "-server-port", &server]);
        command.args(["-serf-lan-port", &lan, "-serf-wan-port", &wan]);
        command.args(["-dns-port", "-1", "-grpc-port", "-1", "-log-level", "warn"]);
        command.args(["-retry-join-wan", &format!("127.0.0.1:{}", DC1[3])]);
        self.starts += 1;
        let name = format!("consul-{}-{}", self.datacentre, self.starts);
        self.process = Some(Process::spawn(command, &self.folder, &name));
    }

    /// Runs the `consul` command with this agent.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.hub.command(&self.program);
        command.args(arguments).env("CONSUL_HTTP_ADDR", format!("127.0.0.1:{}", self.ports[0]));
        let output = command.output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Registers an instance of `web`. Its check passes, warns or fails according to the number in
    /// its state file.
    pub(crate) fn register(&self, id: &str, address: &str, meta: &Value) {
        let state = self.folder.join(format!("{id}.state"));
        set_check(&state, 0);
        let service = json!({ "service": {
            "name": "web", "id": id, "address": address, "port": 8080, "meta": meta,
            "tags": [format!("topology.istio.io/network|{}", self.network)],
            "checks": [{ "args": ["sh", "-c", format!("exit $(cat {})", state.display())], "interval": "1s" }],
        }});
        let file = self.services.join(format!("{id}.json"));
        std::fs::write(&file, service.to_string()).expect("the folder of this run is ours");
        self.reload();
    }

    /// Removes an instance at the next [`Self::reload`].
    pub(crate) fn deregister(&self, id: &str) {
        let file = self.services.join(format!("{id}.json"));
        std::fs::remove_file(file).expect("it was registered");
    }

    /// Makes the agent read its files.
    pub(crate) fn reload(&self) {
        wait::until(LIMIT, "Consul reads its files", || self.run(&["reload"]));
    }
}

fn set_check(state: &Path, code: u8) {
    std::fs::write(state, code.to_string()).expect("the folder of this run is ours");
}

/// Runs services with health checks in two datacentres, an outage, and a Consul that returns empty.
pub(crate) fn run(host: &Host) {
    let Some(program) = &host.consul else {
        return host::skip_without("real::consul", "no consul");
    };
    let hub = Rc::new(Netns::create("consul"));
    let folder = host.subfolder("consul");
    let [mut dc1, mut dc2] = [("dc1", DC1), ("dc2", DC2)].map(|(datacentre, ports)| Agent {
        program: program.clone(),
        hub: Rc::clone(&hub),
        folder: folder.clone(),
        datacentre,
        network: "n1",
        services: host.subfolder(&format!("consul-{datacentre}")),
        ports,
        starts: 0,
        process: None,
    });
    dc1.start();
    dc2.start();
    dc1.register("web-1", "10.1.0.1", &json!({ "protocol": "http" }));
    dc1.register("web-2", "10.1.0.2", &json!({ "protocol": "http" }));
    dc2.register("web-3", "10.2.0.1", &json!({ "protocol": "http" }));
    wait::until(LIMIT, "the datacentres know each other", || {
        let datacentres = dc1.run(&["catalog", "datacenters"])?;
        if datacentres.contains("dc2") { Ok(()) } else { Err(datacentres) }
    });

    let config = host.subfolder("consul-config");
    let arguments = [
        ("--config-dir", config.to_str().expect("UTF-8")),
        ("--xds-address", "127.0.0.1:0"),
        ("--admin-address", "127.0.0.1:0"),
        ("--consul-address", "http://127.0.0.1:8500"),
    ];
    let arguments = arguments.iter().flat_map(|(flag, value)| [(*flag).into(), (*value).into()]);
    let strait = Strait::start(host, &hub, arguments.collect());
    strait.wait_until_ready();

    let endpoints = || -> Result<Vec<String>, String> {
        let all = strait.try_json("/debug/endpoints?hostname=web.service.consul")?;
        let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
        let line = |endpoint: &Value| {
            ["cluster", "address", "portName", "network", "locality", "health"]
                .map(|field| text(endpoint, field))
                .join(" ")
        };
        Ok(all.as_array().into_iter().flatten().map(line).collect())
    };
    let become_these = |wanted: &[&str]| {
        wait::until(LIMIT, &format!("{wanted:?}"), || {
            let found = endpoints()?;
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        });
    };
    let first_pod = |health: &str| format!("consul/dc1 10.1.0.1 http-8080 n1 dc1 {health}");
    let second_pod = |health: &str| format!("consul/dc1 10.1.0.2 http-8080 n1 dc1 {health}");
    let three = "consul/dc2 10.2.0.1 http-8080 n1 dc2 healthy";
    become_these(&[&first_pod("healthy"), &second_pod("healthy"), three]);

    // The check fails, warns, and passes again.
    let check = folder.join("web-2.state");
    set_check(&check, 2);
    become_these(&[&first_pod("healthy"), &second_pod("unhealthy"), three]);
    set_check(&check, 1);
    become_these(&[&first_pod("healthy"), &second_pod("healthy"), three]);
    dc1.run(&["maint", "-enable", "-service", "web-1"]).expect("maintenance begins");
    become_these(&[&first_pod("unhealthy"), &second_pod("healthy"), three]);
    dc1.run(&["maint", "-disable", "-service", "web-1"]).expect("maintenance ends");
    dc1.deregister("web-2");
    dc1.reload();
    become_these(&[&first_pod("healthy"), three]);

    // The agent stops and loses its data: the last known state stays, with its age.
    dc1.process = None;
    dc1.deregister("web-1");
    let state = |name: &str| -> Result<String, String> {
        let all = strait.try_json("/debug/sources")?;
        let line = all.as_array().into_iter().flatten().find(|line| line["name"] == name).cloned();
        let line = line.ok_or_else(|| format!("no {name} in {all}"))?;
        Ok(format!("{} {}", line["state"], line["code"]))
    };
    for name in ["consul/dc1", "consul/dc2"] {
        wait::until(LIMIT, &format!("{name} is stale"), || match state(name)?.as_str() {
            r#""stale" "STR0320""# => Ok(()),
            other => Err(other.to_owned()),
        });
    }
    become_these(&[&first_pod("healthy"), three]);

    // The agent returns empty and its index restarts: removed instances are removed, new ones are
    // added.
    dc1.start();
    become_these(&[three]);
    dc1.register("web-9", "10.1.0.9", &json!({ "protocol": "http" }));
    become_these(&["consul/dc1 10.1.0.9 http-8080 n1 dc1 healthy", three]);
    for name in ["consul/dc1", "consul/dc2"] {
        wait::until(LIMIT, &format!("{name} is live"), || match state(name)?.as_str() {
            r#""live" null"# => Ok(()),
            other => Err(other.to_owned()),
        });
    }
}
