use serde_json::json;

use super::*;

fn read(spec: &Value) -> (Gateway, Vec<String>) {
    let meta = ObjectMeta { created: 1, name: "gw".into(), namespace: "edge".into() };
    let (gateway, reasons) =
        Gateway::read(meta, &json!({ "spec": spec })).expect("it fits its schema");
    let reasons = reasons.iter().map(|one| format!("{} {}", one.code, one.path)).collect();
    (gateway, reasons)
}

fn server(port: &Value, tls: &Value) -> (Vec<ServerProtocol>, Vec<String>) {
    let mut server = json!({ "port": port, "hosts": ["*"] });
    if !tls.is_null() {
        server["tls"] = tls.clone();
    }
    let (gateway, reasons) = read(&json!({ "servers": [server] }));
    (gateway.servers.iter().map(|one| one.protocol.clone()).collect(), reasons)
}

#[test]
fn server_that_cannot_be_served_is_left_out_alone() {
    let port = |protocol: &str| json!({ "number": 443, "name": "a", "protocol": protocol });
    for (port, tls, lost) in [
        (
            json!({ "number": 0, "protocol": "HTTP" }),
            Value::Null,
            "STR1004 spec.servers[0].port.number",
        ),
        (port("ODD"), Value::Null, "STR1010 spec.servers[0].port.protocol"),
        (port("HTTPS"), Value::Null, "STR1010 spec.servers[0].tls"),
        (port("HTTPS"), json!({ "mode": "ODD" }), "STR1010 spec.servers[0].tls.mode"),
        (port("HTTPS"), json!({ "mode": "SIMPLE" }), "STR1010 spec.servers[0].tls.credentialName"),
        (
            port("TLS"),
            json!({ "mode": "SIMPLE", "credentialName": "a", "maxProtocolVersion": "TLSV1_1" }),
            "STR1010 spec.servers[0].tls.maxProtocolVersion",
        ),
    ] {
        assert_eq!(server(&port, &tls), (vec![], vec![lost.to_owned()]));
    }
}

#[test]
fn duplicate_names_and_hosts_are_reported() {
    let server = |number: u32, name: &str| json!({ "port": { "number": number, "name": name, "protocol": "HTTP" }, "hosts": ["a.example", "*/A.example"] });
    let (gateway, reasons) = read(
        &json!({ "servers": [server(80, "http"), server(81, ""), server(82, "http"), server(83, "")] }),
    );
    let expected = [
        "STR1010 spec.servers[2].port.name",
        "STR1010 spec.servers[0].hosts[1]",
        "STR1010 spec.servers[1].hosts[1]",
        "STR1010 spec.servers[2].hosts[1]",
        "STR1010 spec.servers[3].hosts[1]",
    ];
    assert_eq!(reasons, expected);
    assert_eq!(gateway.servers.len(), 4, "all are served");
    assert!(gateway.servers.iter().all(|server| server.hosts.len() == 1));
}

#[test]
fn tls_block_without_a_mode_is_passthrough_with_a_warning() {
    let port = json!({ "number": 443, "protocol": "https" });
    let (protocols, reasons) = server(&port, &json!({}));
    assert_eq!(protocols, [ServerProtocol::Passthrough]);
    assert_eq!(reasons, ["STR1010 spec.servers[0].tls"]);
}

#[test]
fn unknown_cipher_is_left_out() {
    let port = json!({ "number": 443, "protocol": "HTTPS" });
    let ciphers = ["ECDHE-RSA-AES128-GCM-SHA256", "ODD"];
    let tls = json!({ "mode": "SIMPLE", "credentialName": "a", "cipherSuites": ciphers });
    let (protocols, reasons) = server(&port, &tls);
    let [ServerProtocol::Https(tls)] = &*protocols else { panic!("{protocols:?}") };
    assert_eq!(tls.ciphers.iter().map(|one| &**one).collect::<Vec<_>>(), ciphers[..1]);
    assert_eq!(reasons, ["STR1010 spec.servers[0].tls.cipherSuites[1]"]);
}

#[test]
fn invalid_host_is_left_out_alone() {
    let port = json!({ "number": 80, "protocol": "HTTP" });
    let hosts = ["./A.com", "shop/*.b.com", "*/*", "c", "a..b", "x/*bad"];
    let (gateway, reasons) = read(&json!({ "servers": [{ "port": port, "hosts": hosts }] }));
    let hosts = gateway.servers[0].hosts.iter();
    let hosts: Vec<_> = hosts
        .map(|one| (one.namespace.as_ref().map(|one| one.to_string()), one.host.to_string()))
        .collect();
    let in_namespace = |namespace: &str, host: &str| (Some(namespace.to_owned()), host.to_owned());
    let any = |host: &str| (None, host.to_owned());
    assert_eq!(
        hosts,
        [in_namespace("edge", "a.com"), in_namespace("shop", "*.b.com"), any("*"), any("c")]
    );
    assert_eq!(reasons, ["STR1010 spec.servers[0].hosts[4]", "STR1010 spec.servers[0].hosts[5]"]);
}
