//! What each proxy of the demo should hold, counted by hand: the demo's oracle.
//!
//! Knows the demo's own world and nothing of the control plane, so that a mistake there can't be
//! repeated here: plain loops, no sharing.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::world::World;
use strait_sim::objects::GATEWAY_PORT;

/// The weight of each address, by upstream cluster. One without endpoints is not in it.
pub(super) type Holdings = BTreeMap<String, BTreeMap<SocketAddr, u32>>;

/// A proxy that holds what it should.
pub(super) struct SettledProxy {
    /// `name.namespace@cluster`.
    pub(super) proxy: String,
    /// When it did, counted from the change.
    pub(super) after: Duration,
    /// What it holds.
    pub(super) holdings: Holdings,
    /// How many responses it has taken in all.
    pub(super) responses: u64,
}

/// What a client's proxy in `network` should hold.
///
/// A ready endpoint of its own network by its address; one of another network only if it takes mTLS, by
/// the gateway of that network, which counts as many times as endpoints stand behind it.
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
    fn written_out_for_two_clusters() {
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
    fn a_third_cluster_adds_to_its_network() {
        let web = |network| shown(&World::new(3), network).pop().expect("web is the last");
        assert!(web("n1").contains("10.1.1.11:8080x1 10.1.1.12:8080x1 172.30.0.21:15443x2"));
        assert!(web("n2").ends_with("172.30.0.11:15443x5"));
    }
}
