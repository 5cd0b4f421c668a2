//! `strait cluster add --inject`: registers the injection webhook in a cluster's API server.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::api::{ClusterApi, Front, ROOTS};
use super::manifests::READER;
use crate::cli::failure::{CommandFailure, Exit};
use strait_injection::webhook::{WEBHOOK_NAME, WebhookRegistration, WebhookTarget, WhenAway};
use strait_model::ClusterId;

/// ConfigMaps with the published root certificates: the first one exists if another mesh uses the
/// usual name.
const PUBLISHED: [&str; 2] = ["strait-ca-root-cert", ROOTS];

/// Flags of `strait cluster add` for injection.
#[derive(Debug, Clone, Args)]
pub(super) struct WebhookFlags {
    /// Register the injection webhook in the cluster's API server: a MutatingWebhookConfiguration
    #[arg(long, requires = "inject_failure_policy")]
    inject: bool,
    /// How the API server treats new pods while the control plane is unreachable
    #[arg(long, value_enum, requires = "inject")]
    inject_failure_policy: Option<FailurePolicy>,
    /// Address at which the cluster's API server reaches the webhook: https://HOST:PORT, or a
    /// Service of the cluster as NAMESPACE/NAME[:PORT] [default: the cluster's Service strait, or
    /// else the address of the config cluster's Service strait]
    #[arg(long, value_name = "WHERE", requires = "inject", value_parser = target)]
    pub(super) inject_at: Option<WebhookTarget>,
    /// File with the root certificates of the webhook's certificate, PEM [default: the ones that
    /// the config cluster publishes]
    #[arg(long, value_name = "F", requires = "inject")]
    inject_roots: Option<PathBuf>,
    /// Select namespaces and pods by Istio's labels too
    #[arg(long, requires = "inject")]
    istio_labels: bool,
}

/// Treatment of new pods while the webhook is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailurePolicy {
    /// Reject pods for which the webhook is called
    Fail,
    /// Create pods without a sidecar
    Ignore,
}

/// Returns the root certificates that the config cluster publishes. Workloads and API servers
/// verify the control plane with them.
///
/// # Errors
/// If they cannot be read.
pub(crate) async fn published(
    hub: &ClusterApi,
    namespace: &str,
) -> Result<Option<String>, CommandFailure> {
    for name in PUBLISHED {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
        let found = hub.get(&path).await?.unwrap_or_default();
        let roots = found["data"]["root-cert.pem"].as_str().map(str::to_owned);
        if let Some(roots) = roots.filter(|text| is_certificate(text)) {
            return Ok(Some(roots));
        }
    }
    Ok(None)
}

fn is_certificate(text: &str) -> bool {
    text.contains("-----BEGIN CERTIFICATE-----")
}

/// Returns the role and binding that let the cluster's reader read the webhook's registration, for
/// `strait check`.
pub(super) fn rights() -> [Value; 2] {
    let api = "rbac.authorization.k8s.io";
    let metadata = json!({
        "name": WEBHOOK_NAME,
        "labels": {
            "app.kubernetes.io/name": WEBHOOK_NAME,
            "app.kubernetes.io/part-of": "strait",
            "app.kubernetes.io/managed-by": "strait",
        },
    });
    [
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": metadata,
            "rules": [{
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["mutatingwebhookconfigurations"],
                "resourceNames": [WEBHOOK_NAME], "verbs": ["get"],
            }],
        }),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": api, "kind": "ClusterRole", "name": WEBHOOK_NAME },
            "subjects": [{ "kind": "ServiceAccount", "name": READER, "namespace": READER }],
        }),
    ]
}

/// Returns the registration object with only its name.
pub(crate) fn named() -> Value {
    json!({ "kind": "MutatingWebhookConfiguration", "metadata": { "name": WEBHOOK_NAME } })
}

/// Parses `https://HOST:PORT` or `NAMESPACE/NAME[:PORT]`.
pub(super) fn target(text: &str) -> Result<WebhookTarget, String> {
    let wrong = || "expected https://HOST:PORT, or NAMESPACE/NAME[:PORT]".to_owned();
    if text.starts_with("https://") {
        let url = text.trim_end_matches('/');
        let parsed: http::Uri = url.parse().map_err(|_| wrong())?;
        let plain = parsed.host().is_some() && ["", "/"].contains(&parsed.path());
        return match plain && parsed.query().is_none() && !url.contains('@') {
            true => Ok(WebhookTarget::Url(url.to_owned())),
            false => Err(wrong()),
        };
    }
    let (namespace, service) = text.split_once('/').ok_or_else(wrong)?;
    let (name, port) = service.split_once(':').unwrap_or((service, "443"));
    let is_name = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !name.is_empty() && name.bytes().all(fits)
    };
    let port: u16 = port.parse().map_err(|_| wrong())?;
    match is_name(namespace) && is_name(name) && port > 0 {
        true => Ok(WebhookTarget::Service { namespace: namespace.into(), name: name.into(), port }),
        false => Err(wrong()),
    }
}

/// Returns the default address at which an API server reaches the webhook.
async fn usual_target(
    hub: &ClusterApi,
    remote: &ClusterApi,
    namespace: &str,
) -> Result<WebhookTarget, CommandFailure> {
    let say =
        "set the address: --inject-at https://HOST:PORT, or --inject-at NAMESPACE/SERVICE[:PORT]";
    let path = format!("/api/v1/namespaces/{namespace}/services/strait");
    if remote.get(&path).await?.is_some() {
        let (namespace, name) = (namespace.to_owned(), "strait".to_owned());
        return Ok(WebhookTarget::Service { namespace, name, port: 443 });
    }
    match hub.front(namespace).await? {
        Some(Front { address, ports, .. }) if ports.contains(&443) => {
            let host = if address.contains(':') { format!("[{address}]") } else { address };
            Ok(WebhookTarget::Url(format!("https://{host}:443")))
        }
        Some(_) => Err(CommandFailure::failed(format!(
            "service {namespace}/strait of {} has no port 443: injection is disabled in this control plane; nothing was changed",
            hub.context
        ))
        .next("helm upgrade strait deploy/charts/strait --reuse-values --set inject.enabled=true")),
        None => Err(CommandFailure::failed(format!(
            "{} has no service {namespace}/strait, and the one of {} has no address outside its cluster; nothing was changed",
            remote.context, hub.context
        ))
        .next(say)),
    }
}

impl WebhookFlags {
    /// Returns the objects for the cluster if injection is requested: the registration, and the
    /// reader's right to read it.
    ///
    /// # Errors
    /// If no root certificates are found, because the API server could not verify the webhook.
    pub(super) async fn manifests(
        &self,
        hub: &ClusterApi,
        namespace: &str,
        (cluster, remote): (&ClusterId, &ClusterApi),
        network: Option<&str>,
    ) -> Result<Vec<Value>, CommandFailure> {
        let Some(policy) = self.inject_failure_policy.filter(|_| self.inject) else {
            return Ok(Vec::new());
        };
        let roots = self.roots(hub, namespace).await?;
        let target = match &self.inject_at {
            Some(target) => target.clone(),
            None => usual_target(hub, remote, namespace).await?,
        };
        let registration = WebhookRegistration {
            cluster: cluster.as_str(),
            network,
            target,
            roots: &roots,
            when_away: match policy {
                FailurePolicy::Fail => WhenAway::Fail,
                FailurePolicy::Ignore => WhenAway::Ignore,
            },
            istio_labels: self.istio_labels,
        };
        Ok(rights().into_iter().chain([registration.manifest()]).collect())
    }

    pub(super) fn is_requested(&self) -> bool {
        self.inject
    }

    /// Returns the lines of the plan that describe injection.
    pub(super) fn plan_text(&self) -> &'static str {
        match self.inject_failure_policy.filter(|_| self.inject) {
            None => "",
            Some(FailurePolicy::Fail) => {
                "  clusterrole strait-inject: get mutatingwebhookconfiguration strait-inject\n  \
                 mutatingwebhookconfiguration strait-inject: sidecars for pods with the label, or in namespaces with it;\n    \
                 while the control plane is unreachable, such pods are rejected\n"
            }
            Some(FailurePolicy::Ignore) => {
                "  clusterrole strait-inject: get mutatingwebhookconfiguration strait-inject\n  \
                 mutatingwebhookconfiguration strait-inject: sidecars for pods with the label, or in namespaces with it;\n    \
                 while the control plane is unreachable, such pods are created without a sidecar\n"
            }
        }
    }

    async fn roots(&self, hub: &ClusterApi, namespace: &str) -> Result<String, CommandFailure> {
        if let Some(file) = &self.inject_roots {
            let read = std::fs::read_to_string(file).map_err(|error| {
                let text = format!("--inject-roots {}: {error}", file.display());
                CommandFailure::new(Exit::Usage, text)
            })?;
            return Some(read).filter(|text| is_certificate(text)).ok_or_else(|| {
                let text =
                    format!("--inject-roots {}: the file contains no certificate", file.display());
                CommandFailure::usage(text)
            });
        }
        if let Some(roots) = published(hub, namespace).await? {
            return Ok(roots);
        }
        let text = format!(
            "{} has no configmap {ROOTS} in {namespace}, so the API server could not verify the webhook; nothing was changed",
            hub.context
        );
        Err(CommandFailure::failed(text)
            .next("set a file with the root certificates: --inject-roots FILE"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_address_is_a_url_or_a_service() {
        let service = |namespace: &str, name: &str, port| WebhookTarget::Service {
            namespace: namespace.into(),
            name: name.into(),
            port,
        };
        for (text, expected) in [
            ("https://10.0.0.1:15017/", WebhookTarget::Url("https://10.0.0.1:15017".into())),
            ("https://strait.example", WebhookTarget::Url("https://strait.example".into())),
            ("strait-system/strait", service("strait-system", "strait", 443)),
            ("mesh/injector:15017", service("mesh", "injector", 15017)),
        ] {
            assert_eq!(target(text), Ok(expected));
        }
        for text in [
            "http://10.0.0.1:1",
            "https://a@b",
            "https://a/b",
            "https://a?b",
            "strait",
            "a/",
            "/b",
            "a/b:0",
            "a/b:x",
            "A/b",
        ] {
            assert!(target(text).is_err(), "{text}");
        }
    }
}
