//! The consecutive connections of one proxy: TCP, TLS and HTTP/2.
//!
//! Bytes are read into memory that all connections of a thread share, decrypted in place record by
//! record, and processed before the next read. A connection stores only the beginning of an
//! incomplete record.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::http2::Http2;
use crate::tokens::Token;
use crate::wire::Form;

/// The HTTP/2 window of a proxy in bytes: Envoy's, and a smaller one for slow proxies.
const WINDOW: u32 = 1 << 20;
const WINDOW_SLOW: u32 = 1 << 16;
/// The rate at which a slow proxy reads.
const SLOW_BYTES_PER_SECOND: f64 = 65536.0;
/// The time limit for establishing a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// The maximum size of one read: several TLS records (16 KiB), and small enough for the CPU cache.
const READ: usize = 128 << 10;
/// The capacity that the send buffer retains: enough for acknowledgements, not for first requests.
const KEPT: usize = 4 << 10;

/// The state that all connections of a thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The bytes of the last read.
    input: RefCell<Box<[u8]>>,
    /// Bytes received on all connections, including TLS and HTTP/2.
    pub(crate) received: Cell<u64>,
    pub(crate) sent: Cell<u64>,
}

impl Default for Shared {
    fn default() -> Self {
        let input = RefCell::new(vec![0; READ].into());
        Self { input, received: Cell::new(0), sent: Cell::new(0) }
    }
}

/// The server to connect to.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) name: ServerName<'static>,
    pub(crate) authority: String,
}

/// A stream on its own connection. Dropping it closes the connection.
pub(crate) struct Stream<'a> {
    shared: &'a Shared,
    tcp: TcpStream,
    tls: Tls,
    http: Http2,
    /// The bytes of an incomplete record.
    rest: Vec<u8>,
    slow: bool,
}

impl<'a> Stream<'a> {
    /// Connects and opens a stream.
    ///
    /// # Errors
    /// The reason, without details that differ between proxies.
    pub(crate) async fn open(
        server: &Server,
        form: Form,
        proxy: u32,
        (config, token): (Arc<ClientConfig>, Option<&Token>),
        slow: bool,
        shared: &'a Shared,
    ) -> Result<Self, String> {
        let opened = Self::open_without_limit(server, form, proxy, (config, token), slow, shared);
        match tokio::time::timeout(CONNECT_LIMIT, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no connection within {} s", CONNECT_LIMIT.as_secs())),
        }
    }

    async fn open_without_limit(
        server: &Server,
        form: Form,
        proxy: u32,
        (config, token): (Arc<ClientConfig>, Option<&Token>),
        slow: bool,
        shared: &'a Shared,
    ) -> Result<Self, String> {
        let tcp = connect(server.address, proxy).await.map_err(|e| format!("connect: {e}"))?;
        let tls = Tls::new(config, server.name.clone()).map_err(|error| format!("TLS: {error}"))?;
        let method = match form {
            Form::Delta => "DeltaAggregatedResources",
            Form::Sotw => "StreamAggregatedResources",
        };
        let path = format!("/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}");
        let window = if slow { WINDOW_SLOW } else { WINDOW };
        let http = Http2::new(&server.authority, &path, window, token);
        let mut stream = Self { shared, tcp, tls, http, rest: Vec::new(), slow };
        // The client sends first.
        stream.decrypt(&mut [], &mut |_| Ok(()))?;
        while !stream.tls.established {
            stream.receive(|_| Ok(())).await?;
        }
        Ok(stream)
    }

    /// Sends framed requests as far as possible now. The rest is sent while the stream waits for
    /// the next bytes.
    ///
    /// # Errors
    /// The reason why the connection has ended.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<(), String> {
        self.http.send(requests);
        self.encrypt()?;
        match self.tcp.try_write(&self.tls.out) {
            Ok(written) => self.written(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("connection: {error}")),
        }
        Ok(())
    }

    /// Waits for bytes and calls `data` with each piece of stream data in them.
    ///
    /// # Errors
    /// The reason why the stream has ended, or the error of `data`.
    pub(crate) async fn receive(
        &mut self,
        mut data: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let came = poll_fn(|context| self.poll(context, &mut data)).await?;
        if self.slow {
            let seconds = came as f64 / SLOW_BYTES_PER_SECOND;
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            let mut input = std::mem::take(&mut self.rest);
            self.decrypt(&mut input, &mut data)?;
        }
        Ok(())
    }

    /// Writes waiting bytes, then reads once. Returns the number of bytes read.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        data: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Poll<Result<usize, String>> {
        while !self.tls.out.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut self.tcp).poll_write(context, &self.tls.out)
            else {
                break;
            };
            self.written(written.map_err(|error| format!("connection: {error}"))?);
        }
        let shared = self.shared;
        let mut input = shared.input.borrow_mut();
        let begun = self.rest.len();
        input[..begun].copy_from_slice(&self.rest);
        let mut buffer = ReadBuf::new(&mut input[begun..]);
        ready!(Pin::new(&mut self.tcp).poll_read(context, &mut buffer))
            .map_err(|error| format!("connection: {error}"))?;
        let came = buffer.filled().len();
        if came == 0 {
            return Poll::Ready(Err("the server closed the connection".to_owned()));
        }
        shared.received.set(shared.received.get() + came as u64);
        let input = &mut input[..begun + came];
        if self.slow {
            self.rest = input.to_vec();
        } else {
            self.decrypt(input, data)?;
        }
        Poll::Ready(Ok(came))
    }

    /// Processes received bytes, and answers the messages of TLS and HTTP/2 themselves.
    fn decrypt(
        &mut self,
        input: &mut [u8],
        data: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let taken = self.tls.receive(input, |plain| self.http.receive(plain, &mut *data))?;
        self.rest = input[taken..].to_vec();
        self.encrypt()
    }

    fn encrypt(&mut self) -> Result<(), String> {
        if self.tls.established && !self.http.out.is_empty() {
            self.tls.send(&self.http.out)?;
            self.http.out.clear();
            self.http.out.shrink_to(KEPT);
        }
        Ok(())
    }

    fn written(&mut self, bytes: usize) {
        self.tls.out.drain(..bytes);
        self.tls.out.shrink_to(KEPT);
        self.shared.sent.set(self.shared.sent.get() + bytes as u64);
    }
}

/// The TLS state of a connection, without I/O.
struct Tls {
    connection: UnbufferedClientConnection,
    /// Whether the client's part of the handshake is complete.
    established: bool,
    /// The bytes to send.
    out: Vec<u8>,
}

impl Tls {
    fn new(config: Arc<ClientConfig>, server: ServerName<'static>) -> Result<Self, rustls::Error> {
        let connection = UnbufferedClientConnection::new(config, server)?;
        Ok(Self { connection, established: false, out: Vec::new() })
    }

    /// Processes complete records and returns their length in bytes. Calls `plain` with their
    /// plaintext.
    fn receive(
        &mut self,
        input: &mut [u8],
        mut plain: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<usize, String> {
        let mut taken = 0;
        loop {
            let status = self.connection.process_tls_records(&mut input[taken..]);
            taken += status.discard;
            match status.state.map_err(|error| format!("TLS: {error}"))? {
                ConnectionState::ReadTraffic(mut records) => {
                    while let Some(record) = records.next_record() {
                        let record = record.map_err(|error| format!("TLS: {error}"))?;
                        taken += record.discard;
                        plain(record.payload)?;
                    }
                }
                ConnectionState::EncodeTlsData(mut record) => {
                    put(&mut self.out, |room| match record.encode(room) {
                        Err(EncodeError::InsufficientSize(more)) => Err(Some(more)),
                        encoded => encoded.map_err(|_| None),
                    })?;
                }
                // The bytes are in `out`, which is sent in order.
                ConnectionState::TransmitTlsData(sent) => sent.done(),
                ConnectionState::BlockedHandshake => return Ok(taken),
                ConnectionState::WriteTraffic(_) => {
                    self.established = true;
                    return Ok(taken);
                }
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    return Err("the server closed the connection".to_owned());
                }
                state => return Err(format!("TLS: unexpected state {state:?}")),
            }
        }
    }

    /// Encrypts bytes to send.
    fn send(&mut self, plain: &[u8]) -> Result<(), String> {
        match self.connection.process_tls_records(&mut []).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                put(&mut self.out, |room| match traffic.encrypt(plain, room) {
                    Err(EncryptError::InsufficientSize(more)) => Err(Some(more)),
                    encrypted => encrypted.map_err(|_| None),
                })
            }
            Ok(state) => Err(format!("TLS: unexpected state {state:?}")),
            Err(error) => Err(format!("TLS: {error}")),
        }
    }
}

/// Calls `write` with space at the end of `out`, and enlarges the space as requested.
fn put(
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) -> Result<(), String> {
    let start = out.len();
    let mut written = write(&mut []);
    if let Err(Some(InsufficientSizeError { required_size })) = written {
        out.resize(start + required_size, 0);
        written = write(&mut out[start..]);
    }
    let written = written.map_err(|_| "TLS: nothing can be encrypted any more".to_owned())?;
    out.truncate(start + written);
    Ok(())
}

/// Connects to the server. If the server is on this machine, each proxy uses a different local
/// address, as real proxies do, which also avoids the port limit of a single address.
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
