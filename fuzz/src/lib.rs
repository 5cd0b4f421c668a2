//! What the fuzz targets share.

use rand::RngCore;

/// The fuzzer's bytes as a source of random numbers; zeros once they are used up. So what the fuzzer
/// mutates are the decisions of a generator.
pub struct Numbers<'a>(pub &'a [u8]);

impl RngCore for Numbers<'_> {
    fn next_u32(&mut self) -> u32 {
        let mut number = [0; 4];
        self.fill_bytes(&mut number);
        u32::from_le_bytes(number)
    }

    fn next_u64(&mut self) -> u64 {
        let mut number = [0; 8];
        self.fill_bytes(&mut number);
        u64::from_le_bytes(number)
    }

    fn fill_bytes(&mut self, to: &mut [u8]) {
        let count = to.len().min(self.0.len());
        let (now, later) = self.0.split_at(count);
        to[..count].copy_from_slice(now);
        to[count..].fill(0);
        self.0 = later;
    }
}

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
