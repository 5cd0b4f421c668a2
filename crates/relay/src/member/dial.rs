//! Opens TLS connections to the hub, directly or through an HTTP proxy.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use strait_base::durable;
use strait_kube_client::{CaBundle, one_line};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificate::RelayCertificate;
use super::store::read_secret;

/// The time limit of a connection, with the proxy and the TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of the head of a proxy's response, and of a file with roots, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
const ROOTS_BYTES_MAX: u64 = 1 << 20;

/// An address of the hub or of a proxy: `HOST:PORT`, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    text: String,
    /// Without brackets.
    host: String,
    port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not HOST:PORT");
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid)?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']').ok_or_else(invalid)?,
            None if host.contains(':') => return Err(invalid()),
            None => host,
        };
        ServerName::try_from(host).map_err(|_| invalid())?;
        Ok(Self { text: text.to_owned(), host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An HTTP proxy that opens connections with CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProxy {
    address: HostPort,
    /// `Basic …`, if the URL contains a user.
    authorization: Option<strait_kube_client::Redacted<String>>,
}

impl FromStr for HttpProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").ok_or("the URL must be http://HOST:PORT")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, address) = match rest.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, rest),
        };
        // An error must not repeat a password.
        let address = address.parse().map_err(|_| "the URL must be http://HOST:PORT")?;
        let decoded =
            user.map(|user| percent_encoding::percent_decode_str(user).collect::<Vec<_>>());
        let basic = |user: Vec<u8>| format!("Basic {}", BASE64.encode(user));
        let authorization = decoded.map(|user| strait_kube_client::Redacted::new(basic(user)));
        Ok(Self { address, authorization })
    }
}

/// Opens connections to the hub.
#[derive(Debug, Clone)]
pub struct HubDialler {
    /// The file with the roots of the hub, PEM. It is read for each connection.
    pub roots: PathBuf,
    /// The proxy.
    pub proxy: Option<HttpProxy>,
    /// A file with the whole value of the header `Proxy-Authorization`.
    pub proxy_authorization: Option<PathBuf>,
}

/// A connection to the hub could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The roots, the certificate or the authorization for the proxy are unusable.
    #[error("{0}")]
    Local(String),
    #[error("{0}")]
    Tcp(String),
    #[error("the proxy {proxy} {fact}")]
    Proxy { proxy: String, fact: String },
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the hub does not support relays on this port")]
    Protocol,
    #[error("no connection within {} s", CONNECT_LIMIT.as_secs())]
    Silent,
}

impl HubDialler {
    /// Opens a connection with TLS 1.3, for one protocol.
    pub(super) async fn connect(
        &self,
        hub: &HostPort,
        protocol: &[u8],
        certificate: Option<&RelayCertificate>,
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let config = self.tls(protocol, certificate)?;
        let name = ServerName::try_from(hub.host.clone())
            .map_err(|error| DialError::Local(error.to_string()))?;
        let connect = async {
            let tcp = match &self.proxy {
                Some(proxy) => self.connect_by(proxy, hub).await?,
                None => connect_tcp(hub).await?,
            };
            TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|error| {
                let text = one_line(&error.to_string());
                match text.contains("NoApplicationProtocol") {
                    true => DialError::Protocol,
                    false => DialError::Tls(text),
                }
            })
        };
        let stream = timeout(CONNECT_LIMIT, connect).await.map_err(|_| DialError::Silent)??;
        match stream.get_ref().1.alpn_protocol() {
            Some(chosen) if chosen == protocol => Ok(stream),
            _ => Err(DialError::Protocol),
        }
    }

    fn tls(
        &self,
        protocol: &[u8],
        certificate: Option<&RelayCertificate>,
    ) -> Result<ClientConfig, DialError> {
        let local = |fact: String| DialError::Local(fact);
        let pem = durable::read_at_most(&self.roots, ROOTS_BYTES_MAX)
            .map_err(|error| local(format!("{}: {error}", self.roots.display())))?;
        let mut roots = RootCertStore::empty();
        // The hub sends its newest roots with each certificate.
        let sent = certificate.map(|certificate| certificate.roots.as_bytes()).unwrap_or_default();
        for text in [&pem, sent] {
            roots.add_parsable_certificates(CaBundle::read(text).certificates);
        }
        if roots.is_empty() {
            return Err(local(format!("{} contains no certificate", self.roots.display())));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| local(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(certificate) => {
                let (chain, key) = certificate.pair().map_err(|error| local(error.to_string()))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| local(error.to_string()))?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        // Each connection proves the current certificate.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }

    /// Opens a connection to the hub through the proxy. The proxy resolves the name of the hub.
    async fn connect_by(&self, proxy: &HttpProxy, hub: &HostPort) -> Result<TcpStream, DialError> {
        let failed = |fact: String| DialError::Proxy { proxy: proxy.address.to_string(), fact };
        let from_file = self.proxy_authorization.as_ref().map(|path| read_secret(path));
        let authorization = match from_file.transpose().map_err(DialError::Local)? {
            Some(header) => Some(header),
            None => proxy.authorization.clone(),
        };
        let mut request = format!("CONNECT {hub} HTTP/1.1\r\nHost: {hub}\r\n");
        if let Some(header) = &authorization {
            if header.reveal().contains(char::is_control) {
                let fact = "the authorization for the proxy must be one line";
                return Err(DialError::Local(fact.to_owned()));
            }
            request += &format!("Proxy-Authorization: {}\r\n", header.reveal());
        }
        request += "\r\n";
        let mut tcp = connect_tcp(&proxy.address)
            .await
            .map_err(|error| failed(format!("cannot be reached: {error}")))?;
        let interrupted = |error: std::io::Error| failed(format!("failed: {error}"));
        tcp.write_all(request.as_bytes()).await.map_err(interrupted)?;
        // The hub sends nothing before the handshake, so nothing after the head is lost.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == HEAD_BYTES_MAX {
                return Err(failed("sent no valid response".to_owned()));
            }
            head.push(tcp.read_u8().await.map_err(interrupted)?);
        }
        let line = String::from_utf8_lossy(&head);
        let line = one_line(line.lines().next().unwrap_or_default());
        match line.split(' ').nth(1) {
            Some("200") if line.starts_with("HTTP/1.") => Ok(tcp),
            _ => Err(failed(format!("refuses the connection to {hub}: {line}"))),
        }
    }
}

async fn connect_tcp(address: &HostPort) -> Result<TcpStream, DialError> {
    let failed = |error: std::io::Error| DialError::Tcp(format!("{address}: {error}"));
    let tcp = TcpStream::connect((&*address.host, address.port)).await.map_err(failed)?;
    tcp.set_nodelay(true).map_err(failed)?;
    Ok(tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_host_and_a_port() {
        for (text, host, port) in [
            ("hub.example:15012", "hub.example", 15012),
            ("192.0.2.1:443", "192.0.2.1", 443),
            ("[2001:db8::1]:443", "2001:db8::1", 443),
        ] {
            let address: HostPort = text.parse().expect(text);
            assert_eq!((&*address.host, address.port, &*address.to_string()), (host, port, text));
        }
        for text in [
            "hub.example",
            "hub.example:0",
            "hub.example:a",
            ":1",
            "2001:db8::1:443",
            "a b:1",
            "[::1:4",
        ] {
            text.parse::<HostPort>().expect_err(text);
        }
    }

    #[test]
    fn proxy_is_an_http_url_and_its_password_is_not_printed() {
        let proxy: HttpProxy = "http://me:can%61ry@proxy.example:3128/".parse().expect("a URL");
        assert_eq!(proxy.address.to_string(), "proxy.example:3128");
        let basic = proxy.authorization.as_ref().expect("a user").reveal();
        assert_eq!(basic, &format!("Basic {}", BASE64.encode("me:canary")));
        assert!(!format!("{proxy:?}").contains("Basic"));
        for text in ["https://proxy.example:3128", "proxy.example:3128", "http://me:canary@proxy"] {
            let error = text.parse::<HttpProxy>().expect_err(text);
            assert!(!error.contains("canary"));
        }
    }
}
