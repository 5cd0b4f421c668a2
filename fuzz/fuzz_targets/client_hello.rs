//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/client_hello.
#![no_main]

strait_fuzz::target!("client_hello");
