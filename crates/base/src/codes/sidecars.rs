//! 106x: Sidecars and Telemetries.

use super::code::Code;

codes! {
    /// Sidecar: spec.egress.hosts.
    SIDECAR_HOST = "STR1060", "a host of a Sidecar that imports nothing, or not what it seems to",
        "Write NAMESPACE/HOST: a name, ., or * for the namespace, a full name, *.suffix or * for the host.", "\
Each host is read by itself. One that can't be read imports nothing; the others hold. ~ before the
namespace leaves hosts out that others import. A name without a dot is a full name, as an entry may
have: it is no short form of a Service's.";

    /// Sidecar: spec.outboundTrafficPolicy.
    SIDECAR_POLICY = "STR1061", "an outboundTrafficPolicy without a mode",
        "Write mode: REGISTRY_ONLY or mode: ALLOW_ANY.", "\
As in Istio, a policy that is there without a mode is REGISTRY_ONLY, not the mode of the mesh: proxies
reach what the mesh knows, and nothing else.";

    /// Two Sidecars in one namespace.
    SIDECAR_SHADOWED = "STR1062", "another Sidecar counts in place of this one",
        "Merge the two, or give one a workloadSelector of its own.", "\
A proxy follows one Sidecar: of its namespace the oldest that selects it by labels, else the oldest for
the namespace, else the oldest of the root namespace. Two are never mixed.";

    /// explain: export.
    NOT_IMPORTED = "STR1063", "the Sidecar that the proxy follows leaves the service out",
        "Add the host to spec.egress of the Sidecar that is named, as NAMESPACE/HOST.", "\
A Sidecar names the services that the proxies it holds for are given. The namespace of one of these is
that of the Service or ServiceEntry; services that imported rules lead to are given as well.";

    /// Two Telemetry objects in one namespace.
    TELEMETRY_SHADOWED = "STR1064", "another Telemetry counts in place of this one",
        "Merge the two, or give one a selector of its own.", "\
Of the Telemetry objects for all proxies of a namespace the oldest counts, and of those that select a
proxy by labels the oldest. What they say of logs holds over what the namespace says, and that over what
the root namespace says.";

    /// Telemetry: providers.
    TELEMETRY_PROVIDER = "STR1065", "a Telemetry names a provider that logs or traces can't go to",
        "Name one of extensionProviders in the mesh config: of logs envoy or a file, of traces zipkin or opentelemetry.", "\
Proxies write the logs that the mesh config describes, and send spans to the service of one of its providers.
A name that it doesn't have is left out, and what the object says of others holds. Spans go nowhere where a
proxy can't reach the service: it must be known, exported to the proxy's namespace, and have that port.";

    /// Two ProxyConfigs for the same pods.
    PROXY_CONFIG_SHADOWED = "STR1069", "another ProxyConfig counts in place of this one",
        "Merge the two, or give one a selector of its own.", "\
Of the ProxyConfigs for all pods of a namespace the oldest counts, and of those that select a pod by labels
the oldest. What they say holds over what the namespace says, and that over what the root namespace says,
in sidecars of pods that are made from then on.";

    /// Sidecar: spec.ingress.
    SIDECAR_INGRESS = "STR1072", "an ingress listener of a Sidecar that is not there",
        "Mend the field that is named: a port, a defaultEndpoint of the pod, files for TLS.", "\
Each listener is read by itself; one that can't be read is left out, and its port is like any that no
service names. A Sidecar with ingress listeners says of all ports of a workload what is taken in, in place
of its services, even if none of the listeners can be read.";

    /// Sidecar: spec.ingress.tls.
    SIDECAR_INGRESS_TLS = "STR1073", "TLS of an ingress listener at a port that takes mTLS",
        "Set mode DISABLE for the port in a PeerAuthentication (portLevelMtls), or remove spec.ingress.tls.", "\
As in Istio, a Sidecar's own TLS ends at a port only where a PeerAuthentication says that the port takes no
mTLS of the mesh. At others it has no effect: mTLS and plain text are taken as the PeerAuthentication says.";

    /// Sidecar: spec.egress.bind, spec.egress.captureMode.
    SIDECAR_EGRESS_ADDRESS = "STR1074", "an egress listener of a Sidecar at an address that is none",
        "Name a port and one IP address, or leave out bind and captureMode.", "\
An egress listener with a port may be reached at an address of its own (bind), and the proxy may listen
there itself (captureMode: NONE, at 127.0.0.1 unless bind says otherwise). All listeners of a port are at
one address, and for services or, all of them, for requests to a proxy (HTTP_PROXY). One that can't be
made is left out: its hosts are not reached by it.";

    /// Sidecar: spec.outboundTrafficPolicy.egressProxy.
    SIDECAR_EGRESS_PROXY = "STR1075", "an egressProxy that is sent nothing",
        "Name host and port.number, and write mode: ALLOW_ANY.", "\
What the mesh doesn't know is sent to the egressProxy where it may pass at all. The service must be among
the hosts that the Sidecar imports.";
}
