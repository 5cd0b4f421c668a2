//! Fuzz targets of this crate: see [`strait_base::testing::fuzz`].

use strait_base::testing::fuzz::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("kubeconfig", kubeconfig),
    ("store_manifests", crate::store::fuzz::manifests),
    ("store_kubernetes", crate::store::fuzz::kubernetes),
    ("store_mcp", crate::store::fuzz::mcp),
    ("answers", answers),
];

/// Parses a member's kubeconfig. An accepted server address is HTTPS and not a special address.
pub fn kubeconfig(bytes: &[u8]) -> bool {
    use crate::clusters::kubeconfig::{parse, write};
    use strait_base::address::special;
    use strait_kube_client::Loopback;
    use strait_model::ClusterId;

    let Ok(access) = parse(bytes, None, Loopback::Refused) else { return false };
    assert_eq!(access.server.scheme_str(), Some("https"));
    let host = access.server.host().unwrap_or_default();
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        assert!(special(address).is_none(), "{address}");
    }
    let text = write(&ClusterId::from("east"), &access);
    let again = parse(text.as_bytes(), None, Loopback::Refused);
    assert!(again.is_ok(), "a written kubeconfig is refused: {:?}", again.err());
    true
}

/// Decodes a response of an API server, in JSON or protobuf. The first byte selects kind, encoding and response type.
pub fn answers(bytes: &[u8]) -> bool {
    use crate::registry::kube::offline::{Offline, OfflineResponse};
    use strait_kube_client::Encoding;

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
    let response = if first & 0x80 == 0 { OfflineResponse::List } else { OfflineResponse::Watch };
    let encoding = if first & 0x40 == 0 { Encoding::Json } else { Encoding::Protobuf };
    let mut cluster = Offline::new(usize::from(*first).max(1));
    let result = cluster.take(kind, response, encoding, bytes);
    cluster.everything();
    result.is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}
