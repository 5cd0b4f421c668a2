//! Objects of the mesh from a server of MCP over xDS: Istio's protocol, by which a store of its objects is
//! subscribed to like any other xDS resource.
//!
//! Each type is asked for whole, and each answer is whole: what is not in it has gone. An object that can't
//! be read costs only itself, and is refused by name. While there is no server, what was last known stays.
//! `convert.rs` reads one object, `state.rs` is the protocol (pure), `client.rs` the stream.

mod client;
pub(super) mod convert;
mod state;

use std::path::PathBuf;

pub(super) use client::run;

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// `HOST:PORT`.
    pub address: String,
    /// How it is spoken to; `None` for plain text.
    pub tls: Option<McpTls>,
    /// As whom.
    pub node: McpNode,
}

/// How a server proves itself, and we to it. Files are read for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpTls {
    /// The CAs that its certificate must lead to, PEM.
    pub ca: PathBuf,
    /// Our certificate chain and its key, PEM.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that its certificate must be for; the host of the address where it isn't given.
    pub server_name: Option<String>,
}

/// What we call ourselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpNode {
    /// The system namespace.
    pub namespace: String,
    /// The DNS domain of services.
    pub domain: String,
}

/// Takes any bytes as what a server says: answers, each with its length before it as gRPC has it.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(mut bytes: &[u8]) -> bool {
    use prost::Message as _;

    use strait_proto::envoy::envoy::service::discovery::v3::DiscoveryResponse;

    let mut state = state::McpState::default();
    state.begin();
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        let [_, length @ ..] = *head;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let (message, rest) = rest.split_at(length.min(rest.len()));
        bytes = rest;
        let Ok(response) = DiscoveryResponse::decode(message) else { continue };
        let said = state.answer(&response, std::time::Instant::now());
        assert!(
            !matches!(said, state::McpOutcome::Yes(said) if said.response_nonce != response.nonce)
        );
    }
    state.settle();
    let _ = state.warnings();
    !state.objects().is_empty()
}
