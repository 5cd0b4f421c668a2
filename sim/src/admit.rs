//! Changes that a real server makes to an accepted object: defaults, allocated addresses, and the
//! separation of an object and its status.

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::store::text;

/// Returns the current time in the format of Kubernetes.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets the defaults of kinds that clients read. `cluster_ip` allocates an address for a Service.
pub(crate) fn fill_in(
    resource: &Resource,
    object: &mut Value,
    cluster_ip: impl FnOnce() -> String,
) {
    match (resource.group, resource.plural) {
        ("", "namespaces") => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            default(object, "spec", "finalizers", || json!(["kubernetes"]));
            default(object, "status", "phase", || json!("Active"));
        }
        ("", "pods") => default(object, "status", "phase", || json!("Pending")),
        ("", "secrets") => fill_in_secret(object),
        ("", "services") => fill_in_service(object, cluster_ip),
        _ => {}
    }
}

fn fill_in_secret(secret: &mut Value) {
    use base64::Engine;
    if let Some(Value::Object(plain)) = secret.as_object_mut().and_then(|s| s.remove("stringData"))
    {
        for (key, value) in plain {
            let value = value.as_str().unwrap_or_default();
            let encoded = base64::engine::general_purpose::STANDARD.encode(value);
            secret["data"][key] = json!(encoded);
        }
    }
    if secret["type"].is_null() {
        secret["type"] = json!("Opaque");
    }
}

fn fill_in_service(service: &mut Value, cluster_ip: impl FnOnce() -> String) {
    default(service, "status", "loadBalancer", || json!({}));
    default(service, "spec", "type", || json!("ClusterIP"));
    default(service, "spec", "sessionAffinity", || json!("None"));
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["protocol"].is_null() {
            port["protocol"] = json!("TCP");
        }
        if port["targetPort"].is_null() {
            port["targetPort"] = port["port"].clone();
        }
    }
    if service["spec"]["type"] == "ExternalName" {
        return;
    }
    if text(service, "/spec/clusterIP").is_none() {
        service["spec"]["clusterIP"] = json!(cluster_ip());
    }
    if service["spec"]["clusterIPs"].is_null() {
        service["spec"]["clusterIPs"] = json!([service["spec"]["clusterIP"]]);
    }
}

fn default(object: &mut Value, part: &str, field: &str, value: impl FnOnce() -> Value) {
    if object[part][field].is_null() {
        object[part][field] = value();
    }
}

/// The part of an object that a request may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything except the status, if the kind has a status subresource.
    Main,
    /// Only the status.
    Status,
}

/// Returns `wanted`, with the part that this request may not write taken from `current`.
pub(crate) fn restrict(resource: &Resource, part: Part, current: &Value, wanted: Value) -> Value {
    if !resource.has_status {
        return wanted;
    }
    let (mut object, status) = match part {
        Part::Main => (wanted, &current["status"]),
        Part::Status => (current.clone(), &wanted["status"]),
    };
    let status = status.clone();
    if let Some(fields) = object.as_object_mut() {
        match status {
            Value::Null => fields.remove("status"),
            status => fields.insert("status".to_owned(), status),
        };
    }
    object
}
