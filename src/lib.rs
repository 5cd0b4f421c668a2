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


pub mod model;
pub mod task;
pub mod codes;
pub mod apiserver;
pub mod store;
pub mod registry;
pub mod clusters;
pub mod mesh;
pub mod network;
pub mod aggregate;
pub mod push;
pub mod identity;
pub mod xds;
pub mod explain;
pub mod cli;

#[cfg(test)]
mod fixtures;
