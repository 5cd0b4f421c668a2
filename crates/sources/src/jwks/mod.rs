//! Keys of token issuers, fetched where RequestAuthentications say that they are (`jwksUri`), or found by asking the issuer.
//!
//! One task fetches, off the way of every push; what it has last found that makes sense is kept for as long as it is asked
//! for, over a restart too. Whoever writes a policy names the address, so what is dialled is guarded (`guard.rs`): no
//! loopback, link-local or metadata address, no other scheme, few redirects, a bounded body. Never decides what becomes of
//! tokens: `access` does.

mod book;
mod client;
mod fetcher;
mod guard;
mod kept;
mod schedule;
#[cfg(test)]
mod tests;

pub use self::client::{KeyClient, KeyFetchError, check_roots};
pub use self::fetcher::{FetcherInputs, run};
pub use self::guard::DialRules;
