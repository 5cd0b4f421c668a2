//! Services of HashiCorp's Consul, read from its HTTP API: one shard for each datacentre.
//!
//! Each service has a dedicated blocking query, and only differences are reported, so that the cost
//! of a change depends on its size, and a service that cannot be read does not affect others. On
//! every failure, the last known state stays. Owns the state of each datacentre; never writes to
//! Consul.
//!
//! `address.rs` parses the flag, `client.rs` sends one request, `cursor.rs` interprets the index of
//! a response, `catalog.rs` has the forms of responses, `convert.rs` converts instances to a
//! service, `index.rs` is the state of a datacentre, `datacentre.rs` and `watch.rs` are the tasks.

mod address;
mod catalog;
mod client;
mod convert;
mod cursor;
mod datacentre;
mod index;
mod watch;

#[cfg(test)]
mod tests;

pub use address::{AddressError, ConsulAddress};
pub use watch::{ConsulConfig, start};
