//! Names of upstream clusters: `outbound|PORT||HOST`, and the form that fits into an SNI.

use std::fmt;

use crate::model::Hostname;

/// The upstream cluster of one port of one service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboundName {
    /// The service.
    pub hostname: Hostname,
    /// Its port.
    pub port: u16,
    /// Whether it is the form of an east-west gateway, `outbound_.PORT_._.HOST`, which is the SNI
    /// as well.
    pub sni: bool,
}

impl OutboundName {
    /// The name sidecars use.
    pub fn sidecar(hostname: Hostname, port: u16) -> Self {
        Self { hostname, port, sni: false }
    }

    /// The name gateways use, and the SNI of connections to the service.
    pub fn sni(hostname: Hostname, port: u16) -> Self {
        Self { hostname, port, sni: true }
    }

    /// Reads either form; `None` for anything else, subsets included (none are made yet).
    pub fn parse(name: &str) -> Option<Self> {
        let (hostname, port, sni) = Self::parts(name)?;
        Some(Self { hostname: hostname.into(), port, sni })
    }

    /// As [`Self::parse`]: host name, port, and whether it is the form of an east-west gateway.
    pub fn parts(name: &str) -> Option<(&str, u16, bool)> {
        let (sni, rest) = match name.strip_prefix("outbound|") {
            Some(rest) => (false, rest),
            None => (true, name.strip_prefix("outbound_.")?),
        };
        let (port, hostname) = rest.split_once(if sni { "_._." } else { "||" })?;
        if hostname.is_empty() || hostname.contains('|') {
            return None;
        }
        Some((hostname, port_number(port)?, sni))
    }
}

/// Reads a port. One text only stands for one port: what reads back must be what was read.
pub(super) fn port_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|_| !text.starts_with(['+', '0']))
}

impl fmt::Display for OutboundName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hostname, port, .. } = self;
        if self.sni {
            write!(f, "outbound_.{port}_._.{hostname}")
        } else {
            write!(f, "outbound|{port}||{hostname}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_read_back_what_they_write() {
        for name in [
            OutboundName::sidecar("a.ns.svc.cluster.local".into(), 80),
            OutboundName::sni("a.ns.svc.cluster.local".into(), 443),
        ] {
            assert_eq!(OutboundName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn other_names_are_not_outbound() {
        for name in [
            "",
            "inbound|80||",
            "outbound|80|v1|a.b",
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
