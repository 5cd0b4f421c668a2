//! Tools for the tests of all crates.
#![allow(clippy::panic, reason = "a test fails by a panic")]

pub mod fuzz;

use std::path::Path;

/// The root of the repository, for corpora and golden files.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// How many rounds a test of random histories goes: `few`, or so many times that as `STRAIT_ROUNDS` says
/// (CONTRIBUTING.md).
pub fn rounds(few: u64) -> u64 {
    let times = std::env::var("STRAIT_ROUNDS").ok();
    few * times.map_or(1, |times| times.parse().expect("STRAIT_ROUNDS is a number"))
}
