//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/state_file.
#![no_main]

strait_fuzz::target!("state_file");
