//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/http2.
#![no_main]

strait_fuzz::target!("http2");
