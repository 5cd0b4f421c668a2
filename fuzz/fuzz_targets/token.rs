//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/token.
#![no_main]

strait_fuzz::target!("token");
