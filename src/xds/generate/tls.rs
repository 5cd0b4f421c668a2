//! The TLS contexts of mesh traffic: where a proxy finds its certificate, and whom it trusts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use strait_proto::envoy::google::protobuf::{Any, BoolValue};

use super::{any, seconds};
use crate::model::{Proxy, SdsFiles};
use crate::push::PushContext;

/// The secret that holds a proxy's own certificate.
const CERTIFICATE_SECRET: &str = "default";
/// The secret that holds the roots a proxy trusts.
const ROOTS_SECRET: &str = "ROOTCA";
/// The upstream cluster by which Istio's agent serves secrets to its Envoy.
const AGENT_CLUSTER: &str = "sds-grpc";

/// Who holds a proxy's secrets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Secrets {
    /// The bootstrap, as static secrets: read when the proxy starts, and not again.
    Bootstrap,
    /// Files beside the proxy, which it reads again when they are renewed.
    Files(Arc<SdsFiles>),
    /// Istio's agent.
    Agent,
    /// Nobody here: gRPC's own library refuses TLS contexts in the form that Envoy takes, so it is given none.
    Unknown,
}

impl Secrets {
    pub(super) fn of(proxy: &Proxy) -> Self {
        if proxy.is_proxyless() {
            Self::Unknown
        } else if let Some(files) = &proxy.sds {
            Self::Files(Arc::clone(files))
        } else if proxy.has_istio_agent() {
            Self::Agent
        } else {
            Self::Bootstrap
        }
    }

    fn config(&self, name: &str) -> tls::SdsSecretConfig {
        let source = match self {
            // Without a source, the name is that of a static secret of the bootstrap.
            Self::Bootstrap | Self::Unknown => None,
            Self::Agent => Some(of_agent()),
            Self::Files(files) if name == ROOTS_SECRET => Some(of_file(&files.roots)),
            Self::Files(files) => Some(of_file(&files.certificate)),
        };
        tls::SdsSecretConfig { name: name.into(), sds_config: source }
    }

    /// What both ends of an mTLS connection have in common: own certificate, roots, and the peers
    /// that may be at the other end.
    fn common(
        &self,
        alpn: &[&str],
        peers: Vec<tls::SubjectAltNameMatcher>,
    ) -> tls::CommonTlsContext {
        use tls::common_tls_context::{
            CombinedCertificateValidationContext, ValidationContextType,
        };
        use tls::tls_parameters::TlsProtocol;
        tls::CommonTlsContext {
            tls_params: Some(tls::TlsParameters {
                tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
                tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
                ..Default::default()
            }),
            alpn_protocols: alpn.iter().map(|&name| name.into()).collect(),
            tls_certificate_sds_secret_configs: vec![self.config(CERTIFICATE_SECRET)],
            validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                CombinedCertificateValidationContext {
                    default_validation_context: Some(tls::CertificateValidationContext {
                        match_typed_subject_alt_names: peers,
                        ..Default::default()
                    }),
                    validation_context_sds_secret_config: Some(self.config(ROOTS_SECRET)),
                    ..Default::default()
                },
            )),
            ..Default::default()
        }
    }

    /// A client's transport socket: mTLS to `sni`, to be answered by one of `accounts`.
    ///
    /// Where no account is known, any identity of these trust domains may answer, never a stranger.
    pub(super) fn upstream<'a>(
        &self,
        sni: String,
        alpn: &[&str],
        accounts: impl Iterator<Item = &'a str>,
        trust_domains: &BTreeSet<&str>,
    ) -> core::TransportSocket {
        let mut peers: Vec<_> = accounts.map(|id| uri(MatchPattern::Exact(id.into()))).collect();
        if peers.is_empty() {
            peers.extend(anybody_of(trust_domains));
        }
        let context = tls::UpstreamTlsContext {
            common_tls_context: Some(self.common(alpn, peers)),
            sni,
            ..Default::default()
        };
        socket(any(&context))
    }

    /// A server's transport socket: mTLS, for clients of these trust domains.
    ///
    /// Roots alone are not enough: what they sign may be of other trust domains, and of none.
    pub(super) fn downstream(
        &self,
        alpn: &[&str],
        trust_domains: &BTreeSet<&str>,
    ) -> core::TransportSocket {
        let context = tls::DownstreamTlsContext {
            common_tls_context: Some(self.common(alpn, anybody_of(trust_domains).collect())),
            require_client_certificate: Some(BoolValue { value: true }),
            ..Default::default()
        };
        socket(any(&context))
    }
}

/// Secrets by a stream to Istio's agent.
fn of_agent() -> core::ConfigSource {
    use core::config_source::ConfigSourceSpecifier::ApiConfigSource;
    use core::grpc_service::{EnvoyGrpc, TargetSpecifier};
    let target = EnvoyGrpc { cluster_name: AGENT_CLUSTER.into(), ..Default::default() };
    let service = core::GrpcService {
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)),
        ..Default::default()
    };
    core::ConfigSource {
        config_source_specifier: Some(ApiConfigSource(core::ApiConfigSource {
            api_type: core::api_config_source::ApiType::Grpc.into(),
            transport_api_version: core::ApiVersion::V3.into(),
            grpc_services: vec![service],
            set_node_on_first_message_only: true,
            ..Default::default()
        })),
        initial_fetch_timeout: Some(seconds(0)),
        resource_api_version: core::ApiVersion::V3.into(),
        ..Default::default()
    }
}

/// Secrets from a file on the proxy's host. What is moved into its folder has it read anew.
fn of_file(path: &str) -> core::ConfigSource {
    use core::config_source::ConfigSourceSpecifier::PathConfigSource;
    let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or("/");
    core::ConfigSource {
        config_source_specifier: Some(PathConfigSource(core::PathConfigSource {
            path: path.into(),
            watched_directory: Some(core::WatchedDirectory {
                path: folder.into(),
                ..Default::default()
            }),
            ..Default::default()
        })),
        resource_api_version: core::ApiVersion::V3.into(),
        ..Default::default()
    }
}

/// Matches every identity of these trust domains.
fn anybody_of(trust_domains: &BTreeSet<&str>) -> impl Iterator<Item = tls::SubjectAltNameMatcher> {
    trust_domains.iter().map(|domain| uri(MatchPattern::Prefix(format!("spiffe://{domain}/"))))
}

fn uri(pattern: MatchPattern) -> tls::SubjectAltNameMatcher {
    tls::SubjectAltNameMatcher {
        san_type: tls::subject_alt_name_matcher::SanType::Uri.into(),
        matcher: Some(matcher::StringMatcher {
            match_pattern: Some(pattern),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The trust domains whose workloads may call a server of the mesh: the mesh's own with its aliases, and those
/// of members. Sorted.
pub(super) fn trust_domains_of_clients(context: &PushContext) -> BTreeSet<&str> {
    let mesh = &context.mesh;
    let of_members = context.clusters.trust_domains().into_values();
    mesh.same_trust_domains(&mesh.trust_domain).chain(of_members).collect()
}

/// A TLS transport socket with this context.
fn socket(context: Any) -> core::TransportSocket {
    core::TransportSocket {
        name: "envoy.transport_sockets.tls".into(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(context)),
    }
}
