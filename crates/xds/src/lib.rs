//! The xDS protocol (ADS, Delta and SotW) as pure state machines.
//!
//! A [`session::Session`] is the protocol state of one stream: requests go in, and it decides which
//! resources to send next. `delta` and `sotw` are its two wire forms, `subscription` the
//! subscription to one type, `order` the order of types, `response` and `body` the encoded
//! messages, `secrets` SDS over the same stream. Invariants:
//!
//! - No I/O and no clock in the protocol: time and resources are passed in.
//! - Both forms agree on the final state of a client.
//! - The version of a resource is a hash of the content, equal on all replicas and after restarts.
//! - This crate does not know the mesh. [`resource::ResourceSource`] gives it the resources of a
//!   proxy.

#![forbid(unsafe_code)]

mod agent_roots;
pub mod answers;
pub mod audit;
mod delta;
mod form;
pub mod held_version;
mod order;
pub mod request;
mod request_limits;
pub mod session;
mod sotw;
mod subscription;
pub mod unknown_types;
mod watches;

pub mod body;
pub mod list;
pub mod names;
pub mod references;
pub mod resource;
mod resource_wire;
mod response;
mod source;
mod wire;

pub mod file_secret;
pub mod secrets;
mod served_hosts;
pub mod virtual_hosts;
