//! The two programs that the demo runs in pods: a client that sends requests, and a server that
//! responds with its name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use strait_base::task::Supervisor;

/// Time limit for a response.
const ANSWER: Duration = Duration::from_secs(3);

/// Results of requests.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RequestCounts {
    /// Number of responses by responding pod, `cluster/pod`.
    pub(super) by: BTreeMap<String, usize>,
    /// Number of responses by the client identity that the pod saw.
    pub(super) seen_as: BTreeMap<String, usize>,
    /// Number of failures by reason.
    pub(super) failures: BTreeMap<String, usize>,
}

/// Sends `count` requests one after the other, each on a new connection.
pub(super) async fn send_requests(address: SocketAddr, host: &str, count: usize) -> RequestCounts {
    let mut answers = RequestCounts::default();
    for _ in 0..count {
        let answer = tokio::time::timeout(ANSWER, get(address, host)).await;
        match answer.unwrap_or_else(|_| Err(format!("no answer within {ANSWER:?}"))) {
            Ok((pod, seen_as)) => {
                *answers.by.entry(pod).or_default() += 1;
                *answers.seen_as.entry(seen_as).or_default() += 1;
            }
            Err(reason) => *answers.failures.entry(reason).or_default() += 1,
        }
    }
    answers
}

/// Sends one request on a new connection. Returns the responding pod and the client identity that
/// it saw.
async fn get(address: SocketAddr, host: &str) -> Result<(String, String), String> {
    let mut text = String::new();
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_string(&mut text).await
    };
    exchange.await.map_err(|error| error.to_string())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("closed before an answer")?;
    let status = head.lines().next().unwrap_or_default();
    match body.split_once(' ') {
        Some((pod, seen_as)) if status.contains(" 200 ") => Ok((pod.into(), seen_as.into())),
        _ => Err(format!("{status}: {body}")),
    }
}

/// Responds to each request with `name` and the client's identity from the sidecar's header.
pub(super) async fn echo(address: SocketAddr, name: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let tasks = Supervisor::new();
    loop {
        let (stream, _) = listener.accept().await?;
        let name = name.to_owned();
        tasks.spawn("answers", async move {
            // A client that disconnects is not an error of the server.
            let _ = answer(stream, &name).await;
        });
    }
}

async fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    let mut client = None;
    while let Some(line) = lines.next_line().await? {
        if line.to_ascii_lowercase().starts_with("x-forwarded-client-cert:") {
            let uri = line.split(';').find_map(|part| part.strip_prefix("URI="));
            client = uri.map(str::to_owned);
        }
        if line.is_empty() {
            let body = format!("{name} {}", client.take().as_deref().unwrap_or("nobody"));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            writer.write_all((head + &body).as_bytes()).await?;
        }
    }
    Ok(())
}
