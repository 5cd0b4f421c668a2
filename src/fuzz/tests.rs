use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::TARGETS;
use crate::fixtures::rounds;

/// Mutations of each file of a corpus.
const MUTATIONS: u64 = 50;
/// One run may take no longer, however slow the machine is: what outsiders say must not keep us busy.
const RUN_MAX: Duration = Duration::from_secs(10);

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/fuzz").join(name)
}

/// The files of a corpus, with their names.
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

#[test]
fn every_target_takes_its_corpus_and_mutations_of_it() {
    for (name, target) in TARGETS {
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
        assert!(understood > 0, "nothing of the corpus of {name} is understood");
    }
}

/// Runs a target; a failure names the input, which can be made again.
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

/// What a fuzzer would do to an input, a few times.
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
            // Lengths and counts are where readers go wrong.
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

#[test]
fn every_target_has_a_program_in_fuzz_and_every_corpus_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
    let manifest = std::fs::read_to_string(folder.join("../Cargo.toml")).expect("a manifest");
    for (name, _) in TARGETS {
        let program = std::fs::read_to_string(folder.join(format!("{name}.rs")));
        let program = program.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(program.contains(&format!("\"{name}\"")), "{program}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
    let known: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    for entry in std::fs::read_dir(corpus("")).expect("it is there") {
        let name = entry.expect("readable").file_name().into_string().expect("ASCII");
        assert!(known.contains(name.as_str()), "{name}");
    }
}

/// Writes the seeds that only we can make, with `BLESS=1`; else they must be what they would be.
#[test]
fn seeds_that_only_we_can_make_are_what_we_make() {
    for (name, made) in [
        ("state_file", crate::lkg::fuzz_seeds()),
        ("client_hello", crate::identity::fuzz::hellos()),
    ] {
        for (file, bytes) in made {
            let path = corpus(name).join(file);
            if std::env::var_os("BLESS").is_some() {
                std::fs::create_dir_all(corpus(name)).expect("a folder");
                std::fs::write(&path, &bytes).expect("written");
            }
            assert!(path.exists(), "{path:?}: BLESS=1 writes it");
        }
    }
}
