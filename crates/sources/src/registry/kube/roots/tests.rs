use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::judge::{RootsContent, RootsMap, classify, digest};
use super::state::{ClassifiedMap, MapEvent, RootsState, RootsStatus};
use strait_kube_client::{ApiError, NamespacedName, WatchEvent};
use strait_model::RootBundle;

/// Creates a root that is valid for this many seconds from now on, as PEM and DER.
fn root(name: &str, seconds: i64) -> (String, Vec<u8>) {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let end = SystemTime::now() + Duration::from_secs(3600);
    let end = if seconds < 0 { SystemTime::now() - Duration::from_secs(60) } else { end };
    params.not_before = (SystemTime::now() - Duration::from_secs(7200)).into();
    params.not_after = end.into();
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a root");
    (certificate.pem(), certificate.der().to_vec())
}

fn bundle(roots: &[&(String, Vec<u8>)]) -> RootBundle {
    let sorted: BTreeSet<_> = roots.iter().map(|(pem, der)| (der.clone(), pem.clone())).collect();
    let pem: String = sorted.iter().map(|(_, pem)| pem.as_str()).collect();
    RootBundle { pem: pem.into(), certificates: sorted.into_iter().map(|(der, _)| der).collect() }
}

#[test]
fn owner_of_the_roots_in_a_config_map_decides_whether_it_is_written() {
    let (a, b, foreign, ended) =
        (root("a", 1), root("b", 1), root("foreign", 1), root("ended", -1));
    let ours = bundle(&[&a, &b]);
    let now = SystemTime::now();
    let judged =
        |map, text: &str, written: Option<&str>| classify(map, Some(text), written, &ours, now);
    let usual = |text: &str| judged(RootsMap::Usual, text, None);
    assert_eq!(usual(&ours.pem), RootsContent::Ours);
    assert_eq!(usual(&format!("{}{}{}", foreign.0, b.0, a.0)), RootsContent::Ours, "contains ours");
    assert_eq!(usual(&foreign.0), RootsContent::Foreign);
    assert_eq!(
        usual(&format!("{}{}", foreign.0, a.0)),
        RootsContent::Foreign,
        "lacks one of Strait's roots"
    );
    for (text, why) in [
        ("", "empty"),
        ("no certificate", "nonsense"),
        (&*a.0, "a part of Strait's roots"),
        (&*ended.0, "an expired root"),
        (&*foreign.0.replace("MII", "AAA"), "garbage within PEM"),
    ] {
        assert_eq!(usual(text), RootsContent::Lacking, "{why}");
    }
    assert_eq!(
        classify(RootsMap::Usual, None, None, &ours, now),
        RootsContent::Lacking,
        "no such key"
    );
    // Text written by Strait is never foreign, even with a root that was withdrawn since.
    let before = format!("{}{}{}", a.0, b.0, foreign.0);
    assert_eq!(judged(RootsMap::Usual, &before, None), RootsContent::Ours);
    assert_eq!(judged(RootsMap::Usual, &before, Some(&digest(&before))), RootsContent::Lacking);
    let by_another = judged(RootsMap::Usual, &foreign.0, Some(&digest(&before)));
    assert_eq!(by_another, RootsContent::Foreign, "the annotation belongs to earlier content");
    assert_eq!(
        judged(RootsMap::Additional, &foreign.0, None),
        RootsContent::Lacking,
        "the name is reserved for Strait"
    );
}

fn namespaces(names: &[&str]) -> Option<Arc<BTreeSet<Arc<str>>>> {
    Some(Arc::new(names.iter().map(|name| Arc::from(*name)).collect()))
}

fn map(namespace: &str, content: RootsContent) -> ClassifiedMap {
    let key = NamespacedName { namespace: namespace.into(), name: "istio-ca-root-cert".into() };
    ClassifiedMap { key, content }
}

fn listed(maps: Vec<ClassifiedMap>) -> MapEvent {
    WatchEvent::Restarted { objects: maps, invalid: Vec::new() }
}

fn pending_writes(state: &RootsState, now: Instant) -> Vec<String> {
    let pending_writes = state.pending_writes(now);
    pending_writes.iter().map(|(namespace, map)| format!("{namespace}/{}", map.name())).collect()
}

#[test]
fn roots_are_written_only_into_namespaces_that_lack_them() {
    let now = Instant::now();
    let mut state = RootsState::default();
    state.namespaces(namespaces(&["kube-node-lease", "kube-public", "kube-system", "pay", "shop"]));
    assert!(pending_writes(&state, now).is_empty(), "the existing ConfigMaps are not known yet");
    let maps = vec![map("pay", RootsContent::Ours), map("gone", RootsContent::Lacking)];
    state.take(RootsMap::Usual, listed(maps), now);
    assert_eq!(
        pending_writes(&state, now),
        ["kube-system/istio-ca-root-cert", "shop/istio-ca-root-cert"]
    );
    state.written(&"kube-system".into(), RootsMap::Usual, RootsContent::Ours);
    state.take(RootsMap::Usual, WatchEvent::Applied(map("shop", RootsContent::Ours)), now);
    assert!(pending_writes(&state, now).is_empty());
    state.namespaces(namespaces(&["kube-system", "new", "pay", "shop"]));
    assert_eq!(pending_writes(&state, now), ["new/istio-ca-root-cert"]);
    let status = state.status(now);
    assert_eq!((status.namespaces, status.current, status.foreign), (4, 3, 0));
}

#[test]
fn another_writers_roots_stay_and_ours_are_in_the_second_config_map() {
    let now = Instant::now();
    let mut state = RootsState::default();
    state.namespaces(namespaces(&["pay", "shop"]));
    let maps = vec![map("pay", RootsContent::Ours), map("shop", RootsContent::Foreign)];
    state.take(RootsMap::Usual, listed(maps), now);
    assert!(state.needs_additional(now));
    assert!(
        pending_writes(&state, now).is_empty(),
        "the ConfigMaps of the second name are not known yet"
    );
    state.take(RootsMap::Additional, listed(vec![]), now);
    assert_eq!(pending_writes(&state, now), ["shop/strait-ca-root-cert"]);
    state.written(&"shop".into(), RootsMap::Additional, RootsContent::Ours);
    let expected = RootsStatus {
        namespaces: 2,
        current: 1,
        foreign: 1,
        foreign_first: vec!["shop".to_owned()],
        beside: 1,
        denied: None,
        trust_bundle: None,
    };
    assert_eq!(state.status(now), expected);
    // An existing one is updated even after the other writer's roots are gone: pods may mount it.
    state.take(RootsMap::Usual, WatchEvent::Applied(map("shop", RootsContent::Ours)), now);
    state.take(RootsMap::Additional, WatchEvent::Applied(map("shop", RootsContent::Lacking)), now);
    assert_eq!(pending_writes(&state, now), ["shop/strait-ca-root-cert"]);
}

#[test]
fn repeatedly_reverted_write_is_paused() {
    let now = Instant::now();
    let mut state = RootsState::default();
    state.namespaces(namespaces(&["shop"]));
    state.take(RootsMap::Usual, listed(vec![map("shop", RootsContent::Ours)]), now);
    state.take(RootsMap::Additional, listed(vec![]), now);
    let key = map("shop", RootsContent::Ours).key;
    for round in 0..3 {
        state.take(RootsMap::Usual, WatchEvent::Deleted(key.clone()), now);
        let expected =
            if round < 2 { "shop/istio-ca-root-cert" } else { "shop/strait-ca-root-cert" };
        assert_eq!(pending_writes(&state, now), [expected], "round {round}");
        state.written(&"shop".into(), RootsMap::Usual, RootsContent::Ours);
    }
    state.take(RootsMap::Usual, WatchEvent::Deleted(key), now);
    assert_eq!(state.status(now).foreign, 1);
    let later = now + Duration::from_secs(600);
    assert_eq!(pending_writes(&state, later), ["shop/istio-ca-root-cert"]);
}

#[test]
fn missing_permission_is_reported_until_it_is_granted() {
    let now = Instant::now();
    let mut state = RootsState::default();
    state.namespaces(namespaces(&["shop"]));
    let denied = ApiError::from_status(403, "configmaps is forbidden", None);
    state.take(RootsMap::Usual, WatchEvent::Failed(denied), now);
    assert_eq!(state.status(now).denied.as_deref(), Some("configmaps is forbidden"));
    assert!(pending_writes(&state, now).is_empty());
    state.take(RootsMap::Usual, listed(vec![]), now);
    assert_eq!(state.status(now).denied, None);
    state.denied("cannot create".to_owned());
    assert_eq!(state.status(now).denied.as_deref(), Some("cannot create"));
    state.written(&"shop".into(), RootsMap::Usual, RootsContent::Ours);
    assert_eq!(state.status(now).denied, None);
}
