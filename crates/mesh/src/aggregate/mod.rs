//! One mesh out of many shards: what every source says, merged by hostname.
//!
//! Owns the shards and nothing else. Merging reads them and makes new values, it never changes what
//! a source sent, so that a shard that ends leaves no trace. The order is total and documented: the
//! config cluster first, then by provider, age and ID of the cluster, whatever was heard first.

mod assign;
mod claims;
mod elsewhere;
mod merge;
mod shards;

#[cfg(test)]
mod tests;

pub use assign::{AssignNetwork, AssignedEndpoints, Bar};
pub use claims::{AddressClaims, SameAddresses};
pub use merge::{Conflict, MergedService, ShardEndpoints};
pub use shards::{Aggregate, AggregateChanges};
