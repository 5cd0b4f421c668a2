//! Tests of the conditions of exports, and of the memory of writes.

use super::*;
use strait_model::{Disagreement, ExportedService, Labels, RankedExport};

fn shared(clusters: &[&str], refused: &[&str], conflict: bool) -> SharedService {
    let exports = clusters.iter().map(|cluster| RankedExport {
        cluster: (*cluster).into(),
        name: (*cluster).into(),
        age: 0,
        conflicts: Vec::new(),
        service: Arc::new(ExportedService {
            created: 0,
            service: Arc::default(),
            labels: Labels::new(),
            annotations: Labels::new(),
        }),
    });
    let conflict = conflict.then(|| Disagreement {
        reason: "PortConflict".into(),
        message: "ports: …".into(),
        fields: vec!["ports"],
    });
    SharedService {
        exports: exports.collect(),
        refused: refused.iter().map(|one| ((*one).into(), "no".to_owned())).collect(),
        merged: None,
        conflict,
    }
}

#[test]
fn conditions_report_whether_an_export_is_valid_ready_and_undisputed() {
    let alias = Resolution::Alias("elsewhere.example".into());
    for (service, shared_service, expected) in [
        (None, None, "Valid=False NoService, Ready=False Pending"),
        (Some(&alias), None, "Valid=False InvalidServiceType, Ready=False Pending"),
        (
            Some(&Resolution::ClientSide),
            None,
            "Valid=True Valid, Ready=False Pending, Conflict=False NoConflicts",
        ),
        (
            Some(&Resolution::ClientSide),
            Some(shared(&["east", "west"], &[], false)),
            "Valid=True Valid, Ready=True Exported, Conflict=False NoConflicts",
        ),
        (
            Some(&Resolution::ClientSide),
            Some(shared(&["west"], &["east"], true)),
            "Valid=True Valid, Ready=False Failed, Conflict=True PortConflict",
        ),
    ] {
        let found = match invalidity_of_service(service) {
            Some(Invalidity { reason, message }) => refused(reason, message),
            None => conditions(shared_service.as_ref(), &"east".into()),
        };
        let found: Vec<_> =
            found.iter().map(|one| format!("{}={} {}", one.kind, one.status, one.reason)).collect();
        assert_eq!(found.join(", "), expected);
    }
}

#[test]
fn reported_conflict_stays_while_a_member_is_unknown() {
    let condition = ExportCondition::new;
    let conflict = condition("Conflict", true, "TypeConflict", "type: …");
    let wanted = || conditions(None, &"east".into());
    let mut kept = wanted();
    keep_conflict(&mut kept, std::slice::from_ref(&conflict));
    assert_eq!(kept[2], conflict);
    let mut kept = wanted();
    keep_conflict(&mut kept, &[condition("Conflict", false, "NoConflicts", "")]);
    assert_eq!(kept, wanted());
}

#[test]
fn unchanged_status_keeps_its_time() {
    let at = |status: &str, since: &str| ExportCondition {
        kind: "Ready".into(),
        status: status.into(),
        reason: "x".into(),
        message: "y".into(),
        since: since.into(),
        observed: 1,
    };
    let current = [at("True", "2026-01-01T00:00:00Z")];
    assert_eq!(&*at("True", "").dated(&current).since, "2026-01-01T00:00:00Z");
    assert_eq!(&*at("False", "").dated(&current).since, "");
    // A changed object needs a new report, even with the same value.
    let later = ExportCondition { observed: 2, ..at("True", "") };
    assert!(has_same_state(&at("True", ""), &current[0]) && !has_same_state(&later, &current[0]));
}

#[test]
fn write_without_effect_is_not_repeated_for_a_while() {
    let object = |name: &str, clusters: &[&str]| DesiredObject {
        key: NamespacedName { namespace: "shop".into(), name: name.into() },
        state: DesiredState::Import(ImportWrite::AdoptedClusters(
            clusters.iter().map(|id| Arc::from(*id)).collect(),
        )),
    };
    let (now, later) = (Instant::now(), Instant::now() + REST);
    let mut memory = WriteBackState::default();
    assert!(memory.may_try(&object("cart", &["a"]), now));
    assert!(!memory.note(object("cart", &["a"]), &Ok(()), now));
    assert!(!memory.may_try(&object("cart", &["a"]), now), "another writer reverted it");
    assert!(memory.may_try(&object("cart", &["a", "b"]), now));
    assert!(memory.may_try(&object("cart", &["a"]), later));
    // A missing permission applies to all objects.
    let denied = Err(ApiError::from_status(403, "no", None));
    assert!(!memory.note(object("loan", &["a"]), &denied, now));
    assert!(
        !memory.may_try(&object("other", &["a"]), now)
            && memory.may_try(&object("other", &["a"]), later)
    );
    let export = DesiredObject { key: object("cart", &[]).key, state: DesiredState::Export };
    assert!(memory.may_try(&export, now));
    let exists = Err(ApiError::from_status(409, "already exists", None));
    assert!(!memory.note(export.clone(), &exists, now), "another writer was faster");
    assert!(!memory.may_try(&export, now));
    assert!(memory.note(object("cart", &[]), &Err(ApiError::from_status(503, "busy", None)), now));
}

#[test]
fn refusal_of_an_admission_plugin_concerns_one_object() {
    let service = |name: &str| DesiredObject {
        key: NamespacedName { namespace: "shop".into(), name: name.into() },
        state: DesiredState::Import(ImportWrite::Derived {
            object: json!({ "spec": {} }),
            mode: WriteMode::Create,
        }),
    };
    let mut now = Instant::now();
    for message in [
        "services \"derived-a\" is forbidden: exceeded quota: few, requested: services=1",
        "services \"derived-a\" is forbidden: unable to create new content in namespace shop because it \
         is being terminated",
        "admission webhook \"policies.example\" denied the request: no services here",
    ] {
        let mut memory = WriteBackState::default();
        let refusal = Err(ApiError::from_status(403, message, None));
        // The pause doubles up to 320 s.
        for pause in [5, 10, 20, 40, 80, 160, 320, 320, 320] {
            memory.report(&service("cart"), &refusal);
            assert!(!memory.note(service("cart"), &refusal, now), "{message}");
            assert!(memory.may_try(&service("loan"), now), "{message}");
            assert_eq!(memory.pause(&service("cart"), now), Some(Duration::from_secs(pause)));
            now += Duration::from_secs(pause);
            assert!(memory.may_try(&service("cart"), now), "{message}");
        }
        assert_eq!(memory.report.denied, None);
        let refusals: Vec<_> = memory.report.refusals.values().map(|one| &*one.message).collect();
        assert_eq!(refusals, [message], "it is reported");
        memory.report(&service("cart"), &Ok(()));
        assert!(memory.report.refusals.is_empty());
    }
    let missing = "services is forbidden: User \"strait\" cannot create resource \"services\" in API \
                   group \"\" in the namespace \"shop\"";
    let mut memory = WriteBackState::default();
    assert!(!memory.note(service("cart"), &Err(ApiError::from_status(403, missing, None)), now));
    assert!(!memory.may_try(&service("loan"), now), "the right is missing for all objects");
}

#[test]
fn restoration_is_repeated_a_limited_number_of_times() {
    let restoration = |version: &str| DesiredObject {
        key: NamespacedName { namespace: "shop".into(), name: "cart".into() },
        state: DesiredState::Import(ImportWrite::Derived {
            object: json!({ "spec": {} }),
            mode: WriteMode::Restore(version.into()),
        }),
    };
    let mut memory = WriteBackState::default();
    let mut now = Instant::now();
    for version in ["1", "2", "3"] {
        assert!(memory.may_try(&restoration(version), now), "restoration of version {version}");
        assert!(!memory.note(restoration(version), &Ok(()), now));
        assert!(!memory.may_try(&restoration("next"), now), "the watch may be late");
        now += REST_OF_CREATION;
    }
    assert!(!memory.may_try(&restoration("4"), now), "another client changes it continuously");
    assert!(memory.may_try(&restoration("4"), now + REST));
    // A version that has changed meanwhile does not count.
    let mut memory = WriteBackState::default();
    let outdated = Err(ApiError::from_status(409, "the object has been modified", None));
    assert!(!memory.note(restoration("1"), &outdated, now));
    memory.report(&restoration("1"), &outdated);
    assert!(memory.may_try(&restoration("2"), now) && memory.report.conflicts.is_empty());
}

#[test]
fn conflict_with_the_own_name_is_told_from_conflicts_with_other_managers() {
    for (message, expected) in [
        ("Apply failed with 1 conflict: conflict with \"strait\" using v1: .spec.ports", true),
        ("Apply failed with 1 conflict: conflict with \"kubectl-edit\": .spec.ports", false),
        (
            "Apply failed with 2 conflicts: conflicts with \"kubectl-edit\":\n- .spec.ports\n\
             conflicts with \"strait\" using v1:\n- .spec.type",
            false,
        ),
        ("the object has been modified", false),
    ] {
        let error = ApiError::from_status(409, message, None);
        assert_eq!(is_conflict_with_us(&error), expected, "{message}");
    }
}
