//! Services of HashiCorp's Consul, read from its HTTP API: one shard for each datacentre.
//!
//! Each service is asked for by a blocking query of its own, and only what differs is reported, so a change costs what
//! changed, and a service that can't be read costs only itself. Whatever fails, what was last known stays. Owns what is
//! known of each datacentre; never writes to Consul.
//!
//! `address.rs` is the flag, `client.rs` one request, `cursor.rs` what the index of an answer means,
//! `catalog.rs` the forms of answers, `convert.rs` from instances to a service, `index.rs` a datacentre,
//! `datacentre.rs` and `watch.rs` the tasks.

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
