//! Realistic additional content of objects that nothing here reads: field ownership, annotations,
//! conditions. Without it, a client that is fast only with small objects would appear fast.

use serde_json::{Value, json};

use crate::resource::{Family, Resource};

/// The creation time of all generated objects, so that the same seed gives the same bytes.
pub(crate) const CREATED: &str = "2026-01-01T00:00:00Z";

/// Adds the content of a Service that was applied with Helm.
pub(crate) fn service(mut service: Value) -> Value {
    let labels = &mut service["metadata"]["labels"];
    labels["app.kubernetes.io/managed-by"] = json!("Helm");
    labels["helm.sh/chart"] = json!("backend-3.2.1");
    service["metadata"]["annotations"] = json!({
        "meta.helm.sh/release-name": "backend",
        "meta.helm.sh/release-namespace": "shop",
    });
    service["spec"]["internalTrafficPolicy"] = json!("Cluster");
    service["spec"]["ipFamilies"] = json!(["IPv4"]);
    service["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    let owned = json!({
        "f:metadata": {
            "f:annotations": {".": {}, "f:meta.helm.sh/release-name": {}, "f:meta.helm.sh/release-namespace": {}},
            "f:labels": {".": {}, "f:app": {}, "f:app.kubernetes.io/managed-by": {}, "f:helm.sh/chart": {}},
        },
        "f:spec": {
            "f:internalTrafficPolicy": {},
            "f:ports": {
                ".": {},
                "k:{\"port\":80,\"protocol\":\"TCP\"}": {
                    ".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {},
                },
            },
            "f:selector": {},
            "f:sessionAffinity": {},
            "f:type": {},
        },
    });
    with_owner(service, "helm", owned)
}

/// Adds the content that the controller of slices writes.
pub(crate) fn endpoint_slice(mut slice: Value) -> Value {
    slice["metadata"]["annotations"] =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": CREATED});
    slice["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Service", "name": slice["metadata"]["labels"]["kubernetes.io/service-name"],
        "uid": "00000000-0000-4000-8000-000000000000", "controller": true, "blockOwnerDeletion": true,
    }]);
    let owned = json!({
        "f:addressType": {},
        "f:endpoints": {},
        "f:metadata": {
            "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
            "f:generateName": {},
            "f:labels": {
                ".": {}, "f:app": {}, "f:endpointslice.kubernetes.io/managed-by": {},
                "f:kubernetes.io/service-name": {},
            },
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"00000000-0000-4000-8000-000000000000\"}": {}},
        },
        "f:ports": {},
    });
    with_owner(slice, "kube-controller-manager", owned)
}

/// Adds the content of a pod with a sidecar, as a kubelet reports it.
pub(crate) fn pod(mut pod: Value) -> Value {
    let name = pod["spec"]["containers"][0]["name"].clone();
    let image = pod["spec"]["containers"][0]["image"].clone();
    let mounts = json!([
        {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": true},
    ]);
    let resources = json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}});
    pod["metadata"]["generateName"] = json!(format!("{}-7d9c-", name.as_str().unwrap_or_default()));
    pod["metadata"]["labels"]["pod-template-hash"] = json!("7d9c");
    pod["metadata"]["annotations"] = json!({
        "prometheus.io/path": "/stats/prometheus",
        "prometheus.io/port": "15020",
        "prometheus.io/scrape": "true",
        "sidecar.istio.io/status": "{\"initContainers\":[\"istio-init\"],\"containers\":[\"istio-proxy\"],\"volumes\":[\"workload-socket\",\"istio-envoy\",\"istio-data\",\"istio-podinfo\",\"istio-token\",\"istiod-ca-cert\"],\"revision\":\"default\"}",
    });
    let container = |name: &Value, image: &Value| {
        json!({
            "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "resources": resources,
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
            "volumeMounts": mounts,
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        })
    };
    let (sidecar, sidecar_image) = (json!("istio-proxy"), json!("registry.example/proxyv2:1.28.0"));
    pod["spec"]["containers"] =
        json!([container(&name, &image), container(&sidecar, &sidecar_image)]);
    pod["spec"]["restartPolicy"] = json!("Always");
    pod["spec"]["dnsPolicy"] = json!("ClusterFirst");
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["tolerations"] = json!([
        {"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300},
        {"effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300},
    ]);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": CREATED});
    let conditions =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    pod["status"]["conditions"] = conditions.map(condition).into_iter().collect();
    let status = |name: &Value, image: &Value| {
        json!({
            "name": name, "image": image, "ready": true, "started": true, "restartCount": 0,
            "containerID": "containerd://0f9c5d0d5e5f0c6b8a7e6d5c4b3a29180f9c5d0d5e5f0c6b8a7e6d5c4b3a2918",
            "imageID": "registry.example/app@sha256:0f9c5d0d5e5f0c6b8a7e6d5c4b3a29180f9c5d0d5e5f0c6b8a7e6d5c4b3a2918",
            "state": {"running": {"startedAt": CREATED}}, "lastState": {},
        })
    };
    pod["status"]["containerStatuses"] =
        json!([status(&name, &image), status(&sidecar, &sidecar_image)]);
    pod["status"]["startTime"] = json!(CREATED);
    pod["status"]["qosClass"] = json!("Burstable");
    let owned = json!({
        "f:status": {
            "f:conditions": conditions.map(|kind| json!({
                format!("k:{{\"type\":\"{kind}\"}}"): {".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}},
            })),
            "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {}, "f:startTime": {},
        },
    });
    with_owner(pod, "kubelet", owned)
}

/// Adds the content that kubelets report about nodes.
pub(crate) fn node(mut node: Value) -> Value {
    let amounts = json!({"cpu": "16", "memory": "65843324Ki", "pods": "110", "ephemeral-storage": "206291924Ki"});
    node["status"]["capacity"] = amounts.clone();
    node["status"]["allocatable"] = amounts;
    node["status"]["nodeInfo"] = json!({
        "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.34.0",
        "containerRuntimeVersion": "containerd://2.1.0", "osImage": "Debian GNU/Linux 12 (bookworm)",
    });
    with_owner(
        node,
        "kubelet",
        json!({"f:status": {"f:allocatable": {}, "f:capacity": {}, "f:conditions": {}, "f:images": {}, "f:nodeInfo": {}}}),
    )
}

fn with_owner(mut object: Value, manager: &str, fields: Value) -> Value {
    object["metadata"]["creationTimestamp"] = json!(CREATED);
    object["metadata"]["managedFields"] = json!([{
        "manager": manager, "operation": "Update", "apiVersion": object["apiVersion"], "time": CREATED,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }]);
    object
}

/// The release whose standard channel contains the kinds of [`Family::GatewayApi`].
const GATEWAY_API_RELEASE: &str = "v1.6.0";

/// Returns the definition of a custom kind, without its schema.
pub(crate) fn definition(row: &Resource) -> Value {
    // Clients check this annotation to see whether they support the release.
    let annotations = match row.family {
        Family::GatewayApi => {
            json!({"gateway.networking.k8s.io/bundle-version": GATEWAY_API_RELEASE})
        }
        _ => json!({}),
    };
    let version =
        |(i, name): (usize, &&str)| json!({"name": name, "served": true, "storage": i == 0});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": row.qualified(), "creationTimestamp": CREATED, "annotations": annotations,
        },
        "spec": {
            "group": row.group,
            "names": {"plural": row.plural, "kind": row.kind, "listKind": format!("{}List", row.kind)},
            "scope": if row.namespaced { "Namespaced" } else { "Cluster" },
            "versions": row.versions.iter().enumerate().map(version).collect::<Vec<_>>(),
        },
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    })
}
