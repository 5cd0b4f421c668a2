//! 09xx: injection of sidecars into pods.

use super::code::Code;

codes! {
    /// runAsUser, runAsGroup.
    INJECT_PROXY_USER = "STR0901", "a container runs as the sidecar's user",
        "Give the container another user and group than 1337, or leave the pod out of the mesh:
label strait.dev/inject: \"false\".", "\
What the sidecar sends must not be redirected to the sidecar again, so the rules of redirection except user
and group 1337. An application that runs as 1337 would go past the sidecar, and past every policy with it, and
nobody would notice. The user of an image (USER 1337) can't be seen when a pod is made: look at your images.";

    /// hostNetwork.
    INJECT_HOST_NETWORK = "STR0902", "a pod on its node's network asks for a sidecar",
        "Take away hostNetwork, or the label strait.dev/inject: \"true\".", "\
With hostNetwork: true the pod has no network of its own: rules of redirection would be the node's, and hold
for everything on it. In namespaces that are injected such pods stay as they are; one that asks for a sidecar
itself is refused, since it would run without.";

    /// os, nodeSelector.
    INJECT_WINDOWS = "STR0903", "a Windows pod can't have a sidecar",
        "Leave the pod out of the mesh: label strait.dev/inject: \"false\".", "\
Traffic is redirected by the Linux kernel. A pod that names Windows (spec.os.name, or the node selector
kubernetes.io/os) can't be redirected, and is refused where pods are injected, so that nobody believes it to
be in the mesh.";

    /// Containers and volumes.
    INJECT_NAME_TAKEN = "STR0904", "the pod has a container or volume with a name of the sidecar's",
        "Rename it. Where another mesh injects the pod as well, have one of them leave it alone.", "\
The sidecar's containers are strait-proxy and strait-redirect (istio-proxy where Istio's CNI plugin
redirects), its volumes strait-token, strait-roots and strait-run. A pod with containers of Istio's names has
a sidecar of Istio's: two in one pod would redirect each other's traffic.";

    /// containerPort.
    INJECT_PORT_TAKEN = "STR0905", "a container declares a port of the sidecar",
        "Have the application listen on another port.", "\
In a pod all containers share the ports. The sidecar listens on 15000 (admin), 15001 (outbound), 15006
(inbound), 15020 (agent), 15021 (health), 15053 (DNS) and 15090 (metrics): whoever comes second can't start.";

    /// Labels and annotations.
    INJECT_ANNOTATION = "STR0906", "a label or annotation for the sidecar can't be followed",
        "Correct the value, or take the label or annotation away.", "\
Annotations traffic.sidecar.istio.io/* and sidecar.istio.io/* say what is redirected and what the sidecar
gets; docs/guide/injection.md lists those that count. One that can't be read refuses the pod: with a guess in
its place, ports would be redirected that should not be, or the other way round.";

    /// An object that is not a pod.
    INJECT_MISSHAPEN = "STR0907", "the object does not have the form of a pod",
        "Check it: kubectl apply --dry-run=server -f FILE", "\
A pod, or a workload's template of pods, has metadata and a spec with a list of containers. What has another
form is left as it is.";

    /// failurePolicy.
    INJECT_AWAY = "STR0910", "what becomes of new pods while the control plane doesn't answer",
        "Choose: strait cluster add CONTEXT --inject --inject-failure-policy fail|ignore -o yaml, and apply it.", "\
An API server that can't reach the webhook follows its failurePolicy. With Fail, pods that it is asked about
are not made: none runs outside of the mesh unnoticed, and one that dies then is not replaced. With Ignore
they are made without a sidecar, and stay so until somebody deletes them. Pods that nobody asks a sidecar for
are not touched. Run several replicas of the control plane, whichever you choose.";

    /// caBundle.
    INJECT_UNKNOWN = "STR0911", "an API server doesn't know the webhook by its certificate",
        "Apply what this prints: strait cluster add CONTEXT --inject --inject-failure-policy fail|ignore -o yaml", "\
The API server believes the roots in caBundle of the MutatingWebhookConfiguration strait-inject, and no
others. After the CA was replaced these are the old ones: it can't ask, and does what failurePolicy says of a
webhook that doesn't answer. The roots that the config cluster publishes (ConfigMap istio-ca-root-cert) belong
there.";

    /// strait check --traffic --probes.
    PROBE_AWAY = "STR0913", "the probe of a cluster can't be asked",
        "See whether it runs: kubectl --context CONTEXT get pods -A -l app.kubernetes.io/name=strait-probe
and what it says: kubectl --context CONTEXT -n NAMESPACE logs deployment/strait-probe -c probe
There is none yet: the chart strait-member has it, with probe.enabled.", "\
`strait check --traffic --probes` reads what the probe in each cluster found last, by the API server of the
cluster and with the rights of the context: `list` of pods, `get` of `pods/proxy` in the probe's namespace.
A probe that runs and can't ask, since the control plane or its identity is away, tells that and what it found
before. What other clusters' probes found is shown all the same.";

    /// strait check --traffic --direct.
    POD_UNREACHABLE = "STR0914", "a pod of another cluster in the same network can't be dialled",
        "Have the network carry the pods of both clusters (routes, firewalls, NetworkPolicies); or give one of them
a network of its own, by the annotation strait.dev/network of its Secret, and gateways.", "\
Clusters of one network are taken to reach each other's pods, and their proxies are given the pods' own
addresses. `strait check --traffic --direct` dials one as they do, from where it runs. Where pods of another
cluster can't be reached the two are different networks, whatever labels say, and traffic enters by a gateway.";
}
