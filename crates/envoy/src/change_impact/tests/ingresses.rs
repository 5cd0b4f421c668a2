//! Ingresses and IngressClasses for random histories.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::pick;

/// Returns an Ingress with rules for a host and path, with either class or without a class. Some
/// have TLS or a default backend.
pub(super) fn some_ingress(random: &mut StdRng) -> Value {
    let port = |random: &mut StdRng| {
        pick(random, &[(Some(80), None), (Some(8080), None), (None, Some("http"))])
    };
    let backend = |random: &mut StdRng| {
        let (number, name) = port(random);
        let port = match (number, name) {
            (Some(number), _) => json!({ "number": number }),
            (None, name) => json!({ "name": name }),
        };
        json!({ "service": { "name": pick(random, &["a", "b", "c"]), "port": port } })
    };
    let path = json!({
        "pathType": pick(random, &["Prefix", "Exact"]),
        "path": pick(random, &["/", "/a", "/a/b"]),
        "backend": backend(random),
    });
    let host = pick(random, &["", "x.example", "*.example"]);
    let mut spec = json!({ "rules": [{ "host": host, "http": { "paths": [path] } }] });
    if let Some(class) = pick(random, &[Some("one"), Some("one"), Some("two"), None]) {
        spec["ingressClassName"] = class.into();
    }
    if random.random_ratio(1, 2) {
        let hosts = pick(random, &["x.example", "*.example"]);
        let secret = pick(random, &["a", "b"]);
        spec["tls"] = json!([{ "hosts": [hosts], "secretName": secret }]);
    }
    if random.random_ratio(1, 3) {
        spec["defaultBackend"] = backend(random);
    }
    spec
}

/// Returns an IngressClass of the mesh or of another controller.
pub(super) fn some_class(random: &mut StdRng) -> Value {
    let own = strait_rules::traffic::ingress::INGRESS_CONTROLLER;
    json!({ "controller": pick(random, &[own, own, "example.com/other"]) })
}
