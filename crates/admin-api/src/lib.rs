//! The responses of the admin API as types: the server builds them, the command line reads them,
//! and the published JSON schema and the page's type declarations are generated from them.
//!
//! Each module has the name of a response. Invariants:
//!
//! - No logic: types, and the names of enumerated values. Rules about the values are in the server
//!   and in the commands.
//! - The names of JSON fields, and the order in which a response contains them, do not change
//!   within a version of the API. Fields are added, and are always optional for a reader.
//! - A reader ignores unknown fields, uses the default of a missing field, and accepts an unknown
//!   value of an enumeration as [`Other`](ClusterState::Other). So a command works with a server of
//!   an older or a newer release.
//! - Times are text in RFC 3339 format, in UTC. Versions of resources and digests are hexadecimal
//!   text. A cluster, network or namespace without a name is an empty text.

#![forbid(unsafe_code)]

#[macro_use]
mod open_enum;

mod access;
mod certificates;
mod cluster;
mod code;
mod config;
mod event;
mod explain;
mod explain_policy;
mod explain_route;
mod history;
mod hold;
mod mesh;
mod network;
mod object_name;
mod policy;
mod preview;
mod proxy;
mod push;
mod reach;
mod relay;
mod replica;
mod rollout;
mod service;
mod session;
mod source;
mod summary;
mod traffic;

pub use self::access::*;
pub use self::certificates::*;
pub use self::cluster::*;
pub use self::code::*;
pub use self::config::*;
pub use self::event::*;
pub use self::explain::*;
pub use self::explain_policy::*;
pub use self::explain_route::*;
pub use self::history::*;
pub use self::hold::*;
pub use self::mesh::*;
pub use self::network::*;
pub use self::object_name::*;
pub use self::policy::*;
pub use self::preview::*;
pub use self::proxy::*;
pub use self::push::*;
pub use self::reach::*;
pub use self::relay::*;
pub use self::replica::*;
pub use self::rollout::*;
pub use self::service::*;
pub use self::session::*;
pub use self::source::*;
pub use self::summary::*;
pub use self::traffic::*;

#[cfg(test)]
mod tests;
