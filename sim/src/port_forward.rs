//! Port-forwards to pods over a WebSocket (`v4.channel.k8s.io`), as an API server and a kubelet serve
//! them. The simulation has no pods: a test names the address that stands for a port of a pod.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use futures::{SinkExt as _, StreamExt as _};
use http::request::Parts;
use http::{Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::body::Answer;
use crate::status::ApiError;
use crate::task;

const PROTOCOL: &str = "v4.channel.k8s.io";
/// Channels of the data and of errors of the first port.
const DATA: u8 = 0;
const ERRORS: u8 = 1;

/// The addresses at which this server reaches the ports of pods.
#[derive(Debug, Default)]
pub(crate) struct PodPorts(Mutex<HashMap<(String, u16), SocketAddr>>);

impl PodPorts {
    /// Sets the address that stands for a port of the pod `NAMESPACE/NAME`.
    pub(crate) fn set(&self, pod: String, port: u16, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((pod, port), address);
    }

    /// Upgrades a request to a WebSocket that forwards a port of the pod.
    pub(crate) fn forward(&self, parts: &Parts, pod: String) -> Result<Response<Answer>, ApiError> {
        let ports = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let port =
            ports.filter(|(name, _)| name == "ports").find_map(|(_, port)| port.parse().ok());
        let port =
            port.ok_or_else(|| ApiError::bad_request("query parameter \"ports\" is required"))?;
        let key = parts.headers.get(header::SEC_WEBSOCKET_KEY);
        let upgrade = parts.extensions.get::<OnUpgrade>().cloned();
        let (Some(key), Some(upgrade)) = (key, upgrade) else {
            return Err(ApiError::bad_request("Upgrade request required"));
        };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = known.get(&(pod.clone(), port)).copied();
        task::spawn(serve(upgrade, pod, port, address));
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()))
            .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
            .body(Answer::Whole(None))
            .map_err(|error| ApiError::bad_request(error.to_string()))
    }
}

async fn serve(upgrade: OnUpgrade, pod: String, port: u16, address: Option<SocketAddr>) {
    let Ok(upgraded) = upgrade.await else { return };
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (mut to_client, mut from_client) = socket.split();
    let frame = |channel: u8, bytes: &[u8]| Message::binary([&[channel], bytes].concat());
    // Each channel starts with the number of its port.
    for channel in [DATA, ERRORS] {
        if to_client.send(frame(channel, &port.to_le_bytes())).await.is_err() {
            return;
        }
    }
    let tcp = match address {
        Some(address) => TcpStream::connect(address).await.ok(),
        None => None,
    };
    let Some(tcp) = tcp else {
        let fact = format!("error forwarding port {port} to pod {pod}: connection refused");
        let _ = to_client.send(frame(ERRORS, fact.as_bytes())).await;
        let _ = to_client.close().await;
        return;
    };
    let (mut from_pod, mut to_pod) = tcp.into_split();
    let upload = async {
        while let Some(Ok(message)) = from_client.next().await {
            if let Message::Binary(bytes) = message
                && let Some((&DATA, bytes)) = bytes.split_first()
                && to_pod.write_all(bytes).await.is_err()
            {
                return;
            }
        }
    };
    let download = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_pod.read(&mut buffer).await {
            let bytes = buffer.get(..count).unwrap_or_default();
            if to_client.send(frame(DATA, bytes)).await.is_err() {
                return;
            }
        }
        let _ = to_client.close().await;
    };
    tokio::select! {
        () = upload => {}
        () = download => {}
    }
}
