//! 0912, 095x and 096x: errors of `strait-agent`, which runs next to an Envoy in a pod. The agent
//! defines the messages; this file defines the pages.

use super::code::Code;

codes! {
    /// redirect --try.
    NOT_REDIRECTED = "STR0912", "the pod's connections are not redirected",
        "Check whether Istio's CNI plugin runs on the pod's node, and look for the pod in its log. Or inject
pods without istio-cni.", "\
Istio's CNI plugin sets up redirection before the containers of a pod start, and the webhook cannot check
the result. The init container istio-validation (strait-agent redirect --try, as user 1337) connects to the
pod's own address like the sidecar. If the connection is not redirected to port 15006, it exits with code
126. Therefore the pod does not start, instead of running outside of the mesh. The plugin can repair pods
with this container (its value repair).";

    /// Flags and environment.
    AGENT_USAGE = "STR0950", "the agent received an invalid value",
        "Correct the named flag or variable: strait-agent run --help", "\
Most values come from the pod's environment, which injection sets. Nothing has been started or changed; the
exit code is 64.";

    /// The volume of the private key.
    AGENT_KEY_ON_DISK = "STR0951", "the directory of the private key is not in memory",
        "Mount an emptyDir with `medium: Memory` at --dir, or start with --allow-key-on-disk.", "\
The agent writes the workload's private key for Envoy. On a disk, the key would outlive the pod and be part
of the node's backups. Nothing has been written.";

    /// The token's file.
    AGENT_TOKEN = "STR0952", "the agent cannot read the pod's token",
        "Mount a projected serviceAccountToken with audience istio-ca at --token-file.", "\
The token proves the pod's identity to the control plane. The agent reads it for each call, because the
kubelet renews it. An existing certificate stays in use until it expires, and the agent retries.";

    /// The root certificates' file.
    AGENT_ROOTS = "STR0953", "the agent cannot read the control plane's root certificates",
        "Mount the ConfigMap istio-ca-root-cert at the directory of --roots-file.", "\
Without root certificates the agent cannot verify the control plane, and it sends the token to no other
server. The existing certificate stays in use, and the agent retries.";

    /// No connection.
    AGENT_UNREACHABLE = "STR0954", "the agent cannot reach the control plane",
        "Check that the control plane runs, that STRAIT_DISCOVERY is its address, and that the mounted roots match.", "\
The agent tried every address in order; the message contains the reason for each. Envoy keeps serving with
its configuration while its certificate is valid (24 hours, renewed after 12). A pod without a certificate
starts when it receives one. If the control plane's certificate lacks the address, add it: service.address
of the chart strait, or --tls-san of strait serve.";

    /// A refusal.
    AGENT_REFUSED = "STR0955", "the control plane issued no certificate",
        "Check the named part of the pod. The control plane's log has the detailed reason.", "\
UNAUTHENTICATED: the token is of another cluster, has another audience, or is expired. PERMISSION_DENIED:
the cluster may not vouch for the account. UNAVAILABLE: the control plane cannot decide yet. The agent
retries with growing pauses, and the existing certificate stays in use.";

    /// The response.
    AGENT_ANSWER = "STR0956", "a received certificate cannot be used",
        "Check the control plane's log, and its CA: strait certs status", "\
The certificate has no roots, belongs to another key, or cannot be read. Nothing was written: Envoy keeps
its certificate.";

    /// Files.
    AGENT_FILES = "STR0957", "the agent cannot write its files",
        "Free space in the volume of --dir, or allow the agent's user to write there.", "\
Certificate, key and roots are written to a new directory and replaced by one rename, so the existing files
are complete and stay in use. The agent retries with growing pauses.";

    /// Envoy's process.
    AGENT_ENVOY = "STR0958", "Envoy has ended or cannot be started",
        "See Envoy's own log above this message. Specify its path after `--`.", "\
The agent restarts Envoy with growing pauses. After eleven failed starts in a row, the agent ends with
Envoy's exit code, so that the kubelet reports it.";

    /// Ports.
    AGENT_PORT = "STR0959", "the agent cannot use a port or a signal",
        "See which process listens there: ss -ltnp", "\
The agent uses ports 15020 and 15021, Envoy uses 15000, 15001, 15006 and 15090, as in other meshes. A pod
with a container that uses any of them cannot be in the mesh.";

    /// iptables.
    REDIRECT_FAILED = "STR0960", "the pod's connections cannot be redirected",
        "Run strait-agent redirect as root with NET_ADMIN and NET_RAW, in an image with iptables or nft.", "\
A tool is missing, or the kernel refused the rules. The rules of each address family are set atomically,
so IPv4 connections may be redirected while IPv6 connections are not.";

    /// --check.
    REDIRECT_MISSING = "STR0961", "redirection rules are missing",
        "Run strait-agent redirect with the same flags.", "\
--check prints each missing rule, changes nothing, and exits with code 2. A pod without the rules bypasses
its Envoy: it sends plain text, and the mesh's policies do not apply.";

    /// The name table.
    AGENT_NAMES = "STR0962", "the agent's stream of the name table has ended",
        "Nothing: known names stay, and the agent reconnects.", "\
With --dns the agent receives the mesh's names from the control plane on a separate stream. A stream that
was authenticated with a token ends with the token, or with the control plane. Until the next stream, the
agent responds with the last known names. Other names are resolved as usual.";

    /// resolv.conf.
    AGENT_NAME_SERVERS = "STR0963", "the pod has no name servers",
        "Provide an /etc/resolv.conf with a nameserver.", "\
With --dns, DNS queries to the servers in resolv.conf are redirected. Without a server there is nothing to
redirect.";

    /// Probes and metrics of the application.
    AGENT_APPLICATION = "STR0964", "the pod's settings for its application cannot be read",
        "Inject the pod again, or correct the named variable.", "\
STRAIT_APP_PROBES contains the probes that injection replaced, as JSON by path. STRAIT_PROMETHEUS_SCRAPE
contains the port and path of the application's metrics. Nothing has been started.";
}
