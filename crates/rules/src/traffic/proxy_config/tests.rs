use serde_json::json;

use super::*;

#[test]
fn settings_that_no_pod_can_have_are_left_out_and_reported() {
    let meta = ObjectMeta { created: 0, name: "a".into(), namespace: "shop".into() };
    let spec = json!({
        "concurrency": -1,
        "image": { "imageType": "distroless" },
        "environmentVariables": { "OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "1A": "", "A B": "", "POD_NAME": "", "STRAIT_DOMAIN": "" },
    });
    let (defaults, reasons) =
        SidecarDefaults::read(meta, &json!({ "spec": spec })).expect("it fits its schema");
    let reported: Vec<_> = reasons.iter().map(|one| (one.code, &*one.path)).collect();
    let expected = [
        (&codes::TRAFFIC_UNSUPPORTED, "spec.image"),
        (&codes::TRAFFIC_VALUE, "spec.concurrency"),
        (&codes::TRAFFIC_VALUE, "spec.environmentVariables[1A]"),
        (&codes::TRAFFIC_VALUE, "spec.environmentVariables[A B]"),
        (&codes::TRAFFIC_VALUE, "spec.environmentVariables[POD_NAME]"),
        (&codes::TRAFFIC_VALUE, "spec.environmentVariables[STRAIT_DOMAIN]"),
    ];
    assert_eq!(reported, expected);
    assert_eq!(defaults.concurrency, None);
    assert_eq!(
        defaults.environment.keys().map(|name| &**name).collect::<Vec<_>>(),
        ["OTEL_RESOURCE_ATTRIBUTES"]
    );
}
