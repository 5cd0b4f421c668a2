//! Aggregated discovery (ADS) over mTLS: what proxies hold, and how they are kept up to date.
//!
//! The only module that knows Envoy's types. Generators turn the push context into encoded
//! resources; a session is the pure protocol state of one stream; the server moves bytes.

pub mod client;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod generate;
pub mod list;
pub mod names;
pub mod request;
pub mod resource;

mod answers;
mod delta;
mod rope;
pub mod session;
mod sotw;
mod subscription;
mod unserved;
mod wire;

pub mod admission;
pub mod budgets;
mod connection;
pub mod connections;
mod grpc;
mod handshakes;
mod health;
pub mod http2;
mod lane;
pub mod node;
pub mod server;
mod stats;
mod stream;

pub use stats::{Counter, Histogram, Stats};
