//! TLS settings of clients for a service. If the settings cannot be applied, clients never fall
//! back to plaintext: the service becomes unreachable for them (Istio, `ClientTLSSettings`;
//! docs/contributing/decisions/0042-tls-to-services.md).

use std::net::IpAddr;

use serde::Deserialize;

use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::tls_files::{PairFiles, RootFiles};

/// TLS settings of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientTls {
    /// Plaintext, even if the endpoints accept mTLS.
    Disable,
    /// The mesh's mTLS, even if the endpoints do not accept it.
    Mesh(ServerName),
    /// TLS to servers outside of the mesh.
    Foreign(ForeignTls),
    /// No connection, because the settings of the rule cannot be applied.
    Impossible,
}

/// Requested server name and accepted certificate names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServerName {
    /// Requested server name (SNI), at most 255 bytes; empty for the default.
    pub sni: String,
    /// Accepted names in the server's certificate. Empty for the default.
    pub subject_alt_names: Vec<String>,
}

/// TLS to a server outside of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForeignTls {
    /// Name of the server.
    pub server: ServerName,
    /// Root certificates that verify the server; `None` without verification.
    pub roots: Option<TrustedRoots>,
    /// Client certificate, if the client has one.
    pub client: Option<ClientCertificate>,
    /// Whether only gateway proxies can use it. It needs Secrets, and sidecars receive Secrets only
    /// through a rule that selects them.
    pub by_routers: bool,
}

/// Root certificates that verify a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrustedRoots {
    /// Files at the proxy.
    Files(RootFiles),
    /// Name of a Secret in the proxy's namespace.
    Secret(String),
}

/// Client certificate and key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientCertificate {
    /// Files at the proxy.
    Files(PairFiles),
    /// Name of a Secret in the proxy's namespace.
    Secret(String),
}

/// Workloads that the rule of a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleScope {
    /// All workloads that the rule is exported to. Among these, gateway proxies may receive Secrets
    /// of their namespace.
    AllWorkloads,
    /// Workloads of the rule's namespace that its selector matches. They may receive Secrets of
    /// their namespace.
    Selected,
}

/// Maximum length of Envoy's SNI in bytes.
const SNI_MAX: usize = 255;
/// Maximum length of a path in bytes. Two paths are part of the name of an Envoy secret, which has
/// at most 512 bytes.
const PATH_MAX: usize = 240;

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
enum RawTlsMode {
    /// Default of the schema without a mode.
    #[default]
    #[serde(rename = "DISABLE")]
    Disable,
    #[serde(rename = "SIMPLE")]
    Simple,
    #[serde(rename = "MUTUAL")]
    Mutual,
    #[serde(rename = "ISTIO_MUTUAL")]
    IstioMutual,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawClientTls {
    mode: Option<RawTlsMode>,
    sni: String,
    subject_alt_names: Vec<String>,
    ca_certificates: String,
    client_certificate: String,
    private_key: String,
    ca_crl: String,
    credential_name: String,
    insecure_skip_verify: bool,
}

/// Reason why the settings cannot be applied: the field and the problem.
type Obstacle = (&'static str, String);

impl RawClientTls {
    pub(super) fn read(self, path: &str, scope: RuleScope, reasons: &mut Vec<Reason>) -> ClientTls {
        self.build(path, scope, reasons).unwrap_or_else(|(field, fact)| {
            let text =
                format!("{fact}; clients cannot connect (there is no fallback to plaintext)");
            reasons.push(Reason::lost(&codes::TRAFFIC_TLS, format!("{path}.{field}"), text));
            ClientTls::Impossible
        })
    }

    fn build(
        self,
        path: &str,
        scope: RuleScope,
        reasons: &mut Vec<Reason>,
    ) -> Result<ClientTls, Obstacle> {
        let mode = self.mode.unwrap_or_default();
        if self.mode.is_none() {
            let text = "the mode is not set, so DISABLE applies, which is plaintext; set the mode";
            reasons.push(Reason::warning(&codes::TRAFFIC_PLAIN_TEXT, format!("{path}.mode"), text));
        }
        if mode == RawTlsMode::Disable {
            return Ok(ClientTls::Disable);
        }
        let mut unchecked = None;
        let mut replaced = |field: &str, text: &str| {
            let path = format!("{path}.{field}");
            reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
        };
        let Self { sni, subject_alt_names, ca_certificates, ca_crl, .. } = self;
        if sni.len() > SNI_MAX || sni.contains('\0') {
            return Err(("sni", format!("it is not a valid name of at most {SNI_MAX} bytes")));
        }
        if self.insecure_skip_verify
            && mode != RawTlsMode::IstioMutual
            && !subject_alt_names.is_empty()
        {
            let path = format!("{path}.subjectAltNames");
            let text = "insecureSkipVerify accepts the server's certificate without these names";
            unchecked = Some(Reason::lost(&codes::TRAFFIC_TLS_UNCHECKED, path, text));
        }
        let server = ServerName { sni, subject_alt_names };
        let files = [
            ("clientCertificate", &self.client_certificate),
            ("privateKey", &self.private_key),
            ("caCertificates", &ca_certificates),
            ("caCrl", &ca_crl),
        ];
        if mode == RawTlsMode::IstioMutual {
            for (field, _) in files.into_iter().filter(|(_, file)| !file.is_empty()) {
                replaced(field, "ISTIO_MUTUAL uses the certificates of the mesh instead");
            }
            return Ok(ClientTls::Mesh(server));
        }
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        if !self.credential_name.is_empty() {
            for (field, _) in files.into_iter().filter(|(_, file)| !file.is_empty()) {
                replaced(field, "credentialName is set too and takes precedence");
            }
            let Some(secret) = secret_name(&self.credential_name) else {
                let fact = "it is not the name of a Secret in the workload's namespace";
                return Err(("credentialName", fact.to_owned()));
            };
            let by_routers = scope == RuleScope::AllWorkloads;
            if by_routers {
                let text = "gateways receive this Secret from their namespace; sidecars receive \
                            Secrets only through a rule with a workloadSelector, and cannot \
                            connect without one (there is no fallback to plaintext)";
                let path = format!("{path}.credentialName");
                reasons.push(Reason::warning(&codes::TRAFFIC_TLS, path, text));
            }
            let is_mutual = mode == RawTlsMode::Mutual;
            let client = is_mutual.then(|| ClientCertificate::Secret(secret.clone()));
            let roots = (!self.insecure_skip_verify).then_some(TrustedRoots::Secret(secret));
            reasons.extend(unchecked);
            return Ok(ClientTls::Foreign(ForeignTls { server, roots, client, by_routers }));
        }
        for (field, file) in files {
            if let Some(fact) = path_fault(file) {
                return Err((field, fact.to_owned()));
            }
            // Envoy watches the directory of a file, and rejects a path without one.
            if !file.is_empty() && !file.starts_with('/') {
                return Err((
                    field,
                    "it is not an absolute path of a file at the proxy".to_owned(),
                ));
            }
        }
        let client = match (mode, given(&self.client_certificate), given(&self.private_key)) {
            (RawTlsMode::Mutual, Some(certificate), Some(key)) => {
                Some(ClientCertificate::Files(PairFiles { certificate, key }))
            }
            (RawTlsMode::Mutual, None, _) => {
                return Err(("clientCertificate", "MUTUAL requires it, but it is missing".into()));
            }
            (RawTlsMode::Mutual, _, None) => {
                return Err(("privateKey", "MUTUAL requires it, but it is missing".into()));
            }
            (_, certificate, _) => {
                if certificate.is_some() {
                    replaced(
                        "clientCertificate",
                        "SIMPLE sends no client certificate; MUTUAL does",
                    );
                }
                None
            }
        };
        let roots = RootFiles { file: given(&ca_certificates), revoked: given(&ca_crl) };
        let checks = !self.insecure_skip_verify || roots != RootFiles::default();
        if self.insecure_skip_verify && checks {
            replaced("insecureSkipVerify", "root certificates are set, and verify the server");
        }
        reasons.extend(unchecked.filter(|_| !checks));
        let roots = checks.then_some(TrustedRoots::Files(roots));
        Ok(ClientTls::Foreign(ForeignTls { server, roots, client, by_routers: false }))
    }
}

/// Returns the name of the Secret in the workload's namespace.
fn secret_name(text: &str) -> Option<String> {
    let name = text.strip_prefix("kubernetes://").unwrap_or(text);
    let legal =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_valid = !name.is_empty() && name.len() <= 253 && name.bytes().all(legal);
    is_valid.then(|| name.to_owned())
}

/// Returns the reason why a proxy cannot receive the path of a file. Envoy secrets are named after
/// such paths, joined with `~`.
pub(in crate::traffic) fn path_fault(text: &str) -> Option<&'static str> {
    if text.contains('~') || text.chars().any(char::is_control) {
        return Some("it is not a supported path: it contains a ~ or a control character");
    }
    let fact = "it is longer than 240 bytes";
    (text.len() > PATH_MAX).then_some(fact)
}

/// Kind of a name in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// `scheme://…`, for example a SPIFFE ID.
    Uri,
    /// An IP address.
    Address,
    /// A DNS name.
    Dns,
}

impl NameKind {
    /// Returns the kind that follows from the text, because the schema does not specify it.
    pub fn from_text(name: &str) -> Self {
        if name.contains("://") {
            Self::Uri
        } else if name.parse::<IpAddr>().is_ok() {
            Self::Address
        } else {
            Self::Dns
        }
    }
}
