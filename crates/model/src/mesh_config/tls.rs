//! What TLS workloads take of each other, and of strangers: `meshMTLS` and `tlsDefaults` of the mesh config.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

/// The names of ciphers that Envoy's builds take, for TLS 1.2 and before. (BoringSSL; Envoy, `TlsParameters`.)
pub const CIPHERS: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
];

/// The curves that Envoy's builds take. (BoringSSL; Envoy, `TlsParameters`.)
const CURVES: &[&str] = &["P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"];

/// What is taken of TLS: of the mesh's own by servers, of other TLS by both ends where nothing else says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshTls {
    /// `minProtocolVersion`: whether that is TLS 1.3 alone, else 1.2 as well.
    pub newest_alone: bool,
    /// `cipherSuites`: the ciphers of TLS 1.2 that are taken; Envoy's own choice where there are none.
    pub ciphers: Vec<Arc<str>>,
    /// `ecdhCurves`: the curves by which keys are agreed on, the best first; Envoy's own choice where there are none.
    pub curves: Vec<Arc<str>>,
}

/// The same as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawMeshTls {
    #[serde(default)]
    min_protocol_version: Option<Arc<str>>,
    #[serde(default)]
    cipher_suites: Vec<Arc<str>>,
    #[serde(default)]
    ecdh_curves: Vec<Arc<str>>,
}

impl RawMeshTls {
    /// What `field` of the mesh config says, and which of its fields have no effect. What can't be followed is refused: Envoy would refuse every
    /// listener for it, or servers would take less, or more, than was meant.
    pub(super) fn read(self, field: &str) -> Result<(MeshTls, Vec<String>), String> {
        let newest_alone = match self.min_protocol_version.as_deref() {
            None | Some("" | "TLS_AUTO" | "TLSV1_2") => false,
            Some("TLSV1_3") => true,
            Some(other) => {
                let text = "may be TLS_AUTO, TLSV1_2 or TLSV1_3";
                return Err(format!("minProtocolVersion: {other:?} {text}"));
            }
        };
        let mut unknown = self.cipher_suites.iter().filter(|name| !CIPHERS.contains(&&***name));
        if let Some(unknown) = unknown.next() {
            return Err(format!("cipherSuites: {unknown:?} is no cipher of Envoy's"));
        }
        // Istio's proxies leave those of the mesh's own TLS as they are.
        let (curves, ignored) = match (field, &*self.ecdh_curves) {
            (_, []) | ("tlsDefaults", _) => (self.ecdh_curves, Vec::new()),
            _ => (Vec::new(), vec![format!("{field}.ecdhCurves")]),
        };
        if let Some(unknown) = curves.iter().find(|name| !CURVES.contains(&&***name)) {
            let known = CURVES.join(", ");
            return Err(format!(
                "ecdhCurves: {unknown:?} is no curve of Envoy's, which has {known}"
            ));
        }
        Ok((MeshTls { newest_alone, ciphers: self.cipher_suites, curves }, ignored))
    }
}

impl MeshTls {
    /// In Istio's terms.
    pub(super) fn to_json(&self) -> Value {
        let version = if self.newest_alone { "TLSV1_3" } else { "TLSV1_2" };
        json!({
            "minProtocolVersion": version,
            "cipherSuites": self.ciphers,
            "ecdhCurves": self.curves,
        })
    }
}
