use serde_json::{Value, json};

use super::*;
use crate::testing::kind_settings;
use strait_model::GATEWAY_API;

fn route(
    created: i64,
    namespace: &str,
    name: &str,
    parent: &str,
    rules: &str,
) -> Arc<GatewayRoute> {
    let settings = kind_settings();
    let rules: Value = serde_saphyr::from_str(rules).expect("the text is YAML");
    let parents = json!([{ "group": "", "kind": "Service", "name": "web", "namespace": parent }]);
    let object = json!({ "spec": { "parentRefs": parents, "rules": rules } });
    let meta = ObjectMeta { created, name: name.into(), namespace: namespace.into() };
    Arc::new(
        GatewayRoute::read("HTTPRoute", meta, &object, &settings).expect("it fits its schema").0,
    )
}

/// Returns the first destination of each rule, prefixed with `!` if it is not allowed.
fn first_destinations(service: &VirtualService) -> Vec<String> {
    let first = |rule: &HttpRule| {
        let to = rule.destinations.first()?;
        let name = to.host.as_str().split('.').next()?;
        Some(format!("{}{name}", if to.invalid { "!" } else { "" }))
    };
    service.http.iter().filter_map(first).collect()
}

fn backend(name: &str) -> String {
    format!("backendRefs: [{{name: {name}, port: 80}}]")
}

#[test]
fn most_specific_match_takes_precedence_then_the_oldest_route() {
    let mut objects = GatewayRouteObjects::default();
    let rules = |names: [&str; 6]| {
        let [prefix, exact, header, long, all, method] = names.map(backend);
        format!(
            "[{{matches: [{{path: {{value: /a}}}}], {prefix}}}, {{matches: [{{path: {{type: Exact, value: /a}}}}], {exact}}},
              {{matches: [{{path: {{value: /a}}, headers: [{{name: x, value: y1}}]}}], {header}}}, {{matches: [{{path: {{value: /abc}}}}], {long}}},
              {{{all}}}, {{matches: [{{path: {{value: /a}}, method: GET}}], {method}}}]"
        )
    };
    objects.insert(&route(
        5,
        "shop",
        "young",
        "shop",
        &rules(["p2", "e2", "h2", "l2", "a2", "m2"]),
    ));
    objects.insert(&route(1, "shop", "old", "shop", &rules(["p1", "e1", "h1", "l1", "a1", "m1"])));
    let exchanges = objects.take_exchanges("cluster.local");
    let [(None, Some(joined))] = &exchanges[..] else { panic!("{exchanges:?}") };
    let expected = ["e1", "e2", "l1", "l2", "m1", "m2", "h1", "h2", "p1", "p2", "a1", "a2"];
    assert_eq!(first_destinations(joined), expected);
    assert_eq!(joined.meta.created, 1, "it is as old as its oldest route");
    assert!(objects.take_exchanges("cluster.local").is_empty());
}

#[test]
fn route_of_another_namespace_applies_to_its_clients() {
    let mut objects = GatewayRouteObjects::default();
    objects.insert(&route(0, "shop", "producer", "shop", &format!("[{{{}}}]", backend("web"))));
    let consumer = route(0, "client", "consumer", "shop", &format!("[{{{}}}]", backend("own")));
    objects.insert(&consumer);
    let export_to = |exchanges: &[Exchange]| -> Vec<ExportTo> {
        exchanges.iter().filter_map(|one| Some(one.1.as_ref()?.export_to.clone())).collect()
    };
    let exchanges = objects.take_exchanges("cluster.local");
    assert_eq!(
        export_to(&exchanges),
        [ExportTo::Public, ExportTo::Namespaces(vec!["client".into()])]
    );
    objects.remove(&consumer);
    let exchanges = objects.take_exchanges("cluster.local");
    assert!(matches!(&exchanges[..], [(Some(_), None)]), "{exchanges:?}");
}

#[test]
fn backend_in_another_namespace_needs_a_grant() {
    let mut objects = GatewayRouteObjects::default();
    let rules = "[{backendRefs: [{name: api, namespace: ops, port: 80}]}]";
    objects.insert(&route(0, "shop", "web", "shop", rules));
    let now = |objects: &mut GatewayRouteObjects| {
        let exchanges = objects.take_exchanges("cluster.local");
        exchanges
            .iter()
            .filter_map(|one| one.1.as_deref().map(first_destinations))
            .collect::<Vec<_>>()
    };
    assert_eq!(now(&mut objects), [["!api"]]);
    let meta = ObjectMeta { created: 0, name: "g".into(), namespace: "ops".into() };
    let spec = json!({ "spec": {
        "from": [{ "group": GATEWAY_API, "kind": "HTTPRoute", "namespace": "shop" }],
        "to": [{ "group": "", "kind": "Service" }],
    }});
    let grant = Arc::new(ReferenceGrant::read(meta, &spec).expect("it fits its schema"));
    objects.insert_grant(&grant);
    assert_eq!(now(&mut objects), [["api"]]);
    objects.remove_grant(&grant);
    assert_eq!(now(&mut objects), [["!api"]]);
}

#[test]
fn services_of_a_namespace_with_a_route_are_distinguished_by_address() {
    let mut objects = GatewayRouteObjects::default();
    let producer = route(0, "shop", "producer", "shop", &format!("[{{{}}}]", backend("web")));
    let consumer = route(0, "client", "consumer", "ops", &format!("[{{{}}}]", backend("own")));
    objects.insert(&producer);
    objects.insert(&consumer);
    let by_address = |objects: &mut GatewayRouteObjects| {
        objects.take_exchanges("cluster.local");
        let addressed = objects.addressed("cluster.local");
        let pairs = [("shop", "client"), ("shop", "any"), ("ops", "client"), ("ops", "any")];
        pairs.map(|(namespace, clients)| addressed.contains(&namespace.into(), &clients.into()))
    };
    assert_eq!(by_address(&mut objects), [true, true, true, false]);
    objects.remove(&producer);
    assert_eq!(by_address(&mut objects), [false, false, true, false]);
    objects.remove(&consumer);
    assert_eq!(by_address(&mut objects), [false; 4]);
}
