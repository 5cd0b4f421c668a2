//! The meaning of configuration objects: traffic configuration, access policies and service
//! entries.
//!
//! Each part is an index to which objects are applied one by one, and an immutable value that the
//! mesh snapshot contains. Invariants:
//!
//! - Pure: no I/O, no tasks, no clock. The result of a history of objects equals the result of its
//!   last state.
//! - The only types of Envoy are the patches of EnvoyFilter, which are validated against Envoy's
//!   schema.
//! - An object that cannot be read keeps its last valid version, and never widens access.

#![forbid(unsafe_code)]

pub mod access;
pub mod bounds;
pub mod budget;
pub mod service_entry;
pub mod traffic;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod testing;

#[cfg(test)]
mod tests;
