//! Findings about the webhooks of the control plane: how API servers treat new pods and objects
//! while a webhook is unreachable, whether they trust its certificate, and whether the registration
//! leads to it.
//!
//! It queries the config cluster, and each member with the credential in its Secret. `strait
//! cluster add --inject` grants that credential the right to read this one object. Without the
//! object or the right, there is no finding.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::finding::{note, problem};
use super::members::{MemberApi, read_each};
use crate::cli::cluster::api::{ClusterApi, path_of};
use crate::cli::cluster::webhook;
use crate::cli::failure::CommandFailure;
use crate::cli::output::{items, text};
use strait_admin_api::Cluster;
use strait_base::codes;

/// The webhook configurations of one cluster's API server.
pub(super) struct WebhookReport {
    /// The cluster ID, or the name of the config cluster's context.
    cluster: String,
    /// Whether it is the config cluster.
    is_hub: bool,
    registrations: Vec<Registration>,
}

/// A webhook configuration, and the Service to which it leads.
struct Registration {
    configuration: Value,
    service: WebhookService,
}

/// The state of the Service that a webhook configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WebhookService {
    /// The configuration names a URL, or the Service cannot be read.
    Unknown,
    Missing,
    /// Its ports, and whether one of its endpoints is ready.
    Exists {
        ports: Vec<u64>,
        has_endpoint: bool,
    },
}

/// Returns the webhook configurations of all clusters. Validation is registered in the config
/// cluster only.
pub(super) async fn gather(
    hub: &ClusterApi,
    namespace: &str,
    members: &[MemberApi],
) -> Vec<WebhookReport> {
    let kind = "ValidatingWebhookConfiguration";
    let validating = json!({ "kind": kind, "metadata": { "name": format!("strait-{namespace}") } });
    let paths = [path_of(&webhook::named()), path_of(&validating)];
    let mut registrations = Vec::new();
    for path in &paths {
        registrations.extend(registration(hub, path).await.ok().flatten());
    }
    let own = WebhookReport { cluster: hub.context.clone(), is_hub: true, registrations };
    let [mutating, _] = &paths;
    let answers =
        read_each(members, |member| async move { registration(&member, mutating).await }).await;
    let of_members = answers.into_iter().map(|(cluster, answer)| {
        let registrations = answer.ok().flatten().into_iter().collect();
        WebhookReport { cluster, is_hub: false, registrations }
    });
    let all = std::iter::once(own).chain(of_members);
    all.filter(|report| !report.registrations.is_empty()).collect()
}

/// Reads a webhook configuration and the Service that it names.
async fn registration(
    api: &ClusterApi,
    path: &str,
) -> Result<Option<Registration>, CommandFailure> {
    let Some(configuration) = api.get(path).await? else { return Ok(None) };
    let named = items(&configuration["webhooks"]).iter().map(|one| &one["clientConfig"]["service"]);
    let service = match named.into_iter().find(|service| service.is_object()) {
        Some(service) => read_service(api, service).await.unwrap_or(WebhookService::Unknown),
        None => WebhookService::Unknown,
    };
    Ok(Some(Registration { configuration, service }))
}

async fn read_service(api: &ClusterApi, service: &Value) -> Result<WebhookService, CommandFailure> {
    let (namespace, name) = (text(&service["namespace"]), text(&service["name"]));
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let Some(found) = api.get(&path).await? else { return Ok(WebhookService::Missing) };
    let ports = items(&found["spec"]["ports"]).iter().filter_map(|port| port["port"].as_u64());
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
    );
    let slices = api.get(&path).await?.unwrap_or_default();
    let mut endpoints = items(&slices["items"]).iter().flat_map(|slice| items(&slice["endpoints"]));
    let is_ready = |endpoint: &Value| endpoint["conditions"]["ready"] != false;
    Ok(WebhookService::Exists { ports: ports.collect(), has_endpoint: endpoints.any(is_ready) })
}

/// Returns the findings about each cluster. `roots` are the published root certificates.
pub(super) fn findings(
    found: &[WebhookReport],
    roots: Option<&str>,
    clusters: &[Cluster],
) -> Vec<Value> {
    let roots = roots.map(|pem| certificates(pem.as_bytes()));
    let mut rows = Vec::new();
    for WebhookReport { cluster, is_hub, registrations } in found {
        let object = || format!("cluster/{cluster}");
        for registration in registrations {
            let Registration { configuration, service } = registration;
            let webhooks = items(&configuration["webhooks"]);
            let of_pods = configuration["kind"] != "ValidatingWebhookConfiguration";
            let fails = webhooks.iter().any(|one| one["failurePolicy"] == "Fail");
            if of_pods {
                let becomes =
                    if fails { "are not created" } else { "are created without a sidecar" };
                let fact = format!(
                    "while the control plane is unreachable, new pods that require a sidecar {becomes}"
                );
                rows.push(note("injection", &codes::INJECT_AWAY, object(), fact));
            }
            let name = text(&configuration["metadata"]["name"]);
            let knows = |one: &Value| {
                let bundle = one["clientConfig"]["caBundle"].as_str().unwrap_or_default();
                let known = certificates(&BASE64.decode(bundle).unwrap_or_default());
                roots.as_ref().is_none_or(|roots| !roots.is_disjoint(&known))
            };
            if !webhooks.iter().all(knows) {
                let fact = format!(
                    "the caBundle of {name} in its API server contains none of the published root certificates, so the API server can't call the webhook"
                );
                rows.push(problem("injection", &codes::INJECT_UNKNOWN, object(), fact));
            }
            let own = clusters.iter().find(|row| match is_hub {
                true => row.secret.is_none(),
                false => row.id == *cluster,
            });
            let fault =
                unusable_service(webhooks, service).or_else(|| wrong_path(webhooks, of_pods, own));
            if let Some(fault) = fault {
                let becomes = match (of_pods, fails) {
                    (true, true) => "new pods that require a sidecar are not created",
                    (true, false) => {
                        "new pods that require a sidecar are created without one, or with a wrong one"
                    }
                    (false, true) => "objects of the mesh cannot be stored",
                    (false, false) => "objects of the mesh are stored without validation",
                };
                let fact = format!("{name} in its API server names {fault}: {becomes}");
                rows.push(problem("injection", &codes::INJECT_ASTRAY, object(), fact));
            }
        }
    }
    rows
}

/// Returns why the Service of a webhook configuration cannot receive requests.
fn unusable_service(webhooks: &[Value], service: &WebhookService) -> Option<String> {
    let named = webhooks.iter().map(|one| &one["clientConfig"]["service"]);
    let named: Vec<&Value> = named.filter(|service| service.is_object()).collect();
    let first = named.first()?;
    let name = format!("Service {}/{}", text(&first["namespace"]), text(&first["name"]));
    match service {
        WebhookService::Unknown => None,
        WebhookService::Missing => Some(format!("{name}, which does not exist")),
        WebhookService::Exists { ports, has_endpoint } => {
            let port = |service: &&Value| service["port"].as_u64().unwrap_or(443);
            let strange = named.iter().map(port).find(|port| !ports.contains(port));
            strange
                .map(|port| format!("port {port} of {name}, which does not have this port"))
                .or_else(|| (!has_endpoint).then(|| format!("{name}, which has no ready endpoint")))
        }
    }
}

/// Returns why the path of a webhook configuration is wrong for its cluster.
fn wrong_path(webhooks: &[Value], of_pods: bool, own: Option<&Cluster>) -> Option<String> {
    let path = |one: &Value| {
        let client = &one["clientConfig"];
        let of_url = || {
            let (_, rest) = client["url"].as_str()?.split_once("://")?;
            Some(rest.find('/').map_or("/", |at| &rest[at..]).to_owned())
        };
        let of_service =
            || Some(client["service"].as_object()?.get("path")?.as_str().unwrap_or("/").to_owned());
        of_service().or_else(of_url).unwrap_or_else(|| "/".to_owned())
    };
    webhooks.iter().map(path).find_map(|path| {
        if !of_pods {
            return (path != "/validate").then(|| format!("the path {path} instead of /validate"));
        }
        let rest =
            path.strip_prefix("/inject").filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let Some(rest) = rest else {
            return Some(format!("the path {path} instead of /inject/cluster/ID"));
        };
        let own = own?;
        let segments: Vec<&str> = rest.split('/').filter(|segment| !segment.is_empty()).collect();
        let value = |key| {
            let mut pairs =
                segments.chunks(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
            pairs.find(|(name, _)| **name == key).map(|(_, value)| *value)
        };
        if let Some(id) = value("cluster").filter(|id| *id != own.id) {
            return Some(format!("cluster {id} in the path {path}, but it is cluster {}", own.id));
        }
        let network = own.network.as_deref().filter(|network| !network.is_empty())?;
        let claimed = value("net").filter(|claimed| *claimed != network)?;
        Some(format!(
            "network {claimed} in the path {path}, but the cluster is in network {network}"
        ))
    })
}

fn certificates(pem: &[u8]) -> BTreeSet<Vec<u8>> {
    let found = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    found.map(|certificate| certificate.to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(certificate: &[u8]) -> String {
        let body = BASE64.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn fate_of_pods_and_untrusted_webhooks_are_reported() {
        let report = |cluster: &str, policy: &str, bundle: &str| WebhookReport {
            cluster: cluster.to_owned(),
            is_hub: false,
            registrations: vec![Registration {
                configuration: json!({ "metadata": { "name": "strait-inject" }, "webhooks": [{
                    "failurePolicy": policy,
                    "clientConfig": { "caBundle": BASE64.encode(bundle), "url": "https://a/inject" },
                }] }),
                service: WebhookService::Unknown,
            }],
        };
        let (old, new) = (pem(b"old"), pem(b"new"));
        let both = format!("{old}{new}");
        let found = [
            report("hub", "Fail", &both),
            report("east", "Ignore", &new),
            report("west", "Fail", &old),
        ];
        let rows = findings(&found, Some(&new), &[]);
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
        assert_eq!(findings(&found, None, &[]).len(), 3, "no published roots to compare with");
    }

    #[test]
    fn registrations_that_do_not_lead_to_the_webhook_are_problems() {
        let ready = WebhookService::Exists { ports: vec![443], has_endpoint: true };
        let empty = WebhookService::Exists { ports: vec![443], has_endpoint: false };
        let fact = |kind: &str, client: Value, service: &WebhookService| {
            let configuration = json!({
                "kind": kind, "metadata": { "name": "strait-inject" },
                "webhooks": [{ "failurePolicy": "Fail", "clientConfig": client }],
            });
            let registrations = vec![Registration { configuration, service: service.clone() }];
            let report = WebhookReport { cluster: "c1".into(), is_hub: false, registrations };
            let own = Cluster { id: "c1".into(), network: Some("n1".into()), ..Cluster::default() };
            let rows = findings(&[report], None, &[own]);
            let problems = rows.iter().filter(|row| row["severity"] == "problem");
            problems
                .map(|row| format!("{} {}", text(&row["code"]), text(&row["fact"])))
                .collect::<Vec<_>>()
        };
        let service = |path: &str, port: u64| json!({ "service": { "namespace": "s", "name": "strait", "port": port, "path": path } });
        let pods = "MutatingWebhookConfiguration";
        let right = service("/inject/cluster/c1/net/n1", 443);
        assert_eq!(fact(pods, right.clone(), &ready), [""; 0]);
        assert_eq!(fact(pods, right.clone(), &WebhookService::Unknown), [""; 0]);
        assert_eq!(
            fact(
                pods,
                json!({ "url": "https://a:443/inject/cluster/c1" }),
                &WebhookService::Unknown
            ),
            [""; 0]
        );
        for (client, state, expected) in [
            (right.clone(), &WebhookService::Missing, "Service s/strait, which does not exist"),
            (right, &empty, "Service s/strait, which has no ready endpoint"),
            (service("/inject/cluster/c1", 8443), &ready, "port 8443 of Service s/strait"),
            (service("/inject/cluster/c2/net/n1", 443), &ready, "cluster c2 in the path"),
            (service("/inject/cluster/c1/net/n2", 443), &ready, "network n2 in the path"),
            (service("/validate", 443), &ready, "the path /validate instead of"),
            (
                json!({ "url": "https://a/inject/cluster/c77" }),
                &WebhookService::Unknown,
                "cluster c77 in the path",
            ),
        ] {
            let found = fact(pods, client, state);
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert!(
                found[0].starts_with("STR0915 strait-inject") && found[0].contains(expected),
                "{found:?}"
            );
        }
        let validates = "ValidatingWebhookConfiguration";
        assert_eq!(fact(validates, service("/validate", 443), &ready), [""; 0]);
        let found = fact(validates, service("/validate", 443), &empty);
        assert!(found[0].ends_with("objects of the mesh cannot be stored"), "{found:?}");
    }
}
