//! A fake of the used part of Consul's API, with faults on demand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use strait_base::task::Supervisor;

/// The fault of the fake's responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Accepts requests and never responds.
    Hang,
    /// Status 500.
    Fail,
    /// Status 403, as for an unknown token.
    Deny,
    /// Closes the connection in the middle of a response.
    Truncate,
    /// Never stops sending.
    Endless,
    /// Complete responses that are not JSON.
    Nonsense,
    /// Omits everything, as for a token without rights.
    Filter,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) index: u64,
    pub(super) datacentres: Vec<String>,
    /// Instances by service.
    pub(super) services: BTreeMap<String, Vec<Value>>,
    pub(super) fault: Fault,
    /// The only path that the fault applies to; empty for all.
    pub(super) only: String,
    pub(super) requests: usize,
    pub(super) token: String,
}

pub(super) struct FakeConsul {
    pub(super) address: SocketAddr,
    /// Its certificate, if it uses TLS.
    pub(super) certificate: Option<String>,
    pub(super) state: Arc<watch::Sender<State>>,
}

impl FakeConsul {
    pub(super) async fn start(tasks: &Supervisor, tls: bool) -> Self {
        let (acceptor, certificate) = if tls { with_tls() } else { (None, None) };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(watch::Sender::new(State {
            index: 10,
            datacentres: vec!["dc1".into()],
            services: BTreeMap::new(),
            fault: Fault::None,
            only: String::new(),
            requests: 0,
            token: String::new(),
        }));
        let (shared, connections) = (Arc::clone(&state), tasks.clone());
        tasks.spawn("fake consul", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let acceptor = acceptor.clone();
                connections.spawn("fake connection", async move {
                    let _ = match acceptor {
                        None => serve(stream, state).await,
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => serve(stream, state).await,
                            Err(error) => Err(error),
                        },
                    };
                });
            }
        });
        Self { address, certificate, state }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(|state| {
            state.index += 1;
            change(state);
        });
    }

    pub(super) fn set(&self, service: &str, instances: Vec<Value>) {
        self.change(|state| {
            state.services.insert(service.to_owned(), instances);
        });
    }

    pub(super) fn fault(&self, fault: Fault, only: &str) {
        self.change(|state| {
            state.fault = fault;
            state.only = only.to_owned();
        });
    }

    pub(super) fn requests(&self) -> usize {
        self.state.borrow().requests
    }
}

/// Creates a passing instance.
pub(super) fn instance(id: &str, address: &str, port: u16) -> Value {
    json!({
        "Node": {"Node": "n1", "Address": "10.9.9.9", "Datacenter": "dc1", "Meta": null},
        "Service": {"ID": id, "Service": "web", "Tags": [], "Address": address, "Port": port,
                    "Meta": null, "Weights": {"Passing": 1, "Warning": 1}},
        "Checks": [{"CheckID": "serfHealth", "Status": "passing"}],
    })
}

/// Creates a self-signed certificate for 127.0.0.1, and an acceptor that uses it.
fn with_tls() -> (Option<TlsAcceptor>, Option<String>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a pair");
    (Some(TlsAcceptor::from(Arc::new(config))), Some(made.cert.pem()))
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    state: Arc<watch::Sender<State>>,
) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return Ok(()),
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        state.send_if_modified(|state| {
            state.requests += 1;
            let token = head.lines().find_map(|line| line.strip_prefix("x-consul-token: "));
            state.token = token.unwrap_or_default().to_owned();
            false
        });
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let option = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let mut receiver = state.subscribe();
        if let Some(index) = option("index").and_then(|text| text.parse::<u64>().ok()) {
            let wait = option("wait").unwrap_or_default();
            let wait = wait.trim_end_matches("ms").parse().unwrap_or(0);
            let newer = receiver.wait_for(|state| state.index != index);
            let _ = tokio::time::timeout(Duration::from_millis(wait), newer).await;
        }
        let now = state.borrow().clone();
        let hit = now.only.is_empty() || path.ends_with(&now.only);
        let fault = if hit { now.fault } else { Fault::None };
        let name = path.rsplit('/').next().unwrap_or_default();
        let body = match path {
            "/v1/status/leader" => json!("127.0.0.1:8300"),
            "/v1/catalog/datacenters" => json!(now.datacentres),
            "/v1/catalog/services" if fault == Fault::Filter => json!({}),
            "/v1/catalog/services" => {
                now.services.keys().map(|name| (name.clone(), json!([]))).collect()
            }
            _ if fault == Fault::Filter => json!([]),
            _ => json!(now.services.get(name).cloned().unwrap_or_default()),
        };
        let body = body.to_string();
        let status = match fault {
            Fault::Hang => std::future::pending().await,
            Fault::Fail => "500 Internal Server Error",
            Fault::Deny => "403 Forbidden",
            _ => "200 OK",
        };
        let length = match fault {
            Fault::Endless => usize::MAX >> 1,
            Fault::Truncate => body.len() + 100,
            _ => body.len(),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nx-consul-index: {}\r\n\r\n",
            now.index
        );
        stream.write_all(head.as_bytes()).await?;
        match fault {
            Fault::Truncate => {
                stream.write_all(body.as_bytes()).await?;
                return Ok(());
            }
            Fault::Endless => loop {
                stream.write_all(&[b' '; 65_536]).await?;
            },
            Fault::Nonsense => stream.write_all(&vec![b'<'; body.len()]).await?,
            _ => stream.write_all(body.as_bytes()).await?,
        }
    }
}
