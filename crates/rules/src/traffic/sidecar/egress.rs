//! Address of a Sidecar's listener, and the proxy for unknown destinations (Istio, "Sidecar",
//! `IstioEgressListener`, `OutboundTrafficPolicy`).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde::Deserialize;

use crate::traffic::hosts::HostPattern;
use crate::traffic::kind::KindSettings;
use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::mesh_config::OutboundTrafficPolicy;
use strait_model::{Hostname, Namespace, Protocol};

/// Address that replaces the addresses of the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressAddress {
    /// The address.
    pub address: IpAddr,
    /// Whether the proxy itself listens there. Otherwise connections are redirected to the proxy
    /// (`captureMode`).
    pub listens: bool,
}

/// The service that receives connections to unknown destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressProxy {
    /// Hostname of the service.
    pub host: Hostname,
    /// Port of the service.
    pub port: u16,
    /// Subset of the service; empty for all endpoints.
    pub subset: Arc<str>,
}

/// Specifies how connections reach a listener (Istio, `CaptureMode`).
#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum CaptureMode {
    /// The mode of the pod: iptables, unless the pod was injected without it.
    #[default]
    Default,
    /// The pod redirects connections with iptables.
    Iptables,
    /// The proxy itself listens on the port.
    None,
}

/// Raw form of the port of a listener.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawListenerPort {
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) protocol: String,
}

impl RawListenerPort {
    /// Returns the declared protocol, or `Auto` if the listener declares none.
    pub(super) fn declared(&self) -> Protocol {
        Protocol::of_port("TCP", Some(&self.protocol), "", 0)
    }

    /// Reports an unknown protocol. The proxy then detects the protocol, as if none were declared.
    pub(super) fn note_unknown_protocol(&self, path: &str, reasons: &mut Vec<Reason>) {
        let text = &*self.protocol;
        let is_proxy = text.eq_ignore_ascii_case("HTTP_PROXY");
        if text.is_empty() || is_proxy || Protocol::is_known(text) {
            return;
        }
        let path = format!("{path}.port.protocol");
        let text =
            format!("{text:?} is not a known protocol: the protocol of the port is detected");
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
    /// Parses the proxy. An error contains the invalid field and the problem.
    pub(super) fn read(
        self,
        mode: Option<OutboundTrafficPolicy>,
        namespace: &Namespace,
        settings: &KindSettings,
    ) -> Result<EgressProxy, (&'static str, String)> {
        if mode != Some(OutboundTrafficPolicy::AllowAny) {
            return Err((
                "",
                "connections to unknown destinations are not allowed: set mode: ALLOW_ANY".into(),
            ));
        }
        let host = HostPattern::parse(&self.host, namespace.as_str(), &settings.domain)
            .map_err(|error| (".host", format!("{:?} {error}", self.host)))?;
        let Some(host) = host.exact() else {
            return Err((".host", format!("{:?} is a wildcard; use a single host", self.host)));
        };
        let port = u16::try_from(self.port.number).ok().filter(|port| *port != 0);
        let port =
            port.ok_or((".port.number", format!("{} is not a valid port", self.port.number)))?;
        Ok(EgressProxy { host: host.clone(), port, subset: self.subset })
    }
}

/// Parses the address of a listener; `None` for the addresses of the services. An error contains
/// the invalid field and the problem.
pub(super) fn address(
    bind: &str,
    capture_mode: CaptureMode,
    port: Option<u16>,
) -> Result<Option<EgressAddress>, (&'static str, String)> {
    let listens = capture_mode == CaptureMode::None;
    if bind.is_empty() && !listens {
        return Ok(None);
    }
    let field = if bind.is_empty() { "captureMode" } else { "bind" };
    let effect = "the listener is left out";
    if bind.starts_with("unix:") {
        let fact = format!("Unix sockets are not supported: use an IP address; {effect}");
        return Err((field, fact));
    }
    if port.is_none() {
        return Err((field, format!("it requires a port, but the listener has none; {effect}")));
    }
    if bind.is_empty() {
        return Ok(Some(EgressAddress { address: Ipv4Addr::LOCALHOST.into(), listens }));
    }
    match bind.parse::<IpAddr>() {
        // It would conflict with other listeners on the port, and Envoy rejects the second one.
        Ok(address) if address.is_unspecified() && listens => {
            Err((field, format!("{bind} represents all addresses: use a single address; {effect}")))
        }
        Ok(address) if address.is_unspecified() => Ok(None),
        Ok(address) => Ok(Some(EgressAddress { address, listens })),
        Err(_) => Err((field, format!("{bind:?} is not an IP address; {effect}"))),
    }
}
