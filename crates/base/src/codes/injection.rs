//! 09xx: injection of sidecars into pods.

use super::code::Code;

codes! {
    /// runAsUser, runAsGroup.
    INJECT_PROXY_USER = "STR0901", "a container runs as the sidecar's user",
        "Give the container another user and group than 1337, or exclude the pod from the mesh:
label strait.dev/inject: \"false\".", "\
The sidecar's own connections must not be redirected to it again, so the redirection rules exempt user and
group 1337. An application that runs as 1337 would bypass the sidecar and every policy without notice. The
user of an image (USER 1337) is not visible when a pod is created: check your images.";

    /// hostNetwork.
    INJECT_HOST_NETWORK = "STR0902", "a pod with hostNetwork requests a sidecar",
        "Remove hostNetwork, or the label strait.dev/inject: \"true\".", "\
With hostNetwork: true the pod has no separate network: redirection rules would apply to the entire node.
In namespaces with injection, such pods are not changed. A pod that requests a sidecar itself is refused,
because it would run without one.";

    /// os, nodeSelector.
    INJECT_WINDOWS = "STR0903", "a Windows pod cannot have a sidecar",
        "Exclude the pod from the mesh: label strait.dev/inject: \"false\".", "\
The Linux kernel redirects the traffic. A pod for Windows (spec.os.name, or the node selector
kubernetes.io/os) cannot be redirected. If injection applies to it, it is refused, so that it is not
mistaken for a member of the mesh.";

    /// Containers and volumes.
    INJECT_NAME_TAKEN = "STR0904", "the pod has a container or volume with a name of the sidecar's",
        "Rename it. If another mesh injects the pod as well, exclude the pod from either of them.", "\
The sidecar's containers are strait-proxy and strait-redirect (istio-proxy if Istio's CNI plugin redirects),
its volumes are strait-token, strait-roots and strait-run. A pod with containers of Istio's names has
Istio's sidecar: two sidecars in one pod would redirect each other's traffic.";

    /// containerPort.
    INJECT_PORT_TAKEN = "STR0905", "a container declares a port of the sidecar",
        "Let the application listen on another port.", "\
All containers of a pod share the ports. The sidecar listens on 15000 (admin), 15001 (outbound), 15006
(inbound), 15020 (agent), 15021 (health), 15053 (DNS) and 15090 (metrics): the second process on a port
cannot start.";

    /// Labels and annotations.
    INJECT_ANNOTATION = "STR0906", "a label or annotation for the sidecar is invalid",
        "Correct the value, or remove the label or annotation.", "\
The annotations traffic.sidecar.istio.io/* and sidecar.istio.io/* configure redirection and the sidecar;
docs/how-to/inject-sidecars.md lists the supported ones. A pod with an invalid annotation is refused, because
a guess could redirect the wrong ports.";

    /// An object that is not a pod.
    INJECT_MISSHAPEN = "STR0907", "the object does not have the structure of a pod",
        "Check it: kubectl apply --dry-run=server -f FILE", "\
A pod, or a workload's pod template, has metadata and a spec with a list of containers. Other objects are
not changed.";

    /// failurePolicy.
    INJECT_AWAY = "STR0910", "the failure policy for new pods while the control plane is unreachable",
        "Choose: strait cluster add CONTEXT --inject --inject-failure-policy fail|ignore -o yaml, and apply it.", "\
An API server that cannot reach the webhook follows its failurePolicy. With Fail, it does not create pods to
which the webhook applies: no pod runs outside the mesh unnoticed, but a failed pod is not replaced. With
Ignore, it creates them without a sidecar, and they have none until they are replaced. Other pods are not
affected. Run several replicas of the control plane in either case.";

    /// caBundle.
    INJECT_UNKNOWN = "STR0911", "an API server does not trust the webhook's certificate",
        "Apply the output of: strait cluster add CONTEXT --inject --inject-failure-policy fail|ignore -o yaml", "\
The API server only trusts the roots in caBundle of the MutatingWebhookConfiguration strait-inject. After a
replacement of the CA these are outdated: the API server cannot call the webhook and applies failurePolicy
as for a webhook that does not respond. caBundle must contain the roots that the config cluster publishes
(ConfigMap istio-ca-root-cert).";

    /// Registration of a webhook.
    INJECT_ASTRAY = "STR0915", "the registration of a webhook does not point to the control plane",
        "Correct the object that is named. For strait-inject, apply the output of: strait cluster add CONTEXT --inject
--inject-failure-policy fail|ignore -o yaml", "\
The API server calls the Service or URL in the webhook configuration. If the Service does not exist, has
another port or no ready endpoint, the API server applies failurePolicy. The path of strait-inject names the
cluster, and possibly the network, that new pods claim: with a wrong one, their proxies are refused, or
receive the addresses of another network. The validating webhook has the path /validate.";

    /// strait check --traffic --probes.
    PROBE_AWAY = "STR0913", "the probe of a cluster cannot be queried",
        "Check whether it runs: kubectl --context CONTEXT get pods -A -l app.kubernetes.io/name=strait-probe
and its log: kubectl --context CONTEXT -n NAMESPACE logs deployment/strait-probe -c probe
If it is missing, install it: the chart strait-member with probe.enabled.", "\
`strait check --traffic --probes` reads the last results of each cluster's probe through the cluster's API
server, with the rights of the context: `list` of pods, `get` of `pods/proxy` in the probe's namespace. A
probe that cannot test, because the control plane or its identity is missing, reports this and its last
results. The results of other clusters' probes are shown nevertheless.";

    /// strait check --traffic --direct.
    POD_UNREACHABLE = "STR0914", "a pod of another cluster in the same network is unreachable",
        "Make the network carry the pods of both clusters (routes, firewalls, NetworkPolicies). Or give one cluster
a separate network (annotation strait.dev/network of its Secret) and a gateway.", "\
Clusters in one network are assumed to reach each other's pods, and their proxies receive the pods' own
addresses. `strait check --traffic --direct` connects to a pod in the same way, from where it runs. If the
pods of another cluster are unreachable, the clusters are in different networks, whatever labels claim, and
traffic must use a gateway.";
}
