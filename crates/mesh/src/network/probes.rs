//! Probes of gateways, if enabled with `--probe-gateways`.
//!
//! A gateway whose process is gone stays listed until its API server notices; a gateway in mesh
//! networks stays listed as long as it is configured there. A probe acts like a proxy: it connects
//! and sends a TLS ClientHello for a service behind the gateway. If no gateway of a network
//! responds, all of them stay in use, because the cause may be this replica's own network
//! connection ([`super::Networks`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::{info, warn};

use strait_base::codes;
use strait_base::latest::publish_change;

/// An address and a port.
pub type ProbeAddress = (IpAddr, u16);
/// Gateways to probe, each with the SNI of a service behind it. Without an SNI, the probe only
/// connects.
pub type ProbeTargets = BTreeMap<ProbeAddress, Option<String>>;

/// The number of consecutive failures after which a gateway counts as dead.
const FAILURES: u32 = 3;
/// The timeout of a probe.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The protocol (ALPN) of connections within the mesh. A gateway matches connections to services
/// by it and by the SNI, and closes all others.
const MESH_ALPN: &[u8] = b"istio";
/// The maximum number of concurrent probes.
const AT_ONCE: usize = 32;

/// Probes the `targets` every `interval` and maintains the set of `dead` gateways until the task is
/// stopped. After a restart of the task, all gateways are probed again, including dead ones.
pub async fn run(
    interval: Duration,
    targets: impl Fn() -> ProbeTargets,
    dead: watch::Sender<Arc<BTreeSet<ProbeAddress>>>,
) {
    let mut failures = FailureCounts::default();
    let config = client_config();
    loop {
        tokio::time::sleep(interval).await;
        let probes = futures::stream::iter(targets()).map(|(socket, service)| {
            let config = Arc::clone(&config);
            async move {
                let response =
                    tokio::time::timeout(ANSWER_MAX, probe(socket, service, config)).await;
                let timed_out = || Err(format!("no response within {} s", ANSWER_MAX.as_secs()));
                (socket, response.unwrap_or_else(|_| timed_out()))
            }
        });
        let dead_now = failures.record_round(probes.buffer_unordered(AT_ONCE).collect().await);
        publish_change(&dead, Arc::new(dead_now));
    }
}

/// Returns the TLS settings of a probe. It verifies no certificate, because it reads only the first
/// byte of the response.
fn client_config() -> Arc<ClientConfig> {
    let roots = RootCertStore::empty();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![MESH_ALPN.to_vec()];
    Arc::new(config)
}

/// Probes one gateway. Returns the problem if it does not respond.
async fn probe(
    socket: ProbeAddress,
    service: Option<String>,
    config: Arc<ClientConfig>,
) -> Result<(), String> {
    let connected = TcpStream::connect(socket).await;
    let mut tcp = connected.map_err(|error| format!("cannot connect: {error}"))?;
    let name = service.and_then(|service| ServerName::try_from(service).ok());
    let client = name.and_then(|name| ClientConnection::new(config, name).ok());
    let Some(mut client) = client else { return Ok(()) };
    let lost = |error| format!("connection closed: {error}");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).map_err(lost)?;
    tcp.write_all(&hello).await.map_err(lost)?;
    // Any response shows that a server read the ClientHello.
    match tcp.read(&mut [0]).await.map_err(lost)? {
        0 => Err("connection closed without a response".to_owned()),
        _ => Ok(()),
    }
}

/// The number of consecutive failures of each gateway.
#[derive(Default)]
struct FailureCounts(BTreeMap<ProbeAddress, u32>);

impl FailureCounts {
    /// Records the results of a round and returns the dead gateways. Gateways without a result are
    /// forgotten.
    fn record_round(
        &mut self,
        results: BTreeMap<ProbeAddress, Result<(), String>>,
    ) -> BTreeSet<ProbeAddress> {
        self.0.retain(|socket, _| results.contains_key(socket));
        for ((address, port), result) in results {
            let failures = self.0.entry((address, port)).or_default();
            match result {
                Ok(()) => {
                    if std::mem::take(failures) >= FAILURES {
                        info!(%address, port, "gateway responds again");
                    }
                }
                Err(fact) => {
                    *failures = failures.saturating_add(1);
                    if *failures == FAILURES {
                        warn!(
                            code = %codes::GATEWAY_DEAD, %address, port, fact,
                            "gateway does not respond; using other gateways of its network, if there are any"
                        );
                    }
                }
            }
        }
        self.0
            .iter()
            .filter(|(_, failed)| **failed >= FAILURES)
            .map(|(socket, _)| *socket)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn socket(last: u8) -> ProbeAddress {
        ([192, 0, 2, last].into(), 15443)
    }

    #[test]
    fn gateway_is_dead_after_three_failures_and_alive_after_one_response() {
        let mut failures = FailureCounts::default();
        let mut record = |first: bool, second: bool| {
            let answer = |is_alive: bool| if is_alive { Ok(()) } else { Err("refused".to_owned()) };
            let answers = [(socket(1), answer(first)), (socket(2), answer(second))];
            failures.record_round(answers.into()).len()
        };
        let rounds = [(false, true), (false, false), (true, false), (false, false), (false, true)];
        assert_eq!(rounds.map(|(first, second)| record(first, second)), [0, 0, 0, 1, 0]);
        assert_eq!([record(false, true), record(true, true)], [1, 0]);
    }

    #[test]
    fn gateway_that_is_no_longer_probed_is_forgotten() {
        let mut failures = FailureCounts::default();
        let failed = || [(socket(1), Err("refused".to_owned()))].into();
        let counts: Vec<_> = (0..3).map(|_| failures.record_round(failed()).len()).collect();
        assert_eq!(counts, [0, 0, 1]);
        assert!(failures.record_round(BTreeMap::new()).is_empty());
        assert!(failures.record_round(failed()).is_empty());
    }

    /// How the test server handles a connection.
    #[derive(Clone, Copy)]
    enum Door {
        Answers,
        Closes,
        Unreachable,
    }

    #[tokio::test]
    async fn only_gateway_that_responds_to_a_client_hello_is_alive() {
        let config = client_config();
        let service = || Some("outbound_.80_._.web.shop.svc.cluster.local".to_owned());
        for (door, name, expected) in [
            (Door::Answers, service(), Ok(())),
            (Door::Closes, service(), Err("connection closed")),
            (Door::Closes, None, Ok(())),
            (Door::Unreachable, service(), Err("cannot connect")),
            (Door::Unreachable, None, Err("cannot connect")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound");
            let server = async {
                if let Door::Unreachable = door {
                    drop(listener);
                    return std::future::pending().await;
                }
                let (mut tcp, _) = listener.accept().await.expect("a connection");
                let mut head = [0; 5];
                if let (Door::Answers, Ok(_)) = (door, tcp.read_exact(&mut head).await) {
                    assert_eq!(head[0], 22, "a handshake (RFC 8446, 5.1)");
                    let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
                    tcp.read_exact(&mut hello).await.expect("a ClientHello");
                    // RFC 7301, 3.1: a list of one protocol, with the lengths of both.
                    let offered = b"\0\x06\x05istio";
                    assert!(hello.windows(offered.len()).any(|part| part == offered), "ALPN");
                    tcp.write_all(&[21]).await.expect("sent");
                }
                drop(tcp);
                std::future::pending::<()>().await;
            };
            let probing = probe((address.ip(), address.port()), name, Arc::clone(&config));
            let answer = tokio::select! {
                answer = probing => answer,
                () = server => unreachable!("it waits"),
            };
            match (answer, expected) {
                (Ok(()), Ok(())) => {}
                (Err(fact), Err(expected)) => assert!(fact.starts_with(expected), "{fact}"),
                (answer, expected) => panic!("{answer:?} and not {expected:?}"),
            }
        }
    }
}
