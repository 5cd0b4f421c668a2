use serde_json::{Value, json};

use super::*;

fn gateway(created: i64, name: &str, servers: &Value) -> Arc<Gateway> {
    let meta = ObjectMeta { created, name: name.into(), namespace: "edge".into() };
    let object = json!({ "spec": { "selector": { "app": "gw" }, "servers": servers } });
    Arc::new(Gateway::read(meta, &object).expect("it fits its schema").0)
}

fn http(port: u16, host: &str) -> Value {
    json!({ "port": { "number": port, "name": "http", "protocol": "HTTP" }, "hosts": [host] })
}

fn tcp(port: u16) -> Value {
    json!({ "port": { "number": port, "name": "tcp", "protocol": "TCP" }, "hosts": ["*"] })
}

fn https(port: u16, hosts: &[&str]) -> Value {
    let tls = json!({ "mode": "SIMPLE", "credentialName": "cert" });
    let port = json!({ "number": port, "name": "https", "protocol": "HTTPS" });
    json!({ "port": port, "hosts": hosts, "tls": tls })
}

/// Returns the servers of each port, and the reasons by Gateway.
fn merged_text(gateways: &[Arc<Gateway>]) -> (Vec<String>, Vec<String>) {
    merged_in(GatewayScope::AnyNamespace, gateways)
}

/// Returns the servers of each port, and the reasons by Gateway, for a gateway proxy in the
/// namespace `edge`.
fn merged_in(scope: GatewayScope, gateways: &[Arc<Gateway>]) -> (Vec<String>, Vec<String>) {
    let mut objects = GatewayObjects::default();
    let mut all = Gateways::empty(scope);
    for gateway in gateways {
        objects.insert(Arc::clone(gateway), &mut all, &mut TrafficChanges::default());
    }
    let labels = [("app".into(), "gw".into()), ("x".into(), "y".into())].into_iter().collect();
    let hosts = |server: &PlacedServer<'_>| {
        let hosts: Vec<_> = server.hosts.iter().map(|one| one.host.to_string()).collect();
        format!("{}={}", server.gateway.meta.name, hosts.join(","))
    };
    let text = |port: &GatewayPort<'_>| {
        let listed = |kind: &str, all: &[PlacedServer<'_>]| {
            all.iter().map(|one| format!(" {kind} {}", hosts(one))).collect::<String>()
        };
        let tcp: Vec<_> = port.tcp.iter().cloned().collect();
        format!(
            "{}:{}{}{}",
            port.number,
            listed("http", &port.http),
            listed("tcp", &tcp),
            listed("tls", &port.tls)
        )
    };
    let ports = merged(all.selecting(&"edge".into(), &labels), Some).iter().map(text).collect();
    let news = objects.take_new_reasons(&all);
    let news = news.iter().map(|(meta, one)| format!("{} {} {}", meta.name, one.code, one.path));
    (ports, news.collect())
}

#[test]
fn oldest_server_decides_the_protocol_of_a_plaintext_port() {
    let older = gateway(1, "a", &json!([http(80, "a.com"), tcp(90)]));
    let later = gateway(2, "b", &json!([https(80, &["b.com"]), http(80, "b.com"), http(90, "*")]));
    let (ports, news) = merged_text(&[later, older]);
    assert_eq!(ports, ["80: http a=a.com http b=b.com", "90: tcp a=*"]);
    assert_eq!(news, ["b STR1011 spec.servers[0]", "b STR1011 spec.servers[2]"]);
}

#[test]
fn plaintext_may_share_a_port_with_tls() {
    let older = gateway(1, "a", &json!([https(443, &["a.com"])]));
    let later = gateway(2, "b", &json!([http(443, "b.com"), https(443, &["b.com"])]));
    let (ports, news) = merged_text(&[older, later]);
    assert_eq!(ports, ["443: http b=b.com tls a=a.com tls b=b.com"]);
    assert!(news.is_empty(), "{news:?}");
}

#[test]
fn younger_tls_server_loses_only_duplicate_hosts() {
    let older = gateway(1, "a", &json!([https(443, &["one/a.com", "two/a.com"])]));
    let later =
        gateway(2, "b", &json!([https(443, &["x/A.com", "b.com"]), https(443, &["a.com"])]));
    let (ports, news) = merged_text(&[older, later]);
    assert_eq!(ports, ["443: tls a=a.com,a.com tls b=b.com"]);
    assert_eq!(news, ["b STR1011 spec.servers[0].hosts", "b STR1011 spec.servers[1].hosts"]);
}

#[test]
fn host_that_another_server_redirects_is_lost() {
    let redirecting = |host: &str| {
        let mut server = http(80, host);
        server["tls"] = json!({ "httpsRedirect": true });
        server
    };
    let older = gateway(1, "a", &json!([http(80, "b.com"), http(90, "a.com")]));
    let both = [redirecting("a.com"), redirecting("b.com"), redirecting("*.com")];
    let redirects = gateway(2, "b", &json!(both));
    let later =
        gateway(3, "c", &json!([http(80, "x/a.com"), http(80, "*.com"), http(80, "c.com")]));
    let (_, news) = merged_text(&[older, redirects, later]);
    assert_eq!(news, ["a STR1011 spec.servers[0].hosts", "c STR1011 spec.servers[0].hosts"]);
}

#[test]
fn scoped_gateways_do_not_affect_proxies_of_other_namespaces() {
    let own = gateway(2, "own", &json!([https(443, &["a.com"])]));
    let mut strange = Gateway::clone(&gateway(1, "strange", &json!([https(443, &["a.com"])])));
    strange.meta.namespace = "other".into();
    let both = [Arc::new(strange), own];
    let (ports, news) = merged_in(GatewayScope::AnyNamespace, &both);
    assert_eq!((&*ports[0], news.len()), ("443: tls strange=a.com", 1));
    let (ports, news) = merged_in(GatewayScope::OwnNamespace, &both);
    assert_eq!((&*ports[0], news.len()), ("443: tls own=a.com", 0));
}

#[test]
fn rules_without_a_matching_server_have_a_reason() {
    let mut all = Gateways::empty(GatewayScope::AnyNamespace);
    let passthrough = json!({
        "port": { "number": 444, "name": "tls", "protocol": "TLS" }, "hosts": ["a.example"],
        "tls": { "mode": "PASSTHROUGH" },
    });
    let ended = json!({
        "port": { "number": 445, "name": "tls", "protocol": "TLS" }, "hosts": ["a.example"],
        "tls": { "mode": "SIMPLE", "credentialName": "cert" },
    });
    for added in [
        gateway(0, "plain", &json!([http(80, "a.example")])),
        gateway(0, "ends", &json!([https(443, &["a.example"])])),
        gateway(0, "passes", &json!([passthrough])),
        gateway(0, "bytes", &json!([tcp(9000)])),
        gateway(0, "opens", &json!([ended])),
    ] {
        GatewayObjects::default().insert(added, &mut all, &mut TrafficChanges::default());
    }
    let to = "route: [{destination: {host: a.example}}]";
    let judged = |gateways: &str, rules: &str| {
        let spec = format!("{{hosts: [a.example], gateways: {gateways}, {rules}}}");
        let spec: Value = serde_saphyr::from_str(&spec).expect("the text is YAML");
        let meta = ObjectMeta { created: 0, name: "vs".into(), namespace: "edge".into() };
        let settings = crate::testing::kind_settings();
        let object = json!({ "spec": spec });
        let (service, reasons) = VirtualService::read(meta, &object, &settings).expect("it fits");
        assert_eq!(reasons, []);
        let found = all.rules_without_a_server(&service);
        found.iter().map(|one| format!("{} {}", one.code.id, one.path)).collect::<Vec<_>>()
    };
    let http = &format!("http: [{{{to}}}]");
    let tls = &format!("tls: [{{match: [{{sniHosts: [a.example]}}], {to}}}]");
    let tcp = &format!("tcp: [{{{to}}}]");
    let protocol = |path: &str| vec![format!("STR1047 {path}")];
    // The protocol does not match.
    for (gateways, list, path) in [
        ("[passes]", http, "spec.http[0]"),
        ("[bytes]", http, "spec.http[0]"),
        ("[opens]", http, "spec.http[0]"),
        ("[plain]", tls, "spec.tls[0].match[0]"),
        ("[ends]", tls, "spec.tls[0].match[0]"),
        ("[opens]", tls, "spec.tls[0].match[0]"),
        ("[plain]", tcp, "spec.tcp[0]"),
        ("[ends]", tcp, "spec.tcp[0]"),
        ("[passes]", tcp, "spec.tcp[0]"),
    ] {
        assert_eq!(judged(gateways, list), protocol(path), "{gateways} {list}");
    }
    // The port or the gateways do not match.
    let list_spec = |list: &str, matches: &str| format!("{list}: [{{match: [{matches}], {to}}}]");
    for (list, names) in [("http", ""), ("tls", "sniHosts: [a.example], "), ("tcp", "")] {
        let gateway = match list {
            "http" => "[ends]",
            "tls" => "[passes]",
            _ => "[bytes]",
        };
        let port = judged(gateway, &list_spec(list, &format!("{{{names}port: 81}}")));
        assert_eq!(port, [format!("{} spec.{list}[0].match[0].port", codes::TRAFFIC_PORT.id)]);
        let other = judged(gateway, &list_spec(list, &format!("{{{names}gateways: [other]}}")));
        assert_eq!(other, [format!("STR1012 spec.{list}[0].match[0].gateways")]);
    }
    // The rules apply at some server.
    for (gateways, list) in [
        ("[plain]", http),
        ("[ends]", http),
        ("[passes]", tls),
        ("[bytes]", tcp),
        ("[opens]", tcp),
        ("[plain, passes]", tls),
        ("[mesh, passes]", http),
        ("[absent]", http),
    ] {
        assert_eq!(judged(gateways, list), [""; 0], "{gateways} {list}");
    }
    let matched = list_spec("http", "{port: 443}, {gateways: [plain]}, {port: 80}");
    assert_eq!(judged("[plain, ends]", &matched), [""; 0]);
    let matched = list_spec("http", "{port: 443, gateways: [plain]}");
    assert_eq!(judged("[plain, ends]", &matched).len(), 1);
}

#[test]
fn lost_servers_and_hosts_do_not_remain() {
    let mut all = Gateways::empty(GatewayScope::AnyNamespace);
    for added in [
        gateway(1, "older", &json!([http(80, "a.example"), https(443, &["a.example"])])),
        gateway(2, "later", &json!([tcp(80), https(443, &["a.example", "b.example"]), tcp(90)])),
    ] {
        GatewayObjects::default().insert(added, &mut all, &mut TrafficChanges::default());
    }
    let remaining = all.without_losses();
    let hosts = |name: &str| {
        let servers = remaining.named(name).expect("it remains").servers.iter();
        let hosts =
            |one: &GatewayServer| one.hosts.iter().map(|one| one.host.to_string()).collect();
        servers.map(|one| (one.place, hosts(one))).collect::<Vec<(usize, Vec<String>)>>()
    };
    let listed = |place: usize, host: &str| (place, vec![host.to_owned()]);
    assert_eq!(hosts("edge/older"), [listed(0, "a.example"), listed(1, "a.example")]);
    assert_eq!(hosts("edge/later"), [listed(1, "b.example"), listed(2, "*")]);
}
