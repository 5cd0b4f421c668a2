//! One connection of a relay, from the TLS handshake to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::closable::Closable;
use super::{RelayHub, RelayRefusal};
use crate::wire::{
    HELLO_PATH, Hello, PING_LIMIT_SECONDS, PING_SECONDS, RENEW_HEADER, REPLICA_HEADER,
    VERSION_HEADER,
};
use strait_base::codes;
use strait_model::ClusterId;

/// The receive window of one stream, in bytes, as for a direct member.
const STREAM_WINDOW: u32 = 1 << 20;
/// The receive window of a connection, in bytes.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// The time limit from the handshake until the relay may be used.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// The maximum size of a hello and of the namespace `kube-system`, in bytes.
const HELLO_BYTES_MAX: usize = 256 << 10;
/// The maximum length of a text in a hello, in bytes.
const HELLO_TEXT_MAX: usize = 253;

/// The member that the certificate of a relay proves, and the address of the relay.
#[derive(Debug, Clone)]
pub struct RelayClaims {
    /// The member.
    pub cluster: ClusterId,
    /// The generation of the certificate.
    pub generation: u64,
    /// The expiry of the certificate.
    pub expires: SystemTime,
    /// The address of the relay.
    pub remote: SocketAddr,
}

/// The name of this replica of the hub, and the number of replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaName {
    /// The pod or host.
    pub name: String,
    /// The number of replicas, at least 1.
    pub count: usize,
}

/// The reason why a connection of a relay ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// It was refused before any request.
    Refused(RelayRefusal),
    /// The relay's answers contradict its certificate, or are invalid.
    Contradiction(String),
    /// The member, or the generation of the certificate, is not permitted any more.
    Revoked,
    /// The relay, or the network, closed it.
    Closed,
    /// The hub ended it for this reason.
    Ended(&'static str),
}

impl RelayHub {
    /// Serves a connection of a relay after its handshake, until it ends. `ends` completes when the hub must end it. A
    /// change of `replica` is sent to the relay, which needs a connection to each replica.
    pub async fn serve<T>(
        self: &Arc<Self>,
        io: T,
        claims: &RelayClaims,
        replica: &watch::Receiver<ReplicaName>,
        ends: impl Future<Output = &'static str>,
    ) -> SessionEnd
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let cluster = &claims.cluster;
        let admission = match self.admit(claims, SystemTime::now()) {
            Ok(admission) => admission,
            Err(refusal) => return self.noted(claims, SessionEnd::Refused(refusal)),
        };
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(PING_SECONDS))
            .keep_alive_timeout(Duration::from_secs(PING_LIMIT_SECONDS))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let closing = CancellationToken::new();
        let io = Closable::new(io, closing.clone());
        let _closes_at_the_end = closing.drop_guard();
        let Ok((mut sender, connection)) = builder.handshake(TokioIo::new(io)).await else {
            return SessionEnd::Closed;
        };
        let mut connection = std::pin::pin!(connection);
        let mut ends = std::pin::pin!(ends);
        let mut replica = replica.clone();
        let name = replica.borrow_and_update().clone();
        let greeting = tokio::time::timeout(HELLO_LIMIT, async {
            let hello = send_hello(&mut sender, &name, false).await?;
            check(&hello, cluster, self.other_uid(cluster, admission.number))?;
            match cluster_uid(&mut sender).await {
                Some(read) if !hello.cluster_uid.is_empty() && read != hello.cluster_uid => {
                    Err(format!(
                        "its kube-system has the UID {read:?}, its hello says {:?}",
                        hello.cluster_uid
                    ))
                }
                _ => Ok(hello),
            }
        });
        let hello = tokio::select! {
            greeting = greeting => match greeting {
                Ok(Ok(hello)) => hello,
                Ok(Err(fact)) => {
                    let fact = format!("{}: {fact}", codes::RELAY_HELLO);
                    return self.noted(claims, SessionEnd::Contradiction(fact));
                }
                Err(_) => {
                    let fact = format!("no hello within {} s", HELLO_LIMIT.as_secs());
                    let fact = format!("{}: {fact}", codes::RELAY_HELLO);
                    return self.noted(claims, SessionEnd::Contradiction(fact));
                }
            },
            _ = connection.as_mut() => return SessionEnd::Closed,
            () = admission.close.cancelled() => return SessionEnd::Revoked,
            reason = ends.as_mut() => return SessionEnd::Ended(reason),
        };
        self.begin(cluster, admission.number, hello, sender.clone());
        let mut hellos = FuturesUnordered::new();
        loop {
            tokio::select! {
                _ = connection.as_mut() => return SessionEnd::Closed,
                () = admission.close.cancelled() => return SessionEnd::Revoked,
                reason = ends.as_mut() => return SessionEnd::Ended(reason),
                () = admission.renew.notified() => {
                    let name = replica.borrow().clone();
                    hellos.push(resend_hello(sender.clone(), name, true));
                }
                Ok(()) = replica.changed() => {
                    let name = replica.borrow_and_update().clone();
                    hellos.push(resend_hello(sender.clone(), name, false));
                }
                // A relay that does not renew is disconnected when its generation is refused.
                Some(()) = hellos.next() => {}
            }
        }
    }
}

/// Sends a further hello: to make the relay renew its certificate, or because the number of replicas has changed.
async fn resend_hello(
    mut sender: SendRequest<Full<Bytes>>,
    replica: ReplicaName,
    is_to_renew: bool,
) {
    // The pings end the connection of a relay that does not respond.
    let _ = tokio::time::timeout(HELLO_LIMIT, send_hello(&mut sender, &replica, is_to_renew)).await;
}

/// Sends a hello, and returns the relay's.
async fn send_hello(
    sender: &mut SendRequest<Full<Bytes>>,
    replica: &ReplicaName,
    is_to_renew: bool,
) -> Result<Hello, String> {
    let mut request = Request::get(uri(HELLO_PATH))
        .header(VERSION_HEADER, env!("CARGO_PKG_VERSION"))
        .header(REPLICA_HEADER, format!("{}/{}", replica.name, replica.count));
    if is_to_renew {
        request = request.header(RENEW_HEADER, "true");
    }
    let request = request.body(Full::default()).map_err(|error| error.to_string())?;
    let hello: Hello = json(sender, request).await?;
    let texts =
        [&hello.version, &hello.instance, &hello.cluster, &hello.cluster_uid, &hello.kubernetes];
    let is_invalid =
        |text: &&String| text.len() > HELLO_TEXT_MAX || text.chars().any(char::is_control);
    if texts
        .into_iter()
        .chain(&hello.allowed)
        .chain(&hello.media_types)
        .any(|text| is_invalid(&text))
    {
        return Err("a text in its hello is too long or contains control characters".to_owned());
    }
    Ok(hello)
}

/// Compares a hello with the certificate and with the member's other relays.
fn check(hello: &Hello, cluster: &ClusterId, other_uid: Option<String>) -> Result<(), String> {
    if hello.cluster != cluster.as_str() {
        return Err(format!(
            "its certificate is for {cluster}, its hello says {:?}",
            hello.cluster
        ));
    }
    match other_uid {
        Some(other) if !hello.cluster_uid.is_empty() && other != hello.cluster_uid => Err(format!(
            "its cluster has the UID {:?}, that of the other relay of {cluster} has {other:?}",
            hello.cluster_uid
        )),
        _ => Ok(()),
    }
}

/// Reads the UID of the namespace `kube-system`; `None` if the relay's account may not read it.
async fn cluster_uid(sender: &mut SendRequest<Full<Bytes>>) -> Option<String> {
    #[derive(Deserialize)]
    struct Namespace {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    let request = Request::get(uri("/api/v1/namespaces/kube-system"))
        .header(http::header::ACCEPT, "application/json")
        .body(Full::default())
        .ok()?;
    let namespace: Namespace = json(sender, request).await.ok()?;
    Some(namespace.metadata.uid)
}

async fn json<T: DeserializeOwned>(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<T, String> {
    let path = request.uri().path().to_owned();
    let failed = |fact: &dyn std::fmt::Display| format!("{path}: {fact}");
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    if response.status() != StatusCode::OK {
        return Err(failed(&response.status()));
    }
    let body = Limited::new(response.into_body(), HELLO_BYTES_MAX).collect().await;
    let body = body.map_err(|error| failed(&error))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| failed(&error))
}

/// Returns the URI of a path. A relay ignores the host.
fn uri(path: &'static str) -> Uri {
    Uri::builder()
        .scheme("https")
        .authority("relay")
        .path_and_query(path)
        .build()
        .unwrap_or_else(|_| Uri::from_static(path))
}

#[cfg(test)]
mod tests;
