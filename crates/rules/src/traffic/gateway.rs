//! Gateway: on which ports routers take requests and connections, and for which hosts. (Istio, "Gateway";
//! docs/reference/traffic.md, "Gateway".)
//!
//! Reads an object. Which servers of several share a port is decided in [`super::gateways`].

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

/// A Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Which, and how old.
    pub meta: ObjectMeta,
    /// `NAMESPACE/NAME`, as VirtualServices name it.
    pub name: Arc<str>,
    /// The labels of routers that it is for; `None` for all routers.
    pub selector: Option<RuleSelector>,
    /// Its servers.
    pub servers: Box<[GatewayServer]>,
    /// The Ingress that it stands for, where it was made of one.
    pub ingress: Option<ObjectMeta>,
}

/// A port of a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServer {
    /// Its place in the object.
    pub place: usize,
    /// Its name, which prefixes the statistics of its requests; may be empty.
    pub name: Arc<str>,
    /// The port that clients mean: that of the routers' Service.
    pub port: u16,
    /// The name of the port.
    pub port_name: Arc<str>,
    /// The address that it is at; `None` for all of the router's.
    pub bind: Option<IpAddr>,
    /// The hosts that it serves; never empty.
    pub hosts: Box<[ServerHost]>,
    /// What is spoken there.
    pub protocol: ServerProtocol,
    /// Whether gRPC-Web is turned into gRPC.
    pub grpc_web: bool,
    /// Whether requests in plain text are sent to HTTPS instead of being served.
    pub https_redirect: bool,
}

/// A host that a server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHost {
    /// The namespace whose VirtualServices are served; `None` for all.
    pub namespace: Option<Namespace>,
    /// The host.
    pub host: HostPattern,
}

/// What a server speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProtocol {
    /// Requests in plain text.
    Http,
    /// Bytes in plain text.
    Tcp,
    /// Requests in TLS, which ends there.
    Https(ServerTls),
    /// Bytes in TLS, which ends there.
    Tls(ServerTls),
    /// TLS that is passed on unopened, by the name that the client gives.
    Passthrough,
    /// The mesh's own mTLS, passed on by the service that its SNI names: an east-west gateway's.
    AutoPassthrough,
}

/// The longest path of a file, in bytes.
const FILE_MAX: usize = 240;

/// TLS that ends at a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// Whom it takes.
    pub clients: TlsClients,
    /// The Secrets that hold its certificates, the first that of its roots too; none in the mesh's own mTLS, and where they are
    /// files.
    pub credentials: Box<[Arc<str>]>,
    /// Its certificates where they are files at the router.
    pub files: Box<[PairFiles]>,
    /// The Secret that holds the roots of clients, where it is another.
    pub roots: Option<Arc<str>>,
    /// The file at the router that holds them, where no Secret does.
    pub roots_file: Option<Arc<str>>,
    /// The file at the router that says what these roots have revoked. What the Secret of the roots says comes before it.
    pub revoked: Option<Arc<str>>,
    /// The names of which a client's certificate must have one; none for any.
    pub names: Box<[Arc<str>]>,
    /// SHA-256 hashes, in Base64 of keys and in hexadecimal of certificates, of which that of a client must be one; none
    /// for any.
    pub spki: Box<[Arc<str>]>,
    /// See [`Self::spki`].
    pub hashes: Box<[Arc<str>]>,
    /// The oldest and the newest version of TLS; `None` for TLS 1.2, and for whatever is newest.
    pub versions: (Option<TlsVersion>, Option<TlsVersion>),
    /// Ciphers, for versions in which they are chosen; none for the proxy's own choice.
    pub ciphers: Box<[Arc<str>]>,
}

/// Which clients a server takes in TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsClients {
    /// Any; they are asked for no certificate.
    Anybody,
    /// Any; a certificate, if one is shown, must be of the roots.
    IfKnown,
    /// Those with a certificate of the roots.
    Known,
    /// Those of the mesh.
    Mesh,
}

/// A version of TLS, 1.0 to 1.3.
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

/// Whether it is no whole path that a router can be told of; none at all is fine.
fn file_fault(file: &str) -> bool {
    !file.is_empty() && (!file.starts_with('/') || path_fault(file).is_some())
}

impl Gateway {
    /// The object that its owner knows.
    pub fn title(&self) -> String {
        match &self.ingress {
            Some(meta) => format!("Ingress {meta}"),
            None => format!("Gateway {}", self.name),
        }
    }

    /// Where one of its servers is in that object.
    pub fn path_of(&self, server: &GatewayServer) -> String {
        match (&self.ingress, server.place.checked_sub(1)) {
            (None, _) => format!("spec.servers[{}]", server.place),
            (Some(_), None) => "spec.rules".to_owned(),
            (Some(_), Some(place)) => format!("spec.tls[{place}]"),
        }
    }

    /// Whether it selects routers with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_none_or(|selector| labels_match(selector, labels))
    }

    /// Reads an object, with what its owner should know.
    ///
    /// # Errors
    /// Why it is refused whole.
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

/// The certificates of a server that are files, and the file of the roots of its clients.
type ServerFiles = (Box<[PairFiles]>, Option<Arc<str>>);

/// Reads servers, and takes note of what is wrong with them.
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

    /// Notes names of ports that several servers have: routes of HTTPS are named by them.
    fn names(&mut self, servers: &[RawServer]) {
        let mut first_places = BTreeMap::new();
        for (at, server) in servers.iter().enumerate() {
            let name = &server.port.name;
            let first = *first_places.entry(name).or_insert(at);
            if first != at && !name.is_empty() {
                let text = format!(
                    "{name:?} is the name of servers[{first}] as well: of HTTPS at one port the two share their routes"
                );
                self.warn(format!("spec.servers[{at}].port.name"), text);
            }
        }
    }

    /// A server; `None` where nothing can be served.
    fn server(&mut self, place: usize, raw: RawServer) -> Option<GatewayServer> {
        let path = format!("spec.servers[{place}]");
        let Some(port) = u16::try_from(raw.port.number).ok().filter(|port| *port != 0) else {
            let text = format!("{} is no port: the server is left out", raw.port.number);
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
                    let text = format!("{text:?} is no IP address: the server is left out");
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
                if tls.is_some_and(|tls| tls.says_more_than_redirect()) {
                    let text =
                        format!("{given} is plain text: tls has no effect but httpsRedirect");
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
                let known = "HTTP, HTTPS, HTTP2, GRPC, GRPC-WEB, TCP, TLS, MONGO, MYSQL, REDIS";
                self.lost(at, format!("{given:?} is none of {known}: the server is left out"));
                return None;
            }
        };
        let Some(tls) = tls else {
            self.lost(format!("{path}.tls"), format!("{given} needs it: the server is left out"));
            return None;
        };
        let at = format!("{path}.tls");
        let clients = match &*tls.mode {
            mode @ ("" | "PASSTHROUGH") => {
                if mode.is_empty() {
                    self.warn(&*at, "names no mode, which means PASSTHROUGH");
                }
                return Some(ServerProtocol::Passthrough);
            }
            "AUTO_PASSTHROUGH" => return Some(ServerProtocol::AutoPassthrough),
            "SIMPLE" => TlsClients::Anybody,
            "MUTUAL" => TlsClients::Known,
            "OPTIONAL_MUTUAL" => TlsClients::IfKnown,
            "ISTIO_MUTUAL" => TlsClients::Mesh,
            mode => {
                let known =
                    "PASSTHROUGH, SIMPLE, MUTUAL, OPTIONAL_MUTUAL, ISTIO_MUTUAL, AUTO_PASSTHROUGH";
                let text = format!("{mode:?} is none of {known}: the server is left out");
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
        let of_secret = match clients {
            TlsClients::Mesh => Some("the mesh's own certificates come before files".to_owned()),
            _ => credentials.first().map(|name| format!("the Secret {name} comes before files")),
        };
        let (files, roots_file) = match of_secret {
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
                    "{given:?} is none of TLS_AUTO and TLSV1_0 to TLSV1_3: the server is left out"
                );
                self.lost(format!("{at}.{field}"), text);
                None
            }
        };
        let oldest = version("minProtocolVersion", &raw.min_protocol_version)?;
        let newest = version("maxProtocolVersion", &raw.max_protocol_version)?;
        if newest.is_some_and(|newest| newest < oldest.unwrap_or(TlsVersion::V1_2)) {
            let text = "is older than the oldest: the server is left out";
            self.lost(format!("{at}.maxProtocolVersion"), text);
            return None;
        }
        // Without one of these more clients would be let in than it says.
        let pins = [
            ("verifyCertificateSpki", &raw.verify_certificate_spki, 44..=44),
            ("verifyCertificateHash", &raw.verify_certificate_hash, 64..=95),
        ];
        for (field, pins, lengths) in pins {
            if let Some(odd) = pins.iter().find(|pin| !lengths.contains(&pin.len())) {
                let text = format!("{odd:?} is no SHA-256 hash: the server is left out");
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

    /// Certificates in files at the router, and the roots of clients; `None` where nothing can be served.
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
                    let text = "is no whole path of a file at the router: the server is left out";
                    self.lost(format!("{at}{path}"), text);
                    return None;
                }
            }
            let RawCertificateFiles { server_certificate: certificate, private_key: key, .. } =
                files.clone();
            let [of_certificate, of_key] = ["serverCertificate", "privateKey"];
            match (certificate.is_empty(), key.is_empty()) {
                // Roots alone.
                (true, true) => continue,
                (false, false) => pairs.push(PairFiles { certificate, key }),
                (lacks_certificate, _) => {
                    let (lacking, other) = match lacks_certificate {
                        true => (of_certificate, of_key),
                        false => (of_key, of_certificate),
                    };
                    let text =
                        format!("is not there, and {other} needs it: the server is left out");
                    self.lost(format!("{at}{block}.{lacking}"), text);
                    return None;
                }
            }
        }
        if pairs.is_empty() {
            let text = "names no Secret, and serverCertificate no file: the server is left out";
            self.lost(format!("{at}.credentialName"), text);
            return None;
        }
        let mut roots = given.iter().map(|(_, files)| &*files.ca_certificates);
        let roots = roots.find(|file| !file.is_empty()).map(Arc::from);
        let asks = clients != TlsClients::Anybody;
        let fact = match (asks, roots.is_some(), has_roots) {
            (true, false, false) => {
                let text = "is not there, and clients are asked for certificates of it: the server is left out";
                self.lost(format!("{at}.caCertificates"), text);
                return None;
            }
            (false, true, _) => "has no effect: clients are asked for no certificate",
            (true, true, true) => "has no effect: caCertCredentialName comes before files",
            _ => return Some((pairs.into(), roots.filter(|_| asks))),
        };
        self.warn(format!("{at}.caCertificates"), fact);
        Some((pairs.into(), None))
    }

    /// The file of what the roots of clients have revoked; `None` where nothing can be served. Whoever names one means that
    /// some clients are not let in.
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
        if clients == TlsClients::Anybody {
            self.warn(at, "has no effect: clients are asked for no certificate");
            return Some(None);
        }
        let fact = if clients == TlsClients::Mesh {
            "certificates of the mesh are not held against a file: the server is left out"
        } else if !file.starts_with('/') || file.len() > FILE_MAX {
            "is no whole path of a file at the router: the server is left out"
        } else {
            return Some(Some(Arc::clone(file)));
        };
        self.lost(at, fact);
        None
    }

    /// Ciphers by names that Envoy knows: it refuses a whole listener for another.
    fn ciphers(&mut self, at: &str, given: &[Arc<str>]) -> Box<[Arc<str>]> {
        let known = given.iter().enumerate().filter(|(place, name)| {
            let is_known = CIPHERS.contains(&&***name);
            if !is_known {
                let text = format!("{name} is no cipher of Envoy's: it is left out");
                self.lost(format!("{at}.cipherSuites[{place}]"), text);
            }
            is_known
        });
        known.map(|(_, name)| Arc::clone(name)).collect()
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
            // Here a name without a dot is none of a service: it is what clients write.
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
                        self.warn(at, format!("{text:?} is there already"));
                    }
                }
                Err(error) => {
                    let text = format!("{name:?} {error}; the other hosts hold");
                    self.lost(format!("{path}.hosts[{place}]"), text);
                }
            }
        }
        hosts.into()
    }
}

#[cfg(test)]
mod tests;
