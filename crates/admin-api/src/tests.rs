use serde_json::{Value, json};

use super::*;

/// Reads a response.
fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a response")
}

#[test]
fn field_of_a_newer_server_is_ignored() {
    let cluster: Cluster = read(json!({ "id": "east", "state": "live", "colour": { "hue": 1 } }));
    assert_eq!((cluster.id.as_str(), cluster.state), ("east", ClusterState::Live));
}

#[test]
fn field_that_an_older_server_lacks_has_its_default() {
    let cluster: Cluster = read(json!({ "id": "east" }));
    assert_eq!(cluster.state, ClusterState::Other(String::new()));
    assert_eq!((cluster.endpoints, cluster.roots, cluster.mode), (0, None, None));
    assert_eq!(read::<Push>(json!({})), Push::default());
}

#[test]
fn unknown_value_of_an_enumeration_is_kept_as_text() {
    let cluster: Cluster = read(json!({ "id": "east", "state": "hibernating" }));
    assert_eq!(cluster.state, ClusterState::Other("hibernating".to_owned()));
    assert_eq!(json!(cluster)["state"], "hibernating");
}

#[test]
fn optional_fields_without_a_value_are_absent_or_null() {
    let gateway = json!(NetworkGateway { address: "10.0.0.1".to_owned(), ..Default::default() });
    let expected = json!({
        "address": "10.0.0.1", "cluster": "", "hbonePort": 0, "port": 0, "source": "",
    });
    assert_eq!(gateway, expected);
    let export = json!(ServiceExport::default());
    assert_eq!((&export["name"], export.get("reason")), (&Value::Null, None));
}

/// The server sorts the fields of these responses by name, so that merged responses of several
/// replicas and the response of one replica have the same order.
#[test]
fn fields_are_sorted_by_name() {
    fn names<T: serde::Serialize>(value: &T) -> Vec<String> {
        let text = serde_json::to_string(value).expect("JSON");
        let mut depth = 0;
        let mut names = Vec::new();
        let mut parts = text.split('"');
        while let Some(outside) = parts.next() {
            depth += outside.matches(['{', '[']).count();
            depth -= outside.matches(['}', ']']).count();
            let Some(inside) = parts.next() else { break };
            if depth == 1 && parts.clone().next().is_some_and(|next| next.starts_with(':')) {
                names.push(inside.to_owned());
            }
        }
        names
    }
    fn check<T: serde::Serialize>(value: &T) {
        let names = names(value);
        assert!(names.len() > 1 && names.is_sorted(), "{names:?}");
    }
    check(&CertificateStatus::default());
    check(&ChangeEvent {
        missing_replicas: vec![String::new()],
        refusals: Some(Vec::new()),
        replica: Some(String::new()),
        replicas: vec![String::new()],
        steps: Some(Vec::new()),
        ..Default::default()
    });
    check(&HoldStatus::default());
    check(&HeldConfiguration::default());
    check(&Network { pending: vec![PendingGateway::default()], ..Default::default() });
    check(&NetworkGateway {
        dead: true,
        hostname: Some(String::new()),
        ttl_seconds: Some(1),
        ..Default::default()
    });
    check(&Policy::default());
    check(&Proxy {
        interception: Some(String::new()),
        missing_patches: vec![String::new()],
        replica: Some(String::new()),
        secrets: vec![ProxySecret::default()],
        virtual_hosts: Some(VirtualHostSubscription::default()),
        ..Default::default()
    });
    check(&Push::default());
    check(&Rollout::default());
    check(&RunningRollout::default());
    check(&ServiceEndpoint::default());
    check(&ServiceExport { reason: Some(String::new()), ..Default::default() });
    check(&ServiceImport::default());
    check(&Summary { missing_replicas: vec![String::new()], ..Default::default() });
}
