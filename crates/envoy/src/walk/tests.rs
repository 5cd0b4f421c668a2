//! Tests of request parsing and of matching with fixed values.

use serde_json::{Value, json};

use super::fit::{ArrivingConnection, accepting_chain, misfit, selected_host};
use super::*;
use strait_model::mesh_config::DotParameters;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::json::from_json;

fn decode<M: Message + Default>(kind: &str, value: &Value) -> M {
    M::decode(&*from_json(kind, value).expect("a message")).expect("a message")
}

fn request(method: &str, url: &str, headers: &[&str]) -> ProbedRequest {
    let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
    ProbedRequest::parse(method, url, &headers, None).expect("a request")
}

#[test]
fn most_specific_virtual_host_is_selected() {
    let table: route::RouteConfiguration = decode(
        "envoy.config.route.v3.RouteConfiguration",
        &json!({ "ignorePortInHostMatching": true, "virtualHosts": [
            { "name": "all", "domains": ["*"] },
            { "name": "under", "domains": ["*.b.com"] },
            { "name": "longer", "domains": ["*.a.b.com"] },
            { "name": "prefix", "domains": ["www.*"] },
            { "name": "exact", "domains": ["x.a.b.com", "X.b.com"] },
        ] }),
    );
    for (host, called) in [
        ("x.a.b.com", "exact"),
        ("x.B.com:80", "exact"),
        ("y.a.b.com", "longer"),
        ("a.b.com", "under"),
        ("b.com", "all"),
        ("www.org", "prefix"),
        ("www.b.com", "under"),
    ] {
        assert_eq!(selected_host(&table, host).expect("all").name, called, "{host}");
    }
}

#[test]
fn unmet_condition_is_reported() {
    let probed = request("GET", "http://a.b:81/A/b?x=1&y", &["x-user: jo", "n:1", "n: 2"]);
    let exact = |text: &str| json!({ "exact": text });
    let header = |name: &str, text: Value| json!({ "name": name, "stringMatch": text });
    let cases = [
        (json!({ "prefix": "/A" }), None),
        (json!({ "prefix": "/a" }), Some("does not begin with /a")),
        (json!({ "prefix": "/a/", "caseSensitive": false }), None),
        (json!({ "path": "/A" }), Some("is not /A")),
        (json!({ "pathSeparatedPrefix": "/A" }), None),
        (json!({ "pathSeparatedPrefix": "/A/" }), Some("segments")),
        (json!({ "safeRegex": { "regex": "/./b" } }), None),
        (json!({ "safeRegex": { "regex": "/./" } }), Some("does not match the expression")),
        (json!({ "prefix": "/", "headers": [header("x-user", exact("jo"))] }), None),
        (json!({ "prefix": "/", "headers": [header("Host", exact("a.b:81"))] }), None),
        (json!({ "prefix": "/", "headers": [header("host", exact("a"))] }), Some("the host")),
        (json!({ "prefix": "/", "headers": [header(":path", exact("/A/b?x=1&y"))] }), None),
        (
            json!({ "prefix": "/", "headers": [header(":path", exact("/A/b"))] }),
            Some("the path with its query"),
        ),
        (json!({ "prefix": "/", "headers": [header("x-user", exact("al"))] }), Some("not \"al\"")),
        (json!({ "prefix": "/", "headers": [header("n", exact("1,2"))] }), None),
        (json!({ "prefix": "/", "headers": [header("none", exact("a"))] }), Some("is missing")),
        (
            json!({ "prefix": "/", "headers": [header(":method", exact("PUT"))] }),
            Some("the method"),
        ),
        (
            json!({ "prefix": "/", "headers": [
                { "name": "x-user", "invertMatch": true, "stringMatch": exact("jo") },
            ] }),
            Some("has an excluded value"),
        ),
        (
            json!({ "prefix": "/", "headers": [
                { "name": "none", "invertMatch": true, "treatMissingHeaderAsEmpty": true, "stringMatch": exact("jo") },
            ] }),
            None,
        ),
        (
            json!({ "prefix": "/", "headers": [{ "name": "none", "presentMatch": true }] }),
            Some("is missing"),
        ),
        (
            json!({ "prefix": "/", "headers": [{ "name": "none", "invertMatch": true, "presentMatch": true }] }),
            None,
        ),
        (
            json!({ "prefix": "/", "queryParameters": [{ "name": "x", "stringMatch": exact("1") }] }),
            None,
        ),
        (
            json!({ "prefix": "/", "queryParameters": [{ "name": "y", "presentMatch": true }] }),
            None,
        ),
        (
            json!({ "prefix": "/", "queryParameters": [{ "name": "z", "presentMatch": true }] }),
            Some("the parameter z is missing"),
        ),
    ];
    for (wanted, why) in cases {
        let route_match: route::RouteMatch = decode("envoy.config.route.v3.RouteMatch", &wanted);
        let found = misfit(Some(&route_match), &probed);
        match why {
            None => assert_eq!(found, None, "{wanted}"),
            Some(why) => {
                assert!(
                    found.as_deref().is_some_and(|found| found.contains(why)),
                    "{wanted}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn most_specific_chain_is_selected() {
    let listener: listener::Listener = decode(
        "envoy.config.listener.v3.Listener",
        &json!({
            "listenerFilters": [
                { "name": "envoy.filters.listener.tls_inspector" },
                { "name": "envoy.filters.listener.http_inspector" },
            ],
            "filterChains": [
                { "name": "http", "filterChainMatch": { "transportProtocol": "raw_buffer", "applicationProtocols": ["http/1.1"] } },
                { "name": "a", "filterChainMatch": { "serverNames": ["a.b"], "transportProtocol": "tls" } },
                { "name": "under", "filterChainMatch": { "serverNames": ["*.b"], "transportProtocol": "tls" } },
                { "name": "net", "filterChainMatch": { "prefixRanges": [{ "addressPrefix": "10.0.0.0", "prefixLen": 8 }] } },
                { "name": "one", "filterChainMatch": { "prefixRanges": [{ "addressPrefix": "10.0.0.1", "prefixLen": 32 }] } },
                { "name": "two", "filterChainMatch": { "prefixRanges": [{ "addressPrefix": "10.0.0.2", "prefixLen": 32 }] } },
                { "name": "two http", "filterChainMatch": {
                    "prefixRanges": [{ "addressPrefix": "10.0.0.2", "prefixLen": 32 }],
                    "transportProtocol": "raw_buffer", "applicationProtocols": ["http/1.1"],
                } },
            ],
            "defaultFilterChain": { "name": "rest" },
        }),
    );
    let plain = |address: &str| ArrivingConnection {
        address: address.parse().ok(),
        port: 80,
        is_tls: false,
        server_name: None,
        protocols: &["http/1.1"],
    };
    let tls = |name| ArrivingConnection {
        is_tls: true,
        server_name: Some(name),
        protocols: &[],
        ..plain("1.1.1.1")
    };
    let bytes = |address| ArrivingConnection { protocols: &[], ..plain(address) };
    for (connection, chain) in [
        (bytes("1.1.1.1"), "rest"),
        (bytes("10.0.0.1"), "one"),
        (plain("10.0.0.2"), "two http"),
        // Another chain of that range has this transport protocol.
        (bytes("10.0.0.2"), "rest"),
        (plain("1.1.1.1"), "http"),
        (plain("10.0.0.1"), "one"),
        (plain("10.1.1.1"), "net"),
        (tls("A.b"), "a"),
        (tls("c.b"), "under"),
        (tls("c.d"), "rest"),
    ] {
        let name = accepting_chain(&listener, &connection).map(|chain| &*chain.name);
        assert_eq!(name, Some(chain));
    }
}

#[test]
fn path_is_normalized_like_the_connection_manager() {
    let path = "/a/%2e%2e/%61//b%2Fc";
    for (manager, expected) in [
        (json!({}), path),
        (json!({ "normalizePath": true }), "/a//b%2Fc"),
        (json!({ "normalizePath": true, "mergeSlashes": true }), "/a/b%2Fc"),
        (
            json!({ "normalizePath": true, "mergeSlashes": true, "pathWithEscapedSlashesAction": "UNESCAPE_AND_FORWARD" }),
            "/a/b/c",
        ),
    ] {
        let kind =
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let probed = request("GET", &format!("http://a{path}"), &[]);
        let found =
            probed.normalized(path_normalization(&decode(kind, &manager)), DotParameters::Removed);
        assert_eq!(found.path(), expected, "{manager}");
    }
}

#[test]
fn request_is_parsed_as_a_client_sends_it() {
    let probed = request("GET", "HTTPS://[fd00::1]/a/./b/../c?x=1", &["Host: other", "X-A=b:c"]);
    assert_eq!((probed.port(), probed.path(), probed.authority()), (443, "/a/./b/../c", "other"));
    let plain = request("PUT", "Reviews:9080", &[]);
    assert_eq!((plain.port(), plain.path(), plain.authority()), (9080, "/", "Reviews:9080"));
    let bytes = request("GET", "tcp://db:3306", &[]);
    assert_eq!((bytes.port(), bytes.is_bytes, plain.is_bytes), (3306, true, false));
    for (method, url, header, fact) in [
        ("GET", "tcp://db", "a:b", "names no port"),
        ("G T", "a", "a:b", "method"),
        ("GET", "ftp://a", "a:b", "ftp is not"),
        ("GET", "http://a:0/", "a:b", "not a port"),
        ("GET", "http://u@a/", "a:b", "user name"),
        ("GET", "/path", "a:b", "not a URL"),
        ("GET", "a", "ab", "not a header"),
    ] {
        let error = ProbedRequest::parse(method, url, &[header.to_owned()], None);
        let error = error.expect_err("no request");
        assert!(error.contains(fact), "{url}: {error}");
    }
}

#[test]
fn redirect_location_equals_envoys() {
    let probed = request("GET", "http://a.b:81/old/x?q=1", &[]);
    let wanted: route::RouteMatch =
        decode("envoy.config.route.v3.RouteMatch", &json!({ "prefix": "/old/" }));
    for (redirect, status, location) in [
        (json!({}), 301, "http://a.b:81/old/x?q=1"),
        (json!({ "hostRedirect": "c.d", "responseCode": "FOUND" }), 302, "http://c.d/old/x?q=1"),
        (json!({ "pathRedirect": "/new" }), 301, "http://a.b:81/new?q=1"),
        (json!({ "prefixRewrite": "/new/" }), 301, "http://a.b:81/new/x?q=1"),
        (json!({ "schemeRedirect": "https" }), 301, "https://a.b:81/old/x?q=1"),
        (
            json!({ "portRedirect": 8080, "responseCode": "SEE_OTHER" }),
            303,
            "http://a.b:8080/old/x?q=1",
        ),
    ] {
        let redirect: route::RedirectAction =
            decode("envoy.config.route.v3.RedirectAction", &redirect);
        let found = probed.redirected(&redirect, Some(&wanted));
        assert_eq!(found, (status, location.to_owned()));
    }
    let https: route::RedirectAction =
        decode("envoy.config.route.v3.RedirectAction", &json!({ "schemeRedirect": "https" }));
    let implied = request("GET", "http://a.b:80/", &[]).redirected(&https, None);
    assert_eq!(implied, (301, "https://a.b/".to_owned()));
}
