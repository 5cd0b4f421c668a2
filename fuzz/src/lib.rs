//! What the fuzz targets share.

pub use strait::fuzz::Numbers;

/// A program that gives the fuzzer's bytes to the target of that name in `strait::fuzz::TARGETS`.
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

/// The target of that name.
///
/// # Panics
/// There is none.
pub fn named(name: &str) -> fn(&[u8]) -> bool {
    let found = strait::fuzz::TARGETS.iter().find(|(one, _)| *one == name);
    found.unwrap_or_else(|| panic!("no target {name}")).1
}
