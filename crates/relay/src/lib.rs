//! Relays: members whose API server the hub cannot dial.
//!
//! A relay runs in the member cluster and dials the hub. After the TLS handshake the roles swap: the hub sends ordinary
//! Kubernetes requests over the connection, the relay compares each with a closed list, adds its own credential and
//! forwards it to its API server. The hub stores no credential of the member.
//!
//! [`wire`] is the protocol between both, [`hub`] the side of the hub, [`member`] the side in the member cluster.
//! Invariants:
//!
//! - The hub reads a relayed member with the same code as any other member. This crate moves requests and responses and
//!   never decodes a Kubernetes object.
//! - A relay forwards only requests on the compiled list. Flags widen the list; requests never do.
//! - A relay is as little trusted as a remote API server.

#![forbid(unsafe_code)]

pub mod hub;
pub mod member;
pub mod wire;
