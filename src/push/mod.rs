//! From what the sources say to what the proxies need to hear: one event loop owns the mesh, makes
//! an immutable context of each version, and wakes the streams that care about what changed.

pub mod addresses;
pub mod context;
mod debounce;
pub mod event_loop;
pub mod interest;
mod joins;
mod near;
mod origins;
pub mod proxy;
mod reason;
pub mod scope;
pub mod shared;
mod shares;
mod vantage;
pub mod view;
mod weights;

#[cfg(test)]
mod tests;

pub use context::{PushContext, Settings, Whereabouts};
