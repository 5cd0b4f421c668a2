//! From source updates to notified streams: one event loop owns the mesh, builds an immutable
//! context for each version, and wakes the streams that a change affects.

mod access_state;
pub mod addresses;
pub mod aliases;
mod assignment;
pub mod audience;
pub mod authorizers;
pub mod context;
mod debounce;
pub mod dns_hosts;
mod effect;
pub mod event_loop;
pub mod imports;
pub mod ingress;
mod joins;
mod locality_priority;
mod locality_rule;
mod loop_counters;
pub mod lost_endpoints;
pub mod named_pods;
mod numbers;
pub mod proxy;
pub mod reach;
mod reason;
pub mod remote_pods;
pub mod scope;
pub mod shared;
pub mod subscription_index;
pub mod subset;
mod telemetry_origins;
mod traffic_weights;
pub mod view;
mod view_class;
mod view_key;
mod weights;
pub mod withholding;
mod workload_index;

#[cfg(test)]
mod tests;

pub use context::{FixedSettings, PushContext, Whereabouts};
