//! Tests of traffic rules with real Envoys of two versions: destinations, modifications and
//! responses of requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::{ProbedRequest, RequestDirection};
use strait_model::{
    Collection, ForwardedCertificate, GatewayTopology, ISTIO_NETWORKING, ObjectKey,
};
use strait_rules::testing::kind_settings;
use strait_rules::traffic::TrafficIndex;

/// One rule for each feature, with separate path prefixes; the canary comes last.
const RULES: &str = "
hosts: [app]
http:
- {match: [{headers: {x-user: {exact: jo}}}], route: [{destination: {host: app, subset: v2}}]}
- {match: [{uri: {prefix: /abort}}], fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: app, subset: v1}}]}
- {match: [{uri: {prefix: /delay}}], fault: {delay: {fixedDelay: 0.4s, percentage: {value: 100}}}, route: [{destination: {host: app, subset: v1}}]}
- {match: [{uri: {prefix: /mirror}}], mirror: {host: app, subset: shadow}, route: [{destination: {host: app, subset: v1}}]}
- {match: [{uri: {prefix: /moved}}], redirect: {uri: /new, authority: other.example, redirectCode: 308}}
- {match: [{uri: {prefix: /said}}], directResponse: {status: 451, body: {string: never}}}
- {match: [{uri: {prefix: /old/}}], rewrite: {uri: /new/, authority: inner.example}, route: [{destination: {host: app, subset: v1}}]}
- {match: [{uri: {prefix: /v}}], rewrite: {uriRegexRewrite: {match: '^/v([0-9]+)/(.*)$', rewrite: '/\\2-\\1'}}, route: [{destination: {host: app, subset: v1}}]}
- {match: [{uri: {prefix: /slow}}], timeout: 0.3s, retries: {attempts: 0}, route: [{destination: {host: app, subset: v1}}]}
- {match: [{uri: {prefix: /flaky}}], retries: {attempts: 3, retryOn: '503'}, route: [{destination: {host: app, subset: v1}}]}
- match: [{uri: {prefix: /headers}}]
  headers: {request: {set: {x-set: one}, remove: [x-gone]}, response: {add: {x-answer: two}}}
  route: [{destination: {host: app, subset: v1}}]
- match: [{uri: {prefix: /cors}}]
  corsPolicy: {allowOrigins: [{exact: 'https://a.example'}], allowMethods: [GET], maxAge: 1h}
  route: [{destination: {host: app, subset: v1}}]
- {match: [{uri: {prefix: /refused}}], directResponse: {status: 600}}
- {match: [{uri: {prefix: /broken}, headers: {x: {regex: '('}}}], directResponse: {status: 403}}
- {match: [{uri: {prefix: /absent}, headers: {x: {regex: '('}}}], route: [{destination: {host: app, subset: v2}}]}
- {match: [{uri: {prefix: /nowhere}}], route: [{destination: {host: app, subset: gone}}]}
- {match: [{uri: {prefix: /zero}}], route: [{destination: {host: app, subset: v1}, weight: 0}, {destination: {host: app, subset: v2}, weight: 0}]}
- {match: [{uri: {regex: '/(long|wide).{20}'}}], route: [{destination: {host: app, subset: v2}}]}
- {route: [{destination: {host: app, subset: v1}, weight: 75}, {destination: {host: app, subset: v2}, weight: 25}]}
";

/// Returns a mesh with these rules for `app.ns`.
fn ruled(rules: &str) -> Arc<PushContext> {
    let app = service("app.ns").vip("10.1.0.1").ports(vec![port("http", 80, 8080)]);
    governed(shard("east", 1).network("n1").with(app, vec![]).built(), "VirtualService", &[rules])
}

/// Returns a mesh with these services and an object for each spec.
pub(super) fn governed(services: RegistryUpdate, kind: &str, specs: &[&str]) -> Arc<PushContext> {
    governed_by(services, (ISTIO_NETWORKING, kind), specs)
}

/// Returns a mesh with these services and an object of this group and kind for each spec.
pub(super) fn governed_by(
    services: RegistryUpdate,
    (group, kind): (&str, &str),
    specs: &[&str],
) -> Arc<PushContext> {
    let mut mesh = mesh();
    mesh.apply(MeshEvent::Registry(services));
    let object = |(at, text): (usize, &&str)| {
        let key = ObjectKey {
            kind: kind.into(),
            group: group.into(),
            namespace: "ns".into(),
            name: format!("app-{at}").into(),
        };
        let spec: Value = serde_saphyr::from_str(text).expect("the text is YAML");
        (key, Arc::new(json!({ "spec": spec })))
    };
    let objects: Collection = specs.iter().enumerate().map(object).collect();
    let mut index = TrafficIndex::new(kind_settings());
    mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("there is something new")));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

/// Starts a workload that responds with its name and details of the request. `/slow` responds
/// slowly, `/flaky` fails twice.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
pub(super) async fn version(name: &'static str, count: Arc<AtomicUsize>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let flaky = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (count, flaky) = (Arc::clone(&count), Arc::clone(&flaky));
            let answer = hyper::service::service_fn(move |request: http::Request<_>| {
                let _: &hyper::body::Incoming = request.body();
                count.fetch_add(1, Ordering::Relaxed);
                let path = request.uri().to_string();
                let header = |name: &str| {
                    let value = request.headers().get(name).and_then(|value| value.to_str().ok());
                    value.unwrap_or("-").to_owned()
                };
                let headers = ["host", "x-set", "x-gone"].map(header).join(" ");
                let fails = path == "/flaky" && flaky.fetch_add(1, Ordering::Relaxed) % 3 < 2;
                async move {
                    if path == "/slow" {
                        tokio::time::sleep(Duration::from_secs(3)).await;
                    }
                    let body = bytes::Bytes::from(format!("<{name} {path} {headers}>"));
                    let answer = http::Response::builder().status(if fails { 503 } else { 200 });
                    answer.body(http_body_util::Full::new(body))
                }
            });
            tokio::spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let executor = hyper_util::rt::TokioExecutor::new();
                let server = hyper_util::server::conn::auto::Builder::new(executor);
                let _ = server.serve_connection(io, answer).await;
            });
        }
    });
    port
}

/// Returns the client's listener for port 80, on a free port of loopback, and that port.
pub(super) fn client_listener(context: &Arc<PushContext>) -> (Value, u16) {
    let [entry] = free_ports();
    let mut listener =
        inlined(context, &client(), listeners(context, &client())["0.0.0.0_80"].clone());
    listener["address"] = at_loopback(entry);
    listener["bind_to_port"] = true.into();
    (listener, entry)
}

#[tokio::test]
async fn requests_follow_rules() {
    let context = ruled(RULES);
    let counts = ["v1", "v2", "shadow"].map(|name| (name, Arc::new(AtomicUsize::new(0))));
    let mut upstreams = Vec::new();
    for (name, count) in &counts {
        let port = version(name, Arc::clone(count)).await;
        let cluster = format!("outbound|80|{name}|app.ns.svc.cluster.local");
        let assignment = to_loopback(&cluster, port);
        upstreams.push(json!({ "name": cluster, "type": "STATIC", "load_assignment": assignment }));
    }
    for envoy in envoys() {
        let (listener, entry) = client_listener(&context);
        let mut bootstrap = bootstrap(vec![listener], upstreams.clone());
        bootstrap["layered_runtime"] = json!({ "layers": [
            { "name": "strait", "static_layer": { "re2.max_program_size.error_level": 32768 } },
        ] });
        let running = Running::start(&envoy, &bootstrap).await;
        check_requests(&format!("127.0.0.1:{entry}"), &counts[2].1).await;
        drop(running);
    }
}

/// Rules that each contain a value that Envoy refuses or might refuse.
const BROKEN: &[&str] = &[
    "{match: [{method: {exact: X}, uri: {regex: '('}}], route: [{destination: {host: app}}]}",
    "{match: [{method: {exact: X}, uri: {regex: '(?=a)b'}}], route: [{destination: {host: app}}]}",
    "{match: [{method: {exact: X}, uri: {regex: 'a{1001}'}}], route: [{destination: {host: app}}]}",
    "{match: [{method: {exact: X}, uri: {regex: ''}}], route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: ''}}], directResponse: {status: 200}}",
    "{match: [{uri: {exact: ''}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, headers: {'': {exact: a}}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, headers: {'a b': {exact: a}}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, headers: {a: {prefix: ''}}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, headers: {a: {exact: \"b\\nc\"}}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, queryParams: {'': {exact: a}}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, queryParams: {a: {regex: '['}}}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /x}, method: {prefix: ''}}], directResponse: {status: 200}}",
    "{match: [{port: 70000}], directResponse: {status: 200}}",
    "{match: [{uri: {prefix: /d}}], directResponse: {status: 99}}",
    "{match: [{uri: {prefix: /d}}], directResponse: {status: 600}}",
    "{match: [{uri: {prefix: /r}}], redirect: {redirectCode: 304}}",
    "{match: [{uri: {prefix: /r}}], redirect: {authority: \"a\\r\\nb\"}}",
    "{match: [{uri: {prefix: /r}}], redirect: {port: 70000}}",
    "{match: [{uri: {prefix: /f}}], fault: {abort: {httpStatus: 7, percentage: {value: 1}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /f}}], fault: {delay: {fixedDelay: 0s, percentage: {value: 1}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /f}}], fault: {delay: {fixedDelay: 1s, percentage: {value: -3}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /f}}], fault: {abort: {grpcStatus: NO_SUCH, percentage: {value: 1}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /h}}], headers: {request: {set: {'': a}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /h}}], headers: {request: {add: {':path': /}, remove: [':method', host]}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /h}}], headers: {response: {set: {a: \"b\\nc\"}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /h}}], headers: {request: {set: {a: '%NO_SUCH%'}}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /w}}], route: [{destination: {host: app}, weight: -1}, {destination: {host: app}, weight: 2}]}",
    "{match: [{uri: {prefix: /w}}], route: [{destination: {host: app}, weight: 4294967295}, {destination: {host: app, subset: a}, weight: 4294967295}]}",
    "{match: [{uri: {prefix: /w}}], route: [{destination: {host: '*'}}]}",
    "{match: [{uri: {prefix: /w}}], route: [{destination: {host: app, subset: 'a|b'}, weight: 1}, {destination: {host: app}, weight: 1}]}",
    "{match: [{uri: {prefix: /t}}], retries: {attempts: 3, backoff: 0s, retryOn: 'no such,'}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /t}}], retries: {attempts: 4294967296}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /c}}], corsPolicy: {allowOrigins: [{regex: '('}, {prefix: ''}, {}]}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /u}}], rewrite: {uriRegexRewrite: {match: '(a)', rewrite: '\\2'}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /u}}], rewrite: {uri: \"/a\\nb\"}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /u}}], rewrite: {uri: /a, uriRegexRewrite: {match: a, rewrite: b}}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /m}}], mirror: {host: '*'}, mirrorPercentage: {value: 1000}, route: [{destination: {host: app}}]}",
    "{match: [{uri: {prefix: /n}}]}",
];

#[test]
fn envoys_accept_the_result_of_invalid_rules() {
    let good = "{route: [{destination: {host: app}}]}";
    let rules = BROKEN.iter().copied().chain([good]);
    let rules = format!("hosts: [app]\nhttp:\n- {}", rules.collect::<Vec<_>>().join("\n- "));
    let context = ruled(&rules);
    let listener = listeners(&context, &client())["0.0.0.0_80"].clone();
    let listener = inlined(&context, &client(), listener);
    let text = listener.to_string();
    assert!(
        text.contains("outbound|80||app.ns.svc.cluster.local"),
        "the valid rule remains: {text}"
    );
    for envoy in envoys() {
        validated(&envoy, "broken rules", &bootstrap(vec![listener.clone()], vec![]));
    }
}

/// Requests and expected responses: path, headers, status, and a part of the response.
const EXPECTED: &[(&str, &str, &str, &str)] = &[
    ("/any", "x-user: jo\r\n", "200", "<v2 /any app.ns - ->"),
    ("/abort", "", "418", "fault filter abort"),
    ("/mirror", "", "200", "<v1 /mirror "),
    ("/moved", "", "308", "location: http://other.example/new"),
    ("/said", "", "451", "never"),
    ("/old/path", "", "200", "<v1 /new/path inner.example "),
    ("/v7/a", "", "200", "<v1 /a-7 "),
    ("/slow", "", "504", "upstream request timeout"),
    ("/headers", "x-gone: here\r\n", "200", "<v1 /headers app.ns one ->"),
    ("/headers", "", "200", "x-answer: two"),
    (
        "/cors",
        "origin: https://a.example\r\n",
        "200",
        "access-control-allow-origin: https://a.example",
    ),
    ("/refused", "", "500", ""),
    ("/broken", "x: (\r\n", "500", ""),
    ("/nowhere", "", "503", ""),
    ("/zero", "", "500", ""),
    ("/absent", "x-user: jo\r\n", "200", "<v2 /absent"),
    ("/long01234567890123456789", "", "200", "<v2 /long"),
];

/// `explain route` predicts the behavior of Envoy.
#[test]
fn requests_are_explained_as_envoys_route_them() {
    let context = ruled(RULES);
    let (proxy, cache) = (client(), Cache::default());
    let config = ProxyConfig::new(&context, &proxy, "n1".into(), &cache);
    for (path, headers, status, text) in EXPECTED {
        let headers: Vec<String> = headers.lines().map(str::to_owned).collect();
        let url = format!("http://app.ns{path}");
        let request = ProbedRequest::parse("GET", &url, &headers, None).expect("a request");
        let walk = config.walk(&request, RequestDirection::Out);
        let rule = walk.rule.as_ref().and_then(|rule| rule.index).expect("a rule decides");
        let before = walk.lost.iter().filter(|lost| lost.rule.index < Some(rule)).count();
        assert_eq!(before, rule as usize, "{path}: each earlier rule has a reason: {walk:#?}");
        let answer = walk.answer.map(|status| status.to_string());
        let note = |part: &str| walk.notes.iter().any(|note| note.contains(part));
        match *status {
            "418" => assert!(rule == 1 && note("418"), "{path}: {walk:#?}"),
            "504" => assert!(rule == 8 && note("300ms"), "{path}: {walk:#?}"),
            "308" => {
                assert_eq!(walk.location.as_deref(), Some("http://other.example/new"), "{path}");
            }
            "200" => {
                let subset = if text.starts_with("<v2") { "v2" } else { "v1" };
                assert_eq!(walk.destinations[0].subset, subset, "{path}: {walk:#?}");
            }
            status => assert_eq!(answer.as_deref(), Some(status), "{path}: {walk:#?}"),
        }
    }
}

/// Sends the requests to this address and compares the responses.
async fn check_requests(address: &str, shadowed: &AtomicUsize) {
    for (path, headers, status, text) in EXPECTED.iter().copied() {
        let answer = request(address, path, headers).await;
        let right = answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(text);
        assert!(right, "{path}: {answer}");
    }
    let began = Instant::now();
    let answer = request(address, "/delay", "").await;
    let elapsed = began.elapsed();
    assert!(
        answer.contains("<v1 /delay ") && elapsed >= Duration::from_millis(390),
        "{elapsed:?} {answer}"
    );
    let answer = request(address, "/flaky", "").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "it is tried again: {answer}");
    let mut shares = BTreeMap::<_, usize>::new();
    for _ in 0..200 {
        let answer = request(address, "/canary", "").await;
        let version = if answer.contains("<v1 ") { "v1" } else { "v2" };
        *shares.entry(version).or_default() += 1;
    }
    assert!((20..90).contains(&shares["v2"]), "a quarter of 200, give or take: {shares:?}");
    let copied = async {
        while shadowed.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, copied).await.expect("a copy arrives");
    shadowed.store(0, Ordering::Relaxed);
}

#[test]
fn envoys_accept_every_gateway_topology() {
    let servers = "servers:\n\
        - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}\n\
        - {port: {number: 8443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: a, caCrl: /crl}}";
    let services = shard("east", 1).network("n1").with(service("app.ns").vip("10.1.0.1"), vec![]);
    let context = governed(services.built(), "Gateway", &[servers]);
    for client_certificate in ForwardedCertificate::ALL {
        let topology =
            GatewayTopology { trusted_proxies: 2, client_certificate, proxy_protocol: true };
        let proxy = Proxy { topology: Some(topology), ..router() };
        let all: Vec<_> = listeners(&context, &proxy).into_values().collect();
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|one| one.to_string().contains("proxy_protocol")));
        for envoy in envoys() {
            let what = format!("{client_certificate:?} by {}", envoy.display());
            validated(&envoy, &what.replace('/', "-"), &bootstrap(all.clone(), vec![]));
        }
    }
}
