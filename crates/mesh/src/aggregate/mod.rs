//! The merged mesh: the records of all shards, merged by hostname.
//!
//! This module owns the shards. Merging creates new values and never changes the values that a
//! source sent, so a removed shard leaves no trace. The merging order is total and documented: the
//! config cluster first, then by provider, age and ID of the cluster. It does not depend on the
//! order of arrival. Under a name of the set, the oldest export comes first instead.

mod assign;
mod claims;
mod elsewhere;
mod export_order;
mod merge;
mod port_union;
mod shards;

#[cfg(test)]
mod tests;

pub use assign::{AssignNetwork, AssignedEndpoints, Bar};
pub use claims::{AddressClaims, SameAddresses};
pub use export_order::ExportOrder;
pub use merge::{MergedService, ShardEndpoints};
pub use port_union::Conflict;
pub use shards::{Aggregate, AggregateChanges};
