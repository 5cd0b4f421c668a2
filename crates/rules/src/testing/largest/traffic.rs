//! Templates of VirtualServices, DestinationRules and Gateways.

use serde_json::{Value, json};

use super::{list, map};

pub(super) fn virtual_service() -> Vec<(&'static str, Value)> {
    let to = json!([{"destination": {"host": "a"}}]);
    let with_match = |one: Value| json!({"hosts": ["h"], "http": [{"match": [one], "route": to}]});
    let rule_with = |field: &str, value: Value| {
        let mut rule = json!({ "route": to });
        rule[field] = value;
        json!({"hosts": ["h"], "http": [rule]})
    };
    let tcp_to = json!([{"destination": {"host": "a", "port": {"number": 80}}}]);
    vec![
        ("hosts", json!({"hosts": list(json!("h#")), "http": [{ "route": to }]})),
        ("hosts below", json!({"hosts": list(json!("*.h#.b")), "http": [{ "route": to }]})),
        ("same hosts", json!({"hosts": list(json!("h")), "http": [{ "route": to }]})),
        ("invalid hosts", json!({"hosts": list(json!("-#!")), "http": [{ "route": to }]})),
        ("hosts with tcp", json!({"hosts": list(json!("h#")), "tcp": [{ "route": tcp_to }]})),
        (
            "hosts at a gateway",
            json!({"hosts": list(json!("h#.b")), "gateways": ["large"], "http": [{ "route": to }]}),
        ),
        (
            "gateways",
            json!({"hosts": ["h.b"], "gateways": list(json!("g#")), "http": [{ "route": to }]}),
        ),
        (
            "exportTo",
            json!({"hosts": ["h"], "exportTo": list(json!("n#")), "http": [{ "route": to }]}),
        ),
        (
            "same exportTo",
            json!({"hosts": ["h"], "exportTo": list(json!("*")), "http": [{ "route": to }]}),
        ),
        ("http", json!({"hosts": ["h"], "http": list(json!({ "route": to }))})),
        (
            "http with matches",
            json!({
                "hosts": ["h"],
                "http": list(json!({"match": [{"uri": {"prefix": "/#"}}], "route": to})),
            }),
        ),
        (
            "http with regexes",
            json!({
                "hosts": ["h"],
                "http": list(json!({"match": [{"uri": {"regex": "/#.*"}}], "route": to})),
            }),
        ),
        (
            "http to many services",
            json!({
                "hosts": ["h"],
                "http": list(json!({
                    "match": [{"uri": {"prefix": "/#"}}],
                    "route": [{"destination": {"host": "a#"}}],
                })),
            }),
        ),
        (
            "hosts and http to many services",
            json!({
                "hosts": list(json!("h#")),
                "tcp": list(json!({
                    "match": [{"port": 80}],
                    "route": [{"destination": {"host": "a#"}}],
                })),
            }),
        ),
        (
            "http with delegates",
            json!({
                "hosts": ["h"],
                "http": list(json!({"match": [{"uri": {"prefix": "/#"}}], "delegate": {"name": "d#"}})),
            }),
        ),
        (
            "http of source namespaces",
            json!({
                "hosts": ["h"],
                "http": list(json!({"match": [{"sourceNamespace": "n#"}], "route": to})),
            }),
        ),
        (
            "http of source labels",
            json!({
                "hosts": ["h"],
                "http": list(json!({"match": [{"sourceLabels": {"k#": "v"}}], "route": to})),
            }),
        ),
        (
            "match",
            json!({
                "hosts": ["h"],
                "http": [{"match": list(json!({"uri": {"exact": "/#"}})), "route": to}],
            }),
        ),
        ("match.headers", with_match(json!({"headers": map("h#", json!({"exact": "v"}))}))),
        (
            "match.withoutHeaders",
            with_match(json!({"withoutHeaders": map("h#", json!({"exact": "v"}))})),
        ),
        ("match.queryParams", with_match(json!({"queryParams": map("q#", json!({"exact": "v"}))}))),
        ("match.sourceLabels", with_match(json!({"sourceLabels": map("k#", json!("v"))}))),
        ("match.gateways", with_match(json!({"gateways": list(json!("g#"))}))),
        (
            "route",
            json!({
                "hosts": ["h"],
                "http": [{"route": list(json!({"destination": {"host": "a#"}, "weight": 1}))}],
            }),
        ),
        (
            "headers.request.set",
            rule_with("headers", json!({"request": {"set": map("h#", json!("v"))}})),
        ),
        (
            "headers.request.add",
            rule_with("headers", json!({"request": {"add": map("h#", json!("v"))}})),
        ),
        (
            "headers.request.remove",
            rule_with("headers", json!({"request": {"remove": list(json!("h#"))}})),
        ),
        (
            "headers.response.set",
            rule_with("headers", json!({"response": {"set": map("h#", json!("v"))}})),
        ),
        (
            "mirrors",
            rule_with(
                "mirrors",
                list(json!({"destination": {"host": "a#"}, "percentage": {"value": 1}})),
            ),
        ),
        (
            "corsPolicy.allowOrigins",
            rule_with("corsPolicy", json!({"allowOrigins": list(json!({"exact": "o#"}))})),
        ),
        (
            "corsPolicy.allowMethods",
            rule_with("corsPolicy", json!({"allowMethods": list(json!("GET"))})),
        ),
        (
            "corsPolicy.allowHeaders",
            rule_with("corsPolicy", json!({"allowHeaders": list(json!("h#"))})),
        ),
        (
            "tls",
            json!({
                "hosts": ["*.b"],
                "tls": list(json!({"match": [{"sniHosts": ["h#.b"]}], "route": tcp_to})),
            }),
        ),
        (
            "tls.match",
            json!({
                "hosts": ["*.b"],
                "tls": [{"match": list(json!({"sniHosts": ["h#.b"]})), "route": tcp_to}],
            }),
        ),
        (
            "hosts and sniHosts",
            json!({
                "hosts": list(json!("h#.b")),
                "tls": [{"match": [{"sniHosts": list(json!("h#.b"))}], "route": tcp_to}],
            }),
        ),
        (
            "tcp",
            json!({
                "hosts": ["h"],
                "tcp": list(json!({"match": [{"destinationSubnets": ["10.0.0.0/8"]}], "route": tcp_to})),
            }),
        ),
        (
            "tcp.match.destinationSubnets",
            json!({
                "hosts": ["h"],
                "tcp": [{
                    "match": [{"destinationSubnets": list(json!("10.0.0.0/8"))}],
                    "route": tcp_to,
                }],
            }),
        ),
        (
            "tcp.route",
            json!({
                "hosts": ["h"],
                "tcp": [{"route": list(json!({"destination": {"host": "a#"}, "weight": 1}))}],
            }),
        ),
    ]
}

pub(super) fn destination_rule() -> Vec<(&'static str, Value)> {
    let policy = |one: Value| json!({"host": "a", "trafficPolicy": one});
    vec![
        (
            "subsets",
            json!({"host": "a", "subsets": list(json!({"name": "s#", "labels": {"v": "#"}}))}),
        ),
        ("same subsets", json!({"host": "a", "subsets": list(json!({"name": "s"}))})),
        (
            "subsets with policies",
            json!({
                "host": "a",
                "subsets": list(json!({
                    "name": "s#",
                    "trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": "#number"}}},
                })),
            }),
        ),
        (
            "subsets.labels",
            json!({"host": "a", "subsets": [{"name": "s", "labels": map("k#", json!("v"))}]}),
        ),
        ("exportTo", json!({"host": "a", "exportTo": list(json!("n#"))})),
        ("same exportTo", json!({"host": "a", "exportTo": list(json!("*"))})),
        (
            "workloadSelector",
            json!({"host": "a", "workloadSelector": {"matchLabels": map("k#", json!("v"))}}),
        ),
        (
            "portLevelSettings",
            policy(json!({"portLevelSettings": list(json!({"port": {"number": "#number"}}))})),
        ),
        (
            "subjectAltNames",
            policy(json!({"tls": {"mode": "SIMPLE", "subjectAltNames": list(json!("h#"))}})),
        ),
        (
            "distribute",
            policy(json!({"loadBalancer": {"localityLbSetting": {
                "distribute": list(json!({"from": "r#", "to": {"r": 100}})),
            }}})),
        ),
        (
            "distribute.to",
            policy(json!({"loadBalancer": {"localityLbSetting": {
                "distribute": [{"from": "r", "to": map("r#", json!(1))}],
            }}})),
        ),
        (
            "failover",
            policy(json!({"outlierDetection": {}, "loadBalancer": {"localityLbSetting": {
                "failover": list(json!({"from": "r#", "to": "q#"})),
            }}})),
        ),
        (
            "failoverPriority",
            policy(json!({"outlierDetection": {}, "loadBalancer": {"localityLbSetting": {
                "failoverPriority": list(json!("k#")),
            }}})),
        ),
    ]
}

pub(super) fn gateway() -> Vec<(&'static str, Value)> {
    let http = json!({"number": 80, "name": "http", "protocol": "HTTP"});
    let https = json!({"number": 443, "name": "https", "protocol": "HTTPS"});
    let with_tls = |settings: Value| {
        let mut tls = json!({"mode": "SIMPLE", "credentialName": "c"});
        for (name, value) in settings.as_object().into_iter().flatten() {
            tls[name] = value.clone();
        }
        json!({"selector": {"a": "b"}, "servers": [{"port": https, "hosts": ["*"], "tls": tls}]})
    };
    let with_hosts =
        |hosts: Value| json!({"selector": {"a": "b"}, "servers": [{"port": http, "hosts": hosts}]});
    let passed_on = json!({"mode": "PASSTHROUGH"});
    vec![
        (
            "selector",
            json!({"selector": map("k#", json!("v")), "servers": [{"port": http, "hosts": ["*"]}]}),
        ),
        (
            "servers",
            json!({"selector": {"a": "b"}, "servers": list(json!({
                "port": {"number": "#number", "name": "p#", "protocol": "HTTP"}, "hosts": ["*"],
            }))}),
        ),
        (
            "servers of one port",
            json!({"selector": {"a": "b"}, "servers": list(json!({
                "port": {"number": 443, "name": "p#", "protocol": "TLS"}, "hosts": ["h#"], "tls": passed_on,
            }))}),
        ),
        (
            "servers in conflict",
            json!({"selector": {"a": "b"}, "servers": list(json!({
                "port": {"number": 443, "name": "p#", "protocol": "TLS"}, "hosts": ["h"], "tls": passed_on,
            }))}),
        ),
        ("hosts", with_hosts(list(json!("h#.b")))),
        ("same hosts", with_hosts(list(json!("h.b")))),
        ("hosts of namespaces", with_hosts(list(json!("n#/h.b")))),
        (
            "hosts in TLS",
            json!({"selector": {"a": "b"}, "servers": [{
                "port": https, "hosts": list(json!("h#.b")), "tls": passed_on,
            }]}),
        ),
        (
            "hosts of namespaces in TLS",
            json!({"selector": {"a": "b"}, "servers": [{
                "port": https, "hosts": list(json!("n#/h.b")), "tls": passed_on,
            }]}),
        ),
        (
            "subjectAltNames",
            with_tls(json!({"mode": "MUTUAL", "subjectAltNames": list(json!("h#"))})),
        ),
        ("cipherSuites", with_tls(json!({"cipherSuites": list(json!("c#"))}))),
        ("verifyCertificateSpki", with_tls(json!({"verifyCertificateSpki": list(json!("h#"))}))),
        ("credentialNames", with_tls(json!({"credentialNames": list(json!("c#"))}))),
    ]
}
