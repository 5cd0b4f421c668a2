//! A Gateway as it is written. (Istio, "Gateway".)

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
    /// Says nothing of what it serves.
    pub(super) name: String,
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
    pub(super) tls_certificates: Vec<serde_json::Value>,
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

impl RawServerTls {
    /// Whether it asks for anything but that requests go to HTTPS.
    pub(super) fn says_more_than_redirect(self) -> bool {
        self != Self { https_redirect: self.https_redirect, ..Self::default() }
    }
}
