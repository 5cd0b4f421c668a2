//! Shared code of the fuzz targets.

pub use strait_base::testing::fuzz::Numbers;
use strait_base::testing::fuzz::Target;

/// Defines a program that passes the fuzzer's bytes to the target with this name in its crate's
/// `fuzz::TARGETS`.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            static TARGET: std::sync::LazyLock<fn(&[u8]) -> bool> =
                std::sync::LazyLock::new(|| $crate::named($name));
            let _ = TARGET(bytes);
        });
    };
}

/// Iterates over the targets of all crates.
fn targets() -> impl Iterator<Item = &'static Target> {
    let crates = [
        strait_http2::fuzz::TARGETS,
        strait_model::fuzz::TARGETS,
        strait_identity::fuzz::TARGETS,
        strait_sources::fuzz::TARGETS,
        strait_rules::fuzz::TARGETS,
        strait_lkg::fuzz::TARGETS,
        strait_ads::fuzz::TARGETS,
        strait_injection::fuzz::TARGETS,
        strait::cli::fuzz::TARGETS,
    ];
    crates.into_iter().flatten()
}

/// Returns the target with this name.
///
/// # Panics
/// If no target has this name.
pub fn named(name: &str) -> fn(&[u8]) -> bool {
    let found = targets().find(|(one, _)| *one == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
