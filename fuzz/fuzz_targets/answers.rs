//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/answers.
#![no_main]

strait_fuzz::target!("answers");
