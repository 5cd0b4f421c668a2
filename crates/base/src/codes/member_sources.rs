//! 0224 to 0249: member clusters that other tools define, and the identities that read them.

use super::code::Code;

codes! {
    /// `ids` of a source.
    ID_OUTSIDE_SOURCE = "STR0224", "a source may not define this cluster ID",
        "Add a pattern to `ids` of the source in the --members file, or change the object's ID.", "\
Each source in the --members file lists the cluster IDs that its objects may define. Without this list, any
user with permission to label a Secret in one namespace could take the ID of another team's cluster.";

    /// An identity that is not defined.
    IDENTITY_UNKNOWN = "STR0225", "the identity is not defined",
        "Define it under `identities` in the --members file, or correct the annotation
strait.dev/identity.", "\
The object selects an identity by name. Only the --members file defines identities: an object never
contains one. An Argo CD Secret with `awsAuthConfig` selects an identity of type `aws`. Exactly one such
identity must list the server and have the role.";

    /// The server is not listed.
    IDENTITY_SERVER = "STR0226", "the identity may not be used at this server",
        "If it may receive the token, add it to `servers` of the identity or program in the --members file.", "\
Strait sends a token that it obtained itself only to the servers that the identity or the program lists.
Otherwise the author of one object could redirect the token to any host. Types `aws`, `google` and `azure`
have default servers; `servers` replaces them. No request was sent.";

    /// A type that this version does not implement.
    NOT_AVAILABLE = "STR0227", "this version cannot reach the member in this way",
        "Use a type or an object that this version implements: docs/reference/member-sources.md", "\
The object or the --members file requests a setting that this version validates but does not implement. The
member is refused instead of being read without the setting. A member is also refused if its identity of type
aws has no credentials.";

    /// A credential and an identity.
    CREDENTIAL_AMBIGUOUS = "STR0228", "the object names two ways to authenticate",
        "Remove the credential from the kubeconfig, or remove the annotation strait.dev/identity.", "\
A kubeconfig with a user's credential and an identity for the same member are ambiguous. With
strait.dev/identity, the kubeconfig needs no user.";

    /// Argo CD's form.
    ARGO_CD = "STR0229", "the Argo CD cluster Secret cannot be used",
        "Correct the field that the message names, or select the object's credential with another format.", "\
A Secret with the label argocd.argoproj.io/secret-type=cluster is read as Argo CD writes it: keys `name`,
`server` and `config` (JSON). The config has either a bearer token, a user name with a password, or a client
certificate. Programs are refused (STR0203), like TLS without verification (STR0205). Argo CD's own cluster,
https://kubernetes.default.svc, is the config cluster. If `config` is unusable, the Secret is not tried in
another format.";

    /// No kubeconfig in the expected key.
    KEY_MISSING = "STR0230", "the Secret has no kubeconfig in the expected key",
        "Put the kubeconfig into the named key, or correct the annotation strait.dev/kubeconfig-key.", "\
A Cluster API Secret has its kubeconfig in the key `value`. The annotation strait.dev/kubeconfig-key names
the key of any other Secret. Other keys are not read.";

    /// A source's Secrets.
    SOURCE_UNREADABLE = "STR0231", "the objects of a member source cannot be read",
        "Grant Strait `list` and `watch` of the objects in the namespace (chart value members.sources).", "\
The --members file names a namespace whose Secrets or ClusterProfiles cannot be read, or the Secret of an
access provider cannot be read. Members that were read before stay. Other sources are not affected. If the
cluster has no ClusterProfiles, install their CRD. Permission to list Secrets cannot be limited to a label:
reading a namespace means that Strait's account may read all Secrets in it.";

    /// An issuer fails.
    IDENTITY_FAILED = "STR0232", "an identity has no token",
        "Check the file, endpoint or program that the message names. Strait retries automatically.", "\
Strait could not obtain or renew the token of an identity. The previous token stays in use until it expires.
After that, the members with this identity are shown as authFailed. The message contains the issuer's
answer or the last line of a program's stderr, never a token.";

    /// cluster-admin from Cluster API.
    ADMIN_CREDENTIAL = "STR0233", "a member is read with an administrator's client certificate",
        "Use a reader instead: strait cluster add CONTEXT --name ID. Or use an identity of the --members file.", "\
The client certificate belongs to the group system:masters: it has all rights in the member, it cannot be
limited by RBAC, and an API server cannot revoke it. Cluster API writes such kubeconfigs. Strait needs only
read access.";

    /// A token that one member could use at another.
    SHARED_IDENTITY = "STR0234", "members share a token that is valid at all of them",
        "Use one identity per member, or type `kubernetes` or `exchange`, whose tokens have an audience.", "\
A token of Google or of Entra ID is valid at every cluster where its account has rights. The API server of
one member receives the token, and could use it at the other members. Give the account only the right to
connect and to read.";

    /// No known way to read the ID.
    ID_MISSING = "STR0235", "the object does not name a cluster ID",
        "Set the annotation strait.dev/cluster-id, or the label or key that the object's format uses.", "\
The cluster ID comes from the annotation strait.dev/cluster-id, otherwise from the object's format: the label
cluster.x-k8s.io/cluster-name (Cluster API), the key `name` (Argo CD), the label x-k8s.io/cluster-profile,
otherwise the data key. In the native format with several data keys, the annotation is refused, because it
would name one ID for several clusters.";

    /// No provider that the operator file knows.
    PROFILE_PROVIDER = "STR0237", "no access provider of the ClusterProfile can be used",
        "Add an entry with the provider's name to `access` in the --members file.", "\
A ClusterProfile lists access providers, and `access` in the --members file defines how Strait uses them. The
first entry of the file whose provider the profile lists is used. If it fails, no other entry is tried, so
that the failure is visible.";

    /// The Secret of a provider.
    PROFILE_SECRET = "STR0238", "the credential of a ClusterProfile cannot be read",
        "Create the Secret in the message, or correct the entry of `access` in the --members file.", "\
The entry of `access` reads the credential from a Secret. Its namespace comes from the --members file; a
profile can only select a Secret in a namespace that the entry lists. A member that was read before stays
live with its last credential.";

    /// A property that changed later.
    PROFILE_ID_KEPT = "STR0239", "the ClusterProfile names another cluster ID now",
        "Set the annotation strait.dev/cluster-id on the ClusterProfile to rename the member.", "\
The property cluster.clusterset.k8s.io of a ClusterProfile defines the cluster ID. If the property changes
later, the member is not renamed, because proxies carry its ID.";

    /// A Secret and a profile with one name.
    NAME_OF_ANOTHER_KIND = "STR0240", "a ClusterProfile and a Secret have the same name",
        "Rename an object, or change a selector in the --members file so that only one is selected.", "\
Members are known by the namespace and name of the object that defines them. If sources select a Secret and
a ClusterProfile with the same name in one namespace, only the object of the first source is used. A Secret
of the system namespace precedes the objects of all sources.";

    /// A placement without decisions.
    PLACEMENT_UNDECIDED = "STR0241", "the placement of a member source has no decision",
        "Check `placement` of the source in the --members file, and the scheduler that writes the decisions.", "\
A placement that selects no cluster has a PlacementDecision with an empty list. Without any
PlacementDecision, the scheduler has not decided yet, or the placement was deleted. The members of the last
complete decisions stay.";

    /// `publishProfiles`.
    PROFILES_UNPUBLISHED = "STR0242", "a ClusterProfile of a member cannot be published",
        "Grant Strait the rights on clusterprofiles that the chart grants, install their CRD, or rename the
profile of the other manager.", "\
`publishProfiles` in the --members file publishes the members as ClusterProfiles. Strait changes only profiles
whose manager it is: if another manager has a profile with the ID of a member, that member is not published.
Members themselves are not affected.";

    /// The annotation `strait.dev/self-renew`, if Strait cannot renew the credential.
    SELF_RENEW_UNUSED = "STR0236", "the annotation strait.dev/self-renew has no effect",
        "Remove the annotation. Renew the credential with the tool that writes the Secret.", "\
Strait renews only tokens of service accounts that expire, in kubeconfigs of Secrets in the system namespace
that no other tool writes. It does not change Secrets of Argo CD, of Cluster API and of the sources in the
--members file, nor files of --config-dir: their owner would undo the change. The member works until its
credential expires.";

    /// A change of the operator file that selects a member no longer.
    MEMBER_DESELECTED = "STR0243", "the --members file no longer selects a member",
        "To keep the member, select its object again in the --members file before its endpoints are withdrawn.
It returns whenever the object is selected again. To remove it for good, delete the object.", "\
A source was removed from the --members file, or its namespace, its selector or the kind of its objects was
changed, so that no source selects the object of a member. The object itself still exists. The endpoints of
the member stay until the end of the grace period; then they are withdrawn, like after the deletion of the
object. A removed pattern of `ids` has no such effect (STR0224).";
}
