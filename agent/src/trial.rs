//! `strait-agent redirect --try`: opens a connection to test whether this pod's connections are redirected.
//!
//! This is for pods whose rules another component sets, such as Istio's CNI plugin. These rules have other names, and
//! reading them needs privileges. A connection from the sidecar's user to the pod's address must arrive at Envoy's
//! inbound port. Before Envoy runs, this process listens on that port, which needs no privileges either.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::problem::Problem;

/// Envoy's inbound port.
const INBOUND: u16 = 15006;
/// A port on which no process listens.
const NOWHERE: u16 = 15002;
/// Time limit for a connection, which takes almost no time within the pod.
const LIMIT: Duration = Duration::from_secs(5);
/// The exit code by which Istio's CNI plugin recognizes a pod whose rules it did not set.
const LACKING: u8 = 126;

/// Tests each of the pod's addresses. Returns the exit code.
///
/// # Errors
/// The test can't be done.
pub(crate) async fn run(addresses: &[IpAddr]) -> Result<u8, Problem> {
    for address in addresses {
        if let Err(fact) = redirected(*address).await? {
            crate::eprint(format_args!(
                "error: STR0912: {fact}\nnext: check whether Istio's CNI plugin runs on the pod's node and what it logs about the pod, or inject pods without --istio-cni"
            ));
            return Ok(LACKING);
        }
        crate::print(format_args!("{address}: connections are redirected"));
    }
    Ok(0)
}

/// Tests one address. The inner error describes what happens to the connection instead.
async fn redirected(address: IpAddr) -> Result<Result<(), String>, Problem> {
    let loopback: IpAddr =
        if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let listener = TcpListener::bind((loopback, INBOUND)).await.map_err(|error| {
        let fact = format!("cannot listen on port {INBOUND} of {loopback}: {error}");
        Problem::new("STR0959", fact, "run it before Envoy starts: as an init container")
    })?;
    let not = |what: &str| {
        Ok(Err(format!(
            "connections of the sidecar's user to the pod's address {address} are not redirected: {what}"
        )))
    };
    let sent = match timeout(LIMIT, TcpStream::connect((address, NOWHERE))).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            return not("the connection is refused, because no process listens there");
        }
        Ok(Err(error)) => return not(&error.to_string()),
        Err(_) => return not("it goes nowhere"),
    };
    match timeout(LIMIT, listener.accept()).await {
        Ok(Ok((_, from))) if sent.local_addr().is_ok_and(|own| own == from) => Ok(Ok(())),
        Ok(Ok(_)) => not("another connection arrived instead"),
        Ok(Err(error)) => not(&error.to_string()),
        Err(_) => not("another process accepts the connection"),
    }
}
