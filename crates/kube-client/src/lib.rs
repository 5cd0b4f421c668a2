//! List and watch of one Kubernetes API server.
//!
//! [`ApiClient::read`] reads one kind of object: `watch.rs` moves bytes, `watch_state.rs` decides
//! what to request next and when, `backoff.rs` computes delays, `served.rs` chooses the version.
//! `pool.rs` owns the connections: `dial.rs` opens them, `tunnel.rs` through proxies, and `http2.rs`
//! sends requests over them. `lines.rs`, `json.rs` and `protobuf.rs` split the byte stream into
//! objects; `object.rs`, `text.rs` and `wire.rs` decode them. Invariants:
//!
//! - A remote API server is not trusted: every response has a deadline and a size limit, redirects
//!   are not followed, and address checks apply to the address that is dialled, after DNS
//!   resolution. Only a proxy that the operator defines resolves names itself.
//! - This crate does not know services or the mesh.

#![forbid(unsafe_code)]

mod access;
mod access_error;
mod account;
mod address;
mod backoff;
mod body;
mod borrowed_text;
mod cluster_identity;
mod connect;
mod connect_proxy;
mod credential;
mod decode;
mod dial;
mod envelope;
mod error;
mod event;
mod forward;
mod http2;
mod issued_access;
mod json;
mod last_response;
mod lines;
mod list_builder;
mod object;
mod pem;
mod pool;
mod probe;
mod protobuf;
mod redacted;
mod request;
mod rights;
mod served;
mod server_dial;
mod socks;
pub mod testing;
#[cfg(test)]
mod tests;
mod text;
mod transport;
mod tunnel;
mod verify;
mod watch;
mod watch_state;
mod wire;

pub use access::{Access, Loopback};
pub use access_error::{AccessError, CERTIFICATE_VERSION_1};
pub use account::ServerAccount;
pub use backoff::Backoff;
pub use body::ResponseBody;
pub use borrowed_text::BorrowedText;
pub use cluster_identity::{
    ClusterIdentityCheck, ClusterIdentityProbe, cluster_uid, identity_check, kube_system_uid, look,
    principal,
};
pub use connect::tcp_to_named;
pub use connect::{ApiClient, connector, transport_to};
pub use connect_proxy::ConnectProxy;
pub use credential::{ApiCredential, CredentialFeed, IssuedCredential};
pub use decode::read_objects;
pub use decode::{read_list, read_watch};
pub use envelope::Encoding;
pub use error::one_line;
pub use error::{ApiError, ApiStatus};
pub use event::{ReadLimits, WatchEvent};
pub use forward::ForwardedResponse;
pub use object::{
    Form, Gather, Identity, InvalidField, Keyed, Meta, NamespacedName, ObjectKind, ObjectMetadata,
    OwnedObject, OwnerReference, list, null_as_default,
};
pub use pem::{CaBundle, private_key};
pub use probe::Probed;
pub use redacted::Redacted;
pub use request::{Patch, percent_encode, retry_after, server_time};
pub use rights::OwnRights;
pub use text::{Moment, NumberOrName, Pairs, Raw};
pub use transport::{CarriedResponse, Carrier, StreamPermit, Transport};
pub use watch::ListSelection;
pub use wire::{FieldValue, MalformedMessage, ProtobufMessage};
