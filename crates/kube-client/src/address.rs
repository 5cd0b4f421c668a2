//! Checks the addresses of API servers.
//!
//! A kubeconfig comes from someone else, so it must not make the process dial itself or the
//! metadata service of a cloud. A host name is judged by its addresses at the moment of dialling:
//! an earlier lookup may have had a different result (DNS rebinding).

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;

use super::Loopback;
use strait_base::address::{ReservedAddress, Special, special};

/// Returns why `address` is not dialled; `None` if it may be dialled.
pub(super) fn objection(address: IpAddr, loopback: Loopback) -> Option<Special> {
    let allowed = |kind| kind == ReservedAddress::Loopback && loopback != Loopback::Refused;
    special(address).filter(|special| !allowed(special.kind))
}

/// A host name resolved only to addresses that are not dialled.
#[derive(Debug, thiserror::Error)]
#[error("{name} resolves to {address}, {objection}, which is never dialled")]
pub(super) struct RefusedAddresses {
    name: String,
    address: IpAddr,
    objection: Special,
}

/// The addresses that a host name resolves to now.
type LookedUpName = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Resolves host names like the host does, for each connection, and omits addresses that are not
/// dialled.
#[derive(Clone, Copy, Debug)]
pub struct Resolver {
    loopback: Loopback,
    look_up: fn(Name) -> LookedUpName,
}

impl Resolver {
    pub(super) fn new(loopback: Loopback) -> Self {
        let look_up = |name: Name| -> LookedUpName {
            Box::pin(
                async move { Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.collect()) },
            )
        };
        Self { loopback, look_up }
    }
}

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let Self { loopback, look_up } = *self;
        Box::pin(async move {
            let found = look_up(name.clone()).await?;
            permitted(name.as_str(), found, loopback).map(Vec::into_iter)
        })
    }
}

fn permitted(
    name: &str,
    found: Vec<SocketAddr>,
    loopback: Loopback,
) -> io::Result<Vec<SocketAddr>> {
    // A host name of a member must never lead to loopback, independent of the environment.
    let loopback = if loopback == Loopback::Named { Loopback::Allowed } else { Loopback::Refused };
    let mut refused = None;
    let mut permitted_sockets = Vec::with_capacity(found.len());
    for socket in found {
        match objection(socket.ip(), loopback) {
            None => permitted_sockets.push(socket),
            Some(objection) => {
                refused =
                    Some(RefusedAddresses { name: name.into(), address: socket.ip(), objection });
            }
        }
    }
    match refused {
        Some(refused) if permitted_sockets.is_empty() => Err(io::Error::other(refused)),
        _ => Ok(permitted_sockets),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tower::Service as _;

    use super::*;

    fn refused(address: &str) -> bool {
        objection(address.parse().expect("an address"), Loopback::Refused).is_some()
    }

    #[test]
    fn loopback_and_metadata_addresses_are_not_dialled() {
        // The special addresses are defined in `strait_base::address`.
        for bad in [
            "127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::127.0.0.1",
            "2002:7f00:1::1",
            "fd00:ec2::254",
            "255.255.255.255",
        ] {
            assert!(refused(bad), "{bad}");
        }
        for good in ["10.0.0.1", "fd00::1", "64:ff9b::10.0.0.1"] {
            assert!(!refused(good), "{good}");
        }
    }

    #[test]
    fn literal_loopback_address_is_dialled_only_if_allowed() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(objection(loopback, Loopback::Allowed), None);
        assert!(objection(loopback, Loopback::Refused).is_some());
    }

    #[test]
    fn host_name_is_dialled_only_at_permitted_addresses() {
        let bad: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let good: SocketAddr = "203.0.113.9:0".parse().expect("an address");
        let members = Loopback::Allowed;
        let found =
            permitted("a.example", vec![bad, good], members).expect("one address is permitted");
        assert_eq!(found, [good]);
        let named_loopback = permitted("a.example", vec![bad], Loopback::Named)
            .expect("the operator's own kubeconfig");
        assert_eq!(named_loopback, [bad]);
        let metadata = "169.254.169.254:0".parse().expect("an address");
        permitted("a.example", vec![metadata], Loopback::Named).expect_err("never");
        let error =
            permitted("a.example", vec![bad], members).expect_err("no address is permitted");
        assert_eq!(
            error.to_string(),
            "a.example resolves to 127.0.0.1, a loopback address, which is never dialled"
        );
    }

    /// Returns a different address on each lookup, the second time a loopback address.
    fn rebinding(_: Name) -> LookedUpName {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        const ANSWERS: [&str; 3] = ["192.0.2.1:0", "127.0.0.1:0", "192.0.2.3:0"];
        let answer = ANSWERS[CALLS.fetch_add(1, Ordering::Relaxed)];
        Box::pin(std::future::ready(Ok(vec![answer.parse().expect("an address")])))
    }

    #[tokio::test]
    async fn host_name_is_resolved_and_checked_for_each_connection() {
        let mut resolver = Resolver { look_up: rebinding, ..Resolver::new(Loopback::Allowed) };
        let mut resolve_once = async || {
            let name = "api.example.org".parse().expect("a name");
            let found = resolver.call(name).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(found.map(|socket| socket.ip().to_string()).collect::<Vec<_>>())
        };
        assert_eq!(resolve_once().await, Ok(vec!["192.0.2.1".to_owned()]));
        let refused = resolve_once().await.expect_err("a loopback address");
        assert!(refused.contains("resolves to 127.0.0.1, a loopback address"), "{refused}");
        assert_eq!(resolve_once().await, Ok(vec!["192.0.2.3".to_owned()]));
    }
}
