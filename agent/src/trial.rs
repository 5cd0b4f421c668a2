//! `strait-agent redirect --try`: whether this pod's connections are redirected, found out by making one.
//!
//! For pods whose rules somebody else sets, such as Istio's CNI plugin: they have names of their own, and nobody without rights may read
//! them. What the sidecar's user sends to the pod's own address is to arrive where Envoy will take what comes in; so it is
//! listened there, which takes no rights either, before Envoy does.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::problem::Problem;

/// Where Envoy takes what comes in.
const INBOUND: u16 = 15006;
/// Nobody listens here.
const NOWHERE: u16 = 15002;
/// Within the pod a connection takes no time.
const LIMIT: Duration = Duration::from_secs(5);
/// The exit code at which Istio's CNI plugin looks after a pod whose rules it did not set.
const LACKING: u8 = 126;

/// Tries it at each of the pod's addresses: the exit code.
///
/// # Errors
/// It can't be found out.
pub(crate) async fn run(addresses: &[IpAddr]) -> Result<u8, Problem> {
    for address in addresses {
        if let Err(fact) = redirected(*address).await? {
            crate::say(format_args!(
                "error: STR0912: {fact}\nnext: see whether Istio's CNI plugin runs on the pod's node, and what its log says of the pod; or have pods injected without --istio-cni"
            ));
            return Ok(LACKING);
        }
        crate::print(format_args!("{address}: connections are redirected"));
    }
    Ok(0)
}

/// Whether it is, at one address; else what happens instead.
async fn redirected(address: IpAddr) -> Result<Result<(), String>, Problem> {
    let loopback: IpAddr =
        if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let listener = TcpListener::bind((loopback, INBOUND)).await.map_err(|error| {
        let fact = format!("port {INBOUND} of {loopback} can't be listened on: {error}");
        Problem::new("STR0959", fact, "try it before Envoy runs: as an init container")
    })?;
    let not = |what: &str| {
        Ok(Err(format!(
            "nobody redirects what the sidecar's user sends to the pod's address {address}: {what}"
        )))
    };
    let sent = match timeout(LIMIT, TcpStream::connect((address, NOWHERE))).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            return not("it is refused, as nobody listens there");
        }
        Ok(Err(error)) => return not(&error.to_string()),
        Err(_) => return not("it goes nowhere"),
    };
    match timeout(LIMIT, listener.accept()).await {
        Ok(Ok((_, from))) if sent.local_addr().is_ok_and(|own| own == from) => Ok(Ok(())),
        Ok(Ok(_)) => not("another connection came in its place"),
        Ok(Err(error)) => not(&error.to_string()),
        Err(_) => not("somebody else takes it"),
    }
}
