//! Secrets with a kubeconfig that are not members, because they lack the label of a member.

use serde_json::Value;

use super::finding::note;
use crate::cli::cluster::api;
use crate::cli::output::{items, text};
use strait_base::codes;
use strait_kube_client::Loopback;
use strait_sources::clusters::kubeconfig;

/// Returns a note for each Secret that contains a kubeconfig but has no member label, or one with
/// another value.
pub(super) fn strays(list: &Value) -> Vec<Value> {
    let labels = [strait_sources::store::ISTIO_SECRET_LABEL, strait_sources::store::SECRET_LABEL];
    let mut found = Vec::new();
    for secret in items(&list["items"]) {
        let held = &secret["metadata"]["labels"];
        if labels.iter().any(|(label, value)| held[*label] == *value) {
            continue;
        }
        let is_kubeconfig =
            |bytes: &[u8]| kubeconfig::parse(bytes, None, Loopback::Allowed).is_ok();
        let entries = api::kubeconfigs(secret).into_iter();
        for (key, _) in entries.filter(|(_, bytes)| is_kubeconfig(bytes)) {
            let other_value = labels.iter().find_map(|(label, value)| {
                let other = held[*label].as_str()?;
                Some(format!("its label {label} is {:?} instead of {value:?}", text(other)))
            });
            let label = other_value.unwrap_or_else(|| "the Secret has no member label".to_owned());
            let fact = format!("its key {key} is a kubeconfig, but {label}, so it is not a member");
            let object = format!("secret/{}", api::full_name(secret));
            found.push(note("secrets", &codes::SECRET_WITHOUT_LABEL, object, fact));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_with_a_kubeconfig_and_no_label_are_found() {
        use base64::Engine as _;
        use base64::engine::general_purpose::STANDARD as BASE64;
        let kubeconfig = "clusters: [{name: a, cluster: {server: 'https://a.example.org'}}]
users: [{name: a, user: {token: t}}]
contexts: [{name: a, context: {cluster: a, user: a}}]";
        let secret = |name: &str, labels: Value, text: &str| {
            json!({ "metadata": { "name": name, "namespace": "s", "labels": labels },
                    "data": { "east": BASE64.encode(text) } })
        };
        let list = json!({ "items": [
            secret("member", json!({ "strait.dev/cluster": "true" }), kubeconfig),
            secret("stray", json!({}), kubeconfig),
            secret("wrong", json!({ "strait.dev/cluster": "True" }), kubeconfig),
            secret("other", json!({}), "a password"),
        ] });
        let found = strays(&list);
        assert_eq!(found.len(), 2, "{found:#?}");
        assert_eq!(found[0]["object"], "secret/s/stray");
        let fact = text(&found[1]["fact"]);
        let wrong = "its label strait.dev/cluster is \"True\" instead of \"true\"";
        assert!(fact.contains(wrong), "{fact}");
        assert!(!found[0].to_string().contains("token"));
    }
}
