//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/csr.
#![no_main]

strait_fuzz::target!("csr");
