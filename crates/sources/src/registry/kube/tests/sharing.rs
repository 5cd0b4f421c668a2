//! Tests of the statements about sharing a service that follow from labels and the mesh config.

use std::sync::Arc;

use serde_json::{Value, json};

use super::values::{Arrives, apply, index};
use crate::registry::kube::index::KubeIndex;
use strait_model::mesh_config::{Defaults, MeshConfig, ServiceScopes};
use strait_model::{Mcs, SharingFacts};

fn cart(labels: Value) -> Arrives {
    Arrives::Service(json!({
        "metadata": {"namespace": "shop", "name": "cart", "labels": labels},
        "spec": {"clusterIP": "172.16.0.1", "ports": [{"port": 80}]},
    }))
}

fn shop(labels: Value) -> Arrives {
    Arrives::Namespace(json!({"metadata": {"name": "shop", "labels": labels}}))
}

/// Applies a change and returns the statements that are reported, if the service is.
fn reported(index: &mut KubeIndex, arrives: Arrives) -> Option<SharingFacts> {
    let touched = apply(index, arrives);
    let contents = index.contents(&touched).unwrap_or_default();
    let record = contents.services.into_values().next()?;
    record.map(|record| record.service.sharing)
}

fn scopes(text: &str) -> Arc<ServiceScopes> {
    MeshConfig::parse(text, &Defaults::default()).expect("a mesh config").service_scopes
}

#[test]
fn labels_of_service_and_namespace_are_reported_as_they_change() {
    let mut index = index();
    let none = SharingFacts::default();
    assert_eq!(reported(&mut index, cart(json!({}))), Some(none));
    let label = SharingFacts { label: Some(false), ..none };
    assert_eq!(reported(&mut index, cart(json!({"strait.dev/share": "false"}))), Some(label));
    let both = SharingFacts { namespace_label: Some(true), ..label };
    assert_eq!(reported(&mut index, shop(json!({"strait.dev/share": "true"}))), Some(both));
    let global = json!({"strait.dev/share": "true", "istio.io/global": "true"});
    let all = SharingFacts { label: Some(true), istio_label: Some(true), ..both };
    assert_eq!(reported(&mut index, cart(global)), Some(all));
    assert_eq!(
        reported(&mut index, cart(json!({"app": "cart"}))),
        Some(SharingFacts { label: None, istio_label: None, ..both })
    );
    assert_eq!(reported(&mut index, cart(json!({"app": "other"}))), None, "no statement");
    assert_eq!(reported(&mut index, shop(json!({}))), Some(none));
    assert_eq!(index.skipped().count, 0);
}

#[test]
fn other_values_of_the_label_are_ignored_with_a_reason() {
    for (at, arrives) in
        [cart(json!({"strait.dev/share": "yes"})), shop(json!({"strait.dev/share": "yes"}))]
            .into_iter()
            .enumerate()
    {
        let mut index = index();
        reported(&mut index, cart(json!({})));
        reported(&mut index, arrives);
        let everything = index.everything();
        let record = everything.services.into_values().next().flatten().expect("the service");
        assert_eq!(record.service.sharing, SharingFacts::default(), "{at}");
        let skipped = index.skipped();
        assert_eq!(skipped.count, 1);
        let reason = skipped.last.expect("a reason");
        assert!(reason.contains("strait.dev/share") && reason.contains("\"yes\""), "{reason}");
        reported(&mut index, cart(json!({"strait.dev/share": "true"})));
        reported(&mut index, shop(json!({"strait.dev/share": "true"})));
        assert_eq!(index.skipped().count, 0, "{at}");
    }
}

#[test]
fn headless_annotation_has_one_value_and_needs_a_headless_service() {
    let db = |cluster_ip: &str, annotations: Value| {
        Arrives::Service(json!({
            "metadata": {"namespace": "shop", "name": "db", "annotations": annotations},
            "spec": {"clusterIP": cluster_ip, "ports": [{"port": 80}]},
        }))
    };
    let valid = json!({"strait.dev/headless": "everywhere"});
    let other = json!({"strait.dev/headless": "Everywhere"});
    let mut index = index();
    for (cluster_ip, annotations, everywhere, reason) in [
        ("None", valid.clone(), true, None),
        (
            "None",
            other,
            false,
            Some("\"Everywhere\" is ignored, because the only value is everywhere"),
        ),
        ("172.16.0.1", valid, false, Some("because the Service has a cluster IP")),
        ("None", json!({}), false, None),
    ] {
        apply(&mut index, db(cluster_ip, annotations));
        let services = index.everything().services;
        let record = services.into_values().next().flatten().expect("the service");
        assert_eq!(record.service.named_pods.everywhere, everywhere, "{reason:?}");
        let skipped = index.skipped();
        assert_eq!(skipped.count, u64::from(reason.is_some()), "{reason:?}");
        let last = skipped.last.unwrap_or_default();
        assert!(last.contains(reason.unwrap_or_default()), "{last}");
    }
}

#[test]
fn service_scopes_follow_the_mesh_config_and_all_labels() {
    let mut index = index();
    reported(&mut index, shop(json!({"team": "a"})));
    reported(&mut index, cart(json!({"tier": "edge"})));
    index.everything();
    let mut select = |text: &str| {
        let touched = index.select_global(scopes(text));
        let contents = index.contents(&touched).unwrap_or_default();
        contents.services.into_values().next().flatten().map(|record| record.service.sharing.scope)
    };
    let by = |namespace: &str, service: &str| {
        format!(
            "serviceScopeConfigs: [{{namespaceSelector: {{matchLabels: {{team: {namespace}}}}}, \
             servicesSelector: {{matchLabels: {{tier: {service}}}}}, scope: GLOBAL}}]"
        )
    };
    assert_eq!(select(&by("a", "edge")), Some(Some(true)));
    assert_eq!(select(&by("a", "edge")), None, "unchanged");
    assert_eq!(select(&by("b", "edge")), Some(Some(false)));
    assert_eq!(select(""), Some(None));
    assert_eq!(select(&by("b", "edge")), Some(Some(false)));
    let scope = |facts: Option<SharingFacts>| facts.map(|facts| facts.scope);
    assert_eq!(scope(reported(&mut index, shop(json!({"team": "b"})))), Some(Some(true)));
    assert_eq!(scope(reported(&mut index, cart(json!({"tier": "core"})))), Some(Some(false)));
}

#[test]
fn exports_are_a_statement_if_they_decide_alone() {
    for (mode, export) in
        [(Mcs::Off, None), (Mcs::Exports, Some(false)), (Mcs::Strict, Some(false))]
    {
        let mut index = index().sharing(mode);
        let facts = reported(&mut index, cart(json!({"strait.dev/share": "true"})));
        let expected = SharingFacts { export, label: Some(true), ..SharingFacts::default() };
        assert_eq!(facts, Some(expected), "{mode:?}");
    }
}
