//! 0912, 095x and 096x: errors of `strait-agent`, which runs next to an Envoy in a pod. The agent
//! defines the messages; this file defines the pages.

use super::code::Code;

codes! {
    /// redirect --try.
    NOT_REDIRECTED = "STR0912", "nobody redirects the pod's connections",
        "See whether Istio's CNI plugin runs on the pod's node, and what its log says of the pod; or have pods
injected without istio-cni.", "\
Where Istio's CNI plugin redirects, it does so before a pod's containers start, and whoever makes the pod
can't see whether it did. The init container istio-validation (strait-agent redirect --try, as user 1337)
connects to the pod's own address as the sidecar would; what is not redirected to port 15006 ends it with exit
code 126. So the pod does not start, where it would have run outside of the mesh. The plugin repairs pods that
have such a container, if it is told to (its value repair).";

    /// Flags and environment.
    AGENT_USAGE = "STR0950", "strait-agent was given a value that it can't use",
        "Correct the flag or variable that is named: strait-agent run --help", "\
Most values come from the pod's environment, which injection sets. Nothing has been started or changed; the
exit code is 64.";

    /// The volume of the private key.
    AGENT_KEY_ON_DISK = "STR0951", "the folder of the key is not in memory",
        "Mount an emptyDir with `medium: Memory` at --dir, or start with --allow-key-on-disk.", "\
The agent writes the workload's private key for Envoy to read. On a disk it would outlive the pod, and be in
backups of the node. Nothing has been written.";

    /// The token's file.
    AGENT_TOKEN = "STR0952", "the agent can't read the pod's token",
        "Mount a projected serviceAccountToken with audience istio-ca at --token-file.", "\
The token proves to the control plane whose certificate is asked for. It is read at each call, since the
kubelet renews it. A certificate that is there stays in use until it ends; the agent tries again.";

    /// The root certificates' file.
    AGENT_ROOTS = "STR0953", "the agent can't read the roots of the control plane",
        "Mount the ConfigMap istio-ca-root-cert at the folder of --roots-file.", "\
Without roots nobody can prove to be the control plane, and the token is sent to nobody else. What is there
stays in use; the agent tries again.";

    /// No connection.
    AGENT_UNREACHABLE = "STR0954", "the agent can't reach the control plane",
        "See that it runs, that STRAIT_DISCOVERY names it, and that the mounted roots are its own.", "\
Every address was tried in order, and each reason is in the message. Envoy serves on with what it has, for as
long as the certificate lasts (24 hours, renewed after 12). A pod that has none yet starts when there is one.
Where the control plane's certificate has other names only, give it this one: service.address of the chart
strait, or --tls-san of strait serve.";

    /// A refusal.
    AGENT_REFUSED = "STR0955", "the control plane gave the agent no certificate",
        "See the control plane's log, which has the reason; the message has what to look at in the pod.", "\
UNAUTHENTICATED is a token that is not of that cluster, has another audience, or has ended; PERMISSION_DENIED
an account that the cluster may not vouch for; UNAVAILABLE a control plane that can't decide yet. The agent
tries again with growing pauses, and what is there stays in use.";

    /// The response.
    AGENT_ANSWER = "STR0956", "a certificate that came can't be used",
        "Look at the control plane's log and its CA.", "\
It has no roots, is of another key, or can't be read. Nothing was written: Envoy keeps the certificate it has.";

    /// Files.
    AGENT_FILES = "STR0957", "the agent can't write its files",
        "Make room in the volume of --dir, or let the agent's user write there.", "\
Certificate, key and roots are written whole beside the old ones and swapped by one rename; so what is there
is whole, and stays in use. The agent tries again with growing pauses.";

    /// Envoy's process.
    AGENT_ENVOY = "STR0958", "Envoy has ended, or can't be started",
        "See Envoy's own log above the message; give its path after `--`.", "\
An Envoy that ends by itself is started again, with growing pauses; after eleven bad starts in a row the
agent ends with Envoy's exit code, so that the kubelet shows it.";

    /// Ports.
    AGENT_PORT = "STR0959", "the agent can't have a port or a signal",
        "See who listens there: ss -ltnp", "\
15020 and 15021 are the agent's, 15000, 15001, 15006 and 15090 Envoy's, as in other meshes. A container of the
pod that uses one of them can't be in the mesh as it is.";

    /// iptables.
    REDIRECT_FAILED = "STR0960", "the pod's connections can't be redirected",
        "Run strait-agent redirect as root with NET_ADMIN and NET_RAW, in an image with iptables or nft.", "\
A tool is not there, or the kernel refused what it was given. Each family's rules are set all at once: those
of IPv4 may stand while those of IPv6 do not.";

    /// --check.
    REDIRECT_MISSING = "STR0961", "rules of redirection do not stand",
        "Run strait-agent redirect with the same flags.", "\
--check prints each rule that the kernel does not have, changes nothing, and exits 2. A pod without them
speaks past its Envoy: in plain text, and without the mesh's policies.";

    /// The name table.
    AGENT_NAMES = "STR0962", "the agent's table of names has ended",
        "Nothing: names that are known stay, and it is asked again.", "\
With --dns the agent asks the control plane for the mesh's names, on a stream of its own. Streams that a token
has opened end with the token, or with the control plane; until there is another, what was last known is
answered, and all other names as ever.";

    /// resolv.conf.
    AGENT_NAME_SERVERS = "STR0963", "the pod has no name servers",
        "Give the pod an /etc/resolv.conf that names a nameserver.", "\
With --dns questions for names are redirected by the servers that resolv.conf names. Without one
there is nothing to redirect.";

    /// Probes and metrics of the application.
    AGENT_APPLICATION = "STR0964", "what the pod says of its application can't be read",
        "Inject the pod anew, or correct the variable that is named.", "\
STRAIT_APP_PROBES holds the probes that injection replaced, as JSON by path; STRAIT_PROMETHEUS_SCRAPE port and
path of the application's metrics. Nothing has been started.";
}
