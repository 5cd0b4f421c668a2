//! Sources: everything that the mesh is read from.
//!
//! [`clusters`] turns Secrets into members and runs one registry per member; [`registry`] turns the objects of a cluster or
//! of Consul into shards; [`store`] reads configuration objects from API servers, directories and MCP over xDS; [`jwks`]
//! fetches the keys of token issuers; [`members`] reads the operator file of member clusters; the two watchers follow mesh config and policy. Invariants:
//!
//! - No registry uses another registry. Each sends full values of its own shard.
//! - A kubeconfig is data: it cannot run a program, read a file or disable TLS verification.
//! - An unreachable source keeps its last state. A sudden loss of most entries is read twice before it applies.
//! - This crate never decides the configuration of a proxy.

#![forbid(unsafe_code)]

pub mod clusters;
pub mod exec;
pub mod jwks;
pub mod lifetime;
pub mod members;
pub mod registry;
pub mod store;

pub mod mesh_config_watch;
pub mod policy_watch;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
