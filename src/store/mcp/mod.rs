//! Objects of the mesh from a server of MCP over xDS: Istio's protocol, by which a store of its objects is
//! subscribed to like any other xDS resource.
//!
//! Each type is asked for whole, and each answer is whole: what is not in it has gone. An object that can't
//! be read costs only itself, and is refused by name. While there is no server, what was last known stays.
//! `convert.rs` reads one object, `state.rs` is the protocol (pure), `client.rs` the stream.

mod client;
mod convert;
mod state;

use std::path::PathBuf;

pub(super) use client::run;

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `HOST:PORT`.
    pub address: String,
    /// How it is spoken to; `None` for plain text.
    pub tls: Option<Tls>,
    /// As whom.
    pub node: Node,
}

/// How a server proves itself, and we to it. Files are read for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The CAs that its certificate must lead to, PEM.
    pub ca: PathBuf,
    /// Our certificate chain and its key, PEM.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that its certificate must be for; the host of the address where it isn't given.
    pub server_name: Option<String>,
}

/// What we call ourselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The system namespace.
    pub namespace: String,
    /// The DNS domain of services.
    pub domain: String,
}
