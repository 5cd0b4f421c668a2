//! TLS that rules ask for. What can't be made leads nowhere; only DISABLE is plain text.
//! (docs/decisions/0042-tls-to-services.md)

use super::super::tls::foreign;
use strait_model::mesh_config::MeshTls;
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind};
use strait_rules::traffic::policy::{ClientTls, ForeignTls, ResolvedPolicy};

/// What Istio's own filter for ALPN looks for: it keeps out of connections that aren't the mesh's.
const ALPN_OVERRIDE: (&str, &str) = ("istio", "alpn_override");

/// Has all endpoints spoken to as servers are that know nothing of the mesh.
pub(super) fn speak_to_strangers(
    cluster: &mut cluster::Cluster,
    tls: &ForeignTls,
    http2: bool,
    taken: &MeshTls,
) {
    cluster.metadata = Some(alpn_stays());
    cluster.transport_socket = Some(foreign(tls, if http2 { &["h2"] } else { &[] }, taken));
}

/// What of the server's name follows from each request: the name that is asked for, where the policy names none; and the name
/// that its certificate must have, where that isn't said either and somebody has to vouch for it.
pub(super) fn names_by_request(
    policy: &ResolvedPolicy,
) -> Option<core::UpstreamHttpProtocolOptions> {
    let Some(ClientTls::Foreign(ForeignTls { server, roots, .. })) = policy.tls.as_deref() else {
        return None;
    };
    server.sni.is_empty().then(|| core::UpstreamHttpProtocolOptions {
        auto_sni: true,
        auto_san_validation: server.subject_alt_names.is_empty() && roots.is_some(),
        ..Default::default()
    })
}

fn alpn_stays() -> core::Metadata {
    let (filter, key) = ALPN_OVERRIDE;
    let value = Value { kind: Some(Kind::StringValue("false".into())) };
    let fields = Struct { fields: [(key.to_owned(), value)].into_iter().collect() };
    core::Metadata { filter_metadata: [(filter.to_owned(), fields)].into(), ..Default::default() }
}
