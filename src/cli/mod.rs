//! The commands.

pub mod certs;
pub mod duration;
