//! The ADS server: connections over TLS, admission of proxies, budgets, and one task per stream.
//!
//! `server` accepts connections, `admission` decides which proxy a stream belongs to and in which network it is,
//! `stream` drives one [`strait_xds::session::Session`], `connections` is the table of connected proxies,
//! `audit` verifies that each of them holds the current resources. Invariants:
//!
//! - The identity of a proxy comes from its certificate or token. Node metadata is a claim that is checked.
//! - Every queue and every table is bounded per identity. No client can make the server use unbounded memory.
//! - A stream task that panics ends that stream only.
//! - This crate decides no configuration: `strait_envoy` generates it.

#![forbid(unsafe_code)]

mod audit;
mod connection;
mod grpc;
mod handshakes;
mod health;
pub mod offline;
pub mod server;
mod sync_limiter;

pub mod admission;
pub mod budgets;
pub mod node;

mod pace;
pub mod relays;
mod shared;
mod stream;

pub mod connections;
pub mod debug_types;
pub mod preview;
mod refused_proxies;
pub mod replicas;
mod stats;

#[cfg(any(test, fuzzing))]
pub mod fuzz;

pub use refused_proxies::{RefusedGroup, RefusedProxies};
pub use stats::{Counter, Exemplar, Histogram, Stats};
