//! The table of configuration kinds ([`CONFIG_KINDS`]) and what is written in other languages: the
//! rights and the webhook of the chart, and the simulated API servers.

use std::collections::BTreeSet;

use serde_json::Value;

use strait_model::{CONFIG_KINDS, ConfigKind, StatusField};
use strait_sim::RESOURCES;

/// API group and plural name, with `/status` for the status alone.
type Resource = (String, String);

/// Returns the objects of the chart with all values set that add objects.
fn chart() -> Vec<Value> {
    let text = include_str!("../charts/golden/strait.everything.yaml");
    serde_saphyr::from_multiple(text).expect("a rendered chart")
}

/// Returns the resources of rules that contain this verb or operation.
fn resources(rules: &Value, list: &str, verb: &str) -> BTreeSet<Resource> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let items = rule[field].as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let rules = rules.as_array().expect("rules").iter();
    let granting = rules.filter(|rule| texts(rule, list).iter().any(|one| one == verb));
    let pairs = granting.flat_map(|rule| {
        let resources = texts(rule, "resources");
        let of_group =
            move |group: String| resources.clone().into_iter().map(move |one| (group.clone(), one));
        texts(rule, "apiGroups").into_iter().flat_map(of_group)
    });
    pairs.collect()
}

/// Returns the resources of the kinds that `of` selects, each with this ending.
fn expected(ending: &str, of: impl Fn(&ConfigKind) -> bool) -> BTreeSet<Resource> {
    let selected = CONFIG_KINDS.iter().filter(|one| of(one));
    selected.map(|one| (one.group.to_owned(), format!("{}{ending}", one.plural))).collect()
}

/// Returns the resources in the API groups of the table.
fn of_config_groups(all: BTreeSet<Resource>) -> BTreeSet<Resource> {
    let groups: BTreeSet<_> = CONFIG_KINDS.iter().map(|one| one.group).collect();
    all.into_iter().filter(|(group, _)| groups.contains(&**group)).collect()
}

#[test]
fn chart_grants_reading_every_kind_and_writing_every_status() {
    let chart = chart();
    let is_role = |object: &&Value| {
        object["kind"] == "ClusterRole"
            && resources(&object["rules"], "verbs", "list")
                .contains(&("networking.istio.io".to_owned(), "virtualservices".to_owned()))
    };
    let roles: Vec<_> = chart.iter().filter(is_role).collect();
    let [role] = &*roles else { panic!("one role reads VirtualServices: {roles:?}") };
    for verb in ["get", "list", "watch"] {
        let mut found = of_config_groups(resources(&role["rules"], "verbs", verb));
        // Read as gateways of networks, not as configuration.
        let gateways = ("gateway.networking.k8s.io".to_owned(), "gateways".to_owned());
        assert!(found.remove(&gateways));
        assert_eq!(found, expected("", |_| true), "{verb}");
    }
    let patched = of_config_groups(resources(&role["rules"], "verbs", "patch"));
    assert_eq!(patched, expected("/status", |one| one.status != StatusField::Unwritten));
}

/// An IngressClass has no field that could be invalid.
#[test]
fn webhook_of_the_chart_checks_every_kind_in_namespaces() {
    let chart = chart();
    let webhooks = chart.iter().filter(|one| one["kind"] == "ValidatingWebhookConfiguration");
    let rules: Vec<_> = webhooks.map(|one| &one["webhooks"][0]["rules"]).collect();
    let [rules] = &*rules else { panic!("one webhook validates: {rules:?}") };
    for operation in ["CREATE", "UPDATE"] {
        let found = resources(rules, "operations", operation);
        assert_eq!(found, expected("", |one| one.namespaced), "{operation}");
    }
}

#[test]
fn simulated_api_servers_have_every_kind() {
    for kind in CONFIG_KINDS {
        let is_row = |row: &&strait_sim::Resource| (row.group, row.kind) == (kind.group, kind.kind);
        let row = RESOURCES.iter().find(is_row).unwrap_or_else(|| panic!("{kind:?}"));
        assert_eq!((row.plural, row.namespaced), (kind.plural, kind.namespaced), "{kind:?}");
        assert!(row.versions.iter().any(|one| kind.versions.contains(one)), "{kind:?}");
    }
}
