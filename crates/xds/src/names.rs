//! Names of upstream clusters: `outbound|PORT|SUBSET|HOST`, and the equivalent form that is valid
//! as an SNI; and `remote|PORT|CLUSTER|HOST`, for pods that are reached by name through gateways.

use std::fmt;
use std::sync::Arc;

use strait_model::{ClusterId, Hostname};

/// The name of the upstream cluster for one port of one service, or for one of its subsets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboundName {
    /// The hostname of the service.
    pub hostname: Hostname,
    /// The port of the service.
    pub port: u16,
    /// The subset; empty for the whole service.
    pub subset: Arc<str>,
    /// Whether this is the form that east-west gateways use, `outbound_.PORT_.SUBSET_.HOST`, which
    /// is also the SNI.
    pub sni: bool,
}

impl OutboundName {
    /// Creates the name that sidecars use.
    pub fn sidecar(hostname: Hostname, port: u16) -> Self {
        Self { hostname, port, subset: Arc::default(), sni: false }
    }

    /// Creates the name that gateways use, which is also the SNI of connections to the service.
    pub fn sni(hostname: Hostname, port: u16) -> Self {
        Self { hostname, port, subset: Arc::default(), sni: true }
    }

    /// Returns this name with a subset. An empty `subset` leaves the name unchanged.
    #[must_use]
    pub fn of_subset(self, subset: &str) -> Self {
        if subset.is_empty() { self } else { Self { subset: subset.into(), ..self } }
    }

    /// Parses either form. Returns `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        let (hostname, port, subset, sni) = Self::parts(name)?;
        let all = Self { hostname: hostname.into(), port, subset: Arc::default(), sni };
        Some(all.of_subset(subset))
    }

    /// Parses either form as [`Self::parse`] does, without allocating. Returns the hostname, the
    /// port, the subset, and whether it is the form of an east-west gateway.
    pub fn parts(name: &str) -> Option<(&str, u16, &str, bool)> {
        let (sni, port, subset, hostname) = match name.strip_prefix("outbound|") {
            Some(rest) => {
                let (port, rest) = rest.split_once('|')?;
                let (subset, hostname) = rest.split_once('|')?;
                (false, port, subset, hostname)
            }
            None => {
                let (port, rest) = name.strip_prefix("outbound_.")?.split_once("_.")?;
                let (subset, hostname) = rest.split_once("_.")?;
                (true, port, subset, hostname)
            }
        };
        if hostname.is_empty() || hostname.contains('|') {
            return None;
        }
        Some((hostname, port_number(port)?, subset, sni))
    }
}

/// Parses a port. Only the canonical text of a port is accepted, so that a parsed name is written
/// back unchanged.
pub fn port_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|_| !text.starts_with(['+', '0']))
}

impl fmt::Display for OutboundName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hostname, port, subset, .. } = self;
        if self.sni {
            write!(f, "outbound_.{port}_.{subset}_.{hostname}")
        } else {
            write!(f, "outbound|{port}|{subset}|{hostname}")
        }
    }
}

/// The name of a client's upstream cluster for one port of a headless service in a cluster of
/// another network, `remote|PORT|CLUSTER|HOST`. Its endpoints are the gateways of that network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePodsName {
    /// The hostname of the service.
    pub hostname: Hostname,
    /// The port of the service.
    pub port: u16,
    /// The cluster with the pods.
    pub cluster: ClusterId,
}

impl RemotePodsName {
    /// Parses a name. Returns `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        let (port, rest) = name.strip_prefix("remote|")?.split_once('|')?;
        let (cluster, hostname) = rest.split_once('|')?;
        if cluster.is_empty() || hostname.is_empty() || hostname.contains('|') {
            return None;
        }
        let (hostname, cluster) = (hostname.into(), cluster.into());
        Some(Self { hostname, port: port_number(port)?, cluster })
    }
}

impl fmt::Display for RemotePodsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "remote|{}|{}|{}", self.port, self.cluster, self.hostname)
    }
}

/// Returns the hostname of the service to which the name of an upstream cluster refers.
pub fn hostname_of(name: &str) -> Option<Hostname> {
    let remote = || RemotePodsName::parse(name).map(|name| name.hostname);
    OutboundName::parse(name).map(|name| name.hostname).or_else(remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_remote_pods_parses_what_it_writes() {
        let name = "remote|5432|a.b|db.shop.svc.cluster.local";
        let parsed = RemotePodsName::parse(name).expect("a name");
        assert_eq!((parsed.port, parsed.cluster.as_str()), (5432, "a.b"));
        assert_eq!(parsed.to_string(), name);
        assert_eq!(hostname_of(name), Some(parsed.hostname));
        for other in ["remote|80||a", "remote|080|a|b", "remote|80|a|", "remote|80|a|b|c", "x"] {
            assert_eq!(RemotePodsName::parse(other), None, "{other}");
            assert_eq!(hostname_of(other), None, "{other}");
        }
    }

    #[test]
    fn both_forms_parse_what_they_write() {
        for name in [
            OutboundName::sidecar("a.ns.svc.cluster.local".into(), 80),
            OutboundName::sidecar("a.ns.svc.cluster.local".into(), 80).of_subset("v1"),
            OutboundName::sni("a.ns.svc.cluster.local".into(), 443),
            OutboundName::sni("a.ns.svc.cluster.local".into(), 443).of_subset("v1"),
            OutboundName::sni("_a._b.ns".into(), 443).of_subset("_v.1_"),
        ] {
            assert_eq!(OutboundName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn other_names_are_rejected() {
        for name in [
            "",
            "inbound|80||",
            "outbound|80|v1",
            "outbound|80|v1|a|b",
            "outbound|80||",
            "outbound|x||a",
            "outbound|65536||a",
            "outbound|+80||a",
            "outbound|080||a",
            "outbound|0||a",
            "BlackHoleCluster",
        ] {
            assert_eq!(OutboundName::parse(name), None, "{name}");
        }
    }
}
