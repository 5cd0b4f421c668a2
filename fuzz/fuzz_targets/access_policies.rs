//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/access_policies.
#![no_main]

strait_fuzz::target!("access_policies");
