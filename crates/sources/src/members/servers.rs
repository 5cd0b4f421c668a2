//! The servers to which an identity's token may be sent.

use std::net::IpAddr;

use ipnet::IpNet;

use strait_base::dns_name::is_dns_subdomain;

/// A pattern of servers, matched on the host of a parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerPattern {
    /// A host name, in lower case.
    Name(String),
    /// All names with one or more labels before this one, in lower case.
    Below(String),
    /// All names that end with this text: `eu-connectgateway.example` for `connectgateway.example`.
    /// Only for defaults; the operator file cannot express it.
    EndsWith(&'static str),
    /// The addresses of a range.
    Range(IpNet),
}

impl ServerPattern {
    /// Parses a host name, `*.SUFFIX`, an IP address or a CIDR.
    ///
    /// # Errors
    /// Returns the problem with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Err("would match every server; list the servers".to_owned());
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Self::Range(IpNet::from(address)));
        }
        if text.contains('/') {
            let range = text.parse::<IpNet>();
            let range =
                range.map_err(|_| format!("{text:?} is not a CIDR (example: 10.8.0.0/16)"))?;
            if range.prefix_len() == 0 {
                return Err(format!("{text:?} would match every server; list the servers"));
            }
            return Ok(Self::Range(range.trunc()));
        }
        if text.contains(':') {
            return Err(format!("{text:?} has a port; servers are matched by their host only"));
        }
        let lower = text.to_ascii_lowercase();
        match lower.strip_prefix("*.") {
            Some(suffix) if is_host_name(suffix) => Ok(Self::Below(suffix.to_owned())),
            None if is_host_name(&lower) => Ok(Self::Name(lower)),
            _ => Err(format!("{text:?} is neither a host name, *.SUFFIX, an address nor a CIDR")),
        }
    }

    /// Whether the pattern includes `host`, the host of a URL.
    pub fn matches(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            // An IPv4 address in IPv6 notation is the same server.
            let address = match address {
                IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
                IpAddr::V4(_) => address,
            };
            return matches!(self, Self::Range(range) if range.contains(&address));
        }
        let name = bare.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        match self {
            Self::Name(own) => name == own,
            Self::Below(suffix) => name
                .strip_suffix(suffix.as_str())
                .and_then(|labels| labels.strip_suffix('.'))
                .is_some_and(|labels| !labels.is_empty()),
            Self::EndsWith(suffix) => name
                .strip_suffix(suffix)
                .is_some_and(|before| before.is_empty() || before.ends_with('-')),
            Self::Range(_) => false,
        }
    }
}

/// Whether a text is a DNS name that no resolver reads as an address.
fn is_host_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_numeric = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    is_dns_subdomain(text) && !is_numeric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_patterns_match_the_host_only() {
        let matches =
            |pattern: &str, host: &str| ServerPattern::parse(pattern).expect(pattern).matches(host);
        for (pattern, host) in [
            ("api.example", "API.example"),
            ("api.example", "api.example."),
            ("*.eks.amazonaws.com", "A1.gr7.eu-north-1.eks.amazonaws.com"),
            ("10.8.0.0/16", "10.8.3.4"),
            ("10.8.0.0/16", "[::ffff:10.8.3.4]"),
            ("fd00::/8", "[fd00::1]"),
            ("10.0.0.1", "10.0.0.1"),
            ("[fd00::1]", "fd00::1"),
        ] {
            assert!(matches(pattern, host), "{pattern} {host}");
        }
        for (pattern, host) in [
            ("api.example", "api.example.evil.test"),
            ("api.example", "xapi.example"),
            ("*.eks.amazonaws.com", "eks.amazonaws.com"),
            ("*.eks.amazonaws.com", ".eks.amazonaws.com"),
            ("*.eks.amazonaws.com", "evileks.amazonaws.com"),
            ("*.eks.amazonaws.com", "a.eks.amazonaws.com.evil.test"),
            ("*.eks.amazonaws.com", "a.eks.amazonaws.com.."),
            ("10.8.0.0/16", "10.9.0.1"),
            ("10.8.0.0/16", "10.8.0.1.example"),
        ] {
            assert!(!matches(pattern, host), "{pattern} {host}");
        }
        let gateway = ServerPattern::EndsWith("connectgateway.googleapis.com");
        assert!(gateway.matches("europe-west1-connectgateway.googleapis.com"));
        assert!(gateway.matches("connectgateway.googleapis.com"));
        assert!(!gateway.matches("evilconnectgateway.googleapis.com"));
    }

    #[test]
    fn server_pattern_with_a_port_or_without_a_name_is_refused() {
        for text in [
            "*",
            "0.0.0.0/0",
            "::/0",
            "",
            "*.",
            "**.example",
            "a.*.example",
            "api.example:6443",
            "[fd00::1]:6443",
            "https://api.example",
            "10.8.0.0/99",
            "-a.example",
            "127.1",
            "0x7f.1",
            "a b",
            "*.*",
        ] {
            assert!(ServerPattern::parse(text).is_err(), "{text}");
        }
    }
}
