//! Tests of the effects of the config cluster's responses on the known objects.

use super::*;
use strait_base::mass_deletion::CONFIRM_AFTER;
use strait_kube_client::NamespacedName;

fn secret(name: &str, data: &str) -> ReadObject {
    let json = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "strait-system", "labels": {{"a": "b"}},
            "annotations": {{"strait.dev/mode": "drain"}},
            "creationTimestamp": "2026-03-01T00:00:00Z"}}, "data": {data}}}"#
    );
    serde_json::from_str::<SecretObject>(&json).expect("a Secret").into()
}

fn config_map(name: &str) -> ReadObject {
    let json = format!(r#"{{"metadata": {{"name": "{name}", "namespace": "strait-system"}}}}"#);
    serde_json::from_str::<ConfigMapObject>(&json).expect("a ConfigMap").into()
}

fn services() -> StoreReader {
    StoreReader::Config(&CONFIG_KINDS[0])
}

fn workloads() -> StoreReader {
    StoreReader::Config(&CONFIG_KINDS[1])
}

/// The kinds after the first two.
fn further_kinds() -> impl Iterator<Item = StoreReader> {
    CONFIG_KINDS.iter().skip(2).map(StoreReader::Config)
}

/// Readers of objects that restrict access.
fn restricting() -> impl Iterator<Item = StoreReader> {
    CONFIG_KINDS.iter().filter(|kind| kind.restricts()).map(StoreReader::Config)
}

fn listed(reader: StoreReader, objects: Vec<ReadObject>) -> StoreInput {
    StoreInput { reader, event: WatchEvent::Restarted { objects, invalid: Vec::new() } }
}

fn names(objects: &Objects) -> Vec<&str> {
    objects.secrets.iter().map(|secret| secret.name.name.as_ref()).collect()
}

impl StoreIndex {
    fn apply_now(&mut self, input: StoreInput) -> Option<Objects> {
        self.apply(input, Instant::now())
    }

    /// Applies a list, and the same again after the confirmation interval.
    fn apply_twice(&mut self, input: impl Fn() -> StoreInput) -> Option<Objects> {
        self.apply(input(), Instant::now());
        self.apply(input(), Instant::now() + CONFIRM_AFTER)
    }
}

/// Creates an index that has read everything once.
fn read(secrets: Vec<ReadObject>) -> (StoreIndex, Objects) {
    let mut index = StoreIndex::default();
    assert_eq!(index.apply_now(listed(StoreReader::IstioSecrets, secrets)), None);
    assert_eq!(index.apply_now(listed(StoreReader::Secrets, vec![])), None);
    assert_eq!(index.apply_now(listed(StoreReader::ConfigMap, vec![config_map("strait")])), None);
    assert_eq!(index.apply_now(listed(StoreReader::IstioConfigMap, vec![])), None);
    assert_eq!(index.apply_now(listed(services(), vec![])), None);
    assert_eq!(index.apply_now(not_found(workloads())), None);
    for reader in further_kinds() {
        assert_eq!(index.apply_now(listed(reader, vec![])), None);
    }
    let json = r#"{"metadata": {"name": "shop", "labels": {"mesh": "on"}}}"#;
    let shop = serde_json::from_str::<NamespaceObject>(json).expect("a namespace").into();
    let objects = index
        .apply_now(listed(StoreReader::Namespaces, vec![shop]))
        .expect("everything has been read");
    assert_eq!(objects.namespaces[0].labels["mesh"], "on");
    (index, objects)
}

fn not_found(reader: StoreReader) -> StoreInput {
    StoreInput { reader, event: WatchEvent::Failed(ApiError::NotFound("no such path".to_owned())) }
}

#[test]
fn objects_are_read_if_installed_and_optional_otherwise() {
    let (mut index, objects) = read(vec![]);
    assert_eq!((objects.others.len(), objects.warnings.len()), (0, 0));
    let entry = |version: &str, address: &str| {
        let json = format!(
            r#"{{"metadata": {{"name": "a", "namespace": "shop", "resourceVersion": "{version}",
                "managedFields": [{{"time": "{version}"}}]}}, "spec": {{"address": "{address}"}}}}"#
        );
        let object = serde_json::from_str::<ConfigObject>(&json).expect("an entry");
        StoreInput { reader: workloads(), event: WatchEvent::Applied(object.into()) }
    };
    let mut apply_entry = |version, address| {
        let objects = index.apply_now(entry(version, address)).expect("everything has been read");
        objects.others.values().next().expect("one").clone()
    };
    let first = apply_entry("1", "10.0.0.1");
    let value = first.to_value();
    assert_eq!(value["kind"], "WorkloadEntry");
    assert_eq!(value["spec"]["address"], "10.0.0.1");
    let again = apply_entry("2", "10.0.0.1");
    assert_eq!(first.place(), again.place(), "no relevant field changed");
    assert_eq!(apply_entry("3", "10.0.0.2").to_value()["spec"]["address"], "10.0.0.2");
    let none = index.apply_twice(|| listed(workloads(), vec![]));
    assert!(none.expect("everything has been read").others.is_empty());
}

#[test]
fn remembered_objects_stay_until_listed_or_their_kind_is_removed() {
    let entries = [("ServiceEntry", "a"), ("WorkloadEntry", "b")].map(|(kind, name)| {
        let metadata = json!({ "namespace": "shop", "name": name });
        let version = "networking.istio.io/v1";
        Arc::new(json!({ "apiVersion": version, "kind": kind, "metadata": metadata }))
    });
    let remembered =
        RememberedStore { entries: entries.into_iter().collect(), ..RememberedStore::default() };
    let remaining = |services: &dyn Fn() -> StoreInput, workloads: &dyn Fn() -> StoreInput| {
        let mut index = StoreIndex::with_remembered(&remembered);
        index.apply_twice(services);
        index.apply_twice(workloads);
        let names = index.objects().others;
        names.values().map(|one| one.to_value()["metadata"]["name"].to_string()).collect::<Vec<_>>()
    };
    let forbidden = |reader| StoreInput {
        reader,
        event: WatchEvent::Failed(ApiError::Forbidden("forbidden".to_owned())),
    };
    let empty = |reader| listed(reader, vec![]);
    let (services, workloads) = (services(), workloads());
    let [a, b] = ["\"a\"", "\"b\""];
    assert_eq!(remaining(&|| forbidden(services), &|| forbidden(workloads)), [a, b]);
    assert_eq!(remaining(&|| empty(services), &|| forbidden(workloads)), [b]);
    assert_eq!(remaining(&|| forbidden(services), &|| not_found(workloads)), [a]);
}

#[test]
fn nothing_is_published_before_everything_is_read() {
    let (_, objects) = read(vec![secret("a", r#"{"east": "b2xk"}"#)]);
    let secret = &objects.secrets[0];
    assert_eq!(secret.data["east"].reveal(), b"old");
    assert_eq!(secret.annotations["strait.dev/mode"], "drain");
    assert!(secret.created.is_some());
    assert_eq!(objects.config_maps.len(), 1);
}

#[test]
fn config_maps_are_optional_if_forbidden_and_secrets_are_not() {
    let mut index = StoreIndex::default();
    let forbidden = |reader| StoreInput {
        reader,
        event: WatchEvent::Failed(ApiError::Forbidden("configmaps is forbidden".to_owned())),
    };
    assert_eq!(index.apply_now(forbidden(StoreReader::ConfigMap)), None);
    assert_eq!(index.apply_now(forbidden(StoreReader::IstioConfigMap)), None);
    assert_eq!(index.apply_now(not_found(services())), None);
    assert_eq!(index.apply_now(not_found(workloads())), None);
    for reader in further_kinds() {
        assert_eq!(index.apply_now(not_found(reader)), None);
    }
    assert_eq!(index.apply_now(forbidden(StoreReader::Namespaces)), None);
    assert_eq!(index.apply_now(listed(StoreReader::Secrets, vec![])), None);
    assert_eq!(index.unread(), None);
    assert_eq!(index.apply_now(forbidden(StoreReader::IstioSecrets)), None);
    let unread = index.unread().expect("it blocks the first read");
    assert!(unread.starts_with("secrets of the config cluster can't be read (not"), "{unread}");
    let objects = index
        .apply_now(listed(StoreReader::IstioSecrets, vec![]))
        .expect("everything has been read");
    assert_eq!(objects.warnings.len(), 2, "{:?}", objects.warnings);
}

/// Treating the policies as absent would accept all callers.
#[test]
fn forbidden_policies_block_the_first_read_and_remembered_ones_stay() {
    let (mut index, _) = read(vec![]);
    assert_eq!(index.unread(), None, "a kind that is not installed has no objects");
    let reader = restricting().next().expect("some exist");
    index.read.remove(&reader);
    let refused = WatchEvent::Failed(ApiError::Forbidden("forbidden".to_owned()));
    assert_eq!(index.apply_now(StoreInput { reader, event: refused }), None);
    assert!(index.unread().expect("it blocks the first read").contains(reader.plural()));
    let metadata = json!({ "namespace": "shop", "name": "deny" });
    let version = "security.istio.io/v1";
    let policy =
        json!({ "apiVersion": version, "kind": "AuthorizationPolicy", "metadata": metadata });
    let entries = [Arc::new(policy)].into_iter().collect();
    let mut index =
        StoreIndex::with_remembered(&RememberedStore { entries, ..RememberedStore::default() });
    for reader in restricting() {
        index.apply_now(not_found(reader));
    }
    assert_eq!(
        index.objects().others.len(),
        1,
        "an API server that is starting has no custom kinds yet"
    );
}

#[test]
fn secret_with_both_labels_is_stored_once_and_removed_with_the_last() {
    let (mut index, _) = read(vec![secret("a", "{}")]);
    let event = WatchEvent::Applied(secret("a", "{}"));
    let objects = index
        .apply_now(StoreInput { reader: StoreReader::Secrets, event })
        .expect("everything has been read");
    assert_eq!(names(&objects), ["a"]);
    let gone = |reader| {
        let key = NamespacedName { namespace: "strait-system".into(), name: "a".into() };
        StoreInput { reader, event: WatchEvent::Deleted(key) }
    };
    assert_eq!(names(&index.apply_now(gone(StoreReader::IstioSecrets)).expect("read")), ["a"]);
    assert_eq!(
        names(&index.apply_now(gone(StoreReader::Secrets)).expect("read")),
        Vec::<&str>::new()
    );
}

#[test]
fn list_replaces_objects_and_failure_keeps_them() {
    let (mut index, _) = read(vec![secret("a", "{}"), secret("b", "{}")]);
    let away = WatchEvent::Failed(ApiError::Unreachable("connection refused".to_owned()));
    let objects = index.apply_now(StoreInput { reader: StoreReader::IstioSecrets, event: away });
    let objects = objects.expect("everything has been read");
    assert_eq!(names(&objects), ["a", "b"]);
    assert!(objects.warnings[0].text.contains("connection refused"));
    assert_eq!(index.unread(), None, "everything has been read once");
    let answered = |reader| StoreInput { reader, event: WatchEvent::Answered };
    let objects = index
        .apply_now(answered(StoreReader::IstioSecrets))
        .expect("a change of contact is published");
    assert_eq!(objects.warnings, []);
    assert_eq!(index.apply_now(answered(StoreReader::IstioSecrets)), None, "and only once");
    let objects = index.apply_now(listed(StoreReader::IstioSecrets, vec![secret("b", "{}")]));
    let objects = objects.expect("everything has been read");
    assert_eq!(names(&objects), ["b"]);
    assert_eq!(objects.warnings, []);
}

#[test]
fn invalid_secret_keeps_its_previous_version() {
    let (mut index, _) = read(vec![secret("a", r#"{"east": "b2xk"}"#)]);
    for invalid in [r#"{"east": "canary!"}"#, r#"{"east": 1}"#, r#""canary""#] {
        let event = WatchEvent::Applied(secret("a", invalid));
        let objects = index.apply_now(StoreInput { reader: StoreReader::IstioSecrets, event });
        let objects = objects.expect("everything has been read");
        assert_eq!(objects.secrets[0].data["east"].reveal(), b"old");
        assert!(!objects.warnings.is_empty());
        assert!(!format!("{:?}", objects.warnings).contains("canary"));
    }
}

fn entry(name: &str) -> ReadObject {
    let json = format!(r#"{{"metadata": {{"name": "{name}", "namespace": "shop"}}}}"#);
    serde_json::from_str::<ConfigObject>(&json).expect("an entry").into()
}

#[test]
fn empty_list_of_any_kind_applies_only_after_confirmation() {
    let (mut index, _) = read(vec![secret("a", "{}"), secret("b", "{}"), secret("c", "{}")]);
    index.apply_now(listed(services(), vec![entry("x")]));
    let before = index.objects();
    let start = Instant::now();
    let empty =
        [StoreReader::IstioSecrets, StoreReader::ConfigMap, services(), StoreReader::Namespaces];
    for (number, reader) in empty.into_iter().enumerate() {
        let found = index.apply(listed(reader, vec![]), start).expect("everything has been read");
        let expected = Objects { warnings: found.warnings.clone(), ..before.clone() };
        assert_eq!(found, expected, "{reader:?}");
        assert_eq!(index.take_kinds_to_list().collect::<Vec<_>>(), [reader.plural()]);
        assert_eq!(found.warnings.len(), number + 1);
        assert!(found.warnings.iter().all(|one| one.text.starts_with("STR0606: its list has 0")));
    }
    // One was correct, the others were not.
    let later = start + CONFIRM_AFTER;
    index.apply(listed(StoreReader::ConfigMap, vec![config_map("strait")]), later);
    index.apply(listed(StoreReader::Namespaces, vec![]), later);
    index.apply(listed(services(), vec![entry("x")]), later);
    let secrets = || vec![secret("a", "{}"), secret("b", "{}"), secret("c", "{}")];
    let found = index
        .apply(listed(StoreReader::IstioSecrets, secrets()), later)
        .expect("everything has been read");
    assert_eq!(found, Objects { namespaces: Vec::new(), ..before });
    // The loss of most is treated like the loss of all; the loss of half is accepted at once.
    let few = |count| secrets().into_iter().take(count).collect();
    let found = index
        .apply(listed(StoreReader::IstioSecrets, few(1)), later)
        .expect("everything has been read");
    assert_eq!(names(&found), ["a", "b", "c"]);
    let found = index
        .apply(listed(StoreReader::IstioSecrets, few(2)), later)
        .expect("everything has been read");
    assert_eq!((names(&found), found.warnings.len()), (vec!["a", "b"], 0));
}

/// Creates a policy as in a list.
fn policy(name: &str, action: &str) -> ReadObject {
    let json = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "shop"}}, "spec": {{"action": "{action}", "rules": [{{}}]}}}}"#
    );
    serde_json::from_str::<ConfigObject>(&json).expect("a policy").into()
}

#[test]
fn list_without_most_restrictive_policies_is_requested_again() {
    let named = |action: &str, many: usize| {
        let all = (0..many)
            .map(|number| policy(&format!("{}-{number:02}", action.to_lowercase()), action));
        all.collect::<Vec<_>>()
    };
    let kind = CONFIG_KINDS.iter().find(|kind| kind.kind == "AuthorizationPolicy").expect("a row");
    let reader = StoreReader::Config(kind);
    let list = |denying, custom| {
        let all = [named("DENY", denying), named("CUSTOM", custom), named("ALLOW", 60)];
        listed(reader, all.into_iter().flatten().collect())
    };
    let (mut index, _) = read(vec![]);
    let start = Instant::now();
    let found = index.apply(list(38, 2), start).expect("everything has been read");
    assert_eq!((found.others.len(), found.warnings.len()), (100, 0));
    let found = index.apply(list(0, 0), start).expect("everything has been read");
    assert_eq!(found.others.len(), 100);
    assert_eq!(
        found.warnings.iter().map(|one| &*one.text).collect::<Vec<_>>(),
        [
            "STR0606: for policies that restrict access, its list has 0 of 40 known objects (lacking AuthorizationPolicy shop/custom-00, AuthorizationPolicy shop/custom-01, AuthorizationPolicy shop/deny-00 and 37 more); waiting for confirmation, the previous version stays in use"
        ]
    );
    assert_eq!(index.take_kinds_to_list().collect::<Vec<_>>(), ["authorizationpolicies"]);
    // That was a fault; an intended deletion is confirmed by a second list.
    let found = index.apply(list(38, 1), start + CONFIRM_AFTER).expect("everything has been read");
    assert_eq!((found.others.len(), found.warnings.len()), (99, 0));
    index.apply(list(0, 0), start + CONFIRM_AFTER);
    let found =
        index.apply(list(0, 0), start + 2 * CONFIRM_AFTER).expect("everything has been read");
    assert_eq!((found.others.len(), found.warnings.len()), (60, 0));
    // The loss of a single object is a deletion.
    index.apply(list(1, 0), start + 2 * CONFIRM_AFTER);
    let found =
        index.apply(list(0, 0), start + 2 * CONFIRM_AFTER).expect("everything has been read");
    assert_eq!((found.others.len(), found.warnings.len()), (60, 0));
}

#[test]
fn first_list_is_compared_with_remembered_objects() {
    let set = |names: &[&str]| -> BTreeSet<ObjectName> {
        names.iter().map(|name| ObjectName::new("strait-system", name)).collect()
    };
    let remembered = || RememberedStore {
        secrets: set(&["a", "b", "c"]),
        config_maps: set(&["strait", "istio"]),
        ..RememberedStore::default()
    };
    let (start, mut index) = (Instant::now(), StoreIndex::with_remembered(&remembered()));
    let mut apply_list = |reader, objects, now| index.apply(listed(reader, objects), now);
    let config_map = || vec![config_map("istio")];
    let config_readers = [services(), workloads()].into_iter().chain(further_kinds());
    for reader in config_readers.chain([StoreReader::Namespaces]) {
        assert_eq!(apply_list(reader, vec![], start), None);
    }
    assert_eq!(apply_list(StoreReader::ConfigMap, vec![], start), None);
    assert_eq!(apply_list(StoreReader::IstioConfigMap, config_map(), start), None);
    // The label of each Secret is unknown: both lists together have too few.
    assert_eq!(apply_list(StoreReader::IstioSecrets, vec![secret("a", "{}")], start), None);
    assert_eq!(apply_list(StoreReader::Secrets, vec![], start), None);
    // The reader that lists again first cannot answer for the other.
    let later = start + CONFIRM_AFTER;
    assert_eq!(apply_list(StoreReader::Secrets, vec![], later), None);
    let both = || vec![secret("a", "{}"), secret("b", "{}")];
    let found = apply_list(StoreReader::IstioSecrets, both(), later).expect("most of them exist");
    assert_eq!((names(&found), found.warnings.len()), (vec!["a", "b"], 0));

    let mut index = StoreIndex::with_remembered(&remembered());
    for reader in StoreReader::every() {
        assert_eq!(index.apply(listed(reader, vec![]), start), None);
    }
    let again: Vec<_> = index.take_kinds_to_list().collect();
    assert_eq!(again, ["configmaps", "secrets"]);
    let group = [StoreReader::ConfigMap, StoreReader::IstioConfigMap, StoreReader::Secrets];
    for reader in group {
        assert_eq!(index.apply(listed(reader, vec![]), later), None);
    }
    let found = index
        .apply(listed(StoreReader::IstioSecrets, vec![]), later)
        .expect("the state is correct");
    assert_eq!((found.secrets.len(), found.config_maps.len()), (0, 0));
}

#[test]
fn expired_version_causes_no_warning() {
    let (mut index, objects) = read(vec![secret("a", "{}")]);
    let gone = WatchEvent::Failed(ApiError::Gone("too old resource version".to_owned()));
    assert_eq!(
        index.apply_now(StoreInput { reader: StoreReader::IstioSecrets, event: gone }),
        None
    );
    assert_eq!(index.objects(), objects);
}
