//! Fuzz targets for input of unauthenticated peers: see [`strait_base::testing::fuzz`].

use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::server::Acceptor;

use super::{Authority, AuthorityPem, tls};
use strait_base::testing::fuzz::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] =
    &[("csr", csr), ("token", crate::token::fuzz), ("client_hello", client_hello)];

/// The server's TLS configuration, built once because keys are expensive.
static SERVER: LazyLock<Option<Arc<ServerConfig>>> = LazyLock::new(|| {
    let now = SystemTime::now();
    let files = AuthorityPem::generate(now).ok()?;
    let authority = Authority::new(&files, "fuzz", now).ok()?;
    let issued = authority.issue_serving(&["localhost".into()], now).ok()?;
    let chain = issued.chain.certificates().to_vec();
    let origins = ["certificate", "key"];
    let certified = tls::certified_key(chain, issued.key_der(), origins, now).ok()?;
    let clients = tls::ClientCertificates::Optional;
    tls::server_config(&Arc::new(certified), authority.roots(), clients).ok()
});

/// Processes the first bytes of a connection. For any requested name, the handshake continues or
/// fails.
pub(crate) fn client_hello(bytes: &[u8]) -> bool {
    let mut input = bytes;
    let mut acceptor = Acceptor::default();
    while !input.is_empty() {
        if acceptor.read_tls(&mut input).is_err() {
            return false;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                assert!(hello.server_name().is_none_or(|name| name.len() <= 255));
                let Some(server) = SERVER.clone() else { return false };
                if let Ok(mut connection) = accepted.into_connection(server) {
                    let _ = connection.read_tls(&mut input);
                    let _ = connection.process_new_packets();
                    assert!(
                        connection.peer_certificates().is_none(),
                        "no certificate has been verified yet"
                    );
                }
                return true;
            }
            Err(_) => return false,
        }
    }
    false
}

/// Returns hellos of Strait's clients, for several names.
#[cfg(test)]
pub(crate) fn hellos() -> Vec<(&'static str, Vec<u8>)> {
    use rustls_pki_types::ServerName;

    let hello = |name: &'static str| {
        let config = rustls::ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("it is supported")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name).expect("a name");
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("written");
        bytes
    };
    vec![
        ("localhost", hello("localhost")),
        ("long", hello("istiod.istio-system.svc.cluster.local")),
        ("address", hello("192.0.2.1")),
    ]
}

/// Parses a certificate request and reads its key.
pub fn csr(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    crate::csr::public_key(text).is_ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }

    #[test]
    fn seeds_exist() {
        strait_base::testing::fuzz::check_seeds("client_hello", super::hellos());
    }
}
