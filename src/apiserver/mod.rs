//! Reads one Kubernetes API server: how it is reached, and how its objects are listed and watched.
//!
//! A remote API server is not trusted: every answer has a deadline and a bound, redirects are not
//! followed, and where a name leads is checked on the address that is dialled. Knows nothing of
//! services or the mesh.
//!
//! [`Client::read`] is the heart: `watch.rs` moves bytes, `course.rs` decides what to ask next and
//! when, `backoff.rs` for how long to wait, `served.rs` in which version. `lines.rs`, `json.rs` and `protobuf.rs` cut bytes into
//! objects as they arrive, `object.rs`, `text.rs` and `wire.rs` decode them, `decode.rs` makes one
//! of both forms, and `gathered.rs` holds a list until all of it has come.

mod access;
mod account;
mod address;
mod backoff;
mod connect;
mod course;
mod decode;
mod error;
mod gathered;
mod json;
mod lines;
mod object;
mod probe;
mod protobuf;
mod request;
mod sameness;
mod served;
#[cfg(test)]
mod tests;
mod text;
mod verify;
mod watch;
mod wire;

pub use access::{Access, Credential, Loopback, Redacted};
pub use account::Account;
pub(crate) use backoff::Backoff;
pub(crate) use connect::tcp_to_named;
pub use connect::{Client, ConnectError, Transport, connector, transport_to};
#[cfg(any(test, fuzzing))]
pub(crate) use decode::read_objects;
pub use decode::{Encoding, read_list, read_watch};
pub use error::Error;
pub(crate) use error::one_line;
pub use object::{
    Form, Gather, Identity, Key, Keyed, Kind, Meta, Metadata, Object, Odd, Owner, list,
    null_as_default,
};
pub use probe::Probed;
pub use request::Patch;
pub use sameness::{Look, Sameness, cluster_uid, look, sameness};
pub use text::{Moment, NumberOrName, Pairs, Raw, Text};
pub use watch::{Event, Limits, Selection};
pub use wire::{Malformed, Message, Value};
