//! How a service is spoken to by TLS, and when that can't be. What can't be made is never plain text in its place:
//! whoever asked for TLS is given no way to the service then. (Istio, `ClientTLSSettings`;
//! docs/decisions/0042-tls-to-services.md.)

use std::net::IpAddr;

use serde::Deserialize;

use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::tls_files::{PairFiles, RootFiles};

/// How a service is spoken to, where a rule says that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientTls {
    /// In plain text, whatever its endpoints take.
    Disable,
    /// By the mesh's mTLS, whatever its endpoints take.
    Mesh(ServerName),
    /// As servers are spoken to that know nothing of the mesh.
    Foreign(ForeignTls),
    /// Not at all: what the rule asks for can't be made.
    Impossible,
}

/// Which server is asked for, and which is accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServerName {
    /// The name that is asked for (SNI), at most 255 bytes; empty for the default.
    pub sni: String,
    /// The names of which the server's certificate must have one; empty for the default.
    pub subject_alt_names: Vec<String>,
}

/// TLS to a server that knows nothing of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForeignTls {
    /// Which server.
    pub server: ServerName,
    /// Who vouches for it; `None` where nobody has to.
    pub roots: Option<TrustedRoots>,
    /// The client's own certificate, where it shows one.
    pub client: Option<ClientCertificate>,
    /// Whether routers alone can speak so: what it takes are Secrets, which sidecars are given by a rule that selects them.
    pub by_routers: bool,
}

/// Who may vouch for a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrustedRoots {
    /// Those of files at the proxy.
    Files(RootFiles),
    /// Those of a Secret of the proxy's namespace, by its name.
    Secret(String),
}

/// A client's own certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientCertificate {
    /// That of files at the proxy.
    Files(PairFiles),
    /// That of a Secret of the proxy's namespace, by its name.
    Secret(String),
}

/// Whose policy it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleScope {
    /// That of a rule for all workloads that see it. Of these routers may be given Secrets of theirs.
    Everybody,
    /// That of a rule for those of its namespace that its selector selects. They may be given Secrets of theirs.
    Selected,
}

/// Envoy's longest SNI, in bytes.
const SNI_MAX: usize = 255;
/// The longest path, in bytes: two of them make the name of a secret, of at most 512.
const PATH_MAX: usize = 240;

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
enum RawTlsMode {
    /// What the schema has where no mode is named.
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

/// Why it can't be made: the field that says so, and what is wrong with it.
type Obstacle = (&'static str, String);

impl RawClientTls {
    pub(super) fn read(self, path: &str, scope: RuleScope, reasons: &mut Vec<Reason>) -> ClientTls {
        self.made(path, scope, reasons).unwrap_or_else(|(field, fact)| {
            let text = format!("{fact}; nothing connects, rather than in plain text");
            reasons.push(Reason::lost(&codes::TRAFFIC_TLS, format!("{path}.{field}"), text));
            ClientTls::Impossible
        })
    }

    fn made(
        self,
        path: &str,
        scope: RuleScope,
        reasons: &mut Vec<Reason>,
    ) -> Result<ClientTls, Obstacle> {
        let mode = self.mode.unwrap_or_default();
        if self.mode.is_none() {
            let text = "no mode is named, which means DISABLE: plain text; name the mode";
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
            return Err(("sni", format!("it is no name of at most {SNI_MAX} bytes")));
        }
        if self.insecure_skip_verify
            && mode != RawTlsMode::IstioMutual
            && !subject_alt_names.is_empty()
        {
            let path = format!("{path}.subjectAltNames");
            let text =
                "insecureSkipVerify has the server's certificate accepted without these names";
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
                replaced(field, "ISTIO_MUTUAL has the certificates of the mesh, which count");
            }
            return Ok(ClientTls::Mesh(server));
        }
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        if !self.credential_name.is_empty() {
            for (field, _) in files.into_iter().filter(|(_, file)| !file.is_empty()) {
                replaced(field, "credentialName is there as well, and counts");
            }
            let Some(secret) = secret_name(&self.credential_name) else {
                let fact = "it names no Secret of the workload's own namespace";
                return Err(("credentialName", fact.to_owned()));
            };
            let by_routers = scope == RuleScope::Everybody;
            if by_routers {
                let text = "routers are given this Secret of their namespace; sidecars are given Secrets by rules with a \
                            workloadSelector alone, and have no way there, rather than one in plain text";
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
            // Envoy watches the folder of a file, and rejects a path without one.
            if !file.is_empty() && !file.starts_with('/') {
                return Err((field, "it is no absolute path of a file at the proxy".to_owned()));
            }
        }
        let client = match (mode, given(&self.client_certificate), given(&self.private_key)) {
            (RawTlsMode::Mutual, Some(certificate), Some(key)) => {
                Some(ClientCertificate::Files(PairFiles { certificate, key }))
            }
            (RawTlsMode::Mutual, None, _) => {
                return Err(("clientCertificate", "MUTUAL needs it, and it is not there".into()));
            }
            (RawTlsMode::Mutual, _, None) => {
                return Err(("privateKey", "MUTUAL needs it, and it is not there".into()));
            }
            (_, certificate, _) => {
                if certificate.is_some() {
                    replaced("clientCertificate", "SIMPLE shows none; MUTUAL does");
                }
                None
            }
        };
        let roots = RootFiles { file: given(&ca_certificates), revoked: given(&ca_crl) };
        let checks = !self.insecure_skip_verify || roots != RootFiles::default();
        if self.insecure_skip_verify && checks {
            replaced("insecureSkipVerify", "roots are named, and the server is checked by them");
        }
        reasons.extend(unchecked.filter(|_| !checks));
        let roots = checks.then_some(TrustedRoots::Files(roots));
        Ok(ClientTls::Foreign(ForeignTls { server, roots, client, by_routers: false }))
    }
}

/// The Secret that a workload is given by that name.
fn secret_name(text: &str) -> Option<String> {
    let name = text.strip_prefix("kubernetes://").unwrap_or(text);
    let legal =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_one = !name.is_empty() && name.len() <= 253 && name.bytes().all(legal);
    is_one.then(|| name.to_owned())
}

/// Why a proxy can't be told of the file at that path. Envoy reads it; its name stands among others in the name of a
/// secret, with `~` between them.
pub(in crate::traffic) fn path_fault(text: &str) -> Option<&'static str> {
    if text.contains('~') || text.chars().any(char::is_control) {
        return Some("it is no path that a proxy can be told: it has a ~ or a control character");
    }
    let fact = "it is longer than the 240 bytes of a path that a proxy can be told";
    (text.len() > PATH_MAX).then_some(fact)
}

/// What a name that a certificate must have is a name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// `scheme://…`, as SPIFFE IDs are.
    Uri,
    /// An IP address.
    Address,
    /// A DNS name.
    Dns,
}

impl NameKind {
    /// By how it is written: the schema doesn't say.
    pub fn of(name: &str) -> Self {
        if name.contains("://") {
            Self::Uri
        } else if name.parse::<IpAddr>().is_ok() {
            Self::Address
        } else {
            Self::Dns
        }
    }
}
