//! Tests of the active configuration during and after a hold, as the event loop sees it.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::*;
use strait_mesh::hold::HoldScope;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::MeshState;
use strait_mesh::testing::settings;
use strait_model::ObjectKey;
use strait_model::testing::{endpoint, service, shard};

/// Objects, their active configuration, and the resulting mesh.
struct Tried {
    objects: Collection,
    active: ActiveConfiguration,
    mesh: MeshState,
    context: Arc<PushContext>,
    /// Number of versions that the last step published.
    versions: usize,
}

fn object(kind: &str, name: &str, spec: Value) -> Arc<Value> {
    let group = if kind.ends_with("Policy") || kind == "PeerAuthentication" {
        "security.istio.io/v1"
    } else {
        "networking.istio.io/v1"
    };
    Arc::new(json!({
        "apiVersion": group, "kind": kind, "spec": spec,
        "metadata": { "namespace": "shop", "name": name },
    }))
}

fn route(timeout: &str) -> Arc<Value> {
    let to = json!([{ "destination": { "host": "web" } }]);
    object(
        "VirtualService",
        "web",
        json!({ "hosts": ["web"], "http": [{ "timeout": timeout, "route": to }] }),
    )
}

fn deny(path: &str) -> Arc<Value> {
    let rule = json!({ "to": [{ "operation": { "paths": [path] } }] });
    object(
        "AuthorizationPolicy",
        path.trim_start_matches('/'),
        json!({ "action": "DENY", "rules": [rule] }),
    )
}

fn written(mesh: Option<&str>) -> MeshSettings {
    let texts = MeshTexts { config: mesh.map(Into::into), networks: None };
    MeshSettings::parse(texts, &Defaults::default()).expect("sound")
}

impl Tried {
    fn new() -> Self {
        let rules = ReadingRules {
            domain: "cluster.local".to_owned(),
            defaults: Defaults::default(),
            errors: PolicyErrors::default(),
            budget: Default::default(),
            default_visibility: DefaultVisibility::default(),
        };
        let active = ActiveConfiguration::new(rules, written(None), &Collection::default());
        let mut mesh = MeshState::new(settings());
        let web = shard("east", 1).with(service("web.shop"), vec![endpoint("10.0.0.1")]);
        mesh.apply(MeshEvent::Registry(web.built()));
        mesh.apply(MeshEvent::Complete);
        let (context, _) = mesh.next_version().expect("a first version");
        let mut tried = Self { objects: Collection::default(), active, mesh, context, versions: 0 };
        tried.objects_are(&[]);
        tried
    }

    fn apply(&mut self, events: Vec<MeshEvent>) {
        let snapshot = self.active.take_snapshot().map(MeshEvent::Configuration);
        self.mesh.apply(MeshEvent::Together(snapshot.into_iter().chain(events).collect()));
        self.versions = 0;
        while let Some((context, _)) = self.mesh.next_version() {
            self.context = context;
            self.versions += 1;
        }
    }

    fn objects_are(&mut self, objects: &[Arc<Value>]) {
        self.objects = objects.iter().cloned().collect();
        let access = self.active.apply_access(&self.objects, TimePoint::now());
        let traffic = self.active.apply_traffic(&self.objects);
        let mut events: Vec<_> = access
            .map(|change| MeshEvent::Access(change.policies, change.causes))
            .into_iter()
            .collect();
        events.extend(traffic.map(MeshEvent::Traffic));
        self.apply(events);
    }

    fn settings_are(&mut self, mesh: &str) {
        let events = self.active.apply_settings(written(Some(mesh)));
        self.apply(events);
    }

    fn hold(&mut self, configuration: &Arc<ConfigurationSnapshot>, scope: HoldScope) {
        let hold = ConfigurationHold {
            configuration: Arc::clone(configuration),
            since: SystemTime::now(),
            by: "a test".to_owned(),
            reason: String::new(),
            scope,
        };
        let events =
            self.active.change(&HoldChange::Hold(Arc::new(hold)), TimePoint::now()).expect("sound");
        self.apply(events);
    }

    fn release(&mut self) {
        let events = self.active.change(&HoldChange::Release, TimePoint::now()).expect("sound");
        self.apply(events);
    }

    fn now(&self) -> Arc<ConfigurationSnapshot> {
        Arc::clone(&self.context.configuration)
    }

    /// Returns the timeouts of active routes and the paths of active deny policies.
    fn active(&self) -> (String, Vec<String>) {
        let services = &self.context.traffic.virtual_services;
        let names: Vec<_> = self
            .context
            .configuration
            .traffic
            .values()
            .map(|one| {
                one.to_value()["spec"]["http"][0]["timeout"].as_str().unwrap_or("?").to_owned()
            })
            .collect();
        assert_eq!(
            services.hosts().count(),
            names.len(),
            "the snapshot lists exactly the active objects"
        );
        let policies = self.context.access.reports().map(|(name, _)| name.object.name.to_string());
        (names.join(","), policies.collect())
    }

    fn waiting_names(&self) -> Vec<String> {
        let live = self.active.live();
        let waiting = self.active.waiting(&live).expect("a hold or rollout").what;
        let mut all: Vec<_> = waiting.objects.iter().map(|key| key.name.to_string()).collect();
        all.extend(waiting.mesh_config.then(|| "mesh config".to_owned()));
        all
    }
}

#[test]
fn changes_wait_during_a_hold() {
    let mut tried = Tried::new();
    tried.objects_are(&[route("1s")]);
    let held = tried.now();
    tried.hold(&held, HoldScope::WithoutAccess);
    assert_eq!(tried.versions, 0, "holding the active configuration changes nothing");
    assert_eq!(tried.waiting_names(), Vec::<String>::new());
    tried.objects_are(&[route("2s"), object("Sidecar", "default", json!({}))]);
    assert_eq!(tried.versions, 0, "waiting changes are not sent");
    assert_eq!(tried.active().0, "1s");
    assert_eq!(tried.waiting_names(), ["default", "web"]);
    // Changes of pods still apply.
    let web = shard("east", 1).update().with(service("web.shop"), vec![endpoint("10.0.0.2")]);
    tried.mesh.apply(MeshEvent::Registry(web.built()));
    let (context, _) = tried.mesh.next_version().expect("a version");
    assert_eq!(context.configuration.id(), held.id());
    tried.objects_are(&[route("2s")]);
    tried.release();
    assert_eq!((tried.versions, &*tried.active().0), (1, "2s"));
    assert_ne!(tried.now().id(), held.id());
    tried.release();
    assert_eq!(tried.versions, 0, "there is no hold any more");
}

#[test]
fn earlier_configuration_can_be_held() {
    let mut tried = Tried::new();
    let nothing = tried.now();
    tried.objects_are(&[route("1s")]);
    let first = tried.now();
    tried.objects_are(&[route("2s")]);
    let second = tried.now();
    tried.hold(&first, HoldScope::WithoutAccess);
    assert_eq!((tried.versions, &*tried.active().0, tried.now().id()), (1, "1s", first.id()));
    // Replaces one hold with another, then releases.
    tried.hold(&nothing, HoldScope::WithoutAccess);
    assert_eq!((&*tried.active().0, tried.now().id()), ("", nothing.id()));
    assert_eq!(tried.waiting_names(), ["web"]);
    tried.release();
    assert_eq!((&*tried.active().0, tried.now().id()), ("2s", second.id()));
}

/// The last valid version of an object comes from the stored objects, not from the held ones.
#[test]
fn object_that_becomes_invalid_during_a_hold_keeps_its_last_valid_version() {
    let mut tried = Tried::new();
    let nothing = tried.now();
    tried.objects_are(&[route("1s")]);
    tried.hold(&nothing, HoldScope::WithoutAccess);
    tried.objects_are(&[route("2s")]);
    let broken = object("VirtualService", "web", json!("none"));
    tried.objects_are(std::slice::from_ref(&broken));
    assert_eq!(tried.active().0, "");
    let key = ObjectKey::of(&broken).expect("a key");
    let report = &tried.active.stored_traffic().reports()[&key];
    assert!(report.state.refused && report.state.is_last_good, "{report:?}");
    tried.release();
    assert_eq!(tried.active().0, "2s");
    assert_eq!(tried.active.stored_traffic().last_valid_objects().len(), 1);
    // A configuration contains invalid objects unchanged, and restores them unchanged.
    let guard =
        object("DestinationRule", "web", json!({ "host": "web", "trafficPolicy": { "tls": "x" } }));
    tried.objects_are(std::slice::from_ref(&guard));
    let guarded = tried.now();
    let traffic = Arc::clone(&tried.context.traffic);
    let sound = object("DestinationRule", "web", json!({ "host": "web" }));
    tried.objects_are(&[sound]);
    tried.hold(&guarded, HoldScope::WithoutAccess);
    assert_eq!(tried.context.traffic, traffic);
}

#[test]
fn access_policies_are_held_only_on_request() {
    let mut tried = Tried::new();
    tried.objects_are(&[deny("/one")]);
    let held = tried.now();
    tried.hold(&held, HoldScope::WithoutAccess);
    tried.objects_are(&[deny("/one"), deny("/two")]);
    assert_eq!(tried.active().1, ["one", "two"], "deny policies apply during a hold");
    assert_eq!(tried.waiting_names(), Vec::<String>::new());
    tried.hold(&held, HoldScope::WithAccess);
    assert_eq!(tried.active().1, ["one"]);
    assert_eq!(tried.waiting_names(), ["two"]);
    tried.objects_are(&[deny("/three")]);
    assert_eq!((tried.versions, tried.active().1), (0, vec!["one".to_owned()]));
    // Without access policies from now on, the stored policies apply.
    tried.hold(&held, HoldScope::WithoutAccess);
    assert_eq!(tried.active().1, ["three"]);
    tried.hold(&held, HoldScope::WithAccess);
    tried.release();
    assert_eq!(tried.active().1, ["three"]);
}

#[test]
fn mesh_config_is_held_except_for_trust() {
    let mut tried = Tried::new();
    let text = |timeout: &str, domain: &str| {
        format!(
            "{{\"connectTimeout\":\"{timeout}\",\"trustDomainAliases\":[\"{domain}\"],\"rootNamespace\":\"root\"}}"
        )
    };
    tried.settings_are(&text("3s", "old"));
    let held = tried.now();
    tried.hold(&held, HoldScope::WithoutAccess);
    assert_eq!(tried.versions, 0);
    tried.settings_are(&text("5s", "new"));
    let mesh = Arc::clone(&tried.context.mesh);
    assert_eq!(mesh.connect_timeout, Duration::from_secs(3));
    assert_eq!(mesh.trust_domain_aliases, ["new"], "trust is never held back");
    assert_eq!(tried.waiting_names(), ["mesh config"]);
    assert_eq!(tried.now().id(), held.id());
    tried.release();
    assert_eq!(tried.context.mesh.connect_timeout, Duration::from_secs(5));
    tried.hold(&held, HoldScope::WithoutAccess);
    assert_eq!(tried.context.mesh.connect_timeout, Duration::from_secs(3));

    // An unreadable configuration is refused and changes nothing.
    let unreadable = ConfigurationSnapshot::new(
        Collection::default(),
        Collection::default(),
        Some("{\"connectTimeout\":\"soon\"}".into()),
        None,
    );
    let hold = ConfigurationHold {
        configuration: Arc::new(unreadable),
        ..ConfigurationHold::clone(tried.active.hold().expect("held"))
    };
    let change = HoldChange::Hold(Arc::new(hold));
    assert!(
        tried.active.check(&change).is_err()
            && tried.active.change(&change, TimePoint::now()).is_err()
    );
    assert_eq!(tried.active.hold().map(|hold| hold.configuration.id()), Some(held.id()));
}

#[test]
fn restored_hold_applies_before_any_object_is_read() {
    let mut before = Tried::new();
    before.objects_are(&[route("1s"), deny("/one")]);
    let held = before.now();
    let mut tried = Tried::new();
    tried.hold(&held, HoldScope::WithAccess);
    assert_eq!(tried.active(), ("1s".to_owned(), vec!["one".to_owned()]));
    tried.objects_are(&[route("2s"), deny("/two")]);
    assert_eq!((tried.versions, tried.now().id()), (0, held.id()));
    tried.release();
    assert_eq!(tried.active(), ("2s".to_owned(), vec!["two".to_owned()]));
}

impl Tried {
    fn settle(&mut self) {
        let events = self.active.settle(TimePoint::now());
        self.apply(events);
    }

    /// Returns the mesh of the next configuration.
    fn next_head(&self) -> Arc<PushContext> {
        let (live, events) = self.active.next_head().expect("a running rollout");
        let mut mesh = self.mesh.clone();
        mesh.apply(MeshEvent::Together(events));
        let (context, _) = mesh.next_version().expect("it differs");
        assert_eq!(context.configuration.id(), live.id());
        context
    }
}

#[test]
fn rolled_out_change_stays_in_the_next_configuration_until_promotion() {
    let mut tried = Tried::new();
    tried.objects_are(&[route("1s")]);
    tried.settle();
    assert_eq!(tried.versions, 0, "pinning changes nothing");
    assert!(tried.active.is_rolling_out() && tried.active.hold().is_none());
    tried.objects_are(&[route("2s"), deny("/x")]);
    assert_eq!(tried.active(), ("1s".to_owned(), vec!["x".to_owned()]), "policies never wait");
    assert_eq!(tried.waiting_names(), ["web"]);
    let next = tried.next_head();
    assert_eq!(
        next.configuration.traffic.values().next().expect("it").to_value()["spec"],
        route("2s")["spec"]
    );
    assert!(next.traffic != tried.context.traffic);
    assert!(Arc::ptr_eq(&next.access, &tried.context.access));
    // Pinning again has no effect.
    tried.settle();
    assert_eq!(tried.versions, 0);
    let events = tried.active.promote(TimePoint::now());
    tried.apply(events);
    assert_eq!((tried.versions, &*tried.active().0), (1, "2s"));
    assert!(
        *next.traffic == *tried.context.traffic,
        "all proxies receive the rolled out configuration"
    );
    assert!(!tried.active.is_rolling_out() && tried.active.next_head().is_none());
    // Later changes apply immediately.
    tried.objects_are(&[route("3s"), deny("/x")]);
    assert_eq!(tried.active().0, "3s");
}

#[test]
fn trust_settings_apply_immediately_during_a_rollout() {
    let mut tried = Tried::new();
    tried.objects_are(&[route("1s")]);
    tried.settle();
    tried.settings_are("{ trustDomainAliases: [old.example], connectTimeout: 3s }");
    let (settled, next) = (&tried.context.mesh, tried.next_head());
    assert_eq!(settled.trust_domain_aliases, next.mesh.trust_domain_aliases);
    assert_ne!(settled.connect_timeout, next.mesh.connect_timeout);
}

#[test]
fn changes_that_wait_behind_a_hold_can_be_rolled_out() {
    let mut tried = Tried::new();
    tried.objects_are(&[route("1s"), deny("/x")]);
    let held = tried.now();
    tried.hold(&held, HoldScope::WithAccess);
    tried.objects_are(&[route("2s")]);
    assert_eq!(tried.active().1, ["x"]);
    let events = tried.active.roll_out_waiting(TimePoint::now());
    tried.apply(events);
    assert_eq!(tried.active(), ("1s".to_owned(), Vec::new()), "policies apply immediately");
    assert!(tried.active.is_rolling_out());
    let next = tried.next_head();
    assert_eq!(
        next.configuration.traffic.values().next().expect("it").to_value()["spec"],
        route("2s")["spec"]
    );
    // A hold replaces the rollout and keeps the configuration for all.
    tried.hold(&held, HoldScope::WithoutAccess);
    assert!(tried.active.hold().is_some() && tried.active.next_head().is_none());
    assert_eq!(tried.active().0, "1s");
}

#[test]
fn restart_restores_the_configuration_for_all_and_rolls_out_the_rest() {
    let mut tried = Tried::new();
    tried.objects_are(&[route("1s")]);
    let settled = settled_hold(tried.now());
    let mut again = Tried::new();
    let events = again.active.restore_settled(&settled, TimePoint::now()).expect("sound");
    again.apply(events);
    again.objects_are(&[route("2s")]);
    assert_eq!(again.active().0, "1s");
    assert_eq!(again.waiting_names(), ["web"]);
    again.objects_are(&[route("1s")]);
    assert_eq!(again.waiting_names(), Vec::<String>::new(), "the stored objects are unchanged");
}

#[test]
fn default_visibility_of_the_policy_narrows_objects_without_exports() {
    let mut tried = Tried::new();
    let mut exported = Value::clone(&route("1s"));
    exported["metadata"]["name"] = "exported".into();
    exported["spec"]["hosts"] = json!(["api"]);
    exported["spec"]["exportTo"] = json!(["*"]);
    tried.objects_are(&[route("1s"), Arc::new(exported)]);
    let visible = |tried: &Tried, namespace: &str| {
        let services = &tried.context.traffic.virtual_services;
        let names = ["web", "api"].map(|name| format!("{name}.shop.svc.cluster.local"));
        names.map(|name| {
            let host = strait_rules::traffic::HostPattern::written(&name).expect("a host");
            services.for_host(&host, &namespace.into()).next().is_some()
        })
    };
    assert_eq!(visible(&tried, "pay"), [true, true]);
    assert!(
        !tried.active.apply_default_visibility(DefaultVisibility::Mesh),
        "the value is unchanged"
    );
    assert!(tried.active.apply_default_visibility(DefaultVisibility::Namespace));
    let events = tried.active.apply_settings(written(None));
    tried.apply(events);
    assert_eq!((visible(&tried, "pay"), visible(&tried, "shop")), ([false, true], [true, true]));
    // An explicit value of the mesh config takes precedence, also while a configuration is held.
    tried.settings_are("{defaultVirtualServiceExportTo: ['*']}");
    assert_eq!(visible(&tried, "pay"), [true, true]);
    tried.settings_are("{}");
    let held = tried.now();
    tried.hold(&held, HoldScope::WithoutAccess);
    assert_eq!(visible(&tried, "pay"), [false, true]);
    tried.release();
    assert!(tried.active.apply_default_visibility(DefaultVisibility::Mesh));
    let events = tried.active.apply_settings(written(None));
    tried.apply(events);
    assert_eq!(visible(&tried, "pay"), [true, true]);
}
