//! Addresses to listen on.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::TcpListener;

/// Address to listen on: `HOST:PORT`, or `:PORT` for all addresses of this machine. Port 0 selects
/// a free port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// An address, a host name, or empty.
    host: String,
    port: u16,
}

impl ListenAddress {
    /// Binds the address. If a name has addresses of both families, the IPv4 address is preferred,
    /// as in Go.
    ///
    /// # Errors
    /// The error of the system: an unknown name, an address of another machine, or a port in use.
    pub async fn bind(&self) -> io::Result<TcpListener> {
        if self.host.is_empty() {
            // This address accepts IPv4 too; it does not exist on a machine without IPv6.
            return match TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port)).await {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind(("0.0.0.0", self.port)).await
                }
                bound => bound,
            };
        }
        let mut found: Vec<SocketAddr> =
            tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        TcpListener::bind(&*found).await
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected HOST:PORT or :PORT, an IPv6 address in brackets".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let host = match bare {
            Some(inner) => inner.parse::<Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None if host.chars().all(named) => host.to_owned(),
            None => return Err(wrong()),
        };
        Ok(Self { host, port })
    }
}

impl From<(IpAddr, u16)> for ListenAddress {
    fn from((address, port): (IpAddr, u16)) -> Self {
        Self { host: address.to_string(), port }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_name_and_bare_port_can_be_bound() {
        for (text, local) in [
            ("127.0.0.1:0", Some("127.0.0.1")),
            ("localhost:0", Some("127.0.0.1")),
            (":0", None),
            ("[::]:0", None),
            ("0.0.0.0:0", Some("0.0.0.0")),
        ] {
            let address: ListenAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
            let listener = match address.bind().await {
                // Happens on a machine without IPv6.
                Err(error) if text == "[::]:0" => return eprintln!("SKIPPED: {text}: {error}"),
                bound => bound.expect(text).local_addr().expect(text),
            };
            assert!(listener.port() > 0);
            let ip = listener.ip();
            assert!(local.map_or(ip.is_unspecified(), |local| ip.to_string() == local), "{ip}");
        }
        for text in ["", "15012", "localhost", "::1:15012", "[::1:2", "a b:1", "h:65536", "h:"] {
            text.parse::<ListenAddress>().expect_err(text);
        }
        let nowhere: ListenAddress = "nowhere.invalid:0".parse().expect("a name");
        nowhere.bind().await.expect_err("no such name");
    }
}
