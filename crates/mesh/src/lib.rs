//! The mesh: services of all sources merged by hostname, networks and their gateways, and immutable
//! snapshots of both.
//!
//! [`aggregate`] merges the shards of all sources, [`network`] finds gateways, [`push`] builds a
//! snapshot ([`push::PushContext`]) for each version and wakes the streams that a change affects.
//! [`push::view`] decides what one proxy may reach, and why. Invariants:
//!
//! - Only the event loop ([`push::event_loop`]) changes the mesh; all other code sees an immutable
//!   snapshot.
//! - An endpoint in another network without a usable gateway is never visible to a proxy.
//! - Equal inputs give equal snapshots, in any order of arrival.
//! - This crate uses no type of Envoy and no name of a source.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod network;
pub mod push;

pub mod hold;
pub mod rollout;

pub mod history;
pub mod timeline;

pub mod testing;
