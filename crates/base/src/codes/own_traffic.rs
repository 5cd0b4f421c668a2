//! 1120 and 1121: traffic objects of clusters, for their own proxies.

use super::code::Code;

codes! {
    /// An object of a cluster with the same name as an object of the shared store.
    OF_SHARED_STORE = "STR1120", "the shared store has an object of that kind and name, which takes precedence",
        "Rename either of the two, or delete the cluster's object.", "\
According to the policy file (trafficFrom), the traffic objects of a cluster apply to its own proxies. An
object of the same kind, namespace and name in the shared store replaces the cluster's object entirely,
whichever is older. Other objects of the cluster apply.";

    /// The missing right to read the objects.
    OWN_TRAFFIC_DENIED = "STR1121", "the traffic objects of a cluster may not be read",
        "Grant its reader the right: strait cluster add CONTEXT --own-traffic. Or remove the cluster from trafficFrom.", "\
The policy file names the cluster in trafficFrom, so that its own VirtualServices, DestinationRules and
other traffic objects apply to its proxies. Objects of a kind that its reader may not list do not apply, and
its proxies only use the shared store. If the right was revoked later, the known objects stay until the
process ends. Strait still reads all other objects of the cluster.";
}
