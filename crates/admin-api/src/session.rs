//! `/api/login-code` and `/api/probe-identity`: secrets for one use. Also the body
//! of failed responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A code with which a browser opens one session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoginCode {
    /// The code: letters and digits.
    pub code: String,
    /// How long the code is valid, in seconds.
    pub expires_seconds: u64,
}

/// A certificate with which `strait check --traffic` sends requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeIdentity {
    /// The certificate and its intermediates, in PEM.
    pub cert_chain: String,
    /// When the certificate expires.
    pub expires: String,
    /// The SPIFFE identity of the certificate.
    pub identity: String,
    /// The root certificates of the mesh, in PEM.
    pub root_cert: String,
}

/// The body of a response with any status other than 200.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// Why the request failed.
    pub error: String,
}
