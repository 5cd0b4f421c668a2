use std::future::{pending, poll_fn};
use std::task::Waker;

use prost::Message;
use tokio::sync::watch;

use super::*;
use crate::audit;
use crate::budgets::{Budgets, Pressure};
use crate::connections::{Connections, newest_by};
use crate::server::XdsConfig;
use crate::shared::Ending;
use strait_base::task::Supervisor;
use strait_identity::caller::{CallerAnswer, CallerRegistry};
use strait_identity::credential::CredentialRegistry;
use strait_identity::tls::ClientCertificates;
use strait_identity::{Authority, AuthorityFrom, AuthorityPem, RootEvidence, Serving, rotation};
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::push::subscription_index::Changes;
use strait_model::credential::{CredentialName, CredentialState};
use strait_model::registry::RegistryUpdate;
use strait_model::testing::{endpoint, host, member, removed, service, shard, workload};
use strait_model::{ClusterId, KnownClusters, NameMatch, WorkloadKey};
use strait_proto::envoy::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind};
use strait_proto::envoy::google::rpc;
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors, PolicyKind, PolicyName};
use strait_xds::names::OutboundName;

/// A registry that accepts no tokens.
#[derive(Debug)]
struct NobodyByToken;

impl CallerRegistry for NobodyByToken {
    fn verify<'a>(&'a self, _: &'a str, _: &'a ClusterId) -> CallerAnswer<'a> {
        Box::pin(pending())
    }

    fn runs(&self, _: &ClusterId, _: &SpiffeId) -> bool {
        false
    }
}

/// A registry that reads no Secrets.
#[derive(Debug)]
struct NoCredentials;

impl CredentialRegistry for NoCredentials {
    fn follow(
        &self,
        _: &ClusterId,
        _: &SpiffeId,
        _: &CredentialName,
    ) -> watch::Receiver<CredentialState> {
        watch::channel(CredentialState::default()).1
    }
}

/// Creates a stream of `web.ns` in cluster `east`, which has the services `a.ns` and `b.ns`.
fn stream(form: ProtocolForm) -> Stream {
    stream_of(form, watch::channel(Some(version(&mut mesh()))).1)
}

fn stream_of(form: ProtocolForm, context: watch::Receiver<Option<Arc<PushContext>>>) -> Stream {
    stream_with(form, context, Arc::default())
}

fn stream_with(
    form: ProtocolForm,
    context: watch::Receiver<Option<Arc<PushContext>>>,
    connections: Arc<Connections>,
) -> Stream {
    let now = SystemTime::now();
    let files = AuthorityPem::generate(now).expect("a CA can be made");
    let authority = Authority::new(&files, "test", now).expect("a new CA is sound");
    let id = "spiffe://cluster.local/ns/ns/sa/app".parse().expect("a SPIFFE ID");
    let pair = authority.issue_workload(&id, Duration::from_secs(3600), now).expect("it signs");
    let settings = strait_identity::CertificateSettings {
        serving: Serving::Issued { names: vec!["localhost".into()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(files)),
        relay_authority: None,
        named: watch::channel(Arc::default()).1,
        clients: ClientCertificates::Optional,
        evidence: RootEvidence::empty(),
        members: Default::default(),
    };
    let tasks = Supervisor::new();
    let identity = rotation::start(settings, rotation::INTERVAL, &tasks).expect("a good set");
    tasks.stop();
    let trust = Arc::clone(&identity.borrow().trust);
    let peer = trust.authenticate(pair.chain.certificates(), now).expect("our own");
    let shared = ServerShared::new(XdsConfig {
        context,
        subscription_index: Arc::default(),
        identity,
        trust_domain: watch::channel(Some("cluster.local".into())).1,
        callers: Arc::new(NobodyByToken),
        credentials: Arc::new(NoCredentials),
        members: Arc::new(Vec::new),
        tokens_count: true,
        connections,
        stats: Arc::default(),
        cache: Arc::default(),
        heads: Arc::default(),
        max_connections: 1,
        certificate_lifetime_max: Duration::from_secs(3600),
        descriptors: Arc::default(),
        audit_interval: None,
        replicas: None,
        relays: None,
        drain: tokio_util::sync::CancellationToken::new(),
    });
    let (peer, address) = (Arc::new(peer), ([127, 0, 0, 1], 0).into());
    let caller = Caller::from_certificate(Arc::clone(&peer), None);
    let line = ConnectionShared::new(address, Some(peer), None, 0);
    Stream::new(Arc::new(shared), Arc::new(line), caller, form)
}

fn mesh() -> MeshState {
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    let clusters = [(ClusterId::from("east"), member(None))].into();
    mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
    mesh.apply(MeshEvent::Registry(east(1)));
    mesh.apply(MeshEvent::Complete);
    mesh
}

fn east(epoch: u64) -> RegistryUpdate {
    let word = ["a.ns", "b.ns"].into_iter().fold(shard("east", epoch), |word, name| {
        word.with(service(name), vec![endpoint("10.0.0.9")])
    });
    word.built()
}

fn version(mesh: &mut MeshState) -> Arc<PushContext> {
    mesh.next_version().expect("a version").0
}

fn node(metadata: &[(&str, &str)]) -> Option<Node> {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
    let fields = metadata.iter().map(|(key, value)| ((*key).into(), text(value)));
    Some(Node {
        id: "sidecar~10.0.0.1~web.ns~ns.svc.cluster.local".into(),
        metadata: Some(Struct { fields: fields.collect() }),
        ..Default::default()
    })
}

fn endpoints(names: &[&str]) -> (String, Vec<String>) {
    let names = names.iter().map(|name| OutboundName::sidecar(host(name), 80).to_string());
    (ResourceType::Endpoint.url().into(), names.collect())
}

fn sent(stream: &mut Stream) -> usize {
    stream.due().expect("a response").count()
}

#[tokio::test]
async fn names_in_a_rejection_are_subscribed_to() {
    let mut stream = stream(ProtocolForm::Delta);
    for (names, nonce) in [(&["a.ns"], ""), (&["b.ns"], "1")] {
        let (type_url, resource_names_subscribe) = endpoints(names);
        let refused = || rpc::Status { message: "no".into(), ..Default::default() };
        let request = DeltaDiscoveryRequest {
            node: node(&[("CLUSTER_ID", "east")]),
            type_url,
            resource_names_subscribe,
            response_nonce: nonce.into(),
            error_detail: (!nonce.is_empty()).then(refused),
            ..Default::default()
        };
        assert!(stream.take(&request.encode_to_vec()).is_ok());
        assert_eq!(sent(&mut stream), 1);
    }
    let woken = stream.shared.subscription_index.mark(&Changes::for_endpoints([host("b.ns")]));
    assert_eq!(woken, 1);
}

/// The second version is published without marking the streams that it affects, as a mistake in
/// deciding which these are would do.
#[tokio::test]
async fn audit_finds_and_repairs_a_change_that_reached_no_stream() {
    let mut mesh = mesh();
    let (versions, context) = watch::channel(Some(version(&mut mesh)));
    let mut stream = stream_of(ProtocolForm::Delta, context);
    let shared = Arc::clone(&stream.shared);
    let mismatches = || shared.stats.audit_mismatches.load(Ordering::Relaxed);
    let cds = DeltaDiscoveryRequest {
        node: node(&[("CLUSTER_ID", "east")]),
        type_url: ResourceType::Cluster.url().into(),
        ..Default::default()
    };
    assert!(stream.take(&cds.encode_to_vec()).is_ok());
    let (type_url, resource_names_subscribe) = endpoints(&["a.ns"]);
    let eds = DeltaDiscoveryRequest { type_url, resource_names_subscribe, ..Default::default() };
    assert!(stream.take(&eds.encode_to_vec()).is_ok());
    assert!(!stream.responses().is_empty());
    assert!(stream.due().is_none());
    audit::round(Arc::clone(&shared), Duration::ZERO).await;
    assert_eq!((shared.stats.audited.load(Ordering::Relaxed), mismatches()), (1, 0));

    let moved = ["a.ns", "b.ns"]
        .into_iter()
        .fold(shard("east", 2), |word, name| word.with(service(name), vec![endpoint("10.0.0.10")]));
    mesh.apply(MeshEvent::Registry(moved.built()));
    versions.send(Some(version(&mut mesh))).expect("the stream receives");
    audit::round(Arc::clone(&shared), Duration::ZERO).await;
    assert_eq!(mismatches(), 1);
    assert!(stream.take_changes().is_ok());
    assert_eq!(sent(&mut stream), 1);
    audit::round(Arc::clone(&shared), Duration::ZERO).await;
    assert_eq!(mismatches(), 1);
}

#[tokio::test]
async fn change_is_not_delayed_by_waiting_first_syncs() {
    let mut in_sync = stream(ProtocolForm::Delta);
    let everything = |node| DeltaDiscoveryRequest {
        node,
        type_url: ResourceType::Cluster.url().into(),
        ..Default::default()
    };
    let first = everything(node(&[("CLUSTER_ID", "east")])).encode_to_vec();
    assert!(in_sync.take(&first).is_ok());
    let (type_url, resource_names_subscribe) = endpoints(&["a.ns"]);
    let watch = DeltaDiscoveryRequest { type_url, resource_names_subscribe, ..Default::default() };
    assert!(in_sync.take(&watch.encode_to_vec()).is_ok());
    assert!(in_sync.turn().now_or_never().expect("no other stream waits").is_some());
    assert!(!in_sync.responses().is_empty());

    let mut new = Stream::new(
        Arc::clone(&in_sync.shared),
        Arc::clone(&in_sync.line),
        in_sync.caller.clone(),
        ProtocolForm::Delta,
    );
    assert!(new.take(&first).is_ok());
    let storm = in_sync.shared.sync_limiter.turn(usize::MAX).now_or_never().expect("it is empty");
    let change = Dirty { endpoints: vec!["outbound|80||a.ns".into()], ..Dirty::default() };
    lock(&in_sync.session).on_change(&change);
    lock(&in_sync.session).on_change(&Dirty { lists: Wildcards::ALL, ..Dirty::default() });
    assert!(in_sync.turn().now_or_never().expect("it does not wait").is_none());
    let mut turn = Box::pin(new.turn());
    assert!(turn.as_mut().now_or_never().is_none());
    drop(storm);
    assert!(turn.now_or_never().expect("the stream has its turn").is_some());
}

fn watches(names: &[String], listed: bool) -> Vec<u8> {
    let versions = names.iter().map(|name| (name.clone(), String::new()));
    DeltaDiscoveryRequest {
        node: node(&[("CLUSTER_ID", "east")]),
        type_url: ResourceType::Endpoint.url().into(),
        resource_names_subscribe: names.to_vec(),
        initial_resource_versions: versions.filter(|_| listed).collect(),
        ..Default::default()
    }
    .encode_to_vec()
}

fn code_of(outcome: Result<(), StreamEnd>) -> Option<(tonic::Code, String)> {
    let status = outcome.err()?.status?;
    Some((status.code(), status.message().split(':').next().unwrap_or_default().to_owned()))
}

#[tokio::test]
async fn names_of_no_service_are_charged_until_the_stream_ends() {
    let connections = Arc::new(Connections::new(Budgets::of_memory(8 << 20)));
    let context = watch::channel(Some(version(&mut mesh()))).1;
    let open = || stream_with(ProtocolForm::Delta, context.clone(), Arc::clone(&connections));
    let invented =
        |count| (0..count).map(|n| format!("outbound|80||made-up-{n}.ns")).collect::<Vec<_>>();
    let usage = || connections.budgets().costliest(1).pop().map(|(_, usage)| usage);
    let mut first = open();
    let names = [endpoints(&["a.ns", "b.ns"]).1, invented(2000)].concat();
    assert!(first.take(&watches(&names, false)).is_ok());
    let both = usage().expect("it is entered");
    assert_eq!((both.streams, both.unverified, both.names, both.made_up), (1, 1, 2002, 2000));
    let mut second = open();
    let refused = code_of(second.take(&watches(&invented(3000), false)));
    assert_eq!(refused, Some((tonic::Code::ResourceExhausted, "STR0514".to_owned())));
    drop(second);
    let forgets = DeltaDiscoveryRequest {
        type_url: ResourceType::Endpoint.url().into(),
        resource_names_unsubscribe: invented(1999),
        ..Default::default()
    };
    assert!(first.take(&forgets.encode_to_vec()).is_ok());
    assert_eq!(usage().map(|usage| (usage.names, usage.made_up)), Some((3, 1)));
    let mut third = open();
    assert!(third.take(&watches(&invented(3000), false)).is_ok(), "capacity is available again");
    drop((first, third));
    assert!(usage().is_none());
}

#[tokio::test]
async fn names_that_exceed_the_budget_are_not_subscribed_to() {
    let connections = Arc::new(Connections::new(Budgets::of_memory(8 << 20)));
    let context = watch::channel(Some(version(&mut mesh()))).1;
    let open = || stream_with(ProtocolForm::Delta, context.clone(), Arc::clone(&connections));
    let mut stream = open();
    let invented: Vec<_> = (0..5000).map(|n| format!("outbound|80||made-up-{n}.ns")).collect();
    let refused = code_of(stream.take(&watches(&invented, false)));
    assert_eq!(refused, Some((tonic::Code::ResourceExhausted, "STR0514".to_owned())));
    let usage = connections.budgets().costliest(1).pop().expect("the stream is still registered").1;
    assert_eq!(usage.names, 0);
    // Names of known services are accepted, and a repeated name is charged once.
    let often: Vec<_> = (0..5000).map(|n| format!("outbound|80||made-up-{}.ns", n % 9)).collect();
    assert!(open().take(&watches(&often, false)).is_ok());
}

#[tokio::test]
async fn under_memory_pressure_only_proxies_that_list_resources_are_admitted() {
    let context = watch::channel(Some(version(&mut mesh()))).1;
    let connections = Arc::new(Connections::new(Budgets::of_memory(1 << 30)));
    connections.budgets().press(Pressure::Raised, 1);
    let open = || stream_with(ProtocolForm::Delta, context.clone(), Arc::clone(&connections));
    let names = endpoints(&["a.ns"]).1;
    let refused = code_of(open().take(&watches(&names, false)));
    assert_eq!(refused, Some((tonic::Code::Unavailable, "STR0515".to_owned())));
    let mut back = open();
    assert!(back.take(&watches(&names, true)).is_ok());
    assert_eq!(connections.budgets().figures().deferred, 1);

    let context = Context::from_waker(Waker::noop());
    assert!(matches!(back.handle_event(&context), Ok(false)));
    connections.budgets().end_costliest(1).expect("the only one");
    let ended = code_of(back.handle_event(&context).map(drop));
    assert_eq!(ended, Some((tonic::Code::Unavailable, "STR0515".to_owned())));
}

#[tokio::test]
async fn stream_ends_with_the_reason_of_its_deadline() {
    type Prepare = fn(&mut Stream);
    let cases: [(Prepare, Option<&str>); 5] = [
        (|_| {}, None),
        (|stream| stream.opened -= FIRST_REQUEST_LIMIT, Some("silent")),
        (
            |stream| {
                stream.opened -= FIRST_REQUEST_LIMIT;
                stream.debug_answers = 1;
            },
            Some("debug"),
        ),
        (|stream| stream.ends_at = Some(Instant::now()), Some("token ends")),
        (|stream| stream.line.end(Ending::Drain), Some("drain")),
    ];
    for (prepare, reason) in cases {
        let mut stream = stream(ProtocolForm::Delta);
        prepare(&mut stream);
        let ended = stream.handle_event(&Context::from_waker(Waker::noop())).err();
        assert_eq!(ended.map(|ended| ended.reason), reason);
    }
}

#[tokio::test]
async fn change_during_the_pause_of_a_stream_is_taken_after_it() {
    let mut stream = stream(ProtocolForm::Delta);
    assert!(stream.take(&watches(&endpoints(&["a.ns"]).1, false)).is_ok());
    assert_eq!(sent(&mut stream), 1);
    let (begun, cost) = (Instant::now(), Duration::from_millis(5));
    stream.pace.sent(begun, cost, 1, 1);
    let paused_until = stream.pace.next();
    assert!(paused_until > begun);
    stream.shared.subscription_index.mark(&Changes::for_endpoints([host("a.ns")]));
    let taken = poll_fn(|context| match stream.handle_event(context) {
        Ok(true) => Poll::Ready(()),
        Ok(false) => Poll::Pending,
        Err(ended) => panic!("it ended: {}", ended.reason),
    });
    tokio::time::timeout(Duration::from_secs(30), taken).await.expect("the timer wakes it");
    assert!(Instant::now() >= paused_until);
    assert!(lock(&stream.session).is_due());
}

#[tokio::test]
async fn pod_that_appears_later_and_contradicts_its_stream_ends_the_stream() {
    let mut mesh = mesh();
    let (versions, context) = watch::channel(Some(version(&mut mesh)));
    let mut stream = stream_of(ProtocolForm::Delta, context);
    assert!(stream.take(&watches(&endpoints(&["a.ns"]).1, false)).is_ok());
    let pod = |address| workload("web.ns", address, &[]);
    for (address, code) in [("10.0.0.1", None), ("10.0.0.2", Some("STR0512"))] {
        mesh.apply(MeshEvent::Registry(shard("east", 1).update().pod(pod(address)).built()));
        let (context, changes) = mesh.next_version().expect("a version");
        versions.send_replace(Some(context));
        assert_eq!(stream.shared.subscription_index.mark(&changes), 1);
        let ended = code_of(stream.take_changes());
        assert_eq!(ended.map(|(_, code)| code).as_deref(), code);
    }
}

#[tokio::test]
async fn a_panic_ends_its_stream_with_a_status() {
    let work = async { panic!("on purpose") };
    let ended = contained::<()>(work).await.expect_err("it ends");
    let code = ended.status.map(|status| status.code());
    assert_eq!((ended.reason, code), ("panic", Some(tonic::Code::Internal)));
}

#[tokio::test]
async fn proxy_keeps_its_configuration_while_its_cluster_is_withdrawn() {
    let mut mesh = mesh();
    let (versions, context) = watch::channel(Some(version(&mut mesh)));
    let mut stream = stream_of(ProtocolForm::Delta, context);
    let everything = || Dirty { everything: true, ..Dirty::default() };
    let request = DeltaDiscoveryRequest {
        node: node(&[("CLUSTER_ID", "east")]),
        type_url: ResourceType::Cluster.url().into(),
        ..Default::default()
    };
    assert!(stream.take(&request.encode_to_vec()).is_ok());
    assert!(sent(&mut stream) > 2);

    mesh.apply(MeshEvent::Registry(removed("east", 2)));
    versions.send_replace(Some(version(&mut mesh)));
    lock(&stream.session).on_change(&everything());
    assert!(stream.due().is_none());

    let new = shard("east", 3).with(service("c.ns"), vec![]).built();
    mesh.apply(MeshEvent::Registry(new));
    versions.send_replace(Some(version(&mut mesh)));
    lock(&stream.session).on_change(&everything());
    let added = stream.due().expect("a response");
    assert!(added.all().any(|(one, _)| one.name.contains("c.ns")));
}

#[tokio::test]
async fn only_proxyless_clients_receive_complete_responses() {
    for (generator, second) in [("grpc", 2), ("", 1)] {
        let mut stream = stream(ProtocolForm::Sotw);
        for (names, nonce, expected) in [(&["a.ns"][..], "", 1), (&["a.ns", "b.ns"], "1", second)] {
            let (type_url, resource_names) = endpoints(names);
            let request = DiscoveryRequest {
                node: node(&[("CLUSTER_ID", "east"), ("GENERATOR", generator)]),
                type_url,
                resource_names,
                response_nonce: nonce.into(),
                ..Default::default()
            };
            assert!(stream.take(&request.encode_to_vec()).is_ok());
            assert_eq!(sent(&mut stream), expected, "{generator:?}");
        }
    }
}

/// Creates a policy that denies a path for a whole namespace.
fn denying(index: &mut AccessIndex, namespace: &str, path: &str) -> MeshEvent {
    let rule = serde_json::json!({ "to": [{ "operation": { "paths": [path] } }] });
    let policy = serde_json::json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": namespace, "name": "deny" },
        "spec": { "action": "DENY", "rules": [rule] },
    });
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let mut objects = index.objects().clone();
    let object = WorkloadKey::new(namespace, "deny");
    let name = PolicyName { kind: PolicyKind::Authorization, object };
    objects.insert(name.key(), Arc::new(policy));
    let change = index.apply(&settings, &objects).expect("the request differs");
    MeshEvent::Access(change.policies, change.causes)
}

#[tokio::test]
async fn proxy_has_followed_a_policy_once_it_has_accepted_its_listeners() {
    let mut mesh = mesh();
    let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
    let mut index = AccessIndex::new(settings);
    let first = version(&mut mesh);
    let (versions, context) = watch::channel(Some(Arc::clone(&first)));
    let mut stream = stream_of(ProtocolForm::Delta, context);
    let request = |nonce: &str, refusal: &str| {
        let error_detail = (!refusal.is_empty())
            .then(|| rpc::Status { message: refusal.into(), ..Default::default() });
        DeltaDiscoveryRequest {
            node: node(&[("CLUSTER_ID", "east")]).filter(|_| nonce.is_empty()),
            type_url: ResourceType::Listener.url().into(),
            response_nonce: nonce.into(),
            error_detail,
            ..Default::default()
        }
        .encode_to_vec()
    };
    assert!(stream.take(&request("", "")).is_ok());
    let shared = Arc::clone(&stream.shared);
    let opened = shared.connections.list().pop().expect("one stream");
    let followed = || opened.has_followed_policies();
    assert!(!followed(), "nothing was sent");
    let nonce = stream.due().expect("listeners").nonce;
    assert!(!followed(), "nothing was answered");
    assert!(stream.take(&request(&nonce, "")).is_ok());
    assert!(followed());

    let mut before = first;
    let mut publish = |event: MeshEvent| {
        mesh.apply(event);
        let (now, mut changes) = mesh.next_version().expect("a version");
        shared.subscription_index.begin_publishing();
        changes.compute_impact([&before, &now], &shared.subscription_index, &Cache::default());
        versions.send_replace(Some(Arc::clone(&now)));
        before = now;
        changes
    };
    for (path, refusal) in [("/a", ""), ("/b", "virtualInbound is not to my taste"), ("/c", "")] {
        let changes = publish(denying(&mut index, "ns", path));
        assert!(!followed(), "{path}: another version was acknowledged");
        assert_eq!(shared.subscription_index.mark(&changes), 1);
        assert!(!followed(), "{path}: the stream has not run yet");
        assert!(stream.take_changes().is_ok());
        assert!(!followed(), "{path}: nothing was sent yet");
        let nonce = stream.due().expect("listeners").nonce;
        assert!(!followed(), "{path}: the proxy has not responded");
        assert!(stream.take(&request(&nonce, refusal)).is_ok());
        assert_eq!(followed(), refusal.is_empty(), "{path}");
    }

    // The policy does not affect this proxy, so its stream is not woken.
    let changes = publish(denying(&mut index, "other", "/a"));
    assert!(!followed(), "that is not known yet");
    assert_eq!(shared.subscription_index.mark(&changes), 0);
    assert!(followed());
}

#[tokio::test]
async fn stream_without_clusters_and_listeners_is_not_the_newest_of_its_proxy() {
    let connections = Arc::<Connections>::default();
    let context = watch::channel(Some(version(&mut mesh()))).1;
    let open = |kind: ResourceType| {
        let mut stream =
            stream_with(ProtocolForm::Delta, context.clone(), Arc::clone(&connections));
        let request = DeltaDiscoveryRequest {
            node: node(&[("CLUSTER_ID", "east")]),
            type_url: kind.url().into(),
            resource_names_subscribe: vec!["*".into()],
            ..Default::default()
        };
        assert!(stream.take(&request.encode_to_vec()).is_ok());
        stream
    };
    let newest = || {
        let streams = connections.list();
        let newest = newest_by(&streams, |stream| &*stream.proxy().id);
        newest.iter().map(|stream| stream.key()).collect::<Vec<_>>()
    };
    let _agent_alone = open(ResourceType::NameTable);
    assert_eq!(newest(), ["web.ns-1"]);
    let envoy = open(ResourceType::Cluster);
    let _agent = open(ResourceType::NameTable);
    assert_eq!(newest(), ["web.ns-2"], "the agent receives no configuration");
    let _envoy_again = open(ResourceType::Listener);
    assert_eq!(newest(), ["web.ns-4"]);
    drop(envoy);
    assert_eq!(newest(), ["web.ns-4"]);
    let named = connections.named("web");
    assert!(named.len() == 3 && named.iter().all(|(found, _)| *found == NameMatch::Prefix));
}
