//! Connections to API servers through an HTTP proxy (`CONNECT`) or a SOCKS 5 proxy.
//!
//! The operator defines proxies, so their addresses and files are trusted. TLS to the API server runs
//! inside the tunnel: the proxy sees the server's name, and never a credential for the server. The
//! proxy resolves that name. An error of the proxy is never an error of the API server's TLS or of
//! the member's credential.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Uri;
use http::header::HeaderValue;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{BoxError, ServiceExt, service_fn};

use super::connect_proxy::ConnectProxy;
use super::dial::{HTTP1, Tls, certificates, set_client_certificate, tcp};
use super::error::{NotConnected, one_line};
use super::redacted::without_credential;
use super::socks::{self, SocksUser};
use super::transport::{Hop, HopStream};
use super::{ApiError, Loopback, Redacted};

/// The maximum size of a proxy's response in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The maximum size of a file with a header or certificates in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl ConnectProxy {
    /// Opens a tunnel to the host and port of `server`.
    async fn open(&self, server: &Uri) -> Result<HopStream, BoxError> {
        let target = (server.host().unwrap_or_default(), server.port_u16().unwrap_or(443));
        match self.url.scheme_str() {
            Some("socks5") => self.open_socks(target).await,
            _ => self.open_http(target).await,
        }
    }

    /// Opens a tunnel with SOCKS 5.
    async fn open_socks(&self, target: (&str, u16)) -> Result<HopStream, BoxError> {
        let user = match &self.authorization {
            None => None,
            Some(path) => {
                let user = basic_user(&self.header_value(path).await?);
                let fact = || format!("{} does not contain Basic and a user", path.display());
                Some(user.ok_or_else(|| self.error(fact()))?)
            }
        };
        let mut stream = TokioIo::new(self.dial().await?);
        let connected = socks::connect(&mut stream, target, user.as_ref()).await;
        connected.map_err(|fact| self.error(fact))?;
        Ok(stream.into_inner())
    }

    /// Opens a tunnel with HTTP's CONNECT.
    async fn open_http(&self, (host, port): (&str, u16)) -> Result<HopStream, BoxError> {
        let target = format!("{host}:{port}");
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        let mut credential = Vec::new();
        if let Some(path) = &self.authorization {
            credential = self.header_value(path).await?;
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(&credential);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let mut stream = TokioIo::new(self.dial().await?);
        let interrupted = |error: std::io::Error| self.error(format!("is interrupted: {error}"));
        stream.write_all(&request).await.map_err(interrupted)?;
        stream.flush().await.map_err(interrupted)?;
        // The API server sends nothing before its client, so nothing after the head is lost.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == HEAD_BYTES_MAX {
                return Err(self.error("sends no HTTP response"));
            }
            head.push(stream.read_u8().await.map_err(interrupted)?);
        }
        let head = String::from_utf8_lossy(&head);
        let line = without_credential(head.lines().next().unwrap_or_default(), &credential);
        let line = one_line(&line);
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        match status.and_then(|status| status.parse::<u16>().ok()) {
            Some(200..=299) => Ok(stream.into_inner()),
            Some(_) => Err(self.error(format!("refuses a connection to {target}: {line}"))),
            None => Err(self.error("sends no HTTP response")),
        }
    }

    /// Opens a connection to the proxy itself.
    async fn dial(&self) -> Result<HopStream, BoxError> {
        let unreachable = |error: BoxError| {
            let error = ApiError::from_exchange("CONNECT", &NotConnected(error.into()));
            self.error(format!("is not reachable: {error}"))
        };
        let tcp = tcp(Loopback::Named);
        if self.url.scheme_str() != Some("https") {
            let dialled = tcp.oneshot(self.url.clone()).await;
            return dialled.map(MaybeHttpsStream::Http).map_err(|error| unreachable(error.into()));
        }
        let mut config = kube::Config::new(self.url.clone());
        if let Some(path) = &self.roots {
            let pem = self.read(path).await?;
            let (roots, _) = certificates(&pem)
                .map_err(|_| self.error(format!("{} contains no certificate", path.display())))?;
            config.root_cert = Some(roots);
        }
        if let Some((certificate, key)) = &self.certificate {
            let (certificate, key) = (self.read(certificate).await?, self.read(key).await?);
            set_client_certificate(&mut config, &certificate, &key);
        }
        let tls = Tls::new(&config).map_err(|error| self.error(error.to_string()))?;
        tls.connector(tcp, HTTP1).oneshot(self.url.clone()).await.map_err(unreachable)
    }

    /// Returns the header value in a file.
    async fn header_value(&self, path: &Path) -> Result<Vec<u8>, BoxError> {
        let header = self.read(path).await?.trim_ascii().to_vec();
        if header.is_empty() || HeaderValue::from_bytes(&header).is_err() {
            let fact = format!("{} does not contain one header value", path.display());
            return Err(self.error(fact));
        }
        Ok(header)
    }

    async fn read(&self, path: &Path) -> Result<Vec<u8>, BoxError> {
        let failed = |error: std::io::Error| self.error(format!("{}: {error}", path.display()));
        let file = tokio::fs::File::open(path).await.map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).await.map_err(failed)?;
        Ok(bytes)
    }
}

/// Returns the user in the value of an authorization header of type Basic.
fn basic_user(header: &[u8]) -> Option<SocksUser> {
    let (kind, encoded) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    let decoded =
        BASE64.decode(encoded.trim()).ok().filter(|_| kind.eq_ignore_ascii_case("basic"))?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some(SocksUser { name: name.to_owned(), password: Redacted::new(password.to_owned()) })
}

/// Opens connections to the server itself, to addresses that may be dialled, or tunnels through
/// `proxy`.
pub(super) fn hop(loopback: Loopback, proxy: Option<&Arc<ConnectProxy>>) -> Hop {
    match proxy.cloned() {
        None => {
            Hop::new(tcp(loopback).map_response(MaybeHttpsStream::Http).map_err(BoxError::from))
        }
        Some(proxy) => Hop::new(service_fn(move |server: Uri| {
            let proxy = Arc::clone(&proxy);
            async move { proxy.open(&server).await }
        })),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the error of a request to a proxy that sends these bytes, and the request.
    async fn refused(response: &'static [u8], server: &str) -> (ApiError, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let answering = async move {
            let (mut tcp, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(tcp.read_u8().await.expect("a request"));
            }
            // The peer may end the connection while it is being sent.
            let _ = tcp.write_all(response).await;
            String::from_utf8(head).expect("text")
        };
        let proxy = ConnectProxy {
            name: "corp".into(),
            url: format!("http://{address}").parse().expect("a URL"),
            roots: None,
            certificate: None,
            authorization: None,
        };
        let server = server.parse().expect("a URL");
        let (head, opened) = tokio::join!(answering, proxy.open(&server));
        (ApiError::from_exchange("GET /", &*opened.expect_err("refused")), head)
    }

    #[tokio::test]
    async fn error_names_the_proxy_and_its_answer_and_is_never_one_of_the_server() {
        const LONG: &[u8] = &[b'a'; 2 * HEAD_BYTES_MAX];
        for (response, fact) in [
            (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "407 Proxy"),
            (b"HTTP/1.0 403 Forbidden\r\nX: y\r\n\r\n", "to api.test:443: HTTP/1.0 403 Forbidden"),
            (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "502 Bad Gateway"),
            (b"HTTP/1.1 302 Found\r\nLocation: https://x\r\n\r\n", "302 Found"),
            (b"SSH-2.0-x\r\n\r\n", "sends no HTTP response"),
            (b"HTTP/1.1\r\n\r\n", "sends no HTTP response"),
            (LONG, "sends no HTTP response"),
            (b"HTTP/1.1 200", "is interrupted"),
        ] {
            let (error, _) = refused(response, "https://api.test").await;
            let ApiError::Unreachable(text) = &error else { panic!("{error:?}") };
            assert!(text.starts_with("STR0356: proxy corp: ") && text.contains(fact), "{text}");
        }
    }

    #[tokio::test]
    async fn target_is_the_host_and_port_of_the_server() {
        for (server, target) in [
            ("https://api.test", "api.test:443"),
            ("https://api.test:6443/prefix", "api.test:6443"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ] {
            let (_, head) = refused(b"HTTP/1.1 502 no\r\n\r\n", server).await;
            assert_eq!(head, format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
        }
    }

    #[tokio::test]
    async fn unusable_file_is_named_and_no_connection_is_opened() {
        let proxy = ConnectProxy {
            name: Arc::from("corp"),
            url: "http://127.0.0.1:9".parse().expect("a URL"),
            roots: None,
            certificate: None,
            authorization: Some("/nowhere/authorization".into()),
        };
        let error = proxy.open(&"https://api.test".parse().expect("a URL")).await;
        let error = error.expect_err("no file").to_string();
        assert!(error.contains("proxy corp: /nowhere/authorization: "), "{error}");
    }

    #[tokio::test]
    async fn socks_proxy_needs_a_basic_user_and_its_error_is_one_of_the_proxy() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("authorization");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = ConnectProxy {
            name: "corp".into(),
            url: format!("socks5://{}", listener.local_addr().expect("an address"))
                .parse()
                .expect("a URL"),
            roots: None,
            certificate: None,
            authorization: Some(file.clone()),
        };
        let server = "https://api.test".parse().expect("a URL");
        for text in ["Bearer abc", "Basic !", "Basic bm9jb2xvbg=="] {
            std::fs::write(&file, text).expect("written");
            let error = proxy.open(&server).await.expect_err(text).to_string();
            assert!(error.contains("does not contain Basic and a user"), "{error}");
        }
        std::fs::write(&file, "Basic bWU6c2VjcmV0\n").expect("written");
        let refusing = async {
            let (mut tcp, _) = listener.accept().await.expect("a connection");
            tcp.write_all(&[5, 2, 1, 1]).await.expect("written");
            let mut received = vec![0; 4 + 11];
            tcp.read_exact(&mut received).await.expect("read");
            received
        };
        let (received, opened) = tokio::join!(refusing, proxy.open(&server));
        assert!(received.ends_with(b"\x02me\x06secret"));
        let error = ApiError::from_exchange("GET /", &*opened.expect_err("refused"));
        let ApiError::Unreachable(text) = &error else { panic!("{error:?}") };
        assert_eq!(text, "STR0356: proxy corp: does not accept the user name and password");
    }
}
