//! Tests of the whole registry with a Consul that misbehaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use super::fake::{FakeConsul, Fault, instance};
use crate::registry::consul::{ConsulConfig, start};
use strait_base::mass_deletion::CONFIRM_AFTER;
use strait_base::source_status::{SourceFacts, SourceStatusMap, SourceStatusTable};
use strait_base::task::Supervisor;
use strait_model::registry::{RegistryUpdate, ServiceRecord, ShardChange};

const LIMIT: Duration = Duration::from_secs(30);

/// A registry that reads a fake, and its updates so far.
struct Rig {
    fake: FakeConsul,
    updates: mpsc::Receiver<RegistryUpdate>,
    source_statuses: SourceStatusTable,
    contents: BTreeMap<String, BTreeMap<String, ServiceRecord>>,
    update_count: usize,
    tasks: Supervisor,
}

impl Rig {
    async fn start(options: &str, prepare: impl FnOnce(&FakeConsul)) -> Self {
        let tasks = Supervisor::new();
        let fake = FakeConsul::start(&tasks, false).await;
        Self::with_scheme(fake, tasks, "http", options, prepare)
    }

    fn with_scheme(
        fake: FakeConsul,
        tasks: Supervisor,
        scheme: &str,
        options: &str,
        prepare: impl FnOnce(&FakeConsul),
    ) -> Self {
        prepare(&fake);
        let (sender, updates) = mpsc::channel(64);
        let source_statuses = SourceStatusTable::new(LIMIT);
        let address = format!("{scheme}://{}{options}", fake.address).parse().expect("an address");
        let config = ConsulConfig {
            addresses: vec![address],
            updates: sender,
            source_statuses: source_statuses.clone(),
            remembered: BTreeMap::new(),
        };
        start(config, &tasks);
        Self { fake, updates, source_statuses, contents: BTreeMap::new(), update_count: 0, tasks }
    }

    fn take(&mut self, update: RegistryUpdate) {
        self.update_count += 1;
        let shard = update.shard.cluster.to_string();
        let contents = match update.change {
            ShardChange::Removed => {
                self.contents.remove(&shard);
                return;
            }
            ShardChange::Reset(contents) => {
                self.contents.remove(&shard);
                contents
            }
            ShardChange::Update(contents) => contents,
        };
        let services = self.contents.entry(shard).or_default();
        for (host, record) in contents.services {
            match record {
                Some(record) => services.insert(host.to_string(), record),
                None => services.remove(host.as_str()),
            };
        }
    }

    /// Returns the addresses of a host in the first datacentre, with `!` before an address that
    /// receives no traffic.
    fn addresses(&self, host: &str) -> Option<Vec<String>> {
        let record = self.contents.get("consul/dc1")?.get(host)?;
        let shown = record.endpoints.iter().map(|endpoint| {
            let mark = if endpoint.health.as_str() == "healthy" { "" } else { "!" };
            format!("{mark}{}:{}", endpoint.address, endpoint.port)
        });
        Some(shown.collect())
    }

    async fn until(&mut self, host: &str, wanted: Option<&[&str]>) {
        let limit = tokio::time::Instant::now() + LIMIT;
        while self.addresses(host).as_deref()
            != wanted
                .map(|list| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
                .as_deref()
            || !self.contents.contains_key("consul/dc1")
        {
            let update = tokio::time::timeout_at(limit, self.updates.recv()).await;
            let update = update
                .unwrap_or_else(|_| panic!("{host}: {:?}, not {wanted:?}", self.addresses(host)));
            self.take(update.expect("it runs"));
        }
    }

    async fn until_board(&self, name: &str, wanted: impl Fn(&SourceFacts) -> bool) {
        let mut lines = self.source_statuses.lines();
        let found = lines.wait_for(|lines: &SourceStatusMap| lines.get(name).is_some_and(&wanted));
        let found = tokio::time::timeout(LIMIT, found).await;
        assert!(found.is_ok(), "{:#?}", self.source_statuses.show());
    }
}

#[tokio::test]
async fn services_are_reported_completely_and_then_as_differences() {
    let mut rig = Rig::start("", |fake| {
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
        fake.set("db", vec![instance("db-1", "", 5432)]);
    })
    .await;
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    assert_eq!(rig.update_count, 1, "the first update is complete");
    assert_eq!(rig.addresses("db.service.consul"), Some(vec!["10.9.9.9:5432".to_owned()]));

    let mut critical = instance("web-2", "10.0.0.2", 80);
    critical["Checks"] = json!([{"Status": "critical"}]);
    rig.fake.set("web", vec![instance("web-1", "10.0.0.1", 80), critical]);
    rig.until("web.service.consul", Some(&["10.0.0.1:80", "!10.0.0.2:80"])).await;
    assert_eq!(rig.update_count, 2, "db has not changed");

    rig.fake.change(|state| {
        state.services.remove("web");
    });
    rig.until("web.service.consul", None).await;
    assert!(rig.addresses("db.service.consul").is_some());
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn failures_keep_the_last_state_and_do_not_affect_other_services() {
    for fault in [Fault::Fail, Fault::Truncate, Fault::Nonsense, Fault::Deny, Fault::Endless] {
        let mut rig = Rig::start("", |fake| {
            fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
            fake.set("db", vec![instance("db-1", "10.0.0.2", 5432)]);
        })
        .await;
        rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
        rig.fake.fault(fault, "service/web");
        rig.fake.set("web", vec![]);
        rig.fake.set("db", vec![instance("db-1", "10.0.0.3", 5432)]);
        rig.until("db.service.consul", Some(&["10.0.0.3:5432"])).await;
        let warned = |facts: &SourceFacts| {
            facts
                .warnings
                .iter()
                .any(|text| text.contains("\"web\"") && text.contains("stay in use"))
        };
        rig.until_board("consul/dc1", warned).await;
        assert_eq!(rig.addresses("web.service.consul"), Some(vec!["10.0.0.1:80".to_owned()]));

        rig.fake.fault(Fault::None, "");
        rig.fake.set("web", vec![instance("web-1", "10.0.0.9", 80)]);
        rig.until("web.service.consul", Some(&["10.0.0.9:80"])).await;
        rig.until_board("consul/dc1", |facts| facts.warnings.is_empty()).await;
        rig.tasks.shut_down(LIMIT).await;
    }
}

#[tokio::test]
async fn hanging_consul_is_detected_and_read_again_after_recovery() {
    let mut rig = Rig::start("", |fake| {
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
    })
    .await;
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    rig.fake.fault(Fault::Hang, "");
    rig.until_board("consul/dc1", |facts| {
        facts.trouble.as_ref().is_some_and(|trouble| trouble.code.id == "STR0320")
    })
    .await;
    assert!(rig.addresses("web.service.consul").is_some());
    // The blocked queries never complete: others replace them.
    rig.fake.fault(Fault::None, "");
    rig.fake.set("web", vec![instance("web-1", "10.0.0.2", 80)]);
    rig.until("web.service.consul", Some(&["10.0.0.2:80"])).await;
    rig.until_board("consul/dc1", |facts| facts.trouble.is_none()).await;
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn an_index_that_goes_backwards_loses_nothing() {
    let mut rig = Rig::start("", |fake| {
        fake.change(|state| state.index = 5000);
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
    })
    .await;
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    // Restored from a snapshot: small indexes again, different content.
    rig.fake.change(|state| {
        state.index = 3;
        state.services = [("db".to_owned(), vec![instance("db-1", "10.0.0.3", 5432)])].into();
    });
    rig.until("db.service.consul", Some(&["10.0.0.3:5432"])).await;
    rig.until("web.service.consul", None).await;
    rig.fake.set("db", vec![instance("db-1", "10.0.0.4", 5432)]);
    rig.until("db.service.consul", Some(&["10.0.0.4:5432"])).await;
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn services_hidden_from_the_token_are_not_removed() {
    let mut rig = Rig::start("", |fake| {
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
    })
    .await;
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    rig.fake.fault(Fault::Filter, "");
    rig.until_board("consul/dc1", |facts| {
        facts.trouble.as_ref().is_some_and(|trouble| trouble.code.id == "STR0321")
    })
    .await;
    rig.fake.fault(Fault::None, "");
    rig.until_board("consul/dc1", |facts| facts.trouble.is_none()).await;
    assert!(rig.addresses("web.service.consul").is_some());
    while let Ok(update) = rig.updates.try_recv() {
        rig.take(update);
    }
    assert!(rig.addresses("web.service.consul").is_some(), "it was never withdrawn");
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn empty_catalogue_is_accepted_after_confirmation() {
    let mut rig = Rig::start("", |fake| {
        for name in ["web", "b", "c", "consul"] {
            fake.set(name, vec![instance("i", "10.0.0.1", 80)]);
        }
    })
    .await;
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    let emptied = std::time::Instant::now();
    rig.fake.change(|state| state.services.retain(|name, _| name == "consul"));
    rig.until_board("consul/dc1", |facts| {
        facts
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.reason.contains("waiting for confirmation"))
    })
    .await;
    rig.until("web.service.consul", None).await;
    // Two responses, some seconds apart.
    assert!(emptied.elapsed() >= CONFIRM_AFTER, "{:?}", emptied.elapsed());
    rig.until_board("consul/dc1", |facts| facts.trouble.is_none()).await;
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn every_datacentre_is_a_shard_and_options_select_datacentres() {
    let two = |fake: &FakeConsul| {
        fake.change(|state| state.datacentres = vec!["dc1".into(), "dc2".into()]);
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
    };
    let mut rig = Rig::start("", two).await;
    while rig.contents.len() < 2 {
        let update = tokio::time::timeout(LIMIT, rig.updates.recv()).await.expect("in time");
        rig.take(update.expect("it runs"));
    }
    let regions: Vec<_> = rig
        .contents
        .values()
        .flat_map(|services| services.values())
        .flat_map(|record| record.endpoints.iter().map(|one| one.locality.to_string()))
        .collect();
    assert_eq!(regions, ["dc1", "dc2"]);
    rig.tasks.shut_down(LIMIT).await;

    let mut rig = Rig::start("?dc=dc2&name=old", two).await;
    let update = tokio::time::timeout(LIMIT, rig.updates.recv()).await.expect("in time");
    rig.take(update.expect("it runs"));
    assert_eq!(rig.contents.keys().collect::<Vec<_>>(), ["old/dc2"]);
    assert!(rig.source_statuses.waiting_for().is_empty(), "{:?}", rig.source_statuses.show());
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn unchanged_consul_receives_few_requests() {
    let mut rig = Rig::start("", |fake| {
        for at in 0..20 {
            fake.set(&format!("s{at}"), vec![instance("i", "10.0.0.1", 80)]);
        }
    })
    .await;
    rig.until("s0.service.consul", Some(&["10.0.0.1:80"])).await;
    // Each service twice, once for its state and once blocking; also lists, catalogue, probes.
    let requests = rig.fake.requests();
    let update = tokio::time::timeout(Duration::from_secs(2), rig.updates.recv()).await;
    assert!(update.is_err(), "nothing changed");
    assert!(
        rig.fake.requests() <= requests + 25 && requests <= 45,
        "{requests}, {}",
        rig.fake.requests()
    );
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn token_is_read_for_each_request_and_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "canary-1\n").expect("written");
    let options = format!("?token-file={}", file.display());
    let mut rig = Rig::start(&options, |fake| {
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
    })
    .await;
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    assert_eq!(rig.fake.state.borrow().token, "canary-1");
    std::fs::write(&file, "canary-2\n").expect("written");
    let state = Arc::clone(&rig.fake.state);
    let limit = tokio::time::Instant::now() + LIMIT;
    while state.borrow().token != "canary-2" {
        assert!(tokio::time::Instant::now() < limit, "the new token is not used");
        rig.fake.change(|_| {});
        tokio::task::yield_now().await;
    }
    rig.fake.fault(Fault::Deny, "");
    rig.until_board("consul/dc1", |facts| facts.trouble.is_some()).await;
    assert!(!format!("{:?}", rig.source_statuses.show()).contains("canary"));
    rig.tasks.shut_down(LIMIT).await;
}

#[tokio::test]
async fn certificate_must_chain_to_the_named_ca_and_can_be_fixed_at_runtime() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    std::fs::write(&file, other.cert.pem()).expect("written");
    let tasks = Supervisor::new();
    let fake = FakeConsul::start(&tasks, true).await;
    let right = fake.certificate.clone().expect("a certificate");
    let options = format!("?ca-file={}", file.display());
    let mut rig = Rig::with_scheme(fake, tasks, "https", &options, |fake| {
        fake.set("web", vec![instance("web-1", "10.0.0.1", 80)]);
    });
    rig.until_board("consul", |facts| {
        facts.trouble.as_ref().is_some_and(|trouble| trouble.code.id == "STR0322")
    })
    .await;
    assert_eq!(rig.update_count, 0);
    std::fs::write(&file, right).expect("written");
    rig.until("web.service.consul", Some(&["10.0.0.1:80"])).await;
    rig.until_board("consul", |facts| facts.trouble.is_none()).await;
    rig.tasks.shut_down(LIMIT).await;
}
