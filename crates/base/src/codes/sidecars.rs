//! 106x: Sidecars and Telemetries.

use super::code::Code;

codes! {
    /// Sidecar: spec.egress.hosts.
    SIDECAR_HOST = "STR1060", "a host of a Sidecar does not import the intended services",
        "Write NAMESPACE/HOST. NAMESPACE is a name, . or *; HOST is a full name, *.suffix or *.", "\
Each host is evaluated separately. An invalid host imports no service; the other hosts apply. ~ before the
namespace excludes hosts that others import. A name without a dot is a full name, as an entry may have: it
is not the short name of a Service.";

    /// Sidecar: spec.outboundTrafficPolicy.
    SIDECAR_POLICY = "STR1061", "an outboundTrafficPolicy has no mode",
        "Write mode: REGISTRY_ONLY or mode: ALLOW_ANY.", "\
As in Istio, a policy without a mode is REGISTRY_ONLY, not the mode of the mesh: proxies only reach
destinations that the mesh knows.";

    /// Two Sidecars in one namespace.
    SIDECAR_SHADOWED = "STR1062", "another Sidecar applies instead of this one",
        "Merge the two, or give one a separate workloadSelector.", "\
A proxy uses one Sidecar: the oldest in its namespace that selects it by labels, otherwise the oldest for
the namespace, otherwise the oldest in the root namespace. Two are never merged.";

    /// explain: export.
    NOT_IMPORTED = "STR1063", "the Sidecar of the proxy does not import the service",
        "Add the host to spec.egress of the named Sidecar, as NAMESPACE/HOST.", "\
A Sidecar names the services that its proxies receive. The namespace of a service is that of the Service or
ServiceEntry. Proxies also receive services to which imported rules route.";

    /// Two Telemetry objects in one namespace.
    TELEMETRY_SHADOWED = "STR1064", "another Telemetry applies instead of this one",
        "Merge the two, or give one a separate selector.", "\
The oldest Telemetry for all proxies of a namespace applies, and the oldest that selects a proxy by labels.
Settings for logs come from the object that selects the proxy, otherwise from the namespace's object,
otherwise from the root namespace's object.";

    /// Telemetry: providers.
    TELEMETRY_PROVIDER = "STR1065", "a Telemetry names an unusable provider for logs or traces",
        "Name an item of extensionProviders (mesh config): envoy or a file for logs; zipkin or opentelemetry for spans.", "\
Proxies write the logs that the mesh config defines, and send spans to a tracing provider of the mesh
config. An unknown name is ignored, and the object's settings for other providers apply. No spans are sent
if a proxy cannot reach the service: it must be known, exported to the proxy's namespace, and have the port.";

    /// Two ProxyConfigs for the same pods.
    PROXY_CONFIG_SHADOWED = "STR1069", "another ProxyConfig applies instead of this one",
        "Merge the two, or give one a separate selector.", "\
The oldest ProxyConfig for all pods of a namespace applies, and the oldest that selects a pod by labels. A
setting comes from the object that selects the pod, otherwise from the namespace's object, otherwise from the
root namespace's object. It applies to sidecars of pods that are created afterwards.";

    /// Sidecar: spec.ingress.
    SIDECAR_INGRESS = "STR1072", "an ingress listener of a Sidecar is omitted",
        "Correct the named field: a port, a defaultEndpoint of the pod, files for TLS.", "\
Each listener is evaluated separately. An invalid one is omitted, and its port is handled like any port
without a service. A Sidecar with ingress listeners defines the inbound traffic of all ports of a workload
instead of its services, even if no listener is valid.";

    /// Sidecar: spec.ingress.tls.
    SIDECAR_INGRESS_TLS = "STR1073", "TLS of a Sidecar's ingress listener has no effect on a port that accepts mTLS",
        "Set mode DISABLE for the port in a PeerAuthentication (portLevelMtls), or remove spec.ingress.tls.", "\
As in Istio, a Sidecar only terminates TLS on a port if a PeerAuthentication disables the mesh's mTLS for
the port. On other ports the setting has no effect: mTLS and plain text are accepted according to the
PeerAuthentication.";

    /// Sidecar: spec.egress.bind, spec.egress.captureMode.
    SIDECAR_EGRESS_ADDRESS = "STR1074", "an egress listener of a Sidecar has an invalid address",
        "Name a port and one IP address, or remove bind and captureMode.", "\
An egress listener with a port may have a separate address (bind), and the proxy may listen on it directly
(captureMode: NONE, at 127.0.0.1 by default). All listeners of a port must have the same address, and must
all be for services or all for HTTP proxy requests (HTTP_PROXY). An invalid one is omitted: its hosts are
not reached through it.";

    /// Sidecar: spec.outboundTrafficPolicy.egressProxy.
    SIDECAR_EGRESS_PROXY = "STR1075", "an egressProxy receives no traffic",
        "Name host and port.number, and write mode: ALLOW_ANY.", "\
The egressProxy receives connections to unknown destinations, if these are allowed at all. Its service must
be among the hosts that the Sidecar imports.";
}
