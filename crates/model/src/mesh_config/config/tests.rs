//! Parsing of mesh configs, and rejection of invalid ones.

use super::*;

fn parse(text: &str) -> MeshConfig {
    MeshConfig::parse(text, &Defaults::default()).expect("the text is a mesh config")
}

#[test]
fn mtls_parameters_are_parsed_and_values_unknown_to_envoy_are_refused() {
    let parse_mesh_mtls = |text: &str| parse(&format!("meshMTLS: {text}"));
    let ciphers = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let aes = "ECDHE-RSA-AES256-GCM-SHA384";
    for (text, newest_alone, names) in [
        ("{}", false, &[][..]),
        ("{minProtocolVersion: TLS_AUTO}", false, &[]),
        ("{minProtocolVersion: TLSV1_3}", true, &[]),
        (
            "{minProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384]}",
            false,
            &[aes],
        ),
    ] {
        let expected = MeshTls { newest_alone, ciphers: ciphers(names), curves: Vec::new() };
        assert_eq!(*parse_mesh_mtls(text).mesh_tls, expected, "{text}");
    }
    assert_eq!(parse_mesh_mtls("{ecdhCurves: [P-256]}").ignored, ["meshMTLS.ecdhCurves"]);
    let defaults = parse("tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-256]}");
    assert!(defaults.tls_defaults.newest_alone && !defaults.mesh_tls.newest_alone);
    assert_eq!(*defaults.tls_defaults.curves, ["P-256".into()]);
    assert!(defaults.ignored.is_empty(), "{:?}", defaults.ignored);
    let message = error("tlsDefaults: {ecdhCurves: [P-256, P-512]}");
    assert!(message.contains("\"P-512\" is not a curve that Envoy supports"), "{message}");
    let message = error("meshMTLS: {minProtocolVersion: TLSV1_1}");
    assert!(message.contains("meshMTLS") && message.contains("\"TLSV1_1\" may be"), "{message}");
    let message = error("meshMTLS: {cipherSuites: [RC4]}");
    assert!(message.contains("\"RC4\" is not a cipher that Envoy supports"), "{message}");
}

fn error(text: &str) -> String {
    MeshConfig::parse(text, &Defaults::default()).expect_err(text).to_string()
}

#[test]
fn empty_text_is_the_default() {
    for text in ["", "\n", "{}", "# nothing\n", "trustDomain:\nserviceSettings: null\n"] {
        assert_eq!(parse(text), MeshConfig::default(), "{text:?}");
    }
}

#[test]
fn known_fields_take_effect_and_others_are_reported() {
    let parsed = parse(
        "trustDomain: mesh.example\n\
         trustDomainAliases: [b, a, a]\n\
         connectTimeout: 1m\n\
         outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n\
         enableAutoMtls: false\n\
         accessLogFile: /dev/stdout\n\
         enableTracing: true\n\
         tcpKeepalive: {probes: 3, time: 10s}\n\
         proxyListenPort: 16001\n\
         defaultConfig: {discoveryAddress: x}\n\
         enablePrometheusMerge: true\n",
    );
    let ignored = ["defaultConfig.discoveryAddress", "enablePrometheusMerge", "enableTracing"];
    let expected = MeshConfig {
        ignored: ignored.map(str::to_owned).into(),
        trust_domain: "mesh.example".to_owned(),
        trust_domain_aliases: vec!["a".to_owned(), "b".to_owned()],
        connect_timeout: Duration::from_secs(60),
        outbound_traffic_policy: OutboundTrafficPolicy::RegistryOnly,
        enable_auto_mtls: false,
        default_logs: vec!["envoy".into()],
        tcp_keepalive: Some(TcpKeepalive {
            probes: Some(3),
            time: Some(Duration::from_secs(10)),
            interval: None,
        }),
        proxy_listen_port: 16001,
        ..MeshConfig::default()
    };
    assert_eq!(parsed, expected);
}

#[test]
fn invalid_value_is_reported_with_line_and_field() {
    let cases = [
        ("trustDomain: a\nconnectTimeout: 12x\n", "line 2, connectTimeout: ", "\"12x\""),
        ("connectTimeout: 0s\n", "line 1, connectTimeout: ", "above zero"),
        ("\nenableAutoMtls: maybe\n", "line 2, enableAutoMtls: ", "expected a boolean"),
        ("trustDomain: [a]\n", "line 1, trustDomain: ", "expected a string"),
        ("proxyListenPort: 65536\n", "line 1, proxyListenPort: ", "65536"),
        ("outboundTrafficPolicy: {mode: DENY}\n", "line 1, outboundTrafficPolicy: ", "ALLOW_ANY"),
        ("serviceSettings: {}\n", "line 1, serviceSettings: ", "expected a sequence"),
        ("tcpKeepalive: {time: soon}\n", "line 1, tcpKeepalive: ", "soon"),
        (
            "discoverySelectors: [{matchExpressions: [{key: a, operator: Is}]}]\n",
            "line 1, discoverySelectors: ",
            "Is",
        ),
        ("a: b\na: c\n", "line 2: ", "a"),
        ("trustDomain: {\n", "line ", ""),
        ("just text\n", "line 1: ", ""),
    ];
    for (text, start, part) in cases {
        let message = error(text);
        assert!(message.starts_with(start) && message.contains(part), "{text:?} gives {message:?}");
        assert!(!message.contains('\n'), "{message:?}");
    }
}

#[test]
fn most_specific_host_decides_whether_a_service_is_cluster_local() {
    let config = parse(
        "serviceSettings:\n\
         - settings: {clusterLocal: true}\n  hosts: ['*.shop.svc.cluster.local', 'one.lab.svc.cluster.local']\n\
         - settings: {clusterLocal: false}\n  hosts: ['dns.kube-system.svc.cluster.local', '*.open.shop.svc.cluster.local']\n",
    );
    let cases = [
        ("kubernetes.default.svc.cluster.local", true),
        ("other.default.svc.cluster.local", false),
        ("metrics.kube-system.svc.cluster.local", true),
        ("dns.kube-system.svc.cluster.local", false),
        ("a.shop.svc.cluster.local", true),
        ("A.Shop.svc.cluster.local", true),
        ("a.open.shop.svc.cluster.local", false),
        ("shop.svc.cluster.local", false),
        ("one.lab.svc.cluster.local", true),
        ("two.lab.svc.cluster.local", false),
        ("", false),
    ];
    for (host, expected) in cases {
        assert_eq!(config.cluster_local(&host.into()), expected, "{host}");
    }
    let all = parse("serviceSettings: [{settings: {clusterLocal: true}, hosts: ['*']}]");
    assert!(all.cluster_local(&"api.example.com".into()));
}

#[test]
fn effective_config_round_trips() {
    let config = parse(
        "connectTimeout: 1.5s\ntcpKeepalive: {probes: 2}\n\
         extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: a.b, port: 80}}]\n\
         discoverySelectors: [{matchLabels: {mesh: in}}]\n\
         tlsDefaults: {ecdhCurves: [P-384]}\n\
         defaultTrafficPolicy: {connectionPool: {tcp: {maxConnections: 3, connectTimeout: 2s, tcpKeepalive: {time: 5s}}, \
         http: {http2MaxRequests: 9, h2UpgradePolicy: UPGRADE}}, outlierDetection: {interval: 1s, maxEjectionPercent: 50, outlierDetectionHttpErrorCodes: [429]}}\n",
    );
    let again = parse(&config.to_json().to_string());
    assert_eq!(again, config);
}

#[test]
fn limits_of_the_mesh_apply_completely_or_not_at_all() {
    let parse_policy = |text: &str| parse(&format!("defaultTrafficPolicy: {text}"));
    assert_eq!(parse_policy("{}").usual_limits, UsualLimits::default());
    let limits = parse_policy("{connectionPool: {tcp: {maxConnections: 3}}, outlierDetection: {}}")
        .usual_limits;
    assert_eq!(limits.connection_pool.and_then(|pool| pool.max_connections), Some(3));
    assert!(limits.outlier_detection.is_some());
    let more =
        "{loadBalancer: {}, connectionPool: {tcp: {odd: 1}}, outlierDetection: {zoneAware: {}}}";
    assert_eq!(
        parse_policy(more).ignored,
        [
            "defaultTrafficPolicy.connectionPool.tcp.odd",
            "defaultTrafficPolicy.loadBalancer",
            "defaultTrafficPolicy.outlierDetection.zoneAware",
        ]
    );
    let zeros = parse_policy(
        "{connectionPool: {tcp: {connectTimeout: 0s}}, outlierDetection: {interval: 0s}}",
    );
    assert_eq!(
        zeros.ignored,
        [
            "defaultTrafficPolicy.connectionPool.tcp.connectTimeout",
            "defaultTrafficPolicy.outlierDetection.interval",
        ]
    );
    for (text, fact) in [
        (
            "{outlierDetection: {maxEjectionPercent: 101}}",
            "outlierDetection.maxEjectionPercent: 101",
        ),
        (
            "{outlierDetection: {consecutiveErrors: 1}}",
            "outlierDetection.consecutiveErrors: it is not supported",
        ),
        (
            "{connectionPool: {http: {http2KeepAlive: {interval: 1s}}}}",
            "connectionPool.http.http2KeepAlive",
        ),
        (
            "{connectionPool: {http: {maxConcurrentStreams: 3000000000}}}",
            "maxConcurrentStreams: 3000000000 is more",
        ),
        ("{outlierDetection: {interval: 1us}}", "outlierDetection.interval: is less than 1 ms"),
        (
            "{connectionPool: {tcp: {maxConnectionDuration: 1us}}}",
            "tcp.maxConnectionDuration: is less than 1 ms; 1 ms applies",
        ),
        ("{connectionPool: {tcp: {maxConnections: many}}}", "connectionPool: invalid type"),
    ] {
        let message = error(&format!("defaultTrafficPolicy: {text}"));
        assert!(message.contains("defaultTrafficPolicy") && message.contains(fact), "{message}");
    }
}
