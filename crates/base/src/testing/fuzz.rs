//! Runs fuzz targets over their corpora in ordinary tests.
//!
//! A target is a function that takes any bytes and returns whether it could parse any of them. It
//! must neither panic nor hang, and asserts the invariants of everything it parsed. A crate lists
//! its targets in its module `fuzz`; `fuzz/` builds a program for each, and
//! `tests/corpus/fuzz/NAME` is the corpus of target NAME.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::{repository, rounds};

/// The name of a corpus and the target that parses it.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// Number of mutations of each file of a corpus.
const MUTATIONS: u64 = 25;
/// Maximum time for one input on any machine: external input must not keep the process busy.
const RUN_MAX: Duration = Duration::from_secs(10);

/// Provides the fuzzer's bytes, followed by zeros, as random numbers, so that the fuzzer mutates
/// the decisions of a generator.
#[derive(Debug)]
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

/// Returns the directory of a target's corpus.
pub fn corpus(name: &str) -> PathBuf {
    repository().join("tests/corpus/fuzz").join(name)
}

/// Returns the files of a corpus with their paths.
fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("readable");
        (path, bytes)
    };
    files.into_iter().map(read).collect()
}

/// Runs each target on its corpus and on mutations of it.
///
/// # Panics
/// Panics if a target panics, takes too long, or parses no file of the corpus.
pub fn check_targets(targets: &[Target]) {
    for (name, target) in targets {
        let seeds = seeds(name);
        let mut understood = 0;
        for (at, (path, bytes)) in seeds.iter().enumerate() {
            understood += usize::from(run(*target, bytes, &format!("{path:?}")));
            for seed in 0..rounds(MUTATIONS) {
                let mut random = StdRng::seed_from_u64(seed << 16 | at as u64);
                let (_, other) = &seeds[random.random_range(0..seeds.len())];
                let mutated = mutate(bytes, other, &mut random);
                run(*target, &mutated, &format!("{path:?}, mutation {seed}"));
            }
        }
        assert!(understood > 0, "the target {name} parses no file of the corpus");
    }
}

/// Writes the seeds of a corpus that only code can generate if `BLESS` is set. Otherwise they must
/// exist.
///
/// # Panics
/// Panics if a seed is missing or cannot be written.
pub fn check_seeds(name: &str, seeds: impl IntoIterator<Item = (impl AsRef<Path>, Vec<u8>)>) {
    for (file, bytes) in seeds {
        let path = corpus(name).join(file);
        if std::env::var_os("BLESS").is_some() {
            std::fs::create_dir_all(corpus(name)).expect("a folder");
            std::fs::write(&path, &bytes).expect("written");
        }
        assert!(path.exists(), "{path:?}: BLESS=1 writes it");
    }
}

/// Runs a target. A failure names the input, so that it can be reproduced.
fn run(target: fn(&[u8]) -> bool, bytes: &[u8], input: &str) -> bool {
    let began = Instant::now();
    let outcome = std::panic::catch_unwind(|| target(bytes));
    assert!(
        outcome.is_ok(),
        "{input}: it panics; its bytes: {:?}",
        bytes.escape_ascii().to_string()
    );
    assert!(began.elapsed() < RUN_MAX, "{input}: it takes {:?}", began.elapsed());
    outcome.unwrap_or_default()
}

/// Applies a few random mutations to an input.
fn mutate(bytes: &[u8], other: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.random_range(1..5) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(0..16)).min(bytes.len());
        match random.random_range(0..8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            3 => bytes.insert(at, random.random()),
            4 if !other.is_empty() => {
                let from = random.random_range(0..other.len());
                let to = (from + random.random_range(1..64)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            // Extreme bytes make invalid lengths and counts.
            5 if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.random_range(0..5)];
            }
            6 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            _ => {}
        }
    }
    bytes
}
