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
mod asked;
mod body;
pub mod debug_types;
mod delta;
mod file_secret;
mod form;
mod held_version;
mod order;
mod resource_wire;
mod response;
pub mod secrets;
mod served_hosts;
pub mod session;
mod shared;
mod sotw;
mod source;
mod subscription;
mod unknown_types;
mod virtual_hosts;
mod wire;

pub mod admission;
mod agent_roots;
pub mod budgets;
mod connection;
pub mod connections;
mod grpc;
mod handshakes;
pub mod heads;
mod health;
pub mod node;
mod pace;
pub mod preview;
pub mod server;
mod stats;
mod stream;
mod sync_limiter;

pub use stats::{Counter, Exemplar, Histogram, Stats};
