//! Tests against a DNS server in this process, on the loopback interface.

use std::sync::Mutex;

use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::rdata::CNAME;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

use super::*;
use strait_base::task::Supervisor;

const LIMIT: Duration = Duration::from_secs(20);
const TRY: Duration = Duration::from_millis(300);

/// The response of the server for a name.
#[derive(Clone)]
enum Reply {
    /// These addresses, with a TTL in seconds.
    Addresses(Vec<&'static str>, u32),
    /// A CNAME record with one TTL, and its address with another.
    Alias(u32, &'static str, u32),
    Code(ResponseCode),
    Silence,
}

/// A DNS server with configurable responses; it ends with its task.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<BTreeMap<&'static str, Reply>>>);

impl Server {
    async fn start(tasks: &Supervisor) -> (Self, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a loopback port");
        let address = socket.local_addr().expect("bound");
        let server = Self::default();
        let serving = server.clone();
        tasks.spawn("dns", async move {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_vec(&buffer[..length]).expect("a question");
                if let Some(answer) = serving.answer(question) {
                    let _ = socket.send_to(&answer.to_vec().expect("encodes"), from).await;
                }
            }
        });
        (server, address)
    }

    fn set_reply(&self, name: &'static str, reply: Reply) {
        self.0.lock().expect("not poisoned").insert(name, reply);
    }

    fn answer(&self, question: Message) -> Option<Message> {
        let query = question.queries.first().expect("one query").clone();
        let name = query.name().clone();
        let key = name.to_ascii().to_ascii_lowercase();
        let reply = self.0.lock().expect("not poisoned").get(key.trim_end_matches('.')).cloned();
        let mut answer = question.into_response();
        let record = |name: &Name, address: &str, ttl| {
            let address: IpAddr = address.parse().expect("an address");
            let fits = address.is_ipv4() == (query.query_type() == RecordType::A);
            fits.then(|| Record::from_rdata(name.clone(), ttl, RData::from(address)))
        };
        match reply.unwrap_or(Reply::Code(ResponseCode::NXDomain)) {
            Reply::Addresses(list, ttl) => {
                answer.answers.extend(list.iter().filter_map(|text| record(&name, text, ttl)));
            }
            Reply::Alias(alias_ttl, address, ttl) => {
                let target = Name::from_ascii("target.example.").expect("a name");
                let alias = RData::CNAME(CNAME(target.clone()));
                answer.answers.push(Record::from_rdata(name.clone(), alias_ttl, alias));
                answer.answers.extend(record(&target, address, ttl));
            }
            Reply::Code(code) => answer.metadata.response_code = code,
            Reply::Silence => return None,
        }
        Some(answer)
    }
}

#[tokio::test]
async fn each_kind_of_response_is_distinguished() {
    let tasks = Supervisor::new();
    let (server, address) = Server::start(&tasks).await;
    server.set_reply("both.example", Reply::Addresses(vec!["192.0.2.1", "2001:db8::1"], 30));
    server.set_reply("v4.example", Reply::Addresses(vec!["192.0.2.2", "192.0.2.1"], 1));
    server.set_reply("alias.example", Reply::Alias(7, "192.0.2.3", 300));
    server.set_reply("target.example", Reply::Addresses(vec!["192.0.2.3"], 300));
    server.set_reply("empty.example", Reply::Addresses(Vec::new(), 0));
    server.set_reply("broken.example", Reply::Code(ResponseCode::ServFail));
    server.set_reply("refused.example", Reply::Code(ResponseCode::Refused));
    server.set_reply("silent.example", Reply::Silence);
    let found = |list: &[&str], seconds| FamilyAnswer::Addresses {
        addresses: list.iter().map(|text| text.parse().expect("an address")).collect(),
        ttl: Duration::from_secs(seconds),
    };
    let no_addresses = |fact: &str| FamilyAnswer::Nothing(fact.to_owned());
    let failed = |fact: &str| FamilyAnswer::Failed(fact.to_owned());
    let cases = [
        ("both.example", found(&["192.0.2.1"], 30), found(&["2001:db8::1"], 30)),
        ("v4.example", found(&["192.0.2.2", "192.0.2.1"], 1), no_addresses("no addresses")),
        ("alias.example", found(&["192.0.2.3"], 7), no_addresses("no addresses")),
        ("empty.example", no_addresses("no addresses"), no_addresses("no addresses")),
        ("gone.example", no_addresses("NXDOMAIN"), no_addresses("NXDOMAIN")),
        ("broken.example", failed("SERVFAIL"), failed("SERVFAIL")),
        ("refused.example", failed("REFUSED"), failed("REFUSED")),
        ("silent.example", failed("no DNS server answered"), failed("no DNS server answered")),
    ];
    let dns = Dns::at(address, TRY).expect("a resolver");
    for (name, v4, v6) in cases {
        let mut answers = dns.lookup(name, LIMIT).await;
        for answer in [&mut answers.v4, &mut answers.v6] {
            if let FamilyAnswer::Addresses { addresses, .. } = answer {
                addresses.sort_by(|a, b| b.cmp(a));
            }
        }
        assert_eq!(answers, NameAnswers { v4, v6 }, "{name}");
    }
    assert!(matches!(
        dns.lookup("no name", LIMIT).await.v4,
        FamilyAnswer::Failed(_) | FamilyAnswer::Nothing(_)
    ));
    assert!(tasks.shut_down(LIMIT).await);
}

#[tokio::test]
async fn name_without_a_response_does_not_delay_other_names() {
    let tasks = Supervisor::new();
    let (server, address) = Server::start(&tasks).await;
    server.set_reply("gw.example", Reply::Addresses(vec!["192.0.2.1"], 0));
    server.set_reply("silent.example", Reply::Silence);
    let short = Duration::from_millis(20);
    let limits = DnsLimits {
        ttl_min: short,
        retry_min: short,
        retry_max: short,
        grace: Duration::from_millis(400),
        // Longer than the test may take, so that the silent name never gets a response.
        question_max: 2 * LIMIT,
        ..DnsLimits::default()
    };
    let required_names: BTreeSet<Arc<str>> = ["gw.example".into(), "silent.example".into()].into();
    let (required, required_names) = watch::channel(required_names);
    let (resolved, mut names) = watch::channel(Arc::default());
    let dns = Dns::at(address, 2 * LIMIT).expect("a resolver");
    tasks.spawn("resolver", run(dns, limits, required_names, resolved));

    let mut until = async |required_names: &dyn Fn(&ResolvedName) -> bool| {
        let found = names.wait_for(|names| names.get("gw.example").is_some_and(required_names));
        let found = tokio::time::timeout(LIMIT, found).await.expect("in time").expect("runs");
        assert!(found.get("silent.example").is_none());
        found.get("gw.example").cloned().expect("just found")
    };
    let has = |name: &ResolvedName, address: &str| {
        name.addresses == [address.parse::<IpAddr>().expect("an address")]
    };
    until(&|name| has(name, "192.0.2.1")).await;
    server.set_reply("gw.example", Reply::Addresses(vec!["192.0.2.2"], 0));
    until(&|name| has(name, "192.0.2.2")).await;
    server.set_reply("gw.example", Reply::Code(ResponseCode::ServFail));
    let failing = until(&|name| name.problem.is_some()).await;
    assert!(has(&failing, "192.0.2.2") && failing.stale_since.is_some());
    server.set_reply("gw.example", Reply::Code(ResponseCode::NXDomain));
    let expiring = until(&|name| name.kept_until.is_some()).await;
    assert!(has(&expiring, "192.0.2.2"));
    until(&|name| name.addresses.is_empty()).await;
    server.set_reply("gw.example", Reply::Addresses(vec!["192.0.2.3"], 0));
    let back = until(&|name| has(name, "192.0.2.3")).await;
    assert_eq!((back.problem, back.stale_since, back.kept_until), (None, None, None));

    required.send_replace(["silent.example".into()].into());
    let forgotten = names.wait_for(|names| names.get("gw.example").is_none());
    tokio::time::timeout(LIMIT, forgotten).await.expect("in time").expect("runs");
    assert!(tasks.shut_down(LIMIT).await);
}

#[tokio::test]
async fn addresses_from_before_a_restart_remain_until_dns_responds() {
    let tasks = Supervisor::new();
    let (server, address) = Server::start(&tasks).await;
    server.set_reply("gw.example", Reply::Code(ResponseCode::ServFail));
    let restored = ResolvedName {
        addresses: vec![IpAddr::from([192, 0, 2, 1])],
        ttl: Duration::from_secs(60),
        ..ResolvedName::default()
    };
    let before: ResolvedNames = [("gw.example".into(), restored.clone())].into_iter().collect();
    let (_want, required_names) = watch::channel(["gw.example".into()].into());
    let (resolved, mut names) = watch::channel(Arc::new(before));
    let dns = Dns::at(address, TRY).expect("a resolver");
    tasks.spawn("resolver", run(dns, DnsLimits::default(), required_names, resolved));
    let failing =
        names.wait_for(|names| names.get("gw.example").is_some_and(|n| n.problem.is_some()));
    let names = tokio::time::timeout(LIMIT, failing).await.expect("in time").expect("runs");
    assert_eq!(names.get("gw.example").map(|name| &name.addresses), Some(&restored.addresses));
    drop(names);
    assert!(tasks.shut_down(LIMIT).await);
}
