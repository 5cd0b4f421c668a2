//! Networks: which one an address is in, and by which gateways each is entered.
//!
//! [`Networks`] and [`network_of`] are pure. Only the resolver does I/O: it turns gateway host names
//! into addresses, as a task of its own that nothing waits for.

mod gateways;
mod placement;
pub mod resolver;

pub use gateways::{Networks, Pending, ResolvedGateway};
pub use placement::{PlacedBy, network_of};
pub use resolver::{ResolvedName, ResolvedNames};
