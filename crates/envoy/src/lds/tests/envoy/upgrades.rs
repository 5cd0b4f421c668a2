//! Requests and WebSockets over a hop that `h2UpgradePolicy` upgrades to HTTP/2, and paths that the Gateway API replaces,
//! through real Envoys of two versions.

use super::rules::{client_listener, governed, governed_by, version};
use super::*;
use strait_model::GATEWAY_API;

/// An application that speaks HTTP/1.1 only: it answers requests, and echoes the bytes of a WebSocket.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
async fn http1_application() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
                if !head.contains("http/1.1\r\n") {
                    return Ok(());
                }
                if head.contains("upgrade: websocket\r\n") {
                    stream
                        .write_all(
                            b"HTTP/1.1 101 Switching Protocols\r\n\
                              connection: Upgrade\r\nupgrade: websocket\r\n\r\n",
                        )
                        .await?;
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await?;
                } else {
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nHTTP/1.1")
                        .await?;
                }
                Ok::<_, std::io::Error>(())
            });
        }
    });
    port
}

/// Opens a WebSocket and sends bytes through it; returns everything that comes back until they do.
async fn websocket(port: u16) -> String {
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream
            .write_all(
                b"GET /ws HTTP/1.1\r\nhost: app.ns\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            )
            .await?;
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\n") {
            received.push(stream.read_u8().await?);
        }
        stream.write_all(b"over the hop").await?;
        while !received.ends_with(b"over the hop") {
            match stream.read_u8().await {
                Ok(byte) => received.push(byte),
                Err(_) => break,
            }
        }
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&received).into_owned())
    };
    let received = tokio::time::timeout(WAIT_LIMIT, exchange).await.expect("a response in time");
    received.unwrap_or_else(|error| error.to_string())
}

#[tokio::test]
async fn application_receives_http1_over_an_upgraded_hop_and_websockets_too() {
    for envoy in envoys() {
        let [declared, plain] = free_ports();
        let [upgraded, not_upgraded] = free_ports();
        let ports = vec![port("http", 80, declared), port("http-b", 81, plain)];
        let endpoints = vec![at("10.0.0.9", "http", declared), at("10.0.0.9", "http-b", plain)];
        let app = service("app.ns").vip("10.1.0.1").ports(ports);
        let pod = workload("client.ns", "10.0.0.1", &[("app", "app")]);
        let services = shard("east", 1).network("n1").with(app, endpoints).pod(pod).built();
        let rule = "host: app\ntrafficPolicy: {portLevelSettings: [\
            {port: {number: 80}, connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}]}";
        let context = governed(services, "DestinationRule", &[rule]);
        let outbound = [("0.0.0.0_80", upgraded), ("0.0.0.0_81", not_upgraded)];
        let application = http1_application().await;
        let bootstrap = bootstrap_with_both_sidecars(
            (&context, &client()),
            &outbound,
            &[declared, plain],
            application,
        );
        let running = Running::start(&envoy, &bootstrap).await;
        for (number, entry) in [(80, upgraded), (81, not_upgraded)] {
            let answer = request(&format!("127.0.0.1:{entry}"), "/", "").await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{} {number}: {answer}", envoy.display());
            let answer = websocket(entry).await;
            let is_open = answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("over the hop");
            assert!(is_open, "{} {number}: {answer}", envoy.display());
        }
        let connections = running
            .counter("outbound|80||app.ns.svc.cluster.local", "upstream_cx_http2_total")
            .await;
        assert!(connections > 0, "the hop between the proxies is HTTP/2");
    }
}

/// Prefix, replacement, path, and the path that a replacement results in: the table of the Gateway API
/// (`HTTPPathModifier.replacePrefixMatch`), then what it implies for the prefix `/` and for queries.
const REPLACED: &[(&str, &str, &str, &str)] = &[
    ("/foo", "/xyz", "/foo/bar", "/xyz/bar"),
    ("/foo", "/xyz/", "/foo/bar", "/xyz/bar"),
    ("/foo/", "/xyz", "/foo/bar", "/xyz/bar"),
    ("/foo/", "/xyz/", "/foo/bar", "/xyz/bar"),
    ("/foo", "/xyz", "/foo", "/xyz"),
    ("/foo", "/xyz", "/foo/", "/xyz/"),
    ("/foo", "", "/foo/bar", "/bar"),
    ("/foo", "", "/foo/", "/"),
    ("/foo", "", "/foo", "/"),
    ("/foo", "/", "/foo/", "/"),
    ("/foo", "/", "/foo", "/"),
    ("/", "/pre", "/test", "/pre/test"),
    ("/", "/pre/", "/test", "/pre/test"),
    ("/", "/pre", "/", "/pre/"),
    ("/", "/pre", "/test/", "/pre/test/"),
    ("/", "/", "/test", "/test"),
    ("/", "", "/test", "/test"),
    ("/", "/pre", "/test?a=b", "/pre/test?a=b"),
    ("/foo", "/xyz", "/foo?a=b", "/xyz?a=b"),
    ("/foo", "/", "/foo?a=b", "/?a=b"),
    ("/foo", "", "/foo/bar?a=/foo", "/bar?a=/foo"),
];

#[tokio::test]
async fn replaced_prefixes_follow_the_table_of_the_gateway_api() {
    let mut rules = String::new();
    for (row, (prefix, new, ..)) in REPLACED.iter().enumerate() {
        let path = format!("path: {{type: ReplacePrefixMatch, replacePrefixMatch: '{new}'}}");
        let matches = |kind: &str| {
            format!(
                "matches: [{{path: {{type: PathPrefix, value: {prefix}}}, headers: [{{name: x-row, value: {kind}-{row}}}]}}]"
            )
        };
        rules += &format!(
            "- {{{}, filters: [{{type: URLRewrite, urlRewrite: {{{path}}}}}], backendRefs: [{{name: app, port: 80}}]}}\n\
             - {{{}, filters: [{{type: RequestRedirect, requestRedirect: {{{path}}}}}]}}\n",
            matches("rewrite"),
            matches("redirect"),
        );
    }
    let spec = format!("parentRefs: [{{group: '', kind: Service, name: app}}]\nrules:\n{rules}");
    let app = service("app.ns").vip("10.1.0.1").ports(vec![port("http", 80, 8080)]);
    let services = shard("east", 1).network("n1").with(app, vec![]).built();
    let context = governed_by(services, (GATEWAY_API, "HTTPRoute"), &[&spec]);
    let application = version("app", Arc::default()).await;
    let cluster = "outbound|80||app.ns.svc.cluster.local";
    let upstream = json!({
        "name": cluster, "type": "STATIC", "load_assignment": to_loopback(cluster, application),
    });
    for envoy in envoys() {
        let (listener, entry) = client_listener(&context);
        let running =
            Running::start(&envoy, &bootstrap(vec![listener], vec![upstream.clone()])).await;
        for (row, (prefix, new, path, expected)) in REPLACED.iter().enumerate() {
            let what = format!("{} {prefix} -> {new:?}: {path}", envoy.display());
            let address = format!("127.0.0.1:{entry}");
            let answer = request(&address, path, &format!("x-row: rewrite-{row}\r\n")).await;
            assert!(answer.contains(&format!("<app {expected} ")), "{what}: {answer}");
            let answer = request(&address, path, &format!("x-row: redirect-{row}\r\n")).await;
            let location = format!("location: http://app.ns{expected}\r\n");
            assert!(answer.contains(&location), "{what}: {answer}");
        }
        drop(running);
    }
    let cache = Cache::default();
    let proxy = client();
    let config = ProxyConfig::new(&context, &proxy, "n1".into(), &cache);
    for (row, (prefix, new, path, expected)) in REPLACED.iter().enumerate() {
        let url = format!("http://app.ns{path}");
        let headers = [format!("x-row: redirect-{row}")];
        let request = crate::ProbedRequest::parse("GET", &url, &headers, None).expect("a request");
        let walk = config.walk(&request, crate::RequestDirection::Out);
        let location = format!("http://app.ns{expected}");
        assert_eq!(walk.location, Some(location), "{prefix} -> {new:?}: {path}");
    }
}

#[tokio::test]
async fn header_that_must_not_match_may_be_absent_whatever_its_pattern() {
    let cases = [
        ("any", "{x-a: {regex: '.*'}}", [("", true), ("x-a: b\r\n", false)]),
        ("some", "{x-a: {regex: 'b?'}}", [("", true), ("x-a: b\r\n", false)]),
        ("other", "{x-a: {regex: 'b?'}}", [("", true), ("x-a: c\r\n", true)]),
        ("empty", "{x-a: {exact: ''}}", [("", true), ("x-a: b\r\n", true)]),
        (
            "two",
            "{x-a: {regex: '.*'}, x-b: {regex: 'c|'}}",
            [("x-b: d\r\n", true), ("x-b: c\r\n", false)],
        ),
        ("plain", "{x-a: {exact: b}}", [("", true), ("x-a: b\r\n", false)]),
        (
            "more",
            "{x-a: {regex: '.*'}}, headers: {x-b: {exact: c}}",
            [("x-b: c\r\n", true), ("", false)],
        ),
    ];
    let rules = cases.iter().map(|(name, without, _)| {
        format!("- {{match: [{{uri: {{prefix: /{name}}}, withoutHeaders: {without}}}], directResponse: {{status: 299}}}}\n")
    });
    let spec = format!(
        "hosts: [app]\nhttp:\n{}- {{directResponse: {{status: 404}}}}",
        rules.collect::<String>()
    );
    let app = service("app.ns").vip("10.1.0.1").ports(vec![port("http", 80, 8080)]);
    let services = shard("east", 1).network("n1").with(app, vec![]).built();
    let context = governed(services, "VirtualService", &[&spec]);
    for envoy in envoys() {
        let (listener, entry) = client_listener(&context);
        let running = Running::start(&envoy, &bootstrap(vec![listener], vec![])).await;
        for (name, without, requests) in cases {
            for (headers, fits) in requests {
                let answer =
                    request(&format!("127.0.0.1:{entry}"), &format!("/{name}"), headers).await;
                let status = if fits { "299" } else { "404" };
                let is_right = answer.starts_with(&format!("HTTP/1.1 {status} "));
                assert!(is_right, "{} {name} {without} {headers:?}: {answer}", envoy.display());
            }
        }
        drop(running);
    }
}
