//! Random histories against the whole pipeline, each from one seed.
//!
//! Objects, networks, gateways, Secrets and API servers are added and removed under several proxies
//! with both variants of the protocol. After each burst, three results must agree: the resources of
//! the long-lived proxies, the resources of new proxies of a new server, and, for assignments, the
//! result that [`naive`](super::naive) computes from the objects with plain loops.
//! `STRAIT_SIM_SEEDS=1,2,3` chooses other seeds; a failing run prints its seed and its events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::mesh::{Proxy, Server, Setup, from_nothing, holds, wait_until};
use super::naive;
use super::story::{Cast, Story};
use strait_sim::{Fault, Gone};
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::{ClientContents, XdsClient};

/// The seeds of a usual run.
const SEEDS: [u64; 3] = [1, 2, 3];
const BURSTS: usize = 12;
/// A stopped API server is retried after a delay that grows with the outage.
const LIMIT: Duration = Duration::from_secs(60);

fn cast() -> Cast {
    let members = [("east", "n1"), ("north", ""), ("west", "n2")];
    Cast {
        members: members.map(|(id, network)| (id.to_owned(), network)).to_vec(),
        rovers: BTreeSet::from(["north".to_owned()]),
        // Watches receive an error about an expired version, or are interrupted.
        faults: vec![
            Fault::Gone { how: Gone::Status, times: Some(2) },
            Fault::Gone { how: Gone::Event, times: Some(2) },
            Fault::CloseWatches { after_ms: 50 },
        ],
    }
}

/// Returns the proxies: a proxy without a pod, a proxy that claims a network, a proxy with a pod,
/// and a gateway.
fn proxies() -> [Proxy; 4] {
    let with_pod = Proxy {
        name: "cart-client",
        account: "cart",
        ip: "10.0.9.9".to_owned(),
        ..Proxy::sidecar("west")
    };
    let claiming = Proxy { name: "claiming", network: Some("n2"), ..Proxy::sidecar("east") };
    [Proxy::sidecar("east"), claiming, with_pod, Proxy::gateway("west")]
}

#[tokio::test]
async fn histories_end_in_the_state_of_a_fresh_start() {
    let chosen = std::env::var("STRAIT_SIM_SEEDS").ok();
    let seeds: Vec<u64> = match &chosen {
        Some(text) => text.split(',').map(|seed| seed.trim().parse().expect("a seed")).collect(),
        None => SEEDS.to_vec(),
    };
    // Each run mostly waits for the server, so a few run concurrently.
    for some in seeds.chunks(4) {
        futures::future::join_all(some.iter().map(|seed| Run::run(*seed))).await;
    }
}

/// One history.
struct Run {
    seed: u64,
    setup: Setup,
    story: Story,
}

impl Run {
    async fn run(seed: u64) {
        let (story, setup) = Story::begin(seed, cast(), Setup::new()).await;
        let mut run = Self { seed, setup, story };
        let server = run.setup.start_ready().await;
        let mut clients = Vec::new();
        for proxy in proxies() {
            clients.push((proxy.clone(), connect(&server, &run.setup, &proxy).await));
        }
        run.check(&clients).await;
        for burst in 0..BURSTS {
            run.story.record(format!("burst {burst}"));
            run.story.burst(&run.setup).await;
            run.check(&clients).await;
        }
        assert_eq!(server.admin.metric("strait_task_panics_total").await, 0.0);
    }

    /// Waits until the three results agree.
    async fn check(&self, clients: &[(Proxy, Pair)]) {
        let seed = self.seed;
        for (proxy, pair) in clients {
            let expected = naive::assignments(self.story.world(), proxy);
            wait_until(LIMIT, async || {
                for client in &pair.0 {
                    let found = naive::received_assignments(&client.held());
                    let why = client.held().ended;
                    holds(found == expected, "").map_err(|_| {
                        format!(
                            "seed {seed}, {}, ended {why:?}, against naive: {}",
                            proxy.id(),
                            difference(&expected, &found)
                        )
                    })?;
                }
                Ok(())
            })
            .await;
        }
        // A new server cannot know the objects of a server that is down from the start.
        if !self.story.all_up() {
            return;
        }
        // The other server has the lock on its state directory.
        let state = tempfile::tempdir().expect("a folder");
        let fresh = self.setup.start_as(self.setup.arguments_on(state.path())).await;
        fresh.ready().await;
        for (proxy, pair) in clients {
            let newcomers = connect(&fresh, &self.setup, proxy).await;
            wait_until(LIMIT, async || {
                let all: Vec<_> =
                    pair.0.iter().chain(&newcomers.0).map(|one| pictured(&one.held())).collect();
                let labels = ["long Delta", "long SotW", "fresh Delta", "fresh SotW"];
                for (picture, label) in all.iter().zip(labels) {
                    holds(*picture == all[2], "").map_err(|_| {
                        format!(
                            "seed {seed}, {}, {label} against fresh: {}",
                            proxy.id(),
                            difference(&all[2], picture)
                        )
                    })?;
                }
                Ok(())
            })
            .await;
        }
        fresh.shut_down().await;
    }
}

/// A proxy connected with both variants.
struct Pair([XdsClient; 2]);

async fn connect(server: &Server, setup: &Setup, proxy: &Proxy) -> Pair {
    let open = async |form| {
        let opened = server.open(setup, proxy, from_nothing(form)).await;
        opened.unwrap_or_else(|error| panic!("{}: {error}", proxy.id()))
    };
    Pair([open(ProtocolForm::Delta).await, open(ProtocolForm::Sotw).await])
}

/// Returns all resources of a client by type and name, in Envoy's JSON format.
pub(crate) fn pictured(contents: &ClientContents) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for kind in ResourceType::ALL {
        for name in contents.names(kind) {
            let body = contents.body(kind, name).unwrap_or_default();
            let json = strait_proto::json::to_json(kind.url(), body).expect("decodable");
            all.insert(format!("{} {name}", kind.short()), json);
        }
    }
    all
}

/// Returns the differences between two maps as text.
pub(crate) fn difference<V: PartialEq + std::fmt::Debug>(
    expected: &BTreeMap<String, V>,
    found: &BTreeMap<String, V>,
) -> String {
    let names: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differing = names.into_iter().filter(|name| expected.get(*name) != found.get(*name));
    let lines = differing.map(|name| {
        format!("\n{name}\n  expected {:?}\n  found    {:?}", expected.get(name), found.get(name))
    });
    lines.take(6).collect()
}
