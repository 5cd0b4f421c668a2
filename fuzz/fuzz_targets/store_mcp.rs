//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/store_mcp.
#![no_main]

strait_fuzz::target!("store_mcp");
