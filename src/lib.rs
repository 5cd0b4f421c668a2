//! Strait: one control plane for Envoy proxies that live in many Kubernetes clusters.
//!
//! ```text
//! Secret (kubeconfig) ─► clusters ─► one registry per cluster ─► RegistryUpdate
//!                                                                     │
//! mesh config, mesh networks, gateway DNS ─► Event ─► push::event_loop ─► Aggregate
//!                                                                     │
//!                                       Arc<PushContext> + what changed
//!                                                                     │
//!                       xds::session per stream ◄── push::interest ───┤
//!                                 │                                   └─► explain, admin
//!                                 ▼
//!                          mTLS gRPC ─► Envoy
//! ```
//!
//! ARCHITECTURE.md is the longer picture.

#![forbid(unsafe_code)]

pub mod access;
pub mod address;
pub mod admin;
mod admission;
pub mod aggregate;
pub mod apiserver;
pub mod cli;
pub mod clusters;
pub mod codes;
pub mod config;
pub mod descriptors;
pub mod durable;
pub mod duration;
pub mod explain;
pub mod folder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hash;
pub mod history;
pub mod hold;
pub mod identity;
pub mod inject;
pub mod jwks;
pub mod lkg;
mod lock;
pub mod mass_deletion;
pub mod memory;
pub mod mesh;
pub mod metrics;
pub mod model;
pub mod network;
pub mod policy;
pub mod process;
pub mod push;
pub mod registry;
pub mod rollout;
pub mod server;
pub mod sources;
pub mod store;
pub mod task;
pub mod timeline;
pub mod traffic;
mod unread;
pub mod validation;
pub mod xds;

#[cfg(test)]
mod fixtures;
