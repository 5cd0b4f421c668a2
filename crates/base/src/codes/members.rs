//! 02xx: kubeconfigs, Secrets and other sources of configuration.

use super::code::Code;

codes! {
    /// An unreadable kubeconfig.
    KUBECONFIG_UNREADABLE = "STR0201", "the kubeconfig cannot be read",
        "Check it with: kubectl --kubeconfig FILE config view
Then put that file into the Secret: kubectl -n strait-system create secret generic NAME --from-file=ID=FILE", "\
The value is empty, not UTF-8, not YAML or JSON, or does not have the structure of a kubeconfig (`clusters`,
`users` and `contexts` as lists of named entries). A leading UTF-8 byte order mark and CRLF line ends are
accepted; UTF-16, as PowerShell's `>` writes it, is not.";

    /// A kubeconfig above the limits.
    KUBECONFIG_TOO_LARGE = "STR0202", "the kubeconfig exceeds its size limits",
        "Reduce the file to the context that you need:
  kubectl config view --minify --flatten --context NAME", "\
A kubeconfig may have 1 MiB, 16 levels, and 64 clusters, users and contexts each. The limits are checked
before anything is interpreted, so that one Secret cannot slow down the others.";

    /// exec, auth-provider.
    RUNS_PROGRAM = "STR0203", "the kubeconfig runs a program",
        "Use a service account's token instead: strait cluster add CONTEXT --name ID", "\
`users[].user.exec` names a program, and `auth-provider` a plugin that runs one or contacts a third party.
Strait never runs programs from a member's kubeconfig: the author of the Secret could run anything inside of
the control plane. Strait checks every user in the file, not only the user of the current context. Your own
kubeconfig (--kubeconfig, KUBECONFIG) may name programs. For EKS, GKE and AKS, an identity of the --members
file (type aws, google or azure) replaces the program.";

    /// tokenFile, client-certificate, client-key, certificate-authority.
    READS_FILE = "STR0204", "the kubeconfig reads a file",
        "Put the content inline (`...-data`): kubectl config view --minify --flatten --raw --context NAME", "\
`tokenFile`, `client-certificate`, `client-key` and `certificate-authority` name files. Strait would read
them on its own host, and could send them to a server that the author of the Secret chooses. Therefore
Strait refuses these fields in every entry of the file.";

    /// insecure-skip-tls-verify.
    SKIPS_VERIFICATION = "STR0205", "the kubeconfig skips TLS verification",
        "Put the cluster's CA into `certificate-authority-data`. If the name in the certificate differs from
the address, set `tls-server-name`.", "\
With `insecure-skip-tls-verify: true`, anyone on the network path could respond as the API server and
redirect the mesh's traffic. No setting allows it.";

    /// as, as-uid, as-groups, as-user-extra.
    IMPERSONATES = "STR0206", "the kubeconfig impersonates another user",
        "Use a separate credential for the reader: strait cluster add CONTEXT --name ID", "\
`as`, `as-uid`, `as-groups` and `as-user-extra` request the API server to treat Strait as another user. A
reader does not need this right, and a credential with it is far more valuable to an attacker.";

    /// An older Secret has the ID.
    ID_TAKEN = "STR0207", "another Secret has the cluster ID",
        "Rename the key in either Secret, or delete the wrong one.", "\
Two Secrets name the same cluster ID. The older one (by creation time, then by namespace and name) is used.
The other one takes over immediately if the first is deleted. No endpoint is lost meanwhile.";

    /// proxy-url.
    USES_PROXY = "STR0208", "the kubeconfig uses a proxy",
        "Define the proxy under `proxies` in the --members file, or use an address that the control plane
reaches directly.", "\
`proxy-url` is accepted only if it is the URL of a proxy in the --members file: otherwise the author of the
Secret would choose the destination of the connection, and Strait could not check the dialled address.";

    /// A loopback API server.
    LOOPBACK_SERVER = "STR0209", "the API server's address is a loopback address",
        "Use an address that the control plane can reach, for example that of a node or a load balancer. The
certificate must contain it; otherwise set tls-server-name.", "\
A kubeconfig from a laptop often contains https://127.0.0.1:PORT, which is the pod itself inside of a pod. A
literal loopback address is allowed with --config-dir or outside of a pod. Names that resolve to a loopback
address, for example localhost, are never allowed. The kubeconfig of the config cluster belongs to the
operator and may contain both. The Secrets of vcluster contain https://localhost:8443 by default: set
`exportKubeConfig.server` of the vcluster, or annotate the Secret with
strait.dev/api-server=https://HOST:PORT.";

    /// Not https://HOST:PORT.
    SERVER_URL = "STR0210", "the API server's URL is invalid",
        "Write it as https://HOST:PORT.", "\
`server` must be https://HOST[:PORT][/PATH]: only https, a DNS name or a literal address in its usual
format, no user name, no query, no fragment.";

    /// Aliases, duplicate keys, tags, several documents, control characters.
    YAML_TRICK = "STR0211", "the kubeconfig uses ambiguous YAML",
        "Rewrite the file: kubectl config view --minify --flatten --raw --context NAME", "\
Anchors, aliases, merge keys, tags, duplicate keys, several documents, lone carriage returns and control
characters are refused: a human reader and the program could interpret the file differently, or it could
expand to an excessive size. No tool that writes kubeconfigs needs them.";

    /// No context, no user, no cluster.
    CONTEXT_UNCLEAR = "STR0212", "the kubeconfig does not define which context to use",
        "Choose one: kubectl --kubeconfig FILE config use-context NAME", "\
Strait uses the context in `current-context`. Without it, the file must have exactly one context. The
context must exist and name a cluster and a user in the same file, and names must be unique.";

    /// An unknown field.
    UNKNOWN_FIELD = "STR0213", "the kubeconfig has an unknown field",
        "Remove the field, or correct its name.", "\
Only known fields are allowed, so that future features of kubeconfigs (running programs, reading files) are
not enabled unnoticed. `extensions` and `preferences` are ignored and may contain anything. Often the field
is misspelt: `certificate-authority-data`, `client-key-data`, `token`.";

    /// Base64, PEM, key, token.
    CREDENTIAL_UNUSABLE = "STR0214", "the kubeconfig's credential cannot be used",
        "Create a new one: strait cluster rotate ID", "\
The named value is not base64, contains no PEM certificate or key, has a key that does not match its
certificate, contains characters that a token cannot have, or specifies two ways to authenticate. Supported
are a token, a user name with a password, a client certificate with its key, or the latter with a token. A
client certificate must have X.509 version 3, unlike for kubectl.";

    /// Not a DNS-1123 subdomain of 63 characters.
    CLUSTER_ID_INVALID = "STR0215", "the Secret's key is not a valid cluster ID",
        "Name the key like the cluster ID of the proxies: --from-file=ID=FILE
For a Secret of another tool, set the annotation strait.dev/cluster-id.", "\
Each data key of the Secret is a cluster ID: a DNS-1123 subdomain of at most 63 characters (lower-case
letters, digits, '-' and '.', each label starting and ending with a letter or digit). A file name's
extension is part of it. In Secrets of Cluster API and Argo CD the ID is the annotation strait.dev/cluster-id,
otherwise the name that the tool gives the cluster. An invalid name is never rewritten: two rewritten names
could be equal.";

    /// The ID of the config cluster.
    ID_OF_CONFIG_CLUSTER = "STR0216", "the cluster ID belongs to the config cluster",
        "Rename the Secret's key, or delete the Secret.", "\
The config cluster is already a member, with the ID in --cluster-id. A Secret cannot change how Strait
connects to it.";

    /// strait.dev/mode, strait.dev/network.
    ANNOTATION_INVALID = "STR0217", "an annotation of the Secret has an invalid value",
        "Correct the annotation, or remove it.", "\
`strait.dev/mode` must be `drain` or `pause`, or absent. `strait.dev/network` is the name of a network: at
most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit.
`strait.dev/trust-domain` consists of a-z, 0-9, '.', '-' and '_'. `strait.dev/relay` and
`strait.dev/self-renew` are `true` or `false`. `strait.dev/relay-generation` is a whole number from 1.
`strait.dev/expires` is a time in RFC
3339, for example 2027-01-31T00:00:00Z; an invalid time is ignored. A working cluster keeps its previous
settings.";

    /// Link-local, unspecified, multicast, broadcast.
    SERVER_ADDRESS = "STR0218", "the API server cannot have this address",
        "Use an address of the API server that the control plane reaches.", "\
Strait never connects to link-local addresses (where clouds have their metadata services), 0.0.0.0 and ::,
multicast and broadcast addresses. k3d writes 0.0.0.0: use the host's address or 127.0.0.1 instead.";

    /// A file of --config-dir.
    CONFIG_FILE = "STR0219", "a configuration file cannot be read",
        "Correct the file. Strait reads it again immediately.", "\
The last valid objects of the file stay active, and /debug/config shows the file as refused. Other files are
not affected. If the file has never been valid since the start, its valid documents apply, together with the
file's objects from before the start, if there is a state directory. Known member clusters whose Secrets are
missing are assumed to be in the invalid part: their last known state stays in use, and they are shown as
rejected. The warning names the file, the document in it (from 1) and the line.";

    /// Two IDs for one cluster.
    SAME_CLUSTER_TWICE = "STR0220", "the cluster is already a member with another ID",
        "Delete either of the two Secrets. For two clusters restored from one etcd snapshot, annotate both Secrets:
  kubectl -n strait-system annotate secret NAME strait.dev/cluster-uid=UID --overwrite", "\
The UID of the cluster's namespace kube-system equals that of another member, so that each endpoint would
exist twice. The config cluster takes precedence, then the member with the older Secret (by creation time,
then by namespace and name), regardless of which responds first. This one joins when the other is removed.
Clusters that were restored from one etcd snapshot have the same UID but are different clusters: if both
Secrets have an annotation with this UID, both are members. The config cluster has no Secret and needs no
annotation.";

    /// A ServiceEntry or WorkloadEntry.
    ENTRY = "STR0221", "a ServiceEntry or WorkloadEntry cannot be used unchanged",
        "Correct the field that the message names. Strait reads the object again immediately.", "\
The message names the object, the field and the consequence. If an earlier version of the object was valid,
it stays active; otherwise the object is ignored. An unknown field, which is often misspelt, has no effect,
and the rest of the object applies: API servers remove such fields, files contain them. A host belongs to
the namespace of its oldest entry, and a name of a cluster's Service belongs to that Service's namespace.
Entries in other namespaces cannot add endpoints to it, because otherwise the author of one object could
receive a part of another team's traffic. No other object is affected.";

    /// Two stores with one object.
    SHADOWED = "STR0222", "an object is in several stores",
        "Keep it in either of them. /debug/sources names both.", "\
If several stores contain an object of the same kind, namespace and name, the first store wins, in the order
of configSources. Strait's own store (`k8s://`) is first if the list omits it. The other objects are ignored
until the first one is deleted.";

    /// check: secrets.
    SECRET_WITHOUT_LABEL = "STR0223", "a Secret contains a kubeconfig but has no label",
        "If it should be a member: kubectl -n strait-system label secret NAME strait.dev/cluster=true", "\
A Secret in the system namespace only defines members if it has the label strait.dev/cluster=true or
istio/multiCluster=true. This one contains a kubeconfig without either. Often the label was forgotten.";
}
