//! Services and endpoints that ServiceEntries and WorkloadEntries describe, whatever store they are in.
//!
//! Owns what was last good of each object, and makes one shard of them all, which belongs to no
//! cluster: an entry says what is true for the whole mesh. Never finds anything itself: it is handed
//! all objects each time they change, finds what differs, and makes again the hosts that it touches.

mod addresses;
mod convert;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod host;
mod index;
mod join;
mod last_read;
mod problem;
mod resolution;

#[cfg(test)]
mod tests;

pub use addresses::is_given;
pub use convert::Fault;
pub use index::EntryIndex;
pub use join::{Selections, VmWorkload, VmWorkloads, vms, workloads_of};
pub use problem::EntryProblem;
