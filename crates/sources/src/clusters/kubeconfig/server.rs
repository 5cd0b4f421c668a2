//! The URL of a member's API server, and the addresses that are refused before any connection.

use std::net::{IpAddr, Ipv6Addr};

use rustls_pki_types::ServerName;

use super::refusal::KubeconfigRefusal;
use strait_base::address::{ReservedAddress, special};
use strait_base::codes;
use strait_kube_client::Loopback;

/// The parts of `https://HOST[:PORT][/PATH]`.
pub(super) struct ServerUrl {
    pub(super) url: String,
    /// The host, in lower case and without brackets.
    pub(super) host: String,
    address: Option<IpAddr>,
}

impl ServerUrl {
    /// Parses the text of a URL.
    ///
    /// # Errors
    /// Returns the problem with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => rest,
            Some(_) => return Err("is not an https URL"),
            None => return Err("does not begin with https://"),
        };
        // Checked on the text: a URL parser silently drops a fragment and accepts a user name.
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("contains a space, a control character or a non-ASCII character");
        }
        if rest.contains('@') {
            return Err("contains a user name");
        }
        if rest.contains(['?', '#']) {
            return Err("contains a query or a fragment");
        }
        if rest.contains(['\\', '"', '<', '>', '^', '`', '{', '|', '}']) {
            return Err("contains an invalid character");
        }
        let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').ok_or("has an unclosed '['")?;
                let address: Ipv6Addr =
                    host.parse().map_err(|_| "contains no IPv6 address between the brackets")?;
                (
                    address.to_string(),
                    if after.is_empty() {
                        None
                    } else {
                        Some(
                            after
                                .strip_prefix(':')
                                .ok_or("has extra characters between address and port")?,
                        )
                    },
                )
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
                None => (authority.to_ascii_lowercase(), None),
            },
        };
        if host.is_empty() {
            return Err("has no host");
        }
        if let Some(port) = port {
            let valid = port.bytes().all(|byte| byte.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|port| port != 0);
            if !valid {
                return Err("has no port from 1 to 65535 after the ':'");
            }
        }
        let address = host.parse::<IpAddr>().ok();
        if address.is_none() {
            // Resolvers interpret `127.1`, `0x7f.1` and `2130706433` as addresses, URL parsers as
            // names.
            let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
            let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
                || last
                    .strip_prefix("0x")
                    .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
            if numeric {
                return Err("contains an IP address in a nonstandard notation");
            }
            if ServerName::try_from(host.as_str()).is_err() {
                return Err("contains no valid DNS name");
            }
        }
        Ok(Self { url: format!("https://{rest}"), host, address })
    }
}

/// Refuses special addresses before a connection is opened. The addresses of a host name are
/// checked when it is dialled.
pub(super) fn check_server(
    server: &ServerUrl,
    loopback: Loopback,
    field: &str,
) -> Result<(), KubeconfigRefusal> {
    let refused = |code, fact: String| Err(KubeconfigRefusal::new(code, field, fact));
    let Some(address) = server.address else {
        let name = server.host.trim_end_matches('.');
        if name == "localhost"
            || name.ends_with(".localhost")
            || ["localhost.localdomain", "ip6-localhost", "ip6-loopback"].contains(&name)
        {
            let fact = format!("is {}, a name of this host", server.url);
            return refused(&codes::LOOPBACK_SERVER, fact);
        }
        return Ok(());
    };
    let Some(special) = special(address) else { return Ok(()) };
    if special.kind != ReservedAddress::Loopback {
        return refused(&codes::SERVER_ADDRESS, format!("is {}, {special}", server.url));
    }
    if loopback == Loopback::Refused {
        let fact = format!("is {}, which the control plane can't reach", server.url);
        return refused(&codes::LOOPBACK_SERVER, fact);
    }
    Ok(())
}
