//! A DNS server for the application. It answers queries for the mesh's names itself, and forwards all others to the
//! servers in resolv.conf, whose responses it returns unchanged.
//!
//! The agent caches no response; clients cache for the TTL of the response. The number of queries and connections is bounded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::names::Names;
use crate::problem::Problem;

/// The maximum number of forwarded UDP queries in progress. Further queries are dropped, and clients repeat them.
const QUESTIONS_MAX: usize = 512;
/// The maximum number of connections. Further connections wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for the response of one server.
const SERVER: Duration = Duration::from_secs(2);
/// Time limit for an idle connection.
const SILENT: Duration = Duration::from_secs(10);
/// The maximum size of a UDP response, in bytes: larger ones are lost on some paths (DNS Flag Day 2020).
const UDP_BYTES_MAX: u16 = 1232;
/// The TTL of the mesh's names, in seconds.
const TTL: u32 = 30;

/// The DNS server.
pub(crate) struct NameServer {
    pub(crate) names: watch::Receiver<Arc<Names>>,
    /// The servers for all other names, in order of preference.
    pub(crate) servers: Vec<SocketAddr>,
}

/// The sockets for queries over UDP and TCP.
pub(crate) struct NamePort {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl NamePort {
    /// Binds both sockets.
    ///
    /// # Errors
    /// The address can't be bound.
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self, Problem> {
        let bound = async {
            Ok::<_, std::io::Error>(Self {
                udp: UdpSocket::bind(address).await?,
                tcp: TcpListener::bind(address).await?,
            })
        };
        bound.await.map_err(|error| {
            let fact = format!("cannot listen on --dns-address {address}: {error}");
            Problem::new("STR0959", fact, "find the process that uses the port: ss -lntup")
        })
    }
}

impl NameServer {
    /// Answers queries while it is polled.
    pub(crate) async fn serve(self: Arc<Self>, port: NamePort) -> std::convert::Infallible {
        let NamePort { udp, tcp } = port;
        let udp = Arc::new(udp);
        tokio::select! {
            never = self.serve_udp(&udp) => never,
            never = self.serve_tcp(&tcp) => never,
        }
    }

    async fn serve_udp(self: &Arc<Self>, socket: &Arc<UdpSocket>) -> std::convert::Infallible {
        let (mut questions, mut buffer) = (JoinSet::new(), vec![0; 4096]);
        loop {
            while questions.try_join_next().is_some() {}
            let Ok((length, peer)) = socket.recv_from(&mut buffer).await else {
                // An ICMP error from a peer needs no action.
                sleep(Duration::from_millis(1)).await;
                continue;
            };
            let question = &buffer[..length];
            if let Some(answer) = self.answer(question, true) {
                let _ = socket.send_to(&answer, peer).await;
            } else if questions.len() < QUESTIONS_MAX {
                let (server, socket, question) =
                    (Arc::clone(self), Arc::clone(socket), question.to_vec());
                questions.spawn(async move {
                    if let Some(answer) = server.elsewhere_by_udp(&question).await {
                        let _ = socket.send_to(&answer, peer).await;
                    }
                });
            }
        }
    }

    async fn serve_tcp(self: &Arc<Self>, listener: &TcpListener) -> std::convert::Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => {
                        let server = Arc::clone(self);
                        // Errors are ignored: the client notices them.
                        connections.spawn(async move { server.connection(stream).await.ok() });
                    }
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn connection(&self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let question = timeout(SILENT, read_message(&mut stream)).await??;
            let answer = match self.answer(&question, false) {
                Some(answer) => answer,
                None => self.elsewhere_by_tcp(&question).await?,
            };
            write_message(&mut stream, &answer).await?;
        }
    }

    /// Returns the response to a query for one of the mesh's names; `None` for all other queries.
    fn answer(&self, question: &[u8], by_udp: bool) -> Option<Vec<u8>> {
        let message = Message::from_vec(question).ok()?;
        let [query] = message.queries.as_slice() else { return None };
        let is_question = message.metadata.message_type == MessageType::Query
            && message.metadata.op_code == OpCode::Query
            && query.query_class() == DNSClass::IN;
        let kind = query.query_type();
        if !is_question || ![RecordType::A, RecordType::AAAA].contains(&kind) {
            return None;
        }
        let names = Arc::clone(&self.names.borrow());
        let addresses = names.find(&query.name().to_ascii())?;
        let mut answer = Message::response(message.metadata.id, OpCode::Query);
        answer.metadata.recursion_desired = message.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.add_query(query.clone());
        let data = addresses.iter().filter_map(|address| match (address, kind) {
            (IpAddr::V4(address), RecordType::A) => Some(RData::A(A(*address))),
            (IpAddr::V6(address), RecordType::AAAA) => Some(RData::AAAA(AAAA(*address))),
            _ => None,
        });
        let mut records: Vec<_> =
            data.map(|data| Record::from_rdata(query.name().clone(), TTL, data)).collect();
        // Rotates the addresses, so that clients that use the first one are distributed over all.
        if !records.is_empty() {
            let first = usize::from(message.metadata.id) % records.len();
            records.rotate_left(first);
        }
        answer.add_answers(records);
        if message.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_BYTES_MAX);
            answer.set_edns(edns);
        }
        let bytes = answer.to_vec().ok()?;
        if by_udp && bytes.len() > usize::from(message.max_payload().min(UDP_BYTES_MAX)) {
            return answer.truncate().to_vec().ok();
        }
        Some(bytes)
    }

    async fn elsewhere_by_udp(&self, question: &[u8]) -> Option<Vec<u8>> {
        for server in &self.servers {
            if let Ok(Ok(answer)) = timeout(SERVER, query_by_udp(*server, question)).await {
                return Some(answer);
            }
        }
        None
    }

    async fn elsewhere_by_tcp(&self, question: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut last = std::io::Error::other("there is no server");
        for server in &self.servers {
            let exchange = async {
                let mut stream = TcpStream::connect(server).await?;
                write_message(&mut stream, question).await?;
                read_message(&mut stream).await
            };
            match timeout(SERVER, exchange).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => last = error,
                Err(elapsed) => last = elapsed.into(),
            }
        }
        Err(last)
    }
}

/// Forwards a query from a random port, which others can't guess.
async fn query_by_udp(server: SocketAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Ignores a response to another query.
        if length >= 2 && question.len() >= 2 && buffer[..2] == question[..2] {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    use super::*;
    use crate::names::known;

    fn server(names: Names, servers: &[SocketAddr]) -> NameServer {
        NameServer {
            names: watch::Sender::new(Arc::new(names)).subscribe(),
            servers: servers.to_vec(),
        }
    }

    fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 7;
        message.add_query(Query::query(Name::from_str(name).expect("a name"), kind));
        message.to_vec().expect("encoded")
    }

    #[test]
    fn names_of_the_mesh_are_answered_and_no_others() {
        let server = server(known(&[("web.shop.svc.cluster.local", &["10.0.0.1"])]), &[]);
        let response = |name: &str, kind| server.answer(&question(name, kind), true);
        let answer = Message::from_vec(
            &response("web.shop.svc.cluster.local.", RecordType::A).expect("ours"),
        )
        .expect("a message");
        assert_eq!((answer.metadata.id, answer.answers.len()), (7, 1));
        assert_eq!(answer.answers[0].data, RData::A(A::new(10, 0, 0, 1)));
        let none = Message::from_vec(
            &response("web.shop.svc.cluster.local.", RecordType::AAAA).expect("ours"),
        )
        .expect("a message");
        assert!(none.answers.is_empty(), "there is the name, and no such address");
        assert!(response("example.com.", RecordType::A).is_none());
        assert!(response("web.shop.svc.cluster.local.", RecordType::MX).is_none());
        assert!(server.answer(b"no message", true).is_none());
    }

    #[test]
    fn response_that_is_too_long_for_udp_is_truncated() {
        let ips: Vec<String> = (0..200).map(|n| format!("10.0.1.{n}")).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let server = server(known(&[("many.shop.svc.cluster.local", &ips)]), &[]);
        let question = question("many.shop.svc.cluster.local.", RecordType::A);
        let udp = server.answer(&question, true).expect("ours");
        assert!(
            udp.len() <= 512 && Message::from_vec(&udp).expect("a message").metadata.truncation
        );
        let tcp =
            Message::from_vec(&server.answer(&question, false).expect("ours")).expect("a message");
        assert_eq!(tcp.answers.len(), 200);
    }

    #[tokio::test]
    async fn other_names_are_forwarded_to_the_next_server_after_a_timeout() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let next = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let servers = [&silent, &next].map(|socket| socket.local_addr().expect("bound"));
        let server = Arc::new(server(Names::default(), &servers));
        let port = NamePort::bind("127.0.0.1:0".parse().expect("an address")).await.expect("bound");
        let address = port.udp.local_addr().expect("bound");
        let client = async {
            let client = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            client.send_to(&question("example.com.", RecordType::A), address).await.expect("sent");
            let mut buffer = [0; 512];
            let length = client.recv(&mut buffer).await.expect("an answer");
            buffer[..length].to_vec()
        };
        let answers = async {
            let mut buffer = [0; 512];
            let (length, peer) = next.recv_from(&mut buffer).await.expect("the question");
            next.send_to(&[&buffer[..length], b"!"].concat(), peer).await.expect("sent");
        };
        let response = async { tokio::join!(client, answers).0 };
        let response = tokio::select! {
            response = timeout(Duration::from_secs(20), response) => response.expect("in time"),
            never = server.serve(port) => match never {},
        };
        assert!(
            response.ends_with(b"!") && response[1] == 7,
            "the response is the server's: {response:?}"
        );
    }
}
