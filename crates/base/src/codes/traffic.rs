//! 10xx: traffic configuration.

use super::code::Code;

codes! {
    /// An object that its schema rejects.
    TRAFFIC_MALFORMED = "STR1001", "an object of the traffic configuration does not match its schema",
        "Correct the named field. Strait reads the object again automatically.", "\
A field has a value with a type or keyword that the schema does not allow. The entire last valid version of
the object stays active. Without one, also from before a restart, the object is ignored. No other
object is affected.";

    /// An invalid host.
    TRAFFIC_HOST = "STR1002", "a host is neither a DNS name nor a wildcard",
        "Write a full name, a Service's short name, * or *.suffix.", "\
Hosts are DNS names. A name without a dot is a Service in the object's own namespace. A wildcard is * or
starts with *. and has no other star. An invalid host has no effect.";

    /// An invalid subset.
    TRAFFIC_SUBSET = "STR1003", "a subset cannot be used",
        "Give each subset of the rule a unique name of letters, digits, - . and _", "\
The name of a subset becomes part of the names of upstream clusters and SNIs, which other components parse.
If two subsets have the same name, the first one applies. Each subset is an upstream cluster for each port
of each service: a rule may have 4,096 subsets, for a wildcard host 256. The rest of the rule applies.";

    /// Settings for an invalid port.
    TRAFFIC_PORT = "STR1004", "a port number is invalid",
        "Name a port of the service, or for inbound traffic of the workload (targetPort), from 1 to 65535.", "\
Settings for a port apply if the service has the port. Inbound listeners have the ports of the workload: a
Service maps each of its ports to one of them (targetPort). Settings for an invalid port never apply. The
rest of the object applies.";

    /// A known field without support.
    TRAFFIC_UNSUPPORTED = "STR1005", "a field has no effect",
        "Remove the field if you do not need it. docs/reference/traffic-support.md describes alternatives.", "\
The field is in the schema but Strait does not support it, or it does not exist: an API server that knows
the kind removes misspelt fields, but files may contain them. The rest of the object applies.";

    /// A setting that another one replaces.
    TRAFFIC_REPLACED = "STR1006", "a setting is replaced by one that takes precedence",
        "Put all settings into the place that takes precedence.", "\
Settings apply in groups: the settings of a port replace the same groups of the service, and so do the
settings of a subset. If two groups exclude each other, only one applies. Settings within a group are never
merged.";

    /// A value that Envoy refuses.
    TRAFFIC_VALUE = "STR1007", "proxies would refuse a value",
        "Correct the named value.", "\
A proxy refuses an entire resource for one such value, so it is not sent: the message states what applies
instead. The rest of the object applies.";

    /// The default mode DISABLE.
    TRAFFIC_PLAIN_TEXT = "STR1008", "a tls block without a mode means plain text",
        "Name the mode: ISTIO_MUTUAL, SIMPLE, MUTUAL or DISABLE.", "\
The schema's default mode is DISABLE, so a block without a mode turns TLS off, including the mesh's mTLS.
Strait applies it like other control planes, and reports it.";

    /// TLS settings that cannot be applied.
    TRAFFIC_TLS = "STR1009", "the requested TLS to a service is not possible",
        "Name the certificates that the mode needs, or choose another mode.", "\
The mode needs certificates that the rule does not name, or that this kind of proxy cannot receive: routers
receive Secrets (credentialName) from any rule, sidecars only from a rule with a workloadSelector. Strait
does not fall back to plain text: it omits the upstream cluster, and requests fail.";

    /// `insecureSkipVerify` with names.
    TRAFFIC_TLS_UNCHECKED = "STR1013", "the certificate of a server is not verified, although the rule lists names for it",
        "Remove insecureSkipVerify and name the roots in caCertificates, or remove subjectAltNames.", "\
With insecureSkipVerify a proxy verifies neither the issuer of the server's certificate nor its names, as in
Istio. Any server that answers at the address is accepted, although subjectAltNames requires certain names.";

    /// A TLS mode that servers refuse.
    TLS_REFUSED = "STR1031", "no endpoint accepts the TLS mode of a DestinationRule",
        "Remove the mode, so that clients follow the PeerAuthentication, or change the PeerAuthentication.", "\
Without a mode, clients send mTLS to each endpoint that accepts it, and plain text to all others. A mode
applies to all endpoints: DISABLE and SIMPLE fail at endpoints whose PeerAuthentication is STRICT, and
ISTIO_MUTUAL fails at endpoints without a sidecar or with the mode DISABLE. This is reported if the pods of
all endpoints are known, and all refuse. Ports that pods exclude from redirection (excludeInboundPorts) are
unknown: they accept what the application accepts.";

    /// A host or address of an entry that another object has.
    ENTRY_OWNED = "STR1014", "another object has a host or an address of a ServiceEntry",
        "Give the entry unique hosts and addresses, or remove it.", "\
Services of clusters take precedence over ServiceEntries, and older ServiceEntries over younger ones. A host
of another namespace is not merged. An address or range of another service stays with that service, at each
port that both have, and so does a short name of a Service (NAME.NAMESPACE). Of several entries without an
address that have the same TCP port, one receives the connections of clients that do not resolve names with
the agent's DNS. The message names the owner.";

    /// A server of a Gateway.
    GATEWAY_SERVER = "STR1010", "a server of a Gateway cannot be served as written",
        "Correct the named field. Strait reads the object again automatically.", "\
A server needs a port, a protocol, a host, and for TLS a mode with its required settings. An incomplete
server or an invalid host is omitted. All other servers and hosts apply.";

    /// Two servers on one port.
    GATEWAY_CONFLICT = "STR1011", "a server of a Gateway conflicts with another Gateway",
        "Give either of the two another host or port, or merge them into one Gateway.", "\
Gateways that select the same routers share their ports. On a plain-text port, the oldest server determines
the protocol. With TLS, a host belongs to the oldest server that has it, whichever namespace it is for. The
conflicting part is omitted, and the rest applies. If any server of a plain-text port redirects a host to
HTTPS (httpsRedirect), no server of the port serves the host in plain text.";

    /// A VirtualService without a Gateway.
    GATEWAY_UNBOUND = "STR1012", "a VirtualService names a Gateway that does not serve it",
        "Create the Gateway, or add a host of the VirtualService to a server of the Gateway.", "\
A Gateway serves a VirtualService if at least one server of the Gateway has a host of the VirtualService and
accepts the VirtualService's namespace (`namespace/host`). Servers and hosts that belong to another Gateway
(STR1011) serve nothing. This Gateway does not serve it, or not for the named host. The VirtualService applies
elsewhere.";

    /// proxies: secrets.
    SECRETS_SURPLUS = "STR1082", "a gateway requests more secrets than it can receive",
        "Give some of the hosts a separate gateway, or use certificates for several hosts (*.example.com).", "\
One proxy receives at most 4,096 secrets: certificates of servers, and roots for their clients. Strait tells
the proxy not to wait for further ones: those servers accept no connections, and all others work. To list
them: strait proxy get PROXY.";

    /// The number of routes from an object.
    ROUTES_SURPLUS = "STR1085", "objects have more rules than proxies receive",
        "Give the objects of the namespace fewer rules, or move some of them to another namespace.", "\
The action of a VirtualService's rule is sent with each of its conditions, and the rules of a delegate for
each rule that delegates to it, so the configuration for a small object could become gigabytes. The rules of
one object may have 16 MiB as written, counting each part as often as it is sent, and 50,000 pairs of
conditions of rules and their delegates. Beyond that, the last valid version of the object stays active; a
rule that delegates beyond the limit is ignored. The objects of one namespace may add 16 MiB of encoded
routes and filter chains to one proxy; beyond that, the youngest of them apply to no proxy. All other
objects apply.";

    /// An object with too many entries.
    OBJECT_SURPLUS = "STR1096", "an object has more entries than one object may have",
        "Split it into several objects.", "\
Each entry of a list takes time and memory. One list or map may have 4,096 entries, the hosts of a
VirtualService or a ServiceEntry 2,048, the patches of an EnvoyFilter 1,024, parents and hosts of a route
256, and one object 65,536 values. Lists that are combined with each other may have 65,536 combinations. An
object beyond a limit is refused: its last valid version stays, and all other objects apply.";

    /// An object that takes too much CPU time.
    OBJECT_COST = "STR1097", "an object takes more CPU time than one object may take",
        "Split it into several objects, and report it: no known object within the limits of STR1096 takes so long.", "\
Strait measures the CPU time for reading an object and combining it with other objects, so that the load of
the machine has no influence. All other changes wait meanwhile. An object that takes too long is refused:
its last valid version stays active, and all other objects apply.";
}
