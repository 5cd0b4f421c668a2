use serde_json::json;

use super::*;
use crate::mesh::Defaults;
use crate::model::Labels;
use crate::traffic::selection::Selectors;

fn read(namespace: &str, name: &str, spec: Value) -> (Telemetry, Vec<Reason>) {
    let meta = ObjectMeta { created: 0, name: name.into(), namespace: namespace.into() };
    Telemetry::read(meta, &json!({"spec": spec})).expect("it fits the schema")
}

/// What a pod of `shop` with that label writes.
fn written(mesh: &str, objects: &[(&str, Value)], app: &str, end: CallEnd) -> Vec<String> {
    let mesh = MeshConfig::parse(mesh, &Defaults::default()).expect("a mesh config");
    let (mut all, mut selectors) = (Telemetries::default(), Selectors::default());
    let (mut changes, root) = (TrafficChanges::default(), "root".into());
    for (at, (namespace, spec)) in objects.iter().enumerate() {
        let (object, reasons) = read(namespace, &format!("t{at}"), spec.clone());
        assert_eq!(reasons, []);
        let into = ScopedInForce {
            selectors: &mut selectors,
            changes: &mut changes,
            root_namespace: &root,
        };
        all.insert(&Arc::new(object), into);
    }
    let labels: Labels = [("app".into(), app.into())].into_iter().collect();
    let namespace = "shop".into();
    let selection = selectors.selection(&namespace, &labels);
    let logs = all.logs(&mesh, (&namespace, &selection), end);
    let shown = |one: WrittenLog| match one.filter {
        Some(filter) => format!("{} where {filter}", one.log.path),
        None => one.log.path.clone(),
    };
    logs.into_iter().map(shown).collect()
}

#[test]
fn the_nearest_level_says_what_is_written() {
    use CallEnd::{Client, Server};
    const ON: &str = "accessLogFile: /dev/stderr";
    let envoy = || json!({"accessLogging": [{"providers": [{"name": "envoy"}]}]});
    let off = || json!({"accessLogging": [{"disabled": true}]});
    let errors = || json!({"accessLogging": [{"filter": {"expression": "response.code >= 400"}}]});
    let of_web = |mut spec: Value| {
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        spec
    };
    let servers_off =
        || json!({"accessLogging": [{"match": {"mode": "SERVER"}, "disabled": true}]});
    let unknown = || json!({"accessLogging": [{"providers": [{"name": "nobody"}]}]});
    let all = ["/dev/stderr"];
    let some = ["/dev/stderr where response.code >= 400"];
    for (mesh, objects, app, end, expected) in [
        ("", vec![], "web", Client, &[][..]),
        (ON, vec![], "web", Client, &all),
        ("", vec![("root", envoy())], "web", Server, &["/dev/stdout"]),
        // Without a name and a default nothing is meant.
        ("", vec![("root", errors())], "web", Server, &[]),
        (ON, vec![("root", off())], "web", Client, &[]),
        (ON, vec![("root", off()), ("shop", envoy())], "web", Client, &all),
        (ON, vec![("shop", errors())], "web", Client, &some),
        (ON, vec![("other", off())], "web", Client, &all),
        (ON, vec![("root", errors()), ("shop", of_web(off()))], "web", Client, &[]),
        (ON, vec![("root", errors()), ("shop", of_web(off()))], "db", Client, &some),
        (ON, vec![("shop", servers_off())], "web", Client, &all),
        (ON, vec![("shop", servers_off())], "web", Server, &[]),
        (ON, vec![("shop", unknown())], "web", Server, &[]),
        // The oldest of two.
        (ON, vec![("shop", off()), ("shop", envoy())], "web", Client, &[]),
    ] {
        let found = written(mesh, &objects, app, end);
        assert_eq!(found, expected, "{mesh} {objects:?} {app} {end:?}");
    }
}

#[test]
fn what_is_not_followed_is_told_and_a_bad_filter_costs_its_entry_alone() {
    let spec = json!({
        "tracing": [{}],
        "accessLogging": [{"filter": {"expression": "a &&"}}, {"disabled": true}],
    });
    let (object, reasons) = read("shop", "t", spec);
    let told: Vec<_> = reasons.iter().map(|one| (one.code, &*one.path)).collect();
    let bad = "spec.accessLogging[0].filter.expression";
    assert_eq!(told, [(&codes::TRAFFIC_UNSUPPORTED, "spec.tracing"), (&codes::TRAFFIC_VALUE, bad)]);
    assert_eq!(object.logging.len(), 1);
    let meta = ObjectMeta { created: 0, name: "t".into(), namespace: "shop".into() };
    let targeted = json!({"spec": {"targetRefs": [{"kind": "Service", "name": "web"}]}});
    let refused = Telemetry::read(meta, &targeted).expect_err("it is for others than all");
    assert_eq!(refused.path, "spec.targetRefs");
}
