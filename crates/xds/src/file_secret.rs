//! Secrets that refer to certificate files at the proxy. The proxy requests them by name on its
//! stream (SDS). The response contains only the paths of the files; only the proxy reads them.
//!
//! An upstream cluster could name the files directly, but only while they exist. If a file is
//! missing, Envoy rejects the cluster and keeps the previous one, which may use plain text. If
//! Envoy cannot load a secret, the cluster opens no connections.
//! (docs/contributing/decisions/0042-tls-to-services.md)

use std::path::Path;

use prost::Message;

use strait_model::tls_files::{PairFiles, RootFiles};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;

const ROOTS: &str = "file-root:";
const CERTIFICATE: &str = "file-cert:";
/// The name for the trust roots of the proxy's system.
const SYSTEM: &str = "system";
/// The path of the system's trust roots in Envoy's images and in all Debian-based images.
const SYSTEM_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Returns the name of a secret with trust roots: `file-root:FILE`, or `file-root:FILE~REVOKED`.
pub fn roots_name(roots: &RootFiles) -> String {
    let file = roots.file.as_deref().unwrap_or(SYSTEM);
    match &roots.revoked {
        Some(revoked) => format!("{ROOTS}{file}~{revoked}"),
        None => format!("{ROOTS}{file}"),
    }
}

/// Returns the name of a secret with a certificate: `file-cert:CERTIFICATE~KEY`. Istio's agents use
/// the same form.
pub fn certificate_name(PairFiles { certificate, key }: &PairFiles) -> String {
    format!("{CERTIFICATE}{certificate}~{key}")
}

/// Returns whether a name refers to files at the proxy.
pub(crate) fn is_one(name: &str) -> bool {
    let certificate = name.strip_prefix(CERTIFICATE);
    name.starts_with(ROOTS) || certificate.is_some_and(|files| files.contains('~'))
}

/// Returns the encoded secret for a name that refers to files at the proxy, or `None` for any other
/// name.
pub fn of_name(name: &str) -> Option<Vec<u8>> {
    let kind = if let Some(roots) = name.strip_prefix(ROOTS) {
        let (file, revoked) = match roots.split_once('~') {
            Some((file, revoked)) => (file, Some(file_source(revoked))),
            None => (roots, None),
        };
        let file = if file == SYSTEM { SYSTEM_FILE } else { file };
        tls::secret::Type::ValidationContext(tls::CertificateValidationContext {
            trusted_ca: Some(file_source(file)),
            watched_directory: Some(folder_of(file)),
            crl: revoked,
            ..Default::default()
        })
    } else {
        let (certificate, key) = name.strip_prefix(CERTIFICATE)?.split_once('~')?;
        tls::secret::Type::TlsCertificate(tls::TlsCertificate {
            certificate_chain: Some(file_source(certificate)),
            private_key: Some(file_source(key)),
            watched_directory: Some(folder_of(certificate)),
            ..Default::default()
        })
    };
    Some(tls::Secret { name: name.to_owned(), r#type: Some(kind) }.encode_to_vec())
}

/// Creates a data source that refers to a file at the proxy.
pub fn file_source(path: &str) -> core::DataSource {
    core::DataSource {
        specifier: Some(core::data_source::Specifier::Filename(path.to_owned())),
        ..Default::default()
    }
}

/// Returns the folder of a file as a watched directory. Envoy reads the files again when something
/// is moved into it.
fn folder_of(path: &str) -> core::WatchedDirectory {
    let folder = match Path::new(path).parent().and_then(Path::to_str) {
        Some("") => ".",
        folder => folder.unwrap_or("/"),
    };
    core::WatchedDirectory { path: folder.to_owned(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_without_a_folder_is_relative_to_the_proxys_working_directory() {
        for (path, folder) in [("/a/b.pem", "/a"), ("/b.pem", "/"), ("b.pem", "."), ("/", "/")] {
            assert_eq!(folder_of(path).path, folder, "{path}");
        }
    }
}
