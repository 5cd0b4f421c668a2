//! Networks: where things are, and by which gateways each network is entered.
//!
//! Owns the rule that names the network of an address, the set of gateways derived from services and
//! mesh networks, and the DNS answers behind gateway names. Never decides what a proxy gets: the view
//! does that, with what is here.

mod declared;
mod gateways;
mod names;
mod placement;
pub mod probes;
pub mod resolver;

pub use gateways::{Inputs, Networks, PendingGateway, ResolvedGateway};
pub use names::{ResolvedName, ResolvedNames};
pub use placement::{PlacedBy, network_of};
