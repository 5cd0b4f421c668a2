//! TLS settings of rules for upstream connections. If the settings cannot be applied, no cluster is
//! generated. Only DISABLE results in plain text. (docs/contributing/decisions/0042-tls-to-services.md)

use std::sync::Arc;

use super::super::tls::foreign;
use strait_mesh::aggregate::MergedService;
use strait_model::mesh_config::MeshTls;
use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::google::protobuf::{Struct, Value, value::Kind};
use strait_rules::traffic::policy::{ClientTls, ForeignTls, ResolvedPolicy};

/// Metadata filter and key that disable Istio's own ALPN filter for connections outside of the
/// mesh.
const ALPN_OVERRIDE: (&str, &str) = ("istio", "alpn_override");

/// Makes the cluster reach all endpoints with the TLS settings of servers outside of the mesh.
pub(super) fn use_foreign_tls(
    cluster: &mut cluster::Cluster,
    tls: &ForeignTls,
    http2: bool,
    defaults: &MeshTls,
) {
    cluster.metadata = Some(alpn_stays());
    cluster.transport_socket = Some(foreign(tls, if http2 { &["h2"] } else { &[] }, defaults));
}

/// Returns the policy with the `subjectAltNames` of the ServiceEntry, if the service is outside the
/// mesh and the TLS settings of the policy name none (Istio, `ServiceEntry.subjectAltNames`,
/// `ClientTLSSettings.subjectAltNames`).
pub(super) fn with_entry_names(
    mut policy: ResolvedPolicy,
    service: &MergedService,
) -> ResolvedPolicy {
    let names = &service.primary.service_accounts;
    if service.primary.mesh_external
        && !names.is_empty()
        && let Some(tls) = &mut policy.tls
        && let ClientTls::Foreign(foreign) = &**tls
        && foreign.server.subject_alt_names.is_empty()
    {
        let mut foreign = foreign.clone();
        foreign.server.subject_alt_names = names.iter().map(|name| name.to_string()).collect();
        *tls = Arc::new(ClientTls::Foreign(foreign));
    }
    policy
}

/// Returns options that derive server names from each request. The SNI is the requested host if the
/// policy sets none. If the policy sets no subject alternative names either and has root
/// certificates, the certificate must match that host too.
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
