//! DNS queries for the mesh's names, as an application's resolver sends them.

use std::net::UdpSocket;
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, RecordType};

use crate::authority::Authority;
use crate::harness::{LIMIT, Pod, until};

#[test]
fn name_of_the_mesh_is_answered_once_its_table_is_received() {
    let authority = Authority::start(Duration::from_secs(86_400));
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    let address = pod.port(15053);
    pod.arguments.extend(["--dns".to_owned(), "--dns-address".to_owned(), address.to_string()]);
    let line = pod.idle_envoy();
    let agent = pod.start(&line.each_ref().map(String::as_str));
    until("the table is received", || {
        if agent.log().contains("table of names") { Ok(()) } else { Err(agent.log()) }
    });
    let mut question = Message::query();
    question.add_query(Query::query("db.data.".parse::<Name>().expect("a name"), RecordType::A));
    let client = UdpSocket::bind((pod.ip, 0)).expect("a port");
    client.set_read_timeout(Some(LIMIT)).expect("set");
    client.send_to(&question.to_vec().expect("encoded"), address).expect("sent");
    let mut buffer = [0; 512];
    let length = client.recv(&mut buffer).expect("an answer");
    let answer = Message::from_vec(&buffer[..length]).expect("a message");
    assert_eq!(answer.answers[0].data, RData::A(A::new(10, 0, 0, 1)));

    let acknowledged = until("it is acknowledged", || {
        let requests = authority.name_requests();
        requests.get(1).cloned().ok_or_else(|| format!("{requests:?}"))
    });
    assert_eq!((&*acknowledged.version_info, &*acknowledged.response_nonce), ("v1", "n1"));
    let node =
        authority.name_requests()[0].node.clone().expect("the first request contains the node");
    assert_eq!(node.id, format!("sidecar~{}~web-0.shop~shop.svc.cluster.local", pod.ip));
    let metadata = node.metadata.expect("it has some");
    assert!(metadata.fields.contains_key("CLUSTER_ID"), "{metadata:?}");
}

#[test]
fn names_are_requested_by_certificate_if_the_token_has_expired() {
    let authority = Authority::start(Duration::from_secs(86_400));
    let mut pod = Pod::new(authority.root(), &[authority.address]);
    let address = pod.port(15053);
    pod.arguments.extend(["--dns".to_owned(), "--dns-address".to_owned(), address.to_string()]);
    // The test double accepts this token for a certificate, but not for a stream.
    pod.write("token", "ended");
    let line = pod.idle_envoy();
    let agent = pod.start(&line.each_ref().map(String::as_str));
    until("the table is received", || {
        if agent.log().contains("received the table of names") { Ok(()) } else { Err(agent.log()) }
    });
    assert!(authority.names_by_certificate() > 0, "{}", agent.log());
}
