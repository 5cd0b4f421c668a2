//! Networks: the network of each endpoint and proxy, and the gateways of each network.
//!
//! This module owns the rule that assigns a network to an address, the gateways derived from
//! services and mesh networks, and the DNS responses for gateway names. It does not select the
//! endpoints of a proxy; `push::view` does, based on this module's data.

mod declared;
mod gateways;
mod names;
mod placement;
pub mod probes;
pub mod resolver;

pub use gateways::{Inputs, Networks, PendingCause, PendingGateway, ResolvedGateway};
pub use names::{ResolvedName, ResolvedNames};
pub use placement::{PlacedBy, network_of};
