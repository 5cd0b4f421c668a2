//! A TCP relay in front of an API server that does to its connections what networks do.
//!
//! Owns the connections through it and the state of the line, which holds for all of them at once. It
//! never reads what passes: TLS stays between the ends.

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

/// What becomes of what is sent. A connection that has lost bytes is dead for good, whatever the line
/// does later, as where a firewall forgot it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Line {
    /// It arrives.
    Clear,
    /// It is lost in both directions, and nobody is told.
    Silent,
    /// What the server says is lost; what it is told arrives.
    OneWay,
    /// The server's end is closed, the other stays open and hears nothing.
    HalfOpen,
    /// It arrives so much later.
    Late(Duration),
    /// At most so many bytes a second arrive, on each connection.
    Narrow(u32),
    /// A bit of it is wrong.
    Noisy,
    /// Each connection is reset when it is so old.
    Reset(Duration),
    /// Each connection is reset at once.
    Refused,
}

/// A running relay. It ends with the test's runtime.
pub(crate) struct Relay {
    address: SocketAddr,
    line: watch::Sender<Line>,
    _tasks: Supervisor,
}

impl Relay {
    /// A clear line to a member.
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

    /// From now on.
    pub(crate) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// The Secret by which the member is reached through here.
    pub(crate) fn secret(&self, member: &Member) -> Value {
        let here = format!("https://{}", self.address);
        let kubeconfig = member.api.kubeconfig().replace(&member.api.url(), &here);
        strait_sim::member_secret(SYSTEM, member.id(), &kubeconfig)
    }
}

/// How a connection ends that neither of its ends has ended.
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
            // With nothing to linger for, closing is a reset.
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
        End::HalfOpen => {
            drop(server);
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until the line ends the connection that begins now.
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

/// Carries bytes from one end to the other, as the line lets them.
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
            // A tenth of a second's worth at a time.
            Line::Narrow(bytes_per_second) => (bytes_per_second as usize / 10).max(1),
            _ => bytes.len(),
        };
        let count = from.read(&mut bytes[..room]).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        // It may have changed while there was nothing to read.
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
