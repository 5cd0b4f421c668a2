//! 072x: distribution and expiry of roots and certificates.

use super::code::Code;

codes! {
    /// Another writer of the ConfigMap with root certificates.
    ROOTS_FOREIGN = "STR0720", "the ConfigMap istio-ca-root-cert contains the roots of another control plane",
        "Let its pods mount strait-ca-root-cert, or give both control planes one root or a bundle of both.", "\
Strait writes the roots that workloads should trust into the ConfigMap istio-ca-root-cert of each namespace.
In this namespace another writer, for example an istiod, has written valid roots without Strait's, or
repeatedly reverts Strait's changes. Strait leaves that ConfigMap alone and writes its roots to
strait-ca-root-cert. Pods that mount istio-ca-root-cert trust neither this control plane nor workloads with
its certificates. Other namespaces are not affected.";

    /// The missing right to write the ConfigMap with root certificates.
    ROOTS_DENIED = "STR0721", "Strait may not write the roots into the cluster",
        "To grant the right: kubectl --context CONTEXT apply -f deploy/examples/roots-writer-rbac.yaml
To write them once, with the roots of the CA in root-cert.pem:
  for ns in $(kubectl --context CONTEXT get ns -o name | cut -d/ -f2); do
  kubectl --context CONTEXT -n $ns create configmap istio-ca-root-cert --from-file=root-cert.pem; done", "\
Agents and injected pods read the roots that they trust from the ConfigMap istio-ca-root-cert of their
namespace. The credential of the cluster's Secret may not write it (strait cluster add --roots grants that
right and no other). Therefore you must write it, and again when a root changes or a namespace is created.
Proxies with another source of roots need no ConfigMap.";

    /// The expiry of a root certificate of the CA.
    ROOT_ENDS = "STR0722", "a root of the CA expires soon",
        "Rotate to a new root, step by step: docs/how-to/rotate-certificates.md", "\
When a root expires, everything that it signed becomes invalid: workloads refuse each other, and this
control plane refuses them. All workloads must trust a new root before it signs anything, which takes as
long as the slowest workload. This message appears from the last fifth of a root's lifetime on, and again 30
and 7 days before its end.";

    /// A CA without an overlap at the start.
    ROOTS_UNKNOWN = "STR0723", "workloads have none of the CA's roots: this process does not start to serve",
        "Restore the previous CA, or rotate in steps: docs/how-to/rotate-certificates.md
If this is intended (the old key is lost or stolen): strait serve --accept-new-root", "\
At its start, Strait compares the roots of its CA with the active roots: the records in the Secret
strait-ca-roots, the state directory, or else the ConfigMap with roots that Strait wrote to its namespace. If
valid certificates exist and the CA has none of these roots, every workload would refuse this process, and
workloads with old and new certificates would refuse each other. Therefore the process stays unready, writes
nothing and issues nothing, so that the rollout of a Deployment stops and the previous replicas continue to
serve. It continues by itself once the CA's files contain a known root. With --accept-new-root it starts; the
previous roots stay trusted until the last certificate of them has expired.";

    /// The expiry of the serving certificate, or of a CA's signing certificate.
    CERTIFICATE_ENDS = "STR0724", "a certificate of the control plane expires soon",
        "Replace the files; a restart is not needed. To compare: strait certs status
If cert-manager or a similar tool renews them, read its status: kubectl describe certificate", "\
The certificate in --tls-cert, or the certificate with which a CA signs, ends in less than 7 days (if its
lifetime is below 35 days: in less than a fifth of it). With an expired serving certificate, proxies and
agents cannot connect again, and API servers do not call the webhook. An expired CA cannot sign. Strait
renews a serving certificate from its own CA after half of the lifetime. The expiry of roots has the code
STR0722.";
}
