//! Services and endpoints that ServiceEntries and WorkloadEntries define, in any store.
//!
//! The index keeps the last valid version of each object and builds one shard from all of them. The
//! shard belongs to no cluster, because an entry applies to the whole mesh. The caller passes all
//! objects after each change; the index finds the differences and rebuilds the affected hosts.

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
pub use join::{Selections, VmWorkload, VmWorkloads, selecting_services, vms};
pub use problem::EntryProblem;
