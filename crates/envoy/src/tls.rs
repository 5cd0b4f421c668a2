//! The TLS contexts of mesh traffic: the location of a proxy's certificate, and the peers that it
//! trusts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::{any, seconds};
use strait_mesh::push::PushContext;
use strait_model::credential::{ROOTS_SUFFIX, resource_name};
use strait_model::mesh_config::MeshTls;
use strait_model::tls_files::RootFiles;
use strait_model::{MountedSecrets, Proxy, SdsFiles};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use strait_proto::envoy::google::protobuf::{Any, BoolValue};
use strait_rules::traffic::gateway::{ServerTls, TlsClients, TlsVersion};
use strait_rules::traffic::policy::{ClientCertificate, ForeignTls, NameKind, TrustedRoots};
use strait_rules::traffic::sidecar::SidecarTls;
use strait_xds::file_secret;

/// The secret that contains a proxy's own certificate.
const CERTIFICATE_SECRET: &str = "default";
/// The secret that contains the root certificates that a proxy trusts.
const ROOTS_SECRET: &str = "ROOTCA";
/// The upstream cluster through which Istio's agent serves secrets to its Envoy.
const AGENT_CLUSTER: &str = "sds-grpc";

/// Time that an upstream cluster waits for its secrets, in seconds.
const SECRET_SECONDS: u64 = 5;

/// The source of a proxy's secrets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Secrets {
    /// Static secrets in the bootstrap, which are read only when the proxy starts.
    Bootstrap,
    /// Files on the proxy's host, which it reads again when they are renewed.
    Files(Arc<SdsFiles>),
    /// Istio's agent, possibly with some files of the pod.
    Agent(Arc<MountedSecrets>),
}

/// One end of a TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsEnd {
    Client,
    Server,
}

impl Secrets {
    pub(super) fn for_proxy(proxy: &Proxy) -> Self {
        if let Some(files) = &proxy.sds {
            Self::Files(Arc::clone(files))
        } else if proxy.has_istio_agent() {
            Self::Agent(Arc::clone(&proxy.mounted))
        } else {
            Self::Bootstrap
        }
    }

    fn config(&self, name: &str, end: TlsEnd) -> tls::SdsSecretConfig {
        let source = match self {
            // Without a source, the name refers to a static secret of the bootstrap.
            Self::Bootstrap => None,
            Self::Agent(mounted) => {
                let names = match end {
                    TlsEnd::Client => &mounted.client,
                    TlsEnd::Server => &mounted.server,
                };
                let own = if name == ROOTS_SECRET { &names.roots } else { &names.certificate };
                let name = own.as_deref().unwrap_or(name);
                return tls::SdsSecretConfig {
                    name: name.into(),
                    sds_config: Some(agent_source()),
                };
            }
            Self::Files(files) if name == ROOTS_SECRET => Some(file_source(&files.roots)),
            Self::Files(files) => Some(file_source(&files.certificate)),
        };
        tls::SdsSecretConfig { name: name.into(), sds_config: source }
    }

    /// Returns the common settings of both ends of an mTLS connection: own certificate, roots, and
    /// accepted peers.
    fn common(
        &self,
        end: TlsEnd,
        alpn: &[&str],
        peers: Vec<tls::SubjectAltNameMatcher>,
    ) -> tls::CommonTlsContext {
        tls::CommonTlsContext {
            tls_certificate_sds_secret_configs: vec![self.config(CERTIFICATE_SECRET, end)],
            validation_context_type: Some(checked(self.config(ROOTS_SECRET, end), peers)),
            ..common_context(alpn, &MeshTls::default())
        }
    }

    /// Returns a client's transport socket: mTLS with this SNI, to a server whose identity matches
    /// any of the `peers`.
    pub(super) fn upstream(
        &self,
        sni: String,
        alpn: &[&str],
        peers: Vec<tls::SubjectAltNameMatcher>,
    ) -> core::TransportSocket {
        let context = tls::UpstreamTlsContext {
            common_tls_context: Some(self.common(TlsEnd::Client, alpn, peers)),
            sni,
            ..Default::default()
        };
        socket(any(&context))
    }

    /// Returns a server's transport socket: mTLS with the accepted versions and ciphers, for
    /// clients of these trust domains.
    ///
    /// Checking the roots is not sufficient: they may sign identities of other trust domains, or of
    /// none.
    pub(super) fn downstream(
        &self,
        alpn: &[&str],
        trust_domains: &BTreeSet<&str>,
        defaults: &MeshTls,
    ) -> core::TransportSocket {
        let mut common =
            self.common(TlsEnd::Server, alpn, domain_matchers(trust_domains).collect());
        common.tls_params = common.tls_params.map(|params| taking(params, defaults));
        let context = tls::DownstreamTlsContext {
            common_tls_context: Some(common),
            require_client_certificate: Some(BoolValue { value: true }),
            ..Default::default()
        };
        socket(any(&context))
    }
}

/// Returns a client's transport socket for a server outside of the mesh.
pub(super) fn foreign(
    ForeignTls { server, roots, client, .. }: &ForeignTls,
    alpn: &[&str],
    defaults: &MeshTls,
) -> core::TransportSocket {
    let names = || named(&server.subject_alt_names);
    let own = client.iter().map(|own| match own {
        ClientCertificate::Files(files) => file_secret::certificate_name(files),
        ClientCertificate::Secret(name) => format!("kubernetes://{name}"),
    });
    let roots = roots.as_ref().map(|roots| match roots {
        TrustedRoots::Files(files) => file_secret::roots_name(files),
        TrustedRoots::Secret(name) => format!("kubernetes://{name}{ROOTS_SUFFIX}"),
    });
    let common = tls::CommonTlsContext {
        tls_certificate_sds_secret_configs: own.map(from_stream).collect(),
        validation_context_type: roots.map(|roots| checked(from_stream(roots), names())),
        ..common_context(alpn, defaults)
    };
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(common),
        sni: server.sni.clone(),
        ..Default::default()
    };
    socket(any(&context))
}

/// Returns the transport socket of a workload's port that terminates TLS other than the mesh's
/// mTLS.
pub(super) fn ingress_socket(
    SidecarTls { certificate, clients, names }: &SidecarTls,
    defaults: &MeshTls,
) -> core::TransportSocket {
    let own = from_stream(file_secret::certificate_name(certificate));
    let roots = clients.as_ref().map(|roots| from_stream(file_secret::roots_name(roots)));
    let context = tls::DownstreamTlsContext {
        require_client_certificate: Some(BoolValue { value: clients.is_some() }),
        common_tls_context: Some(tls::CommonTlsContext {
            tls_certificate_sds_secret_configs: vec![own],
            validation_context_type: roots.map(|roots| checked(roots, named(names))),
            ..common_context(&["h2", "http/1.1"], defaults)
        }),
        ..Default::default()
    };
    socket(any(&context))
}

/// Returns the transport socket of a Gateway's server. The router requests the certificates on its
/// own stream. The mesh's defaults apply to unset fields.
pub(super) fn gateway_socket(server: &ServerTls, defaults: &MeshTls) -> core::TransportSocket {
    use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    let secret = |name: String| tls::SdsSecretConfig { name, sds_config: Some(by_ads()) };
    let (oldest, newest) = server.versions;
    // A server that is limited to old versions is not changed.
    let default = match (defaults.newest_alone, newest) {
        (true, None | Some(TlsVersion::V1_3)) => TlsVersion::V1_3,
        _ => TlsVersion::V1_2,
    };
    let ciphers = if server.ciphers.is_empty() { &*defaults.ciphers } else { &*server.ciphers };
    let params = tls::TlsParameters {
        tls_minimum_protocol_version: version(oldest.unwrap_or(default)),
        tls_maximum_protocol_version: newest.map_or(0, version),
        cipher_suites: ciphers.iter().map(ToString::to_string).collect(),
        ecdh_curves: defaults.curves.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let roots = server.roots.as_ref().or_else(|| server.credentials.first());
    let roots = roots.map(|roots| format!("{}{ROOTS_SUFFIX}", resource_name(roots)));
    let roots = roots.or_else(|| {
        let file = Some(server.roots_file.as_ref()?.to_string());
        Some(file_secret::roots_name(&RootFiles { file, revoked: None }))
    });
    let verifies_clients = !matches!(server.clients, TlsClients::Any);
    let validation = roots.filter(|_| verifies_clients).map(|roots| {
        let texts = |all: &[Arc<str>]| all.iter().map(ToString::to_string).collect();
        let own = tls::CertificateValidationContext {
            match_typed_subject_alt_names: server
                .names
                .iter()
                .flat_map(|name| any_type_matchers(name))
                .collect(),
            verify_certificate_spki: texts(&server.spki),
            verify_certificate_hash: texts(&server.hashes),
            // If the file is missing, the roots are not loaded and all clients are refused, but the
            // listener works.
            crl: server.revoked.as_deref().map(file_secret::file_source),
            ..Default::default()
        };
        let roots = secret(roots);
        ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
            default_validation_context: Some(own),
            validation_context_sds_secret_config: Some(roots),
            ..Default::default()
        })
    });
    let secret_names = server.credentials.iter().map(|name| resource_name(name));
    let file_names = server.files.iter().map(file_secret::certificate_name);
    let certificates = secret_names.chain(file_names).map(secret);
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            tls_params: Some(params),
            alpn_protocols: vec!["h2".into(), "http/1.1".into()],
            tls_certificate_sds_secret_configs: certificates.collect(),
            validation_context_type: validation,
            ..Default::default()
        }),
        require_client_certificate: Some(BoolValue {
            value: matches!(server.clients, TlsClients::RequiredCertificate | TlsClients::Mesh),
        }),
        ..Default::default()
    };
    socket(any(&context))
}

/// Applies the accepted versions and ciphers to TLS parameters.
fn taking(params: tls::TlsParameters, defaults: &MeshTls) -> tls::TlsParameters {
    let oldest = match defaults.newest_alone {
        true => version(TlsVersion::V1_3),
        false => params.tls_minimum_protocol_version,
    };
    tls::TlsParameters {
        tls_minimum_protocol_version: oldest,
        cipher_suites: defaults.ciphers.iter().map(ToString::to_string).collect(),
        ecdh_curves: defaults.curves.iter().map(ToString::to_string).collect(),
        ..params
    }
}

/// Returns the TLS versions and application protocols.
fn common_context(alpn: &[&str], defaults: &MeshTls) -> tls::CommonTlsContext {
    use tls::tls_parameters::TlsProtocol;
    let params = tls::TlsParameters {
        tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
        tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
        ..Default::default()
    };
    tls::CommonTlsContext {
        tls_params: Some(taking(params, defaults)),
        alpn_protocols: alpn.iter().map(|&name| name.into()).collect(),
        ..Default::default()
    }
}

/// Returns a validation context: the peer's certificate must be signed by these roots and, if
/// `names` is not empty, match at least one name.
fn checked(
    roots: tls::SdsSecretConfig,
    names: Vec<tls::SubjectAltNameMatcher>,
) -> tls::common_tls_context::ValidationContextType {
    use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(tls::CertificateValidationContext {
            match_typed_subject_alt_names: names,
            ..Default::default()
        }),
        validation_context_sds_secret_config: Some(roots),
        ..Default::default()
    })
}

fn version(version: TlsVersion) -> i32 {
    use tls::tls_parameters::TlsProtocol;
    let version = match version {
        TlsVersion::V1_0 => TlsProtocol::TlSv10,
        TlsVersion::V1_1 => TlsProtocol::TlSv11,
        TlsVersion::V1_2 => TlsProtocol::TlSv12,
        TlsVersion::V1_3 => TlsProtocol::TlSv13,
    };
    version.into()
}

/// Returns matchers for a name of any type in a certificate.
fn any_type_matchers(name: &str) -> impl Iterator<Item = tls::SubjectAltNameMatcher> {
    use tls::subject_alt_name_matcher::SanType;
    let types = [SanType::Dns, SanType::Uri, SanType::Email, SanType::IpAddress];
    let matcher = text(MatchPattern::Exact(name.into()));
    types.into_iter().map(move |kind| tls::SubjectAltNameMatcher {
        san_type: kind.into(),
        matcher: Some(matcher.clone()),
        ..Default::default()
    })
}

/// Returns a reference to a secret on the proxy's own stream. An upstream cluster that waits for a
/// secret becomes active without it after a timeout and then cannot connect. Until then the
/// previous cluster stays active.
fn from_stream(name: String) -> tls::SdsSecretConfig {
    use core::config_source::ConfigSourceSpecifier::Ads;
    let source = core::ConfigSource {
        config_source_specifier: Some(Ads(core::AggregatedConfigSource {})),
        initial_fetch_timeout: Some(seconds(SECRET_SECONDS)),
        resource_api_version: core::ApiVersion::V3.into(),
        ..Default::default()
    };
    tls::SdsSecretConfig { name, sds_config: Some(source) }
}

/// Returns a source of secrets on the main stream. If a secret does not arrive, the listener starts
/// without it after Envoy's timeout of 15 s.
fn by_ads() -> core::ConfigSource {
    use core::config_source::ConfigSourceSpecifier::Ads;
    core::ConfigSource {
        config_source_specifier: Some(Ads(core::AggregatedConfigSource {})),
        resource_api_version: core::ApiVersion::V3.into(),
        ..Default::default()
    }
}

/// Returns a source of secrets on a stream to Istio's agent.
fn agent_source() -> core::ConfigSource {
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

/// Returns a source of secrets in a file on the proxy's host. Envoy reads the file again when a
/// file is moved into its directory.
fn file_source(path: &str) -> core::ConfigSource {
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

/// Returns the names that are accepted from a server: these accounts, or all identities of these
/// trust domains if no account is known.
fn expected<'a>(
    accounts: impl Iterator<Item = &'a str>,
    trust_domains: &BTreeSet<&str>,
) -> std::vec::IntoIter<matcher::StringMatcher> {
    let mut peers: Vec<_> = accounts.map(|id| text(MatchPattern::Exact(id.into()))).collect();
    if peers.is_empty() {
        peers.extend(domain_patterns(trust_domains));
    }
    peers.into_iter()
}

/// Returns matchers for the certificate of a server with these accounts or trust domains.
pub(super) fn account_matchers<'a>(
    accounts: impl Iterator<Item = &'a str>,
    trust_domains: &BTreeSet<&str>,
) -> Vec<tls::SubjectAltNameMatcher> {
    expected(accounts, trust_domains).map(uri).collect()
}

/// Returns matchers for these names.
pub(super) fn named(names: &[String]) -> Vec<tls::SubjectAltNameMatcher> {
    use tls::subject_alt_name_matcher::SanType;
    let matcher = |name: &String| {
        let kind = match NameKind::from_text(name) {
            NameKind::Uri => SanType::Uri,
            NameKind::Address => SanType::IpAddress,
            NameKind::Dns => SanType::Dns,
        };
        let exact = uri(text(MatchPattern::Exact(name.clone())));
        tls::SubjectAltNameMatcher { san_type: kind.into(), ..exact }
    };
    names.iter().map(matcher).collect()
}

/// Returns patterns for every identity of these trust domains.
fn domain_patterns(trust_domains: &BTreeSet<&str>) -> impl Iterator<Item = matcher::StringMatcher> {
    trust_domains.iter().map(|domain| text(MatchPattern::Prefix(format!("spiffe://{domain}/"))))
}

/// Returns certificate matchers for every identity of these trust domains.
fn domain_matchers(
    trust_domains: &BTreeSet<&str>,
) -> impl Iterator<Item = tls::SubjectAltNameMatcher> {
    domain_patterns(trust_domains).map(uri)
}

fn text(pattern: MatchPattern) -> matcher::StringMatcher {
    matcher::StringMatcher { match_pattern: Some(pattern), ..Default::default() }
}

fn uri(name: matcher::StringMatcher) -> tls::SubjectAltNameMatcher {
    tls::SubjectAltNameMatcher {
        san_type: tls::subject_alt_name_matcher::SanType::Uri.into(),
        matcher: Some(name),
        ..Default::default()
    }
}

/// TLS contexts for gRPC libraries, which read certificates only from the providers in their
/// bootstrap. A library refuses all other parts of an Envoy's context, except for unknown names.
/// (gRFC A29.)
pub(super) mod library {
    use super::*;

    /// The certificate provider in the bootstrap, as Istio's agent names it.
    const PROVIDER: &str = "default";

    /// Returns a client's transport socket: mTLS to a server with any of these accounts, or any
    /// identity of these trust domains if no account is known.
    pub(crate) fn upstream<'a>(
        accounts: impl Iterator<Item = &'a str>,
        trust_domains: &BTreeSet<&str>,
    ) -> core::TransportSocket {
        let context = tls::UpstreamTlsContext {
            common_tls_context: Some(common(expected(accounts, trust_domains).collect())),
            ..Default::default()
        };
        socket(any(&context))
    }

    /// Returns a server's transport socket: mTLS for all clients whose certificates the roots
    /// signed. A server does not support names here; filters restrict the clients.
    pub(crate) fn downstream() -> core::TransportSocket {
        let context = tls::DownstreamTlsContext {
            common_tls_context: Some(common(Vec::new())),
            require_client_certificate: Some(BoolValue { value: true }),
            ..Default::default()
        };
        socket(any(&context))
    }

    #[expect(
        deprecated,
        reason = "the fields that replace them are not known to libraries before 1.66, or not at all"
    )]
    fn common(peers: Vec<matcher::StringMatcher>) -> tls::CommonTlsContext {
        use tls::common_tls_context::{
            CertificateProviderInstance, CombinedCertificateValidationContext,
            ValidationContextType,
        };
        let now = |certificate: &str| tls::CertificateProviderPluginInstance {
            instance_name: PROVIDER.into(),
            certificate_name: certificate.into(),
        };
        let before = |certificate: &str| CertificateProviderInstance {
            instance_name: PROVIDER.into(),
            certificate_name: certificate.into(),
        };
        tls::CommonTlsContext {
            tls_certificate_provider_instance: Some(now(CERTIFICATE_SECRET)),
            tls_certificate_certificate_provider_instance: Some(before(CERTIFICATE_SECRET)),
            validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                CombinedCertificateValidationContext {
                    default_validation_context: Some(tls::CertificateValidationContext {
                        ca_certificate_provider_instance: Some(now(ROOTS_SECRET)),
                        match_subject_alt_names: peers,
                        ..Default::default()
                    }),
                    validation_context_certificate_provider_instance: Some(before(ROOTS_SECRET)),
                    ..Default::default()
                },
            )),
            ..Default::default()
        }
    }
}

/// Returns the trust domains whose workloads may call a server of the mesh, sorted: the mesh's own
/// domain, its aliases, and the domains of members.
pub(super) fn client_trust_domains(context: &PushContext) -> BTreeSet<&str> {
    let mesh = &context.mesh;
    let member_domains = context.clusters.trust_domains().into_values();
    mesh.same_trust_domains(&mesh.trust_domain).chain(member_domains).collect()
}

/// Returns a TLS transport socket with this context.
fn socket(context: Any) -> core::TransportSocket {
    core::TransportSocket {
        name: "envoy.transport_sockets.tls".into(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(context)),
    }
}
