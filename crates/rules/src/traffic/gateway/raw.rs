//! Raw form of a Gateway (Istio, "Gateway").

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawGatewayObject {
    pub(super) selector: BTreeMap<String, String>,
    pub(super) servers: Vec<RawServer>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawServer {
    pub(super) name: Arc<str>,
    pub(super) port: RawServerPort,
    pub(super) bind: String,
    pub(super) hosts: Vec<String>,
    pub(super) tls: Option<RawServerTls>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawServerPort {
    pub(super) number: u32,
    pub(super) name: Arc<str>,
    pub(super) protocol: String,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawServerTls {
    pub(super) https_redirect: bool,
    pub(super) mode: String,
    pub(super) server_certificate: String,
    pub(super) private_key: String,
    pub(super) ca_certificates: String,
    pub(super) tls_certificates: Vec<RawCertificateFiles>,
    pub(super) credential_name: Arc<str>,
    pub(super) credential_names: Box<[Arc<str>]>,
    pub(super) ca_cert_credential_name: Arc<str>,
    pub(super) ca_crl: Arc<str>,
    pub(super) subject_alt_names: Box<[Arc<str>]>,
    pub(super) verify_certificate_spki: Box<[Arc<str>]>,
    pub(super) verify_certificate_hash: Box<[Arc<str>]>,
    pub(super) min_protocol_version: String,
    pub(super) max_protocol_version: String,
    pub(super) cipher_suites: Vec<Arc<str>>,
}

/// A certificate with its key, and the root certificates for clients, in files.
#[derive(Deserialize, Default, PartialEq, Clone)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawCertificateFiles {
    pub(super) server_certificate: String,
    pub(super) private_key: String,
    pub(super) ca_certificates: String,
}

impl RawCertificateFiles {
    /// Returns each file with its path below the block at `path`.
    pub(super) fn named(&self, path: &str) -> [(String, &str); 3] {
        [
            ("serverCertificate", &self.server_certificate),
            ("privateKey", &self.private_key),
            ("caCertificates", &self.ca_certificates),
        ]
        .map(|(field, file)| (format!("{path}.{field}"), &**file))
    }
}

impl RawServerTls {
    /// Returns all file settings, each with the path of the block.
    pub(super) fn files(&self) -> Vec<(String, RawCertificateFiles)> {
        let own = RawCertificateFiles {
            server_certificate: self.server_certificate.clone(),
            private_key: self.private_key.clone(),
            ca_certificates: self.ca_certificates.clone(),
        };
        let own = (own != RawCertificateFiles::default()).then(|| (String::new(), own));
        let all = self.tls_certificates.iter().enumerate();
        let all = all.map(|(at, files)| (format!(".tlsCertificates[{at}]"), files.clone()));
        own.into_iter().chain(all).collect()
    }

    /// Returns whether any field other than `httpsRedirect` is set.
    pub(super) fn has_more_than_redirect(self) -> bool {
        self != Self { https_redirect: self.https_redirect, ..Self::default() }
    }
}
