//! Whether gateways answer, where an operator has them asked (`--probe-gateways`).
//!
//! A gateway whose process has gone is listed until its API server notices, and one that mesh networks
//! name for as long as they do. It is asked as a proxy would ask it: a connection, and the hello of TLS
//! for a service behind it. What no gateway of a network answers leaves all of them in use: rather than
//! the gateways the line from here may be down ([`super::Networks`]).

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

/// An address and a port.
pub type ProbeAddress = (IpAddr, u16);
/// Gateways to be asked, each with a service behind it, as an SNI; one without is only connected to.
pub type ProbeTargets = BTreeMap<ProbeAddress, Option<String>>;

/// How often in a row a gateway must have failed to answer.
const FAILURES: u32 = 3;
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How many are asked at once.
const AT_ONCE: usize = 32;

/// Asks those that are `wanted` after every pause of `every`, and keeps in `dead` which don't answer, until
/// the task is stopped. After a restart of the task, those that were dead are asked anew.
pub async fn run(
    every: Duration,
    wanted: impl Fn() -> ProbeTargets,
    dead: watch::Sender<Arc<BTreeSet<ProbeAddress>>>,
) {
    let mut judged = Judged::default();
    let config = RootCertStore::empty();
    let config = ClientConfig::builder().with_root_certificates(config).with_no_client_auth();
    let config = Arc::new(config);
    loop {
        tokio::time::sleep(every).await;
        let asked = futures::stream::iter(wanted()).map(|(socket, service)| {
            let config = Arc::clone(&config);
            async move {
                let answer = tokio::time::timeout(ANSWER_MAX, ask(socket, service, config)).await;
                let late = || Err(format!("no answer within {} s", ANSWER_MAX.as_secs()));
                (socket, answer.unwrap_or_else(|_| late()))
            }
        });
        let found = judged.hear(asked.buffer_unordered(AT_ONCE).collect().await);
        dead.send_if_modified(|dead| {
            let differs = **dead != found;
            if differs {
                *dead = Arc::new(found);
            }
            differs
        });
    }
}

/// Whether a gateway answers.
async fn ask(
    socket: ProbeAddress,
    service: Option<String>,
    config: Arc<ClientConfig>,
) -> Result<(), String> {
    let connected = TcpStream::connect(socket).await;
    let mut tcp = connected.map_err(|error| format!("can't be connected to: {error}"))?;
    let name = service.and_then(|service| ServerName::try_from(service).ok());
    let client = name.and_then(|name| ClientConnection::new(config, name).ok());
    let Some(mut client) = client else { return Ok(()) };
    let lost = |error| format!("ends the connection: {error}");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).map_err(lost)?;
    tcp.write_all(&hello).await.map_err(lost)?;
    // Whatever comes back, somebody has read the hello. Nothing of it is believed, so nothing is verified.
    match tcp.read(&mut [0]).await.map_err(lost)? {
        0 => Err("ends the connection without an answer".to_owned()),
        _ => Ok(()),
    }
}

/// How often each has failed in a row.
#[derive(Default)]
struct Judged(BTreeMap<ProbeAddress, u32>);

impl Judged {
    /// Takes the answers of a round; returns who is dead. Who was not asked is forgotten.
    fn hear(
        &mut self,
        answers: BTreeMap<ProbeAddress, Result<(), String>>,
    ) -> BTreeSet<ProbeAddress> {
        self.0.retain(|socket, _| answers.contains_key(socket));
        for ((address, port), answer) in answers {
            let failures = self.0.entry((address, port)).or_default();
            match answer {
                Ok(()) => {
                    if std::mem::take(failures) >= FAILURES {
                        info!(%address, port, "gateway answers again");
                    }
                }
                Err(fact) => {
                    *failures = failures.saturating_add(1);
                    if *failures == FAILURES {
                        warn!(
                            code = %codes::GATEWAY_DEAD, %address, port, fact,
                            "gateway does not answer: others of its network are used, where there are any"
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
    fn three_failures_in_a_row_are_needed_and_one_answer_is_enough() {
        let mut judged = Judged::default();
        let mut hear = |first: bool, second: bool| {
            let answer = |good: bool| if good { Ok(()) } else { Err("refused".to_owned()) };
            let answers = [(socket(1), answer(first)), (socket(2), answer(second))];
            judged.hear(answers.into()).len()
        };
        let rounds = [(false, true), (false, false), (true, false), (false, false), (false, true)];
        assert_eq!(rounds.map(|(first, second)| hear(first, second)), [0, 0, 0, 1, 0]);
        assert_eq!([hear(false, true), hear(true, true)], [1, 0]);
    }

    #[test]
    fn who_is_no_longer_asked_is_forgotten() {
        let mut judged = Judged::default();
        let failed = || [(socket(1), Err("refused".to_owned()))].into();
        let counts: Vec<_> = (0..3).map(|_| judged.hear(failed()).len()).collect();
        assert_eq!(counts, [0, 0, 1]);
        assert!(judged.hear(BTreeMap::new()).is_empty());
        assert!(judged.hear(failed()).is_empty());
    }

    /// What somebody at a port does with a connection.
    #[derive(Clone, Copy)]
    enum Door {
        Answers,
        Closes,
        Gone,
    }

    #[tokio::test]
    async fn only_who_answers_a_hello_is_alive() {
        let config = ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = Arc::new(config);
        let service = || Some("outbound_.80_._.web.shop.svc.cluster.local".to_owned());
        for (door, name, expected) in [
            (Door::Answers, service(), Ok(())),
            (Door::Closes, service(), Err("ends the connection")),
            (Door::Closes, None, Ok(())),
            (Door::Gone, service(), Err("can't be connected to")),
            (Door::Gone, None, Err("can't be connected to")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound");
            let greet = async {
                if let Door::Gone = door {
                    drop(listener);
                    return std::future::pending().await;
                }
                let (mut tcp, _) = listener.accept().await.expect("a connection");
                let mut hello = [0; 3];
                if let (Door::Answers, Ok(_)) = (door, tcp.read_exact(&mut hello).await) {
                    assert_eq!(hello[0], 22, "a handshake (RFC 8446, 5.1)");
                    tcp.write_all(&[21]).await.expect("sent");
                }
                drop(tcp);
                std::future::pending::<()>().await;
            };
            let asked = ask((address.ip(), address.port()), name, Arc::clone(&config));
            let answer = tokio::select! {
                answer = asked => answer,
                () = greet => unreachable!("it waits"),
            };
            match (answer, expected) {
                (Ok(()), Ok(())) => {}
                (Err(fact), Err(expected)) => assert!(fact.starts_with(expected), "{fact}"),
                (answer, expected) => panic!("{answer:?} and not {expected:?}"),
            }
        }
    }
}
