//! The error codes a user may meet, each with the page that `strait help STRnnnn` prints.
//!
//! A code is for ever: it is searched for, scripted against and written into runbooks, so it is
//! neither renumbered nor given a second meaning. Groups: 01xx usage, 02xx kubeconfig and Secret,
//! 03xx contact with a cluster, 04xx network and gateway, 05xx proxy and xDS, 06xx policy, 07xx
//! trust and TLS, 08xx host and storage.

use std::fmt;

/// One kind of trouble.
#[derive(PartialEq, Eq)]
pub struct Code {
    /// `STR` and four digits.
    pub id: &'static str,
    /// What is wrong, in a line, without names.
    pub title: &'static str,
    /// What to do about it: one or two lines, which end messages and the page.
    pub next: &'static str,
    /// Why it is so, and what it touches and what not.
    pub page: &'static str,
}

impl Code {
    /// The page that `strait help STRnnnn` prints.
    pub fn help(&self) -> String {
        format!("{}: {}\n\n{}\n\n{}\n", self.id, self.title, self.page, self.next)
    }

    /// What to do about it for a cluster: with its ID where the page has ID.
    pub fn next_for(&self, cluster: Option<&str>) -> String {
        let Some(cluster) = cluster else { return self.next.to_owned() };
        let filled = |word: &'static str| format!("{word}{cluster}");
        // Only where a command takes it: elsewhere the word is meant.
        ["cluster get ", "cluster rotate ", "--name ", "--from-file="]
            .into_iter()
            .fold(self.next.to_owned(), |text, word| {
                text.replace(&format!("{word}ID"), &filled(word))
            })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// The code named `id`, in either case.
pub fn find(id: &str) -> Option<&'static Code> {
    ALL.iter().copied().find(|code| code.id.eq_ignore_ascii_case(id))
}

/// The code that a text names first.
pub fn named(text: &str) -> Option<&'static Code> {
    text.match_indices("STR").find_map(|(at, _)| find(text.get(at..at + 7)?))
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $title:literal, $next:literal, $page:literal;)*) => {
        $($(#[$doc])* pub static $name: Code =
            Code { id: $id, title: $title, next: $next, page: $page };)*

        /// Every code, in order.
        pub static ALL: &[&Code] = &[$(&$name),*];
    };
}

codes! {
    /// `--mesh-config` or its ConfigMap.
    MESH_CONFIG = "STR0110", "the mesh config can't be used",
        "Correct the field named; it is read again by itself.", "\
The text is not YAML, or a field has a value of the wrong type or range. What was last good stays
in force (the defaults, where nothing was), and everything else goes on.";

    /// Fields of the mesh config that nothing reads.
    MESH_FIELD_UNUSED = "STR0111", "a field of the mesh config has no effect",
        "Remove it if you don't need it; if you do, keep what did its work until now.", "\
The mesh config has the form of Istio's, and Strait acts on a part of it: `strait serve` warns of each
field that it doesn't know how to follow, and GET /debug/mesh shows what is in force. Nothing else is
affected: the other fields of the same text count.";

    /// Not a kubeconfig at all.
    KUBECONFIG_UNREADABLE = "STR0201", "the kubeconfig can't be read",
        "Check it with: kubectl --kubeconfig FILE config view
Then put the bytes of that file into the Secret: kubectl create secret generic NAME --from-file=ID=FILE", "\
The value is empty, is not UTF-8, is not YAML or JSON, or is not shaped like a kubeconfig (`clusters`,
`users` and `contexts` as lists of named entries). One leading UTF-8 byte order mark and CRLF line ends
are fine; UTF-16, as PowerShell's `>` writes it, is not.";

    /// Larger or deeper than any real one.
    KUBECONFIG_TOO_LARGE = "STR0202", "the kubeconfig is larger than its budget",
        "Cut the file down to the context you need:
  kubectl config view --minify --flatten --context NAME", "\
A kubeconfig may have 256 KiB, 16 levels, and 64 clusters, users and contexts each. The limits are
checked before anything is interpreted, so that one Secret can't slow down the others.";

    /// exec, auth-provider.
    RUNS_PROGRAM = "STR0203", "the kubeconfig runs a program",
        "Use a service account's token instead: strait cluster add CONTEXT --name ID", "\
`users[].user.exec` names a program, and `auth-provider` a plugin that runs one or talks to a third
party. Strait never runs programs from a member's kubeconfig: whoever may write the Secret could run
anything inside the control plane. Every user of the file is checked, not only that of the current
context. Your own kubeconfig (--kubeconfig, KUBECONFIG) may name programs.";

    /// tokenFile, client-certificate, client-key, certificate-authority.
    READS_FILE = "STR0204", "the kubeconfig reads a file",
        "Put the content inline (`...-data`): kubectl config view --minify --flatten --raw --context NAME", "\
`tokenFile`, `client-certificate`, `client-key` and `certificate-authority` name files. They would be
read on the control plane's host and could be sent to a server of the Secret's choice, so they are
refused in every entry of the file.";

    /// insecure-skip-tls-verify.
    SKIPS_VERIFICATION = "STR0205", "the kubeconfig skips TLS verification",
        "Give the cluster's CA in `certificate-authority-data`. Where the name in the certificate differs from
the address, set `tls-server-name`.", "\
With `insecure-skip-tls-verify: true` anybody on the way could answer as the API server and tell the
mesh where to send its traffic. There is no switch that allows it.";

    /// as, as-uid, as-groups, as-user-extra.
    IMPERSONATES = "STR0206", "the kubeconfig impersonates somebody",
        "Use a credential of its own for the reader: strait cluster add CONTEXT --name ID", "\
`as`, `as-uid`, `as-groups` and `as-user-extra` ask the API server to treat us as somebody else. A
reader needs no such right, and a credential that has it is worth far more to a thief.";

    /// The older Secret holds it.
    ID_TAKEN = "STR0207", "the cluster ID is held by another Secret",
        "Rename the key of one of the Secrets, or delete the one that isn't meant.", "\
Two Secrets name the same cluster ID. The older one (by creation time, then by namespace and name) holds
it; the other is on standby and takes over at once when the first goes. Nothing is lost meanwhile.";

    /// proxy-url.
    USES_PROXY = "STR0208", "the kubeconfig uses a proxy",
        "Give an address of the API server that the control plane reaches directly.", "\
`proxy-url` would send the credential to a server of the Secret's choice, and would hide the address
that is really dialled from the checks on addresses.";

    /// A loopback API server.
    LOOPBACK_SERVER = "STR0209", "the API server's address is a loopback address",
        "Give the address that the control plane can use, such as a node's or the load balancer's. The
certificate must name it; else set tls-server-name.", "\
A kubeconfig made on a laptop often says https://127.0.0.1:PORT, which inside a pod is the pod itself.
A literal loopback address is allowed with --config-dir or outside a pod; a name that stands for
one (such as localhost) never is. The kubeconfig of the config cluster is the operator's own: there
both are fine.";

    /// Not https://HOST:PORT.
    SERVER_URL = "STR0210", "the API server's URL is not acceptable",
        "Write it as https://HOST:PORT.", "\
`server` must be https://HOST[:PORT][/PATH]: https only, a DNS name or a literal address in its usual
form, no user name, no query, no fragment.";

    /// Aliases, duplicate keys, tags, several documents, control characters.
    YAML_TRICK = "STR0211", "the kubeconfig uses YAML that can mean two things",
        "Write the file anew: kubectl config view --minify --flatten --raw --context NAME", "\
Anchors, aliases, merge keys, tags, duplicate keys, several documents, lone carriage returns and
control characters are refused: a reader of the file and the program could understand different things,
or the file could unfold to far more than it is. No tool that writes kubeconfigs needs them.";

    /// No context, no user, no cluster.
    CONTEXT_UNCLEAR = "STR0212", "the kubeconfig doesn't say which context to use",
        "Choose one: kubectl --kubeconfig FILE config use-context NAME", "\
The context of `current-context` is used. Without it the file must have exactly one context. The
context must exist and name a cluster and a user of the same file, and no name may be there twice.";

    /// A field we don't know.
    UNKNOWN_FIELD = "STR0213", "the kubeconfig has a field that Strait doesn't know",
        "Remove the field, or correct its name.", "\
Fields are allowed by name, so that what future clients may learn to do with a kubeconfig (running
programs, reading files) can't get in unnoticed. `extensions` and `preferences` are read by nobody and
may hold anything. Often it is a spelling: `certificate-authority-data`, `client-key-data`, `token`.";

    /// Base64, PEM, key, token.
    CREDENTIAL_UNUSABLE = "STR0214", "the kubeconfig's credential can't be used",
        "Make a new one: strait cluster rotate ID", "\
The value named is not base64, holds no certificate or key in PEM, has a key that doesn't fit its
certificate, holds characters that no token has, or names two ways to log in at once.
Usable are: a token, a user name with password, a client certificate with its key, or the latter with a
token.";

    /// Not a DNS-1123 subdomain of 63 characters.
    CLUSTER_ID_INVALID = "STR0215", "the Secret's key can't be a cluster ID",
        "Name the key as the proxies name their cluster: --from-file=ID=FILE", "\
Each data key of the Secret is a cluster ID: a DNS-1123 subdomain of at most 63 characters (lower-case
letters, digits, '-' and '.', each label starting and ending with a letter or digit). A file name's
ending is part of it.";

    /// The config cluster's own.
    ID_OF_CONFIG_CLUSTER = "STR0216", "the cluster ID is the config cluster's own",
        "Rename the Secret's key, or delete the Secret.", "\
The config cluster is a member already, under the ID given by --cluster-id. A Secret can't replace how it
is reached.";

    /// strait.dev/mode, strait.dev/network.
    ANNOTATION_INVALID = "STR0217", "an annotation of the Secret has a value that means nothing",
        "Correct the annotation, or remove it.", "\
`strait.dev/mode` is `drain` or `pause`, or absent. `strait.dev/network` is a network's name: at most 63
letters, digits, '-', '_' and '.', starting and ending with a letter or digit. `strait.dev/trust-domain` is
made of a-z, 0-9, '.', '-' and '_'. A cluster that works keeps working as before.";

    /// Link-local, unspecified, multicast, broadcast.
    SERVER_ADDRESS = "STR0218", "the API server's address can't be an API server",
        "Give the address of the API server that the control plane reaches.", "\
Link-local addresses (where clouds keep their metadata services), 0.0.0.0 and ::, multicast and
broadcast addresses are never dialled. k3d writes 0.0.0.0: use the host's address or 127.0.0.1.";

    /// A file of --config-dir.
    CONFIG_FILE = "STR0219", "a configuration file can't be read",
        "Correct the file; it is read again at once.", "\
The file keeps its last good objects; those of other files are not affected. A file that was never good
since the start gives those of its documents that are; member clusters that are known from before, and
whose Secrets are not found, are taken to be in the rest: what was last known of them serves on, and
they are shown as rejected. The warning names the file, the document in it (from 1) and the line.";

    /// Two IDs, one cluster.
    SAME_CLUSTER_TWICE = "STR0220", "the cluster is a member already, under another ID",
        "Delete one of the two Secrets.", "\
The UID of its namespace kube-system equals that of another member, so that each of its endpoints would
be there twice. The one that was there first stays; this one joins when the other goes.";

    /// A ServiceEntry or WorkloadEntry.
    ENTRY = "STR0221", "a ServiceEntry or WorkloadEntry can't be used as it is",
        "Correct the field that the message names; the object is read again at once.", "\
The message names the object, the field, and what becomes of it. An object that was fine before keeps
counting as it was; a new one counts for nothing. A host belongs to the namespace of its oldest entry, and a
name that a cluster's own service has belongs to that service's namespace: entries elsewhere can't add
to it, or whoever may write one object could take a share of anybody's traffic. No other object is
affected.";

    /// Two stores have one object.
    SHADOWED = "STR0222", "an object is in several stores",
        "Keep it in one of them. /debug/sources names both.", "\
Of stores that have an object of the same kind, namespace and name, the first counts: in the order of
configSources, Strait's own (`k8s://`) first where the list leaves it out. The others' counts for nothing
until the first one's goes.";

    /// check: secrets.
    SECRET_WITHOUT_LABEL = "STR0223", "a Secret holds a kubeconfig and has no label",
        "If it is meant as a member: kubectl label secret NAME strait.dev/cluster=true", "\
A Secret of the system namespace makes members only with the label strait.dev/cluster=true or
istio/multiCluster=true. This one holds a kubeconfig without either: often the label was forgotten.";

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
        "Put the right CA into certificate-authority-data, or set tls-server-name.", "\
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

    /// explain: gateway.
    NO_GATEWAY = "STR0401", "the network has no gateway",
        "Label a Service of that network with topology.istio.io/network, or name a gateway in meshNetworks.", "\
Endpoints of another network are reached through a gateway of theirs, or not at all: a raw address
may belong to somebody else in the proxy's own network. Proxies in the same network are not
affected. --allow-direct-cross-network restores the other rule, for flat networks.";

    /// explain: gateway.
    GATEWAY_PENDING = "STR0402", "the network's gateway has no address yet",
        "Wait for the load balancer, or correct the DNS name: strait network list", "\
A gateway is configured, but its Service has no external address or lacks the gateway port, or its
name does not resolve. Endpoints behind it are withheld from other networks until it has one.";

    /// explain: family.
    GATEWAY_FAMILY = "STR0403", "the proxy can't speak to any of the network's gateways",
        "Give the gateway an address of the proxy's family (IPv4 or IPv6).", "\
All gateways of the endpoint's network have addresses of a family that the proxy has no address of.";

    /// explain: mtls.
    PLAIN_TEXT = "STR0404", "the endpoint takes no mTLS, which crossing networks needs",
        "Give the pod a sidecar and the label security.istio.io/tlsMode=istio.", "\
Gateways pass connections on by the SNI of their mTLS, which they can't open. An endpoint in plain
text can't be told apart there, and would be reachable by anybody. Inside its own network it is
reached as before.";

    /// DNS of a gateway.
    GATEWAY_NAME = "STR0405", "a gateway's name does not resolve",
        "Correct the record, or the Service's external address: strait network list", "\
When the servers fail or stay silent, the last addresses stay in use. When they say that there is
no such name, the addresses stay for ten minutes, after which the network is left with its other
gateways, if any.";

    /// explain: network.
    OTHER_NETWORK = "STR0406", "an east-west gateway forwards into its own network only",
        "Nothing to do: clients reach that network by its own gateway.", "\
A gateway holds endpoints of its own network. A second hop would hide loops, and make the first
gateway trust what the second says.";

    /// explain: network.
    HEADLESS_ELSEWHERE = "STR0407", "pods of a headless service can't be reached in another network",
        "Give the service a cluster IP, or a second Service with one, for clients in other networks.", "\
A client of a headless service chooses a pod by its address, and its proxy follows. A gateway has one
address for all pods behind it, and a pod's own address may belong to somebody else in the client's
network. Pods of the client's own network are reached as before.";

    /// explain: mtls.
    AUTO_MTLS_OFF = "STR0408", "mesh config has proxies speak plain text, and gateways take mTLS alone",
        "Set enableAutoMtls to true in the mesh config, or put the endpoints into the proxies' network.", "\
With enableAutoMtls: false clients open mTLS to nobody. An east-west gateway finds the way by the SNI
of mTLS, so whatever else arrives there is closed. Within a network plain text goes on as before.";

    /// `--probe-gateways`.
    GATEWAY_DEAD = "STR0409", "a gateway does not answer",
        "Look at the process and at the way to it: strait network list shows which one.", "\
Three times in a row nobody took a connection at the gateway's address, or the hello of TLS for a service
behind it was not answered. Proxies are sent the other gateways of its network until it answers again; where
no gateway of the network answers all stay in use, for it may be the line from here that is down.";

    /// `--mesh-networks` or its ConfigMap.
    MESH_NETWORKS = "STR0410", "the mesh networks can't be used",
        "Correct the field named; they are read again by themselves.", "\
The text is not YAML, or a CIDR range, address, port or name in it is none. What was last good
stays in force, so no endpoint changes its network because of it.";

    /// `--mesh-networks` or its ConfigMap.
    MESH_NETWORKS_CONFLICT = "STR0411", "networks claim the same cluster or addresses",
        "Let one network claim each cluster and each range.", "\
Two networks name the same cluster by fromRegistry, or the same CIDR range. The first by name has
it, so that every replica decides alike; a longer range always wins over a shorter one.";

    /// check: networks.
    CLAIM_IGNORED = "STR0412", "a claim to a network has no effect",
        "Remove the label, or change what fixes the network: strait cluster get ID", "\
A label or mesh networks say that something in the cluster is in another network than the annotation
strait.dev/network of its Secret fixes, or than policy allows. The Secret and the policy are the operator's
word and hold; the claim is shown so that nobody wonders.";

    /// explain: network.
    NOT_SEEN = "STR0413", "the proxy asks not to be given the network",
        "Add the network to REQUESTED_NETWORK_VIEW in the proxy's metadata, or leave that out.", "\
A proxy whose metadata has REQUESTED_NETWORK_VIEW, networks with commas between them, is given the
endpoints of these, and those that are in no named network. Without it, those of all.";

    /// explain: network; check: clusters.
    SAME_ADDRESS = "STR0414", "pods of two clusters have the same address in one network",
        "Name their networks: strait network join CONTEXT --network NAME (or cluster add --network)", "\
An address leads to one pod in one network. Clusters whose pods have the same addresses are in different
networks, and nothing says so: neither a label topology.istio.io/network nor the annotation
strait.dev/network of their Secrets. Until it does, proxies of each of these clusters are given its own pods,
and all others those of the cluster that comes first (the config cluster, then the one whose Secret is older);
the other's are withheld there. So no cluster takes an address from another one by claiming it.";

    /// explain: ready.
    NOT_READY = "STR0420", "the endpoint is not ready",
        "See why: kubectl describe pod", "\
The EndpointSlice says that it is not ready, is draining or terminating. Such endpoints are
neither sent nor counted.";

    /// explain: pod.
    POD_MISSING = "STR0421", "the endpoint's pod has not been seen",
        "It is sent as soon as its pod is seen; if it never is, look at the pod watch of that cluster.", "\
The EndpointSlice names a pod that the API server has not shown yet. Without it neither identity
nor mTLS is known, so it is withheld rather than sent in plain text.";

    /// explain: export.
    NOT_EXPORTED = "STR0422", "the service is not exported to the proxy",
        "Change the annotation networking.istio.io/exportTo on the Service.", "\
exportTo names the namespaces that may see a service. Gateways carry only what is exported to everybody.";

    /// explain: export.
    CLUSTER_LOCAL = "STR0423", "the service stays in its own cluster",
        "Change serviceSettings in the mesh config, if it shall be shared.", "\
kubernetes.default, everything in kube-system, the control plane, and what serviceSettings calls
cluster-local is given only to proxies of the endpoint's own cluster.";

    /// explain: export.
    NODE_LOCAL = "STR0424", "the service stays on its own node",
        "Change internalTrafficPolicy of the Service, if it shall not.", "\
internalTrafficPolicy: Local gives a proxy only endpoints on its own node. A proxy whose node is
not known is given all of its cluster. It is each cluster's own: what one keeps to its nodes is given to
no other cluster, and those whose Service says otherwise go on among themselves.";

    /// explain: family.
    ENDPOINT_FAMILY = "STR0425", "the proxy can't speak to the endpoint",
        "Give both an address of one family (IPv4 or IPv6).", "\
The endpoint's address is of a family that the proxy has no address of, so no connection could be
made. A proxy's addresses come from its node id and INSTANCE_IPS.";

    /// explain: ready.
    CLUSTER_DRAINING = "STR0426", "the endpoint's cluster is being drained",
        "Remove the annotation strait.dev/mode from its Secret to bring it back.", "\
An operator asked for it: proxies get no endpoint of the cluster any more, and connections that
are open may end by themselves. The cluster is still watched, so it is back at once when the
annotation goes.";

    /// explain: network.
    NO_ADDRESS = "STR0429", "the endpoint has no address of its own",
        "Give the WorkloadEntry an address, if proxies of its own network shall reach it.", "\
A WorkloadEntry that names a network and no address stands for whatever the gateways of that network lead
to: proxies of other networks are given those gateways. Where the network has none, and in the network
itself, there is nothing that could be sent.";

    /// check: services.
    SERVICE_CONFLICT = "STR0430", "clusters disagree on a service",
        "Make the Services alike: strait service get HOST", "\
The same name has different ports, visibility or kind in two clusters, or is in another namespace. Ports of
all clusters are served; where two differ on one number (its name or protocol) or on anything else, the
config cluster decides, then the cluster whose Secret is older, then the ID. Endpoints behind a number come
from the clusters that have it, and of others from their port of the same name. Proxies take the protocols of
ports from their own cluster, where it has the service.";

    /// The node of a stream.
    NODE = "STR0501", "the node can't be read",
        "Print a bootstrap with: strait proxy bootstrap", "\
The node id is not type~ip~name.namespace~domain with type sidecar or router, an address is none,
or the metadata is larger than 64 KiB. The stream is refused; nobody else is affected.";

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
take a quarter of the memory limit for one identity, whatever it calls itself. The stream that asks for more
ends with RESOURCE_EXHAUSTED. What known pods watch of known services is not counted. /debug/push shows who
takes most.";

    /// Memory.
    MEMORY_SHORT = "STR0515", "the server's memory is short",
        "Give it a higher memory limit, or see in /debug/push which identity takes most.", "\
From 80 % of the memory limit on, proxies that have nothing yet are told to come again (UNAVAILABLE); those
that are connected, or come back with what they have, are served. From 90 % on, the streams of the identity
that takes most are ended first, then those of the next, until there is room. Proxies keep what they have
meanwhile.";

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
        "Replace both files; they are read together.", "\
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
A CA directory holds ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, and the chain
leads to one of the roots. A part of it is refused as a whole.";

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
        "Raise its limit (LimitNOFILE= of a unit, ulimit -Hn, or the container runtime's) to ten for each member and
one for each proxy.", "\
Each connection takes one: ten or so to each member's API server, one from each proxy. When none is free,
new connections wait or fail: a member that gets none is served from what is known of it. Some are kept for
proxies and for the admin port, so that those that come are still let in. At the start the limit is raised
to the highest that the process may set (its hard limit). GET /debug/push shows how many are open, how many
members need, and how often there was none; so do process_open_fds, process_max_fds and
strait_descriptors_exhausted_total.";
}

#[cfg(test)]
mod tests;
