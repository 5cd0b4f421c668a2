//! What outsiders can say, each with a function that takes any bytes: the targets of `fuzz/`, and what the tests
//! run over a corpus and over mutations of it. Each says whether it understood anything: a corpus of which nothing is
//! understood tries nothing.
//!
//! A target neither panics nor hangs, and asserts what must hold of whatever was understood. It lives beside what
//! it tries; here is the list of all, and of each a corpus in tests/corpus/fuzz/NAME.

use rand::RngCore;

/// A target, by the name of its corpus.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// The fuzzer's bytes as a source of random numbers; zeros once they are used up. So what the fuzzer
/// mutates are the decisions of a generator.
#[derive(Debug)]
pub struct Numbers<'a>(pub &'a [u8]);

impl RngCore for Numbers<'_> {
    fn next_u32(&mut self) -> u32 {
        let mut number = [0; 4];
        self.fill_bytes(&mut number);
        u32::from_le_bytes(number)
    }

    fn next_u64(&mut self) -> u64 {
        let mut number = [0; 8];
        self.fill_bytes(&mut number);
        u64::from_le_bytes(number)
    }

    fn fill_bytes(&mut self, to: &mut [u8]) {
        let count = to.len().min(self.0.len());
        let (now, later) = self.0.split_at(count);
        to[..count].copy_from_slice(now);
        to[count..].fill(0);
        self.0 = later;
    }
}

/// All targets but those that compare with an oracle, which `fuzz/` has besides.
pub const TARGETS: &[Target] = &[
    ("http2", crate::xds::fuzz::http2),
    ("hpack", crate::xds::fuzz::hpack),
    ("grpc", crate::xds::fuzz::grpc),
    ("discovery_delta", crate::xds::fuzz::discovery_delta),
    ("discovery_sotw", crate::xds::fuzz::discovery_sotw),
    ("kubeconfig", kubeconfig),
    ("mesh_config", mesh_config),
    ("mesh_networks", mesh_networks),
    ("policy", policy),
    ("access_policies", crate::access::fuzz::policies),
    ("access_oracle", access_oracle),
    ("traffic_objects", crate::cli::fuzz::traffic_objects),
    ("service_entries", crate::registry::service_entry::fuzz::service_entries),
    ("state_file", crate::lkg::fuzz),
    ("store_manifests", crate::store::fuzz::manifests),
    ("store_kubernetes", crate::store::fuzz::kubernetes),
    ("store_mcp", crate::store::fuzz::mcp),
    ("csr", csr),
    ("token", crate::identity::token::fuzz),
    ("client_hello", crate::identity::fuzz::client_hello),
    ("answers", answers),
    ("admission", crate::inject::fuzz::admission),
];

/// Random access policies and calls: what policies in force say of a call is what an independent evaluator says.
pub fn access_oracle(bytes: &[u8]) -> bool {
    crate::access::oracle::fuzz(&mut Numbers(bytes));
    !bytes.is_empty()
}

/// A member's kubeconfig: what is taken leads nowhere that it may not.
pub fn kubeconfig(bytes: &[u8]) -> bool {
    use crate::address::special;
    use crate::apiserver::Loopback;
    use crate::clusters::kubeconfig::{parse, write};
    use crate::model::ClusterId;

    let Ok(access) = parse(bytes, None, Loopback::Refused) else { return false };
    assert_eq!(access.server.scheme_str(), Some("https"));
    let host = access.server.host().unwrap_or_default();
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        assert!(special(address).is_none(), "{address}");
    }
    let text = write(&ClusterId::from("east"), &access);
    let again = parse(text.as_bytes(), None, Loopback::Refused);
    assert!(again.is_ok(), "what we write ourselves is refused: {:?}", again.err());
    true
}

/// The mesh config.
pub fn mesh_config(bytes: &[u8]) -> bool {
    use crate::mesh::{Defaults, MeshConfig};

    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let _ = crate::mesh::own_trust_domain(text);
    let Ok(config) = MeshConfig::parse(text, &Defaults::default()) else { return false };
    config.to_json().is_object()
}

/// The mesh networks: every network claims what it claims, and asking is answered.
pub fn mesh_networks(bytes: &[u8]) -> bool {
    use std::net::IpAddr;

    use crate::mesh::MeshNetworks;
    use crate::model::ClusterId;

    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(networks) = MeshNetworks::parse(text) else { return false };
    let _ = networks.network_of(&ClusterId::from("east"), IpAddr::from([10, 0, 0, 1]));
    let _ = networks.named_services();
    networks.gateways().count() > 0
}

/// The policy file.
pub fn policy(bytes: &[u8]) -> bool {
    use crate::model::ClusterId;
    use crate::policy::Policy;

    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(policy) = Policy::parse(text) else { return false };
    let east = ClusterId::from("east");
    let _ = (policy.mode(&east), policy.when_dark(&east), policy.budget(&east));
    let _ = policy.may_export(&east, "a.b.svc.cluster.local", "b");
    let _ = policy.clusters_named();
    let loopback = [127, 0, 0, 1].into();
    assert!(policy.may_use(&east, loopback).is_err(), "no policy gives loopback away");
    true
}

/// A certificate request: no more than its key is taken.
pub fn csr(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    crate::identity::csr::public_key(text).is_ok()
}

/// Whatever an API server answers, in JSON or in protobuf: a byte that says how to read it, then the answer.
pub fn answers(bytes: &[u8]) -> bool {
    use crate::apiserver::Encoding;
    use crate::registry::kube::offline::{Offline, OfflineResponse};

    const KINDS: [&str; 9] = [
        "services",
        "endpointslices",
        "pods",
        "nodes",
        "namespaces",
        "serviceexports",
        "serviceimports",
        "gateways",
        "workloadentries",
    ];
    let Some((first, bytes)) = bytes.split_first() else { return false };
    let kind = KINDS[usize::from(first & 0x3f) % KINDS.len()];
    let what = if first & 0x80 == 0 { OfflineResponse::List } else { OfflineResponse::Watch };
    let encoding = if first & 0x40 == 0 { Encoding::Json } else { Encoding::Protobuf };
    let mut cluster = Offline::new(usize::from(*first).max(1));
    let taken = cluster.take(kind, what, encoding, bytes);
    cluster.everything();
    taken.is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests;
