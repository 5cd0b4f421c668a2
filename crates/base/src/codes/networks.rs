//! 04xx: networks, gateways, and withheld endpoints.

use super::code::Code;

codes! {
    /// explain: gateway.
    NO_GATEWAY = "STR0401", "the network has no gateway",
        "Create one: strait network join CONTEXT --network NAME
Or label a Service of that network with topology.istio.io/network, or name a gateway in meshNetworks.", "\
Endpoints in another network are only reached through its gateways, because a raw address may belong
to another workload in the proxy's own network. Proxies in the same network are not affected. For flat
networks, --allow-direct-cross-network allows direct connections.";

    /// explain: gateway.
    GATEWAY_PENDING = "STR0402", "the network's gateway has no address yet",
        "Wait for the load balancer, or correct the address or ports that the reason names: strait network list", "\
A gateway is configured, but its Service has no external address, lacks the gateway port, or has an address
that cannot be dialled from other networks, for example a loopback address. The network's endpoints are
withheld from other networks until it has an address. A name that does not resolve has the code STR0405.";

    /// explain: family.
    GATEWAY_FAMILY = "STR0403", "the proxy supports the address family of none of the network's gateways",
        "Give the gateway an address of the proxy's family (IPv4 or IPv6).", "\
Every gateway of the endpoint's network has an IPv4 or IPv6 address only, and the proxy has no address of
that family.";

    /// explain: mtls.
    PLAIN_TEXT = "STR0404", "the endpoint does not accept mTLS, which other networks require",
        "Give the pod a sidecar and the label security.istio.io/tlsMode=istio.", "\
Gateways do not decrypt connections: the SNI of mTLS determines the endpoint to which they forward. A
plain-text connection has no SNI, and through a gateway anyone could reach a plain-text endpoint. Proxies in
the same network still reach the endpoint.";

    /// DNS of a gateway.
    GATEWAY_NAME = "STR0405", "a gateway's name does not resolve",
        "Correct the record, or the Service's external address: strait network list", "\
If DNS servers fail or do not respond, the last addresses stay in use. If they respond that the name does
not exist, the addresses stay for ten minutes. After that only the other gateways of the network remain. If
there is none, the network's endpoints are withheld from other networks until the name resolves.";

    /// explain: network.
    OTHER_NETWORK = "STR0406", "an east-west gateway only forwards into its own network",
        "Nothing: clients reach that network through its own gateway.", "\
A gateway only receives endpoints in its network. A second hop would hide loops, and the first gateway
would have to trust the second.";

    /// explain: network.
    HEADLESS_ELSEWHERE = "STR0407", "pods of a headless service are unreachable from another network by their addresses",
        "Connect to the name of a pod, if the explanation states one. Otherwise give the service a cluster IP, or a
second Service with one, for clients in other networks.", "\
A client of a headless service selects a pod by its address, and its proxy forwards to it. A gateway has one
address for all its pods, and a pod's own address may belong to another workload in the client's network.
Pods of a StatefulSet are reached by their names, for example db-0.db.shop.svc.cluster.local, if the
client's proxy answers the workload's DNS queries, and the other network has a gateway (for a proxy without
IPv4: one with an IPv6 address). A cluster's pods beyond --headless-pods-max cannot be reached by name. Pods
in the client's own network are still reached by their addresses.";

    /// explain: mtls.
    AUTO_MTLS_OFF = "STR0408", "proxies use plain text according to the mesh config, but gateways only accept mTLS",
        "Set enableAutoMtls to true in the mesh config, or move the endpoints into the proxies' network.", "\
With enableAutoMtls: false, clients never use mTLS. An east-west gateway selects the destination by the SNI
of mTLS and closes other connections. Plain text within a network works as before.";

    /// `--probe-gateways`.
    GATEWAY_DEAD = "STR0409", "a gateway does not respond",
        "See which gateway it is: strait network list. Test the connection: openssl s_client -connect HOST:PORT
Then check its pods and load balancer.", "\
Three times in a row, a connection to the gateway's address failed, or the TLS handshake for one of its
services received no response. Until the gateway responds again, proxies receive only the other gateways of
the network. If no gateway of the network responds, all stay in use, because Strait's own connection may be
the problem.";

    /// `--mesh-networks` or its ConfigMap.
    MESH_NETWORKS = "STR0410", "the mesh networks cannot be used",
        "Correct the named field. Strait reads them again automatically.", "\
The text is not YAML, or contains an invalid CIDR range, address, port or name. The last valid mesh networks
stay active, so no endpoint changes its network because of it.";

    /// `--mesh-networks` or its ConfigMap.
    MESH_NETWORKS_CONFLICT = "STR0411", "a part of the mesh networks has no effect",
        "Correct the field. Let only one network claim each cluster and each range.", "\
A field is unknown, for example because its name is misspelled. Or two networks name the same cluster with
fromRegistry, or the same CIDR range: the first network by name receives it, so that every replica decides
equally. A longer range always takes precedence over a shorter one.";

    /// check: networks.
    CLAIM_IGNORED = "STR0412", "a claim to a network has no effect",
        "Remove the label, or change the setting that determines the network: strait cluster get ID", "\
A label or the mesh networks assign an object of the cluster to a network that differs from the annotation
strait.dev/network of its Secret, or that the policy does not allow. The Secret and the policy take
precedence, because they belong to the operator. An ignored claim is a problem if it leaves a network
without a gateway, and otherwise shown for information.";

    /// explain: network.
    NOT_SEEN = "STR0413", "the proxy excludes the network",
        "Add the network to REQUESTED_NETWORK_VIEW in the proxy's metadata, or remove that setting.", "\
A proxy with REQUESTED_NETWORK_VIEW in its metadata (a comma-separated list of networks) only receives
endpoints in these networks, and endpoints without a network. Without this setting it receives the endpoints
of all networks.";

    /// explain: network; check: clusters.
    SAME_ADDRESS = "STR0414", "pods of two clusters have the same address in one network",
        "Name their networks: strait network join CONTEXT --network NAME (or cluster add --network)", "\
An address belongs to one pod in one network. Clusters whose pods have equal addresses are in different
networks, but neither a label topology.istio.io/network nor the annotation strait.dev/network of their
Secrets states that. Until it does, proxies in each of these clusters receive its own pods. Other proxies
receive the pods of the cluster that comes first (the config cluster, then the cluster with the older
Secret); the other pods are withheld. Therefore no cluster can take an address from another one by claiming
it.";

    /// explain: mtls.
    LIBRARY_ELSEWHERE = "STR0415", "a gRPC library cannot connect to other networks",
        "Run an Envoy next to the client, or run a copy of the service in its network.", "\
An east-west gateway cannot decrypt connections. It selects the destination by the SNI of mTLS, which names
service and port, and by an application protocol (ALPN) of the mesh. A proxyless gRPC client sends no such
SNI and only the protocol h2, so the gateway would close its connections. Endpoints in its own network are
reached as before.";

    /// explain: mtls.
    PLAIN_TEXT_BESIDE = "STR0416", "the endpoint does not accept mTLS, but other endpoints of its service do",
        "Make the pod accept mTLS, and label it security.istio.io/tlsMode=istio.", "\
A proxyless gRPC client uses mTLS for all endpoints of a service or for none. A client with certificates
uses mTLS as soon as one endpoint accepts it, so that nothing falls back to plain text while a service moves
into the mesh; plain-text endpoints are withheld from it. Envoys decide for each endpoint and receive all of
them.";

    /// An HTTP rule that a gRPC library does not support.
    RULE_ON_LIBRARY = "STR0417", "a gRPC client without a proxy cannot apply a rule: its calls fail",
        "Match by path and headers, or run an Envoy next to the client: docs/how-to/grpc-proxyless.md.", "\
A proxyless gRPC client matches the path of a call and the headers that the application sets, and routes the
call to services. It does not match hosts, schemes or its own headers, and supports neither redirects,
direct responses nor rewrites of paths. If a rule needs any of these, calls that match the rest of it fail
with UNAVAILABLE; they never use a later rule, which is for other calls. The client's configuration (strait
proxy config) contains the reason in the route of these calls. Envoys apply the rule.";

    /// A part of a rule that a gRPC library does not support.
    PART_ON_LIBRARY = "STR0418", "a gRPC client without a proxy ignores a part of a rule",
        "Let the application do it, or run an Envoy next to the client: docs/how-to/grpc-proxyless.md.", "\
A proxyless gRPC client supports the destinations of a rule, its timeout, its retries on gRPC codes and its
injected faults. It does not modify headers, rewrite hosts, mirror requests or retry on HTTP statuses. Calls
go to the rule's destinations without that part. Envoys apply the entire rule.";

    /// A part of a DestinationRule that a gRPC library does not support.
    POLICY_ON_LIBRARY = "STR0419", "a gRPC client without a proxy ignores a part of a DestinationRule",
        "See the supported parts: docs/how-to/grpc-proxyless.md. Or run an Envoy next to the client.", "\
A proxyless gRPC client supports http2MaxRequests, load balancing by round robin, by a header or by open
requests (grpc-go), and the ejection of an endpoint if all of a number of calls in an interval fail. It
ignores other settings of connections, load balancing and outlier detection. It does not support TLS other
than the mesh's mTLS: calls to this service fail. Envoys apply the entire rule.";

    /// explain: ready.
    NOT_READY = "STR0420", "the endpoint is not ready",
        "See the reason: kubectl -n NAMESPACE describe pod NAME", "\
The EndpointSlice marks it as not ready, draining or terminating. Such endpoints are neither sent nor
counted.";

    /// explain: pod.
    POD_MISSING = "STR0421", "the endpoint's pod has not been seen",
        "Nothing: the endpoint is sent as soon as its pod is seen. If it never is, check the pod watch of that cluster.", "\
The EndpointSlice names a pod that the API server has not sent yet. Without the pod, neither identity nor
mTLS mode is known, so the endpoint is withheld instead of being sent in plain text.";

    /// explain: export.
    NOT_EXPORTED = "STR0422", "the service is not exported to the proxy",
        "Change the annotation networking.istio.io/exportTo on the Service.", "\
exportTo names the namespaces that may use a service. Gateways only forward to services that are exported to
all namespaces.";

    /// explain: export.
    CLUSTER_LOCAL = "STR0423", "the service is only available in its own cluster",
        "See which rule decides it: strait service get NAME.NAMESPACE. Change that rule, if it should be shared.", "\
kubernetes.default, everything in kube-system, the control plane, and services that serviceSettings marks as
cluster-local are only sent to proxies in the endpoint's own cluster. The same applies to a service that its
cluster keeps local: by the label strait.dev/share of the Service or its Namespace, by a missing
ServiceExport (--mcs), or by sharing in the policy file. The message names the rule.";

    /// explain: export.
    NODE_LOCAL = "STR0424", "the service is only available on its own node",
        "Change internalTrafficPolicy of the Service, if it should be available on other nodes.", "\
With internalTrafficPolicy: Local a proxy only receives endpoints on its own node. If its node is unknown,
it receives all endpoints in its cluster. The setting applies to each cluster separately: endpoints of a
cluster with this setting are not sent to other clusters, and clusters with another setting share their
endpoints among each other.";

    /// explain: family.
    ENDPOINT_FAMILY = "STR0425", "the proxy does not support the endpoint's address family",
        "Give both an address of one family (IPv4 or IPv6).", "\
The proxy has no address of the endpoint's family, so no connection is possible. A proxy's addresses come
from its node ID and INSTANCE_IPS.";

    /// explain: ready.
    CLUSTER_DRAINING = "STR0426", "the endpoint's cluster is being drained",
        "To end this: strait cluster resume ID. If the policy file drains the cluster, remove its mode there.", "\
An operator drains the cluster: Strait sends no endpoint in it to proxies. Open connections may continue
until they end. Strait still watches the cluster, so its endpoints return immediately when the annotation is
removed.";

    /// A node that requests virtual hosts one by one.
    VIRTUAL_HOSTS = "STR0427", "the proxy cannot receive virtual hosts one by one",
        "Run it with Envoy 1.40 or newer and the Delta protocol, or bootstrap it without --vhds.", "\
The node requests virtual hosts one by one (STRAIT_VHDS). This requires an Envoy that subscribes to them on
its main stream, with the Delta protocol. This proxy receives virtual hosts within their routes instead: it
handles requests in the same way, but each change of a route is sent entirely.";

    /// explain: network.
    NO_ADDRESS = "STR0429", "the endpoint has no address",
        "Give the WorkloadEntry an address, if proxies in its own network should reach it.", "\
Proxies in other networks reach a WorkloadEntry that has a network but no address through the gateways of its
network. Without gateways, and for proxies in the same network, there is no address that can be sent.";

    /// check: services.
    SERVICE_CONFLICT = "STR0430", "clusters have conflicting definitions of a service",
        "Make the Services equal: strait service get HOST", "\
A name has different ports, visibility or kinds in two clusters, or is in different namespaces. The ports of
all clusters are served. If two clusters differ in the name or protocol of a port, or in another property,
the config cluster wins, then the cluster with the older Secret, then the first one by ID. The endpoints of
a port come from the clusters that have its number, and from other clusters by a port of the same name.
Proxies use the protocols of ports from their own cluster, if it has the service.";

    /// A result of `strait check --traffic` for a gateway.
    TRAFFIC_FAILS = "STR0431", "a request through a gateway fails",
        "See each step: strait check --traffic -o json. Also check the logs of gateway and sidecar.", "\
`strait check --traffic` connected to the network's gateway, but a later step failed: the handshake (the
gateway does not forward to this service, or the roots differ), the check of the server's account, or the
request. Proxies of the mesh would fail in the same way. Other services and networks may work.";

    /// explain: gateway; check: networks.
    GATEWAY_UNSERVED = "STR0432", "no pod serves a network's gateway",
        "Start the gateway's pods: kubectl get pods -n NAMESPACE. Then: strait check --traffic", "\
The gateway's Service has an external address, for example of a load balancer, but its EndpointSlices list no
endpoint that is ready. Connections to the address fail, so proxies do not receive it. If no other gateway of
the network is left, its endpoints are withheld from other networks, and services without endpoints elsewhere
are unreachable there. A Service without a selector or without any EndpointSlice is used in any case.";

    /// check: networks.
    NETWORK_TYPO = "STR0433", "a network's name is probably misspelt",
        "Correct the label topology.istio.io/network, or the annotation strait.dev/network of the Secret.", "\
A label or annotation names a network that has no gateway and that at most one cluster uses, or a network
other than the one that the cluster's Secret defines. The name differs in one or two letters from a network
that exists. Endpoints with a misspelt network are unreachable from other networks, and proxies with one
reach nothing directly. Names that differ only in digits are not compared. A label without effect, because
the cluster's Secret defines the network, is reported too if no network has its name: new pods may claim
that network, and their proxies are refused (STR0513). A gateway with the label of a network is reported if
its cluster is in another network: requests through it do not arrive.";

    /// Rules for a host whose pods are selected by name.
    RULES_NOT_FOR_PODS = "STR0434", "rules do not apply to pods of a headless service in other networks",
        "Nothing, if clients in other networks select pods. Otherwise give them a second Service with a cluster IP,
and write the rules for its host.", "\
Clients in other networks select a pod of a headless service by its name, and no rule may send the connection
to another destination. All requests and connections to such a pod go to that pod, with the timeouts, retries
and limits of the mesh config and of DestinationRules. The rules apply to pods in the client's own network.";

    /// check: gateways.
    SAME_GATEWAY = "STR0435", "two networks have the same gateway",
        "Give each network its own gateway: strait network list shows the address and the source of each.", "\
An east-west gateway only forwards to the pods of its own network. If two networks have the same gateway
address and port, requests for services of the other network fail, or reach pods of the same service in the
wrong network. Causes are an address that was copied into meshNetworks or a Service, and a load balancer whose
address was reused.";

    /// meshNetworks.
    REGISTRY_UNKNOWN = "STR0436", "the mesh networks name a cluster that is not a member",
        "Correct fromRegistry to an ID in: strait cluster list", "\
A network of meshNetworks names its clusters by fromRegistry. Strait ignores an ID that no member has. It
may be a typing error, or belong to a cluster that joins later.";
}
