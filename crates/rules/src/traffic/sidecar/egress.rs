//! Where the services of a Sidecar's listener are reached, and where what the mesh doesn't know goes. (Istio, "Sidecar",
//! `IstioEgressListener`, `OutboundTrafficPolicy`.)

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde::Deserialize;

use crate::traffic::hosts::HostPattern;
use crate::traffic::kind::KindSettings;
use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::mesh_config::OutboundTrafficPolicy;
use strait_model::{Hostname, Namespace, Protocol};

/// Where services are reached, in place of their own addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressAddress {
    /// The address.
    pub address: IpAddr,
    /// Whether the proxy listens there itself; else connections are redirected to it (`captureMode`).
    pub listens: bool,
}

/// The service that is sent what the mesh doesn't know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressProxy {
    /// Its host.
    pub host: Hostname,
    /// Its port.
    pub port: u16,
    /// A subset of it; empty for all.
    pub subset: Arc<str>,
}

/// The port of a listener, as it is written.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawListenerPort {
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) protocol: String,
}

impl RawListenerPort {
    /// Reports a protocol that does not exist. The protocol is detected then, as if none were declared.
    pub(super) fn note_unknown_protocol(&self, path: &str, reasons: &mut Vec<Reason>) {
        let text = &*self.protocol;
        let is_proxy = text.eq_ignore_ascii_case("HTTP_PROXY");
        if text.is_empty() || is_proxy || Protocol::is_known(text) {
            return;
        }
        let path = format!("{path}.port.protocol");
        let text = format!("{text:?} is no protocol; the protocol of the port is detected");
        reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawEgressProxy {
    host: String,
    subset: Arc<str>,
    port: RawProxyPort,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawProxyPort {
    number: u32,
}

impl RawEgressProxy {
    /// What is meant; else the field that is wrong, and how.
    pub(super) fn read(
        self,
        mode: Option<OutboundTrafficPolicy>,
        namespace: &Namespace,
        settings: &KindSettings,
    ) -> Result<EgressProxy, (&'static str, String)> {
        if mode != Some(OutboundTrafficPolicy::AllowAny) {
            return Err((
                "",
                "nothing that the mesh doesn't know passes: write mode: ALLOW_ANY".into(),
            ));
        }
        let host = HostPattern::parse(&self.host, namespace.as_str(), &settings.domain)
            .map_err(|error| (".host", format!("{:?} {error}", self.host)))?;
        let Some(host) = host.exact() else {
            return Err((".host", format!("{:?} is many hosts; name one", self.host)));
        };
        let port = u16::try_from(self.port.number).ok().filter(|port| *port != 0);
        let port = port.ok_or((".port.number", format!("{} is no port", self.port.number)))?;
        Ok(EgressProxy { host: host.clone(), port, subset: self.subset })
    }
}

/// Where the services of a listener are reached, if not at their own addresses; else the field that is wrong, and how.
pub(super) fn address(
    bind: &str,
    capture_mode: Option<&str>,
    port: Option<u16>,
) -> Result<Option<EgressAddress>, (&'static str, String)> {
    let listens = capture_mode == Some("NONE");
    if bind.is_empty() && !listens {
        return Ok(None);
    }
    let field = if bind.is_empty() { "captureMode" } else { "bind" };
    let left_out = "the listener is left out";
    if bind.starts_with("unix:") {
        let fact = format!("nothing listens at sockets: name an IP address; {left_out}");
        return Err((field, fact));
    }
    if port.is_none() {
        return Err((field, format!("it needs a port, and the listener names none; {left_out}")));
    }
    if bind.is_empty() {
        return Ok(Some(EgressAddress { address: Ipv4Addr::LOCALHOST.into(), listens }));
    }
    match bind.parse::<IpAddr>() {
        // All addresses would be those of other listeners as well, and Envoy refuses the second.
        Ok(address) if address.is_unspecified() && listens => {
            Err((field, format!("{bind} is every address: name one; {left_out}")))
        }
        Ok(address) if address.is_unspecified() => Ok(None),
        Ok(address) => Ok(Some(EgressAddress { address, listens })),
        Err(_) => Err((field, format!("{bind:?} is no IP address; {left_out}"))),
    }
}
