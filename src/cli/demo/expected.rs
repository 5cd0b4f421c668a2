//! The expected configuration of each proxy of the demo, computed independently: the demo's oracle.
//!
//! It knows the demo's own world and uses no code of the control plane, so that it cannot repeat a
//! mistake: plain loops, no shared values.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::world::World;
use strait_sim::objects::GATEWAY_PORT;

/// Weight of each address, by upstream cluster. Clusters without endpoints are absent.
pub(super) type Holdings = BTreeMap<String, BTreeMap<SocketAddr, u32>>;

/// A proxy that has its expected configuration.
pub(super) struct SettledProxy {
    /// `name.namespace@cluster`.
    pub(super) proxy: String,
    /// Time from the change until then.
    pub(super) after: Duration,
    /// Endpoints of the proxy.
    pub(super) holdings: Holdings,
    /// Total number of responses that the proxy received.
    pub(super) responses: u64,
}

/// Returns the expected endpoints of a client's proxy in `network`.
///
/// A ready endpoint of the same network is sent with its address. An endpoint of another network is
/// sent only if it accepts mTLS, with the address of that network's gateway. The gateway's weight
/// is the number of endpoints behind it.
pub(super) fn holdings(world: &World, network: &str) -> Holdings {
    let mut holdings = Holdings::new();
    for cluster in &world.clusters {
        for service in &cluster.services {
            for pod in &service.pods {
                if !pod.ready {
                    continue;
                }
                let address = if cluster.network == network {
                    SocketAddr::new(IpAddr::V4(pod.address), service.port.target)
                } else if pod.mtls {
                    gateway(world, cluster.network)
                } else {
                    continue;
                };
                let name = format!("outbound|{}||{}", service.port.port, service.hostname());
                *holdings.entry(name).or_default().entry(address).or_default() += 1;
            }
        }
    }
    holdings
}

fn gateway(world: &World, network: &str) -> SocketAddr {
    for cluster in &world.clusters {
        if let Some(edge) = cluster.edge
            && cluster.network == network
        {
            return SocketAddr::new(IpAddr::V4(edge.gateway), GATEWAY_PORT);
        }
    }
    unreachable!("every network of the demo has a gateway")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(world: &World, network: &str) -> Vec<String> {
        let holdings = holdings(world, network);
        let line = |(name, endpoints): (&String, &BTreeMap<SocketAddr, u32>)| {
            let endpoints: Vec<_> =
                endpoints.iter().map(|(address, weight)| format!("{address}x{weight}")).collect();
            format!("{name} {}", endpoints.join(" "))
        };
        holdings.iter().map(line).collect()
    }

    #[test]
    fn expected_endpoints_of_two_clusters() {
        let mut world = World::new(2);
        world.set_ready("west", "web-2", false);
        assert_eq!(
            shown(&world, "n1"),
            [
                "outbound|5432||db.shop.svc.cluster.local 172.30.0.21:15443x1",
                "outbound|80||web.shop.svc.cluster.local 10.1.0.11:8080x1 10.1.0.12:8080x1 \
                 10.1.0.13:8080x1 172.30.0.21:15443x1",
            ]
        );
        assert_eq!(
            shown(&world, "n2"),
            [
                "outbound|5432||db.shop.svc.cluster.local 10.1.0.21:5432x1 10.1.0.23:5432x1",
                "outbound|80||web.shop.svc.cluster.local 10.1.0.11:8080x1 172.30.0.11:15443x3",
            ]
        );
    }

    #[test]
    fn third_cluster_adds_endpoints_to_its_network() {
        let web = |network| shown(&World::new(3), network).pop().expect("web is the last");
        assert!(web("n1").contains("10.1.1.11:8080x1 10.1.1.12:8080x1 172.30.0.21:15443x2"));
        assert!(web("n2").ends_with("172.30.0.11:15443x5"));
    }
}
