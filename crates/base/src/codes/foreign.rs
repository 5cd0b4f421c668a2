//! 1110 to 1113: the effect of objects on proxies and services of other namespaces.

use super::code::Code;

codes! {
    /// Objects that other namespaces do not receive, because of their size in a proxy.
    FOREIGN_BYTES = "STR1110", "objects of a namespace add too much to proxies of other namespaces",
        "Export fewer of them (exportTo), give them fewer rules, or raise traffic.foreignBytes of the policy file.", "\
An exported object is sent to the proxies of all namespaces that see it, and a small object can become a
large resource. The objects of one namespace may add 2 MiB of encoded routes and filter chains to a proxy of
another namespace, and the objects of all other namespaces together 16 MiB. The policy file sets both limits
(traffic.foreignBytes). Past the first limit, the objects of the namespace apply to proxies in their own
namespace only. Past the second limit, the same applies to further namespaces: to those first whose oldest
exported object is the youngest. A Sidecar that names such a namespace still imports its objects. No other
object is affected.";

    /// Objects that are visible to all namespaces by default.
    DEFAULT_VISIBILITY = "STR1111", "objects of several namespaces apply to the whole mesh because they have no exportTo",
        "Set traffic.defaultVisibility: namespace in the policy file; 'strait policy test FILE' lists what changes.", "\
A VirtualService, DestinationRule or ServiceEntry without exportTo applies to proxies of all namespaces, as in
Istio. If the namespaces of a mesh belong to several teams, each of them can change the traffic of all others
this way. With traffic.defaultVisibility: namespace in the policy file this object applies to its own
namespace only, and exportTo exports it. Services stay visible to the mesh.";

    /// A host of another namespace.
    FOREIGN_HOST = "STR1112", "an object applies to traffic for services of another namespace",
        "Move the object to the namespace of the service, or set traffic.foreignHosts in the policy file.", "\
As in Istio, an exported VirtualService applies to the requests of all namespaces that see it, including
requests for services of other namespaces. An older ServiceEntry keeps its hosts and addresses even if
another namespace has an entry with the same ones. The message names the affected namespaces. With
traffic.foreignHosts: deny in the policy file, a VirtualService applies to services of other namespaces only
at proxies in its namespace. With allow, there is no report. Objects of the root namespace belong to the
operator and are not reported.";

    /// check: networks.
    FOREIGN_GATEWAY = "STR1113", "an object outside of the system namespace is a network's gateway",
        "List the namespaces of gateways in the policy file (gatewayNamespaces).", "\
A Service or a Gateway with the label topology.istio.io/network is a gateway of that network, regardless
of its namespace: the traffic from all other networks goes through it. If the namespaces of a cluster
belong to several teams, each team can claim that traffic. With gatewayNamespaces in the policy file,
labels in other namespaces have no effect.";
}
