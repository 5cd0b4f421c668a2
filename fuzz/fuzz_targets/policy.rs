//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/policy.
#![no_main]

strait_fuzz::target!("policy");
