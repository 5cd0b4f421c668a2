//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/mesh_networks.
#![no_main]

strait_fuzz::target!("mesh_networks");
