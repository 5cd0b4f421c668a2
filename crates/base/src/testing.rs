//! Tools for the tests of all crates.
#![allow(clippy::panic, reason = "a test fails by a panic")]

pub mod fuzz;

use std::ops::Range;
use std::path::Path;

/// Returns the root of the repository, for corpora and golden files.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the number of rounds of a test with random histories: `few`, times `STRAIT_ROUNDS` if
/// set (CONTRIBUTING.md).
///
/// # Panics
/// Panics if `STRAIT_ROUNDS` is not a number.
pub fn rounds(few: u64) -> u64 {
    few * number_from_environment("STRAIT_ROUNDS", 1)
}

/// Returns the seeds of a test with random histories: [`rounds`] of `few`, starting at
/// `STRAIT_SEED` or 0.
///
/// # Panics
/// Panics if `STRAIT_SEED` or `STRAIT_ROUNDS` is not a number.
pub fn seeds(few: u64) -> Range<u64> {
    let first = number_from_environment("STRAIT_SEED", 0);
    first..first + rounds(few)
}

fn number_from_environment(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}
