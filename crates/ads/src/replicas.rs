//! Connections of the other replicas, which arrive on the port of proxies.
//!
//! A replica offers a dedicated ALPN protocol and proves its identity in the handshake. The port
//! only passes such connections on, so ADS never serves a replica and no proxy reaches its routes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use strait_base::descriptors::Seat;
use strait_identity::replica::{ReplicaAuthenticator, ReplicaStream};

/// Accepts connections of the other replicas.
#[derive(Debug, Clone)]
pub struct ReplicaPort {
    /// Authenticates the replicas.
    pub authenticator: Arc<ReplicaAuthenticator>,
    /// Receives the connections.
    pub accepted: mpsc::Sender<ReplicaConnection>,
}

/// An accepted connection of another replica.
#[derive(Debug)]
pub struct ReplicaConnection {
    /// The connection and the name of the replica.
    pub stream: ReplicaStream,
    /// The permits for the connection, released when it ends.
    pub room: (OwnedSemaphorePermit, Seat),
}
