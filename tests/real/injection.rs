//! The injection webhook, called by a real API server: injected pods, rejected pods, and new pods
//! while the webhook is down.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::apiserver::{Apiserver, Settings};
use crate::certs::Authority;
use crate::host::Host;
use crate::kube::{Request, istio_kind, namespace};
use crate::netns::Netns;
use crate::strait::Strait;
use crate::wait;
use strait_injection::webhook::{WebhookRegistration, WebhookTarget, WhenAway};

const LIMIT: Duration = Duration::from_secs(60);
const ADDRESS: &str = "127.0.0.1:15017";

/// Registers the webhook with the API server, and waits until it is called.
fn register(apiserver: &Apiserver, roots: &str, when_away: WhenAway) {
    let registration = WebhookRegistration {
        cluster: "east",
        network: Some("n1"),
        target: WebhookTarget::Url(format!("https://{ADDRESS}")),
        roots,
        when_away,
        istio_labels: true,
    };
    apiserver.apply(&[registration.manifest()]);
}

/// Creates a pod and returns the stored object.
fn create(
    apiserver: &Apiserver,
    namespace: &str,
    name: &str,
    more: &Value,
) -> Result<Value, String> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace },
        "spec": {
            // Normally the API server sets it before it calls webhooks.
            "serviceAccountName": "default",
            "containers": [{
                "name": "app", "image": "app", "ports": [{ "name": "http", "containerPort": 8080 }],
                "readinessProbe": { "httpGet": { "port": "http", "path": "/ready" } },
            }],
            "initContainers": [{ "name": "migrate", "image": "migrate" }],
        },
    });
    for part in ["metadata", "spec"] {
        if let (Some(fields), Some(more)) = (pod[part].as_object_mut(), more[part].as_object()) {
            fields.extend(more.clone());
        }
    }
    let collection = format!("/api/v1/namespaces/{namespace}/pods");
    let post = Request {
        method: "POST".into(),
        path: collection.clone(),
        content_type: Some("application/json".into()),
        body: Some(pod),
    };
    let answers = apiserver.try_requests(&[post, Request::get(&format!("{collection}/{name}"))])?;
    answers.into_iter().nth(1).ok_or_else(|| "no second answer".to_owned())
}

fn containers(pod: &Value, kind: &str) -> Vec<String> {
    let all = pod["spec"][kind].as_array().into_iter().flatten();
    all.filter_map(|one| one["name"].as_str()).map(str::to_owned).collect()
}

pub(crate) fn run(host: &Host) {
    let hub = Rc::new(Netns::create("inject"));
    let authority = Authority::create(&host.subfolder("inject-ca"), "injection");
    let settings = Settings {
        cluster: "inject",
        address: "127.0.0.1",
        port: 6443,
        service_cidr: "10.96.0.0/16",
    };
    let mut apiserver = Apiserver::start(host, &hub, &authority, &settings);
    let config = host.subfolder("inject-config");
    let arguments = [
        ("--config-dir", config.to_str().expect("UTF-8")),
        ("--ca-dir", authority.folder().to_str().expect("UTF-8")),
        ("--xds-address", "127.0.0.1:0"),
        ("--admin-address", "127.0.0.1:0"),
        ("--inject-address", ADDRESS),
        ("--istio-labels", ""),
    ];
    let arguments = arguments.iter().flat_map(|(flag, value)| [*flag, *value]);
    let arguments = arguments.filter(|one| !one.is_empty()).map(str::to_owned).collect();
    let mut strait = Strait::start(host, &hub, arguments);
    strait.wait_until_ready();
    apiserver.wait_until_ready();
    apiserver.apply(&[
        namespace("shop", json!({ "strait.dev/inject": "enabled" })),
        namespace("old", json!({ "istio-injection": "enabled" })),
        namespace("other", json!({})),
    ]);
    register(&apiserver, authority.pem(), WhenAway::Fail);

    // An API server reads its webhooks periodically.
    let mut tries = 0;
    let injected = wait::until(LIMIT, "the API server calls the webhook", || {
        tries += 1;
        let pod = create(&apiserver, "shop", &format!("web-{tries}"), &json!({}))?;
        match pod["metadata"]["annotations"]["strait.dev/injected"].as_str() {
            Some(_) => Ok(pod),
            None => Err(pod["metadata"].to_string()),
        }
    });
    assert_eq!(
        containers(&injected, "initContainers"),
        ["strait-redirect", "strait-proxy", "migrate"],
        "{injected}"
    );
    assert_eq!(injected["spec"]["initContainers"][1]["restartPolicy"], "Always");
    assert_eq!(injected["metadata"]["labels"]["security.istio.io/tlsMode"], "istio");
    let probe = &injected["spec"]["containers"][0]["readinessProbe"]["httpGet"];
    assert_eq!((&probe["path"], &probe["port"]), (&json!("/app-health/app/readyz"), &json!(15020)));

    let labels = |key: &str, value: &str| json!({ "metadata": { "labels": { key: value } } });
    let sidecars = |namespace: &str, name: &str, more: &Value| {
        let pod = create(&apiserver, namespace, name, more).expect("it is made");
        containers(&pod, "initContainers").contains(&"strait-proxy".to_owned())
    };
    assert!(sidecars("old", "by-istios-label", &json!({})));
    assert!(sidecars("other", "that-asks", &labels("strait.dev/inject", "true")));
    assert!(!sidecars("other", "that-does-not", &json!({})));
    assert!(!sidecars("shop", "that-declines", &labels("strait.dev/inject", "false")));
    let on_host = json!({ "spec": { "hostNetwork": true } });
    assert!(!sidecars("shop", "on-host", &on_host));

    let unfit = json!({ "spec": { "securityContext": { "runAsUser": 1337 } } });
    let refused =
        create(&apiserver, "shop", "unfit", &unfit).expect_err("it would bypass the mesh");
    assert!(refused.contains("STR0901") && refused.contains("denied the request"), "{refused}");

    invalid_objects_are_rejected_before_they_are_stored(&apiserver, &authority);

    strait.kill();
    let failed =
        create(&apiserver, "shop", "away-fail", &json!({})).expect_err("no webhook responds");
    assert!(failed.contains("inject.strait.dev"), "{failed}");
    assert!(
        !sidecars("other", "away-elsewhere", &json!({})),
        "a pod without the injection label is created"
    );
    register(&apiserver, authority.pem(), WhenAway::Ignore);
    let mut tries = 0;
    let made = wait::until(LIMIT, "pods are created without the webhook", || {
        tries += 1;
        create(&apiserver, "shop", &format!("away-ignore-{tries}"), &json!({}))
    });
    assert_eq!(containers(&made, "initContainers"), ["migrate"]);

    // After the restart, pods receive sidecars again.
    strait.launch();
    strait.wait_until_ready();
    assert!(sidecars("shop", "back", &json!({})));
}

/// A broken VirtualService is rejected with the reason, and a valid one is stored.
fn invalid_objects_are_rejected_before_they_are_stored(
    apiserver: &Apiserver,
    authority: &Authority,
) {
    let group = "networking.istio.io";
    apiserver.apply(&[
        istio_kind(group, "VirtualService", "virtualservices"),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "strait-validate" },
            "webhooks": [{
                "name": "validate.strait.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {
                    "url": format!("https://{ADDRESS}/validate"), "caBundle": BASE64.encode(authority.pem()),
                },
                "failurePolicy": "Ignore",
                "rules": [{
                    "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["virtualservices"], "scope": "Namespaced",
                }],
            }],
        }),
    ]);
    let mut tries = 0;
    let mut store = |spec: Value| {
        tries += 1;
        let rules = json!({
            "apiVersion": format!("{group}/v1"), "kind": "VirtualService", "spec": spec,
            "metadata": { "name": format!("rules-{tries}"), "namespace": "other" },
        });
        let post = Request {
            method: "POST".into(),
            path: format!("/apis/{group}/v1/namespaces/other/virtualservices"),
            content_type: Some("application/json".into()),
            body: Some(rules),
        };
        apiserver.try_requests(&[post])
    };
    let refused = wait::until(LIMIT, "a broken VirtualService is refused", || {
        match store(json!({ "hosts": "web" })) {
            Err(refused) if refused.contains("denied the request") => Ok(refused),
            other => Err(format!("{other:?}")),
        }
    });
    for part in ["validate.strait.dev", "STR1001: spec.hosts: ", "strait help STR1001"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let route = json!([{ "destination": { "host": "web" } }]);
    store(json!({ "hosts": ["web"], "http": [{ "route": route }] })).expect("it is stored");
}
