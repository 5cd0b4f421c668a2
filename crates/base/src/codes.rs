//! The error codes a user may meet, each with the page that `strait help STRnnnn` prints.
//!
//! A code is for ever: it is searched for, scripted against and written into runbooks, so it is
//! neither renumbered nor given a second meaning. Groups: 01xx usage, 02xx kubeconfig and Secret,
//! 03xx contact with a cluster, 04xx network and gateway, 05xx proxy and xDS, 06xx policy, 07xx
//! trust and TLS, 08xx host and storage, of these 082x access policies, 09xx injection, of these 095x and 096x
//! the agent in a pod, 10xx traffic configuration, of these 111x objects for other namespaces and 112x
//! clusters' own. Large groups have files of their own.

#[macro_use]
mod code;
mod access;
mod agent;
mod envoy_filters;
mod foreign;
mod ingresses;
mod injection;
mod members;
mod networks;
mod objects;
mod own_traffic;
mod routes;
mod sidecars;
mod traffic;

pub use self::access::*;
pub use self::agent::*;
pub use self::code::Code;
pub use self::envoy_filters::*;
pub use self::foreign::*;
pub use self::ingresses::*;
pub use self::injection::*;
pub use self::members::*;
pub use self::networks::*;
pub use self::objects::*;
pub use self::own_traffic::*;
pub use self::routes::*;
pub use self::sidecars::*;
pub use self::traffic::*;

static GROUPS: [&[&Code]; 14] = [
    CODES,
    members::CODES,
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
];

/// Every code, in order.
pub fn all() -> Vec<&'static Code> {
    let mut all = GROUPS.concat();
    all.sort_by_key(|code| code.id);
    all
}

/// The code named `id`, in either case.
pub fn find(id: &str) -> Option<&'static Code> {
    let mut all = GROUPS.iter().copied().flatten();
    all.find(|code| code.id.eq_ignore_ascii_case(id)).copied()
}

/// The code that a text names first.
pub fn named(text: &str) -> Option<&'static Code> {
    text.match_indices("STR").find_map(|(at, _)| find(text.get(at..at + 7)?))
}

codes! {
    /// `--mesh-config` or its ConfigMap.
    MESH_CONFIG = "STR0110", "the mesh config can't be used",
        "Correct the field named, it is read again by itself: strait check mesh", "\
The text is not YAML, or a field has a value of the wrong type or range. What was last good stays
in force (the defaults, where nothing was), and everything else goes on.";

    /// Fields of the mesh config that nothing reads.
    MESH_FIELD_UNUSED = "STR0111", "a field of the mesh config has no effect",
        "Remove it if you don't need it; if you do, keep what did its work until now.", "\
The mesh config has the form of Istio's, and Strait acts on a part of it: `strait serve` warns of each
field that it doesn't know how to follow, and GET /debug/mesh shows what is in force. Nothing else is
affected: the other fields of the same text count.";

    /// Names in defaultProviders of the mesh config.
    MESH_DEFAULT_PROVIDER = "STR0112", "a default provider of the mesh config leads nowhere",
        "Name one of extensionProviders in defaultProviders, or take the name out.", "\
Where no Telemetry says otherwise, proxies write logs for the providers in defaultProviders.accessLogging,
and send spans to the first in defaultProviders.tracing. Beside extensionProviders there is envoy for logs and
prometheus for metrics. A name that none of them has, or one of another kind, is left out: nothing is
written or sent for it. All else in the mesh config counts.";

    /// Connection refused, no route, silence, 5xx.
    UNREACHABLE = "STR0301", "the API server can't be reached",
        "Check the API server and what lies between: curl -k https://HOST:PORT/livez", "\
It refuses connections, is silent, or answers with errors. What was last known of the cluster stays in
use, and Strait keeps trying with growing pauses. No other cluster is affected.";

    /// Before the first contact after a start.
    RESTORED = "STR0302", "what is served of the source is from before the start",
        "Nothing, while the first contact is being made; else see the reason in: strait cluster get ID", "\
Strait was started anew, has not yet heard everything from there, and serves what it had on disk (--state-dir)
until it has. The reason says how old that is, and what stands in the way where anything does.";

    /// Never synced within --remote-cluster-timeout.
    SYNC_TIMEOUT = "STR0303", "the cluster has not synced in time",
        "See the reason in: strait cluster get ID", "\
It has not sent all its objects within --remote-cluster-timeout. It no longer holds up readiness,
and joins by itself as soon as it syncs.";

    /// 401, 403.
    AUTH_FAILED = "STR0304", "the API server doesn't accept the credential",
        "Renew the credential: strait cluster rotate ID", "\
It answered 401: the token has ended or was revoked, or the certificate is of nobody it knows. What was last
known of the cluster stays in use. What is accepted and may not read enough is STR0315.";

    /// Unknown CA, wrong name, expired.
    TLS_FAILED = "STR0305", "the API server's certificate is not acceptable",
        "See what it presents: openssl s_client -showcerts -connect HOST:PORT
Then set certificate-authority-data, or tls-server-name.", "\
It is expired, is neither signed by the CA of the kubeconfig nor that CA's own certificate, or doesn't
name the address dialled. What was last known of the cluster stays in use.";

    /// Another kube-system UID.
    IDENTITY_CHANGED = "STR0306", "the kubeconfig leads to a different cluster now",
        "If it is meant, say so: kubectl annotate secret NAME strait.dev/cluster-uid=UID --overwrite", "\
The UID of the namespace kube-system differs from that of the cluster which had this ID, or from the one
that the Secret's annotation strait.dev/cluster-uid names. Its data is not taken, and the old is kept. The
annotation with the new UID accepts the new cluster; a Secret that is deleted and made anew does, too.";

    /// Not an API server's answer, or over budget.
    MISBEHAVING = "STR0307", "the API server answers with nonsense, or with too much",
        "Check that the address is the API server's and not that of a login page before it.", "\
Its answer is not one an API server gives (an HTML page, broken JSON), or exceeds the budget of one cluster.
What was last known of the cluster stays in use.";

    /// Quarantine.
    FLAPPING = "STR0308", "the API server comes and goes",
        "Look at what lies between: its load balancer, its nodes, the network. See: strait cluster get ID", "\
Contact was lost five times within two minutes. The cluster is frozen at what was last known, so that its
changes of state cost nobody else anything, and is tried again after 30 s, then after longer pauses up to
5 minutes. It is an ordinary member again once contact has held for two minutes.";

    /// 403 for a kind that is not required.
    RIGHT_MISSING = "STR0309", "a kind that is of use may not be read",
        "Grant list and watch of that kind, as deploy/examples/reader-rbac.yaml does.", "\
Services, endpointslices and namespaces must be readable; other kinds are of use, and done without where the
credential may not read them. The reason says which kind that is and what is lost: without pods, for example,
nothing is known of workloads. Everything else works.";

    /// Objects that make no sense, in a working cluster.
    OBJECTS_SKIPPED = "STR0310", "objects of the cluster make no sense and are left out",
        "Look at the object that the reason names, in that cluster.", "\
An object that can't be read, or says what can't be, costs only itself. The reason has how many there were
since the cluster was first read, and the last of them with the fact.";

    /// Nothing of the config cluster, neither now nor from before.
    CONFIG_CLUSTER_UNREAD = "STR0311", "the config cluster has never been read",
        "Check the config cluster: kubectl get --raw /readyz; and rights: kubectl auth can-i list secrets -n NAMESPACE", "\
Which clusters belong to the mesh stands in the config cluster. It can't be read, and no state from before
is in --state-dir, so Strait is not ready and answers no proxy: whoever knows no cluster would withdraw
every endpoint. Proxies keep what they have, and Strait starts by itself once the config cluster is read.
Where there is a state from before, that is served after 1 s.";

    /// 403 to a list that nothing goes without.
    RIGHTS_REFUSED = "STR0315", "the API server does not let the credential read what is required",
        "Give the reader its rights in that cluster; a new token has no others:
  kubectl --context CONTEXT apply -f deploy/examples/reader-rbac.yaml", "\
It answered 403: it knows the credential, which may not list services, endpointslices or namespaces. What
was last known of the cluster stays in use, and it goes on by itself once the rights are there.";

    /// The exp of the token in a Secret.
    CREDENTIAL_ENDS = "STR0316", "a cluster's token ends soon",
        "Renew it: strait cluster rotate ID
From a cron job: strait cluster rotate --all --expiring 7d --yes", "\
The token in the member's Secret has a date of expiry, which is less than 7 days off (for tokens that live
shorter than 21 days: less than a third of their life). After that the API server answers 401: what was last
known of the cluster stays in use, and nothing new is heard of it. A cluster that was added with --self-renew
gets a new token by itself when half of the old one's life is over: then the log of 'strait serve' says why it
did not.";

    /// Not ready yet.
    MESH_INCOMPLETE = "STR0317", "the mesh has not been read completely yet",
        "Wait for what is named, or see why it does not come: curl http://127.0.0.1:15014/readyz?verbose", "\
Until every member has been read once, has failed for good or has used up --remote-cluster-timeout, proxies
are not answered, and services and networks can't be shown.";

    /// No answer from Consul.
    CONSUL_UNREACHABLE = "STR0320", "Consul can't be reached",
        "See what answers at --consul-address: curl URL/v1/status/leader", "\
It refuses connections, doesn't answer in time, or has no leader. What was last known of its services
stays in use, however long that lasts, and nothing else is affected; it is asked again by itself. A
Consul that was never read holds up readiness for --remote-cluster-timeout.";

    /// The ACL token.
    CONSUL_DENIED = "STR0321", "Consul doesn't let us read its services",
        "Give a token with service:read and node:read (?token-file=FILE in --consul-address); the file is
read for each request.", "\
The ACL token is unknown to Consul, or may not see what it saw before: Consul leaves out of its answers
what a token may not see, so an answer that is suddenly empty for that reason is not believed. What was
last known stays in use.";

    /// TLS to Consul.
    CONSUL_TLS = "STR0322", "Consul's certificate is not acceptable",
        "Name the CA that signed it: ?ca-file=FILE in --consul-address, or CONSUL_CACERT.", "\
The certificate has ended, is for another name, or leads to no CA that is known: those of ca-file, else
those of this machine. What was last known stays in use.";

    /// Nonsense.
    CONSUL_ODD = "STR0323", "Consul answers with nonsense, or with too much",
        "See what answers at --consul-address: curl URL/v1/catalog/services", "\
An answer is no JSON of Consul's API, is larger than any real one (64 MiB, 20,000 services, 50,000
instances of one), or a catalogue is suddenly empty, which is believed when it was seen three times in
a row. What was last known stays in use.";

    /// The server of `configSources`.
    MCP_UNREACHABLE = "STR0330", "a config source can't be reached",
        "See whether the server at that address of configSources speaks MCP over xDS.", "\
It refuses connections or the stream, or ended it. What was last known of its objects stays in use, however
long that lasts; it is tried again by itself. A source that was never read holds up readiness for
--remote-cluster-timeout.";

    /// Objects of that server.
    MCP_ODD = "STR0331", "a config source sends objects that make no sense",
        "Correct the objects named, at the server.", "\
An object that can't be decoded, or has no namespace and name, costs only itself: what it was before
counts, and the server is told by a NACK which it is. Where not even its name can be read, nothing that is
missing from the same answer is taken for gone.";

    /// TLS to that server.
    MCP_TLS = "STR0332", "a config source's certificate, or ours for it, is not acceptable",
        "Check the files of tlsSettings, and the name (sni).", "\
The server's certificate must lead to caCertificates and be for the host of the address, or for sni. The
files are read for each connection. What was last known of its objects stays in use.";

    /// The node of a stream.
    NODE = "STR0501", "the node can't be read",
        "Print a bootstrap with: strait proxy bootstrap", "\
The node id is not type~ip~name.namespace~domain with type sidecar or router, an address is none,
the metadata is larger than 64 KiB (256 KiB where Istio's agent wrote it, of which labels are 64 KiB at
most), or a value of it can't be: an INTERCEPTION_MODE, STRAIT_SDS, paths in TLS_SERVER_* and
TLS_CLIENT_*. The stream is refused; nobody else is affected.";

    /// A discovery request.
    REQUEST = "STR0502", "the request breaks the protocol",
        "Check the client: it speaks to ADS (SotW or Delta), and names its node first.", "\
No node on the first request, another node later, no type, too many types that are not served (32),
or too many or too long names (100,000 of 512 bytes). The stream ends with INVALID_ARGUMENT.";

    /// Requests that answer nothing.
    REQUEST_RATE = "STR0503", "too many requests",
        "Look for a loop in the client.", "\
More than 50 requests a second (500 in a burst) that answer no response of ours. The stream ends
with RESOURCE_EXHAUSTED; the proxy may reconnect.";

    /// Streams of one node.
    STREAMS_PER_NODE = "STR0504", "the node has too many streams",
        "Look for two proxies with one name, or a proxy that never closes its streams.", "\
One identity may hold four streams for one workload of a cluster: a reconnecting proxy has two for a
while.";

    /// A refusal by a proxy.
    NACK = "STR0507", "a proxy refused what it was sent",
        "See the text: strait proxy get NAME. An older Envoy may lack a feature.", "\
The proxy keeps what it had before, and is not sent the same again until it changes. The resource
and the text of the refusal are shown with the proxy.";

    /// A panic in a stream.
    STREAM_FAULT = "STR0508", "a fault of the server ended the stream",
        "Report it with the server's log; the proxy reconnects by itself.", "\
What the server did for one stream panicked. That stream ended with INTERNAL; no other is affected,
and the proxy keeps what it has. It is counted under reason \"panic\" in
strait_xds_streams_closed_total.";

    /// A node's claim against its certificate.
    CLAIM_IDENTITY = "STR0510", "the node contradicts its certificate",
        "Make the bootstrap say what the certificate says: strait proxy bootstrap.", "\
Trust domain, namespace and service account of a proxy come from its certificate. A node that
claims others is refused: it would be given somebody else's configuration. The trust domain is the mesh's,
or one of its aliases, unless the Secret of the proxy's cluster names another (annotation
strait.dev/trust-domain).";

    /// A node's cluster.
    CLAIM_CLUSTER = "STR0511", "the node claims a cluster that is no member",
        "Set CLUSTER_ID to a cluster of: strait cluster list", "\
CLUSTER_ID decides which addresses a proxy may use, so it must name a member when the proxy
connects. A cluster that is removed later doesn't end the stream.";

    /// A node's pod.
    CLAIM_POD = "STR0512", "the node contradicts its pod",
        "Check that the proxy runs in the pod it names, in the cluster it names.", "\
The cluster's registry has a pod of the name that the node claims, with another service account or
another address. Somebody may use a certificate out of place. Where that is known only later, the stream is
ended then.";

    /// A node's network.
    CLAIM_NETWORK = "STR0513", "the node claims a network it is not in",
        "Remove NETWORK from the node's metadata, or correct what places the pod: the reason names it.", "\
A proxy that is believed to be in another network would be sent addresses that mean somebody else
where it runs.";

    /// What an identity may cost.
    IDENTITY_BUDGET = "STR0514", "an identity takes more of the server than its share",
        "Look for pods that are not in the cluster they name, and for clients that watch names of no service.", "\
A certificate proves an account, not a pod, so that whoever holds one could invent pods and names. Streams
whose pod nobody knows, with what they watch, and names that stand for no service, which count double, may
take a quarter of the memory limit for one identity, of that 64 MiB for names, whatever it calls itself. The
stream that asks for more ends with RESOURCE_EXHAUSTED. What known pods watch of known services is not
counted. /debug/push shows who takes most.";

    /// Memory.
    MEMORY_SHORT = "STR0515", "the server's memory is short",
        "Give it a higher memory limit, or see in /debug/push which identity takes most.", "\
From 80 % of the memory limit on, proxies that have nothing yet are told to come again (UNAVAILABLE); those
that are connected, or come back with what they have, are served. From 90 % on, the streams of the identity
that takes most are ended first, then those of the next, until there is room. Proxies keep what they have
meanwhile.";

    /// A node's cluster against its certificate.
    CLAIM_OTHER_CLUSTER = "STR0516", "the node claims another cluster than its certificate",
        "Set CLUSTER_ID to the cluster that issued the pod's token, or restart the pod for a new certificate.", "\
A certificate that Strait issues contains the cluster whose token proved the workload. It is refused for nodes
of another cluster, also in debug requests: an account of the same name may belong to another owner there.
Certificates without a cluster, such as those of another CA, are not affected.";

    /// A call without proof.
    CALLER_UNKNOWN = "STR0520", "nobody knows who calls",
        "Give the proxy a certificate, or its pod a projected token of audience istio-ca and a clusterid.", "\
A call is made by whoever the client certificate of its connection names. Without one the call must bring
`authorization: Bearer TOKEN` and `clusterid: ID`, each once, where ID is a member. With
--require-client-certificate only certificates count. The caller learns no more than that it is not known.";

    /// Certificate and token.
    TWO_CALLERS = "STR0521", "the certificate and the token of a call are of different accounts",
        "Let the proxy send one of them, or both of one account.", "\
A call that brings a token over a connection with a client certificate is made by whoever the certificate
names. A token of another account beside it is a mistake or worse, so that the call is refused.";

    /// A token that proves nothing.
    TOKEN_REFUSED = "STR0522", "the token is not taken",
        "See the reason: the clusterid may be another's, or the audience of the pod's token not ours.", "\
A token must be signed by the API server of the member that clusterid names (RS256, ES256 or ES384), be of its
issuer, for an audience of --token-audience, bound to an account, and not have ended. It is never sent to
another member than the one that is named, and not to that one either where the issuer is another.";

    /// A token that nobody can check now.
    TOKEN_UNCHECKED = "STR0523", "the token can't be checked now",
        "See how the member fares: strait cluster get ID. The agent asks again by itself.", "\
Tokens of pods that are known are checked with the keys of the member's API server, whether it answers or not.
A pod that nobody knows yet, or a key, is asked of the API server (TokenReview), which needs the right to
create tokenreviews. Where it doesn't answer within 5 s the call fails with UNAVAILABLE.";

    /// What a member vouches for.
    NOT_VOUCHED = "STR0524", "the cluster may not vouch for the account",
        "If it shall, name the namespace in the policy file: clusters.ID.identities.", "\
Whoever holds a member's API server can make tokens for any account there. So a member vouches for
all namespaces but the system and the root namespace, whose accounts the mesh may trust with more; policy
(identities) names others. The config cluster vouches for all.";

    /// A pod that has gone.
    TOKEN_POD = "STR0525", "the token is of a pod that is not there",
        "Nothing, if the pod was deleted; else see whether the member is read: strait cluster get ID.", "\
A token is bound to one pod, by its UID. When the pod goes, its streams end and its token counts no more, even
though it has not ended. A pod that took its name has a token of its own.";

    /// A stream that was opened with a token.
    TOKEN_ENDS = "STR0526", "the token by which the stream was opened ends",
        "Nothing: the agent reads its token file again and reconnects.", "\
A stream that was opened with a token lasts no longer than the token: it ends when between 90 and 100 % of
what was left of it is over, so that not all reconnect at once.";

    /// How many certificates.
    CERTIFICATE_LIMIT = "STR0527", "more certificates are asked for than are issued",
        "Nothing, where many pods start: agents ask again. Else look for one that asks in a loop.", "\
An identity is issued 10 certificates a second and 20 in a burst, all together 500 a second. Who asks
for more is told RESOURCE_EXHAUSTED, which agents take as a reason to ask again soon.";

    /// Renewal by certificate.
    NOT_RENEWED = "STR0528", "the certificate is not renewed for a pod that nobody knows",
        "Call with the pod's token, or with the clusterid of the member that runs it.", "\
A certificate that could be exchanged for another for ever would outlive its pod. So a call that is proven
by a certificate must name the member (clusterid), which must have a pod, or the mesh a WorkloadEntry, of
that account.";

    /// The keys of a member.
    KEYS_UNREADABLE = "STR0529", "the keys of the cluster's tokens can't be read",
        "Grant its reader get of both paths, as deploy/examples/reader-rbac.yaml does.", "\
The keys by which an API server signs tokens are read from /.well-known/openid-configuration and
/openid/v1/jwks of that API server. Without them each token is asked of it (TokenReview), so that pods can't
start or renew while it is out of reach.";

    /// proxies: secrets.
    SECRET_MISSING = "STR0540", "a gateway asks for a Secret that is not there for it",
        "Make the Secret (kubectl create secret tls NAME) in the gateway's namespace and cluster, or correct the name.", "\
A gateway's certificate stands in a Secret of the gateway's own namespace, in the cluster in which its
pod runs. Whatever else the gateway serves goes on; the ports that need the certificate wait for it, and
one that has been sent before stays in use.";

    /// proxies: secrets.
    SECRET_UNREADABLE = "STR0541", "the Secrets that gateways ask for can't be read",
        "Grant the right: strait cluster add CONTEXT --gateway-secrets NAMESPACE", "\
Secrets of a cluster are read for its gateways alone, and only where the credential of the member, or the
control plane's own account in the config cluster (rbac.gatewaySecrets of the chart), lets it: get, list and
watch of secrets in the namespaces of gateways, and create of subjectaccessreviews. It is a right of its own,
asked for by name. Gateways keep what they were sent before.";

    /// proxies: secrets.
    SECRET_DENIED = "STR0542", "the gateway's own account may not list Secrets",
        "Give its service account list of secrets in its namespace: kubectl create rolebinding", "\
Who may not read a key itself is not given it here either. The API server of the gateway's cluster is
asked whether its service account may list Secrets of its namespace (SubjectAccessReview): a yes counts
five minutes, a no one.";

    /// proxies: secrets.
    SECRET_INVALID = "STR0543", "a gateway's Secret holds no certificate that is of use",
        "Put a certificate that is valid now and its own key into the Secret: tls.crt and tls.key, or ca.crt.", "\
It lacks a part, is no PEM, has ended or is not valid yet, or certificate and key are no pair; or what it says
is revoked (ca.crl) can't be read, so that whom it shuts out would be let in. It is not sent: the gateway goes
on with what it was sent before, if anything.";

    /// A step of a rotation.
    ROOT_SIGNS_EARLY = "STR0550", "a root may not sign yet: some are seen not to have it",
        "Put it beside the others in root-cert.pem (or ca.crt), keep what signs, and see: strait certs status
Where only you know that they have it, put its SHA-256 into the file (or Secret's key) rotation-approved.", "\
What a root signs is refused by every workload that was not given the root before. So a CA whose certificates
lead to a new root is not taken while somebody is seen to lack it: namespaces of members that don't have it
yet, agents that were sent it and have not acknowledged it, or all, where it was not among the roots before.
Until then the CA stays as it was, and the files are tried again each second. Of those that nobody sees you
are the judge: strait certs status lists them. A restart goes on with what is in the files. Where not one of
the old roots is left, the new CA counts at once.";

    /// A step of a rotation.
    ROOT_GOES_EARLY = "STR0551", "a root that certificates lead to is in the CA's files no more",
        "Nothing has to be done: it goes by itself at the time named. To end it now, as after the theft of a
key, put its SHA-256 into the file (or the Secret's key) rotation-approved.", "\
Workloads hold certificates that lead to this root. Were it taken away, all others would refuse them until
they have new ones. So it is believed, and given to workloads, until the last of these certificates has ended:
which that is Strait remembers in its state directory and in the Secret strait-ca-roots. Where certificates
were issued before it kept records, the longest life that is allowed counts (--max-certificate-lifetime).";

    /// Records of roots.
    ROOTS_NOT_SHARED = "STR0552", "what is known of the CA's roots is not shared with other replicas",
        "Give Strait's account create of Secrets in its namespace, and get and update of strait-ca-roots.", "\
When the last certificate of each root ends is kept in the Secret strait-ca-roots of the system namespace,
with who lacks a root that is to sign. Without it each replica knows only what it has issued itself, and what
is in its own state directory. Certificates are issued all the same.";

    /// A rotation that is under way.
    ROTATION_RUNS = "STR0553", "the CA has more than one root: a rotation is under way",
        "See what is next: strait certs status", "\
A new root is given to all workloads, then signs, and the old one goes once no certificate leads to it any
more. Nothing is wrong meanwhile. docs/guide/certificates.md has the steps.";

    /// Renewal by certificate.
    RENEWED_LONG_ENOUGH = "STR0554", "the certificate was renewed for 30 days without a token in between",
        "Call with the workload's token; for a machine without one: strait certs issue", "\
A certificate may be exchanged for another, so that a cluster whose API server is away goes on. But each
carries the time at which a token last proved whose it is, and 30 days after that only a token gives another:
whoever got hold of a key and of a pod's account could stay for ever otherwise. One that was made by hand
counts from its first exchange on.";

    /// `--ca-member-dir`.
    MEMBER_CA = "STR0555", "the member's own CA can't be used",
        "Put an intermediate there that a root of the mesh's CA has signed: strait certs init DIR --under CA", "\
The folder or Secret that --ca-member-dir names for a member lacks a part, its parts don't fit, it has ended,
or what it signs leads to no root of the mesh's CA. What signed for the member before goes on, if there is
something; else its workloads are given no certificates, and told to ask again. All others notice nothing.
The files are read again each second.";

    /// `--ca-member-dir`.
    MEMBER_CA_GONE = "STR0556", "the member's own CA was taken away: it is given no certificates",
        "To let the member in again, put an intermediate there; to have the mesh's CA sign, leave the flag away.", "\
The folder or Secret that --ca-member-dir names for a member has nothing of a CA. So it is cut: the mesh's CA
doesn't sign in its place. What its workloads hold counts until it has ended, a day as a rule, unless what
verifies it has the intermediate on a list of what is revoked.";

    /// Renewal by certificate.
    OTHER_MEMBER_RENEWS = "STR0557", "a certificate of one cluster is not renewed as another's",
        "Call with the clusterid of the cluster that the certificate is of, or with the pod's token.", "\
A certificate that Strait issues contains its cluster. If it could be exchanged in the name of another cluster,
which happens to run the same account, it would prove that cluster, and a cluster that was cut off would
survive there.";

    /// `--policy`.
    POLICY = "STR0601", "the policy file can't be used",
        "Correct the field named: strait policy check FILE. It is read again by itself.", "\
The file is not YAML, or has a field that is unknown or has a value that means nothing. At start this ends the
program: to serve without the rules that were asked for would not be safe. Later the last good policy
stays in force.";

    /// explain: export.
    EXPORT_REFUSED = "STR0602", "policy does not let the cluster export the service",
        "Change owners or exports in the policy file, if it shall: strait policy test FILE", "\
The endpoints that a cluster has for a name it may not export are given to proxies of that cluster only,
and no gateway carries them. It lends neither ports nor accounts to the name that others know.";

    /// explain: network.
    ADDRESS_REFUSED = "STR0603", "policy does not let the cluster use the address",
        "Correct the EndpointSlice, or addresses in the policy file: strait policy test FILE", "\
An endpoint or a gateway of a cluster may have an address within the ranges that policy gives that cluster.
Loopback, link-local, multicast and unspecified addresses are always refused: whoever could hand them out
could lead proxies to their own host or to a cloud's metadata service.";

    /// explain: network.
    NETWORK_REFUSED = "STR0604", "policy does not let the cluster claim the network",
        "Correct the label, or networks in the policy file: strait policy test FILE", "\
A label in a cluster may say that an endpoint or a gateway is in a network. Where policy names the networks
of a cluster, endpoints that claim another are withheld, and gateways that do count for nothing: else a
cluster could draw another network's traffic to itself.";

    /// explain: ready.
    CLUSTER_DARK = "STR0605", "the endpoint's cluster has been out of contact for too long",
        "Bring its API server back: strait cluster get ID. Or change whenDark in the policy file.", "\
Policy withdraws the endpoints of a cluster that has not been heard of for that long. They are back as soon as
its API server answers. While no API server answers at all, nothing is withdrawn: then it is Strait
that is cut off.";

    /// Quarantine.
    MASS_WITHDRAWAL = "STR0606", "most of what there was has gone at once, which waits to be confirmed",
        "If it is meant, wait for the time named. See: strait cluster get ID", "\
A list without most of what the one before had is more often a fault (a backup restored, a right lost) than a
wish. So it is read again, some 3 s later, and what was there before stays until a second list says the same:
of a member, of the config cluster's Secrets, ConfigMaps and entries, of a directory, of an MCP server, and
of the first lists after a restart or with a new credential. Where most endpoints of a member have gone in
such a first list they stay for 30 s more, or until they are back. What a watch tells is believed;
massWithdrawal in the policy file holds that back, too.";

    /// check: policy.
    POLICY_UNKNOWN_CLUSTER = "STR0607", "policy names a cluster that is no member",
        "Correct the ID, or add the cluster: strait cluster list", "\
A rule for a cluster that isn't there does nothing now, and counts as soon as one by that ID joins. Often it
is a spelling.";

    /// A member's own mesh ConfigMap.
    TRUST_DOMAIN_REFUSED = "STR0608", "the cluster may not name the trust domain itself",
        "Name it on the Secret (strait.dev/trust-domain), or in trustDomains in the policy file.", "\
Who names a cluster's trust domain decides under which names its workloads answer, and with which
certificates proxies are let in as its. A cluster may name it in its own mesh ConfigMap, where it lets
Strait read that, but not one that policy doesn't give it, nor, where no policy says so, one that the
annotation of another cluster's Secret names. Its workloads are of the mesh's trust domain then, and all
else works on.";

    /// Certificates and keys on disk.
    TLS_FILE = "STR0701", "a certificate or key file can't be read or written",
        "Check that the path exists and who may read it.", "\
At start this ends the program, since there is no older certificate to keep. Later what was last
good stays in force.";

    /// Certificates and keys on disk.
    TLS_UNUSABLE = "STR0702", "a file holds no certificate or key that can be used",
        "Check it: openssl x509 -in FILE -text, openssl pkey -in FILE -noout", "\
The file is not PEM, or holds a kind of key that is not supported. What was last good stays in
force.";

    /// Certificates and keys on disk.
    TLS_MISMATCH = "STR0703", "key and certificate are not a pair",
        "Compare them: openssl x509 -in CERT -noout -pubkey, openssl pkey -in KEY -pubout
Then replace both; they are read together.", "\
The certificate is for another key. Often one of the two has been replaced and the other not yet:
what was last good stays in force until they fit.";

    /// Validity of a certificate.
    CERTIFICATE_TIME = "STR0704", "a certificate has ended, or has not begun",
        "Renew it, and compare the clocks.", "\
A certificate outside its validity is never used, ours or a peer's. A stream ends when the client
certificate that opened it does.";

    /// --ca-dir.
    CA_FILES = "STR0705", "files of the CA are missing, or don't lead to its roots",
        "Make a complete set: strait certs init DIR", "\
A CA directory holds ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, or tls.crt, tls.key and
ca.crt, and the chain leads to one of the roots; so does the Secret cacerts of an Istio estate. A part of it
is refused as a whole: at the start, and later what was good stays in force.";

    /// A certificate request.
    CERTIFICATE_REQUEST = "STR0706", "a certificate request or lifetime is refused",
        "Ask for at most 90 days, with a request signed by its own key.", "\
The names of a certificate come from the identity the caller has proved, never from its request.";

    /// A peer's certificate.
    PEER_CERTIFICATE = "STR0707", "a peer's certificate is refused",
        "Issue one that chains to a trusted root, with one SPIFFE URI: strait certs issue", "\
It does not chain to any of the roots that are trusted now, or to none that may sign for its trust domain
(caCertificates of the mesh config), or its names are not exactly one URI of the form
spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT.";

    /// Trust roots.
    ROOTS_REPLACED = "STR0708", "the new roots have nothing in common with the old",
        "Publish old and new roots together first, then the new alone.", "\
Every proxy is turned away until it has a certificate of a new root. The roots were taken as they
are: an operator may want just that.";

    /// Istio's published roots, compared.
    ROOTS_DIFFER = "STR0709", "workloads of two clusters trust different roots",
        "Give all clusters one root, or a bundle with the roots of all: docs/reference/certificates.md", "\
A cluster publishes the roots that its workloads trust in the ConfigMap istio-ca-root-cert of each
namespace. Where two clusters have none in common, mTLS between their workloads fails, whatever the control
plane sends. Where they share some, it depends on which root has issued the certificates. A cluster whose
ConfigMap can't be read with its Secret's credential (strait cluster add grants no right to it) is listed,
not judged.";

    /// Another writer of the roots' ConfigMap.
    ROOTS_FOREIGN = "STR0720", "the roots of another control plane stand in istio-ca-root-cert",
        "Have its pods mount strait-ca-root-cert, or give both control planes one root or a bundle of both.", "\
Strait writes the roots that workloads are to believe into the ConfigMap istio-ca-root-cert of each
namespace. There another writer, such as an istiod, has put valid roots among which ours are not, or undoes
what we write again and again. Nobody is fought: its ConfigMap stays, and ours stand beside it in
strait-ca-root-cert. Pods that mount the first don't believe this control plane, nor workloads with its
certificates; other namespaces are not affected.";

    /// No right to write the roots' ConfigMap.
    ROOTS_DENIED = "STR0721", "the roots may not be written into the cluster",
        "To have it done from now on: kubectl --context CONTEXT apply -f deploy/examples/roots-writer-rbac.yaml
To do it once, with the roots of the CA in root-cert.pem:
  for ns in $(kubectl --context CONTEXT get ns -o name | cut -d/ -f2); do
  kubectl --context CONTEXT -n $ns create configmap istio-ca-root-cert --from-file=root-cert.pem; done", "\
Agents and injected pods find the roots that they are to believe in the ConfigMap istio-ca-root-cert of their
namespace. The credential of the cluster's Secret may not write it (strait cluster add --roots gives it that
right, and no other), so it is for somebody else to do, and to do again when a root changes or a namespace
comes. Nothing else suffers: proxies that get their roots otherwise need no ConfigMap.";

    /// The end of a root of the CA.
    ROOT_ENDS = "STR0722", "a root of the CA ends soon",
        "Rotate to a new root, step by step: docs/guide/certificates.md", "\
With a root everything ends that it has signed: workloads are refused by each other, and by this control
plane. A new root must be believed everywhere before anything is signed by it, which takes as long as
the slowest workload. It is told from the last fifth of a root's life on, and again 30 and 7 days before its
end.";

    /// A file or folder that should be written.
    UNWRITABLE = "STR0801", "a file can't be written",
        "Look at the disk (df -h DIR, df -i DIR, mount), and at who may write there.", "\
Files are written beside their names and renamed: what was there before is untouched, and nothing half
written is left. `strait serve` goes on without a state that it can write, says so in `strait check`, in
/readyz?verbose and in the metric strait_state_unwritable, and writes it as soon as it can; a restart
meanwhile would find the state from before. Only what it can't be without (its admin token, its CA) ends it
at the start.";

    /// A file of the state directory.
    STATE_DAMAGED = "STR0802", "a file of the state directory is not used as it is",
        "Nothing has to be done: it is written anew. If it comes again, look at the disk.", "\
Each file of the last known state has a checksum, and so has each record that was appended to it. What is
not as it was written, too large, or cut short (by a machine that stopped while it wrote) is not used, and
what was written before it is. Where the list of members is lost, or nothing is left of what they held,
Strait is not ready until the configuration has been read: who answered before would withdraw all endpoints.";

    /// The lock of the state directory.
    STATE_IN_USE = "STR0803", "another process uses the state directory",
        "Stop the other one, or give this one a directory of its own: --state-dir DIR", "\
Two processes that write one directory would each take the other's state away. The process that runs holds
a lock on the file `lock` in it, which ends with the process, however that ends: none is left behind.";

    /// `admin-token`.
    ADMIN_TOKEN = "STR0804", "the admin token is not fit to be one",
        "Write at least 16 characters into the file, and let nobody else read it:
  (umask 077; openssl rand -hex 32 > FILE)", "\
A token is at least 16 characters long and its file at most 4 KiB. Where it is unfit in the state directory,
as a version that met a full disk may have left it, a new one is made in its place; a file that you name
with --admin-token-file is yours, and the program ends. A token in the state directory that others may read
is closed to them; of a file of yours it is only said.";

    /// EMFILE.
    DESCRIPTORS = "STR0810", "the process has too few file descriptors",
        "Raise its limit (LimitNOFILE= of a unit, ulimit -Hn, or the container runtime's) to two for each member and
one for each proxy.", "\
Each connection takes one: one or two to each member's API server (ten or so where it, or a proxy in front of
it, speaks no HTTP/2), one from each proxy. When none is free, new connections wait or fail: a member that
gets none is served from what is known of it. Some are kept for proxies and for the admin port, so that those
that come are still let in. At the start the limit is raised to the highest that the process may set (its hard
limit). GET /debug/push shows how many are open, how many members need, and how often there was none; so do
process_open_fds, process_max_fds and strait_descriptors_exhausted_total.";
}

#[cfg(test)]
mod tests;
