use serde_json::json;

use super::super::ObjectName;
use super::*;
use strait_kube_client::{InvalidField, NamespacedName};

fn kind(plural: &str) -> &'static ConfigKind {
    ConfigKind::in_members().find(|one| one.plural == plural).expect(plural)
}

fn event(plural: &str, event: WatchEvent<ReadObject>) -> StoreInput {
    StoreInput { reader: StoreReader::Config(kind(plural)), event }
}

fn object(name: &str) -> ReadObject {
    let object =
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"hosts": [name]}});
    ReadObject::Config(ObjectName::new("shop", name), object.into())
}

fn list(names: &[&str]) -> WatchEvent<ReadObject> {
    let objects = names.iter().map(|name| object(name)).collect();
    WatchEvent::Restarted { objects, invalid: Vec::new() }
}

/// Creates an index of a cluster in which only VirtualServices are installed.
fn index() -> MemberIndex {
    let mut index = MemberIndex::default();
    for kind in ConfigKind::in_members().filter(|kind| kind.plural != "virtualservices") {
        let absent = WatchEvent::Failed(ApiError::NotFound("no such path".to_owned()));
        index.apply(event(kind.plural, absent), Instant::now());
    }
    index
}

fn names(index: &MemberIndex) -> Option<Vec<String>> {
    let objects = index.found().objects?;
    Some(objects.iter().map(|(key, _)| key.to_string()).collect())
}

#[test]
fn only_traffic_objects_of_members_apply_and_no_access_policies() {
    let all: Vec<_> = ConfigKind::in_members().map(|one| one.plural).collect();
    let expected = [
        "destinationrules",
        "envoyfilters",
        "gateways",
        "sidecars",
        "virtualservices",
        "telemetries",
        "httproutes",
        "grpcroutes",
        "tlsroutes",
        "tcproutes",
        "referencegrants",
    ];
    assert_eq!(all, expected);
}

#[test]
fn first_report_waits_for_every_installed_kind() {
    let mut index = index();
    assert_eq!(names(&index), None);
    index.apply(event("virtualservices", list(&["web"])), Instant::now());
    assert_eq!(names(&index), Some(vec!["VirtualService shop/web".to_owned()]));
    assert!(index.found().problems.is_empty());
    let (_, stored) =
        index.objects.iter().next().map(|(key, one)| (key.clone(), one.to_value())).expect("one");
    assert_eq!(stored["kind"], "VirtualService");
    index.apply(event("virtualservices", WatchEvent::Applied(object("db"))), Instant::now());
    let key = NamespacedName { namespace: "shop".into(), name: "web".into() };
    index.apply(event("virtualservices", WatchEvent::Deleted(key)), Instant::now());
    assert_eq!(names(&index), Some(vec!["VirtualService shop/db".to_owned()]));
}

#[test]
fn missing_permission_is_reported_with_the_next_step_and_delays_nothing() {
    let mut index = index();
    let denied = || WatchEvent::Failed(ApiError::Forbidden("403".to_owned()));
    index.apply(event("virtualservices", denied()), Instant::now());
    assert_eq!(names(&index), Some(Vec::new()));
    let problems = index.found().problems;
    assert!(problems[0].starts_with("STR1121: virtualservices: "), "{problems:?}");
    assert!(problems[0].contains("strait cluster add --own-traffic"), "{problems:?}");
    index.apply(event("virtualservices", list(&["web"])), Instant::now());
    assert!(index.found().problems.is_empty());
    // If the permission is revoked, the known objects stay.
    index.apply(event("virtualservices", denied()), Instant::now());
    assert_eq!(names(&index).map(|all| all.len()), Some(1));
}

#[test]
fn incomplete_list_and_invalid_object_remove_nothing_at_once() {
    let mut index = index();
    let many: Vec<_> = (0..40).map(|at| format!("o{at}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    index.apply(event("virtualservices", list(&many)), Instant::now());
    index.apply(event("virtualservices", list(&[])), Instant::now());
    assert_eq!(names(&index).map(|all| all.len()), Some(40));
    assert!(index.again.contains("virtualservices"));
    let key = NamespacedName { namespace: "shop".into(), name: "o1".into() };
    let invalid = InvalidField { key: Some(key), reason: "too long".to_owned() };
    index.apply(event("virtualservices", WatchEvent::Invalid(invalid)), Instant::now());
    assert_eq!(names(&index).map(|all| all.len()), Some(40));
    let problems = index.found().problems;
    assert!(problems[0].contains("virtualservices shop/o1: too long"), "{problems:?}");
}

#[test]
fn stored_objects_are_limited() {
    let mut index = index();
    index.limits.objects = 2;
    index.apply(event("virtualservices", list(&["a", "b"])), Instant::now());
    index.apply(event("virtualservices", WatchEvent::Applied(object("c"))), Instant::now());
    assert_eq!(names(&index).map(|all| all.len()), Some(2));
    assert!(index.found().problems[0].contains("more than 2"), "{:?}", index.found().problems);
}
