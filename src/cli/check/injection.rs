//! Findings about the injection webhook: how API servers treat new pods while it is unreachable,
//! and whether they trust its certificate.
//!
//! It queries the config cluster, and each member with the credential in its Secret. `strait
//! cluster add --inject` grants that credential the right to read this one object. Without the
//! object or the right, there is no finding.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use super::finding::{note, problem};
use crate::cli::cluster::api::{ClusterApi, kubeconfigs, path_of};
use crate::cli::cluster::webhook;
use crate::cli::failure::CommandFailure;
use crate::cli::output::items;
use strait_base::codes;
use strait_kube_client::Loopback;
use strait_sources::clusters::kubeconfig;

/// The webhook configuration of one cluster's API server.
pub(super) struct WebhookReport {
    cluster: String,
    configuration: Value,
}

/// Returns the webhook configurations of all clusters, and the published root certificates of the
/// webhook.
///
/// # Errors
/// If the Secrets or the root certificates cannot be read.
pub(super) async fn gather(
    hub: &ClusterApi,
    namespace: &str,
) -> Result<(Vec<WebhookReport>, Option<String>), CommandFailure> {
    let path = path_of(&webhook::named());
    let report = |cluster: String, answer: Result<Option<Value>, CommandFailure>| {
        Some(WebhookReport { cluster, configuration: answer.ok().flatten()? })
    };
    let mut found = Vec::new();
    found.extend(report(hub.context.clone(), hub.get(&path).await));
    for secret in hub.member_secrets(namespace).await? {
        for (id, bytes) in kubeconfigs(&secret) {
            let Ok(access) = kubeconfig::parse(&bytes, None, Loopback::Allowed) else { continue };
            let Ok(member) = hub.with_access(&access) else { continue };
            found.extend(report(id, member.get(&path).await));
        }
    }
    let roots = if found.is_empty() { None } else { webhook::published(hub, namespace).await? };
    Ok((found, roots))
}

/// Returns the findings about each cluster.
pub(super) fn findings(found: &[WebhookReport], roots: Option<&str>) -> Vec<Value> {
    let roots = roots.map(|pem| certificates(pem.as_bytes()));
    let mut rows = Vec::new();
    for WebhookReport { cluster, configuration } in found {
        let object = || format!("cluster/{cluster}");
        let webhooks = items(&configuration["webhooks"]);
        let fails = webhooks.iter().any(|one| one["failurePolicy"] == "Fail");
        let becomes = if fails { "are not created" } else { "are created without a sidecar" };
        let fact = format!(
            "while the control plane is unreachable, new pods that require a sidecar {becomes}"
        );
        rows.push(note("injection", &codes::INJECT_AWAY, object(), fact));
        let knows = |one: &Value| {
            let bundle = one["clientConfig"]["caBundle"].as_str().unwrap_or_default();
            let known = certificates(&BASE64.decode(bundle).unwrap_or_default());
            roots.as_ref().is_none_or(|roots| !roots.is_disjoint(&known))
        };
        if !webhooks.iter().all(knows) {
            let fact = "the caBundle of strait-inject in its API server contains none of the published root certificates, so the API server can't call the webhook";
            rows.push(problem("injection", &codes::INJECT_UNKNOWN, object(), fact));
        }
    }
    rows
}

fn certificates(pem: &[u8]) -> BTreeSet<Vec<u8>> {
    let found = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    found.map(|certificate| certificate.to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::text;

    fn pem(certificate: &[u8]) -> String {
        let body = BASE64.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn fate_of_pods_and_untrusted_webhooks_are_reported() {
        let report = |cluster: &str, policy: &str, bundle: &str| WebhookReport {
            cluster: cluster.to_owned(),
            configuration: json!({ "webhooks": [{
                "failurePolicy": policy, "clientConfig": { "caBundle": BASE64.encode(bundle) },
            }] }),
        };
        let (old, new) = (pem(b"old"), pem(b"new"));
        let both = format!("{old}{new}");
        let found = [
            report("hub", "Fail", &both),
            report("east", "Ignore", &new),
            report("west", "Fail", &old),
        ];
        let rows = findings(&found, Some(&new));
        let short: Vec<_> = rows
            .iter()
            .map(|row| format!("{} {}", text(&row["code"]), text(&row["object"])))
            .collect();
        assert_eq!(
            short,
            [
                "STR0910 cluster/hub",
                "STR0910 cluster/east",
                "STR0910 cluster/west",
                "STR0911 cluster/west"
            ]
        );
        assert!(text(&rows[0]["fact"]).ends_with("are not created"));
        assert!(text(&rows[1]["fact"]).ends_with("are created without a sidecar"));
        assert_eq!(rows[3]["severity"], "problem");
        assert_eq!(findings(&found, None).len(), 3, "no published roots to compare with");
    }
}
