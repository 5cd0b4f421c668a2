//! Gateway: the ports and hosts that gateway proxies serve (Istio, "Gateway";
//! docs/reference/traffic.md, "Gateway").
//!
//! This module parses an object. [`super::gateway_servers`] decides which servers share a port.

mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use self::raw::{RawCertificateFiles, RawGatewayObject, RawServer, RawServerTls};
use super::hosts::HostPattern;
use super::object::{self, ObjectMeta, Reason};
use super::policy::path_fault;
use super::selection::{self, RuleSelector};
use strait_base::codes;
use strait_model::mesh_config::CIPHERS;
use strait_model::tls_files::PairFiles;
use strait_model::{Labels, Namespace, labels_match};

/// A parsed Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// `NAMESPACE/NAME`, as in VirtualServices.
    pub name: Arc<str>,
    /// Labels of the gateway proxies that it applies to; `None` for all of them.
    pub selector: Option<RuleSelector>,
    /// Servers of the Gateway.
    pub servers: Box<[GatewayServer]>,
    /// The Ingress from which it was generated, if any.
    pub ingress: Option<ObjectMeta>,
}

/// A server of a Gateway: a port with its hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServer {
    /// Index in the object.
    pub place: usize,
    /// Name of the server, which prefixes the statistics of its requests. May be empty.
    pub name: Arc<str>,
    /// Port number of the gateway's Service, which clients use.
    pub port: u16,
    /// Name of the port.
    pub port_name: Arc<str>,
    /// Address of the listener; `None` for all addresses of the gateway.
    pub bind: Option<IpAddr>,
    /// Hosts of the server; never empty.
    pub hosts: Box<[ServerHost]>,
    /// Protocol of the server.
    pub protocol: ServerProtocol,
    /// Whether gRPC-Web is translated to gRPC.
    pub grpc_web: bool,
    /// Whether plaintext requests are redirected to HTTPS instead of being served.
    pub https_redirect: bool,
}

/// A host of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHost {
    /// Namespace whose VirtualServices apply; `None` for all namespaces.
    pub namespace: Option<Namespace>,
    /// The host pattern.
    pub host: HostPattern,
}

/// Protocol of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProtocol {
    /// HTTP in plaintext.
    Http,
    /// TCP in plaintext.
    Tcp,
    /// HTTP over TLS, terminated at the gateway.
    Https(ServerTls),
    /// TCP over TLS, terminated at the gateway.
    Tls(ServerTls),
    /// TLS that is forwarded without termination, by SNI.
    Passthrough,
    /// The mesh's own mTLS, forwarded to the service in the SNI. Used by east-west gateways.
    AutoPassthrough,
}

/// Maximum length of a file path in bytes.
const FILE_MAX: usize = 240;

/// TLS settings of a server that terminates TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// Clients that the server accepts.
    pub clients: TlsClients,
    /// Secrets with its certificates; the first also contains the root certificates for clients.
    /// Empty for the mesh's own mTLS, and if the certificates are files.
    pub credentials: Box<[Arc<str>]>,
    /// Certificates in files at the gateway.
    pub files: Box<[PairFiles]>,
    /// Secret with the root certificates for clients, if it is a separate one.
    pub roots: Option<Arc<str>>,
    /// File at the gateway with the root certificates for clients, if they are not in a Secret.
    pub roots_file: Option<Arc<str>>,
    /// File at the gateway with the revocation list of these roots. A revocation list in the Secret
    /// takes precedence.
    pub revoked: Option<Arc<str>>,
    /// Accepted names in client certificates. Empty accepts any name.
    pub names: Box<[Arc<str>]>,
    /// Accepted SHA-256 hashes of client keys, in Base64. Empty accepts any key. If `hashes` is set
    /// too, a match in either list suffices.
    pub spki: Box<[Arc<str>]>,
    /// Accepted SHA-256 hashes of client certificates, in hexadecimal: see [`Self::spki`].
    pub hashes: Box<[Arc<str>]>,
    /// Oldest and newest TLS version. `None` is TLS 1.2 for the oldest, and the newest supported
    /// version for the newest.
    pub versions: (Option<TlsVersion>, Option<TlsVersion>),
    /// Ciphers, for versions in which they are configurable. Empty for the default of the proxy.
    pub ciphers: Box<[Arc<str>]>,
}

/// Clients that a TLS server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsClients {
    /// All clients; no certificate is requested.
    Any,
    /// All clients; a certificate is optional and must be signed by the roots.
    OptionalCertificate,
    /// Clients with a certificate that is signed by the roots.
    RequiredCertificate,
    /// Clients of the mesh.
    Mesh,
}

/// A TLS version, 1.0 to 1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.0.
    V1_0,
    /// TLS 1.1.
    V1_1,
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// Returns whether a path is neither empty nor a valid absolute path of a file at the gateway.
fn file_fault(file: &str) -> bool {
    !file.is_empty() && (!file.starts_with('/') || path_fault(file).is_some())
}

impl Gateway {
    /// Returns the kind and name of the object that the owner wrote.
    pub fn title(&self) -> String {
        match &self.ingress {
            Some(meta) => format!("Ingress {meta}"),
            None => format!("Gateway {}", self.name),
        }
    }

    /// Returns the path of a server in that object.
    pub fn server_path(&self, server: &GatewayServer) -> String {
        match (&self.ingress, server.place.checked_sub(1)) {
            (None, _) => format!("spec.servers[{}]", server.place),
            (Some(_), None) => "spec.rules".to_owned(),
            (Some(_), Some(place)) => format!("spec.tls[{place}]"),
        }
    }

    /// Returns whether it applies to gateway proxies with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_none_or(|selector| labels_match(selector, labels))
    }

    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, reasons) = object::body::<RawGatewayObject>(object)?;
        let mut reader = ServerReader { namespace: &meta.namespace, reasons };
        if raw.servers.is_empty() {
            let text = "has no servers: nothing is served";
            reader.lost("spec.servers", text);
        }
        reader.names(&raw.servers);
        let servers = raw.servers.into_iter().enumerate();
        let servers = servers.filter_map(|(place, raw)| reader.server(place, raw)).collect();
        let reasons = reader.reasons;
        let selector = selection::selector(&raw.selector);
        let name = meta.to_string().into();
        Ok((Self { name, meta, selector, servers, ingress: None }, reasons))
    }
}

/// The certificates of a server in files, and the file with the root certificates for its clients.
type ServerFiles = (Box<[PairFiles]>, Option<Arc<str>>);

/// Parser of servers, which collects reasons.
struct ServerReader<'a> {
    namespace: &'a Namespace,
    reasons: Vec<Reason>,
}

impl ServerReader<'_> {
    fn lost(&mut self, path: impl Into<String>, text: impl std::fmt::Display) {
        self.reasons.push(Reason::lost(&codes::GATEWAY_SERVER, path, text));
    }

    fn warn(&mut self, path: impl Into<String>, text: impl std::fmt::Display) {
        self.reasons.push(Reason::warning(&codes::GATEWAY_SERVER, path, text));
    }

    /// Reports port names that several servers have, because HTTPS routes are identified by port
    /// name.
    fn names(&mut self, servers: &[RawServer]) {
        let mut first_places = BTreeMap::new();
        for (at, server) in servers.iter().enumerate() {
            let name = &server.port.name;
            let first = *first_places.entry(name).or_insert(at);
            if first != at && !name.is_empty() {
                let text = format!(
                    "{name:?} is also the name of servers[{first}]: HTTPS servers with the same \
                     port and name share their routes"
                );
                self.warn(format!("spec.servers[{at}].port.name"), text);
            }
        }
    }

    /// Parses a server; `None` if it is left out.
    fn server(&mut self, place: usize, raw: RawServer) -> Option<GatewayServer> {
        let path = format!("spec.servers[{place}]");
        let Some(port) = u16::try_from(raw.port.number).ok().filter(|port| *port != 0) else {
            let text = format!("{} is not a valid port: the server is left out", raw.port.number);
            self.reasons.push(Reason::lost(
                &codes::TRAFFIC_PORT,
                format!("{path}.port.number"),
                text,
            ));
            return None;
        };
        let bind = match &*raw.bind {
            "" => None,
            text => match text.parse::<IpAddr>() {
                Ok(address) => Some(address).filter(|address| !address.is_unspecified()),
                Err(_) => {
                    let text = format!("{text:?} is not an IP address: the server is left out");
                    self.lost(format!("{path}.bind"), text);
                    return None;
                }
            },
        };
        let https_redirect = raw.tls.as_ref().is_some_and(|tls| tls.https_redirect);
        let grpc_web = raw.port.protocol.eq_ignore_ascii_case("GRPC-WEB");
        let protocol = self.protocol(&path, &raw.port.protocol, raw.tls)?;
        let hosts = self.hosts(&path, &raw.hosts);
        if hosts.is_empty() {
            self.lost(format!("{path}.hosts"), "has no host: the server is left out");
            return None;
        }
        let port_name = raw.port.name;
        Some(GatewayServer {
            place,
            name: raw.name,
            port,
            port_name,
            bind,
            hosts,
            protocol,
            grpc_web,
            https_redirect,
        })
    }

    fn protocol(
        &mut self,
        path: &str,
        given: &str,
        tls: Option<RawServerTls>,
    ) -> Option<ServerProtocol> {
        let at = format!("{path}.port.protocol");
        let is_http = match &*given.to_ascii_uppercase() {
            "HTTP" | "HTTP2" | "GRPC" | "GRPC-WEB" => {
                if tls.is_some_and(|tls| tls.has_more_than_redirect()) {
                    let text =
                        format!("{given} is plaintext: in tls, only httpsRedirect has an effect");
                    self.warn(format!("{path}.tls"), text);
                }
                return Some(ServerProtocol::Http);
            }
            "TCP" | "MONGO" | "MYSQL" | "REDIS" if tls.is_none() => {
                return Some(ServerProtocol::Tcp);
            }
            "HTTPS" => true,
            "TLS" | "TCP" | "MONGO" | "MYSQL" | "REDIS" => false,
            _ => {
                let protocols = "HTTP, HTTPS, HTTP2, GRPC, GRPC-WEB, TCP, TLS, MONGO, MYSQL, REDIS";
                self.lost(
                    at,
                    format!("{given:?} is not valid, use {protocols}: the server is left out"),
                );
                return None;
            }
        };
        let Some(tls) = tls else {
            self.lost(
                format!("{path}.tls"),
                format!(
                    "is required for {given}: the server is left \
                                                      out"
                ),
            );
            return None;
        };
        let at = format!("{path}.tls");
        let clients = match &*tls.mode {
            mode @ ("" | "PASSTHROUGH") => {
                if mode.is_empty() {
                    self.warn(&*at, "has no mode, so PASSTHROUGH applies");
                }
                return Some(ServerProtocol::Passthrough);
            }
            "AUTO_PASSTHROUGH" => return Some(ServerProtocol::AutoPassthrough),
            "SIMPLE" => TlsClients::Any,
            "MUTUAL" => TlsClients::RequiredCertificate,
            "OPTIONAL_MUTUAL" => TlsClients::OptionalCertificate,
            "ISTIO_MUTUAL" => TlsClients::Mesh,
            mode => {
                let modes =
                    "PASSTHROUGH, SIMPLE, MUTUAL, OPTIONAL_MUTUAL, ISTIO_MUTUAL, AUTO_PASSTHROUGH";
                let text = format!("{mode:?} is not valid, use {modes}: the server is left out");
                self.lost(format!("{at}.mode"), text);
                return None;
            }
        };
        let tls = self.tls(&at, clients, tls)?;
        Some(if is_http { ServerProtocol::Https(tls) } else { ServerProtocol::Tls(tls) })
    }

    fn tls(&mut self, at: &str, clients: TlsClients, raw: RawServerTls) -> Option<ServerTls> {
        let revoked = self.revoked(at, clients, &raw)?;
        let files = raw.files();
        let credentials: Box<[Arc<str>]> = match &*raw.credential_name {
            "" => raw.credential_names,
            _ => [raw.credential_name].into(),
        };
        let roots = Some(raw.ca_cert_credential_name).filter(|name| !name.is_empty());
        let precedence = match clients {
            TlsClients::Mesh => {
                Some("the mesh's own certificates take precedence over files".to_owned())
            }
            _ => credentials.first().map(|name| {
                format!(
                    "the Secret {name} takes precedence over \
                                                         files"
                )
            }),
        };
        let (files, roots_file) = match precedence {
            Some(first) => {
                for (path, file) in files.iter().flat_map(|(path, files)| files.named(path)) {
                    if !file.is_empty() {
                        self.warn(format!("{at}{path}"), format!("has no effect: {first}"));
                        break;
                    }
                }
                (Box::default(), None)
            }
            None => self.files(at, clients, roots.is_some(), &files)?,
        };
        let mut version = |field: &str, given: &str| match given {
            "" | "TLS_AUTO" => Some(None),
            "TLSV1_0" => Some(Some(TlsVersion::V1_0)),
            "TLSV1_1" => Some(Some(TlsVersion::V1_1)),
            "TLSV1_2" => Some(Some(TlsVersion::V1_2)),
            "TLSV1_3" => Some(Some(TlsVersion::V1_3)),
            _ => {
                let text = format!(
                    "{given:?} is not valid, use TLS_AUTO or TLSV1_0 to TLSV1_3: the server is \
                     left out"
                );
                self.lost(format!("{at}.{field}"), text);
                None
            }
        };
        let oldest = version("minProtocolVersion", &raw.min_protocol_version)?;
        let newest = version("maxProtocolVersion", &raw.max_protocol_version)?;
        if newest.is_some_and(|newest| newest < oldest.unwrap_or(TlsVersion::V1_2)) {
            let text = "is older than the minimum version: the server is left out";
            self.lost(format!("{at}.maxProtocolVersion"), text);
            return None;
        }
        // Without any of these hashes, the server would accept more clients than the object says.
        let pins = [
            ("verifyCertificateSpki", &raw.verify_certificate_spki, 44..=44),
            ("verifyCertificateHash", &raw.verify_certificate_hash, 64..=95),
        ];
        for (field, pins, lengths) in pins {
            if let Some(invalid) = pins.iter().find(|pin| !lengths.contains(&pin.len())) {
                let text = format!("{invalid:?} is not a SHA-256 hash: the server is left out");
                self.lost(format!("{at}.{field}"), text);
                return None;
            }
        }
        Some(ServerTls {
            clients,
            credentials: if clients == TlsClients::Mesh { Box::default() } else { credentials },
            files,
            roots,
            roots_file,
            revoked,
            names: raw.subject_alt_names,
            spki: raw.verify_certificate_spki,
            hashes: raw.verify_certificate_hash,
            versions: (oldest, newest),
            ciphers: self.ciphers(at, &raw.cipher_suites),
        })
    }

    /// Parses the certificates in files at the gateway, and the root certificates for clients;
    /// `None` if the server is left out.
    fn files(
        &mut self,
        at: &str,
        clients: TlsClients,
        has_roots: bool,
        given: &[(String, RawCertificateFiles)],
    ) -> Option<ServerFiles> {
        let mut pairs = Vec::with_capacity(given.len());
        for (block, files) in given {
            for (path, file) in files.named(block) {
                if file_fault(file) {
                    let text = "is not a valid absolute path of a file at the gateway: the server \
                                is left out";
                    self.lost(format!("{at}{path}"), text);
                    return None;
                }
            }
            let RawCertificateFiles { server_certificate: certificate, private_key: key, .. } =
                files.clone();
            let [certificate_field, key_field] = ["serverCertificate", "privateKey"];
            match (certificate.is_empty(), key.is_empty()) {
                // Only root certificates.
                (true, true) => continue,
                (false, false) => pairs.push(PairFiles { certificate, key }),
                (lacks_certificate, _) => {
                    let (lacking, other) = match lacks_certificate {
                        true => (certificate_field, key_field),
                        false => (key_field, certificate_field),
                    };
                    let text =
                        format!("is missing, but {other} requires it: the server is left out");
                    self.lost(format!("{at}{block}.{lacking}"), text);
                    return None;
                }
            }
        }
        if pairs.is_empty() {
            let text = "contains no Secret, and serverCertificate contains no file: the server is \
                        left out";
            self.lost(format!("{at}.credentialName"), text);
            return None;
        }
        let mut roots = given.iter().map(|(_, files)| &*files.ca_certificates);
        let roots = roots.find(|file| !file.is_empty()).map(Arc::from);
        let requests_certificate = clients != TlsClients::Any;
        let fact = match (requests_certificate, roots.is_some(), has_roots) {
            (true, false, false) => {
                let text = "is missing, but client certificates must be verified with it: the \
                            server is left out";
                self.lost(format!("{at}.caCertificates"), text);
                return None;
            }
            (false, true, _) => "has no effect: client certificates are not requested",
            (true, true, true) => "has no effect: caCertCredentialName takes precedence over files",
            _ => return Some((pairs.into(), roots.filter(|_| requests_certificate))),
        };
        self.warn(format!("{at}.caCertificates"), fact);
        Some((pairs.into(), None))
    }

    /// Parses the file with the revocation list of the client roots; `None` if the server is left
    /// out. An unusable list must not be ignored, because then the server would accept revoked
    /// clients.
    fn revoked(
        &mut self,
        at: &str,
        clients: TlsClients,
        raw: &RawServerTls,
    ) -> Option<Option<Arc<str>>> {
        let file = &raw.ca_crl;
        let at = format!("{at}.caCrl");
        if file.is_empty() {
            return Some(None);
        }
        if clients == TlsClients::Any {
            self.warn(at, "has no effect: client certificates are not requested");
            return Some(None);
        }
        let fact = if clients == TlsClients::Mesh {
            "certificates of the mesh are not checked against a revocation file: the server is \
             left out"
        } else if !file.starts_with('/') || file.len() > FILE_MAX {
            "is not a valid absolute path of a file at the gateway: the server is left out"
        } else {
            return Some(Some(Arc::clone(file)));
        };
        self.lost(at, fact);
        None
    }

    /// Returns the ciphers that Envoy supports. Envoy rejects the whole listener for an unknown
    /// one.
    fn ciphers(&mut self, at: &str, given: &[Arc<str>]) -> Box<[Arc<str>]> {
        let supported = given.iter().enumerate().filter(|(place, name)| {
            let is_supported = CIPHERS.contains(&&***name);
            if !is_supported {
                let text = format!("Envoy does not support the cipher {name}: it is left out");
                self.lost(format!("{at}.cipherSuites[{place}]"), text);
            }
            is_supported
        });
        supported.map(|(_, name)| Arc::clone(name)).collect()
    }

    fn hosts(&mut self, path: &str, given: &[String]) -> Box<[ServerHost]> {
        let mut hosts: Vec<ServerHost> = Vec::with_capacity(given.len());
        let mut before = BTreeSet::new();
        for (place, text) in given.iter().enumerate() {
            let (namespace, name) = text.split_once('/').unwrap_or(("*", text));
            let namespace = match namespace {
                "*" => None,
                "." => Some(self.namespace.clone()),
                name => Some(Namespace::from(name)),
            };
            // A name without a dot is not the short name of a service here: it is the host in
            // requests.
            let parsed = HostPattern::parse(name, "", "").map(|host| match host {
                HostPattern::Exact(_) => HostPattern::Exact(name.to_ascii_lowercase().into()),
                under => under,
            });
            match parsed {
                Ok(host) => {
                    if before.insert((namespace.clone(), host.clone())) {
                        hosts.push(ServerHost { namespace, host });
                    } else {
                        let at = format!("{path}.hosts[{place}]");
                        self.warn(at, format!("{text:?} is a duplicate"));
                    }
                }
                Err(error) => {
                    let text = format!("{name:?} {error}; the other hosts apply");
                    self.lost(format!("{path}.hosts[{place}]"), text);
                }
            }
        }
        hosts.into()
    }
}

#[cfg(test)]
mod tests;
