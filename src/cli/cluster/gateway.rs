//! `strait cluster add --gateway`: creates the east-west gateway of the cluster's network, as the
//! chart `strait-member` does.
//!
//! The gateway has a dedicated namespace. Members may not vouch for accounts of the control plane's
//! namespace unless the policy allows it, and a gateway needs no such account: it forwards mTLS by
//! name.

use clap::Args;
use serde_json::{Value, json};

use strait_injection::default_image;

/// Namespace of the gateway.
pub(in crate::cli) const NAMESPACE: &str = "strait-gateway";
/// Name of the account, Deployment, Service and PodDisruptionBudget.
const NAME: &str = "east-west-gateway";
/// Value of the instance label; the chart uses its release name.
const INSTANCE: &str = "strait";
/// Port that other networks dial and on which Envoy listens.
const PORT: u16 = 15443;

/// Flags of `strait cluster add` for the gateway.
#[derive(Debug, Clone, Args)]
pub(super) struct GatewayFlags {
    /// Create the east-west gateway of the cluster's network, through which other networks reach
    /// its services
    #[arg(long)]
    pub(super) gateway: bool,
    /// Image of the gateway, with strait-agent and envoy [default: strait-agent of this version]
    #[arg(long, value_name = "IMAGE", requires = "gateway")]
    gateway_image: Option<String>,
}

impl GatewayFlags {
    /// Returns the image of the gateway.
    pub(super) fn image(&self) -> String {
        self.gateway_image.clone().unwrap_or_else(default_image)
    }
}

/// A gateway to be created.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatewayPlan<'a> {
    /// ID of the cluster that runs the gateway.
    pub(super) cluster: &'a str,
    /// Network that the gateway serves.
    pub(super) network: &'a str,
    /// Addresses of the control plane: `HOST:PORT`, separated by commas.
    pub(super) discovery: &'a str,
    /// Image with `strait-agent` and `envoy`.
    pub(super) image: &'a str,
}

impl GatewayPlan<'_> {
    /// Returns the lines of the plan that describe the gateway.
    pub(super) fn plan_text(&self) -> String {
        let Self { network, discovery, image, .. } = self;
        format!(
            "  namespace {NAMESPACE} with serviceaccount, deployment, poddisruptionbudget and service {NAME}:\n    \
             the gateway of network {network}, at each load balancer address of the service;\n    \
             2 pods of {image} without any rights in the cluster; the control plane is at {discovery}\n"
        )
    }

    /// Returns the objects, in the order in which they can be created.
    pub(super) fn manifests(&self) -> Vec<Value> {
        let Self { cluster, network, discovery, image } = self;
        let [selector, labels] = labels();
        let mut metadata = json!({ "name": NAME, "namespace": NAMESPACE, "labels": labels });
        let plain = metadata.clone();
        metadata["labels"]["topology.istio.io/network"] = json!(network);
        let spread: Vec<Value> = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
            .map(|key| {
                json!({
                    "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": { "matchLabels": selector },
                })
            })
            .into();
        let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let port = |name: &str, port: u16| json!({ "name": name, "containerPort": port, "protocol": "TCP" });
        let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
        let read_only =
            |name: &str, path: &str| json!({ "name": name, "mountPath": path, "readOnly": true });
        let args = [
            "run".to_owned(),
            "--type=router".to_owned(),
            format!("--service-account={NAME}"),
            format!("--cluster={cluster}"),
            format!("--network={network}"),
            format!("--label=app.kubernetes.io/name={NAME}"),
            format!("--label=app.kubernetes.io/instance={INSTANCE}"),
            format!("--discovery={discovery}"),
            "--domain=cluster.local".to_owned(),
            "--".to_owned(),
            "envoy".to_owned(),
        ];
        let container = json!({
            "name": "envoy",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "args": args,
            "env": [
                field("POD_NAME", "metadata.name"),
                field("POD_NAMESPACE", "metadata.namespace"),
                field("POD_IP", "status.podIPs"),
                field("NODE_NAME", "spec.nodeName"),
            ],
            "ports": [port("tls", PORT), port("health", 15021), port("metrics", 15020)],
            // The port opens once the gateway has received its configuration.
            "readinessProbe": { "tcpSocket": { "port": "tls" }, "periodSeconds": 2, "failureThreshold": 2 },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            "resources": {
                "requests": { "cpu": "100m", "memory": "128Mi" },
                "limits": { "memory": "1Gi" },
            },
            "volumeMounts": [
                read_only("token", "/var/run/secrets/tokens"),
                read_only("roots", "/var/run/secrets/istio"),
                mount("run", "/var/run/strait"),
            ],
        });
        let token =
            json!({ "audience": "istio-ca", "expirationSeconds": 43200, "path": "istio-token" });
        let pod = json!({
            "serviceAccountName": NAME,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 1337, "runAsGroup": 1337, "fsGroup": 1337,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [container],
            "volumes": [
                { "name": "token", "projected": { "sources": [{ "serviceAccountToken": token }] } },
                { "name": "roots", "configMap": { "name": "istio-ca-root-cert" } },
                { "name": "run", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
            ],
            "topologySpreadConstraints": spread,
        });
        vec![
            namespace(),
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": plain,
                // The gateway only calls the control plane, with a dedicated token.
                "automountServiceAccountToken": false,
            }),
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": metadata,
                "spec": {
                    "type": "LoadBalancer", "selector": selector,
                    "ports": [{ "name": "tls", "port": PORT, "targetPort": PORT, "protocol": "TCP" }],
                },
            }),
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": plain,
                "spec": {
                    "replicas": 2,
                    "selector": { "matchLabels": selector },
                    "strategy": {
                        "type": "RollingUpdate",
                        "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 },
                    },
                    "template": { "metadata": { "labels": labels }, "spec": pod },
                },
            }),
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": plain,
                "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector } },
            }),
        ]
    }
}

/// Returns the labels that select pods, and the labels of every object.
fn labels() -> [Value; 2] {
    let selector = json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/instance": INSTANCE,
    });
    let mut labels = selector.clone();
    labels["app.kubernetes.io/part-of"] = json!("strait");
    labels["app.kubernetes.io/managed-by"] = json!("strait");
    [selector, labels]
}

/// Returns the namespace of the gateway, to which all its objects belong.
pub(super) fn namespace() -> Value {
    let [_, labels] = labels();
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE, "labels": labels } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes the labels that only Helm sets, and the namespace of the rendered chart.
    fn without_helm(object: &Value) -> Value {
        let mut object = object.clone();
        for pointer in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(labels) = object.pointer_mut(pointer).and_then(Value::as_object_mut) {
                labels.retain(|key, _| {
                    !["helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"]
                        .contains(&&**key)
                });
            }
        }
        object["metadata"]["namespace"] = Value::Null;
        object
    }

    #[test]
    fn gateway_objects_equal_the_chart() {
        let rendered =
            include_str!("../../../tests/charts/golden/strait-member.gateway-by-token.yaml");
        let rendered = rendered.replace("instance: mesh", "instance: strait");
        let rendered = rendered.replace("instance=mesh", "instance=strait");
        let mut rendered: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
        rendered.retain(|object| object["metadata"]["name"] == NAME);
        let made = GatewayPlan {
            cluster: "east",
            network: "n1",
            discovery: "strait.example.org:15012",
            image: "registry.example/strait-agent:0.1.0",
        }
        .manifests();
        assert_eq!((made.len(), rendered.len()), (5, 4));
        for object in &mut rendered {
            let kind = object["kind"].clone();
            let ours = made.iter().find(|ours| ours["kind"] == kind).expect("there is one");
            if let Some(args) = object
                .pointer_mut("/spec/template/spec/containers/0/args")
                .and_then(Value::as_array_mut)
            {
                // This golden case passes two additional arguments to Envoy.
                args.truncate(args.len() - 2);
            }
            assert_eq!(without_helm(ours), without_helm(object), "{kind}");
        }
    }
}
