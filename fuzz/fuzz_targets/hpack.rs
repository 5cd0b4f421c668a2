//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/hpack.
#![no_main]

strait_fuzz::target!("hpack");
