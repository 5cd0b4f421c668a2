//! The names, addresses, nodes and networks of a world. They are computed from the options and not stored, so any
//! object can be encoded at any time.

use std::net::Ipv4Addr;

use serde_json::Value;

use super::{WorldError, WorldOptions};
use crate::object::Name;
use crate::objects::{self, HTTP, Port, TCP};
use crate::stamps;

/// The number of services per namespace.
const NAMESPACE_SERVICES: usize = 100;

const NAMESPACES: [&str; 10] =
    ["shop", "pay", "media", "search", "mail", "maps", "ads", "auth", "data", "edge"];
const NAMES: [&str; 20] = [
    "cart",
    "checkout",
    "catalog",
    "reviews",
    "ratings",
    "orders",
    "stock",
    "pricing",
    "users",
    "sessions",
    "images",
    "recommend",
    "shipping",
    "invoices",
    "coupons",
    "wishlist",
    "returns",
    "email",
    "geo",
    "feed",
];

/// The options, and the address plan that is derived from them.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) options: WorldOptions,
    /// Pod addresses per cluster.
    pods: u32,
    /// Service addresses per cluster.
    services: u32,
}

impl Plan {
    pub(super) fn new(options: WorldOptions) -> Result<Plan, WorldError> {
        let block = |n: usize, least: u32| {
            u32::try_from(n).ok().and_then(u32::checked_next_power_of_two).map(|n| n.max(least))
        };
        let room = |block: u32, n: usize, total: u64| u64::from(block) * n as u64 <= total;
        let networks = options.networks.max(1);
        let pods =
            options.services.checked_mul(options.endpoints).and_then(|n| block(n + 1, 1 << 16));
        // 10.0.0.0/8 for the pods of all clusters of one network, 172.16.0.0/12 for all services.
        let per_network = options.clusters.div_ceil(networks);
        let pods = pods.filter(|pods| room(*pods, per_network, 1 << 24));
        let pods = pods.ok_or(WorldError::TooLarge("endpoints"))?;
        let services = block(options.services + 16, 1 << 8);
        let services = services.filter(|services| room(*services, options.clusters, 1 << 20));
        let services = services.ok_or(WorldError::TooLarge("services"))?;
        Ok(Plan { options: WorldOptions { networks, ..options }, pods, services })
    }

    pub(super) fn network(&self, cluster: usize) -> String {
        format!("n{}", cluster % self.options.networks + 1)
    }

    pub(super) fn pod_ip(&self, cluster: usize, number: usize) -> String {
        let block = self.pods * as_u32(cluster / self.options.networks);
        Ipv4Addr::from(0x0a00_0000 + block + as_u32(number) + 1).to_string()
    }

    /// Returns the ClusterIP of a service. If the service was added later, its stamp determines the
    /// address.
    pub(super) fn cluster_ip(&self, cluster: usize, number: usize) -> String {
        if let Some(seq) = self.added(number) {
            return stamps::address(seq).to_string();
        }
        let block = self.services * as_u32(cluster);
        Ipv4Addr::from(0xac10_0000 + block + as_u32(number) + 1).to_string()
    }

    /// Returns the number of the service that the change with this stamp adds.
    pub(super) fn number_of_added(&self, seq: u64) -> usize {
        self.options.services.saturating_add(usize::try_from(seq).unwrap_or(usize::MAX))
    }

    /// Returns the stamp of an added service. Stamps start at 1, so the first number after the plan is the
    /// gateway's.
    fn added(&self, number: usize) -> Option<u64> {
        let seq = number.checked_sub(self.options.services).filter(|seq| *seq > 0)?;
        u64::try_from(seq).ok()
    }

    /// Returns whether a service is headless, as the last ones of the plan are.
    pub(super) fn is_headless(&self, number: usize) -> bool {
        let services = self.options.services;
        (services.saturating_sub(self.options.headless)..services).contains(&number)
    }

    pub(super) fn service(&self, cluster: usize, number: usize) -> Name {
        if let Some(seq) = self.added(number) {
            // In an existing namespace.
            let beside = usize::try_from(seq).unwrap_or_default() % self.options.services.max(1);
            let suffix =
                if self.options.same_names { String::new() } else { format!("-c{}", cluster + 1) };
            let name = format!("added-{seq}{suffix}");
            return Name::new(&self.service(cluster, beside).namespace, &name);
        }
        let namespace = number / NAMESPACE_SERVICES;
        let namespace = match namespace / NAMESPACES.len() {
            0 => NAMESPACES[namespace].to_owned(),
            round => format!("{}-{}", NAMESPACES[namespace % NAMESPACES.len()], round + 1),
        };
        let mut name = NAMES[number % NAMES.len()].to_owned();
        if number >= NAMES.len() {
            name += &format!("-{}", number / NAMES.len() + 1);
        }
        if !self.options.same_names {
            name += &format!("-c{}", cluster + 1);
        }
        Name::new(&namespace, &name)
    }

    /// Returns the ports and type of a service.
    pub(super) fn shape(&self, number: usize) -> Shape {
        if self.is_headless(number) {
            Shape::Headless
        } else if number % 5 == 4 {
            Shape::HttpAndTcp
        } else {
            Shape::Http
        }
    }

    /// Returns the number of nodes of one cluster.
    pub(super) fn nodes(&self) -> usize {
        (self.options.services * self.options.endpoints / 50).clamp(3, 100)
    }

    /// Returns the region and zone of a node.
    pub(super) fn locality(&self, cluster: usize, node: usize) -> (String, String) {
        let region = format!("region-{}", self.network(cluster));
        let zone = format!("{region}{}", ["a", "b", "c"][node % 3]);
        (region, zone)
    }

    /// Returns the initial endpoints of a service.
    pub(super) fn places(&self, cluster: usize, service: usize) -> Vec<Place> {
        let place = |number| Place {
            pod: Pod::Planned(as_u32(number)),
            node: self.node(cluster, service, number),
        };
        (0..self.options.endpoints).map(place).collect()
    }

    /// Returns the node of an endpoint.
    pub(super) fn node(&self, cluster: usize, service: usize, number: usize) -> u32 {
        let mut hash = self.options.seed;
        for part in [cluster, service, number] {
            hash = scramble(hash ^ part as u64);
        }
        as_u32((hash % self.nodes() as u64) as usize)
    }

    /// Returns the address of an endpoint.
    pub(super) fn address(&self, cluster: usize, service: usize, pod: Pod) -> String {
        match pod {
            Pod::Planned(number) => {
                self.pod_ip(cluster, service * self.options.endpoints + number as usize)
            }
            Pod::Stamped(seq) => stamps::address(seq).to_string(),
        }
    }
}

/// The types of services: most have an HTTP port, some also a TCP port, and headless ones only a TCP port, like
/// databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Http,
    HttpAndTcp,
    Headless,
}

impl Shape {
    /// All shapes, in the order of their numbers.
    pub(super) const ALL: [Shape; 3] = [Shape::Http, Shape::HttpAndTcp, Shape::Headless];

    pub(super) fn ports(self) -> &'static [Port] {
        match self {
            Shape::Http => &[HTTP],
            Shape::HttpAndTcp => &[HTTP, TCP],
            Shape::Headless => &[TCP],
        }
    }
}

/// An endpoint of a service and its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pod: Pod,
    pub(super) node: u32,
}

/// The pod of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pod {
    /// An initial pod, by its number.
    Planned(u32),
    /// A pod that a change added, by the number of the stamp.
    Stamped(u64),
}

impl Pod {
    pub(super) fn name(self, service: &str) -> String {
        match self {
            Pod::Planned(number) => format!("{service}-7d9c-{number:04x}"),
            Pod::Stamped(seq) => format!("{service}-s{seq:x}"),
        }
    }
}

pub(super) fn node_name(cluster: usize, node: usize) -> String {
    format!("node-{}-{node}", cluster + 1)
}

pub(super) fn slice_name(service: &str, number: usize) -> String {
    format!("{service}-{number:05x}")
}

/// Converts a number whose range the plan has checked.
pub(super) fn as_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns a pseudo-random number that is derived from another one (the finalizer of splitmix64).
fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the Service of a cluster's east-west gateway.
pub(super) fn gateway(plan: &Plan, cluster: usize) -> Value {
    let options = &plan.options;
    let cluster_ip = plan.cluster_ip(cluster, options.services);
    // 198.18.0.0/15 is reserved for benchmarks, so its addresses are free.
    let external_ip = Ipv4Addr::from(0xc612_0000 + as_u32(cluster) + 1).to_string();
    let (namespace, network) = (&options.system_namespace, plan.network(cluster));
    objects::gateway_service(namespace, &network, &cluster_ip, &external_ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(options: WorldOptions) -> Result<Plan, WorldError> {
        Plan::new(options)
    }

    #[test]
    fn only_clusters_of_different_networks_share_pod_addresses() {
        let options = WorldOptions { clusters: 4, networks: 2, ..WorldOptions::default() };
        let plan = plan(options).expect("small");
        let ips: Vec<_> = (0..4).map(|cluster| plan.pod_ip(cluster, 0)).collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.0.1", "10.1.0.1", "10.1.0.1"]);
        let networks: Vec<_> = (0..4).map(|cluster| plan.network(cluster)).collect();
        assert_eq!(networks, ["n1", "n2", "n1", "n2"]);
    }

    #[test]
    fn cluster_ips_differ_between_clusters() {
        let plan = plan(WorldOptions::default()).expect("small");
        assert_ne!(plan.cluster_ip(0, 0), plan.cluster_ip(1, 0));
    }

    #[test]
    fn world_without_enough_addresses_is_refused() {
        let options =
            WorldOptions { services: 1 << 20, endpoints: 1 << 20, ..WorldOptions::default() };
        assert!(matches!(plan(options), Err(WorldError::TooLarge("endpoints"))));
        let options = WorldOptions { clusters: 50, services: 2000, ..WorldOptions::default() };
        assert!(plan(options).is_ok());
    }

    #[test]
    fn same_names_applies_to_all_clusters() {
        for same_names in [true, false] {
            let options = WorldOptions { same_names, ..WorldOptions::default() };
            let plan = plan(options).expect("small");
            assert_eq!(plan.service(0, 25) == plan.service(1, 25), same_names);
        }
    }

    #[test]
    fn added_service_has_a_unique_name_and_address() {
        let plan = plan(WorldOptions::default()).expect("small");
        let planned: Vec<_> = (0..plan.options.services).collect();
        let names: Vec<_> = planned.iter().map(|number| plan.service(0, *number)).collect();
        for seq in [1, 2, 300] {
            let number = plan.number_of_added(seq);
            let name = plan.service(0, number);
            assert!(!names.contains(&name), "{name:?}");
            assert!(names.iter().any(|known| known.namespace == name.namespace), "{name:?}");
            assert_eq!(plan.cluster_ip(0, number), stamps::address(seq).to_string());
        }
        assert!(plan.cluster_ip(0, plan.options.services).starts_with("172."), "the gateway's");
    }

    #[test]
    fn last_services_are_headless() {
        let plan = plan(WorldOptions { headless: 2, ..WorldOptions::default() }).expect("small");
        let headless: Vec<_> = (0..20).filter(|number| plan.is_headless(*number)).collect();
        assert_eq!(headless, [8, 9]);
        assert_eq!(plan.shape(9), Shape::Headless);
        assert_eq!(plan.shape(plan.number_of_added(1)), Shape::Http);
    }

    #[test]
    fn endpoints_depend_on_the_seed() {
        let places = |seed| {
            let options = WorldOptions { seed, endpoints: 20, ..WorldOptions::default() };
            plan(options).expect("small").places(0, 0)
        };
        assert_eq!(places(1), places(1));
        assert_ne!(places(1), places(2));
    }
}
