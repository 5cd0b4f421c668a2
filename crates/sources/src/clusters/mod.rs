//! The member clusters: from a kubeconfig in a Secret to a running registry, and to its removal.
//!
//! Owns the set of clusters and their tasks. A cluster that is down, slow, forbidden or invalid
//! does not affect any other. Never reads a member's objects: its registry does.

pub mod callers;
mod credential_status;
pub mod credentials;
pub mod dns_endpoints;
pub mod events;
mod flapping;
pub mod formats;
mod guard;
pub mod heap;
pub mod identity;
pub mod kubeconfig;
mod outdated_status;
pub mod plan;
pub mod published_profiles;
pub mod reconciler;
mod remembered;
pub mod renewal;
mod resolve;
pub mod secret;
pub mod status;
pub mod statuses;
pub mod writer;

pub use remembered::RememberedMember;

#[cfg(test)]
mod tests;
