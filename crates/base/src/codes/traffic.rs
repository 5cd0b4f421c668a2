//! 10xx: traffic configuration.

use super::code::Code;

codes! {
    /// An object that its schema rejects.
    TRAFFIC_MALFORMED = "STR1001", "an object of the traffic configuration does not fit its schema",
        "Correct the field that is named; it is read again by itself.", "\
A field has a value of a type, or a word, that the schema doesn't know. The object's last form that did
fit stays in force, whole; where there is none, over a restart either, it is as if it were absent. No
other object is affected.";

    /// An invalid host.
    TRAFFIC_HOST = "STR1002", "a host that is no DNS name and no wildcard",
        "Write a full name, a Service's short name, * or *.suffix.", "\
Hosts are DNS names; a name without a dot is a Service of the object's own namespace; a wildcard is * or
begins with *. and has no other star. What names no host that can be, holds for nothing.";

    /// An invalid subset.
    TRAFFIC_SUBSET = "STR1003", "a subset that can't be used",
        "Give each subset of the rule its own name of letters, digits, - . and _", "\
The name of a subset becomes a part of the names of upstream clusters and of SNIs, which other parties
take apart again. Of two subsets of one name the first counts. Each is an upstream cluster for each port
of each service: a rule may have 4,096, for a wildcard 256. The rest of the rule holds.";

    /// Settings for an invalid port.
    TRAFFIC_PORT = "STR1004", "a number that is no port",
        "Name a port of the service, from 1 to 65535.", "\
Settings for a port count where the service has that port; settings for what is no port count nowhere.
The rest of the object holds.";

    /// A known field without support.
    TRAFFIC_UNSUPPORTED = "STR1005", "a field that has no effect here",
        "Remove it if you don't need it; docs/guide/traffic.md says what is there instead.", "\
The schema has the field and Strait doesn't follow it, or there is no such field: an API server that knows the
kind leaves out what is misspelt, files say it as it stands. The rest of the object holds.";

    /// A setting that another one replaces.
    TRAFFIC_REPLACED = "STR1006", "a setting that another one replaces",
        "Say in the place that counts all that shall hold there.", "\
Groups of settings count whole: those of a port replace those of the service, those of a subset the same
groups of the service, and of two that exclude each other one counts. Nothing is mixed inside a group.";

    /// A value that Envoy refuses.
    TRAFFIC_VALUE = "STR1007", "a value that proxies would refuse",
        "Correct the value that is named.", "\
Proxies refuse whole tables for one such value, so it is not sent: the text says what counts in its
place. The rest of the object holds.";

    /// The default mode DISABLE.
    TRAFFIC_PLAIN_TEXT = "STR1008", "a tls block without a mode means plain text",
        "Name the mode: ISTIO_MUTUAL, SIMPLE, MUTUAL or DISABLE.", "\
The schema's first mode is DISABLE, so a block that names none turns TLS off, the mesh's own included. It
is followed, since other control planes do the same, and said.";

    /// TLS settings that cannot be applied.
    TRAFFIC_TLS = "STR1009", "TLS to a service that can't be made as it is asked for",
        "Name the certificates that the mode needs, or choose another mode.", "\
The mode needs certificates that the rule doesn't name, or that this kind of proxy can't be given: Secrets
(credentialName) are given to routers by any rule, to sidecars by one with a workloadSelector alone.
Nothing is sent in plain text in its place: the upstream cluster is left out, and requests fail.";

    /// `insecureSkipVerify` with names.
    TRAFFIC_TLS_UNCHECKED = "STR1013", "the certificate of a server is not verified, although names are given for it",
        "Remove insecureSkipVerify and name the roots in caCertificates, or remove subjectAltNames.", "\
With insecureSkipVerify a proxy verifies neither the issuer of the server's certificate nor its names, as in
Istio. Any server that answers at the address is accepted, although subjectAltNames asks for certain ones.";

    /// A host or address of an entry that another object has.
    ENTRY_OWNED = "STR1014", "another object has a host or an address of a ServiceEntry",
        "Give the entry a host and addresses of its own, or remove it.", "\
Services of clusters come before ServiceEntries, and older ServiceEntries before younger ones. A host that
another namespace has is not merged. An address or a range that leads to another service stays with that
service, at each port that both have. The text names the owner.";

    /// A server of a Gateway.
    GATEWAY_SERVER = "STR1010", "a server of a Gateway that can't be served as it is written",
        "Correct the field that is named; it is read again by itself.", "\
A server needs a port, a protocol, a host, and in TLS a mode and what that mode asks for. One that lacks
it is left out, and so is a host that can't be one; all other servers and hosts hold.";

    /// Two servers on one port.
    GATEWAY_CONFLICT = "STR1011", "a server of a Gateway asks for what an older Gateway has",
        "Give one of the two another host or another port, or make them one Gateway.", "\
Gateways that select the same routers share their ports. On a port in plain text the oldest server says
what is spoken; in TLS a host belongs to the oldest server that has it, whichever namespace it is for. What
another has is left out, and the rest holds.";

    /// A VirtualService without a Gateway.
    GATEWAY_UNBOUND = "STR1012", "a VirtualService names a Gateway that doesn't serve it",
        "Create the Gateway, or give one of its servers a host of the VirtualService.", "\
Through a Gateway a VirtualService is served if a server of it has a host in common with it, and takes
VirtualServices of its namespace (`namespace/host`). There it is not, or not for the host that is named;
elsewhere it holds.";

    /// proxies: secrets.
    SECRETS_SURPLUS = "STR1082", "a gateway asks for more secrets than it is given",
        "Give some of the hosts a gateway of their own, or certificates for several hosts (*.example.com).", "\
One proxy is given 4,096 secrets: certificates of servers, and roots for their clients. What it asks for
beyond these it is told not to wait for: those servers take no connection, and all others serve. Which they
are: strait proxy get PROXY.";

    /// The number of routes from an object.
    ROUTES_SURPLUS = "STR1085", "objects have more rules than proxies are sent",
        "Give the objects of the namespace fewer rules, or move some of them to another namespace.", "\
The action of a rule of a VirtualService is sent with each of its conditions, and the rules of a delegate for
each rule that delegates to it, so that a small object could become gigabytes. The rules of one object may
have 16 MiB as they are written, each part counted as often as it is sent, and 50,000 pairs of conditions of
rules and their delegates. An object past that keeps its last valid version; a rule that delegates past that
is treated as absent. The objects of one namespace may add 16 MiB of encoded routes and filter chains to one
proxy; past that the youngest of them apply to no proxy. All other objects apply.";

    /// An object with too many entries.
    OBJECT_SURPLUS = "STR1096", "an object has more entries than one object may have",
        "Make several objects of it.", "\
Each entry of a list takes time and memory. One list or map may have 4,096 entries, the hosts of a
VirtualService or a ServiceEntry 2,048, the patches of an EnvoyFilter 1,024, parents and hosts of a route
256, and one object 65,536 values. Lists that are combined with each other may have 65,536 combinations. An
object beyond a limit is refused: its last valid version stays, and all other objects apply.";

    /// An object that takes too much CPU time.
    OBJECT_COST = "STR1097", "an object takes more CPU time than one object may take",
        "Make several objects of it, and report it: no known object within the limits of STR1096 takes so long.", "\
The time for reading an object and combining it with other objects is measured as CPU time, so that a busy
machine does not count. All other changes wait meanwhile. An object that takes too long is refused: its
last valid version stays, and all other objects apply.";
}
