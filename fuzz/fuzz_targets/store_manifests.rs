//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/store_manifests.
#![no_main]

strait_fuzz::target!("store_manifests");
