//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/admission.
#![no_main]

strait_fuzz::target!("admission");
