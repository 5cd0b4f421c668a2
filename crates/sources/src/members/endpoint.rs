//! The URLs of token endpoints and proxies in the operator file.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use http::Uri;

/// The Pod Identity agent's IPv6 address, which is not link-local.
const POD_IDENTITY: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23);

/// The URL of a server that the operator names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorUrl(Uri);

impl OperatorUrl {
    /// Parses `https://HOST[:PORT][/PATH]`, or `http` if the host is a literal loopback or link-local
    /// address.
    ///
    /// # Errors
    /// Returns the problem with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri = parse_url(text)?;
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if uri.host().is_some_and(is_on_this_host) => Ok(Self(uri)),
            Some("http") => Err(
                "uses http, which is only allowed for loopback and link-local addresses; use https"
                    .to_owned(),
            ),
            _ => Err("is not an http or https URL".to_owned()),
        }
    }

    /// Returns the URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }
}

impl fmt::Display for OperatorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses a URL with a host, and without a user name, a query or a fragment.
pub(super) fn parse_url(text: &str) -> Result<Uri, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    let uri = text.parse::<Uri>().ok().filter(|_| is_plain);
    let uri = uri.filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    let uri = uri.ok_or("is not a URL of the form https://HOST:PORT")?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("contains a user name".to_owned());
    }
    // The parser of URIs drops a fragment.
    if uri.query().is_some() || text.contains('#') {
        return Err("contains a query or a fragment".to_owned());
    }
    Ok(uri)
}

/// Parses the URL of a proxy.
///
/// # Errors
/// Returns the problem, without the text, which may contain a password.
pub(crate) fn parse_proxy_url(text: &str) -> Result<Uri, String> {
    let url = parse_url(text)?;
    let is_bare = matches!(url.path(), "" | "/");
    let is_known = matches!(url.scheme_str(), Some("http" | "https" | "socks5"));
    match is_known && url.port().is_some() && is_bare {
        true => Ok(url),
        false => Err("is not http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT".to_owned()),
    }
}

/// Whether a host is a literal address that never leaves this host or its link.
fn is_on_this_host(host: &str) -> bool {
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => v4.is_loopback() || v4.is_link_local(),
        Ok(IpAddr::V6(v6)) => v6.is_loopback() || v6.is_unicast_link_local() || v6 == POD_IDENTITY,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_allowed_on_this_host_only() {
        for url in [
            "https://sts.eu-north-1.amazonaws.com",
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1/credentials",
            "http://127.0.0.1:8080",
            "http://[::1]:8080/a",
        ] {
            assert!(OperatorUrl::parse(url).is_ok(), "{url}");
        }
        for url in [
            "http://sts.example",
            "http://10.0.0.1",
            "http://[fd00::1]",
            "https://user@sts.example",
            "https://sts.example/?a=b",
            "https://sts.example/#a",
            "ftp://sts.example",
            "sts.example",
            "https://",
            "https://a b",
            "",
        ] {
            assert!(OperatorUrl::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn url_of_a_proxy_has_a_known_scheme_and_a_port() {
        for url in ["http://a:1", "https://a.test:1/", "socks5://[::1]:1080"] {
            assert!(parse_proxy_url(url).is_ok(), "{url}");
        }
        for url in ["http://a", "socks4://a:1", "http://me:secret@a:1", "http://a:1/path", "a:1"] {
            let error = parse_proxy_url(url).expect_err(url);
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
