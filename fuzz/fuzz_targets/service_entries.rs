//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/service_entries.
#![no_main]

strait_fuzz::target!("service_entries");
