//! Tests for individual virtual hosts: transcripts, and a random client that must end with the
//! correct hosts.

use std::collections::VecDeque;

use super::*;
use crate::body::ResourceBody;
use strait_proto::envoy::envoy::config::route::v3 as config;

/// Builds a route with virtual hosts. The value of a host is its domain. Each host is a separate
/// run.
pub(super) fn route(name: &str, hosts: Option<&BTreeMap<String, String>>) -> Resource {
    let head = config::RouteConfiguration { name: name.into(), ..Default::default() };
    let run = |(host, value): (&String, &String)| {
        let one = config::RouteConfiguration {
            virtual_hosts: vec![host_of(host, value)],
            ..Default::default()
        };
        one.encode_to_vec().into()
    };
    let runs = hosts.into_iter().flatten().map(run);
    let runs: Arc<[bytes::Bytes]> = [head.encode_to_vec().into()].into_iter().chain(runs).collect();
    let body = ResourceBody::edited(runs, Vec::new(), Vec::new());
    Resource { version: Resource::new(name, body.to_bytes()).version, name: name.into(), body }
}

fn host_of(host: &str, value: &str) -> config::VirtualHost {
    config::VirtualHost { name: host.into(), domains: vec![value.into()], ..Default::default() }
}

/// Returns the version of the host `ROUTE/HOST` with a value.
pub(super) fn version(name: &str, value: &str) -> Version {
    let (_, host) = name.rsplit_once('/').expect("ROUTE/HOST");
    Resource::new("", host_of(host, value).encode_to_vec()).version
}

/// Decodes the value of a host, and checks that the host has the resource's name.
pub(super) fn value(name: &str, body: &[u8]) -> String {
    let host = config::VirtualHost::decode(body).expect("a virtual host");
    assert_eq!(host.name, name);
    host.domains.concat()
}

fn play_apart(script: &str) {
    play(ProtocolForm::Delta, &format!("apart\n{script}"));
}

/// The beginning of a transcript in which route 80 has hosts a and b.
const BEGUN: &str = "has rds 80=r
     has vhds 80=a:1,b:1
     ask rds 80
     -> rds #1 80=r
     ack rds #1
     ask vhds
     -> vhds #2 80/a=1 80/b=1
     ack vhds #2";

/// A continuation of [`BEGUN`] with route 81, which has host x.
const AND_ANOTHER: &str = "has rds 81=r
     has vhds 81=x:1
     ask rds 81
     -> rds #3 81=r
     ack rds #3
     -> vhds #4 81/x=1
     ack vhds #4";

#[test]
fn change_addition_or_removal_of_a_host_sends_only_that_host() {
    play_apart(&format!(
        "{BEGUN}
         set vhds 80=a:2,b:1
         -> vhds #3 80/a=2
         ack vhds #3
         set vhds 80=a:2,b:1,c:1
         -> vhds #4 80/c=1
         ack vhds #4
         set vhds 80=b:1,c:1
         -> vhds #5 -80/a
         ack vhds #5
         everything
         set rds 80=other
         -> rds #6 80=other"
    ));
}

/// Envoy does not request the hosts of a route that it subscribes to later.
#[test]
fn hosts_of_a_later_route_are_sent_and_removed_with_it() {
    play_apart(&format!(
        "{BEGUN}
         {AND_ANOTHER}
         ask rds -81
         -> vhds #5 -81/x
         set vhds 81=x:2
         ask rds 81
         -> rds #6 81=r
         ack rds #6
         -> vhds #7 81/x=2"
    ));
}

#[test]
fn route_without_hosts_receives_a_response() {
    play_apart(
        "has rds 80=r
         ask rds 80
         -> rds #1 80=r
         ack rds #1
         ask vhds
         -> vhds #2 -80/
         ack vhds #2
         set vhds 80=a:1
         -> vhds #3 80/a=1
         ack vhds #3
         set vhds 80=
         -> vhds #4 -80/a",
    );
}

#[test]
fn reconnected_client_receives_only_differences_from_its_list() {
    play_apart(
        "has rds 80=r 81=r
         has vhds 80=a:1,b:1 81=x:1
         ask rds 80@r 81@r
         ask vhds 80/a@1 80/b@1 81/x@1
         everything
         set vhds 81=x:2
         -> vhds #1 81/x=2",
    );
    play_apart(
        "has rds 80=r
         has vhds 80=a:1,b:1,c:1
         ask rds 80@r
         ask vhds 80/a@1 80/b@0 80/c@? 80/gone@1
         -> vhds #1 80/b=1 80/c=1 -80/gone",
    );
}

/// Envoy lists every host that it was ever sent, even if it has unsubscribed from the route and
/// subscribed to it again.
#[test]
fn listed_hosts_of_a_route_that_the_client_lacks_are_removed() {
    play_apart(
        "has rds 80=r
         has vhds 80=a:1
         ask rds 80
         -> rds #1 80=r
         ask vhds 80/a@1 81/x@1
         -> vhds #2 -80/a -81/x
         ack rds #1
         -> vhds #3 80/a=1",
    );
}

#[test]
fn rejected_host_is_sent_again_with_the_next_change() {
    play_apart(&format!(
        "{BEGUN}
         set vhds 80=a:bad,b:2
         -> vhds #3 80/a=bad 80/b=2
         nack vhds #3 because 80/a is no host
         refused vhds
         -> 80/a: 80/a is no host
         everything
         set vhds 80=a:3,b:2
         -> vhds #4 80/a=3 80/b=2
         ack vhds #4
         refused vhds
         -> nothing
         set vhds 80=a:bad,b:2
         -> vhds #5 80/a=bad
         nack vhds #5 because it is bad
         set vhds 80=a:3,b:2
         -> vhds #6 -80/
         ack vhds #6
         refused vhds
         -> nothing"
    ));
}

/// The client's state is unknown until it answers.
#[test]
fn unanswered_response_delays_only_its_own_route() {
    play_apart(&format!(
        "{BEGUN}
         {AND_ANOTHER}
         set vhds 80=a:2,b:1
         -> vhds #5 80/a=2
         set vhds 80=a:3,b:1
         set vhds 81=x:2
         -> vhds #6 81/x=2
         ack vhds #5
         -> vhds #7 80/a=3"
    ));
}

#[test]
fn hosts_are_sent_after_their_clusters_and_removed_before_them() {
    play_apart(
        "has cds a=1
         has eds a=1 b=1
         has rds 80=r
         has vhds 80=h:a
         ask cds
         -> cds #1 a=1
         ask eds a
         -> eds #2 a=1
         ack cds #1
         ack eds #2
         ask rds 80
         -> rds #3 80=r
         ack rds #3
         ask vhds
         -> vhds #4 80/h=a
         ack vhds #4
         has cds b=1
         has vhds 80=h:b
         everything
         -> cds #5 b=1
         ask eds b
         -> eds #6 b=1
         ack cds #5
         ack eds #6
         -> vhds #7 80/h=b
         ack vhds #7
         has cds -a
         has vhds 80=i:b
         everything
         -> vhds #8 80/i=b -80/h
         ack vhds #8
         -> cds #9 -a",
    );
}

/// A client that has not opted in is answered like a request for an unserved type.
#[test]
fn clients_that_did_not_opt_in_receive_no_hosts() {
    let url = ResourceType::VirtualHost.url();
    for (form, gone) in [(ProtocolForm::Delta, " -80/a"), (ProtocolForm::Sotw, "")] {
        let script = format!("ask rds 80\n-> rds #1 80=\nask {url} 80/a\n-> {url} #2{gone}");
        play(form, &script);
    }
}

/// [`Session::held`] reports whole routes even if hosts are sent individually.
#[test]
fn held_resource_is_the_whole_route() {
    let mut stage = Stage::new(ProtocolForm::Delta);
    stage.session.serve_virtual_hosts();
    stage.source.set(ResourceType::Route, "80", "r");
    stage.source.set(ResourceType::VirtualHost, "80", "a:1");
    for line in ["ask rds 80", "ack rds #1", "ask vhds", "ack vhds #2"] {
        stage.perform(line);
    }
    let held = stage.session.held();
    assert_eq!(held.keys().collect::<Vec<_>>(), [&ResourceType::Route]);
    let whole = route("80", stage.source.hosts.get("80"));
    assert_eq!(
        held[&ResourceType::Route][&*whole.name],
        HeldVersion::Sent(Arc::new(whole.clone()))
    );
}

/// A model of an Envoy that receives hosts individually.
#[derive(Default)]
struct HostClient {
    /// The routes that it holds, each with its hosts.
    routes: BTreeMap<String, BTreeMap<String, String>>,
    wanted: BTreeSet<String>,
    /// The hosts that it lists when it reconnects. It keeps each host until the host is removed.
    listed: BTreeMap<String, String>,
    responses: VecDeque<Response>,
}

#[test]
fn random_client_ends_with_the_hosts_of_its_routes() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut stage = Stage::new(ProtocolForm::Delta);
        stage.session.serve_virtual_hosts();
        let mut client = HostClient::default();
        let mut is_asked = false;
        for step in 0..150 {
            let rests = step >= 110;
            let name = ["80", "81", "82"][random.random_range(0..3)].to_owned();
            match random.random_range(0..12) {
                0..4 if !rests => {
                    let mut hosts = BTreeMap::new();
                    for host in ["a", "b", "c", "d"] {
                        let bad = random.random_ratio(1, 20);
                        let value = if bad { 9 } else { random.random_range(0..3) };
                        if random.random() {
                            hosts.insert(host.to_owned(), value.to_string());
                        }
                    }
                    stage.source.hosts.insert(name.as_str().into(), hosts);
                    let routes = [name.as_str().into()].into();
                    stage.session.on_change(&Dirty { routes, ..Dirty::default() });
                }
                4 if !rests => {
                    let (subscribe, drop) = if client.wanted.insert(name.clone()) {
                        (vec![name], vec![])
                    } else {
                        client.wanted.remove(&name);
                        client.routes.remove(&name);
                        (vec![], vec![name])
                    };
                    let url = ResourceType::Route.url();
                    stage.request(url, "", &subscribe, &drop, &[], None).expect("fine");
                }
                5 if !rests => {
                    stage.session = Session::new(ProtocolForm::Delta);
                    stage.session.serve_virtual_hosts();
                    stage.node = Some("n".into());
                    client.responses.clear();
                    is_asked = false;
                    let names: Vec<_> = client.wanted.iter().cloned().collect();
                    let held = client.routes.keys();
                    let version = Resource::new("", "").version.to_string();
                    let held: Vec<_> = held.map(|name| (name.clone(), version.clone())).collect();
                    let url = ResourceType::Route.url();
                    let drop = if names.is_empty() { vec!["*".to_owned()] } else { vec![] };
                    stage.request(url, "", &names, &drop, &held, None).expect("fine");
                }
                6..9 => {
                    let Stage { session, source, now, .. } = &mut stage;
                    client.responses.extend(session.next_response(source, usize::MAX, *now));
                }
                _ => {
                    if let Some(response) = client.responses.pop_front() {
                        client.read(&response, &mut stage);
                    }
                }
            }
            if !is_asked && !client.routes.is_empty() {
                is_asked = true;
                let listed: Vec<_> = client.listed.clone().into_iter().collect();
                let url = ResourceType::VirtualHost.url();
                stage.request(url, "", &[], &[], &listed, None).expect("fine");
            }
        }
        // At the end, no host is invalid.
        for name in ["80", "81", "82"] {
            let hosts = [("a".to_owned(), "1".to_owned()), ("z".to_owned(), format!("of{seed}"))];
            stage.source.hosts.insert(name.into(), hosts.into());
        }
        stage.session.on_change(&Dirty { everything: true, ..Dirty::default() });
        for _ in 0..40 {
            let Stage { session, source, now, .. } = &mut stage;
            client.responses.extend(session.next_response(source, usize::MAX, *now));
            while let Some(response) = client.responses.pop_front() {
                client.read(&response, &mut stage);
            }
            if !is_asked && !client.routes.is_empty() {
                is_asked = true;
                let listed: Vec<_> = client.listed.clone().into_iter().collect();
                let url = ResourceType::VirtualHost.url();
                stage.request(url, "", &[], &[], &listed, None).expect("fine");
            }
        }
        let has: BTreeMap<_, _> = client
            .wanted
            .iter()
            .map(|name| (name.clone(), stage.source.hosts[&**name].clone()))
            .collect();
        assert_eq!(client.routes, has, "seed {seed}");
        assert!(!stage.session.is_due() && stage.session.is_settled(), "seed {seed}");
        assert!(stage.session.watches.values().all(|watch| watch.is_consistent()), "seed {seed}");
        let standing = stage.session.standing();
        assert_eq!(standing, ProxyStanding::InSync, "seed {seed}");
    }
}

impl HostClient {
    /// Handles a response as Envoy does: it accepts or rejects all hosts of a route together.
    fn read(&mut self, response: &Response, stage: &mut Stage) {
        let mut error = None;
        match response.kind {
            ResourceType::Route => {
                for one in response.resources.iter().filter(|one| self.wanted.contains(&*one.name))
                {
                    self.routes.entry(one.name.to_string()).or_default();
                }
            }
            ResourceType::VirtualHost => {
                let values = response
                    .resources
                    .iter()
                    .map(|one| (one.name.to_string(), value(&one.name, &one.body.to_bytes())));
                let values: Vec<_> = values.collect();
                if let Some((name, _)) = values.iter().find(|(_, value)| value == "9") {
                    error = Some(format!("{name} is bad"));
                } else {
                    for (name, value) in values {
                        let (route, host) = name.rsplit_once('/').expect("ROUTE/HOST");
                        if let Some(hosts) = self.routes.get_mut(route) {
                            hosts.insert(host.to_owned(), value);
                        }
                    }
                    for name in &response.removed {
                        let (route, host) = name.rsplit_once('/').expect("ROUTE/HOST");
                        self.routes.get_mut(route).map(|hosts| hosts.remove(host));
                        self.listed.remove(&**name);
                    }
                    let versions = response.resources.iter();
                    self.listed.extend(
                        versions.map(|one| (one.name.to_string(), one.version.to_string())),
                    );
                }
            }
            other => panic!("{other:?}"),
        }
        let (url, nonce) = (response.kind.url(), &response.nonce);
        stage.request(url, nonce, &[], &[], &[], error).expect("an answer");
    }
}
