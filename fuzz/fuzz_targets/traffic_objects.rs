//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/traffic_objects.
#![no_main]

strait_fuzz::target!("traffic_objects");
