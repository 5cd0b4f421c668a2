//! See `strait_base::testing::fuzz`. Good seeds: tests/corpus/fuzz/kubeconfig.
#![no_main]

strait_fuzz::target!("kubeconfig");
