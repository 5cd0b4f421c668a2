//! 04xx: networks, gateways, and withheld endpoints.

use super::code::Code;

codes! {
    /// explain: gateway.
    NO_GATEWAY = "STR0401", "the network has no gateway",
        "Put one up: strait network join CONTEXT --network NAME
Or label a Service of that network with topology.istio.io/network, or name a gateway in meshNetworks.", "\
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
        "See which one: strait network list. Try the way to it: openssl s_client -connect HOST:PORT
Then look at its process.", "\
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

    /// explain: mtls.
    LIBRARY_ELSEWHERE = "STR0415", "gRPC's own library can't cross networks",
        "Put an Envoy beside the client, or a copy of the service into its network.", "\
An east-west gateway can't open what it passes on. It goes by the SNI of the mTLS, which names service
and port, and by an application protocol (ALPN) of the mesh. A client that speaks xDS itself (proxyless
gRPC) sends no SNI of ours, and no protocol but h2, so the gateway would close its connections. Endpoints
in its own network are reached as ever.";

    /// explain: mtls.
    PLAIN_TEXT_BESIDE = "STR0416", "the endpoint takes no mTLS, and others of its service do",
        "Let the pod take mTLS too, and label it security.istio.io/tlsMode=istio.", "\
A client that speaks xDS itself (proxyless gRPC) speaks mTLS to all endpoints of a service or to none.
One that has certificates speaks mTLS as soon as an endpoint takes it, so that nothing falls back to
plain text while a service is on its way into the mesh; those in plain text are withheld from it. Envoys
choose for each endpoint, and are given them all.";

    /// An HTTP rule that a gRPC library does not support.
    RULE_ON_LIBRARY = "STR0417", "a gRPC client without a proxy can't follow a rule: its calls fail",
        "Say it by path and headers, or put an Envoy beside the client: docs/guide/grpc.md.", "\
A client that speaks xDS itself (proxyless gRPC) looks at the path of a call and at the headers that the
application gives it, and leads it to services. It sees no host, scheme or header of its own making, does not
redirect, answers nothing itself and rewrites no path. Where a rule takes one of these, calls that fit the
rest of it fail with UNAVAILABLE: they never fall to a rule behind it, which is for others. In what the
client is sent (strait proxy config) such a route holds the reason. Envoys follow the rule as ever.";

    /// A part of a rule that a gRPC library does not support.
    PART_ON_LIBRARY = "STR0418", "a gRPC client without a proxy passes over a part of a rule",
        "Let the application do it, or put an Envoy beside the client: docs/guide/grpc.md.", "\
A client that speaks xDS itself (proxyless gRPC) follows where a rule leads, its timeout, its retries on
codes of gRPC and its failures on purpose. It changes no headers, rewrites no host, sends no copies, and
tries nothing again for a status of HTTP. Calls go where the rule leads them, without that part. Envoys
follow all of it.";

    /// A part of a DestinationRule that a gRPC library does not support.
    POLICY_ON_LIBRARY = "STR0419", "a gRPC client without a proxy passes over a part of a DestinationRule",
        "See what counts there: docs/guide/grpc.md, or put an Envoy beside the client.", "\
A client that speaks xDS itself (proxyless gRPC) is held to http2MaxRequests, chooses endpoints in turn, by
a header or by open requests (grpc-go), and leaves out an endpoint that fails all of so many calls in an
interval. What else a policy says of connections, balancing and errors it passes over. TLS that is not the
mesh's it can't speak: calls to such a service fail. Envoys follow all of it.";

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

    /// A node that requests virtual hosts one by one.
    VIRTUAL_HOSTS = "STR0427", "the proxy can't be sent virtual hosts one by one",
        "Run it with Envoy 1.40 or newer over the Delta form, or bootstrap it without --vhds.", "\
The node asks for virtual hosts one by one (STRAIT_VHDS), which takes an Envoy that subscribes to them on the
stream of all else, and the Delta form of it. It is served all the same, with virtual hosts in their routes as
ever: what it does with requests is the same, only each change of a route sends the whole of it.";

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

    /// A result of `strait check --traffic` for a gateway.
    TRAFFIC_FAILS = "STR0431", "a request through a gateway fails",
        "See each step: strait check --traffic -o json. The logs of gateway and sidecar say the rest.", "\
`strait check --traffic` dialled the network's gateway and was answered, and what came then is not what
a proxy of the mesh needs: the handshake failed (the gateway has no such service behind it, or the roots
differ), somebody else answered than the service's accounts, or the request came to nothing. Other
services and networks may be well.";
}
