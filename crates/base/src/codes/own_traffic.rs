//! 1120 and 1121: traffic objects of clusters, for their own proxies.

use super::code::Code;

codes! {
    /// An object of a cluster with the same name as an object of the shared store.
    OF_SHARED_STORE = "STR1120", "the shared store has an object of that kind and name, which counts alone",
        "Rename one of the two, or delete the cluster's.", "\
The policy file has the traffic objects of a cluster count for its proxies (trafficFrom). An object of one
kind, namespace and name in the shared store goes before them, whole, however old either is: what the
cluster's says holds for nobody. Other objects of the cluster count.";

    /// The missing right to read the objects.
    OWN_TRAFFIC_DENIED = "STR1121", "the traffic objects of a cluster may not be read",
        "Give its reader the right: strait cluster add --own-traffic; or take the cluster out of trafficFrom.", "\
The policy file names the cluster in trafficFrom, so that its own VirtualServices, DestinationRules and so on
hold for its proxies. Of a kind that its reader may not list none does, and its proxies are given what the
shared store says alone. If the right was there and was taken away, what was known stays until the
process ends. Everything else of the cluster is read as before.";
}
