//! Which addresses keys are fetched from. Who writes a RequestAuthentication names one, so it must lead neither to
//! ourselves nor to the metadata service of a cloud. Pure.

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

use strait_base::address::{ReservedAddress, Special, special};

/// What may be dialled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DialRules {
    /// Whether an address of the host itself may be, where the policy itself writes it as such, and after that from there;
    /// a name that leads there never is, nor what another server says.
    pub loopback: bool,
    /// Further addresses that never are.
    pub denied: Vec<IpNet>,
}

/// Why an address is not dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressFault {
    /// It names no other host.
    Special(Special),
    /// An operator says so.
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
    /// Whether an address that a host was found to have, or is written as, may be dialled.
    /// `is_own` is whether the policy itself writes the address.
    pub(super) fn check(&self, address: IpAddr, is_own: bool) -> Result<(), AddressFault> {
        let is_allowed = |special: &Special| {
            special.kind == ReservedAddress::Loopback && is_own && self.loopback
        };
        if let Some(special) = special(address).filter(|special| !is_allowed(special)) {
            return Err(AddressFault::Special(special));
        }
        self.denial(address).map_or(Ok(()), Err)
    }

    /// What an operator says against an address.
    pub(super) fn denial(&self, address: IpAddr) -> Option<AddressFault> {
        // An IPv4 address is the same within an IPv6 one.
        let plain = address.to_canonical();
        let mut denied = self.denied.iter();
        let range = denied.find(|range| range.contains(&plain) || range.contains(&address))?;
        Some(AddressFault::Denied(*range))
    }
}

/// A place of keys, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyTarget {
    pub(super) is_tls: bool,
    /// A name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query.
    pub(super) path: String,
    /// `HOST[:PORT]`, as it is asked for.
    pub(super) authority: String,
}

impl KeyTarget {
    /// Takes a URI apart: http or https, a host, no user.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        let uri: Uri = text.parse().map_err(|_| "is no URI")?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("is neither http nor https"),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("has a user in it, which is not sent");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("names no host");
        }
        let usual = if is_tls { 443 } else { 80 };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port: match authority.port() {
                Some(port) => port.as_u16(),
                // What the parser can't take for a port it leaves away.
                None if authority.as_str().ends_with(authority.host()) => usual,
                None => return Err("names no port from 1 to 65535"),
            },
            path: path.to_owned(),
            authority: authority.as_str().to_owned(),
        })
    }

    /// Where a redirect leads: another place of the same scheme.
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
    fn no_address_leads_to_ourselves_or_to_metadata() {
        let rules = DialRules::default();
        let refused = |rules: &DialRules, address: &str, is_literal| {
            rules.check(address.parse().expect("an address"), is_literal).is_err()
        };
        for bad in [
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
            assert!(refused(&rules, bad, true) && refused(&rules, bad, false), "{bad}");
        }
        for good in ["10.0.0.1", "168.63.129.17", "203.0.113.9", "fd00::1", "2001:db8::1"] {
            assert!(!refused(&rules, good, false), "{good}");
        }
        let own = DialRules { loopback: true, ..rules.clone() };
        assert!(!refused(&own, "127.0.0.1", true), "written as such");
        assert!(refused(&own, "127.0.0.1", false), "a name that leads there");
        assert!(refused(&own, "169.254.169.254", true), "nothing but loopback");
        let denied = vec!["10.0.0.0/8".parse().expect("a range")];
        let rules = DialRules { denied, ..rules };
        assert!(refused(&rules, "10.9.9.9", true) && refused(&rules, "::ffff:10.9.9.9", true));
        assert!(!refused(&rules, "11.0.0.1", true));
    }

    #[test]
    fn places_are_of_http_alone_and_redirects_stay_in_their_scheme() {
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
        let next = place.redirected("https://b.example/k").expect("of the same scheme");
        assert_eq!(next.host, "b.example");
        assert_eq!(place.redirected("/other").expect("of the same host").authority, "a.example");
        for bad in ["http://a.example/keys", "//b.example/k", "ftp://a/", "keys"] {
            place.redirected(bad).expect_err(bad);
        }
    }
}
