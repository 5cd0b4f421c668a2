//! For any endpoints, the direct encoder writes the same bytes as prost.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_envoy::oracle;
use strait_fuzz::Numbers;

fuzz_target!(|bytes: &[u8]| {
    oracle::direct_encoding_equals_prost(&mut Numbers(bytes));
});
