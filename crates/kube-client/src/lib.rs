//! Reads one Kubernetes API server: how it is reached, and how its objects are listed and watched.
//!
//! A remote API server is not trusted: every answer has a deadline and a bound, redirects are not
//! followed, and where a name leads is checked on the address that is dialled. Knows nothing of
//! services or the mesh.
//!
//! [`ApiClient::read`] reads one kind: `watch.rs` moves bytes, `watch_state.rs` decides what to ask next
//! and when, `backoff.rs` for how long to wait, `served.rs` in which version, and `pool.rs` over which
//! connection. `lines.rs`, `json.rs` and `protobuf.rs` cut bytes into objects as they arrive, `object.rs`,
//! `text.rs` and `wire.rs` decode them, `envelope.rs` says what is cut out of both forms, `decode.rs` makes
//! one of these, and `list_builder.rs` holds a list until all of it has come.

mod access;
mod access_error;
mod account;
mod address;
mod backoff;
mod borrowed_text;
mod cluster_identity;
mod connect;
mod decode;
mod envelope;
mod error;
mod event;
mod heard;
mod json;
mod lines;
mod list_builder;
mod object;
mod pool;
mod probe;
mod protobuf;
mod request;
mod served;
#[cfg(test)]
mod tests;
mod text;
mod transport;
mod verify;
mod watch;
mod watch_state;
mod wire;

pub use access::{Access, ApiCredential, Loopback, Redacted};
pub use access_error::AccessError;
pub use account::ServerAccount;
pub(crate) use backoff::Backoff;
pub use borrowed_text::BorrowedText;
pub use cluster_identity::{
    ClusterIdentityCheck, ClusterIdentityProbe, cluster_uid, identity_check, look,
};
pub(crate) use connect::tcp_to_named;
pub use connect::{ApiClient, connector, transport_to};
#[cfg(any(test, fuzzing))]
pub(crate) use decode::read_objects;
pub use decode::{read_list, read_watch};
pub use envelope::Encoding;
pub(crate) use error::one_line;
pub use error::{ApiError, ApiStatus};
pub use event::{ReadLimits, WatchEvent};
pub use object::{
    Form, Gather, Identity, InvalidField, Keyed, Meta, NamespacedName, ObjectKind, ObjectMetadata,
    OwnedObject, OwnerReference, list, null_as_default,
};
pub use probe::Probed;
pub use request::Patch;
pub use text::{Moment, NumberOrName, Pairs, Raw};
pub use transport::Transport;
pub use watch::ListSelection;
pub use wire::{FieldValue, MalformedMessage, ProtobufMessage};
