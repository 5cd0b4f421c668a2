//! Inbound listeners of a Sidecar, which replace the ports of the workload's services (Istio,
//! "Sidecar", `IstioIngressListener`; docs/reference/traffic.md, "Sidecar").

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::Deserialize;

use super::egress::{CaptureMode, RawListenerPort};
use crate::traffic::object::Reason;
use crate::traffic::policy::{PoolLimits, path_fault, pool_limits};
use strait_base::codes;
use strait_model::mesh_config::WrittenPool;
use strait_model::tls_files::{PairFiles, RootFiles};
use strait_model::{Interception, Port, Protocol, TargetPort};

/// An inbound port of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarIngress {
    /// The port, whose number is also that of the workload.
    pub port: Port,
    /// Target for connections to the port.
    pub backend: WorkloadBackend,
    /// Address of the listener, if the proxy listens at the port itself.
    pub address: IngressAddress,
    /// Whether the proxy listens there even if connections are redirected (`captureMode: NONE`).
    pub listens: bool,
    /// TLS that terminates at the proxy, for a port that accepts no mTLS.
    pub tls: Option<Arc<SidecarTls>>,
    /// Connection limits that replace the limits for all ports.
    pub pool: Option<Arc<PoolLimits>>,
    /// Index in the object.
    pub index: usize,
}

/// Address of an inbound listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressAddress {
    /// The addresses of the pod.
    Own,
    /// This address.
    Given(IpAddr),
}

/// Target of the connections to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadBackend {
    /// The original destination.
    SamePort,
    /// A port of the pod's loopback address.
    Loopback(SocketAddr),
    /// A port of the pod's own address, of the same family as this address.
    PodAddress(SocketAddr),
    /// Path of a Unix socket of the pod.
    UnixSocket(Arc<str>),
}

/// TLS that terminates at the proxy, with files of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarTls {
    /// Server certificate and key.
    pub certificate: PairFiles,
    /// Root certificates for clients, which then need a certificate; `None` to request no client
    /// certificate.
    pub clients: Option<RootFiles>,
    /// Accepted names in client certificates. Empty accepts any name.
    pub names: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIngressListener {
    port: RawListenerPort,
    bind: String,
    capture_mode: CaptureMode,
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

/// Invalid field of a listener and the problem. The listener is left out.
type IngressFault = (&'static str, String);

/// Parses the listeners of an object. An invalid listener is left out without affecting the others.
pub(super) fn read(raw: Vec<RawIngressListener>, reasons: &mut Vec<Reason>) -> Vec<SidecarIngress> {
    let mut ports = BTreeSet::new();
    let mut all: Vec<SidecarIngress> = Vec::new();
    for (at, raw) in raw.into_iter().enumerate() {
        let path = format!("spec.ingress[{at}]");
        match SidecarIngress::read(raw, at, &path, reasons) {
            Ok(listener) if ports.insert(listener.port.number) => all.push(listener),
            Ok(listener) => {
                let text = format!(
                    "port {} is a duplicate; the first listener applies",
                    listener.port.number
                );
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

/// Parses the limits of connections to the workload. `h2UpgradePolicy` has no effect on these
/// connections, as in Istio.
pub(super) fn inbound_pool(raw: WrittenPool, path: &str, reasons: &mut Vec<Reason>) -> PoolLimits {
    let limits = pool_limits(raw, path, reasons);
    if limits.h2_upgrade == Some(true) {
        let text = "no effect on connections to the workload: they use the protocol of the port, or \
                    with useClientProtocol that of the client";
        let path = format!("{path}.http.h2UpgradePolicy");
        reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
    }
    limits
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
                    text.parse().map_err(|_| ("bind", format!("{text:?} is not an IP address")))?;
                // It would conflict with other listeners on the port, and Envoy rejects the second
                // one.
                Some(address).filter(|address| !address.is_unspecified())
            }
        };
        let listens = raw.capture_mode == CaptureMode::None;
        if listens && backend == WorkloadBackend::SamePort {
            let fact = "with captureMode: NONE, the proxy listens there itself, and the address of \
                        the workload is unknown";
            return Err(("defaultEndpoint", fact.to_owned()));
        }
        if !listens && bind.is_some() {
            let text = "redirected connections to any address of the pod are accepted; use \
                        captureMode: NONE to listen at one address";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, format!("{path}.bind"), text));
        }
        let address = bind.map_or(IngressAddress::Own, IngressAddress::Given);
        let tls = raw.tls.map(RawSidecarTls::read).transpose()?;
        let pool = raw
            .connection_pool
            .map(|raw| inbound_pool(raw, &format!("{path}.connectionPool"), reasons));
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
    /// Returns whether the proxy listens at the port itself. Connections to the original
    /// destination would then loop.
    pub fn is_apart(&self, interception: Interception) -> bool {
        let is_alone = interception == Interception::None;
        self.listens || (is_alone && self.backend != WorkloadBackend::SamePort)
    }
}

impl RawListenerPort {
    /// Parses the port of a listener.
    fn read(&self) -> Result<Port, IngressFault> {
        let number = u16::try_from(self.number).ok().filter(|number| *number != 0);
        let number = number
            .ok_or_else(|| ("port.number", format!("{} is not a valid port", self.number)))?;
        let protocol = match self.protocol.to_ascii_uppercase().as_str() {
            "" => Protocol::Auto,
            "UDP" => return Err(("port.protocol", "UDP is not supported".to_owned())),
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
            // Linux limits names of sockets (`sockaddr_un`, 108 bytes with the final zero).
            let fits = socket.starts_with(['/', '@']) && (2..108).contains(&socket.len());
            return if fits && !socket.chars().any(char::is_control) {
                Ok(Self::UnixSocket(socket.into()))
            } else {
                Err(format!(
                    "{text:?} is not a valid socket: use unix:///PATH with at most 107 \
                             bytes"
                ))
            };
        }
        let at = text.parse::<SocketAddr>().ok().filter(|at| at.port() != 0);
        match at {
            Some(at) if at.ip().is_loopback() => Ok(Self::Loopback(at)),
            Some(at) if at.ip().is_unspecified() => Ok(Self::PodAddress(at)),
            _ => Err(format!(
                "{text:?} is not an address of the pod: use 127.0.0.1:PORT, [::1]:PORT, \
                 0.0.0.0:PORT, [::]:PORT or unix:///PATH"
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
                    "{other:?} is neither SIMPLE nor MUTUAL, so the port would be plaintext"
                );
                return Err(("tls.mode", fact));
            }
        };
        if !self.credential_name.is_empty() {
            let fact =
                "sidecars support only certificates in files: set serverCertificate and privateKey";
            return Err(("tls.credentialName", fact.to_owned()));
        }
        let file = |field, path: String| match path_fault(&path) {
            None => Ok(path),
            Some(fact) => Err((field, fact.to_owned())),
        };
        let needed = |field, path: String| match &*path {
            "" => Err((field, "it is missing, but TLS requires it".to_owned())),
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
