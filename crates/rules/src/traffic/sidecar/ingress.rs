//! The way in of a workload as its Sidecar describes it, in place of what its services say. (Istio, "Sidecar",
//! `IstioIngressListener`; docs/reference/traffic.md, "Sidecar".)

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::Deserialize;

use super::egress::RawListenerPort;
use crate::traffic::object::Reason;
use crate::traffic::policy::{PoolLimits, path_fault, pool_limits};
use strait_base::codes;
use strait_model::mesh_config::WrittenPool;
use strait_model::tls_files::{PairFiles, RootFiles};
use strait_model::{Interception, Port, Protocol, TargetPort};

/// One port that a workload takes connections at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarIngress {
    /// The port, which is that of the workload, too.
    pub port: Port,
    /// Where its connections are passed on to.
    pub backend: WorkloadBackend,
    /// Where the proxy listens at the port itself, where it does.
    pub address: IngressAddress,
    /// Whether it does that wherever connections are redirected, too (`captureMode: NONE`).
    pub listens: bool,
    /// TLS that ends at the proxy, at a port that takes no mTLS.
    pub tls: Option<Arc<SidecarTls>>,
    /// What connections to the workload are held to, in place of what holds for all its ports.
    pub pool: Option<Arc<PoolLimits>>,
    /// Its place in the object.
    pub index: usize,
}

/// Where the proxy listens itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressAddress {
    /// At the addresses of its pod.
    Own,
    /// At this one.
    Given(IpAddr),
}

/// Where connections of a port are passed on to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadBackend {
    /// To where the client was going.
    SamePort,
    /// To a port of the pod's loopback.
    Loopback(SocketAddr),
    /// To a port of the pod's own address, of the family of this one.
    PodAddress(SocketAddr),
    /// To a Unix domain socket of the pod: its path.
    UnixSocket(Arc<str>),
}

/// TLS that ends at the proxy, with files of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarTls {
    /// Its certificate.
    pub certificate: PairFiles,
    /// Who vouches for clients, who then have to show a certificate; nobody has to where it is `None`.
    pub clients: Option<RootFiles>,
    /// The names of which a client's certificate must have one; any where there are none.
    pub names: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIngressListener {
    port: RawListenerPort,
    bind: String,
    capture_mode: Option<String>,
    default_endpoint: String,
    tls: Option<RawSidecarTls>,
    connection_pool: Option<WrittenPool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSidecarTls {
    mode: String,
    server_certificate: String,
    private_key: String,
    ca_certificates: String,
    ca_crl: String,
    credential_name: String,
    subject_alt_names: Vec<String>,
}

/// What is wrong with one, and in which field; such a listener is left out.
type IngressFault = (&'static str, String);

/// Reads the listeners of an object. One that can't be read is left out, and costs no other.
pub(super) fn read(raw: Vec<RawIngressListener>, reasons: &mut Vec<Reason>) -> Vec<SidecarIngress> {
    let mut taken = BTreeSet::new();
    let mut all: Vec<SidecarIngress> = Vec::new();
    for (at, raw) in raw.into_iter().enumerate() {
        let path = format!("spec.ingress[{at}]");
        match SidecarIngress::read(raw, at, &path, reasons) {
            Ok(one) if taken.insert(one.port.number) => all.push(one),
            Ok(one) => {
                let text =
                    format!("port {} is in the list before; the first counts", one.port.number);
                reasons.push(Reason::lost(&codes::SIDECAR_INGRESS, path, text));
            }
            Err((field, fact)) => {
                let text = format!("{fact}; the listener is left out");
                let path = format!("{path}.{field}");
                reasons.push(Reason::lost(&codes::SIDECAR_INGRESS, path, text));
            }
        }
    }
    all
}

impl SidecarIngress {
    fn read(
        raw: RawIngressListener,
        index: usize,
        path: &str,
        reasons: &mut Vec<Reason>,
    ) -> Result<Self, IngressFault> {
        let port = raw.port.read()?;
        raw.port.note_unknown_protocol(path, reasons);
        let backend = WorkloadBackend::read(&raw.default_endpoint)
            .map_err(|fact| ("defaultEndpoint", fact))?;
        let bind = match &*raw.bind {
            "" => None,
            text => {
                let address: IpAddr =
                    text.parse().map_err(|_| ("bind", format!("{text:?} is no IP address")))?;
                // All addresses would be those of other listeners as well, and Envoy refuses the second.
                Some(address).filter(|address| !address.is_unspecified())
            }
        };
        let listens = raw.capture_mode.as_deref() == Some("NONE");
        if listens && backend == WorkloadBackend::SamePort {
            let fact = "captureMode: NONE has the proxy listen there itself, and it is not said where the workload does";
            return Err(("defaultEndpoint", fact.to_owned()));
        }
        if !listens && bind.is_some() {
            let text = "connections are taken as they are redirected, to whichever address of the pod; captureMode: NONE listens at one";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, format!("{path}.bind"), text));
        }
        let address = bind.map_or(IngressAddress::Own, IngressAddress::Given);
        let tls = raw.tls.map(RawSidecarTls::read).transpose()?;
        let pool = raw
            .connection_pool
            .map(|raw| pool_limits(raw, &format!("{path}.connectionPool"), reasons));
        Ok(Self {
            port,
            backend,
            address,
            listens,
            tls: tls.map(Arc::new),
            pool: pool.map(Arc::new),
            index,
        })
    }
}

impl SidecarIngress {
    /// Whether the proxy listens at the port itself. What leads to where the client was going would go round in circles there.
    pub fn is_apart(&self, interception: Interception) -> bool {
        let is_alone = interception == Interception::None;
        self.listens || (is_alone && self.backend != WorkloadBackend::SamePort)
    }
}

impl RawListenerPort {
    /// The port of a listener.
    fn read(&self) -> Result<Port, IngressFault> {
        let number = u16::try_from(self.number).ok().filter(|number| *number != 0);
        let number =
            number.ok_or_else(|| ("port.number", format!("{} is no port", self.number)))?;
        let protocol = match self.protocol.to_ascii_uppercase().as_str() {
            "" => Protocol::Auto,
            "UDP" => return Err(("port.protocol", "datagrams are not proxied".to_owned())),
            protocol => Protocol::of_port("TCP", Some(protocol), "", number),
        };
        Ok(Port {
            name: self.name.as_str().into(),
            number,
            protocol,
            target: TargetPort::Number(number),
        })
    }
}

impl WorkloadBackend {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::SamePort);
        }
        if let Some(socket) = text.strip_prefix("unix://") {
            // Longer names are none to Linux (`sockaddr_un`, 108 bytes with the final zero).
            let fits = socket.starts_with(['/', '@']) && (2..108).contains(&socket.len());
            return if fits && !socket.chars().any(char::is_control) {
                Ok(Self::UnixSocket(socket.into()))
            } else {
                Err(format!("{text:?} is no socket: write unix:///PATH, of at most 107 bytes"))
            };
        }
        let at = text.parse::<SocketAddr>().ok().filter(|at| at.port() != 0);
        match at {
            Some(at) if at.ip().is_loopback() => Ok(Self::Loopback(at)),
            Some(at) if at.ip().is_unspecified() => Ok(Self::PodAddress(at)),
            _ => Err(format!(
                "{text:?} leads to no place of the pod: write 127.0.0.1:PORT, [::1]:PORT, 0.0.0.0:PORT, [::]:PORT or \
                 unix:///PATH"
            )),
        }
    }
}

impl RawSidecarTls {
    fn read(self) -> Result<SidecarTls, IngressFault> {
        let is_mutual = match &*self.mode {
            "SIMPLE" => false,
            "MUTUAL" => true,
            other => {
                let fact = format!(
                    "{other:?} is neither SIMPLE nor MUTUAL, and it would be in plain text"
                );
                return Err(("tls.mode", fact));
            }
        };
        if !self.credential_name.is_empty() {
            let fact =
                "sidecars take certificates of files here: name serverCertificate and privateKey";
            return Err(("tls.credentialName", fact.to_owned()));
        }
        let file = |field, path: String| match path_fault(&path) {
            None => Ok(path),
            Some(fact) => Err((field, fact.to_owned())),
        };
        let needed = |field, path: String| match &*path {
            "" => Err((field, "it is not there, and TLS needs it".to_owned())),
            _ => file(field, path),
        };
        let certificate = PairFiles {
            certificate: needed("tls.serverCertificate", self.server_certificate)?,
            key: needed("tls.privateKey", self.private_key)?,
        };
        let clients = if is_mutual {
            let given = |text: String| Some(text).filter(|text| !text.is_empty());
            Some(RootFiles {
                file: Some(needed("tls.caCertificates", self.ca_certificates)?),
                revoked: given(file("tls.caCrl", self.ca_crl)?),
            })
        } else {
            None
        };
        Ok(SidecarTls { certificate, clients, names: self.subject_alt_names })
    }
}
