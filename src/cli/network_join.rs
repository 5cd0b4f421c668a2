//! `strait network join`: assigns a cluster to a network, and marks the Service that is its
//! gateway.
//!
//! The command only sets two labels: one on the system namespace, for everything in the cluster,
//! and one on the Service, through which other networks connect. It does not create the gateway
//! behind the Service.

use clap::Args;
use serde_json::{Value, json};

use super::client::{AdminClient, Connect, ServerFlags};
use super::cluster::api::{ClusterApi, full_name, kubeconfigs};
use super::cluster::{ClusterChange, done};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output::{self, items, text};
use strait_admin_api::Network;
use strait_base::codes;
use strait_kube_client::{Access, Loopback};
use strait_model::{GATEWAY_PORT_LABEL, NETWORK_LABEL, gateway_port};
use strait_sources::clusters::kubeconfig;
use strait_sources::clusters::secret::NETWORK_ANNOTATION;

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Context of the cluster
    #[arg(value_name = "CONTEXT")]
    remote: String,
    /// Name of the network
    #[arg(long, value_name = "NET")]
    network: String,
    /// Service of the network's gateway, as NAMESPACE/NAME [default: no Service is labelled]
    #[arg(long, value_name = "SERVICE")]
    gateway: Option<String>,
    /// Print the labels as manifests instead of applying them
    #[arg(long, short, value_enum)]
    output: Option<super::cluster::Manifests>,
    #[command(flatten)]
    change: ClusterChange,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs `strait network join`.
pub(crate) async fn run(args: &JoinArgs) -> CommandResult {
    super::cluster::check_network(Some(&args.network))?;
    let remote = args.change.hub.remote(&args.remote).await?;
    let ns = &args.change.hub.namespace;
    let patch = json!({ "metadata": { "labels": { NETWORK_LABEL: args.network } } });
    let gateway = match &args.gateway {
        Some(name) => Some(found(&remote, name).await?),
        None => None,
    };
    if args.output.is_none() {
        not_overruled(args, &remote).await?;
    }
    let namespace = remote.get(&format!("/api/v1/namespaces/{ns}")).await?;
    if args.output.is_some() {
        output::print(&manifests(ns, &args.network, gateway.as_ref()))?;
        return Ok(Exit::Fine);
    }
    let is_labelled = |object: &Value| object["metadata"]["labels"][NETWORK_LABEL] == args.network;
    let entered_by = entered_by(args, &remote).await;
    let is_there =
        namespace.as_ref().is_some_and(is_labelled) && gateway.as_ref().is_none_or(is_labelled);
    if is_there {
        done(&format!("cluster of {} is already in network {}", remote.context, args.network));
        return Ok(report(args, &entered_by, gateway.as_ref()));
    }
    let mut plan = format!(
        "Will change in {}\n  namespace {ns}{}: label {NETWORK_LABEL}={}\n",
        remote.context,
        if namespace.is_some() { "" } else { " (will be created)" },
        args.network
    );
    if let Some(service) = &gateway {
        plan +=
            &format!("  service {}: label {NETWORK_LABEL}={}\n", full_name(service), args.network);
        plan.extend(defects(service).iter().map(|doubt| format!("  ! {doubt}\n")));
    } else if entered_by.is_empty() {
        plan += "  no gateway is set (--gateway NAMESPACE/NAME): other networks can't reach it\n";
    } else {
        plan += &format!(
            "  network {} already has the gateway {}\n",
            args.network,
            entered_by.join(", ")
        );
    }
    if !args.change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    if namespace.is_none() {
        let manifest =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": ns } });
        remote.apply(&manifest).await?;
    }
    remote.merge(&format!("/api/v1/namespaces/{ns}"), &patch).await?;
    done(&format!("cluster of {} is in network {}", remote.context, args.network));
    if let Some(service) = &gateway {
        remote.merge(&path(service), &patch).await?;
        done(&format!("{} is its gateway", full_name(service)));
    }
    Ok(report(args, &entered_by, gateway.as_ref()))
}

/// Reports the gateways of the network, and what makes the named gateway unusable.
fn report(args: &JoinArgs, entered_by: &[String], gateway: Option<&Value>) -> Exit {
    if gateway.is_none() && !entered_by.is_empty() {
        done(&format!("network {} has the gateway {}", args.network, entered_by.join(", ")));
    }
    eprint_line!("  next: strait network get {}", args.network);
    let defects = gateway.map(defects).unwrap_or_default();
    for doubt in &defects {
        eprint_line!("! the gateway can't be used: {doubt}");
    }
    if defects.is_empty() { Exit::Fine } else { Exit::Unhealthy }
}

/// Returns the existing gateways of the network: Services of this cluster with its label, and
/// gateways that the control plane knows, if it can be queried.
async fn entered_by(args: &JoinArgs, remote: &ClusterApi) -> Vec<String> {
    let label = NETWORK_LABEL.replace('/', "%2F");
    let path = format!("/api/v1/services?labelSelector={label}%3D{}", args.network);
    let services = remote.get(&path).await.ok().flatten().unwrap_or_default();
    let mut found: Vec<String> = items(&services["items"])
        .iter()
        .map(|service| format!("service {}", full_name(service)))
        .collect();
    let known = async {
        let client = AdminClient::new(&Connect::with_short_timeout(&args.server)).await?;
        client.get("/debug/networks", &[]).await?.read::<Vec<Network>>()
    };
    let known = known.await.unwrap_or_default();
    for network in known.iter().filter(|row| row.network == args.network) {
        for gateway in &network.gateways {
            let source = text(&gateway.source);
            if !found.contains(&source) {
                found.push(source);
            }
        }
    }
    found
}

/// Rejects labels that would have no effect, because a Secret that fixes the network takes
/// precedence. If the Secrets cannot be read, a warning is printed instead.
async fn not_overruled(args: &JoinArgs, remote: &ClusterApi) -> Result<(), CommandFailure> {
    let ns = &args.change.hub.namespace;
    let secrets = match args.change.hub.open().await {
        Ok(hub) => hub.member_secrets(ns).await,
        Err(failure) => Err(failure),
    };
    let secrets = secrets.unwrap_or_else(|failure| {
        eprint_line!(
            "! can't check whether a Secret fixes a different network: {}",
            failure.message()
        );
        Vec::new()
    });
    for secret in &secrets {
        let Some(fixed) = fixed_network(secret).filter(|fixed| *fixed != args.network) else {
            continue;
        };
        for (id, bytes) in kubeconfigs(secret) {
            let Ok(access) = kubeconfig::parse(&bytes, None, Loopback::Allowed) else { continue };
            if access.server != *remote.server() && !is_same(remote, &access).await {
                continue;
            }
            let name = full_name(secret);
            return Err(CommandFailure::coded(
                &codes::CLAIM_IGNORED,
                format!(
                    "secret {name} fixes network {fixed} for cluster {id} ({NETWORK_ANNOTATION}) and overrides labels; nothing was changed"
                ),
            )
            .next(format!(
                "kubectl -n {ns} annotate secret {} {NETWORK_ANNOTATION}={} --overwrite\nor remove the annotation: {NETWORK_ANNOTATION}-",
                text(&secret["metadata"]["name"]),
                args.network
            )));
        }
    }
    Ok(())
}

/// Returns the network that a Secret fixes for its clusters.
fn fixed_network(secret: &Value) -> Option<&str> {
    let fixed = secret["metadata"]["annotations"][NETWORK_ANNOTATION].as_str();
    fixed.filter(|fixed| !fixed.is_empty())
}

/// Returns whether the kubeconfig refers to the same cluster under a different address.
async fn is_same(remote: &ClusterApi, access: &Access) -> bool {
    let Ok(member) = remote.with_access(access) else { return false };
    match (member.uid().await, remote.uid().await) {
        (Ok(member), Ok(remote)) => member == remote,
        _ => false,
    }
}

async fn found(remote: &ClusterApi, name: &str) -> Result<Value, CommandFailure> {
    let Some((namespace, service)) = name.split_once('/') else {
        return Err(CommandFailure::usage(format!("--gateway {name:?} is not NAMESPACE/NAME")));
    };
    let path = format!("/api/v1/namespaces/{namespace}/services/{service}");
    remote.get(&path).await?.ok_or_else(|| {
        CommandFailure::failed(format!("{} has no service {namespace}/{service}", remote.context))
            .next("create the Service and the gateway behind it first: see docs/explanation/networks-and-gateways.md and the example deploy/examples/east-west-gateway.yaml")
    })
}

fn path(service: &Value) -> String {
    let part = |name: &str| text(&service["metadata"][name]);
    format!("/api/v1/namespaces/{}/services/{}", part("namespace"), part("name"))
}

/// Returns the reasons why a Service cannot be used as a gateway.
fn defects(service: &Value) -> Vec<String> {
    let port = gateway_port(service["metadata"]["labels"][GATEWAY_PORT_LABEL].as_str());
    let mut defects = Vec::new();
    if !items(&service["spec"]["ports"]).iter().any(|one| one["port"] == port) {
        defects.push(format!(
            "it has no port {port}; set a different port with the label {GATEWAY_PORT_LABEL}"
        ));
    }
    let addresses = items(&service["status"]["loadBalancer"]["ingress"]).len()
        + items(&service["spec"]["externalIPs"]).len();
    if addresses == 0 {
        defects.push("it has no external address yet, and is usable once it has one".into());
    }
    defects
}

fn manifests(namespace: &str, network: &str, gateway: Option<&Value>) -> String {
    let labels = json!({ NETWORK_LABEL: network });
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": labels },
    });
    let mut out = output::yaml(&object);
    if let Some(service) = gateway {
        let metadata = json!({
            "name": service["metadata"]["name"],
            "namespace": service["metadata"]["namespace"],
            "labels": labels,
        });
        let object = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata });
        out += &format!("---\n{}", output::yaml(&object));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_cannot_be_gateways_yet_are_reported() {
        let service = |port: u16, status: Value| {
            json!({ "metadata": { "name": "gw", "namespace": "s" },
                    "spec": { "ports": [{ "port": port }] }, "status": status })
        };
        let ready = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.1" }] } });
        assert!(defects(&service(15443, ready.clone())).is_empty());
        assert_eq!(defects(&service(443, ready.clone())).len(), 1);
        assert_eq!(defects(&service(443, json!({}))).len(), 2);
        let mut unsound = service(15443, ready.clone());
        unsound["metadata"]["labels"] = json!({ GATEWAY_PORT_LABEL: "0" });
        assert!(defects(&unsound).is_empty(), "a label that is no port names none");
        let mut labelled = service(443, ready);
        labelled["metadata"]["labels"] = json!({ GATEWAY_PORT_LABEL: "443" });
        assert!(defects(&labelled).is_empty());
        let printed = manifests("strait-system", "n1", Some(&labelled));
        assert_eq!(printed.matches("topology.istio.io/network: n1").count(), 2, "{printed}");
    }
}
