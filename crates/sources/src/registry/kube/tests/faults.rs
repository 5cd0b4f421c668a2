//! Tests of a run with a simulated API server that fails in every way of the fault matrix.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::registry::kube::{
    ApiContact, MemberWrites, ObjectCounts, OwnMesh, RunConfig, RunStatus, run,
};
use strait_base::task::Supervisor;
use strait_kube_client::testing::loopback_access;
use strait_kube_client::{Access, ReadLimits};
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ServiceRecord, ShardChange};
use strait_model::{ClusterId, Endpoint, Hostname, OwnTraffic, PodState};
use strait_sim::objects::{self, HTTP, endpoint_slice, service};
use strait_sim::{Fault, Gone, Options, Refusal, SimCluster};

/// Longer than any deadline that a test waits for, and short enough to wait for it.
const LIMIT: Duration = Duration::from_secs(45);

/// The reports about a cluster so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Reported {
    pub(super) resets: usize,
    updates: usize,
    pub(super) services: BTreeMap<Hostname, ServiceRecord>,
}

impl Reported {
    fn apply(&mut self, update: RegistryUpdate) {
        let contents = match update.change {
            ShardChange::Reset(contents) => {
                self.resets += 1;
                self.services.clear();
                contents
            }
            ShardChange::Update(contents) => {
                self.updates += 1;
                contents
            }
            ShardChange::Removed => Contents::default(),
        };
        for (hostname, record) in contents.services {
            match record {
                Some(record) => self.services.insert(hostname, record),
                None => self.services.remove(&hostname),
            };
        }
    }

    /// Returns the endpoints of a service.
    fn endpoints(&self, service: &str) -> Vec<Endpoint> {
        let record = self.services.get(&*format!("{service}.shop.svc.cluster.local"));
        record.map(|record| record.endpoints.to_vec()).unwrap_or_default()
    }

    /// Returns the addresses of `cart`, without their common part.
    fn cart(&self) -> Vec<String> {
        let endpoints = self.endpoints("cart");
        endpoints.iter().map(|one| one.address.to_string().replace("10.1.0.", "")).collect()
    }
}

/// A simulated cluster and the run that reads it.
pub(super) struct Member {
    pub(super) sim: SimCluster,
    pub(super) reported: watch::Receiver<Reported>,
    status: watch::Receiver<RunStatus>,
    _tasks: Supervisor,
}

/// Starts a cluster whose service `cart` has the endpoint 10.1.0.1.
pub(super) async fn sim(options: Options) -> SimCluster {
    let sim = SimCluster::start("east", options).await.expect("a free port");
    for name in ["shop", "strait-system", "kube-system"] {
        sim.store().apply(objects::namespace(name)).expect("a namespace");
    }
    sim.store().apply(service("shop", "cart", "10.96.0.1", &[HTTP])).expect("a service");
    cart(&sim, &["1"]);
    sim
}

fn cart(sim: &SimCluster, addresses: &[&str]) {
    let endpoints: Vec<_> =
        addresses.iter().map(|last| objects::Endpoint::new(&format!("10.1.0.{last}"))).collect();
    let slice = endpoint_slice("shop", "cart", "cart-a", &[HTTP], &endpoints);
    sim.store().apply(slice).expect("a slice");
}

pub(super) fn access(sim: &SimCluster, server: &str) -> Access {
    loopback_access(server, sim.certificate_authority(), sim.token())
}

pub(super) fn config(
    access: Access,
    updates: mpsc::Sender<Box<RegistryUpdate>>,
) -> (RunConfig, watch::Receiver<RunStatus>) {
    let (status, status_receiver) = watch::channel(RunStatus::starting());
    let config = RunConfig {
        cluster: ClusterId::from("east"),
        access,
        limits: ReadLimits::default(),
        domain: "cluster.local".into(),
        trust_domain: "cluster.local".into(),
        own_mesh: OwnMesh::Unread,
        namespaces: Default::default(),
        known: None,
        system_namespace: "strait-system".into(),
        metadata: Default::default(),
        mcs: Default::default(),
        imports: Default::default(),
        clusterset: "default".into(),
        policy: watch::channel(Arc::default()).1,
        shared: watch::channel(Arc::default()).1,
        shared_endpoints: watch::channel(Arc::default()).1,
        writes: MemberWrites::nothing(),
        traffic: watch::channel(OwnTraffic::default()).1,
        selectors: watch::channel(Some(Default::default())).1,
        epoch: Epoch(1),
        client: watch::channel(None).0,
        updates,
        status,
    };
    (config, status_receiver)
}

impl Member {
    fn reading(sim: SimCluster, access: Access) -> Self {
        Self::reading_at_most(sim, access, ReadLimits::default())
    }

    fn reading_at_most(sim: SimCluster, access: Access, limits: ReadLimits) -> Self {
        Self::reading_as(sim, access, |config| RunConfig { limits, ..config })
    }

    pub(super) fn reading_as(
        sim: SimCluster,
        access: Access,
        change: impl FnOnce(RunConfig) -> RunConfig,
    ) -> Self {
        let tasks = Supervisor::new();
        let (updates, mut received) = mpsc::channel(16);
        let (config, status) = config(access, updates);
        tasks.spawn("run", run(change(config)));
        let (sender, reported) = watch::channel(Reported::default());
        tasks.spawn("receiver", async move {
            while let Some(update) = received.recv().await {
                sender.send_modify(|reported| reported.apply(*update));
            }
        });
        Self { sim, reported, status, _tasks: tasks }
    }

    fn begin_with(sim: SimCluster, limits: ReadLimits) -> Self {
        let access = access(&sim, &sim.url());
        Self::reading_at_most(sim, access, limits)
    }

    fn begin(sim: SimCluster) -> Self {
        let access = access(&sim, &sim.url());
        Self::reading(sim, access)
    }

    async fn synced() -> Self {
        Self::synced_with(Options::default()).await
    }

    async fn synced_with(options: Options) -> Self {
        let member = Self::begin(sim(options).await);
        member.until_cart(&["1"]).await;
        member.until(|status| status.synced && status.contact == ApiContact::Good).await;
        member
    }

    pub(super) async fn until(&self, is_reached: impl Fn(&RunStatus) -> bool) -> RunStatus {
        let mut status = self.status.clone();
        let found = tokio::time::timeout(LIMIT, status.wait_for(|status| is_reached(status))).await;
        match found {
            Ok(status) => status.expect("the run continues").clone(),
            Err(_) => panic!("not within {LIMIT:?}: {:?}", self.status.borrow()),
        }
    }

    async fn until_cart(&self, addresses: &[&str]) {
        self.until_reported(|reported| reported.cart() == addresses).await;
    }

    pub(super) async fn until_reported(&self, is_reached: impl FnMut(&Reported) -> bool) {
        let mut reported = self.reported.clone();
        let found = tokio::time::timeout(LIMIT, reported.wait_for(is_reached)).await;
        assert!(found.is_ok(), "not within {LIMIT:?}: {:?}", self.reported.borrow());
    }

    /// Waits for the first probe, which changes the time of the last contact.
    async fn until_probed(&self) {
        let probes = || self.sim.requests(|one| one.path == "/version").len();
        let probed = async {
            while probes() == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, probed).await.is_ok(), "no probe within {LIMIT:?}");
        let contact = || self.status.borrow().last_contact.get();
        let before = contact();
        let renewed = async {
            while contact() <= before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(
            tokio::time::timeout(LIMIT, renewed).await.is_ok(),
            "not received within {LIMIT:?}"
        );
    }

    /// Checks the state that every fault must leave unchanged: one complete report, never
    /// withdrawn.
    fn assert_unchanged(&self, addresses: &[&str]) {
        assert_eq!(self.reported.borrow().cart(), addresses);
        assert_eq!(self.reported.borrow().resets, 1);
    }

    /// Ends all faults, and checks that changes of the cluster are reported again.
    async fn assert_heals(&self) {
        self.sim.heal();
        cart(&self.sim, &["1", "7"]);
        self.until_cart(&["1", "7"]).await;
        self.until(|status| status.contact == ApiContact::Good).await;
        assert_eq!(self.reported.borrow().resets, 1, "healing needs no reset");
    }

    fn relists(&self) -> u64 {
        self.status.borrow().relists
    }

    /// Returns the number of requested lists of all kinds, by pages or as initial events.
    fn lists(&self) -> usize {
        let is_list = |request: &strait_sim::Request| {
            // Kinds that are not installed are requested repeatedly.
            let installed =
                !["/gateways", "/workloadentries"].iter().any(|one| request.path.ends_with(one));
            // A list with limit 1 checks whether the server supports a version.
            let lists = request.verb == "list" && !request.query.contains("limit=1&");
            installed && (lists || request.query.contains("sendInitialEvents"))
        };
        self.sim.requests(is_list).len()
    }
}

/// Runs a test with and without HTTP/2 on the server.
async fn over_both_protocols(test: impl AsyncFn(Options)) {
    let http1 = Options { http2: false, ..Options::default() };
    tokio::join!(test(Options::default()), test(http1));
}

#[tokio::test]
async fn renewed_contact_alone_causes_no_notification() {
    let mut member = Member::synced_with(quiet(Options::default())).await;
    member.until_probed().await;
    member.status.mark_unchanged();
    let contact = member.status.borrow().last_contact.get();
    let again = async {
        while member.status.borrow().last_contact.get() <= contact {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, again).await.is_ok(), "not received within {LIMIT:?}");
    assert!(!member.status.has_changed().expect("the run continues"));
}

/// Configures a server that sends nothing while nothing changes, so that it is probed.
fn quiet(options: Options) -> Options {
    Options { bookmark_interval: Duration::from_secs(3600), ..options }
}

#[tokio::test]
async fn server_that_sends_bookmarks_is_not_probed() {
    let member = Member::synced().await;
    let contact = || member.status.borrow().last_contact.get();
    for _ in 0..3 {
        let before = contact();
        let renewed = async {
            while contact() <= before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(
            tokio::time::timeout(LIMIT, renewed).await.is_ok(),
            "not received within {LIMIT:?}"
        );
    }
    assert!(member.sim.requests(|one| one.path == "/version").is_empty());
}

fn unreachable(status: &RunStatus) -> bool {
    matches!(status.contact, ApiContact::Unreachable(_))
}

#[tokio::test]
async fn complete_report_comes_first_and_then_changes() {
    let member = Member::synced().await;
    assert_eq!(member.reported.borrow().updates, 0, "nothing before the complete report");
    cart(&member.sim, &["1", "2"]);
    member.until_cart(&["1", "2"]).await;
    member.sim.store().delete("EndpointSlice", "shop", "cart-a").expect("it exists");
    member.until_cart(&[]).await;
    assert_eq!(member.reported.borrow().resets, 1);
    let status = member.status.borrow().clone();
    assert!(status.cluster_uid.is_some() && status.last_contact.get().is_some());
    assert_eq!((status.services, status.endpoints, status.relists), (1, 0, 0));
    assert_eq!(member.lists(), 5, "one list of each kind");
    let is_absent = |one: &strait_sim::Request| one.path.contains("gateway");
    assert!(!member.sim.requests(is_absent).is_empty());
    assert_eq!(status.errors, 0, "a kind that is not installed is no failure");
}

#[tokio::test]
async fn slice_that_arrives_before_its_pods_removes_no_endpoint() {
    let sim = sim(Options::default()).await;
    let pod = |last: &str| {
        let name = format!("cart-{last}");
        let pod = objects::pod("shop", &name, "cart", &format!("10.1.0.{last}"), "node");
        sim.store().apply(pod).expect("a pod");
    };
    let slice = |service: &str, last: &str| {
        let endpoint = objects::Endpoint::new(&format!("10.1.0.{last}"));
        let endpoints = [endpoint.with_pod(&format!("cart-{last}"))];
        let name = format!("{service}-a");
        let slice = endpoint_slice("shop", service, &name, &[HTTP], &endpoints);
        sim.store().apply(slice).expect("a slice");
    };
    sim.store().apply(service("shop", "marker", "10.96.0.2", &[HTTP])).expect("a service");
    pod("1");
    slice("cart", "1");
    let member = Member::begin(sim.clone());
    member.until_cart(&["1"]).await;
    for next in ["2", "3"] {
        let before = member.reported.borrow().cart();
        slice("cart", next);
        slice("marker", "1");
        member.until_reported(|reported| reported.endpoints("marker").len() == 1).await;
        assert_eq!(member.reported.borrow().cart(), before, "the service waits for its pod");
        pod(next);
        member.until_cart(&[next]).await;
        sim.store().delete("EndpointSlice", "shop", "marker-a").expect("it exists");
        member.until_reported(|reported| reported.endpoints("marker").is_empty()).await;
    }
    // A pod that does not arrive is not waited for indefinitely.
    slice("cart", "4");
    member.until_cart(&["4"]).await;
    assert_eq!(member.reported.borrow().endpoints("cart")[0].pod, PodState::Missing);
    // A deleted slice is removed at once, and does not delay others.
    sim.store().delete("EndpointSlice", "shop", "cart-a").expect("it exists");
    member.until_cart(&[]).await;
}

#[tokio::test]
async fn rejected_streaming_list_is_replaced_by_pages() {
    for how in [Refusal::Invalid, Refusal::Event] {
        let sim = sim(Options::default()).await;
        sim.fault(Fault::NoStreamingLists { how });
        let member = Member::begin(sim);
        member.until_cart(&["1"]).await;
        cart(&member.sim, &["1", "2"]);
        member.until_cart(&["1", "2"]).await;
        assert_eq!(member.reported.borrow().resets, 1, "{how:?}");
        member.until(|status| status.contact == ApiContact::Good).await;
    }
}

#[tokio::test]
async fn server_without_streaming_lists_is_read_in_pages() {
    let sim = sim(Options::default()).await;
    sim.fault(Fault::NoStreamingLists { how: Refusal::Ignored });
    let member = Member::begin(sim);
    member.until_cart(&["1"]).await;
}

#[tokio::test]
async fn killed_server_keeps_its_data() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(options).await;
        member.sim.stop().await;
        member.until(|status| format!("{:?}", status.contact).contains("refused")).await;
        member.assert_unchanged(&["1"]);
        cart(&member.sim, &["1", "2"]);
        member.sim.restart().await;
        member.until_cart(&["1", "2"]).await;
        member.until(|status| status.contact == ApiContact::Good).await;
        assert_eq!((member.relists(), member.reported.borrow().resets), (0, 1), "resumed");
    })
    .await;
}

#[tokio::test]
async fn hung_server_is_reported_within_20_seconds_and_keeps_its_data() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(options).await;
        member.sim.fault(Fault::Hang);
        let hung = Instant::now();
        member.until(unreachable).await;
        assert!(hung.elapsed() < Duration::from_secs(20), "{:?}", hung.elapsed());
        member.assert_unchanged(&["1"]);
        member.assert_heals().await;
    })
    .await;
}

#[tokio::test]
async fn hung_server_does_not_block_the_first_list_forever() {
    over_both_protocols(async |options| {
        let sim = sim(options).await;
        sim.fault(Fault::Hang);
        let member = Member::begin(sim);
        let hung = Instant::now();
        let status = member.until(unreachable).await;
        assert!(hung.elapsed() < Duration::from_secs(20), "{:?}", hung.elapsed());
        assert!(!status.synced);
        member.sim.heal();
        member.until_cart(&["1"]).await;
    })
    .await;
}

#[tokio::test]
async fn connections_that_died_silently_are_replaced_within_30_seconds() {
    over_both_protocols(async |options| {
        let sim = sim(quiet(options)).await;
        let proxy = Proxy::start(&sim).await;
        let access = access(&sim, &proxy.url);
        let member = Member::reading(sim, access);
        member.until_cart(&["1"]).await;
        // Its connection is broken as well: a connection opened later would work.
        member.until_probed().await;
        proxy.freeze();
        cart(&member.sim, &["1", "2"]);
        let frozen = Instant::now();
        member.until_cart(&["1", "2"]).await;
        assert!(frozen.elapsed() < Duration::from_secs(30), "{:?}", frozen.elapsed());
        assert_eq!(member.relists(), 0);
    })
    .await;
}

#[tokio::test]
async fn repeatedly_reset_connections_cause_no_list() {
    over_both_protocols(async |options| {
        let sim = sim(options).await;
        let proxy = Proxy::start(&sim).await;
        let access = access(&sim, &proxy.url);
        let member = Member::reading(sim, access);
        member.until_cart(&["1"]).await;
        for round in ["2", "3", "4"] {
            proxy.cut();
            cart(&member.sim, &["1", round]);
            member.until_cart(&["1", round]).await;
        }
        assert_eq!(member.relists(), 0);
        assert_eq!(member.reported.borrow().resets, 1);
    })
    .await;
}

#[tokio::test]
async fn server_that_is_down_does_not_affect_another() {
    let (dark, bright) = (Member::synced().await, Member::synced().await);
    dark.sim.stop().await;
    dark.until(unreachable).await;
    cart(&bright.sim, &["5"]);
    bright.until_cart(&["5"]).await;
    dark.assert_unchanged(&["1"]);
}

#[tokio::test]
async fn retry_after_of_a_server_is_respected() {
    let member = Member::synced().await;
    member.sim.fault(Fault::TooManyRequests { retry_after_seconds: 3 });
    member.sim.fault(Fault::CloseWatches { after_ms: 1 });
    member.until(unreachable).await;
    member.sim.end_fault(&Fault::CloseWatches { after_ms: 1 });
    let before = member.sim.request_count("watch", "services");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = member.sim.request_count("watch", "services") - before;
    assert!(requests <= 2, "{requests} requests in 5 s");
    member.assert_unchanged(&["1"]);
    member.assert_heals().await;
}

#[tokio::test]
async fn server_errors_are_retried() {
    let member = Member::synced().await;
    member.sim.fault(Fault::Errors { codes: vec![500, 503, 504] });
    member.sim.fault(Fault::CloseWatches { after_ms: 1 });
    member.until(unreachable).await;
    member.assert_unchanged(&["1"]);
    member.assert_heals().await;
    assert_eq!(member.relists(), 0);
}

#[tokio::test]
async fn kind_that_alone_cannot_be_read_is_reported_as_outdated() {
    let cases = [
        ("endpointslices", None),
        ("pods", Some("null")),
        ("services", Some(r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{},"items":["#)),
        ("nodes", None),
        // An empty list of another kind removes nothing.
        (
            "endpointslices",
            Some(
                r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[]}"#,
            ),
        ),
    ];
    let check = async |(resource, body): (&str, Option<&str>)| {
        let sim = sim(Options::default()).await;
        let member = Member::begin(sim);
        member.until(|status| status.synced && status.contact == ApiContact::Good).await;
        let body = body.map(str::to_owned);
        member.sim.fault(Fault::KindFails { resource: resource.into(), body });
        member.sim.fault(Fault::CloseWatches { after_ms: 1 });
        let outdated = |status: &RunStatus| {
            status.outdated.iter().map(|one| (one.kind, one.since)).collect::<Vec<_>>()
        };
        let status = member.until(|status| !outdated(status).is_empty()).await;
        member.sim.end_fault(&Fault::CloseWatches { after_ms: 1 });
        let since = outdated(&status);
        assert_eq!(since.iter().map(|one| one.0).collect::<Vec<_>>(), [resource]);
        // Requests for other kinds, and the probe, succeed.
        member.sim.store().apply(service("shop", "other", "10.96.0.9", &[HTTP])).expect("one");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let status = member.status.borrow().clone();
        let is_misread = matches!(status.contact, ApiContact::Misbehaving(_));
        assert!(status.reached && (is_misread || unreachable(&status)), "{status:?}");
        assert!(status.endpoints > 0);
        assert_eq!(outdated(&status), since, "the age grows");
        member.assert_heals().await;
        assert_eq!(outdated(&member.status.borrow()), []);
    };
    futures::future::join_all(cases.map(check)).await;
}

#[tokio::test]
async fn expired_token_keeps_the_data_and_is_reported() {
    let member = Member::synced().await;
    member.sim.fault(Fault::Unauthorized);
    member.until(|status| matches!(status.contact, ApiContact::AuthFailed(_))).await;
    member.assert_unchanged(&["1"]);
    member.assert_heals().await;
}

#[tokio::test]
async fn forbidden_optional_kind_is_reported_and_the_cluster_works() {
    let sim = sim(Options::default()).await;
    for resource in ["nodes", "pods"] {
        sim.fault(Fault::Forbidden { resource: resource.into() });
        let member = Member::begin(sim.clone());
        member.until_cart(&["1"]).await;
        let status = member.until(|status| !status.degraded.is_empty()).await;
        assert_eq!(status.contact, ApiContact::Good);
        assert!(
            status.degraded.iter().any(|one| one.starts_with(&format!("STR0309: {resource}"))),
            "{status:?}"
        );
        assert!(status.missing_rights.contains(&format!("list {resource}")), "{status:?}");
    }
}

#[tokio::test]
async fn missing_rights_are_listed_without_a_refused_request() {
    let sim = sim(Options::default()).await;
    // Requests for the kind fail for another reason, so none is refused.
    sim.fault(Fault::KindFails { resource: "nodes".into(), body: None });
    sim.fault(Fault::Forbidden { resource: "nodes".into() });
    let member = Member::begin(sim);
    member.until(|status| status.missing_rights == ["list nodes"]).await;
}

#[tokio::test]
async fn forbidden_required_kind_is_an_authorization_failure() {
    let sim = sim(Options::default()).await;
    sim.fault(Fault::Forbidden { resource: "endpointslices".into() });
    let member = Member::begin(sim);
    let status = member.until(|status| matches!(status.contact, ApiContact::Denied(_))).await;
    assert!(format!("{:?}", status.contact).contains("endpointslices"), "{:?}", status.contact);
    assert!(!status.synced);
    assert_eq!(member.reported.borrow().resets, 0, "no incomplete report");
}

#[tokio::test]
async fn web_page_is_not_an_empty_list_and_redirects_are_not_followed() {
    over_both_protocols(async |options| {
        let other = sim(Options::default()).await;
        for fault in [Fault::Html, Fault::Redirect { location: other.url() }] {
            let member = Member::synced_with(options.clone()).await;
            member.sim.fault(fault);
            member.sim.fault(Fault::CloseWatches { after_ms: 1 });
            member.until(|status| matches!(status.contact, ApiContact::Misbehaving(_))).await;
            member.assert_unchanged(&["1"]);
            member.assert_heals().await;
        }
        assert!(other.requests(|_| true).is_empty(), "nobody followed");
    })
    .await;
}

#[tokio::test]
async fn run_reports_only_in_the_trust_domain_of_its_cluster() {
    let counts = || OwnMesh::Counts("cluster.local".into());
    let names_west = Some("west.example");
    let denied = Fault::Forbidden { resource: "configmaps".into() };
    for (domain, own_mesh, fault, reports, own) in [
        ("cluster.local", counts(), None, false, names_west),
        ("west.example", counts(), None, true, names_west),
        ("cluster.local", OwnMesh::Overruled("so".into()), None, true, names_west),
        // Without the permission, the cluster claims no trust domain.
        ("cluster.local", counts(), Some(denied.clone()), true, None),
        ("west.example", counts(), Some(denied), false, None),
    ] {
        let case = format!("in {domain}, {own_mesh:?}, {fault:?}");
        let sim = sim(Options::default()).await;
        let config_map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "istio", "namespace": "strait-system" },
            "data": { "mesh": "trustDomain: west.example" },
        });
        sim.store().apply(config_map).expect("a ConfigMap");
        if let Some(fault) = fault {
            sim.fault(fault);
        }
        let shown = matches!(own_mesh, OwnMesh::Overruled(_));
        let access = access(&sim, &sim.url());
        let trusted = |config| RunConfig { trust_domain: domain.into(), own_mesh, ..config };
        let member = Member::reading_as(sim, access, trusted);
        let status = member.until(|status| status.own.is_some() && status.services > 0).await;
        assert_eq!(status.own.and_then(|own| own.trust_domain).as_deref(), own, "{case}");
        if reports {
            let status = member.until(|status| status.synced).await;
            let remark =
                status.degraded.iter().any(|one| one.contains("trust domain west.example"));
            assert_eq!(remark, shown, "{case}: {:?}", status.degraded);
        } else {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!member.status.borrow().synced, "{case}");
        }
    }
}

#[tokio::test]
async fn unrequested_compression_is_reported_and_keeps_the_data() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(options).await;
        member.sim.fault(Fault::Compressed);
        member.sim.fault(Fault::CloseWatches { after_ms: 1 });
        let is_reported = |status: &RunStatus| matches!(&status.contact, ApiContact::Misbehaving(fact) if fact.contains("compressed (gzip)"));
        member.until(is_reported).await;
        member.assert_unchanged(&["1"]);
        member.assert_heals().await;
    })
    .await;
}

#[tokio::test]
async fn intermittent_server_causes_neither_lists_nor_updates() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(options).await;
        let lists = member.lists();
        member.sim.fault(Fault::Flap { up_ms: 300, down_ms: 300 });
        member.until(unreachable).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        member.assert_unchanged(&["1"]);
        assert_eq!((member.lists(), member.reported.borrow().updates), (lists, 0));
        member.assert_heals().await;
    })
    .await;
}

#[tokio::test]
async fn expired_version_causes_one_fresh_list() {
    for how in [Gone::Status, Gone::Event] {
        let member = Member::synced().await;
        let before = member.lists();
        member.sim.fault(Fault::Gone { how, times: Some(5) });
        member.sim.fault(Fault::CloseWatches { after_ms: 1 });
        member.until(|status| status.relists >= 1).await;
        member.assert_heals().await;
        let lists = member.lists() - before;
        assert!((1..=5).contains(&lists), "{how:?}: {lists} lists for 5 refusals");
    }
}

#[tokio::test]
async fn expired_page_restarts_the_list() {
    let sim = sim(Options::default()).await;
    for number in 0..600 {
        let name = format!("many-{number}");
        sim.store().apply(service("shop", &name, "10.96.1.1", &[HTTP])).expect("a service");
    }
    sim.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
    sim.fault(Fault::ContinueExpired);
    let member = Member::begin(sim);
    member.until(unreachable).await;
    member.sim.end_fault(&Fault::ContinueExpired);
    let status = member.until(|status| status.synced).await;
    assert_eq!(status.services, 601);
}

#[tokio::test]
async fn repeatedly_closed_watches_resume_without_a_list_or_an_update() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(options).await;
        let lists = member.lists();
        member.sim.fault(Fault::CloseWatches { after_ms: 50 });
        let before = member.sim.request_count("watch", "services");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let watches = member.sim.request_count("watch", "services") - before;
        assert!((1..=7).contains(&watches), "{watches} watches in 5 s");
        assert_eq!((member.lists(), member.relists()), (lists, 0));
        assert_eq!(member.reported.borrow().updates, 0);
        cart(&member.sim, &["1", "2"]);
        member.until_cart(&["1", "2"]).await;
        // Changes arrive only with the next request, so it is not up to date.
        let ends_at_once = |status: &RunStatus| {
            matches!(&status.contact, ApiContact::Unreachable(fact) if fact.contains("its watches end at once"))
                && status.outdated.iter().any(|outdated| outdated.kind == "services")
        };
        member.until(ends_at_once).await;
        member.assert_heals().await;
        assert_eq!(member.status.borrow().outdated, []);
    })
    .await;
}

#[tokio::test]
async fn truncated_responses_change_nothing() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(quiet(options)).await;
        member.sim.fault(Fault::Truncate);
        cart(&member.sim, &["1", "2"]);
        member.until(unreachable).await;
        assert_eq!(member.reported.borrow().resets, 1);
        assert_eq!(member.reported.borrow().cart().first().map(String::as_str), Some("1"));
        member.assert_heals().await;
    })
    .await;
}

#[tokio::test]
async fn an_endless_line_is_cut() {
    over_both_protocols(async |options| {
        let member = Member::synced_with(options).await;
        member.sim.fault(Fault::EndlessLine);
        member.sim.stop().await;
        member.sim.restart().await;
        member.until(|status| matches!(status.contact, ApiContact::Misbehaving(_))).await;
        member.assert_unchanged(&["1"]);
        member.assert_heals().await;
    })
    .await;
}

#[tokio::test]
async fn an_endless_list_is_cut() {
    over_both_protocols(async |options| {
        let sim = sim(options).await;
        sim.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
        sim.fault(Fault::EndlessPages);
        let member = Member::begin_with(sim, ReadLimits { pages: 100, ..ReadLimits::default() });
        let status =
            member.until(|status| matches!(status.contact, ApiContact::Misbehaving(_))).await;
        assert!(!status.synced);
    })
    .await;
}

#[tokio::test]
async fn suddenly_empty_list_is_confirmed_before_it_applies() {
    let sim = sim(Options::default()).await;
    sim.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
    let member = Member::begin(sim);
    member.until_cart(&["1"]).await;
    member.sim.fault(Fault::EmptyLists { resource: None });
    member.sim.fault(Fault::Gone { how: Gone::Status, times: Some(5) });
    member.sim.fault(Fault::CloseWatches { after_ms: 1 });
    let doubted = |status: &RunStatus| {
        status.doubted.as_ref().is_some_and(|fact| fact.contains("of 1 known objects"))
    };
    member.until(doubted).await;
    member.assert_unchanged(&["1"]);
    member.sim.heal();
    member.until(|status| status.doubted.is_none()).await;
    member.assert_unchanged(&["1"]);

    // A second list confirms the change.
    member.sim.fault(Fault::EmptyLists { resource: Some("endpointslices".into()) });
    member.sim.fault(Fault::Gone { how: Gone::Status, times: Some(5) });
    member.sim.fault(Fault::CloseWatches { after_ms: 1 });
    member.until_cart(&[]).await;
    member.until(|status| status.doubted.is_none()).await;
}

#[tokio::test]
async fn new_run_confirms_a_first_list_that_lacks_objects_of_the_previous_run() {
    let member = Member::begin(sim(Options::default()).await);
    member.until_cart(&["1"]).await;
    let object_counts =
        member.until(|status| status.object_counts != ObjectCounts::default()).await.object_counts;
    let Member { sim, .. } = member;
    sim.fault(Fault::NoStreamingLists { how: Refusal::Invalid });
    // The endpoints of a gateway depend on its pod, its namespace's label and its Service.
    sim.fault(Fault::EmptyLists { resource: None });
    let (access, doubted) = (access(&sim, &sim.url()), "of 1 known objects");
    let member = Member::reading_as(sim, access, |config| {
        config.status.send_modify(|status| status.object_counts = object_counts);
        config
    });
    let is_doubted =
        |status: &RunStatus| status.doubted.as_ref().is_some_and(|fact| fact.contains(doubted));
    member.until(is_doubted).await;
    assert_eq!(member.reported.borrow().resets, 0, "it has reported nothing");
    member.sim.heal();
    let status = member.until(|status| status.synced).await;
    assert!(status.doubted.is_none() && status.doubts > 0, "{status:?}");
    member.until_cart(&["1"]).await;
    assert_eq!(member.reported.borrow().resets, 1);
}

#[tokio::test]
async fn objects_beyond_the_budget_are_not_stored_and_existing_ones_stay() {
    let limits = ReadLimits { objects: 5, ..ReadLimits::default() };
    let member = Member::begin_with(sim(Options::default()).await, limits);
    member.until_cart(&["1"]).await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        let slice = endpoint_slice("shop", "many", &format!("many-{name}"), &[HTTP], &[]);
        member.sim.store().apply(slice).expect("a slice");
    }
    let status = member.until(|status| matches!(status.contact, ApiContact::Misbehaving(_))).await;
    let text = format!("{:?}", status.contact);
    assert!(text.contains("more than 5 endpointslices"), "{text}");
    member.assert_unchanged(&["1"]);
    for name in ["a", "b", "c"] {
        let name = format!("many-{name}");
        member.sim.store().delete("endpointslices", "shop", &name).expect("it existed");
    }
    member.until(|status| status.contact == ApiContact::Good).await;
}

/// Creates a slice whose endpoints name pods with unique names.
fn heavy(number: usize) -> Value {
    let endpoint = |last: usize| {
        let endpoint = objects::Endpoint::new(&format!("10.9.{number}.{last}"));
        endpoint.with_pod(&format!("{number}-{last}-{}", "x".repeat(200)))
    };
    let endpoints: Vec<_> = (1..101).map(endpoint).collect();
    endpoint_slice("shop", "many", &format!("many-{number}"), &[HTTP], &endpoints)
}

#[tokio::test]
async fn all_kinds_together_stay_within_the_memory_budget() {
    let limits = ReadLimits { memory_bytes: 200 << 10, ..ReadLimits::default() };
    // Objects that a watch adds beyond the budget are omitted, and read when there is room.
    let member = Member::begin_with(sim(Options::default()).await, limits);
    member.until_cart(&["1"]).await;
    for number in 0..10 {
        member.sim.store().apply(heavy(number)).expect("a slice");
    }
    let status = member.until(|status| matches!(status.contact, ApiContact::Misbehaving(_))).await;
    let text = format!("{:?}", status.contact);
    assert!(text.contains("more than 204800 bytes"), "{text}");
    member.assert_unchanged(&["1"]);
    assert!(status.memory_bytes <= 200 << 10, "{}", status.memory_bytes);
    // A list that exceeds the budget is not read to its end, and requested again at growing
    // intervals.
    let sim = sim_with_heavy(10).await;
    let member = Member::begin_with(sim, limits);
    let status = member.until(|status| matches!(status.contact, ApiContact::Misbehaving(_))).await;
    assert!(!status.synced && status.next_attempt.is_some(), "{status:?}");
    let again = |status: &RunStatus| {
        let until_next =
            status.next_attempt.and_then(|at| at.duration_since(SystemTime::now()).ok());
        until_next.is_some_and(|until_next| until_next > Duration::from_secs(5))
    };
    member.until(again).await;
    for number in 0..10 {
        let name = format!("many-{number}");
        member.sim.store().delete("endpointslices", "shop", &name).expect("it existed");
    }
    member.until_cart(&["1"]).await;
    let status = member.until(|status| status.contact == ApiContact::Good).await;
    assert_eq!(status.next_attempt, None);
}

async fn sim_with_heavy(count: usize) -> SimCluster {
    let sim = sim(Options::default()).await;
    (0..count).for_each(|number| drop(sim.store().apply(heavy(number)).expect("a slice")));
    sim
}

#[tokio::test]
async fn invalid_object_does_not_affect_others() {
    let sim = sim(Options::default()).await;
    let mut invalid = service("shop", "odd", "10.96.0.9", &[HTTP]);
    invalid["spec"]["ports"][0]["port"] = json!(70_000);
    sim.store().apply(invalid).expect("the store accepts anything");
    let member = Member::begin(sim);
    member.until_cart(&["1"]).await;
    let status = member.until(|status| status.skipped.count == 1).await;
    assert_eq!((status.services, &status.contact), (2, &ApiContact::Good));
    member.sim.store().apply(service("shop", "odd", "10.96.0.9", &[HTTP])).expect("mended");
    member.until(|status| status.skipped.count == 0).await;
}

#[tokio::test]
async fn unacceptable_certificate_is_reported_with_the_reason() {
    let sim = sim(Options::default()).await;
    let foreign = rcgen::generate_simple_self_signed(["x".to_owned()]).expect("a certificate");
    let mut unknown = access(&sim, &sim.url());
    unknown.ca_pem = Some(foreign.cert.pem().into());
    let mut misnamed = access(&sim, &sim.url());
    misnamed.tls_server_name = Some("api.example".into());
    for (access, fact) in [(unknown, "not signed by"), (misnamed, "not for api.example")] {
        let member = Member::reading(sim.clone(), access);
        let status =
            member.until(|status| matches!(status.contact, ApiContact::TlsFailed(_))).await;
        assert!(format!("{:?}", status.contact).contains(fact), "{:?}", status.contact);
    }
}

#[tokio::test]
async fn slow_receiver_costs_only_memory_for_names() {
    let sim = sim(Options::default()).await;
    let (updates, mut received) = mpsc::channel(1);
    let (config, mut status) = config(access(&sim, &sim.url()), updates);
    let tasks = Supervisor::new();
    tasks.spawn("run", run(config));
    let synced = status.wait_for(|status| status.synced);
    tokio::time::timeout(LIMIT, synced).await.expect("in time").expect("the run continues");
    // Without a receiver the channel is full; every event is still processed.
    for number in 0..3000 {
        cart(&sim, &["1", &(2 + number % 200).to_string()]);
    }
    sim.store().apply(service("shop", "last", "10.96.0.2", &[HTTP])).expect("a service");
    let second_service = status.wait_for(|status| status.services == 2);
    tokio::time::timeout(LIMIT, second_service).await.expect("in time").expect("the run continues");
    let mut reported = Reported::default();
    while reported.services.len() < 2 || reported.cart() != ["1", "201"] {
        let update = tokio::time::timeout(LIMIT, received.recv()).await.expect("in time");
        reported.apply(*update.expect("the run continues"));
    }
    assert!(reported.updates < 300, "coalesced: {} updates for 3001 changes", reported.updates);
}

#[tokio::test]
async fn run_ends_when_the_receiver_of_updates_is_dropped() {
    for reachable in [true, false] {
        let sim = sim(Options::default()).await;
        let mut access = access(&sim, &sim.url());
        if !reachable {
            access.ca_pem = Some(b"no certificate".to_vec());
        }
        let (updates, received) = mpsc::channel(1);
        let (config, _status) = config(access, updates);
        drop(received);
        tokio::time::timeout(LIMIT, run(config)).await.expect("it ends");
    }
}

/// A proxy between client and server that drops connections, with or without closing them.
struct Proxy {
    url: String,
    mood: watch::Sender<Mood>,
    _tasks: Supervisor,
}

/// The state of the proxy. Connections belong to the generation in which they were opened.
#[derive(Debug, Clone, Copy, Default)]
struct Mood {
    frozen_before: u64,
    cut_before: u64,
    generation: u64,
}

impl Proxy {
    async fn start(sim: &SimCluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        let (mood, moods) = watch::channel(Mood::default());
        let tasks = Supervisor::new();
        let (connections, target) = (tasks.clone(), sim.address());
        tasks.spawn("proxy", async move {
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn("connection", forward(client, target, moods.clone()));
            }
        });
        Self { url, mood, _tasks: tasks }
    }

    /// Blocks all data on existing connections, without closing them.
    fn freeze(&self) {
        self.mood.send_modify(|mood| {
            mood.generation += 1;
            mood.frozen_before = mood.generation;
        });
    }

    /// Closes all connections.
    fn cut(&self) {
        self.mood.send_modify(|mood| {
            mood.generation += 1;
            mood.cut_before = mood.generation;
        });
    }
}

async fn forward(
    mut client: TcpStream,
    target: std::net::SocketAddr,
    mut moods: watch::Receiver<Mood>,
) {
    let made = moods.borrow().generation;
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let ended = moods.clone();
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = moods.wait_for(|mood| made < mood.frozen_before.max(mood.cut_before)) => {}
    }
    if made < ended.borrow().cut_before {
        return;
    }
    // Frozen: both ends stay open.
    let _held = Arc::new((client, server));
    std::future::pending::<()>().await;
}
