//! Whatever an API server answers, in JSON or in protobuf, nothing panics and nothing is kept of it that
//! can't be said. Good seeds: tests/corpus/kubernetes, each with a byte before it that says how to read it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait::apiserver::Encoding;
use strait::registry::kube::offline::{Answer, Offline};

const KINDS: [&str; 5] = ["services", "endpointslices", "pods", "nodes", "namespaces"];

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let kind = KINDS[usize::from(*first) % KINDS.len()];
    let what = if first & 0x80 == 0 { Answer::List } else { Answer::Watch };
    let encoding = if first & 0x40 == 0 { Encoding::Json } else { Encoding::Protobuf };
    let mut cluster = Offline::new(usize::from(*first).max(1));
    let _ = cluster.take(kind, what, encoding, bytes);
    cluster.everything();
});
