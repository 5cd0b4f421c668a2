//! 034x and 035x: relays, through which the hub reads members that it cannot dial.

use super::code::Code;

codes! {
    /// Member state.
    RELAY_AWAY = "STR0340", "the member's relay is not connected",
        "Read the relay's log in the member: kubectl logs -n strait-system deployment/strait-relay
Then check that it reaches the hub's port 15012.", "\
The hub does not dial this member; a relay in the member dials the hub. While no relay is connected, the last
known data of the member stays in use, and new endpoints of it are not seen.";

    /// Response of a relay.
    RELAY_REFUSES = "STR0341", "the relay does not forward this request",
        "If the hub needs it, widen the list of the relay with its flags: strait help relay", "\
A relay forwards only the requests on its list: lists and watches of the kinds that Strait reads, and reviews
of tokens. Requests for single Secrets, for pods' logs or shells, and all requests that write are refused
unless a flag of the relay permits them.";

    /// Enrolment.
    RELAY_REQUEST = "STR0342", "a relay's request for a certificate is invalid",
        "Run the relay in the version of the hub, or one minor version older: see it with strait version", "\
The body must be JSON of at most 16 KiB with a token, a certificate request in PEM and the UID of the
namespace kube-system. The invitation was not used up.";

    /// Enrolment.
    RELAY_INVITATION = "STR0343", "the relay's invitation or token is not valid",
        "Create a new invitation and pass it to the relay: strait cluster invite ID", "\
An invitation is valid once, until it expires, and until a later invitation for the same ID replaces it. A
relay that has a certificate renews it without an invitation. A token of a service account is accepted if
`clusters.ID.relay` of the policy file names its issuer, subject and audience, and its key is in `keys` or,
without `keys`, published by the issuer.";

    /// Enrolment.
    RELAY_CLUSTER = "STR0344", "the relay is in another cluster than its invitation is for",
        "Install the relay in the invited cluster, or create an invitation for this one: strait cluster invite ID", "\
The relay was started with another --cluster than the ID of its invitation, or it runs in another cluster: the
UID of the namespace kube-system differs from the UID that the Secret or the running member has, or it belongs
to another member. The invitation was not used up.";

    /// Enrolment.
    RELAY_LIMIT = "STR0345", "too many requests of relays for certificates",
        "Wait a second and try again.", "\
The hub accepts one request per second from one address, and ten per second in total.";

    /// Connection of a relay.
    RELAY_CERTIFICATE = "STR0346", "the relay's certificate is not accepted",
        "Enrol the relay again with a new invitation: strait cluster invite ID", "\
The certificate does not belong to a relay, its member no longer exists, or `strait cluster rotate` has
replaced its generation.";

    /// Connection of a relay.
    RELAY_HELLO = "STR0347", "a relay claims a different cluster from its certificate",
        "Start the relay with the ID in its invitation: strait relay --cluster ID", "\
The ID that a relay was started with, or the UID of its namespace kube-system, differs from the member that
its certificate names. The hub closes the connection and reads nothing through it.";

    /// `cluster invite`, enrolment.
    RELAY_NO_CA = "STR0348", "the hub has no CA key to sign certificates of relays",
        "Give the hub a CA with --ca-dir, or a CA for relays only with --relay-ca-dir.", "\
With --tls-cert and --client-ca, or --ca none, the hub cannot sign certificates, so relays cannot enrol.";

    /// Enrolment.
    RELAY_NOT_READY = "STR0349", "the hub cannot enrol relays yet",
        "If a right is missing, set rbac.relays=true in the hub's chart. Otherwise wait: the relay tries again.", "\
The hub is starting and has not read the Secrets of the members, or it could not record that the invitation
was used. Replicas of the hub record used invitations in the Secret `strait-relay-invitations` of the system
namespace, so that each invitation is valid once. The chart's value `rbac.relays` adds the right to patch it.
A failed attempt does not use the invitation up.";

    /// Log of a relay.
    RELAY_HUB = "STR0350", "the relay cannot connect to the hub",
        "Check that the address in --hub is reachable from the member, and that --hub-roots are the hub's roots.", "\
The relay tries again with growing pauses of at most 30 s. It needs one outgoing TCP connection to port 15012
of the hub, without a middlebox that terminates TLS.";

    /// Response of a relay.
    RELAY_API_SERVER = "STR0351", "the relay cannot reach its API server",
        "In the member, check the relay and the API server: kubectl -n strait-system logs deployment/strait-relay
and: kubectl get --raw /readyz", "\
The relay is connected to the hub, but the API server of the relay's cluster does not respond or refuses the
connection. The member is stale until the API server responds.";

    /// Enrolment with a token.
    RELAY_ISSUER_KEYS = "STR0352", "the keys of the issuer of a relay's token are not known",
        "At the hub, strait check shows why the keys cannot be read. Or set clusters.ID.relay.keys.", "\
`clusters.ID.relay` of the policy file names this issuer without its keys, so the hub requests them over TLS
from the issuer (ISSUER/.well-known/openid-configuration). It has received none so far. The relay tries
again.";

    /// `--relay-ca-dir`.
    RELAY_CA_SHARED = "STR0353", "the CA of relays and the mesh have a root in common",
        "Create a CA with a dedicated root for --relay-ca-dir: strait certs init DIR", "\
The hub accepts certificates of this CA for relays only. If the CA chains to a root that workloads or the hub
trust, it can also sign certificates of workloads. At start this ends the program; later the last valid CA
stays active.";

    /// ServiceImports of a relayed member.
    IMPORT_RELAYED = "STR0354", "a member that is read through a relay gets no ServiceImports",
        "To accept that it has none, set clusters.ID.mcs.imports to off in the policy file.
To get imports, connect the member without a relay: strait cluster add CONTEXT --mcs-imports full", "\
A relay forwards no request that creates or deletes ServiceImports, Services or EndpointSlices, so Strait
sends none. Objects that Strait wrote before stay and are no longer updated. Proxies of the member are
unaffected: their endpoints do not depend on these objects.";

    /// A proxy fails.
    PROXY_FAILED = "STR0356", "the proxy does not connect to the API server",
        "Check the proxy, its rules for this server, and its entry under `proxies` in the --members file.", "\
The member is reached through an HTTP proxy (CONNECT) or a SOCKS 5 proxy. The message contains the name
and the response of the proxy, for example 407 (authorization not accepted), 403 (server refused by its rules)
or 502 (server unreachable). The last known state of the member stays in use. TLS to the API server runs
inside the connection, so the proxy sees no credential of the member.";

    /// A proxy that is not defined.
    PROXY_UNKNOWN = "STR0357", "the proxy is not defined",
        "Define it under `proxies` in the --members file, or correct the annotation strait.dev/proxy.", "\
The object selects a proxy by name. Only the --members file defines proxies: an object never contains the
address of one, because a proxy determines the destination of a connection.";

    /// The server is not listed.
    PROXY_SERVER = "STR0358", "the proxy may not be used for this server",
        "If the connection is intended, add the server to `servers` of the proxy in the --members file.", "\
Strait uses a proxy only for the servers that the proxy's entry lists. The proxy resolves names, so Strait
cannot check the address behind a name. Strait never requests connections to the proxy's own host or to
metadata services. No request was sent.";
}
