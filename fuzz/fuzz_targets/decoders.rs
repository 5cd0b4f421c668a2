//! For any objects, the slim decoders give the same result as a full decode, in JSON and in
//! protobuf.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_sources::registry::kube::oracle;
use strait_fuzz::Numbers;

fuzz_target!(|bytes: &[u8]| {
    oracle::json_protobuf_and_a_full_decode_agree(&mut Numbers(bytes));
});
