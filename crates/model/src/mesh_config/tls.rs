//! TLS parameters of workloads: `meshMTLS` and `tlsDefaults` of the mesh config.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

/// The cipher names that Envoy's builds support, for TLS 1.2 and earlier. (BoringSSL; Envoy,
/// `TlsParameters`.)
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

/// The curves that Envoy's builds support. (BoringSSL; Envoy, `TlsParameters`.)
const CURVES: &[&str] = &["P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"];

/// TLS parameters: of servers for the mesh's mTLS, or the defaults of both ends for other TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshTls {
    /// `minProtocolVersion`: whether only TLS 1.3 is accepted; otherwise TLS 1.2 is accepted, too.
    pub newest_alone: bool,
    /// `cipherSuites`: the accepted ciphers of TLS 1.2; Envoy's default if empty.
    pub ciphers: Vec<Arc<str>>,
    /// `ecdhCurves`: the curves for the key exchange, in order of preference; Envoy's default if
    /// empty.
    pub curves: Vec<Arc<str>>,
}

/// The parameters as they are written.
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
    /// Parses `field` of the mesh config. Returns the parameters, and its fields without effect.
    /// Invalid values are errors: Envoy would reject every listener, or servers would accept less
    /// or more than intended.
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
            return Err(format!("cipherSuites: {unknown:?} is not a cipher that Envoy supports"));
        }
        // Istio's proxies do not apply curves to the mesh's own mTLS.
        let (curves, ignored) = match (field, &*self.ecdh_curves) {
            (_, []) | ("tlsDefaults", _) => (self.ecdh_curves, Vec::new()),
            _ => (Vec::new(), vec![format!("{field}.ecdhCurves")]),
        };
        if let Some(unknown) = curves.iter().find(|name| !CURVES.contains(&&***name)) {
            let supported = CURVES.join(", ");
            return Err(format!(
                "ecdhCurves: {unknown:?} is not a curve that Envoy supports; expected one of {supported}"
            ));
        }
        Ok((MeshTls { newest_alone, ciphers: self.cipher_suites, curves }, ignored))
    }
}

impl MeshTls {
    /// Returns the parameters in Istio's terms.
    pub(super) fn to_json(&self) -> Value {
        let version = if self.newest_alone { "TLSV1_3" } else { "TLSV1_2" };
        json!({
            "minProtocolVersion": version,
            "cipherSuites": self.ciphers,
            "ecdhCurves": self.curves,
        })
    }
}
