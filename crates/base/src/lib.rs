//! Tools without knowledge of meshes: supervised tasks, error codes, durable files, addresses, limits of the process.
//!
//! Every other crate may use this one, and it uses none of them. Invariants:
//!
//! - A task is started through [`task::Supervisor`] only, so that it has a name and its panic is counted.
//! - A file written through [`durable`] is either complete or absent, also after a power failure.
//! - An error code ([`codes`]) never changes its meaning; its page states the next step.

#![forbid(unsafe_code)]

pub mod codes;
pub mod cpu;

pub mod hash;
pub mod hex;
pub mod latest;
pub mod lock;
pub mod signal;
pub mod task;
pub mod wake;
pub mod watchdog;

pub mod address;
pub mod admission;
pub mod bounded;
pub mod dns_name;
pub mod duration;
pub mod names;
pub mod time;
pub mod unread;
pub mod verifying_keys;

pub mod durable;
pub mod folder;
pub mod mass_deletion;
pub mod source_status;

pub mod descriptors;
pub mod memory;
pub mod pem;
pub mod process;

pub mod testing;
