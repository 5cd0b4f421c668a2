//! 02xx: kubeconfigs, Secrets and other sources of configuration.

use super::code::Code;

codes! {
    /// An unreadable kubeconfig.
    KUBECONFIG_UNREADABLE = "STR0201", "the kubeconfig can't be read",
        "Check it with: kubectl --kubeconfig FILE config view
Then put the bytes of that file into the Secret: kubectl create secret generic NAME --from-file=ID=FILE", "\
The value is empty, is not UTF-8, is not YAML or JSON, or is not shaped like a kubeconfig (`clusters`,
`users` and `contexts` as lists of named entries). One leading UTF-8 byte order mark and CRLF line ends
are fine; UTF-16, as PowerShell's `>` writes it, is not.";

    /// A kubeconfig above the limits.
    KUBECONFIG_TOO_LARGE = "STR0202", "the kubeconfig is larger than its budget",
        "Cut the file down to the context you need:
  kubectl config view --minify --flatten --context NAME", "\
A kubeconfig may have 1 MiB, 16 levels, and 64 clusters, users and contexts each. The limits are
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

    /// An older Secret has the ID.
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

    /// An unknown field.
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

    /// The ID of the config cluster.
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
The file keeps its last good objects, which /debug/config shows as refused; those of other files are not
affected. A file that was never good since the start gives those of its documents that are, and beside
them what it held before the start, where there is a state directory to remember that. Member clusters
that are known from before, and whose Secrets are not found, are taken to be in the rest: what was last
known of them serves on, and they are shown as rejected. The warning names the file, the document in it
(from 1) and the line.";

    /// Two IDs for one cluster.
    SAME_CLUSTER_TWICE = "STR0220", "the cluster is a member already, under another ID",
        "Delete one of the two Secrets. For two clusters restored from one etcd snapshot, annotate both Secrets:
  kubectl -n strait-system annotate secret NAME strait.dev/cluster-uid=UID --overwrite", "\
The UID of its namespace kube-system equals that of another member, so that each of its endpoints would
be there twice. The one that was there first stays; this one joins when the other goes. Clusters that were
restored from one etcd snapshot have the same UID and are different clusters: an annotation with this UID on
both Secrets says so, and both are members. The config cluster has no Secret and needs no annotation.";

    /// A ServiceEntry or WorkloadEntry.
    ENTRY = "STR0221", "a ServiceEntry or WorkloadEntry can't be used as it is",
        "Correct the field that the message names; the object is read again at once.", "\
The message names the object, the field, and what becomes of it. An object that was fine before keeps
counting as it was; a new one counts for nothing. A field that nobody knows, misspelt mostly, has no
effect, and the rest counts: API servers take such fields away, files hold them. A host belongs to the
namespace of its oldest entry, and a name that a cluster's own service has belongs to that service's
namespace: entries elsewhere can't add to it, or whoever may write one object could take a share of
anybody's traffic. No other object is
affected.";

    /// Two stores with one object.
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
}
