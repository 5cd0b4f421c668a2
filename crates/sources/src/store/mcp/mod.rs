//! Objects of the mesh from a server of MCP over xDS: Istio's protocol for subscribing to a store
//! of Istio objects like to any other xDS resource.
//!
//! Each type is requested completely, and each response is complete: objects that it lacks are
//! deleted. An unreadable object does not affect the others, and is rejected by name. While the
//! server is unreachable, the last known objects stay. `convert.rs` converts one object, `state.rs`
//! is the protocol (pure), `client.rs` the stream.

mod client;
pub(super) mod convert;
mod state;

use std::path::PathBuf;

pub(super) use client::run;

/// An MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// `HOST:PORT`.
    pub address: String,
    /// The TLS settings; `None` for plain text.
    pub tls: Option<McpTls>,
    /// The identity of this client.
    pub node: McpNode,
}

/// The TLS settings. Files are read for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpTls {
    /// The PEM file with the CAs that its certificate must chain to.
    pub ca: PathBuf,
    /// The PEM files with the client certificate chain and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that its certificate must be valid for; by default, the host of the address.
    pub server_name: Option<String>,
}

/// The identity of this client in the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpNode {
    /// The system namespace.
    pub namespace: String,
    /// The DNS domain of services.
    pub domain: String,
}

/// Parses any bytes as responses of a server, each prefixed with its length as in gRPC.
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
        let outcome = state.answer(&response, std::time::Instant::now());
        assert!(
            !matches!(outcome, state::McpOutcome::Yes(reply) if reply.response_nonce != response.nonce)
        );
    }
    state.settle();
    let _ = state.warnings();
    !state.objects().is_empty()
}
