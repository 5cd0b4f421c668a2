//! 0311 to 0313: contact with the config cluster.

use super::code::Code;

codes! {
    /// The config cluster has never been read, in this run or before.
    CONFIG_CLUSTER_UNREAD = "STR0311", "the config cluster has never been read",
        "Check the config cluster: kubectl get --raw /readyz; and rights: kubectl auth can-i list secrets -n NAMESPACE", "\
The config cluster defines the members of the mesh. It cannot be read, and --state-dir contains no earlier
state. Therefore Strait is not ready and sends nothing to proxies: without knowing the clusters, it would
withdraw every endpoint. Proxies keep their configuration, and Strait starts automatically once the config
cluster is read. If an earlier state exists, Strait uses it after 1 s.";

    /// 401 of the config cluster.
    CONFIG_AUTH_FAILED = "STR0312", "the config cluster does not accept Strait's credential",
        "In a pod, get a new token of its service account: kubectl -n NAMESPACE rollout restart deployment/strait
With --kubeconfig, replace the credential in that file.", "\
The API server of the config cluster responded with 401: the token expired or its service account was
deleted, or the certificate is unknown to it. Strait uses the last known Secrets: it knows no new member and
no new credential of a member until the config cluster accepts its credential. Strait retries
automatically. The credential belongs to Strait itself, so strait cluster rotate does not replace it.";

    /// 403 of the config cluster.
    CONFIG_RIGHTS_REFUSED = "STR0313", "the config cluster does not allow Strait to read the members' Secrets",
        "Grant list and watch of Secrets in Strait's namespace, as the chart does with rbac.create=true. To check:
  kubectl auth can-i list secrets -n NAMESPACE --as system:serviceaccount:NAMESPACE:strait", "\
The API server of the config cluster responded with 403: it accepts Strait's credential, but the Role or
RoleBinding for Secrets is missing. A new credential would have the same rights. Strait uses the last known
Secrets: it knows no new member and no new credential of a member until the right is granted. Strait retries
automatically.";
}
