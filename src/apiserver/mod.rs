//! Reads one Kubernetes API server: how it is reached, and how its objects are listed and watched.
//!
//! A remote API server is not trusted: every answer has a deadline and a bound, redirects are not
//! followed, and where a name leads is checked on the address that is dialled. Knows nothing of
//! services or the mesh.

mod access;

pub use access::{Access, Credential, Loopback, Redacted};
