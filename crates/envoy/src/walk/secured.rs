//! The credentials that a chain with TLS termination needs from the proxy and from the client.

use prost::Message;

use super::answer::RequestWalk;
use strait_proto::envoy::envoy::config::core::v3::transport_socket::ConfigType;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;

/// Records which credentials the chain needs, and whether the client must present a certificate,
/// unless it is a chain for mesh mTLS.
pub(super) fn note(chain: &listener::FilterChain, is_mesh: bool, walk: &mut RequestWalk) {
    use tls::common_tls_context::ValidationContextType;
    let config = chain.transport_socket.as_ref().and_then(|socket| socket.config_type.as_ref());
    let Some(ConfigType::TypedConfig(config)) = config else { return };
    let context = tls::DownstreamTlsContext::decode(&*config.value).expect("it was written here");
    let common = context.common_tls_context.unwrap_or_default();
    let roots = match common.validation_context_type {
        Some(ValidationContextType::ValidationContextSdsSecretConfig(roots)) => Some(roots),
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            combined.validation_context_sds_secret_config
        }
        _ => None,
    };
    let roots = roots.map(|roots| roots.name);
    let is_required =
        context.require_client_certificate.is_some_and(|is_required| is_required.value);
    if is_required && !is_mesh {
        let by = roots.as_ref().map_or_else(String::new, |roots| format!(", by the roots {roots}"));
        walk.notes.push(format!("the client must present a certificate{by}"));
    }
    let own = common.tls_certificate_sds_secret_configs.into_iter().map(|own| own.name);
    walk.credentials = own.chain(roots).collect();
}
