//! One proxy's connections, one after the other: TCP, TLS, HTTP/2, and the stream on it.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::wire::Form;

/// What a proxy may be sent before it has taken what came: as Envoy, and as a slow one.
const WINDOW: u32 = 1 << 20;
const WINDOW_SLOW: u32 = 1 << 16;
/// What a slow proxy takes in a second.
const SLOW_BYTES_PER_SECOND: f64 = 65536.0;
/// How long a connection may take to come about.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// Bytes of all connections of a thread, TLS and HTTP/2 included.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) received: Cell<u64>,
    pub(crate) sent: Cell<u64>,
}

/// Where to connect to.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) name: ServerName<'static>,
    pub(crate) authority: String,
}

/// A stream and the two ends of it. Dropping it ends the connection.
pub(crate) struct Stream {
    requests: SendStream<Bytes>,
    responses: Option<RecvStream>,
    opening: Option<h2::client::ResponseFuture>,
    slow: bool,
    buffer: BytesMut,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Stream {
    /// Connects and opens a stream that begins with `requests`.
    ///
    /// # Errors
    /// What went wrong, without what differs from proxy to proxy.
    pub(crate) async fn open(
        server: &Server,
        form: Form,
        proxy: u32,
        tls: Arc<ClientConfig>,
        slow: bool,
        meter: &Rc<Meter>,
    ) -> Result<Self, String> {
        let opened = Self::open_without_limit(server, form, proxy, tls, slow, meter);
        match tokio::time::timeout(CONNECT_LIMIT, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no connection within {} s", CONNECT_LIMIT.as_secs())),
        }
    }

    async fn open_without_limit(
        server: &Server,
        form: Form,
        proxy: u32,
        tls: Arc<ClientConfig>,
        slow: bool,
        meter: &Rc<Meter>,
    ) -> Result<Self, String> {
        let tcp = connect(server.address, proxy).await.map_err(|e| format!("connect: {e}"))?;
        let tcp = Metered { tcp, meter: Rc::clone(meter) };
        let tls = TlsConnector::from(tls)
            .connect(server.name.clone(), tcp)
            .await
            .map_err(|error| format!("TLS: {error}"))?;
        let window = if slow { WINDOW_SLOW } else { WINDOW };
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(window)
            .handshake::<_, Bytes>(tls)
            .await
            .map_err(|error| format!("HTTP/2: {error}"))?;
        // Whatever ends the connection ends the stream on it, and is told there.
        let driver = tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let method = match form {
            Form::Delta => "DeltaAggregatedResources",
            Form::Sotw => "StreamAggregatedResources",
        };
        let service = "envoy.service.discovery.v3.AggregatedDiscoveryService";
        let request =
            http::Request::post(format!("https://{}/{service}/{method}", server.authority))
                .header(http::header::CONTENT_TYPE, "application/grpc")
                .header(http::header::TE, "trailers")
                .header(http::header::USER_AGENT, "xdsload")
                .body(())
                .map_err(|error| error.to_string())?;
        let mut ready = requests.ready().await.map_err(|error| format!("HTTP/2: {error}"))?;
        let (opening, requests) =
            ready.send_request(request, false).map_err(|error| format!("HTTP/2: {error}"))?;
        let buffer = BytesMut::new();
        Ok(Self { requests, responses: None, opening: Some(opening), slow, buffer, driver })
    }

    /// Sends framed requests.
    pub(crate) fn send(&mut self, requests: Vec<Bytes>) -> Result<(), String> {
        let mut sent = requests.into_iter().map(|request| self.requests.send_data(request, false));
        sent.try_for_each(|sent| sent.map_err(|error| format!("HTTP/2: {error}")))
    }

    /// The next message.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub(crate) async fn next(&mut self) -> Result<Bytes, String> {
        loop {
            if let Some(message) = self.whole() {
                return Ok(message);
            }
            let Some(responses) = &mut self.responses else {
                let Some(opening) = &mut self.opening else { return Err("ended".to_owned()) };
                let response = opening.await.map_err(|error| format!("HTTP/2: {error}"))?;
                self.opening = None;
                refused(response.headers())?;
                if response.status() != http::StatusCode::OK {
                    return Err(format!("HTTP {}", response.status()));
                }
                self.responses = Some(response.into_body());
                continue;
            };
            match responses.data().await {
                Some(Ok(chunk)) => {
                    if self.slow {
                        let seconds = chunk.len() as f64 / SLOW_BYTES_PER_SECOND;
                        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                    }
                    // Fails only where the stream has ended, and then the next read says so.
                    let _ = responses.flow_control().release_capacity(chunk.len());
                    self.buffer.extend_from_slice(&chunk);
                }
                Some(Err(error)) => return Err(format!("HTTP/2: {error}")),
                None => {
                    let trailers = responses.trailers().await.ok().flatten();
                    trailers.as_ref().map_or(Ok(()), refused)?;
                    return Err("the server ended the stream".to_owned());
                }
            }
        }
    }

    /// Takes a whole message out of the buffer: a byte that says it isn't compressed, its length, itself.
    fn whole(&mut self) -> Option<Bytes> {
        let header: [u8; 5] = self.buffer.get(..5)?.try_into().ok()?;
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if self.buffer.len() < 5 + length {
            // Large messages grow the buffer once.
            self.buffer.reserve(5 + length - self.buffer.len());
            return None;
        }
        // What is left shares the memory of what is taken: where nothing is left, nothing shall keep it.
        let mut message = if self.buffer.len() == 5 + length {
            std::mem::take(&mut self.buffer)
        } else {
            self.buffer.split_to(5 + length)
        };
        message.advance(5);
        Some(message.freeze())
    }
}

/// The reason where gRPC says that a call failed.
fn refused(headers: &http::HeaderMap) -> Result<(), String> {
    let text = |key| headers.get(key).and_then(|value: &http::HeaderValue| value.to_str().ok());
    match text("grpc-status") {
        None | Some("0") => Ok(()),
        Some(code) => Err(format!("gRPC status {code}: {}", text("grpc-message").unwrap_or("-"))),
    }
}

/// Each proxy has an address of its own where the server is on this machine, as proxies do; it also gives
/// more than one address's ports.
async fn connect(server: SocketAddr, proxy: u32) -> io::Result<TcpStream> {
    let stream = match server {
        SocketAddr::V4(v4) if v4.ip().is_loopback() => {
            let [_, high, middle, low] = proxy.to_be_bytes();
            let own = Ipv4Addr::new(127, 1 + high, middle, low);
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::new(IpAddr::V4(own), 0))?;
            socket.connect(server).await?
        }
        _ => TcpStream::connect(server).await?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

struct Metered {
    tcp: TcpStream,
    meter: Rc<Meter>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.tcp).poll_read(context, buffer);
        let received = &self.meter.received;
        received.set(received.get() + (buffer.filled().len() - before) as u64);
        polled
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.tcp).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = &polled {
            self.meter.sent.set(self.meter.sent.get() + *written as u64);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
