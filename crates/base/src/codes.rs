//! The error codes a user may meet, each with the page that `strait help STRnnnn` prints.
//!
//! A code is permanent: users search for it and use it in scripts and runbooks. Therefore it is
//! neither renumbered nor given a second meaning. Groups: 01xx usage, 02xx kubeconfig and Secret,
//! 03xx contact with a cluster, 04xx network and gateway, 05xx proxy and xDS, 06xx policy, 07xx
//! trust and TLS, 08xx host and storage (082x access policies), 09xx injection (095x and 096x the
//! agent in a pod), 10xx traffic configuration (111x objects for other namespaces, 112x objects of
//! clusters). Large groups have separate files.

#[macro_use]
mod code;
mod access;
mod agent;
mod config_cluster;
mod envoy_filters;
mod foreign;
mod ingresses;
mod injection;
mod member_sources;
mod members;
mod networks;
mod objects;
mod own_traffic;
mod relays;
mod roots;
mod routes;
mod sharing;
mod sidecars;
mod traffic;

pub use self::access::*;
pub use self::agent::*;
pub use self::code::Code;
pub use self::config_cluster::*;
pub use self::envoy_filters::*;
pub use self::foreign::*;
pub use self::ingresses::*;
pub use self::injection::*;
pub use self::member_sources::*;
pub use self::members::*;
pub use self::networks::*;
pub use self::objects::*;
pub use self::own_traffic::*;
pub use self::relays::*;
pub use self::roots::*;
pub use self::routes::*;
pub use self::sharing::*;
pub use self::sidecars::*;
pub use self::traffic::*;

static GROUPS: [&[&Code]; 19] = [
    CODES,
    config_cluster::CODES,
    members::CODES,
    member_sources::CODES,
    networks::CODES,
    injection::CODES,
    agent::CODES,
    access::CODES,
    traffic::CODES,
    routes::CODES,
    sidecars::CODES,
    envoy_filters::CODES,
    ingresses::CODES,
    objects::CODES,
    foreign::CODES,
    own_traffic::CODES,
    relays::CODES,
    roots::CODES,
    sharing::CODES,
];

/// Returns every code, in order.
pub fn all() -> Vec<&'static Code> {
    let mut all = GROUPS.concat();
    all.sort_by_key(|code| code.id);
    all
}

/// Returns the code with this ID, in upper or lower case.
pub fn find(id: &str) -> Option<&'static Code> {
    let mut all = GROUPS.iter().copied().flatten();
    all.find(|code| code.id.eq_ignore_ascii_case(id)).copied()
}

/// Returns the first code that a text names.
pub fn named(text: &str) -> Option<&'static Code> {
    text.match_indices("STR").find_map(|(at, _)| find(text.get(at..at + 7)?))
}

/// Splits a text that begins with a code into the code and the rest.
pub fn leading(text: &str) -> Option<(&'static Code, &str)> {
    let (id, rest) = text.split_once(": ")?;
    Some((find(id)?, rest))
}

codes! {
    /// `--mesh-config` or its ConfigMap.
    MESH_CONFIG = "STR0110", "the mesh config cannot be used",
        "Correct the named field and check the result: strait check mesh", "\
The text is not YAML, or a field has a value of the wrong type or range. The last valid mesh config stays
active (the defaults, if there was none). Nothing else is affected. Strait reads a corrected mesh config
automatically.";

    /// Fields of the mesh config that have no effect.
    MESH_FIELD_UNUSED = "STR0111", "a field of the mesh config has no effect",
        "Remove the field if you do not need it. Otherwise see the supported fields: docs/reference/mesh-config.md", "\
The mesh config has the format of Istio's, and Strait supports a part of it. `strait serve` warns about each
unsupported field, and GET /debug/mesh shows the active settings. The other fields of the mesh config apply.";

    /// Names in defaultProviders of the mesh config.
    MESH_DEFAULT_PROVIDER = "STR0112", "a default provider of the mesh config does not exist or has the wrong kind",
        "In defaultProviders, name providers that extensionProviders defines, or remove the name.", "\
Unless a Telemetry object says otherwise, proxies write access logs for the providers in
defaultProviders.accessLogging and send spans to the first provider in defaultProviders.tracing. In addition
to extensionProviders, `envoy` exists for logs and `prometheus` for metrics. Strait ignores an unknown name
or a provider of another kind: proxies write no logs and send no spans for it. The rest of the mesh config
applies.";

    /// Connection refused, no route, silence, 5xx.
    UNREACHABLE = "STR0301", "the API server is unreachable",
        "Check the API server and the network in between: curl -k https://HOST:PORT/livez", "\
The API server refuses connections, does not respond, or responds with errors. The last known state of the
cluster stays in use, and Strait retries with growing pauses. No other cluster is affected.";

    /// Before the first contact after a start.
    RESTORED = "STR0302", "data from before the start of Strait is in use",
        "Wait until Strait has read the source. If that takes long, see the reason: strait cluster get ID", "\
Strait was restarted and has not read the source completely yet. Until then it uses the data on disk
(--state-dir). The reason states the age of the data and what prevents a newer read, if anything does.";

    /// Never synced within --remote-cluster-timeout.
    SYNC_TIMEOUT = "STR0303", "the cluster has not synced in time",
        "See the reason: strait cluster get ID", "\
The cluster has not sent all its objects within --remote-cluster-timeout. It no longer delays readiness, and
joins automatically as soon as it syncs.";

    /// 401, 403.
    AUTH_FAILED = "STR0304", "the API server does not accept the credential",
        "Renew the credential: strait cluster rotate ID", "\
The API server responded with 401: the token expired or was revoked, or the certificate is unknown to it. If
a token or certificate is expired or not valid yet, the reason contains its dates. The last known state of
the cluster stays in use. A valid credential with insufficient rights has the code STR0315.";

    /// Unknown CA, wrong name, expired.
    TLS_FAILED = "STR0305", "the API server's certificate is invalid",
        "See the certificate: openssl s_client -showcerts -connect HOST:PORT
Then set certificate-authority-data or tls-server-name.", "\
The certificate is expired, does not contain the dialled address, or is neither signed by the CA in the
kubeconfig nor itself listed there as a CA. The last known state of the cluster stays in use.";

    /// Another kube-system UID.
    IDENTITY_CHANGED = "STR0306", "the kubeconfig leads to a different cluster now",
        "If this is intended, accept the new cluster:
  kubectl -n strait-system annotate secret NAME strait.dev/cluster-uid=UID --overwrite", "\
The UID of the namespace kube-system differs from that of the cluster that had this ID, or from the UID in
the Secret's annotation strait.dev/cluster-uid. Strait ignores the data of the new cluster and keeps the old
data. To accept the new cluster, set the annotation to the new UID, or delete the Secret, wait until the
member is gone, and create it again. For clusters that are rebuilt regularly, set clusters.ID.identity:
follow-source in the policy file: it accepts a new cluster from a Secret that was deleted and created again.";

    /// Not an API server's answer, or over budget.
    MISBEHAVING = "STR0307", "the API server sends invalid or excessive responses",
        "Check that the address belongs to the API server and not to a login page in front of it.", "\
The response does not come from a Kubernetes API (for example an HTML page or broken JSON), or it exceeds
the limits for a single cluster. The last known state of the cluster stays in use.";

    /// Quarantine.
    FLAPPING = "STR0308", "the API server is repeatedly unreachable",
        "Check the path to it: its load balancer, its nodes, the network. See: strait cluster get ID", "\
The connection was lost five times within two minutes. Strait freezes the cluster at its last known state,
so that its changes do not delay other clusters. It retries after 30 s, then after longer pauses of up to 5
minutes. Strait applies changes of the cluster again after a connection has lasted for two minutes.";

    /// 403 for a kind that is not required.
    RIGHT_MISSING = "STR0309", "the credential may not read an optional kind",
        "Grant list and watch of that kind, if you need it: strait cluster add CONTEXT --name ID --level 3
Without this command: deploy/examples/reader-rbac.yaml", "\
Strait works without the kinds that the credential may not read. The reason names the kind and the
consequence: without pods, for example, workloads are unknown. All other features work. Readers have level 2
by default, which excludes gateways of the Gateway API, exports and imports of services, and
WorkloadEntries. Services, endpointslices and namespaces are required. Namespaces are optional only if the
reader is limited to some of them, or may read the namespace kube-system, which identifies the cluster.";

    /// Invalid objects in a reachable cluster.
    OBJECTS_SKIPPED = "STR0310", "invalid objects of the cluster are skipped",
        "Check the object that the reason names, in that cluster.", "\
An object that cannot be read or has impossible values affects only itself. The reason states the number of
such objects since the cluster was first read, and the last one with its problem.";

    /// 403 for the list of a required kind.
    RIGHTS_REFUSED = "STR0315", "the API server does not allow the credential to read required objects",
        "Grant the reader its rights in that cluster. A new token would have the same rights:
  strait cluster add CONTEXT --name ID --level 2
Without this command: kubectl --context CONTEXT apply -f deploy/examples/reader-rbac.yaml", "\
The API server responded with 403: the credential is valid but may not list services or endpointslices, or
can neither list namespaces nor read the namespace kube-system. Pods that were read before are required as
well: without them, clients would send plain text to endpoints that expect mTLS. The last known state of the
cluster stays in use, and Strait continues automatically once the rights are granted. To continue without
pods, remove the member and add it again.";

    /// The exp of the token in a Secret.
    CREDENTIAL_ENDS = "STR0316", "a cluster's credential expires soon",
        "Renew it: strait cluster rotate ID
From a cron job: strait cluster rotate --all --expiring 7d --yes", "\
The token or the client certificate in the member's Secret expires in less than 7 days (if its lifetime is
below 21 days: in less than a third of it). After that the API server responds with 401: the last known
state of the cluster stays in use, and Strait receives no changes. A cluster that was added with
--self-renew receives a new token automatically after half of the lifetime. If that fails, the log of
'strait serve' states the reason.";

    /// Not ready yet.
    MESH_INCOMPLETE = "STR0317", "the mesh has not been read completely yet",
        "Wait for the named sources, or see why they are missing: curl http://127.0.0.1:15014/readyz?verbose", "\
Until every member has been read once, has failed permanently or has exceeded --remote-cluster-timeout,
Strait sends nothing to proxies and cannot show services and networks.";

    /// A reader that is limited to namespaces got 403 in one of them.
    NAMESPACE_UNREAD = "STR0318", "a namespace of the cluster may not be read",
        "Grant the reader a Role in that namespace: strait cluster add CONTEXT --name ID --namespaces A,B
Or remove the namespace from readNamespaces of the policy file, or from the annotation of the Secret.", "\
The reader of the cluster is limited to namespaces, and the API server responds with 403 for services or
endpointslices of this one: its Role or RoleBinding was deleted, for example with the namespace. The last
known objects of the namespace stay in use, also after a restart with --state-dir, and Strait receives no
changes of them. The other namespaces are not affected. Strait continues automatically once the rights are
granted.";

    /// A reader is limited to a namespace that is not listed.
    NAMESPACE_MISSING = "STR0319", "a namespace to which the reader is limited does not exist",
        "Compare the names with: kubectl --context CONTEXT get namespaces
Then correct readNamespaces of the policy file, or strait.dev/read-namespaces of the Secret.", "\
Strait reads only the listed namespaces of the cluster, and the cluster has no namespace of this name:
either the name is misspelt, or the namespace was deleted. Objects in namespaces that are not listed are not
part of the mesh. Strait reads the namespace as soon as it exists. If the reader may not list namespaces,
Strait reports STR0318 instead.";

    /// No answer from Consul.
    CONSUL_UNREACHABLE = "STR0320", "Consul is unreachable",
        "Check the server at --consul-address: curl URL/v1/status/leader", "\
Consul refuses connections, does not respond in time, or has no leader. Its services stay in their last
known state, without a time limit. Other sources are not affected. Strait retries automatically. A Consul
that has never been read delays readiness for --remote-cluster-timeout.";

    /// The ACL token.
    CONSUL_DENIED = "STR0321", "Consul does not allow Strait to read its services",
        "Provide a token with service:read and node:read (?token-file=FILE in --consul-address). Strait reads
the file for each request.", "\
The ACL token is unknown to Consul, or has lost rights. Consul omits services that a token may not read from
its responses, so Strait does not apply a response that is suddenly empty for this reason. The last known
state stays in use.";

    /// TLS to Consul.
    CONSUL_TLS = "STR0322", "Consul's certificate is invalid",
        "Name the CA that signed it: ?ca-file=FILE in --consul-address, or CONSUL_CACERT.", "\
The certificate expired, is for another name, or is not signed by a known CA. The known CAs are in ca-file,
or by default in the trust store of this machine. The last known state stays in use.";

    /// Nonsense.
    CONSUL_ODD = "STR0323", "Consul sends invalid or excessive responses",
        "Check the response at --consul-address: curl URL/v1/catalog/services", "\
The response is not JSON of Consul's API, exceeds a limit (64 MiB, 20,000 services, 50,000 instances of one
service), or contains a catalog that suddenly lacks most services. This catalog applies only if a second
response, some seconds later, confirms it. The last known state stays in use.";

    /// The server in `configSources`.
    MCP_UNREACHABLE = "STR0330", "a config source is unreachable",
        "Check that the server at this address in configSources implements MCP over xDS.", "\
The server refuses connections or the stream, or has closed it. Its objects stay in their last known state,
without a time limit, and Strait retries automatically. A source that has never been read delays readiness
for --remote-cluster-timeout.";

    /// Objects of that server.
    MCP_ODD = "STR0331", "a config source sends invalid objects",
        "Correct the named objects at the server.", "\
An object that cannot be decoded, or has no namespace and name, affects only itself: its last valid version
stays active, and Strait names the object to the server in a NACK. If even the name cannot be read, Strait
does not treat objects that are missing from the same response as deleted.";

    /// TLS to that server.
    MCP_TLS = "STR0332", "a config source's certificate, or Strait's certificate for it, is invalid",
        "Check the files in tlsSettings, and the name (sni).", "\
The server's certificate must be signed by a CA in caCertificates and be valid for the host of the address,
or for sni. Strait reads the files for each connection. The last known state of the source's objects stays
in use.";

    /// The node of a stream.
    NODE = "STR0501", "the node cannot be read",
        "Correct the value that the message names. Print a valid bootstrap: strait proxy bootstrap", "\
The node ID is not type~ip~name.namespace~domain with type sidecar or router, an address is invalid, the
metadata exceeds 64 KiB (256 KiB if Istio's agent wrote it, with at most 64 KiB of labels), or any of these
values is invalid: INTERCEPTION_MODE, STRAIT_SDS, paths in TLS_SERVER_* and TLS_CLIENT_*. The stream is
refused; no other stream is affected.";

    /// A discovery request.
    REQUEST = "STR0502", "the request violates the protocol",
        "Check the client: it must use ADS (SotW or Delta) and send its node in the first request.", "\
The first request has no node, a later request has another node, the type is missing, too many unsupported
types are requested (32), or there are too many or too long names (100,000 with 512 bytes each). The stream
ends with INVALID_ARGUMENT.";

    /// Requests that do not respond to anything.
    REQUEST_RATE = "STR0503", "too many requests",
        "Find the client's address in the server's log (field peer). Check whether it repeats requests in a loop.", "\
The client sent more than 50 requests per second (500 in a burst) that do not acknowledge a response. The
stream ends with RESOURCE_EXHAUSTED; the proxy may reconnect.";

    /// Streams of one node.
    STREAMS_PER_NODE = "STR0504", "the node has too many streams",
        "Look for two proxies with the same name, or for a proxy that never closes its streams: strait proxy list", "\
One identity may have four streams for one workload of a cluster. A reconnecting proxy has two for some
time.";

    /// A refusal by a proxy.
    NACK = "STR0507", "a proxy rejected a resource",
        "See the proxy's error: strait proxy get NAME. Correct the object that it names, or update an old Envoy.", "\
The proxy keeps its previous version and does not receive the same version again. The resource and the text
of the NACK are shown with the proxy.";

    /// A panic in a stream.
    STREAM_FAULT = "STR0508", "an internal error ended the stream",
        "Report it with the server's log. The proxy reconnects automatically.", "\
The server's code for one stream panicked. The stream ended with INTERNAL. No other stream is affected, and
the proxy keeps its configuration. The metric strait_xds_streams_closed_total counts it with reason \"panic\".";

    /// A difference that the audit found.
    AUDIT_MISMATCH = "STR0509", "a proxy had a resource that differs from its configuration",
        "Report it with the server's log; the proxy has received the current resources.", "\
At a low rate (--audit-interval), the server generates the resources of each proxy from scratch and compares
them with the sent resources. A difference is a fault of the server: a change did not reach the proxy. The
log names the proxy, the resources and both versions. The server sends the current resources, and counts the
differing ones in strait_audit_mismatch_total.";

    /// A node's claim against its certificate.
    CLAIM_IDENTITY = "STR0510", "the node contradicts its certificate",
        "Set the bootstrap's values to the values in the certificate: strait proxy bootstrap.", "\
The trust domain, namespace and service account of a proxy come from its certificate. A node that claims
other values is refused, because it would receive another workload's configuration. The trust domain must be
the mesh's or any of its aliases, unless the Secret of the proxy's cluster names another one (annotation
strait.dev/trust-domain).";

    /// A node's cluster.
    CLAIM_CLUSTER = "STR0511", "the node claims a cluster that is not a member",
        "Set CLUSTER_ID to a cluster in: strait cluster list", "\
CLUSTER_ID determines which addresses a proxy may use, so it must name a member when the proxy connects.
Removing the cluster later does not end the stream.";

    /// A node's pod.
    CLAIM_POD = "STR0512", "the node contradicts its pod",
        "Check that the proxy runs in the pod and cluster that it names.", "\
The cluster has a pod with the name that the node claims, but with another service account or address. The
certificate may be in use by another workload. If this is detected only later, the stream ends then.";

    /// A node's network.
    CLAIM_NETWORK = "STR0513", "the node claims a network in which it is not located",
        "Remove NETWORK from the node's metadata, or correct the setting of the pod's network, which the reason names.", "\
A proxy that claims another network would receive addresses that belong to other workloads in its actual
network.";

    /// The cost of an identity.
    IDENTITY_BUDGET = "STR0514", "an identity exceeds its share of the server's memory",
        "Look for pods that are not in the cluster they name, and for clients that subscribe to names of no service.", "\
A certificate proves an account, not a pod. Therefore its owner could invent pods and names. One identity
may use a quarter of the memory limit for streams of unknown pods with their subscriptions, and for names
that belong to no service. Such names count double and may use at most 64 MiB. The limit does not depend on
the names that the client claims. A stream that exceeds it ends with RESOURCE_EXHAUSTED. Subscriptions of
known pods to known services do not count. /debug/push shows the identities with the highest usage.";

    /// Memory.
    MEMORY_SHORT = "STR0515", "the server is short of memory",
        "Raise its memory limit, or see in /debug/push which identity uses most.", "\
From 80 % of the memory limit on, proxies without configuration must retry later (UNAVAILABLE).
Connected proxies, and proxies that reconnect with their configuration, are served. From 90 % on, Strait
ends the streams of the identity with the highest usage, then the streams of the next, until enough memory is
free. Meanwhile these proxies keep their configuration.";

    /// A node's cluster differs from its certificate.
    CLAIM_OTHER_CLUSTER = "STR0516", "the node claims a different cluster from its certificate",
        "Set CLUSTER_ID to the cluster that issued the pod's token, or restart the pod for a new certificate.", "\
A certificate that Strait issues contains the cluster whose token proved the workload. With this
certificate, Strait refuses a node of any other cluster, also for debug requests: an account with the same
name may belong to another owner there. Certificates without a cluster, for example of another CA, are not
affected.";

    /// check: proxies.
    STREAMS_FELL = "STR0517", "many proxies lost their connection within five minutes",
        "See the reasons in the log, strait proxy list, and strait_xds_streams_closed_total.", "\
The number of streams of this process fell to zero or by half within five minutes. Proxies keep their
configuration and reconnect, possibly to another replica. Causes are a network failure, expired or unknown
roots, or deleted workloads. A planned shutdown of the process is not reported.";

    /// check: proxies.
    HANDSHAKES_FAIL = "STR0518", "most connections of proxies fail during the TLS handshake",
        "See the reason in the log (code and peer). Then: strait certs status, strait check trust", "\
At least half of the connections within five minutes failed before a stream could begin. Usually the proxies
do not trust the serving certificate, or Strait does not trust theirs, for example after a change of roots.
Connected proxies keep their streams until they reconnect.";

    /// --lock-memory.
    MEMORY_NOT_LOCKED = "STR0519", "the program cannot be locked in memory",
        "Raise the process's limit of locked memory (LimitMEMLOCK= of the container runtime's unit, ulimit -l), or
remove --lock-memory.", "\
Some systems reclaim the pages of an idle program's file within seconds. The first changes after a pause then
wait for the disk. --lock-memory reads the program into memory and keeps it there, which needs a limit of
locked memory (RLIMIT_MEMLOCK) above the size of the program and its libraries, or the capability IPC_LOCK.
The limit is inherited from the container runtime. Without it everything works, and changes after a pause may
take some tens of milliseconds longer.";

    /// A call without credentials.
    CALLER_UNKNOWN = "STR0520", "the caller is unknown",
        "Give the proxy a certificate, or its pod a projected token with audience istio-ca and a clusterid.", "\
The caller is the identity in the client certificate of the connection. Without a certificate, the call must
have the headers `authorization: Bearer TOKEN` and `clusterid: ID`, each once, with the ID of a member. With
--require-client-certificate, only certificates are accepted. The response does not state why the caller is
unknown.";

    /// Certificate and token.
    TWO_CALLERS = "STR0521", "the certificate and the token of a call belong to different accounts",
        "Configure the proxy to send only one, or both of the same account.", "\
If a call has a token and its connection has a client certificate, the identity in the certificate is the
caller. A token of another account indicates a mistake or an attack, so the call is refused.";

    /// An invalid token.
    TOKEN_REFUSED = "STR0522", "the token is not accepted",
        "See the reason: the clusterid may name another cluster, or the audience of the pod's token may be wrong.", "\
A token must be signed by the API server of the member that clusterid names (RS256, ES256 or ES384) and have
its issuer, an audience of --token-audience and a service account, and it must not be expired. Strait never
sends a token to another member, and not to the named one either if the issuer differs.";

    /// A token that cannot be verified at present.
    TOKEN_UNCHECKED = "STR0523", "the token cannot be verified at present",
        "See the state of the member: strait cluster get ID. The agent retries automatically.", "\
Tokens of known pods are verified with the keys of the member's API server, even if it is unreachable. For
an unknown pod or key, Strait queries the API server (TokenReview), which needs the right to create
tokenreviews. If it does not respond within 5 s, the call fails with UNAVAILABLE.";

    /// The accounts for which a member vouches.
    NOT_VOUCHED = "STR0524", "the cluster may not vouch for the account",
        "If it should, name the namespace in the policy file: clusters.ID.identities.", "\
The owner of a member's API server can create tokens for any account. Therefore a member may vouch for all
namespaces except for the system namespace and the root namespace, whose accounts may have more rights in
the mesh. The policy (identities) may name other namespaces. The config cluster may vouch for all
namespaces.";

    /// A deleted pod.
    TOKEN_POD = "STR0525", "the pod of the token does not exist",
        "Nothing, if the pod was deleted. Otherwise check that the member is read: strait cluster get ID.", "\
A token is bound to the UID of one pod. When the pod is deleted, its streams end and its token becomes
invalid, even before it expires. A new pod with the same name has another token.";

    /// A stream that was authenticated with a token.
    TOKEN_ENDS = "STR0526", "the token of the stream expires",
        "Nothing: the agent reads its token file again and reconnects.", "\
A stream that was authenticated with a token does not outlive it. It ends after 90 to 100 % of the token's
remaining lifetime, so that not all proxies reconnect at the same time.";

    /// The rate of issued certificates.
    CERTIFICATE_LIMIT = "STR0527", "too many certificates are requested",
        "Nothing, if many pods start: agents retry. Otherwise look for an agent that requests certificates in a loop.", "\
An identity receives at most 10 certificates per second and 20 in a burst, all identities together at most
500 per second. Further requests receive RESOURCE_EXHAUSTED, upon which agents retry soon.";

    /// Renewal by certificate.
    NOT_RENEWED = "STR0528", "the certificate is not renewed because its pod is unknown",
        "Call with the pod's token, or with the clusterid of the member that runs the pod.", "\
If a certificate could be exchanged for a new one forever, it would outlive its pod. Therefore a call with a
certificate must name a member (clusterid) that has a pod of this account, or the mesh must have a
WorkloadEntry of this account.";

    /// The keys of a member's token issuer.
    KEYS_UNREADABLE = "STR0529", "the keys of the cluster's token issuer cannot be read",
        "Grant the reader get of both paths: strait cluster add CONTEXT --name ID --tokens", "\
Strait reads the keys with which an API server signs tokens from its paths /.well-known/openid-configuration
and /openid/v1/jwks. Without them, Strait queries the API server for each token (TokenReview), so that pods
cannot start or renew certificates while it is unreachable.";

    /// proxies: secrets.
    SECRET_MISSING = "STR0540", "a Secret that a gateway requests does not exist or is not accessible to it",
        "Create the Secret (kubectl create secret tls NAME) in the gateway's namespace and cluster, or fix the name.", "\
A gateway's certificate must be in a Secret in the gateway's own namespace, in the cluster of its pod. Other
parts of the gateway keep working. Ports that need the certificate wait for it; a certificate that was sent
before stays in use.";

    /// proxies: secrets.
    SECRET_UNREADABLE = "STR0541", "the Secrets that gateways request cannot be read",
        "Grant the right: strait cluster add CONTEXT --gateway-secrets NAMESPACE", "\
Strait reads the Secrets of a cluster only for its gateways, and only with explicit rights: get, list and
watch of secrets in the namespaces of gateways, and create of subjectaccessreviews. The credential of the
member needs them; in the config cluster, the control plane's own account (rbac.gatewaySecrets in the
chart). Gateways keep the Secrets that were sent before.";

    /// proxies: secrets.
    SECRET_DENIED = "STR0542", "the gateway's own account may not list Secrets",
        "In the gateway's namespace, allow its service account to list secrets:
  kubectl -n NAMESPACE create role secrets --verb list --resource secrets
  kubectl -n NAMESPACE create rolebinding gateway-secrets --role secrets --serviceaccount NAMESPACE:ACCOUNT", "\
Strait does not send a key to a gateway that may not read it itself. With a SubjectAccessReview, Strait
queries the API server of the gateway's cluster for the gateway's permission to list Secrets in its
namespace. A positive response is cached for five minutes, a negative one for one minute.";

    /// proxies: secrets.
    SECRET_INVALID = "STR0543", "a gateway's Secret contains no usable certificate",
        "Put a currently valid certificate and its key into the Secret: tls.crt and tls.key, or ca.crt.", "\
The Secret lacks a part, is not PEM, the certificate is expired or not valid yet, or certificate and key do
not match. Or its list of revoked certificates (ca.crl) cannot be read, and revoked clients would be
accepted. The Secret is not sent: the gateway keeps the previous version, if there is one.";

    /// A step of a rotation.
    ROOT_SIGNS_EARLY = "STR0550", "a root may not sign yet, because some workloads do not trust it",
        "Add it to root-cert.pem (or ca.crt), keep the signing certificate, and see: strait certs status
If you know that all workloads trust it, write its SHA-256 into the file (or Secret's key) rotation-approved.", "\
A workload refuses certificates of a root that it does not trust yet. Therefore Strait does not accept a CA
with a new root while it knows of workloads without this root: namespaces of members that do not have it
yet, agents that have not acknowledged it, or all workloads, if it was not among the roots before. Until
then the previous CA stays active, and Strait checks the files every second. You must check the workloads
that Strait cannot observe: strait certs status lists them. A restart continues with the contents of the
files. If none of the old roots is left, the new CA takes effect immediately.";

    /// A step of a rotation.
    ROOT_GOES_EARLY = "STR0551", "the CA's files lack a root that certificates still need",
        "Nothing: Strait removes it at the named time. To remove it now, for example after the theft of a key,
write its SHA-256 into the file (or the Secret's key) rotation-approved.", "\
Workloads have certificates that were signed by this root. If it were removed, other workloads would refuse
these certificates until they are renewed. Therefore Strait trusts and distributes the root until the last
of these certificates expires. Strait records this time in its state directory and in the Secret
strait-ca-roots. For certificates from before these records, the maximum lifetime applies
(--max-certificate-lifetime).";

    /// Records of roots.
    ROOTS_NOT_SHARED = "STR0552", "records about the CA's roots cannot be shared with other replicas",
        "Grant Strait's account create of Secrets in its namespace, and get and update of strait-ca-roots.", "\
The Secret strait-ca-roots in the system namespace contains the expiry of the last certificate of each root,
and the workloads that lack a new root. Without it, each replica only knows the certificates that it issued
itself and its own state directory. Certificates are issued nevertheless.";

    /// A rotation in progress.
    ROTATION_RUNS = "STR0553", "the CA has more than one root: a rotation is in progress",
        "See the next step: strait certs status", "\
A new root is first distributed to all workloads and then signs. The old root is removed when no certificate
needs it any more. Between these steps you need not do anything. docs/how-to/rotate-certificates.md
describes the steps.";

    /// Renewal by certificate.
    RENEWED_LONG_ENOUGH = "STR0554", "the certificate was renewed for 30 days without a token",
        "Call with the workload's token. For a machine without a token: strait certs issue", "\
A certificate may be exchanged for a new one, so that workloads keep working while their cluster's API
server is unreachable. Each certificate contains the time of the last verified token, and 30 days later a
token is required. Otherwise a stolen key could renew its certificate as long as the account has pods. For
certificates that were issued manually, the time starts with the first renewal.";

    /// `--ca-member-dir`.
    MEMBER_CA = "STR0555", "the member's own CA cannot be used",
        "Provide an intermediate certificate that a root of the mesh's CA has signed: strait certs init DIR --under CA", "\
The directory or Secret that --ca-member-dir names for a member lacks a part, its parts do not match, it is
expired, or its certificates do not lead to a root of the mesh's CA. The member's previous CA keeps signing,
if there is one. Otherwise the workloads of the member receive no certificates and retry. Other members are
not affected. Strait reads the files every second.";

    /// `--ca-member-dir`.
    MEMBER_CA_GONE = "STR0556", "the member's own CA was removed: the member receives no certificates",
        "To admit the member again, provide an intermediate certificate. To sign with the mesh's CA, remove the flag.", "\
The directory or Secret that --ca-member-dir names for a member contains no CA. This excludes the member:
the mesh's CA does not sign for it instead. Its workloads' certificates stay valid until they expire,
usually for a day, unless verifiers have the intermediate certificate in a revocation list.";

    /// Renewal by certificate.
    OTHER_MEMBER_RENEWS = "STR0557", "a certificate of one cluster is not renewed for another cluster",
        "Call with the clusterid of the certificate's cluster, or with the pod's token.", "\
A certificate that Strait issues contains its cluster. If another cluster with the same account could renew
it, the new certificate would prove that other cluster, and a cluster that was removed could keep its
access there.";

    /// `--policy`.
    POLICY = "STR0601", "the policy file or the file of member sources cannot be used",
        "Correct the named field: strait policy check FILE, or strait members check FILE. Strait reads the file
again automatically.", "\
The file of --policy or --members is not YAML, or has an unknown field or an invalid value. At the start this
ends the program, because serving without the requested rules would not be safe. Later the last valid version
stays active.";

    /// explain: export.
    EXPORT_REFUSED = "STR0602", "the policy does not allow the cluster to export the service",
        "If it should, change owners or exports in the policy file: strait policy test FILE", "\
The endpoints of a cluster for a name that it may not export are only sent to proxies of that cluster, and
gateways do not forward to them. The cluster's ports and accounts do not affect the service in other
clusters.";

    /// explain: network.
    ADDRESS_REFUSED = "STR0603", "the policy does not allow the cluster to use the address",
        "Correct the EndpointSlice, or addresses in the policy file: strait policy test FILE", "\
An endpoint or gateway of a cluster must have an address within the ranges that the policy allows for the
cluster. Loopback, link-local, multicast and unspecified addresses are always refused, because they could
direct proxies to their own host or to a cloud's metadata service.";

    /// explain: network.
    NETWORK_REFUSED = "STR0604", "the policy does not allow the cluster to claim the network",
        "Correct the label, or networks in the policy file: strait policy test FILE", "\
A label in a cluster may assign an endpoint or gateway to a network. If the policy names the networks of a
cluster, endpoints with another network are withheld, and such gateways are ignored. Otherwise a cluster
could attract another network's traffic.";

    /// explain: ready.
    CLUSTER_DARK = "STR0605", "the endpoint's cluster has been unreachable for too long",
        "Restore its API server: strait cluster get ID. Or change whenDark in the policy file.", "\
The policy withdraws the endpoints of a cluster that has been unreachable for the configured time. They
return as soon as its API server responds. While all API servers are unreachable, Strait withdraws no
endpoint, because the problem is its own connection.";

    /// Quarantine.
    MASS_WITHDRAWAL = "STR0606", "most known objects are missing at once, which needs confirmation",
        "If this is intended, wait until the named time. See: strait cluster get ID", "\
A list that lacks most of the known objects is more often a fault (a restored backup, a revoked right) than
intended. Therefore Strait reads it again about 3 s later, and keeps the objects until a second list
confirms the change. This applies to members, to the config cluster's Secrets, ConfigMaps and entries, to
directories, MCP servers, and to the first lists after a restart or with a new credential. If most endpoints
of a member are missing from this first list, they stay for another 30 s, or until they return. Changes
from a watch apply immediately, unless massWithdrawal in the policy file delays them, too.";

    /// check: policy.
    POLICY_UNKNOWN_CLUSTER = "STR0607", "the policy names a cluster that is not a member",
        "Correct the ID, or add the cluster: strait cluster list", "\
A rule for an unknown cluster has no effect until a cluster with this ID joins. Often the ID is misspelt.";

    /// A member's own mesh ConfigMap.
    TRUST_DOMAIN_REFUSED = "STR0608", "the cluster may not choose the trust domain itself",
        "Set it on the Secret (strait.dev/trust-domain), or in trustDomains in the policy file.", "\
A cluster's trust domain determines the names of its workloads' identities and which certificates its
proxies may use. A cluster may choose it in its own mesh ConfigMap, if Strait can read that. The policy may
restrict the choice. Without a policy, the trust domain must not be in the annotation of another cluster's
Secret. While the choice is refused, the cluster's workloads have the mesh's trust domain. All other
features work.";

    /// Certificates and keys on disk.
    TLS_FILE = "STR0701", "a certificate or key file cannot be read or written",
        "Check that the path exists, and its permissions: ls -l FILE", "\
At the start this ends the program, because there is no older certificate. Later the last valid certificate
stays active.";

    /// Certificates and keys on disk.
    TLS_UNUSABLE = "STR0702", "a file contains no usable certificate or key",
        "Check it: openssl x509 -in FILE -text, openssl pkey -in FILE -noout", "\
The file is not PEM, or contains an unsupported kind of key. The last valid version stays active.";

    /// Certificates and keys on disk.
    TLS_MISMATCH = "STR0703", "key and certificate do not match",
        "Compare them: openssl x509 -in CERT -noout -pubkey, openssl pkey -in KEY -pubout
Then replace both; they are read together.", "\
The certificate belongs to another key. Often one of the files was replaced without the other. The last
valid pair stays active until they match.";

    /// Validity of a certificate.
    CERTIFICATE_TIME = "STR0704", "a certificate is expired or not valid yet",
        "Renew the certificate that the message names, and compare the clocks of both machines: date -u", "\
A certificate outside of its validity is never used, neither Strait's own nor a peer's. A stream ends when
the client certificate with which it was opened expires.";

    /// --ca-dir.
    CA_FILES = "STR0705", "files of the CA are missing, or do not lead to its roots",
        "Create a complete set: strait certs init DIR", "\
A CA directory contains ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, or tls.crt, tls.key and
ca.crt, and the chain must lead to a root. The same applies to the Secret cacerts of an Istio
installation. An incomplete set is refused: at the start this ends the program, later the last valid CA
stays active.";

    /// A certificate request.
    CERTIFICATE_REQUEST = "STR0706", "a certificate request or lifetime is refused",
        "Request at most 90 days, with a request that is signed by its own key.", "\
The names in a certificate come from the caller's verified identity, never from its request.";

    /// A peer's certificate.
    PEER_CERTIFICATE = "STR0707", "a peer's certificate is refused",
        "Issue a certificate of a trusted root with exactly one SPIFFE URI: strait certs issue", "\
The certificate is not signed by a currently trusted root, or by a root that may sign for its trust domain
(caCertificates of the mesh config), or its names are not exactly one URI of the form
spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT.";

    /// Trust roots.
    ROOTS_REPLACED = "STR0708", "the new roots have nothing in common with the old ones",
        "Publish old and new roots together first, then only the new ones: docs/how-to/rotate-certificates.md", "\
Every proxy is refused until it has a certificate of a new root. Strait applied the new roots nevertheless,
because this may be intended.";

    /// Istio's published roots, compared.
    ROOTS_DIFFER = "STR0709", "workloads of two clusters trust different roots",
        "Give all clusters the same root, or a bundle with all roots: docs/reference/certificates.md", "\
A cluster publishes the roots that its workloads trust in the ConfigMap istio-ca-root-cert of each
namespace. If two clusters have no root in common, mTLS between their workloads fails, whatever the control
plane sends. If they share some roots, it depends on the root that signed the certificates. If a cluster's
ConfigMap cannot be read with its Secret's credential (strait cluster add grants no right to it), the
cluster is listed but not checked.";

    /// A file or directory that cannot be written.
    UNWRITABLE = "STR0801", "a file cannot be written",
        "Check the disk (df -h DIR, df -i DIR, mount) and the permissions.", "\
Files are written under a temporary name and renamed: the previous file is unchanged, and no incomplete file
is left. `strait serve` continues without writing its state, reports it in `strait check`, in
/readyz?verbose and in the metric strait_state_unwritable, and writes the state as soon as possible. A
restart in between would read the previous state. Only files that Strait needs (its admin token, its CA) end
the program at the start.";

    /// A file of the state directory.
    STATE_DAMAGED = "STR0802", "a file of the state directory is not used unchanged",
        "Nothing: Strait writes it again. If this repeats, check the disk.", "\
Each file of the last known state has a checksum, and so has each record that was appended to it. A file or
record that is damaged, too large or incomplete (for example after a power failure) is not used, and the
version before it is used instead. If the list of members or all their data is lost, Strait is not ready
until it has read the configuration: otherwise it would withdraw all endpoints.";

    /// The lock of the state directory.
    STATE_IN_USE = "STR0803", "another process uses the state directory",
        "Stop the other process, or give this one a separate directory: --state-dir DIR", "\
Two processes that write one directory would delete each other's state. The running process locks the file
`lock` in the directory. The kernel releases the lock when the process ends, so there are no stale locks.";

    /// `admin-token`.
    ADMIN_TOKEN = "STR0804", "the admin token is invalid",
        "Write at least 16 characters into the file, and allow no other user to read it:
  (umask 077; openssl rand -hex 32 > FILE)", "\
A token has at least 16 characters, and its file at most 4 KiB. If the token in the state directory is
invalid, for example because the disk was full, Strait creates a new one. If the file of --admin-token-file
is invalid, the program ends. Strait removes other users' read permission from a token in the state
directory; for your own file it only reports it.";

    /// EMFILE.
    DESCRIPTORS = "STR0810", "the process has too few file descriptors",
        "Raise its limit (LimitNOFILE= of a unit, ulimit -Hn, or the container runtime's) to at least two for each
member plus one for each proxy.", "\
Each connection needs a descriptor: one or two for each member's API server (about ten if it, or a proxy in
front of it, does not support HTTP/2), and one for each proxy. When none is free, new connections wait or
fail; for a member without a connection, the last known state is used. Some descriptors are reserved for
proxies and the admin port, so that new connections are still accepted. At the start Strait raises the limit
to the maximum that the process may set (its hard limit). GET /debug/push shows how many descriptors are
open, how many the members need, and how often none was free. See also the metrics process_open_fds,
process_max_fds and strait_descriptors_exhausted_total.";

    /// Replicas of the control plane.
    REPLICA_MISSING = "STR0811", "a replica of the control plane does not answer the others",
        "Read the replica's log. With --peers, check the addresses.", "\
A replica that receives an admin request also queries the other replicas, over mTLS on the port for proxies,
and merges their responses. If a replica does not answer, the merged response names it (missingReplicas) and
lacks the proxies that are connected to it. Proxies are not affected. All replicas need the same CA, because
its key proves that a caller is a replica: without a CA (--ca none), or with different CAs, a response
covers one replica only.";

    /// Replicas of the control plane.
    REPLICAS_DIFFER = "STR0812", "two replicas of the control plane have different states",
        "See the state of each: strait check --replica NAME
Then correct the settings of the one that differs, or what it cannot read.", "\
All replicas read the same sources and settings, and each proxy receives the state of the replica that it is
connected to. A difference of the members, the sources, the policy or the members file that lasts for more
than ten seconds is reported. Causes are a replica that cannot reach an API server, a file or ConfigMap that
one replica has not read, and replicas that were started with different flags. While a new version is rolled
out, the policy is not compared.";
}

#[cfg(test)]
mod tests;
