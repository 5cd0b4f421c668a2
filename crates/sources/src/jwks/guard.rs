//! Checks which addresses keys may be fetched from. The author of a RequestAuthentication chooses
//! the address, so it must not lead to Strait itself or to a cloud's metadata service. Pure.

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

use strait_base::address::{ReservedAddress, Special, special};

/// Rules about the addresses that may be dialled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DialRules {
    /// Whether a loopback address may be dialled. It must be written literally in the policy, or be
    /// reached from a literal loopback address; a host name that resolves to loopback, or a
    /// redirect of another server to it, is never allowed.
    pub loopback: bool,
    /// Further addresses that are never dialled.
    pub denied: Vec<IpNet>,
}

/// The reason why an address is not dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressFault {
    /// The address does not denote another host.
    Special(Special),
    /// The operator denies the address.
    Denied(IpNet),
}

impl fmt::Display for AddressFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Special(special) => write!(f, "{special}, which is never dialled"),
            Self::Denied(range) => write!(f, "within {range}, which --jwks-deny names"),
        }
    }
}

impl DialRules {
    /// Checks whether an address may be dialled. `is_own` is whether the policy itself names the
    /// address.
    pub(super) fn check(&self, address: IpAddr, is_own: bool) -> Result<(), AddressFault> {
        let is_allowed = |special: &Special| {
            special.kind == ReservedAddress::Loopback && is_own && self.loopback
        };
        if let Some(special) = special(address).filter(|special| !is_allowed(special)) {
            return Err(AddressFault::Special(special));
        }
        self.denial(address).map_or(Ok(()), Err)
    }

    /// Returns the operator's denial of an address, if any.
    pub(super) fn denial(&self, address: IpAddr) -> Option<AddressFault> {
        // An IPv4 address is equal to its IPv6-mapped form.
        let plain = address.to_canonical();
        let mut denied = self.denied.iter();
        let range = denied.find(|range| range.contains(&plain) || range.contains(&address))?;
        Some(AddressFault::Denied(*range))
    }
}

/// The parts of a URI of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyTarget {
    pub(super) is_tls: bool,
    /// A host name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query.
    pub(super) path: String,
    /// `HOST[:PORT]`, as in the URI.
    pub(super) authority: String,
}

impl KeyTarget {
    /// Parses a URI: http or https, a host, no user.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        let uri: Uri = text.parse().map_err(|_| "is not a URI")?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("is neither http nor https"),
        };
        let authority = uri.authority().ok_or("has no host")?;
        if authority.as_str().contains('@') {
            return Err("contains a user name, which is not supported");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("has no host");
        }
        let usual = if is_tls { 443 } else { 80 };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port: match authority.port() {
                Some(port) => port.as_u16(),
                // The parser silently drops an invalid port.
                None if authority.as_str().ends_with(authority.host()) => usual,
                None => return Err("has no port from 1 to 65535"),
            },
            path: path.to_owned(),
            authority: authority.as_str().to_owned(),
        })
    }

    /// Returns the target of a redirect, which must have the same scheme.
    pub(super) fn redirected(&self, location: &str) -> Result<Self, &'static str> {
        let next = match location.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => {
                Self { path: location.to_owned(), ..self.clone() }
            }
            _ => Self::read(location)?,
        };
        if next.is_tls != self.is_tls {
            return Err("leads from one scheme to another");
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_metadata_addresses_are_refused() {
        let rules = DialRules::default();
        let refused = |rules: &DialRules, address: &str, is_literal| {
            rules.check(address.parse().expect("an address"), is_literal).is_err()
        };
        for denied in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd00:c1::a9fe:a9fe",
            "224.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "::ffff:168.63.129.16",
            "64:ff9b::168.63.129.16",
            "2002:a83f:8110::1",
        ] {
            assert!(refused(&rules, denied, true) && refused(&rules, denied, false), "{denied}");
        }
        for good in ["10.0.0.1", "168.63.129.17", "203.0.113.9", "fd00::1", "2001:db8::1"] {
            assert!(!refused(&rules, good, false), "{good}");
        }
        let own = DialRules { loopback: true, ..rules.clone() };
        assert!(!refused(&own, "127.0.0.1", true), "a literal address");
        assert!(refused(&own, "127.0.0.1", false), "a host name that resolves to it");
        assert!(refused(&own, "169.254.169.254", true), "only loopback");
        let denied = vec!["10.0.0.0/8".parse().expect("a range")];
        let rules = DialRules { denied, ..rules };
        assert!(refused(&rules, "10.9.9.9", true) && refused(&rules, "::ffff:10.9.9.9", true));
        assert!(!refused(&rules, "11.0.0.1", true));
    }

    #[test]
    fn only_http_uris_are_accepted_and_redirects_keep_their_scheme() {
        let read = |text: &str| KeyTarget::read(text);
        let place = read("https://a.example/keys?x=1").expect("a place");
        assert_eq!((place.is_tls, place.port, &*place.path), (true, 443, "/keys?x=1"));
        let v6 = read("http://[2001:db8::1]:8080").expect("a place");
        assert_eq!((&*v6.host, v6.port, &*v6.path), ("2001:db8::1", 8080, "/"));
        for bad in [
            "ftp://a/",
            "file:///etc/passwd",
            "a.example/keys",
            "https://u:p@a/",
            "",
            "https://",
            "http://127.0.0.1:99999/",
        ] {
            read(bad).expect_err(bad);
        }
        let next = place.redirected("https://b.example/k").expect("the same scheme");
        assert_eq!(next.host, "b.example");
        assert_eq!(place.redirected("/other").expect("the same host").authority, "a.example");
        for bad in ["http://a.example/keys", "//b.example/k", "ftp://a/", "keys"] {
            place.redirected(bad).expect_err(bad);
        }
    }
}
