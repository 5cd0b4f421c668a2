//! The network of the rig. Two networks use the same pod addresses; only gateways are in a network
//! and in the transit network.
//!
//! ```text
//!  hub 172.30.0.1 (etcd, API servers, Strait)
//!   |  transit 172.30.0.0/24
//!   +-- router-a .10 --(source NAT)-- pods 10.10.0.0/16 of network a
//!   +-- gateway-a .11 ----------------  10.10.0.2
//!   +-- router-b .20 --(source NAT)-- pods 10.10.0.0/16 of network b
//!   +-- gateway-b .21 ----------------  10.10.0.2
//! ```
//!
//! Pods have a default route, so that a VIP is routable before it is redirected.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::netns::Netns;

/// The hub's address on the transit network.
pub(crate) const HUB: &str = "172.30.0.1";
/// A gateway's address in its own network.
pub(crate) const GATEWAY_POD_ADDRESS: &str = "10.10.0.2";

const TRANSIT_PREFIX: u8 = 24;
const POD_CIDR: &str = "10.10.0.0/16";
const POD_PREFIX: u8 = 16;
const POD_ROUTER: &str = "10.10.0.1";
const BRIDGE: &str = "br0";

/// A gateway's address on the transit network.
pub(crate) fn gateway_address(network: &str) -> &'static str {
    if network == "a" { "172.30.0.11" } else { "172.30.0.21" }
}

fn router_address(network: &str) -> &'static str {
    if network == "a" { "172.30.0.10" } else { "172.30.0.20" }
}

/// The hub and the routers; pods and gateways are connected to them.
pub(crate) struct Topology {
    label: &'static str,
    routers: BTreeMap<&'static str, Netns>,
    pub(crate) hub: Rc<Netns>,
}

impl Topology {
    /// Creates both networks without pods. `label` distinguishes the namespaces of two topologies.
    pub(crate) fn create(label: &'static str) -> Self {
        let hub = Netns::create(&format!("{label}-hub"));
        hub.bridge(BRIDGE, &format!("{HUB}/{TRANSIT_PREFIX}"));
        let router = |network: &'static str| {
            let router = Netns::create(&format!("{label}-router-{network}"));
            router.connect(
                "transit",
                &format!("{}/{TRANSIT_PREFIX}", router_address(network)),
                &hub,
                BRIDGE,
            );
            router.bridge(BRIDGE, &format!("{POD_ROUTER}/{POD_PREFIX}"));
            router.route_with_source_nat(POD_CIDR, "transit");
            (network, router)
        };
        Self { label, routers: ["a", "b"].map(router).into(), hub: Rc::new(hub) }
    }

    /// Creates a pod's namespace with the redirection of a sidecar.
    pub(crate) fn pod(&self, network: &str, name: &str, address: &str) -> Rc<Netns> {
        let pod = self.plug(network, name, address);
        pod.redirect_to_sidecar();
        Rc::new(pod)
    }

    /// Creates a pod's namespace outside the mesh, without redirection.
    pub(crate) fn stranger(&self, network: &str, name: &str, address: &str) -> Netns {
        self.plug(network, name, address)
    }

    /// Creates the east-west gateway's namespace, with interfaces in its network and in the transit
    /// network, without redirection.
    pub(crate) fn gateway(&self, network: &str) -> Rc<Netns> {
        self.gateway_at(network, "gateway", GATEWAY_POD_ADDRESS, gateway_address(network))
    }

    /// Creates the namespace of another gateway, with its address in its network and the one in the
    /// transit network.
    pub(crate) fn gateway_at(
        &self,
        network: &str,
        name: &str,
        pod_address: &str,
        address: &str,
    ) -> Rc<Netns> {
        let gateway = self.plug(network, name, pod_address);
        gateway.connect("transit", &format!("{address}/{TRANSIT_PREFIX}"), &self.hub, BRIDGE);
        Rc::new(gateway)
    }

    fn plug(&self, network: &str, name: &str, address: &str) -> Netns {
        let pod = Netns::create(&format!("{}-{network}-{name}", self.label));
        let router = self.routers.get(network).unwrap_or_else(|| panic!("no network {network}"));
        pod.connect("eth0", &format!("{address}/{POD_PREFIX}"), router, BRIDGE);
        pod.ip(&format!("route add default via {POD_ROUTER}"));
        pod
    }
}
