//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/grpc.
#![no_main]

strait_fuzz::target!("grpc");
