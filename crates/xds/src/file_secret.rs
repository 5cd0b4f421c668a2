//! Certificates that are files at the proxy, by the names under which it asks for them on its stream (SDS): the answer says
//! where they lie, and nothing else. Nobody but the proxy reads them.
//!
//! To name the files in an upstream cluster itself would do as long as they are there. Where one isn't, Envoy refuses the
//! cluster and goes on with the one of before, which may be in plain text. A secret that it can't load leaves it with a cluster
//! that connects nowhere. (docs/decisions/0042-tls-to-services.md)

use std::path::Path;

use prost::Message;

use strait_model::tls_files::{PairFiles, RootFiles};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::transport_sockets::tls::v3 as tls;

const ROOTS: &str = "file-root:";
const CERTIFICATE: &str = "file-cert:";
/// Stands for the roots of the proxy's system.
const SYSTEM: &str = "system";
/// Where these are, in Envoy's images and in all that are made of Debian.
const SYSTEM_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The name of roots: `file-root:FILE`, or `file-root:FILE~REVOKED`.
pub fn roots_name(roots: &RootFiles) -> String {
    let file = roots.file.as_deref().unwrap_or(SYSTEM);
    match &roots.revoked {
        Some(revoked) => format!("{ROOTS}{file}~{revoked}"),
        None => format!("{ROOTS}{file}"),
    }
}

/// The name of a certificate: `file-cert:CERTIFICATE~KEY`, as Istio's agents have it as well.
pub fn certificate_name(PairFiles { certificate, key }: &PairFiles) -> String {
    format!("{CERTIFICATE}{certificate}~{key}")
}

/// Whether it is such a name.
pub(crate) fn is_one(name: &str) -> bool {
    let certificate = name.strip_prefix(CERTIFICATE);
    name.starts_with(ROOTS) || certificate.is_some_and(|files| files.contains('~'))
}

/// The secret of such a name, encoded; `None` for any other name.
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

/// A data source that names a file at the proxy.
pub fn file_source(path: &str) -> core::DataSource {
    core::DataSource {
        specifier: Some(core::data_source::Specifier::Filename(path.to_owned())),
        ..Default::default()
    }
}

/// What is moved into the folder has the files read anew.
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
    fn folder_of_a_file_without_one_is_where_the_proxy_runs() {
        for (path, folder) in [("/a/b.pem", "/a"), ("/b.pem", "/"), ("b.pem", "."), ("/", "/")] {
            assert_eq!(folder_of(path).path, folder, "{path}");
        }
    }
}
