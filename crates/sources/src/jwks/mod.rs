//! Keys of token issuers, fetched from the `jwksUri` of RequestAuthentications or found through the
//! issuer's discovery document.
//!
//! One task fetches, independent of pushes. Its last valid result is stored while policies name the
//! location, also across restarts. The author of a policy chooses the address, so dialling is
//! restricted (`guard.rs`): no loopback, link-local or metadata address, no other scheme, few
//! redirects, a limited body. How tokens are treated is decided by `access`, never here.

mod book;
mod client;
mod fetcher;
mod guard;
mod kept;
mod requests;
mod schedule;
#[cfg(test)]
mod tests;

pub use self::client::{KeyClient, KeyFetchError, check_roots};
pub use self::fetcher::{FetcherInputs, run};
pub use self::guard::DialRules;
pub use self::requests::KeyRequests;
