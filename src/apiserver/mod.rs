//! Reads one Kubernetes API server: how it is reached, and how its objects are listed and watched.
//!
//! A remote API server is not trusted: every answer has a deadline and a bound, redirects are not
//! followed, and where a name leads is checked on the address that is dialled. Knows nothing of
//! services or the mesh.
//!
//! [`Client::watch`] is the heart: `watch.rs` moves bytes, `course.rs` decides what to ask next and
//! when, `backoff.rs` for how long to wait, `lines.rs` and `object.rs` turn bytes into objects.

mod access;
mod address;
mod backoff;
mod connect;
mod course;
mod error;
mod lines;
mod object;
mod probe;
mod request;
#[cfg(test)]
mod tests;
mod verify;
mod watch;

pub use access::{Access, Credential, Loopback, Redacted};
pub use connect::{Client, ConnectError, connector};
pub use error::Error;
pub use object::{Key, Metadata, Object, Odd, null_as_default};
pub use probe::Probed;
pub use request::Patch;
pub use watch::{Event, Limits, Selection};
