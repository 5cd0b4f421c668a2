//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/discovery_sotw.
#![no_main]

strait_fuzz::target!("discovery_sotw");
