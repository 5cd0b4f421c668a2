//! A TCP relay in front of an API server that simulates network faults.
//!
//! It owns the connections through it and the state of the line, which applies to all of them. It
//! does not interpret the bytes: TLS is between the ends.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::mesh::{Member, SYSTEM};
use strait_base::task::Supervisor;

/// The treatment of forwarded bytes. A connection that has lost bytes stays dead, even if the line
/// recovers, as after a firewall has dropped its state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Line {
    /// Bytes arrive.
    Clear,
    /// Bytes are lost in both directions, without an error.
    Silent,
    /// Bytes from the server are lost; bytes to the server arrive.
    OneWay,
    /// The server's end is closed, and the client's end stays open without receiving anything.
    HalfOpen,
    /// Bytes arrive with this delay.
    Late(Duration),
    /// Each connection transfers at most this number of bytes per second.
    Narrow(u32),
    /// A bit is flipped.
    Noisy,
    /// Each connection is reset at this age.
    Reset(Duration),
    /// Each connection is reset immediately.
    Refused,
}

/// A running relay. It ends with the test's runtime.
pub(crate) struct Relay {
    address: SocketAddr,
    line: watch::Sender<Line>,
    _tasks: Supervisor,
}

impl Relay {
    /// Starts a relay with a clear line to a member.
    pub(crate) async fn start(member: &Member) -> Self {
        let target = member.api.address();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (line, lines) = watch::channel(Line::Clear);
        let tasks = Supervisor::new();
        let connections = tasks.clone();
        tasks.spawn("relay", async move {
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn("connection", connection(client, target, lines.clone()));
            }
        });
        Self { address, line, _tasks: tasks }
    }

    /// Sets the state of the line.
    pub(crate) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// Returns the Secret with which the member is reached through this relay.
    pub(crate) fn secret(&self, member: &Member) -> Value {
        let here = format!("https://{}", self.address);
        let kubeconfig = member.api.kubeconfig().replace(&member.api.url(), &here);
        strait_sim::member_secret(SYSTEM, member.id(), &kubeconfig)
    }
}

/// The reason why the relay ends a connection.
enum End {
    Reset,
    HalfOpen,
}

async fn connection(mut client: TcpStream, target: SocketAddr, mut lines: watch::Receiver<Line>) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = pump(from_client, to_server, lines.clone(), false);
        let down = pump(from_server, to_client, lines.clone(), true);
        tokio::select! {
            _ = async { tokio::join!(up, down) } => return,
            end = end_by(&mut lines) => end,
        }
    };
    match end {
        End::Reset => {
            // With zero linger, closing sends a reset.
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
        End::HalfOpen => {
            drop(server);
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until the line ends a connection that begins now.
async fn end_by(lines: &mut watch::Receiver<Line>) -> End {
    let began = Instant::now();
    loop {
        let line = *lines.borrow_and_update();
        let at = match line {
            Line::Refused => return End::Reset,
            Line::HalfOpen => return End::HalfOpen,
            Line::Reset(age) => Some(began + age),
            _ => None,
        };
        let old = async {
            match at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = old => return End::Reset,
            changed = lines.changed() => if changed.is_err() { return End::Reset },
        }
    }
}

/// Forwards bytes in one direction according to the line.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    lines: watch::Receiver<Line>,
    from_server: bool,
) -> io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let line = *lines.borrow();
        let room = match line {
            // A tenth of a second's bytes at a time.
            Line::Narrow(bytes_per_second) => (bytes_per_second as usize / 10).max(1),
            _ => bytes.len(),
        };
        let count = from.read(&mut bytes[..room]).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        // The line may have changed while there was nothing to read.
        let now = *lines.borrow();
        match now {
            Line::Silent => std::future::pending().await,
            Line::OneWay if from_server => std::future::pending().await,
            Line::Noisy if from_server => bytes[count / 2] ^= 1,
            _ => {}
        }
        match line {
            Line::Late(time) => tokio::time::sleep(time).await,
            Line::Narrow(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            _ => {}
        }
        to.write_all(&bytes[..count]).await?;
    }
}
